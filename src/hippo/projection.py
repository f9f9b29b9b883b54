"""Online projection of a signal, its reconstruction, and the true projection for comparison.

Signals are step functions: u[k] is held over (t[k-1], t[k]], starting at time 0, so steps in time are exact. The state
equation has two forms:

    ltv  x' = (-A x + B u) / t, as the measures on [0, t] define it ("scaled" kind only); exact step with
         r = t[k-1] / t[k]: x_k = r^A x_{k-1} + (I - r^A) A^-1 B u_k;
    lti  x' = -A x + B u, from rest at t = 0: x_k = exp(-dt A) x_{k-1} + (I - exp(-dt A)) A^-1 B u_k. A measure on
         [0, t] then sees the past through s = exp(-lag).

A state is an array that does not record its form: read a state back with the form that produced it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import UsageError, unknown
from .measure import Array, Operator, check_positive
from .measure import operator as build

FORMS = ("ltv", "lti")
# Eigen-coordinates lose a factor cond(V) in accuracy; above this the matrix exponential is used instead.
_LARGEST_CONDITION = 1e6
_BLOCK = 256


def project(
    u: Array, t: Array, measure: str | Operator, N: int | None = None, form: str | None = None, **options: Any
) -> Array:
    """The state of a measure's operator along a signal.

    Args:
        u: (L,) or (L, C) real samples, u[k] held over (t[k-1], t[k]].
        t: (L,) times, increasing, t[0] > 0, in the unit of time of the measure.
        measure: a measure's name, with N and its options, or an operator.
        N: order, needed with a name.
        form: "ltv" or "lti"; by default "ltv" for measures on [0, t] and "lti" for the others.
    Returns:
        (L, N) or (L, N, C) float64, the state at each t[k].
    Raises:
        UsageError: shapes or times that do not fit, samples that are complex or not finite, an unknown form, "ltv" for
            a measure that is not on [0, t].
    >>> project(np.ones(3), np.arange(1.0, 4.0), "legs", 2).round(12).tolist()
    [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
    """
    system, form = _resolve(measure, N, form, options)
    u, t = _check_signal(u, t)
    samples = u.reshape(len(u), -1)
    with np.errstate(divide="ignore"):
        steps = np.diff(np.log(t), prepend=-np.inf) if form == "ltv" else _even(np.diff(t, prepend=0.0), t[-1])
    # The steady state A^-1 B; states that no input reaches (fourier has one) stay at 0.
    driven, rest = system.driven, np.zeros(system.N)
    rest[driven] = np.linalg.solve(system.A[np.ix_(driven, driven)], system.B[driven])
    x = _march(system, steps, samples, rest)
    return x[:, :, 0] if u.ndim == 1 else x


def true_projection(
    u: Array | Callable[[Array], Array],
    t: Array,
    measure: str | Operator,
    N: int | None = None,
    form: str | None = None,
    at: Sequence[int] | None = None,
    **options: Any,
) -> Array:
    """The projection that the measure defines, x_n(t) = integral u(x(s)) g_n(s) w(s) ds, without any operator.

    Args:
        u: (L,) samples as for `project`, integrated exactly piece by piece; or a function of an array of times that
            returns an array of the same shape, integrated by a Gauss rule of max(200, 4 N) nodes (needs a smooth u).
        t: (L,) times as for `project`; for a function, the times of evaluation.
        measure, N, form, options: as for `project`.
        at: which t to evaluate at, indices into t (negative ones count from the end); all by default (cost L^2 N).
    Returns:
        (len(at), N) float64.
    Raises:
        UsageError: as `project`; the operator has no basis; a function u and a measure without a Gauss rule; a
            function that does not take or return arrays.
    """
    system, form = _resolve(measure, N, form, options)
    _require_basis(system)
    t = _check_times(t)
    where = range(len(t)) if at is None else _check_indices(at, len(t))
    if callable(u):
        if system.quadrature is None:
            raise UsageError(f"{system.label} has no Gauss rule: give u as samples.")
        s, weights = system.quadrature(max(200, 4 * system.N))
        weighted = system.basis(s) * weights
        return np.stack([weighted @ _values(u, past(system, s, t[k], form)) for k in where])
    u, t = _check_signal(u, t)
    if u.ndim != 1:
        raise UsageError(f"true_projection takes one signal of shape (L,), got {u.shape}.")
    edges = np.concatenate([[0.0], t])
    rows = []
    for k in where:
        G = system.cumulative(coordinate(system, edges[: k + 2], t[k], form))
        rows.append(np.diff(G, axis=1) @ u[: k + 1])
    # Lags decrease with time, so the integrals over them change sign.
    return -np.stack(rows) if system.kind == "exponential" else np.stack(rows)


def reconstruct(
    x: Array,
    times: Array,
    t: float,
    measure: str | Operator,
    N: int | None = None,
    form: str | None = None,
    **options: Any,
) -> Array:
    """The signal that a state represents: u(times) ~ sum_n x_n g_n(s).

    Args:
        x: (N,) or, for C != N channels, (N, C): the state at *one* time t, `project(...)[k]`. The trajectory (L, N)
            that `project` returns is refused, and with it a square (N, N), which could be either.
        times: number or (len,), points of the past, in [0, t]; for a sliding measure also in [t - theta, t].
        t: time of the state, > 0, on the clock that `project` was given.
        measure, N, options: as for `project`.
        form: the form that produced the state. The array does not record it: a state of project(form="lti") read back
            with the default "ltv" of a measure on [0, t] gives a wrong signal, which cannot be detected here.
    Returns:
        (len,) or (len, C) float64.
    Raises:
        UsageError: the operator has no basis; a state of another shape, complex or not finite; times outside the
            range; t that is not a positive number.
    """
    system, form = _resolve(measure, N, form, options)
    _require_basis(system)
    x, t = _check_state(x, system), check_positive("t, the time of the state,", t)
    times = _check_past(times, t, system)
    return np.tensordot(system.basis(coordinate(system, times, t, form)).T, x, axes=1)


def coordinate(operator: Operator, times: Array, t: float, form: str) -> Array:
    """Coordinate s, at time t, of points in time (see the table of `Operator`); clipped to the range of s."""
    lag = np.maximum(t - np.atleast_1d(np.asarray(times, dtype=np.float64)), 0.0)
    if operator.kind == "exponential":
        return lag
    if operator.kind == "sliding":
        return np.maximum(1.0 - lag / operator.options["theta"], 0.0)
    return np.exp(-lag) if form == "lti" else np.maximum(1.0 - lag / t, 0.0)


def past(operator: Operator, s: Array, t: float, form: str) -> Array:
    """The points in time with coordinate s at time t: the inverse of `coordinate`."""
    if operator.kind == "exponential":
        return t - s
    if operator.kind == "sliding":
        return t - operator.options["theta"] * (1.0 - s)
    return t + np.log(s) if form == "lti" else t * s


def scale_invariant_step(Lambda: Array, t_from: Array, t_to: Array) -> tuple[Array, Array]:
    """Coefficients of the ltv form in eigen-coordinates: z(t_to) = a z(t_from) + gain B_tilde u.

    a = (t_to / t_from)^Lambda, gain = (a - 1) / Lambda (so log(t_to / t_from) where Lambda -> 0).

    Args:
        Lambda: (P,) complex, real parts <= 0.
        t_from, t_to: (L,) times, 0 <= t_from < t_to. From t_from = 0 any state is forgotten: a = 0,
            gain = -1 / Lambda, so Lambda must not be 0.
    Returns:
        a and gain, (L, P) complex128.
    Raises:
        UsageError: shapes that do not fit, values that are not finite, a growing mode, times out of order.
    """
    start, stop = _real("t_from", t_from), _real("t_to", t_to)
    Lambda = _array("Lambda", Lambda)
    if Lambda.ndim != 1 or start.ndim != 1 or start.shape != stop.shape:
        raise UsageError(
            f"scale_invariant_step takes Lambda (P,) and t_from, t_to of one shape (L,), "
            f"got {Lambda.shape}, {start.shape} and {stop.shape}."
        )
    if Lambda.dtype.kind not in "iufc" or not (np.isfinite(Lambda).all() and (Lambda.real <= 0).all()):
        raise UsageError("scale_invariant_step takes finite modes Lambda with real parts <= 0, as diagonalize gives.")
    wrong = np.flatnonzero((start < 0) | (start >= stop))
    if len(wrong):
        k = wrong[0]
        raise UsageError(
            f"Steps run forward in time, 0 <= t_from < t_to; got t_from[{k}] = {start[k]}, t_to[{k}] = {stop[k]}."
        )
    if (start == 0).any() and (Lambda == 0).any():
        raise UsageError("A mode Lambda = 0 integrates log t, which is infinite from t_from = 0; start at a time > 0.")
    begins = (start == 0)[:, None]
    span = np.log(stop / np.where(start == 0, stop, start))[:, None]
    growth = np.where(begins, -1.0, np.expm1(span * Lambda))
    gain = np.where(Lambda == 0, span, growth / np.where(Lambda == 0, 1.0, Lambda))
    return growth + 1.0, gain


def _march(system: Operator, steps: Array, samples: Array, rest: Array) -> Array:
    """x_k = rest u_k + E_k (x_{k-1} - rest u_k), E_k = exp(-steps[k] A), and E = 0 for an infinite step."""
    x = np.zeros((len(steps), system.N, samples.shape[1]))
    state = np.zeros((system.N, samples.shape[1]))
    apply = _propagator(system, steps)
    for k, step in enumerate(steps):
        settled = rest[:, None] * samples[k]
        state = settled if np.isinf(step) else settled + apply(k, state - settled)
        x[k] = state
    return x


def _propagator(system: Operator, steps: Array) -> Callable[[int, Array], Array]:
    """(k, x) -> exp(-steps[k] A) x, in eigen-coordinates where they are accurate."""
    finite = np.where(np.isinf(steps), 0.0, steps)
    unique, index = np.unique(finite, return_inverse=True)
    if len(unique) > 2 and not system.no_direct and system.eigensystem is None:
        eigenvalues, V = np.linalg.eig(system.A)
        if np.linalg.cond(V) < _LARGEST_CONDITION:
            inverse = np.linalg.inv(V)
            decay = np.exp(-np.outer(finite, eigenvalues))
            return lambda k, x: ((V * decay[k]) @ (inverse @ x)).real
    cache: dict[int, Array] = {}

    def by_exponential(k: int, x: Array) -> Array:
        # Steps shrink or stay the same along most signals, so caching one group of exponentials is enough.
        block = index[k] // _BLOCK
        if block not in cache:
            # Imported here because SciPy takes half a second to import.
            from scipy.linalg import expm

            cache.clear()
            cache[block] = expm(-unique[block * _BLOCK : (block + 1) * _BLOCK, None, None] * system.A)
        return cache[block][index[k] % _BLOCK] @ x

    return by_exponential


def _even(steps: Array, last: float) -> Array:
    """Replace steps that differ from the median only by the rounding of t with the median."""
    median = np.median(steps)
    return np.where(np.abs(steps - median) <= 4.0 * np.finfo(float).eps * last, median, steps)


def _resolve(measure: str | Operator, N: int | None, form: str | None, options: dict[str, Any]) -> tuple[Operator, str]:
    if isinstance(measure, Operator):
        if N not in (None, measure.N) or options:
            raise UsageError(f"Got the operator {measure.label} and also N = {N}, {options}: give one or the other.")
        system = measure
    elif N is None:
        raise UsageError(f"The measure '{measure}' needs an order N.")
    else:
        system = build(measure, N, **options)
    natural = "ltv" if system.kind == "scaled" else "lti"
    form = natural if form is None else form
    if not isinstance(form, str) or form not in FORMS:
        raise unknown("form", form, FORMS)
    if form == "ltv" and system.kind != "scaled":
        raise UsageError(f"{system.label} is time-invariant as it stands; form='ltv' is for measures on [0, t].")
    return system, form


def _require_basis(system: Operator) -> None:
    if system.basis is None or system.cumulative is None:
        raise UsageError(f"{system.label} has no basis, so there is nothing to project on or to reconstruct with.")


def _check_signal(u: Array, t: Array) -> tuple[Array, Array]:
    u, t = _real("u", u), _check_times(t)
    if u.ndim not in (1, 2) or len(u) != len(t):
        raise UsageError(f"A signal is u of shape (L,) or (L, C) with t of shape (L,), got {u.shape} and {t.shape}.")
    return u, t


def _check_times(t: Array) -> Array:
    t = _real("t", t)
    if t.ndim != 1 or len(t) == 0:
        raise UsageError(f"Times t are an array of shape (L,), L >= 1, one for each sample; got shape {t.shape}.")
    if not t[0] > 0 or not (np.diff(t) > 0).all():
        raise UsageError(f"Times must be positive and increasing, t[k] ends the interval of u[k]; got t[0] = {t[0]}.")
    return t


def _check_indices(at: Sequence[int], length: int) -> Array:
    where = _array("at", at)
    if where.ndim != 1 or where.dtype.kind not in "iu" or not ((-length <= where) & (where < length)).all():
        raise UsageError(f"at is a list of indices into the {length} times, such as [0, -1], got {at!r}.")
    return where % length


def _check_state(x: Array, system: Operator) -> Array:
    x, n = _real("x", x), system.N
    if x.ndim not in (1, 2) or x.shape[0] != n:
        raise UsageError(
            f"{system.label} reconstructs from one state of shape ({n},) or ({n}, C), got {x.shape}. "
            f"project returns the states of all times: pass one of them, x[k], with t = t[k]."
        )
    if x.shape == (n, n) and n > 1:
        raise UsageError(
            f"A state of shape {x.shape} may be {n} channels or a trajectory of {n} times. Pass the state of one time, "
            f"x[k], with t = t[k]; or the channels one by one, x[:, c]."
        )
    return x


def _check_past(times: Array, t: float, system: Operator) -> Array:
    times = np.atleast_1d(_real("times", times))
    oldest = max(0.0, t - system.options["theta"]) if system.kind == "sliding" else 0.0
    # Times are often sums or products of steps, so allow for their rounding.
    slack = 1e-12 * t
    if times.ndim != 1 or not ((times >= oldest - slack) & (times <= t + slack)).all():
        span = f"from {times.min()} to {times.max()}" if times.size else "none"
        raise UsageError(
            f"{system.label} at t = {t:g} knows the signal over [{oldest:g}, {t:g}]; "
            f"got times of shape {times.shape}, {span}. Read inside this range."
        )
    return times


def _values(u: Callable[[Array], Array], times: Array) -> Array:
    """u(times), checked to be one real number for each time."""
    remedy = "u must take an array of times and return an array of its shape, as np.sin does (math.sin does not)"
    try:
        values = u(times)
    except TypeError as error:
        raise UsageError(f"The function u failed on an array of shape {times.shape}: {error}. {remedy}.") from error
    values = _real("u(times)", values)
    if values.shape != times.shape:
        raise UsageError(f"The function u returned shape {values.shape} for {times.shape} times. {remedy}.")
    return values


def _array(name: str, values: Any) -> Array:
    """values as a numpy array; UsageError if numpy cannot convert them (ragged lists, tensors that are not dense)."""
    try:
        return np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"{name} must be an array of numbers, got a {type(values).__name__}: {error}") from error


def _real(name: str, values: Array) -> Array:
    """values as float64; UsageError unless they are real, finite numbers."""
    array = _array(name, values)
    if array.dtype.kind not in "biuf":
        hint = " Give real and imaginary part as two channels." if array.dtype.kind == "c" else ""
        raise UsageError(f"{name} must be an array of real numbers, got {array.dtype}.{hint}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise UsageError(f"{name} must be finite, got {array[where]} at index {where}.")
    return array
