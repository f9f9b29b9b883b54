"""What data there is: for each task the user's files, the prepared caches, and what to do where there is neither."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..registry import datasets
from .base import SPLITS
from .cache import MANIFEST, Cache, open_cache
from .cached import CachedData


@dataclass
class Entry:
    """One line of the status.

    Attributes:
        task: registered name.
        state: "found" (the user's files), "prepared" (a cache, whatever its source), "damaged" (a cache that is
            refused) or "missing".
        path: of the files or the cache; None when missing.
        source: "release", "generated", "sample" or "stand-in"; None when missing.
        counts: split -> samples, of a cache.
        checksum: of a cache's content.
        split, split_fingerprint: the split that the defaults of the task give, and its members.
        advice: what to do, where something is to be done.
    """

    task: str
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
        """Two or three lines for the terminal."""
        source = f" ({self.source})" if self.source and self.source != self.state else ""
        counts = ", ".join(f"{name} {self.counts[name]:,}" for name in SPLITS if name in self.counts)
        lines = [f"{self.task:<14}{self.state + source:<24}{counts}".rstrip()]
        lines += [f"  {self.path}"] if self.path else []
        if self.checksum:
            lines.append(f"  checksum {self.checksum[:16]}, split {self.split} {self.split_fingerprint}")
        lines += [f"  {line}" for line in self.advice.splitlines()]
        return "\n".join(lines)


def status(data_dir: Path, thorough: bool = False) -> list[Entry]:
    """Entries of every task that keeps files, by name.

    Args:
        data_dir: root of all data.
        thorough: read every byte of the caches and compare checksums.
    """
    entries = []
    for name in datasets.names():
        part = datasets.get(name)
        if inspect.isclass(part) and issubclass(part, CachedData):
            entries += _task_status(part, Path(data_dir), thorough)
    return entries


def _task_status(part: type[CachedData], data_dir: Path, thorough: bool) -> list[Entry]:
    entries = [
        Entry(part.name, "found", str(path), source, advice="" if place == 0 else "not read: the one above comes first")
        for place, (source, path) in enumerate(part.found(data_dir))
    ]
    folders = sorted((data_dir / "cache" / part.name).glob("[!.]*"))
    caches = [_cache_status(part, data_dir, folder, thorough) for folder in folders]
    prepared = {entry.source for entry in caches if entry.state == "prepared"}
    if entries and not prepared & {"release", "sample"}:
        entries[0].advice = "prepared at the first run"
    if not entries and not prepared - {"stand-in"}:
        # A stand-in does not make the task's own data less missing.
        advice = part.expected.missing(data_dir)
        if "generated" in part.sources:
            advice = "Nothing to do: made at the first run by the benchmark's own recipe, or put the release here."
        entries = [Entry(part.name, "missing", advice=advice)]
    return entries + caches


def _cache_status(part: type[CachedData], data_dir: Path, folder: Path, thorough: bool) -> Entry:
    try:
        cache: Cache = open_cache(folder, thorough=thorough)
        data = part(data_dir)
        data.attach(cache)
        facts = data.describe()
    except (UsageError, KeyError) as error:
        advice = str(error) if isinstance(error, UsageError) else f"{MANIFEST} lacks {error}; made by another version?"
        return Entry(part.name, "damaged", str(folder), advice=advice)
    keys = ("source", "counts", "checksum", "split", "split_fingerprint")
    return Entry(part.name, "prepared", str(folder), **{key: facts[key] for key in keys})
