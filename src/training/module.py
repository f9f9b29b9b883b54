"""The training step that all layers and tasks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ..config import OptimizerConfig, SchedulerConfig
from ..data.base import SPLITS, Batch
from ..errors import UsageError
from .accumulation import SampleMean
from .diagnosis import check_gradients, check_loss, check_scale
from .optim import describe_groups, parameter_groups, parameter_roles
from .optimizers import build_optimizer
from .scheduler import schedule
from .seeding import seed_all
from .tasks import Result, Tally, Task


class Classifier(LightningModule):
    """A model (inputs, lengths) -> outputs with its loss, exact metrics, optimiser and schedule.

    Args:
        model: called with the `inputs` and `lengths` of a batch and, in evaluation, the `dt_scale` of the split;
            retrieval batches hold two documents per target.
        task: loss and metrics of its outputs.
        optimizer, scheduler: their configurations.
        seed: of the run; the dropout of a step depends on it, on the step's place in the run and on the process.
        training_steps, steps_per_epoch: optimizer steps, for the schedule.
        run: plain facts of the run, kept in every checkpoint.
        dt_scales: split -> factor on the model's step dt in evaluation on that split (`SequenceData.dt_scale`);
            training uses the model's own step.
        batch_targets: number of scored targets in an ordinary training batch; batches may differ.
    Attributes:
        results: split -> `Result` of the last full pass over it.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        optimizer: OptimizerConfig,
        scheduler: SchedulerConfig,
        seed: int,
        training_steps: int,
        steps_per_epoch: int,
        run: dict[str, Any],
        dt_scales: Mapping[str, float],
        batch_targets: int = 1,
    ):
        super().__init__()
        self.model, self.task = model, task
        self.results: dict[str, Result] = {}
        self.groups = parameter_groups(model, optimizer)
        self._optimizer, self._seed, self._run = optimizer, seed, run
        self._dt_scales = dt_scales
        self._factor = schedule(scheduler, training_steps, steps_per_epoch)
        self._tallies = {name: Tally(task) for name in SPLITS}
        self._mean = SampleMean(batch_targets)

    def group_facts(self) -> list[dict[str, Any]]:
        """The parameter groups in the form of the record."""
        return describe_groups(self.groups, parameter_roles(self.model))

    def configure_optimizers(self) -> dict[str, Any]:
        fused = self.device.type == "cpu" and "mixed" not in self.trainer.precision
        optimizer = build_optimizer(self.groups, self._optimizer, fused)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Dropout depends only on the place in the run, so resuming needs no generator state and repeats exactly.
        seed_all(self._seed, "step", self.trainer.current_epoch, batch_idx, self.global_rank)
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            self._mean.begin_group()

    def on_train_epoch_start(self) -> None:
        self._tallies["train"] = Tally(self.task)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss, sums = self.task.score(self.model(batch.inputs, batch.lengths), batch.targets)
        # Read both numbers at once: each read of a GPU tensor waits for the device.
        value, scored = torch.stack([loss.detach().double(), self.task.count(sums)]).tolist()
        check_loss(value, self.model, batch, self.global_step)
        self._mean.add(int(scored))
        tally = self._tallies["train"]
        tally.add(sums)
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=len(batch.targets))
        name = self.task.metric.name
        self.log(name, tally.running(), prog_bar=True, logger=False, batch_size=len(batch.targets))
        # Lightning divides the loss by this number and passes the quotient to callbacks.
        return loss * self.trainer.accumulate_grad_batches

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        # Weighted here and not in `training_step`, so that callbacks get the loss of the batch.
        weight = self._mean.batch_weight
        (loss if weight == 1.0 else loss * weight).backward(*args, **kwargs)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        # Lightning clips the gradients after this hook.
        self._mean.finish(self.model.parameters(), self.device)
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is None:
            check_gradients(self.model, self.global_step)
        else:
            # The scaler handles gradients that overflow in float16: it skips the step and halves the scale.
            check_scale(scaler.get_scale(), self.global_step)

    def on_validation_start(self) -> None:
        self._tallies["val"] = Tally(self.task)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._score(batch, "val")

    def on_validation_epoch_end(self) -> None:
        self.results["train"] = self._tallies["train"].result()
        self.results["val"] = self._tallies["val"].result()
        if self.results["val"]["samples"] == 0:
            raise UsageError(
                "Every target of the validation is missing (NaN, or -100 for classes), so no checkpoint can be "
                "selected. Validation needs at least one target that is scored."
            )
        name = self.task.metric.name
        # The value is equal in all processes already, but lightning warns if sync_dist is not set.
        self.log(f"val/{name}", self.results["val"][name], prog_bar=True, logger=False, sync_dist=True)

    def on_test_start(self) -> None:
        self._tallies = {name: Tally(self.task) for name in SPLITS}

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        # `Loaders.test_dataloader` gives the loaders in this order.
        self._score(batch, SPLITS[dataloader_idx])

    def on_test_epoch_end(self) -> None:
        self.results = {name: tally.result() for name, tally in self._tallies.items()}

    def _score(self, batch: Batch, split: str) -> None:
        output = self.model(batch.inputs, batch.lengths, self._dt_scales[split])
        self._tallies[split].add(self.task.score(output, batch.targets)[1])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        sums = self._tallies["train"].sums
        checkpoint["run"] = self._run
        checkpoint["train_tally"] = None if sums is None else sums.cpu()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._tallies["train"].sums = checkpoint["train_tally"]
