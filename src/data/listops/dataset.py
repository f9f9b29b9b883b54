"""ListOps as the training loop sees it: the user's release files, or trees drawn by the benchmark's recipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError, unknown
from ...registry import register_dataset
from ..base import SPLITS, SequenceData, label_shares
from ..cache import Cache, cache_folder, load_or_build, source_stamp
from ..finder import Expected
from ..packed import PackedSequences, PackedWriter
from ..progress import progress
from ..vocabulary import SPECIALS, Vocabulary
from .symbols import SYMBOLS

FILES = {split: f"basic_{split}.tsv" for split in SPLITS}
EXPECTED = Expected(
    task="listops",
    folders=("listops-1000", "listops"),
    files=tuple(FILES.values()),
    tree="  listops-1000/\n    basic_train.tsv  basic_val.tsv  basic_test.tsv",
    size="96,000 / 2,000 / 2,000 rows, about 660 MB",
    origin="They are part of the Long Range Arena release.",
    instead="Without them leave dataset.source=auto: the trees are then drawn by the benchmark's own recipe.",
)
_RECIPE = {"max_depth": 10, "max_args": 10, "min_length": 501, "max_length": 1999, "seed": 0}


@register_dataset("listops")
class ListOps(SequenceData):
    """Long nested list operations with a value in 0..9: 10 classes, up to 2,000 tokens, 18 token ids.

    Args:
        data_dir: root of all data.
        source: "release" reads the user's listops-1000/ folder, "generated" draws trees by the same recipe, "auto"
            takes the release when it is there and no option of the recipe was changed.
        n_train, n_val, n_test: samples; of the release the first rows are taken. Generated test and validation trees
            do not depend on n_train, and a smaller training set is the beginning of a larger one.
        l_max: longest sequence; the first l_max - 1 tokens are kept and `<eos>` follows.
        max_depth, max_args, min_length, max_length, seed: of the generated trees; see `generator.generate`.
    """

    n_tokens = len(SPECIALS) + len(SYMBOLS)
    n_classes = 10

    def __init__(
        self,
        data_dir: Path,
        source: str = "auto",
        n_train: int = 96_000,
        n_val: int = 2_000,
        n_test: int = 2_000,
        l_max: int = 2048,
        max_depth: int = _RECIPE["max_depth"],
        max_args: int = _RECIPE["max_args"],
        min_length: int = _RECIPE["min_length"],
        max_length: int = _RECIPE["max_length"],
        seed: int = _RECIPE["seed"],
    ):
        if source not in ("auto", "release", "generated"):
            raise unknown("source of listops", source, ("auto", "release", "generated"))
        if min(n_train, n_val, n_test) < 1:
            raise UsageError(f"listops needs n_train, n_val, n_test >= 1, got {n_train}, {n_val}, {n_test}.")
        if l_max < 2:
            raise UsageError(f"listops needs l_max >= 2 (a token and <eos>), got {l_max}.")
        self.l_max = l_max
        self._data_dir, self._source = Path(data_dir), source
        self._counts = {"train": n_train, "val": n_val, "test": n_test}
        self._recipe = {
            "max_depth": max_depth,
            "max_args": max_args,
            "min_length": min_length,
            "max_length": max_length,
            "seed": seed,
        }
        changed = [key for key, value in self._recipe.items() if value != _RECIPE[key]]
        if source == "release" and changed:
            raise UsageError(
                f"dataset.{changed[0]} belongs to generated trees and has no effect on dataset.source=release. "
                f"Drop it, or set dataset.source=generated."
            )
        self._recipe_changed = bool(changed)
        self._cache: Cache | None = None

    def prepare(self) -> None:
        """Open the cache, or read the release or draw the trees first (96,000 + 4,000 trees: about 10 s on 2 cores)."""
        if self._cache is not None:
            return
        if self._source == "release":
            folder = EXPECTED.require(self._data_dir)
        elif self._source == "auto" and not self._recipe_changed:
            folder = EXPECTED.find(self._data_dir)
        else:
            folder = None
        common = {"counts": self._counts, "l_max": self.l_max, "layout": 1}
        if folder is not None:
            stamps = [source_stamp(folder / name) for name in FILES.values()]
            parameters = {"source": "release", "files": stamps, **common}
            trees = self._read(folder)
        else:
            parameters = {"source": "generated", "recipe": self._recipe, **common}
            trees = self._draw()
        place = cache_folder(self._data_dir, "listops", parameters["source"], parameters)
        self._cache = load_or_build(place, parameters, lambda target: self._write(target, trees, folder))

    def split(self, name: str) -> PackedSequences:
        """The samples of one split; see the base class."""
        return PackedSequences(self._prepared.folder, self._range(name))

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        cache = self._prepared
        return {
            "name": "listops",
            "source": cache.parameters["source"],
            "lra": not self._recipe_changed,
            "path": cache.facts["read_from"] or str(cache.folder),
            "counts": dict(self._counts),
            "checksum": cache.checksum,
            "split": "release files" if cache.parameters["source"] == "release" else "drawn apart",
            "split_fingerprint": cache.checksum[:16],
            "label_shares": cache.facts["label_shares"],
            "recipe": cache.parameters.get("recipe"),
        }

    @property
    def _prepared(self) -> Cache:
        if self._cache is None:
            raise UsageError("Call prepare() before using the dataset 'listops'.")
        return self._cache

    def _range(self, name: str) -> range:
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        start = 0
        for split in SPLITS:
            if split == name:
                return range(start, start + self._counts[split])
            start += self._counts[split]
        raise AssertionError(name)

    def _read(self, folder: Path) -> Iterator[tuple[np.ndarray, int]]:
        from .text import read_tsv

        with progress("Reading ListOps", sum(self._counts.values()), "trees") as advance:
            for split, file in FILES.items():
                rows = 0
                for row in read_tsv(folder / file):
                    yield row
                    rows += 1
                    advance(1)
                    if rows == self._counts[split]:
                        break
                if rows < self._counts[split]:
                    raise UsageError(
                        f"{folder / file} holds {rows:,} trees, {self._counts[split]:,} were asked for. If the file is "
                        f"whole, set dataset.n_{split}={rows}; if not, copy or download it again."
                    )

    def _draw(self) -> Iterator[tuple[np.ndarray, int]]:
        from .generator import generate

        n_train, n = self._counts["train"], sum(self._counts.values())
        with progress("Drawing ListOps trees", n, "trees") as advance:
            trees = generate(n, **self._recipe, advance=advance)
        ends = np.cumsum(trees.lengths)
        # Test and validation trees are the first drawn, so that they stay the same when n_train changes.
        for index in np.roll(np.arange(n), n_train):
            yield trees.symbols[ends[index] - trees.lengths[index] : ends[index]], trees.values[index]

    def _write(self, target: Path, trees: Iterator[tuple[np.ndarray, int]], folder: Path | None) -> dict[str, Any]:
        counts = np.zeros(len(SYMBOLS), dtype=np.int64)
        labels: list[int] = []
        kept: list[np.ndarray] = []
        for symbols, value in trees:
            symbols = symbols[: self.l_max - 1]
            if len(labels) < self._counts["train"]:
                counts += np.bincount(symbols, minlength=len(SYMBOLS))
            kept.append(symbols)
            labels.append(int(value))
        # A symbol that a tiny training set lacks still gets an id, so the model has the same size everywhere.
        vocabulary = Vocabulary.from_counts(dict(zip(SYMBOLS, counts.tolist(), strict=True)), min_freq=0)
        ids = np.array([vocabulary.id(token) for token in SYMBOLS], dtype=np.uint8)
        end = np.array([vocabulary.id("<eos>")], dtype=np.uint8)
        with PackedWriter(target, "tokens", np.uint8) as writer:
            for symbols in kept:
                writer.append(np.concatenate([ids[symbols], end]))
        np.save(target / "labels.npy", np.array(labels, dtype=np.uint8))
        shares = {
            name: label_shares(np.array(labels)[self._range(name)], self.n_classes) for name in SPLITS
        }
        return {
            "read_from": None if folder is None else str(folder),
            "vocabulary": list(vocabulary.tokens),
            "label_shares": shares,
        }
