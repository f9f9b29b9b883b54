"""Kernels prove themselves on this device, and every layer, as it is built by default, agrees with the CPU."""

import logging

import pytest
import torch
from gpu_cases import deviation

from fractal_ssm.ops import cauchy, scan, vandermonde
from fractal_ssm.ops.runtime import proof
from fractal_ssm.registry import layers

pytestmark = pytest.mark.gpu

CASES = {"scan": scan.interface.prove, "vandermonde": vandermonde.interface.prove, "cauchy": cauchy.interface.prove}


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_prove_themselves(device, tiny, name):
    if tiny:
        pytest.skip("the interpreter's own tests do this (tests/ops/interpreter/test_proof.py)")
    assert proof._compare(CASES[name], torch.device(device)) == ""


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("name", layers.names())
def test_layers_agree_with_the_cpu(device, tiny, caplog, name, options):
    if not set(options) <= set(layers.options(name)):
        pytest.skip("one direction only")
    length = 12 if tiny else 300
    layer = layers.build({"name": name, **options}, d_model=16, l_max=length)
    u = torch.randn(2, length, 16, dtype=torch.float64)
    with caplog.at_level(logging.WARNING, logger="fractal_ssm.backends"):
        found = _results(layer.to(device), u.to(device, torch.float32))
    expected = _results(layer.to("cpu").double(), u)
    assert not caplog.records, caplog.text
    assert deviation(found[:2], expected[:2]) < 1e-4
    # Gradients of eigenvalues and steps are sums over all positions; one that is zero but for rounding has no scale.
    floor = 1e-3 * max(gradient.abs().max().item() for gradient in expected)
    seen = [i for i, gradient in enumerate(expected) if i >= 2 and gradient.abs().max() > floor]
    assert deviation([found[i] for i in seen], [expected[i] for i in seen]) < 1e-2


def _results(layer, u):
    y, _ = layer(u.requires_grad_(), return_state=False)
    return [y.detach(), *torch.autograd.grad(y.square().mean(), [u, *layer.parameters()])]
