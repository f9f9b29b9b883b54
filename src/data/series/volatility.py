"""Volatility of daily prices: the logarithm of a variance estimated from daily data, forecast at every close.

The index series have daily highs and lows, so the variance of a day is Parkinson's, ln(high / low)^2 / (4 ln 2): five
times less noisy than a squared return, and independent of the opening price, which in the S&P 500 file equals the
previous close on nearly all days before 2006 (so Garman-Klass, which uses it, would be wrong). Oil has closing prices
only; the variance there is the sum of the next five squared returns, since a single one says little and is zero on days
without a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...registry import register_dataset
from .forecast import ForecastData
from .garch import arch_forecasts, har_forecast
from .packages import damaged, numbers, package_file, read_columns
from .windows import Series

_INSTALL = "arch"


class VolatilityData(ForecastData):
    """Daily prices of one market; the target is the log of the variance of the next days, in percent squared.

    Attributes:
        components: days of the averages that the heterogeneous autoregression reads.
    """

    install = _INSTALL
    unit = "ln of percent squared"
    offset = 1
    d_input = 2
    place: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    components: ClassVar[tuple[int, int, int]]

    def __init__(
        self,
        data_dir: Path,
        length: int = 512,
        context: int = 256,
        stride: int = 16,
        train_share: float = 0.6,
        val_share: float = 0.15,
    ):
        super().__init__(data_dir, length, context, stride, train_share, val_share)

    def files(self) -> Sequence[Path]:
        """See the base class."""
        return [package_file(self.name, self.install, self.place)]

    def read(self) -> np.ndarray:
        """Prices (days, columns); a day without a price, a holiday, is left out."""
        (path,) = self.files()
        prices = numbers(path, read_columns(path, self.columns, self.install), self.install)
        prices = prices[np.isfinite(prices).all(axis=1)]
        if not (prices > 0).all() or len(prices) < 2:
            raise damaged(path, "prices that are not positive", self.install)
        return prices

    def returns(self, prices: np.ndarray) -> np.ndarray:
        """(days - 1,) daily returns in percent; the close is the last column."""
        return 100.0 * np.diff(np.log(prices[:, -1]))

    def variance(self) -> np.ndarray:
        """(n,) variance in percent squared, whose logarithm is the target; call after `prepare`."""
        return np.exp(self.series.target)

    def calibrated(self, forecasts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Turn forecasts of a variance into calibrated forecasts of its logarithm and of the variance.

        A model of returns determines neither the scale of a range-based variance nor the mean of its logarithm, and the
        exponential of a forecast logarithm lies below the mean. So both are corrected over the training rows: the
        logarithm by its mean error, the variance by the mean ratio of variance to forecast. Classical models get both
        corrections; layers are trained on the logarithm and get the second only.

        Args:
            forecasts: (n,) positive.
        Returns:
            (n,) logarithm and (n,) variance, percent squared.
        """
        rows = self.scored("train")
        error = self.series.target[rows] - np.log(forecasts[rows])
        return np.log(forecasts) + error.mean(), forecasts * np.exp(error).mean()

    def variance_forecasts(self) -> dict[str, np.ndarray]:
        """Forecasts (n,) of the variance, up to a factor, by HAR, GARCH and FIGARCH fitted to the training part.

        Raises:
            UsageError: `arch` is missing.
        """
        daily, target = self._daily(), self.series.target
        rows = self.scored("train")
        forecasts = {
            "HAR": har_forecast(daily, self.variance(), self.components, rows, log=False),
            "log-HAR": har_forecast(daily, target, self.components, rows, log=True),
        }
        # measured[:, 0] is the return of each row.
        return forecasts | arch_forecasts(self.series.measured[:, 0], self.n_train, self.series.reach)

    def classical(self) -> dict[str, np.ndarray]:
        """See the base class; "last value" is the variance of the last days."""
        forecasts = {"last value": self._last()} | self.variance_forecasts()
        return {name: self.calibrated(values)[0] for name, values in forecasts.items()}

    def _daily(self) -> np.ndarray:
        """(n,) variance of each day, percent squared; may be zero."""
        raise NotImplementedError

    def _last(self) -> np.ndarray:
        """(n,) positive variance over as many days as the target covers, up to and with row t."""
        return np.exp(self.series.measured[:, 1])


class IndexData(VolatilityData):
    """An index with daily highs and lows: Parkinson's variance of the next day."""

    columns = ("High", "Low", "Close")
    components = (1, 5, 22)
    licence = "arch: NCSA; the prices are public quotations, shipped by arch for its examples"

    def build(self, values: np.ndarray) -> Series:
        """One row per day: return and log variance of the day."""
        log_variance = np.log((100.0 * np.log(values[1:, 0] / values[1:, 1])) ** 2 / (4.0 * np.log(2.0)))
        measured = np.stack([self.returns(values), log_variance], axis=1)
        return Series(measured, np.empty((len(measured), 0)), np.append(log_variance[1:], np.nan))

    def _daily(self) -> np.ndarray:
        return np.exp(self.series.measured[:, 1])


@register_dataset("series-sp500")
class SP500(IndexData):
    """S&P 500, 1999 to 2018, 5,031 days, from `arch`: Parkinson's variance of the next day.

    Licence: the package is under NCSA; it ships the public quotations for its examples.

    Args:
        data_dir, length, context, stride, train_share, val_share: see `ForecastData`.
    """

    name = "series-sp500"
    place = "arch/data/sp500/sp500.csv.gz"


@register_dataset("series-nasdaq")
class Nasdaq(IndexData):
    """NASDAQ Composite, 1999 to 2018, 5,031 days, from `arch`: Parkinson's variance of the next day.

    Licence: the package is under NCSA; it ships the public quotations for its examples.

    Args:
        data_dir, length, context, stride, train_share, val_share: see `ForecastData`.
    """

    name = "series-nasdaq"
    place = "arch/data/nasdaq/nasdaq.csv.gz"


@register_dataset("series-wti")
class Oil(VolatilityData):
    """West Texas Intermediate crude, 1986 to 2019, 8,321 days, from `arch`: squared returns of the next five days.

    Licence: the package is under NCSA; the prices are those of FRED (EIA, public domain).

    Args:
        data_dir, length, context, stride, train_share, val_share: see `ForecastData`.
    """

    name = "series-wti"
    place = "arch/data/wti/wti.csv.gz"
    columns = ("DCOILWTICO",)
    components = (5, 22, 66)
    licence = "arch: NCSA; prices of the EIA through FRED, public domain"

    def build(self, values: np.ndarray) -> Series:
        """One row per day: return of the day, and log of the sum of the last five squared returns."""
        returns = self.returns(values)
        sums = np.convolve(returns**2, np.ones(5))[: len(returns)]
        # Five days without a change do not occur in the file; a target of minus infinity would be missing.
        log_sums = np.log(np.where(sums > 0, sums, np.nan))
        target = np.append(log_sums[5:], np.full(5, np.nan))
        measured = np.stack([returns, np.nan_to_num(log_sums, nan=np.nanmin(log_sums[:100]))], axis=1)
        return Series(measured, np.empty((len(returns), 0)), target, reach=5)

    def _daily(self) -> np.ndarray:
        return self.series.measured[:, 0] ** 2
