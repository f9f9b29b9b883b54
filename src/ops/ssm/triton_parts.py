"""Building blocks of the fused kernels in `triton_kernels`: loads, products and the recurrence of a block of chunks.

Rows are chunks (or features), given as offsets from a pointer; columns are modes or features. Everything is float32
once loaded. Complex tensors are stored as (re, im) pairs, or as two planes where a product reads them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..scan.triton_kernels import times


@triton.jit
def load_block(base, rows, columns, row_mask, column_mask):
    """Values at base + rows + columns, (rows, columns), in float32; masked entries are 0."""
    values = tl.load(base + rows[:, None] + columns[None, :], mask=row_mask[:, None] & column_mask[None, :], other=0.0)
    return values.to(tl.float32)


@triton.jit
def store_block(base, values, rows, columns, row_mask, column_mask):
    target = base + rows[:, None] + columns[None, :]
    tl.store(target, values.to(base.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


@triton.jit
def load_complex(base, rows, columns, row_mask, column_mask):
    """(re, im) of pairs at base + rows + 2 columns."""
    pairs = base + rows[:, None] + 2 * columns[None, :]
    mask = row_mask[:, None] & column_mask[None, :]
    return tl.load(pairs, mask=mask, other=0.0), tl.load(pairs + 1, mask=mask, other=0.0)


@triton.jit
def store_complex(base, re, im, rows, columns, row_mask, column_mask):
    pairs = base + rows[:, None] + 2 * columns[None, :]
    mask = row_mask[:, None] & column_mask[None, :]
    tl.store(pairs, re, mask=mask)
    tl.store(pairs + 1, im, mask=mask)


@triton.jit
def load_row(base, columns, mask):
    """(re, im) of one row of pairs, each (1, columns)."""
    pairs = base + 2 * columns[None, :]
    return tl.load(pairs, mask=mask[None, :], other=0.0), tl.load(pairs + 1, mask=mask[None, :], other=0.0)


@triton.jit
def load_gate(a, columns, mask, ADJOINT: tl.constexpr):
    re, im = load_row(a, columns, mask)
    if ADJOINT:
        im = -im
    return re, im


@triton.jit
def product(
    u, rows, known, features, weights, columns, mask, width,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(BLOCK_M, BLOCK_N): rows of u, `features` wide, times columns of weights (features, width)."""
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for f0 in range(0, features, BLOCK_K):
        f = f0 + tl.arange(0, BLOCK_K)
        values = load_block(u, rows, f, known, f < features)
        w = load_block(weights, f * width, columns, f < features, mask)
        total = tl.fma(tl.dot(values, w, input_precision=PRECISION), 1.0, total)
    return total


@triton.jit
def project(
    u, rows, known, features, weights, columns, mask, modes,
    BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`product` with both planes of weights (2, features, modes): re and im, each (BLOCK_M, BLOCK_P)."""
    re = tl.zeros((BLOCK_M, BLOCK_P), tl.float32)
    im = tl.zeros((BLOCK_M, BLOCK_P), tl.float32)
    for f0 in range(0, features, BLOCK_K):
        f = f0 + tl.arange(0, BLOCK_K)
        inside = f < features
        values = load_block(u, rows, f, known, inside)
        w_re = load_block(weights, f * modes, columns, inside, mask)
        w_im = load_block(weights + features * modes, f * modes, columns, inside, mask)
        re = tl.fma(tl.dot(values, w_re, input_precision=PRECISION), 1.0, re)
        im = tl.fma(tl.dot(values, w_im, input_precision=PRECISION), 1.0, im)
    return re, im


@triton.jit
def step(a_re, a_im, x_re, x_im, v_re, v_im):
    re, im = times(a_re, a_im, x_re, x_im)
    return re + v_re, im + v_im


@triton.jit
def add_kick(x_re, x_im, kick, now, columns, mask):
    """x with kick (modes) added to the rows where `now` is true."""
    re, im = load_row(kick, columns, mask)
    return x_re + tl.where(now[:, None], re, 0.0), x_im + tl.where(now[:, None], im, 0.0)


@triton.jit
def start_states(carries, x0, chunk, chunks, columns, mask, modes, ADJOINT: tl.constexpr, HAS_X0: tl.constexpr):
    """State before each chunk's first step: the carry (chunks, modes) of the chunk walked before, x0, or zero."""
    before = chunk + 1 if ADJOINT else chunk - 1
    known = (before >= 0) & (before < chunks)
    x_re, x_im = load_complex(carries, before * 2 * modes, columns, known, mask)
    if HAS_X0:
        first_re, first_im = load_row(x0, columns, mask)
        x_re += tl.where(chunk[:, None] == 0, first_re, 0.0)
        x_im += tl.where(chunk[:, None] == 0, first_im, 0.0)
    return x_re, x_im
