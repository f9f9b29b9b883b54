"""`python -m train`: compose, validate, build, fit, test on the best-validation checkpoint, record.

torch and lightning are imported only when a run begins, so that `--help` and `--cfg job` answer at once.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import to_absolute_path
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from .arguments import in_order, option_value
from .config import Config, compose, register_schema, to_yaml, typed
from .config_errors import brief, explain, explain_value_error, package_found
from .errors import RunFailed, UsageError, did_you_mean
from .files import WriteFailed
from .sweep import held_back, run_job, sweep_table, validation_score
from .training.processes import ranks_hidden
from .training.signals import Interrupted, Signals, Stop, name

if TYPE_CHECKING:
    from .data.base import SequenceData

register_schema()

# Errors of a full disk. Our own writers raise `WriteFailed` for them; Hydra's writer of multirun.yaml does not.
_DISK = (errno.ENOSPC, errno.EDQUOT)


def main() -> None:
    """Entry point of the command line.

    Exit status: 0 after a finished run, 2 for a mistake of the user, 1 if a run or a job of a sweep failed, 130 after
    Ctrl-C, 143 after SIGTERM, 138 after SIGUSR1, 129 after SIGHUP.
    """
    with Signals(), _hydra_raising() as traceback_wanted:
        status = _main(traceback_wanted)
    if status:
        sys.exit(status)


@contextmanager
def _hydra_raising() -> Iterator[bool]:
    """Make Hydra raise errors of composing instead of printing them; yields whether the user asked for tracebacks."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield before == "1"
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def _main(traceback_wanted: bool) -> int:
    """Run what the command line asks for, print errors, and return the exit status."""
    try:
        _check_working_folder()
        sys.argv = [sys.argv[0], *in_order(sys.argv[1:])]
        sys.argv += _deletions(sys.argv[1:])
        with sweep_table() as sweep, package_found(sys.argv[1:]), warnings.catch_warnings():
            # Hydra only warns about a missing folder in the search path and continues.
            warnings.filterwarnings("error", "provider=.* is not available", UserWarning)
            _job()
        sys.stdout.flush()
        return sweep.status
    except BrokenPipeError:
        # The reader (such as `head`) has closed the pipe; at exit the interpreter must not try to flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except RecursionError:
        return _told("Error: a value is nested too deep, or an interpolation ${...} leads back to itself.", 2)
    except UsageError as error:
        return _told(f"Error: {brief(str(error))}", 2)
    except UserWarning as warning:
        place = re.search(r"path=(.*) is not available", str(warning))
        if place is None:
            raise
        return _told(
            f"Error: hydra.searchpath names {place[1]}, and there is no such folder or package. It takes "
            f"file:///path/of/a/folder or pkg://my_package.configs.",
            2,
        )
    except RunFailed as error:
        return _told(f"Stopped: {error}", 1)
    except WriteFailed as error:
        return _told(f"Stopped: {error.filename} could not be written: {error.strerror}.", 1)
    except Interrupted as interrupt:
        return _told(str(interrupt), interrupt.status)
    except Stop as stop:
        return _told(f"Stopped by {name(stop.signum)}.", 128 + stop.signum)
    except (HydraException, OmegaConfBaseException) as error:
        if traceback_wanted:
            raise
        return _told(f"Error: {explain(error)}", 2)
    except OSError as error:
        if error.errno in _DISK:
            where = "A file of Hydra" if error.filename is None else error.filename
            return _told(f"Stopped: {where} could not be written: {error.strerror}. Free some space first.", 1)
        if error.errno != errno.ENAMETOOLONG:
            raise
        return _told(brief(f"Error: '{error.filename}' is longer than a file's name can be. Choose a shorter one."), 2)
    except ValueError as error:
        message = explain_value_error(error)
        if traceback_wanted or message is None:
            raise
        return _told(f"Error: {message}", 2)


@hydra.main(config_path="pkg://fractal_ssm.configs", config_name="config", version_base="1.3")
def _job(cfg: DictConfig) -> float:
    """One run of hydra; returns the value that a sweeper optimises, the main validation metric (`validation_score`).

    NaN for a failed job of a sweep.
    """
    hydra_config = HydraConfig.get()
    with held_back(hydra_config):
        if hydra_config.mode != RunMode.MULTIRUN:
            return validation_score(_one_run(cfg, hydra_config))[1]
        _check_sweep(cfg, hydra_config)
        return run_job(lambda: _one_run(cfg, hydra_config), hydra_config)
    return math.nan


