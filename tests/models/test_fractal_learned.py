"""Fractal with a trainable alpha: the modes follow it, and the gradient is the derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fractal_ssm import Fractal, UsageError
from fractal_ssm.models.fractal.init import parse_measure
from fractal_ssm.models.fractal.learned import AlphaFamily

FAMILIES = [("fractional", "lin"), ("fractional", "none"), ("fractional-tau", "own"), ("fractional-galerkin", "own")]
FAMILIES += [("fractional-normal", "own")]


@pytest.mark.parametrize(("name", "imag"), FAMILIES)
def test_modes_are_those_of_the_fixed_layer(name, imag):
    measure = parse_measure(name, imag)
    family = AlphaFamily(measure, 8)
    alphas = np.array([0.1, 0.4, 0.9])
    logit = family.logit(alphas)
    np.testing.assert_allclose(family.alpha(logit), alphas, rtol=1e-12)
    Lambda, B_tilde = family.modes(logit)
    blocks = [measure.block(8, alpha) for alpha in alphas]
    np.testing.assert_allclose(Lambda, np.concatenate([block.Lambda for block in blocks]), rtol=1e-10)
    np.testing.assert_allclose(B_tilde, np.concatenate([block.B_tilde for block in blocks]).real, rtol=1e-10)


@pytest.mark.parametrize(("name", "imag"), FAMILIES)
@pytest.mark.parametrize("order", [4, 8, 16])
def test_gradient_of_the_modes_by_finite_differences(name, imag, order):
    family = AlphaFamily(parse_measure(name, imag), order)
    logit = family.logit(np.array([0.05, 0.5, 0.9])).requires_grad_()

    def outputs(at):
        Lambda, B_tilde = family.modes(at)
        # Log, so that small and large weights count alike.
        return Lambda.real, Lambda.imag, torch.log(B_tilde)

    assert torch.autograd.gradcheck(outputs, logit, eps=1e-6, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"measure": "fractional-tau"},
        {"measure": "fractional-galerkin"},
        {"measure": "fractional-normal"},
        {"measure": "fractional-tau", "B_init": "random"},
        {"time": "ltv"},
    ],
)
def test_gradient_through_the_layer_by_finite_differences(options):
    torch.manual_seed(0)
    layer = Fractal(3, d_state=16, n_alphas=2, learn_alpha=True, **options).double()
    u, weight = torch.randn(2, 2, 25, 3, dtype=torch.float64)

    def loss():
        return (layer(u)[0] * weight).sum()

    (gradient,) = torch.autograd.grad(loss(), layer.alpha_logit)
    assert (gradient != 0).all()
    for block in range(2):
        with torch.no_grad():
            layer.alpha_logit[block] += 1e-5
            above = loss()
            layer.alpha_logit[block] -= 2e-5
            below = loss()
            layer.alpha_logit[block] += 1e-5
        assert gradient[block].item() == pytest.approx(((above - below) / 2e-5).item(), rel=1e-5, abs=1e-7)


def test_alpha_stays_inside_its_interval_and_moves_in_training():
    torch.manual_seed(0)
    layer = Fractal(2, d_state=16, n_alphas=2, learn_alpha=True, measure="fractional-tau")
    assert type(layer).roles["alpha_logit"] == "A"
    assert "Lambda_re" not in dict(layer.named_parameters())
    before = layer.alphas
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.3)
    u = torch.randn(4, 30, 2)
    for _ in range(15):
        optimizer.zero_grad()
        layer(u)[0].square().mean().backward()
        optimizer.step()
    assert layer.alphas != before
    for value in (-1e4, 1e4):
        with torch.no_grad():
            layer.alpha_logit.fill_(value)
        assert all(0 < alpha < 1 for alpha in layer.alphas)
        assert torch.isfinite(layer(u)[0]).all()


def test_a_start_on_the_bound_is_moved_inside():
    layer = Fractal(2, learn_alpha=True)
    assert layer.alphas == pytest.approx((0.0099, 0.3, 0.6, 0.9), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(measure="legs"), "measure legs"),
        (dict(measure="fractional", imag="normal"), "imag normal"),
        (dict(measure="fractional-tau", imag="normal"), "imag normal"),
        (dict(B_init="random"), "nothing of fractional depends on alpha"),
        (dict(measure="fractional-galerkin", d_state=4, n_alphas=2), "eigenvalues meet"),
        (dict(measure="fractional-tau", d_state=18, n_alphas=2), "block order 9"),
    ],
)
def test_what_has_no_derivative_is_refused_when_building(options, message):
    with pytest.raises(UsageError, match=message):
        Fractal(2, learn_alpha=True, **options)
