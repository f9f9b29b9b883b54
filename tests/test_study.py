"""The study: its commands are those that its page has results for, and its tables come from rows alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fractal_ssm.compare.__main__ import make_plan, parse
from fractal_ssm.compare.plan import Plan, ablation
from scripts import study, tables


def write_run(folder: Path, losses: list[float], val: list[float] = (), **facts) -> Path:
    """A run folder with a record and the losses of its steps and validations."""
    record = {
        "status": "finished",
        "started": "2026-01-01",
        "layer": "s5",
        "seed": 0,
        "choices": {"experiment": "lra/s5-listops"},
        "versions": {"torch": "2"},
        "commit": "abc",
        "data": {"checksum": "1"},
        "device": "cpu",
        "parameters": 1000,
        "planned_steps": len(losses),
        "fit_cpu_seconds": 50.0,
        **facts,
    }
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(json.dumps(record))
    rows = [f"0,{step},1,step,{loss},0.5,0.1" for step, loss in enumerate(losses, 1)]
    rows += [f"0,{20 * index},1,val,0.5,{accuracy},0.1" for index, accuracy in enumerate(val, 1)]
    (folder / "metrics.csv").write_text("\n".join(["epoch,step,seconds,split,loss,accuracy,lr", *rows]) + "\n")
    return folder / "record.json"


def rows(comparison, arms, baseline="published"):
    return [
        {
            **dict.fromkeys(study.COLUMNS, ""),
            "comparison": comparison,
            "baseline": baseline,
            "arm": arm,
            "seed": str(seed),
            "test": str(test),
            "early_loss": "0.5",
            "parameters": "1000",
            "tuning": "none",
            "samples_to": str(samples),
        }
        for arm, runs in arms.items()
        for seed, (test, samples) in enumerate(runs)
    ]


def commands():
    (block,) = re.findall(r"^```console\n(.*?)^```", study.PAGE.read_text(), flags=re.M | re.S)
    start = "python -m fractal_ssm.compare "
    return [line.removeprefix(start) for line in block.splitlines() if line.startswith(start)]


def test_every_result_has_its_command_and_every_command_a_place():
    names = [make_plan(parse(command.split())).name for command in commands()]
    assert len(set(names)) == len(names)
    assert set(names) == {name for comparisons in study.QUESTIONS.values() for name in comparisons}


@pytest.mark.parametrize("name", study.CONTRASTS)
def test_contrasts_name_arms(name):
    arms = ablation(name)["arms"]
    assert {arm for pair in study.CONTRASTS[name] for arm in pair} <= set(arms)


def test_the_page_is_written_from_the_file():
    text = study.PAGE.read_text()
    kept = study.records.read(study.SOURCE) if study.SOURCE.exists() else []
    assert study.page(text, kept) == text


def test_what_has_no_runs_is_said_not_run():
    text = "".join(f"<!-- table: study-{question} -->\n<!-- end -->\n" for question in study.QUESTIONS)
    assert study.page(text, []).count("not run") == sum(len(names) for names in study.QUESTIONS.values())


def test_a_table_over_seeds():
    name = f"damping-{study.MATCHED}"
    arms = {
        "published": [(0.5, ""), (0.52, ""), (0.51, ""), (0.49, ""), (0.5, 24000)],
        "s5": [(0.81, 8000), (0.82, 9000), (0.83, 10000), (0.8, 11000), (0.82, 12000)],
        "lru": [(0.5, "")],
    }
    published, s5, lru = study.lines(name, rows(name, arms))
    assert published[:5] == ["published", "5", "50.4 ± 1.1 %", "1 of 5", "24,000"]
    assert published[-4:] == ["-"] * 4
    assert s5[3:5] == ["5 of 5", "10,000"] and s5[7] == "+31.2" and s5[-1] == "above"
    assert lru[2] == "50.0 %" and lru[-1] == "no"
    assert any(
        text.startswith("s5 against published: +31.2 points") for text in study.contrast_lines(name, rows(name, arms))
    )
    worse = {"published": arms["s5"], "x": arms["published"]}
    assert study.lines(name, rows(name, worse))[1][-1] == "below"
    alike = {"published": [(0.5, ""), (0.6, ""), (0.55, "")], "x": [(0.51, ""), (0.57, ""), (0.56, "")]}
    assert re.fullmatch(r"no \(\d+\.\d would have been\)", study.lines(name, rows(name, alike))[1][-1])


def test_where_a_trained_alpha_went():
    name = f"learn-damping-{study.MATCHED}"
    given = rows(name, {"alpha a block": [(0.8, ""), (0.81, "")]}, baseline="alpha a block")
    for row, end in zip(given, ("0.6", "0.7"), strict=True):
        row |= {"alpha_start": "0.45", "alpha_end": end}
    assert study.alpha_lines(given) == ["alpha a block: mean alpha from 0.45 to 0.60, 0.70."]
    assert "mean alpha from 0.45" in study.section("g", given)


def test_runs_are_gathered_from_a_comparison(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "SOURCE", tmp_path / "study.csv")
    plan = Plan("random-B-listops", "?", {"a": [], "b": []}, "a", [0], tuning="none")
    plan.save(tmp_path / "runs")
    for arm, accuracy in (("a", 0.3), ("b", 0.4)):
        metrics = {"test": {"accuracy": accuracy, "majority": 0.1, "samples": 10}, "val": {"accuracy": 0.5}}
        losses = [2.0, 1.0, *[0.1] * 8]
        folder = plan.folder(tmp_path / "runs", arm, 0)
        write_run(folder, losses, metrics=metrics, steps=10, fit_seconds=1.0, peak_memory_bytes=1)
        (folder / "config.yaml").write_text("training: {batch_size: 4}\n")
    found = study.gather([tmp_path / "runs"])
    assert [(row["arm"], row["test"], row["early_loss"]) for row in found] == [("a", "0.3", "1.5"), ("b", "0.4", "1.5")]
    # The same runs again replace themselves.
    assert len(study.gather([tmp_path / "runs"])) == 2
    assert "| b | 1 | 40.0 % |" in study.section("d", found)
    with pytest.raises(SystemExit, match="no comparison of the study"):
        study.gather([tmp_path])


def test_marks_are_found_once():
    with pytest.raises(ValueError, match="exactly once"):
        tables.replaced("", "study-a", "x")
