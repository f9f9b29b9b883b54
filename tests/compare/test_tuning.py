"""Equal tuning: the same points for all arms, chosen by validation, on a seed apart."""

from __future__ import annotations

import pytest
from fake_runs import make_run

from fractal_ssm import UsageError
from fractal_ssm.compare.__main__ import main
from fractal_ssm.compare.plan import Plan
from fractal_ssm.compare.tuning import SEED, Range, points, read_ranges, table, trial_name, trial_plan, tuned

RANGES = {"optimizer.lr": Range(0.001, 0.1, log=True), "model.layer.dt_min": Range(0.001, 0.01)}


@pytest.fixture
def plan() -> Plan:
    arms = {"a": ["experiment=lra/s5-listops"], "b": ["experiment=lra/lru-listops"]}
    return Plan("test", "", arms, "a", seeds=(0, 1), common=["budget=smoke"])


def test_points_fill_the_ranges_and_stay():
    values = [float(point[0].partition("=")[2]) for point in points(RANGES, 17)[1:]]
    assert all(0.001 <= value <= 0.1 for value in values)
    # One in every sixteenth of the logarithmic range is what a Sobol sequence of 16 promises.
    import math

    assert len({int(16 * math.log10(value / 0.001) / 2 * 0.9999) for value in values}) == 16
    assert points(RANGES, 8) == points(RANGES, 16)[:8] == points(RANGES, 8)
    assert points(RANGES, 1) == [[]] and len(points(RANGES, 5)) == 5


def test_the_first_trial_is_the_arm_itself(plan):
    trials = trial_plan(plan, RANGES, 3)
    assert [trials.arms[trial_name(arm, 0)] for arm in plan.arms] == list(plan.arms.values())


def test_all_arms_get_the_same_points_but_for_options_they_lack(plan):
    trials = trial_plan(plan, RANGES, 3)
    assert len(trials.arms) == 6 and trials.seeds == [SEED]
    for number in (1, 2):
        first, second = trials.arms[trial_name("a", number)], trials.arms[trial_name("b", number)]
        assert first[1] == second[1]
        # An LRU has no step.
        assert len(first) == 3 and len(second) == 2
    with pytest.raises(UsageError, match="Seed 100"):
        trial_plan(Plan("x", "", plan.arms, "a", [99, 100]), RANGES, 1)


def test_the_best_validation_is_chosen_never_the_test(plan, tmp_path):
    trials = trial_plan(plan, RANGES, 3)
    for arm in plan.arms:
        for number, (val, test) in enumerate([(0.3, 0.9), (0.6, 0.1), (0.5, 0.8)]):
            metrics = {"val": {"accuracy": val}, "test": {"accuracy": test}, "train": {"accuracy": 0.0}}
            name = trial_name(arm, number)
            make_run(trials.folder(tmp_path, name, SEED), test, SEED, metrics=metrics, overrides=trials.arms[name])
    found = tuned(plan, trials, trials.runs(tmp_path), RANGES, 3)
    assert found.arms == {arm: trials.arms[trial_name(arm, 1)] for arm in plan.arms}
    assert "best of 3 trials" in found.tuning and "seed 100" in found.tuning and "0.001 to 0.1 (log)" in found.tuning
    assert len(table(plan, trials.runs(tmp_path), 3)[1]) == 6


def test_failed_trials_lose_and_none_is_refused(plan, tmp_path):
    trials = trial_plan(plan, RANGES, 2)
    for arm in plan.arms:
        make_run(trials.folder(tmp_path, trial_name(arm, 0), SEED), 0.5, SEED, status="failed", error="nan")
    make_run(trials.folder(tmp_path, trial_name("a", 1), SEED), 0.1, SEED)
    with pytest.raises(UsageError, match="No trial of 'b' finished"):
        tuned(plan, trials, trials.runs(tmp_path), RANGES, 2)


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "3",
        "optimizer.lr: 3",
        "optimizer.lr: {low: 2, high: 1}",
        "optimizer.lr: {low: 0, high: 1, log: true}",
        "optimizer.lr: {low: .nan, high: 1}",
        "optimizer.lr: {low: 0, hi: 1}",
    ],
)
def test_ranges_that_are_none(tmp_path, text):
    (tmp_path / "ranges.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"ranges\.yaml"):
        read_ranges(tmp_path / "ranges.yaml")
    with pytest.raises(UsageError, match="no file"):
        read_ranges(tmp_path / "none.yaml")


def test_the_packaged_ranges_and_a_dry_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "optimizer.lr" in read_ranges()
    words = ["experiments=lra/s5-listops,lra/lru-listops", "budget=cpu", "seeds=2", "tune=4", "--dry-run"]
    assert main(words) == 0
    assert "8 of 8 runs to make" in capsys.readouterr().out
    assert main([*words[:-2], "tune=x"]) == 2
    assert not list(tmp_path.iterdir())
