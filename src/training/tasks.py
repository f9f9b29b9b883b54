"""Loss and metric of a classification batch, and sums that make an exact accuracy of batches of any size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from ..data.base import IGNORED
from ..errors import UsageError


def score(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy and the sums for a `Tally`.

    Args:
        logits: (B, C), one row a target; retrieval's (2B, L) inputs give B rows as well.
        targets: (B,) int64 in 0..C-1, or IGNORED.
    Returns:
        loss: scalar, mean over the samples that are not ignored (0 if all are); float64 for float64 logits, else
            float32.
        sums: (2 + C,) float64: correct predictions, summed loss, samples of each class.
    Raises:
        UsageError: numbers of logits and targets differ.
    """
    if logits.dim() != 2 or logits.shape[0] != targets.shape[0]:
        raise UsageError(
            f"The model gave scores of shape {tuple(logits.shape)} for {targets.shape[0]} targets; a batch needs one "
            f"row of class scores for each. A retrieval dataset needs a model built with task='retrieval'."
        )
    logits = logits if logits.dtype == torch.float64 else logits.float()
    summed = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    counted = targets != IGNORED
    classes = torch.bincount(targets[counted], minlength=logits.shape[1])
    correct = (logits.argmax(dim=1) == targets).sum()
    sums = torch.cat([torch.stack([correct.double(), summed.detach().double()]), classes.double()])
    return summed / counted.sum().clamp(min=1), sums


@dataclass(frozen=True)
class Result:
    """Scores of one pass over a split.

    accuracy, loss: means over the samples; majority: accuracy of the best constant answer; samples: how many.
    """

    accuracy: float
    loss: float
    majority: float
    samples: int


class Tally:
    """Sums over the batches of an epoch. Every sample weighs the same, whatever batch or process it was in."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None

    def add(self, sums: Tensor) -> None:
        """Add the sums of one batch, as `score` returns them."""
        self.sums = sums if self.sums is None else self.sums.to(sums.device) + sums

    def running_accuracy(self) -> Tensor:
        """Accuracy of this process so far, left on its device (no waiting for a GPU)."""
        assert self.sums is not None, "add comes first"
        return self.sums[0] / self.sums[2:].sum()

    def result(self, reduce: bool = True) -> Result:
        """The scores so far; with `reduce`, of all processes together (a collective call: every process makes it)."""
        if self.sums is None:
            raise RuntimeError("No batch was scored.")
        sums = self.sums.clone()
        if reduce and dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        correct, loss, *classes = sums.tolist()
        samples = sum(classes)
        if samples == 0:
            return Result(accuracy=float("nan"), loss=float("nan"), majority=float("nan"), samples=0)
        return Result(correct / samples, loss / samples, max(classes) / samples, int(samples))
