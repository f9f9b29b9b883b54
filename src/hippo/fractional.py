"""The operators of the fractional power law mu_t(x) = (1 - alpha) t^(alpha - 1) (t - x)^(-alpha) on [0, t].

Notation: h_n = sqrt(2n + 1 - alpha), beta_n = binom(n - alpha, n), v = h beta, q = h / beta (elementwise).
The derivations are in docs/theory.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..registry import register_measure
from . import jacobi
from .measure import Array, Eigensystem, NormalForm, Operator, check_alpha, check_order

# Below this alpha the operators with a closed boundary term equal LegS up to rounding, whose eigenvectors are unusable.
SMALLEST_DIRECT_ALPHA = 1e-9


@register_measure("fractional")
def fractional(N: int, *, alpha: float = 0.5) -> Operator:
    """The operator of the FRACTAL paper: HiPPO under a power law, with the boundary term left out.

    A_nk = h_n h_k beta_k / beta_n (n > k), A_nn = n + 1, A_nk = 0 (n < k);  B_n = h_n beta_n / sqrt(1 - alpha).
    For alpha > 0 this pair does *not* compute the projection that the measure defines: differentiating the
    projection leaves alpha integral (u(ts) - u(t)) s g_n / (1 - s) w ds, which the paper drops. The state of a
    constant input is off by alpha / sqrt(1 - alpha^2), 58 % at alpha = 0.5, and a larger N does not help.
    `fractional-tau` is the operator that computes the projection.

    Args:
        N: order, 1 .. 1024.
        alpha: singularity index in [0, 1), no unit; 0 is HiPPO-LegS, larger stresses the present.
    Returns:
        Operator of kind "scaled"; eigenvalues 1 .. N for every alpha, eigenvectors in closed form. In
        eigen-coordinates alpha only scales each mode, which C can absorb.
    Raises:
        UsageError: N or alpha outside its range.
    Source: arXiv 2605.08833, theorem 3.4; the closed form of A is this project's.
    >>> fractional(3, alpha=0.0).A.diagonal().tolist()
    [1.0, 2.0, 3.0]
    """
    return _lower_triangular("fractional", check_order(N), check_alpha(alpha), {"alpha": float(alpha)})


@register_measure("legs")
def legs(N: int) -> Operator:
    """HiPPO-LegS: uniform density on the whole past, scaled Legendre polynomials.

    A_nk = sqrt((2n+1)(2k+1)) (n > k), n + 1 (n = k), 0 (n < k);  B_n = sqrt(2n+1). Eigenvalues 1 .. N.

    Args:
        N: order, 1 .. 1024.
    Source: arXiv 2008.07669, theorem 2.
    >>> legs(2).B.round(4).tolist()
    [1.0, 1.7321]
    """
    return _lower_triangular("legs", check_order(N), 0.0, {})


@register_measure("fractional-tau")
def fractional_tau(N: int, *, alpha: float = 0.5) -> Operator:
    """The exact operator of the power law on polynomials: Jacobi-tau closure of the boundary term.

    A = v v^T / beta_N^2 - diag(0 .. N-1) - triu_strict(v q^T),  B = sqrt(1 - alpha) v / beta_N^2.
    The dropped term of `fractional` is closed with the polynomial of degree N that has the state's coefficients and
    equals u(t) at s = 1, so polynomial inputs below degree N are projected exactly. alpha = 0 is HiPPO-LegS.

    Args:
        N: order, 1 .. 1024.
        alpha: singularity index in [0, 1), no unit.
    Returns:
        Operator of kind "scaled". The spectrum is complex, depends on alpha, and has real parts above 0.86; the
        largest grows like N^2 / (1 - alpha) and carries the present value.
    Raises:
        UsageError: N or alpha outside its range.
    Source: this project, docs/theory.md.
    """
    N, alpha = check_order(N), check_alpha(alpha)
    h, beta, v, q, last = _vectors(N, alpha)
    A = np.outer(v, v) / last**2 - np.diag(np.arange(N, dtype=float)) - np.triu(np.outer(v, q), 1)
    low_rank = NormalForm(
        scale=1.0 / beta,
        shift=0.5 * (1.0 - alpha),
        S=_skew(h),
        P=h[:, None],
        Q=(h * ((beta / last) ** 2 - 0.5))[:, None],
    )
    return _scaled("fractional-tau", N, alpha, A, np.sqrt(1.0 - alpha) * v / last**2, low_rank, _d_tau)


@register_measure("fractional-galerkin")
def fractional_galerkin(N: int, *, alpha: float = 0.5) -> Operator:
    """The power law's operator with the boundary term closed by the degree N - 1 polynomial alone.

    A = q v^T - triu_strict(v q^T) - diag(0 .. N-1) + (alpha / sqrt(1 - alpha)) e_0 v^T,  B = A e_0.
    Exact on polynomials below degree N like `fractional-tau`, and nearly normal (cond(V) 1.3 to 13 for alpha in
    [0.2, 0.9] and N <= 64), but its impulse response oscillates around the exact one: a good diagonal
    initialisation, a worse projector. alpha = 0 is HiPPO-LegS.

    Args:
        N: order, 1 .. 1024.
        alpha: singularity index in [0, 1), no unit.
    Returns:
        Operator of kind "scaled".
    Raises:
        UsageError: N or alpha outside its range.
    Source: this project, docs/theory.md.
    """
    N, alpha = check_order(N), check_alpha(alpha)
    h, beta, v, q, _ = _vectors(N, alpha)
    A = np.outer(q, v) - np.triu(np.outer(v, q), 1) - np.diag(np.arange(N, dtype=float))
    A[0] += alpha / np.sqrt(1.0 - alpha) * v
    first = h / beta**2
    first[0] += alpha / np.sqrt(1.0 - alpha)
    low_rank = NormalForm(
        scale=1.0 / beta,
        shift=0.5 * (1.0 - alpha),
        S=_skew(h),
        P=np.stack([h, first], axis=1),
        Q=np.stack([-0.5 * h, h * beta**2], axis=1),
    )
    return _scaled("fractional-galerkin", N, alpha, A, A[:, 0].copy(), low_rank, _d_galerkin)


@register_measure("fractional-normal")
def fractional_normal(N: int, *, alpha: float = 0.5) -> Operator:
    """The normal part of the power law's exact operator: LegS-like frequencies with a damping set by alpha.

    A = ((1 - alpha) / 2) I + S,  S_nk = h_n h_k sign(n - k) / 2,  B = sqrt(1 - alpha) h,  h_n = sqrt(2n + 1 - alpha).
    `fractional-tau` and `fractional-galerkin` are D^-1 (A + low rank) D with D = diag(1 / beta). This operator drops
    the low rank, as S4D-LegS and S5 do for LegS (alpha = 0). Every eigenvalue has real part exactly (1 - alpha) / 2, so
    alpha leads from the initialisation of S5 to an undamped oscillator. It is an operator only; its state is not a
    projection.

    Args:
        N: order, 1 .. 1024.
        alpha: singularity index in [0, 1), no unit; equals 1 - 2 damping.
    Returns:
        Operator; normal, so V is unitary.
    Raises:
        UsageError: N or alpha outside its range.
    Source: this project, docs/theory.md.
    >>> fractional_normal(2, alpha=0.0).A.round(4).tolist()
    [[0.5, -0.866], [0.866, 0.5]]
    """
    N, alpha = check_order(N), check_alpha(alpha)
    h = jacobi.norms(N, alpha)
    S, damping = _skew(h), 0.5 * (1.0 - alpha)
    still = np.zeros((N, 1))
    return Operator(
        "fractional-normal",
        damping * np.eye(N) + S,
        np.sqrt(1.0 - alpha) * h,
        {"alpha": alpha},
        alpha_derivative=partial(_d_normal, N, alpha),
        normal_form=NormalForm(np.ones(N), damping, S, still, still),
    )


def _vectors(N: int, alpha: float) -> tuple[Array, Array, Array, Array, float]:
    """h, beta, v = h beta, q = h / beta for n < N, and beta_N."""
    h, beta = jacobi.norms(N, alpha), jacobi.endpoint_values(N + 1, alpha)
    return h, beta[:N], h * beta[:N], h / beta[:N], float(beta[N])


def _skew(h: Array) -> Array:
    """S_nk = h_n h_k sign(n - k) / 2, common to the normal forms of all operators here."""
    lower = np.tril(0.5 * np.outer(h, h), -1)
    return lower - lower.T


def _lower_triangular(name: str, N: int, alpha: float, options: dict[str, float]) -> Operator:
    """The paper's A and B; LegS is alpha = 0."""
    h, beta, v, q, _ = _vectors(N, alpha)
    A = np.tril(np.outer(q, v), -1) + np.diag(np.arange(1.0, N + 1.0))
    # D A D^-1 = ((1 + alpha) / 2) I + h h^T / 2 + S with D = diag(beta).
    half = (h / np.sqrt(2.0))[:, None]
    low_rank = NormalForm(scale=beta, shift=0.5 * (1.0 + alpha), S=_skew(h), P=half, Q=half)
    return Operator(
        name,
        A,
        v / np.sqrt(1.0 - alpha),
        options,
        "scaled",
        basis=partial(jacobi.basis, N=N, alpha=alpha),
        density=partial(jacobi.density, alpha=alpha),
        cumulative=partial(jacobi.cumulative, N=N, alpha=alpha),
        quadrature=partial(jacobi.quadrature, alpha=alpha),
        alpha_derivative=partial(_d_fractional, N, alpha) if name == "fractional" else None,
        normal_form=low_rank,
        eigensystem=partial(eigensystem, N, alpha),
    )


