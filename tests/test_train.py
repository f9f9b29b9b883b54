"""python -m train as its users meet it: from another folder, interrupted, resumed, misspelt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from fractal_ssm.train import main
from fractal_ssm.training.resume import load_checkpoint

ROOT = Path(__file__).parent.parent
TOYS = ROOT / "tests" / "training"
TOY = ("--config-dir", str(TOYS / "user_configs"), "experiment=toy", "trainer.progress_bar=false")


def command(*arguments: str) -> tuple[list[str], dict[str, str]]:
    path = os.pathsep.join((str(TOYS), str(ROOT)))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    environment.pop("HYDRA_FULL_ERROR", None)
    return [sys.executable, "-m", "train", *arguments], environment


def train(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    line, environment = command(*arguments)
    return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """(*arguments) -> what the command line says to a mistake, in this process: status 2 and one message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(TOYS)
    # main sets the variable; set here, it is taken back.
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")

    def told(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["train", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        message = capsys.readouterr().err
        assert left.value.code == 2 and message.startswith("Error: ") and "Traceback" not in message
        return message

    return told


def record(folder: Path) -> dict:
    return json.loads((folder / "record.json").read_text())


def test_help_and_configuration_import_nothing_heavy(tmp_path):
    """`--help` within 3 s: what makes it slow is importing torch or lightning, so that is what is looked at."""
    code = (
        "import sys, fractal_ssm.train as t\n"
        "sys.argv = ['train', sys.argv[1]]\n"
        "try: t.main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'lightning', 'numba', 'scipy', 'matplotlib', 'triton'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for words in ("experiment=lra/fractal-listops budget=cpu", "optimizer:", "max_epochs", "scheduler"):
        assert words in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_smoke_run_of_the_main_experiment(tmp_path):
    """The main job end to end in seconds, from a folder that is not the repository."""
    done = train("experiment=lra/fractal-listops", "budget=smoke", "trainer.progress_bar=false", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs" / "lra" / "fractal-listops").iterdir()
    assert {path.name for path in folder.iterdir()} == {
        "config.yaml",
        "record.json",
        "metrics.csv",
        "curves.png",
        "checkpoints",
        ".lock",
    }
    facts = record(folder)
    assert facts["status"] == "finished" and facts["choices"]["budget"] == "smoke"
    assert facts["overrides"] == ["experiment=lra/fractal-listops", "budget=smoke", "trainer.progress_bar=false"]
    assert (tmp_path / "data").is_dir()
    for words in ("majority class", "Parameter groups", "training samples/s", "peak memory", "Run folder: runs/lra"):
        assert words in done.stdout
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model.layer.name=fractl"], "Unknown layer 'fractl'. Known:"),
        (["model=fractal", "model.layer.alpha=1.2"], "1.2"),
        (["resume=nowhere/last.ckpt"], "resume takes a checkpoint in a run folder"),
        (["optimizer.lrr=1"], "Unknown key 'optimizer.lrr'"),
        (["optimizer.betas.x=3"], "'optimizer.betas' is a list, and 'x' is no position in it"),
        (["data_dir="], "data_dir needs a value, data_dir=..., got ''."),
        (["runs_dir="], "runs_dir needs a value, runs_dir=..., got ''."),
        (["resume="], "resume takes a checkpoint in a run folder"),
        (["hydra.run.dir="], "hydra.run.dir is empty: name a folder"),
        (["imports=[my/parts.py]"], "imports takes names of Python modules, imports=[my_package.layers], got 'my/p"),
        (["imports=['']"], "imports takes names of Python modules, imports=[my_package.layers], got ''."),
        (["trainer.accelerator=cpu", "trainer.devices=0"], "trainer.devices must be at least 1, or auto"),
        (["runs_dir=/dev/null"], "hydra.run.dir=/dev/null/toy/"),
        (["-m", "hydra.sweep.dir=/dev/null/x", "seed=0,1"], "hydra.sweep.dir=/dev/null/x cannot be used"),
        (["hydra=5"], "'hydra' is a group of keys, no single value, got '5'."),
        (["--resolve"], "Add --cfg job."),
        (["--seed", "1"], "Unknown option '--seed'."),
    ],
)
def test_mistakes_get_one_message_and_leave_nothing(tmp_path, told, arguments, words):
    assert words in told(*TOY, *arguments)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_blank_runs_dir_is_refused_for_sweeps_too(told):
    assert "runs_dir needs a value" in told("-m", *TOY, "runs_dir=", "seed=0,1")


def test_settings_before_and_after_an_option(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    monkeypatch.setattr(sys, "argv", ["train", "model=s5", "--cfg", "job", "seed=7", "--package", "model.layer"])
    main()
    assert "name: s5" in capsys.readouterr().out
    assert sys.argv == ["train", "--cfg", "job", "--package", "model.layer", "model=s5", "seed=7"]


def test_a_mistyped_experiment_gets_the_nearest_few(told):
    message = told("experiment=lra/s5-listop")
    assert "Nearest: lra/s5-listops," in message and "listed by --help" in message and len(message) < 400


def test_a_reader_that_had_enough(tmp_path):
    line, environment = command("--help")
    process = subprocess.Popen(
        line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == "" and process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trainer.strategy=ddp", "trainer.devices=2"], "would start the whole sweep again"),
        (["resume={last}"], "a sweep (-m) cannot resume"),
    ],
)
def test_sweeps_that_cannot_work(tmp_path, told, arguments, words):
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    last.parent.mkdir(parents=True)
    last.write_bytes(b"")
    assert words in told("-m", *TOY, *(argument.format(last=last) for argument in arguments), "seed=0,1")


def test_a_missing_data_folder(told):
    assert "aclImdb" in told("experiment=lra/s5-imdb", "budget=smoke", "dataset.source=release")


@pytest.mark.slow
def test_interrupt_and_resume(tmp_path):
    """Ctrl-C in mid-run: status 130, one message, a record that says so, and a checkpoint that goes on."""
    options = (*TOY, "hydra.run.dir=run", "training.max_epochs=100000", "scheduler.total_steps=1000")
    line, environment = command(*options)
    # A shell's background job ignores Ctrl-C, and so would its children.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(line, cwd=tmp_path, env=environment, preexec_fn=heed, **pipes)
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + 200
    while not last.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 130, errors
    announced, _, told = errors.strip().partition("\n")
    assert announced == "Ctrl-C: finishing the step and saving; Ctrl-C again stops at once."
    last_step = load_checkpoint(last)["global_step"]
    assert told == (
        f"Interrupted at step {last_step}. The same command with resume=run/checkpoints/last.ckpt goes on from "
        f"step {last_step}."
    )
    assert record(tmp_path / "run")["status"] == "interrupted"

    steps = (len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) + 100) * 8
    done = train(*options, "resume=run/checkpoints/last.ckpt", "training.max_minutes=0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = record(tmp_path / "run")
    assert facts["status"] == "finished" and 8 < facts["steps"] < steps
    assert [part["status"] for part in facts["earlier"]] == ["interrupted"]
    assert len(list((tmp_path).glob("run*"))) == 1


def test_a_second_run_in_the_same_folder_is_refused(tmp_path, told):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "record.json").write_text("{}")
    assert "holds a run already" in told(*TOY, "hydra.run.dir=run")
    assert (tmp_path / "run" / "record.json").read_text() == "{}"


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    """DDP over gloo: one run folder, every test sample counted once, and the weights of the same global batches."""
    common = ("trainer.strategy=ddp", "trainer.accelerator=cpu", "training.limit_train_batches=3")
    two = train(*TOY, *common, "trainer.devices=2", "training.batch_size=4", "hydra.run.dir=two", cwd=tmp_path)
    assert two.returncode == 0, two.stderr
    one = train(*TOY, "training.batch_size=8", "training.limit_train_batches=3", "hydra.run.dir=one", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    facts = record(tmp_path / "two")
    assert facts["processes"] == 2 and facts["steps"] == 9
    assert facts["metrics"]["test"]["samples"] == 21
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    assert sorted(path.name for path in (tmp_path / "two" / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]


@pytest.mark.slow
def test_a_sweep_makes_a_folder_a_job(tmp_path):
    done = train("-m", *TOY, "seed=0,1", "training.max_epochs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (sweep,) = (tmp_path / "runs" / "sweeps").iterdir()
    folders = sorted(path for path in sweep.iterdir() if path.is_dir())
    assert [folder.name for folder in folders] == ["0-seed0", "1-seed1"]
    assert [record(folder)["status"] for folder in folders] == ["finished"] * 2
