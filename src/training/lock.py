"""Lock a run folder so that one process writes it at a time; the operating system frees the lock with the process."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from contextlib import suppress
from pathlib import Path

from ..errors import UsageError
from ..files import WriteFailed

# Errors of file systems without locks, such as some parallel file systems of clusters.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def lock_folder(folder: Path) -> int | None:
    """Lock `folder` by its file `.lock`; return the descriptor for `unlock_folder`, or None where there are no locks.

    Raises:
        UsageError: another process, or another run of this process, holds the lock; the message names it.
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
    # The file's content names the holder of the lock; on a full disk only this name is lost.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return descriptor


def unlock_folder(descriptor: int | None) -> None:
    """Release the lock that `lock_folder` returned. The file stays: removing it would race with other processes."""
    if descriptor is not None:
        # Closing alone would keep the lock as long as any forked child lives.
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
