"""Output before and during the runs of a plan: an outline with an estimate, and progress with the time left."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..config import compose
from ..errors import UsageError
from ..training.record import seconds
from ..training.table import duration
from .launch import Job
from .plan import Plan
from .runs import read
from .units import Units

# Seconds between two lines if the output is not a terminal.
_LINE_SECONDS = 30.0


def check(plan: Plan) -> None:
    """Compose every arm and build one block of its model, so that a mistake fails before anything runs.

    Raises:
        UsageError: the message names the arm.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from ..config_errors import explain
    from ..train import check as check_run
    from ..training.metric import MAIN
    from .results import check_threshold

    for arm in plan.arms:
        try:
            config = compose(plan.overrides(arm, plan.seeds[0]))
            check_threshold(plan.threshold, MAIN[check_run(config).task])
        except (HydraException, OmegaConfBaseException, UsageError) as error:
            raise UsageError(f"Arm '{arm}': {explain(error)}") from error


def outline(plan: Plan, results: Path, jobs: Sequence[Job], at_once: int) -> str:
    """The plan in a few lines: question, arms, finished and missing runs, estimated time."""
    total = len(plan.arms) * len(plan.seeds)
    lines = [f"{plan.name}: {plan.question}", f"Results: {results}"]
    width = max(map(len, plan.arms))
    for arm, settings in plan.arms.items():
        todo = [job for job in jobs if job.arm == arm]
        resumed = sum(job.resume is not None for job in todo)
        note = f" ({resumed} go on from a checkpoint)" if resumed else ""
        mark = ", baseline" if arm == plan.baseline else ""
        lines.append(f"  {arm:{width}}  {len(todo)} of {len(plan.seeds)} to run{note}{mark}: {' '.join(settings)}")
    lines.append(f"Common settings: {' '.join(plan.common) or 'none'}. Seeds: {', '.join(map(str, plan.seeds))}.")
    left = estimate(plan, results, jobs, at_once)
    told = (
        f"about {duration(left)} with {at_once} at a time" if left is not None else "no run to estimate the time from"
    )
    lines.append(f"{len(jobs)} of {total} runs to make: {told}." if jobs else f"All {total} runs are there.")
    return "\n".join(lines)


def estimate(plan: Plan, results: Path, jobs: Sequence[Job], at_once: int) -> float | None:
    """Seconds for the jobs: from finished runs of the same arm, else of other arms, else the time limit, or None."""
    took: dict[str, list[float]] = {}
    for run in plan.runs(results):
        if run.finished:
            took.setdefault(run.arm, []).append(float(run.facts.get("total_seconds") or seconds(run.facts)[0]))
    known = [value for values in took.values() for value in values]
    total = 0.0
    for arm in {job.arm for job in jobs}:
        if arm in took:
            each = statistics.mean(took[arm])
        elif known:
            each = statistics.mean(known)
        else:
            minutes = compose(plan.overrides(arm, plan.seeds[0])).training.max_minutes
            if minutes is None:
                return None
            each = 60.0 * minutes
        total += each * sum(job.arm == arm for job in jobs)
    return total / max(1, min(at_once, len(jobs)))


def share_done(folder: Path) -> float:
    """Share of a running job that is done, 0 to 1, by the last step in its metrics."""
    run = read(folder)
    planned = run.facts.get("planned_steps")
    return min(1.0, run.curve[-1]["step"] / planned) if planned and run.curve else 0.0


class Display:
    """Context manager that shows the progress of a plan: a bar on a terminal, a line every half minute elsewhere."""

    def __init__(self, plan: Plan, results: Path, jobs: Sequence[Job], at_once: int):
        self._total, self._at_once = len(jobs), at_once
        self._estimate = estimate(plan, results, jobs, at_once)
        self._started = self._said = time.monotonic()
        self._told: set[Path] = set()
        self._bar = None

    def __enter__(self) -> Display:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("0 runs", total=self._total, note="")
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, running: list[Job], done: list[Job]) -> None:
        """Report newly finished jobs and the progress; the pool calls this every half second."""
        for job in done:
            if job.folder not in self._told:
                self._told.add(job.folder)
                self._say(f"{job.arm}, seed {job.seed}: {_outcome(job)}")
        if self._bar is None and time.monotonic() - self._said < _LINE_SECONDS:
            return
        reached = len(done) + sum(share_done(job.folder) for job in running)
        note = f"{len(done)} of {self._total} runs, {self._left(reached)}"
        if self._bar is not None:
            self._bar.update(self._task, completed=reached, description=f"{len(running)} running", note=note)
        else:
            self._say(note)

    def _left(self, reached: float) -> str:
        passed = time.monotonic() - self._started
        if reached >= 0.5:
            return f"{duration(passed * (self._total - reached) / reached)} left"
        return f"about {duration(max(0.0, self._estimate - passed))} left" if self._estimate else "time left unknown"

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)


def _outcome(job: Job) -> str:
    run = read(job.folder)
    if not run.finished:
        return f"no result: {run.reason}"
    return f"test {run.metric.name} {Units(run.metric).value(run.score())}"
