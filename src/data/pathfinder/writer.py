"""Write generated images in the layout of the release, for programs that read this layout."""

from __future__ import annotations

import json
from pathlib import Path

from ...errors import UsageError
from ..progress import progress
from .generate import Generator, run_shards
from .parameters import FOLDERS, differences
from .release import GROUP

_RECIPE = "generator.json"


def write_release(folder: Path, generator: Generator, difficulty: str, n: int, workers: int | None = None) -> Path:
    """Write images 0 .. n - 1 below `folder/pathfinder<size>/<difficulty>/`; continue where an earlier call stopped.

    A group of 1,000 images is complete once its table exists, which is written last.

    Args:
        folder: made when missing.
        generator: draws the images.
        difficulty: names the folder, as in `parameters`.
        n: number of images; a later call with a larger n adds to the same folder.
        workers: threads; no effect on the images.
    Returns:
        The folder of the difficulty.
    Raises:
        UsageError: the folder holds images of another origin.
    """
    target = folder / f"pathfinder{generator.setting.size}" / FOLDERS[difficulty]
    _claim(target, generator)
    groups = [range(first, min(first + GROUP, n)) for first in range(0, n, GROUP)]
    todo = [group for group in groups if not _is_complete(target, group)]

    def write(group: range) -> None:
        _write_group(target, generator, group)

    with progress(f"Writing {target}", n, "images") as advance:
        advance(n - sum(len(group) for group in todo))
        for group, _ in run_shards(todo, write, workers):
            advance(len(group))
    return target


def _claim(target: Path, generator: Generator) -> None:
    """Mark the folder as made with this recipe, or refuse a folder that was made otherwise."""
    path = target / _RECIPE
    if not path.exists():
        if target.exists() and any(target.iterdir()):
            raise UsageError(f"{target} already holds files; nothing is overwritten. Name another folder.")
        (target / "imgs").mkdir(parents=True, exist_ok=True)
        (target / "metadata").mkdir(exist_ok=True)
        path.write_text(json.dumps(generator.recipe, indent=1) + "\n")
        return
    found = json.loads(path.read_text())
    if found != generator.recipe:
        raise UsageError(
            f"{target} holds images of another recipe: {differences(found, generator.recipe)}. Nothing was changed. "
            f"Name another folder, or delete this one to write the images anew."
        )


def _table(target: Path, group: range) -> Path:
    return target / "metadata" / f"{group.start // GROUP}.npy"


def _is_complete(target: Path, group: range) -> bool:
    table = _table(target, group)
    return table.exists() and len(table.read_text().splitlines()) >= len(group)


def _write_group(target: Path, generator: Generator, group: range) -> None:
    from PIL import Image

    number = group.start // GROUP
    folder = target / "imgs" / str(number)
    folder.mkdir(exist_ok=True)
    part = generator.draw(group.start, len(group))
    lines = []
    for index in range(len(group)):
        Image.fromarray(part.images[index]).save(folder / f"sample_{index}.png")
        lines.append(_line(generator, number, index, int(part.labels[index]), int(part.margins[index])))
    table = _table(target, group)
    partial = table.with_suffix(".tmp")
    partial.write_text("".join(lines))
    partial.replace(table)


def _line(generator: Generator, number: int, index: int, label: int, margin: int) -> str:
    """A row of the table, with the distractor length before rounding, as in the release."""
    setting = generator.setting
    values = (
        f"imgs/{number}", f"sample_{index}.png", index, label, float(setting.continuity), setting.contour_length,
        setting.contour_length / 3, setting.paddle_length, setting.paddle_thickness, margin, 1,
    )  # fmt: skip
    return " ".join(map(str, values)) + "\n"
