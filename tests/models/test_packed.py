"""Packed sequences of different lengths: in every layer the same as each sequence alone, gradients included."""

from __future__ import annotations

import math

import pytest
import torch
from contract_cases import D_MODEL, assert_same_gradients, build, draw, every_layer, leaves, relative_error

from fractal_ssm import S4D, S5, UsageError
from fractal_ssm.registry import layers
from fractal_ssm.state import concat

LENGTHS = [1, 2, 7, 4]
ENDS = torch.tensor([0, *LENGTHS]).cumsum(0)
SCALES = torch.tensor([0.5, 1.0, 3.0, 0.2], dtype=torch.float64)


def one_by_one(layer, u, state=None, scales=None):
    outputs, states = [], []
    for s, (begin, end) in enumerate(zip(ENDS[:-1].tolist(), ENDS[1:].tolist(), strict=True)):
        own = {} if scales is None else {"dt_scale": scales[s]}
        y, after = layer(u[:, begin:end], None if state is None else state[s], **own)
        outputs.append(y)
        states.append(after)
    return torch.cat(outputs, dim=1), states


@every_layer
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_packed_sequences_are_sequences_alone(case, dtype, tolerance):
    layer, u = build(case, dtype), draw(1, sum(LENGTHS), D_MODEL, dtype=dtype).requires_grad_()
    weight = draw(1, sum(LENGTHS), layer.d_output, seed=2, dtype=dtype)
    (found, state), (expected, alone) = layer.forward_packed(u, ENDS), one_by_one(layer, u)
    assert relative_error(found, expected) < tolerance
    inputs = [u, *layer.parameters()]
    gradients = [torch.autograd.grad((y * weight).sum(), inputs, retain_graph=True) for y in (found, expected)]
    assert_same_gradients(*gradients, tolerance=tolerance * 10)
    assert torch.equal(layer.forward_packed(u, ENDS.int(), return_state=False)[0], found)
    if not layer.causal:
        assert state is None
        return
    if case[0] != "transformer":
        assert relative_error(leaves(state)[0], leaves(concat(alone))[0]) < tolerance
    # Going on from there.
    again, _ = layer.forward_packed(u, ENDS, state)
    assert relative_error(again, one_by_one(layer, u, alone)[0]) < tolerance


@every_layer
@torch.no_grad()
def test_a_nan_stays_in_its_sequence(layer):
    u = draw(1, sum(LENGTHS), D_MODEL)
    u[:, ENDS[2]] = math.nan
    y, _ = layer.forward_packed(u, ENDS)
    assert y[:, : ENDS[2]].isfinite().all() and y[:, ENDS[3] :].isfinite().all()


@every_layer
@torch.no_grad()
def test_steps_of_each_sequence_and_of_each_position(layer):
    u, per_position = draw(1, sum(LENGTHS), D_MODEL), SCALES.repeat_interleave(ENDS.diff())[None]
    for scale in (2.0, SCALES, per_position):
        alone = SCALES.tolist() if isinstance(scale, torch.Tensor) else [scale] * 4
        try:
            expected, _ = one_by_one(layer, u, scales=alone)
            found, _ = layer.forward_packed(u, ENDS, dt_scale=scale)
        except UsageError as error:
            assert "dt_scale" in str(error)
            continue
        assert relative_error(found, expected) < 1e-9


@pytest.mark.parametrize("name", ["s5", "lru", "fractal"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_checkpoint_gives_the_same(name, bidirectional):
    torch.manual_seed(0)
    options = {"name": name, "d_state": 16, "bidirectional": bidirectional}
    kept, remade = (layers.build({**options, "checkpoint": c}, d_model=4, l_max=1).double() for c in (False, True))
    remade.load_state_dict(kept.state_dict())
    u = draw(1, sum(LENGTHS), 4).requires_grad_()
    found = [
        torch.autograd.grad(layer.forward_packed(u, ENDS)[0].square().sum(), [u, *layer.parameters()])
        for layer in (kept, remade)
    ]
    assert_same_gradients(*found)


def test_what_does_not_fit_is_refused():
    u = draw(1, 6, 4).float()
    for layer in (S5(4, d_state=8, blocks=1), S4D(4, d_state=8)):
        for wrong in (torch.tensor([0, 5]), torch.tensor([0, 3, 3, 6]), [0, 6]):
            with pytest.raises(UsageError, match="cu_seqlens"):
                layer.forward_packed(u, wrong)
        with pytest.raises(UsageError, match="one sample"):
            layer.forward_packed(u.repeat(2, 1, 1), torch.tensor([0, 6]))
        with pytest.raises(UsageError, match="a state of shape"):
            layer.forward_packed(u, torch.tensor([0, 2, 6]), layer.initial_state(3))
        for wrong in (torch.ones(3), torch.ones(2, 6), 0.0):
            with pytest.raises(UsageError, match="dt_scale"):
                layer.forward_packed(u, torch.tensor([0, 2, 6]), dt_scale=wrong)
