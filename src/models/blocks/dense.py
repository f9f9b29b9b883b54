"""Linear layers and dropout as in the published models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import unknown
from ..ssm_init import lecun_normal

FRAMEWORKS = ("torch", "flax")


def check_framework(framework: str) -> None:
    """Raise an error for an unknown framework."""
    if framework not in FRAMEWORKS:
        raise unknown("framework", framework, FRAMEWORKS, "It names whose defaults dense layers start from.")


def lecun_normal_(weight: Tensor, fan_in: int) -> Tensor:
    """Fill `weight` in place as flax does by default: variance 1 / fan_in, cut at two standard deviations."""
    with torch.no_grad():
        return weight.copy_(lecun_normal(tuple(weight.shape), fan_in))


def dense(d_in: int, d_out: int, framework: str) -> nn.Linear:
    """Linear map with bias, initialised as by `framework`: torch's default, or flax's (LeCun normal, zero bias)."""
    layer = nn.Linear(d_in, d_out)
    if framework == "flax":
        lecun_normal_(layer.weight, fan_in=d_in)
        nn.init.zeros_(layer.bias)
    return layer


class TiedDropout(nn.Module):
    """Dropout with one draw per sample and feature, shared by all positions; kept values are scaled by 1 / (1 - p)."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x (B, L, H) to the same shape."""
        if not self.training or self.p == 0.0:
            return x
        return x * F.dropout(x.new_ones(x.shape[0], 1, x.shape[2]), self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"
