"""Sweeps: a failed job does not end the others, and all end in one table."""

from __future__ import annotations

import csv
import errno
import math
import os
import signal
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fractal_ssm import train
from fractal_ssm.errors import RunFailed, UsageError
from fractal_ssm.sweep import run_job
from fractal_ssm.train import main

TOYS = Path(__file__).parent / "training"
TOY = ("--config-dir", str(TOYS / "user_configs"), "experiment=toy")


def facts_of(value: float, metric: str = "accuracy") -> dict:
    """What of a record a sweep reads."""
    higher = metric == "accuracy"
    return {"metric": {"name": metric, "higher_is_better": higher}, "metrics": {"val": {metric: value}}}


@pytest.fixture
def sweep(tmp_path, monkeypatch, capsys):
    """(outcomes by seed, *arguments) -> exit status, rows of sweep.csv, output, errors; `run` gives the outcomes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(TOYS)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")

    def sweep(outcomes: dict, *arguments: str):
        def run(config, folder, *_):
            outcome = outcomes[config.seed]
            if isinstance(outcome, BaseException):
                raise outcome
            return facts_of(outcome() if callable(outcome) else outcome)

        monkeypatch.setattr(train, "run", run)
        monkeypatch.setattr(sys, "argv", ["train", "-m", *TOY, *arguments])
        status = 0
        try:
            main()
        except SystemExit as left:
            status = left.code
        said = capsys.readouterr()
        tables = list(tmp_path.glob("runs/sweeps/*/sweep.csv"))
        rows = list(csv.DictReader(tables[0].read_text().splitlines())) if tables else []
        assert not list(tmp_path.glob("runs/sweeps/*/.job-*"))
        return status, rows, said.out, said.err

    return sweep


def test_all_jobs_run_and_are_listed(sweep):
    outcomes = {0: 0.5, 1: RunFailed("diverged"), 2: UsageError("no such data"), 3: ZeroDivisionError("bug"), 4: 0.25}
    status, rows, out, err = sweep(outcomes | {5: SystemExit(3)}, "seed=0,1,2,3,5,4")
    assert status == 1
    assert [row["status"] for row in rows] == ["finished", *["failed"] * 4, "finished"]
    assert [float(row["value"]) for row in (rows[0], rows[5])] == [0.5, 0.25]
    assert all(math.isnan(float(row["value"])) for row in rows[1:5])
    assert [row["error"] for row in rows[1:5]] == [
        "diverged",
        "no such data",
        "ZeroDivisionError: bug",
        "SystemExit: 3",
    ]
    assert rows[3]["overrides"] == "experiment=toy seed=3" and rows[3]["folder"].endswith("/3-seed3")
    assert out.count("Job 1 failed: diverged") == 1 and "2 of 6 jobs finished." in out
    assert "Job 2 failed: no such data" in err and err.count("Traceback") == 2
    assert "Error executing job" not in err


def test_a_sweep_that_works(sweep, tmp_path):
    folder = tmp_path / "runs" / "sweeps" / "again"
    folder.mkdir(parents=True)
    # Of a longer sweep in the same folder that was killed.
    (folder / ".job-7.json").write_text("{")
    status, rows, out, err = sweep({0: 0.5, 1: 0.75}, "seed=0,1", f"hydra.sweep.dir={folder}")
    assert status == 0 and [row["status"] for row in rows] == ["finished"] * 2 and err == ""
    assert "0.7500" in out and "2 of 2 jobs finished." in out


@pytest.mark.parametrize(("signum", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_sweep_with_its_table(sweep, signum, expected):
    stop = lambda: os.kill(os.getpid(), signum)
    status, rows, out, _ = sweep({0: 0.5, 1: stop, 2: 0.5}, "seed=0,1,2")
    assert status == expected
    assert [row["status"] for row in rows] == ["finished", "interrupted"]
    assert "1 of 2 jobs finished." in out


@pytest.mark.parametrize(("option", "words"), [("training.requeue=true", "docs/slurm.md"), ("resume=x", "resume")])
def test_a_sweep_that_cannot_work_is_refused_once(sweep, option, words):
    status, rows, _, err = sweep({}, option, "seed=0,1")
    assert status == 2 and rows == [] and words in err and err.count("Error") == 1


def test_the_value_of_a_failed_job_is_nan(tmp_path):
    node = {
        "job": {"num": 3},
        "overrides": {"task": ["seed=3"]},
        "runtime": {"output_dir": str(tmp_path / "3")},
        "sweep": {"dir": str(tmp_path)},
    }
    assert run_job(lambda: facts_of(0.5), OmegaConf.create(node)) == 0.5
    assert math.isnan(run_job(lambda: 1 / 0, OmegaConf.create(node)))
    assert [path.name for path in tmp_path.iterdir()] == [".job-3.json"]


@pytest.mark.slow
def test_jobs_in_processes_of_their_own(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    from test_train import train as train_in_subprocess

    options = ("trainer.progress_bar=false", "training.max_epochs=1", "optimizer.lr=0.001,1e30", "seed=0,1")
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    done = train_in_subprocess("-m", *TOY, *options, *launcher, cwd=tmp_path)
    assert done.returncode == 1 and "2 of 4 jobs finished." in done.stdout
    (table,) = tmp_path.glob("runs/sweeps/*/sweep.csv")
    with open(table) as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["finished"] * 2 + ["failed"] * 2


def test_a_disk_too_full_for_the_file_of_hydra(sweep, monkeypatch):
    def save(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(OmegaConf, "save", save)
    status, _, _, err = sweep({0: 0.5, 1: 0.5}, "seed=0,1")
    assert status == 1
    assert "Stopped: A file of Hydra could not be written: No space left on device." in err and "Traceback" not in err
