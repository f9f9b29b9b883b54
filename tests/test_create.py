"""Models by name: every name is built, options arrive, mistakes are told."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from fractal_ssm import S5, Block, Fractal, SequenceModel, UsageError, create_model, list_models, registry
from fractal_ssm.config import compose
from fractal_ssm.models.base import SequenceLayer
from fractal_ssm.models.build import build_model

SMALL = dict(n_classes=3, d_input=2, d_model=8, n_layers=1, l_max=16)


def test_names_are_models_experiments_and_layers():
    names = list_models()
    assert names == sorted(set(names))
    assert {"fractal", "s5", "fractal-conv", "lra/s5-listops"} <= set(names)
    assert list_models("fractal*") == ["fractal", "fractal-conv", "fractal-normal", "fractal-tau"]
    assert list_models("*-cifar") == [name for name in names if name.endswith("-cifar")] != []
    assert list_models("nothing*") == []


@pytest.mark.parametrize("name", [name for name in list_models() if "/" not in name])
def test_every_model_is_created_as_configured(name):
    torch.manual_seed(0)
    model = create_model(name, **SMALL, layer={"bidirectional": True} if name == "lru" else None)
    assert model(torch.randn(2, 9, 2)).shape == (2, 3)
    assert model.training and model.d_model == 8


def test_an_experiment_is_created_at_its_size():
    torch.manual_seed(0)
    model = create_model("lra/s5-listops", n_classes=10, n_tokens=18)
    torch.manual_seed(0)
    facts = dict(n_classes=10, n_tokens=18)
    expected = build_model(compose(["experiment=lra/s5-listops"]).model, facts)
    assert all(map(torch.equal, model.state_dict().values(), expected.state_dict().values()))
    assert len(create_model("lra/s5-listops", n_classes=10, n_tokens=18, n_layers=1).blocks) == 1


def test_options_of_the_layer_go_on_top():
    layer = create_model("fractal-tau", **SMALL, layer={"d_state": 16, "bidirectional": False}).blocks[0].layer
    expected = Fractal(8, d_state=16, measure="fractional-tau", dt="calibrated")
    assert layer.causal and layer.Lambda_re.shape == expected.Lambda_re.shape
    named = create_model("s5", **SMALL, layer={"name": "s5", "d_state": 16}).blocks[0].layer
    assert named.n_modes == 8 and not named.causal


def test_a_layer_of_ones_own_is_a_model(monkeypatch):
    monkeypatch.setattr(registry.layers, "_parts", dict(registry.layers._parts))

    @registry.register_layer("doubling")
    class Doubling(SequenceLayer):
        def __init__(self, d_model: int, factor: float = 2.0):
            super().__init__()
            self.d_model, self.factor = d_model, factor

        @property
        def causal(self):
            return False

        def forward(self, u, state=None, lengths=None, dt_scale=1.0, return_state=True):
            return self.factor * u, None

    assert "doubling" in list_models()
    assert create_model("doubling", **SMALL, layer={"factor": 3.0}).blocks[0].layer.factor == 3.0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: create_model("s55", **SMALL), "Unknown model 's55'.*Did you mean 's5'"),
        (lambda: create_model(5, **SMALL), "Unknown model '5'"),
        (lambda: create_model("s5", num_classes=3, d_input=1), "no option 'num_classes'.*mean 'n_classes'"),
        (lambda: create_model("s5", pretrained=True), "from_pretrained"),
        (lambda: create_model("s5", d_input=1), "needs the number of classes"),
        (lambda: create_model("s5", n_classes=3), "either n_tokens .* or d_input"),
        (lambda: create_model("s5", **SMALL, layer={"d_stat": 8}), "no option 'd_stat'.*mean 'd_state'"),
        (lambda: create_model("s5", **SMALL, layer={"name": "s4"}), r"create_model\('s4', ...\)"),
        (lambda: create_model("s5", **SMALL, layer="s5"), "layer is a mapping of options"),
        (lambda: create_model("s5", **SMALL | {"n_layers": "2"}), "n_layers as int"),
        (lambda: list_models(5), "takes a pattern"),
    ],
)
def test_mistakes_are_told(call, says):
    with pytest.raises(UsageError, match=says):
        call()


def test_a_block_has_the_defaults_of_the_model():
    block, model = inspect.signature(Block).parameters, inspect.signature(SequenceModel).parameters
    shared = [name for name in block if name in model and name != "layer"]
    assert len(shared) == 8
    assert {name: block[name].default for name in shared} == {name: model[name].default for name in shared}


def test_a_block_stands_alone():
    torch.manual_seed(0)
    block = Block(Fractal(8, d_state=16), mixer="silu_gate").eval()
    u = torch.randn(2, 12, 8)
    y, state = block(u)
    first, middle = block(u[:, :5])
    torch.testing.assert_close(torch.cat((first, block(u[:, 5:], middle)[0]), dim=1), y)
    assert state.shape == (2, 8)
    assert Block(S5(8, d_state=16, blocks=1)).no_weight_decay() == {
        f"layer.{name}" for name in ("Lambda_re", "Lambda_im", "log_dt", "B")
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"layer": nn.Linear(8, 8)}, "sequence layer, such as Fractal.64., got Linear"),
        ({"layer": "fractal"}, "got str.*create_model"),
        ({"mixer": "glue"}, "mean 'glu'"),
        ({"mixer": 3}, "mixer as str"),
        ({"norm": "lay"}, "Unknown norm 'lay'"),
        ({"dropout": 1.0}, "probability"),
        ({"dropout": "0.1"}, "dropout as float"),
        ({"dropout": float("nan")}, "finite"),
        ({"prenorm": 1}, "prenorm as bool"),
        ({"bn_momentum": 0.0}, "share in"),
        ({"framework": "jax"}, "Unknown framework"),
        ({"d_ff": 8}, "mixer='mlp'"),
        ({"mixer": "mlp", "d_ff": 0}, "d_ff to be an integer >= 1"),
    ],
)
def test_wrong_arguments_of_a_block(options, says):
    with pytest.raises(UsageError, match=says):
        Block(options.pop("layer", S5(8, d_state=8, blocks=1)), **options)
