"""The mean lag that a system remembers, a unit in which step ranges of different measures can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import UsageError
from .diagonal import Diagonal
from .measure import Array, Operator, check_positive


def time_scale(system: Operator | Diagonal | Array) -> float:
    """Mean lag that the state remembers, in the unit of time in which x' = -A x + B u is written.

    For white-noise input, the best linear read-out of the state recovers the share memory(tau) =
    k(tau)^T G^-1 k(tau) of the variance of the input at lag tau, as a density over tau, with k = exp(-tau A) B and
    G = integral k k^T. Its integral over tau is N. The time scale is its mean, (1/N) integral tau memory(tau). It does
    not change with the basis of the state or with any scaling between B and C; it depends only on the eigenvalues:

        time_scale = (1 / N) Re sum_{j, k} 1 / (a_j + conj(a_k)),        a = eigenvalues of A = -Lambda.

    LegS and `fractional` tend to 2 ln 2 = 1.386 with growing N, for every alpha; LegT to 0.364 theta, Fourier to about
    0.58 theta (their operators forget the window's far edge gradually); LagT has N / 2, because its functions reach
    further with every order. Undriven modes (`fourier`) are left out.

    Args:
        system: an operator, a diagonalised one (of any method), or an array Lambda of *all* its modes (both of each
            conjugate pair), real parts < 0.
    Returns:
        Time, > 0. With step dt it is time_scale / dt positions.
    Raises:
        UsageError: a mode that does not decay, no modes at all, or another type of argument (such as a name alone).
    Source: this project; memory(tau) is the linear memory function of White, Lee and Sompolinsky (2004).
    >>> round(time_scale(np.array([-0.5])), 6)
    1.0
    """
    a = _rates(system)
    if not len(a):
        raise UsageError("A time scale needs at least one mode that an input reaches, got none.")
    if not (np.isfinite(a).all() and (a.real > 0).all()):
        raise UsageError(f"A time scale needs modes that decay, got real parts of Lambda up to {(-a.real).max():.3g}.")
    return float((1.0 / (a[:, None] + a[None, :].conj())).real.sum() / len(a))


def calibrated_range(system: Operator | Diagonal | Array, shortest: float, longest: float) -> tuple[float, float]:
    """Step range in which the system's mean lag runs from `shortest` to `longest` positions.

    With the same two numbers, different measures are compared at equal memory length.

    Args:
        system: as for `time_scale`.
        shortest, longest: positions, 0 < shortest <= longest.
    Returns:
        dt_min = time_scale / longest and dt_max = time_scale / shortest.
    Raises:
        UsageError: the two lengths are not positive or not in order.
    """
    if check_positive("shortest", shortest) > check_positive("longest", longest):
        raise UsageError(f"Memory lengths must satisfy 0 < shortest <= longest, got {shortest!r} and {longest!r}.")
    unit = time_scale(system)
    return unit / longest, unit / shortest


def _rates(system: Operator | Diagonal | Array) -> Array:
    if isinstance(system, Operator):
        driven = system.driven
        return np.linalg.eigvals(system.A[np.ix_(driven, driven)])
    if isinstance(system, Diagonal):
        return -system.Lambda[system.driven]
    try:
        values: Any = np.atleast_1d(np.asarray(system))
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(
            f"time_scale takes operator(name, N), diagonalize(...) or an array Lambda of shape (N,), got a "
            f"{type(system).__name__}: {error}. Build an operator first."
        ) from error
    if values.dtype.kind not in "iufc" or values.ndim != 1:
        given = repr(system) if isinstance(system, str) else f"{values.dtype} of shape {values.shape}"
        raise UsageError(
            f"time_scale takes operator(name, N), diagonalize(...) or an array Lambda of shape (N,), got {given}."
        )
    return -values.astype(complex)
