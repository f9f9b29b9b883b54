"""Batch normalisation with the statistics of the batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .functions import passes_fit, through_torch


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """y = (x - mean) r weight + bias,  r = (var + eps)^(-1/2), for tensors that `passes_fit`.

    With g the gradient of y, h = (x - mean) r and averages < > over rows:
    dx = (g - <g> - h <g h>) r weight,  dweight = sum g h,  dbias = sum g.

    Args:
        x: (N, H).
        weight, bias: (H,).
    Returns:
        y (N, H), and without gradients the mean and the biased variance of the columns, float64 (H,).
    """
    return _BatchNorm.apply(x, weight, bias, eps)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
        from . import native

        mean, variance = native.moments(x)
        rate = (variance + eps).rsqrt()
        ctx.save_for_backward(x, weight, bias)
        ctx.mean, ctx.rate, ctx.eps = mean, rate, eps
        ctx.mark_non_differentiable(mean, variance)
        return native.normalise(x, mean, rate * weight.double(), bias), mean, variance

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> Any:
        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled() or not passes_fit(g, x, weight, bias):
            eps = ctx.eps

            def in_torch(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
                return F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)

            return *through_torch(in_torch, (x, weight, bias), ctx.needs_input_grad[:3], g), None
        from . import native

        sums, weighted = native.products(g, x, ctx.mean)
        of_weight = weighted * ctx.rate
        level, slope = sums / len(x), of_weight * ctx.rate / len(x)
        dx = native.normalise_gradient(g, x, ctx.mean, level, slope, ctx.rate * weight.double())
        return dx, of_weight.to(weight.dtype), sums.to(bias.dtype), None
