"""Text: IMDB reviews by character, two classes, up to 4,096 characters."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..registry import register_dataset
from .cache import Cache, source_stamp
from .cached import STAND_IN_HINT, CachedData, take
from .characters import CharacterEncoder, count_characters
from .finder import Expected
from .options import check_flags, check_real, check_required, checked_labels, is_real
from .packed import PackedSequences, PackedWriter
from .progress import progress
from .splits import stratified_holdout
from .stand_in import reviews
from .vocabulary import CharacterCounter, Vocabulary

_PARTS = ("train", "test")
_CLASSES = ("neg", "pos")
_OFFICIAL = 25_000
_STAND_IN = {"train": 2_000, "test": 1_000}
EXPECTED = Expected(
    task="imdb",
    folders=("aclImdb", "imdb/aclImdb", "imdb"),
    files=tuple(f"{part}/{name}" for part in _PARTS for name in _CLASSES),
    tree=(
        "  aclImdb/\n    train/neg/*.txt  train/pos/*.txt   12,500 files each\n"
        "    test/neg/*.txt   test/pos/*.txt    12,500 files each"
    ),
    size="50,000 reviews, 84 MB packed",
    origin=(
        "Unpack aclImdb_v1.tar.gz of the Large Movie Review Dataset (Stanford) with "
        "`python -m fractal_ssm.data extract aclImdb_v1.tar.gz --to DATA_DIR/imdb`. The hub's parquet form is read too "
        "where pyarrow is installed: imdb/train-00000-of-00001.parquet and imdb/test-00000-of-00001.parquet."
    ),
    instead=STAND_IN_HINT,
)
_PARQUET = Expected(
    task="imdb",
    folders=("imdb/plain_text", "imdb", "plain_text"),
    files=("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"),
    tree="",
    size="",
    origin="",
    instead="",
)


@register_dataset("imdb")
class Imdb(CachedData):
    """Reviews as Unicode characters, no clean-up; the frequent characters of the training reviews have ids.

    Args:
        data_dir: root of all data.
        source: "release" or "auto" reads the user's files, "stand-in" makes up texts of the same shape.
        n_train, n_test: number of reviews to use, the first ones with classes alternating; null takes all, which must
            be 25,000.
        l_max: longest sequence, `<eos>` included.
        min_freq: characters seen less often in the kept beginnings of the training reviews become `<unk>`.
        val_share: share of the training reviews held out for model selection, equal for both classes, seed 42.
        select_on_test: hold out no review and validate on the test reviews, as published code does.
    """

    name = "imdb"
    title = "Text"
    sample_bytes = 1_400
    expected = EXPECTED
    n_classes = 2

    def __init__(
        self,
        data_dir: Path,
        source: str = "auto",
        n_train: int | None = None,
        n_test: int | None = None,
        l_max: int = 4096,
        min_freq: int = 15,
        val_share: float = 0.1,
        select_on_test: bool = False,
    ):
        super().__init__(data_dir, source, {"train": n_train, "test": n_test})
        check_required(2, self.name, "a character and <eos>", l_max=l_max)
        check_required(1, self.name, "1 keeps every character", min_freq=min_freq)
        inside = is_real(val_share) and 0.0 < val_share < 1.0
        check_real(self.name, "val_share", val_share, inside, "0 < val_share < 1 (for none, select_on_test=true)")
        check_flags(self.name, select_on_test=select_on_test)
        self.l_max, self.min_freq = l_max, min_freq
        self.val_share, self.select_on_test = val_share, select_on_test

    @classmethod
    def found(cls, data_dir: Path) -> list[tuple[str, Path]]:
        """See the base class; the hub's parquet files count too."""
        return super().found(data_dir) + [("release", path) for path in _PARQUET.find_all(data_dir)]

    def split(self, name: str) -> PackedSequences:
        """The samples of one split, (ids, label); see the base class."""
        return PackedSequences(self.cache.folder, self.indices(name))

    def describe(self) -> dict[str, Any]:
        """See the base class; `selection` names the split on which models are chosen."""
        return {**super().describe(), "selection": "test" if self.select_on_test else "val"}

    def _load(self) -> Cache:
        options = {"n": self.wanted, "l_max": self.l_max, "min_freq": self.min_freq, "layout": 1}
        if self.source == "stand-in":
            made = {"source": "stand-in", **options}
            return self._store(made, lambda folder: self._write(folder, self._made_up(), None))
        parquet = _PARQUET.find(self.data_dir) if EXPECTED.find(self.data_dir) is None else None
        if parquet is not None:
            stamps = [source_stamp(parquet / name) for name in _PARQUET.files]
            read_from, texts = parquet, (_read_parquet(parquet / name) for name in _PARQUET.files)
            parts = dict(zip(_PARTS, texts, strict=True))
        else:
            read_from = self._release_folder()
            files = {part: _alternating(read_from / part) for part in _PARTS}
            stamps = [[len(paths), sum(path.stat().st_size for path, _ in paths)] for paths in files.values()]
            parts = {part: _read_files(paths, part) for part, paths in files.items()}
        return self._store(
            {"source": "release", "files": stamps, **options}, lambda folder: self._write(folder, parts, read_from)
        )

    def _loaded(self, cache: Cache) -> None:
        self.n_tokens = len(cache.facts["vocabulary"])

    def _members(self) -> dict[str, np.ndarray]:
        n_train = self.cache.facts["n_train"]
        labels = self.cache.array("labels")
        train, test = np.arange(n_train), np.arange(n_train, len(labels))
        if self.select_on_test:
            return {"train": train, "val": test, "test": test}
        train, val = stratified_holdout(labels[:n_train], self.val_share)
        return {"train": train, "val": val, "test": test}

    def _convention(self) -> str:
        return "select_on_test" if self.select_on_test else f"stratified_holdout_{self.val_share:g}_seed42"

    def _made_up(self) -> dict[str, Iterator[tuple[str, int]]]:
        rng = np.random.default_rng(0)
        wanted = {part: self.wanted[part] or _STAND_IN[part] for part in _PARTS}
        texts, labels = reviews(sum(wanted.values()), rng)
        samples = list(zip(texts, labels, strict=True))
        return {"train": iter(samples[: wanted["train"]]), "test": iter(samples[wanted["train"] :])}

    def _write(self, folder: Path, parts: dict[str, Iterator], read_from: Path | None) -> dict[str, Any]:
        samples = {}
        for part, pairs in parts.items():
            read = list(pairs)
            official = len(read) if read_from is None else _OFFICIAL
            what = f"{read_from}/{part}" if read_from else f"the stand-in's {part} part"
            samples[part] = read[: take(len(read), self.wanted[part], official, what, f"n_{part}")]
        counter = CharacterCounter()
        count_characters((text for text, _ in samples["train"]), self.l_max, counter)
        vocabulary = Vocabulary.from_counts(counter.counts(), self.min_freq)
        encode = CharacterEncoder(vocabulary, self.l_max)
        labels = []
        with PackedWriter(folder, "tokens", encode.dtype) as writer:
            for part in _PARTS:
                for text, label in samples[part]:
                    writer.append(encode(text))
                    labels.append(label)
        np.save(folder / "labels.npy", np.array(labels, dtype=np.uint8))
        return {
            "read_from": None if read_from is None else str(read_from),
            "n_train": len(samples["train"]),
            "vocabulary": list(vocabulary.tokens),
        }


