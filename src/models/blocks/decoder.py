"""Pooling of features (B, L, H) over the valid positions, and the heads that turn features into outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import UsageError, unknown
from ..base import valid_mask
from .dense import dense
from .regression import RegressionHead

POOLS = ("mean", "last", "cls")
TASKS = ("classification", "retrieval", "regression", "tokens")


def pool_positions(x: Tensor, mode: str, lengths: Tensor | None = None) -> Tensor:
    """Pool (B, L, H) to one vector a sequence, (B, H); padded positions never count.

    mean: sum over t < length, divided by length (summed in at least float32, because half precision loses accuracy on
    long sequences); last: the feature at length - 1; cls: the feature at position 0.
    """
    if mode == "cls":
        return x[:, 0]
    if mode == "last":
        return x[:, -1] if lengths is None else x[torch.arange(x.shape[0], device=x.device), lengths - 1]
    if mode != "mean":
        raise unknown("pool", mode, POOLS)
    total = x if x.dtype == torch.float64 else x.float()
    if lengths is None:
        return total.mean(dim=1).to(x.dtype)
    # where, not a product: a layer's output at padded positions is unspecified and may be NaN.
    total = torch.where(valid_mask(lengths, x.shape[1])[..., None], total, 0.0).sum(dim=1)
    return (total / lengths[:, None]).to(x.dtype)


class ClassificationHead(nn.Module):
    """logits = W x + b, features (..., H) to (..., n_classes)."""

    # As in the encoder.
    decay_norm_and_bias = True

    def __init__(self, d_model: int, n_classes: int, framework: str):
        super().__init__()
        self.linear = dense(d_model, n_classes, framework)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class RetrievalHead(nn.Module):
    """Scores of document pairs: (2B, H), all first documents and then all second ones, to (B, n_classes).

    logits = W2 gelu(W1 [o0, o1, o0 - o1, o0 * o1] + b1) + b2, where W1 maps 4H to H. The GELU is exact with torch's
    defaults and in tanh form with flax's, as in the published S4 and S5.
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
        # Not chunk(2), which torch's ONNX exporter cannot follow.
        first, second = pooled.unflatten(0, (2, -1)).unbind()
        pair = torch.cat([first, second, first - second, first * second], dim=-1)
        return self.outer(F.gelu(self.inner(pair), approximate=self.approximate))


def build_head(
    task: str,
    d_model: int,
    framework: str,
    *,
    n_classes: int | None = None,
    d_target: int | None = None,
    output: str = "point",
    quantiles: Sequence[float] | None = None,
) -> nn.Module:
    """Build the head of a task; the options are those of `SequenceModel`.

    Raises:
        UsageError: an unknown task; n_classes or d_target missing, or given for a task that does not use it; an
            `output` or `quantiles` that the task does not allow.
    """
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    if task == "regression":
        _check_sizes(task, "d_target", d_target, "n_classes", n_classes)
        return RegressionHead(d_model, d_target, output, quantiles, framework)
    _check_sizes(task, "n_classes", n_classes, "d_target", d_target)
    if output != "point" or quantiles is not None:
        raise UsageError(
            f"output={output!r} and quantiles={quantiles!r} are options of task='regression', and this task is "
            f"'{task}'. Leave them out (model.output, model.quantiles)."
        )
    return (RetrievalHead if task == "retrieval" else ClassificationHead)(d_model, n_classes, framework)


def _check_sizes(task: str, needed: str, value: int | None, other: str, other_value: int | None) -> None:
    if value is None or value < 1:
        raise UsageError(f"The model needs {needed} >= 1 for task='{task}', got {value}.")
    if other_value is not None:
        raise UsageError(f"The model takes {needed} for task='{task}', and no {other}: got {other}={other_value}.")
