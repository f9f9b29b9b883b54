"""A resumed run is the same run: parameters are equal to the last bit, wherever it was interrupted."""

from __future__ import annotations

import csv
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from training_toys import FOLDER, compose_toy

from fractal_ssm import UsageError, load_model
from fractal_ssm.config import Config
from fractal_ssm.train import run
from fractal_ssm.training.module import Classifier
from fractal_ssm.training.record import seconds
from fractal_ssm.training.resume import check_same_run, load_checkpoint

OPTIONS = ("model.dropout=0.2", "training.max_epochs=4", "scheduler.warmup_steps=5")


def interrupt_at(monkeypatch, step: int | None, stop: bool = False) -> list[tuple]:
    """Ctrl-C (or, with `stop`, a request to end early) in the step after `step` others; returns (step, *lr) seen."""
    original = Classifier.training_step
    seen: list = []

    def training_step(self, batch, batch_idx):
        if step is not None and self.global_step == step:
            if not stop:
                raise KeyboardInterrupt
            self.trainer.should_stop = True
        seen.append((self.global_step, *(group["lr"] for group in self.trainer.optimizers[0].param_groups)))
        return original(self, batch, batch_idx)

    monkeypatch.setattr(Classifier, "training_step", training_step)
    return seen


def cut_and_resume(config: Config, folder, monkeypatch, step: int, stop: bool) -> tuple[dict, list]:
    with monkeypatch.context() as patch:
        before = interrupt_at(patch, step, stop)
        if stop:
            run(config, folder)
        else:
            with pytest.raises(KeyboardInterrupt):
                run(config, folder)
    status = json.loads((folder / "record.json").read_text())["status"]
    assert status == ("finished" if stop else "interrupted")
    with monkeypatch.context() as patch:
        after = interrupt_at(patch, None)
        config.resume = str(folder / "checkpoints" / "last.ckpt")
        facts = run(config, folder)
    return facts, [row for row in before if row[0] < after[0][0]] + after


def weights(folder) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]


def rows(folder, *splits: str) -> list[dict]:
    with open(folder / "metrics.csv") as file:
        return [row | {"seconds": None} for row in csv.DictReader(file) if row["split"] in splits]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """An uninterrupted run: its folder, its facts and the (step, *lr) of its steps."""
    folder = tmp_path_factory.mktemp("straight")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        steps = interrupt_at(patch, None)
        facts = run(compose_toy(*OPTIONS), folder)
    return folder, facts, steps


@pytest.mark.parametrize(("step", "stop", "workers"), [(8, False, 0), (19, False, 2), (19, True, 2), (7, True, 0)])
def test_however_it_was_cut(toy_config, tmp_path, monkeypatch, keep_signals, straight, step, stop, workers):
    whole, facts, steps = straight
    config = toy_config(*OPTIONS, f"training.num_workers={workers}")
    resumed, resumed_steps = cut_and_resume(config, tmp_path, monkeypatch, step, stop)
    expected, found = weights(whole), weights(tmp_path)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    assert resumed["metrics"] == facts["metrics"]
    assert resumed_steps == steps
    assert rows(tmp_path, "step") == rows(whole, "step")
    # A run with a request to stop inside an epoch was validated there as well.
    extra = str(step + 1) if stop and step % 8 != 7 else None
    for split in ("train", "val"):
        assert [row for row in rows(tmp_path, split) if row["step"] != extra] == rows(whole, split)
    assert len(resumed["earlier"]) == 1


def test_other_settings_are_refused(toy_config, straight):
    last = straight[0] / "checkpoints" / "last.ckpt"
    config = toy_config(*OPTIONS, "model.n_layers=3", "seed=1", f"resume={last}")
    with pytest.raises(UsageError, match="model.n_layers: 2 in the checkpoint, 3 now") as caught:
        check_same_run(load_checkpoint(last), config, world=2)
    assert "seed: 0 in the checkpoint, 1 now" in str(caught.value)
    assert "processes: 1 in the checkpoint, 2 now" in str(caught.value)


@pytest.mark.parametrize("mistake", ["settings", "processes", "end", "data"])
def test_a_refused_resume_leaves_the_run_as_it_was(toy_config, straight, tmp_path, monkeypatch, mistake):
    shutil.copytree(straight[0], tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    drawn = []
    monkeypatch.setattr("toy_parts.ToyCounts.prepare", lambda self: drawn.append(self) if mistake != "data" else 1 / 0)
    if mistake == "processes":
        torch.save(load_checkpoint(last) | {"run": load_checkpoint(last)["run"] | {"world": 2}}, last)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"}
    changes = {"settings": ["seed=1"], "end": ["training.max_epochs=3"]}.get(mistake, [])
    told = {"settings": "seed: 0", "processes": "processes: 2", "end": "at step 32, .* end at step 24", "data": "zero"}
    with pytest.raises(ZeroDivisionError if mistake == "data" else UsageError, match=told[mistake]):
        run(toy_config(*OPTIONS, f"resume={last}", *changes), tmp_path / "run")
    # A mistake in the settings is reported before data are made.
    assert bool(drawn) is (mistake in ("processes", "end"))
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.name in {p.name for p in before}}


