"""Learning rate and weight decay of each parameter, compared with the published tables of S4 and S5."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from toy_parts import ToyDecay

from fractal_ssm import S4, UsageError, explain_groups, parameter_groups
from fractal_ssm.config import OptimizerConfig, compose
from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.training.optim import describe_groups, parameter_roles
from fractal_ssm.training.optimizers import build_optimizer

LR, SSM_LR, DECAY = 0.01, 0.001, 0.05
FAST, SLOW = (LR, DECAY), (SSM_LR, 0.0)


class Roles(nn.Module):
    """One parameter per role, as a layer would declare them."""

    def __init__(self):
        super().__init__()
        self.roles = {name: name for name in ("A", "B", "C", "D", "dt")}
        for name in self.roles:
            setattr(self, name, nn.Parameter(torch.zeros(2)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(1, 2)
        self.layer = Roles()
        self.norm = nn.LayerNorm(2)
        self.mixer = nn.Linear(2, 2)
        self.head = nn.Linear(2, 3)
        self.encoder.decay_norm_and_bias = self.head.decay_norm_and_bias = True


def rates(config: OptimizerConfig) -> dict[str, tuple[float, float]]:
    """Parameter name -> (lr, weight decay)."""
    return {
        name: (group["lr"], group["weight_decay"])
        for group in parameter_groups(Model(), config)
        for name in group["param_names"]
    }


# Rows of the published sources (S4 train.py and kernel files; S5 train_helpers.py), dt_global false.
PUBLISHED = {
    "s4": {"A": SLOW, "B": SLOW, "C": FAST, "D": FAST, "dt": (LR, 0.0)},
    "s4-slow-c": {"A": SLOW, "B": SLOW, "C": (SSM_LR, DECAY), "D": FAST, "dt": SLOW},
    "s5-standard": {"A": SLOW, "B": SLOW, "C": FAST, "D": FAST, "dt": SLOW},
    "s5-bandcdecay": {"A": SLOW, "B": (SSM_LR, DECAY), "C": FAST, "D": FAST, "dt": SLOW},
    "s5-bfastandcdecay": {"A": SLOW, "B": FAST, "C": FAST, "D": FAST, "dt": SLOW},
    "s5-nobcdecay": {"A": SLOW, "B": SLOW, "C": SLOW, "D": SLOW, "dt": SLOW},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_groupings(name):
    config = compose(
        [f"optimizer={name}", f"optimizer.lr={LR}", f"optimizer.ssm_lr={SSM_LR}", f"optimizer.weight_decay={DECAY}"]
    ).optimizer
    found = rates(config)
    assert {role: found[f"layer.{role}"] for role in PUBLISHED[name]} == PUBLISHED[name]
    # S5 decays norms and biases; S4 those of the encoder and the head only.
    inner = FAST if name.startswith("s5") else (LR, 0.0)
    assert {found[key] for key in ("norm.weight", "norm.bias", "mixer.bias")} == {inner}
    assert {found[key] for key in ("encoder.bias", "head.bias", "mixer.weight", "encoder.weight")} == {FAST}


def test_every_trainable_parameter_is_in_exactly_one_group():
    model = Model()
    model.layer.A.requires_grad_(False)
    groups = parameter_groups(model, OptimizerConfig())
    names = [name for group in groups for name in group["param_names"]]
    assert sorted(names) == sorted(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    optimizer = build_optimizer(groups, OptimizerConfig(lr=LR, betas=[0.8, 0.9], eps=1e-6))
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9) and optimizer.param_groups[0]["eps"] == 1e-6


def test_no_ssm_lr_means_lr_and_zero_is_a_value():
    assert rates(OptimizerConfig(lr=LR, ssm_lr=None))["layer.A"] == (LR, 0.0)
    assert rates(OptimizerConfig(lr=LR, ssm_lr=0.0))["layer.A"] == (0.0, 0.0)
    assert rates(OptimizerConfig(weight_decay=0.0, lr=LR))["layer.C"] == (LR, 0.0)


def test_roles_are_found_at_any_depth_and_unknown_ones_refused():
    model = nn.Sequential(nn.Linear(2, 2), ToyDecay(2))
    assert parameter_roles(model) == {"1.log_dt": "dt", "1.B": "B", "1.C": "C", "1.D": "D"}
    assert parameter_roles(model[1]) == {"log_dt": "dt", "B": "B", "C": "C", "D": "D"}
    bad = Roles()
    bad.roles = {"A": "lambda"}
    with pytest.raises(UsageError, match="Unknown role of Roles.A 'lambda'. Known: A, B, C, D, dt."):
        parameter_roles(bad)


def test_description_counts_parameters():
    model = Model()
    facts = describe_groups(parameter_groups(model, OptimizerConfig()), parameter_roles(model))
    assert sum(group["parameters"] for group in facts) == sum(p.numel() for p in model.parameters())
    assert next(group for group in facts if group["name"] == "ssm, no decay")["roles"] == ["A", "B", "dt"]


def test_fused_equals_plain_and_goes_on_from_its_state():
    """At published rates; both forms have the same state, so that older runs can be resumed."""

    def train(fused, steps, state=None):
        torch.manual_seed(0)
        model = Model().double()
        config = OptimizerConfig(lr=LR, weight_decay=DECAY)
        optimizer = build_optimizer(parameter_groups(model, config), config, fused)
        if state is not None:
            model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            optimizer.step()
        return model.state_dict(), optimizer.state_dict()

    plain, fused = train(False, range(20)), train(True, range(20))
    for name, value in plain[0].items():
        torch.testing.assert_close(fused[0][name], value, rtol=1e-12, atol=1e-14)
    mixed = train(True, range(10, 20), train(False, range(10)))
    for name, value in plain[0].items():
        torch.testing.assert_close(mixed[0][name], value, rtol=1e-12, atol=1e-14)


class Tidy(nn.Module):
    """Parts of other packages' models: norms and biases of several names, tied and parametrised parameters."""

    class LlamaRMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

    class NormalizedLinear(nn.Linear):
        pass

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4)
        self.rms = nn.RMSNorm(4)
        self.foreign = Tidy.LlamaRMSNorm()
        self.batch = nn.SyncBatchNorm(4)
        self.normal = Tidy.NormalizedLinear(4, 4)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.layer = nn.utils.parametrizations.weight_norm(Roles(), "A")
        self.roles = ["not ours"]


