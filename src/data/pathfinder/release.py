"""Read the benchmark's own files: `imgs/<group>/sample_<k>.png` and a text table per group.

A table `metadata/<group>.npy` is text in spite of its name, one line per image, separated by spaces:

    imgs/0 sample_0.png 0 1 1.0 14 4.666666666666667 2 0.5 1 1

The columns are folder, file, index in the group, label, continuity, contour length, distractor length, paddle length,
thickness, margin, number of contrasts. The public generator writes a real array file instead; both are read.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...errors import UsageError
from ..finder import Expected
from ..progress import progress
from ..safe import read_npy
from .parameters import FOLDERS

GROUP = 1000
_COLUMN_FOLDER, _COLUMN_FILE, _COLUMN_LABEL = 0, 1, 3
_log = logging.getLogger(__name__)


class Row(NamedTuple):
    """One image of the release: its file, relative to the folder of the difficulty, and its label."""

    file: str
    label: int


def expected(size: int, difficulty: str, task: str) -> Expected:
    """Expected layout of the folder of one size."""
    folder = FOLDERS[difficulty]
    return Expected(
        task=task,
        folders=(f"pathfinder{size}", f"pathfinder/pathfinder{size}"),
        files=(f"{folder}/imgs", f"{folder}/metadata"),
        tree=f"  pathfinder{size}/\n    {folder}/\n      imgs/0/sample_0.png ..  metadata/0.npy ..",
        size=f"200,000 images of {size} x {size}",
        origin="They are part of the Long Range Arena release.",
        instead="Without them leave dataset.source=auto: the images are then drawn by the benchmark's own recipe.",
    )


def find_all(data_dir: Path, size: int, difficulty: str, task: str) -> list[Path]:
    """Folders of any name that hold images of this size and difficulty, best first."""
    folders = expected(size, difficulty, task).find_all(data_dir)
    return [folder for folder in folders if image_size(folder / FOLDERS[difficulty]) == size]


def image_size(folder: Path) -> int | None:
    """Side of the first image that can be opened in the folder of a difficulty; None if there is none."""
    from PIL import Image

    groups = sorted((folder / "imgs").iterdir()) if (folder / "imgs").is_dir() else []
    for group in groups:
        for path in sorted(group.glob("[!.]*.png")):
            try:
                with Image.open(path) as image:
                    return image.size[0]
            except (OSError, SyntaxError, *_too_large()):
                # An empty or damaged file is reported by name when the images are read.
                continue
    return None


def read_tables(folder: Path) -> tuple[list[Row], str]:
    """Rows of all tables in the order of their numbers (2 before 10), and a SHA-256 over the tables.

    Args:
        folder: of a difficulty.
    Raises:
        UsageError: a table is not named by a number, or a row lacks a label 0 or 1 or names a file outside `folder`.
    """
    tables = {_number(path): path for path in (folder / "metadata").iterdir() if not path.name.startswith(".")}
    digest, rows = hashlib.sha256(), []
    for number in sorted(tables):
        content = tables[number].read_bytes()
        digest.update(f"{number}:{len(content)}:".encode() + content)
        rows += [_row(fields, tables[number], folder) for fields in _fields(tables[number], content)]
    return rows, digest.hexdigest()


def read_images(folder: Path, rows: list[Row], size: int) -> Iterator[tuple[Row, np.ndarray | None]]:
    """Images (size, size) uint8 of the rows, in order; None for a file of zero bytes (the release has one).

    Raises:
        UsageError: a file is missing, cut short, or of another size.
    """
    from concurrent.futures import ThreadPoolExecutor

    def read(row: Row) -> np.ndarray | None:
        return _image(folder / row.file, size)

    with ThreadPoolExecutor() as pool, progress(f"Reading {folder}", len(rows)) as advance:
        # Read in pieces: mapping all rows at once would hold every image in memory.
        for start in range(0, len(rows), GROUP):
            piece = rows[start : start + GROUP]
            for row, image in zip(piece, pool.map(read, piece), strict=True):
                if image is None:
                    _log.warning("%s has zero bytes; this image is left out.", folder / row.file)
                yield row, image
            advance(len(piece))


def _number(path: Path) -> int:
    if not path.stem.isdecimal():
        raise UsageError(f"{path}: tables of Pathfinder are named by number (0.npy, 1.npy, ...); move this file away.")
    return int(path.stem)


def _fields(path: Path, content: bytes) -> list[list[str]]:
    if content.startswith(b"\x93NUMPY"):
        try:
            return [[str(field) for field in row] for row in read_npy(path)]
        except (ValueError, TypeError, SystemError) as error:
            # Python raises SystemError for a text of characters that do not exist.
            raise UsageError(f"{path} holds no table ({error}): copy or download it again.") from error
    try:
        return [line.split() for line in content.decode().splitlines() if line]
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is neither text nor an array file: copy or download it again.") from error


def _row(fields: list[str], path: Path, folder: Path) -> Row:
    try:
        file = f"{fields[_COLUMN_FOLDER]}/{fields[_COLUMN_FILE]}"
        # The public generator's array may hold every column as a float.
        label = float(fields[_COLUMN_LABEL])
    except (IndexError, ValueError) as error:
        raise UsageError(f"{path} has a damaged row {' '.join(fields)!r}: copy or download it again.") from error
    if label not in (0, 1) or "\0" in file or ".." in Path(file).parts or Path(file).is_absolute():
        raise UsageError(f"{path} has a row {' '.join(fields)!r}; expected a file below {folder} and a label 0 or 1.")
    return Row(file, int(label))


def _image(path: Path, size: int) -> np.ndarray | None:
    from PIL import Image

    try:
        if path.stat().st_size == 0:
            return None
        with Image.open(path) as image:
            # Check before decoding: a small file may claim a huge image.
            if image.size != (size, size):
                raise UsageError(f"{path} is {image.size[0]} x {image.size[1]} pixels, expected {size} x {size}.")
            return np.asarray(image.convert("L"))
    except FileNotFoundError as error:
        raise UsageError(f"{path}, named in the metadata, is missing: copy or unpack the release again.") from error
    except (OSError, SyntaxError, *_too_large()) as error:
        raise UsageError(f"{path} cannot be read ({error}): copy or unpack the release again.") from error


def _too_large() -> tuple[type[Exception], ...]:
    """Exceptions of Pillow for an image that claims too many pixels; the second one where warnings are errors."""
    from PIL import Image

    return Image.DecompressionBombError, Image.DecompressionBombWarning
