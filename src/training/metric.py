"""The main metric of a task, and the direction in which it improves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A task's main metric, which selects the checkpoint, ends a fit at `training.target`, and is used by `compare`.

    name: key of the results in record.json, and column of metrics.csv.
    """

    name: str
    higher_is_better: bool

    @property
    def is_share(self) -> bool:
        """Whether values are shares of the samples, given in percent."""
        return self.name == "accuracy"

    @property
    def mode(self) -> str:
        """ "max" or "min", the direction as lightning and hydra's sweepers name it."""
        return "max" if self.higher_is_better else "min"

    def at_least(self, value: float, bound: float) -> bool:
        """Whether `value` is as good as `bound` or better; never for NaN."""
        return value >= bound if self.higher_is_better else value <= bound

    def gain(self, value: float, base: float) -> float:
        """How much better `value` is than `base`: positive if it is better."""
        return value - base if self.higher_is_better else base - value

    def shown(self, value: float) -> str:
        """A value or a loss as text: four decimals where values are shares, else four significant digits."""
        return f"{value:.4f}" if self.is_share else number(value)


ACCURACY = Metric("accuracy", higher_is_better=True)
MSE = Metric("mse", higher_is_better=False)
# Task of a dataset -> its main metric.
MAIN = {"classification": ACCURACY, "retrieval": ACCURACY, "tokens": ACCURACY, "regression": MSE}


def recorded_metric(facts: Mapping[str, Any]) -> Metric:
    """The main metric of a record; records of version 0.1 name none and hold accuracies."""
    entry = facts.get("metric")
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        return ACCURACY
    return Metric(entry["name"], bool(entry.get("higher_is_better", True)))


def number(value: float, digits: int = 4) -> str:
    """A number with this many significant digits, without an exponent where it is short.

    >>> number(0.00123456), number(1234567.0), number(1e-9), number(float("nan"))
    ('0.001235', '1.235e+06', '1e-09', 'nan')
    """
    return "nan" if math.isnan(value) else f"{value:.{digits}g}"
