"""Files that are removed or damaged while a run goes on, or before it is resumed."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest
from test_signals import assert_same_run, when
from training_toys import FOLDER, compose_toy

from fractal_ssm import UsageError
from fractal_ssm.errors import RunFailed
from fractal_ssm.files import WriteFailed
from fractal_ssm.train import run
from fractal_ssm.training.lock import lock_folder
from fractal_ssm.training.module import Classifier
from fractal_ssm.training.record import Metrics
from fractal_ssm.training.resume import load_checkpoint

OPTIONS = ("training.max_epochs=2", "trainer.log_every_n_steps=1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        run(compose_toy(*OPTIONS), folder)
    return folder


def broken_at(monkeypatch, config, folder: Path, step: int, act) -> None:
    with monkeypatch.context() as patch:
        when(patch, Classifier, "training_step", step, act)
        run(config, folder)


def test_a_file_where_the_checkpoints_were(toy_config, tmp_path, monkeypatch):
    folder = tmp_path / "run" / "checkpoints"

    def act() -> None:
        shutil.rmtree(folder)
        folder.write_text("")

    with pytest.raises(
        RunFailed, match=r"checkpoints could not be written: File exists\. There is no checkpoint yet\."
    ):
        broken_at(monkeypatch, toy_config(*OPTIONS), tmp_path / "run", 10, act)


def test_a_run_folder_that_is_removed_is_not_made_anew(toy_config, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with pytest.raises(RunFailed, match=r"could not be written: No such file or directory\."):
        broken_at(monkeypatch, toy_config(*OPTIONS), folder, 10, lambda: shutil.rmtree(folder))
    assert not folder.exists()


def test_rows_that_are_removed_are_written_again(toy_config, tmp_path, monkeypatch, finished):
    broken_at(monkeypatch, toy_config(*OPTIONS), tmp_path, 10, (tmp_path / "metrics.csv").unlink)
    assert_same_run(tmp_path, finished)


def test_a_best_checkpoint_that_is_lost(toy_config, tmp_path, capsys):
    """If a validation is left, the search starts again; if not, the last checkpoint is scored. Both print a note."""
    run(toy_config(*OPTIONS), tmp_path)
    best, last = (tmp_path / "checkpoints" / name for name in ("best.ckpt", "last.ckpt"))

    def resumed(*options: str) -> dict:
        facts = run(toy_config(*OPTIONS, *options, f"resume={last}"), tmp_path)
        assert "best.ckpt is missing or damaged; the search for the best starts again." in capsys.readouterr().out
        assert facts["metrics"]["test"]["samples"] == 21
        return facts

    best.unlink()
    assert resumed()["selected"] == "last checkpoint, the best one was lost (step 16)"
    best.write_bytes(last.read_bytes()[:500])
    assert resumed("training.max_epochs=3")["selected"] == "best validation accuracy (step 24)"


def test_a_best_checkpoint_removed_before_the_test(toy_config, tmp_path, monkeypatch):
    checkpoints = tmp_path / "checkpoints"
    with monkeypatch.context() as patch:
        when(patch, Metrics, "plot", 0, (checkpoints / "best.ckpt").unlink)
        with pytest.raises(UsageError, match=r"no checkpoint file .*last\.ckpt is at step 16 and can be resumed"):
            run(toy_config(*OPTIONS), tmp_path)
    facts = run(toy_config(*OPTIONS, f"resume={checkpoints}/last.ckpt"), tmp_path)
    assert facts["status"] == "finished" and facts["selected_checkpoint"] == str(checkpoints / "last.ckpt")


class Gone:
    """A standard output that refuses to be written."""

    encoding = "utf-8"

    def __init__(self, number: int):
        self._number = number

    def write(self, text: str) -> int:
        raise OSError(self._number, os.strerror(self._number))

    flush = isatty = lambda self: False


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_a_run_goes_on_when_nobody_reads_it(toy_config, tmp_path, monkeypatch, finished, number):
    monkeypatch.setattr(sys, "stdout", Gone(number))
    assert run(toy_config(*OPTIONS), tmp_path)["status"] == "finished"
    assert_same_run(tmp_path, finished)


def test_a_lock_that_cannot_be_made(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(WriteFailed, match="Is a directory"):
        lock_folder(tmp_path)


def test_a_target_with_accumulation_and_buckets_ends_with_an_epoch(toy_config, tmp_path):
    """8 batches in groups of 3, 3 and 2: no group is cut, and the run goes on as if there had been no target."""
    options = (*OPTIONS, "trainer.accumulate_grad_batches=3", "training.bucket_by_length=true", "model.dropout=0.2")
    run(toy_config(*options), tmp_path / "whole")
    assert run(toy_config(*options, "training.target=0.05"), tmp_path / "cut")["steps"] == 3
    last = tmp_path / "cut" / "checkpoints" / "last.ckpt"
    assert load_checkpoint(last)["global_step"] == 3
    run(toy_config(*options, f"resume={last}"), tmp_path / "cut")
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
