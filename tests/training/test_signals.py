"""A run that is stopped by a signal is saved at its step and resumed to the last bit, wherever the signal comes."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fractal_ssm.train import run
from fractal_ssm.training.checkpoints import PENDING, AtomicCheckpointIO, LastCheckpoint
from fractal_ssm.training.module import Classifier
from fractal_ssm.training.resume import load_checkpoint
from fractal_ssm.training.signals import HANDLED, Interrupted, Signals, Stop
from fractal_ssm.training.tasks import Tally

# 8 batches an epoch; accumulated by 3 they make groups of 3, 3 and 2.
OPTIONS = ("model.dropout=0.2", "training.max_epochs=3", "scheduler.warmup_steps=2", "trainer.log_every_n_steps=1")
ACCUMULATED = (*OPTIONS, "trainer.accumulate_grad_batches=3")


def rows(folder: Path) -> list[dict]:
    with open(folder / "metrics.csv") as file:
        return [row | {"seconds": None} for row in csv.DictReader(file)]


def equal(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other


def assert_same_run(folder: Path, whole: Path) -> None:
    """Compare parameters, optimizer, schedule, tallies, the best so far and rows, but not paths, times and counters."""
    for name in ("last.ckpt", "best.ckpt"):
        one, other = (load_checkpoint(where / "checkpoints" / name) for where in (folder, whole))
        for key in ("global_step", "epoch", "state_dict", "optimizer_states", "lr_schedulers", "train_tally", PENDING):
            assert equal(one[key], other[key]), (name, key)
        best = [next(v for k, v in c["callbacks"].items() if "BestCheckpoint" in k) for c in (one, other)]
        assert best[0]["best_model_score"] == best[1]["best_model_score"]
        assert one["metrics_rows"] == other["metrics_rows"]
    assert rows(folder) == rows(whole)
    results = [json.loads((where / "record.json").read_text()) for where in (folder, whole)]
    assert results[0]["metrics"] == results[1]["metrics"] and results[0]["selected"] == results[1]["selected"]


def when(patch: pytest.MonkeyPatch, owner: type, method: str, call: int, act) -> None:
    """Run `act()` at the start of the `call`-th call of a method, counted from 0."""
    original, seen = getattr(owner, method), []

    def wrapped(self, *args, **kwargs):
        seen.append(self)
        if len(seen) == call + 1:
            act()
        return original(self, *args, **kwargs)

    patch.setattr(owner, method, wrapped)


def send(signum: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signum)


def stopped(config, folder: Path, monkeypatch, owner: type, method: str, call: int, signum: int) -> Interrupted:
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    with monkeypatch.context() as patch:
        when(patch, owner, method, call, send(signum))
        with pytest.raises(Interrupted) as caught:
            run(config, folder)
    assert {number: signal.getsignal(number) for number in HANDLED} == handlers
    record = json.loads((folder / "record.json").read_text())
    assert record["status"] == "interrupted" and record["signal"] == signal.Signals(signum).name
    return caught.value


@pytest.mark.parametrize(
    ("options", "owner", "method", "call", "signum", "step", "pending"),
    [
        # In mid-epoch; in each batch of a group, whose others come first, and of the short last group of an epoch; in
        # the last batch of an epoch.
        (OPTIONS, Classifier, "training_step", 10, signal.SIGTERM, 11, False),
        (ACCUMULATED, Classifier, "training_step", 8, signal.SIGTERM, 4, False),
        (ACCUMULATED, Classifier, "training_step", 9, signal.SIGINT, 4, False),
        (ACCUMULATED, Classifier, "training_step", 10, signal.SIGTERM, 4, False),
        (ACCUMULATED, Classifier, "training_step", 14, signal.SIGTERM, 6, True),
        (OPTIONS, Classifier, "training_step", 7, signal.SIGUSR1, 8, True),
        # In a validation (3 batches), and in the very last one; while it is written down.
        (OPTIONS, Classifier, "validation_step", 4, signal.SIGHUP, 16, True),
        (OPTIONS, Classifier, "validation_step", 8, signal.SIGINT, 24, True),
        (ACCUMULATED, AtomicCheckpointIO, "save_checkpoint", 0, signal.SIGTERM, 3, False),
        # Ends at a step, inside an epoch and at the end of one.
        ((*OPTIONS, "training.max_steps=11"), Classifier, "validation_step", 4, signal.SIGTERM, 11, True),
        ((*OPTIONS, "training.max_steps=16"), Classifier, "validation_step", 4, signal.SIGTERM, 16, True),
    ],
)
def test_saved_where_it_came(
    toy_config, tmp_path, monkeypatch, whole, options, owner, method, call, signum, step, pending
):
    config = toy_config(*options)
    interrupt = stopped(config, tmp_path, monkeypatch, owner, method, call, signum)
    last = tmp_path / "checkpoints" / "last.ckpt"
    stored = load_checkpoint(last)
    assert stored["global_step"] == step and stored[PENDING] is pending
    by = "" if signum == signal.SIGINT else f" by {signal.Signals(signum).name}"
    assert f"Interrupted{by} at step {step}. The same command with resume=" in str(interrupt)
    assert interrupt.status == 128 + signum
    config.resume = str(last)
    run(config, tmp_path)
    assert_same_run(tmp_path, whole(*options))
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("workers", [0, 2])
def test_stopped_again_and_again(toy_config, tmp_path, monkeypatch, whole, workers):
    config = toy_config(*ACCUMULATED, f"training.num_workers={workers}")
    for call in (4, 0, 6):
        stopped(config, tmp_path, monkeypatch, Classifier, "training_step", call, signal.SIGTERM)
        config.resume = str(tmp_path / "checkpoints" / "last.ckpt")
    stopped(config, tmp_path, monkeypatch, Classifier, "validation_step", 1, signal.SIGTERM)
    run(config, tmp_path)
    assert_same_run(tmp_path, whole(*ACCUMULATED))


def test_stopped_in_a_validation_and_after_it(toy_config, tmp_path, monkeypatch, whole):
    """The second part runs the validation, and the third must not run it again."""
    config = toy_config(*OPTIONS)
    stopped(config, tmp_path, monkeypatch, Classifier, "validation_step", 1, signal.SIGTERM)
    config.resume = str(tmp_path / "checkpoints" / "last.ckpt")
    stopped(config, tmp_path, monkeypatch, Classifier, "validation_step", 2, signal.SIGTERM)
    stopped(config, tmp_path, monkeypatch, AtomicCheckpointIO, "save_checkpoint", 0, signal.SIGTERM)
    assert load_checkpoint(config.resume)[PENDING] is False
    run(config, tmp_path)
    assert_same_run(tmp_path, whole(*OPTIONS))


@pytest.mark.parametrize("options", [OPTIONS, ACCUMULATED])
def test_checkpoints_by_the_clock_change_nothing(toy_config, tmp_path, monkeypatch, whole, options):
    """Every step is saved, and a run resumed from the file of step 5 equals a run that was never stopped."""
    kept = tmp_path / "kept.ckpt"
    original = LastCheckpoint._save

    def save(self, trainer) -> None:
        original(self, trainer)
        written.append(trainer.global_step)
        if trainer.global_step == 5:
            kept.write_bytes(self._path.read_bytes())

    written: list[int] = []
    monkeypatch.setattr(LastCheckpoint, "_save", save)
    config = toy_config(*options, "training.checkpoint_minutes=0")
    run(config, tmp_path / "run")
    assert set(written) == set(range(1, 1 + (24 if options is OPTIONS else 9)))
    assert_same_run(tmp_path / "run", whole(*options))
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    last.write_bytes(kept.read_bytes())
    config.resume = str(last)
    run(config, tmp_path / "run")
    assert_same_run(tmp_path / "run", whole(*options))


def test_checkpoints_only_at_validations(toy_config, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(LastCheckpoint, "_save", lambda self, trainer: saved.append(trainer.global_step))
    run(toy_config(*OPTIONS, "training.checkpoint_minutes=null"), tmp_path)
    assert saved == [8, 16, 24]


def test_a_second_ctrl_c_stops_at_once(toy_config, tmp_path, monkeypatch):
    def twice() -> None:
        send(signal.SIGINT)()
        send(signal.SIGTERM)()
        with pytest.raises(Stop):
            send(signal.SIGINT)()
        raise Stop(signal.SIGINT)

    config = toy_config(*OPTIONS)
    with monkeypatch.context() as patch:
        when(patch, Classifier, "training_step", 10, twice)
        with pytest.raises(Interrupted, match=r"^Interrupted\. The same command .* goes on from step 8\.$") as caught:
            run(config, tmp_path)
    assert caught.value.status == 130
    assert load_checkpoint(tmp_path / "checkpoints" / "last.ckpt")["global_step"] == 8


@pytest.mark.parametrize("place", ["data", "model", "test"])
def test_outside_the_fit_it_stops_at_once(toy_config, tmp_path, monkeypatch, whole, place):
    import toy_parts

    from fractal_ssm.training.session import Session

    config = toy_config(*OPTIONS)
    owner, method = {
        "data": (toy_parts.ToyCounts, "prepare"),
        "model": (Session, "fit"),
        "test": (Classifier, "on_test_start"),
    }[place]
    interrupt = stopped(config, tmp_path, monkeypatch, owner, method, 0, signal.SIGTERM)
    assert interrupt.status == 143
    if place != "test":
        assert str(interrupt) == "Interrupted by SIGTERM. There is no checkpoint yet."
        return
    assert str(interrupt).endswith("goes on from step 24.")
    config.resume = str(tmp_path / "checkpoints" / "last.ckpt")
    run(config, tmp_path)
    assert_same_run(tmp_path, whole(*OPTIONS))


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Signals():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            with pytest.raises(Stop):
                send(signal.SIGTERM)()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_in_another_thread_leaves_the_signals_alone():
    def enter() -> None:
        with Signals():
            found.append(signal.getsignal(signal.SIGTERM))

    found, before = [], signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]


SCONTROL = """#!/bin/sh
echo "$@" > {told}
{answer}
"""


@pytest.mark.parametrize(("answer", "works"), [("exit 0", True), ("echo no such job >&2; exit 1", False)])
def test_requeue(toy_config, tmp_path, monkeypatch, whole, answer, works):
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(SCONTROL.format(told=tmp_path / "told", answer=answer))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    folder, config = tmp_path / "run", toy_config(*OPTIONS, "training.requeue=true")
    interrupt = stopped(config, folder, monkeypatch, Classifier, "training_step", 10, signal.SIGUSR1)
    assert interrupt.status == 138
    assert (tmp_path / "told").read_text() == "requeue 4711\n"
    assert json.loads((folder / "record.json").read_text())["requeued"] is works
    said = "Job 4711 is queued again." if works else "no such job. By hand: scontrol requeue 4711"
    assert str(interrupt).endswith(said)
    # The repeated command finds its checkpoint by itself.
    facts = run(config, folder)
    assert [part["status"] for part in facts["earlier"]] == ["interrupted"]
    assert_same_run(folder, whole(*OPTIONS))
    with pytest.raises(ValueError, match="holds a run already"):
        run(config, folder)


def test_a_job_killed_before_its_first_checkpoint_is_begun_anew(toy_config, tmp_path, monkeypatch, whole):
    config = toy_config(*OPTIONS, "training.requeue=true")
    (tmp_path / "record.json").write_text('{"status": "running"}')
    run(config, tmp_path)
    assert_same_run(tmp_path, whole(*OPTIONS))


def test_only_sigusr1_queues_the_job_again(toy_config, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(subprocess, "run", lambda *args, **_: called.append(args))
    monkeypatch.setattr("fractal_ssm.training.record.git_commit", lambda: None)
    config = toy_config(*OPTIONS, "training.requeue=true")
    interrupt = stopped(config, tmp_path, monkeypatch, Classifier, "training_step", 3, signal.SIGTERM)
    assert "queued" not in str(interrupt) and not called


def test_tallies_go_on(toy_config, tmp_path, monkeypatch):
    """The training accuracy of an epoch includes the batches before the stop."""
    config = toy_config(*OPTIONS)
    stopped(config, tmp_path, monkeypatch, Classifier, "training_step", 10, signal.SIGTERM)
    config.resume = str(tmp_path / "checkpoints" / "last.ckpt")
    counts = []
    original = Tally.result
    monkeypatch.setattr(Tally, "result", lambda self: counts.append(original(self)) or counts[-1])
    run(config, tmp_path)
    assert counts[0]["samples"] == 64
