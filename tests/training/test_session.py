"""Files and messages of a run: record, curves, hints, limits."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading

import pytest
import torch
from omegaconf import OmegaConf
from rich.console import Console

from fractal_ssm import UsageError
from fractal_ssm.config import Config
from fractal_ssm.errors import RunFailed
from fractal_ssm.models.build import build_model
from fractal_ssm.train import run
from fractal_ssm.training import session
from fractal_ssm.training.callbacks import ChanceHint
from fractal_ssm.training.record import Metrics, Record, earlier_parts, git_commit
from fractal_ssm.training.resume import load_checkpoint
from fractal_ssm.training.table import result_table


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    from training_toys import FOLDER, compose_toy

    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        facts = run(compose_toy("training.train_eval_samples=10"), folder, {"experiment": "toy"})
    return folder, facts


def test_record(finished):
    folder, facts = finished
    record = json.loads((folder / "record.json").read_text())
    assert record == json.loads(json.dumps(facts, default=str))
    assert record["status"] == "finished" and record["seed"] == 0 and record["choices"] == {"experiment": "toy"}
    assert {"torch", "lightning", "numpy", "python"} <= record["versions"].keys()
    assert record["data"]["source"] == "generated" and record["device"]
    assert record["steps"] == record["planned_steps"] == 24
    assert record["peak_memory_bytes"] > 1e7 and record["samples_per_second"] > 0
    assert 0 < record["fit_cpu_seconds"] < 100 * record["fit_seconds"]
    assert sum(group["parameters"] for group in record["parameter_groups"]) == record["parameters"]
    for split, samples in (("train", 10), ("val", 21), ("test", 21)):
        result = record["metrics"][split]
        assert result["samples"] == samples
        assert result["accuracy"] * samples == pytest.approx(round(result["accuracy"] * samples), abs=1e-9)
        assert 1 / 3 <= result["majority"] < 1
    assert record["commit"] == git_commit()


def test_the_selected_checkpoint_is_the_first_of_the_best_validations(finished):
    folder, facts = finished
    rows = [row for row in Metrics(folder / "metrics.csv").rows if row["split"] == "val"]
    best = max(rows, key=lambda row: row["accuracy"])
    assert facts["selected"] == f"best validation accuracy (step {best['step']})"
    assert facts["metrics"]["val"]["accuracy"] == pytest.approx(best["accuracy"], rel=1e-5)
    assert load_checkpoint(facts["selected_checkpoint"])["global_step"] == best["step"]


def test_metrics_rows_and_curves(finished):
    folder, _ = finished
    rows = Metrics(folder / "metrics.csv").rows
    assert [row["step"] for row in rows if row["split"] == "step"] == list(range(1, 25))
    assert [row["step"] for row in rows if row["split"] == "train"] == [8, 16, 24]
    assert all(math.isfinite(row["loss"]) and 0 <= row["accuracy"] <= 1 for row in rows)
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_saved_configuration_rebuilds_the_model(finished):
    folder, _ = finished
    config = OmegaConf.to_object(OmegaConf.merge(Config, OmegaConf.load(folder / "config.yaml")))
    stored = load_checkpoint(folder / "checkpoints" / "last.ckpt")
    model = build_model(config.model, stored["run"]["data"])
    model.load_state_dict({key.removeprefix("model."): value for key, value in stored["state_dict"].items()})


def test_a_folder_is_not_used_twice(finished, toy_config):
    with pytest.raises(UsageError, match=r"holds a run already.*resume="):
        run(toy_config(), finished[0])


def test_of_runs_that_begin_at_once_one_has_the_folder(toy_config, tmp_path, monkeypatch):
    """All have checked the folder before the first of them writes into it."""
    config, barrier = toy_config(), threading.Barrier(4)
    monkeypatch.setattr(session, "environment", lambda: {"thread": (barrier.wait(60), threading.get_ident())[1]})
    refused, owners = [], []

    def begin(number: int) -> None:
        one = session.Session(config, tmp_path / "run")
        try:
            one.begin(f"number: {number}", {})
        except UsageError as error:
            refused.append(str(error))
        else:
            owners.append((number, threading.get_ident()))

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3 and all("holds a run already" in message for message in refused)
    ((number, thread),) = owners
    assert (tmp_path / "run" / "config.yaml").read_text() == f"number: {number}"
    assert json.loads((tmp_path / "run" / "record.json").read_text())["thread"] == thread


def test_other_processes_of_a_run_do_not_claim_its_folder(finished, toy_config, monkeypatch):
    before = (finished[0] / "record.json").read_bytes()
    monkeypatch.setenv("LOCAL_RANK", "1")
    config = toy_config("trainer.strategy=ddp", "trainer.devices=2")
    session.Session(config, finished[0]).begin("", {})
    assert (finished[0] / "record.json").read_bytes() == before


def test_a_resumed_run_does_not_take_the_folder_of_another(finished, toy_config, tmp_path):
    (tmp_path / "record.json").write_text("{}")
    config = toy_config(f"resume={finished[0]}/checkpoints/last.ckpt")
    with pytest.raises(UsageError, match="holds a run already"):
        run(config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_seeds(toy_config, tmp_path):
    def losses(seed: int, name: str) -> list[float]:
        run(toy_config(f"seed={seed}", "trainer.log_every_n_steps=1", "model.dropout=0.2"), tmp_path / name)
        return [row["loss"] for row in Metrics(tmp_path / name / "metrics.csv").rows]

    first, second, other = losses(3, "first"), losses(3, "second"), losses(4, "other")
    assert first == second and first != other


def test_time_limit_still_ends_in_a_test(toy_config, tmp_path, capsys):
    facts = run(toy_config("training.max_minutes=0", "training.max_epochs=50"), tmp_path)
    assert facts["steps"] == 1 and facts["status"] == "finished"
    assert facts["metrics"]["test"]["samples"] == 21
    assert "training.max_minutes=0 reached at step 1" in capsys.readouterr().out


DENORMALS = """
import sys, torch
from fractal_ssm import train
def run(*_):
    # Large enough that every thread computes a part of it.
    print((torch.full((1 << 20,), 1e-40) * 1).unique().tolist())
    metric = {"name": "accuracy", "higher_is_better": True}
    return {"metric": metric, "metrics": {"val": {"accuracy": 0.0}}}
