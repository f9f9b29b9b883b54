"""How the C library hands memory of the CPU out, set for training: the same large tensors come and go every step."""

from __future__ import annotations

import ctypes
import os
import platform

# Parameters of glibc's mallopt (malloc.h), and what they are set to: nothing is given back to the system, and large
# blocks are cut from the heap like others instead of being mapped anew each time.
_TRIM_THRESHOLD, _NEVER = -1, -1
_MMAP_MAX, _NONE = -4, 0


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed for the next step, in this process and from now on.

    By default every tensor above 32 MiB is mapped when it is made and unmapped when it is freed, and the system zeroes
    each of its pages again, at a fifth of the speed of memory: 9 GB a step of S5's ListOps model at its batch of 50,
    two fifths of the step's time. The price is memory, since the heap fragments: 1.6 times the peak there, nothing at a
    batch of 4, where few tensors are that large; up to three times where the length changes from batch to batch (S4D
    on ListOps with budget=cpu: 2.3 GB for 0.75, and 1.8 times the speed). Results do not change.

    Returns:
        Whether it was done: not where the C library is another one, and not where the user has set an environment
        variable MALLOC_..., which then rules.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER) and mallopt(_MMAP_MAX, _NONE))
