"""Show the progress of a fit: a bar on a terminal, or a plain line at intervals in a log file."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from rich.console import Console
from rich.progress import ProgressColumn, TimeRemainingColumn

from .metric import Metric
from .table import duration


class ProgressBar(RichProgressBar):
    """Lightning's bar in one line of 80 columns: epoch, batches, time left, speed, loss and main metric so far.

    Each validation prints its own line, so the bar need not show its scores.
    """

    def __init__(self, metric: Metric):
        super().__init__(theme=RichProgressBarTheme(metrics_format=".3f" if metric.is_share else ".3g"))
        self._metric = metric.name

    def configure_columns(self, trainer: Trainer) -> list[ProgressColumn]:
        """Lightning's columns with a short bar, and without the elapsed time."""
        label, bar, batches, _, speed = super().configure_columns(trainer)
        bar.bar_width = 8
        return [label, bar, batches, TimeRemainingColumn(), speed]

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Loss and main metric of the epoch so far; the accuracy has a short name."""
        metrics = super().get_metrics(trainer, pl_module)
        short = {"accuracy": "acc"}.get(self._metric, self._metric)
        return {label: metrics[key] for key, label in (("loss", "loss"), (self._metric, short)) if key in metrics}


class ProgressLines(Callback):
    """Prints a line every `seconds`: step, loss, main metric of the epoch so far, samples a second, time left.

    Args:
        seconds: least time between two lines.
        console: for the lines.
        total_steps: step at which training ends unless it is stopped earlier.
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
        loss, value = map(
            self._metric.shown, (float(outputs["loss"]), float(trainer.callback_metrics[self._metric.name]))
        )
        left = duration((self._total_steps - trainer.global_step) * since / steps)
        self._console.print(
            f"step {trainer.global_step} of {self._total_steps}  loss {loss}  "
            f"{self._metric.name} {value}  "
            f"{self._samples / max(since, 1e-9):.1f} samples/s  {left} left",
            highlight=False,
        )
        self._restart(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # A validation prints its own line, and its time must not count as time of steps.
        self._restart(trainer)

    def _restart(self, trainer: Trainer) -> None:
        self._mark, self._step, self._samples = time.monotonic(), trainer.global_step, 0
