"""The classic measures: LegT and Fourier on a sliding window, LagT on an exponential past; and `random`."""

from __future__ import annotations

import numbers
from functools import partial

import numpy as np

from ..errors import UsageError
from ..registry import register_measure
from . import jacobi
from .measure import Array, NormalForm, Operator, check_order, check_window


@register_measure("legt")
def legt(N: int, *, theta: float = 1.0) -> Operator:
    """HiPPO-LegT: uniform density on the window [t - theta, t], Legendre polynomials.

    A_nk = sqrt((2n+1)(2k+1)) / theta * (1 if k <= n else (-1)^(n-k));  B_n = sqrt(2n+1) / theta.

    Args:
        N: order, 1 .. 1024.
        theta: length of the window in the unit of time, 1e-100 .. 1e100; 2 in the published S4 code.
    Returns:
        Operator of kind "sliding"; DPLR of rank 2 with purely imaginary Lambda.
    Raises:
        UsageError: N or theta outside its range.
    Source: arXiv 2008.07669, theorem 1, with orthonormal polynomials.
    """
    N, theta = check_order(N), check_window(theta)
    h, n = jacobi.norms(N, 0.0), np.arange(N)
    sign = np.where((n[:, None] >= n[None, :]) | ((n[:, None] - n[None, :]) % 2 == 0), 1.0, -1.0)
    A = np.outer(h, h) * sign / theta
    # The symmetric part couples equal parities only: one rank-one term for each parity.
    parity = np.stack([np.where(n % 2 == 0, h, 0.0), np.where(n % 2 == 1, h, 0.0)], axis=1) / np.sqrt(theta)
    return Operator(
        "legt",
        A,
        h / theta,
        {"theta": theta},
        "sliding",
        basis=partial(jacobi.basis, N=N, alpha=0.0),
        density=partial(jacobi.density, alpha=0.0),
        cumulative=partial(jacobi.cumulative, N=N, alpha=0.0),
        quadrature=partial(jacobi.quadrature, alpha=0.0),
        normal_form=NormalForm(np.ones(N), 0.0, _skew_part(A), parity[:, :N], parity[:, :N]),
    )


@register_measure("lagt")
def lagt(N: int) -> Operator:
    """HiPPO-LagT: density exp(-lag) on the whole past, Laguerre polynomials L_n(lag).

    A_nk = 1 (n >= k), 0 (n < k);  B_n = 1. With 1 on the diagonal the state is the projection on L_n under exp(-lag);
    the convention with 1/2 belongs to the Laguerre *functions* L_n exp(-lag / 2). Lag is in the unit of time; every
    eigenvalue is 1 (one Jordan block).

    Args:
        N: order, 1 .. 1024.
    Returns:
        Operator of kind "exponential"; DPLR of rank 1 with real part -1/2.
    Raises:
        UsageError: N outside its range.
    Source: arXiv 2008.07669, theorem 1.
    """
    N = check_order(N)
    A = np.tril(np.ones((N, N)))
    half = np.full((N, 1), np.sqrt(0.5))
    refusal = "A is one Jordan block: it has a single eigenvector. Use method='normal', or dplr(...), which is exact."
    return Operator(
        "lagt",
        A,
        np.ones(N),
        {},
        "exponential",
        basis=partial(_laguerre, N=N),
        density=_exponential,
        cumulative=partial(_laguerre_cumulative, N=N),
        quadrature=_roots_laguerre,
        normal_form=NormalForm(np.ones(N), 0.5, _skew_part(A), half, half),
        no_direct=refusal if N > 1 else "",
    )


@register_measure("fourier")
def fourier(N: int, *, theta: float = 1.0) -> Operator:
    """FouT: uniform density on the window [t - theta, t], Fourier basis.

    The states are pairs, cosine and sine of 2 pi f lag / theta with f = 0, 1, .., as published: state 1 is the sine of
    frequency 0, which no input reaches and which stays 0. For odd N that state is left out, so that every frequency
    has a complete pair: 1, then cosine and sine of f = 1, 2, ...
    A = (2 / theta) (b b^T + rotation), rotation of pair f = [[0, pi f], [-pi f, 0]];  B = (2 / theta) b,
    b = 1 for the constant, sqrt 2 for each cosine, 0 for each sine. The value leaving the window is taken as
    2 (series at the edge) - u(t), because the series converges at the edge to the mean of the window's two ends.

    Args:
        N: order, 1 .. 1024.
        theta: length of the window in the unit of time, 1e-100 .. 1e100; 2 in the published S4 code.
    Returns:
        Operator of kind "sliding"; DPLR of rank 1 with purely imaginary Lambda.
    Raises:
        UsageError: N or theta outside its range.
    Source: "How to Train Your HiPPO", arXiv 2206.12037 (FouT).
    """
    N, theta = check_order(N), check_window(theta)
    frequency, is_cosine = _fourier_layout(N)
    b = np.where(is_cosine, np.where(frequency == 0, 1.0, np.sqrt(2.0)), 0.0)
    rotation = np.zeros((N, N))
    for n in np.flatnonzero(is_cosine & (frequency > 0)):
        rotation[n, n + 1] = np.pi * frequency[n]
        rotation[n + 1, n] = -np.pi * frequency[n]
    edge = (b * np.sqrt(2.0 / theta))[:, None]
    return Operator(
        "fourier",
        2.0 / theta * (np.outer(b, b) + rotation),
        2.0 / theta * b,
        {"theta": theta},
        "sliding",
        basis=partial(_fourier_basis, N=N),
        density=partial(jacobi.density, alpha=0.0),
        cumulative=partial(_fourier_cumulative, N=N),
        quadrature=partial(jacobi.quadrature, alpha=0.0),
        normal_form=NormalForm(np.ones(N), 0.0, 2.0 / theta * rotation, edge, edge),
        undriven=tuple(np.flatnonzero(~is_cosine & (frequency == 0)).tolist()),
    )


