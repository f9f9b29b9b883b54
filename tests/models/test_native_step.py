"""Steps that no gradient flows through: one native call, the same numbers, and torch wherever torch has to see them."""

from __future__ import annotations

import threading

import pytest
import torch
from contract_cases import D_MODEL, build, cases, draw, is_bidirectional, label, leaves, relative_error, run_in_steps
from torch.nn.utils import prune
from torch.utils.flop_counter import FlopCounterMode

from fractal_ssm import S4D, S5
from fractal_ssm.models import stateful
from fractal_ssm.ops.step import MIMO_BATCH

STATE_SPACE = [case for case in cases() if case[0] != "transformer" and not is_bidirectional(case)]
every_state_space_layer = pytest.mark.parametrize("case", STATE_SPACE, ids=label)


@pytest.fixture
def forbid(monkeypatch):
    """A function that lets a layer's way of stepping fail: "_advance" or "_advance_natively"."""

    def forbid(layer, way):
        def fail(*arguments):
            raise AssertionError(f"{way} was used")

        monkeypatch.setattr(layer, way, fail)

    return forbid


def steps_in_torch(layer, u, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(stateful, "available", lambda: False)
        return run_in_steps(layer, u)


@every_state_space_layer
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_native_steps_are_those_of_torch(case, dtype, forbid, monkeypatch):
    layer = build(case, dtype)
    for batch in (1, 3):
        u = draw(batch, 12, D_MODEL, dtype=dtype)
        expected = steps_in_torch(layer, u, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(layer, "_advance", None)
            found = run_in_steps(layer, u)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        for one, other in zip(leaves(found), leaves(expected), strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            assert relative_error(one, other) < tolerance


@every_state_space_layer
def test_gradients_go_through_torch(case, forbid):
    layer, u = build(case), draw(2, D_MODEL)
    forbid(layer, "_advance_natively")
    state = layer.initial_state(2)
    y, after = layer.step(u, state)
    assert y.requires_grad and leaves(after)[0].requires_grad
    layer.requires_grad_(False)
    y, after = layer.step(u.clone().requires_grad_(), state)
    assert y.requires_grad and leaves(after)[0].requires_grad


@pytest.mark.parametrize("name", ["s5", "s4d"])
def test_frozen_layers_step_natively_without_no_grad(name, forbid):
    layer, u = build((name, {})).requires_grad_(False), draw(2, D_MODEL)
    forbid(layer, "_advance")
    assert not layer.step(u, layer.initial_state(2))[0].requires_grad


@torch.no_grad()
def test_where_the_gates_are_computed_larger_batches_stay_native(forbid):
    layer, u = build(("fractal", {"d_state": 16, "n_alphas": 2, "time": "ltv"})), draw(MIMO_BATCH + 1, 5, D_MODEL)
    expected, _ = layer(u)
    forbid(layer, "_advance")
    assert relative_error(run_in_steps(layer, u)[0], expected) < 1e-12


@torch.no_grad()
def test_large_batches_are_matrix_products(forbid):
    layer = S5(D_MODEL, d_state=16, blocks=2).double()
    u = draw(MIMO_BATCH + 1, D_MODEL)
    expected = layer(u[:, None])[0][:, 0]
    forbid(layer, "_advance_natively")
    assert relative_error(layer.step(u, layer.initial_state(len(u)))[0], expected) < 1e-12


@pytest.mark.parametrize("name", ["s5", "lru", "fractal", "s4d"])
@torch.no_grad()
def test_what_is_read_in_place_may_be_written_without_building_anew(name, monkeypatch):
    layer, u = build((name, {})), draw(2, D_MODEL)
    built = []
    original = layer._build_native
    monkeypatch.setattr(layer, "_build_native", lambda scale: built.append(1) or original(scale))
    state = layer(draw(2, 3, D_MODEL))[1]
    layer.step(u, state)
    for parameter in layer.read_in_place:
        getattr(layer, parameter).data.mul_(0.5)
        assert relative_error(layer.step(u, state)[0], layer(u[:, None], state)[0][:, 0]) < 1e-9
    assert len(built) == 1
    next(value for key, value in layer.named_parameters() if key not in layer.read_in_place).data.mul_(0.9)
    assert relative_error(layer.step(u, state)[0], layer(u[:, None], state)[0][:, 0]) < 1e-9
    assert len(built) == 2


@torch.no_grad()
def test_memory_in_another_order_is_seen():
    layer, u = S5(8, d_state=16, blocks=2).double(), draw(2, 8)
    assert layer.B.shape[:2] == (8, 8)
    state = layer(draw(2, 3, 8))[1]
    for _ in range(2):
        layer.step(u, state)
        layer.B.data = layer.B.data.transpose(0, 1)
        assert relative_error(layer.step(u, state)[0], layer(u[:, None], state)[0][:, 0]) < 1e-9


@torch.no_grad()
def test_a_parameter_at_the_address_of_one_read_in_place_is_watched():
    layer, u = S4D(8, 8).double(), draw(2, 8)
    layer.B = torch.nn.Parameter(layer.C.data[0])
    state = layer(draw(2, 3, 8))[1]
    layer.step(u, state)
    layer.C.data.mul_(3.0)
    assert relative_error(layer.step(u, state)[0], layer(u[:, None], state)[0][:, 0]) < 1e-9


@pytest.mark.parametrize("name", ["s5", "s4d"])
@torch.no_grad()
def test_a_pruned_matrix_is_followed(name):
    layer, u = build((name, {})), draw(2, D_MODEL)
    state = layer(draw(2, 3, D_MODEL))[1]
    layer.step(u, state)
    prune.random_unstructured(layer, "C", amount=0.5)
    assert relative_error(layer.step(u, state)[0], layer(u[:, None], state)[0][:, 0]) < 1e-9
    layer.C.mul_(0.5)
    assert relative_error(layer.step(u, state)[0], layer.forward(u[:, None], state)[0][:, 0]) < 1e-9


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["s5", "s4d"])
@torch.no_grad()
def test_a_trace_holds_the_step_and_not_its_result(name):
    layer, u = build((name, {})).requires_grad_(False), draw(2, D_MODEL)
    state = layer.initial_state(2)
    layer.step(u, state)
    traced = torch.jit.trace(lambda u, state: layer.step(u, state)[0], (u, state), check_trace=False)
    assert torch.allclose(traced(2 * u, state), layer.step(2 * u, state)[0])
    with FlopCounterMode(display=False) as counter:
        layer.step(u, state)
    assert name != "s5" or counter.get_total_flops() > 0


@torch.no_grad()
def test_threads_may_step_one_layer():
    layer = S5(32, d_state=32, blocks=2).double()
    u = draw(6, 40, 32)
    expected, _ = layer(u)
    found = [None] * len(u)

    def run(i):
        with torch.no_grad():
            found[i] = run_in_steps(layer, u[i : i + 1])[0][0]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(u))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert relative_error(torch.stack(found), expected) < 1e-12
