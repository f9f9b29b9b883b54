"""`fractional-normal`: LegS-like frequencies whose damping is (1 - alpha) / 2."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hippo_cases import ALPHAS, ORDERS, relative

from fractal_ssm import hippo, list_alphas
from fractal_ssm.models.fractal.alpha import initial_alphas


@pytest.mark.parametrize(
    ("alpha", "N"),
    [
        # The smaller orders tell the alphas apart; the largest takes seconds for each.
        pytest.param(alpha, N, marks=[pytest.mark.slow] if N == 1024 and alpha != 0.9 else [])
        for alpha in ALPHAS
        for N in ORDERS
    ],
)
def test_every_mode_has_the_damping_of_alpha(N, alpha):
    diagonal = hippo.diagonalize(hippo.operator("fractional-normal", N, alpha=alpha))
    np.testing.assert_allclose(diagonal.Lambda.real, -(1 - alpha) / 2, rtol=0, atol=1e-12 * N)
    assert diagonal.condition == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", ["fractional-tau", "fractional-galerkin"])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_it_is_what_stays_of_the_exact_operators(name, alpha):
    exact = hippo.operator(name, 16, alpha=alpha)
    found = hippo.operator("fractional-normal", 16, alpha=alpha)
    spectra = [hippo.diagonalize(measure, method="normal").Lambda for measure in (found, exact)]
    assert relative(*spectra) < 1e-13
    # tau's B in these coordinates, D B, is this B up to one factor; galerkin's is not.
    ratio = exact.normal_form.scale * exact.B / found.B
    assert (np.ptp(ratio) < 1e-12 * ratio[0]) == (name == "fractional-tau")


def test_alpha_0_is_the_start_of_s5():
    legs = hippo.diagonalize(hippo.operator("legs", 32), method="normal")
    found = hippo.diagonalize(hippo.operator("fractional-normal", 32, alpha=0.0), method="normal")
    assert relative(found.Lambda, legs.Lambda) < 1e-14
    assert relative(found.B_tilde, legs.B_tilde) < 1e-14


@pytest.mark.parametrize(("N", "alpha"), [(5, 0.0), (8, 0.37), (9, 0.83), (16, 0.999)])
def test_spectrum_and_drive_against_sixty_digits(N, alpha):
    with mpmath.workdps(60):
        a = mpmath.mpf(repr(alpha))
        h = [mpmath.sqrt(2 * n + 1 - a) for n in range(N)]
        sign = lambda n, k: (n > k) - (n < k)
        A = mpmath.matrix(N, N)
        for n in range(N):
            for k in range(N):
                A[n, k] = h[n] * h[k] * sign(n, k) / 2 + ((1 - a) / 2 if n == k else 0)
        eigenvalues, V = mpmath.eig(A)
        order = sorted(range(N), key=lambda j: mpmath.im(eigenvalues[j]))
        Lambda = np.array([complex(-eigenvalues[j]) for j in order])
        drive = mpmath.lu_solve(V, mpmath.matrix([mpmath.sqrt(1 - a) * value for value in h]))
        # Columns of any length and phase: compare |B_tilde| at unit columns.
        length = [mpmath.sqrt(sum(abs(V[n, j]) ** 2 for n in range(N))) for j in range(N)]
        B = np.array([float(abs(drive[j]) * length[j]) for j in order])
    found = hippo.diagonalize(hippo.operator("fractional-normal", N, alpha=alpha))
    mine = np.argsort(-found.Lambda.imag)
    assert relative(found.Lambda[mine], Lambda) < 1e-13
    assert relative(np.abs(found.B_tilde)[mine], B) < 1e-12


def test_the_derivative_by_alpha():
    step, N, alpha = 1e-6, 8, 0.4
    built = {a: hippo.operator("fractional-normal", N, alpha=a) for a in (alpha - step, alpha, alpha + step)}
    dA, dB = built[alpha].alpha_derivative()
    low, _, high = built.values()
    assert relative(dA, (high.A - low.A) / (2 * step)) < 1e-8
    assert relative(dB, (high.B - low.B) / (2 * step)) < 1e-8
    dLambda, _, _ = hippo.alpha_derivative(built[alpha], hippo.diagonalize(built[alpha]))
    np.testing.assert_allclose(dLambda.real, 0.5, atol=1e-12)


def test_alphas_spaced_in_damping():
    assert "geometric-damping" in list_alphas()
    alphas = initial_alphas({"name": "geometric-damping", "high": 0.99}, 3)
    np.testing.assert_allclose(alphas, [0.0, 0.9, 0.99], atol=1e-15)
    assert initial_alphas("geometric-damping", 1) == [0.0]
