"""Base class of the datasets that keep a user's files, or the output of a generator, in a cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..errors import UsageError, unknown
from .base import SPLITS, SequenceData, label_shares
from .cache import Cache, cache_folder, load_or_build, refused
from .finder import Expected
from .options import check_counts, checked_data_dir
from .splits import fingerprint

STAND_IN_HINT = (
    "For a trial without the files set dataset.source=stand-in: made-up data of the same shape; their results are "
    "marked and do not count for the benchmark."
)


class CachedData(SequenceData):
    """A dataset whose samples lie in one cache, with `labels.npy` beside them, and whose splits are index arrays.

    Args:
        data_dir: root of all data.
        source: one of `sources`.
        wanted: part -> number of samples to use, the option n_<part>; None takes all.
    """

    name: ClassVar[str]
    # The benchmark's name for the task.
    title: ClassVar[str]
    expected: ClassVar[Expected]
    sources: ClassVar[tuple[str, ...]] = ("auto", "release", "stand-in")
    # Approximate size of a sample on disk.
    sample_bytes: ClassVar[int] = 1_000
    # For a task that can be generated: how much is drawn and how long it takes, in words.
    drawing: ClassVar[str] = ""

    def __init__(self, data_dir: Path, source: str, wanted: Mapping[str, int | None]):
        if source not in self.sources:
            raise unknown(f"source of {self.name}", source, self.sources)
        check_counts(self.name, self.sample_bytes, **{f"n_{part}": count for part, count in wanted.items()})
        self.data_dir, self.source, self.wanted = checked_data_dir(data_dir), source, dict(wanted)
        self._cache: Cache | None = None

    def attach(self, cache: Cache) -> None:
        """Use an opened cache as the data; its parameters may differ from this dataset's."""
        _check_facts(cache, self.n_classes)
        self._cache = cache
        self._loaded(cache)

    @classmethod
    def found(cls, data_dir: Path) -> list[tuple[str, Path]]:
        """The user's files under data_dir as (source, path), in order of preference."""
        return [("release", path) for path in cls.expected.find_all(data_dir)]

    @property
    def cache(self) -> Cache:
        """The opened cache.

        Raises:
            UsageError: `prepare` was not called.
        """
        if self._cache is None:
            raise UsageError(f"Call prepare() before using the dataset '{self.name}'.")
        return self._cache

    def prepare(self) -> None:
        """Open the cache, or build it from the files or by the generator; see the base class."""
        if self._cache is not None:
            return
        try:
            self.attach(self._load())
        except OSError as error:
            # The cache reports its own write errors; this handles unreadable input files.
            if error.errno is None:
                raise
            raise UsageError(
                f"The files of '{self.name}' cannot be read ({error.strerror}: {error.filename}). Copy or unpack them "
                f"again, or give yourself the right to read them."
            ) from error

    def indices(self, name: str) -> np.ndarray:
        """Indices into the cache of the samples of a split, in order.

        Raises:
            UsageError: no such split.
        """
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        return self._members()[name]

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        members, labels = self._members(), self.cache.array("labels")
        return {
            "name": self.name,
            "source": self.cache.parameters["source"],
            "lra": self._is_benchmark(),
            "path": self.cache.facts.get("read_from") or str(self.cache.folder),
            "counts": {name: len(members[name]) for name in SPLITS},
            "checksum": self.cache.checksum,
            "split": self._convention(),
            "split_fingerprint": fingerprint(*(members[name] for name in SPLITS)),
            "label_shares": {name: label_shares(labels[members[name]], self.n_classes) for name in SPLITS},
        }

    @abstractmethod
    def _load(self) -> Cache:
        """Find or make the data and open their cache with `_store`."""

    @abstractmethod
    def _members(self) -> Mapping[str, np.ndarray]:
        """Split -> indices into the cache."""

    @abstractmethod
    def _convention(self) -> str:
        """Name of the convention by which the splits are made."""

    def _is_benchmark(self) -> bool:
        """Whether a result may stand in a table of the benchmark: the data are all samples of the user's files."""
        return self.cache.parameters["source"] in ("release", "mega") and not any(self.wanted.values())

    def _loaded(self, cache: Cache) -> None:
        """Hook: take facts from the opened cache, such as the vocabulary size."""

    def _store(
        self, parameters: dict[str, Any], build: Callable[[Path], Mapping[str, Any]], resumable: bool = False
    ) -> Cache:
        """Open or build the cache of these parameters, one of which is `source`."""
        folder = cache_folder(self.data_dir, self.name, parameters["source"], parameters)
        return load_or_build(folder, parameters, build, resumable)

    def _release_folder(self) -> Path | None:
        """Folder of the user's files; None if the source is "stand-in".

        Raises:
            UsageError: the files are missing; a stand-in is used only on request.
        """
        return None if self.source == "stand-in" else self.expected.require(self.data_dir)


def _check_facts(cache: Cache, n_classes: int) -> None:
    """Refuse invalid labels, and facts that contradict them: the checksums cover the files only."""
    labels, facts = cache.array("labels"), cache.facts
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or not all(0 <= label < n_classes for label in _ends(labels)):
        raise refused(cache.folder, f"labels.npy holds no labels in 0..{n_classes - 1}")
    n = len(labels)
    counts = facts.get("counts", cache.parameters.get("counts", {"all": n}))
    fits = isinstance(counts, dict) and all(type(count) is int and count >= 0 for count in counts.values())
    fits = fits and sum(counts.values()) == n
    n_train, vocabulary = facts.get("n_train", n), facts.get("vocabulary", ["x"])
    fits = fits and type(n_train) is int and 0 <= n_train <= n
    fits = fits and isinstance(vocabulary, list) and len(vocabulary) > 0
    fits = fits and all(type(token) is str for token in vocabulary)
    if not fits:
        raise refused(cache.folder, f"the facts in its manifest do not fit its {n:,} labels")


def _ends(labels: np.ndarray) -> tuple[int, ...]:
    return (labels.min(), labels.max()) if len(labels) else ()


def take(available: int, wanted: int | None, official: int, what: str, option: str) -> int:
    """Number of samples to use: `wanted`, or all if that is None; all must be as many as the release has.

    Raises:
        UsageError: `wanted` is None and the number differs from the release's, or fewer than `wanted` are available.
    """
    if wanted is None and available != official:
        as_it_is = f" To use it as it is, set dataset.{option}={available}; results are then not the benchmark's."
        raise UsageError(
            f"{what} holds {available:,} samples instead of the {official:,} of the release: copy or download it "
            f"again.{as_it_is if available else ''}"
        )
    if wanted is not None and wanted > available:
        raise UsageError(
            f"{what} holds {available:,} samples, dataset.{option} asks for {wanted:,}: copy or download it again, or "
            f"take fewer."
        )
    return available if wanted is None else wanted
