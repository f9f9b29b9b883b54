"""Comparisons of regression: numbers instead of percent, and lower is better in every table, sentence and picture."""

from __future__ import annotations

import re

import pytest
from fake_runs import make_run

from fractal_ssm import UsageError
from fractal_ssm.compare import figures, page, tables
from fractal_ssm.compare.plan import Plan
from fractal_ssm.compare.progress import _outcome
from fractal_ssm.compare.results import collect, sentences
from fractal_ssm.compare.runs import read
from fractal_ssm.compare.tuning import SEED, Range, table, trial_name, trial_plan, tuned
from fractal_ssm.compare.units import Units
from fractal_ssm.training.metric import ACCURACY, MSE

MSE_FACTS = {"metric": {"name": "mse", "higher_is_better": False}, "reference": {"optimal": 0.0251}}
A, B = (0.0500, 0.0520, 0.0510, 0.0530, 0.0500), (0.0312, 0.0331, 0.0318, 0.0340, 0.0309)


@pytest.fixture
def plan() -> Plan:
    return Plan("test", "Is b better?", {"a": ["experiment=a"], "b": ["experiment=b"]}, "a", threshold=0.04)


def fill(plan, folder, scores, **changes):
    for arm, values in scores.items():
        for seed, value in enumerate(values):
            make_run(plan.folder(folder, arm, seed), value, seed, **changes)
    return plan.runs(folder)


def test_lower_is_better(plan, tmp_path):
    found = collect(plan, fill(plan, tmp_path, {"a": A, "b": B}, **MSE_FACTS))
    (said,) = sentences(found)
    interval = r"-0\.0\d+ to -0\.0\d+"
    assert re.fullmatch(
        rf"b lies 0\.019 below a, which is better \(95 % interval {interval}, n = 5, p [=<] .*\)\.", said
    )
    header, rows = tables.differences(found)
    assert header[1] == "difference in mse, lower is better" and rows[0][1] == "-0.019"
    other = collect(Plan("t", "", plan.arms, "b"), found.runs)
    assert "a lies 0.019 above b, which is worse (" in sentences(other)[0]


def test_the_table_of_arms_has_numbers_and_references(plan, tmp_path):
    found = collect(plan, fill(plan, tmp_path, {"a": A, "b": B}, **MSE_FACTS))
    header, rows = tables.arms(found)
    first, second, last = (dict(zip(header, row, strict=True)) for row in rows)
    assert first["test mse"] == "0.0512 ± 0.0013" and first["r2"] == "0.3"
    assert first["r2 > 0 (95 % interval)"].startswith("5 of 5")
    assert last["arm"] == "optimal (reference)" and last["test mse"] == "0.0251"
    # mse * 20 / step: 0.04 is reached by the best runs of b at step 20, or from 0.03 at 15; four samples a step.
    assert first["samples to 0.04"] == "not reached" and second["samples to 0.04"] == "80 (5 of 5)"
    assert "%" not in "".join(row[1] for row in tables.differences(found)[1])
    assert "accuracy" not in tables.page(found)


def test_pictures_are_in_the_metric(plan, tmp_path):
    found = collect(plan, fill(plan, tmp_path, {"a": A, "b": B}, **MSE_FACTS))
    low, high = figures.band(found.arms[1], found.units.scale)[1::2]
    assert low[-1] == pytest.approx(min(B)) and high[-1] == pytest.approx(max(B))
    text = page.html(found, "compare x")
    for words in ("validation mse", "test mse", "test mse minus that of a; left of 0 is better", "optimal"):
        assert words in text
    assert "accuracy" not in text


def test_a_run_is_told_in_its_own_metric(tmp_path):
    from fractal_ssm.compare.launch import Job

    make_run(tmp_path / "mse", 0.05123456, **MSE_FACTS)
    make_run(tmp_path / "old", 0.5)
    assert _outcome(Job("a", 0, tmp_path / "mse", (), None)) == "test mse 0.05123"
    assert _outcome(Job("a", 0, tmp_path / "old", (), None)) == "test accuracy 50.00 %"


def test_a_record_that_names_no_metric_is_of_accuracies(tmp_path):
    run = read(make_run(tmp_path / "old", 0.5))
    assert "metric" not in run.facts and run.metric == ACCURACY and run.score() == 0.5
    assert run.validations()[-1] == (20, 10.0, 0.5) and run.left_chance


def test_runs_of_two_metrics_are_refused_even_where_mixtures_are_allowed(plan, tmp_path):
    fill(plan, tmp_path, {"a": A})
    runs = fill(plan, tmp_path, {"b": B}, **MSE_FACTS)
    with pytest.raises(UsageError, match="accuracy and mse. Compare runs of one kind of task"):
        collect(plan, runs, allow_mixed=True)


def test_a_threshold_fits_its_metric(tmp_path):
    plan = Plan("test", "", {"a": []}, "a", threshold=2.5)
    with pytest.raises(UsageError, match=r"threshold is an accuracy in \(0, 1\] for these runs, got 2.5"):
        collect(plan, fill(plan, tmp_path / "one", {"a": A}))
    header, _ = tables.arms(collect(plan, fill(plan, tmp_path / "two", {"a": A}, **MSE_FACTS)))
    assert header[-1] == "samples to 2.5"


def test_the_trial_of_the_lowest_error_is_chosen(tmp_path):
    arms = {"a": ["experiment=lra/s5-listops"]}
    plan, ranges = Plan("test", "", arms, "a", seeds=(0, 1), common=["budget=smoke"]), {"optimizer.lr": Range(0.1, 1)}
    trials = trial_plan(plan, ranges, 4)
    for number, val in enumerate([0.3, 0.02, float("nan"), 0.5]):
        metrics = {"val": {"mse": val}, "test": {"mse": 1 - number}, "train": {"mse": 0.0}}
        name = trial_name("a", number)
        make_run(trials.folder(tmp_path, name, SEED), 0.0, SEED, **MSE_FACTS, metrics=metrics)
    runs = trials.runs(tmp_path)
    assert tuned(plan, trials, runs, ranges, 4).arms["a"] == trials.arms[trial_name("a", 1)]
    header, rows = table(plan, runs, 4)
    assert header[-1] == "validation mse" and [row[-1] for row in rows] == ["0.3", "0.02", "nan", "0.5"]


def test_digits():
    units = Units(MSE)
    assert units.value(1234.5678) == "1235" and units.value(0.000012345) == "1.234e-05"
    assert units.mean(0.051234, 0.0012345) == "0.05123 ± 0.0012" and units.mean(0.05, float("nan")) == "0.05"
    assert units.signed(-0.0123456) == "-0.0123" and units.signed(float("nan")) == units.value(float("nan")) == "-"
    assert Units().mean(0.5, 0.01) == "50.00 ± 1.00 %"
