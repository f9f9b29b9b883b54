"""Retrieval: do two papers of the ACL Anthology Network cite each other? Pairs of documents by character."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..registry import register_dataset
from .aan_shards import assemble, read_shards
from .base import SPLITS, Batch, SequenceData
from .cache import Cache, source_stamp
from .cached import STAND_IN_HINT, CachedData, take
from .finder import Expected
from .options import check_required
from .packed import PackedSequences
from .splits import consecutive
from .stand_in import document_pairs

FILES = {"train": "new_aan_pairs.train.tsv", "val": "new_aan_pairs.eval.tsv", "test": "new_aan_pairs.test.tsv"}
_OFFICIAL = {"train": 147_086, "val": 18_090, "test": 17_437}
_STAND_IN = {"train": 1_000, "val": 200, "test": 200}
EXPECTED = Expected(
    task="aan",
    folders=("tsv_data", "aan"),
    files=tuple(FILES.values()),
    tree="  tsv_data/\n    new_aan_pairs.train.tsv  new_aan_pairs.eval.tsv  new_aan_pairs.test.tsv",
    size="147,086 / 18,090 / 17,437 rows of label, id1, id2, text1, text2; about 10 GB",
    origin=(
        "They are part of the Long Range Arena release; unpack lra_release.gz with "
        "`python -m fractal_ssm.data extract lra_release.gz --to DATA_DIR/lra_release`. Files that end in only_ids.tsv "
        "hold no text and do not help."
    ),
    instead=STAND_IN_HINT,
)


@register_dataset("aan")
class Aan(CachedData):
    """Pairs of documents as Unicode characters, no clean-up; every character of the training documents has an id.

    The tsv files are read once, in pieces and in bounded memory; after an interruption the next start continues.

    Args:
        data_dir: root of all data.
        source: "release" or "auto" reads the user's files, "stand-in" makes up documents of the same shape.
        n_train, n_val, n_test: number of pairs to use, from the beginning of each file; null takes all, and their
            number must be the release's.
        l_max: longest document, `<eos>` included.
    """

    task = "retrieval"
    name = "aan"
    title = "Retrieval"
    sample_bytes = 8_000
    expected = EXPECTED
    n_classes = 2

    def __init__(
        self,
        data_dir: Path,
        source: str = "auto",
        n_train: int | None = None,
        n_val: int | None = None,
        n_test: int | None = None,
        l_max: int = 4000,
    ):
        super().__init__(data_dir, source, {"train": n_train, "val": n_val, "test": n_test})
        check_required(2, self.name, "a character and <eos>", l_max=l_max)
        self.l_max = l_max

    def split(self, name: str) -> PackedSequences:
        """The samples of one split, ((ids1, ids2), label); see the base class."""
        return PackedSequences(self.cache.folder, self.indices(name), ("tokens1", "tokens2"))

    def collate(self, items: Sequence[tuple[tuple[np.ndarray, np.ndarray], int]]) -> Batch:
        """Inputs (2B, L): all first documents, then all second ones; lengths (2B,); targets (B,)."""
        documents = [(pair[place], 0) for place in (0, 1) for pair, _ in items]
        targets = torch.tensor([label for _, label in items], dtype=torch.int64)
        return SequenceData.collate(self, documents)._replace(targets=targets)

    def _load(self) -> Cache:
        options = {"n": self.wanted, "l_max": self.l_max, "layout": 1}
        folder = self._release_folder()
        if folder is None:
            return self._store({"source": "stand-in", **options, "layout": 2}, self._write_stand_in)
        stamps = [source_stamp(folder / name) for name in FILES.values()]
        parameters = {"source": "release", "files": stamps, **options}
        return self._store(parameters, lambda target: self._write_release(target, folder), resumable=True)

    def _loaded(self, cache: Cache) -> None:
        self.n_tokens = len(cache.facts["vocabulary"])

    def _members(self) -> dict[str, np.ndarray]:
        return consecutive(self.cache.facts["counts"])

    def _convention(self) -> str:
        return "drawn apart" if self.cache.parameters["source"] == "stand-in" else "release files"

    def _write_release(self, target: Path, folder: Path) -> dict[str, Any]:
        counts = {}
        for split, file in FILES.items():
            rows = read_shards(folder / file, target, split, self.l_max - 1, self.wanted[split])
            counts[split] = take(rows, self.wanted[split], _OFFICIAL[split], str(folder / file), f"n_{split}")
        vocabulary = assemble(target, SPLITS, self.l_max)
        return {"read_from": str(folder), "counts": counts, "vocabulary": vocabulary}

    def _write_stand_in(self, target: Path) -> dict[str, Any]:
        counts = {split: self.wanted[split] or _STAND_IN[split] for split in SPLITS}
        # One call for all splits: each call makes up new words, and the splits must share theirs.
        pairs, labels = document_pairs(sum(counts.values()), np.random.default_rng(0))
        rows = map(_row, labels, pairs)
        for split in SPLITS:
            path = target / f"{split}.tsv"
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(itertools.islice(rows, counts[split]))
            read_shards(path, target, split, self.l_max - 1, None)
            path.unlink()
        return {"counts": counts, "vocabulary": assemble(target, SPLITS, self.l_max)}


def _row(label: int, pair: tuple[str, str]) -> str:
    return f"{float(label)}\tfirst\tsecond\t{pair[0]}\t{pair[1]}\n"
