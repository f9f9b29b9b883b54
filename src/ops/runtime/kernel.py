"""Functions compiled by numba at their first call, serially and over threads, and cached on disk."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from torch import Tensor, get_num_threads

from ...jit_cache import cached_jit
from . import vectors

# numba's fallback threading layer aborts the process when two Python threads enter it at once.
_lock = threading.Lock()
# Whether this process has started numba's threads, and whether it is the fork of one that had. A fork does not inherit
# the threads, and restarting them under GNU OpenMP ends the process; such a fork therefore uses one thread.
_threads_started = False
_threads_lost = False

# "contract" allows fused multiply-add and leaves inf and nan as they are.
OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
# Names in messages of the operations, by folder of ops/.
_SPOKEN = {
    "scan": "the scan",
    "ssm": "the state space model",
    "convolution": "the convolution",
    "vandermonde": "the kernel of S4D",
    "cauchy": "the kernel of S4",
    "step": "the single steps",
    "pointwise": "activations and gates",
}
# Below this many elements (about 10 us of work) one thread is used.
_SMALL = 16384


def _after_fork() -> None:
    global _threads_lost
    _threads_lost = _threads_started


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Kernel:
    """A function compiled twice at first use: serially, and in parallel over its `prange`.

    Args:
        function: the kernel; it may call functions of its own module, of `vectors`, and of `uses`.
        uses: further modules whose functions it calls.
    """

    def __init__(self, function: Callable[..., Any], uses: Sequence[ModuleType] = ()):
        # numba keys its cache by the function's name and its file's modification time, not by the compile options or
        # the other files: without a version in the name it would load serial code for parallel, or stale code for new.
        sources = b"".join(Path(str(module.__file__)).read_bytes() for module in (vectors, *uses))
        version = f"{zlib.crc32(sources):08x}"
        self._serial = _compile(function, f"serial_{version}", parallel=False)
        self._parallel = _compile(function, f"parallel_{version}", parallel=True)

    def __call__(self, threads: int, *arguments: Any) -> None:
        if threads == 1:
            self._serial(*arguments)
            return
        global _threads_started
        with _lock:
            _threads_started = True
            before = numba.get_num_threads()
            numba.set_num_threads(threads)
            try:
                self._parallel(*arguments)
            finally:
                numba.set_num_threads(before)


def _compile(function: Callable[..., Any], label: str, parallel: bool) -> Callable[..., Any]:
    twin = FunctionType(function.__code__, function.__globals__)
    twin.__qualname__ = f"{function.__qualname__}_{label}"
    # fractal_ssm.ops.<operation>.native
    operation = function.__module__.split(".")[2]
    return cached_jit(twin, _SPOKEN.get(operation, operation), parallel=parallel, **OPTIONS)


def _keep_freed_memory() -> None:
    """Make glibc keep up to 64 MB of freed memory, as it does once a program has freed an allocation of 32 MB.

    By default every freed tensor above 128 kB goes back to the system, and filling newly mapped memory costs four times
    as much as filling reused memory. The allocation made here is never touched.
    """
    np.empty((32 << 20) - (64 << 10), dtype=np.uint8)


_keep_freed_memory()


def threads_for(t: Tensor) -> int:
    """Number of threads: as many as torch uses, but one if starting others would cost more than the work on `t`, or
    would end the process (see `_threads_lost`)."""
    if _threads_lost or t.numel() < _SMALL:
        return 1
    return min(get_num_threads(), numba.config.NUMBA_NUM_THREADS)
