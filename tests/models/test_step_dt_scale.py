"""A step with a dt_scale of its own is `forward` on one position with the same dt_scale, in every causal layer."""

from __future__ import annotations

import math

import pytest
import torch
from contract_cases import (
    D_MODEL,
    assert_same_gradients,
    build,
    cases,
    draw,
    every_causal_layer,
    is_bidirectional,
    label,
    leaves,
    relative_error,
)

from fractal_ssm import S4, UsageError
from fractal_ssm.models import stateful

STEPS = 6
PER_SAMPLE = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64)
SCALES = [2.5, 1, torch.tensor(0.4, dtype=torch.float64), PER_SAMPLE, torch.ones(3, dtype=torch.float64)]
scales = pytest.mark.parametrize("scale", SCALES, ids=["number", "whole", "0-d", "sample", "ones"])
STATE_SPACE = [case for case in cases() if case[0] not in ("transformer", "lru") and not is_bidirectional(case)]


def stepped(layer, u, scales):
    state, outputs = layer.initial_state(len(u)), []
    for u_t, scale in zip(u.unbind(1), scales, strict=True):
        y, state = layer.step(u_t, state, dt_scale=scale)
        outputs.append(y)
    return torch.stack(outputs, dim=1), state


def by_forward(layer, u, scales):
    state, outputs = layer.initial_state(len(u)), []
    for position, scale in enumerate(scales):
        y, state = layer(u[:, position : position + 1], state, dt_scale=scale)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def takes_a_scale(layer):
    return type(layer).__name__ != "LRU"


@every_causal_layer
@scales
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
@torch.no_grad()
def test_it_is_forward_on_one_position(case, scale, dtype, tolerance):
    layer, u = build(case, dtype), draw(3, STEPS, D_MODEL, dtype=dtype)
    if not takes_a_scale(layer) and (isinstance(scale, torch.Tensor) or scale != 1):
        with pytest.raises(UsageError, match="dt_scale"):
            stepped(layer, u, [scale] * STEPS)
        return
    mixed = [scale, 1.0, scale, 0.5 if takes_a_scale(layer) else 1.0, scale, scale]
    found, expected = stepped(layer, u, mixed), by_forward(layer, u, mixed)
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        assert relative_error(one, other) < tolerance


@every_causal_layer
def test_its_gradients_are_those_of_forward(case):
    layer, u = build(case), draw(3, 4, D_MODEL).requires_grad_()
    if not takes_a_scale(layer):
        return
    weight, scale = draw(3, 4, layer.d_output, seed=2), PER_SAMPLE.clone().requires_grad_()
    inputs = [u, scale, *layer.parameters()]
    results = [run(layer, u, [scale, 2.0, scale, 1.0])[0] for run in (stepped, by_forward)]
    assert_same_gradients(*[torch.autograd.grad((y * weight).sum(), inputs) for y in results])


@pytest.mark.parametrize("case", [case for case in STATE_SPACE if case[0] in ("s5", "fractal")], ids=label)
@torch.no_grad()
def test_steps_of_layers_that_scan_are_those_of_forward_with_a_step_a_position(case):
    layer, u = build(case), draw(3, 7, D_MODEL)
    scale = 0.2 + 3 * torch.rand(3, 7, dtype=torch.float64)
    found, _ = stepped(layer, u, scale.unbind(1))
    assert relative_error(found, layer(u, dt_scale=scale)[0]) < 1e-9


@pytest.mark.parametrize("case", STATE_SPACE, ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_native_steps_are_those_of_torch(case, dtype, monkeypatch):
    layer, u = build(case, dtype), draw(3, STEPS, D_MODEL, dtype=dtype)
    mimo = layer.parts_serve_any_scale
    for scale in (2.5, PER_SAMPLE.to(dtype)) if mimo else (2.5,):
        with monkeypatch.context() as patch:
            patch.setattr(stateful, "available", lambda: False)
            expected = stepped(layer, u, [scale] * STEPS)
        with monkeypatch.context() as patch:
            patch.setattr(layer, "_advance", None)
            found = stepped(layer, u, [scale] * STEPS)
        for one, other in zip(leaves(found), leaves(expected), strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            assert relative_error(one, other) < (1e-4 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("name", ["s5", "fractal", "s4d", "s4", "dss"])
@torch.no_grad()
def test_the_parts_for_a_scale_follow_the_parameters_and_are_kept_apart(name, monkeypatch):
    layer, u = build((name, {})), draw(2, D_MODEL)
    state = layer(draw(2, 3, D_MODEL))[1]

    def check(scale):
        found, _ = layer.step(u, state, dt_scale=scale)
        assert relative_error(found, layer(u[:, None], state, dt_scale=scale)[0][:, 0]) < 1e-9

    built, original = [], layer._build_native
    monkeypatch.setattr(layer, "_build_native", lambda scale: built.append(scale) or original(scale))
    for scale in (1.0, 2.0, 1.0, 2.0, 1.0):
        check(scale)
    assert built == [None, 2.0]
    check(3.0)
    assert (built == [None, 2.0]) == layer.parts_serve_any_scale
    layer.D.mul_(0.5)
    next(layer.parameters()).mul_(0.9)
    check(3.0)
    check(1.0)


@every_causal_layer
def test_impossible_steps_are_refused(causal_layer):
    u, state = draw(2, D_MODEL), causal_layer.initial_state(2)
    wrong = [0.0, -1.0, math.nan, math.inf, True, "2", None, torch.ones(3), torch.ones(2, 1), torch.tensor([1.0, -1.0])]
    for scale in wrong:
        with pytest.raises(UsageError, match="dt_scale"):
            causal_layer.step(u, state, dt_scale=scale)


def test_s4_takes_no_input_that_lasts_no_time():
    layer = S4(4, d_state=8)
    with pytest.raises(UsageError, match="no dt_scale of 0"):
        layer.step(torch.ones(2, 4), layer.initial_state(2), dt_scale=torch.tensor([1.0, 0.0]))


@every_causal_layer
@torch.no_grad()
def test_a_batch_of_no_samples_steps(causal_layer):
    state = causal_layer.initial_state(0)
    for scale in (1.0, *((2.0, torch.ones(0)) if takes_a_scale(causal_layer) else ())):
        y, state = causal_layer.step(draw(0, D_MODEL), state, dt_scale=scale)
        assert y.shape == (0, causal_layer.d_output)
