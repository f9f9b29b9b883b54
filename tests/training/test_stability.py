"""Two hundred steps of every layer with its published settings: all numbers stay finite."""

from __future__ import annotations

import pytest
import torch

from fractal_ssm.config import compose
from fractal_ssm.train import run
from fractal_ssm.training.module import Classifier
from fractal_ssm.training.record import Metrics
from fractal_ssm.training.resume import load_checkpoint

STEPS = 200
# The layers of this package, each with the experiment whose optimiser trains it.
EXPERIMENTS = {name: f"lra/{name}-listops" for name in ("dss", "fractal", "lru", "s4", "s4d", "s5", "transformer")}
EXPERIMENTS["fractal-conv"] = "ablation/conv-listops"


def test_every_layer_of_the_package_is_here(built_in_layers):
    assert set(built_in_layers) == EXPERIMENTS.keys()


def assert_finite(named: dict[str, torch.Tensor]) -> None:
    bad = [name for name, tensor in named.items() if tensor.is_floating_point() and not torch.isfinite(tensor).all()]
    assert not bad


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("layer", sorted(EXPERIMENTS))
def test_finite_for_two_hundred_steps(tmp_path, monkeypatch, layer, dropout, precision):
    """Small trees and a small model, the full schedule of learning rates in 200 steps."""
    steps = []

    def watch(self, optimizer):
        assert_finite({name: p.grad for name, p in self.model.named_parameters() if p.grad is not None})
        assert_finite(dict(self.model.named_parameters()))
        steps.append(self.global_step)

    monkeypatch.setattr(Classifier, "on_before_optimizer_step", watch)
    length = ("training.limit_train_batches=null", "training.max_epochs=null", f"training.max_steps={STEPS}")
    config = compose(
        [
            *(f"experiment={EXPERIMENTS[layer]}", "budget=smoke", "trainer.progress_bar=false", *length),
            *("training.max_minutes=null", f"model.dropout={dropout}", f"trainer.precision={precision}"),
            f"data_dir={tmp_path}/data",
        ]
    )
    assert config.model["layer"]["name"] == layer
    facts = run(config, tmp_path / "run")
    assert steps == list(range(STEPS)) and facts["steps"] == STEPS
    assert_finite(load_checkpoint(tmp_path / "run" / "checkpoints" / "last.ckpt")["state_dict"])
    losses = torch.tensor([row["loss"] for row in Metrics(tmp_path / "run" / "metrics.csv").rows])
    assert len(losses) >= STEPS and bool(torch.isfinite(losses).all())
