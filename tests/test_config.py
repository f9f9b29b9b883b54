"""The configuration: what composes, what is refused and with which words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pytest
from omegaconf import OmegaConf

from fractal_ssm import UsageError
from fractal_ssm.config import Config, compose, to_yaml, validate
from fractal_ssm.config_errors import explain, explain_value_error, packaged_options
from fractal_ssm.models.build import check_model, data_facts
from fractal_ssm.registry import check_options
from fractal_ssm.train import build_data

CONFIGS = Path(__file__).parent.parent / "configs"


def complaint(*overrides: str, config_dir: Path | None = None) -> str:
    """What the user is told about these overrides."""
    with pytest.raises(Exception) as caught:
        compose(overrides, config_dir=None if config_dir is None else str(config_dir))
    error = caught.value
    return (explain_value_error(error) if type(error) is ValueError else None) or explain(error)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("optimzer.lr=1", "Unknown key 'optimzer'. Did you mean 'optimizer'?"),
        ("optimizer.lrr=1", "Unknown key 'optimizer.lrr'. Did you mean 'lr'?"),
        ("modle=s5", "Unknown key 'modle'. Did you mean 'model'?"),
        ("trainer.precison=x", "Unknown key 'trainer.precison'. Did you mean 'precision'?"),
        ("+sede=1", "Unknown key 'sede'. Did you mean 'seed'?"),
        ("+optimizer.momentum=1", "Unknown key 'optimizer.momentum'."),
        ("experiment=lra/s5-listop", "Unknown experiment 'lra/s5-listop'. Nearest: lra/s5-listops,"),
        ("budget=cpus", "Unknown budget 'cpus'. Did you mean 'cpu'?"),
        ("scheduler.name=cosin", "Unknown scheduler.name 'cosin'. Did you mean 'cosine'?"),
        ("trainer.precision=16-mix", "Unknown trainer.precision '16-mix'. Did you mean '16-mixed'?"),
        ("optimizer.name=adamm", "Unknown optimizer.name 'adamm'. Did you mean 'adam'?"),
        ("optimizer.ssm_roles=[A,Q]", "role 'Q'. Known: A, B, C, D, dt."),
        ("optimizer.lr=abc", "optimizer.lr takes a number, got 'abc'."),
        ("training.max_epochs=1e3", "training.max_epochs takes a whole number, got '1000.0'."),
        ("seed=null", "seed needs a value and cannot be null."),
        ("seed.x=1", "'seed' is a single value and holds no keys. Set seed=..."),
        ("training=3", "'training' is a group of keys, no single value. Set one of them, training.KEY=...: batch"),
        ("optimizer.lr=-1", "optimizer.lr must be at least 0, got -1.0."),
        ("optimizer.betas=[0.9,1.0]", "optimizer.betas takes two numbers in [0, 1)"),
        ("optimizer.betas.x=3", "'optimizer.betas' is a list, and 'x' is no position in it. Set the whole list"),
        ("optimizer.betas.7=3", "'optimizer.betas' holds 2 values, counted from 0, and has no position 7. Set"),
        ("imports.0=a", "'imports' is empty and has no position 0. Set the whole list, imports=[...]"),
        ("optimizer.betas=3", "optimizer.betas takes a list, optimizer.betas=[...], got 3."),
        ("optimizer.betas.0.1=3", "'optimizer.betas[0]' is a single value and holds no keys."),
        ("model.n_layers", "'model.n_layers' has no '='. A setting is key=value: model.n_layers=..."),
        ("optimizer..lr=1", "'optimizer..lr=1' cannot be read as key=value. The key is names joined by single dots"),
        ("=3", "'=3' cannot be read as key=value."),
        ("+dataset=cifar", "'dataset' is among the defaults already. Leave out the '+': dataset=cifar"),
        ("dataset=null", "'dataset' is chosen by name, dataset=NAME, got 'null'. The"),
        ("training.batch_size=0", "training.batch_size must be at least 1, got 0."),
        ("training.max_epochs=null", "Training needs an end"),
        ("scheduler.warmup_fraction=2", "scheduler.warmup_fraction must lie in [0, 1], got 2.0. It is a share of"),
        ("training.target=0", "above 0, got 0.0"),
        ("training.target_accuracy=0.5", "any more. Set training.target"),
        ("scheduler.min_factor=2", "scheduler.min_factor must lie in [0, 1], got 2.0"),
        ("model.layer=s5", "model.layer needs a 'name' and may hold options of that name, got 's5'."),
        ("seed=-1", "seed must be at least 0, got -1."),
        ("optimizer.eps=-1", "optimizer.eps must lie in [1e-30, 1], got -1.0."),
        ("trainer.gradient_clip_val=-1", "trainer.gradient_clip_val must be above 0, got -1.0. For no"),
        ("optimizer.betas={a:1}", "optimizer.betas takes a list, optimizer.betas=[...], got {a:1}."),
        ("optimizer.betas=[0.9,null]", "optimizer.betas[1] needs a value and cannot be null."),
        ("optimizer.betas=[0.9,[1]]", "optimizer.betas takes two numbers in [0, 1), got [0.9, [1]]."),
        ("~optimizer.lr", "'optimizer.lr' cannot be removed, only set: optimizer.lr=..."),
        ("trainer.devices=[0]", "trainer.devices takes a whole number or a string, got '[0]'."),
        ("trainer.progress_bar=", "trainer.progress_bar takes true or false, got ''."),
        ("resume=[]", "resume takes a string, got []."),
        ("data_dir=", "data_dir needs a value, data_dir=..., got ''."),
        ("runs_dir=", "runs_dir needs a value, runs_dir=..., got ''."),
        ("resume=", "resume needs a value, resume=..., got ''."),
        ("imports=", "imports takes a list, imports=[...], got ''."),
        ("imports={a:1}", "imports takes a list, imports=[...], got {a:1}."),
        ("experiment=", "'experiment' is chosen by name, experiment=NAME, got nothing. The"),
        ("experiment={a:1}", "'experiment' is chosen by name, experiment=NAME. The"),
        ("budget=", "'budget' is chosen by name, budget=NAME, got nothing. Known: cpu, evening, full, smoke."),
        ("dataset=[cifar]", "'dataset' is chosen by name, dataset=NAME. The"),
        ("~model", "'model' is chosen by name, model=NAME. Known: dss,"),
        ("dataset=signs", "What a module of imports=[...] registers needs none: dataset.name=signs."),
        ("model=ema", "What a module of imports=[...] registers needs none: model.layer.name=ema."),
    ],
)
def test_mistakes_on_the_command_line(override, words):
    told = complaint(override)
    for part in words.split(" Did you mean "):
        assert part.removesuffix("?") in told
    assert "full_key" not in told and "object_type" not in told


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.n_layers=two", "model takes n_layers as int, got 'two'."),
        ("model.n_layers=0", "The model needs n_layers >= 1, got 0."),
        ("model.n_layers=", "model takes n_layers as int, got ''."),
        ("+model.layer.foo=1", "The layer 'fractal' has no option 'foo'. Its options: d_state,"),
    ],
)
def test_mistakes_in_the_model_are_told_before_there_is_data(override, words):
    config = compose([override])
    with pytest.raises(UsageError) as caught:
        check_model(config.model, data_facts(build_data(config)))
    assert words in str(caught.value)


def test_a_value_of_the_wrong_kind_in_a_file(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\noptimizer:\n  lr: fast\n")
    told = complaint("experiment=mine", config_dir=tmp_path)
    assert told == "In 'experiment/mine': optimizer.lr takes a number, got 'fast'."


def test_other_value_errors_are_not_explained_away():
    with pytest.raises(ValueError) as caught:
        int("x")
    assert explain_value_error(caught.value) is None


def test_two_warmups():
    told = complaint("scheduler.warmup_steps=3", "scheduler.warmup_epochs=1")
    assert "warmup_steps and warmup_epochs; set the others to null" in told


def test_a_misspelt_key_in_a_file(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text("# @package _global_\noptimizer:\n  weigth_decay: 0.1\n")
    told = complaint("experiment=mine", config_dir=tmp_path)
    assert told.startswith("In 'experiment/mine': unknown key 'optimizer.weigth_decay'")
    assert "Did you mean 'weight_decay'?" in told


def test_a_folder_of_ones_own_adds_and_overrides(tmp_path):
    (tmp_path / "experiment" / "lra").mkdir(parents=True)
    for name, seed in (("mine", 5), ("lra/s5-listops", 6)):
        (tmp_path / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\nseed: {seed}\n")
    assert compose(["experiment=mine"], config_dir=str(tmp_path)).seed == 5


def test_zero_is_a_value():
    config = compose(["seed=0", "optimizer.weight_decay=0", "optimizer.ssm_lr=0", "scheduler.warmup_steps=0"])
    assert config.seed == 0 and config.optimizer.weight_decay == 0 and config.optimizer.ssm_lr == 0
    assert config.scheduler.warmup_steps == 0


def test_options_of_a_part_need_no_plus():
    config = compose(["model.layer.alpha.name=geometric", "dataset.n_train=5"])
    assert config.model["layer"]["alpha"] == {"name": "geometric"}
    assert config.dataset["n_train"] == 5


def test_another_group_leaves_no_options_behind():
    assert "n_alphas" not in compose(["model=s5"]).model["layer"]


def test_budget_comes_after_the_experiment_and_before_the_command_line():
    full = compose(["experiment=lra/fractal-listops"])
    cpu = compose(["experiment=lra/fractal-listops", "budget=cpu"])
    mine = compose(["experiment=lra/fractal-listops", "budget=cpu", "model.n_layers=7", "trainer=ddp"])
    assert cpu.model["n_layers"] < full.model["n_layers"] and mine.model["n_layers"] == 7
    assert (cpu.trainer.accelerator, mine.trainer.strategy) == ("cpu", "ddp")
    assert cpu.model["layer"] == full.model["layer"]
    assert full.training.max_minutes is None and cpu.training.max_minutes is not None


@pytest.mark.parametrize("group", ["optimizer", "scheduler", "trainer", "budget", "model"])
def test_every_option_of_a_group_composes(group):
    for option in packaged_options(group):
        compose([f"{group}={option}"])


@pytest.mark.parametrize("experiment", packaged_options("experiment"))
def test_every_experiment_composes_within_minutes(experiment):
    # Under the full and the smoke budget they are composed and built in test_experiments.py.
    config = compose([f"experiment={experiment}", "budget=cpu"])
    assert config.training.max_minutes <= 4 and config.trainer.accelerator == "cpu"
    assert OmegaConf.to_object(OmegaConf.merge(Config, OmegaConf.create(to_yaml(config)))) == config


def part(width: int, rate: float = 0.1, name: str | None = None, flag: bool = False, nested: dict | None = None):
    """A part with plainly annotated options."""


def part_of_lists(names: Sequence[str], sizes: list[int] | None = None, share: Annotated[float, "0 to 1"] = 0.5):
    """A part whose annotations have arguments that are not the types of its options."""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"widht": 3}, "The part has no option 'widht'. Its options: width, rate, name, flag, nested. Did you mean"),
        ({"width": "abc"}, "The part takes width as int, got 'abc'."),
        ({"width": 2.5}, "The part takes width as int, got 2.5."),
        ({"width": True}, "The part takes width as int, got True."),
        ({"rate": "fast"}, "The part takes rate as float, got 'fast'."),
        ({"rate": True}, "The part takes rate as float, got True."),
        ({"name": 3}, "The part takes name as str or null, got 3."),
        ({"flag": 1}, "The part takes flag as bool, got 1."),
    ],
)
def test_options_are_checked_against_a_signature(options, words):
    with pytest.raises(UsageError) as caught:
        check_options("The part", part, options, [])
    assert words in str(caught.value)


def test_options_that_fit():
    check_options("The part", part, {"width": 1, "rate": 1, "name": None, "flag": True, "nested": {"any": 1}}, [])
    with pytest.raises(UsageError, match="no option 'width'"):
        check_options("The part", part, {"width": 1}, ["width"])
    check_options("The part", part_of_lists, {"names": ["a"], "sizes": [1], "share": 0.2}, [])


def test_defaults_are_valid():
    validate(compose([]))
    with pytest.raises(UsageError, match="dataset needs a 'name'"):
        validate(Config(model={"layer": {"name": "s5"}}))
