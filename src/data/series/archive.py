"""Data sets of long series from the UCR archive, as `sktime` and `aeon` ship them: classification of whole series."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import Dataset

from ...errors import UsageError, unknown
from ...registry import register_dataset
from ..base import SPLITS, SequenceData, label_shares
from ..options import check_real, check_required, is_real
from ..splits import fingerprint, stratified_holdout
from .packages import checksum, damaged, file_bytes, package_file
from .windows import Scale

_INSTALL = "--no-deps sktime"


def read_ts(path: Path) -> tuple[list[np.ndarray], list[str]]:
    """Series (L, 1) float32 and class names of a `.ts` file with one channel.

    Raises:
        UsageError: the file is damaged or of another kind.
    """
    try:
        lines = file_bytes(path).decode("utf-8").lower().splitlines()
        first = lines.index("@data") + 1
        pairs = [line.rsplit(":", 1) for line in lines[first:] if line.strip()]
        series = [np.array(values.split(","), dtype=np.float32)[:, None] for values, _ in pairs]
    except (UnicodeDecodeError, ValueError) as error:
        raise damaged(path, str(error), _INSTALL) from error
    if not series or not all(np.isfinite(values).all() for values in series):
        raise damaged(path, "no series, or values that are not finite", _INSTALL)
    return series, [name.strip() for _, name in pairs]


class _Chosen(Dataset):
    def __init__(self, series: list[np.ndarray], labels: np.ndarray):
        self.series, self.labels = series, labels

    def __len__(self) -> int:
        return len(self.series)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.series[index], int(self.labels[index])


class ArchiveData(SequenceData):
    """One data set of the UCR archive with the archive's own split into training and test.

    The archive has no validation part: `val_share` of each training class is held out by a seeded draw, so models here
    train on fewer series than models with published accuracies. Values are normalised by the mean and standard
    deviation of all training values; series are not normalised one by one, since their amplitude distinguishes the
    classes of ACSF1 and PLAID.

    Args:
        data_dir: not used; the data lie in an installed package.
        val_share: share of each class of the archive's training part that is held out for validation.
        seed: of that draw.

    Attributes:
        ucr: name in the archive.
        packages: packages that ship it, by import name; the first that is installed is read.
    """

    name: ClassVar[str]
    ucr: ClassVar[str]
    licence: ClassVar[str] = "UCR archive, free to use with citation; the packages are BSD-3-Clause"
    packages: ClassVar[tuple[str, ...]] = ("sktime", "aeon")
    d_input = 1

    def __init__(self, data_dir: Path, val_share: float = 0.2, seed: int = 42):
        check_real(self.name, "val_share", val_share, is_real(val_share) and 0.0 < val_share < 1.0, "0 < val_share < 1")
        check_required(0, self.name, "any", (1 << 63) - 1, seed=seed)
        self.val_share, self.seed = val_share, seed
        self._parts: dict[str, _Chosen] | None = None

    def files(self) -> list[Path]:
        """The two files of the archive, training and test.

        Raises:
            UsageError: no package that ships them is installed.
        """
        names = [f"datasets/data/{self.ucr}/{self.ucr}_{part}.ts" for part in ("TRAIN", "TEST")]
        return [package_file(self.name, _INSTALL, *(f"{each}/{name}" for each in self.packages)) for name in names]

    def prepare(self) -> None:
        """Read the files, which takes about a second; nothing is written."""
        if self._parts is not None:
            return
        (train, train_names), (test, test_names) = (read_ts(path) for path in self.files())
        classes = sorted(set(train_names))
        longest = max(len(values) for values in train + test)
        if len(classes) != self.n_classes or set(test_names) - set(classes) or longest > self.l_max:
            raise damaged(self.files()[0], f"{len(classes)} classes, {longest} steps", _INSTALL)
        labels = np.searchsorted(classes, train_names)
        kept, held = stratified_holdout(labels, self.val_share, self.seed)
        scale = Scale.of(np.concatenate([train[index] for index in kept]))
        train, test = ([scale.apply(x).astype(np.float32) for x in part] for part in (train, test))
        self._members = (kept, held)
        self._parts = {
            "train": _Chosen([train[index] for index in kept], labels[kept]),
            "val": _Chosen([train[index] for index in held], labels[held]),
            "test": _Chosen(test, np.searchsorted(classes, test_names)),
        }

    def split(self, name: str) -> _Chosen:
        """See the base class."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        if self._parts is None:
            raise UsageError(f"{self.name} has not been read. Call prepare() first.")
        return self._parts[name]

    def reference(self) -> dict[str, float]:
        """Test accuracy of the commonest class and of the nearest neighbour.

        The nearest neighbour is sought among all training series of the archive, by Euclidean distance of series
        normalised one by one, which is the archive's first baseline. It is left out where series differ in length.
        """
        train, held, test = (self.split(name) for name in SPLITS)
        labels = np.concatenate([train.labels, held.labels])
        commonest = np.bincount(labels).argmax()
        scores = {"commonest class": float(np.mean(test.labels == commonest))}
        if len({len(x) for x in train.series + held.series + test.series}) == 1:
            known, asked = (_normalised(part) for part in (train.series + held.series, test.series))
            nearest = np.array([((known - x) ** 2).sum(axis=1).argmin() for x in asked])
            scores["nearest neighbour, Euclidean"] = float(np.mean(labels[nearest] == test.labels))
        return scores

    def describe(self) -> dict[str, Any]:
        """See the base class."""
        parts = {name: self.split(name) for name in SPLITS}
        return {
            "name": self.name,
            "source": "package",
            "lra": False,
            "path": ", ".join(str(path) for path in self.files()),
            "licence": self.licence,
            "counts": {name: len(part) for name, part in parts.items()},
            "checksum": checksum(*self.files()),
            "split": f"the archive's, {self.val_share:.0%} of each training class held out (seed {self.seed})",
            "split_fingerprint": fingerprint(*self._members, np.arange(len(parts["test"]))),
            "label_shares": {name: label_shares(part.labels, self.n_classes) for name, part in parts.items()},
        }


def _normalised(series: list[np.ndarray]) -> np.ndarray:
    """(n, L) float64, each series with mean 0 and standard deviation 1."""
    return np.stack([Scale.of(x.astype(np.float64)).apply(x)[:, 0] for x in series])


@register_dataset("series-acsf1")
class ACSF1(ArchiveData):
    """Power use of ten kinds of appliances, 1,460 steps; 100 series for training and 100 for test.

    Source: Gisler et al., ACS-F1 (2013), in the UCR archive; free to use with citation.

    Args:
        data_dir, val_share, seed: see `ArchiveData`.
    """

    name, ucr = "series-acsf1", "ACSF1"
    n_classes, l_max = 10, 1460


@register_dataset("series-osuleaf")
class OSULeaf(ArchiveData):
    """Outlines of six kinds of leaves, 427 steps; 200 series for training and 242 for test.

    Source: Gandhi, Oregon State University, in the UCR archive; free to use with citation.

    Args:
        data_dir, val_share, seed: see `ArchiveData`.
    """

    name, ucr = "series-osuleaf", "OSULeaf"
    n_classes, l_max = 6, 427


@register_dataset("series-plaid")
class Plaid(ArchiveData):
    """Current of eleven kinds of appliances, 100 to 1,344 steps; 537 series for training and 537 for test.

    Only `sktime` ships it. Source: Gao et al., PLAID (2014), in the UCR archive; free to use with citation.

    Args:
        data_dir, val_share, seed: see `ArchiveData`.
    """

    name, ucr = "series-plaid", "PLAID"
    packages = ("sktime",)
    n_classes, l_max = 11, 1344
