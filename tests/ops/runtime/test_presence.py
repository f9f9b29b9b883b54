"""Without code compiled by numba, torch's operators take over, and nobody is handed memory that was never written."""

from __future__ import annotations

import os
import subprocess
import sys

from fractal_ssm.ops.runtime import presence

CODE = """
import torch
from fractal_ssm import S4, S4D, S5, Fractal, scan
from fractal_ssm.ops.pointwise import gated

torch.manual_seed(0)
assert scan(torch.tensor([0.5]), torch.ones(1, 4, 1)).flatten().tolist() == [1.0, 1.5, 1.75, 1.875]
v, w = torch.randn(2, 40000)
torch.testing.assert_close(gated(v, w), v * w.sigmoid())
u = torch.randn(2, 7, 8)
for layer in (S4(8), S4D(8), S5(8, d_state=8, blocks=1), Fractal(8)):
    y = layer(u)[0]
    state = layer.initial_state(2)
    with torch.no_grad():
        for k in range(7):
            y_k, state = layer.step(u[:, k], state)
            torch.testing.assert_close(y_k, y[:, k], rtol=1e-4, atol=1e-4)
    y.sum().backward()
    two = type(layer)(8, bidirectional=True)
    assert two(u)[0].isfinite().all()
"""


def test_with_numbas_compiler_switched_off():
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_numba_that_cannot_be_imported(monkeypatch):
    def fail(name):
        raise ImportError("Numba needs NumPy 2.2 or less")

    monkeypatch.setattr(presence.importlib, "import_module", fail)
    assert "cannot be imported (Numba needs NumPy" in presence._find_obstacle.__wrapped__()


def test_a_missing_numba(monkeypatch):
    monkeypatch.setattr(presence.importlib.util, "find_spec", lambda name: None)
    assert "pip install numba" in presence._find_obstacle.__wrapped__()
