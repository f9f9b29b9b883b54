"""Losses and metrics of real targets are exact, also in float64, and ignore missing values."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import torchmetrics.regression as oracle
from torch import Tensor

from fractal_ssm import UsageError
from fractal_ssm.training.losses import gaussian_nll, pinball, point_loss
from fractal_ssm.training.tasks import Regression, Tally

NAN = float("nan")
LEVELS = (0.1, 0.5, 0.95)
OUTPUTS = ("point", "gaussian", "quantiles")


def task(output: str, d_target: int = 2, loss: str | None = None) -> Regression:
    return Regression(d_target, output, loss, LEVELS if output == "quantiles" else None)


def output_for(targets: Tensor, output: str, seed: int = 3) -> Tensor:
    """A possible output of a model for these targets."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(*targets.shape, {"point": 1, "gaussian": 2, "quantiles": 3}[output], generator=generator)
    made = made.to(targets.dtype)
    if output == "point":
        return made[..., 0]
    return torch.stack([made[..., 0], made[..., 1].exp()], -1) if output == "gaussian" else made.sort(-1).values


def targets(*shape: int, missing: float = 0.3, dtype=torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64) * 3 + 5
    return torch.where(torch.rand(*shape, generator=generator) < missing, NAN, values).to(dtype)


def test_losses_are_those_of_their_names():
    y, m = targets(7, missing=0), torch.randn(7, dtype=torch.float64)
    v = torch.rand(7, dtype=torch.float64) + 0.1
    assert torch.allclose(point_loss("mse", m, y), (m - y) ** 2)
    assert torch.allclose(point_loss("mae", m, y), (m - y).abs())
    assert torch.allclose(point_loss("huber", m, y), F.huber_loss(m, y, reduction="none"))
    expected = F.gaussian_nll_loss(m, y, v, full=True, reduction="none")
    assert torch.allclose(gaussian_nll(torch.stack([m, v], -1), y), expected)
    expected = -torch.distributions.Normal(m, v.sqrt()).log_prob(y)
    assert torch.allclose(gaussian_nll(torch.stack([m, v], -1), y), expected)
    assert torch.allclose(pinball(m[:, None], y, [0.5]), (m - y).abs() / 2)
    # A target above the quantile costs its level times the error, one below it costs 1 - level times the error.
    found = pinball(torch.zeros(2, 1), torch.tensor([2.0, -2.0]), [0.9])
    assert torch.allclose(found, torch.tensor([1.8, 0.2]))


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
def test_the_least_pinball_loss_is_at_the_quantile(level):
    y = torch.arange(101, dtype=torch.float64)
    losses = torch.stack([pinball(torch.full((101, 1), q), y, [level]).mean() for q in y.tolist()])
    assert y[losses.argmin()] == 100 * level


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("shape", [(6, 2), (4, 5, 2), (1, 1, 2)])
def test_missing_targets_are_as_if_they_were_not_there(output, shape):
    y = targets(*shape)
    prediction = output_for(y, output).requires_grad_()
    loss, sums = task(output).score(prediction, y)
    kept = ~y.isnan()
    own = prediction.detach()[kept][:, None].requires_grad_()
    # The values that are not missing, as one channel.
    expected, _ = task(output, 1).score(own, y[kept][:, None])
    assert loss.dtype == torch.float64 and sums[0] == kept.sum()
    torch.testing.assert_close(loss, expected, rtol=1e-14, atol=0)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(prediction.grad[kept], own.grad[:, 0], rtol=1e-14, atol=0)
    assert bool((prediction.grad[~kept] == 0).all())


