"""Sunspots, the Nile and carbon dioxide from `statsmodels`: forecasts of the next value, compared with ARIMA."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...registry import register_dataset
from .arima import arima_forecast
from .forecast import ForecastData
from .packages import damaged, numbers, package_file, read_columns
from .windows import Series

# Weeks of a year of 365.2425 days.
_YEAR = 365.2425 / 7.0
_DATE = "19580329"


class StatsmodelsData(ForecastData):
    """Forecasts along one column of a file in `statsmodels`.

    Attributes:
        place: "package/folder/file" of the data.
        column: header of the column that holds the values.
        orders: (p, d, q) of the classical models.
    """

    install = "statsmodels"
    licence = "public domain"
    place: ClassVar[str]
    column: ClassVar[str]
    orders: ClassVar[tuple[tuple[int, int, int], ...]]

    def files(self) -> Sequence[Path]:
        """See the base class."""
        return [package_file(self.name, self.install, self.place)]

    def read(self) -> np.ndarray:
        """(n, 1) values, NaN where missing."""
        (path,) = self.files()
        return numbers(path, read_columns(path, (self.column,), self.install), self.install)

    def classical(self) -> dict[str, np.ndarray]:
        """See the base class; "last value" repeats the last observed value."""
        values = self._values()
        forecasts = {"last value": last_value(values)}
        for order in self.orders:
            forecasts[order_name(order)] = arima_forecast(values, self.n_train, order, self._regressors())
        return {name: self._as_target(forecast) for name, forecast in forecasts.items()}

    def _values(self) -> np.ndarray:
        """(n,) the series itself, in its unit."""
        return self.series.measured[:, 0]

    def _regressors(self) -> np.ndarray | None:
        """(n + 1, m) regressors of the classical models, known in advance of each row, or None."""
        return None

    def _as_target(self, forecasts: np.ndarray) -> np.ndarray:
        """Convert forecasts of the next value to forecasts of the target."""
        return forecasts


class YearlyData(StatsmodelsData):
    """One value a year, none missing; the target is the next year's."""

    d_input = 1

    def build(self, values: np.ndarray) -> Series:
        """One row per year."""
        return Series(values, np.empty((len(values), 0)), np.append(values[1:, 0], np.nan))


@register_dataset("series-sunspots")
class Sunspots(YearlyData):
    """Yearly sunspot numbers, 1700 to 2008, from `statsmodels`; licence: public domain.

    The classical models AR(2) and AR(9) are those of Yule (1927) and of the later literature.

    Args:
        data_dir, length, context, stride, train_share, val_share: see `ForecastData`.
    """

    name = "series-sunspots"
    place = "statsmodels/datasets/sunspots/sunspots.csv"
    column = "SUNACTIVITY"
    unit = "sunspot number"
    orders = ((2, 0, 0), (9, 0, 0), (2, 0, 1))

    def __init__(
        self,
        data_dir: Path,
        length: int = 64,
        context: int = 22,
        stride: int = 2,
        train_share: float = 0.55,
        val_share: float = 0.2,
    ):
        super().__init__(data_dir, length, context, stride, train_share, val_share)


@register_dataset("series-nile")
class Nile(YearlyData):
    """Yearly flow of the Nile at Aswan, 1871 to 1970, 100 values, from `statsmodels`; licence: public domain.

    There are about twenty test targets: enough to see that a layer does no harm, too few to rank layers.

    Args:
        data_dir, length, context, stride, train_share, val_share: see `ForecastData`.
    """

    name = "series-nile"
    place = "statsmodels/datasets/nile/nile.csv"
    column = "volume"
    unit = "10^8 m^3"
    orders = ((1, 0, 0), (0, 1, 1), (1, 0, 1))

    def __init__(
        self,
        data_dir: Path,
        length: int = 24,
        context: int = 5,
        stride: int = 1,
        train_share: float = 0.55,
        val_share: float = 0.2,
    ):
        super().__init__(data_dir, length, context, stride, train_share, val_share)


@register_dataset("series-co2")
class CarbonDioxide(StatsmodelsData):
    """Weekly carbon dioxide at Mauna Loa, 1958 to 2001, 2,284 weeks, 59 missing, from `statsmodels`; public domain.

    The concentration rises beyond the range of the training part. So the input of a week is the change to it from the
    last value observed before, and the target the change from the last observed value to the next week, NaN where that
    is missing. The season of the coming week, sine and cosine of one and two cycles a year, is a further input and a
    regressor of the ARIMA models.

    Args:
        data_dir, length, context, stride, train_share, val_share: see `ForecastData`.
    """

    name = "series-co2"
    place = "statsmodels/datasets/co2/co2.csv"
    column = "co2"
    unit = "ppm, change from the last observed value"
    orders = ((0, 1, 1), (1, 1, 1), (2, 1, 2))
    masked = True
    d_input = 6

    def __init__(
        self,
        data_dir: Path,
        length: int = 208,
        context: int = 104,
        stride: int = 8,
        train_share: float = 0.6,
        val_share: float = 0.15,
    ):
        super().__init__(data_dir, length, context, stride, train_share, val_share)

    def read(self) -> np.ndarray:
        """Columns: concentration, NaN where missing.

        Raises:
            UsageError: the file does not start in the week that the season is counted from.
        """
        (path,) = self.files()
        first = read_columns(path, ("date",), self.install)[:1, 0]
        if first.tolist() != [_DATE]:
            raise damaged(path, f"the first week is not {_DATE}", self.install)
        return super().read()

    def build(self, values: np.ndarray) -> Series:
        """One row per week: change from the last value observed before; NaN where the week is missing."""
        last = last_value(values[:, 0])
        change = values[1:, 0] - last[:-1]
        self._concentration = values[:, 0]
        measured = np.append(np.nan, change)[:, None]
        return Series(measured, season(len(values) + 1)[1:], np.append(change, np.nan))

    def _values(self) -> np.ndarray:
        return self._concentration

    def _regressors(self) -> np.ndarray:
        return season(len(self._concentration) + 1)

    def _as_target(self, forecasts: np.ndarray) -> np.ndarray:
        return forecasts - last_value(self._concentration)


def season(weeks: int) -> np.ndarray:
    """(weeks, 4) sine and cosine of one and of two cycles a year, week by week."""
    angle = 2.0 * np.pi / _YEAR * np.arange(weeks)
    return np.stack([np.sin(angle), np.cos(angle), np.sin(2.0 * angle), np.cos(2.0 * angle)], axis=1)


def last_value(values: np.ndarray) -> np.ndarray:
    """(n,) each value, or the last one before it where it is missing; NaN before the first.

    >>> last_value(np.array([1.0, np.nan, 3.0])).tolist()
    [1.0, 1.0, 3.0]
    """
    seen = np.maximum.accumulate(np.where(np.isfinite(values), np.arange(len(values)), -1))
    return np.where(seen >= 0, values[np.maximum(seen, 0)], np.nan)


def order_name(order: tuple[int, int, int]) -> str:
    """AR(p) or ARIMA(p,d,q).

    >>> order_name((2, 0, 0)), order_name((0, 1, 1))
    ('AR(2)', 'ARIMA(0,1,1)')
    """
    p, d, q = order
    return f"AR({p})" if (d, q) == (0, 0) else f"ARIMA({p},{d},{q})"
