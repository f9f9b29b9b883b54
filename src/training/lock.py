"""A run folder is written by one process at a time: a lock of the operating system, which ends with its process."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from ..errors import UsageError
from ..files import WriteFailed

# What a file system without locks answers (some parallel ones of clusters).
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def lock_folder(folder: Path) -> int | None:
    """Lock `folder` by its file `.lock`; the descriptor for `unlock_folder`, or None where there are no locks.

    Raises:
        UsageError: another process (or another run of this one) holds it; says which.
        WriteFailed: the file cannot be made.
    """
    path = folder / ".lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise WriteFailed(error.errno, error.strerror, str(path)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 200).decode(errors="replace")
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise UsageError(
                f"{folder} is in use by {holder or 'another process'}, and two runs would mix their records. Resume it "
                f"when that run has ended, or stop that run."
            ) from None
        if error.errno not in _NO_LOCKS:
            raise
        return None
    # The file's content tells others who holds the lock; a full disk only loses that.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return descriptor


def unlock_folder(descriptor: int | None) -> None:
    """Give back what `lock_folder` returned. The file stays: to remove it would race with those who wait for it."""
    if descriptor is not None:
        # Closing alone would leave it locked as long as a child that was forked meanwhile lives.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a process is writing the run of `folder`; False where there are no locks."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
