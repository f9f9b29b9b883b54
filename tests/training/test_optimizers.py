"""Every optimizer of torch by its name: groups are kept, the state is exact, mistakes give a clear message."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fractal_ssm import UsageError
from fractal_ssm.config import OPTIMIZERS, OptimizerConfig, compose
from fractal_ssm.models.backbone import SequenceModel
from fractal_ssm.training.optim import parameter_groups, parameter_roles
from fractal_ssm.training.optimizers import build_optimizer, check_optimizer_config, fits, fresh_state

LR, SSM_LR = 0.01, 0.001


def small_model(double: bool = False) -> SequenceModel:
    torch.manual_seed(0)
    layer = {"name": "s5", "d_state": 4, "blocks": 1}
    model = SequenceModel(layer=layer, n_classes=3, n_tokens=5, d_model=4, n_layers=2, norm="batch")
    return model.double() if double else model


def configured(name: str) -> OptimizerConfig:
    return compose([f"optimizer={name}", f"optimizer.lr={LR}", f"optimizer.ssm_lr={SSM_LR}"]).optimizer


def test_all_of_torch_are_there():
    found = {
        name.lower()
        for name in torch.optim.__all__
        if isinstance(kind := getattr(torch.optim, name), type) and issubclass(kind, torch.optim.Optimizer)
    }
    assert found - set(OPTIMIZERS) == {"optimizer", "lbfgs", "sparseadam"} and set(OPTIMIZERS) <= found


def descend(model, optimizer, steps) -> list[float]:
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randint(5, (8, 6), generator=generator)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, 0] % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_groups_are_kept_and_a_state_goes_on_exactly(name):
    config = configured(name)
    check_optimizer_config(config)

    def begin():
        model = small_model()
        return model, build_optimizer(parameter_groups(model, config), config)

    model, optimizer = begin()
    roles = parameter_roles(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        slow = {roles.get(names[id(parameter)]) in config.ssm_roles for parameter in group["params"]}
        assert slow == {group["lr"] == SSM_LR}
    losses = descend(model, optimizer, range(6))
    assert losses[-1] != losses[0]

    first, cut = begin()
    descend(first, cut, range(3))
    state, weights = copy.deepcopy(cut.state_dict()), copy.deepcopy(first.state_dict())
    second, resumed = begin()
    second.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert descend(second, resumed, range(3, 6)) == losses[3:]
    for key, value in model.state_dict().items():
        assert torch.equal(second.state_dict()[key], value), key
    for group in parameter_groups(model, config):
        for parameter in group["params"]:
            like = fresh_state(parameter, group, config)
            assert fits(optimizer.state[parameter], like)
            assert not like or not fits({}, like)


def test_muon_takes_the_matrices_of_the_blocks_and_nothing_else():
    model, config = small_model(), configured("muon")
    groups = parameter_groups(model, config)
    marked = [name for group in groups if group["muon"] for name in group["param_names"]]
    assert marked == [f"blocks.{block}.mixer.{part}.weight" for block in (0, 1) for part in _mixer_parts(model)]
    optimizer = build_optimizer(groups, config)
    descend(model, optimizer, range(2))
    for name, parameter in model.named_parameters():
        assert set(optimizer.state[parameter]) == (
            {"momentum_buffer"} if name in marked else {"step", "exp_avg", "exp_avg_sq"}
        )
    # A schedule scales both parts.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [
        0.5 * (SSM_LR if group["name"].startswith("ssm") else LR) for group in groups
    ]
    assert schedule.get_last_lr() == [group["lr"] for group in optimizer.param_groups]


def _mixer_parts(model) -> list[str]:
    return [name for name, module in model.blocks[0].mixer.named_modules() if isinstance(module, nn.Linear)]


def test_muon_equals_its_two_parts():
    config = configured("muon")
    model, other = small_model(), small_model()
    groups = parameter_groups(other, config)
    parts = [
        torch.optim.Muon([g for g in groups if g["muon"]], lr=LR, **config.options),
        torch.optim.AdamW([g for g in groups if not g["muon"]], lr=LR),
    ]
    optimizer = build_optimizer(parameter_groups(model, config), config)
    for step in range(3):
        for parameter, twin in zip(model.parameters(), other.parameters(), strict=True):
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(step))
            twin.grad = parameter.grad.clone()
        optimizer.step()
        for part in parts:
            part.step()
    for (name, parameter), twin in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(parameter, twin), name


@pytest.mark.parametrize("name", ["adam", "sgd", "adagrad", "muon"])
def test_fused_kernels_equal_plain_ones(name):
    config, found = configured(name), []
    for fused in (False, True):
        model = small_model(double=True)
        optimizer = build_optimizer(parameter_groups(model, config), config, fused)
        assert any(group.get("fused") for group in optimizer.param_groups) == fused
        descend(model, optimizer, range(4))
        found.append(model.state_dict())
    for key, value in found[0].items():
        torch.testing.assert_close(found[1][key], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "sgd", "options": {"momentm": 0.9}}, "Unknown option of the optimizer 'sgd', optimizer.options "),
        ({"name": "sgd", "options": {"momentum": -1.0}}, "torch's optimizer 'sgd' refuses .* -1.0"),
        ({"name": "sgd", "options": {"momentum": float("nan")}}, "optimizer.options.momentum must be finite, got nan"),
        ({"name": "sgd", "options": {"momentum": "much"}}, "torch's optimizer 'sgd' refuses"),
        ({"name": "sgd", "betas": [0.5, 0.9]}, "The optimizer 'sgd' has no betas to set"),
        ({"name": "adafactor", "eps": 1e-3}, "The optimizer 'adafactor' has no eps to set"),
        ({"name": "rprop"}, "The optimizer 'rprop' has no weight decay, got optimizer.weight_decay=0.05"),
        ({"name": "muon", "options": {"ns_coefficients": [1.0, 2.0]}}, "torch's optimizer 'muon' refuses"),
        ({"options": {"fused": True}}, "Unknown option of the optimizer 'adamw', optimizer.options 'fused'"),
        ({"name": "lion"}, "Unknown optimizer.name 'lion'. Known: adadelta, .*Did you mean 'muon'"),
    ],
)
def test_mistakes_are_told_before_a_step(options, words):
    with pytest.raises(UsageError, match=words):
        check_optimizer_config(OptimizerConfig(**options))


def test_a_published_grouping_with_another_optimizer():
    config = compose(["optimizer=s5-standard", "optimizer.name=sgd", "optimizer.options.momentum=0.9"]).optimizer
    check_optimizer_config(config)
    assert config.ssm_roles == ["A", "B", "dt"] and config.options == {"momentum": 0.9}
