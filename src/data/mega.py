"""The processed LRA archive of the Mega repository: `<task>/input/{train,valid,test}.src` and `label/*.label`.

One sample a line: space-separated tokens in the source, an integer in the label. It is read only for tasks whose
content can be checked: ListOps, where each tree must have its label as value, and Image, whose pixels are integers
0..255.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from .base import SPLITS
from .finder import Expected
from .options import parsed_label

_STEMS = dict(zip(SPLITS, ("train", "valid", "test"), strict=True))
FILES = {split: (f"input/{stem}.src", f"label/{stem}.label") for split, stem in _STEMS.items()}


def expected(task: str, folders: tuple[str, ...]) -> Expected:
    """Layout of one task, under folder names directly in the root or in the archive's folder `lra`."""
    return Expected(
        task=task,
        folders=tuple(prefix + folder for folder in folders for prefix in ("", "lra/")),
        files=tuple(name for pair in FILES.values() for name in pair),
        tree="  lra/<task>/\n    input/{train,valid,test}.src  label/{train,valid,test}.label",
        size="processed LRA of the Mega repository",
        origin="Unpack lra.zip of the Mega repository into data_dir.",
        instead="",
        by_name=True,
    )


def read_lines(folder: Path, split: str) -> Iterator[tuple[str, bytes, int]]:
    """Lines of one split as (place for messages, source, label).

    Raises:
        UsageError: a label is not an integer, or the files differ in their number of lines.
    """
    source, label = (folder / name for name in FILES[split])
    with open(source, "rb") as sources, open(label, "rb") as labels:
        for number, line in enumerate(sources, start=1):
            answer = labels.readline().strip()
            yield f"{source}, line {number}", line, parsed_label(answer, 10, f"{label}, line {number}")
        if labels.readline():
            raise UsageError(f"{label} has more lines than {source}: copy or unpack the archive again.")
