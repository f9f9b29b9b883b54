"""Sweeps (-m): a failed job does not stop the others, and one table lists all of them.

Every job, whichever process it runs in, writes its outcome to a hidden file in the folder of the sweep. The process
that started the sweep collects the outcomes into sweep.csv and prints them.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf.errors import OmegaConfBaseException

from .errors import RunFailed, UsageError
from .files import WriteFailed, write_text

_OUTCOME = ".job-{}.json"
_COLUMNS = ("job", "overrides", "metric", "value", "status", "folder", "error")


class SweepFolder(Callback):
    """Records for `sweep_table` the folder of the sweep that hydra starts in this process (configs/config.yaml).

    Attributes:
        folder: folder of the sweep; None if there is no sweep.
    """

    folder: Path | None = None

    def on_multirun_start(self, config: Any, **_: Any) -> None:
        # The sweeper reports a wrong folder name; hydra would turn an exception here into a warning.
        with suppress(OmegaConfBaseException):
            SweepFolder.folder = Path(config.hydra.sweep.dir).absolute()
            # Remove outcomes of an earlier sweep in the same folder that was killed.
            for outcome in SweepFolder.folder.glob(_OUTCOME.format("*")):
                outcome.unlink()


# Exceptions of jobs in this process, kept from hydra, which would print an extra line.
_held: list[Exception] = []


@contextmanager
def held_back(hydra_config: Any) -> Iterator[None]:
    """Pass an exception to `sweep_table` without hydra; from another process of a launcher it goes through hydra."""
    try:
        yield
    except Exception as error:
        if hydra_config.mode == RunMode.MULTIRUN and "BasicLauncher" not in hydra_config.launcher["_target_"]:
            raise
        _held.append(error)


class Sweep:
    """The outcome of a command line.

    Attributes:
        status: exit status of a command that did not raise: 1 if a job failed, else 0.
    """

    status = 0


@contextmanager
def sweep_table() -> Iterator[Sweep]:
    """Context in which hydra runs one job or a sweep; lists the jobs of a sweep at the end, even if interrupted.

    Raises:
        the exception of a single run, or UsageError for a sweep without jobs.
    """
    sweep, SweepFolder.folder = Sweep(), None
    _held.clear()
    try:
        yield sweep
        if _held:
            raise _held[0]
        folder = SweepFolder.folder
        if folder is not None and not any(path.is_dir() or path.match(_OUTCOME.format("*")) for path in _in(folder)):
            raise UsageError(
                "The sweep (-m) has no job: one of its keys has no value, as seed=range(0,0) has none. Give each key "
                "one at least, such as seed=0,1,2 or seed=range(0,3)."
            )
    finally:
        outcomes = [] if SweepFolder.folder is None else _collect(SweepFolder.folder)
        if outcomes:
            _tell(outcomes, SweepFolder.folder)
            sweep.status = int(any(outcome["status"] != "finished" for outcome in outcomes))


def validation_score(facts: Mapping[str, Any]) -> tuple[str, float]:
    """(name and direction, value) of the main validation metric, from the facts of a record.

    An accuracy is to be maximised, a mean squared error to be minimised: for the latter a sweeper that searches needs
    hydra.sweeper.direction=minimize.
    """
    name = facts["metric"]["name"]
    direction = "higher" if facts["metric"]["higher_is_better"] else "lower"
    return f"{name}, {direction} is better", float(facts["metrics"]["val"][name])


def _in(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def run_job(run: Callable[[], Mapping[str, Any]], hydra_config: Any) -> float:
    """One job of a sweep: the validation score of what `run` returns, or NaN if it fails, so that the sweep continues.

    The failure is printed at once: the message of a UsageError or RunFailed, the traceback of any other exception.
    """
    outcome = {
        "job": hydra_config.job.num,
        "overrides": " ".join(hydra_config.overrides.task),
        "folder": os.path.relpath(hydra_config.runtime.output_dir),
        "metric": "",
        "value": math.nan,
    }
    # The status recorded if an interrupt passes through.
    status, error_text = "interrupted", ""
    try:
        outcome["metric"], outcome["value"] = validation_score(run())
        status = "finished"
    except (Exception, SystemExit) as error:
        # A plug-in may call sys.exit, which must end only its own run.
        status, error_text = "failed", str(error) or type(error).__name__
        if isinstance(error, (UsageError, RunFailed)):
            print(f"Job {outcome['job']} failed: {error}", file=sys.stderr)
        else:
            error_text = f"{type(error).__name__}: {error}"
            traceback.print_exception(error)
    finally:
        _note(Path(hydra_config.sweep.dir), outcome | {"status": status, "error": error_text})
    return outcome["value"]


def _note(folder: Path, outcome: dict[str, Any]) -> None:
    try:
        write_text(folder / _OUTCOME.format(outcome["job"]), json.dumps(outcome))
    except WriteFailed as error:
        # Do not fail on a full disk: later jobs may write to another one.
        print(f"{error.filename} could not be written: {error.strerror}. The table will lack job {outcome['job']}.")


def _collect(folder: Path) -> list[dict[str, Any]]:
    outcomes = [json.loads(path.read_text()) for path in folder.glob(_OUTCOME.format("*"))]
    return sorted(outcomes, key=lambda outcome: outcome["job"])


def _tell(outcomes: list[dict[str, Any]], folder: Path) -> None:
    """Print the table, and keep it as sweep.csv."""
    from rich.console import Console
    from rich.table import Table

    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _COLUMNS)
    writer.writeheader()
    writer.writerows(outcomes)
    table = Table(title=f"Sweep {os.path.relpath(folder)}", title_justify="left")
    metrics = {outcome["metric"]: None for outcome in outcomes if outcome["metric"]}
    table.caption = f"value: validation {'; '.join(metrics)}" if metrics else None
    table.caption_justify = "left"
    for column in ("job", "overrides", "value", "status", "folder"):
        table.add_column(column, justify="right" if column in ("job", "value") else "left", overflow="fold")
    shared = set.intersection(*(set(outcome["overrides"].split(" ")) for outcome in outcomes))
    for outcome in outcomes:
        own = [override for override in outcome["overrides"].split(" ") if override not in shared]
        value = f"{outcome['value']:.4{'f' if outcome['metric'].startswith('accuracy') else 'g'}}"
        table.add_row(str(outcome["job"]), " ".join(own), value, outcome["status"], Path(outcome["folder"]).name)
    console = Console(soft_wrap=True)
    console.print(table, soft_wrap=False)
    failed = [outcome for outcome in outcomes if outcome["status"] != "finished"]
    for outcome in failed:
        told = f"Job {outcome['job']} {outcome['status']}: {outcome['error']}".rstrip(": ")
        console.print(told, markup=False, highlight=False)
    console.print(f"{len(outcomes) - len(failed)} of {len(outcomes)} jobs finished.", highlight=False)
    try:
        write_text(folder / "sweep.csv", text.getvalue())
    except WriteFailed as error:
        console.print(f"{error.filename} could not be written: {error.strerror}.", markup=False)
        return
    console.print(f"Table: {os.path.relpath(folder)}/sweep.csv", markup=False, highlight=False)
    for outcome in outcomes:
        with suppress(OSError):
            (folder / _OUTCOME.format(outcome["job"])).unlink()
