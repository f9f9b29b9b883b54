"""State of the data: for each task the user's files, the prepared caches, and what to do where there is neither."""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..registry import datasets
from .base import SPLITS
from .cache import MANIFEST, Cache, open_cache
from .cached import CachedData
from .options import checked_data_dir

_WHERE = """\
Where files may lie: in the folder above, or in lra_release/, lra_release/lra_release/ or raw_datasets/ in it, under the
names shown or any other; links are fine. To use another folder, give --data-dir here and data_dir= in training. Files
are only read; prepared data go to cache/ in the same folder."""
_SECOND = "Not read: the one above comes first."


@dataclass
class Entry:
    """One line of the status.

    Attributes:
        task: registered name.
        title: the benchmark's name for the task.
        state: "found" (the user's files), "prepared" (a cache, whatever its source), "damaged" (a cache that is
            refused), "missing" (files that the user must provide) or "not made yet" (data drawn at the first run).
        path: of the files or the cache; None if there is neither.
        source: "release", "mega", "generated", "sample" or "stand-in"; None without path.
        counts: split -> samples, of a cache.
        checksum: of a cache's content.
        split, split_fingerprint: convention of the task's default split, and fingerprint of its members.
        advice: what the user should do; empty for nothing.
    """

    task: str
    title: str
    state: str
    path: str | None = None
    source: str | None = None
    counts: dict[str, int] = field(default_factory=dict)
    checksum: str | None = None
    split: str | None = None
    split_fingerprint: str | None = None
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    def as_text(self) -> str:
        """A few lines for the terminal."""
        source = f" ({self.source})" if self.source and self.source != self.state else ""
        counts = ", ".join(f"{name} {self.counts[name]:,}" for name in SPLITS if name in self.counts)
        lines = [f"{self.task:<12}{self.title:<18}{self.state + source:<24}{counts}".rstrip()]
        lines += [f"  {self.path}"] if self.path else []
        if self.checksum:
            lines.append(f"  checksum {self.checksum[:16]}, split {self.split} {self.split_fingerprint}")
        for line in self.advice.splitlines():
            # The expected trees are indented and stay as they are.
            pieces = [line] if line.startswith(" ") else textwrap.wrap(line, 110, break_on_hyphens=False)
            lines += [f"  {piece}" for piece in pieces]
        return "\n".join(lines)


def as_page(data_dir: Path, entries: list[Entry]) -> str:
    """The whole status for the terminal."""
    there = "" if Path(data_dir).is_dir() else ", a folder that does not exist yet"
    lines = [f"Data under {Path(data_dir).resolve()}{there}", "", *(entry.as_text() for entry in entries)]
    if any(entry.state == "missing" for entry in entries):
        lines += ["", _WHERE]
    return "\n".join(lines)


def status(data_dir: Path, thorough: bool = False) -> list[Entry]:
    """Entries of every task that keeps files, by name.

    Args:
        data_dir: root of all data.
        thorough: read every byte of the caches and compare checksums.
    Raises:
        UsageError: data_dir is a file, or not a path.
    """
    data_dir = checked_data_dir(data_dir)
    entries = []
    for name in datasets.names():
        part = datasets.get(name)
        if inspect.isclass(part) and issubclass(part, CachedData):
            entries += _task_status(part, data_dir, thorough)
    return entries


def _task_status(part: type[CachedData], data_dir: Path, thorough: bool) -> list[Entry]:
    entries = [
        Entry(part.name, part.title, "found", str(path), source, advice="" if place == 0 else _SECOND)
        for place, (source, path) in enumerate(part.found(data_dir))
    ]
    folders = sorted((data_dir / "cache" / part.name).glob("[!.]*"))
    caches = [_cache_status(part, data_dir, folder, thorough) for folder in folders]
    prepared = {entry.source for entry in caches if entry.state == "prepared"}
    if entries and not prepared & {"release", "mega", "sample"}:
        entries[0].advice = "Read and prepared at the first run."
    if not entries and not prepared - {"stand-in"}:
        # The task's own data are still missing if only a stand-in is prepared.
        entries = [_not_there(part, data_dir)]
    return entries + caches


def _not_there(part: type[CachedData], data_dir: Path) -> Entry:
    expected = part.expected
    if part.drawing:
        advice = (
            f"Nothing to do: drawn at the first run by the benchmark's own recipe ({part.drawing}).\n"
            f"Or put the release here ({expected.size}):\n{expected.tree}"
        )
        return Entry(part.name, part.title, "not made yet", advice=advice)
    return Entry(part.name, part.title, "missing", advice=expected.how_to_get(data_dir))


def _cache_status(part: type[CachedData], data_dir: Path, folder: Path, thorough: bool) -> Entry:
    try:
        cache: Cache = open_cache(folder, thorough=thorough)
        data = part(data_dir)
        data.attach(cache)
        facts = data.describe()
    except (UsageError, KeyError) as error:
        advice = str(error) if isinstance(error, UsageError) else f"{MANIFEST} lacks {error}; made by another version?"
        return Entry(part.name, part.title, "damaged", str(folder), advice=advice)
    keys = ("source", "counts", "checksum", "split", "split_fingerprint")
    return Entry(part.name, part.title, "prepared", str(folder), **{key: facts[key] for key in keys})
