"""The benchmark's table is written from its rows, and a wrong gradient is reported as such."""

import csv
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("__main__", "report", "cases", "timing", "steps", "stepping", "siso")


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    modules = {name: importlib.import_module(f"scripts.bench.{name}") for name in MODULES}
    yield modules
    for name in [name for name in sys.modules if name == "scripts" or name.startswith("scripts.")]:
        del sys.modules[name]


def test_a_case_is_verified_timed_and_tabulated(bench, tmp_path):
    main, report = bench["__main__"], bench["report"]
    table = bench["timing"].Table(tmp_path / "bench.csv", main.COLUMNS)
    case = bench["cases"].Case("scan", (2, 16, 3))
    main.bench(case, table, seconds=0.0, only_ours=True, memory=False)
    table.close()
    with (tmp_path / "bench.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["contender"] for row in rows} == {"copy", "ours: native", "ours: torch"}
    assert all(float(row["gradient_error"]) < 1e-5 for row in rows if row["error"])
    target = tmp_path / "performance.md"
    target.write_text("# Performance\n\nwords that stay\n")
    for _ in range(2):
        report.write({"CPU": report.tables_of(tmp_path / "bench.csv")}, target)
    text = target.read_text()
    assert text.count("| ours: native |") == 1 and "words that stay" in text
    report.plot(tmp_path / "bench.csv", "L")
    assert (tmp_path / "bench.png").stat().st_size > 1000


def test_a_wrong_gradient_is_named(bench, monkeypatch, tmp_path):
    main = bench["__main__"]

    class NoConjugate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return (g * b).sum((0, 1)), g * a

    contenders = importlib.import_module("scripts.bench.contenders").Contenders(
        {"ours: right": lambda a, b: a * b, "ours: wrong": NoConjugate.apply}
    )
    monkeypatch.setitem(main.KINDS, "scan", lambda shape, mode: contenders)
    table = bench["timing"].Table(tmp_path / "bench.csv", main.COLUMNS)
    main.bench(bench["cases"].Case("scan", (2, 8, 3)), table, seconds=0.0, only_ours=True, memory=False)
    table.close()
    notes = {row["contender"]: row.get("note") for row in table.rows}
    assert notes["ours: wrong"] == "gradients are wrong" and not notes["ours: right"]


def test_a_training_step_is_verified_timed_and_tabulated(bench, tmp_path):
    main, report = bench["__main__"], bench["report"]
    table = bench["timing"].Table(tmp_path / "bench.csv", main.COLUMNS)
    main.bench(bench["cases"].Case("training", (2, 16, 8, 1)), table, seconds=0.0, only_ours=True, memory=False)
    table.close()
    (row,) = table.rows
    assert float(row["gradient_error"]) < 1e-4 and float(row["error"]) < 1e-5 and not row["note"]
    text = report.tables_of(tmp_path / "bench.csv")
    assert "**training step (2, 16, 8, 1)**" in text and f"| ours | {row['ms']} | 1.00 | {row['samples_s']} |" in text


def test_a_step_with_wrong_gradients_is_named(bench, monkeypatch, tmp_path):
    main, steps = bench["__main__"], bench["steps"]

    def wrong(problem):
        made = steps.ours(problem)

        def gradients():
            loss, found = made.gradients()
            return loss, {name: -g if name.endswith("log_dt") else g for name, g in found.items()}

        return steps.Step(made.step, gradients)

    monkeypatch.setitem(steps.CONTENDERS, "ours", ("torch", wrong))
    table = bench["timing"].Table(tmp_path / "bench.csv", main.COLUMNS)
    main.bench(bench["cases"].Case("training", (2, 16, 8, 1)), table, seconds=0.0, only_ours=True, memory=False)
    table.close()
    assert table.rows[0]["note"] == "gradients are wrong"


@pytest.mark.parametrize(("name", "module"), [("s5-pytorch", "s5"), ("jax S5-style", "jax")])
def test_peers_train_the_same_model(bench, name, module):
    pytest.importorskip(module)
    steps = bench["steps"]
    loss, gradients = steps.exact(steps.Problem((2, 17, 8, 2)))
    found_loss, found = steps.CONTENDERS[name][1](steps.Problem((2, 17, 8, 2))).gradients()
    assert found_loss == pytest.approx(loss, rel=1e-5) and found.keys() == gradients.keys()
    for key, g in gradients.items():
        torch.testing.assert_close(found[key].double(), g, rtol=0, atol=1e-4 * float(g.abs().max()), msg=key)


def test_a_step_s_peak_holds_its_activations():
    """In a process of its own, as the benchmark does it: what other tests freed would hide the peak."""

    def peak(batch: int) -> float:
        code = f"from scripts.bench import steps; print(steps.peak_over_idle(({batch}, 2048, 32, 2), 'ours'))"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
        return float(done.stdout)

    # Compiling takes memory; the second process finds the code on the disk.
    peak(8)
    # At least the input and the output of each block: 4 bytes a number.
    assert peak(8) - peak(1) > 7 * 2048 * 32 * 4 * 4 / 2**20


@pytest.mark.parametrize("mode", ["causal", "bidirectional"])
@pytest.mark.parametrize("kind", ["s4d", "s4"])
def test_the_published_layers_compute_what_ours_do(bench, kind, mode):
    siso, shape = bench["siso"], (2, 21, 4, 8)
    contenders = siso.for_layer(kind, shape, mode)
    given = [t.double().requires_grad_() for t in siso.tensors(kind, shape, mode)]

    def run(name):
        y = contenders.run[name](*given)
        return (y, *torch.autograd.grad(y, given, torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)))

    torch.testing.assert_close(run("published, naive"), run("ours"), rtol=1e-8, atol=1e-8)