def _alternating(folder: Path) -> list[tuple[Path, int]]:
    """Review files with labels, alternating between the classes, each class in the order of its integer ids.

    Raises:
        UsageError: a file name that is not id_rating.txt.
    """
    by_class = []
    for label, name in enumerate(_CLASSES):
        paths = list((folder / name).glob("*.txt"))
        odd = [path for path in paths if not path.stem.partition("_")[0].isdigit()]
        if odd:
            raise UsageError(f"{odd[0]} is not named like a review (id_rating.txt). Move it out of the data folder.")
        by_class.append([(path, label) for path in sorted(paths, key=lambda path: int(path.stem.partition("_")[0]))])
    negative, positive = by_class
    if len(negative) != len(positive):
        raise UsageError(
            f"{folder} holds {len(negative):,} negative and {len(positive):,} positive reviews, which should be equal "
            f"in number: copy or unpack it again."
        )
    if not negative:
        raise UsageError(f"{folder} holds no reviews, pos/*.txt and neg/*.txt are expected: copy or unpack it again.")
    return [pair for both in zip(negative, positive, strict=True) for pair in both]


def _read_files(paths: list[tuple[Path, int]], part: str) -> Iterator[tuple[str, int]]:
    with progress(f"Reading IMDB {part}", len(paths), "reviews") as advance:
        for path, label in paths:
            content = path.read_bytes()
            if not content:
                raise UsageError(f"{path} is empty: copy or unpack the data again.")
            try:
                yield content.decode("utf-8"), label
            except UnicodeDecodeError as error:
                raise UsageError(f"{path} is not UTF-8 text ({error}): copy or unpack the data again.") from error
            advance(1)


def _read_parquet(path: Path) -> Iterator[tuple[str, int]]:
    if find_spec("pyarrow") is None:
        raise UsageError(f"{path} needs pyarrow to be read: `pip install pyarrow`, or use the aclImdb folders instead.")
    from pyarrow import ArrowException, parquet

    try:
        table = parquet.read_table(path, columns=["text", "label"])
        texts = [str(text) for text in table["text"].to_pylist()]
        labels = checked_labels(table["label"].to_pylist(), 2, str(path)).tolist()
    except (ArrowException, KeyError, OSError) as error:
        raise UsageError(f"{path} is not a parquet file of texts and labels ({error}): download it again.") from error
    rows = list(zip(texts, labels, strict=True))
    by_class = [[row for row in rows if row[1] == label] for label in range(2)]
    yield from (row for both in zip(*by_class, strict=True) for row in both)
