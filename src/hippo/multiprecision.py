"""Eigenvectors beyond float64, for operators that are diagonalisable on paper only."""

from __future__ import annotations

import numpy as np

from .measure import Array

# Digits: 40 for the result and one for every order, since cond(V) grows about like 10^(N / 2).
_DIGITS = 40


def eigensystem(A: Array, B: Array) -> tuple[Array, Array, Array, float]:
    """Eigenvalues, eigenvectors and V^-1 B of a float64 matrix in 40 + N digits, each rounded once.

    Args:
        A: (N, N); taken as exact.
        B: (N,).
    Returns:
        eigenvalues (N,), V (N, N), V^-1 B (N,), complex128, and the relative Frobenius error of V diag V^-1 in
        that arithmetic.
    """
    import mpmath

    N = len(A)
    with mpmath.workdps(_DIGITS + N):
        matrix = mpmath.matrix(A.tolist())
        eigenvalues, V = mpmath.eig(matrix)
        inverse = V**-1
        error = V * mpmath.diag(eigenvalues) * inverse - matrix
        residual = mpmath.mnorm(error, "f") / mpmath.mnorm(matrix, "f")
        B_tilde = inverse * mpmath.matrix(B.tolist())
        return (
            np.array([complex(value) for value in eigenvalues]),
            np.array(V.tolist(), dtype=complex),
            np.array([complex(value) for value in B_tilde]),
            float(residual),
        )
