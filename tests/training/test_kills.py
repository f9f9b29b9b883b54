"""Processes that are killed or stopped at random moments, as by a user or a scheduler."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from test_signals import assert_same_run
from training_toys import FOLDER

from fractal_ssm.models import build  # noqa: F401
from fractal_ssm.train import main
from fractal_ssm.training import session  # noqa: F401
from fractal_ssm.training.resume import load_checkpoint
from fractal_ssm.training.signals import HANDLED

ROOT = FOLDER.parent.parent
TOY = ("--config-dir", str(FOLDER / "user_configs"), "experiment=toy", "trainer.progress_bar=false")
LONG = ("model.dropout=0.2", "training.max_epochs=60", "trainer.log_every_n_steps=1", "scheduler.warmup_steps=5")


def start(cwd: Path, *arguments: str, **variables: str) -> subprocess.Popen:
    """A process started with a command line, which lightning needs to start further processes."""
    path = os.pathsep.join((str(FOLDER), str(ROOT)))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | variables
    return subprocess.Popen(
        [sys.executable, "-m", "train", *TOY, *arguments],
        cwd=cwd,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


class Fork:
    """The command line in a fork of this process, which has imported torch and lightning already."""

    def __init__(self, cwd: Path, *arguments: str, **variables: str):
        self._errors = cwd / "errors.txt"
        self._process = multiprocessing.get_context("fork").Process(
            target=self._run, args=(cwd, ["train", *TOY, *arguments], variables)
        )
        self._process.start()

    def _run(self, cwd: Path, command: list[str], variables: dict[str, str]) -> None:
        os.chdir(cwd)
        os.environ.update(variables)
        # Read from TMPDIR again.
        tempfile.tempdir = None
        sys.argv, sys.stdout, sys.stderr = command, open(os.devnull, "w"), open(self._errors, "w", buffering=1)
        os.dup2(sys.stderr.fileno(), 2)
        main()

    def poll(self) -> int | None:
        return self._process.exitcode

    returncode = property(poll)

    def send_signal(self, signum: int) -> None:
        os.kill(self._process.pid, signum)

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        self._process.join(timeout)
        assert self.poll() is not None, "still running"
        return None, self._errors.read_text()


def wait_for(path: Path, process: subprocess.Popen | Fork) -> None:
    end = time.monotonic() + 500
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert path.exists(), process.communicate()[1]


def finish(process: subprocess.Popen | Fork, status: int = 0) -> str:
    errors = process.communicate(timeout=1000)[1]
    assert process.returncode == status, errors
    return errors


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [0, 1])
def test_random_signals_resume_to_the_last_bit(tmp_path, workers):
    """Ten signals at any point of one run; every part continues from exactly the step where the last one stopped."""
    common = (*LONG, "training.max_epochs=120", "trainer.accumulate_grad_batches=3")
    finish(Fork(tmp_path, *common, "hydra.run.dir=whole"))
    options = (*common, "hydra.run.dir=cut", f"training.num_workers={workers}")
    last, draw, resume, steps = tmp_path / "cut" / "checkpoints" / "last.ckpt", random.Random(0), (), []
    rows = tmp_path / "cut" / "metrics.csv"
    for part in range(10):
        process = Fork(tmp_path, *options, *resume)
        before = rows.stat().st_mtime_ns if rows.exists() else 0
        while (not rows.exists() or rows.stat().st_mtime_ns == before) and process.poll() is None:
            time.sleep(0.02)
        # A resumed run writes its rows again while it is built; every second part then also makes some steps.
        size = rows.stat().st_size
        while part % 2 and rows.stat().st_size < size + 800 and process.poll() is None:
            time.sleep(0.02)
        time.sleep(draw.uniform(0, 0.4))
        if process.poll() is not None:
            break
        process.send_signal(draw.choice(HANDLED))
        errors = process.communicate(timeout=200)[1]
        # A status of 0 would mean a lost signal.
        assert process.returncode in [128 + number for number in HANDLED], errors
        steps.append(load_checkpoint(last)["global_step"])
        assert f"at step {steps[-1]}." in errors or f"from step {steps[-1]}." in errors
        resume = ("resume=cut/checkpoints/last.ckpt",)
    finish(Fork(tmp_path, *options, *resume))
    print("stopped at steps", steps)
    assert len(steps) >= 8 and steps == sorted(steps)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.fixture
def other_disk(tmp_path):
    """A folder on another file system, for TMPDIR."""
    folder = tmp_path / "tmpfs"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    if subprocess.run([mount, "-t", "tmpfs", "-o", "size=200m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("this machine does not let a file system be mounted")
    yield folder
    subprocess.run(["umount", folder], check=True)


@contextmanager
def dying_in_a_write(monkeypatch: pytest.MonkeyPatch, share: float) -> Iterator[None]:
    """Context in which a forked process is killed when this share of its second checkpoint is written."""
    original, saves = torch.save, itertools.count()

    def save(content, file) -> None:
        if next(saves) == 0:
            original(content, file)
            return
        whole = io.BytesIO()
        original(content, whole)
        file.write(whole.getvalue()[: int(share * whole.tell())])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        yield


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_with_tmpdir_elsewhere(tmp_path, monkeypatch, other_disk):
    """kill -9 while last.ckpt, of many MB, is written at every step: the file is always whole and correct to the bit.

    Every second kill falls inside a write, the others at random moments.
    """
    options = (*LONG, "model.d_model=512", "training.max_epochs=16", "training.checkpoint_minutes=0")
    finish(Fork(tmp_path, *options, "hydra.run.dir=whole", TMPDIR=str(other_disk)))
    last, draw, resume, inside, kills = tmp_path / "cut" / "checkpoints" / "last.ckpt", random.Random(1), (), 0, 0
    while kills < 20:
        dies = dying_in_a_write(monkeypatch, draw.random()) if kills % 2 else nullcontext()
        with dies:
            process = Fork(tmp_path, *options, "hydra.run.dir=cut", *resume, TMPDIR=str(other_disk))
        before = last.stat().st_mtime_ns if last.exists() else 0
        while (not last.exists() or last.stat().st_mtime_ns == before) and process.poll() is None:
            time.sleep(0.005)
        if kills % 2 == 0:
            time.sleep(draw.uniform(0, 0.15))
            process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL
        kills += 1
        inside += bool(list(last.parent.glob(".*.tmp")))
        load_checkpoint(last)
        resume = ("resume=cut/checkpoints/last.ckpt",)
    step = load_checkpoint(last)["global_step"]
    print(f"{kills} kills, {inside} of them while a checkpoint was written, at step {step}")
    assert kills == 20 and inside >= 10
    finish(Fork(tmp_path, *options, "hydra.run.dir=cut", *resume, TMPDIR=str(other_disk)))
    assert not list(tmp_path.rglob("*.tmp"))
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.slow
def test_a_full_disk(tmp_path, other_disk):
    """The disk of the run fills up: status 1, a clear message, the last good checkpoint, and a later resume."""
    # Room for the first steps' files only.
    process = Fork(tmp_path, *LONG, f"hydra.run.dir={other_disk}/run", "training.checkpoint_minutes=0")
    last = other_disk / "run" / "checkpoints" / "last.ckpt"
    wait_for(last, process)
    with open(other_disk / "filler", "wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
        while True:
            filler.write(b"x" * 65536)
    errors = finish(process, 1)
    assert "could not be written: No space left on device." in errors and "Traceback" not in errors
    step = load_checkpoint(last)["global_step"]
    assert f"goes on from step {step}." in errors
    names = {path.name for path in (other_disk / "run").rglob("*") if path.is_file()}
    assert names <= {"config.yaml", "record.json", "metrics.csv", "curves.png", "last.ckpt", "best.ckpt", ".lock"}
    assert json.loads((other_disk / "run" / "record.json").read_text())["status"] in ("failed", "running")
    (other_disk / "filler").unlink()
    options = (*LONG, f"resume={last}", "training.checkpoint_minutes=0", "training.max_minutes=0.01")
    finish(Fork(tmp_path, *options))


DDP = ("trainer.strategy=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "training.batch_size=4")


def rank_one(process: subprocess.Popen) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (child,) = [int(pid) for pid in children if b"LOCAL_RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()]
    return child


@pytest.mark.slow
@pytest.mark.parametrize("who", ["first", "second"])
def test_a_signal_to_one_of_two_processes_saves_both(tmp_path, who):
    options = (*LONG, *DDP, "training.max_epochs=100", "hydra.run.dir=cut", "training.checkpoint_minutes=0")
    process = start(tmp_path, *options)
    wait_for(tmp_path / "cut" / "checkpoints" / "last.ckpt", process)
    os.kill(process.pid if who == "first" else rank_one(process), signal.SIGTERM)
    errors = finish(process, 143)
    step = load_checkpoint(tmp_path / "cut" / "checkpoints" / "last.ckpt")["global_step"]
    assert f"Interrupted by SIGTERM at step {step}. The same command with resume=cut" in errors, errors
    end = ("training.max_epochs=null", f"training.max_steps={step + 5}", "scheduler.total_steps=800")
    finish(start(tmp_path, *options, "resume=cut/checkpoints/last.ckpt", "scheduler.total_steps=null", *end[:2]))
    assert json.loads((tmp_path / "cut" / "record.json").read_text())["steps"] == step + 5


@pytest.mark.slow
def test_a_killed_process_takes_the_other_along_in_words(tmp_path):
    process = start(tmp_path, *LONG, *DDP, "training.max_epochs=10000", "hydra.run.dir=run")
    wait_for(tmp_path / "run" / "checkpoints" / "last.ckpt", process)
    os.kill(rank_one(process), signal.SIGKILL)
    errors = finish(process, 1)
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["status"] == "failed" and record["error"]
    print(record["error"], errors[-500:])