def _scaled(
    name: str,
    N: int,
    alpha: float,
    A: Array,
    B: Array,
    low_rank: NormalForm,
    derivative: Callable[[int, float], tuple[Array, Array]],
) -> Operator:
    refusal = ""
    if alpha < SMALLEST_DIRECT_ALPHA and N > 1:
        refusal = (
            f"alpha = {alpha:g} is HiPPO-LegS, whose eigenvectors are dependent in practice. "
            f"Use alpha >= 1e-6 (within 4e-6 of LegS at N = 64), method='normal', or the measure 'legs', "
            f"whose eigenvectors are known in closed form."
        )
    return Operator(
        name,
        A,
        B,
        {"alpha": alpha},
        "scaled",
        basis=partial(jacobi.basis, N=N, alpha=alpha),
        density=partial(jacobi.density, alpha=alpha),
        cumulative=partial(jacobi.cumulative, N=N, alpha=alpha),
        quadrature=partial(jacobi.quadrature, alpha=alpha),
        alpha_derivative=partial(derivative, N, alpha),
        normal_form=low_rank,
        no_direct=refusal,
    )


def _log_derivatives(N: int, alpha: float) -> tuple[Array, Array, float]:
    """d log v, d log q (N,) and d log beta_N by alpha.

    d log h_n = -1 / (2 h_n^2), d log beta_n = -sum_{k = 1 .. n} 1 / (k - alpha).
    """
    d_log_h = -0.5 / jacobi.norms(N, alpha) ** 2
    d_log_beta = -np.concatenate([[0.0], np.cumsum(1.0 / (np.arange(1, N + 1) - alpha))])
    return d_log_h + d_log_beta[:N], d_log_h - d_log_beta[:N], float(d_log_beta[N])


