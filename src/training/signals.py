"""Handle Ctrl-C and a scheduler's signals: when they stop a run, and with which exit status.

    SIGINT   Ctrl-C: saved, status 130; a second one stops at once
    SIGTERM  `kill`, a scheduler that ends or preempts a job: saved, status 143
    SIGHUP   the terminal was closed: saved, status 129; ignored under nohup
    SIGUSR1  a scheduler's warning (`sbatch --signal=USR1@90`): saved, status 138; with training.requeue the job is
             queued again

In fit and test a signal is only noted: an exception at an arbitrary line could fall inside a `__del__`, where Python
drops it, or leave a loader half made. The checkpoint callback finishes the optimizer step (with gradient accumulation,
the group), saves and stops; before the first step and between the batches of a test it just stops. Everywhere else,
where nothing would be lost, a signal stops the run at once.
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
        signum: number of the signal.
        step: optimizer step at which the run was saved because of it; None if it was not saved.
    """

    def __init__(self, signum: int, step: int | None = None):
        super().__init__(f"stopped by {name(signum)}")
        self.signum, self.step = signum, step


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal; the message says how to resume, `status` is the exit status of a program."""

    def __init__(self, message: str, status: int = 128 + signal.SIGINT):
        super().__init__(message)
        self.status = status


class Signals:
    """Context in which the signals of `HANDLED` raise `Stop`, at once or, while `deferring`, where the run checks.

    Signals that the process ignores stay ignored (a shell's background job ignores Ctrl-C). Outside the main thread,
    where Python cannot handle signals, it does nothing. A process forked inside does not inherit it: SIGTERM ends that
    process, and it ignores the other signals, which its parent handles.

    Attributes:
        deferring: only note a signal in `received`; a second SIGINT raises `Stop` all the same.
        saving: announce a noted signal with a message that the run is being saved.
        received: the number of the first signal, or 0.
    """

    def __init__(self, announce: bool = False):
        self.deferring, self.saving, self.received = False, False, 0
        self._announce = announce
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            handlers = {signum: signal.getsignal(signum) for signum in HANDLED}
            self._before = {n: handler for n, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
            owners = (getattr(handler, "__self__", None) for handler in self._before.values())
            # Take over a signal of the surrounding context whose `Stop` Python dropped inside a `__del__`.
            self.received = next((owner.received for owner in owners if isinstance(owner, Signals)), 0)
            for signum in self._before:
                signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before = {}

    def check(self) -> None:
        """Raise `Stop` if a signal was received, including one whose `Stop` was lost."""
        if self.received:
            raise Stop(self.received)

    def pass_on(self) -> None:
        """Outside the context: raise again a signal that came too late to stop anything inside it."""
        if self.received:
            signal.raise_signal(self.received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        again = bool(self.received)
        self.received = self.received or signum
        if not self.deferring or (again and signum == signal.SIGINT):
            raise Stop(signum)
        if self._announce and self.saving and not again:
            more = "; Ctrl-C again stops at once" if signum == signal.SIGINT else ""
            # Not `print`, which the signal may have interrupted. The terminal may be gone.
            with suppress(OSError):
                os.write(2, f"\n{name(signum)}: finishing the step and saving{more}.\n".encode())


_blocked = threading.local()


def _before_fork() -> None:
    # Python would forget a signal that reaches the child before its own handlers are set.
    _blocked.before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


def _after_fork_in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.before)


def _after_fork_in_child() -> None:
    for signum in HANDLED:
        if isinstance(getattr(signal.getsignal(signum), "__self__", None), Signals):
            # A function and not SIG_IGN, which programs started by the child would inherit.
            signal.signal(signum, signal.SIG_DFL if signum == signal.SIGTERM else _leave_to_parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, _blocked.before)


def _leave_to_parent(signum: int, frame: FrameType | None) -> None:
    pass


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def ended_by_parent(worker: int) -> None:
    """`worker_init_fn` of the loaders: the worker obeys a SIGTERM only from its parent.

    A scheduler sends SIGTERM to all processes of a job, and workers that died of it would end the run before it is
    saved.
    """
    # macOS does not report the sender of a signal.
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)


def name(signum: int) -> str:
    """Name of the signal for users."""
    return "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
