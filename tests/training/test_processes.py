"""Find the first process in any environment, and report the deaths of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
from lightning.fabric.strategies.launchers.subprocess_script import _ChildProcessObserver

from fractal_ssm import UsageError
from fractal_ssm.train import run
from fractal_ssm.training.processes import Watch, is_first, is_single, ranks_hidden

DDP = ("trainer.strategy=ddp", "trainer.accelerator=cpu", "trainer.devices=2")


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1"},
        {"RANK": "x"},
        {"LOCAL_RANK": "1", "WORLD_SIZE": "4", "NODE_RANK": "2"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_JOB_NAME": "train"},
        {"JSM_NAMESPACE_RANK": "1"},
    ],
)
def test_ranks_of_a_single_process_are_ignored(toy_config, tmp_path, monkeypatch, capsys, variables):
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    monkeypatch.setattr(rank_zero_only, "rank", 1)
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    run(toy_config("training.max_epochs=1"), tmp_path)
    assert json.loads((tmp_path / "record.json").read_text())["status"] == "finished"
    assert {"config.yaml", "metrics.csv", "curves.png", "checkpoints"} <= set(os.listdir(tmp_path))
    assert "Parameter groups" in capsys.readouterr().out
    assert {key: os.environ[key] for key in variables} == variables


def test_lightning_is_imported_without_the_ranks():
    code = (
        "from fractal_ssm.config import Config\n"
        "from fractal_ssm.training.processes import ranks_hidden\n"
        "with ranks_hidden(Config()): import lightning.pytorch"
    )
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"RANK": "x"}, check=True)


@pytest.mark.parametrize(
    ("overrides", "variables", "words"),
    [
        ((), {"TORCHELASTIC_RUN_ID": "1", "WORLD_SIZE": "2", "RANK": "0"}, "torchrun has started 2 processes"),
        ((), {"SLURM_STEP_NUM_TASKS": "4"}, "srun has started 4 processes"),
        (DDP, {"RANK": "x"}, "RANK='x'"),
        (DDP, {"LOCAL_RANK": "-1"}, "LOCAL_RANK='-1'"),
    ],
)
def test_what_cannot_be_is_refused(toy_config, monkeypatch, overrides, variables, words):
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(UsageError, match=words), ranks_hidden(toy_config(*overrides)):
        pass


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, True),
        # Without torchrun or srun lightning counts by LOCAL_RANK and NODE_RANK, which it gives to its own children.
        ({"RANK": "1"}, True),
        ({"LOCAL_RANK": "1"}, False),
        ({"NODE_RANK": "1"}, False),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_NAME": "train"}, False),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "SLURM_JOB_NAME": "train"}, True),
        ({"TORCHELASTIC_RUN_ID": "a", "RANK": "1", "LOCAL_RANK": "0", "GROUP_RANK": "1"}, False),
        ({"TORCHELASTIC_RUN_ID": "a", "RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0"}, True),
    ],
)
def test_the_first_of_several_as_lightning_counts(toy_config, monkeypatch, variables, first):
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    config = toy_config(*DDP)
    assert not is_single(config) and is_first(config) is first


def test_a_death_is_told_unless_this_process_leaves_by_itself():
    dead = subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    dead.wait()
    told, heard = [], threading.Event()
    watch = Watch(lambda what: (told.append(what), heard.set()))
    # Lightning's own observer, which would kill the first process (here, one that has ended).
    observer = _ChildProcessObserver(dead.pid, [dead], sleep_period=2)
    observer.start()
    watch.begin([dead])
    observer.join(60)
    assert not observer.is_alive()
    assert heard.wait(60)
    assert told == ["Process 1 of 2 was killed by SIGKILL."]
    other = Watch(told.append)
    other.end()
    other.begin([dead])
    other.kill()
    assert len(told) == 1
