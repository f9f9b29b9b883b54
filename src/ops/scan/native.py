"""Backend `native`: one pass over memory on the CPU, compiled by numba at the first call and cached on disk.

The forward reads b and writes x. The backward reads g and x and writes the gradient of b; it accumulates the gradient
of a constant `a` in the same pass, in `a`'s dtype within a tile of steps and in double precision across tiles. The
states of a few modes stay in registers over a tile (`runtime.vectors`); a tile's steps are walked for one vector of
modes after another, so that the data in use fits the second-level cache. Results are prefetched some steps ahead, or
every store would wait for its cache line; inputs of the backward are prefetched one tile ahead. Arrays larger than the
cache are processed at memory bandwidth.
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

# Steps in a tile, and how many steps ahead the memory of a result is prefetched.
_TILE = 64
_AHEAD = 16
# Modes in a vector: 16 complex64 are two cache lines, as many as the registers hold. Remaining modes are processed four
# at a time, then one by one.
_LANES = 16
# At most this many threads each keep a partial sum of a shared gate gradient (L, P); further ones divide the modes.
_MOST_GROUPS = 8


def forward(
    a: Tensor,
    b: Tensor,
    x0: Tensor | None,
    reverse: bool,
    out: Tensor,
    column: int = 0,
    boundaries: Tensor | None = None,
) -> None:
    """Write the states to `out` (which may be `b`); shapes as in `custom_op`.

    column: first mode of `out` to write; `out` may have more modes than `b`.
    boundaries: (S + 1,), begin and end of the sequences packed into the only sample; x0 is then (S, P).
    """
    modes, spans = b.shape[2], _spans(b, boundaries)
    values = _np(b)
    states = np.zeros((len(spans), 1, modes), values.dtype) if x0 is None else _np(x0)[:, None].copy()
    threads = threads_for(b)
    block = _block(len(spans), modes, threads)
    _forward(threads, _np(a), values, states, spans, reverse, _np(out), column, block, _TILE)


def backward(
    a: Tensor,
    x: Tensor,
    x0: Tensor | None,
    g: Tensor,
    reverse: bool,
    out: Tensor,
    need_a: bool,
    column: int = 0,
    boundaries: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """Write the gradient of b to `out` (which may be `g`); return the gradients of a (or None) and of x0 (or None).

    column: first mode of x, g and out to use; they may have more modes than `a`.
    boundaries: as for `forward`.
    """
    length, modes, spans = x.shape[1], a.shape[2], _spans(x, boundaries)
    constant, threads, packed = a.shape[1] == 1, threads_for(x), boundaries is not None
    # A task walks a group of samples tile by tile and is the only one to add to the gate gradients that they share.
    # Packed sequences share no row of the gate gradient.
    shared = a.shape[0] == 1 and not constant and not packed
    groups = min(len(spans), threads, _MOST_GROUPS) if shared else len(spans)
    values = _np(x)
    states = np.zeros((len(spans), 1, modes), values.dtype)
    totals = np.empty_like(states)
    wide = np.zeros((groups if need_a and constant else 0, modes), np.result_type(values, np.float64))
    rows = x.new_empty((1 if packed else groups) if need_a and not constant else 0, length, modes)
    start = np.zeros_like(states) if x0 is None else _np(x0)[:, None]
    scratch = (states, wide, totals, _np(rows))
    block = _block(groups, modes, threads)
    arrays = _np(a), values, start, _np(g), spans
    _backward(threads, *arrays, reverse, _np(out), *scratch, column, packed, groups, block, _TILE)
    dx0 = None
    if x0 is not None:
        mine = out[..., column : column + modes]
        dx0 = _at_starts(a, spans, reverse).conj() * _at_starts(mine, spans, reverse)
    if not need_a:
        return None, dx0
    da = torch.from_numpy(wide)[:, None] if constant else rows
    if a.shape[0] == 1 and len(da) != 1:
        da = da.sum(0, keepdim=True)
    return da.to(x.dtype).reshape(a.shape), dx0


def _spans(b: Tensor, boundaries: Tensor | None) -> np.ndarray:
    """(S, 3) int64: sample, begin and end of every sequence."""
    spans = np.empty((len(b) if boundaries is None else len(boundaries) - 1, 3), np.int64)
    if boundaries is None:
        spans[:, 0], spans[:, 1], spans[:, 2] = np.arange(len(b)), 0, b.shape[1]
    else:
        ends = boundaries.numpy()
        spans[:, 0], spans[:, 1], spans[:, 2] = 0, ends[:-1], ends[1:]
    return spans


def _at_starts(t: Tensor, spans: np.ndarray, reverse: bool) -> Tensor:
    """Rows (S, P) of t (B or 1, L or 1, P) where the walk along each sequence begins."""
    sample, begin, end = torch.from_numpy(spans).unbind(1)
    position = end - 1 if reverse else begin
    return t[sample if t.shape[0] > 1 else 0 * sample, position if t.shape[1] > 1 else 0 * position]


def _np(t: Tensor) -> np.ndarray:
    return t.detach().numpy()


def _block(rows: int, modes: int, threads: int) -> int:
    """Modes per task: split until every thread has the same work, but into no fewer than one vector of modes."""
    blocks = 1
    while rows * blocks < 4 * threads and (rows * blocks) % threads and modes >= 2 * blocks * _LANES:
        blocks += 1
    return max(1, -(-modes // blocks))


@Kernel
def _forward(a, b, states, spans, reverse, out, column, block, tile):
    """states (S, 1, P): x0 at first, then the current state of each walk."""
    modes = b.shape[2]
    blocks = -(-modes // block)
    for task in prange(len(spans) * blocks):
        s = task // blocks
        low = (task % blocks) * block
        high = min(modes, low + block)
        i, begin, end = spans[s, 0], spans[s, 1], spans[s, 2]
        at = (s, i, i if a.shape[0] > 1 else 0, end - 1 if reverse else begin)
        for start in range(0, end - begin, tile):
            stop = min(end - begin, start + tile)
            p = _forward_tile(_LANES, a, b, states, out, column, at, low, high, start, stop, reverse)
            p = _forward_tile(4, a, b, states, out, column, at, p, high, start, stop, reverse)
            _forward_tile(1, a, b, states, out, column, at, p, high, start, stop, reverse)


def _forward_tile(lanes, a, b, states, out, column, at, low, high, start, stop, reverse):
    """Walk steps start .. stop for modes low .. high, `lanes` at a time; return the first mode not processed.

    at: the sequence, its sample, its row of gates, the position of its first step.
    """


@overload(_forward_tile, prefer_literal=True)
def _(lanes, a, b, states, out, column, at, low, high, start, stop, reverse):
    n = lanes.literal_value

    def tile(lanes, a, b, states, out, column, at, low, high, start, stop, reverse):
        s, i, ia, first = at
        varies = a.shape[1] > 1
        direction = -1 if reverse else 1
        p = low
        while p + n <= high:
            gate, state = load(a, ia, 0, p, n), load(states, s, 0, p, n)
            for j in range(start, stop):
                k = first + direction * j
                prefetch_to_write(out, i, k + direction * _AHEAD, p + column, n)
                if varies:
                    gate = load(a, ia, k, p, n)
                state = multiply_add(gate, state, load(b, i, k, p, n))
                store(out, i, k, p + column, state)
            store(states, s, 0, p, state)
            p += n
        return p

    return tile


@Kernel
def _backward(a, x, x0, g, spans, reverse, out, states, wide, totals, rows, column, packed, groups, block, tile):
    """states (S, 1, P): zeros at first; wide (groups or 0, P): zeros at first, gradient of a constant gate in double
    precision; totals (S, 1, P): its share of one tile; rows (groups, 1 if packed, or 0; L, P): gradient of a varying
    gate; x0 (S, 1, P)."""
    count, modes = len(spans), a.shape[2]
    blocks = -(-modes // block)
    for task in prange(groups * blocks):
        # Start with the last samples: the forward wrote them last, so they are still in the cache.
        group = groups - 1 - task // blocks
        low = (task % blocks) * block
        high = min(modes, low + block)
        first, last = group * count // groups, (group + 1) * count // groups
        longest = 0
        for s in range(first, last):
            longest = max(longest, spans[s, 2] - spans[s, 1])
        for start in range(0, longest, tile):
            for s in range(first, last):
                i, begin, end = spans[s, 0], spans[s, 1], spans[s, 2]
                if start >= end - begin:
                    continue
                at = (s, i, i if a.shape[0] > 1 else 0, group, 0 if packed else group, packed or s == first, column)
                span = (start, min(end - begin, start + tile), begin, end)
                p = _adjoint_tile(_LANES, a, x, x0, g, out, rows, states, wide, totals, at, low, high, span, reverse)
                p = _adjoint_tile(4, a, x, x0, g, out, rows, states, wide, totals, at, p, high, span, reverse)
                _adjoint_tile(1, a, x, x0, g, out, rows, states, wide, totals, at, p, high, span, reverse)


def _adjoint_tile(lanes, a, x, x0, g, out, rows, states, wide, totals, at, low, high, span, reverse):
    """As `_forward_tile`, for the adjoint, which walks against the recurrence.

    at: the sequence, its sample, its row of gates, its group, its row of gate gradients, whether it is the first to
    write that row, column. span: start and stop step, and the begin and end of the sequence.
    """


@overload(_adjoint_tile, prefer_literal=True)
def _(lanes, a, x, x0, g, out, rows, states, wide, totals, at, low, high, span, reverse):
    n = lanes.literal_value

    def tile(lanes, a, x, x0, g, out, rows, states, wide, totals, at, low, high, span, reverse):
        s, i, ia, group, row, first, column = at
        start, stop, begin, end = span
        length, varies = end - begin, a.shape[1] > 1
        last, direction = (begin, 1) if reverse else (end - 1, -1)
        sums, each = wide.shape[0] > 0, rows.shape[0] > 0
        p = low
        while p + n <= high:
            gate, state = load(a, ia, last if varies else 0, p, n), load(states, s, 0, p, n)
            like, crossed = zeros_like(state), zeros_like(state)
            for j in range(start, stop):
                # The adjoint runs against the recurrence: `before` is the step that fed step k.
                k = last + direction * j
                before = k + direction
                prefetch_to_write(out, i, k + direction * _AHEAD, p + column, n)
                prefetch_to_read(g, i, k + direction * _TILE, p + column, n)
                if sums or each:
                    prefetch_to_read(x, i, before + direction * _TILE, p + column, n)
                if each and first:
                    prefetch_to_write(rows, row, k + direction * _AHEAD, p, n)
                if varies and j > 0:
                    gate = load(a, ia, k - direction, p, n)
                state = conj_multiply_add(gate, state, load(g, i, k, p + column, n))
                store(out, i, k, p + column, state)
                if sums or each:
                    previous = load(x, i, before, p + column, n) if j < length - 1 else load(x0, s, 0, p, n)
                    if each:
                        total = zeros_like(state) if first else load(rows, row, k, p, n)
                        store(rows, row, k, p, conj_multiply_add(previous, state, total))
                    else:
                        like = lanewise_multiply_add(previous, state, like)
                        crossed = lanewise_multiply_add(previous, parts_swapped(state), crossed)
            store(states, s, 0, p, state)
            if sums:
                store(totals, group, 0, p, conj_products(like, crossed))
                for q in range(p, p + n):
                    wide[group, q] += totals[group, 0, q]
            p += n
        return p

    return tile
