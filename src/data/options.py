"""Checks of the user's input that all datasets share: numbers, flags, labels and the data folder."""

from __future__ import annotations

import math
import os
import stat
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from ..processes.checks import is_real

MOST_SAMPLES = 10_000_000
MOST_STEPS = 1 << 24
MOST_WORKERS = 1024


def check_counts(name: str, sample_bytes: int = 0, **counts: int | None) -> None:
    """Refuse numbers of samples outside 1 .. 10,000,000; None stands for all.

    Args:
        name: of the dataset.
        sample_bytes: approximate size of one sample on disk, for the message.
        counts: option -> value.
    """
    size = f"; {MOST_SAMPLES:,} would take about {MOST_SAMPLES * sample_bytes / 1e9:,.0f} GB" if sample_bytes else ""
    for option, count in counts.items():
        check_at_least(1, name, option, count, f"null for all{size}", MOST_SAMPLES)


def check_at_least(least: int, name: str, option: str, value: int | None, hint: str, most: int = MOST_STEPS) -> None:
    """Refuse a value that is not a whole number in least .. most; None is accepted.

    Raises:
        UsageError: names the dataset, the option and the value; `hint` stands in brackets after the allowed range.
    """
    if value is None:
        return
    whole = isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
    if not whole or not least <= value <= most:
        raise UsageError(
            f"{name} needs a whole number {option} >= {least} and <= {most:,} ({hint}), got {shown(value)}. "
            f"Set dataset.{option} to such a number."
        )


def check_required(least: int, name: str, hint: str, most: int = MOST_STEPS, **values: int) -> None:
    """`check_at_least` for options that may not be None."""
    for option, value in values.items():
        check_at_least(least, name, option, math.nan if value is None else value, hint, most)


def check_real(name: str, option: str, value: float, holds: bool, allowed: str) -> None:
    """Refuse a value that is not a finite real number, or for which `holds` is false.

    Args:
        name: of the dataset.
        option, value: the option and the value given.
        holds: whether the value is in its range; false for a value that cannot be compared.
        allowed: the range, for the message.
    """
    if not (is_real(value) and holds):
        raise UsageError(f"{name} needs {allowed}, got {option}={shown(value)}. Set dataset.{option} to such a number.")


def check_workers(workers: int | None) -> None:
    """Refuse a command's number of threads outside 1 .. 1024; None takes all cores."""
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"--workers is a number of threads in 1..{MOST_WORKERS}, got {shown(workers)}.")


def check_flags(name: str, **flags: bool) -> None:
    """Refuse values other than true and false."""
    for option, value in flags.items():
        if not isinstance(value, bool):
            raise UsageError(f"{name} needs {option}=true or {option}=false, got {shown(value)}. Set dataset.{option}.")


def checked_labels(labels: Any, n_classes: int, place: str) -> np.ndarray:
    """Labels (n,) uint8 from a list of integers or an integer array.

    Raises:
        UsageError: no labels, an array of another shape, or labels that are not whole numbers in 0 .. n_classes - 1.
    """
    remedy = f"expected one whole number in 0..{n_classes - 1} for each sample: copy or download it again."
    if isinstance(labels, list | tuple):
        # Check before the conversion: numpy would expand nested lists and cut 0.5 to 0.
        odd = next((label for label in labels if type(label) is not int or not 0 <= label < n_classes), None)
        if odd is not None or not labels:
            raise UsageError(f"{place} has {'no labels' if odd is None else f'the label {shown(odd)}'}; {remedy}")
        return np.array(labels, dtype=np.uint8)
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "iu" or not len(labels):
        kind = f"{labels.dtype} of shape {labels.shape}" if isinstance(labels, np.ndarray) else type(labels).__name__
        raise UsageError(f"{place} has labels of type {kind}; {remedy}")
    if labels.min() < 0 or labels.max() >= n_classes:
        raise UsageError(f"{place} has labels in {labels.min()}..{labels.max()}; {remedy}")
    return labels.astype(np.uint8)


def parsed_label(text: bytes, n_classes: int, place: str) -> int:
    """The label in a text such as 3, 3.0 or 3e0.

    Raises:
        UsageError: it is not a whole number in 0 .. n_classes - 1.
    """
    try:
        value = float(text) if len(text) <= 32 else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value < n_classes or value != int(value):
        known = "0 or 1" if n_classes == 2 else f"a whole number in 0..{n_classes - 1}"
        raise UsageError(f"{place}: the label should be {known}, got {text[:20]!r}. Copy or download the file again.")
    return int(value)


def checked_data_dir(data_dir: Any, option: str = "data_dir") -> Path:
    """The data folder as a path, which need not exist yet; `option` is the user's name for it in messages.

    Raises:
        UsageError: it is not a path, holds a NUL character, is a file or a dangling link, or cannot be a folder.
    """
    remedy = f"Set {option} to a folder that exists or can be made."
    if not isinstance(data_dir, str | os.PathLike):
        raise UsageError(f"{option} is the path of a folder, got {shown(data_dir)}. {remedy}")
    path = Path(data_dir)
    try:
        there = stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        if path.is_symlink():
            raise UsageError(
                f"{option}={path} is a link to {os.readlink(path)}, which does not exist. {remedy}"
            ) from None
        return path
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{option}={shown(str(path))} cannot be used ({reason}). {remedy}") from error
    if not there:
        raise UsageError(
            f"{option}={path} cannot be written: it is a file. Set {option} to a folder that you may write."
        )
    return path


def shown(value: Any) -> str:
    """A value for a message, at most 80 characters long."""
    try:
        text = repr(value)
    except ValueError:
        # An integer of more digits than Python prints.
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
