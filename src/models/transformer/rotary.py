"""Rotary positions (RoFormer, arXiv 2104.09864)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotate(x: Tensor, position: Tensor) -> Tensor:
    """Rotate feature pairs (2i, 2i + 1) of x by the angle position * 10000^(-2i/d).

    The inner product of two rotated vectors depends on their positions only through the difference.

    Args:
        x: (B, heads, L, d), d even; any floating dtype, kept.
        position: (B, L) float, not necessarily whole numbers.
    Returns:
        (B, heads, L, d); angles and products are computed in the dtype of `position`.
    """
    size = x.shape[-1]
    index = torch.arange(0, size, 2, device=x.device, dtype=position.dtype)
    angle = position[:, None, :, None] * torch.exp(index * (-math.log(10000.0) / size))
    cos, sin = angle.cos(), angle.sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)