def _one_run(cfg: DictConfig, hydra_config: Any) -> dict[str, Any]:
    """Run a composed configuration in the folder that hydra has created; returns the facts of its record."""
    try:
        OmegaConf.resolve(cfg)
        OmegaConf.set_readonly(cfg, True)
        config = typed(cfg)
        _drop_leftovers(config, hydra_config.overrides.task)
        if not hydra_config.run.dir.strip():
            raise UsageError("hydra.run.dir is empty: name a folder, or leave it out for one in runs_dir.")
        config.data_dir = to_absolute_path(config.data_dir)
        choices = {key: value for key, value in hydra_config.runtime.choices.items() if not key.startswith("hydra/")}
        _treat_denormals_as_zero()
        facts = run(config, Path(hydra_config.runtime.output_dir), choices, hydra_config.overrides.task)
    except (UsageError, OmegaConfBaseException) as error:
        _remove_if_empty(Path(hydra_config.runtime.output_dir))
        raise UsageError(explain(error)) from error
    return facts


def run(
    config: Config, run_dir: Path, choices: Mapping[str, Any] | None = None, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Train and test one configuration, and document it in a run folder.

    Args:
        config: from `fractal_ssm.config.compose`, or the command line.
        run_dir: the run folder: config.yaml, record.json, metrics.csv, curves.png, checkpoints/.
        choices: group -> option of the configuration, for the record.
        overrides: settings of this run beyond its files, as key=value, for the record.
    Returns:
        The facts of record.json.
    Raises:
        UsageError: a mistake in the configuration, found before any expensive work, or wrong data.
        RunFailed: the training diverged (`NotFinite`), or the disk is full.
        Interrupted: a KeyboardInterrupt, after Ctrl-C or another signal of `HANDLED`; the record's status is
            "interrupted", and the run can be resumed from last.ckpt.
    """
    data = check(config)
    with ranks_hidden(config):
        return _session(config, run_dir, data, choices or {}, overrides)


def check(config: Config) -> SequenceData:
    """Build the dataset, one block of the model and the loss, to report mistakes before any data is prepared.

    Returns:
        the dataset, not yet prepared.
    Raises:
        UsageError: a part, an option or a value that does not exist or does not fit the others.
    """
    data = build_data(config)
    from .data.base import SPLITS
    from .models.build import check_model, data_facts
    from .training.tasks import build_task, check_target

    model = check_model(config.model, data_facts(data), [data.dt_scale(split) for split in SPLITS])
    task = build_task(data, model.output, model.quantiles, config.training.loss)
    check_target(config.training.target, task.metric)
    return data


def _session(
    config: Config, run_dir: Path, data: SequenceData, choices: Mapping[str, Any], overrides: Sequence[str]
) -> dict[str, Any]:
    # Validate first: importing lightning takes seconds.
    from .data.contract import check_prepared
    from .models.build import build_model, data_facts
    from .training.loggers import check_loggers
    from .training.optimizers import check_optimizer_config
    from .training.session import Session
    from .training.trainer import check_devices

    check_devices(config)
    check_optimizer_config(config.optimizer)
    check_loggers(config.logger)
    session = Session(config, run_dir)
    session.begin(to_yaml(config), choices, overrides)
    with session.recording_failures(), warnings.catch_warnings():
        _quieten_lightning()
        data.prepare()
        check_prepared(data)
        started = time.monotonic()
        session.build(lambda: build_model(config.model, data_facts(data)), data, data_facts(data))
        session.fit()
        session.test()
        return session.finish(time.monotonic() - started)


def build_data(config: Config) -> SequenceData:
    """The dataset of a configuration, not yet prepared; plug-ins are imported first."""
    from .data.contract import check_dataset
    from .registry import check_options, datasets, import_plugins

    import_plugins(config.imports)
    name = config.dataset["name"]
    datasets.check(config.dataset, runtime=["data_dir"])
    options = {key: value for key, value in config.dataset.items() if key != "name"}
    check_options(f"The dataset '{name}'", datasets.get(name), options, ["data_dir"])
    data = datasets.build(config.dataset, data_dir=Path(config.data_dir).absolute())
    check_dataset(data)
    return data


def _drop_leftovers(config: Config, overrides: Sequence[str]) -> None:
    """If model.layer.name=X was set on the command line, remove options from files that the layer X does not have.

    Hydra merges the files, so options of the layer that they name remain.

    Raises:
        UsageError: X lacks an option that was set on the command line.
    """
    left = _leftovers(config, overrides)
    for key in left:
        del config.model["layer"][key]
    if left:
        print(f"Left out, since the layer '{config.model['layer']['name']}' has no such option: {', '.join(left)}.")


def _leftovers(config: Config, overrides: Sequence[str]) -> list[str]:
    settings = [override.lstrip("+") for override in overrides]
    layer, prefix = config.model.get("layer"), "model.layer."
    if not isinstance(layer, dict) or not any(setting.startswith(f"{prefix}name=") for setting in settings):
        return []
    from .registry import import_plugins, layers

    import_plugins(config.imports)
    known = layers.options(layer["name"], ["d_model", "l_max"])
    given = {re.split(r"[.=]", text.removeprefix(prefix))[0] for text in settings if text.startswith(prefix)}
    missing = set(layer) - {"name"} - set(known)
    if wrong := sorted(missing & given):
        raise UsageError(_without(layer["name"], wrong, known))
    return sorted(missing)


def _without(layer: str, wrong: Sequence[str], known: Sequence[str]) -> str:
    """The message for options that were set but that the layer lacks, with the command without them."""
    texts = tuple(f"model.layer.{key}{end}" for key in wrong for end in "=.")
    rest = [word for word in sys.argv[1:] if not word.lstrip("+").startswith(texts)]
    return (
        f"The layer '{layer}' has no option {' and no option '.join(map(repr, wrong))}. Options: "
        f"{', '.join(known) or 'none'}.{did_you_mean(wrong[0], known)} Without it: "
        f"{shlex.join(['python', '-m', 'train', *rest])}"
    )


def _deletions(arguments: Sequence[str]) -> list[str]:
    """Settings that make --cfg show the configuration as a run has it after `_drop_leftovers`."""
    settings = [word for word in arguments if not word.startswith("-") and "=" in word]
    if not {"--cfg", "-c", "--cfg=job", "-c=job"} & set(arguments):
        return []
    if not any(setting.lstrip("+").startswith("model.layer.name=") for setting in settings):
        return []
    config = compose(settings, option_value(arguments, "--config-dir", "-cd"))
    return [f"~model.layer.{key}" for key in _leftovers(config, settings)]


def _treat_denormals_as_zero() -> None:
    """Flush numbers below 1e-38 to 0, in this thread and in those that it starts.

    A CPU is many times slower with such numbers, and over a long sequence the adjoints of fast modes decay to them: a
    step of FRACTAL on 4,096 positions, read out at the last one, took three times as long. Only the command line sets
    this, because it owns its process: running threads keep the setting, so it could not be undone.
    """
    import torch

    torch.set_flush_denormal(True)


def _check_sweep(cfg: DictConfig, hydra_config: Any) -> None:
    """Refuse sweeps whose jobs cannot work, and those in which several processes would each start the whole sweep."""
    if cfg.training.requeue:
        raise UsageError(
            "training.requeue belongs to one run in one SLURM job; a sweep (-m) would begin anew. Submit its runs as "
            "an array of jobs, see docs/slurm.md."
        )
    if cfg.resume is not None:
        raise UsageError("resume continues one run; a sweep (-m) cannot resume. Resume its runs one by one.")
    if cfg.trainer.strategy == "ddp" and "BasicLauncher" in hydra_config.launcher["_target_"]:
        raise UsageError(
            "A sweep (-m) with trainer.strategy=ddp and hydra's basic launcher would start the whole sweep again in "
            "every process. Run the jobs one by one without -m, or give each its own process: "
            "hydra/launcher=joblib hydra.launcher.n_jobs=1, or hydra/launcher=submitit_slurm "
            "(pip install 'fractal-ssm[sweep]')."
        )


def _quieten_lightning() -> None:
    """Silence lightning's advice that does not apply here."""
    for logger in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*exists and is not empty.*")
    # Our loaders do continue at the batch where the checkpoint was taken (Loaders.train_dataloader).
    warnings.filterwarnings("ignore", ".*checkpoint that ended before the epoch ended.*")
    warnings.filterwarnings("ignore", ".*isinstance\\(treespec, LeafSpec\\).*", FutureWarning)


def _remove_if_empty(run_dir: Path) -> None:
    """Remove the folder that hydra created for a run that never began, unless it is the working directory."""
    if run_dir.resolve() != Path.cwd() and not any(run_dir.iterdir()):
        run_dir.rmdir()


def _told(message: str, status: int) -> int:
    # If the terminal is gone, the exit status has to suffice.
    with suppress(OSError):
        if message:
            print(message, file=sys.stderr)
    return status


def _check_working_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "The folder that this was started in does not exist any more. Go to one that does: cd"
        ) from None


if __name__ == "__main__":
    main()
