"""Vandermonde sums as Triton kernels. The only table of powers in memory is that of w^(2^k), log2(L) rows per feature.

A program owns one feature, one row of coefficients (or of a sequence) and a tile of BLOCK_Q x BLOCK_J positions,
l = BLOCK_J q + j. It forms w^j and w^(BLOCK_J q) from the binary digits of j and q, and combines the two by a matrix
product over the modes, with separate real and imaginary parts in the coefficients' own precision ("ieee": no tf32).

Accuracy: the rows w^(2^k) are squared in double precision and rounded once, so w^l carries at most 2 log2(l) roundings
of float32, and no phase of size l is ever rounded. Measured in the interpreter, w in complex128, |w| = 1, 1 - 1e-5 and
1 - 1e-3, L = 65,537: values within 4e-7 and gradients within 3e-7 of the largest, like the plain torch form. (A float32
phase of l log w, which is of size 1e5 there, is off by up to 1e-2.)

Nothing is added across programs, so the same inputs give the same bits.

Not yet run on a GPU: tested in Triton's interpreter and compiled ahead of time (tests/ops).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Modes summed at a time. A product without tensor cores is unrolled over the summed axis and keeps it in registers;
# more than 16, the smallest size that Triton accepts, would spill.
_SUMMED = 16
_MOST = 64
_SQUARED_AT_ONCE = 128


@triton.jit
def squares_kernel(w, table, modes, bits, plane, BLOCK_N: tl.constexpr):
    """table[part, h, k, n] = w[h, n]^(2^k), part 0 real and 1 imaginary (`plane` apart); w (H, N, 2) in double."""
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(modes, BLOCK_N)
    feature = pid // blocks
    n = (pid % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < modes
    re = tl.load(w + (feature * modes + n) * 2, mask=inside, other=0.0)
    im = tl.load(w + (feature * modes + n) * 2 + 1, mask=inside, other=0.0)
    for k in range(bits):
        row = table + (feature * bits + k) * modes + n
        tl.store(row, re.to(table.dtype.element_ty), mask=inside)
        tl.store(row + plane, im.to(table.dtype.element_ty), mask=inside)
        old = re
        re = old * old - im * im
        im = 2 * old * im


@triton.jit
def powers(row, index, n, inside, modes, bits, plane):
    """w^index as (re, im), each (index, n); row k of the table from `row` on is w^(2^k)."""
    re = tl.full((index.shape[0], n.shape[0]), 1.0, row.dtype.element_ty)
    im = tl.zeros_like(re)
    for k in range(bits):
        p_re = tl.load(row + k * modes + n, mask=inside, other=0.0)[None, :]
        p_im = tl.load(row + plane + k * modes + n, mask=inside, other=0.0)[None, :]
        taken = ((index >> k) & 1 == 1)[:, None]
        next_re = re * p_re - im * p_im
        im = tl.where(taken, re * p_im + im * p_re, im)
        re = tl.where(taken, next_re, re)
    return re, im


@triton.jit
def expand_kernel(
    coefficient,
    table,
    out,
    modes,
    length,
    rows,
    bits,
    tiles,
    plane,
    LOG_J: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out[h, r, l] = 2 Re sum_n coefficient[h, r, n] w[h, n]^l;  coefficient (H, R, N, 2), out (H, R, L)."""
    BLOCK_J: tl.constexpr = 1 << LOG_J
    pid = tl.program_id(0).to(tl.int64)
    line = pid // tiles
    first = table + (line // rows) * bits * modes
    q = (pid % tiles).to(tl.int32) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    j = tl.arange(0, BLOCK_J)
    total = tl.zeros((BLOCK_Q, BLOCK_J), out.dtype.element_ty)
    for start in range(0, modes, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        inside = n < modes
        at = coefficient + (line * modes + n) * 2
        c_re = tl.load(at, mask=inside, other=0.0)[None, :]
        c_im = tl.load(at + 1, mask=inside, other=0.0)[None, :]
        outer_re, outer_im = powers(first + LOG_J * modes, q, n, inside, modes, bits - LOG_J, plane)
        inner_re, inner_im = powers(first, j, n, inside, modes, LOG_J, plane)
        left_re = c_re * outer_re - c_im * outer_im
        left_im = -c_re * outer_im - c_im * outer_re
        total = tl.dot(left_re, tl.trans(inner_re), total, input_precision="ieee", out_dtype=total.dtype)
        total = tl.dot(left_im, tl.trans(inner_im), total, input_precision="ieee", out_dtype=total.dtype)
    position = q[:, None] * BLOCK_J + j[None, :]
    tl.store(out + line * length + position, 2 * total, mask=position < length)


@triton.jit
def collapse_kernel(
    sequence,
    table,
    out,
    modes,
    length,
    rows,
    bits,
    tiles,
    plane,
    NEWEST_LAST: tl.constexpr,
    LOG_J: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out[h, r, t, n] = the part of sum_l sequence[h, r, l] w[h, n]^l from tile t;  sequence (H, R, L), out complex."""
    BLOCK_J: tl.constexpr = 1 << LOG_J
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(modes, BLOCK_N)
    tile = (pid // blocks) % tiles
    line = pid // (blocks * tiles)
    first = table + (line // rows) * bits * modes
    n = (pid % blocks).to(tl.int32) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < modes
    q = tile.to(tl.int32) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    j = tl.arange(0, BLOCK_J)
    position = q[:, None] * BLOCK_J + j[None, :]
    source = length - 1 - position if NEWEST_LAST else position
    values = tl.load(sequence + line * length + source, mask=position < length, other=0.0)
    inner_re, inner_im = powers(first, j, n, inside, modes, LOG_J, plane)
    part_re = tl.dot(values, inner_re, input_precision="ieee", out_dtype=inner_re.dtype)
    part_im = tl.dot(values, inner_im, input_precision="ieee", out_dtype=inner_re.dtype)
    outer_re, outer_im = powers(first + LOG_J * modes, q, n, inside, modes, bits - LOG_J, plane)
    at = out + ((line * tiles + tile) * modes + n) * 2
    tl.store(at, tl.sum(part_re * outer_re - part_im * outer_im, axis=0), mask=inside)
    tl.store(at + 1, tl.sum(part_re * outer_im + part_im * outer_re, axis=0), mask=inside)


def tile(length: int, collapsing: bool) -> dict[str, int]:
    """Sizes of a tile for `length` positions: 2^LOG_J positions per row, BLOCK_Q rows, BLOCK_N modes at a time."""
    block_j = _SUMMED if collapsing else min(_MOST, max(_SUMMED, triton.next_power_of_2(length)))
    block_q = min(_MOST, max(_SUMMED, triton.next_power_of_2(triton.cdiv(length, block_j))))
    return {"LOG_J": block_j.bit_length() - 1, "BLOCK_Q": block_q, "BLOCK_N": _SUMMED}


def expand(coefficient: Tensor, w: Tensor, length: int) -> Tensor:
    """2 Re sum_n coefficient[h, r, n] w[h, n]^l: (H, R, N) complex and (H, N) complex to (H, R, length) real."""
    features, rows, modes = coefficient.shape
    out = torch.empty(features, rows, length, dtype=coefficient.dtype.to_real(), device=w.device)
    if out.numel() == 0:
        return out
    cut = tile(length, collapsing=False)
    tiles = _tiles(length, cut)
    table = _squares(w, length, cut, out.dtype)
    expand_kernel[(features * rows * tiles,)](
        _real(coefficient), table, out, modes, length, rows, table.shape[2], tiles, table[0].numel(), **cut
    )
    return out


def collapse(sequence: Tensor, w: Tensor, newest_last: bool) -> Tensor:
    """sum_l sequence[h, r, l] w[h, n]^l, or w^(L-1-l): (H, R, L) real and (H, N) complex to (H, R, N) complex."""
    features, rows, length = sequence.shape
    modes, cut = w.shape[1], tile(length, collapsing=True)
    tiles = _tiles(length, cut)
    parts = torch.empty(features, rows, tiles, modes, dtype=sequence.dtype.to_complex(), device=w.device)
    if parts.numel() == 0:
        return parts.sum(2)
    table = _squares(w, length, cut, sequence.dtype)
    programs = features * rows * tiles * triton.cdiv(modes, cut["BLOCK_N"])
    collapse_kernel[(programs,)](
        sequence.contiguous(), table, _real(parts), modes, length, rows, table.shape[2], tiles, table[0].numel(),
        NEWEST_LAST=newest_last, **cut,
    )  # fmt: skip
    return parts.sum(2)


def _tiles(length: int, cut: dict[str, int]) -> int:
    return triton.cdiv(length, cut["BLOCK_Q"] << cut["LOG_J"])


def _squares(w: Tensor, length: int, cut: dict[str, int], dtype: torch.dtype) -> Tensor:
    """(2, H, K, N): real and imaginary parts of w^(2^k), for every binary digit k of a position inside the tiles."""
    features, modes = w.shape
    bits = ((_tiles(length, cut) * cut["BLOCK_Q"] << cut["LOG_J"]) - 1).bit_length()
    table = torch.empty(2, features, bits, modes, dtype=dtype, device=w.device)
    squares_kernel[(features * triton.cdiv(modes, _SQUARED_AT_ONCE),)](
        _real(w.to(torch.complex128)), table, modes, bits, table[0].numel(), BLOCK_N=_SQUARED_AT_ONCE
    )
    return table


def _real(values: Tensor) -> Tensor:
    return torch.view_as_real(values.resolve_conj().contiguous())
