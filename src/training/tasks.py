"""The loss of a batch by task, and sums over batches of any size from which exact metrics follow."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from ..data.base import IGNORED, TASKS
from ..errors import UsageError, unknown
from .losses import POINT_LOSSES, gaussian_nll, pinball, point_loss
from .metric import ACCURACY, MSE, Metric

# Scores of a split: metric -> value, with "loss" and "samples". The latter is the number of scored targets: sequences,
# positions of tokens, or single values of regression.
Result = dict[str, float]


class Task(ABC):
    """The loss and the metrics of one kind of target.

    Every scored target has the same weight, in any sample, batch or process; missing targets have none.
    """

    metric: Metric

    @abstractmethod
    def score(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and sums of a batch.

        Args:
            output: of the model.
            targets: of the batch (`fractal_ssm.data.base.Batch`).
        Returns:
            loss: scalar with a gradient, mean over the scored targets, 0 if there are none; float64 for a float64
                output, else float32.
            sums: float64 vector for a `Tally`; sums of batches add up.
        Raises:
            UsageError: the output does not fit the targets.
        """

    @abstractmethod
    def count(self, sums: Tensor) -> Tensor:
        """Number of targets that were scored, on the device of `sums`."""

    @abstractmethod
    def main(self, sums: Tensor) -> Tensor:
        """The main metric, on the device of `sums`; NaN where nothing was scored."""

    @abstractmethod
    def result(self, sums: Sequence[float]) -> Result:
        """All metrics; NaN where nothing was scored."""


