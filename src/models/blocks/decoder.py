"""From features (B, L, H) to class scores: pooling over the valid positions, then a head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError, unknown
from ..base import valid_mask
from .dense import dense

POOLS = ("mean", "last", "cls")
TASKS = ("classification", "retrieval")


def pool_positions(x: Tensor, mode: str, lengths: Tensor | None = None) -> Tensor:
    """One vector a sequence, (B, L, H) to (B, H); padded positions never count.

    mean: sum over t < length, divided by length (summed in at least float32, so that half precision keeps long
    sequences exact enough); last: the feature at length - 1; cls: the feature at position 0.
    """
    if mode == "cls":
        return x[:, 0]
    if mode == "last":
        return x[:, -1] if lengths is None else x[torch.arange(len(x), device=x.device), lengths - 1]
    if mode != "mean":
        raise unknown("pool", mode, POOLS)
    total = x if x.dtype == torch.float64 else x.float()
    if lengths is None:
        return total.mean(dim=1).to(x.dtype)
    # where, not a product: what a layer leaves at padded positions is unspecified and may be anything.
    total = torch.where(valid_mask(lengths, x.shape[1])[..., None], total, 0.0).sum(dim=1)
    return (total / lengths[:, None]).to(x.dtype)


class ClassificationHead(nn.Module):
    """logits = W x + b, pooled features (B, H) to (B, n_classes)."""

    # As in the encoder.
    decay_norm_and_bias = True

    def __init__(self, d_model: int, n_classes: int, framework: str):
        super().__init__()
        self.linear = dense(d_model, n_classes, framework)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.linear(pooled)


class RetrievalHead(nn.Module):
    """Scores of document pairs: (2B, H), all first documents and then all second ones, to (B, n_classes).

    logits = W2 gelu(W1 [o0, o1, o0 - o1, o0 * o1] + b1) + b2, W1 of 4H to H; the GELU is exact with torch's defaults
    and the tanh form with flax's, as in the published S4 and S5.
    """

    decay_norm_and_bias = True

    def __init__(self, d_model: int, n_classes: int, framework: str):
        super().__init__()
        self.inner = dense(4 * d_model, d_model, framework)
        self.outer = dense(d_model, n_classes, framework)
        self.approximate = "tanh" if framework == "flax" else "none"

    def forward(self, pooled: Tensor) -> Tensor:
        if pooled.shape[0] % 2:
            raise UsageError(
                f"Retrieval takes an even batch, all first documents and then all second ones, "
                f"got {pooled.shape[0]} sequences."
            )
        first, second = pooled.chunk(2)
        pair = torch.cat([first, second, first - second, first * second], dim=-1)
        return self.outer(F.gelu(self.inner(pair), approximate=self.approximate))


def build_head(task: str, d_model: int, n_classes: int, framework: str) -> nn.Module:
    """The head of `task`: "classification" or "retrieval"."""
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    return (RetrievalHead if task == "retrieval" else ClassificationHead)(d_model, n_classes, framework)