@register_measure("random")
def random_orthonormal(N: int, *, seed: int = 0) -> Operator:
    """A random operator whose impulse responses are orthonormal: an ablation for every designed basis.

    A = b b^T / 2 + K,  B = b, with b standard normal scaled to |b|^2 = N and K skew with independent normal entries
    of deviation pi sqrt(N) / 4. Since A + A^T = B B^T, the N functions exp(-lag A) B are orthonormal on [0, inf)
    under the constant weight 1, and the state is the projection on them. Real parts average 1/2 and frequencies
    reach about pi N / 2, as in S4D-Lin, so that only the structure is random.

    Args:
        N: order, 1 .. 1024.
        seed: whole number >= 0 of the random generator (numpy's PCG64).
    Returns:
        Operator of kind "exponential".
    Raises:
        UsageError: N or seed outside its range.
    Source: this project.
    """
    N = check_order(N)
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or seed < 0:
        raise UsageError(f"The seed of the random measure must be a whole number >= 0, got {seed!r}.")
    generator = np.random.default_rng(int(seed))
    b = generator.standard_normal(N)
    b *= np.sqrt(N) / np.linalg.norm(b)
    upper = np.triu(generator.standard_normal((N, N)), 1) * (np.pi * np.sqrt(N) / 4.0)
    K = upper - upper.T
    A = 0.5 * np.outer(b, b) + K
    half = (b / np.sqrt(2.0))[:, None]
    return Operator(
        "random",
        A,
        b,
        {"seed": int(seed)},
        "exponential",
        basis=partial(_impulse_response, A, b),
        density=_constant,
        cumulative=partial(_impulse_response_cumulative, A, b),
        normal_form=NormalForm(np.ones(N), 0.0, K, half, half),
    )


def _skew_part(A: Array) -> Array:
    return 0.5 * (A - A.T)


def _laguerre(s: Array, N: int) -> Array:
    s = np.atleast_1d(np.asarray(s, dtype=np.float64))
    L = np.empty((N, len(s)))
    L[0] = 1.0
    if N > 1:
        L[1] = 1.0 - s
    for n in range(2, N):
        L[n] = ((2 * n - 1 - s) * L[n - 1] - (n - 1) * L[n - 2]) / n
    return L


def _laguerre_cumulative(s: Array, N: int) -> Array:
    """-exp(-s) (L_n - L_{n-1}), with L_{-1} = 0: its derivative is exp(-s) L_n."""
    L = _laguerre(s, N)
    return -np.exp(-np.atleast_1d(s)) * np.diff(L, axis=0, prepend=0.0)


def _exponential(s: Array) -> Array:
    return np.exp(-np.atleast_1d(np.asarray(s, dtype=np.float64)))


def _constant(s: Array) -> Array:
    return np.ones_like(np.atleast_1d(np.asarray(s, dtype=np.float64)))


def _fourier_layout(N: int) -> tuple[Array, Array]:
    """Frequency of each state and whether it is a cosine."""
    index = np.arange(N) if N % 2 == 0 else np.concatenate([[0], np.arange(2, N + 1)])
    return index // 2, index % 2 == 0


def _roots_laguerre(n_nodes: int) -> tuple[Array, Array]:
    # Imported here because SciPy takes half a second to import.
    from scipy.special import roots_laguerre

    return roots_laguerre(n_nodes)


def _fourier_basis(s: Array, N: int) -> Array:
    frequency, is_cosine = _fourier_layout(N)
    phase = 2.0 * np.pi * frequency[:, None] * (1.0 - np.atleast_1d(s)[None, :])
    amplitude = np.where(frequency == 0, 1.0, np.sqrt(2.0))[:, None]
    return amplitude * np.where(is_cosine[:, None], np.cos(phase), np.sin(phase))


def _fourier_cumulative(s: Array, N: int) -> Array:
    frequency, is_cosine = _fourier_layout(N)
    s = np.atleast_1d(np.asarray(s, dtype=np.float64))
    omega = 2.0 * np.pi * np.maximum(frequency, 1)[:, None]
    wave = np.sqrt(2.0) * np.where(is_cosine[:, None], -np.sin(omega * (1.0 - s)), np.cos(omega * (1.0 - s))) / omega
    flat = np.where(is_cosine[:, None], s[None, :], 0.0)
    return np.where(frequency[:, None] == 0, flat, wave)


def _impulse_response(A: Array, B: Array, s: Array) -> Array:
    """exp(-s A) B for every s: (N, len)."""
    s = np.atleast_1d(np.asarray(s, dtype=np.float64))
    # Imported here because SciPy takes half a second to import.
    from scipy.linalg import expm

    return np.stack([expm(-lag * A) @ B for lag in s], axis=1)


def _impulse_response_cumulative(A: Array, B: Array, s: Array) -> Array:
    return -np.linalg.solve(A, _impulse_response(A, B, s))
