"""Image: CIFAR-10 as a sequence of 1,024 pixels, grey by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..registry import register_dataset
from . import mega
from .base import SPLITS
from .cache import Cache, source_stamp
from .cached import STAND_IN_HINT, CachedData, take
from .finder import Expected
from .options import check_flags, checked_labels
from .pickles import load_pickle
from .pixels import PixelSequences
from .splits import check_convention, consecutive, tenth_held_out
from .stand_in import gratings

_BATCHES = {"train": tuple(f"data_batch_{n}" for n in range(1, 6)), "test": ("test_batch",)}
_OFFICIAL = {"train": 50_000, "test": 10_000}
_STAND_IN = {"train": 2_000, "test": 500}
_PIXELS = 32 * 32
EXPECTED = Expected(
    task="cifar",
    folders=("cifar-10-batches-py", "cifar/cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar", "cifar10"),
    files=(*_BATCHES["train"], *_BATCHES["test"]),
    tree="  cifar-10-batches-py/\n    data_batch_1 .. data_batch_5  test_batch",
    size="60,000 images, 170 MB packed",
    origin=(
        "Unpack cifar-10-python.tar.gz (University of Toronto) with "
        "`python -m fractal_ssm.data extract cifar-10-python.tar.gz --to DATA_DIR/cifar`."
    ),
    instead=STAND_IN_HINT,
)

MEGA = mega.expected("cifar", ("cifar10", "cifar"))
_MEGA_OFFICIAL = {"train": 45_000, "val": 5_000, "test": 10_000}


def gray(images: np.ndarray) -> np.ndarray:
    """Luma of colour images (n, 3, ...) uint8 as (n, ...) uint8: (19595 R + 38470 G + 7471 B + 32768) >> 16.

    The integer weights stand for 0.299, 0.587 and 0.114; the result equals Pillow's mode "L" bit for bit.
    >>> gray(np.array([[[255], [0], [0]]], dtype=np.uint8)).tolist()
    [[76]]
    """
    red, green, blue = (images[:, channel].astype(np.uint32) for channel in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)


@register_dataset("cifar")
class Cifar(CachedData):
    """32 x 32 images row by row: (1024, 1) grey, (x/255 - 122.6/255) / (61/255); 10 classes.

    Args:
        data_dir: root of all data.
        source: "release" reads the user's files, "mega" the Mega repository's form of them (grey, split already),
            "auto" the first of these that is found; "stand-in" makes up images of the same shape.
        n_train, n_test: number of images to use, from the beginning of the files; null takes all, which must be 50,000
            and 10,000. In the split's order, the first int(0.9 n_train) are for training, the others for validation.
        split: "s4_seed42" (one seeded permutation) or "lra_sequential".
        grayscale: False gives (1024, 3), normalised per channel, which is not the benchmark's task.
        tokenize: grey values 0..255 as token ids instead of one real channel.
    """

    name = "cifar"
    title = "Image"
    sample_bytes = 1_024
    expected = EXPECTED
    sources = ("auto", "release", "mega", "stand-in")
    n_classes = 10
    l_max = _PIXELS

    def __init__(
        self,
        data_dir: Path,
        source: str = "auto",
        n_train: int | None = None,
        n_test: int | None = None,
        split: str = "s4_seed42",
        grayscale: bool = True,
        tokenize: bool = False,
    ):
        super().__init__(data_dir, source, {"train": n_train, "test": n_test})
        check_convention(split)
        check_flags(self.name, grayscale=grayscale, tokenize=tokenize)
        if tokenize and not grayscale:
            raise UsageError("cifar: tokenize=true makes ids of grey values; leave grayscale=true with it.")
        self.convention, self.grayscale, self.tokenize = split, grayscale, tokenize
        self.d_input = None if tokenize else (1 if grayscale else 3)
        self.n_tokens = 256 if tokenize else None

    @classmethod
    def found(cls, data_dir: Path) -> list[tuple[str, Path]]:
        """See the base class."""
        return super().found(data_dir) + [("mega", path) for path in MEGA.find_all(data_dir)]

    def split(self, name: str) -> PixelSequences:
        """The samples of one split, (pixels, label); see the base class."""
        folder, indices = self.cache.folder, self.indices(name)
        if self.tokenize:
            return PixelSequences(folder, indices)
        if self.grayscale:
            return PixelSequences(folder, indices, mean=(122.6 / 255,), std=(61.0 / 255,))
        return PixelSequences(folder, indices, mean=(0.4914, 0.4822, 0.4465), std=(0.247, 0.243, 0.261))

    def _load(self) -> Cache:
        options = {"n": self.wanted, "grayscale": self.grayscale, "layout": 1}
        if self.source == "stand-in":
            return self._store({"source": "stand-in", **options}, lambda target: self._write(target, None))
        there = [pair for pair in self.found(self.data_dir) if self.source in ("auto", pair[0])]
        if not there:
            raise UsageError((MEGA if self.source == "mega" else EXPECTED).missing(self.data_dir))
        source, folder = there[0]
        if source == "mega" and (not self.grayscale or any(self.wanted.values())):
            raise UsageError(
                f"{folder} holds grey images that are split already: leave grayscale, n_train and n_test at their "
                f"defaults with it, or use cifar-10-batches-py."
            )
        write = self._write if source == "release" else _write_mega
        stamps = [source_stamp(folder / name) for name in (EXPECTED if source == "release" else MEGA).files]
        return self._store({"source": source, "files": stamps, **options}, lambda target: write(target, folder))

    def _members(self) -> dict[str, np.ndarray]:
        if "counts" in self.cache.facts:
            return consecutive(self.cache.facts["counts"])
        return tenth_held_out(self.cache.facts["n_train"], len(self.cache.array("labels")), self.convention)

    def _convention(self) -> str:
        return "mega files" if self.cache.parameters["source"] == "mega" else self.convention

    def _is_benchmark(self) -> bool:
        return super()._is_benchmark() and self.grayscale

    def _write(self, target: Path, folder: Path | None) -> dict[str, Any]:
        images, labels = {}, {}
        rng = np.random.default_rng(0)
        for part in _BATCHES:
            if folder is None:
                images[part], labels[part] = gratings(self.wanted[part] or _STAND_IN[part], rng)
                continue
            read = [_read_batch(folder / name) for name in _BATCHES[part]]
            images[part], labels[part] = (np.concatenate(parts) for parts in zip(*read, strict=True))
            what = f"{folder} ({part} part)"
            count = take(len(labels[part]), self.wanted[part], _OFFICIAL[part], what, f"n_{part}")
            images[part], labels[part] = images[part][:count], labels[part][:count]
        stacked = np.concatenate([images["train"], images["test"]])
        channels = gray(stacked)[:, None] if self.grayscale else stacked
        rows = channels.reshape(len(stacked), -1, _PIXELS).swapaxes(1, 2)
        np.save(target / "pixels.npy", np.ascontiguousarray(rows))
        np.save(target / "labels.npy", np.concatenate([labels["train"], labels["test"]]).astype(np.uint8))
        return {"read_from": None if folder is None else str(folder), "n_train": len(labels["train"])}


def _write_mega(target: Path, folder: Path) -> dict[str, Any]:
    pixels, labels, counts = [], [], {}
    for split in SPLITS:
        before = len(labels)
        for place, line, label in mega.read_lines(folder, split):
            values = line.split()
            try:
                row = np.array(values, dtype=np.int64)
            except (ValueError, OverflowError):
                row = np.array([-1])
            if len(row) != _PIXELS or row.min() < 0 or row.max() > 255 or label > 9:
                raise UsageError(
                    f"{place}: expected {_PIXELS} whole numbers in 0..255 and a class in 0..9, got {len(values)} "
                    f"values ({line[:20].decode(errors='replace').strip()} ...) and class {label}."
                )
            pixels.append(row.astype(np.uint8)[:, None])
            labels.append(label)
        counts[split] = len(labels) - before
        if counts[split] != _MEGA_OFFICIAL[split]:
            raise UsageError(
                f"{folder} holds {counts[split]:,} {split} images instead of {_MEGA_OFFICIAL[split]:,}: unpack again."
            )
    np.save(target / "pixels.npy", np.stack(pixels))
    np.save(target / "labels.npy", np.array(labels, dtype=np.uint8))
    return {"read_from": str(folder), "counts": counts}


def _read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) uint8 and labels (n,) of one pickled batch."""
    content = load_pickle(path)
    try:
        data, labels = content[b"data"], content[b"labels"]
    except (KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{path} is not a CIFAR-10 batch, it lacks {error}: copy or download it again.") from error
    labels = checked_labels(labels, 10, f"{path}, which is not a CIFAR-10 batch,")
    fits = isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (len(labels), 3 * _PIXELS)
    if not fits:
        wanted = f"uint8 data (n, {3 * _PIXELS}) and n labels in 0..9"
        raise UsageError(f"{path} is not a CIFAR-10 batch: expected {wanted}. Copy or download it again.")
    return data.reshape(-1, 3, 32, 32), labels
