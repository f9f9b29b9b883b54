"""Split one long series by time, and cut windows from each part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...errors import UsageError


@dataclass(frozen=True)
class Series:
    """A series row by row; row t holds what is known at the end of step t.

    Attributes:
        measured: (n, k) float64, NaN where missing; the model gets it normalised by the training part.
        known: (n, m) float64, facts of the next step known in advance, such as its season; the model gets them as is.
        target: (n,) float64, the value to forecast at the end of step t; NaN where it does not exist.
        reach: the target of row t depends on rows up to t + reach.
        time: (n,) share of the recording that has passed at row t, in [0, 1], rising; None for rows at equal distances.
    """

    measured: np.ndarray
    known: np.ndarray
    target: np.ndarray
    reach: int = 1
    time: np.ndarray | None = None

    def borders(self, *shares: float) -> list[int]:
        """First row after each share of the time."""
        n = len(self.target)
        time = np.arange(n) / n if self.time is None else self.time
        return [int(row) for row in np.searchsorted(time, shares)]


@dataclass(frozen=True)
class Plan:
    """Which rows belong to a split, and its windows.

    A window lies within the segment of its split. Its first `context` rows are input only, so the targets of two splits
    are at least `context` rows apart, and no target depends on rows of the next split.

    Attributes:
        start, stop: the segment.
        starts: first rows of the windows.
        length: rows of a window.
        context: leading rows of a window that are not scored.
        stride: rows between windows in training; None where every row is scored once.
        reach: see `Series`.
    """

    start: int
    stop: int
    length: int
    context: int
    stride: int | None
    reach: int

    @property
    def starts(self) -> list[int]:
        """First rows of the windows, in order; the last window ends with the last row that has a target."""
        last = self.stop - self.reach - self.length
        return sorted({*range(self.start, last, self.stride or self.length - self.context), last})

    @property
    def rows(self) -> np.ndarray:
        """Rows that may be scored."""
        return np.arange(self.start + self.context, self.stop - self.reach)

    def scored(self, index: int) -> np.ndarray:
        """Rows that the window `index` scores; outside training, only those that no earlier window scores."""
        starts = self.starts
        first = starts[index] + self.context
        if self.stride is None and index:
            first = max(first, starts[index - 1] + self.length)
        return np.arange(first, starts[index] + self.length)


def plan(series: Series, shares: tuple[float, float], length: int, context: int, stride: int) -> dict[str, Plan]:
    """Three segments in the order of time: split -> plan.

    Args:
        series: the series to split.
        shares: shares of the time for training and validation; the rest is for test.
        length, context, stride: see `Plan`; a segment that is too short for `length` is one window.
    Raises:
        UsageError: a segment has no row that could be scored.
    >>> rows = np.zeros((100, 1))
    >>> parts = plan(Series(rows, rows, rows[:, 0]), (0.5, 0.2), 20, 8, 4)
    >>> [(name, part.starts[:3], part.rows[[0, -1]].tolist()) for name, part in parts.items()]
    [('train', [0, 4, 8], [8, 48]), ('val', [50], [58, 68]), ('test', [70, 79], [78, 98])]
    """
    n, reach = len(series.target), series.reach
    first, second = series.borders(shares[0], sum(shares))
    segments = {"train": (0, first), "val": (first, second), "test": (second, n)}
    for name, (start, stop) in segments.items():
        if stop - start <= context + reach:
            raise UsageError(
                f"The {name} part has {stop - start} rows, no more than context={context} and the {reach} ahead. "
                f"Lower dataset.context, or change dataset.train_share and dataset.val_share."
            )
    return {
        name: Plan(start, stop, min(length, stop - reach - start), context, stride if name == "train" else None, reach)
        for name, (start, stop) in segments.items()
    }


@dataclass(frozen=True)
class Scale:
    """Mean and standard deviation of the training rows, per column.

    >>> Scale.of(np.array([[1.0], [3.0], [np.nan]])).apply(np.array([[4.0]])).tolist()
    [[2.0]]
    """

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> Scale:
        """Scale of the rows (n, k), NaN left out; a constant column is shifted but not rescaled."""
        std = np.nanstd(rows, axis=0)
        return cls(np.nanmean(rows, axis=0), np.where(std > 0, std, 1.0))

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Rows in standard units."""
        return (rows - self.mean) / self.std

    def invert(self, rows: np.ndarray) -> np.ndarray:
        """Rows in the units of the series."""
        return rows * self.std + self.mean
