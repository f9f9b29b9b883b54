"""The doctor says what runs here and why the rest does not, plug-ins included."""

from __future__ import annotations

from pathlib import Path

import torch

from fractal_ssm import doctor, list_layers
from fractal_ssm.ops.runtime.backends import interpreting

TOYS = Path(__file__).parent / "training"


def test_report(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.syspath_prepend(TOYS)
    assert doctor.main(["imports=[toy_parts]"]) == 0
    said = capsys.readouterr().out
    assert torch.__version__ in said and "Backends" in said
    for name in (*list_layers(), "listops", "legs", "linspace"):
        assert name in said
    assert "toy-decay (toy_parts)" in said
    scan = {line.split("│")[3].strip(): line for line in said.splitlines() if line.startswith("│ scan")}
    assert "runs, chosen by auto" in scan["native"] and "runs" in scan["reference"]
    if not torch.cuda.is_available() and not interpreting():
        assert "no: triton needs tensors on a CUDA or ROCm device" in scan["triton"]
        assert said.count("TRITON_INTERPRET=1") == 1 and said.count("no, see scan") == 3


def test_mistakes(capsys):
    assert doctor.main(["imports=no_such_module"]) == 2
    assert "there is no module 'no_such_module'" in capsys.readouterr().err
    assert doctor.main(["--verbose"]) == 2
    assert "takes imports=MODULE" in capsys.readouterr().err
