"""Callbacks that end a fit before all its steps are done, and the average of the weights."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from rich.console import Console
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..config import TrainingConfig
from .callbacks import StepLimit, TargetReached, TimeLimit
from .metric import Metric


def stops(training: TrainingConfig, metric: Metric, console: Console | None) -> list[Callback]:
    """The callbacks that a configuration asks for: limits of the fit, and the average of the weights."""
    found: list[Callback] = []
    if training.max_steps is not None:
        found.append(StepLimit(training.max_steps))
    if training.max_minutes is not None:
        found.append(TimeLimit(training.max_minutes, console))
    if training.target is not None:
        found.append(TargetReached(training.target, metric, console))
    if training.patience is not None:
        found.append(Patience(training.patience, training.min_delta, metric, console))
    if training.ema_decay is not None:
        found.append(WeightAverage(training.ema_decay))
    return found


class Patience(callbacks.EarlyStopping):
    """Ends the fit after `patience` validations in a row without a better one, as lightning's EarlyStopping counts.

    Args:
        patience, min_delta: of the configuration; they also replace the values in a resumed checkpoint.
        metric: the main metric of the task.
        console: for the message; None in all processes but the first.
    """

    def __init__(self, patience: int, min_delta: float, metric: Metric, console: Console | None):
        super().__init__(
            f"val/{metric.name}",
            min_delta=min_delta,
            patience=patience,
            mode=metric.mode,
            check_on_train_epoch_end=False,
        )
        self._console = console

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        if trainer.state.fn == "fit" and self.wait_count >= self.patience:
            trainer.should_stop = True
            if self._console is not None:
                self._console.print(
                    f"Early stopping: no better {self.monitor} in {self.wait_count} validations "
                    f"(training.patience={self.patience}), at step {trainer.global_step}.",
                    highlight=False,
                )


class WeightAverage(callbacks.WeightAveraging):
    """Exponential moving average of the weights, which is validated, tested and saved as the checkpoint's weights.

    This is lightning's callback, made safe for checkpoints written inside a validation, while the weights and their
    average are swapped. The checkpoint also holds the weights from which training continues.

    Args:
        decay: d of w <- d w + (1 - d) (weights of the step).
    """

    def __init__(self, decay: float):
        # Linear interpolation keeps constant tensors, such as fixed buffers, exact to the last bit.
        super().__init__(multi_avg_fn=get_ema_multi_avg_fn(decay))
        self._swapped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # The model is moved to this device only later.
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            super().on_validation_epoch_start(trainer, pl_module)
            self._swapped = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            super().on_validation_epoch_end(trainer, pl_module)
            self._swapped = False

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        if self._swapped:
            own, average = checkpoint["state_dict"], checkpoint["current_model_state"]
            checkpoint["state_dict"], checkpoint["current_model_state"] = average, own

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        # A test scores the average, which the checkpoint holds as its weights.
        if trainer.state.fn == "fit":
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
