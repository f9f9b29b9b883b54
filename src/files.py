"""Writes files atomically: neither a concurrent reader, a crash nor a full disk leaves a partial file."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# The end of messages about a file that could not be written.
SPACE_ADVICE = "Free some space or mend the folder first; nothing half-written is left under a final name."


class WriteFailed(OSError):
    """A file could not be written; what it held before is untouched."""


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file that replaces `path` when the block ends without an error.

    The content goes to a hidden file in the same folder (a rename across file systems would not be atomic), is flushed
    to disk and renamed. If the block fails, the hidden file is removed and `path` is unchanged; `remove_leftovers`
    removes the hidden file of a killed process. Symbolic links are followed.

    Raises:
        WriteFailed: the operating system refused (no space, quota, read-only, input/output error, no such folder), or
            `path` exists and is not an ordinary file (a device, say).
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise WriteFailed(errno.EINVAL, "it is no ordinary file", str(path))
    # Named after process and thread, so that two writers of one file cannot mix their content.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        refused = _os_error(error)
        if refused is None:
            raise
        raise WriteFailed(refused.errno, refused.strerror or str(refused), str(path)) from error
    _flush_folder(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """`atomic_write` of a text in UTF-8."""
    with atomic_write(path) as file:
        file.write(text.encode())


def create_text(path: str | Path, text: str) -> bool:
    """Create the file `path` with this text unless it exists; return whether this call created it.

    Raises:
        WriteFailed: as `atomic_write`; the file then does not exist.
    """
    path = Path(path)
    try:
        with open(path, "xb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    except OSError as error:
        # Only the file created here can be incomplete; an existing one raises FileExistsError.
        with suppress(OSError):
            path.unlink()
        raise WriteFailed(error.errno, error.strerror, str(path)) from error
    _flush_folder(path.parent)
    return True


def append_text(path: str | Path, text: str) -> None:
    """Append a text to a file, all of it or nothing.

    Raises:
        WriteFailed: the operating system refused; the file is truncated to its previous length.
    """
    path = Path(path)
    before = None
    try:
        with open(path, "ab", buffering=0) as file:
            before = file.tell()
            data = text.encode()
            while data:
                data = data[file.write(data) :]
    except OSError as error:
        if before is not None:
            with suppress(OSError):
                os.truncate(path, before)
        raise WriteFailed(error.errno, error.strerror, str(path)) from error


def remove_leftovers(folder: str | Path) -> None:
    """Remove temporary files that killed writers left in `folder`; call it only where no other process writes."""
    for leftover in Path(folder).glob(".*-*.tmp"):
        with suppress(OSError):
            leftover.unlink()


def _os_error(error: BaseException | None) -> OSError | None:
    """The operating system's error behind `error`: torch's writer wraps it in another exception."""
    while error is not None and not (isinstance(error, OSError) and error.errno is not None):
        error = error.__cause__ or error.__context__
    return error


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power failure, if the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
