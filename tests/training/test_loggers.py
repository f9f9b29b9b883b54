"""Loggers get the same rows as metrics.csv, offline; mistakes give a clear message; a failing service ends no run."""

from __future__ import annotations

import json

import pytest

from fractal_ssm import UsageError
from fractal_ssm.config import compose
from fractal_ssm.train import run
from fractal_ssm.training import loggers
from fractal_ssm.training.loggers import Loggers, check_loggers
from fractal_ssm.training.record import Metrics


def test_the_group_composes_one_or_several():
    assert compose().logger == {} == compose(["logger=csv"]).logger
    several = compose(["logger=[tensorboard,wandb]", "logger.wandb.offline=true"]).logger
    assert several == {"tensorboard": {}, "wandb": {"project": "fractal-ssm", "offline": True}}
    with pytest.raises(Exception, match="logge"):
        compose(["logger=tensorbord"])


def rows_of(folder) -> list[str]:
    return (folder / "metrics.csv").read_text().splitlines()[1:]


def test_tensorboard_is_told_the_rows_and_goes_on_in_its_file(toy_config, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = toy_config("logger=tensorboard", "training.max_epochs=1")
    run(config, tmp_path)
    config.training.max_epochs, config.resume = 2, str(tmp_path / "checkpoints" / "last.ckpt")
    run(config, tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    val = [row.split(",") for row in rows_of(tmp_path) if ",val," in row]
    assert [(event.step, event.value) for event in events.Scalars("val/accuracy")] == [
        (int(row[1]), pytest.approx(float(row[5]), rel=1e-5)) for row in val
    ]
    assert len(val) == 2 and {"step/loss", "train/loss", "lr", "final/test/accuracy"} <= set(events.Tags()["scalars"])


@pytest.mark.slow
def test_mlflow_without_a_server(toy_config, tmp_path):
    pytest.importorskip("mlflow")
    run(toy_config("logger=mlflow", "training.max_epochs=2"), tmp_path)
    number = json.loads((tmp_path / "loggers.json").read_text())["mlflow"]
    (metrics,) = (tmp_path / "mlflow").glob(f"*/{number}/metrics")
    assert len((metrics / "val" / "accuracy").read_text().splitlines()) == 2


@pytest.mark.slow
def test_wandb_offline(toy_config, tmp_path):
    pytest.importorskip("wandb")
    run(toy_config("logger=wandb", "logger.wandb.offline=true", "training.max_epochs=1"), tmp_path)
    number = json.loads((tmp_path / "loggers.json").read_text())["wandb"]
    assert list(tmp_path.glob(f"wandb/offline-run-*/run-{number}.wandb"))


def test_mistakes_are_told_before_the_run(monkeypatch):
    pytest.importorskip("tensorboard")
    with pytest.raises(UsageError, match=r"Unknown option of the logger 'tensorboard' 'nmae'.*Did you mean 'name'"):
        check_loggers({"tensorboard": {"nmae": "x"}})
    with pytest.raises(UsageError, match=r"logger.tensorboard holds options, logger.tensorboard.KEY=..., got 3"):
        check_loggers({"tensorboard": 3})
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'fractal-ssm\[wandb\]', or leave it out: metrics.csv"):
        check_loggers({"wandb": {}})


class Dying:
    version = run_id = "x"

    def log_hyperparams(self, config) -> None:
        pass

    def log_metrics(self, values, step) -> None:
        raise ConnectionError("no route")


def test_a_service_that_dies_ends_no_run(tmp_path, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(loggers, "_make", lambda *_: Dying())
    told = Loggers({"tensorboard": {}}, tmp_path, said.append)
    told.begin({}, Metrics(tmp_path / "metrics.csv"))
    for step in (1, 2):
        told.row({"epoch": 0, "step": step, "seconds": 0.1, "split": "val", "loss": 1.0, "accuracy": 0.5, "lr": 0.1})
    told.finish("finished")
    assert said == ["Note: logger=tensorboard is left out from here on (ConnectionError: no route)."]


def test_a_logger_that_does_not_start_is_told(tmp_path, monkeypatch):
    def broken(*_):
        raise PermissionError("closed")

    monkeypatch.setattr(loggers, "_make", broken)
    with pytest.raises(UsageError, match="logger=mlflow does not start: PermissionError: closed"):
        Loggers({"mlflow": {}}, tmp_path, print).begin({}, Metrics(tmp_path / "metrics.csv"))
