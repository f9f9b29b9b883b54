"""The contract of SequenceLayer, continued: state dicts, precision, copies, export, and steps after a change."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from contract_cases import (
    D_MODEL,
    FITTING,
    assert_same_gradients,
    build,
    cases,
    draw,
    every_causal_layer,
    every_layer,
    label,
    leaves,
    relative_error,
    run_in_steps,
)
from safetensors.torch import load, save
from torch import nn

from fractal_ssm import UsageError
from fractal_ssm.registry import layers


@every_layer
def test_state_dict_holds_real_tensors_with_storage_of_their_own(case):
    layer = build(case)
    entries = layer.state_dict()
    assert not any(value.is_complex() for value in entries.values())
    addresses = [parameter.untyped_storage().data_ptr() for parameter in layer.parameters()]
    assert len(set(addresses)) == len(addresses)
    for name, parameter in layer.named_parameters():
        others = {key: value.clone() for key, value in layer.state_dict().items() if key != name}
        assert 0 not in parameter.stride()
        parameter.data.fill_(0.5)
        for key, value in others.items():
            assert torch.equal(layer.state_dict()[key], value), (name, key)


@every_layer
def test_state_dict_does_not_depend_on_the_length(case):
    short, long = build(case, l_max=64), build(case, l_max=None, seed=3)
    short(draw(1, 64, D_MODEL))
    long.load_state_dict(short.state_dict(), strict=True)
    u = draw(1, 100, D_MODEL)
    if short.causal:
        with torch.no_grad():
            assert relative_error(run_in_steps(long, u)[0], run_in_steps(short, u)[0]) < 1e-12
            assert relative_error(run_in_steps(long, u)[0], long(u)[0]) < 1e-9


@every_layer
@torch.no_grad()
def test_safetensors_and_torch_round_trips_are_exact(case):
    layer, u = build(case, torch.float32), draw(2, 30, D_MODEL, dtype=torch.float32)
    y, _ = layer(u)
    other = build(case, torch.float32, seed=7)
    other.load_state_dict(load(save(layer.state_dict())), strict=True)
    assert torch.equal(other(u)[0], y)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    third = build(case, torch.float32, seed=8)
    third.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(third(u)[0], y)


@every_layer
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_stays_close_to_float32(case, low):
    layer, u = build(case, torch.float32), draw(2, 300, D_MODEL, dtype=torch.float32)
    expected, _ = layer(u)
    with torch.autocast("cpu", dtype=low):
        y, _ = layer(u)
        assert relative_error(y.float(), expected) < 2e-2
        rounded, _ = layer(u.to(low))
    assert torch.isfinite(rounded).all()
    assert relative_error(rounded.float(), layer(u.to(low).float())[0]) < 2e-2
    rounded.float().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@every_layer
@torch.no_grad()
def test_a_layer_converted_to_bfloat16_is_refused_or_right(case):
    layer, u = build(case, torch.float32), draw(2, 300, D_MODEL).bfloat16()
    expected, _ = layer(u.float())
    try:
        y, state = layer.bfloat16()(u)
    except UsageError:
        return
    assert y.dtype == torch.bfloat16
    assert relative_error(y.float(), expected) < 4e-2
    if layer.causal:
        one, _ = layer.step(u[:, 0], state)
        assert one.dtype == torch.bfloat16


# Torch's compiler warns about what it does itself: it instantiates autograd functions and reads .grad of inner tensors.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("case", "lengths"),
    [
        *(pytest.param((name, FITTING.get(name, {})), (20,), id=name) for name in layers.names()),
        *(pytest.param(case, (20, 30, 40), id=label(case), marks=pytest.mark.slow) for case in cases()),
    ],
)
def test_one_graph_and_the_numbers_of_eager_mode(case, lengths):
    layer = build(case, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for length in lengths:
        u = draw(2, length, D_MODEL, dtype=torch.float32).requires_grad_()
        inputs = [u, *layer.parameters()]
        outputs = [module(u)[0] for module in (layer, compiled)]
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-5)
        expected, found = (torch.autograd.grad(y.square().sum(), inputs) for y in outputs)
        assert_same_gradients(found, expected, tolerance=1e-4)


class Step(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, u_t, state):
        return self.layer.step(u_t, state)


@every_causal_layer
@torch.no_grad()
def test_step_can_be_exported(causal_layer):
    layer = causal_layer.float()
    _, state = layer(draw(2, 5, D_MODEL, dtype=torch.float32))
    u_t = draw(2, D_MODEL, dtype=torch.float32)
    program = torch.export.export(Step(layer), (u_t, state), strict=False)
    expected, after = layer.step(u_t, state)
    found, found_after = program.module()(u_t, state)
    torch.testing.assert_close(found, expected)
    for one, other in zip(leaves(found_after), leaves(after), strict=True):
        torch.testing.assert_close(one, other)


def changed_in_place(layer):
    for parameter in layer.parameters():
        parameter.mul_(0.9)


def changed_by_an_optimizer(layer):
    with torch.enable_grad():
        layer(draw(1, 5, D_MODEL))[0].sum().backward()
    torch.optim.AdamW(layer.parameters(), lr=0.01).step()


def changed_by_loading(layer):
    layer.load_state_dict({name: 0.9 * value for name, value in layer.state_dict().items()})


def changed_through_data(layer):
    for parameter in layer.parameters():
        parameter.data.mul_(0.9)


def changed_by_assigning_data(layer):
    for parameter in layer.parameters():
        parameter.data = parameter.data * 0.9


def changed_by_new_parameters(layer):
    for module in layer.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(0.9 * parameter))


CHANGES = [
    changed_in_place,
    changed_by_an_optimizer,
    changed_by_loading,
    changed_through_data,
    changed_by_assigning_data,
    changed_by_new_parameters,
]


@every_causal_layer
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@torch.no_grad()
def test_steps_follow_a_change_of_the_parameters(causal_layer, change):
    u = draw(2, 5, D_MODEL)
    before, state = run_in_steps(causal_layer, u)
    change(causal_layer)
    expected, _ = causal_layer(u[:, :1], state)
    found, _ = causal_layer.step(u[:, 0], state)
    assert relative_error(found, expected[:, 0]) < 1e-9
    after, _ = run_in_steps(causal_layer, u)
    assert not torch.allclose(after, before, rtol=1e-6, atol=0)
    assert relative_error(after, causal_layer(u)[0]) < 1e-9


@every_causal_layer
def test_copies_and_pickles_have_steps_of_their_own(causal_layer):
    u, state = draw(2, D_MODEL), causal_layer.initial_state(2)
    with torch.no_grad():
        y, _ = causal_layer.step(u, state)
    for twin in (copy.deepcopy(causal_layer), pickle.loads(pickle.dumps(causal_layer))):
        with torch.no_grad():
            torch.testing.assert_close(twin.step(u, state)[0], y)
            for parameter in twin.parameters():
                parameter.mul_(0.5)
            assert not torch.allclose(twin.step(u, state)[0], y)
            torch.testing.assert_close(causal_layer.step(u, state)[0], y)
