"""Learning-rate factors against the formulas of the sources, step by step."""

from __future__ import annotations

import math

import pytest
import torch

from fractal_ssm import UsageError
from fractal_ssm.config import SchedulerConfig
from fractal_ssm.training.scheduler import schedule


def test_cosine_with_warmup():
    factor = schedule(SchedulerConfig(warmup_steps=4), 12, 3)
    expected = [0, 0.25, 0.5, 0.75] + [0.5 * (1 + math.cos(math.pi * k / 8)) for k in range(9)] + [0, 0]
    assert [factor(step) for step in range(15)] == pytest.approx(expected, abs=1e-15)


def test_cosine_s5_lags_by_one_update_and_counts_on_from_zero():
    spe, epochs, warmup = 5, 4, 1
    factor = schedule(SchedulerConfig(name="cosine-s5", warmup_epochs=warmup), spe * epochs, spe)
    end = spe * (epochs - warmup)

    def after(counter: int) -> float:
        if counter < spe * warmup:
            return (counter + 1) / (spe * warmup)
        return 0.5 * (1 + math.cos(math.pi * min(counter, end) / end))

    expected = [1.0] + [after(update - 1) for update in range(1, spe * epochs)]
    assert [factor(step) for step in range(spe * epochs)] == pytest.approx(expected, abs=1e-15)
    assert factor(6) < factor(5)
    assert factor(spe * epochs - 1) == 0


def test_inverse_sqrt_and_constant():
    factor = schedule(SchedulerConfig(name="inverse-sqrt", warmup_steps=100), 10_000, 10)
    assert factor(50) == pytest.approx(0.5 / 10)
    assert factor(400) == pytest.approx(1 / 20)
    constant = schedule(SchedulerConfig(name="constant", warmup_steps=2), 10, 10)
    assert [constant(step) for step in range(4)] == [0, 0.5, 1, 1]


def test_lengths_of_the_warmup():
    for options, expected in (
        ({"warmup_steps": 7}, 7),
        ({"warmup_epochs": 1.5}, 15),
        ({"warmup_fraction": 0.25}, 25),
        ({"warmup_steps": 0}, 0),
        ({}, 0),
    ):
        factor = schedule(SchedulerConfig(**options), 100, 10)
        reached = next(step for step in range(101) if factor(step) == 1)
        assert reached == expected


def test_total_steps_replace_those_of_the_run():
    factor = schedule(SchedulerConfig(total_steps=10, min_factor=0.1), 100, 10)
    assert factor(10) == pytest.approx(0.1) and factor(99) == pytest.approx(0.1)


def test_warmup_longer_than_the_run():
    with pytest.raises(UsageError, match="warm-up takes 50 steps but the schedule has 20"):
        schedule(SchedulerConfig(warmup_steps=50), 20, 5)


def test_first_update_uses_the_factor_of_step_zero():
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=2.0)
    factor = schedule(SchedulerConfig(warmup_steps=2), 4, 4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    seen = []
    for _ in range(4):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert seen == [2 * factor(step) for step in range(4)]
