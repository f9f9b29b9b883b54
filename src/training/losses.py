"""Elementwise losses of real numbers; `tasks.Regression` takes their means over the targets that are not missing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# Losses of a point prediction. Huber's turns from squared to absolute at an error of 1.
POINT_LOSSES = ("mse", "mae", "huber")


def point_loss(name: str, prediction: Tensor, target: Tensor) -> Tensor:
    """(y - p)^2, |y - p|, or Huber's (y - p)^2 / 2 up to |y - p| = 1 and |y - p| - 1/2 beyond, elementwise.

    Args:
        name: one of `POINT_LOSSES`.
        prediction, target: p and y, of one shape.
    """
    if name == "huber":
        return F.huber_loss(prediction, target, reduction="none")
    error = prediction - target
    return error.square() if name == "mse" else error.abs()


def gaussian_nll(prediction: Tensor, target: Tensor) -> Tensor:
    """-log N(y; m, v) = (log(2 pi v) + (y - m)^2 / v) / 2.

    Args:
        prediction: (..., 2), mean m and variance v > 0.
        target: (...).
    Returns:
        (...), in nats.
    """
    mean, variance = prediction.unbind(-1)
    return 0.5 * ((target - mean).square() / variance + variance.log() + math.log(2 * math.pi))


def pinball(prediction: Tensor, target: Tensor, levels: Sequence[float]) -> Tensor:
    """Mean over the levels a of max(a (y - q_a), (a - 1) (y - q_a)); its minimum in q_a is the a-quantile of y.

    Args:
        prediction: (..., K), the quantiles q_a in the order of the levels.
        target: (...).
        levels: K numbers in (0, 1).
    Returns:
        (...); for the level 0.5 alone, half the absolute error.
    """
    error = target[..., None] - prediction
    level = torch.tensor(levels, dtype=error.dtype, device=error.device)
    return torch.maximum(level * error, (level - 1) * error).mean(-1)