def _d_fractional(N: int, alpha: float) -> tuple[Array, Array]:
    _, _, v, q, _ = _vectors(N, alpha)
    d_log_v, d_log_q, _ = _log_derivatives(N, alpha)
    dA = np.tril(np.outer(q, v) * (d_log_q[:, None] + d_log_v[None, :]), -1)
    return dA, v / np.sqrt(1.0 - alpha) * (d_log_v + 0.5 / (1.0 - alpha))


def _d_tau(N: int, alpha: float) -> tuple[Array, Array]:
    _, _, v, q, last = _vectors(N, alpha)
    d_log_v, d_log_q, d_log_last = _log_derivatives(N, alpha)
    full = np.outer(v, v) / last**2 * (d_log_v[:, None] + d_log_v[None, :] - 2.0 * d_log_last)
    upper = np.triu(np.outer(v, q) * (d_log_v[:, None] + d_log_q[None, :]), 1)
    dB = np.sqrt(1.0 - alpha) * v / last**2 * (d_log_v - 2.0 * d_log_last - 0.5 / (1.0 - alpha))
    return full - upper, dB


def _d_galerkin(N: int, alpha: float) -> tuple[Array, Array]:
    _, _, v, q, _ = _vectors(N, alpha)
    d_log_v, d_log_q, _ = _log_derivatives(N, alpha)
    dA = np.outer(q, v) * (d_log_q[:, None] + d_log_v[None, :])
    dA -= np.triu(np.outer(v, q) * (d_log_v[:, None] + d_log_q[None, :]), 1)
    factor, d_factor = alpha / np.sqrt(1.0 - alpha), (1.0 - 0.5 * alpha) / (1.0 - alpha) ** 1.5
    dA[0] += v * (d_factor + factor * d_log_v)
    return dA, dA[:, 0].copy()


