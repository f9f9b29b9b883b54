"""Whole runs of regression and tokens: trained, selected, recorded, loaded and resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fractal_ssm import UsageError, load_model
from fractal_ssm.train import build_data, run
from fractal_ssm.training.record import Metrics

SERIES = ("imports=[toy_parts,toy_series]", "dataset.name=toy-series", "training.max_epochs=2")
TAGS = ("imports=[toy_parts,toy_series]", "dataset.name=toy-tags", "training.max_epochs=2")
RUNS = {
    "point": SERIES,
    "pooled": (*SERIES, "dataset.per_position=false", "dataset.d_target=2"),
    "missing": (*SERIES, "dataset.missing=0.3", "dataset.d_target=2", "training.loss=huber"),
    "gaussian": (*SERIES, "model.output=gaussian", "training.bucket_by_length=true"),
    "quantiles": (*SERIES, "model.output=quantiles", "model.quantiles=[0.1,0.5,0.9]"),
    "tokens": TAGS,
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_from_data_to_record(toy_config, tmp_path, name, capsys):
    config = toy_config(*RUNS[name])
    facts = run(config, tmp_path)
    metric = "accuracy" if name == "tokens" else "mse"
    assert facts["metric"] == {"name": metric, "higher_is_better": name == "tokens"}
    optimal = 2.5 if "dataset.d_target=2" in RUNS[name] else 1.0
    assert facts["reference"] == ({} if name == "tokens" else {"optimal": optimal})
    assert all(np.isfinite(list(result.values())).all() for result in facts["metrics"].values())
    rows = Metrics(tmp_path / "metrics.csv").rows
    validations = [row for row in rows if row["split"] == "val"]
    best = (max if name == "tokens" else min)(validations, key=lambda row: row[metric])
    assert facts["selected"] == f"best validation {metric} (step {best['step']})"
    assert facts["metrics"]["val"][metric] == pytest.approx(best[metric], rel=1e-4)
    assert json.loads((tmp_path / "record.json").read_text())["metric"]["name"] == metric
    said = capsys.readouterr().out
    assert "val loss" in said and metric in said and ("optimal" in said) is (name != "tokens")
    assert ("positions" if name == "tokens" else "values") in said and facts["task"] in ("tokens", "regression")

    # Scored again, without the training loop.
    model = load_model(tmp_path / "checkpoints" / "best.ckpt", imports=["toy_parts", "toy_series"])
    data = build_data(config)
    inputs, targets, lengths = data.collate(data.split("test"))
    with torch.no_grad():
        output = model(inputs, lengths)
    if name == "tokens":
        scored = targets != -100
        found = (output.argmax(-1) == targets)[scored].double().mean().item()
    else:
        point = output[..., {"gaussian": 0, "quantiles": 1}[name]] if name in ("gaussian", "quantiles") else output
        scored = ~targets.isnan()
        found = (point - targets)[scored].double().square().mean().item()
    assert facts["metrics"]["test"][metric] == pytest.approx(found, rel=1e-5)
    assert facts["metrics"]["test"]["samples"] == scored.sum()


def test_a_resumed_run_is_the_whole_run(toy_config, tmp_path):
    """Stopped inside an epoch, where the sums of the metrics so far are in the checkpoint."""
    options = (*RUNS["gaussian"], "dataset.d_target=2", "dataset.missing=0.2", "trainer.accumulate_grad_batches=3")
    options = (*options, "scheduler.total_steps=9", "training.max_epochs=3", "trainer.progress_bar=false")
    whole = run(toy_config(*options), tmp_path / "whole")
    run(toy_config(*options, "training.max_steps=4"), tmp_path / "cut")
    last = tmp_path / "cut" / "checkpoints" / "last.ckpt"
    found = run(toy_config(*options, f"resume={last}"), tmp_path / "cut")
    assert found["steps"] == whole["steps"] == 9
    assert found["metrics"] == whole["metrics"]
    ends = []
    for name in ("whole", "cut"):
        rows = [row for row in Metrics(tmp_path / name / "metrics.csv").rows if row["split"] == "train"]
        ends.append({key: rows[-1][key] for key in ("step", "loss", "mse")})
    assert ends[0] == ends[1]


def test_the_target_of_an_error_is_reached_from_above(toy_config, tmp_path, capsys):
    facts = run(toy_config(*SERIES, "training.target=100"), tmp_path / "high")
    assert facts["epochs"] == 1 and "Target: training.target=100 reached at step 8 (mse " in capsys.readouterr().out
    assert run(toy_config(*SERIES, "training.target=0.0001"), tmp_path / "low")["epochs"] == 2


def test_a_validation_without_targets_is_told(toy_config, tmp_path):
    with pytest.raises(UsageError, match="Every target of the validation is missing"):
        run(toy_config(*SERIES, "dataset.missing=1.0"), tmp_path)


@pytest.mark.parametrize("name", ["gaussian", "pooled"])
def test_precisions(toy_config, tmp_path, name):
    """float64 throughout, and bfloat16 with predictions in float32."""
    double = run(toy_config(*RUNS[name], "trainer.precision=64-true"), tmp_path / "double")
    single = run(toy_config(*RUNS[name]), tmp_path / "single")
    rough = run(toy_config(*RUNS[name], "trainer.precision=bf16-mixed"), tmp_path / "rough")
    mse = [facts["metrics"]["test"]["mse"] for facts in (double, single, rough)]
    assert mse[1] == pytest.approx(mse[0], rel=1e-3) and mse[2] == pytest.approx(mse[0], rel=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("model.output=quantiles",), "output='quantiles' needs levels, but quantiles is not set"),
        (("model.output=quantiles", "model.quantiles=[0.1,0.9]"), "lacks the level 0.5"),
        (("model.output=quantiles", "model.quantiles=[0.5,1.5]"), "lies between 0 and 1, got 1.5"),
        (("model.output=quantiles", "model.quantiles=half"), "takes a list of 1 to 999 levels, got 'half'"),
        (
            ("model.output=gauss",),
            "Unknown output 'gauss'. Known: gaussian, point, quantiles. Did you mean 'gaussian'?",
        ),
        (("model.output=3",), "takes output as str, got 3"),
        (("model.quantiles=[0.5]",), "needs output='quantiles', but the output is 'point'"),
        (("model.pool=cls",), "pool='cls' makes one output of a whole sequence"),
        (
            ("model.layer={name:s5,bidirectional:true}",),
            "'s5' as configured looks ahead. Build it with bidirectional: fa",
        ),
        (("model.d_target=3",), "has no option 'd_target'"),
        (("training.loss=l2",), "Unknown training.loss 'l2'. Known: huber, mae, mse."),
        (("training.loss=mae", "model.output=gaussian"), "training.loss=mae is for model.output=point"),
        (
            ("dataset.name=toy-tags", "training.loss=mse"),
            "is a loss of regression, and the task of this dataset is 'tokens'",
        ),
        (("dataset.name=toy-tags", "model.output=gaussian"), "options of task='regression', and this task is 'tokens'"),
        (("dataset.name=toy-tags", "training.target=1.5"), "training.target must lie in (0, 1] for this task"),
        (("dataset.d_target=0",), "has d_target=0. Set a whole number from 1"),
    ],
)
def test_mistakes_are_told_before_there_is_data(toy_config, tmp_path, monkeypatch, options, words):
    import toy_series

    prepared = []
    monkeypatch.setattr(toy_series.ToySeries, "prepare", lambda self: prepared.append(self))
    with pytest.raises(UsageError) as caught:
        run(toy_config(*SERIES, *options), tmp_path)
    assert words in str(caught.value)
    assert not prepared and not list(tmp_path.iterdir())
