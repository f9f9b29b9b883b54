"""Outputs of regression and tokens: shapes, distributions, padding, precision, and the same step by step."""

from __future__ import annotations

import pytest
import torch
from contract_cases import every_causal_layer

from fractal_ssm import SequenceModel, UsageError
from fractal_ssm.models.blocks.regression import VARIANCE_FLOOR

CAUSAL = {"name": "lru", "d_state": 4}
BIDIRECTIONAL = {**CAUSAL, "bidirectional": True}
LENGTHS = torch.tensor([7, 2, 1])
LEVELS = [0.05, 0.3, 0.5, 0.9]
HEADS = {
    "point": {"task": "regression", "d_target": 2},
    "gaussian": {"task": "regression", "d_target": 2, "output": "gaussian"},
    "quantiles": {"task": "regression", "d_target": 2, "output": "quantiles", "quantiles": LEVELS},
    "tokens": {"task": "tokens", "n_classes": 5},
}
LAST = {"point": (2,), "gaussian": (2, 2), "quantiles": (2, 4), "tokens": (5,)}
EVERY_POSITION = {
    name: options | ({} if name == "tokens" else {"per_position": True}) for name, options in HEADS.items()
}

every_head = pytest.mark.parametrize("head", HEADS)


def build(layer=CAUSAL, **options) -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(layer, **{"d_input": 3, "d_model": 8, "n_layers": 2, "l_max": 7, **options}).double()


