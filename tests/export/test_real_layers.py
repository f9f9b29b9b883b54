"""Layers in real arithmetic against the layers themselves, in float64."""

from __future__ import annotations

import pytest
import torch
from contract_cases import D_MODEL, build, cases, draw, every_causal_layer, every_layer, label, leaves, relative_error

from fractal_ssm import DSS, S4D, Fractal, UsageError
from fractal_ssm.export import real_layer
from fractal_ssm.models.stateful import StatefulLayer

LENGTHS = (1, 7, 40)


def as_real(state):
    return [torch.view_as_real(part) if part.is_complex() else part for part in leaves(state)]


def assert_same_state(found, expected):
    for one, other in zip(leaves(found), as_real(expected), strict=True):
        assert not one.is_complex() and relative_error(one, other.expand_as(one)) < 1e-9


@every_layer
@pytest.mark.parametrize("dt_scale", [1.0, 1.7])
@torch.no_grad()
def test_forward(case, dt_scale):
    if dt_scale != 1.0 and case[0] == "lru":
        pytest.skip("discrete: it has no step")
    layer = build(case)
    real = real_layer(layer, dt_scale)
    assert (real.d_model, real.d_output, real.causal) == (layer.d_model, layer.d_output, layer.causal)
    for length in LENGTHS:
        u, lengths = draw(3, length, D_MODEL), torch.tensor([length, max(1, length // 2), 1])
        expected, state = layer(u, dt_scale=dt_scale)
        found, real_state = real(u, dt_scale=dt_scale)
        assert relative_error(found, expected) < 1e-9
        expected, padded = layer(u, lengths=lengths, dt_scale=dt_scale)
        found, real_padded = real(u, lengths=lengths, dt_scale=dt_scale)
        for one, other, valid in zip(found, expected, lengths, strict=True):
            assert relative_error(one[:valid], other[:valid]) < 1e-9
        if not layer.causal:
            assert real_state is None
            continue
        assert_same_state(real_state, state)
        assert_same_state(real_padded, padded)
        # And on from there, for a chunk that begins in another place of a chunk of the program.
        expected, state = layer(u, padded, dt_scale=dt_scale)
        found, real_state = real(u, real_padded, dt_scale=dt_scale)
        assert relative_error(found, expected) < 1e-9
        assert_same_state(real_state, state)


@every_causal_layer
@torch.no_grad()
def test_step(causal_layer, case):
    real, u = real_layer(build(case)), draw(3, 20, D_MODEL)
    state, outputs = real.initial_state(3), []
    for u_t in u.unbind(1):
        y, state = real.step(u_t, state)
        outputs.append(y)
    expected, last = causal_layer(u)
    assert relative_error(torch.stack(outputs, dim=1), expected) < 1e-9
    assert_same_state(state, last)


SCANNING = [case for case in cases() if case[0] in ("s5", "fractal", "transformer")]


@pytest.mark.parametrize("case", SCANNING, ids=label)
@torch.no_grad()
def test_a_step_of_each_sample_or_position(case):
    layer = build(case)
    real, u = real_layer(layer, dt_scale=None), draw(3, 20, D_MODEL)
    scale = draw(3, 20, seed=8).abs() + 0.3
    for given in (scale, scale[:, 0], 1.3):
        expected, state = layer(u, dt_scale=given)
        found, real_state = real(u, dt_scale=given)
        assert relative_error(found, expected) < 1e-9
        if layer.causal:
            assert_same_state(real_state, state)
    if not layer.causal or not isinstance(layer, StatefulLayer):
        return
    state, outputs = real.initial_state(3), []
    for u_t, scale_t in zip(u.unbind(1), scale.unbind(1), strict=True):
        y, state = real.step(u_t, state, scale_t)
        outputs.append(y)
    assert relative_error(torch.stack(outputs, dim=1), layer(u, dt_scale=scale)[0]) < 1e-9


@torch.no_grad()
def test_it_shares_nothing_and_keeps_the_precision():
    layer = build(("s5", {"d_state": 8, "blocks": 2}), torch.float32)
    real, u = real_layer(layer), draw(2, 5, D_MODEL, dtype=torch.float32)
    before = real(u)[0]
    assert before.dtype == torch.float32 and not list(real.parameters()) and not real.state_dict()
    layer.B.mul_(2.0)
    assert torch.equal(real(u)[0], before)


def test_refusals():
    with pytest.raises(UsageError, match="Build it with l_max"):
        real_layer(DSS(4))
    with pytest.raises(UsageError, match=r"S5, Fractal and Attention do.*dt_scale=1\.0"):
        real_layer(S4D(4), dt_scale=None)
    with pytest.raises(UsageError, match=r"built for dt_scale=1\.0 and got 2\.0"):
        real_layer(Fractal(4))(draw(1, 3, 4).float(), dt_scale=2.0)
    with pytest.raises(UsageError, match="bidirectional=False"):
        real_layer(Fractal(4, bidirectional=True)).step(draw(1, 4).float(), None)
