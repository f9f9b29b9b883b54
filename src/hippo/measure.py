"""The class of operators, and the function that builds one from a measure's name."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from ..errors import UsageError, unknown
from ..registry import measures

Array = np.ndarray
Kind = Literal["scaled", "sliding", "exponential"]

# Largest order that the tests cover; a dense A of this order has 8 MiB.
MAX_ORDER = 1024


@dataclass(frozen=True, eq=False)
class NormalForm:
    """A = D^-1 (shift I + S + P Q^T) D with D = diag(scale).

    Attributes:
        scale: (N,) > 0, the diagonal of D.
        shift: c >= 0, the damping that remains when P Q^T is dropped.
        S: (N, N) real, S^T = -S exactly.
        P, Q: (N, r) real.
    """

    scale: Array
    shift: float
    S: Array
    P: Array
    Q: Array

    def __post_init__(self) -> None:
        parts = {name: getattr(self, name) for name in ("scale", "S", "P", "Q")}
        for name, value in parts.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf" or not np.isfinite(value).all():
                raise UsageError(f"A normal form needs {name} as a real, finite numpy array, got {_described(value)}.")
        shapes, n = {name: value.shape for name, value in parts.items()}, len(self.S) if self.S.ndim else 0
        rank = self.P.shape[1:]
        if (self.scale.shape, self.S.shape, self.P.shape, self.Q.shape) != ((n,), (n, n), (n, *rank), (n, *rank)) or (
            len(rank) != 1
        ):
            raise UsageError(
                f"A normal form needs scale (N,), S (N, N), P and Q (N, r), got {shapes}. Write a vector as v[:, None]."
            )
        if not (self.scale > 0).all():
            raise UsageError("A normal form needs every entry of scale above 0: it is the diagonal of D.")
        check_real("shift of a normal form", self.shift)
        if not (self.S == -self.S.T).all():
            raise UsageError("A normal form needs S skew-symmetric to the last digit: build it as X - X.T.")

    @property
    def is_all_of_A(self) -> bool:
        """Whether there is no low-rank term, so that A is D^-1 (shift I + S) D."""
        return not (self.P.any() and self.Q.any())


@dataclass(frozen=True, eq=False)
class Eigensystem:
    """Eigenvectors known in closed form, as logarithms because their entries exceed the range of float64.

    Attributes:
        eigenvalues: (N,) of A, positive, ascending.
        log_V, sign_V: (N, N); V = sign * exp(log), column j for eigenvalue j, unit diagonal.
        log_W: (N, N); V^-1 = exp(log_W), every entry >= 0.
        log_B_tilde: (N,); V^-1 B = exp(log_B_tilde).
    """

    eigenvalues: Array
    log_V: Array
    sign_V: Array
    log_W: Array
    log_B_tilde: Array


@dataclass(frozen=True, eq=False)
class Operator:
    """A measure of order N: the state equation, and the functions onto which its state is a projection.

    x' = -A x + B u for the kinds "sliding" and "exponential", x' = (-A x + B u) / t for "scaled".
    The state that the measure defines is x_n(t) = integral u(x(s)) g_n(s) w(s) ds, and u is read back as
    sum_n x_n g_n(s), with g orthonormal under w and s the coordinate of the past:

        kind         s                                                   range of s
        scaled       x / t; as an LTI system exp(-lag)                   [0, 1], 1 is now
        sliding      1 - lag / theta                                     [0, 1], 1 is now
        exponential  lag                                                 [0, inf), 0 is now

    Attributes:
        name: the measure's registered name.
        A, B: (N, N) and (N,), float64; eigenvalues of A have real part >= 0.
        options: every option that the measure was built with, defaults included.
        kind: "scaled", "sliding" or "exponential"; see the table.
        basis: s (len,) -> (N, len), the functions g_n; None when the measure is an operator only.
        density: s (len,) -> (len,), the weight w, a probability density of s (constant 1 for `random`).
        cumulative: s (len,) -> (N, len), an antiderivative of g_n w; makes the projection of a step function exact.
        quadrature: n -> (s, weights), (n,) each, a Gauss rule for integrals of f(s) w(s) ds; None when there is none.
        alpha_derivative: () -> (dA / dalpha, dB / dalpha) in closed form; None when A does not depend on an alpha.
        normal_form: the normal-plus-low-rank form of A, None when none is known.
        eigensystem: () -> Eigensystem, None when no closed form is known.
        no_direct: why A cannot be diagonalised directly and what to do instead; empty when it can.
        undriven: states that are coupled neither to the input nor to other states (fourier's sine of frequency 0):
            their rows and columns of A and entries of B are zero. Only these may be undamped.
    """

    name: str
    A: Array
    B: Array
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = "exponential"
    basis: Callable[[Array], Array] | None = None
    density: Callable[[Array], Array] | None = None
    cumulative: Callable[[Array], Array] | None = None
    quadrature: Callable[[int], tuple[Array, Array]] | None = None
    alpha_derivative: Callable[[], tuple[Array, Array]] | None = None
    normal_form: NormalForm | None = None
    eigensystem: Callable[[], Eigensystem] | None = None
    no_direct: str = ""
    undriven: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        arrays = isinstance(self.A, np.ndarray) and isinstance(self.B, np.ndarray)
        if not (arrays and self.A.dtype.kind in "iuf" and self.B.dtype.kind in "iuf"):
            given = " and ".join(_described(value) for value in (self.A, self.B))
            raise UsageError(
                f"The measure '{self.name}' needs A and B as real numpy arrays, got {given}. Use np.array(...)."
            )
        if not isinstance(self.kind, str) or self.kind not in get_args(Kind):
            raise unknown(f"kind of the measure '{self.name}'", self.kind, get_args(Kind))
        # Everything here is computed in float64, which holds float32 and integers exactly.
        object.__setattr__(self, "A", self.A.astype(np.float64, copy=False))
        object.__setattr__(self, "B", self.B.astype(np.float64, copy=False))
        n = self.A.shape[0] if self.A.ndim == 2 else -1
        if n == 0 or self.A.shape != (n, n) or self.B.shape != (n,):
            raise UsageError(
                f"The measure '{self.name}' needs A of shape (N, N) and B of shape (N,), "
                f"got {self.A.shape} and {self.B.shape}."
            )
        if not (np.isfinite(self.A).all() and np.isfinite(self.B).all()):
            raise UsageError(
                f"{self.label} has entries of A or B that are not finite numbers. Check the options: float64 holds "
                f"sizes up to 1e308."
            )
        if self.normal_form is not None and not isinstance(self.normal_form, NormalForm):
            raise UsageError(
                f"The measure '{self.name}' has a normal form that is {_described(self.normal_form)}. Use "
                f"hippo.NormalForm(scale=..., shift=..., S=..., P=..., Q=...), or leave it out."
            )
        if self.normal_form is not None and len(self.normal_form.S) != n:
            raise UsageError(
                f"The measure '{self.name}' has A of order {n} and a normal form of order {len(self.normal_form.S)}: "
                f"they must be the same."
            )
        if not isinstance(self.undriven, (tuple, list)) or not isinstance(self.options, Mapping):
            raise UsageError(
                f"The measure '{self.name}' needs undriven as a tuple of states and options as a mapping, got "
                f"{_described(self.undriven)} and {_described(self.options)}. Leave out what does not apply."
            )
        alone = list(self.undriven)
        if not all(isinstance(n, int) and 0 <= n < self.N for n in alone):
            raise UsageError(f"The measure '{self.name}' of order {self.N} names the states {alone} as undriven.")
        if self.A[alone].any() or self.A[:, alone].any() or self.B[alone].any():
            raise UsageError(
                f"The measure '{self.name}' names the states {alone} as undriven, so their rows and columns of A and "
                f"their entries of B must be zero."
            )

    @property
    def N(self) -> int:
        """Order: number of real states."""
        return self.A.shape[0]

    @property
    def driven(self) -> Array:
        """(N,) bool, the states that are not `undriven`."""
        driven = np.ones(self.N, dtype=bool)
        driven[list(self.undriven)] = False
        return driven

    @property
    def label(self) -> str:
        """Name and options for messages and legends, as in `fractional(N=8, alpha=0.5)`."""
        options = "".join(f", {key}={value}" for key, value in self.options.items())
        return f"{self.name}(N={self.N}{options})"


def operator(name: str, N: int, **options: Any) -> Operator:
    """Build the operator of a registered measure.

    Args:
        name: a registered measure; `fractal_ssm.list_measures()` lists them.
        N: order, 1 .. 1024.
        options: the measure's own options, for example alpha=0.5.
    Returns:
        Operator, float64, in the convention x' = -A x + B u (A has the positive spectrum).
    Raises:
        UsageError: unknown name or option, or a value outside its range; the message repeats what was given.
    >>> operator("fractional", 2, alpha=0.0).A.round(4).tolist()
    [[1.0, 0.0], [1.7321, 2.0]]
    """
    check_order(N)
    built = measures.build({"name": name, **options}, N=N)
    if not isinstance(built, Operator):
        raise UsageError(
            f"The measure '{name}' returned {_described(built)}, not an operator. A registered measure returns "
            f"hippo.Operator(name=..., A=..., B=..., options=...)."
        )
    if built.N != N:
        raise UsageError(
            f"The measure '{name}' was asked for the order N={N} and returned one of order {built.N}: A must be "
            f"({N}, {N}), B ({N},)."
        )
    return built


def require_operator(value: Any, caller: str) -> Operator:
    """value; UsageError unless it is an Operator (a measure's name alone lacks the order)."""
    if not isinstance(value, Operator):
        name = repr(value) if isinstance(value, str) else "name"
        raise UsageError(
            f"{caller} takes an operator, got {_described(value)}. Build one first: {caller}(operator({name}, N))."
        )
    return value


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and {value.dtype}"
    return repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def check_real(name: str, value: Any) -> float:
    """value as a float; UsageError unless it is a finite real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise UsageError(f"{name} must be a finite real number, got {_described(value)}.")
    return float(value)


def check_order(N: Any) -> int:
    """N as an int; UsageError unless it is a whole number in 1 .. 1024."""
    if isinstance(N, bool) or not isinstance(N, numbers.Integral) or not 1 <= N <= MAX_ORDER:
        raise UsageError(f"The order N must be a whole number from 1 to {MAX_ORDER}, got {N!r}.")
    return int(N)


def check_alpha(alpha: Any) -> float:
    """alpha as a float; UsageError unless it lies in [0, 1)."""
    if isinstance(alpha, bool) or not isinstance(alpha, numbers.Real) or not 0.0 <= alpha < 1.0:
        raise UsageError(
            f"The singularity index alpha must be a number in [0, 1), got {alpha!r}. "
            f"0 is HiPPO-LegS; use 0.99 rather than 1 for a measure that lives on the present."
        )
    return float(alpha)


def check_positive(name: str, value: Any) -> float:
    """value as a float; UsageError unless it is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not (0 < value < math.inf):
        raise UsageError(f"{name} must be a positive number, got {value!r}.")
    return float(value)


def check_window(value: Any) -> float:
    """theta, the length of a sliding window, as a float; UsageError unless it is a number in [1e-100, 1e100]."""
    theta = check_positive("theta", value)
    if not 1e-100 <= theta <= 1e100:
        raise UsageError(
            f"theta must lie between 1e-100 and 1e100, got {value!r}: A has entries of 1 / theta, which leave float64. "
            f"Choose a unit of time in which the window is nearer to 1."
        )
    return theta
