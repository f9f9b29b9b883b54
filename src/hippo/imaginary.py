"""Frequencies chosen by formula for a diagonal system, as in S4D."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import unknown
from .fractional import legs
from .low_rank import dplr
from .measure import Array, check_order


def _none(n: int) -> Array:
    return np.zeros(n)


def _lin(n: int) -> Array:
    return np.pi * np.arange(n)


def _inv(n: int) -> Array:
    N = 2 * n
    return N / np.pi * (N / (2.0 * np.arange(n) + 1.0) - 1.0)


def _inv2(n: int) -> Array:
    N = 2 * n
    return N / np.pi * (N / (np.arange(n) + 1.0) - 1.0)


def _quad(n: int) -> Array:
    return (2.0 * np.arange(n) + 1.0) ** 2 / np.pi


def _legs(n: int) -> Array:
    return -dplr(legs(2 * n)).half().Lambda.imag


_KINDS: dict[str, Callable[[int], Array]] = {
    "none": _none,
    "lin": _lin,
    "inv": _inv,
    "inv2": _inv2,
    "quad": _quad,
    "legs": _legs,
}


def imaginary_parts(kind: str, n: int) -> Array:
    """|Im Lambda| of n modes, one of each conjugate pair; N = 2 n is the order they stand for.

        none  0
        lin   pi j                                   (S4D-Lin)
        inv   (N / pi) (N / (2 j + 1) - 1)           (S4D-Inv)
        inv2  (N / pi) (N / (j + 1) - 1)
        quad  (2 j + 1)^2 / pi
        legs  frequencies of LegS's normal part      (S4D-LegS, S5), largest first

    Args:
        kind: a name of the table.
        n: number of modes, 1 .. 512.
    Returns:
        (n,) float64, >= 0, in the table's order j = 0 .. n-1; unit radian per unit of time. Their sign does not matter
        for a real output.
    Raises:
        UsageError: unknown kind, n outside its range.
    Source: arXiv 2206.11893; inv2 and quad as in the published S4D code.
    >>> imaginary_parts("inv", 2).round(4).tolist()
    [3.8197, 0.4244]
    """
    if not isinstance(kind, str) or kind not in _KINDS:
        raise unknown("kind of imaginary parts", kind, _KINDS)
    check_order(2 * check_order(n))
    return _KINDS[kind](int(n))
