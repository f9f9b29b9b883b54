"""Sweeps (-m): one job's failure does not end the others, and all of them end in one table.

Every job leaves its outcome as a hidden file in the folder of the sweep, whichever process it ran in; the process that
started the sweep collects them into sweep.csv and prints them.
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
    """Tells `sweep_table` the folder of the sweep that hydra starts in this process (configs/config.yaml).

    Attributes:
        folder: None without a sweep.
    """

    folder: Path | None = None

    def on_multirun_start(self, config: Any, **_: Any) -> None:
        # What is wrong with the folder's name is for the sweeper to say: hydra warns of what a callback raises.
        with suppress(OmegaConfBaseException):
            SweepFolder.folder = Path(config.hydra.sweep.dir).absolute()
            # Of a sweep in the same folder that was killed.
            for outcome in SweepFolder.folder.glob(_OUTCOME.format("*")):
                outcome.unlink()


# What a job in this process raised, out of the sight of hydra, which would print a line of its own before it.
_held: list[Exception] = []


@contextmanager
def held_back(hydra_config: Any) -> Iterator[None]:
    """A failure inside goes past hydra to `sweep_table`; from a launcher's other process it goes through hydra."""
    try:
        yield
    except Exception as error:
        if hydra_config.mode == RunMode.MULTIRUN and "BasicLauncher" not in hydra_config.launcher["_target_"]:
            raise
        _held.append(error)


class Sweep:
    """The outcome of a command line.

    Attributes:
        status: exit status of a command that did not raise: 1 when a job failed.
    """

    status = 0


@contextmanager
def sweep_table() -> Iterator[Sweep]:
    """Inside, hydra runs one job or a sweep; then a sweep's are listed, also when it was interrupted.

    Raises:
        what a single run raised, or the refusal of a whole sweep.
    """
    sweep, SweepFolder.folder = Sweep(), None
    _held.clear()
    try:
        yield sweep
        if _held:
            raise _held[0]
    finally:
        outcomes = [] if SweepFolder.folder is None else _collect(SweepFolder.folder)
        if outcomes:
            _tell(outcomes, SweepFolder.folder)
            sweep.status = int(any(outcome["status"] != "finished" for outcome in outcomes))


def validation_score(facts: Mapping[str, Any]) -> tuple[str, float]:
    """(name and direction, value) of the main metric of the validation, from the facts of a record.

    The value of an accuracy is to be maximised, that of a mean squared error to be minimised: a sweeper that searches
    needs hydra.sweeper.direction=minimize for it.
    """
    name = facts["metric"]["name"]
    direction = "higher" if facts["metric"]["higher_is_better"] else "lower"
    return f"{name}, {direction} is better", float(facts["metrics"]["val"][name])


def run_job(run: Callable[[], Mapping[str, Any]], hydra_config: Any) -> float:
    """One job of a sweep: the validation score of what `run` returns, or NaN if it fails, so that the sweep goes on.

    The message of the failure is printed at once; a traceback where it is not a mistake that can be told in words.
    """
    outcome = {
        "job": hydra_config.job.num,
        "overrides": " ".join(hydra_config.overrides.task),
        "folder": os.path.relpath(hydra_config.runtime.output_dir),
        "metric": "",
        "value": math.nan,
    }
    # What stays when the process is killed.
    status, error_text = "interrupted", ""
    try:
        outcome["metric"], outcome["value"] = validation_score(run())
        status = "finished"
    except (Exception, SystemExit) as error:
        # Somebody's layer may call sys.exit: that ends its run only.
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
        # A full disk: the jobs after this one may write to another.
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
