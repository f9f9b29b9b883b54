"""Range checks of the numbers that a process is given."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from ..errors import UsageError

MOST_STEPS = 1 << 24


def check_range(what: str, name: str, value: Any, low: float, high: float, closed: str = "") -> None:
    """Refuse anything but a finite real number in (low, high); `closed` names the ends that belong to the range.

    Args:
        what, name: the class and its argument, for the message.
        closed: "" for (low, high), "low", "high" or "both".
    """
    real = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    above = real and (value >= low if closed in ("low", "both") else value > low)
    below = real and (value <= high if closed in ("high", "both") else value < high)
    if not (above and below):
        left, right = ("[" if closed in ("low", "both") else "("), ("]" if closed in ("high", "both") else ")")
        raise UsageError(f"{what} needs {name} in {left}{low:g}, {high:g}{right}, got {value!r}. Set such a number.")


def check_length(what: str, name: str, value: Any, least: int = 1) -> None:
    """Refuse anything but a whole number in least .. 2^24."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= value <= MOST_STEPS:
        raise UsageError(f"{what} needs a whole number {name} from {least} to {MOST_STEPS:,}, got {value!r}.")
