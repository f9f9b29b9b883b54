"""What a layer keeps between steps is dropped whenever what it came from has changed."""

from __future__ import annotations

import pytest
import torch
from contract_cases import build, draw, relative_error
from torch import nn
from torch.nn.utils import parametrize

from fractal_ssm import S5

NAMES = ["s5", "lru", "fractal", "s4", "s4d", "dss"]


class Halved(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, value):
        return self.factor * value


def assert_step_is_forward(layer, u, state):
    expected = layer(u[:, None], state)[0][:, 0]
    assert relative_error(layer.step(u, state)[0], expected) < 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_a_parametrized_parameter_is_followed(name):
    layer, u = build((name, {})), draw(1, 4)
    state = layer.initial_state(1)
    with torch.no_grad():
        layer.step(u, state)
    parametrize.register_parametrization(layer, "C", Halved())
    parametrize.register_parametrization(layer, "D", Halved())
    for factor in (0.5, 0.25):
        with torch.no_grad():
            layer.parametrizations.D[0].factor.fill_(factor)
            assert_step_is_forward(layer, u, state)
    layer.requires_grad_(False)
    layer.parametrizations.C[0].factor.requires_grad_()
    for _ in range(2):
        layer.step(u, state)[0].sum().backward()


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_one_value_written_behind_torch_is_seen(name):
    layer, u = build((name, {})), draw(1, 4)
    state = layer(draw(1, 3, 4))[1]
    for key, parameter in layer.named_parameters():
        layer.step(u, state)
        flat = parameter.data.view(-1).numpy()
        flat[len(flat) // 2 + 1 if len(flat) > 2 else 0] *= 0.5
        assert_step_is_forward(layer, u, state)
        assert key


@torch.no_grad()
def test_an_option_that_changes_is_seen():
    layer, u = S5(4, d_state=16, blocks=2).double(), draw(1, 4)
    layer.Lambda_re.fill_(0.3)
    state = layer(draw(1, 3, 4))[1]
    layer.step(u, state)
    layer.clip_eigs = True
    assert_step_is_forward(layer, u, state)
    layer.discretization = "bilinear"
    assert_step_is_forward(layer, u, state)


@pytest.mark.parametrize("name", NAMES)
def test_steps_in_inference_mode_leave_nothing_that_breaks_a_gradient(name):
    layer, u = build((name, {})).requires_grad_(False), draw(1, 4)
    with torch.inference_mode():
        layer.step(u, layer.initial_state(1))
    u.requires_grad_()
    layer.step(u, layer.initial_state(1))[0].sum().backward()
    assert torch.isfinite(u.grad).all()
