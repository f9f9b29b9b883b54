"""Backend `native`: one pass over memory on the CPU, compiled by numba at the first call and cached on disk.

Traffic of the forward: b read, x written. Of the backward: g and x read, the gradient of b written; the gradient of a
constant `a` is accumulated on the way, in `a`'s dtype over a tile of steps and in double precision across tiles. The
states of a block of modes stay in registers over a tile (`runtime.vectors`); tiles of time, walked block by block, keep
what is read and written at a time within the second cache. The memory of a result is asked for some steps ahead, or
every store would wait for it; what the backward reads, a tile ahead. Arrays beyond the cache move at the speed of
memory.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from numba.extending import overload
from torch import Tensor

from ..runtime.kernel import Kernel, threads_for
from ..runtime.vectors import (
    conj_multiply_add,
    conj_products,
    lanewise_multiply_add,
    load,
    multiply_add,
    parts_swapped,
    prefetch_to_read,
    prefetch_to_write,
    store,
    zeros_like,
)

# Steps of a tile of time, and how many steps ahead the memory of a result is asked for.
_TILE = 64
_AHEAD = 16
# Modes in a vector: 16 complex64 are two cache lines, and as much as the registers hold. What is left of the modes goes
# in fours, then one by one.
_LANES = 16
# Threads that keep a partial sum of a gate gradient of L steps of their own; more divide the modes.
_MOST_GROUPS = 8


def forward(a: Tensor, b: Tensor, x0: Tensor | None, reverse: bool, out: Tensor, column: int = 0) -> None:
    """Write the states to `out` (which may be `b`); shapes as in `custom_op`.

    column: `out` may have more modes than `b`; the states go to its modes from this one.
    """
    batch, _, modes = b.shape
    values = _np(b)
    states = np.zeros((batch, 1, modes), values.dtype) if x0 is None else _np(x0)[:, None].copy()
    threads = threads_for(b)
    _forward(threads, _np(a), values, states, reverse, _np(out), column, _block(batch, modes, threads), _TILE)


def backward(
    a: Tensor,
    x: Tensor,
    x0: Tensor | None,
    g: Tensor,
    reverse: bool,
    out: Tensor,
    need_a: bool,
    column: int = 0,
) -> tuple[Tensor | None, Tensor | None]:
    """Write the gradient of b to `out` (which may be `g`); return the gradients of a (or None) and of x0 (or None).

    column: x, g and out may have more modes than `a`; those from this one on are meant.
    """
    (batch, length, _), modes = x.shape, a.shape[2]
    constant, threads = a.shape[1] == 1, threads_for(x)
    # A task walks a group of samples tile by tile, so that it alone adds to the gate gradients they share.
    groups = min(batch, threads, _MOST_GROUPS) if a.shape[0] == 1 and not constant else batch
    values = _np(x)
    states = np.zeros((batch, 1, modes), values.dtype)
    totals = np.empty_like(states)
    wide = np.zeros((groups if need_a and constant else 0, modes), np.result_type(values, np.float64))
    rows = x.new_empty(groups if need_a and not constant else 0, length, modes)
    start = np.zeros_like(states) if x0 is None else _np(x0)[:, None]
    scratch = (states, wide, totals, _np(rows))
    block = _block(groups, modes, threads)
    _backward(threads, _np(a), values, start, _np(g), reverse, _np(out), *scratch, column, groups, block, _TILE)
    first = -1 if reverse else 0
    dx0 = None if x0 is None else a[:, first].conj() * out[:, first, column : column + modes]
    if not need_a:
        return None, dx0
    da = torch.from_numpy(wide)[:, None] if constant else rows
    if a.shape[0] == 1 and groups != 1:
        da = da.sum(0, keepdim=True)
    return da.to(x.dtype).reshape(a.shape), dx0


def _np(t: Tensor) -> np.ndarray:
    return t.detach().numpy()


def _block(rows: int, modes: int, threads: int) -> int:
    """Modes per task: as many as leave every thread the same work, but no fewer than a vector of them."""
    blocks = 1
    while rows * blocks < 4 * threads and (rows * blocks) % threads and modes >= 2 * blocks * _LANES:
        blocks += 1
    return max(1, -(-modes // blocks))


@Kernel
def _forward(a, b, states, reverse, out, column, block, tile):
    """states (B, 1, P): x0 at first, then where the walk is."""
    batch, length, modes = b.shape
    blocks = -(-modes // block)
    for task in prange(batch * blocks):
        i = task // blocks
        low = (task % blocks) * block
        high = min(modes, low + block)
        ia = i if a.shape[0] > 1 else 0
        for start in range(0, length, tile):
            stop = min(length, start + tile)
            p = _forward_tile(_LANES, a, b, states, out, column, i, ia, low, high, start, stop, reverse)
            p = _forward_tile(4, a, b, states, out, column, i, ia, p, high, start, stop, reverse)
            _forward_tile(1, a, b, states, out, column, i, ia, p, high, start, stop, reverse)


def _forward_tile(lanes, a, b, states, out, column, i, ia, low, high, start, stop, reverse):
    """Steps start .. stop of the walk for sample i and modes from low, `lanes` at a time; the first mode left over."""


@overload(_forward_tile, prefer_literal=True)
def _(lanes, a, b, states, out, column, i, ia, low, high, start, stop, reverse):
    n = lanes.literal_value

    def tile(lanes, a, b, states, out, column, i, ia, low, high, start, stop, reverse):
        varies = a.shape[1] > 1
        first, direction = (b.shape[1] - 1, -1) if reverse else (0, 1)
        p = low
        while p + n <= high:
            gate, state = load(a, ia, 0, p, n), load(states, i, 0, p, n)
            for j in range(start, stop):
                k = first + direction * j
                prefetch_to_write(out, i, k + direction * _AHEAD, p + column, n)
                if varies:
                    gate = load(a, ia, k, p, n)
                state = multiply_add(gate, state, load(b, i, k, p, n))
                store(out, i, k, p + column, state)
            store(states, i, 0, p, state)
            p += n
        return p

    return tile


@Kernel
def _backward(a, x, x0, g, reverse, out, states, wide, totals, rows, column, groups, block, tile):
    """states (B, 1, P): zeros; wide (groups or 0, P): zeros, gradient of a constant gate in double precision, totals
    (B, 1, P) that of a tile; rows (groups or 0, L, P): the gradient of a gate that varies; x0 (B, 1, P)."""
    batch, length, modes = x.shape[0], x.shape[1], a.shape[2]
    blocks = -(-modes // block)
    for task in prange(groups * blocks):
        # The forward wrote the last samples last: they are still in the cache.
        group = groups - 1 - task // blocks
        low = (task % blocks) * block
        high = min(modes, low + block)
        first = group * batch // groups
        for start in range(0, length, tile):
            for i in range(first, (group + 1) * batch // groups):
                at = (i, i if a.shape[0] > 1 else 0, group, i == first, column)
                span = (start, min(length, start + tile))
                p = _adjoint_tile(_LANES, a, x, x0, g, out, rows, states, wide, totals, at, low, high, span, reverse)
                p = _adjoint_tile(4, a, x, x0, g, out, rows, states, wide, totals, at, p, high, span, reverse)
                _adjoint_tile(1, a, x, x0, g, out, rows, states, wide, totals, at, p, high, span, reverse)


def _adjoint_tile(lanes, a, x, x0, g, out, rows, states, wide, totals, at, low, high, span, reverse):
    """Steps `span` of the walk for the sample, gate row, group and column `at`; otherwise as `_forward_tile`."""


@overload(_adjoint_tile, prefer_literal=True)
def _(lanes, a, x, x0, g, out, rows, states, wide, totals, at, low, high, span, reverse):
    n = lanes.literal_value

    def tile(lanes, a, x, x0, g, out, rows, states, wide, totals, at, low, high, span, reverse):
        i, ia, group, first, column = at
        length, varies = x.shape[1], a.shape[1] > 1
        last, direction = (0, 1) if reverse else (length - 1, -1)
        sums, each = wide.shape[0] > 0, rows.shape[0] > 0
        p = low
        while p + n <= high:
            gate, state = load(a, ia, 0, p, n), load(states, i, 0, p, n)
            like, crossed = zeros_like(state), zeros_like(state)
            for j in range(span[0], span[1]):
                # The adjoint runs against the recurrence: `before` is the step that fed step k.
                k = last + direction * j
                before = k + direction
                prefetch_to_write(out, i, k + direction * _AHEAD, p + column, n)
                prefetch_to_read(g, i, k + direction * _TILE, p + column, n)
                if sums or each:
                    prefetch_to_read(x, i, before + direction * _TILE, p + column, n)
                if each and first:
                    prefetch_to_write(rows, group, k + direction * _AHEAD, p, n)
                if varies and j > 0:
                    gate = load(a, ia, k - direction, p, n)
                state = conj_multiply_add(gate, state, load(g, i, k, p + column, n))
                store(out, i, k, p + column, state)
                if sums or each:
                    previous = load(x, i, before, p + column, n) if j < length - 1 else load(x0, i, 0, p, n)
                    if each:
                        total = zeros_like(state) if first else load(rows, group, k, p, n)
                        store(rows, group, k, p, conj_multiply_add(previous, state, total))
                    else:
                        like = lanewise_multiply_add(previous, state, like)
                        crossed = lanewise_multiply_add(previous, parts_swapped(state), crossed)
            store(states, i, 0, p, state)
            if sums:
                store(totals, group, 0, p, conj_products(like, crossed))
                for q in range(p, p + n):
                    wide[group, q] += totals[group, 0, q]
            p += n
        return p

    return tile
