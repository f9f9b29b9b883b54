"""Writing files so that a reader, a crash or a full disk never sees half of one."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# What a message about a file that could not be written ends with.
SPACE_ADVICE = "Free some space or mend the folder first; nothing half-written is left under a final name."


class WriteFailed(OSError):
    """A file could not be written; what it held before is untouched."""


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """A binary file whose content takes the place of `path` when the block ends, and only then.

    The content goes to a hidden file in the same folder (renaming between file systems would be a copy in place), is
    flushed to the disk and renamed. When the block fails, the hidden file is removed and `path` stays as it was; what
    a killed process leaves is for `remove_leftovers`. A link is followed.

    Raises:
        WriteFailed: the operating system refused (no space, quota, read-only, input/output error, no such folder), or
            `path` is something else than a file, a device say, whose place no file may take.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise WriteFailed(errno.EINVAL, "it is no ordinary file", str(path))
    # A thread's own, so that two writers of one file cannot mix their content.
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
    """Make the file `path` with this text unless it exists; whether this call, and no other, has made it.

    Raises:
        WriteFailed: as `atomic_write`; then there is no such file.
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
        # Only a file that was made here can have been refused its content.
        with suppress(OSError):
            path.unlink()
        raise WriteFailed(error.errno, error.strerror, str(path)) from error
    _flush_folder(path.parent)
    return True


def append_text(path: str | Path, text: str) -> None:
    """Add a text to the end of a file, all of it or nothing.

    Raises:
        WriteFailed: the operating system refused; the file is cut back to its length before.
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
    """Remove what killed writers left in `folder`; only for the process that alone writes there."""
    for leftover in Path(folder).glob(".*-*.tmp"):
        with suppress(OSError):
            leftover.unlink()


def _os_error(error: BaseException | None) -> OSError | None:
    """The refusal of the operating system behind an error: torch's writer hides it behind one of its own."""
    while error is not None and not (isinstance(error, OSError) and error.errno is not None):
        error = error.__cause__ or error.__context__
    return error


def _flush_folder(folder: Path) -> None:
    """Make a renaming last through a power cut, where the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