class Classification(Task):
    """Cross-entropy and accuracy of class indices: (B,) with logits (B, C), or (B, L) with logits (B, L, C).

    Args:
        perplexity: report exp(loss) as well, as is usual for tokens.
    Sums: correct predictions, summed loss, targets of each class.
    """

    metric = ACCURACY

    def __init__(self, perplexity: bool = False):
        self._perplexity = perplexity

    def score(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See the base class."""
        if output.dim() != targets.dim() + 1 or output.shape[:-1] != targets.shape:
            raise UsageError(
                f"The model gave scores of shape {tuple(output.shape)} for targets of shape {tuple(targets.shape)}; a "
                f"batch needs one row of class scores for each. A retrieval dataset needs a model built with "
                f"task='retrieval', a dataset with a class at every position one built with task='tokens'."
            )
        logits, targets = _precise(output).flatten(0, -2), targets.flatten()
        summed = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
        counted = targets != IGNORED
        classes = torch.bincount(targets[counted], minlength=logits.shape[1])
        correct = (logits.argmax(dim=1) == targets).sum()
        sums = torch.cat([torch.stack([correct.double(), summed.detach().double()]), classes.double()])
        return summed / counted.sum().clamp(min=1), sums

    def count(self, sums: Tensor) -> Tensor:
        """See the base class."""
        return sums[2:].sum()

    def main(self, sums: Tensor) -> Tensor:
        """See the base class."""
        return sums[0] / self.count(sums)

    def result(self, sums: Sequence[float]) -> Result:
        """accuracy; majority, the accuracy of the best constant answer; loss; perplexity; samples."""
        correct, loss, *classes = sums
        samples = int(sum(classes))
        correct, loss, most = (_ratio(value, samples) for value in (correct, loss, max(classes)))
        found: Result = {"accuracy": correct, "majority": most, "loss": loss}
        if self._perplexity:
            # A float64 overflows a little above exp(700).
            found["perplexity"] = math.exp(min(loss, 700.0))
        return found | {"samples": samples}


class Regression(Task):
    """Real targets (B, d_target) or (B, L, d_target); NaN is missing.

    Args:
        d_target: number of values of a target.
        output: "point", "gaussian" or "quantiles", as in the model.
        loss: for output="point", "mse" (also None), "mae" or "huber". The other outputs have one loss each: negative
            log-likelihood, and pinball loss averaged over the levels.
        quantiles: levels for output="quantiles"; they must include 0.5, since the metrics are of the median.
    Raises:
        UsageError: a loss that does not exist or does not fit the output, or no level 0.5.
    Sums: scored values, summed loss, squared and absolute errors; then of each channel its scored values, their sum and
    sum of squares.
    """

    metric = MSE

    def __init__(
        self, d_target: int, output: str = "point", loss: str | None = None, quantiles: Sequence[float] | None = None
    ):
        if output == "point":
            if loss is not None and loss not in POINT_LOSSES:
                raise unknown("training.loss", loss, POINT_LOSSES)
        elif loss is not None:
            own = "the negative log-likelihood" if output == "gaussian" else "the pinball loss"
            raise UsageError(
                f"training.loss={loss} is for model.output=point, and model.output={output} is fitted by {own}. Leave "
                f"training.loss out."
            )
        if output == "quantiles" and 0.5 not in (quantiles or ()):
            raise UsageError(
                f"model.quantiles={list(quantiles or ())} lacks the level 0.5, and the reported errors are those of "
                f"the median. Add 0.5."
            )
        self._d_target, self._output, self._loss = d_target, output, loss or "mse"
        self._levels = tuple(quantiles or ())

    def score(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """See the base class."""
        last = {"point": (), "gaussian": (2,), "quantiles": (len(self._levels),)}[self._output]
        if tuple(output.shape) != (*targets.shape, *last) or targets.shape[-1] != self._d_target:
            raise UsageError(
                f"The model gave an output of shape {tuple(output.shape)} for targets of shape "
                f"{tuple(targets.shape)}; model.output={self._output} needs {(*targets.shape, *last)}. Build the model "
                f"with the d_target={self._d_target} and per_position of the dataset."
            )
        output = _precise(output)
        scored = ~targets.isnan()
        # Fill both sides before the loss: its gradient at a NaN would be NaN even where the loss is masked.
        output = torch.where(scored[(..., *(None,) * len(last))], output, 1.0)
        targets = torch.where(scored, targets, 0.0).to(output.dtype)
        summed = torch.where(scored, self._losses(output, targets), 0.0).sum()
        return summed / scored.sum().clamp(min=1), self._sums(output.detach(), targets, scored, summed.detach())

    def _losses(self, output: Tensor, targets: Tensor) -> Tensor:
        if self._output == "gaussian":
            return gaussian_nll(output, targets)
        if self._output == "quantiles":
            return pinball(output, targets, self._levels)
        return point_loss(self._loss, output, targets)

    def _sums(self, output: Tensor, targets: Tensor, scored: Tensor, loss: Tensor) -> Tensor:
        mask, targets = scored.double().flatten(0, -2), targets.double().flatten(0, -2)
        error = (self._point(output).double().flatten(0, -2) - targets) * mask
        whole = [mask.sum(), loss.double(), error.square().sum(), error.abs().sum()]
        # Filled targets are 0, so that they add nothing.
        return torch.cat([torch.stack(whole), mask.sum(0), targets.sum(0), targets.square().sum(0)])

    def _point(self, output: Tensor) -> Tensor:
        """The prediction for which metrics are computed: the point, the mean or the median."""
        if self._output == "point":
            return output
        return output[..., 0 if self._output == "gaussian" else self._levels.index(0.5)]

    def count(self, sums: Tensor) -> Tensor:
        """See the base class."""
        return sums[0]

    def main(self, sums: Tensor) -> Tensor:
        """See the base class."""
        return sums[2] / sums[0]

    def result(self, sums: Sequence[float]) -> Result:
        """mse, mae, rmse; r2 = 1 - sum (y - p)^2 / sum (y - mean of its channel)^2; nll or pinball; loss; samples.

        r2 is NaN where the targets do not vary.
        """
        values, loss, squares, absolutes = sums[:4]
        counts, totals, seconds = (sums[4 + k * self._d_target : 4 + (k + 1) * self._d_target] for k in range(3))
        spread = sum(s - t * t / n for n, t, s in zip(counts, totals, seconds, strict=True) if n)
        # Rounding errors of a constant do not count as spread.
        spread = spread if spread > 1e-12 * sum(seconds) else 0.0
        mse = _ratio(squares, values)
        found: Result = {
            "mse": mse,
            "mae": _ratio(absolutes, values),
            "rmse": math.sqrt(mse),
            "r2": 1 - _ratio(squares, spread),
            "loss": _ratio(loss, values),
        }
        if self._output != "point":
            found["nll" if self._output == "gaussian" else "pinball"] = found["loss"]
        return found | {"samples": int(values)}


class Tally:
    """Sums over the batches of an epoch."""

    def __init__(self, task: Task):
        self._task = task
        self.sums: Tensor | None = None

    def add(self, sums: Tensor) -> None:
        """Add the sums of one batch, as `Task.score` returns them."""
        self.sums = sums if self.sums is None else self.sums.to(sums.device) + sums

    def running(self) -> Tensor:
        """The main metric of this process so far, left on its device so that nothing waits for a GPU."""
        assert self.sums is not None, "add comes first"
        return self._task.main(self.sums)

    def result(self, reduce: bool = True) -> Result:
        """The scores so far; with `reduce`, of all processes together (collective: every process must call it)."""
        if self.sums is None:
            raise RuntimeError("No batch was scored.")
        sums = self.sums.clone()
        if reduce and dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        return self._task.result(sums.tolist())


def build_task(facts: Any, output: str, quantiles: Sequence[float] | None, loss: str | None) -> Task:
    """The task of a dataset.

    Args:
        facts: `task` and `d_target` of a dataset, as attributes.
        output, quantiles: of the model.
        loss: `training.loss`.
    Raises:
        UsageError: an unknown task, or options that do not go together.
    """
    if facts.task not in TASKS:
        raise unknown("task", facts.task, TASKS)
    if facts.task == "regression":
        return Regression(facts.d_target, output, loss, quantiles)
    if loss is not None:
        raise UsageError(
            f"training.loss={loss} is a loss of regression, and the task of this dataset is '{facts.task}', which is "
            f"fitted by cross-entropy. Leave training.loss out."
        )
    return Classification(perplexity=facts.task == "tokens")


def check_target(target: float | None, metric: Metric) -> None:
    """Refuse a `training.target` that the main metric cannot have.

    Raises:
        UsageError: an accuracy above 1.
    """
    if target is not None and metric.is_share and target > 1:
        raise UsageError(
            f"training.target must lie in (0, 1] for this task, whose main metric is the accuracy, got {target}. It is "
            f"a share of the samples."
        )


def values_a_sample(data: Any) -> int:
    """Largest number of targets of a sample."""
    positions = data.l_max if data.task == "tokens" or data.per_position else 1
    return positions * (data.d_target or 1)


def _precise(output: Tensor) -> Tensor:
    return output if output.dtype == torch.float64 else output.float()


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
