"""Whole runs of two processes over gloo equal, for every layer, the run of one process with batches twice as large."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fractal_ssm.training.resume import load_checkpoint

LAYERS = sorted(path.stem for path in (Path(__file__).parents[2] / "configs" / "model").glob("*.yaml"))
COMMON = ("dataset=listops", "budget=smoke", "model.norm=layer", "model.dropout=0.0", "training.limit_train_batches=3")
COMMON += ("training.limit_eval_batches=null", "training.max_minutes=null", "trainer.progress_bar=false")
TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "training.batch_size=2")


def train(folder: Path, *options: str) -> dict[str, torch.Tensor]:
    """Weights of the last checkpoint of a run."""
    done = subprocess.run(
        [sys.executable, "-m", "fractal_ssm.train", *COMMON, *options, f"hydra.run.dir={folder}"],
        cwd=folder.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return load_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]


@pytest.mark.slow
@pytest.mark.parametrize("layer", LAYERS)
def test_two_processes_train_as_one(tmp_path, layer):
    one = train(tmp_path / "one", f"model={layer}", "training.batch_size=4")
    two = train(tmp_path / "two", f"model={layer}", *TWO)
    assert one.keys() == two.keys()
    for key, value in one.items():
        # AdamW divides by the root of squares, so rounding of a gradient near zero moves a weight by a share of lr.
        torch.testing.assert_close(two[key], value, rtol=1e-3, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}")
