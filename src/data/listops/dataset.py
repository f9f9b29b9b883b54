"""The ListOps dataset: the user's release files, or trees drawn by the benchmark's recipe."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...registry import register_dataset
from .. import mega
from ..base import SPLITS
from ..cache import Cache, source_stamp
from ..cached import CachedData
from ..finder import Expected
from ..options import MOST_SAMPLES, check_required
from ..packed import PackedSequences, PackedWriter
from ..progress import progress
from ..splits import consecutive
from ..vocabulary import EOS, SPECIALS, Vocabulary
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
MEGA = mega.expected("listops", ("listops",))
_OFFICIAL = {"train": 96_000, "val": 2_000, "test": 2_000}
RECIPE = {"max_depth": 10, "max_args": 10, "min_length": 501, "max_length": 1999, "seed": 0}


def draw(
    n_samples: Mapping[str, int], recipe: Mapping[str, int], workers: int | None = None
) -> Iterator[tuple[np.ndarray, int]]:
    """Trees (symbol codes, value) of the three splits, train first.

    Args:
        n_samples: split -> number of trees.
        recipe: max_depth, max_args, min_length, max_length and seed of `generator.generate`.
        workers: threads; no effect on the trees.
    """
    # Imported here: cached data do not need the compiler.
    from .generator import generate

    n_train, n = n_samples["train"], sum(n_samples.values())
    with progress("Drawing ListOps trees", n, "trees") as advance:
        trees = generate(n, **recipe, workers=workers, advance=advance)
    ends = np.cumsum(trees.lengths)
    # Validation and test trees are the first drawn, so that they stay the same when n_train changes.
    for index in np.roll(np.arange(n), n_train):
        yield trees.symbols[ends[index] - trees.lengths[index] : ends[index]], trees.values[index]


@register_dataset("listops")
class ListOps(CachedData):
    """Long nested list operations with a value in 0..9: 10 classes, up to 2,000 tokens, 18 token ids.

    Args:
        data_dir: root of all data.
        source: "release" reads the user's listops-1000/ folder, "mega" the Mega repository's form of it, "generated"
            draws trees by the same recipe; "auto" takes the first of these that is there, or draws when an option of
            the recipe was changed.
        n_train, n_val, n_test: number of samples; the first rows of the release are taken. Generated test and
            validation trees do not depend on n_train, and a smaller training set is the beginning of a larger one.
        l_max: longest sequence; the first l_max - 1 tokens are kept and `<eos>` follows.
        max_depth, max_args, min_length, max_length, seed: of the generated trees; see `generator.generate`.
    """

    name = "listops"
    title = "ListOps"
    sample_bytes = 1_100
    drawing = "100,000 trees, 0.1 GB, a quarter of a minute on one core"
    expected = EXPECTED
    sources = ("auto", "release", "mega", "generated")
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
        max_depth: int = RECIPE["max_depth"],
        max_args: int = RECIPE["max_args"],
        min_length: int = RECIPE["min_length"],
        max_length: int = RECIPE["max_length"],
        seed: int = RECIPE["seed"],
    ):
        super().__init__(data_dir, source, {"train": n_train, "val": n_val, "test": n_test})
        self.recipe = {
            "max_depth": max_depth,
            "max_args": max_args,
            "min_length": min_length,
            "max_length": max_length,
            "seed": seed,
        }
        check_required(1, self.name, "a sample at least", MOST_SAMPLES, n_train=n_train, n_val=n_val, n_test=n_test)
        check_required(2, self.name, "a token and <eos>", l_max=l_max)
        check_required(1, self.name, "the root", 1_000, max_depth=max_depth)
        check_required(2, self.name, "arguments of an operator", 1_000, max_args=max_args)
        check_required(1, self.name, "tokens of a tree", 1_000_000, min_length=min_length, max_length=max_length)
        check_required(0, self.name, "any", (1 << 63) - 1, seed=seed)
        self.l_max = l_max
        self._changed = [key for key, value in self.recipe.items() if value != RECIPE[key]]
        if source in ("release", "mega") and self._changed:
            raise UsageError(
                f"dataset.{self._changed[0]} belongs to generated trees and has no effect on dataset.source={source}. "
                f"Drop it, or set dataset.source=generated."
            )

    @classmethod
    def found(cls, data_dir: Path) -> list[tuple[str, Path]]:
        """See the base class."""
        return super().found(data_dir) + [("mega", path) for path in MEGA.find_all(data_dir)]

    def split(self, name: str) -> PackedSequences:
        """The samples of one split, (ids, value); see the base class."""
        return PackedSequences(self.cache.folder, self.indices(name))

    def describe(self) -> dict[str, Any]:
        """See the base class; `recipe` holds the options of generated trees."""
        return {**super().describe(), "recipe": self.cache.parameters.get("recipe")}

    def _load(self) -> Cache:
        common = {"counts": self.wanted, "l_max": self.l_max, "layout": 1}
        source, folder = self._choose()
        if folder is None:
            parameters, trees = {"source": source, "recipe": self.recipe, **common}, draw(self.wanted, self.recipe)
        else:
            files = FILES.values() if source == "release" else MEGA.files
            stamps = [source_stamp(folder / name) for name in files]
            parameters, trees = {"source": source, "files": stamps, **common}, self._read(folder, source)
        return self._store(parameters, lambda target: self._write(target, trees, folder))

    def _choose(self) -> tuple[str, Path | None]:
        """Source and folder to read; the folder is None if trees are to be drawn."""
        if self.source == "generated" or (self.source == "auto" and self._changed):
            return "generated", None
        for source, folder in self.found(self.data_dir):
            if self.source in ("auto", source):
                return source, folder
        if self.source == "auto":
            return "generated", None
        raise UsageError((EXPECTED if self.source == "release" else MEGA).missing(self.data_dir))

    def _members(self) -> dict[str, np.ndarray]:
        counts = self.cache.parameters["counts"]
        return consecutive({split: counts[split] for split in SPLITS})

    def _convention(self) -> str:
        return "drawn apart" if self.cache.parameters["source"] == "generated" else "release files"

    def _is_benchmark(self) -> bool:
        # Trees of another seed are still the benchmark's task.
        return self.wanted == _OFFICIAL and not set(self._changed) - {"seed"}

    def _read(self, folder: Path, source: str) -> Iterator[tuple[np.ndarray, int]]:
        from .text import read_mega, read_tsv

        with progress("Reading ListOps", sum(self.wanted.values()), "trees") as advance:
            for split in SPLITS:
                file = folder / (FILES[split] if source == "release" else mega.FILES[split][0])
                trees = read_tsv(file) if source == "release" else read_mega(folder, split)
                rows = 0
                for row in itertools.islice(trees, self.wanted[split]):
                    yield row
                    rows += 1
                    advance(1)
                if rows < self.wanted[split]:
                    smaller = f" If the file is whole, set dataset.n_{split}={rows}." if rows else ""
                    raise UsageError(
                        f"{file} holds {rows:,} trees, {self.wanted[split]:,} were asked for: copy or download it "
                        f"again.{smaller}"
                    )

    def _write(self, target: Path, trees: Iterator[tuple[np.ndarray, int]], folder: Path | None) -> dict[str, Any]:
        kept, labels = [], []
        for symbols, value in trees:
            kept.append(symbols[: self.l_max - 1])
            labels.append(int(value))
        counts = np.bincount(np.concatenate(kept[: self.wanted["train"]]), minlength=len(SYMBOLS))
        # A symbol that a tiny training set lacks still gets an id, so the model has the same size everywhere.
        vocabulary = Vocabulary.from_counts(dict(zip(SYMBOLS, counts.tolist(), strict=True)), min_freq=0)
        ids = np.array([vocabulary.id(token) for token in SYMBOLS], dtype=np.uint8)
        end = np.array([vocabulary.id(EOS)], dtype=np.uint8)
        with PackedWriter(target, "tokens", np.uint8) as writer:
            for symbols in kept:
                writer.append(np.concatenate([ids[symbols], end]))
        np.save(target / "labels.npy", np.array(labels, dtype=np.uint8))
        return {"read_from": None if folder is None else str(folder), "vocabulary": list(vocabulary.tokens)}
