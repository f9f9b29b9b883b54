"""Read files that ship inside installed packages, without importing the packages."""

from __future__ import annotations

import csv
import hashlib
import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ...errors import UsageError
from ..safe import read_gzip

# The largest file read here has 3 MB.
_MOST_BYTES = 64 << 20


def package_file(task: str, install: str, *places: str) -> Path:
    """The first of the files that exists.

    Args:
        task: name of the dataset, for the message.
        install: argument of `pip install` that brings it.
        places: "package/folder/file", the package by its import name.
    Raises:
        UsageError: none exists; the message gives the command.
    """
    for place in places:
        package, _, inside = place.partition("/")
        spec = find_spec(package)
        if spec is not None and spec.origin is not None and (path := Path(spec.origin).parent / inside).is_file():
            return path
    raise UsageError(
        f"{task} reads {' or '.join(places)} of an installed package, which is not there. "
        f"Run: pip install {install}\nNothing is downloaded when training."
    )


def read_columns(path: Path, columns: tuple[str, ...], install: str) -> np.ndarray:
    """(n, len(columns)) of the text in a CSV file with a header; the file may be packed with gzip.

    Raises:
        UsageError: the file is damaged or has other content.
    """
    try:
        rows = list(csv.reader(io.StringIO(file_bytes(path).decode("utf-8-sig"))))
        places = [rows[0].index(name) for name in columns]
        return np.array([[row[place] for place in places] for row in rows[1:] if row])
    except (UnicodeDecodeError, ValueError, IndexError, csv.Error) as error:
        raise damaged(path, str(error), install) from error


def numbers(path: Path, text: np.ndarray, install: str) -> np.ndarray:
    """Numbers of a text array in float64; an empty text or a dot is NaN.

    Raises:
        UsageError: another text that is not a number, or an infinite number.
    """
    try:
        values = np.where((text == "") | (text == "."), "nan", text).astype(np.float64)
    except ValueError as error:
        raise damaged(path, str(error), install) from error
    if np.isinf(values).any():
        raise damaged(path, "an infinite number", install)
    return values


def file_bytes(path: Path) -> bytes:
    """Content of a file, unpacked when it ends in .gz.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return read_gzip(path, _MOST_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}). Install its package again.") from error


def damaged(path: Path, reason: str, install: str) -> UsageError:
    """The error for a package's file with unexpected content (returned, not raised)."""
    return UsageError(
        f"{path} is damaged or of another version ({reason[:120]}). Run: pip install --force-reinstall {install}"
    )


def checksum(*paths: Path) -> str:
    """SHA-256 of the files' bytes."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(file_bytes(path))
    return digest.hexdigest()
