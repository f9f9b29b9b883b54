"""Whole runs of regression and tokens: trained, selected, recorded, loaded and resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fractal_ssm import load_model
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
