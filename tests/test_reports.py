"""Tables of results are written from run records, with seeds, chance and the origin of the data."""

from __future__ import annotations

import json

import pytest

from scripts import experiment_table, report, tables


def record(seed: int, test: float, lra: bool = True, status: str = "finished", overrides: tuple = ()) -> dict:
    scores = {split: {"accuracy": test, "majority": 0.5, "samples": 400} for split in ("train", "val", "test")}
    return {
        "status": status,
        "started": f"2026-01-0{seed + 1}",
        "layer": "s5",
        "dataset": "pathfinder",
        "seed": seed,
        "choices": {"experiment": "lra/s5-pathfinder", "budget": "cpu"},
        "overrides": ["experiment=lra/s5-pathfinder", "budget=cpu", f"seed={seed}", *overrides],
        "versions": {"torch": "2"},
        "commit": "abc",
        "data": {"source": "generated", "lra": lra, "checksum": "1", "split_fingerprint": "2"},
        "device": "cpu",
        "parameters": 1000,
        "steps": 10,
        "fit_seconds": 60.0,
        "fit_cpu_seconds": 50.0,
        "samples_per_second": 5.0,
        "peak_memory_bytes": 2**20,
        "metrics": scores,
    }


def write(folder, records) -> None:
    for index, facts in enumerate(records):
        run = folder / f"run{index}"
        run.mkdir(parents=True)
        (run / "record.json").write_text(json.dumps(facts))


def test_mean_spread_and_seeds_that_learned(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    write(tmp_path / "runs", [record(0, 0.9), record(1, 0.8), record(2, 0.51), record(3, 0.0, status="interrupted")])
    rows = report.gather("x", [tmp_path / "runs"])
    assert [row["seed"] for row in rows] == [0, 1, 2]
    (line,) = report.summary(rows)
    # Standard deviation with n - 1; 0.51 of 400 samples is within three standard errors of chance.
    assert line[3] == "73.67 ± 20.26 %" and line[5] == "2 of 3 seeds"


def test_a_run_of_regression_is_no_row_of_accuracies(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    write(tmp_path / "runs", [record(0, 0.9), record(1, 0.9) | {"metric": {"name": "mse", "higher_is_better": False}}])
    assert [row["seed"] for row in report.gather("x", [tmp_path / "runs"])] == [0]
    assert "its main metric is mse" in capsys.readouterr().err


def test_a_run_counts_once_and_other_data_is_another_line(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    write(tmp_path / "a", [record(0, 0.9)])
    write(tmp_path / "b", [record(1, 0.9, lra=False)])
    report.gather("x", [tmp_path / "a"])
    rows = report.gather("x", [tmp_path / "a", tmp_path / "b"])
    assert [line[2] for line in report.summary(rows)] == ["generated", "generated, not the LRA set"]


def test_other_settings_are_another_line_and_not_another_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    changes = ("model.layer.clip_eigs=true", "+model.d_model=8")
    runs = [record(0, 0.9), record(1, 0.8, overrides=("trainer=cpu", "data_dir=/elsewhere", "trainer.devices=2"))]
    write(tmp_path / "runs", [*runs, record(2, 0.5, overrides=changes), record(3, 0.6, overrides=changes[::-1])])
    # Read again from the file, as text.
    for folders in ([tmp_path / "runs"], []):
        lines = report.summary(report.gather("x", folders))
        assert [line[0] for line in lines] == ["lra/s5-pathfinder", f"lra/s5-pathfinder {' '.join(changes[::-1])}"]
        assert [line[3] for line in lines] == ["85.00 ± 7.07 %", "55.00 ± 7.07 %"]
    monkeypatch.setattr(experiment_table, "RESULTS", tmp_path / "results")
    assert experiment_table.measured()["lra/s5-pathfinder"] == ["85.00 ± 7.07 % at budget=cpu"]


def test_the_table_of_another_script_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    (tmp_path / "x.csv").write_text("layer,steps\ns5,10\n")
    with pytest.raises(SystemExit, match="x.csv is a table of another script"):
        report.gather("x", [])
    assert (tmp_path / "x.csv").read_text() == "layer,steps\ns5,10\n"


def test_a_resumed_run_took_as_long_as_its_parts():
    part = {"status": "interrupted", "fit_seconds": 30.5, "fit_cpu_seconds": 20.25}
    row = report.row_of(record(0, 0.9) | {"earlier": [part, {"status": "running"}]})
    assert (row["fit_seconds"], row["fit_cpu_seconds"]) == (90.5, 70.25)


def test_tables_stand_between_their_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: t -->\nold\n<!-- end -->\nafter\n")
    tables.write(page, "t", ["a", "b"], [["1", "2"]])
    assert page.read_text() == "before\n<!-- table: t -->\n| a | b |\n| --- | --- |\n| 1 | 2 |\n<!-- end -->\nafter\n"
    with pytest.raises(ValueError, match="page.md.*'other' exactly once"):
        tables.write(page, "other", ["a"], [])


def test_the_index_of_experiments_is_what_the_script_writes():
    lines = [[f"`{name}`", *rest] for name, *rest in experiment_table.rows()]
    page = experiment_table.PAGE.read_text()
    body = tables.markdown(["experiment", "published", "measured"], lines)
    assert tables.replaced(page, "experiments", body) == page, "run python -m scripts.experiment_table"


def test_headers_and_results_agree():
    for name, _, text in experiment_table.rows():
        path = experiment_table.EXPERIMENTS / f"{name}.yaml"
        measured = experiment_table.header_field(path, "Measured")
        assert measured == text, f"run python -m scripts.experiment_table: {path}"