def test_modules_decide_in_models_of_others():
    groups = {
        name: (group["lr"], group["weight_decay"])
        for group in parameter_groups(Tidy(), OptimizerConfig(lr=LR, ssm_lr=SSM_LR, weight_decay=DECAY))
        for name in group["param_names"]
    }
    undecayed = {name for name, rate in groups.items() if rate == (LR, 0.0)}
    assert undecayed == {
        *("rnn.bias_ih_l0", "rnn.bias_hh_l0", "rms.weight", "foreign.weight", "batch.weight", "batch.bias"),
        *("normal.bias", "first.bias", "second.bias"),
    }
    assert "second.weight" not in groups and groups["first.weight"] == FAST
    originals = [f"layer.parametrizations.A.original{number}" for number in (0, 1)]
    assert [groups[name] for name in originals] == [SLOW, SLOW]


def test_a_tied_parameter_is_exempt_only_if_no_module_decays_it():
    for order in (("head", "norm"), ("norm", "head")):
        model = nn.ModuleDict({name: getattr(Model(), name) for name in order})
        model["norm"].bias = nn.Parameter(torch.zeros(3))
        model["head"].bias = model["norm"].bias
        groups = {
            name: group["weight_decay"]
            for group in parameter_groups(model, OptimizerConfig(weight_decay=DECAY))
            for name in group["param_names"]
        }
        assert groups[f"{order[0]}.bias"] == DECAY and f"{order[1]}.bias" not in groups


def lightning_module(model):
    from fractal_ssm.config import SchedulerConfig
    from fractal_ssm.training.module import Classifier
    from fractal_ssm.training.tasks import Classification

    return Classifier(model, Classification(), OptimizerConfig(), SchedulerConfig(), 0, 1, 1, {}, {})


