"""Marks that other trainers read: where they are, what they survive, what those trainers make of them."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from contract_cases import build, every_layer
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from fractal_ssm import S4, S5, Fractal, SequenceModel, UsageError, mark_parameters, no_weight_decay
from fractal_ssm.config import ROLES as CONFIG_ROLES
from fractal_ssm.config import OptimizerConfig
from fractal_ssm.models.marks import ROLES, Marks, named_originals


def marked(module: nn.Module) -> dict[str, dict]:
    return {name: p._optim for name, p in module.named_parameters() if hasattr(p, "_optim")}


def test_the_marks_say_what_our_own_trainer_does():
    ours, marks = OptimizerConfig(), Marks()
    assert (marks.lr, list(marks.roles), marks.weight_decay) == (ours.ssm_lr, ours.ssm_roles, 0.0)
    assert list(marks.roles) == ours.undecayed_roles and ROLES == CONFIG_ROLES


@every_layer
def test_every_parameter_that_is_trained_apart_is_marked(case):
    layer = build(case)
    apart = {name for name, role in layer.roles.items() if role in ("A", "B", "dt")}
    apart &= {name for name, _ in layer.named_parameters()}
    assert marked(layer) == dict.fromkeys(apart, {"lr": 0.001, "weight_decay": 0.0})
    assert layer.no_weight_decay() == apart
    assert no_weight_decay(nn.Sequential(layer)) == {f"0.{name}" for name in apart}


def model() -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel({"name": "s5", "d_state": 8, "blocks": 1}, n_classes=3, d_input=2, d_model=4, n_layers=2)


def assigned(original):
    other = model()
    other.load_state_dict({name: value.clone() for name, value in original.state_dict().items()}, assign=True)
    return other


def saved_whole(original):
    buffer = io.BytesIO()
    torch.save(original, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def loaded(original):
    other = model()
    other.load_state_dict(original.state_dict())
    return other


FATES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": saved_whole,
    "load_state_dict": loaded,
    "assign": assigned,
    "double": lambda m: m.double(),
    "half": lambda m: m.half(),
    "memory": lambda m: m.to("meta").to_empty(device="cpu"),
    "average": lambda m: torch.optim.swa_utils.AveragedModel(m).module,
    "compile": lambda m: torch.compile(m, backend="eager")._orig_mod,
    "share": lambda m: m.share_memory(),
}


@pytest.mark.parametrize("fate", FATES)
def test_marks_survive(fate):
    original = model()
    expected = marked(original)
    assert len(expected) == 8
    assert marked(FATES[fate](original)) == expected
    assert FATES[fate](original).no_weight_decay() == set(expected)


@pytest.mark.parametrize("fate", FATES)
def test_marks_of_the_user_survive(fate):
    original = mark_parameters(model(), lr=0.25, weight_decay=0.5, roles=["A"])
    expected = marked(original)
    assert set(expected) == {f"blocks.{i}.layer.Lambda_{part}" for i in (0, 1) for part in ("re", "im")}
    assert all(mark == {"lr": 0.25, "weight_decay": 0.5} for mark in expected.values())
    found = FATES[fate](original)
    if fate in ("load_state_dict", "assign"):
        # Another model keeps its own marks.
        assert marked(found) == marked(model())
    else:
        assert marked(found) == expected and found.no_weight_decay() == set()


def test_a_parameter_that_is_replaced_is_marked():
    layer = Fractal(4, d_state=8)
    layer.B = nn.Parameter(torch.zeros_like(layer.B))
    assert layer.B._no_weight_decay is True
    own = nn.Parameter(torch.zeros_like(layer.B))
    own._optim = {"lr": 7.0}
    layer.B = own
    assert layer.B._optim == {"lr": 7.0}


def test_a_parametrised_parameter_is_found():
    layer = weight_norm(S4(4, d_state=8), "P")
    names = {f"parametrizations.P.original{number}" for number in (0, 1)}
    assert names <= layer.no_weight_decay()
    mark_parameters(layer, roles=["C"])
    assert layer.no_weight_decay() == {"C"}


def test_no_lr_leaves_the_trainers_own():
    layer = mark_parameters(S5(4, d_state=8, blocks=1), lr=None)
    assert layer.B._optim == {"weight_decay": 0.0}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: mark_parameters(nn.Linear(2, 2)), "Linear holds none"),
        (lambda: mark_parameters("model"), "takes a torch module, got str"),
        (lambda: mark_parameters(S5(4, d_state=8, blocks=1), lr=-1.0), "lr is a number of at least 0, got -1.0"),
        (lambda: mark_parameters(S5(4, d_state=8, blocks=1), lr="1e-3"), "lr must be a number"),
        (lambda: mark_parameters(S5(4, d_state=8, blocks=1), roles=["lambda"]), "Unknown role 'lambda'"),
        (lambda: no_weight_decay([1]), "takes a torch module, got list"),
    ],
)
def test_mistakes_are_told(call, says):
    with pytest.raises(UsageError, match=says):
        call()


def groups_of_s4(module: nn.Module, lr: float, weight_decay: float) -> dict[str, tuple[float, float]]:
    """As state-spaces/s4's setup does: parameters without `_optim`, then a group for each distinct `_optim`."""
    return {
        name: (
            getattr(p, "_optim", {}).get("lr", lr),
            getattr(p, "_optim", {}).get("weight_decay", weight_decay),
        )
        for name, p in module.named_parameters()
    }


def groups_of_timm(module: nn.Module, weight_decay: float) -> dict[str, float]:
    """As timm does: no decay for names of no_weight_decay(), vectors and biases."""
    skipped = module.no_weight_decay()
    return {
        name: 0.0 if p.ndim <= 1 or name.endswith(".bias") or name in skipped else weight_decay
        for name, p in module.named_parameters()
    }


def test_what_others_make_of_it():
    apart = set(marked(model()))
    s4, timm = groups_of_s4(model(), 0.01, 0.05), groups_of_timm(model(), 0.05)
    assert {name for name, rates in s4.items() if rates == (0.001, 0.0)} == apart
    assert {rates for name, rates in s4.items() if name not in apart} == {(0.01, 0.05)}
    assert all(timm[name] == 0.0 for name in apart)
    assert timm["blocks.0.layer.C"] == timm["encoder.linear.weight"] == 0.05


def test_originals_are_named_as_the_result():
    names = [name for name, _ in named_originals(weight_norm(S5(4, d_state=8, blocks=1), "B"))]
    assert names.count("B") == 2
