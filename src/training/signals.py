"""Ctrl-C and the signals of a scheduler: when they stop a run, and with which exit status.

    SIGINT   Ctrl-C: saved, status 130; a second one stops at once
    SIGTERM  `kill`, a scheduler that ends or preempts a job: saved, status 143
    SIGHUP   the terminal was closed: saved, status 129; ignored under nohup
    SIGUSR1  a scheduler's warning (`sbatch --signal=USR1@90`): saved, status 138; with training.requeue the job is
             queued again

While steps are taken a signal is only noted: the checkpoint callback finishes the optimizer step (with gradient
accumulation, the group), saves and stops. Everywhere else, where nothing would be lost, it stops the run at once.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class Stop(BaseException):
    """Raised inside a run by a signal. Not a KeyboardInterrupt, which lightning turns into exit status 1.

    Attributes:
        signum: of the signal.
        step: at which the run has been saved because of it; None when it has not.
    """

    def __init__(self, signum: int, step: int | None = None):
        super().__init__(f"stopped by {name(signum)}")
        self.signum, self.step = signum, step


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal; the message says how to go on, `status` is the exit status of a program."""

    def __init__(self, message: str, status: int = 128 + signal.SIGINT):
        super().__init__(message)
        self.status = status


class Signals:
    """Context in which the signals of `HANDLED` raise `Stop`, at once or, while `deferring`, not before asked.

    Signals that the process ignores stay ignored (a shell's background job ignores Ctrl-C). Outside the main thread,
    where Python cannot handle signals, it does nothing.

    Attributes:
        deferring: a signal is noted in `received` only; a second SIGINT raises `Stop` all the same.
        received: the number of the noted signal, or 0.
    """

    def __init__(self, announce: bool = False):
        self.deferring, self.received = False, 0
        self._announce = announce
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            handlers = {signum: signal.getsignal(signum) for signum in HANDLED}
            self._before = {n: handler for n, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
            self._process = os.getpid()
            self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before = {}

    def install(self) -> None:
        """Take the signals (again: lightning puts handlers of its own into each fit and test)."""
        for signum in self._before:
            signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            self._handle_in_child(signum)
        elif not self.deferring or (self.received and signum == signal.SIGINT):
            raise Stop(signum)
        elif not self.received:
            self.received = signum
            if self._announce:
                again = "; Ctrl-C again stops at once" if signum == signal.SIGINT else ""
                # Not print: the signal may have come inside one. The terminal may be gone.
                with suppress(OSError):
                    os.write(2, f"\n{name(signum)}: finishing the step and saving{again}.\n".encode())

    def _handle_in_child(self, signum: int) -> None:
        """A forked helper (a loader's worker) inherits the handlers; its parent decides when it ends."""
        if signum == signal.SIGTERM:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        elif signum == signal.SIGINT and not self.deferring:
            raise KeyboardInterrupt


def name(signum: int) -> str:
    """What a user calls the signal."""
    return "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
