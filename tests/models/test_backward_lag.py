"""Convolution layers whose two directions both see the present input."""

from __future__ import annotations

import pytest
import torch
from contract_cases import D_MODEL, assert_same_gradients, build, draw, relative_error

from fractal_ssm import UsageError
from fractal_ssm.registry import layers

CASES = [
    ("s4", {"d_state": 8}),
    ("s4", {"d_state": 8, "channels": 2}),
    ("s4", {"d_state": 8, "backend": "cauchy"}),
    ("s4d", {"d_state": 8, "channels": 2}),
    ("s4d", {"d_state": 8, "discretization": "bilinear"}),
    ("dss", {"d_state": 8}),
    ("fractal-conv", {"d_state": 8, "n_alphas": 2}),
]
every_case = pytest.mark.parametrize(("name", "options"), CASES)


def symmetric(name, options, dtype=torch.float64):
    """A layer with lag 0 on both sides, and the same C in both directions."""
    layer = build((name, {**options, "bidirectional": True, "backward_lag": 0}), dtype)
    with torch.no_grad():
        forward, backward = layer.C.chunk(2)
        backward.copy_(forward)
    return layer


@every_case
@pytest.mark.parametrize("length", [1, 2, 7, 64])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_reversing_the_input_reverses_the_output(name, options, length, dtype, tolerance):
    layer, u = symmetric(name, options, dtype), draw(2, length, D_MODEL, dtype=dtype)
    assert relative_error(layer(u.flip(1))[0].flip(1), layer(u)[0]) < tolerance
    published = build((name, {**options, "bidirectional": True}), dtype)
    published.load_state_dict(layer.state_dict())
    difference = relative_error(published(u.flip(1))[0].flip(1), published(u)[0])
    assert (difference > 1e-3) == (length > 1)


@every_case
@pytest.mark.parametrize("length", [1, 2, 9])
def test_it_is_the_sum_of_two_causal_layers(name, options, length):
    """With each direction's own C; outputs and gradients."""
    layer = build((name, {**options, "bidirectional": True, "backward_lag": 0}), l_max=length)
    causal = build((name, options), l_max=length)
    u, weight = draw(2, length, D_MODEL).requires_grad_(), draw(2, length, layer.d_output, seed=2)
    shared = {key: value for key, value in layer.named_parameters() if key not in ("C", "D")}
    buffers = dict(causal.named_buffers())

    def one_way(u, C, D):
        return torch.func.functional_call(causal, {**shared, **buffers, "C": C, "D": D}, (u,))[0]

    forward, backward = layer.C.chunk(2)
    expected = one_way(u, forward, layer.D) + one_way(u.flip(1), backward, torch.zeros_like(layer.D)).flip(1)
    found = layer(u)[0]
    assert relative_error(found, expected) < 1e-10
    inputs = [u, *layer.parameters()]
    assert_same_gradients(*[torch.autograd.grad((y * weight).sum(), inputs) for y in (found, expected)])


@pytest.mark.parametrize("name", ["s4", "s4d", "dss", "fractal-conv"])
def test_it_is_refused_where_it_means_nothing(name):
    for wrong in (2, -1, "0", True, 0.0, None):
        with pytest.raises(UsageError, match="takes backward_lag=1, as published"):
            build((name, {"bidirectional": True, "backward_lag": wrong}), l_max=8)
    with pytest.raises(UsageError, match="needs bidirectional=True"):
        build((name, {"backward_lag": 0}), l_max=8)
    assert "backward_lag" in layers.options(name)
