"""Text form of the values of a main metric: shares in percent and points, other numbers to a few digits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..training.metric import ACCURACY, Metric, number


@dataclass(frozen=True)
class Units:
    """Format values, differences and axes of one metric as text; a dash for nan.

    >>> Units(ACCURACY).signed(0.019), Units(Metric("mse", False)).signed(-0.01234)
    ('+1.90', '-0.0123')
    """

    metric: Metric = ACCURACY

    @property
    def scale(self) -> float:
        """Factor of the values in figures."""
        return 100.0 if self.metric.is_share else 1.0

    @property
    def axis(self) -> str:
        """Label of an axis of values."""
        return f"{self.metric.name}, %" if self.metric.is_share else self.metric.name

    @property
    def difference(self) -> str:
        """Heading of differences."""
        better = "higher" if self.metric.higher_is_better else "lower"
        return "difference, points" if self.metric.is_share else f"difference in {self.metric.name}, {better} is better"

    def value(self, value: float, digits: int = 2) -> str:
        """0.5 as "50.00 %"; another number to four digits."""
        if math.isnan(value):
            return "-"
        return f"{100 * value:.{digits}f} %" if self.metric.is_share else number(value)

    def mean(self, mean: float, deviation: float) -> str:
        """Mean and standard deviation; the latter is left out if it is nan."""
        if self.metric.is_share:
            spread = "" if math.isnan(deviation) else f" ± {100 * deviation:.2f}"
            return f"{100 * mean:.2f}{spread} %"
        return number(mean) + ("" if math.isnan(deviation) else f" ± {number(deviation, 2)}")

    def size(self, value: float) -> str:
        """A difference without its sign: 0.019 as "1.90 points"."""
        return f"{100 * value:.2f} points" if self.metric.is_share else number(value, 3)

    def signed(self, value: float) -> str:
        """A difference with its sign: 0.019 as "+1.90"."""
        if math.isnan(value):
            return "-"
        return f"{100 * value:+.2f}" if self.metric.is_share else f"{value:+.3g}"

    def interval(self, low: float, high: float) -> str:
        """-0.01 and 0.02 as "-1.00 to +2.00"."""
        return "-" if math.isnan(low) else f"{self.signed(low)} to {self.signed(high)}"

    def verdict(self, difference: float) -> str:
        """Words for a sentence: whether a difference is better or worse. Empty for shares, of which more is better."""
        if self.metric.is_share:
            return ""
        return ", which is better" if self.metric.gain(difference, 0.0) > 0 else ", which is worse"
