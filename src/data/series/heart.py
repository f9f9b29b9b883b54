"""Forecasts of the intervals between heart beats, from a pulse recording that ships with HeartPy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...registry import register_dataset
from .arima import arima_forecast
from .environment import last_value, order_name
from .forecast import ForecastData
from .packages import damaged, numbers, package_file, read_columns
from .windows import Series

# Samples a second, from the first and last time stamp of the file; those in between jitter by up to 0.2 s.
RATE = 100.42
# Seconds after a beat in which no other can come; the heart of this recording beats 75 to 120 times a minute.
REFRACTORY = 0.4
# Samples of each of the two means whose difference is the slope.
_HALF = 4


def find_beats(samples: np.ndarray, rate: float = RATE) -> np.ndarray:
    """Times of the beats, in seconds: steepest ascents of the pulse wave.

    The slope is the mean of the last four samples less that of the four before. A local maximum of it is a beat if it
    reaches half the median of the last eight slopes on record, those of the beats. Once more than 1.6 s have passed
    without a beat, each maximum that is too low removes the last four slopes from the record. Within `REFRACTORY` of a
    beat only the steeper of the two stays. The time is refined by a parabola through three slopes. So a beat depends on
    samples up to `REFRACTORY` after it, which is before the next one can come.

    Args:
        samples: (n,) of the pulse wave.
        rate: samples a second.
    """
    slope = np.zeros(len(samples))
    sums = np.concatenate([[0.0], np.cumsum(samples)])
    ends = np.arange(2 * _HALF, len(samples) + 1)
    slope[ends - 1] = (sums[ends] - 2 * sums[ends - _HALF] + sums[ends - 2 * _HALF]) / _HALF
    middle = slope[1:-1]
    beats: list[int] = []
    heights: list[float] = []
    for place in np.flatnonzero((middle > slope[:-2]) & (middle >= slope[2:]) & (middle > 0)) + 1:
        height = slope[place]
        if height < 0.5 * np.median(heights[-8:] or [0.0]):
            if place - beats[-1] > 1.6 * rate:
                del heights[-4:]
        elif beats and place - beats[-1] < REFRACTORY * rate:
            if height > heights[-1]:
                beats[-1], heights[-1] = place, height
        else:
            beats.append(place)
            heights.append(height)
    places = np.array(beats, dtype=np.int64)
    before, at, after = slope[places - 1], slope[places], slope[places + 1]
    return (places + 0.5 * (before - after) / (before - 2 * at + after)) / rate


def plausible(intervals: np.ndarray) -> np.ndarray:
    """(n,) bool, whether an interval lasts 0.4 to 1.0 s and lies within 20 % of the last plausible one.

    This is the rule of Malik et al. (1989) for normal beats; the others are missed or doubled beats, or movement. After
    five refusals in a row the next interval is judged by its length alone.

    Args:
        intervals: (n,) seconds.
    """
    accepted = np.zeros(len(intervals), dtype=bool)
    last, refused = 0.0, 5
    for index, interval in enumerate(intervals):
        near = refused >= 5 or abs(interval - last) <= 0.2 * last
        accepted[index] = near and REFRACTORY <= interval <= 1.0
        last, refused = (interval, 0) if accepted[index] else (last, refused + 1)
    return accepted


@register_dataset("series-pulse")
class Pulse(ForecastData):
    """Forecast the next interval between heart beats: about 1,080 in eleven minutes of a pulse wave, from `heartpy`.

    Beats are found by `find_beats`. Intervals that are not plausible, about 4 %, come from missed beats and movement
    and count as missing. Row t is interval t, which is known `REFRACTORY` after the beat that ends it.

    Licence: MIT, as the package.

    Args:
        data_dir, length, context, stride, train_share, val_share: see `ForecastData`.
    """

    name = "series-pulse"
    install = "heartpy"
    licence = "MIT (heartpy)"
    unit = "ms"
    masked = True
    d_input = 2
    orders = ((1, 0, 0), (8, 0, 0), (16, 0, 0), (2, 1, 1))

    def __init__(
        self,
        data_dir: Path,
        length: int = 128,
        context: int = 32,
        stride: int = 4,
        train_share: float = 0.6,
        val_share: float = 0.15,
    ):
        super().__init__(data_dir, length, context, stride, train_share, val_share)

    def files(self) -> Sequence[Path]:
        """See the base class."""
        return [package_file(self.name, self.install, "heartpy/data/data3.csv")]

    def read(self) -> np.ndarray:
        """Samples (n, 1) of the pulse wave."""
        (path,) = self.files()
        samples = numbers(path, read_columns(path, ("hr",), self.install), self.install)
        if not np.isfinite(samples).all():
            raise damaged(path, "missing samples", self.install)
        return samples

    def build(self, values: np.ndarray) -> Series:
        """One row per interval, in ms, NaN where it is not plausible; a row stands for many samples."""
        beats = find_beats(values[:, 0])
        intervals = np.diff(beats)
        intervals = 1000.0 * np.where(plausible(intervals), intervals, np.nan)
        time = beats[1:] * RATE / len(values)
        target = np.append(intervals[1:], np.nan)
        return Series(intervals[:, None], np.empty((len(intervals), 0)), target, time=time)

    def classical(self) -> dict[str, np.ndarray]:
        """See the base class."""
        intervals = self.series.measured[:, 0]
        forecasts = {"last value": last_value(intervals)}
        return forecasts | {order_name(order): arima_forecast(intervals, self.n_train, order) for order in self.orders}
