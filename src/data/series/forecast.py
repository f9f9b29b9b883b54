"""Base class of forecasts along a real series: a causal target at every position, and classical models to compare."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch.utils.data import Dataset

from ...errors import UsageError, unknown
from ..base import SPLITS, SequenceData
from ..options import check_real, check_required, is_real
from ..splits import fingerprint
from .packages import checksum
from .windows import Plan, Scale, Series, plan


class _Windows(Dataset):
    """Windows of one split: (x (L, d_input), y (L, 1)) float32, y NaN where it is not scored."""

    def __init__(self, inputs: np.ndarray, target: np.ndarray, part: Plan):
        self.inputs, self.target, self.part = inputs, target, part
        self.starts = part.starts

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self.starts[index]
        scored = self.part.scored(index)
        target = np.full((self.part.length, 1), np.nan, dtype=np.float32)
        target[scored - start, 0] = self.target[scored]
        return self.inputs[start : start + self.part.length], target


class ForecastData(SequenceData):
    """A series, split by time: the first rows for training, the next for validation, the last for test.

    A model reads a window of rows and forecasts the target of each row after the first `context`. Windows lie within
    their split, so nothing crosses its borders, and outside training every such row is scored once. Inputs and targets
    are normalised by the mean and standard deviation of the training part. A missing value becomes 0, which is that
    mean, and is marked in a separate channel (`masked`); a missing target is NaN.

    Args:
        data_dir: not used; the data lie in an installed package.
        length: rows of a window.
        context: leading rows of a window that are not scored.
        stride: rows from one training window to the next.
        train_share, val_share: shares of the time for training and validation; the rest is for test.

    Attributes:
        install: argument of `pip install` that brings the data and the classical models.
        licence: of the data, in words.
        masked: whether a channel says which rows were observed.
        unit: of the target.
    """

    task = "regression"
    d_target = 1
    per_position = True
    causal = True
    n_classes = None
    name: ClassVar[str]
    install: ClassVar[str]
    licence: ClassVar[str]
    unit: ClassVar[str]
    masked: ClassVar[bool] = False

    def __init__(
        self, data_dir: Path, length: int, context: int, stride: int, train_share: float = 0.6, val_share: float = 0.15
    ):
        check_required(1, self.name, "rows before the first that is scored", context=context)
        check_required(context + 1, self.name, "rows of a window, more than context", length=length)
        check_required(1, self.name, "rows from window to window", stride=stride)
        for option, share in (("train_share", train_share), ("val_share", val_share)):
            check_real(self.name, option, share, is_real(share) and 0.0 < share < 1.0, f"0 < {option} < 1")
        if train_share + val_share >= 1.0:
            raise UsageError(
                f"{self.name} needs dataset.train_share + dataset.val_share < 1, since the rest is for test, got "
                f"{train_share} + {val_share}. Lower one of them."
            )
        self.l_max, self.context, self.stride = length, context, stride
        self.shares = (train_share, val_share)
        self._series: Series | None = None

    @abstractmethod
    def files(self) -> Sequence[Path]:
        """The files inside the package.

        Raises:
            UsageError: the package is missing.
        """

    @abstractmethod
    def read(self) -> np.ndarray:
        """The values of the files, (n, k) float64, in the order of time."""

    @abstractmethod
    def build(self, values: np.ndarray) -> Series:
        """Rows and targets made of the values; row t depends on values[: t + offset + 1] only."""

    @abstractmethod
    def classical(self) -> dict[str, np.ndarray]:
        """Forecasts of the target by established models: name -> (n,) float64 in the target's unit.

        Parameters are estimated on the training part only; the forecast of row t depends on rows up to t.
        """

    # Number of values before row 0.
    offset: ClassVar[int] = 0

    def prepare(self) -> None:
        """Read the file, which takes less than a second; nothing is written."""
        if self._series is None:
            series = self.build(self.read())
            parts = plan(series, self.shares, self.l_max, self.context, self.stride)
            self._parts, self._series = parts, series
            fitted = slice(0, parts["train"].stop)
            self._input_scale = Scale.of(series.measured[fitted])
            self._target_scale = Scale.of(series.target[: parts["train"].stop - series.reach, None])

    @property
    def series(self) -> Series:
        """The series; call after `prepare`."""
        if self._series is None:
            raise UsageError(f"{self.name} has not been read. Call prepare() first.")
        return self._series

    @property
    def inputs(self) -> np.ndarray:
        """(n, d_input) float32: normalised measured values, marks of observed rows if `masked`, and `series.known`."""
        series = self.series
        scaled = self._input_scale.apply(series.measured)
        observed = np.isfinite(series.measured).all(axis=1, keepdims=True)
        parts = (np.nan_to_num(scaled, nan=0.0), *((observed,) if self.masked else ()), series.known)
        return np.concatenate(parts, axis=1).astype(np.float32)

    @property
    def targets(self) -> np.ndarray:
        """(n,) float64 targets, normalised by the training part."""
        return self._target_scale.apply(self.series.target[:, None])[:, 0]

    def in_unit(self, forecasts: np.ndarray) -> np.ndarray:
        """Convert forecasts (..., n) of the normalised target to the target's own unit."""
        return self._target_scale.invert(forecasts[..., None])[..., 0]

    def split(self, name: str) -> Dataset:
        """See the base class."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        return _Windows(self.inputs, self.targets, self.part(name))

    def part(self, name: str) -> Plan:
        """Rows and windows of a split; call after `prepare`."""
        return (self.series, self._parts[name])[1]

    def scored(self, name: str) -> np.ndarray:
        """Rows of a split whose targets are scored, in order."""
        rows = self.part(name).rows
        return rows[np.isfinite(self.series.target[rows])]

    @property
    def n_train(self) -> int:
        """Number of rows in the training part; classical models are fitted to these rows."""
        return self.part("train").stop

    def reference(self) -> dict[str, float]:
        """Mean squared error on the test rows, in squared units of the training targets' standard deviation."""
        rows = self.scored("test")
        target = self.series.target[rows]
        forecasts = {"mean of the training part": np.full_like(self.series.target, self._target_scale.mean[0])}
        forecasts |= self.classical()
        scale = self._target_scale.std[0]
        return {name: float(np.mean(((values[rows] - target) / scale) ** 2)) for name, values in forecasts.items()}

    def describe(self) -> dict[str, Any]:
        """See the base class; `scored` counts the targets of each split, `scale` is their normalisation."""
        paths = [str(path) for path in self.files()]
        return {
            "name": self.name,
            "source": "package",
            "lra": False,
            "path": ", ".join(paths),
            "licence": self.licence,
            "counts": {name: len(self.part(name).starts) for name in SPLITS},
            "scored": {name: len(self.scored(name)) for name in SPLITS},
            "unit": self.unit,
            "scale": {"mean": float(self._target_scale.mean[0]), "std": float(self._target_scale.std[0])},
            "checksum": checksum(*self.files()),
            "split": f"by time, {self.context} rows of context before the first target of a split",
            "split_fingerprint": fingerprint(
                *(self.scored(name) for name in SPLITS), np.array([self.l_max, self.stride])
            ),
        }
