"""The training step that all layers and tasks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from ..config import OptimizerConfig, SchedulerConfig
from ..data.base import SPLITS, Batch
from .accumulation import SampleMean
from .diagnosis import check_gradients, check_loss
from .optim import build_optimizer, describe_groups, parameter_groups, parameter_roles
from .scheduler import schedule
from .seeding import seed_all
from .tasks import Result, Tally, Task


class Classifier(LightningModule):
    """A model (inputs, lengths) -> outputs with its loss, exact metrics, optimiser and schedule.

    Args:
        model: called with the `inputs` and `lengths` of a batch and, where it is scored, the `dt_scale` of the split;
            retrieval batches hold two documents a target.
        task: loss and metrics of its outputs.
        optimizer, scheduler: their configurations.
        seed: of the run; dropout of each step follows from it, the step's place in the run and the process.
        training_steps, steps_per_epoch: optimizer steps, for the schedule.
        run: plain facts of the run, kept in every checkpoint.
        dt_scales: split -> factor on the model's step when it is scored on that split (`SequenceData.dt_scale`);
            training is at the model's own step.
        batch_targets: scored targets of an ordinary training batch; batches may differ.
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
        """The parameter groups as the record holds them."""
        return describe_groups(self.groups, parameter_roles(self.model))

    def configure_optimizers(self) -> dict[str, Any]:
        fused = self.device.type == "cpu" and "mixed" not in self.trainer.precision
        optimizer = build_optimizer(self.groups, self._optimizer, fused)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        # Dropout as a function of the place in the run: resuming needs no generator state and repeats exactly.
        seed_all(self._seed, "step", self.trainer.current_epoch, batch_idx, self.global_rank)
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            self._mean.begin_group()

    def on_train_epoch_start(self) -> None:
        self._tallies["train"] = Tally(self.task)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss, sums = self.task.score(self.model(batch.inputs, batch.lengths), batch.targets)
        # One look at two numbers: on a GPU each look waits for the device.
        value, scored = torch.stack([loss.detach().double(), self.task.count(sums)]).tolist()
        check_loss(value, self.model, batch, self.global_step)
        self._mean.add(int(scored))
        tally = self._tallies["train"]
        tally.add(sums)
        self.log("loss", loss, prog_bar=True, logger=False, batch_size=len(batch.targets))
        name = self.task.metric.name
        self.log(name, tally.running(), prog_bar=True, logger=False, batch_size=len(batch.targets))
        # Lightning divides it by the same number again, and shows the quotient to callbacks.
        return loss * self.trainer.accumulate_grad_batches

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        # Weighted here and not above, so that callbacks see the loss of the batch.
        weight = self._mean.batch_weight
        (loss if weight == 1.0 else loss * weight).backward(*args, **kwargs)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        # Before lightning clips.
        self._mean.finish(self.model.parameters(), self.device)
        check_gradients(self.model, self.global_step)

    def on_validation_start(self) -> None:
        self._tallies["val"] = Tally(self.task)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._score(batch, "val")

    def on_validation_epoch_end(self) -> None:
        self.results["train"] = self._tallies["train"].result()
        self.results["val"] = self._tallies["val"].result()
        name = self.task.metric.name
        # Equal in all processes already; lightning wants to hear how it would be reduced.
        self.log(f"val/{name}", self.results["val"][name], prog_bar=True, logger=False, sync_dist=True)

    def on_test_start(self) -> None:
        self._tallies = {name: Tally(self.task) for name in SPLITS}

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        # The loaders of a test pass come in this order (`Loaders.test_dataloader`).
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
