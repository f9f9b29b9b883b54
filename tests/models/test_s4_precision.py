"""S4 in float32 against float64, for every way to the kernel: the response of slow modes cancels."""

from __future__ import annotations

import pytest
import torch

from fractal_ssm import S4
from fractal_ssm.ops.runtime.keops import keops_reason

INITS = [
    *("legs", "legt", "fourier", "fout", "lagt", "random"),
    *({"name": "fractional", "alpha": 0.5}, {"name": "fractional-tau", "alpha": 0.9}, {"name": "legt", "theta": 2.0}),
]
LENGTH = 256


def output_and_gradients(dtype, init, backend, fold_length):
    torch.manual_seed(0)
    layer = S4(4, d_state=32, init=init, backend=backend, fold_length=fold_length).to(dtype)
    u, weight = torch.randn(2, 2, LENGTH, 4, generator=torch.Generator().manual_seed(1)).to(dtype).unbind()
    y, _ = layer(u.requires_grad_())
    (y * weight).sum().backward()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"y": y.detach(), "u": u.grad, **gradients}


@pytest.mark.parametrize("init", INITS, ids=str)
@pytest.mark.parametrize("fold_length", [None, LENGTH])
@pytest.mark.parametrize(
    "backend",
    [
        *("powers", "cauchy"),
        pytest.param("keops", marks=[pytest.mark.slow, pytest.mark.skipif(bool(keops_reason()), reason="no keops")]),
    ],
)
def test_single_precision_has_the_gradients_of_double(init, backend, fold_length):
    exact = output_and_gradients(torch.float64, init, backend, fold_length)
    found = output_and_gradients(torch.float32, init, backend, fold_length)
    for name, value in exact.items():
        assert (found[name] - value).abs().max() <= 1e-5 * value.abs().max(), name
