"""Run what a plan lacks, by local processes that share the cores or by a launcher of hydra; nothing is repeated.

Each run is the ordinary command line in a process and a folder of its own, so a comparison that is killed loses no run,
and a run that is killed goes on from its last checkpoint.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from ..files import write_text
from ..training.lock import is_locked
from .plan import Plan
from .runs import failure_file, read

_POLL_SECONDS = 0.5
_PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec nothing may be.
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass
class Job:
    """One run that is to be made.

    Attributes:
        arm, seed: of the plan.
        folder: of the run.
        overrides: for `python -m train`.
        retry: whether a failed run is made again.
        resume: a checkpoint that it goes on from, or None; `wanted` sets it.
    """

    arm: str
    seed: int
    folder: Path
    overrides: list[str]
    retry: bool = False
    resume: Path | None = None
    process: subprocess.Popen | None = field(default=None, repr=False)

    def wanted(self) -> bool:
        """Whether the run has no result yet and no process is making it, looked up now."""
        run = read(self.folder, self.arm)
        if run.finished or (run.status == "failed" and not self.retry) or is_locked(self.folder):
            return False
        last = self.folder / "checkpoints" / "last.ckpt"
        self.resume = last if last.exists() and run.status in ("interrupted", "running") else None
        return True

    @property
    def command(self) -> list[str]:
        """What is started; the folder of a resumed run follows from its checkpoint."""
        where = f"resume={self.resume}" if self.resume else f"hydra.run.dir={self.folder}"
        quiet = "trainer.progress_bar=false"
        return [sys.executable, "-m", "fractal_ssm.train", *self.overrides, quiet, where]


def missing(plan: Plan, results: Path, retry: bool = False) -> list[Job]:
    """The runs of a plan that have no result yet, seed by seed, so that pairs are complete early.

    A run that failed (diverged, say) is a result and stays; `retry` makes it again. One that was interrupted goes on
    from its last checkpoint. One that another process is making is left to it.
    """
    pairs = [(arm, seed) for seed in plan.seeds for arm in plan.arms]
    jobs = [Job(arm, seed, plan.folder(results, arm, seed), plan.overrides(arm, seed), retry) for arm, seed in pairs]
    return [job for job in jobs if job.wanted()]


def threads_for(jobs: int) -> int:
    """Threads of each of so many processes at a time, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // max(jobs, 1))


class Pool:
    """Processes side by side.

    Args:
        jobs: what is to be run, in order.
        at_once: processes at a time; each gets its share of the cores.
        watch: called every half second with the running and the finished jobs, to show progress.
    """

    def __init__(self, jobs: Sequence[Job], at_once: int, watch: Callable[[list[Job], list[Job]], None]):
        self._waiting, self._running, self.done = list(jobs), [], []
        self._at_once, self._watch = at_once, watch

    def run(self) -> None:
        """Run all of them; an interruption is passed on to the processes, which save, and waits for them.

        Raises:
            KeyboardInterrupt: after Ctrl-C, when all have ended.
        """
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._at_once:
                    job = self._waiting.pop(0)
                    # Another process may work on the same plan.
                    if job.wanted():
                        self._running.append(self._start(job))
                    else:
                        self.done.append(job)
                time.sleep(_POLL_SECONDS)
                for job in [job for job in self._running if job.process.poll() is not None]:
                    self._running.remove(job)
                    self.done.append(job)
                    _note_failure(job)
                self._watch(self._running, self.done)
        except BaseException:
            for job in self._running:
                job.process.terminate()
            for job in self._running:
                job.process.wait()
            raise

    def _start(self, job: Job) -> Job:
        if job.resume is None:
            _set_aside(job.folder)
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        failure_file(job.folder).unlink(missing_ok=True)
        threads = str(threads_for(self._at_once))
        environment = os.environ | {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}
        with open(_log(job), "ab") as log:
            # A session of its own: Ctrl-C reaches the runs through `terminate`, once.
            job.process = subprocess.Popen(
                job.command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        return job


def end_with_parent() -> None:
    """Ask Linux to send SIGTERM to this process when its parent is gone, also by SIGKILL: the run then saves and ends.

    For the time between fork and exec; elsewhere than on Linux nothing happens.
    """
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)


def hand_over(plan: Plan, jobs: Sequence[Job], launcher: str) -> None:
    """Give the jobs to a launcher of hydra (joblib, submitit_slurm, ...): one sweep an arm over its seeds.

    Its own settings are settings of the plan, such as hydra.launcher.partition=gpu. A sweep cannot resume, so runs to
    be gone on with are made here, one after another.

    Raises:
        UsageError: a sweep could not be started; what its runs did is in their folders.
    """
    for job in jobs:
        if job.resume is None:
            _set_aside(job.folder)
        else:
            subprocess.run(job.command, check=False)
    for command in sweeps(plan, jobs, launcher):
        if subprocess.run(command, check=False).returncode == 2:
            raise UsageError(
                f"The launcher '{launcher}' did not start; its message is above. hydra/launcher=... of "
                f"python -m train takes the same names (pip install 'fractal-ssm[sweep]')."
            )


def sweeps(plan: Plan, jobs: Sequence[Job], launcher: str) -> list[list[str]]:
    """The command lines of these sweeps."""
    commands = []
    for arm in plan.arms:
        begun = [job for job in jobs if job.arm == arm and job.resume is None]
        if begun:
            words = [sys.executable, "-m", "fractal_ssm.train", "-m", *plan.arms[arm], *plan.common]
            words += [f"seed={','.join(str(job.seed) for job in begun)}", f"hydra/launcher={launcher}"]
            words += [f"hydra.sweep.dir={begun[0].folder.parent}", "hydra.sweep.subdir=seed${seed}"]
            commands.append([*words, "trainer.progress_bar=false"])
    return commands


def _log(job: Job) -> Path:
    return job.folder.with_name(f"{job.folder.name}.log")


def _note_failure(job: Job) -> None:
    """Keep the reason of a run that ended without a record of its own: the last line that it printed."""
    if job.process.returncode and read(job.folder).status == "missing":
        lines = _log(job).read_text(errors="replace").strip().splitlines()
        write_text(failure_file(job.folder), lines[-1] if lines else f"exit status {job.process.returncode}")


def _set_aside(folder: Path) -> None:
    """Move a folder that holds no run to go on with out of the way; nothing is deleted."""
    if folder.exists() and any(folder.iterdir()):
        number = 1
        while (target := folder.with_name(f"{folder.name}.attempt{number}")).exists():
            number += 1
        folder.rename(target)
