"""One run from its folder to its record: fit, select, test, and a true status however the run ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback

from ..config import Config
from ..data.base import SPLITS
from ..data.contract import check_reference
from ..errors import RunFailed, UsageError
from ..files import SPACE_ADVICE, WriteFailed, remove_leftovers, write_text
from ..models.backbone import SequenceModel
from .allocator import keep_freed_memory
from .callbacks import ChanceHint, Curves
from .checkpoints import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from .console import RunConsole
from .data import Loaders
from .lock import lock_folder, unlock_folder
from .loggers import Loggers
from .metric import MAIN
from .module import Classifier
from .processes import Watch, children_of, is_first
from .progress import ProgressBar, ProgressLines
from .record import Metrics, Record, device_name, earlier_parts, environment, peak_memory, read_record
from .requeue import requeue
from .resume import check_optimizer, check_same_run, load_checkpoint, other_checkpoints
from .seeding import seed_all
from .signals import Interrupted, Signals, Stop, name
from .stopping import stops
from .table import group_table, result_table, summary
from .tasks import build_task, values_a_sample
from .trainer import make_trainer, step_counts


class Session:
    """The steps of a run, in order: begin, build, fit, test, finish.

    Only the first process prints and writes.
    """

    def __init__(self, config: Config, run_dir: Path):
        self.run_dir = Path(run_dir)
        self.config = self._going_on(config)
        # Printed paths are relative to the working directory, so that they can be pasted.
        self._shown = Path(os.path.relpath(self.run_dir))
        self._first = is_first(config)
        self._console = RunConsole(soft_wrap=True) if self._first else None
        self._record = Record(self.run_dir, self._first)
        self._loggers = Loggers(self.config.logger if self._first else {}, self.run_dir, self._print)
        self._checkpoint: dict[str, Any] | None = None
        self._lock: int | None = None
        self._last: LastCheckpoint | None = None
        self._signals = Signals(announce=self._first)
        self._watch = Watch(self._lost)
        # Whether the record already belongs to this run and no longer to the run that is resumed.
        self._recording = False

    def begin(self, config_yaml: str, choices: Mapping[str, Any], overrides: Sequence[str] = ()) -> None:
        """Make the run folder, lock it, save the configuration and print a summary of it.

        The record of a resumed run stays unchanged until `build` has confirmed that it is the same run.

        Raises:
            UsageError: the folder holds another run or one that still runs, there is nothing to resume, or the resumed
                run had other settings.
        """
        facts: dict[str, Any] = {
            "status": "running",
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "layer": self.config.model["layer"]["name"],
            "dataset": self.config.dataset["name"],
            "seed": self.config.seed,
            "choices": dict(choices),
            "overrides": list(overrides),
            "resumed_from": self.config.resume,
            "earlier": [],
            **environment(),
        }
        if self.config.resume is not None:
            self._checkpoint = load_checkpoint(self.config.resume)
            check_same_run(self._checkpoint, self.config)
        if self._first:
            self.run_dir.mkdir(parents=True, exist_ok=True)
        own = self._in_own_folder()
        if not own and not self._record.claim(**facts):
            raise UsageError(
                f"{self.run_dir} holds a run already. Choose another folder (hydra.run.dir=...), or go on with that "
                f"run: resume={self._shown}/checkpoints/last.ckpt."
            )
        if self._first:
            self._lock = lock_folder(self.run_dir)
            for folder in (self.run_dir, self.run_dir / "checkpoints"):
                remove_leftovers(folder)
        if own:
            if self.config.resume is not None:
                # Read it again: before the folder was locked, another process may have continued the run.
                self._checkpoint = load_checkpoint(self.config.resume)
            self._record.facts.update(facts, earlier=earlier_parts(self.run_dir))
            if read_record(self.run_dir) is None:
                self._print(f"Note: {self._shown}/record.json is missing or damaged; the earlier parts are not in it.")
        self._recording = not own
        if self._first and not (own and (self.run_dir / "config.yaml").exists()):
            write_text(self.run_dir / "config.yaml", config_yaml)
        self._print(summary(self.config, choices, overrides, self._shown) + "\n")

    @contextmanager
    def recording_failures(self) -> Iterator[None]:
        """Context that writes an interruption or an error into the record before raising it, then frees the folder.

        Raises:
            Interrupted: after Ctrl-C or another signal of `HANDLED`; its message says what to do next.
            RunFailed: a file of the run could not be written.
        """
        answered = False
        try:
            with self._signals:
                try:
                    yield
                except BaseException as error:
                    # Signals now wait until the record is written, except for a second Ctrl-C.
                    self._signals.deferring = True
                    stop = self._stop_behind(error)
                    if stop is not None:
                        answered = True
                        raise self._interrupted(stop) from None
                    self._fail(error)
        finally:
            self._loggers.finish(self._record.facts.get("status", "failed"))
            self._watch.end()
            unlock_folder(self._lock)
            if not answered:
                self._signals.pass_on()

    def _stop_behind(self, error: BaseException) -> Stop | None:
        """The signal that caused an error, or None."""
        if isinstance(error, Stop):
            return error
        if isinstance(error, KeyboardInterrupt):
            return Stop(signal.SIGINT)
        if self._signals.received and isinstance(error, RuntimeError) and "DataLoader worker" in str(error):
            # The signal was sent to all processes of the job and reached a worker that was just being started.
            return Stop(self._signals.received)
        return None

    def _fail(self, error: BaseException) -> NoReturn:
        """Record the error and raise it; a failed write becomes a RunFailed with advice."""
        if not isinstance(error, WriteFailed):
            self._note(status="failed", error=f"{type(error).__name__}: {error}")
            raise error
        message = f"{error.filename} could not be written: {error.strerror}. {self._kept()} {SPACE_ADVICE}"
        self._note(status="failed", error=message)
        raise RunFailed(message) from error

    def _interrupted(self, stop: Stop) -> Interrupted:
        """Record the interruption, queue the job again if configured, and return the error that says how to resume."""
        status = 128 + stop.signum
        if not self._first:
            # The first process reports for all, and lightning kills it if another process fails before.
            return Interrupted("", 0 if stop.step is not None else status)
        if stop.step is None:
            self._watch.kill()
        by = "" if stop.signum == signal.SIGINT else f" by {name(stop.signum)}"
        at = "" if stop.step is None else f" at step {stop.step}"
        message = f"Interrupted{by}{at}. {self._kept()}"
        facts = {"signal": signal.Signals(stop.signum).name}
        if stop.signum == signal.SIGUSR1 and self.config.training.requeue:
            facts["requeued"], told = requeue()
            message = f"{message} {told}"
        self._note(status="interrupted", **facts)
        return Interrupted(message, status)

    def _kept(self) -> str:
        """A sentence that names the checkpoint from which the run can continue."""
        last = self.run_dir / "checkpoints" / "last.ckpt"
        if not last.exists():
            if last.with_name("best.ckpt").exists():
                # best.ckpt is written first; the disk may have been full after it.
                best = f"{self._shown}/checkpoints/best.ckpt"
                return f"The same command with resume={best} goes on from the best validation so far."
            return "There is no checkpoint yet."
        step = self._last.step if self._last is not None else None
        if step is None and self._checkpoint is not None and self._in_own_folder():
            step = self._checkpoint["global_step"]
        where = "its step" if step is None else f"step {step}"
        return f"The same command with resume={self._shown}/checkpoints/last.ckpt goes on from {where}."

    def _lost(self, what: str) -> None:
        """Report that another process died and end this one, which otherwise waits for it forever in a sum."""
        message = f"{what} {self._kept()}"
        try:
            self._note(status="failed", error=message)
            os.write(2, f"Stopped: {message}\n".encode())
        finally:
            self._watch.kill()
            os._exit(1)

    def build(self, make_model: Callable[[], SequenceModel], data: Any, facts: dict[str, Any]) -> None:
        """Make the model, parameter groups, loaders and trainer for prepared data."""
        config, training = self.config, self.config.training
        metric = MAIN[data.task]
        self._metrics = Metrics(self.run_dir / "metrics.csv", self._first, metric.name)
        self._loggers.begin(asdict(config), self._metrics)
        self._loaders = Loaders(data, training, config.seed)
        self._curves = Curves(self._metrics, metric, self._console, config.trainer.log_every_n_steps)
        folder = self.run_dir / "checkpoints"
        self._best = BestCheckpoint(folder, metric, self._console)
        self._last = LastCheckpoint(folder, self._signals, training)
        callbacks = [
            self._curves,
            ChanceHint(training.stuck_steps, data.n_classes, self._console),
            self._best,
            # After BestCheckpoint, so that last.ckpt holds its current state.
            self._last,
            LambdaCallback(setup=lambda trainer, *_, **__: self._watch.begin(children_of(trainer))),
            *stops(training, metric, self._console),
        ]
        if config.trainer.progress_bar and self._console is not None and self._console.is_terminal:
            callbacks.append(ProgressBar(metric))
        self._trainer = make_trainer(config, self.run_dir, callbacks)
        self._trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        if self._trainer.strategy.root_device.type == "cpu":
            keep_freed_memory()
        world = self._trainer.world_size
        steps, per_epoch = step_counts(config, self._loaders.batches_per_epoch(world))
        # A short run gets a curve too, of about fifty points.
        self._curves.every = min(self._curves.every, max(1, steps // 50))
        if not self._trainer.progress_bar_callback and config.trainer.progress_seconds is not None and self._console:
            self._trainer.callbacks.append(ProgressLines(config.trainer.progress_seconds, self._console, steps, metric))
        dt_scales = {split: data.dt_scale(split) for split in SPLITS}
        seed_all(config.seed, "weights")
        model = make_model()
        self._module = Classifier(
            model,
            build_task(data, model.output, model.quantiles, training.loss),
            config.optimizer,
            config.scheduler,
            config.seed,
            steps,
            per_epoch,
            run={"config": asdict(config), "data": facts, "world": world, "steps": steps},
            dt_scales=dt_scales,
            batch_targets=training.batch_size * values_a_sample(data),
        )
        if self._checkpoint is not None:
            self._continue(self._checkpoint, world, steps)
        self._recording = True
        groups = self._module.group_facts()
        parameters = sum(parameter.numel() for parameter in self._module.model.parameters())
        device = device_name(self._trainer.strategy.root_device)
        self._print(f"{parameters:,} parameters, {steps:,} steps ({per_epoch:,} an epoch), {device}")
        self._print(group_table(groups))
        self._record.update(
            data=data.describe(),
            task=data.task,
            metric=asdict(metric),
            reference=check_reference(data) if self._first else {},
            dt_scales=dt_scales,
            device=device,
            processes=world,
            parameters=parameters,
            parameter_groups=groups,
            planned_steps=steps,
        )

    @property
    def trainer(self) -> Trainer:
        """Lightning's trainer of the run; `build` makes it."""
        return self._trainer

    def fit(self) -> None:
        """Train, and keep the checkpoint with the best main metric of a validation."""
        started, cpu_started = time.monotonic(), time.process_time()
        self._signals.deferring = True
        self._signals.check()
        try:
            self._trainer.fit(self._module, datamodule=self._loaders, ckpt_path=self.config.resume, weights_only=True)
        except SystemExit as error:
            # Lightning turns Ctrl-C into exit status 1; callers of this program must be able to tell the two apart.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise RunFailed(f"The model or its data called sys.exit({error.code!r}) in the fit.") from error
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            if self._checkpoint is None or self._last.started:
                raise
            raise UsageError(
                f"{self.config.resume} cannot be restored ({type(error).__name__}: {error}): it is damaged or was made "
                f"by another version. {other_checkpoints(self.config.resume)}"
            ) from error
        finally:
            self._loaders.shut_down()
            self._draw_curves()
            self._record.update(
                fit_seconds=round(time.monotonic() - started, 3),
                # Processor time of all threads of this process, which a busy or suspended machine does not lengthen.
                fit_cpu_seconds=round(time.process_time() - cpu_started, 3),
            )
        self._record.update(
            steps=self._trainer.global_step,
            epochs=self._trainer.current_epoch,
            samples_per_second=self._curves.train_samples / max(self._curves.train_seconds, 1e-9),
        )

    def _draw_curves(self) -> None:
        """Write curves.png; a failure is printed, and neither ends the run nor hides another error."""
        try:
            self._metrics.plot(self.run_dir / "curves.png", f"{self.run_dir.parent.name}/{self.run_dir.name}")
        except OSError as error:
            self._print(f"Note: curves.png could not be written ({error.strerror or error}).")

    def test(self) -> None:
        """Score the selected checkpoint on training samples, the validation and the test split."""
        selected, rule = self._best.best_model_path, f"best validation {self._module.task.metric.name}"
        if not selected:
            # This is a resumed run whose best.ckpt was lost and that has no validation left.
            selected, rule = str(self.run_dir / "checkpoints" / "last.ckpt"), "last checkpoint, the best one was lost"
        step = load_checkpoint(selected)["global_step"]
        self._signals.check()
        try:
            self._trainer.test(
                self._module, datamodule=self._loaders, ckpt_path=selected, weights_only=True, verbose=False
            )
        finally:
            self._loaders.shut_down()
        self._signals.check()
        self._record.update(
            selected=f"{rule} (step {step})",
            selected_checkpoint=selected,
            metrics=self._module.results,
        )

    def finish(self, seconds: float) -> dict[str, Any]:
        """Close the record and print the final table."""
        self._record.update(
            status="finished",
            total_seconds=round(seconds, 3),
            peak_memory_bytes=peak_memory(self._trainer.strategy.root_device),
        )
        self._loggers.result(self._record.facts["metrics"], self._trainer.global_step)
        self._print(result_table(self._record.facts))
        self._print(f"Run folder: {self._shown}")
        return self._record.facts

    def _note(self, **facts: Any) -> None:
        """Record how the run ended, if the record belongs to this run and can be written."""
        if self._recording:
            with suppress(WriteFailed):
                self._record.update(**facts)

    def _going_on(self, config: Config) -> Config:
        """The configuration; with `training.requeue`, a repeated command resumes the checkpoint in its run folder."""
        last = self.run_dir / "checkpoints" / "last.ckpt"
        if config.training.requeue and config.resume is None and self._unfinished() and last.exists():
            return replace(config, resume=str(last))
        return config

    def _unfinished(self) -> bool:
        """Whether the folder holds a run that has not finished."""
        record = read_record(self.run_dir)
        return (self.run_dir / "record.json").exists() and (record or {}).get("status") != "finished"

    def _in_own_folder(self) -> bool:
        """Whether this run continues in the folder of its checkpoint, <folder>/checkpoints/last.ckpt."""
        resume = self.config.resume
        if resume is None:
            # A job that was queued again before its first checkpoint starts over in the same folder.
            return self.config.training.requeue and self._unfinished()
        return Path(resume).absolute().parent.parent.resolve() == self.run_dir.resolve()

    def _continue(self, checkpoint: Mapping[str, Any], world: int, steps: int) -> None:
        check_same_run(checkpoint, self.config, world)
        check_optimizer(checkpoint, self._module.groups, self.config.optimizer, self.config.resume)
        if checkpoint["global_step"] > steps:
            raise UsageError(
                f"The checkpoint is at step {checkpoint['global_step']}, and the run would end at step {steps}. "
                f"Set a later end: training.max_epochs or training.max_steps."
            )
        self._metrics.forget_after(checkpoint["global_step"], checkpoint.get("metrics_rows"))
        if self._metrics.dropped:
            self._print(f"Note: {self._metrics.dropped} unreadable line(s) of {self._shown}/metrics.csv are dropped.")
        self._print(f"Going on from step {checkpoint['global_step']} of {self.config.resume}.")
        if checkpoint["run"]["steps"] != steps:
            self._print(
                f"Note: the run was planned for {checkpoint['run']['steps']} steps and is now for {steps}; a schedule "
                f"without scheduler.total_steps differs from here on."
            )

    def _print(self, what: Any) -> None:
        if self._console is not None:
            self._console.print(what, highlight=False, markup=False)