@pytest.mark.parametrize("output", OUTPUTS)
def test_nothing_to_score_gives_no_loss_and_no_gradient(output):
    y = torch.full((3, 4, 2), NAN)
    prediction = output_for(torch.zeros(3, 4, 2), output).requires_grad_()
    loss, sums = task(output).score(prediction, y)
    loss.backward()
    assert loss == 0 and sums.sum() == 0 and bool((prediction.grad == 0).all())
    tally = Tally(task(output))
    tally.add(sums)
    result = tally.result()
    assert result["samples"] == 0 and math.isnan(result["mse"]) and math.isnan(result["r2"])


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("value", [NAN, float("inf"), 1e38])
def test_an_output_without_a_target_may_be_anything(output, value):
    y = targets(3, 4, 2, dtype=torch.float32)
    prediction = output_for(y, output)
    expected, _ = task(output).score(prediction, y)
    prediction[y.isnan()] = value
    prediction.requires_grad_()
    loss, sums = task(output).score(prediction, y)
    loss.backward()
    assert loss == expected and bool(sums.isfinite().all()) and bool(prediction.grad.isfinite().all())


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_metrics_are_exact_whatever_the_batches(output, batch_size):
    y = targets(8, 5, 2)
    prediction = output_for(y, output)
    kind = task(output)
    tally = Tally(kind)
    for start in range(0, 8, batch_size):
        tally.add(kind.score(prediction[start : start + batch_size], y[start : start + batch_size])[1])
    result = tally.result()
    point = {"point": lambda p: p, "gaussian": lambda p: p[..., 0], "quantiles": lambda p: p[..., 1]}[output](
        prediction
    )
    kept = ~y.isnan()
    for name, metric in (("mse", oracle.MeanSquaredError()), ("mae", oracle.MeanAbsoluteError())):
        assert result[name] == pytest.approx(metric.set_dtype(torch.float64)(point[kept], y[kept]).item(), rel=1e-12)
    assert result["rmse"] == pytest.approx(result["mse"] ** 0.5, rel=1e-14)
    channels = [(point[..., k][kept[..., k]], y[..., k][kept[..., k]]) for k in range(2)]
    spread = sum((c - c.mean()).square().sum() for _, c in channels)
    assert result["r2"] == pytest.approx(1 - (result["mse"] * result["samples"] / spread).item(), rel=1e-12)
    assert result["loss"] == pytest.approx(kind.score(prediction, y)[0].item(), rel=1e-14)
    assert tally.running().item() == pytest.approx(result["mse"], rel=1e-14)
    own = {"gaussian": {"nll"}, "quantiles": {"pinball"}, "point": set()}[output]
    assert set(result) == {"mse", "mae", "rmse", "r2", "loss", "samples"} | own


def test_r2_is_the_usual_one():
    y, p = targets(9, 1, missing=0), torch.randn(9, 1, dtype=torch.float64)
    kind = task("point", 1)
    result = kind.result(kind.score(p, y)[1].tolist())
    assert result["r2"] == pytest.approx(oracle.R2Score().set_dtype(torch.float64)(p[:, 0], y[:, 0]).item(), rel=1e-9)
    constant = kind.result(kind.score(p, torch.full((9, 1), 0.1, dtype=torch.float64))[1].tolist())
    assert math.isnan(constant["r2"]) and constant["mse"] > 0


@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_the_loss_is_chosen_and_the_metric_stays(loss):
    y, p = targets(9, 1), torch.randn(9, 1, dtype=torch.float64)
    found, sums = task("point", 1, loss).score(p, y)
    kept = ~y.isnan()
    assert found == pytest.approx(point_loss(loss, p[kept], y[kept]).mean().item(), rel=1e-12)
    assert task("point", 1, loss).main(sums) == pytest.approx((p - y)[kept].square().mean().item(), rel=1e-12)


@pytest.mark.parametrize(
    ("output", "loss", "levels", "words"),
    [
        ("point", "mean", None, "Unknown training.loss 'mean'. Known: huber, mae, mse."),
        ("gaussian", "mae", None, "training.loss=mae is for model.output=point, and model.output=gaussian is fitted"),
        ("quantiles", "mse", [0.5], "fitted by the pinball loss. Leave training.loss out"),
        ("quantiles", None, [0.1, 0.9], r"model.quantiles=\[0.1, 0.9\] lacks the level 0.5, and.*Add 0.5"),
    ],
)
def test_options_that_do_not_go_together(output, loss, levels, words):
    with pytest.raises(UsageError, match=words):
        Regression(1, output, loss, levels)


@pytest.mark.parametrize("shape", [(4, 2, 1), (4,), (4, 3), (4, 2, 2), (3, 2)])
def test_an_output_of_another_shape_is_refused(shape):
    with pytest.raises(UsageError, match=r"shape \(4, 2\); model.output=point needs \(4, 2\)"):
        task("point").score(torch.zeros(shape), torch.zeros(4, 2))