def signal(batch: int = 3, length: int = 7) -> torch.Tensor:
    return torch.randn(batch, length, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@every_head
def test_an_output_at_every_position(head):
    model = build(**EVERY_POSITION[head])
    assert model(signal(), LENGTHS).shape == (3, 7, *LAST[head])
    assert model(signal(batch=1, length=1)).shape == (1, 1, *LAST[head])
    x, _ = model.features(signal())
    assert torch.equal(model.outputs(x), model(signal()))
    torch.testing.assert_close(model.head(x[:, 3]), model(signal())[:, 3], rtol=1e-13, atol=0)


@pytest.mark.parametrize("head", ["point", "gaussian", "quantiles"])
@pytest.mark.parametrize(("layer", "pool"), [(CAUSAL, "mean"), (CAUSAL, "last"), (BIDIRECTIONAL, "cls")])
def test_an_output_a_sequence(head, layer, pool):
    model = build(layer, pool=pool, **HEADS[head])
    assert model(signal(), LENGTHS).shape == (3, *LAST[head])
    assert model(signal(batch=1)).shape == (1, *LAST[head])


@every_head
@pytest.mark.parametrize("layer", [CAUSAL, BIDIRECTIONAL], ids=["causal", "bidirectional"])
def test_padding_changes_no_output_and_no_gradient(head, layer):
    model, results = build(layer, norm="batch-masked", **EVERY_POSITION[head]), []
    valid = torch.arange(7) < LENGTHS[:, None]
    for inputs in (signal(), torch.nn.functional.pad(signal(), (0, 0, 0, 4), value=3.0)):
        model.zero_grad()
        output = model(inputs, LENGTHS)[:, :7][valid]
        output.square().sum().backward()
        results.append([output, *(parameter.grad.clone() for parameter in model.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class Broken(torch.nn.Module):
    """NaN from position 2 on: what a layer may leave at padded positions."""

    def forward(self, x, *_):
        return torch.where(torch.arange(x.shape[1])[:, None] < 2, x, float("nan"))


@every_head
def test_what_stands_at_padded_positions_reaches_no_gradient(head):
    model = build(**EVERY_POSITION[head])
    model.final_norm = Broken()
    model(signal(), torch.tensor([2, 2, 1])).square().sum().backward()
    assert all(bool(parameter.grad.isfinite().all()) for parameter in model.head.parameters())


@every_head
@every_causal_layer
def test_steps_give_the_outputs_of_the_whole(case, head):
    """As a forecast is made in use: one input at a time, through every layer that can be stepped."""
    name, options = case
    model = build({"name": name, **options}, **EVERY_POSITION[head], causal=True).eval()
    with torch.no_grad():
        whole, outputs = model(signal()), []
        states = [block.layer.initial_state(3) for block in model.blocks]
        for inputs_t in signal().unbind(1):
            x = model.encoder(inputs_t[:, None])[:, 0]
            for k, block in enumerate(model.blocks):
                x, states[k] = block.step(x, states[k])
            outputs.append(model.head(model.final_norm(x[:, None])[:, 0]))
    torch.testing.assert_close(torch.stack(outputs, dim=1), whole, rtol=1e-9, atol=1e-10)


@every_head
def test_a_head_can_be_exported(head):
    module, x = build(**EVERY_POSITION[head]).head.eval(), signal()[..., :1].expand(3, 7, 8)
    program = torch.export.export(module, (x,), strict=False).module()
    torch.testing.assert_close(program(x), module(x))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantiles_do_not_cross(scale, dtype):
    head = build(**HEADS["quantiles"]).head.to(dtype)
    x = scale * torch.randn(200, 8, generator=torch.Generator().manual_seed(2), dtype=dtype)
    found = head(x)
    assert found.dtype == dtype and bool((found.diff(dim=-1) >= 0).all())
    # The level nearest to the median is not tied to the others.
    assert torch.equal(found[..., 2], head.linear(x).unflatten(-1, (2, 4))[..., 2])


@pytest.mark.parametrize("levels", [[0.5], [0.01, 0.02], [0.9, 0.99]])
def test_levels_of_any_side(levels):
    found = build(task="regression", d_target=1, output="quantiles", quantiles=levels)(signal())
    assert found.shape == (3, 1, len(levels)) and bool((found.diff(dim=-1) > 0).all())


def test_the_variance_has_a_floor():
    head = build(**HEADS["gaussian"]).head.float()
    with torch.no_grad():
        head.linear.weight.zero_()
        head.linear.bias.fill_(-200.0)
    x = torch.ones(3, 8, requires_grad=True)
    mean, variance = head(x).unbind(-1)
    assert bool((mean == -200).all()) and bool((variance == VARIANCE_FLOOR).all())
    # The likelihood of a target that is met exactly stays finite, and so does its gradient.
    (variance.log() + (mean + 200).square() / variance).sum().backward()
    assert bool(x.grad.isfinite().all())


@every_head
def test_bf16_autocast_does_not_round_predictions(head):
    model = build(**EVERY_POSITION[head]).float().eval()
    exact = model(signal().float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(signal().float())
    assert (rough.float() - exact).abs().max() < 0.05 * exact.abs().max() + 0.02
    if head != "tokens":
        # More digits than bfloat16 has.
        assert rough.dtype == torch.float32 and not torch.equal(rough, rough.bfloat16().float())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "regression"}, "needs d_target >= 1 for task='regression', got None"),
        ({"task": "regression", "d_target": 0}, "needs d_target >= 1"),
        ({"task": "regression", "d_target": 1, "n_classes": 2}, "no n_classes: got n_classes=2"),
        ({"n_classes": 2, "d_target": 1}, "takes n_classes for task='classification', and no d_target: got d_target=1"),
        ({"task": "tokens"}, "needs n_classes >= 1 for task='tokens'"),
        ({"n_classes": 2, "per_position": True}, "per_position=True belongs to task='regression', got task='class"),
        ({"n_classes": 2, "output": "gaussian"}, "output='gaussian' and quantiles=None are options of task='reg"),
        ({**HEADS["point"], "output": "gausian"}, "Did you mean 'gaussian'"),
        ({**HEADS["point"], "quantiles": [0.5]}, "needs output='quantiles', but the output is 'point'"),
        ({**HEADS["point"], "output": "quantiles"}, "needs levels, but quantiles is not set"),
        *(
            ({**HEADS["quantiles"], "quantiles": levels}, words)
            for levels, words in (
                ([], "a list of 1 to 999 levels, got []"),
                (0.5, "a list of 1 to 999 levels, got 0.5"),
                ("0.5", "a list of 1 to 999"),
                ([0.5, 1.0], "lies between 0 and 1, got 1.0"),
                ([0, 0.5], "lies between 0 and 1, got 0"),
                ([float("nan")], "lies between 0 and 1, got nan"),
                (["0.5"], "lies between 0 and 1, got '0.5'"),
                ([True], "lies between 0 and 1, got True"),
                ([0.5, 0.5], "rise, each given once"),
                ([0.9, 0.1], "rise, each given once, got [0.9, 0.1]"),
            )
        ),
        ({**EVERY_POSITION["point"], "pool": "cls", "layer": BIDIRECTIONAL}, "pool='cls' makes one output of a whole"),
        ({**HEADS["tokens"], "pool": "cls", "layer": BIDIRECTIONAL}, "pool='cls' makes one output of a whole"),
        ({**EVERY_POSITION["point"], "causal": True, "layer": BIDIRECTIONAL}, "'lru' as configured looks ahead. Build"),
        ({"n_classes": 2, "causal": True, "layer": BIDIRECTIONAL}, "looks ahead"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(options, words):
    with pytest.raises(UsageError) as caught:
        build(**options)
    assert words in str(caught.value)
