"""Early stopping, checkpoints of single steps, and the average of the weights, also across an interruption."""

from __future__ import annotations

import json

import pytest
import torch
from lightning.pytorch import LightningModule

from fractal_ssm import load_model
from fractal_ssm.train import run
from fractal_ssm.training.checkpoints import LastCheckpoint
from fractal_ssm.training.module import Classifier
from fractal_ssm.training.resume import load_checkpoint
from fractal_ssm.training.signals import Stop

STEPS_AN_EPOCH = 8


def equal(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def record(folder) -> dict:
    return json.loads((folder / "record.json").read_text())


def last(folder) -> dict:
    return load_checkpoint(folder / "checkpoints" / "last.ckpt")


@pytest.fixture
def validations(monkeypatch):
    """Replace the accuracies that validations report."""

    def script(values: list[float]) -> None:
        def log(self, name, value, **options):
            if name == "val/accuracy":
                value = values[min(self.trainer.current_epoch, len(values) - 1)]
            LightningModule.log(self, name, value, **options)

        monkeypatch.setattr(Classifier, "log", log)

    return script


def test_patience_counts_validations_without_a_better_one(toy_config, tmp_path, validations):
    validations([0.2, 0.5, 0.5, 0.4, 0.9])
    run(toy_config("training.max_epochs=9", "training.patience=2"), tmp_path)
    assert record(tmp_path)["epochs"] == 4 and "(step 16)" in record(tmp_path)["selected"]


def test_patience_goes_on_counting_after_a_resume_and_may_change(toy_config, tmp_path, validations):
    validations([0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1])
    config = toy_config("training.max_epochs=3", "training.patience=4")
    run(config, tmp_path)
    config.training.max_epochs, config.training.patience = 9, 3
    config.resume = str(tmp_path / "checkpoints" / "last.ckpt")
    run(config, tmp_path)
    assert record(tmp_path)["epochs"] == 4


def test_min_delta(toy_config, tmp_path, validations):
    validations([0.5, 0.505, 0.51, 0.9])
    run(toy_config("training.max_epochs=9", "training.patience=2", "training.min_delta=0.02"), tmp_path)
    assert record(tmp_path)["epochs"] == 3


def test_checkpoints_of_steps_are_kept_and_gone_on_from_exactly(toy_config, tmp_path):
    options = ("model.dropout=0.2", "training.max_epochs=3", "training.checkpoint_steps=4")
    run(toy_config(*options), tmp_path / "whole")
    names = lambda folder: sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    assert names(tmp_path / "whole") == [f"step-{step:08d}.ckpt" for step in range(4, 25, 4)]
    # Inside an epoch, and at the end of one, where the validation is still to come.
    for step in (12, STEPS_AN_EPOCH):
        config = toy_config(*options, "training.keep_checkpoints=2")
        config.resume = str(tmp_path / "whole" / "checkpoints" / f"step-{step:08d}.ckpt")
        folder = tmp_path / f"from{step}"
        run(config, folder)
        assert equal(last(folder)["state_dict"], last(tmp_path / "whole")["state_dict"])
        assert names(folder) == ["step-00000020.ckpt", "step-00000024.ckpt"]
        assert record(folder)["metrics"] == record(tmp_path / "whole")["metrics"]


EMA = ("model.dropout=0.2", "model.norm=batch", "training.max_epochs=3", "training.ema_decay=0.9")


@pytest.fixture(scope="module")
def averaged(whole):
    return whole(*EMA)


def test_the_average_is_the_average_and_what_is_tested(toy_config, tmp_path, monkeypatch, averaged):
    seen: list[dict] = []
    original = Classifier.on_train_batch_start

    def on_train_batch_start(self, batch, batch_idx):
        seen.append({key: value.detach().clone() for key, value in self.state_dict().items()})
        original(self, batch, batch_idx)

    monkeypatch.setattr(Classifier, "on_train_batch_start", on_train_batch_start)
    run(toy_config(*EMA), tmp_path)
    checkpoint = last(tmp_path)
    seen.append(checkpoint["current_model_state"])
    for key, value in checkpoint["state_dict"].items():
        if value.is_floating_point():
            # The weights after the first step, then the average; validations in between change nothing.
            mean = seen[1][key]
            for state in seen[2:]:
                mean = 0.9 * mean + 0.1 * state[key]
            torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-6)
    # Training itself is the same as without the average.
    run(toy_config(*EMA[:-1]), tmp_path / "without")
    assert equal(last(tmp_path / "without")["state_dict"], checkpoint["current_model_state"])
    # Loading gives the average.
    best = load_checkpoint(tmp_path / "checkpoints" / "best.ckpt")
    model = load_model(tmp_path / "checkpoints" / "best.ckpt", imports=["toy_parts"])
    assert all(torch.equal(value, best["state_dict"][f"model.{key}"]) for key, value in model.state_dict().items())
    assert record(tmp_path)["metrics"] == record(averaged)["metrics"] != record(tmp_path / "without")["metrics"]


@pytest.mark.parametrize("moment", ["step", "validation", "inside a validation"])
def test_a_cut_average_goes_on_to_the_last_bit(toy_config, tmp_path, monkeypatch, averaged, moment):
    hook = {"step": "on_train_batch_end", "validation": "on_validation_start"}.get(moment, "on_validation_batch_end")
    original = getattr(LastCheckpoint, hook)

    def stop(self, trainer, *arguments):
        if trainer.state.fn == "fit" and trainer.global_step == (11 if moment == "step" else 16):
            self._signals.received = 15
        original(self, trainer, *arguments)

    config = toy_config(*EMA)
    with monkeypatch.context() as patch:
        patch.setattr(LastCheckpoint, hook, stop)
        with pytest.raises((Stop, KeyboardInterrupt)):
            run(config, tmp_path)
    config.resume = str(tmp_path / "checkpoints" / "last.ckpt")
    run(config, tmp_path)
    for key in ("state_dict", "current_model_state"):
        assert equal(last(tmp_path)[key], last(averaged)[key])
    assert record(tmp_path)["metrics"] == record(averaged)["metrics"]
