"""Tables over seeds: who learned a proxy, and which runs on ListOps stayed finite."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fractal_ssm.config import compose
from scripts import learnability, listops_seeds, report, tables


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


def proxy_row(layer: str, task: str, test: float, steps: int = 40) -> dict[str, str]:
    row = {"experiment": f"proxy/{layer}-{task}", "test": test, "steps": steps, "fit_cpu_seconds": 2 * steps}
    return {**{key: str(value) for key, value in row.items()}, "parameters": "1000"}


@pytest.mark.parametrize(
    ("learned", "runs", "low", "high"),
    [(5, 5, 0.5655, 1.0), (0, 5, 0.0, 0.4345), (8, 10, 0.4902, 0.9433)],
)
def test_interval_is_wilsons(learned, runs, low, high):
    # Values of the closed form, ((p + z^2/2n) +- z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.95996.
    assert learnability.interval(learned, runs) == pytest.approx((low, high), abs=1e-4)


def test_seeds_that_learned_a_proxy():
    rows = [
        *(proxy_row("s5-short", "recall", test, 300) for test in (0.5, 0.52)),
        *(proxy_row("fractal", "recall", test, steps) for test, steps in ((1.0, 20), (0.9, 40), (0.89, 300))),
        proxy_row("fractal", "adding", 1.0),
        proxy_row("fractal", "recall", 0.95) | {"settings": "model.layer.measure=legs"},
    ]
    found = learnability.lines("recall", rows)
    # Other settings are no seeds of the experiment.
    other = ["fractal model.layer.measure=legs", "1 of 1"]
    assert [line[:2] for line in found] == [["fractal", "2 of 3"], other, ["s5-short", "0 of 2"]]
    assert found[0][2:] == ["21 to 94 %", "93.0 %", "89.0 %", "100.0 %", "40", "80", "1,000"]
    # Pathfinder counts from another threshold.
    found = learnability.lines("pathfinder", [proxy_row("s5", "pathfinder", test) for test in (0.85, 0.84)])
    assert found[0][1] == "1 of 2"


def test_validations_are_gathered_once_and_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    for seed, status in ((0, "finished"), (1, "finished"), (2, "failed")):
        choices = {"experiment": "proxy/s5-recall"}
        write_run(tmp_path / f"run{seed}", [0.5], [0.6, 1.0], seed=seed, status=status, choices=choices)
    write_run(tmp_path / "other", [0.5], [0.6], seed=3, choices=choices, overrides=["seed=3", "model.d_model=8"])
    learnability.gather_curves("c", [tmp_path])
    rows = learnability.gather_curves("c", [tmp_path])
    assert [(row["seed"], row["step"], row["accuracy"]) for row in rows] == [
        ("0", "20", "0.6"),
        ("0", "40", "1.0"),
        ("1", "20", "0.6"),
        ("1", "40", "1.0"),
    ]
    learnability.draw(rows, tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("losses", "facts", "finite"),
    [
        ([2.0] * 10 + [1.0] * 10, {}, True),
        ([2.0] * 10 + [float("nan")] * 10, {}, False),
        ([2.0] * 10, {"status": "failed", "planned_steps": 20}, False),
        ([2.0] * 10, {"planned_steps": 20}, False),
    ],
)
def test_a_run_is_finite_when_it_ends_and_every_loss_is(tmp_path, losses, facts, finite):
    row = listops_seeds.row_of(write_run(tmp_path / "run", losses, **facts))
    assert row["finite"] is finite and row["first_loss"] == 2.0 and row["steps"] == len(losses)
    assert row.keys() == set(listops_seeds.COLUMNS)


def test_runs_that_ended_are_gathered_once(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    for seed, status in enumerate(("finished", "failed", "running", "interrupted")):
        write_run(tmp_path / f"run{seed}", [2.0, 1.0], seed=seed, status=status)
    listops_seeds.gather([tmp_path])
    rows = listops_seeds.gather([tmp_path])
    assert [(row["seed"], row["finite"]) for row in rows] == [("0", "True"), ("1", "False")]
    assert listops_seeds.lines(rows) == [["s5", "1 of 2", "2", "1.500", "1.500", "1.500", "1.500", "50"]]


def test_a_run_that_did_not_log_every_step_is_refused(tmp_path):
    path = write_run(tmp_path / "run", [1.0, 1.0])
    metrics = path.with_name("metrics.csv")
    metrics.write_text(metrics.read_text().replace("0,1,1,step", "0,5,1,step"))
    with pytest.raises(ValueError, match="log_every_n_steps=1"):
        listops_seeds.row_of(path)


def test_the_page_is_what_the_scripts_write():
    page = learnability.PAGE.read_text()
    rows = report.read(report.RESULTS / "proxy.csv")
    seeds = report.read(report.RESULTS / "listops-seeds.csv")
    for name, header, body in (
        *((f"proxy-{task}", learnability.HEADER, learnability.lines(task, rows)) for task in learnability.LEARNED),
        ("listops-seeds", listops_seeds.HEADER, listops_seeds.lines(seeds)),
    ):
        assert tables.replaced(page, name, tables.markdown(header, body)) == page, f"run the script of table {name}"


def test_every_layer_ran_listops_with_five_seeds(built_in_layers):
    rows = report.read(report.RESULTS / "listops-seeds.csv")
    assert {row["layer"] for row in rows} == set(built_in_layers)
    for layer in built_in_layers:
        assert {row["seed"] for row in rows if row["layer"] == layer} == set("01234")


def test_a_validation_of_the_page_belongs_to_a_run_of_the_table():
    rows = report.read(report.RESULTS / "proxy.csv")
    curves = report.read(report.RESULTS / "proxy-curves.csv")
    last = {}
    for row in curves:
        last[row["experiment"], row["seed"], row["started"]] = int(row["step"])
    # Runs with other settings have a line of their own, and no curve.
    plain = [row for row in rows if not row["settings"]]
    assert last == {(row["experiment"], row["seed"], row["started"]): int(row["steps"]) for row in plain}
    assert 0 < len(plain) < len(rows)


def test_the_contrast_differs_in_its_time_steps_only():
    for task in ("recall", "adding"):
        long, short = (compose([f"experiment=proxy/{name}-{task}"]) for name in ("s5", "s5-short"))
        assert short.model["layer"] != long.model["layer"]
        short.model["layer"] |= {"dt_min": long.model["layer"]["dt_min"]}
        short.model["layer"].pop("dt_max")
        assert short == long
