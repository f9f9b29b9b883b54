"""Derivatives by alpha against central differences of the functions they differentiate."""

from __future__ import annotations

import numpy as np
import pytest
from hippo_cases import FRACTIONAL, relative

from fractal_ssm import UsageError
from fractal_ssm.hippo import alpha_derivative, diagonalize, operator

STEP = 1e-5


@pytest.mark.parametrize("name", FRACTIONAL)
@pytest.mark.parametrize("alpha", (0.05, 0.3, 0.9))
@pytest.mark.parametrize("N", (1, 2, 7, 32))
def test_operators_follow_alpha(name, alpha, N):
    dA, dB = operator(name, N, alpha=alpha).alpha_derivative()
    up, down = operator(name, N, alpha=alpha + STEP), operator(name, N, alpha=alpha - STEP)
    for mine, difference in ((dA, up.A - down.A), (dB, up.B - down.B)):
        np.testing.assert_allclose(mine, difference / (2 * STEP), atol=1e-7 * max(np.abs(mine).max(), 1e-3))


@pytest.mark.parametrize("name", ("fractional-tau", "fractional-galerkin"))
@pytest.mark.parametrize("alpha", (0.05, 0.3, 0.7, 0.9))
@pytest.mark.parametrize("N", (2, 5, 8, 32))
def test_eigenvalues_and_inputs_follow_alpha(name, alpha, N):
    built = operator(name, N, alpha=alpha)
    dLambda, dB_tilde, dV = alpha_derivative(built, diagonalize(built))
    up, down = (diagonalize(operator(name, N, alpha=alpha + sign * STEP)) for sign in (1, -1))
    assert relative((up.Lambda - down.Lambda) / (2 * STEP), dLambda) < 1e-6
    assert relative((up.B_tilde - down.B_tilde) / (2 * STEP), dB_tilde) < 1e-6
    assert relative((up.V - down.V) / (2 * STEP), dV) < 1e-5
    # The conventions that fix the free factor of each column hold to first order as well.
    found = diagonalize(built)
    assert np.abs(np.einsum("nj,nj->j", found.V.conj(), dV).real).max() < 1e-9 * np.abs(dV).max()
    assert np.abs(dB_tilde.imag).max() < 1e-9 * np.abs(dB_tilde).max()


def test_what_has_no_derivative_is_refused():
    for name, method in (("fractional", "direct"), ("fractional-tau", "normal")):
        built = operator(name, 4, alpha=0.3)
        with pytest.raises(UsageError, match="fractional-galerkin"):
            alpha_derivative(built, diagonalize(built, method))
    legs = operator("legs", 4)
    with pytest.raises(UsageError, match="no alpha"):
        alpha_derivative(legs, diagonalize(legs))


def test_the_diagonal_form_of_another_operator_is_refused():
    built = operator("fractional-tau", 8, alpha=0.5)
    for other in (operator("fractional-tau", 8, alpha=0.4), operator("fractional-tau", 6, alpha=0.5)):
        with pytest.raises(UsageError, match="not that of fractional-tau"):
            alpha_derivative(built, diagonalize(other))
