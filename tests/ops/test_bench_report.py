"""The benchmark's table is written from its rows, and a wrong gradient is reported as such."""

import csv
import importlib
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    modules = {name: importlib.import_module(f"scripts.bench.{name}") for name in ("__main__", "report", "cases", "timing")}
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
        report.write(tmp_path / "bench.csv", [], target)
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
