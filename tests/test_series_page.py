"""scripts.series: scores of volatility, tables from runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fractal_ssm.data.series.environment import Nile
from scripts.series import layer_forecasts, lines, mean_and_interval, qlike


def test_qlike_prefers_the_right_scale():
    variance = np.random.default_rng(0).chisquare(3, 10_000)
    scores = [qlike(variance, np.full_like(variance, scale)) for scale in (2.0, 3.0, 4.5)]
    assert scores[1] < min(scores[0], scores[2]) and qlike(variance, variance) == 0.0


class LastInput(torch.nn.Module):
    def forward(self, x):
        return x[:, :, :1]


def test_forecasts_are_gathered_in_the_unit_of_the_target():
    pytest.importorskip("statsmodels")
    data = Nile(None)
    data.prepare()
    found = layer_forecasts(LastInput(), data)
    expected = data.in_unit(data.inputs[:, 0].astype(float))
    for name in ("train", "val", "test"):
        np.testing.assert_allclose(found[data.scored(name)], expected[data.scored(name)])


def test_lines_are_sorted_by_the_metric():
    about = {"dataset": "series-x", "settings": "", "parameters": "1200"}
    runs = [
        {**about, "layer": layer, "seed": seed, "metric": metric, "test": test}
        for layer, seed, test in (("s5", 0, 0.5), ("s5", 1, 0.7), ("lru", 0, 0.3))
        for metric in ("mse",)
    ]
    models = [{"dataset": "series-x", "model": "AR(1)", "metric": "mse", "test": "0.4"}]
    header, body = lines("series-x", runs, models)
    assert header == ["model", "mse", "seeds", "parameters"]
    assert [line[0] for line in body] == ["**lru**", "AR(1)", "**s5**"]
    assert body[2][1:] == ["0.600 ± 1.271", "2", "1,200"] and mean_and_interval([0.3]) == "0.300"