def test_the_time_of_a_run_is_that_of_its_parts(toy_config, tmp_path, monkeypatch, keep_signals):
    facts, _ = cut_and_resume(toy_config(*OPTIONS), tmp_path, monkeypatch, 19, stop=False)
    (part,) = facts["earlier"]
    assert part["status"] == "interrupted" and part["fit_seconds"] > 0 and part["fit_cpu_seconds"] > 0
    assert seconds(facts)[0] == pytest.approx(part["fit_seconds"] + facts["fit_seconds"], abs=2e-3)


FREE = {
    *("imports", "data_dir", "runs_dir", "resume"),
    *(f"trainer.{key}" for key in ("accelerator", "devices", "num_nodes", "strategy", "log_every_n_steps")),
    *(f"training.{key}" for key in ("max_epochs", "max_steps", "max_minutes", "target", "num_workers")),
    *("training.checkpoint_minutes", "training.requeue", "training.patience", "training.min_delta"),
    *("training.checkpoint_steps", "training.keep_checkpoints"),
    *("trainer.progress_bar", "trainer.progress_seconds", "training.stuck_steps", "training.train_eval_samples"),
}


def test_every_setting_is_either_compared_or_free(toy_config):
    config = toy_config(*OPTIONS)
    settings = asdict(config)
    parts = [key for key, value in settings.items() if isinstance(value, dict)]
    keys = {f"{part}.{key}" for part in parts for key in settings[part]} | settings.keys() - {*parts}
    assert keys > FREE and "trainer.gradient_clip_val" in keys
    for key in keys:
        was = asdict(config)
        *part, name = key.split(".")
        (was[part[0]] if part else was)[name] = "other"
        checkpoint = {"run": {"config": was, "world": 1}}
        if key in FREE:
            check_same_run(checkpoint, config, world=1)
            continue
        with pytest.raises(UsageError, match=rf"  {key}(\.\w+)*: 'other' in the checkpoint, "):
            check_same_run(checkpoint, config, world=1)


def test_a_checkpoint_from_before_a_key_existed_goes_on(toy_config):
    config, was = toy_config(*OPTIONS), asdict(toy_config(*OPTIONS))
    del was["optimizer"]["name"], was["optimizer"]["options"], was["logger"], was["training"]["ema_decay"]
    check_same_run({"run": {"config": was, "world": 1}}, config, world=1)
    config.optimizer.name = "sgd"
    with pytest.raises(UsageError, match="optimizer.name: 'adamw' in the checkpoint, 'sgd' now"):
        check_same_run({"run": {"config": was, "world": 1}}, config, world=1)
    # Loggers may change.
    check_same_run({"run": {"config": was, "world": 1}}, toy_config(*OPTIONS, "logger=tensorboard"), world=1)


def test_a_moved_folder_keeps_its_best(toy_config, straight, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(straight[0], moved)
    config = toy_config(*OPTIONS, f"resume={moved}/checkpoints/last.ckpt", "training.max_epochs=5")
    facts = run(config, moved)
    assert facts["steps"] == 40
    assert Path(facts["selected_checkpoint"]).parent == moved / "checkpoints"
    assert facts["metrics"]["val"]["accuracy"] >= straight[1]["metrics"]["val"]["accuracy"]


def test_unreadable_checkpoints(tmp_path, straight):
    with pytest.raises(UsageError, match="There is no checkpoint"):
        load_checkpoint(tmp_path / "last.ckpt")
    for content in (b"", b"not a checkpoint", (straight[0] / "checkpoints" / "last.ckpt").read_bytes()[:999]):
        (tmp_path / "last.ckpt").write_bytes(content)
        with pytest.raises(UsageError, match="cannot be read as a checkpoint"):
            load_checkpoint(tmp_path / "last.ckpt")
    torch.save({"state_dict": {}}, tmp_path / "last.ckpt")
    with pytest.raises(UsageError, match="no entry 'run'"):
        load_checkpoint(tmp_path / "last.ckpt")


def test_a_checkpoint_cannot_run_code(tmp_path):
    torch.save({"run": {}, "payload": os.getcwd}, tmp_path / "last.ckpt")
    with pytest.raises(UsageError, match="cannot be read"):
        load_checkpoint(tmp_path / "last.ckpt")


def test_the_model_of_a_checkpoint(toy_config, straight):
    model = load_model(straight[0] / "checkpoints" / "best.ckpt", imports=toy_config().imports)
    stored = load_checkpoint(straight[0] / "checkpoints" / "best.ckpt")["state_dict"]
    assert all(torch.equal(value, stored[f"model.{key}"]) for key, value in model.state_dict().items())
    assert not model.training
