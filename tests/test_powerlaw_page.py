"""The page of the power-law tasks: distances, what is read from checkpoints, and that the page is what is written."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fractal_ssm.compare import statistics
from fractal_ssm.data.powerlaw.recall import PowerlawRecall
from fractal_ssm.data.powerlaw.warp import SPEEDS, PowerlawWarp
from fractal_ssm.models.backbone import SequenceModel
from scripts import records, tables
from scripts.powerlaw import __main__ as page
from scripts.powerlaw import details, excess, figures, rows


def record(layer: str, seed: int, test: float, *said: str, task: str = "predict", started: str = "2026-01-01") -> dict:
    name = "accuracy" if task == "recall" else "mse"
    return {
        "status": "finished",
        "choices": {"experiment": f"powerlaw/{layer}-{task}"},
        "overrides": [f"experiment=powerlaw/{layer}-{task}", *said, f"seed={seed}", "trainer=cpu"],
        "layer": layer,
        "dataset": f"powerlaw-{task}",
        "seed": seed,
        "metric": {"name": name, "higher_is_better": name == "accuracy"},
        "metrics": {split: {name: test} for split in ("train", "val", "test")},
        "reference": {
            "optimal": 0.5 if name == "mse" else 1.0,
            "optimal, expected": 0.4,
            "infinite past, expected": 0.3,
            "AR(1)": 0.6,
        },
        "data": {"checksum": "1"},
        "commit": "abcdef",
        "versions": {"torch": "2"},
        "parameters": 1000,
        "steps": 10,
        "fit_cpu_seconds": 5.0,
        "started": started,
    }


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def gathered(*records):
    return rows.gather((None, one) for one in records)


def test_rows_are_told_apart_by_data_and_settings_and_a_later_run_replaces(results):
    gathered(record("s5", 0, 0.55), record("s5", 0, 0.56, "dataset.d=0.2", "model.d_model=8"))
    found = gathered(record("s5", 0, 0.51, started="2026-01-02"), record("s5", 0, 0.9, started="2025-01-01"))
    assert [(row["data"], row["settings"], row["test"]) for row in found] == [
        ("", "", "0.51"),
        ("dataset.d=0.2", "model.d_model=8", "0.56"),
    ]
    assert found == records.read(results / "powerlaw.csv")


def test_lines_give_distances_and_paired_differences(results):
    tests = {"s5": (0.51, 0.52, 0.53), "fractal": (0.515, 0.526, 0.533)}
    found = gathered(
        *(record(layer, seed, test) for layer, all_of in tests.items() for seed, test in enumerate(all_of))
    )
    fractal, s5, optimal, expected, limit, short = excess.lines(found)
    assert s5[:4] == ["s5", "3", "0.5200", "+4.00 %"] and s5[5:8] == ["", "", ""]
    half = 4.30265 * 2.0 / np.sqrt(3)
    assert s5[4] == f"{4 - half:+.2f} to {4 + half:+.2f}"
    pair = statistics.difference([(2.0, 3.0), (4.0, 5.2), (6.0, 6.6)])
    assert fractal[5:7] == [f"{pair.mean:+.2f} %", f"{pair.low:+.2f} to {pair.high:+.2f}"]
    assert fractal[7] == f"{pair.p:.2g}"
    assert optimal[:4] == ["*optimal*", "", "0.5000", "+0.00 %"] and short[3] == "+20.00 %"
    # An expectation is compared with an expectation.
    assert (expected[3], limit[3]) == ("+0.00 %", "-25.00 %")
    assert all(len(line) == len(excess.HEADER) for line in (fractal, s5, optimal, short))


def test_the_verdict_names_only_what_is_told_apart(results):
    tests = {
        "s5": (0.51, 0.52, 0.53),
        "fractal": (0.505, 0.5151, 0.525),
        "s4d": (0.52, 0.529, 0.541),
        "lru": (0.5, 0.6, 0.5),
    }
    found = gathered(
        *(record(layer, seed, test) for layer, all_of in tests.items() for seed, test in enumerate(all_of))
    )
    assert excess.verdict(found) == (
        "Closer to the optimum than s5, at 5 % after the correction: `fractal`. "
        "Further from the optimum than s5, at 5 % after the correction: `s4d`. "
        "Not told apart from s5 by these seeds: `lru`."
    )
    assert excess.verdict(found[:3]) == ""


def test_a_single_seed_and_a_missing_baseline_claim_nothing(results):
    alone = gathered(record("lru", 0, 0.55))
    assert excess.verdict(alone) == ""
    (line, *_) = excess.lines(alone)
    assert line[3:8] == ["+10.00 %", "", "", "", ""]
    (line, *_) = excess.lines(gathered(record("lru", 0, 0.75, task="recall"))[1:])
    assert line[3] == "+25.00 points"


def test_the_page_tells_what_is_there_and_what_is_not(results):
    found = gathered(record("s5", 0, 0.55), record("s5", 0, 0.6, "dataset.d=0.2"))
    text = page.rewritten(page.PAGE.read_text(), found)
    assert "As the experiments have it (revision abcdef):" in text and "`dataset.d=0.2` (revision abcdef):" in text
    assert text.count("Not yet run.") == len(rows.TASKS) - 1


def test_the_page_is_what_the_script_writes():
    source = records.RESULTS / "powerlaw.csv"
    found = records.read(source) if source.exists() else []
    assert page.rewritten(page.PAGE.read_text(), found) == page.PAGE.read_text(), "run python -m scripts.powerlaw"
    shown = {f"results/{path.name}" for path in records.RESULTS.glob("powerlaw-*.png")}
    assert all(name in page.PAGE.read_text() for name in shown)


def test_figures_are_drawn_of_nothing_and_of_something(tmp_path, results):
    runs = [record("s5", 0, 0.55), record("fractal", 0, 0.6), record("fractal", 0, 0.6, "dataset.d=0.2")]
    found = gathered(*runs)
    head = {"experiment": "powerlaw/fractal-predict", "data": "dataset.d=0.2", "settings": ""}
    known = [
        *({**head, "kind": "alpha", "where": f"0.{k}", "value": "0.3"} for k in range(2)),
        *({**head, "kind": "damping", "where": f"0.{share}", "value": "0.1"} for share in ("0.1", "0.5", "0.9")),
        {**head, "kind": "delay", "where": "4", "value": "0.9"},
        {**head, "kind": "speed", "where": "0.5 as trained", "value": "1.2"},
        {**head, "kind": "speed", "where": "2 as trained", "value": "1.3"},
    ]
    for rest, group in (([], {}), (known, page.groups(found))):
        figures.draw_excess(group, tmp_path / "excess.png")
        figures.draw_modes(rest, tmp_path / "modes.png")
        figures.draw_delays(rest, tmp_path / "delay.png")
        figures.draw_speeds(rest, tmp_path / "speed.png")
    assert all(
        (tmp_path / f"{n}.png").read_bytes().startswith(b"\x89PNG") for n in ("excess", "modes", "delay", "speed")
    )


def model(layer: dict, **facts) -> SequenceModel:
    torch.manual_seed(0)
    return SequenceModel(layer, d_model=4, n_layers=2, norm="batch", **facts).eval()


def test_alphas_and_dampings_of_the_layers():
    regression = {"d_input": 1, "task": "regression", "d_target": 1, "per_position": True}
    learned = model({"name": "fractal", "d_state": 16, "n_alphas": 2, "learn_alpha": True}, **regression)
    found = details.modes(learned, {})
    alphas = [value for kind, _, value in found if kind == "alpha"]
    assert alphas == pytest.approx([*learned.blocks[0].layer.alphas, *learned.blocks[1].layer.alphas])
    for layer in ({"name": "fractal", "d_state": 16}, {"name": "s5", "d_state": 8, "blocks": 1}, {"name": "lru"}):
        block = model(layer, **regression).blocks[0].layer
        damping = details.dampings(block)
        # What an impulse leaves in the state after one step more.
        u = torch.zeros(1, 3, 4)
        u[:, 0] = 1.0
        states = [block(u[:, :n])[1] for n in (2, 3)]
        ratio = (states[1].abs() / states[0].abs())[0].log().detach().numpy()
        np.testing.assert_allclose(-ratio, damping, rtol=1e-3, atol=1e-5)
    assert details.dampings(model({"name": "s4d"}, **regression).blocks[0].layer) is None


def test_accuracy_by_delay_is_that_of_the_whole_split():
    options = {"length": 64, "n_test": 60, "scales": 4, "queries": 20}
    data = PowerlawRecall(None, **options)
    lru = model({"name": "lru"}, d_input=5, n_classes=2, task="tokens")
    found = {int(where): value for _, where, value in details.by_delay(lru, {"name": "powerlaw-recall", **options})}
    batch = data.collate([data.split("test")[index] for index in range(60)])
    right = (lru(batch.inputs).argmax(-1) == batch.targets).double().detach()
    delays = torch.from_numpy(data.delays(batch.inputs.numpy()))
    assert found == pytest.approx({delay: right[delays == delay].mean().item() for delay in (1, 2, 4, 8)})


def test_errors_by_speed_use_the_optimum_of_each_speed():
    node = {"name": "powerlaw-warp", "length": 32, "n_test": 20}
    lru = model({"name": "s5", "d_state": 8, "blocks": 1}, d_input=1, task="regression", d_target=1, per_position=True)
    found = {where: value for _, where, value in details.by_speed(lru, node)}
    assert set(found) == {f"{speed:g} {told}" for speed in SPEEDS for told in ("scaled", "as trained")}
    assert found["1 scaled"] == found["1 as trained"] and found["4 scaled"] != found["4 as trained"]
    data = PowerlawWarp(None, length=32, n_test=20, speed=4.0)
    batch = data.collate([data.split("test")[index] for index in range(20)])
    mse = (lru(batch.inputs, dt_scale=4.0) - batch.targets).double().square().mean().item()
    assert found["4 scaled"] == pytest.approx(mse / data.reference()["optimal"])


def test_details_of_a_run_are_read_once(results, monkeypatch):
    calls = []
    monkeypatch.setattr(
        details, "details", lambda folder, one: calls.append(1) or [{"kind": "alpha", "where": "0.0", "value": "0.5"}]
    )
    details.gather([(None, record("s5", 0, 0.5))])
    found = details.gather([(None, record("s5", 0, 0.5))])
    assert len(calls) == 1 and len(found) == 1
    assert len(details.gather([(None, record("s5", 0, 0.5, started="2026-02-01"))])) == 1 and len(calls) == 2


def test_other_runs_and_unfinished_ones_are_left_out(tmp_path, capsys):
    good = record("s5", 0, 0.5)
    for name, one in {
        "a": good,
        "b": {**good, "status": "failed"},
        "c": {**good, "choices": {"experiment": "proxy/s5-recall"}},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(json.dumps(one))
    assert [folder.name for folder, _ in rows.finished([tmp_path])] == ["a"]
    assert "failed" in capsys.readouterr().err


def test_the_marks_of_every_task_are_on_the_page():
    for task in rows.TASKS:
        tables.replaced(page.PAGE.read_text(), f"powerlaw-{task}", "")


def test_the_header_of_an_experiment_tells_its_own_runs(results):
    runs = (record("s5", 0, 0.51), record("s5", 1, 0.53), record("s5", 2, 0.9, "dataset.d=0.2"), record("lru", 0, 0.55))
    assert excess.measured(gathered(*runs)) == {
        "powerlaw/s5-predict": "mse 0.5200, +4.00 ± 2.83 % from the optimum over 2 seeds",
        "powerlaw/lru-predict": "mse 0.5500, +10.00 % from the optimum over 1 seed",
    }


def test_no_run_of_the_page_beats_the_optimum():
    """Paired on one test split, what chance leaves of a distance is far below a fifth of a percent."""
    source = records.RESULTS / "powerlaw.csv"
    found = [row for row in records.read(source) if row["metric"] == "mse"]
    assert found
    for row in found:
        optimum = json.loads(row["reference"])["optimal"]
        assert excess.distance("mse", float(row["test"]), optimum) > -0.2, rows.key(row)
