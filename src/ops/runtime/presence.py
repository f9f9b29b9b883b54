"""Whether native code can run in this process at all. Imports numba only when asked."""

from __future__ import annotations

import functools
import importlib
import importlib.util

from .autograd import constant_in_graphs


@constant_in_graphs
def numba_obstacle() -> str:
    """Why numba cannot compile here and what to do about it; an empty string when it can."""
    return _find_obstacle()


@functools.cache
def _find_obstacle() -> str:
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed. Run: pip install numba"
    try:
        config = importlib.import_module("numba").config
    # Catch everything (a NumPy that is too new, a broken wheel): the torch backend works without numba.
    except Exception as error:
        return f"numba is installed and cannot be imported ({error}). Install a numba and a numpy that fit"
    if config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set, and native code cannot run uncompiled. Unset it, or use backend='auto'"
    return ""
