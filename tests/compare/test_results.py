"""From run folders to tables, sentences and pages."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fake_runs import make_run

from fractal_ssm import UsageError
from fractal_ssm.compare import page, tables
from fractal_ssm.compare.plan import Plan, from_runs
from fractal_ssm.compare.results import collect, sentences
from fractal_ssm.compare.runs import own_settings
from fractal_ssm.compare.statistics import difference

A, B = (0.50, 0.52, 0.51, 0.53, 0.50), (0.56, 0.57, 0.58, 0.58, 0.57)


@pytest.fixture
def plan() -> Plan:
    return Plan("test", "Is b better?", {"a": ["experiment=a"], "b": ["experiment=b"]}, "a")


def fill(plan, folder, scores, **changes):
    for arm, values in scores.items():
        for seed, value in enumerate(values):
            make_run(plan.folder(folder, arm, seed), value, seed, **changes)
    return plan.runs(folder)


def test_a_difference_is_that_of_the_pairs(plan, tmp_path):
    found = collect(plan, fill(plan, tmp_path, {"a": A, "b": B}))
    assert found.differences["b"] == difference(list(zip(A, B, strict=True)))
    assert found.differences["b"].claimed
    assert re.fullmatch(
        r"b lies 6\.00 points above a \(95 % interval \+\d\.\d\d to \+\d\.\d\d, n = 5, p [=<] .*\)\.",
        " ".join(sentences(found)),
    )


def test_no_claim_says_what_would_have_been_seen(plan, tmp_path):
    found = collect(plan, fill(plan, tmp_path, {"a": A, "b": A[::-1]}))
    assert "no difference from a can be claimed at n = 5" in " ".join(sentences(found))
    assert f"{100 * found.differences['b'].detectable:.2f} points would have been seen" in " ".join(sentences(found))


def test_only_seeds_that_both_have_are_pairs(plan, tmp_path):
    found = collect(plan, fill(plan, tmp_path, {"a": A, "b": B[:3]}))
    assert found.differences["b"].n == 3
    assert found.notes == ["2 of 10 runs have not been made yet."]


def test_a_failed_run_is_a_row_with_its_reason(plan, tmp_path):
    fill(plan, tmp_path, {"a": A, "b": B[:4]})
    make_run(plan.folder(tmp_path, "b", 4), 0.0, 4, status="failed", error="NotFinite: the loss is nan at step 7")
    found = collect(plan, plan.runs(tmp_path))
    assert found.notes == ["b, seed 4, has no result: NotFinite: the loss is nan at step 7."]
    header, rows = tables.runs(found)
    failed = dict(zip(header, rows[-1], strict=True))
    assert (failed["status"], failed["test"]) == ("failed", "")
    assert "the loss is nan" in failed["reason"]
    # It counts among the seeds that did not leave chance.
    assert tables.arms(found)[1][1][3].startswith("4 of 5")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"source": "generated", "checksum": "d2", "split_fingerprint": "s1"}}, "data: d1 in 5 runs"),
        ({"data": {"source": "generated", "checksum": "d1", "split_fingerprint": "s2"}}, "split: s1"),
        ({"commit": "def"}, "code revision: abc in 5 runs"),
        ({"choices": {"experiment": "lra/s5-listops", "budget": "full"}}, "budget: cpu"),
        ({"versions": {"torch": "2.14"}}, "torch: 2.13.0"),
    ],
)
def test_mixed_conditions_are_refused_unless_allowed(plan, tmp_path, changes, words):
    fill(plan, tmp_path, {"a": A})
    runs = fill(plan, tmp_path, {"b": B}, **changes)
    with pytest.raises(UsageError, match=re.escape(words)) as error:
        collect(plan, runs)
    assert "mixed=allow" in str(error.value)
    assert any(words in note for note in collect(plan, runs, allow_mixed=True).notes)


def test_an_arm_of_two_settings_is_refused(plan, tmp_path):
    fill(plan, tmp_path, {"a": A, "b": B[:1]})
    make_run(plan.folder(tmp_path, "b", 1), 0.5, 1, **{"training.batch_size": 8})
    with pytest.raises(UsageError, match="settings of b: training.batch_size is 4 and 8"):
        collect(plan, plan.runs(tmp_path))


def test_settings_that_differ_between_arms_are_told(plan, tmp_path):
    fill(plan, tmp_path, {"a": A})
    runs = fill(plan, tmp_path, {"b": B}, **{"training.batch_size": 8})
    assert tables.settings(collect(plan, runs)) == (["setting", "a", "b"], [["training.batch_size", "4", "8"]])


def test_samples_to_a_threshold(tmp_path):
    plan = Plan("test", "", {"a": []}, "a", threshold=0.4)
    header, rows = tables.arms(collect(plan, fill(plan, tmp_path, {"a": A})))
    # Validation accuracy is test * step / 20: 0.4 is passed at step 20 or, from 0.534, at 15; four samples a step.
    assert header[-1] == "samples to 40 %"
    assert rows[0][-1] == "80 (5 of 5)"


def test_the_same_records_give_the_same_page(plan, tmp_path):
    runs = fill(plan, tmp_path, {"a": A, "b": B})
    pages = {page.html(collect(plan, runs), "compare x") for _ in range(2)}
    assert len(pages) == 1
    text = pages.pop()
    assert text.count("<svg") == 3
    assert "http" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons", ""
    )
    assert "<script" not in text


def test_names_cannot_break_the_page(tmp_path):
    plan = Plan("<b>x</b>", "a < b?", {"a<i>": [], "b|c": []}, "a<i>")
    found = collect(plan, fill(plan, tmp_path, {"a<i>": A, "b|c": B}))
    assert "<b>x</b>" not in page.html(found, "x") and "<i>" not in page.html(found, "x")
    assert "b\\|c" in tables.page(found)


def test_any_folder_of_runs_can_be_reported(tmp_path):
    for seed, value in enumerate(A):
        make_run(tmp_path / "one" / str(seed), value, seed)
        make_run(tmp_path / "two" / str(seed), value, seed, overrides=["model.d_model=32"])
    plan, runs = from_runs("x", [tmp_path])
    assert list(plan.arms) == ["lra/s5-listops", "lra/s5-listops model.d_model=32"]
    assert collect(plan, runs).differences["lra/s5-listops model.d_model=32"].n == 5
    # Nothing was planned, so nothing is missing.
    found = collect(plan, runs[:7])
    assert found.notes == [] and tables.arms(found)[1][1][2] == "2"
    with pytest.raises(UsageError, match="no run below"):
        from_runs("x", [tmp_path / "none"])


@pytest.mark.parametrize("text", ["", "[", "null", '{"status": 3}'])
def test_a_damaged_record_is_a_row_and_stops_nothing(plan, tmp_path, text):
    fill(plan, tmp_path, {"a": A, "b": B})
    (plan.folder(tmp_path, "b", 2) / "record.json").write_text(text)
    (plan.folder(tmp_path, "b", 1) / "metrics.csv").write_text("epoch,step\n0,5,1")
    found = collect(plan, plan.runs(tmp_path))
    assert found.differences["b"].n == 4
    page.html(found, "x")


def test_one_run_has_a_page(plan, tmp_path):
    found = collect(plan, fill(plan, tmp_path, {"a": A[:1]}))
    assert "no pair" in " ".join(sentences(found))
    page.html(found, "x")
    np.testing.assert_equal(found.arms[0].summary.n, 1)


@pytest.mark.parametrize("value", ["true", "True"])
def test_a_setting_has_one_spelling_in_a_sweep_and_outside(value):
    overrides = ["seed=1", "trainer=cpu", f"model.layer.learn_alpha={value}", "model.layer.init=None", "hydra.x=y"]
    assert own_settings({"overrides": overrides}) == "model.layer.init=none model.layer.learn_alpha=true"
