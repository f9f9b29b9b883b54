"""Normalisation of (B, L, H), with or without padding in the batch statistics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import unknown
from ..base import valid_mask

NORMS = ("batch", "batch-masked", "layer", "layer-scalar")


class BatchNorm(nn.Module):
    """Batch normalisation per feature, statistics over samples and positions; eps 1e-5.

    y = (x - mean) / sqrt(var + eps) * weight + bias, with the biased variance of the batch in training and the running
    statistics otherwise (running <- (1 - momentum) running + momentum batch, torch's convention; flax's momentum m is
    1 - m here).

    Args:
        masked: exclude padding from the statistics. Otherwise padded positions count like any other, as in the
            published S4 and S5, so that in training a sample's output depends on how far the batch is padded.

    The wrapped module is torch's own, so that its conversion to synchronised statistics (DDP) works.
    """

    def __init__(self, d_model: int, momentum: float, masked: bool):
        super().__init__()
        self.masked = masked
        self.statistics = nn.BatchNorm1d(d_model, momentum=momentum)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, L, H), lengths (B,) or None for no padding, to (B, L, H)."""
        # Batches without padding (images) skip this branch: selecting rows costs more than the norm itself.
        if self.training and self.masked and lengths is not None and bool((lengths < x.shape[1]).any()):
            valid = valid_mask(lengths, x.shape[1])
            normed = self.statistics(x[valid])
            return torch.zeros_like(x, dtype=normed.dtype).index_put((valid,), normed)
        return self.statistics(x.flatten(0, 1)).view(x.shape)


class LayerNorm(nn.LayerNorm):
    """Normalisation of each position over its features; padding does not affect valid positions."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, L, H) to (B, L, H)."""
        return super().forward(x)


class ScalarLayerNorm(nn.Module):
    """Layer norm with one scale and one shift for all features, as in the transposed layout of the published S4.

    y = weight (x - mean + bias) / std over the features of each position, with the biased deviation and no epsilon.
    Where all features are equal, std is taken as the smallest normal number: y is 0 with bias = 0, and huge otherwise,
    where the published code has NaN and infinity.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x (B, L, H) to (B, L, H)."""
        std, mean = torch.std_mean(x, dim=-1, correction=0, keepdim=True)
        return self.weight * (x - mean + self.bias) / std.clamp_min(torch.finfo(x.dtype).tiny)


def build_norm(norm: str, d_model: int, bn_momentum: float, framework: str) -> nn.Module:
    """Build the norm named `norm`, one of `NORMS`; the eps of "layer" is 1e-5, or 1e-6 with flax's defaults."""
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    if norm == "layer-scalar":
        return ScalarLayerNorm()
    if norm == "layer":
        return LayerNorm(d_model, eps=1e-6 if framework == "flax" else 1e-5)
    return BatchNorm(d_model, bn_momentum, masked=norm == "batch-masked")
