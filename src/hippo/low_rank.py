"""Normal-plus-low-rank forms, the basis of S4's kernel and of the S4D-LegS and S5 initialisations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import UsageError
from .measure import Array, NormalForm, Operator, require_operator

# Largest relative error of the resolvent that `dplr` accepts.
TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class Dplr:
    """-A = V (diag(Lambda) - P Q^H) V^-1, exact.

    Attributes:
        Lambda: (N,) complex, real part constant and <= 0 (0 for legt, fourier and random, whose damping is all in
            P Q^H); pairs are adjacent halves: Lambda[j] and Lambda[N-1-j] are conjugate, imaginary parts ascending.
        P, Q: (N, r) complex, in the basis of V; equal where the low-rank part is symmetric.
        B: (N,) complex, V^-1 B of the operator.
        V: (N, N) complex, D^-1 U with U unitary and D the diagonal scaling of the operator's normal form
            (D = I for legs, legt, lagt, fourier and random).
    """

    Lambda: Array
    P: Array
    Q: Array
    B: Array
    V: Array

    @property
    def rank(self) -> int:
        """r, columns of P."""
        return self.P.shape[1]

    def half(self) -> Dplr:
        """The first mode of every conjugate pair (imaginary part <= 0): arrays of length N / 2, V of shape (N, N/2).

        Raises:
            UsageError: N is odd, so that one mode is real and has no partner.
        """
        N = len(self.Lambda)
        if N % 2:
            raise UsageError(f"A DPLR form of odd order N = {N} has one real mode; take an even N to keep half.")
        keep = slice(0, N // 2)
        return Dplr(self.Lambda[keep], self.P[keep], self.Q[keep], self.B[keep], self.V[:, keep])


def dplr(operator: Operator) -> Dplr:
    """The diagonal-plus-low-rank form of an operator, over all N modes.

    With D A D^-1 = c I + S + P Q^T and S = U diag(i omega) U^H:  Lambda = -c - i omega, V = D^-1 U,
    P <- U^H P, Q <- U^H Q, B <- U^H D B. Ranks: 1 for legs, fractional, fractional-tau, lagt, fourier and random,
    2 for legt and fractional-galerkin.

    Raises:
        UsageError: not an operator; the measure declares no normal form; or float64 is too inaccurate for it: D has
            entries of 1 / (1 - alpha) that cancel, so fractional-tau and fractional-galerkin are refused for alpha
            within about 1e-4 of 1 (at N = 64). Checked to 1e-7 by the resolvent (s + A)^-1 B, with s of the size of
            the slowest modes.
    Source: arXiv 2111.00396, theorem 1, for the classic measures; this project for the fractional ones.
    """
    form = require_normal_form(require_operator(operator, "dplr"))
    omega, U = skew_eigensystem(form.S)
    adjoint = U.conj().T
    found = Dplr(
        Lambda=-form.shift - 1j * omega,
        P=adjoint @ form.P,
        Q=adjoint @ form.Q,
        B=adjoint @ (form.scale * operator.B),
        V=U / form.scale[:, None],
    )
    error = _resolvent_error(operator, found)
    if not error <= TOLERANCE:
        alpha = "an alpha further from 1 (up to 0.999 serves up to N = 64), " if "alpha" in operator.options else ""
        raise UsageError(
            f"The normal-plus-low-rank form of {operator.label} does not give its A and B back: relative error "
            f"{error:.1e} of (s + A)^-1 B, {TOLERANCE:g} allowed. Use {alpha}a smaller N, or diagonalize(...); "
            f"for a measure of your own check its normal_form."
        )
    return found


def _resolvent_error(operator: Operator, form: Dplr) -> float:
    """Largest relative error of (s + A)^-1 B from the form (Woodbury), at three s of about 1 / |A^-1|.

    Three, because rounding errors may happen to cancel at one of them.
    """
    driven, errors = operator.driven, []
    slowest = 1.0 / np.linalg.norm(np.linalg.inv(operator.A[np.ix_(driven, driven)]))
    adjoint = form.Q.conj().T
    for s in (slowest, (1.0 + 1.0j) * slowest, (4.0 + 4.0j) * slowest):
        dense = np.linalg.solve(operator.A + s * np.eye(operator.N), operator.B)
        decay = 1.0 / (s - form.Lambda)
        core = np.eye(form.rank) + adjoint @ (decay[:, None] * form.P)
        state = decay * form.B
        state = state - decay * (form.P @ np.linalg.solve(core, adjoint @ state))
        errors.append(np.linalg.norm(form.V @ state - dense) / np.linalg.norm(dense))
    return float(max(errors))


def require_normal_form(operator: Operator) -> NormalForm:
    """The operator's normal form; UsageError, saying how a measure declares one, if it has none."""
    if operator.normal_form is None:
        raise UsageError(
            f"The measure '{operator.name}' declares no normal-plus-low-rank form, and taking the skew part of its A "
            f"would drop the rest unseen. Give its Operator a normal_form, or use diagonalize(..., method='direct')."
        )
    return operator.normal_form


def skew_eigensystem(S: Array) -> tuple[Array, Array]:
    """S = U diag(i omega) U^H for a real skew-symmetric S.

    Returns:
        omega: (N,) descending, omega[j] = -omega[N-1-j] exactly.
        U: (N, N) unitary, U[:, N-1-j] = conj(U[:, j]) exactly; the middle column of an odd N is real.
    Each column's entry of largest modulus is real and positive, which makes the result reproducible; eigenvectors of
    omega = 0 are paired as (e + i e') / sqrt 2.
    """
    N = len(S)
    # Hermitian, eigenvalues ascending; the lower half mirrors the upper one up to rounding.
    omega, U = np.linalg.eigh(-1j * S)
    half = N // 2
    upper = slice(N - half, N)
    tolerance = 1e-12 * max(abs(omega[0]), abs(omega[-1]), np.finfo(float).tiny)
    moving = omega[upper] > tolerance
    omega_up, U_up = omega[upper][moving], U[:, upper][:, moving]
    rest = N - 2 * len(omega_up)
    if rest:
        # Real orthonormal basis of the null space, the complement of the moving pairs.
        projector = np.eye(N) - 2.0 * (U_up @ U_up.conj().T).real
        still = np.linalg.eigh(projector)[1][:, N - rest :]
        pairs = (still[:, 0 : rest - 1 : 2] + 1j * still[:, 1::2]) / np.sqrt(2.0)
        omega_up = np.concatenate([np.zeros(pairs.shape[1]), omega_up])
        U_up = np.concatenate([pairs, U_up], axis=1)
    order = np.argsort(-omega_up, kind="stable")
    omega_up, U_up = omega_up[order], _turned(U_up[:, order])
    middle = still[:, -1:] if N % 2 else np.empty((N, 0))
    U = np.concatenate([U_up, middle, U_up[:, ::-1].conj()], axis=1)
    # Mirroring loses orthogonality (1e-11 at N = 256). One Newton step towards the polar factor restores it and keeps
    # the conjugate structure.
    U = U @ (1.5 * np.eye(N) - 0.5 * (U.conj().T @ U))
    U = np.concatenate([U[:, :half], U[:, half : N - half].real, U[:, :half][:, ::-1].conj()], axis=1)
    return np.concatenate([omega_up, np.zeros(N % 2), -omega_up[::-1]]), U


def _turned(U: Array) -> Array:
    """Columns with their phase fixed: the entry of largest modulus becomes real and positive."""
    pivot = U[np.argmax(np.abs(U), axis=0), np.arange(U.shape[1])]
    return U * (np.abs(pivot) / pivot)