def test_a_whole_layer_is_verified_timed_and_tabulated(bench, tmp_path):
    main, report = bench["__main__"], bench["report"]
    table = bench["timing"].Table(tmp_path / "layers.csv", main.COLUMNS)
    case = bench["cases"].Case("s4", (2, 16, 4, 8), "bidirectional")
    main.bench(case, table, seconds=0.0, only_ours=True, memory=False)
    table.close()
    both = table.rows[-1]
    assert both["what"] == "forward+backward" and float(both["gradient_error"]) < 1e-4 and not both["note"]
    assert "**s4 layer bidirectional (2, 16, 4, 8)**" in report.tables_of(tmp_path / "layers.csv")


def test_a_position_is_verified_timed_and_tabulated(bench, monkeypatch, tmp_path):
    main, report, stepping = bench["__main__"], bench["report"], bench["stepping"]
    ours = "ours: S4D"
    monkeypatch.setattr(stepping, "LAYERS", {ours: {"name": "s4d", "d_state": 4}})

    def wrong(layer, batch):
        return lambda u, x: (layer.step(u, x)[0] + 1, x), layer.initial_state(batch)

    plain = stepping.PEERS["published S4D, plain torch"]
    monkeypatch.setattr(stepping, "PEERS", {"plain": plain, "wrong": ("torch", ours, wrong)})
    table = bench["timing"].Table(tmp_path / "stepping.csv", main.COLUMNS)
    main.bench(bench["cases"].Case("stepping", (2, 8, 5)), table, seconds=0.0, only_ours=False, memory=False)
    table.close()
    rows = {row["contender"]: row for row in table.rows}
    assert [row["note"] for row in rows.values()] == ["", "", "wrong"]
    assert all(float(rows[name]["error"]) < 1e-5 for name in (ours, "plain")) and float(rows[ours]["of_ours"]) == 1
    text = report.tables_of(tmp_path / "stepping.csv")
    assert "**one position (2, 8, 5)**" in text and f"| {ours} | {1e3 * float(rows[ours]['ms']):.1f} |" in text
