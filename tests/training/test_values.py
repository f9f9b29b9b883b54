"""Every invalid number in the configuration is refused by name."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass

import pytest
from torch import nn

from fractal_ssm import UsageError
from fractal_ssm.config import Config, OptimizerConfig, SchedulerConfig, compose, validate
from fractal_ssm.ranges import RANGES, check_numbers, numbers
from fractal_ssm.registry import check_options
from fractal_ssm.training.optim import parameter_groups
from fractal_ssm.training.scheduler import schedule
from fractal_ssm.training.trainer import check_devices


def place(config: Config, key: str, value) -> Config:
    *parts, name = key.split(".")
    part = config
    for entry in parts:
        part = getattr(part, entry)
    setattr(part, name, [0.9, value] if key == "optimizer.betas" else value)
    return config


def numeric_fields(part, prefix="") -> set[str]:
    """Read off the text of the annotations, unlike `numbers`."""
    found = set()
    for field in fields(part):
        if is_dataclass(value := getattr(part, field.name)):
            found |= numeric_fields(value, f"{prefix}{field.name}.")
        elif re.search(r"\b(int|float)\b", field.type):
            found.add(prefix + field.name)
    return found


KEYS = sorted(numeric_fields(Config()))


def test_every_number_has_a_range():
    assert {key for key, _, _ in numbers(Config())} == set(KEYS)
    assert set(KEYS) == set(RANGES)
    check_numbers(Config())


def name(value) -> str:
    """Name of a case; Python refuses to print integers of thousands of digits."""
    return f"{value.bit_length()} bits" if type(value) is int else repr(value)


NOT_NUMBERS = (float("nan"), float("inf"), float("-inf"), -1, -0.5, True, False, "1", "", [1], {}, 1e31, 1 << 16_000)


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=name)
@pytest.mark.parametrize("key", KEYS)
def test_what_no_number_may_be(key, value):
    with pytest.raises(UsageError, match=f"^{re.escape(key)} (takes|must)"):
        check_numbers(place(Config(), key, value))


INTEGERS = [key for key in KEYS if RANGES[key].kind is int]


@pytest.mark.parametrize("value", [0.5, 1.0, 2.5, 2**53 + 1, 2**63, 2**64])
@pytest.mark.parametrize("key", INTEGERS)
def test_whole_numbers_are_whole_and_of_usual_size(key, value):
    with pytest.raises(UsageError, match=f"^{re.escape(key)} "):
        check_numbers(place(Config(), key, value))


def test_none_only_where_it_means_something():
    optional = {key for key, _, none in numbers(Config()) if none}
    assert {"optimizer.ssm_lr", "training.max_epochs", "trainer.gradient_clip_val"} < optional
    for key in KEYS:
        config = place(Config(), key, None)
        if key in optional:
            check_numbers(config)
        else:
            with pytest.raises(UsageError, match=f"^{re.escape(key)} takes"):
                check_numbers(config)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("optimizer.eps", 0, "must lie in [1e-30, 1], got 0."),
        ("optimizer.eps", 1e-60, "must lie in [1e-30, 1], got 1e-60."),
        ("optimizer.betas", 1.0, "takes two numbers in [0, 1), got [0.9, 1.0]."),
        ("optimizer.lr", 1e300, "must be at most 1e+30, got 1e+300."),
        ("optimizer.lr", float("inf"), "must be a finite number, got inf."),
        ("trainer.gradient_clip_val", 0, "must be above 0, got 0. For no clipping: trainer.gradient_clip_val=null."),
        ("trainer.devices", "all", "takes a whole number, or auto, got 'all'."),
        ("trainer.devices", -1, "must be at least 1, or auto, got -1."),
        ("training.stuck_steps", 1e23, "takes a whole number, got 1e+23."),
        ("training.batch_size", 0.5, "takes a whole number, got 0.5."),
        ("training.batch_size", 2**63, f"must be at most 1000000000, got {2**63}."),
        ("training.num_workers", 100_000, "Each is a process, and this machine has"),
        ("training.max_minutes", float("nan"), "must be a finite number, got nan."),
        ("scheduler.warmup_fraction", 1.01, "must lie in [0, 1], got 1.01. It is a share of the steps."),
        ("seed", 2**53 + 1, f"must be at most {2**53}, got {2**53 + 1}."),
        ("seed", 1 << 16_000, f"must be at most {2**53}, got an integer of 16001 bits."),
    ],
    ids=name,
)
def test_words(key, value, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        check_numbers(place(Config(), key, value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("optimizer.lr", 0),
        ("optimizer.lr", 1),
        ("optimizer.ssm_lr", 0.0),
        ("optimizer.betas", 0),
        ("trainer.devices", "auto"),
        ("training.max_minutes", 0),
        ("training.target", 1),
        ("scheduler.warmup_steps", 0),
        ("training.num_workers", 8),
        ("seed", 2**53),
    ],
)
def test_ends_that_are_allowed(key, value):
    check_numbers(place(Config(), key, value))


@pytest.mark.parametrize(
    "override",
    ["optimizer.eps=inf", "optimizer.weight_decay=nan", "training.stuck_steps=1e23", "training.max_minutes=.inf"],
)
def test_the_command_line_has_no_way_around(override):
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    with pytest.raises((UsageError, HydraException, OmegaConfBaseException), match=override.partition("=")[0]):
        compose([override])


def test_validate_checks_numbers_first():
    config = compose([])
    config.optimizer.eps = float("inf")
    with pytest.raises(UsageError, match="optimizer.eps"):
        validate(config)


ODD_OPTIONS = [float("nan"), float("inf"), -float("inf"), 2**53 + 1, -(2**60), 1 << 16_000]


@pytest.mark.parametrize("value", ODD_OPTIONS, ids=name)
def test_options_of_registered_parts(value):
    def part(width: float = 1.0, count: int = 1):
        """A part with options, like a layer."""

    with pytest.raises(UsageError, match="The part takes"):
        check_options("The part", part, {"count" if isinstance(value, int) else "width": value}, [])


def test_parts_used_without_a_configuration_check_themselves():
    with pytest.raises(UsageError, match="optimizer.lr must be a finite number, got inf"):
        parameter_groups(nn.Linear(2, 2), OptimizerConfig(lr=float("inf")))
    with pytest.raises(UsageError, match="takes a torch module and an OptimizerConfig, got a list and a dict"):
        parameter_groups([], {})
    with pytest.raises(UsageError, match="scheduler.warmup_epochs must be a finite number, got nan"):
        schedule(SchedulerConfig(warmup_epochs=float("nan")), 10, 5)


CLUSTER = {"SLURM_NTASKS": "2"}, {"MASTER_ADDR": "first", "NODE_RANK": "0"}


def test_several_machines_need_something_that_starts_them(monkeypatch):
    config = compose(["trainer=cpu", "trainer.num_nodes=2"])
    for names in ("SLURM_NTASKS", "SLURM_JOB_NAME", "MASTER_ADDR", "NODE_RANK", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.delenv(names, raising=False)
    with pytest.raises(UsageError, match="num_nodes=2, but nothing here says which .* srun"):
        check_devices(config)
    for variables in CLUSTER:
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            check_devices(config)


def test_processes_beyond_the_cores_are_refused():
    with pytest.raises(UsageError, match=r"trainer.devices=4000 would start as many processes on \d+ core"):
        check_devices(compose(["trainer=cpu", "trainer.devices=4000"]))
    check_devices(compose(["trainer=cpu", "trainer.devices=2"]))
