"""Range checks of the numbers that a process is given."""

from __future__ import annotations

import sys
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..errors import UsageError

MOST_STEPS = 1 << 24


def is_real(value: Any) -> bool:
    """Whether a value is a real number that float64 holds; bool, infinity, NaN and 10**400 are not."""
    return isinstance(value, Real) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_range(what: str, name: str, value: Any, low: float, high: float, closed: str = "") -> None:
    """Refuse anything but a finite real number in (low, high); `closed` names the ends that belong to the range.

    Args:
        what, name: the class and its argument, for the message.
        closed: "" for (low, high), "low", "high" or "both".
    """
    real = is_real(value)
    above = real and (value >= low if closed in ("low", "both") else value > low)
    below = real and (value <= high if closed in ("high", "both") else value < high)
    if not (above and below):
        left, right = ("[" if closed in ("low", "both") else "("), ("]" if closed in ("high", "both") else ")")
        raise UsageError(f"{what} needs {name} in {left}{low:g}, {high:g}{right}, got {value!r}. Set such a number.")


def check_length(what: str, name: str, value: Any, least: int = 1) -> None:
    """Refuse anything but a whole number in least .. 2^24."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= value <= MOST_STEPS:
        raise UsageError(f"{what} needs a whole number {name} from {least} to {MOST_STEPS:,}, got {value!r}.")


def check_samples(what: str, x: np.ndarray, n: int) -> None:
    """Refuse samples (..., length) of another length than n, which reshaping would cut or join without a word."""
    if x.ndim < 1 or x.shape[-1] != n:
        raise UsageError(
            f"This {what} was made for samples (..., {n}), got an array of shape {x.shape}. Make one for "
            f"{x.shape[-1] if x.ndim else 1} positions."
        )


def frequencies(what: str, values: np.ndarray) -> np.ndarray:
    """The frequencies as float64; refuses those outside (0, pi], where formulas give infinity, NaN or another alias."""
    w = np.asarray(values, dtype=np.float64)
    # pi itself may come out of a division one rounding too large.
    within = (w > 0.0) & (w <= np.pi * (1.0 + 1e-12))
    if not within.all():
        raise UsageError(
            f"{what} has a spectrum at frequencies in (0, pi], radians per step, got {w[~within].flat[0]}. Leave "
            f"out 0, and fold others into that range."
        )
    return w
