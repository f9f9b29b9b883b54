"""Every registered layer against a table of wrong arguments: one exception type, in words, never a raw traceback."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
import torch
from contract_cases import D_MODEL, FITTING, build, draw, every_causal_layer, every_layer

from fractal_ssm import UsageError
from fractal_ssm.registry import layers

INPUTS = {
    "none": None,
    "list": [[0.0] * D_MODEL],
    "numpy": np.zeros((2, 9, D_MODEL)),
    "text": "u",
    "number": 1.0,
    "int": torch.zeros(2, 9, D_MODEL, dtype=torch.int64),
    "bool": torch.zeros(2, 9, D_MODEL, dtype=torch.bool),
    "complex": torch.zeros(2, 9, D_MODEL, dtype=torch.complex128),
    "single": torch.zeros(2, 9, D_MODEL, dtype=torch.float32),
    "meta": torch.zeros(2, 9, D_MODEL, dtype=torch.float64, device="meta"),
    "sparse": torch.zeros(2, 9, D_MODEL, dtype=torch.float64).to_sparse(),
    "0-d": torch.tensor(0.0, dtype=torch.float64),
    "2-d": draw(9, D_MODEL),
    "4-d": draw(2, 2, 9, D_MODEL),
    "transposed": draw(2, D_MODEL, 9),
    "no positions": draw(2, 0, D_MODEL),
    "no features": draw(2, 9, 0),
}


@contextlib.contextmanager
def naming(what):
    """Say which row of a table failed."""
    try:
        yield
    except BaseException as error:
        raise AssertionError(what) from error


def refused(call, *, words=""):
    try:
        call()
    except UsageError as error:
        message = str(error)
    else:
        raise AssertionError("accepted")
    # What was given or allowed, and what to do: two sentences at least.
    assert len(message) > 30 and words in message
    return message


@every_layer
def test_inputs(layer):
    for name, u in INPUTS.items():
        with naming(name):
            refused(lambda u=u: layer(u))


@every_layer
def test_return_state(layer):
    for wrong in (None, 0, 1, "no", [], np.zeros(2), torch.tensor(True)):
        refused(lambda flag=wrong: layer(draw(2, 9, D_MODEL), return_state=flag), words="return_state")


@every_causal_layer
def test_inputs_of_a_step(causal_layer):
    state = causal_layer.initial_state(2)
    for u in INPUTS.values():
        one = u[:, 0] if isinstance(u, torch.Tensor) and u.dim() == 3 and u.shape[1] and not u.is_sparse else u
        if not (isinstance(one, torch.Tensor) and one.shape == (2, D_MODEL) and one.dtype == torch.float64):
            refused(lambda u=one: causal_layer.step(u, state))


def wrong_states(layer):
    state, other = layer.initial_state(2), layer.initial_state(3)
    yield from ("rest", 0, [], {}, other, torch.zeros(()), torch.zeros(2), torch.zeros(0), np.zeros((2, 4)))
    yield layer.to("meta").initial_state(2)
    if isinstance(state, tuple):
        for at in range(len(state)):
            whole = torch.zeros(state[at].shape, dtype=torch.int32)
            for wrong in (None, 0, torch.zeros(1, 1, 1), state[at].to("meta"), whole):
                yield type(state)(*(wrong if k == at else part for k, part in enumerate(state)))
        yield tuple(state)
    else:
        yield from (state.real, state.to(torch.complex64), state[..., None], (state, state), state.to("meta"))


@every_causal_layer
def test_states(case, causal_layer):
    u = draw(2, 9, D_MODEL)
    for wrong in wrong_states(build(case)):
        refused(lambda s=wrong: causal_layer(u, s))
        refused(lambda s=wrong: causal_layer.step(u[:, 0], s))
    refused(lambda: causal_layer.step(u[:, 0], None), words="initial_state(2)")


@every_layer
def test_lengths(layer):
    u = draw(2, 9, D_MODEL)
    good = torch.tensor([9, 5])
    for wrong in (
        *(9, "9", [9, 5], (9, 5), np.array([9, 5]), good.float(), good.bool(), good.to(torch.int8), good[:1]),
        *(good[:, None], torch.tensor(9), torch.tensor([0, 5]), torch.tensor([10, 5]), torch.tensor([-1, 5])),
        *(torch.tensor([2**62, 5]), good.to("meta"), good.to(torch.complex64)),
    ):
        refused(lambda lengths=wrong: layer(u, lengths=lengths))


@every_layer
def test_steps(layer):
    u = draw(2, 9, D_MODEL)
    for wrong in (
        *(None, "1", [1.0], np.ones(2), 1j, True, math.nan, math.inf, -math.inf, 1e300, 1e-300, 0, 0.0, -1.0, 2**2000),
        *(torch.tensor(1j), torch.ones(2, dtype=torch.complex64), torch.tensor([1.0, math.nan]), torch.tensor(True)),
        *(torch.tensor([1.0, math.inf]), torch.tensor([1.0, -1.0]), torch.full((2,), 1e300, dtype=torch.float64)),
        *(torch.ones(3), torch.ones(2, 9, 1), torch.ones(0), torch.ones(2, device="meta"), torch.ones(2).to_sparse()),
    ):
        refused(lambda dt_scale=wrong: layer(u, dt_scale=dt_scale))


@every_layer
def test_extreme_steps_that_are_allowed_give_numbers(case):
    layer = build(case, torch.float32)
    for dt_scale in (1e30, 1e-30, torch.tensor(1e30), torch.tensor([1e30, 1.0])):
        try:
            y, _ = layer(draw(2, 9, D_MODEL, dtype=torch.float32), dt_scale=dt_scale)
        except UsageError:
            continue
        assert y.isfinite().all(), dt_scale


@every_causal_layer
def test_batch_sizes(causal_layer):
    for wrong in (2**70, 2**40, -1, -(2**70), 2.5, 2.0, True, None, "2", [2], torch.tensor(2), math.nan, 1j):
        refused(lambda n=wrong: causal_layer.initial_state(n))


WRONG_SIZES = (0, -1, 2.5, "4", None, True, 10**9, 2**63, [4], math.nan, 4.0, 1j)
WRONG_NUMBERS = ("1e-3", None, True, math.nan, math.inf, -math.inf, -1.0, [0.1], 1j, 1e300, np.zeros(2))
WRONG_NAMES = ("", "banana", 3, None, [], {}, True, 1.5, ("zoh",), np.zeros(2), b"zoh")
WRONG_FLAGS = (None, 0, 1, "yes", [], 1.0)
OPTIONS = {
    **dict.fromkeys(("d_model", "d_state", "blocks", "n_alphas", "n_heads", "channels"), WRONG_SIZES),
    **dict.fromkeys(("n_ssm", "d_qkv", "l_max", "fold_length"), [size for size in WRONG_SIZES if size is not None]),
    **dict.fromkeys(("dt_min", "dt_max", "r_min", "r_max", "max_phase", "dropout"), WRONG_NUMBERS),
    **dict.fromkeys(("bidirectional", "conj_sym", "clip_eigs", "checkpoint", "learn_alpha", "rotary"), WRONG_FLAGS),
    **dict.fromkeys(("init", "measure", "imag", "B_init", "C_init", "dt", "time", "backend"), WRONG_NAMES),
    **dict.fromkeys(("discretization", "dt_transform", "B_scale", "D_init", "dt_per", "bank"), WRONG_NAMES),
    "real": ("banana", "", None, True, 0, -1.0, math.nan, math.inf, 1j, [], {}, [0.1] * 3, [None], b"own", np.zeros(2)),
    "frozen": ("banana", "", 3, None, True, {}, [3], ["A", "E"], b"A", np.zeros(2)),
    "backward_lag": (None, 2, -1, "0", True, 0.0, math.nan, [0]),
    "alpha": (
        *("banana", math.nan, math.inf, 1.0, -0.1, True, 1j, {}),
        *([], [0.1], ["a"], [math.nan] * 4, np.zeros((2, 2))),
    ),
    "method": ("banana", 3, True, [], {}),
}


# Large, but nothing is made of that size.
ALLOWED = {("lru", "max_phase", 1e300), ("dss", "l_max", 10**9), ("s4d", "l_max", 10**9)}


@pytest.mark.parametrize("name", layers.names())
def test_options(name, built_in_layers):
    if name not in built_in_layers:
        pytest.skip("a toy of another test")
    kind, fitting = layers.get(name), {"d_model": D_MODEL, **FITTING.get(name, {})}
    options = layers.options(name)
    assert set(options) <= set(OPTIONS), "an option without a row in the table"
    for option in options:
        for wrong in OPTIONS[option]:
            if option == "l_max" and name == "s4d":
                given = {**fitting, "discretization": "dss", option: wrong}
            else:
                given = {**fitting, option: wrong}
            if (name, option, wrong if isinstance(wrong, (int, float)) else 0) in ALLOWED:
                continue
            with naming(f"{name}: {option}={wrong!r}"):
                refused(lambda given=given: kind(**given))


@pytest.mark.parametrize("name", layers.names())
def test_misspelt_options_and_names(name):
    refused(lambda: build((name, {"bidirectionale": True})), words="Did you mean 'bidirectional'?")
    refused(lambda: build((name + "x", {})), words=f"Did you mean '{name}'?")
