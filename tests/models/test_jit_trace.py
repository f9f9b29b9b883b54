"""torch.jit.trace: saved and loaded with other lengths, or refused in words. torch warns that it is deprecated."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fractal_ssm import DSS, LRU, S4, S4D, S5, Attention, Fractal, UsageError
from fractal_ssm.export import real_forward, real_step

pytestmark = pytest.mark.filterwarnings("ignore")


class Outputs(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, u):
        return self.layer(u, return_state=False)[0]


def saved(module, inputs, folder):
    torch.jit.trace(module, inputs, check_trace=False).save(str(folder / "trace.pt"))
    return torch.jit.load(str(folder / "trace.pt"))


@pytest.mark.parametrize("layer", [Fractal, S5, LRU, Attention])
@torch.no_grad()
def test_a_trace_is_saved_and_takes_other_lengths(layer, tmp_path):
    options = {"n_heads": 2} if layer is Attention else {}
    layer, u = layer(8, **options).eval(), torch.randn(2, 16, 8)
    loaded = saved(Outputs(layer), u, tmp_path)
    for inputs in (u, torch.randn(3, 24, 8), torch.randn(1, 1, 8)):
        torch.testing.assert_close(loaded(inputs), layer(inputs)[0])


@pytest.mark.parametrize("layer", [S4, S4D, DSS])
def test_a_trace_that_would_be_wrong_is_refused(layer):
    options = {"l_max": 32} if layer is DSS else {}
    with pytest.raises(UsageError, match="depends on the length.*real_step"):
        torch.jit.trace(Outputs(layer(8, **options)), torch.randn(2, 16, 8), check_trace=False)
    with pytest.raises(UsageError, match="export_program"):
        torch.jit.trace(real_forward(layer(8, **options)), torch.randn(2, 16, 8), check_trace=False)


@pytest.mark.parametrize("layer", [Fractal, S4, S4D])
@torch.no_grad()
def test_a_real_step_is_saved(layer, tmp_path):
    step = real_step(layer(8))
    state, u_t = step.initial_state(2), torch.randn(2, 8)
    loaded = saved(step, (u_t, *state), tmp_path)
    for found, expected in zip(loaded(u_t, *state), step(u_t, *state), strict=True):
        torch.testing.assert_close(found, expected)
