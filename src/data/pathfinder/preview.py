"""Preview sheet of images with their numbers and labels."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from .generate import Images

_TEXT_HEIGHT = 14
_GAP = 4
_LEAST_SIDE = 128


def write_sheet(path: Path, drawn: Images, first: int = 0) -> None:
    """Save the images as a near-square grid, each enlarged to at least 128 px and titled with its number and label.

    Args:
        path: picture file.
        drawn: images to show.
        first: number of the first image.
    """
    from PIL import Image, ImageDraw

    n, size = drawn.images.shape[:2]
    scale = max(1, _LEAST_SIDE // size)
    side, columns = size * scale, math.ceil(math.sqrt(n))
    cell_width, cell_height = side + _GAP, side + _TEXT_HEIGHT + _GAP
    sheet = Image.new("L", (columns * cell_width + _GAP, math.ceil(n / columns) * cell_height + _GAP), 64)
    pen = ImageDraw.Draw(sheet)
    for index in range(n):
        x, y = _GAP + index % columns * cell_width, _GAP + index // columns * cell_height
        answer = "same curve" if drawn.labels[index] else "two curves"
        pen.text((x, y), f"{first + index}: {drawn.labels[index]} {answer}", fill=255)
        enlarged = np.kron(drawn.images[index], np.ones((scale, scale), np.uint8))
        sheet.paste(Image.fromarray(enlarged), (x, y + _TEXT_HEIGHT))
    sheet.save(path)
