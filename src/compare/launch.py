"""Make the missing runs of a plan, by local processes that share the cores or by a launcher of hydra.

Each run is the ordinary command line in its own process and folder, so killing a comparison loses no finished run, and
a run that was killed continues from its last checkpoint.
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
# Loaded here, because loading a library between fork and exec is not safe.
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass
class Job:
    """One run to be made.

    Attributes:
        arm, seed: arm and seed of the plan.
        folder: run folder.
        overrides: arguments of `python -m train`.
        retry: whether to repeat a failed run.
        resume: checkpoint to continue from, or None; set by `wanted`.
    """

    arm: str
    seed: int
    folder: Path
    overrides: list[str]
    retry: bool = False
    resume: Path | None = None
    process: subprocess.Popen | None = field(default=None, repr=False)

    def wanted(self) -> bool:
        """Check whether the run has no result yet and no process is making it, and set `resume`."""
        run = read(self.folder, self.arm)
        if run.finished or (run.status == "failed" and not self.retry) or is_locked(self.folder):
            return False
        last = self.folder / "checkpoints" / "last.ckpt"
        self.resume = last if last.exists() and run.status in ("interrupted", "running") else None
        return True

    @property
    def command(self) -> list[str]:
        """The command line of the run; the folder of a resumed run follows from its checkpoint."""
        where = f"resume={self.resume}" if self.resume else f"hydra.run.dir={self.folder}"
        quiet = "trainer.progress_bar=false"
        return [sys.executable, "-m", "fractal_ssm.train", *self.overrides, quiet, where]


def missing(plan: Plan, results: Path, retry: bool = False) -> list[Job]:
    """The runs of a plan that have no result yet, ordered by seed, so that pairs are complete early.

    A failed run (one that diverged, for example) counts as a result; `retry` repeats it. An interrupted run continues
    from its last checkpoint. A run that another process is making is not included.
    """
    pairs = [(arm, seed) for seed in plan.seeds for arm in plan.arms]
    jobs = [Job(arm, seed, plan.folder(results, arm, seed), plan.overrides(arm, seed), retry) for arm, seed in pairs]
    return [job for job in jobs if job.wanted()]


def threads_for(jobs: int) -> int:
    """Threads for each of `jobs` concurrent processes, at least one."""
    return max(1, len(os.sched_getaffinity(0)) // max(jobs, 1))


class Pool:
    """Runs jobs in concurrent processes.

    Args:
        jobs: the jobs, in order.
        at_once: number of concurrent processes; each gets its share of the cores.
        watch: called every half second with the running and the finished jobs, to show progress.
    """

    def __init__(self, jobs: Sequence[Job], at_once: int, watch: Callable[[list[Job], list[Job]], None]):
        self._waiting, self._running, self.done = list(jobs), [], []
        self._at_once, self._watch = at_once, watch

    def run(self) -> None:
        """Run all jobs. On an interruption, terminate the processes, which save, and wait for them.

        Raises:
            KeyboardInterrupt: after Ctrl-C, when all have ended.
        """
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._at_once:
                    job = self._waiting.pop(0)
                    # Checked again, because another process may work on the same plan.
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
            # In a new session, so that Ctrl-C reaches the runs only once, through `terminate`.
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
    """Make Linux send SIGTERM to this process when its parent ends, even by SIGKILL; the run then saves and ends.

    To be called between fork and exec; does nothing on other systems.
    """
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)


def hand_over(plan: Plan, jobs: Sequence[Job], launcher: str) -> None:
    """Run the jobs with a launcher of hydra (joblib, submitit_slurm, ...): one sweep per arm over its seeds.

    The launcher's settings are settings of the plan, such as hydra.launcher.partition=gpu. A sweep cannot resume, so
    interrupted runs are continued here, one after another.

    Raises:
        UsageError: a sweep could not be started; finished runs stay in their folders.
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
    """The command lines of the sweeps for the jobs that do not resume."""
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
    """Write down why a run ended without a record: the last line that it printed."""
    if job.process.returncode and read(job.folder).status == "missing":
        lines = _log(job).read_text(errors="replace").strip().splitlines()
        write_text(failure_file(job.folder), lines[-1] if lines else f"exit status {job.process.returncode}")


def _set_aside(folder: Path) -> None:
    """Rename a folder whose run cannot be continued; nothing is deleted."""
    if folder.exists() and any(folder.iterdir()):
        number = 1
        while (target := folder.with_name(f"{folder.name}.attempt{number}")).exists():
            number += 1
        folder.rename(target)
