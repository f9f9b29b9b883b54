"""Discretisation against exact values, scipy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import cont2discrete

from fractal_ssm import UsageError
from fractal_ssm.ops.discretize import complex_exp, complex_expm1, discretize, phi1

METHODS = ["zoh", "bilinear"]


def one(value, dtype=torch.complex128):
    return torch.tensor([value], dtype=dtype)


@pytest.mark.parametrize(
    ("method", "kernel"),
    [
        ("zoh", [0.191928907, 0.164773162, 0.124467186, 0.076111269, 0.025089044]),
        ("bilinear", [0.190644647, 0.164273425, 0.124894939, 0.077424726, 0.027082704]),
    ],
)
def test_kernel_of_one_mode(method, kernel):
    Lambda_bar, gamma = discretize(one(-0.5 + np.pi * 1j), torch.tensor([0.1], dtype=torch.float64), method)
    powers = Lambda_bar ** torch.arange(5)
    np.testing.assert_allclose((2 * gamma * powers).real.numpy(), kernel, atol=1e-9)


@pytest.mark.parametrize("Lambda", [-1e-4, -1e-6, 0.0, -1e-6 + 1e-6j])
def test_small_steps_keep_their_digits_in_float32(Lambda):
    exact = 1e-3 * (1 + Lambda * 1e-3 / 2)
    at = one(Lambda, torch.complex64).requires_grad_()
    dt = torch.tensor([1e-3], requires_grad=True)
    Lambda_bar, gamma = discretize(at, dt, "zoh")
    assert abs(gamma.item() - exact) / abs(exact) < 1e-6
    (gamma.real + Lambda_bar.real).sum().backward()
    # d gamma / d Lambda = dt^2 / 2 and d exp(z) / d Lambda = dt at z = 0.
    assert at.grad.real.item() == pytest.approx(1e-3 + 0.5e-6, rel=1e-5)
    assert torch.isfinite(dt.grad).all()


@pytest.mark.parametrize("method", METHODS)
def test_against_scipy_on_dense_stable_systems(method):
    rng = np.random.default_rng(0)
    for _ in range(5):
        A = rng.standard_normal((4, 4))
        A -= (np.linalg.eigvals(A).real.max() + 0.1) * np.eye(4)
        B, dt = rng.standard_normal((4, 2)), rng.uniform(0.01, 1.0)
        Lambda, V = np.linalg.eig(A)
        A_bar, B_bar, *_ = cont2discrete((A, B, np.eye(4), np.zeros((4, 2))), dt, method)
        Lambda_bar, gamma = discretize(torch.from_numpy(Lambda), torch.tensor(dt, dtype=torch.float64), method)
        inverse = np.linalg.inv(V)
        np.testing.assert_allclose((V * Lambda_bar.numpy()) @ inverse, A_bar, atol=1e-10)
        np.testing.assert_allclose((V * gamma.numpy()) @ inverse @ B, B_bar, atol=1e-10)


@pytest.mark.parametrize("modulus", [1e-12, 1e-4, 0.0999, 0.1001, 1.0, 30.0])
def test_phi1_and_its_gradient_around_the_border_of_the_series(modulus):
    import mpmath

    mpmath.mp.dps = 40
    for angle in (2.0, 3.14159, -1.6):
        z = complex(modulus * np.exp(1j * angle))
        value = mpmath.expm1(mpmath.mpc(z)) / mpmath.mpc(z)
        slope = (mpmath.exp(mpmath.mpc(z)) - value) / mpmath.mpc(z)
        at = one(z).requires_grad_()
        result = phi1(at)
        assert abs(result.item() - complex(value)) < 4e-15 * abs(value)
        # The gradient of the real part of a holomorphic function is the conjugate of its derivative.
        (gradient,) = torch.autograd.grad(result.real.sum(), at)
        assert abs(gradient.item() - complex(slope).conjugate()) < 2e-13 * abs(slope)


# Torch's compiler instantiates autograd functions, which torch itself warns about.
@pytest.mark.filterwarnings("ignore")
def test_one_graph_with_the_gradients_of_eager_mode():
    Lambda = torch.tensor([-0.5 + 2j, -3.0 + 0j, -1e-9 + 1e-9j, 0j], dtype=torch.complex128, requires_grad=True)
    dt = torch.tensor([0.05, 1.0, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    torch._dynamo.reset()
    results = []
    for function in (discretize, torch.compile(discretize, fullgraph=True, backend="aot_eager")):
        outputs = function(Lambda, dt, "zoh")
        results.append([*outputs, *torch.autograd.grad(torch.cat(outputs).abs().square().sum(), (Lambda, dt))])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("method", METHODS)
def test_gradients_by_finite_differences(method):
    Lambda = torch.tensor([-0.5 + 2j, -3.0 + 0j, -1e-3 + 1e-3j, 0j], dtype=torch.complex128, requires_grad=True)
    dt = torch.tensor([0.05, 1.0, 0.2, 0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda L, d: discretize(L, d, method), (Lambda, dt))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("log_dt", [10.0, -20.0])
@pytest.mark.parametrize("Lambda", [-0.5 + 300j, -1e4 + 0j, 0j, -1e-8 + 0j])
def test_extreme_steps_stay_finite_and_bounded(method, log_dt, Lambda):
    at = one(Lambda, torch.complex64).requires_grad_()
    log_step = torch.tensor([log_dt], requires_grad=True)
    Lambda_bar, gamma = discretize(at, torch.exp(log_step), method)
    assert Lambda_bar.abs().item() <= 1 + 1e-6
    torch.view_as_real(Lambda_bar + gamma).sum().backward()
    assert torch.isfinite(torch.view_as_real(at.grad)).all()
    assert torch.isfinite(log_step.grad).all()


def test_steps_broadcast_over_batch_and_position():
    Lambda = torch.tensor([-0.5 + 2j, -1.0 + 0j], dtype=torch.complex128)
    dt = torch.rand(3, 5, 1, dtype=torch.float64)
    Lambda_bar, gamma = discretize(Lambda, dt, "zoh")
    assert Lambda_bar.shape == gamma.shape == (3, 5, 2)
    single_bar, single_gamma = discretize(Lambda, dt[1, 2], "zoh")
    torch.testing.assert_close(Lambda_bar[1, 2], single_bar)
    torch.testing.assert_close(gamma[1, 2], single_gamma)


def test_complex_exponentials():
    z = torch.tensor([0.3 - 2j, -40 + 1e3j, 1e-9 + 1e-9j], dtype=torch.complex128)
    torch.testing.assert_close(complex_exp(z), torch.exp(z))
    np.testing.assert_allclose(complex_expm1(z).numpy(), np.expm1(z.numpy()), rtol=1e-14)


def test_an_unknown_method_names_the_known_ones():
    with pytest.raises(UsageError, match=r"Unknown discretization 'zho'.*bilinear, zoh.*Did you mean 'zoh'"):
        discretize(one(-1.0), torch.tensor([0.1]), "zho")


def test_steps_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match=r"\(2, 3\) does not go with \(2,\)"):
        discretize(torch.full((2,), -1 + 1j), torch.rand(2, 3))
