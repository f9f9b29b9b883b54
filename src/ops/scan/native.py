"""Backend `native`: one pass over memory on the CPU, compiled by numba at the first call and cached on disk.

Traffic of the forward: b read, x written. Of the backward: g and x read, the gradient of b written; the gradient of a
constant `a` is accumulated on the way, in `a`'s dtype over a tile of steps and in double precision across tiles. The
states of a block of modes live in a small array that stays in the first-level cache; loops over modes vectorise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from numba import prange
from torch import Tensor

# numba's fallback threading layer aborts the process when two Python threads enter it at once.
_lock = threading.Lock()

# Steps between two additions to the double-precision sum, and the time tile of a batch-shared gate gradient.
_TILE = 64
# Fewest modes in a task: 16 complex64 are two cache lines.
_NARROWEST = 16
# Elements below which one thread does it: about 10 us of work.
_SMALL = 16384


class _Kernel:
    """A function compiled twice at first use: serially, and in parallel over its `prange`."""

    def __init__(self, function: Callable[..., Any]):
        self._serial = _compile(function, parallel=False)
        self._parallel = _compile(function, parallel=True)

    def __call__(self, threads: int, *arguments: Any) -> None:
        if threads == 1:
            self._serial(*arguments)
            return
        with _lock:
            numba.set_num_threads(threads)
            self._parallel(*arguments)


def _compile(function: Callable[..., Any], parallel: bool) -> Callable[..., Any]:
    """"contract" allows fused multiply-add and leaves inf and nan as they are."""
    options = {"parallel": parallel, "nogil": True, "fastmath": {"contract"}, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError as error:
        # numba found no folder it may write to; it then compiles in every process.
        logging.getLogger("fractal_ssm.scan").warning("numba cannot cache its compiled code: %s", error)
        return numba.njit(**options)(function)


def forward(a: Tensor, b: Tensor, x0: Tensor | None, reverse: bool, out: Tensor) -> None:
    """Write the states to `out` (which may be `b`); shapes as in `custom_op`."""
    batch, _, modes = b.shape
    state = b.new_zeros(batch, modes) if x0 is None else x0
    threads = _threads(b)
    _forward(threads, _np(a), _np(b), _np(state), reverse, _np(out), _block(batch, modes, threads))


def backward(
    a: Tensor, x: Tensor, x0: Tensor | None, g: Tensor, reverse: bool, out: Tensor, need_a: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Write the gradient of b to `out` (which may be `g`); return the gradients of a (or None) and of x0 (or None)."""
    batch, length, modes = x.shape
    state = x.new_zeros(batch, modes) if x0 is None else x0
    dx0 = torch.empty_like(state)
    wide = torch.complex128 if x.is_complex() else torch.float64
    constant, shared = a.shape[1] == 1, a.shape[0] == 1 and a.shape[1] > 1
    threads = _threads(x)
    # A task walks a group of samples tile by tile, so that it alone adds to the gate gradients they share.
    groups = min(batch, 1 if modes >= _NARROWEST * threads else threads) if shared else batch
    sums = torch.zeros(groups if need_a and constant else 0, modes, dtype=wide)
    rows = x.new_empty(groups if need_a and not constant else 0, length, modes)
    block = _block(groups, modes, threads)
    arrays = [_np(t) for t in (a, x, state, g)]
    _backward(threads, *arrays, reverse, _np(out), _np(sums), _np(rows), _np(dx0), groups, block, _TILE)
    dx0 = None if x0 is None else dx0
    if not need_a:
        return None, dx0
    da = sums[:, None] if constant else rows
    if a.shape[0] == 1 and groups != 1:
        da = da.sum(0, keepdim=True)
    return da.to(x.dtype).reshape(a.shape), dx0


def _threads(t: Tensor) -> int:
    """As many as torch uses, or one where starting others would take longer than the work."""
    if t.numel() < _SMALL:
        return 1
    return min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS)


def _np(t: Tensor) -> np.ndarray:
    return t.detach().numpy()


def _block(rows: int, modes: int, threads: int) -> int:
    """Modes per task: as many as leave every thread the same work, but no fewer than `_NARROWEST`."""
    blocks = 1
    while rows * blocks < 4 * threads and (rows * blocks) % threads and modes >= 2 * blocks * _NARROWEST:
        blocks += 1
    return max(1, -(-modes // blocks))


@_Kernel
def _forward(a, b, x0, reverse, out, block):
    batch, length, modes = b.shape
    blocks = -(-modes // block)
    for task in prange(batch * blocks):
        i, low = task // blocks, (task % blocks) * block
        high = min(modes, low + block)
        ia = i if a.shape[0] > 1 else 0
        state = x0[i, low:high].copy()
        for j in range(length):
            k = length - 1 - j if reverse else j
            gate = a[ia, k if a.shape[1] > 1 else 0, low:high]
            source, target = b[i, k, low:high], out[i, k, low:high]
            # Two loops: `source` and `target` may be the same memory, and then one loop would not vectorise.
            for p in range(state.size):
                state[p] = gate[p] * state[p] + source[p]
            for p in range(state.size):
                target[p] = state[p]


@_Kernel
def _backward(a, x, x0, g, reverse, out, sums, rows, dx0, groups, block, tile):
    batch, length, modes = x.shape
    blocks = -(-modes // block)
    for task in prange(groups * blocks):
        group, low = task // blocks, (task % blocks) * block
        high = min(modes, low + block)
        first, last = group * batch // groups, (group + 1) * batch // groups
        states = np.zeros((last - first, high - low), x.dtype)
        partial = np.zeros(high - low, x.dtype)
        for start in range(0, length, tile):
            for i in range(first, last):
                ia = i if a.shape[0] > 1 else 0
                state = states[i - first]
                for j in range(start, min(length, start + tile)):
                    # The adjoint runs against the recurrence: `before` is the step that fed step k.
                    k = j if reverse else length - 1 - j
                    after, before = (k - 1, k + 1) if reverse else (k + 1, k - 1)
                    source, target = g[i, k, low:high], out[i, k, low:high]
                    if j > 0:
                        gate = a[ia, after if a.shape[1] > 1 else 0, low:high]
                        for p in range(state.size):
                            state[p] = np.conj(gate[p]) * state[p] + source[p]
                    else:
                        for p in range(state.size):
                            state[p] = source[p]
                    for p in range(state.size):
                        target[p] = state[p]
                    previous = x[i, before, low:high] if j < length - 1 else x0[i, low:high]
                    if sums.shape[0] > 0:
                        for p in range(state.size):
                            partial[p] += state[p] * np.conj(previous[p])
                    if rows.shape[0] > 0:
                        row = rows[group, k, low:high]
                        if i == first:
                            for p in range(state.size):
                                row[p] = state[p] * np.conj(previous[p])
                        else:
                            for p in range(state.size):
                                row[p] += state[p] * np.conj(previous[p])
                if sums.shape[0] > 0:
                    for p in range(state.size):
                        sums[group, low + p] += partial[p]
                        partial[p] = 0
        for i in range(first, last):
            ia = i if a.shape[0] > 1 else 0
            k = (length - 1 if reverse else 0) if a.shape[1] > 1 else 0
            for p in range(high - low):
                dx0[i, low + p] = np.conj(a[ia, k, low + p]) * states[i - first, p]
