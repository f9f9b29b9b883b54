"""The interface of state-spaces/s4's sequence modules: layouts, states, steps, options, marks."""

from __future__ import annotations

import pytest
import torch
from omegaconf import OmegaConf

from fractal_ssm import UsageError
from fractal_ssm.interop.s4 import SequenceModule

LAYERS = {
    "fractal": {"name": "fractal", "d_state": 16},
    "s5": {"name": "s5", "d_state": 8, "blocks": 1},
    "s4": {"name": "s4", "d_state": 8},
    "lru": {"name": "lru", "d_state": 8},
    "transformer": {"name": "transformer", "n_heads": 2},
}


def build(layer="s5", **options) -> SequenceModule:
    torch.manual_seed(0)
    return SequenceModule(8, LAYERS.get(layer, layer) if isinstance(layer, str) else layer, **options).eval()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("transposed", [True, False])
def test_chunks_and_steps_in_both_layouts(layer, transposed):
    module = build(layer, transposed=transposed)
    axis = 2 if transposed else 1
    x = torch.randn(2, 8, 11) if transposed else torch.randn(2, 11, 8)
    with torch.no_grad():
        y, last = module(x)
        assert y.shape == x.shape and module.d_output == module.d_model == 8
        first, state = module(x.narrow(axis, 0, 4), state=module.default_state(2))
        rest, end = module(x.narrow(axis, 4, 7), state=state)
        torch.testing.assert_close(torch.cat((first, rest), axis), y, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(module.state_to_tensor(end), module.state_to_tensor(last), rtol=1e-4, atol=1e-5)
        module.setup_step(mode="dense")
        state = module.default_state(2, device="cpu")
        for t in range(11):
            y_t, state = module.step(x.select(axis, t), state)
            torch.testing.assert_close(y_t, y.select(axis, t), rtol=1e-4, atol=1e-5)
    if layer != "transformer":
        assert module.state_to_tensor(state).shape == (2, module.d_state)


def test_padding_and_rates():
    module = build("s5", transposed=False)
    x = torch.randn(2, 9, 8)
    with torch.no_grad():
        expected = module(x, lengths=torch.tensor([9, 5]))[0][1, :5]
        for lengths in ([9, 5], torch.tensor([9.0, 5.0])):
            torch.testing.assert_close(module(x, lengths=lengths, mask=None)[0][1, :5], expected)
        torch.testing.assert_close(module(x, lengths=9)[0], module(x)[0])
        slow = module.layer(x, dt_scale=2.0)[0]
        torch.testing.assert_close(module(x, rate=2.0)[0], module.mixer(slow, x))


def test_a_bidirectional_layer_has_no_state():
    module = build({"name": "s4d", "d_state": 8, "bidirectional": True})
    y, state = module(torch.randn(2, 8, 5))
    assert y.shape == (2, 8, 5) and state is None and module.d_state is None and module.default_state(2) is None
    with pytest.raises(UsageError, match="bidirectional=False"):
        module.step(torch.randn(2, 8), None)


def test_nodes_of_hydra_and_channels():
    node = OmegaConf.create({"name": "s4", "d_state": 8, "channels": 2, "init": {"name": "legs"}})
    assert build(node)(torch.randn(1, 8, 5))[0].shape == (1, 8, 5)
    bare = build(node, mixer="none")
    assert bare.d_output == 16 and bare(torch.randn(1, 8, 5))[0].shape == (1, 16, 5)
    assert build("fractal").layer.n_modes == 8


def test_dropout_is_tied_over_positions():
    for mixer in ("none", "full_glu"):
        module = build("s5", mixer=mixer, dropout=0.5).train()
        if mixer == "none":
            y = module(torch.randn(1, 8, 300))[0]
            assert {bool(row.all()) for row in y[0]} == {True, False}


def test_the_rate_of_the_marks():
    def rates(module):
        return {p._optim.get("lr") for p in module.parameters() if hasattr(p, "_optim")}

    assert rates(build()) == {0.001} and rates(build(lr=0.01)) == {0.01} and rates(build(lr=None)) == {None}
    assert build().no_weight_decay() == {f"layer.{name}" for name in ("Lambda_re", "Lambda_im", "log_dt", "B")}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: build("s6"), "Unknown layer 's6'"),
        (lambda: build({"name": "s5", "d_stat": 3}), "mean 'd_state'"),
        (lambda: build({"name": "s5", "d_state": "3"}), "d_state as int"),
        (lambda: build(mixer="glue"), "mean 'glu'"),
        (lambda: build(transposed=1), "transposed to be True or False"),
        (lambda: build(dropout=1.0), "probability"),
        (lambda: build(lr="0.1"), "lr must be a number"),
        (lambda: build()(torch.randn(2, 5, 8)), r"\(batch, 8, length\), got \(2, 5, 8\). transposed=False"),
        (lambda: build().default_state(2, 3), "one batch size"),
        (lambda: build()(torch.randn(2, 8, 5), lengths=[2.5, 3.0]), "whole numbers"),
    ],
)
def test_mistakes_are_told(call, says):
    with pytest.raises(UsageError, match=says):
        call()