train.run = run
sys.argv = ["train", "experiment=lra/s5-listops", "budget=smoke", "hydra.run.dir=" + sys.argv[1]]
train.main()
"""


def test_the_command_line_treats_denormals_as_zero(tmp_path):
    command = [sys.executable, "-c", DENORMALS, str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[0.0]"]


def test_the_function_leaves_the_process_s_denormals_alone(toy_config, tmp_path):
    run(toy_config("training.max_epochs=1"), tmp_path)
    assert float(torch.tensor(1e-40) * 1) > 0.0


@pytest.mark.parametrize(("target", "steps"), [(0.05, 8), (1.0, 24)])
def test_a_reached_target_ends_the_fit(toy_config, tmp_path, capsys, target, steps):
    """The accuracy of the toy task of three classes is above 5 % after any epoch of 8 steps, and never 100 %."""
    facts = run(toy_config(f"training.target={target}"), tmp_path)
    assert facts["steps"] == steps and facts["planned_steps"] == 24 and facts["metrics"]["test"]["samples"] == 21
    assert ("target=0.05 reached at step 8" in capsys.readouterr().out) is (target < 1)


@pytest.mark.parametrize(("limit", "epochs"), [(3, None), (8, None), (11, 3)])
def test_steps_that_end_inside_an_epoch_are_validated_and_kept(toy_config, tmp_path, limit, epochs):
    """An epoch has 8 steps; a run with fewer, or with a shorter last epoch, still ends in a validation."""
    facts = run(toy_config(f"training.max_steps={limit}", f"training.max_epochs={epochs or 'null'}"), tmp_path)
    assert facts["steps"] == limit and facts["metrics"]["test"]["samples"] == 21
    rows = Metrics(tmp_path / "metrics.csv").rows
    assert [row["step"] for row in rows if row["split"] == "val"] == sorted({min(limit, 8), limit})
    assert load_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == limit


def test_a_picture_that_cannot_be_written_ends_no_run(toy_config, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Metrics, "plot", full)
    assert run(toy_config("training.max_epochs=1"), tmp_path)["status"] == "finished"
    assert "curves.png could not be written (No space left on device)" in capsys.readouterr().out


def test_a_part_that_calls_exit_has_failed_and_was_not_interrupted(toy_config, tmp_path, monkeypatch):
    from toy_parts import ToyDecay

    config = toy_config("training.max_epochs=1")
    monkeypatch.setattr(ToyDecay, "forward", lambda *_, **__: sys.exit(3))
    with pytest.raises(RunFailed, match=r"called sys\.exit\(3\)"):
        run(config, tmp_path)
    assert json.loads((tmp_path / "record.json").read_text())["status"] == "failed"


def test_a_split_at_another_rate_is_scored_at_its_time_step(toy_config, tmp_path, monkeypatch):
    from fractal_ssm.models.backbone import SequenceModel

    seen = {}
    original = SequenceModel.forward

    def forward(self, inputs, lengths=None, dt_scale=1.0):
        seen.setdefault((self.training, len(inputs)), set()).add(dt_scale)
        return original(self, inputs, lengths, dt_scale)

    monkeypatch.setattr(SequenceModel, "forward", forward)
    options = ("training.max_steps=2", "training.train_eval_samples=5", "training.eval_batch_size=100")
    facts = run(toy_config("dataset.test_scale=2.0", "dataset.n_test=22", *options), tmp_path)
    assert facts["dt_scales"] == {"train": 1.0, "val": 1.0, "test": 2.0}
    # Training; scored samples of training, validation and test; and the trial of two sequences before.
    assert seen == {(True, 8): {1.0}, (False, 5): {1.0}, (False, 21): {1.0}, (False, 22): {2.0}, (False, 2): {2.0}}


def test_a_layer_without_a_time_step_is_told_before_training(toy_config, tmp_path):
    with pytest.raises(UsageError, match="no step that dt_scale could change"):
        run(toy_config("dataset.test_scale=2.0", "model=lru"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_table_says_what_the_data_are(finished):
    def title(**data) -> str:
        return result_table({**finished[1], "data": data}).title

    assert title(source="stand-in", lra=False).startswith("toy-decay on toy-counts (stand-in: not the LRA set), best")
    assert "(generated: not the LRA set)" in title(source="generated", lra=False)
    assert "(generated, the LRA set)" in title(source="generated", lra=True)
    assert "(source not given: not the LRA set)" in title()


def test_limits_and_accumulation(toy_config, tmp_path):
    facts = run(
        toy_config(
            "training.limit_train_batches=6",
            "training.limit_eval_batches=1",
            "training.max_steps=5",
            "trainer.accumulate_grad_batches=2",
            "trainer.gradient_clip_val=0.1",
            "training.bucket_by_length=true",
            "training.eval_batch_size=7",
        ),
        tmp_path,
    )
    assert facts["steps"] == facts["planned_steps"] == 5
    assert facts["metrics"]["val"]["samples"] == 7


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.layer.foo=1"], "The layer 'toy-decay' has no option 'foo'. Its options: dt, break_at."),
        (["model.layer.dt=fast"], "The layer 'toy-decay' takes dt as float, got 'fast'."),
        (["model=s5", "model.layer.dt=0.5"], "The layer 's5' has no option 'dt'."),
        (["dataset.n_trian=3"], "The dataset 'toy-counts' has no option 'n_trian'"),
        (["dataset.name=toy-count"], "Unknown dataset 'toy-count'. Known:"),
        (["model.n_layerz=2"], "model has no option 'n_layerz'."),
        (["model.d_model=wide"], "model takes d_model as int, got 'wide'."),
        (["imports=[toy_partz]"], "imports names 'toy_partz', but there is no module 'toy_partz'"),
        (["trainer.accelerator=gpu", "trainer.devices=99"], "GPU"),
        (["trainer.devices=many"], "trainer.devices takes a whole number, or auto, got 'many'."),
        (["scheduler.warmup_steps=1000"], "warm-up takes 1000 steps but the schedule has 24"),
    ],
)
def test_mistakes_of_parts(toy_config, tmp_path, overrides, words):
    with pytest.raises(UsageError) as caught:
        run(toy_config(*overrides), tmp_path)
    assert words in str(caught.value)


class FakeTrainer:
    def __init__(self, step: int, accuracy: float):
        self.global_step, self.callback_metrics = step, {"accuracy": accuracy}


def hint_after(losses: list[float], accuracy: float, n_classes: int = 2) -> str:
    console = Console(record=True, width=400, file=open("/dev/null", "w"))
    with console.file:
        hint = ChanceHint(10, n_classes, console)
        for step, loss in enumerate(losses, start=1):
            hint.on_train_batch_end(FakeTrainer(step, accuracy), None, {"loss": torch.tensor(loss)}, None, step)
        return console.export_text()


def test_hint_at_chance():
    said = hint_after([0.6931] * 30, 0.5)
    assert said.count("Hint:") == 1 and "which is chance" in said
    assert hint_after([0.6931] * 9, 0.5) == ""
    assert hint_after([0.68] * 30, 0.5) == ""
    assert hint_after([0.6931] * 30, 0.6) == ""
    assert hint_after([0.6931] * 30, 0.5, n_classes=10) == ""


def test_metrics_forget_what_is_done_again(tmp_path):
    path = tmp_path / "metrics.csv"
    metrics = Metrics(path)
    for step in (5, 10, 1234567):
        metrics.add(epoch=0, step=step, seconds=0.5, split="val", loss=1.25, accuracy=0.5, lr=1e-3)
    again = Metrics(path)
    assert again.rows == metrics.rows
    again.forget_after(9)
    again.add(epoch=1, step=11, seconds=0.25, split="val", loss=1.0, accuracy=0.75, lr=1e-4)
    assert [row["step"] for row in Metrics(path).rows] == [5, 11]


def test_other_processes_write_nothing(tmp_path):
    Record(tmp_path, active=False).update(status="running")
    metrics = Metrics(tmp_path / "metrics.csv", active=False)
    metrics.add(epoch=0, step=1, seconds=0.0, split="val", loss=1.0, accuracy=0.5, lr=0.1)
    metrics.plot(tmp_path / "curves.png", "title")
    assert list(tmp_path.iterdir()) == []


def test_parts_of_a_resumed_run_are_kept(tmp_path):
    assert earlier_parts(tmp_path) == []
    Record(tmp_path).update(status="interrupted", started="then", seed=0)
    assert earlier_parts(tmp_path) == [{"status": "interrupted", "started": "then"}]
    Record(tmp_path).update(status="interrupted", started="later", earlier=earlier_parts(tmp_path))
    assert [part["started"] for part in earlier_parts(tmp_path)] == ["then", "later"]
