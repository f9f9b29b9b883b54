"""Where a fit stands while it runs: a bar on a terminal, a plain line now and then in a log file."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from rich.console import Console
from rich.progress import ProgressColumn, TimeRemainingColumn

from .metric import Metric
from .table import duration


class ProgressBar(RichProgressBar):
    """Lightning's bar in one line of 80 columns: epoch, batches, time left, speed, loss and main metric so far.

    Each validation prints a line of its own, so that its scores need not stand here.
    """

    def __init__(self, metric: Metric):
        super().__init__()
        self._metric = metric.name

    def configure_columns(self, trainer: Trainer) -> list[ProgressColumn]:
        """Lightning's columns with a short bar, and without the time that has passed."""
        label, bar, batches, _, speed = super().configure_columns(trainer)
        bar.bar_width = 8
        return [label, bar, batches, TimeRemainingColumn(), speed]

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Loss and main metric of the epoch so far, the accuracy under a short name."""
        metrics = super().get_metrics(trainer, pl_module)
        short = {"accuracy": "acc"}.get(self._metric, self._metric)
        return {label: metrics[key] for key, label in (("loss", "loss"), (self._metric, short)) if key in metrics}


class ProgressLines(Callback):
    """One line every `seconds`: step, loss, main metric of the epoch so far, samples a second, time left.

    Args:
        seconds: least time between two lines.
        console: for the lines.
        total_steps: step at which training ends, if nothing ends it earlier.
        metric: the main metric of the task.
    """

    def __init__(self, seconds: float, console: Console, total_steps: int, metric: Metric):
        self._seconds, self._console, self._total_steps, self._metric = seconds, console, total_steps, metric
        self._mark = time.monotonic()
        self._step = self._samples = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restart(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._samples += len(batch.targets) * trainer.world_size
        since = time.monotonic() - self._mark
        steps = trainer.global_step - self._step
        if since < self._seconds or steps == 0:
            return
        value = self._metric.shown(float(trainer.callback_metrics[self._metric.name]))
        left = duration((self._total_steps - trainer.global_step) * since / steps)
        self._console.print(
            f"step {trainer.global_step} of {self._total_steps}  loss {float(outputs['loss']):.4f}  "
            f"{self._metric.name} {value}  "
            f"{self._samples / max(since, 1e-9):.1f} samples/s  {left} left",
            highlight=False,
        )
        self._restart(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A validation prints a line of its own, and its time is not that of the steps.
        self._restart(trainer)

    def _restart(self, trainer: Trainer) -> None:
        self._mark, self._step, self._samples = time.monotonic(), trainer.global_step, 0
