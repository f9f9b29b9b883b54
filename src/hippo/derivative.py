"""The derivative of the diagonal form by alpha, which a layer with a learnable alpha needs for its backward pass."""

from __future__ import annotations

import numpy as np

from ..errors import UsageError
from .diagonal import Diagonal
from .measure import Array, Operator, require_operator

# Eigenpairs with a larger relative residual than this belong to another operator (another alpha, say).
_SAME = 1e-6


def alpha_derivative(operator: Operator, diagonal: Diagonal) -> tuple[Array, Array, Array]:
    """d Lambda, d B_tilde and d V by alpha, by perturbation of the eigenvectors.

    With W = V^-1, dA and dB in closed form:
        d lambda_j = w_j dA v_j for the eigenvalues lambda of A, and dLambda = -d lambda;
        dV = V M,  M_ij = w_i dA v_j / (lambda_j - lambda_i) for i != j;
        d B_tilde = W dB - M B_tilde.
    Perturbation theory leaves M_jj free; here it follows the convention of `diagonalize`: its real part keeps the
    columns of V at unit 2-norm, its imaginary part keeps B_tilde real. The result therefore agrees with a finite
    difference of `diagonalize`, except where two eigenvalues meet and the derivative does not exist.

    Args:
        operator: a measure with an alpha, built at the alpha where the derivative is wanted.
        diagonal: `diagonalize(operator, "direct")`.
    Returns:
        dLambda (N,), dB_tilde (N,), dV (N, N), complex128, in the order of `diagonal`. `conjugate_half` keeps the
        modes with imaginary part <= 0 of all three.
    Raises:
        UsageError: the measure has no alpha; its eigenvectors are not computed in float64 (`fractional`, whose
            eigenvalues are 1 .. N for every alpha, so that a diagonal layer has nothing to learn from it); eigenvalues
            coincide; or `diagonal` is not the diagonal form of `operator`.
    Source: this project; first-order perturbation theory.
    """
    require_operator(operator, "alpha_derivative")
    if operator.alpha_derivative is None:
        raise UsageError(f"The measure '{operator.name}' has no alpha to differentiate by. Use fractional-tau.")
    if not isinstance(diagonal, Diagonal):
        raise UsageError(f"alpha_derivative takes diagonalize(operator) second, got a {type(diagonal).__name__}.")
    if diagonal.arithmetic != "float64" or diagonal.dropped:
        raise UsageError(
            f"The derivative by alpha needs float64 eigenvectors of A itself; those of {operator.label} are "
            f"{diagonal.arithmetic}, method {'normal' if diagonal.dropped else 'direct'}. "
            f"Use fractional-tau or fractional-galerkin with method='direct'."
        )
    _check_pair(operator, diagonal)
    dA, dB = operator.alpha_derivative()
    V, B_tilde, eigenvalues = diagonal.V, diagonal.B_tilde, -diagonal.Lambda
    gap = eigenvalues[None, :] - eigenvalues[:, None]
    np.fill_diagonal(gap, 1.0)
    if (gap == 0).any():
        raise UsageError(f"{operator.label} has a repeated eigenvalue; the derivative by alpha does not exist there.")
    moved = np.linalg.solve(V, dA @ V)
    M = moved / gap
    np.fill_diagonal(M, 0.0)
    # Unit norm: Re v_j^H dV_j = 0. Real B_tilde: Im dB_tilde_j = 0.
    stretch = -np.einsum("nj,nj->j", V.conj(), V @ M).real
    driven = np.linalg.solve(V, dB.astype(complex))
    turn = (driven - M @ B_tilde).imag / np.where(B_tilde.real > 0, B_tilde.real, 1.0)
    M += np.diag(stretch + 1j * turn)
    return -moved.diagonal(), driven - M @ B_tilde, V @ M


def _check_pair(operator: Operator, diagonal: Diagonal) -> None:
    same = diagonal.V.shape == operator.A.shape
    if same:
        pairs = operator.A @ diagonal.V + diagonal.V * diagonal.Lambda
        inputs = diagonal.V @ diagonal.B_tilde - operator.B
        same = np.linalg.norm(pairs) <= _SAME * np.linalg.norm(operator.A)
        same = same and np.linalg.norm(inputs) <= _SAME * np.linalg.norm(operator.B)
    if not same:
        raise UsageError(
            f"The diagonal form given is not that of {operator.label}: its pairs do not satisfy A V = -V diag(Lambda) "
            f"and V B_tilde = B. Pass diagonalize(operator) of this very operator."
        )
