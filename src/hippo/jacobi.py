"""Jacobi polynomials on [0, 1] under the fractional power law (1 - alpha) (1 - s)^(-alpha), by recurrence.

Nothing here forms a Gamma function of the order, so nothing overflows.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def norms(N: int, alpha: float) -> Array:
    """h_n = sqrt(2 n + 1 - alpha), n < N: (N,)."""
    return np.sqrt(2.0 * np.arange(N) + 1.0 - alpha)


def endpoint_values(N: int, alpha: float) -> Array:
    """beta_n = P_n^(-alpha, 0)(1) = Gamma(n + 1 - alpha) / (Gamma(1 - alpha) n!), n < N: (N,).

    By beta_n = beta_{n-1} (n - alpha) / n; in (0, 1], decreasing like n^-alpha.
    """
    n = np.arange(1, N)
    return np.concatenate([[1.0], np.cumprod(1.0 - alpha / n)])


def jacobi(N: int, a: float, b: float, y: Array) -> Array:
    """P_n^(a, b)(y), n < N, by the three-term recurrence (stable for y in [-1, 1]): (N, len).

    Source: Digital Library of Mathematical Functions, 18.9.2.
    """
    y = np.atleast_1d(np.asarray(y, dtype=np.float64))
    P = np.empty((N, len(y)))
    P[0] = 1.0
    if N > 1:
        P[1] = (a + 1.0) + 0.5 * (a + b + 2.0) * (y - 1.0)
    for n in range(2, N):
        c = 2.0 * n + a + b
        slope, offset = (c - 1.0) * c * (c - 2.0), (c - 1.0) * (a * a - b * b)
        back = 2.0 * (n + a - 1.0) * (n + b - 1.0) * c
        P[n] = ((slope * y + offset) * P[n - 1] - back * P[n - 2]) / (2.0 * n * (n + a + b) * (c - 2.0))
    return P


def basis(s: Array, N: int, alpha: float) -> Array:
    """g_n(s) = gamma_n P_n^(-alpha, 0)(2 s - 1), gamma_n = h_n / sqrt(1 - alpha): (N, len); orthonormal under
    `density` on [0, 1]."""
    gamma = norms(N, alpha) / np.sqrt(1.0 - alpha)
    return gamma[:, None] * jacobi(N, -alpha, 0.0, 2.0 * np.asarray(s, dtype=np.float64) - 1.0)


def density(s: Array, alpha: float) -> Array:
    """w(s) = (1 - alpha) (1 - s)^(-alpha) on [0, 1], infinite at s = 1 for alpha > 0: (len,)."""
    s = np.atleast_1d(np.asarray(s, dtype=np.float64))
    with np.errstate(divide="ignore"):
        return (1.0 - alpha) * (1.0 - s) ** (-alpha)


def cumulative(s: Array, N: int, alpha: float) -> Array:
    """G_n(s) with G_n' = g_n w: (N, len).

    G_0 = -(1-s)^(1-alpha); G_n = -(gamma_n (1-alpha) / n) (1-s)^(1-alpha) s P_{n-1}^(1-alpha, 1)(2 s - 1).
    Source: Rodrigues' formula (DLMF 18.9.16) in the variable s.
    """
    s = np.atleast_1d(np.asarray(s, dtype=np.float64))
    falling = (1.0 - s) ** (1.0 - alpha)
    G = np.empty((N, len(s)))
    G[0] = -falling
    if N > 1:
        n = np.arange(1, N)
        gamma = (norms(N, alpha) / np.sqrt(1.0 - alpha))[1:]
        G[1:] = -(gamma * (1.0 - alpha) / n)[:, None] * falling * s * jacobi(N - 1, 1.0 - alpha, 1.0, 2.0 * s - 1.0)
    return G


def quadrature(n_nodes: int, alpha: float) -> tuple[Array, Array]:
    """Gauss-Jacobi nodes s_i in (0, 1) and weights summing to 1, for integrals against `density`: (n_nodes,) each.

    Exact for polynomials up to degree 2 n_nodes - 1. Computed from the eigenvectors of the recurrence matrix (Golub and
    Welsch), with an error of 1e-13 for alpha near 1, where that of scipy's roots_jacobi is 1e-9.
    """
    n = np.arange(1, n_nodes, dtype=float)
    diagonal = np.concatenate([[alpha / (2.0 - alpha)], -(alpha**2) / ((2.0 * n - alpha) * (2.0 * n - alpha + 2.0))])
    # The factor n - alpha of n = 1 cancels against 2 n - alpha - 1, written so that alpha -> 1 is harmless.
    ratio = np.concatenate([[1.0], (n[1:] - alpha) / (2.0 * n[1:] - alpha - 1.0)])[: n_nodes - 1]
    beside = np.sqrt(4.0 * n**2 * (n - alpha) * ratio / ((2.0 * n - alpha) ** 2 * (2.0 * n - alpha + 1.0)))
    # Imported here because SciPy takes half a second to import.
    from scipy.linalg import eigh_tridiagonal

    y, vectors = eigh_tridiagonal(diagonal, beside)
    return 0.5 * (y + 1.0), vectors[0] ** 2
