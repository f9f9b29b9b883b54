"""KeOps, loaded at first use and kept quiet: it prints to stdout when imported and whenever it compiles a formula."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from ...errors import UsageError


def keops_reason() -> str:
    """Why KeOps cannot run here, with what to do; an empty string when it can.

    The first call of a formula compiles for 7 to 30 seconds.
    """
    if importlib.util.find_spec("pykeops") is None:
        return "pykeops is not installed (pip install pykeops)"
    if shutil.which("g++") is None:
        return "pykeops compiles its formulas with g++, and there is no g++ on the PATH (install a C++ compiler)"
    folder = Path(os.environ.get("KEOPS_CACHE_FOLDER") or Path("~/.cache").expanduser() / "keops")
    # KeOps creates the folder itself, so the nearest parent that exists has to be writable.
    there = next((parent for parent in (folder, *folder.parents) if parent.exists()), folder)
    if not (there.is_dir() and os.access(there, os.W_OK)):
        return (
            f"pykeops keeps what it compiles under {folder.parent}, and {there} cannot be written (set "
            f"KEOPS_CACHE_FOLDER, or HOME, to a folder that can, before the first import)"
        )
    return ""


def lazy_tensor(tensor: Tensor) -> Any:
    """A KeOps LazyTensor over `tensor`."""
    return _lazy_tensor_class()(tensor)


@functools.cache
def _lazy_tensor_class() -> Any:
    # KeOps reads both variables at import; each silences output that the other does not.
    for name in ("KEOPS_VERBOSE", "PYKEOPS_VERBOSE"):
        os.environ.setdefault(name, "0")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from pykeops.torch import LazyTensor
    except OSError as error:
        raise UsageError(
            f"pykeops cannot make its cache folder: {error}. Set KEOPS_CACHE_FOLDER (or HOME) to a folder that can be "
            f"written, before the first import, or use backend='torch'."
        ) from error
    return LazyTensor
