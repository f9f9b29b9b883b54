"""The contract of SequenceLayer, continued: a wrong argument is refused in words, before it computes something."""

from __future__ import annotations

import math

import pytest
import torch
from contract_cases import D_MODEL, build, draw, every_causal_layer, every_layer

from fractal_ssm import DSS, LRU, S4, S4D, S5, Fractal, UsageError
from fractal_ssm.models.base import broadcast_dt_scale
from fractal_ssm.models.transformer import Attention
from fractal_ssm.registry import layers


@every_layer
def test_lengths_are_whole_numbers_in_a_tensor(layer):
    u = draw(2, 9, D_MODEL)
    for wrong in ([9, 5], torch.tensor([9.0, 5.0]), torch.tensor([True, True]), torch.tensor([9, 5]).to(torch.int8)):
        with pytest.raises(UsageError, match="takes lengths"):
            layer(u, lengths=wrong)
    y, _ = layer(u, lengths=torch.tensor([9, 5], dtype=torch.int32))
    expected, _ = layer(u, lengths=torch.tensor([9, 5]))
    torch.testing.assert_close(y[0], expected[0])
    torch.testing.assert_close(y[1, :5], expected[1, :5])


def converted(state, convert):
    if isinstance(state, torch.Tensor):
        return convert(state)
    return type(state)(convert(state[0]), *state[1:])


@every_causal_layer
def test_states_of_another_dtype_are_refused(case, causal_layer):
    if case[0] == "transformer":
        pytest.skip("its cache holds keys in the precision of autocast")
    u, state = draw(2, 9, D_MODEL), causal_layer.initial_state(2)
    for convert in (torch.real, lambda x: x.to(torch.complex64)):
        wrong = converted(state, convert)
        for attempt in (lambda s=wrong: causal_layer(u, s), lambda s=wrong: causal_layer.step(u[:, 0], s)):
            with pytest.raises(UsageError, match="complex128"):
                attempt()


@every_causal_layer
def test_a_state_of_an_impossible_batch_is_refused(causal_layer):
    for wrong in (-1, 1.5, None, True):
        with pytest.raises(UsageError, match="number of samples"):
            causal_layer.initial_state(wrong)


def test_steps_that_are_no_finite_factor_are_refused():
    u = draw(2, 5, D_MODEL)
    layer = Attention(D_MODEL, n_heads=2).double()
    for wrong in (math.nan, math.inf, "2", True, torch.tensor([1.0, math.nan]), torch.full((2, 5), math.inf)):
        with pytest.raises(UsageError, match="dt_scale"):
            broadcast_dt_scale(wrong, u)
        with pytest.raises(UsageError, match="dt_scale"):
            layer(u, dt_scale=wrong)


@pytest.mark.parametrize("name", layers.names())
def test_switches_are_true_or_false(name):
    with pytest.raises(UsageError, match="bidirectional to be True or False, got 'yes'"):
        build((name, {"bidirectional": "yes"}), l_max=64)


@pytest.mark.parametrize("name", sorted(set(layers.names()) - {"lru", "transformer"}))
def test_steps_given_as_text_are_refused(name):
    for option in ("dt_min", "dt_max"):
        with pytest.raises(UsageError, match=f"{option} must be a number, got '1e-3'"):
            build((name, {option: "1e-3"}), l_max=64)


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: LRU(4, r_min="0.1"), "r_min must be a number"),
        (lambda: S5(4, clip_eigs=1), "clip_eigs to be True or False"),
        (
            lambda: Fractal(4, learn_alpha="no"),
            "learn_alpha to be True .one alpha a block., .mode. .one a mode. or False, got .no.",
        ),
        (lambda: Fractal(4, measure=None), "measure is a name or a mapping"),
        (lambda: S4(4, init=None), "init of S4 is a name or a mapping"),
        (lambda: S4D(4, init=None), "init of a diagonal layer is a name or a mapping"),
        (lambda: S4D(4, init="legs", method="direct"), "published start"),
        (lambda: S4D(4, method="banana"), "published start"),
        (lambda: S4D(4, init={"name": "legt"}, method="banana"), "Unknown method 'banana'"),
        (lambda: S4D(4, l_max=-3), "l_max to be an integer >= 1"),
        (lambda: S4D(4, l_max=2.5), "l_max to be an integer >= 1"),
        (lambda: DSS(4, l_max=0), "l_max to be an integer >= 1"),
        (lambda: Attention(0), "d_model to be an integer >= 1"),
        (lambda: Attention(4, n_heads=2.0), "n_heads to be an integer >= 1"),
        (lambda: Attention(4, n_heads="2"), "n_heads to be an integer >= 1"),
        (lambda: Attention(4, n_heads=2)(draw(1, 3, 4)), "float32 parameters and got u of torch.float64"),
        (lambda: Attention(4, n_heads=2)(torch.ones(1, 3, 4).bfloat16()), "or run under torch.autocast"),
    ],
)
def test_options_that_do_not_apply_are_refused(attempt, message):
    with pytest.raises(UsageError, match=message):
        attempt()


@pytest.mark.parametrize(
    ("measure", "alpha"), [("fractional", 0.995), ("fractional-tau", 0.99), ("fractional-tau", 0.005)]
)
def test_a_trained_alpha_does_not_move_its_start_far(measure, alpha):
    with pytest.raises(UsageError, match=f"got a start at {alpha}"):
        Fractal(4, d_state=16, n_alphas=2, measure=measure, alpha=alpha, learn_alpha=True)


def test_the_printed_form_says_which_alphas_it_means():
    assert "initial_alphas=(0, 0.9)" in repr(Fractal(4, d_state=16, n_alphas=2))
    assert ", alphas=(" in repr(Fractal(4, d_state=16, n_alphas=2, learn_alpha=True))