def _d_normal(N: int, alpha: float) -> tuple[Array, Array]:
    h = jacobi.norms(N, alpha)
    d_log_h = -0.5 / h**2
    dA = _skew(h) * (d_log_h[:, None] + d_log_h[None, :]) - 0.5 * np.eye(N)
    return dA, np.sqrt(1.0 - alpha) * h * (d_log_h - 0.5 / (1.0 - alpha))


def eigensystem(N: int, alpha: float) -> Eigensystem:
    """Eigenvectors of `fractional` in closed form, eigenvalues 1 .. N.

    V_nj = (-1)^(n-j) (q_n / q_j) prod_{m=j+1..n} (m + j - alpha) / (m - j),                 n >= j.
    The rows of W = V^-1 are expansions of monomials: A is the matrix of L[g] = (s g)' and L[s^j] = (j + 1) s^j, so
    W_jn = c_jn / c_jj with c_jn = <s^j, g_n>_w = h_n sqrt(1-alpha) binom(j, n) Beta(j+1, n+1-alpha), that is
    W_jn = (v_n / v_j) prod_{m=n..j-1} (j + m + 2 - alpha) / (j - m),                        n <= j,
    and, because sum_n c_jn g_n(1) = 1 and B_n = g_n(1),  V^-1 B = 1 / c_jj.
    All three are products of ratios, computed here as sums of logarithms.

    Returns:
        Eigensystem; relative error of the entries about 1e-14 at N = 64, 1e-12 at N = 1024.
    Source: this project, docs/theory.md.
    """
    h, beta = jacobi.norms(N, alpha), jacobi.endpoint_values(N, alpha)
    log_h, log_beta = np.log(h), np.log(beta)
    row, column = np.arange(N, dtype=float)[:, None], np.arange(N, dtype=float)[None, :]
    lower, strict = row >= column, row > column
    gap = np.where(strict, row - column, 1.0)

    down = np.cumsum(np.where(strict, np.log(np.where(strict, row + column - alpha, 1.0) / gap), 0.0), axis=0)
    log_q = log_h - log_beta
    log_V = np.where(lower, down + log_q[:, None] - log_q[None, :], -np.inf)

    left = np.where(strict, np.log((row + column + 2.0 - alpha) / gap), 0.0)
    left = np.cumsum(left[:, ::-1], axis=1)[:, ::-1]
    log_v = log_h + log_beta
    log_W = np.where(lower, left + log_v[None, :] - log_v[:, None], -np.inf)

    j = np.arange(1.0, N)
    log_beta_function = np.concatenate(
        [[-np.log1p(-alpha)], np.log(j * (j - alpha) / ((2.0 * j - alpha) * (2.0 * j + 1.0 - alpha)))]
    ).cumsum()
    log_B_tilde = -(log_h + 0.5 * np.log1p(-alpha) + log_beta_function)
    sign_V = np.where((row - column) % 2 == 0, 1.0, -1.0)
    return Eigensystem(np.arange(1.0, N + 1.0), log_V, sign_V, log_W, log_B_tilde)
