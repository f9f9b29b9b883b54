"""Backend `native`: one pass over memory on the CPU, compiled by numba at the first call and cached on disk.

Traffic of the forward: b read, x written. Of the backward: g and x read, the gradient of b written; the gradient of a
constant `a` is accumulated on the way, in `a`'s dtype over a tile of steps and in double precision across tiles. The
states of a block of modes live in a small array that stays in the first-level cache; loops over modes vectorise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import numpy as np
import torch
from numba import prange, types
from numba.extending import overload
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
        # numba files its cache under the function's name and not under its options: one name for both would load the
        # serial code in place of the parallel.
        twin = FunctionType(function.__code__, function.__globals__)
        twin.__qualname__ = f"{function.__qualname__}_parallel"
        self._parallel = _compile(twin, parallel=True)

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
    constant, shared = a.shape[1] == 1, a.shape[0] == 1 and a.shape[1] > 1
    threads = _threads(x)
    # A task walks a group of samples tile by tile, so that it alone adds to the gate gradients they share.
    groups = min(batch, 1 if modes >= _NARROWEST * threads else threads) if shared else batch
    part = torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32
    states = torch.zeros(batch, 2, modes, dtype=part)
    # Of a gate that varies only the first, which acts on a zero state, is read here.
    gates = torch.stack([a[:, 0].real, a[:, 0].imag if a.is_complex() else torch.zeros_like(a[:, 0])], 1)
    wide = torch.zeros(groups if need_a and constant else 0, 2, modes, dtype=torch.float64)
    rows = x.new_empty(groups if need_a and not constant else 0, length, modes)
    start = (x.new_zeros(batch, modes) if x0 is None else x0)[:, None]
    scratch = [_np(t) for t in (states, gates, wide, rows)]
    block = _block(groups, modes, threads)
    _backward(threads, _np(a), _np(x), _np(start), _np(g), reverse, _np(out), *scratch, groups, block, _TILE)
    first = -1 if reverse else 0
    dx0 = None if x0 is None else a[:, first].conj() * out[:, first]
    if not need_a:
        return None, dx0
    if constant:
        re, im = wide.unbind(1)
        da = (torch.complex(re, im) if x.is_complex() else re)[:, None]
    else:
        da = rows
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


# Loops over modes run over unsigned integers and index whole arrays: of a signed `low + p` numba checks the sign, which
# keeps the loop scalar, and taking a row out as an array of its own costs more than the arithmetic on a short row.


@_Kernel
def _forward(a, b, x0, reverse, out, block):
    batch, length, modes = b.shape
    blocks = -(-modes // block)
    for task in prange(batch * blocks):
        i = task // blocks
        low = np.uint64((task % blocks) * block)
        high = min(np.uint64(modes), low + np.uint64(block))
        ia = i if a.shape[0] > 1 else 0
        state = x0[i].copy()
        for j in range(length):
            k = length - 1 - j if reverse else j
            ka = k if a.shape[1] > 1 else 0
            # Two loops: `b` and `out` may be the same memory, and then one loop would not vectorise.
            for p in range(low, high):
                state[p] = a[ia, ka, p] * state[p] + b[i, k, p]
            for p in range(low, high):
                out[i, k, p] = state[p]


def _adjoint_tile(a, x, x0, g, out, rows, states, gates, wide, at, span, block, reverse):
    """Steps `span` of the walk for the sample, gate row and group `at`, modes `block`; see `_backward`."""


# Once for complex and once for real numbers. The complex one works on separate real and imaginary parts: of the same
# loops over complex numbers the compiler leaves a part scalar, which makes the adjoint 1.5 to 2 times slower. The work
# arrays are allocated here so that the compiler knows them apart from everything else.
@overload(_adjoint_tile)
def _(a, x, x0, g, out, rows, states, gates, wide, at, span, block, reverse):
    def complex_(a, x, x0, g, out, rows, states, gates, wide, at, span, block, reverse):
        i, ia, group, first = at
        low, high = block
        length, constant = x.shape[1], a.shape[1] == 1
        gate_re, gate_im = gates[ia, 0].copy(), gates[ia, 1].copy()
        re, im = states[i, 0].copy(), states[i, 1].copy()
        total_re, total_im = np.zeros_like(re), np.zeros_like(im)
        for j in range(span[0], span[1]):
            # The adjoint runs against the recurrence: `before` is the step that fed step k.
            k = j if reverse else length - 1 - j
            after, before = (k - 1, k + 1) if reverse else (k + 1, k - 1)
            if not constant and j > 0:
                for p in range(low, high):
                    gate_re[p] = a[ia, after, p].real
                    gate_im[p] = a[ia, after, p].imag
            previous = x[i, before] if j < length - 1 else x0[i, 0]
            for p in range(low, high):
                new_re = gate_re[p] * re[p] + gate_im[p] * im[p] + g[i, k, p].real
                new_im = gate_re[p] * im[p] - gate_im[p] * re[p] + g[i, k, p].imag
                re[p] = new_re
                im[p] = new_im
                total_re[p] += new_re * previous[p].real + new_im * previous[p].imag
                total_im[p] += new_im * previous[p].real - new_re * previous[p].imag
            for p in range(low, high):
                out[i, k, p] = complex(re[p], im[p])
            if rows.shape[0] > 0:
                if first:
                    for p in range(low, high):
                        rows[group, k, p] = complex(total_re[p], total_im[p])
                else:
                    for p in range(low, high):
                        rows[group, k, p] += complex(total_re[p], total_im[p])
                total_re[:] = 0
                total_im[:] = 0
        for p in range(low, high):
            states[i, 0, p] = re[p]
            states[i, 1, p] = im[p]
            if wide.shape[0] > 0:
                wide[group, 0, p] += total_re[p]
                wide[group, 1, p] += total_im[p]

    def real(a, x, x0, g, out, rows, states, gates, wide, at, span, block, reverse):
        i, ia, group, first = at
        low, high = block
        length, constant = x.shape[1], a.shape[1] == 1
        gate, state = gates[ia, 0].copy(), states[i, 0].copy()
        total = np.zeros_like(state)
        for j in range(span[0], span[1]):
            k = j if reverse else length - 1 - j
            after, before = (k - 1, k + 1) if reverse else (k + 1, k - 1)
            if not constant and j > 0:
                for p in range(low, high):
                    gate[p] = a[ia, after, p]
            previous = x[i, before] if j < length - 1 else x0[i, 0]
            for p in range(low, high):
                new = gate[p] * state[p] + g[i, k, p]
                state[p] = new
                total[p] += new * previous[p]
            for p in range(low, high):
                out[i, k, p] = state[p]
            if rows.shape[0] > 0:
                if first:
                    for p in range(low, high):
                        rows[group, k, p] = total[p]
                else:
                    for p in range(low, high):
                        rows[group, k, p] += total[p]
                total[:] = 0
        for p in range(low, high):
            states[i, 0, p] = state[p]
            if wide.shape[0] > 0:
                wide[group, 0, p] += total[p]

    return complex_ if isinstance(x.dtype, types.Complex) else real


@_Kernel
def _backward(a, x, x0, g, reverse, out, states, gates, wide, rows, groups, block, tile):
    """states (B, 2, P): zeros, re and im apart; gates (B or 1, 2, P): a constant gate; wide (groups or 0, 2, P): zeros,
    its gradient in double precision; rows (groups or 0, L, P): the gradient of a gate that varies; x0 (B, 1, P)."""
    batch, length, modes = x.shape
    blocks = -(-modes // block)
    for task in prange(groups * blocks):
        group = task // blocks
        low = np.uint64((task % blocks) * block)
        high = min(np.uint64(modes), low + np.uint64(block))
        first = group * batch // groups
        for start in range(0, length, tile):
            for i in range(first, (group + 1) * batch // groups):
                at = (i, i if a.shape[0] > 1 else 0, group, i == first)
                span = (start, min(length, start + tile))
                _adjoint_tile(a, x, x0, g, out, rows, states, gates, wide, at, span, (low, high), reverse)
