"""LRU against a loop written from the paper's equations, and its initial distribution."""

from __future__ import annotations

import math

import pytest
import torch

from fractal_ssm import LRU, UsageError


def loop(layer, u):
    """y of one sequence (L, H), complex arithmetic, one position at a time."""
    parameters = {name: value.detach() for name, value in layer.named_parameters()}
    B, C = (torch.view_as_complex(parameters[name]) for name in ("B", "C"))
    rate, phase = torch.exp(parameters["nu_log"]), torch.exp(parameters["theta_log"])
    eigenvalue = torch.exp(torch.complex(-rate, phase))
    x, outputs = torch.zeros_like(eigenvalue), []
    for u_t in u:
        x = eigenvalue * x + torch.exp(parameters["gamma_log"]) * (B @ u_t.to(B.dtype))
        outputs.append((C @ x).real + parameters["D"] * u_t)
    return torch.stack(outputs)


def test_equals_the_equations():
    torch.manual_seed(0)
    layer = LRU(3, 8).double()
    u = torch.randn(2, 40, 3, dtype=torch.float64)
    y, _ = layer(u)
    for sample in range(2):
        torch.testing.assert_close(y[sample], loop(layer, u[sample]))


def test_bidirectional_adds_the_reversed_sequence():
    torch.manual_seed(0)
    layer = LRU(3, 8, bidirectional=True).double()
    u = torch.randn(1, 20, 3, dtype=torch.float64)
    y, _ = layer(u)
    forward = LRU(3, 8).double()
    forward.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "C_backward"})
    backward = LRU(3, 8).double()
    backward.load_state_dict(
        {k: v for k, v in layer.state_dict().items() if k not in ("C_backward", "C")} | {"C": layer.C_backward.detach()}
    )
    expected = forward(u)[0] + backward(u.flip(1))[0].flip(1) - layer.D * u
    torch.testing.assert_close(y, expected)


def test_initial_distribution():
    torch.manual_seed(0)
    H, N = 64, 4096
    layer = LRU(H, N, r_min=0.4, r_max=0.9, max_phase=3.0)
    squared = layer.Lambda_bar.detach().abs() ** 2
    assert squared.min().item() == pytest.approx(0.16, abs=2e-3)
    assert squared.max().item() == pytest.approx(0.81, abs=2e-3)
    assert squared.mean().item() == pytest.approx((0.16 + 0.81) / 2, abs=0.02)
    phase = torch.exp(layer.theta_log.detach())
    assert 0 < phase.min() < 0.02
    assert 2.98 < phase.max() <= 3.0
    torch.testing.assert_close(torch.exp(layer.gamma_log).detach(), (1 - squared).sqrt(), rtol=1e-4, atol=1e-5)
    assert layer.B.var().item() == pytest.approx(1 / (2 * H), rel=0.05)
    assert layer.C.var().item() == pytest.approx(1 / N, rel=0.05)


def test_the_whole_disc_has_finite_logarithms_and_gradients():
    for seed in range(20):
        torch.manual_seed(seed)
        layer = LRU(2, 256)
        y, _ = layer(torch.randn(1, 30, 2))
        y.sum().backward()
        assert all(torch.isfinite(p).all() and torch.isfinite(p.grad).all() for p in layer.parameters())


def test_white_input_keeps_the_state_at_unit_variance():
    torch.manual_seed(0)
    layer = LRU(4, 512, r_min=0.5, r_max=0.95)
    _, state = layer(torch.randn(64, 400, 4))
    assert state.abs().pow(2).mean().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    "options", [dict(r_min=0.9, r_max=0.5), dict(r_min=-0.1), dict(r_max=1.1), dict(max_phase=0.0), dict(d_state=-3)]
)
def test_mistakes_are_refused_when_building(options):
    value = list(options.values())[-1]
    with pytest.raises(UsageError, match=str(value)):
        LRU(4, **options)


def test_there_is_no_step_to_scale():
    layer = LRU(4, 8)
    for dt_scale in (2.0, torch.tensor([1.0, 2.0])):
        with pytest.raises(UsageError, match="no step"):
            layer(torch.randn(2, 5, 4), dt_scale=dt_scale)


def test_eigenvalues_stay_inside_the_unit_circle_whatever_the_parameters():
    layer = LRU(4, 8)
    for value in (-1e4, 0.0, 50.0):
        with torch.no_grad():
            layer.nu_log.fill_(value)
        assert (layer.Lambda_bar.abs() <= 1).all()
        y, _ = layer(torch.randn(1, 65, 4))
        assert torch.isfinite(y).all()
        assert math.isfinite(torch.autograd.grad(y.sum(), layer.nu_log)[0].sum().item())
