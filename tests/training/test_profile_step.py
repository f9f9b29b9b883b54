"""The profile of a training step assigns time to the parts that spent it."""

import importlib
import sys
import time
from pathlib import Path

import pytest
import torch

from fractal_ssm.config import compose
from fractal_ssm.models.blocks.mixer import HalfGLU2

ROOT = Path(__file__).resolve().parents[2]
SMALL = [
    "experiment=lra/s5-listops", "trainer=cpu", "training.batch_size=2", "model.d_model=8", "model.n_layers=1",
    "dataset.source=generated", "dataset.n_train=24", "dataset.n_val=2", "dataset.n_test=2", "dataset.min_length=10",
    "dataset.max_length=40",
]  # fmt: skip
SECONDS = 0.02


class Slow(torch.autograd.Function):
    """The identity, whose backward takes a while."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        time.sleep(SECONDS)
        return g


@pytest.fixture
def profile_step(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    yield importlib.import_module("scripts.profile_step")
    for name in [name for name in sys.modules if name == "scripts" or name.startswith("scripts.")]:
        del sys.modules[name]


def test_time_lies_where_it_was_spent(profile_step, monkeypatch, tmp_path):
    forward = HalfGLU2.forward
    monkeypatch.setattr(HalfGLU2, "forward", lambda self, y, z: Slow.apply(forward(self, y, z)))
    window, _ = profile_step.run(compose([*SMALL, f"data_dir={tmp_path}"]), warmup=1, steps=3)
    found = profile_step.shares(window.events)
    assert found["mixer"][1] >= 3 * SECONDS * 1e3
    assert sum(both[1] for part, both in found.items() if part != "mixer") < found["mixer"][1]
    for part in ("encoder", "norm", "layer", "mixer", "pooling", "head", "loss and accuracy"):
        assert found[part][0] > 0 and found[part][1] > 0, part
    assert found["loader"][0] > 0 and found["optimizer"][0] > 0
    # Nothing is counted twice.
    assert 3 * SECONDS < sum(map(sum, found.values())) / 1e3 <= window.profiled_seconds
    assert window.samples == 6 and window.seconds > 3 * SECONDS


def test_the_rows_become_a_table(profile_step, monkeypatch, tmp_path):
    options = ["--steps", "2", "--warmup", "1", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["profile_step", *options, *SMALL, f"data_dir={tmp_path}"])
    profile_step.main()
    text = importlib.import_module("scripts.bench.report").profile_tables(tmp_path)
    assert "**s5-listops**, whole step, inputs (2, " in text and "| lightning and the rest |" in text
    shares = [float(line.split("|")[4].strip().rstrip("%")) for line in text.splitlines() if line.endswith("% |")]
    assert sum(shares) == pytest.approx(100, abs=1)