WRAPPERS = {
    "compile": lambda model: torch.compile(model, backend="eager"),
    "sequential": nn.Sequential,
    "list": lambda model: nn.ModuleList([nn.Identity(), model]),
    "data parallel": nn.DataParallel,
    "average": torch.optim.swa_utils.AveragedModel,
    "lightning": lightning_module,
    "twice": lambda model: torch.compile(nn.Sequential(nn.DataParallel(model)), backend="eager"),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("recipe", PUBLISHED)
def test_wrappers_change_nothing(recipe, wrapper):
    torch.manual_seed(0)
    layer = {"name": "s5", "d_state": 8, "blocks": 1}
    model = SequenceModel(layer, n_classes=3, n_tokens=5, d_model=8, n_layers=1, norm="batch")
    config = compose([f"optimizer={recipe}"]).optimizer
    plain, wrapped = parameter_groups(model, config), parameter_groups(WRAPPERS[wrapper](model), config)
    assert sum(len(group["params"]) for group in plain) == len(list(model.parameters()))
    for one, other in zip(plain, wrapped, strict=True):
        assert {**one, "params": 0, "param_names": 0} == {**other, "params": 0, "param_names": 0}
        assert all(long.endswith(short) for short, long in zip(one["param_names"], other["param_names"], strict=True))
        assert all(map(torch.equal, one["params"], other["params"]))


class Foreign(nn.Module):
    """A user's model: a layer of this package, a foreign layer that carries marks, and ordinary modules."""

    def __init__(self):
        super().__init__()
        self.ours = S4(4, d_state=8)
        self.linear = nn.Linear(4, 4)
        self.theirs = nn.ParameterDict({name: torch.zeros(3) for name in ("kept", "slow", "plain", "fast")})
        self.theirs["kept"]._no_weight_decay = True
        self.theirs["slow"]._optim = {"lr": 0.5, "weight_decay": 0.25}
        self.theirs["fast"]._optim = {"lr": 0.5}


def test_marks_of_other_layers_are_kept():
    groups = {
        name: (group["lr"], group["weight_decay"])
        for group in parameter_groups(Foreign(), lr=LR, weight_decay=DECAY)
        for name in group["param_names"]
    }
    assert groups["theirs.kept"] == groups["linear.bias"] == (LR, 0.0)
    assert groups["theirs.slow"] == (0.5, 0.25) and groups["theirs.fast"] == (0.5, DECAY)
    assert groups["theirs.plain"] == groups["linear.weight"] == groups["ours.C"] == FAST
    assert groups["ours.P"] == groups["ours.inv_dt"] == SLOW


def test_the_groups_of_a_foreign_model_are_explained():
    groups = parameter_groups(Foreign(), lr=LR)
    said = explain_groups(groups)
    for group in groups:
        assert group["rule"] in said
    for name, _ in Foreign().named_parameters():
        assert said.count(f"{name}") >= 1
    assert "ssm, no decay: lr 0.001, weight decay 0, 100 parameters in 5 tensors" in said


def test_numbers_in_place_of_those_of_the_configuration():
    def rates_of(**numbers):
        return {group["name"]: (group["lr"], group["weight_decay"]) for group in parameter_groups(Model(), **numbers)}

    assert rates_of() == rates_of(lr=0.001, weight_decay=0.05)
    assert rates_of(lr=1e-4)["ssm, no decay"] == (1e-4, 0.0)
    assert rates_of(lr=LR, ssm_lr=0.5)["ssm, no decay"] == (0.5, 0.0)
    assert rates_of(config=OptimizerConfig(ssm_lr=None), lr=LR)["ssm, no decay"] == (LR, 0.0)
    assert rates_of(lr=LR, weight_decay=0.0)["model"] == (LR, 0.0)
    for wrong in ({"lr": -1.0}, {"weight_decay": float("nan")}, {"ssm_lr": float("inf")}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            rates_of(**wrong)
