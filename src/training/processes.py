"""Find the rank of this process before there is a trainer, and end the run when another process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..config import Config
from ..errors import UsageError

# Environment variables of launchers. Lightning reads the ranks when it is imported, in a single process too, and takes
# any process with SLURM_NTASKS for a process of srun.
_RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
_HIDDEN = (*_RANKS, "SLURM_NTASKS")
_NUMBERS = (*_RANKS, "WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
# Launcher, variable with the number of its processes, variable that only its processes have.
_LAUNCHERS = (
    ("torchrun", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS"),
)
# Seconds between two checks of the other processes, and seconds in which this one may still fail by itself.
_LOOK, _GRACE = 0.2, 2.0


def is_single(config: Config) -> bool:
    """Whether the configuration asks for one process, regardless of the environment."""
    trainer = config.trainer
    if trainer.strategy != "auto" or trainer.num_nodes > 1:
        return False
    if trainer.devices != "auto" or trainer.accelerator == "cpu":
        return trainer.devices in (1, "auto")
    import torch

    return torch.cuda.device_count() < 2


@contextmanager
def ranks_hidden(config: Config) -> Iterator[None]:
    """Context in which the environment of a single process has no ranks: a leftover `RANK=1` would silence the process.

    Raises:
        UsageError: several processes have a rank that is not a number, or a launcher has started several processes
            for a configuration of one.
    """
    if not is_single(config):
        for key in _NUMBERS:
            value = os.environ.get(key, "0")
            if not value.isdecimal():
                raise UsageError(
                    f"The environment has {key}={value!r}; launchers set it to a number from 0 on. Unset it, or start "
                    f"the processes with torchrun or srun."
                )
        yield
        return
    for launcher, key, mark in _LAUNCHERS:
        if mark in os.environ and os.environ.get(key, "1") != "1":
            raise UsageError(
                f"{launcher} has started {os.environ[key]} processes, and the configuration is for one. Add "
                f"trainer=ddp trainer.devices=<processes a node>, or start one process."
            )
    hidden = {key: os.environ.pop(key) for key in _HIDDEN if key in os.environ}
    try:
        from lightning.pytorch.utilities.rank_zero import rank_zero_only

        # Lightning may have been imported before, with the ranks visible.
        rank_zero_only.rank = 0
        yield
    finally:
        os.environ.update(hidden)


def is_first(config: Config) -> bool:
    """Whether this process prints and writes, that is, has rank 0 as lightning will assign it.

    Raises:
        UsageError: the cluster's environment variables are inconsistent.
    """
    if is_single(config):
        return True
    from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment

    try:
        for cluster in (TorchElasticEnvironment, SLURMEnvironment):
            if cluster.detect():
                return cluster().global_rank() == 0
    except (RuntimeError, KeyError, ValueError) as error:
        raise UsageError(f"The environment's description of the processes is refused: {error}") from error
    alone = LightningEnvironment()
    return alone.local_rank() == 0 and alone.node_rank() == 0


class Watch:
    """Monitors the processes that lightning started from this one.

    Args:
        lost: called in a thread with a sentence when one of them has failed and this one has not ended soon after; must
            not return, since this process hangs in a sum over all processes.
    """

    def __init__(self, lost: Callable[[str], None]):
        self._lost, self._left = lost, threading.Event()
        self._children: list[subprocess.Popen] = []

    def begin(self, children: list[subprocess.Popen]) -> None:
        """Start to monitor the children; without children this does nothing."""
        if children and not self._children:
            self._children = children
            for thread in threading.enumerate():
                # Lightning's own thread checks every 5 seconds and kills this process without a message. It ends when
                # its list of children is empty.
                if getattr(thread, "_child_processes", None) == children:
                    thread._child_processes = []
            threading.Thread(target=self._look, daemon=True, name="watch").start()

    def end(self) -> None:
        """Stop monitoring, because this process leaves the run by itself."""
        self._left.set()

    def kill(self) -> None:
        """End the other processes, which would wait for this one."""
        for child in self._children:
            if child.poll() is None:
                child.kill()

    def _look(self) -> None:
        while not self._left.wait(_LOOK):
            bad = [(rank, child.poll()) for rank, child in enumerate(self._children, start=1) if child.poll()]
            if bad:
                if not self._left.wait(_GRACE):
                    rank, status = bad[0]
                    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"
                    self._lost(f"Process {rank} of {len(self._children) + 1} {how}.")
                return


def children_of(trainer: Any) -> list[subprocess.Popen]:
    """The processes that lightning started for this trainer from this process."""
    return list(getattr(trainer.strategy.launcher, "procs", ()))
