"""Eigenvalues and eigenvectors of an operator, with their accuracy. Only here does the sign of A change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..errors import UsageError, unknown
from .low_rank import require_normal_form, skew_eigensystem
from .measure import Array, Operator, check_positive, require_operator

METHODS = ("direct", "normal")

# Largest accepted distance of V diag(Lambda) V^-1 from -A (relative Frobenius norm).
TOLERANCE = 1e-7
# Damping, as a share of |A|, of the states that a measure declares undriven (fourier's sine of frequency 0): they have
# no damping themselves.
DAMPING_FLOOR = 1e-10
# Largest order that the tests cover.
MAX_MULTIPRECISION_ORDER = 32
# An imaginary part below this share of |lambda| is rounding; the eigenvalue counts as real.
REAL_TOLERANCE = 1e-13
# Two eigenvalues whose distance from being conjugate is below this share of |lambda| are a pair.
PAIR_TOLERANCE = 1e-9
_LARGEST = 1e300


@dataclass(frozen=True, eq=False)
class Diagonal:
    """z' = diag(Lambda) z + B_tilde u with x = V z, for -A = V diag(Lambda) V^-1.

    Attributes:
        Lambda: (N,) complex128, real parts < 0; sorted by decreasing real part (slowest first), then increasing
            imaginary part; with `normal` all real parts are equal, so the most negative frequency comes first.
        V: (N, N) complex128, columns of unit 2-norm, turned so that B_tilde is real and >= 0.
        B_tilde: (N,) complex128, V^-1 B.
        driven: (N,) bool; False for a mode that no input reaches (fourier's sine of frequency 0 only).
        residual: |V diag(Lambda) V^-1 + A| / |A| (Frobenius). `direct`: an error, at most `tolerance`, measured in the
            arithmetic named below ("closed form": the largest error of one eigenpair). `normal`: the relative size of
            the dropped term.
        condition: cond(V) in the 2-norm, inf beyond float64.
        arithmetic: "float64"; "closed form", exact eigenvectors rounded once; or "multiprecision", likewise rounded
            once. Float64 cannot invert the V of the last two when `condition` is large: use Lambda and B_tilde.
        dropped: the term that `normal` leaves out, in words; empty for `direct`.
        mode_error: relative rounding error of the worst mode: of its B_tilde = w B, a sum that cancels
            (eps |w| |B| / |w B|), or of the slow eigenvalues (from the trace of A^-1). It complements `residual`,
            which is relative to |A| and reflects only the fast modes. At most `tolerance`; 0 where the arithmetic is
            not float64 or the method not direct.
    """

    Lambda: Array
    V: Array
    B_tilde: Array
    driven: Array
    residual: float
    condition: float
    arithmetic: Literal["float64", "closed form", "multiprecision"]
    dropped: str = ""
    mode_error: float = 0.0

    @property
    def size(self) -> float:
        """Largest |B_tilde|; above 3e38 it has to be rescaled before it is cast to float32."""
        return float(np.abs(self.B_tilde).max())


def diagonalize(operator: Operator, method: str = "direct", tolerance: float = TOLERANCE) -> Diagonal:
    """Diagonalise an operator; raises if the stated accuracy cannot be reached.

    Args:
        operator: what `operator(name, N, ...)` returned.
        method: "direct", the eigenvectors of A: in closed form for `fractional` and `legs`, else in float64, else
            (N <= 32) in multiprecision. Or "normal", the eigenvectors of the normal part c I + S of the measure's
            normal-plus-low-rank form, with V = D^-1 U, U unitary, dropping P Q^T (S4D-LegS and S5 start this way).
        tolerance: largest relative error of V diag(Lambda) V^-1, and of each mode, that `direct` accepts.
    Returns:
        Diagonal over all N modes.
    Raises:
        UsageError: not an operator; unknown method; eigenvectors dependent to working accuracy; modes that are driven
            too weakly for float64 (alpha within about 4e-9 N^2 of 1); |B_tilde| beyond float64; `normal` for a measure
            without a normal form or whose normal part is undamped. The message names remedies.
    Source: `normal` at alpha = 0, arXiv 2206.11893; the rest this project, docs/theory.md.
    >>> from fractal_ssm.hippo import operator
    >>> diagonalize(operator("legs", 3)).Lambda.real.tolist()
    [-1.0, -2.0, -3.0]
    """
    require_operator(operator, "diagonalize")
    check_positive("tolerance", tolerance)
    if not isinstance(method, str) or method not in METHODS:
        raise unknown("diagonalisation method", method, METHODS)
    if method == "normal":
        return _normal(operator)
    if operator.no_direct:
        raise UsageError(f"{operator.label} cannot be diagonalised directly: {operator.no_direct}")
    if operator.eigensystem is not None:
        return _closed_form(operator)
    if operator.normal_form is not None and operator.normal_form.is_all_of_A:
        # All real parts are equal: sorting them numerically would order the modes by rounding, `_normal` by frequency.
        return _normal(operator)
    return _numeric(operator, tolerance)


def conjugate_half(diagonal: Diagonal) -> tuple[Array, Array, Array, Array]:
    """One mode of every conjugate pair, and every real mode.

    A sum over all N modes of a real system equals 2 Re sum(weight * kept).

    Returns:
        Lambda (P,), V (N, P), B_tilde (P,) complex, in the order of `diagonal`, and weight (P,) float64: 1 for a
        kept pair (imaginary part < 0), 1/2 for a real eigenvalue. P = N / 2 when every mode has a partner.
    Raises:
        UsageError: not a Diagonal, or a complex mode without its conjugate.
    """
    if not isinstance(diagonal, Diagonal):
        raise UsageError(f"conjugate_half takes what diagonalize(...) returned, got a {type(diagonal).__name__}.")
    imaginary = diagonal.Lambda.imag
    _require_pairs(diagonal.Lambda, "the diagonal form")
    keep = imaginary <= 0
    weight = np.where(imaginary[keep] == 0, 0.5, 1.0)
    return diagonal.Lambda[keep], diagonal.V[:, keep], diagonal.B_tilde[keep], weight


def _normal(operator: Operator) -> Diagonal:
    form = require_normal_form(operator)
    if form.shift <= 0:
        raise UsageError(
            f"All damping of {operator.label} is in its low-rank term, so its normal part alone never forgets. "
            f"Use method='direct' (fourier, random), dplr(...) for S4, or imaginary_parts('lin', n) with real "
            f"part -1/2 (S4D-Lin)."
        )
    omega, U = skew_eigensystem(form.S)
    Lambda = -form.shift - 1j * omega
    V = U / form.scale[:, None]
    dropped = form.P @ form.Q.T * (form.scale[None, :] / form.scale[:, None])
    V, B_tilde = _normalise(V, U.conj().T @ (form.scale * operator.B))
    return Diagonal(
        Lambda,
        V,
        B_tilde,
        driven=np.ones(operator.N, dtype=bool),
        residual=float(np.linalg.norm(dropped) / np.linalg.norm(operator.A)),
        condition=_condition(V),
        arithmetic="float64",
        dropped="" if form.is_all_of_A else f"the rank-{form.P.shape[1]} term D^-1 P Q^T D of A",
    )


def _closed_form(operator: Operator) -> Diagonal:
    system = operator.eigensystem()
    log_norm = _log_norm(system.log_V)
    log_B = system.log_B_tilde + log_norm
    if log_B.max() > np.log(_LARGEST):
        raise UsageError(
            f"|B_tilde| of {operator.label} reaches 1e{log_B.max() / np.log(10):.0f}, beyond float64. Use blocks of "
            f"order 256 or less (8 to 64 are usual), or method='normal'."
        )
    V = system.sign_V * np.exp(system.log_V - log_norm[None, :])
    with np.errstate(over="ignore"):
        V_inverse = np.exp(system.log_W + log_norm[:, None])
    Lambda = -system.eigenvalues.astype(np.complex128)
    # V^-1 may be too inaccurate to rebuild A, so check the pairs one by one: |A v + Lambda v| / (|A| |v|).
    pairs = np.linalg.norm(operator.A @ V + V * Lambda, axis=0) / np.linalg.norm(operator.A)
    condition = np.inf
    if np.isfinite(V_inverse).all():
        condition = float(np.linalg.norm(V, 2) * np.linalg.norm(V_inverse, 2))
    return Diagonal(
        Lambda,
        V.astype(complex),
        np.exp(log_B).astype(complex),
        driven=np.ones(operator.N, dtype=bool),
        residual=float(pairs.max()),
        condition=condition,
        arithmetic="closed form",
    )


def _numeric(operator: Operator, tolerance: float) -> Diagonal:
    driven = operator.driven
    A, B = operator.A[np.ix_(driven, driven)], operator.B[driven]
    eigenvalues, V = np.linalg.eig(A)
    condition = _condition(V)
    residual = np.inf
    if condition < 1e15:
        rebuilt = np.linalg.solve(V.T, (V * eigenvalues).T).T
        residual = float(np.linalg.norm(rebuilt - A) / np.linalg.norm(A))
    if residual <= tolerance:
        B_tilde = np.linalg.solve(V, B)
        eigenvalues = _snapped(eigenvalues)
        _require_pairs(eigenvalues, operator.label)
        _require_decay(eigenvalues, operator.label)
        mode_error = _mode_error(A, B, eigenvalues, V, B_tilde)
        if mode_error > tolerance:
            raise _weak_modes(operator, mode_error, tolerance)
        return _sorted(operator, eigenvalues, V, B_tilde, residual, condition, "float64", mode_error)
    if operator.N <= MAX_MULTIPRECISION_ORDER:
        from .multiprecision import eigensystem

        eigenvalues, V, B_tilde, residual = eigensystem(A, B)
        if residual <= tolerance:
            eigenvalues, V, B_tilde = _with_exact_pairs(eigenvalues, V, B_tilde, operator.label)
            _require_decay(eigenvalues, operator.label)
            return _sorted(operator, eigenvalues, V, B_tilde, residual, condition, "multiprecision")
    raise UsageError(
        f"The eigenvectors of {operator.label} are dependent to working accuracy: cond(V) = {condition:.1e}, relative "
        f"error {residual:.1e} of V diag(Lambda) V^-1, {tolerance:g} allowed. Use a smaller N, a larger alpha where "
        f"the measure has one, or a form that needs no eigenvectors of A: dplr(...) for S4, method='normal'; or pass a "
        f"larger tolerance."
    )


def _snapped(eigenvalues: Array) -> Array:
    """Eigenvalues of a real matrix, with imaginary parts that are mere rounding set to 0."""
    real = np.abs(eigenvalues.imag) <= REAL_TOLERANCE * np.abs(eigenvalues)
    return np.where(real, eigenvalues.real, eigenvalues)


def _with_exact_pairs(eigenvalues: Array, V: Array, B_tilde: Array, label: str) -> tuple[Array, Array, Array]:
    """Make the conjugate symmetry of a real matrix's eigensystem exact after complex arithmetic.

    Otherwise a real eigenvalue has an imaginary part of 1e-50, say, and keeping one mode of each pair loses modes.
    Not for eigenvectors from LAPACK: they are in exact pairs already, and errors of their B_tilde cancel in V B_tilde.
    """
    eigenvalues = _snapped(eigenvalues)
    real = eigenvalues.imag == 0
    for j in np.flatnonzero(real):
        pivot = V[np.abs(V[:, j]).argmax(), j]
        turn = pivot / np.abs(pivot)
        column, weight = V[:, j] / turn, B_tilde[j] * turn
        # Two eigenvalues that are equal up to rounding may have truly complex eigenvectors.
        if np.abs(column.imag).max() <= PAIR_TOLERANCE * np.abs(pivot):
            V[:, j], B_tilde[j] = column.real, weight.real
    lower, upper = _require_pairs(eigenvalues, label)
    eigenvalues[upper], V[:, upper], B_tilde[upper] = (
        values.conj() for values in (eigenvalues[lower], V[:, lower], B_tilde[lower])
    )
    return eigenvalues, V, B_tilde


def _require_pairs(eigenvalues: Array, label: str) -> tuple[Array, Array]:
    """Indices of the eigenvalues with imaginary part < 0, and those of their conjugates.

    Raises:
        UsageError: an eigenvalue has no conjugate.
    """
    lower, upper = np.flatnonzero(eigenvalues.imag < 0), np.flatnonzero(eigenvalues.imag > 0)
    free, partners = list(upper), []
    for j in lower:
        distance = np.abs(eigenvalues[free] - eigenvalues[j].conj()) if free else np.array([np.inf])
        nearest = int(distance.argmin())
        if not distance[nearest] <= PAIR_TOLERANCE * np.abs(eigenvalues[j]):
            break
        partners.append(free.pop(nearest))
    if free or len(partners) < len(lower):
        raise UsageError(
            f"The complex eigenvalues of {label} do not come in conjugate pairs, as those of a real A do: "
            f"{len(lower)} have a negative imaginary part, {len(upper)} a positive one, {len(partners)} pairs match to "
            f"{PAIR_TOLERANCE:g}. Use diagonalize(...) of an operator with a real A, or method='normal'."
        )
    return lower, np.array(partners, dtype=int)


def _mode_error(A: Array, B: Array, eigenvalues: Array, V: Array, B_tilde: Array) -> float:
    """See `Diagonal.mode_error`; inf if the B_tilde of a mode cancels to 0."""
    terms = np.abs(np.linalg.inv(V)) @ np.abs(B)
    reached = terms > 0
    with np.errstate(divide="ignore"):
        weak = np.finfo(float).eps * terms[reached] / np.abs(B_tilde[reached])
    slow = abs(np.trace(np.linalg.inv(A)) - (1.0 / eigenvalues).sum()) / np.abs(1.0 / eigenvalues).sum()
    return float(max(slow, weak.max(initial=0.0)))


def _weak_modes(operator: Operator, error: float, tolerance: float) -> UsageError:
    remedy = "dplr(...) or method='normal' where the measure has a normal form"
    if "alpha" in operator.options:
        remedy = "an alpha further from 1 (up to 0.999 serves up to N = 256), or method='normal'"
    return UsageError(
        f"{operator.label} drives or damps some modes so weakly beside the others that float64 leaves them a relative "
        f"error of {error:.1e}, {tolerance:g} allowed. Use {remedy}; or pass a larger tolerance."
    )


def _require_decay(eigenvalues: Array, label: str) -> None:
    if not (eigenvalues.real > 0).all():
        raise UsageError(
            f"{label} is not stable: an eigenvalue of -A has real part {-eigenvalues.real.min():.3g}. "
            f"The convention is x' = -A x + B u, so A must have its spectrum in the right half plane; a state that no "
            f"input reaches may be undamped when its Operator names it in `undriven`."
        )


def _sorted(
    operator: Operator,
    eigenvalues: Array,
    V: Array,
    B_tilde: Array,
    residual: float,
    condition: float,
    arithmetic: Literal["float64", "multiprecision"],
    mode_error: float = 0.0,
) -> Diagonal:
    """The modes sorted, after adding those of undriven states with the damping floor."""
    driven = np.flatnonzero(operator.driven)
    still = np.flatnonzero(~operator.driven)
    V, B_tilde = _normalise(V.astype(complex), B_tilde.astype(complex))
    columns = np.zeros((operator.N, operator.N), dtype=complex)
    columns[driven, : len(driven)] = V
    columns[still, np.arange(len(driven), operator.N)] = 1.0
    floor = np.full(len(still), DAMPING_FLOOR * np.linalg.norm(operator.A))
    Lambda = -np.concatenate([eigenvalues, floor]).astype(complex)
    B_tilde = np.concatenate([B_tilde, np.zeros(len(still))])
    order = np.lexsort((Lambda.imag, -Lambda.real))
    return Diagonal(
        Lambda[order],
        columns[:, order],
        B_tilde[order],
        driven=order < len(driven),
        residual=max(residual, DAMPING_FLOOR) if len(still) else residual,
        condition=condition,
        arithmetic=arithmetic,
        mode_error=mode_error,
    )


def _normalise(V: Array, B_tilde: Array) -> tuple[Array, Array]:
    """Columns of unit 2-norm, turned so that B_tilde is real and >= 0; V B_tilde is unchanged."""
    norm = np.linalg.norm(V, axis=0)
    modulus = np.abs(B_tilde)
    phase = np.where(modulus > 0, B_tilde / np.where(modulus > 0, modulus, 1.0), 1.0)
    return V / norm * phase, (modulus * norm).astype(complex)


def _log_norm(log_V: Array) -> Array:
    """log of the 2-norm of every column, without leaving the float range."""
    largest = log_V.max(axis=0)
    return largest + 0.5 * np.log(np.exp(2.0 * (log_V - largest[None, :])).sum(axis=0))


def _condition(V: Array) -> float:
    singular = np.linalg.svd(V / np.linalg.norm(V, axis=0), compute_uv=False)
    return float(singular[0] / singular[-1]) if singular[-1] > 0 else np.inf
