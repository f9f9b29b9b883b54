"""Callbacks of the fit: curves with one printed line a validation, limits, and a hint when a run stays at chance."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console

from .metric import Metric
from .record import Metrics

# Binary cross-entropy of a model that has learnt nothing, and the distances from chance that count as stuck.
_CHANCE_LOSS, _LOSS_MARGIN, _ACCURACY_MARGIN = math.log(2), 0.003, 0.02


class Curves(Callback):
    """Writes the rows of metrics.csv, prints one line a validation, and measures the rate of training.

    Args:
        metrics: receives the rows.
        metric: the main metric of the task.
        console: for the lines; None in all processes but the first.
        every: steps between rows of the training loss.
    Attributes:
        train_seconds, train_samples: time spent in training (with loading, without validation), and number of samples
            of all processes in that time.
    """

    def __init__(self, metrics: Metrics, metric: Metric, console: Console | None, every: int):
        self._metrics, self._metric, self._console, self.every = metrics, metric, console, every
        self.train_seconds, self.train_samples = 0.0, 0
        self._start = self._mark = time.monotonic()
        self._last_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = self._mark = time.monotonic()
        # The step at which a run is resumed has its row already.
        self._last_step = trainer.global_step

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["metrics_rows"] = len(self._metrics.rows)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        self.train_seconds += now - self._mark
        self._mark = now
        self.train_samples += len(batch.targets) * trainer.world_size
        # Batches whose gradients are accumulated share a step.
        if trainer.global_step % self.every == 0 and trainer.global_step != self._last_step:
            self._last_step = trainer.global_step
            self._row(trainer, "step", float(outputs["loss"]), float(trainer.callback_metrics[self._metric.name]))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.train_seconds += time.monotonic() - self._mark

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._mark = time.monotonic()
        if trainer.state.fn != "fit":
            return
        told, name = [], self._metric.name
        for split in ("train", "val"):
            result = pl_module.results[split]
            self._row(trainer, split, result["loss"], result[name])
            loss, value = self._metric.shown(result["loss"]), self._metric.shown(result[name])
            told.append(f"{split} loss {loss} {name} {value}")
        if self._console is not None:
            self._console.print(
                f"epoch {trainer.current_epoch}  step {trainer.global_step}  {time.monotonic() - self._start:.0f} s  "
                + "  ".join(told),
                highlight=False,
            )

    def _row(self, trainer: Trainer, split: str, loss: float, value: float) -> None:
        self._metrics.add(
            epoch=trainer.current_epoch,
            step=trainer.global_step,
            seconds=round(time.monotonic() - self._start, 3),
            split=split,
            loss=loss,
            lr=max(group["lr"] for group in trainer.optimizers[0].param_groups),
            **{self._metric.name: value},
        )


class TimeLimit(Callback):
    """Ends the fit with the first optimizer step after `minutes`; a validation and the test of the run follow.

    The fit does not end inside a group of accumulated batches: the validation's checkpoints hold no gradients.
    """

    def __init__(self, minutes: float, console: Console | None):
        self._minutes, self._console = minutes, console
        self._end, self._seen = math.inf, 0
        self.reached = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end, self._seen = time.monotonic() + 60 * self._minutes, trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._seen:
            return
        self._seen = trainer.global_step
        late = trainer.strategy.reduce_boolean_decision(time.monotonic() >= self._end, all=False)
        if late and not self.reached:
            self.reached = trainer.should_stop = True
            if self._console is not None:
                self._console.print(
                    f"Time limit: training.max_minutes={self._minutes:g} reached at step {trainer.global_step}."
                )


class StepLimit(Callback):
    """Ends the fit at `steps` optimizer steps by a request to stop, before which lightning validates.

    Lightning's own `max_steps` ends without a validation unless an epoch happens to be over; the steps since the last
    validation would then be in no checkpoint.
    """

    def __init__(self, steps: int):
        self._steps = steps

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step >= self._steps:
            trainer.should_stop = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A run that was stopped inside its last validation has no step left after which to request the stop.
        if trainer.state.fn == "fit" and trainer.global_step >= self._steps:
            trainer.should_stop = True


class TargetReached(Callback):
    """Ends the fit after a validation whose main metric is `target` or better."""

    def __init__(self, target: float, metric: Metric, console: Console | None):
        self._target, self._metric, self._console = target, metric, console

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit":
            return
        value = pl_module.results["val"][self._metric.name]
        if not self._metric.at_least(value, self._target):
            return
        trainer.should_stop = True
        if self._console is not None:
            self._console.print(
                f"Target: training.target={self._target:g} reached at step {trainer.global_step} "
                f"({self._metric.name} {self._metric.shown(value)})."
            )


class ChanceHint(Callback):
    """Prints once that a binary task has stayed at chance for `steps` steps, and what has helped other runs.

    Args:
        steps: number of steps, and the interval of the checks.
        n_classes: number of classes, None for a task without classes; there is no hint unless it is 2.
        console: for the hint; None in all processes but the first.
    """

    def __init__(self, steps: int, n_classes: int | None, console: Console | None):
        self._steps, self._binary, self._console = steps, n_classes == 2, console
        self._losses: deque[float] = deque(maxlen=steps)
        self.given = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.given or not self._binary:
            return
        self._losses.append(outputs["loss"].detach())
        if len(self._losses) < self._steps or trainer.global_step % self._steps:
            return
        loss = float(sum(self._losses)) / len(self._losses)
        accuracy = float(trainer.callback_metrics["accuracy"])
        if abs(loss - _CHANCE_LOSS) <= _LOSS_MARGIN and abs(accuracy - 0.5) <= _ACCURACY_MARGIN:
            self.given = True
            if self._console is not None:
                self._console.print(
                    f"Hint: for {self._steps} steps the loss has been {loss:.4f} (ln 2 = 0.6931) and the accuracy "
                    f"{accuracy:.3f}, which is chance. Path-X can stay there for many epochs; otherwise check the data "
                    f"(python -m fractal_ssm.data), lower optimizer.lr and optimizer.ssm_lr (2e-4 and 1e-4 have "
                    f"helped), lengthen scheduler.warmup_steps, or try another seed."
                )
