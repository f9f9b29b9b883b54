"""The exception type for a user's mistake, and helpers for its messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UsageError(ValueError):
    """A mistake of the caller: the message says what was given, what is allowed and what to do.

    Command-line programs print it without a traceback and exit with status 2; in a notebook it is a ValueError.
    """


class RunFailed(RuntimeError):
    """A run failed for a known reason; command-line programs print the message and exit with status 1."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """`" Did you mean 'fractal'?"` for the nearest known name, or an empty string when none is near."""
    near = difflib.get_close_matches(str(given), [str(name) for name in known], n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""


def unknown(kind: str, given: str, known: Iterable[str], remedy: str = "") -> UsageError:
    """The error for a name that is not among the known ones (returned, not raised).

    >>> print(unknown("measure", "legz", ["legs", "lagt"]))
    Unknown measure 'legz'. Known: lagt, legs. Did you mean 'legs'?
    """
    known = sorted(str(name) for name in known)
    message = f"Unknown {kind} '{given}'. Known: {', '.join(known) or 'none'}.{did_you_mean(given, known)}"
    return UsageError(f"{message} {remedy}".rstrip())
