"""Write the checkpoints of a run: best.ckpt, last.ckpt and step-<step>.ckpt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, callbacks
from lightning.pytorch.plugins.io import TorchCheckpointIO
from rich.console import Console

from ..checkpoint import read_checkpoint
from ..config import TrainingConfig
from ..errors import UsageError
from ..files import WriteFailed, atomic_write
from .metric import Metric
from .signals import Signals, Stop

# Entry of a checkpoint: whether a validation has begun and not ended.
PENDING = "validation_pending"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints with `atomic_write`.

    Lightning's own writer goes through TMPDIR, and where that is another file system it copies over the old file.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """torch.save to `path`, which holds the old or the new checkpoint at any time.

        Raises:
            WriteFailed: no space, a read-only folder, ...; the old file is still there.
        """
        folder = Path(path).parent
        try:
            # Do not make parents: a run folder that was removed must not reappear with this file alone.
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise WriteFailed(error.errno, error.strerror, str(folder)) from error
        with atomic_write(path) as file:
            torch.save(checkpoint, file)


class BestCheckpoint(callbacks.ModelCheckpoint):
    """best.ckpt, rewritten after a validation when the main metric is better than ever before.

    A run that is resumed in a moved folder keeps its best value and finds its file there. If the file is lost, the
    search for the best starts again and a note is printed.

    Args:
        folder: of the checkpoints.
        metric: the main metric of the task.
        console: for the note; None in all processes but the first.
    """

    def __init__(self, folder: Path, metric: Metric, console: Console | None):
        self._console = console
        super().__init__(
            dirpath=folder,
            filename="best",
            monitor=f"val/{metric.name}",
            mode=metric.mode,
            save_top_k=1,
            save_on_train_epoch_end=False,
            enable_version_counter=False,
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state, with paths in the present folder, unless the file that it names is missing or damaged."""
        best = self._here(state_dict["best_model_path"])
        try:
            if best:
                read_checkpoint(best)
        except UsageError:
            if self._console is not None:
                self._console.print(f"Note: {best} is missing or damaged; the search for the best starts again.")
            return
        super().load_state_dict(
            {
                **state_dict,
                "dirpath": self.dirpath,
                "best_model_path": best,
                "kth_best_model_path": self._here(state_dict["kth_best_model_path"]),
                "last_model_path": self._here(state_dict["last_model_path"]),
                "best_k_models": {self._here(path): value for path, value in state_dict["best_k_models"].items()},
            }
        )

    def _here(self, path: str) -> str:
        moved = Path(self.dirpath) / Path(path).name
        return str(moved) if path and moved.exists() else path


class StepCheckpoints:
    """step-<step>.ckpt, every `every` optimizer steps; the newest `keep` of them stay.

    Files of later steps, which the run wrote before it was resumed further back, stay until they are written again.
    """

    def __init__(self, folder: Path, every: int | None, keep: int | None):
        self._folder, self._every, self._keep = folder, every, keep
        self._written = 0

    def save_if_due(self, trainer: Trainer) -> None:
        """Write the file of this step, once, and remove the oldest."""
        step = trainer.global_step
        if self._every is None or step == 0 or step % self._every or step == self._written:
            return
        self._written = step
        trainer.save_checkpoint(self._folder / f"step-{step:08d}.ckpt")
        if self._keep is not None and trainer.is_global_zero:
            files = sorted((int(path.stem.removeprefix("step-")), path) for path in self._folder.glob("step-*.ckpt"))
            for _, path in [pair for pair in files if pair[0] <= step][: -self._keep]:
                path.unlink()


