"""Complex arithmetic on real tensors with a last axis (re, im)."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, factor: Tensor) -> Tensor:
    """x factor."""
    (real, imag), (a, b) = x.unbind(-1), factor.unbind(-1)
    return torch.stack((a * real - b * imag, a * imag + b * real), dim=-1)


def divide(x: Tensor, by: Tensor) -> Tensor:
    """x / by."""
    conjugate = by * torch.tensor([1.0, -1.0], dtype=by.dtype, device=by.device)
    return rotate(x, conjugate) / by.square().sum(-1, keepdim=True)


def exp(x: Tensor) -> Tensor:
    """The exponential of x."""
    real, imag = x.unbind(-1)
    return torch.exp(real)[..., None] * torch.stack((torch.cos(imag), torch.sin(imag)), dim=-1)
