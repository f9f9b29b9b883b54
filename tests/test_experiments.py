"""Every experiment file: its header, its full-sized model, and a training step under the smoke budget."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fractal_ssm.config import compose
from fractal_ssm.data.base import SPLITS
from fractal_ssm.models.build import build_model, check_model, data_facts
from fractal_ssm.train import build_data
from fractal_ssm.training.optim import build_optimizer, parameter_groups

CONFIGS = Path(__file__).parent.parent / "configs"
EXPERIMENTS = sorted(
    str(path.relative_to(CONFIGS / "experiment").with_suffix("")) for path in CONFIGS.glob("experiment/**/*.yaml")
)
LAYERS = ("fractal", "fractal-tau", "fractal-normal", "s5", "s4", "s4d", "dss", "lru", "transformer")
TASKS = ("listops", "imdb", "aan", "cifar", "pathfinder", "pathx")


def test_every_layer_meets_every_task():
    assert {f"lra/{layer}-{task}" for layer in LAYERS for task in TASKS} <= set(EXPERIMENTS)


def test_every_layer_has_a_model_file(built_in_layers):
    named = {compose([f"model={path.stem}"]).model["layer"]["name"] for path in CONFIGS.glob("model/*.yaml")}
    assert set(built_in_layers) <= named


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_header_says_command_source_and_what_is_known(name):
    lines = (CONFIGS / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert len(lines) <= 30
    assert lines[0] == "# @package _global_"
    head = [line for line in lines if line.startswith("#")]
    assert any(re.search(rf"python -m train (-m )?experiment={name}\b", line) for line in head)
    for start in ("# Source: ", "# Published: ", "# Measured: "):
        assert any(line.startswith(start) for line in head), f"{name} has no line '{start}...'"


@cache
def full(name):
    """The full-sized configuration and its dataset; nothing is read from disk."""
    config = compose([f"experiment={name}"])
    return config, build_data(config)


def check(config, data):
    check_model(config.model, data_facts(data), [data.dt_scale(split) for split in SPLITS])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_full_size_builds(name):
    config, data = full(name)
    check(config, data)
    assert config.dataset["name"].endswith(name.rsplit("-", 1)[-1])


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if not name.startswith("proxy/")])
def test_cpu_budget_builds(name):
    config = compose([f"experiment={name}", "budget=cpu"])
    check(config, build_data(config))


@pytest.mark.parametrize("budget", ["cpu", "smoke"])
def test_a_dataset_without_experiments_is_trimmed_too(budget):
    config = compose(["dataset=sc", f"budget={budget}"])
    check(config, build_data(config))
    assert config.dataset["n_train"] <= 2100 and config.model["d_model"] <= 32 and config.training.max_epochs <= 2


def fake_batch(data, facts, pairs=2, length=33):
    """Random inputs with the kind, channels and vocabulary of the dataset, and ragged lengths."""
    rows = 2 * pairs if data.task == "retrieval" else pairs
    if facts["n_tokens"]:
        inputs = torch.randint(facts["n_tokens"], (rows, length))
    else:
        inputs = torch.randn(rows, length, data.d_input)
    targets = torch.randint(data.n_classes, (pairs,)) if data.n_classes else torch.randn(pairs, length, data.d_target)
    return inputs, targets, torch.tensor([length, length - 20] * (rows // 2))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_smoke_budget_steps(name):
    torch.manual_seed(0)
    config = compose([f"experiment={name}", "budget=smoke"])
    data = build_data(config)
    facts = data_facts(data)
    if not (facts["n_tokens"] or facts["d_input"]):
        # A vocabulary that is counted from the data.
        facts["n_tokens"] = 7
    model = build_model(config.model, facts)
    optimizer = build_optimizer(parameter_groups(model, config.optimizer), config.optimizer)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    inputs, targets, lengths = fake_batch(data, facts)
    loss = F.cross_entropy if data.n_classes else F.mse_loss
    loss(model(inputs, lengths), targets).backward()
    optimizer.step()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    changed = [not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True)]
    assert sum(changed) > len(changed) // 2
