"""Eigenvectors in multiprecision, for operators that float64 cannot diagonalise."""

from __future__ import annotations

import numpy as np

from .measure import Array

# Decimal digits, to which one per order is added, since cond(V) grows roughly like 10^(N / 2).
_DIGITS = 40


def eigensystem(A: Array, B: Array) -> tuple[Array, Array, Array, float]:
    """Eigenvalues, eigenvectors and V^-1 B of a float64 matrix in 40 + N digits, each rounded once.

    Computed by FLINT (python-flint); 0.1 s of processor time for N = 32.

    Args:
        A: (N, N); taken as exact.
        B: (N,).
    Returns:
        eigenvalues (N,), V (N, N), V^-1 B (N,), complex128, and the relative Frobenius error of V diag V^-1 in that
        arithmetic. If V is singular, V^-1 B is nan and the error inf.
    """
    from flint import acb, acb_mat, ctx

    N = len(A)
    with ctx.workdps(_DIGITS + N):
        matrix = acb_mat([[acb(value) for value in row] for row in A.tolist()])
        eigenvalues, V = matrix.eig(right=True, algorithm="approx")
        # Take the midpoints as exact numbers: the error is measured below, not bounded.
        V = V.mid()
        rounded = np.array([complex(value) for value in eigenvalues]), _to_numpy(V)
        try:
            inverse = V.inv().mid()
        except ZeroDivisionError:
            return *rounded, np.full(N, np.nan, dtype=complex), np.inf
        diagonal = acb_mat(N, N, [eigenvalues[i] if i == j else 0 for i in range(N) for j in range(N)])
        error = np.linalg.norm(_to_numpy(V * diagonal * inverse - matrix)) / np.linalg.norm(A)
        B_tilde = inverse * acb_mat([[acb(value)] for value in B.tolist()])
        return *rounded, _to_numpy(B_tilde)[:, 0], float(error)


def _to_numpy(matrix: object) -> Array:
    return np.array([[complex(value) for value in row] for row in matrix.tolist()])