class LastCheckpoint(callbacks.Checkpoint):
    """last.ckpt: after every validation, every `checkpoint_minutes`, and at a signal, after which the run stops.

    The checkpoints of single steps are written here too, at the same moments.

    Only whole optimizer steps are saved. At the end of an epoch, where the validation comes next, the file is written
    as the validation begins, and marked: a run that is resumed from it does the whole validation. All processes of a
    run save and stop at the same step. This callback must come after `BestCheckpoint`, whose state it saves.

    Args:
        folder: of the checkpoints.
        signals: of the run; while they are deferred, they stop it where this callback checks them.
        training: how often to save (checkpoint_minutes, checkpoint_steps, keep_checkpoints).
    Attributes:
        step: the optimizer step of the file that this run has written; None before.
        started: whether the fit has reached its steps, so that a checkpoint to resume has been restored.
    """

    def __init__(self, folder: Path, signals: Signals, training: TrainingConfig):
        self._path, self._signals, minutes = folder / "last.ckpt", signals, training.checkpoint_minutes
        self._steps = StepCheckpoints(folder, training.checkpoint_steps, training.keep_checkpoints)
        self._seconds = None if minutes is None else 60 * minutes
        self.step: int | None = None
        self.started = False
        self._written = time.monotonic()
        self._seen = 0
        self._validating = self._resumes_validation = False

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint[PENDING] = self._validating
        if self._validating:
            # Set the counts of a loop that was left inside its first batch; lightning then runs it from the start.
            inside = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
            progress.update(total=dict(inside), current=dict(inside), is_last_batch=False)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: Mapping[str, Any]) -> None:
        self._resumes_validation = checkpoint.get(PENDING, False)
        loop = trainer.fit_loop.epoch_loop
        if self._resumes_validation and 0 <= loop.max_steps <= checkpoint["global_step"]:
            # Lightning would skip a fit that has all its steps; StepLimit ends it after the validation.
            loop.max_steps = checkpoint["global_step"] + 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = True
        self._signals.saving = True
        self._stop_if_asked(self._agreed(trainer)[0])
        self._written, self._seen = time.monotonic(), trainer.global_step
        if self._resumes_validation:
            # Validate at once, also inside an epoch, where a limit had ended the fit.
            trainer.val_check_batch = trainer.fit_loop.epoch_loop.batch_progress.current.ready

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Batches whose gradients are accumulated share a step, and gradients are in no checkpoint.
        stepped, self._seen = trainer.global_step != self._seen, trainer.global_step
        validates_next = trainer.should_stop or trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if stepped and not validates_next:
            self._steps.save_if_due(trainer)
            self._save_if_due(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._validating = True
            if self._resumes_validation:
                self._resumes_validation, trainer.val_check_batch = False, trainer.num_training_batches
                # The counts that `on_save_checkpoint` wrote would keep one unfinished batch for good.
                trainer.fit_loop.epoch_loop.val_loop.batch_progress.total.reset()
            self._steps.save_if_due(trainer)
            self._save_if_due(trainer)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.state.fn == "fit":
            self._save_if_due(trainer)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._validating = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._save(trainer)
            self._stop_if_asked(self._agreed(trainer)[0])

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._signals.saving = False
        self._stop_if_asked(self._agreed(trainer)[0])

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._signals.saving = False

    def on_test_batch_start(self, trainer: Trainer, *_: Any) -> None:
        self._signals.check()

    def _save_if_due(self, trainer: Trainer) -> None:
        signum, due = self._agreed(trainer)
        if signum or due:
            self._save(trainer)
        self._stop_if_asked(signum)

    def _agreed(self, trainer: Trainer) -> tuple[int, bool]:
        """(signal or 0, whether the time has come), the same in all processes."""
        due = self._seconds is not None and time.monotonic() - self._written >= self._seconds
        if trainer.world_size == 1:
            return self._signals.received, due
        own = torch.tensor([self._signals.received, int(due)], device=trainer.strategy.root_device)
        signum, agreed = trainer.strategy.reduce(own, reduce_op="max").tolist()
        return int(signum), bool(agreed)

    def _save(self, trainer: Trainer) -> None:
        trainer.save_checkpoint(self._path)
        self.step, self._written = trainer.global_step, time.monotonic()

    def _stop_if_asked(self, signum: int) -> None:
        if signum:
            raise Stop(signum, self.step)
