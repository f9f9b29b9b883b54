"""The chunked scan in one pass over memory: every program keeps its chunk in registers while the carry reaches it.

A program holds `BLOCK_R * BLOCK_S` steps of a block of modes as a tile (BLOCK_R, BLOCK_S, modes), step s * BLOCK_R + r
at [r, s]: with BLOCK_S warps, a warp holds BLOCK_R consecutive steps and a thread whole columns of them, so the scans
along r are serial arithmetic in registers and only BLOCK_S end states cross warps. In order:

1. the end state of the chunk from rest goes to `ends`, and a bit of the group's word says so (release);
2. the program waits for the bits of its predecessors in its group of GROUP chunks, and for the last bit of the group
   before, which says that the true state at that group's end is in `leads` (acquire);
3. the carry is combined from these in a fixed order, so the result does not depend on who was early;
4. the tile is scanned again, now from the carry, and written.

Programs wait only for programs of lower index, which a GPU starts first: a running program's predecessors run or have
run, so the wait ends. Words start at zero on every call.

Bytes per complex64 element: forward 16 (3.7 ps at 4.3 TB/s), adjoint of a constant gate 24 (5.6 ps), of a full gate 40
(9.3 ps), plus 1/(2 BLOCK_S BLOCK_R) of that for each end state read.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_kernels import combine, load_row, store_row

# The bit beside those of a group's chunks: the state at the group's end is known.
LEAD_BIT = tl.constexpr(1 << 30)


@triton.jit
def load_cube(base, steps, columns, step_mask, column_mask, width, COMPLEX: tl.constexpr):
    """(R, S, modes) as (re, im) from row offsets `steps` (R, S); masked entries are 0."""
    values = tl.load(
        base + steps[:, :, None] * width + columns[None, None, :],
        mask=step_mask[:, :, None] & column_mask[None, None, :],
        other=0.0,
    )
    if COMPLEX:
        shape: tl.constexpr = (steps.shape[0], steps.shape[1], columns.shape[0] // 2, 2)
        re, im = tl.split(tl.reshape(values, shape))
    else:
        re, im = values, tl.zeros_like(values)
    return re, im


@triton.jit
def store_cube(base, re, im, steps, columns, step_mask, column_mask, width, COMPLEX: tl.constexpr):
    if COMPLEX:
        values = tl.reshape(tl.join(re, im), (steps.shape[0], steps.shape[1], columns.shape[0]))
    else:
        values = re
    tl.store(
        base + steps[:, :, None] * width + columns[None, None, :],
        values,
        mask=step_mask[:, :, None] & column_mask[None, None, :],
    )


@triton.jit
def pick(values, chosen):
    """Sum over the first axis of the entries where `chosen`, which is one of them."""
    # -0.0 is the exact neutral element of addition: filled with it, a sum inside a thread folds away at compile time.
    return tl.sum(tl.where(chosen, values, tl.zeros_like(values) * -1.0), axis=0)


@triton.jit
def power(re, im, log_exponent: tl.constexpr):
    """z ** (2 ** log_exponent) by squaring, which doubles the relative error each time: in double precision."""
    wide_re, wide_im = re.to(tl.float64), im.to(tl.float64)
    for _ in tl.static_range(log_exponent):
        old = wide_re
        wide_re = old * old - wide_im * wide_im
        wide_im = 2 * old * wide_im
    return wide_re.to(re.dtype), wide_im.to(re.dtype)


@triton.jit
def times(a_re, a_im, b_re, b_im):
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re


@triton.jit(do_not_specialize=["length", "chunks"])
def onepass_kernel(
    a,
    b,
    x0,
    out,
    states,
    da,
    ends,
    gates,
    leads,
    words,
    length,
    width,
    chunks,
    lanes_total,
    a_sample,
    a_step,
    COMPLEX: tl.constexpr,
    DESCEND: tl.constexpr,
    ADJOINT: tl.constexpr,
    CONSTANT: tl.constexpr,
    HAS_X0: tl.constexpr,
    GATE_GRADIENT: tl.constexpr,
    LOG_R: tl.constexpr,
    LOG_S: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One chunk of one lane (a sample's block of modes); see `scan_kernel` for a, b, x0, out, states, da.

    ends, gates: (lanes, chunks, BLOCK_W), end state from rest and gate product of each chunk; leads: (lanes, groups,
    BLOCK_W), state at each group's end; words: (lanes, groups) int32, zero at the start.
    """
    BLOCK_R: tl.constexpr = 1 << LOG_R
    BLOCK_S: tl.constexpr = 1 << LOG_S
    ROWS: tl.constexpr = BLOCK_R * BLOCK_S
    half: tl.constexpr = BLOCK_W // 2 if COMPLEX else BLOCK_W
    toward: tl.constexpr = -1 if DESCEND else 1
    # Chunk by chunk over all lanes: what a program waits for has a lower index. 64-bit before it multiplies anything.
    pid = tl.program_id(0).to(tl.int64)
    lane = pid % lanes_total
    chunk = pid // lanes_total
    blocks = tl.cdiv(width, BLOCK_W)
    sample = lane // blocks
    column0 = (lane % blocks) * BLOCK_W
    columns = tl.arange(0, BLOCK_W)
    column_mask = columns < width - column0
    r = tl.arange(0, BLOCK_R)
    s = tl.arange(0, BLOCK_S)
    index = s[None, :] * BLOCK_R + r[:, None]
    steps = index * toward
    j0 = chunk * ROWS
    j = j0 + index
    inside = j < length
    position = length - 1 - j0 if DESCEND else j0
    offset = sample * length * width + column0
    dtype = b.dtype.element_ty

    value_re, value_im = load_cube(b + offset + position * width, steps, columns, inside, column_mask, width, COMPLEX)
    a_column = a + sample * a_sample + column0
    if CONSTANT:
        gate_re, gate_im = load_row(a_column, columns, column_mask, COMPLEX)
        if ADJOINT:
            gate_im = -gate_im
        a_re = tl.broadcast_to(gate_re[None, None, :], (BLOCK_R, BLOCK_S, half))
        a_im = tl.broadcast_to(gate_im[None, None, :], (BLOCK_R, BLOCK_S, half))
    else:
        shift: tl.constexpr = toward if ADJOINT else 0
        known = inside & (j > 0) if ADJOINT else inside
        a_re, a_im = load_cube(
            a_column + (position - shift) * a_step, steps, columns, known, column_mask, a_step, COMPLEX
        )
        if ADJOINT:
            a_im = -a_im

    # Each warp's end from rest, then the warps in order: `before` is the map from the chunk's start to warp s.
    run_re, run_im, x_re, x_im = tl.associative_scan((a_re, a_im, value_re, value_im), 0, combine)
    bottom = (r == BLOCK_R - 1)[:, None, None]
    end_re, end_im = pick(x_re, bottom), pick(x_im, bottom)
    if CONSTANT:
        once_re, once_im = power(gate_re, gate_im, LOG_R)
        product_re = tl.broadcast_to(once_re[None, :], (BLOCK_S, half))
        product_im = tl.broadcast_to(once_im[None, :], (BLOCK_S, half))
    else:
        product_re, product_im = pick(run_re, bottom), pick(run_im, bottom)
    all_re, all_im, to_re, to_im = tl.associative_scan((product_re, product_im, end_re, end_im), 0, combine)
    rear = (s == BLOCK_S - 1)[:, None]
    chunk_re, chunk_im = pick(to_re, rear), pick(to_im, rear)
    if CONSTANT:
        whole_re, whole_im = power(once_re, once_im, LOG_S)
    else:
        whole_re, whole_im = pick(all_re, rear), pick(all_im, rear)
    source = tl.broadcast_to(tl.maximum(s - 1, 0)[:, None], (BLOCK_S, half))
    front = (s == 0)[:, None]
    before_re = tl.where(front, 1.0, tl.gather(all_re, source, 0))
    before_im = tl.where(front, 0.0, tl.gather(all_im, source, 0))
    rest_re = tl.where(front, 0.0, tl.gather(to_re, source, 0))
    rest_im = tl.where(front, 0.0, tl.gather(to_im, source, 0))

    # Publish, wait, combine.
    everywhere = columns < BLOCK_W
    slot = (lane * chunks + chunk) * BLOCK_W
    groups = (chunks + GROUP - 1) // GROUP
    group = chunk // GROUP
    rank = (chunk % GROUP).to(tl.int32)
    word = words + lane * groups + group
    store_row(ends + slot, chunk_re, chunk_im, columns, everywhere, COMPLEX)
    if not CONSTANT:
        store_row(gates + slot, whole_re, whole_im, columns, everywhere, COMPLEX)
    tl.debug_barrier()
    tl.atomic_or(word, 1 << rank, sem="release")
    state_re = tl.zeros((half,), dtype)
    state_im = tl.zeros((half,), dtype)
    if group > 0:
        while (tl.atomic_or(word - 1, 0, sem="acquire") & LEAD_BIT) == 0:
            pass
        state_re, state_im = load_row(leads + (lane * groups + group - 1) * BLOCK_W, columns, everywhere, COMPLEX)
    elif HAS_X0 and not ADJOINT:
        state_re, state_im = load_row(x0 + sample * width + column0, columns, column_mask, COMPLEX)
    if rank > 0:
        needed = (1 << rank) - 1
        while (tl.atomic_or(word, 0, sem="acquire") & needed) != needed:
            pass
        # Unrolled, so that the loads of all predecessors are in flight together.
        for i in tl.static_range(GROUP - 1):
            other = (lane * chunks + group * GROUP + i) * BLOCK_W
            earlier = (columns < BLOCK_W) & (i < rank)
            e_re, e_im = load_row(ends + other, columns, earlier, COMPLEX)
            if CONSTANT:
                g_re, g_im = tl.where(i < rank, whole_re, 1.0), tl.where(i < rank, whole_im, 0.0)
            else:
                g_re, g_im = load_row(gates + other, columns, earlier, COMPLEX)
                g_re = tl.where(i < rank, g_re, 1.0)
            t_re, t_im = times(g_re, g_im, state_re, state_im)
            state_re, state_im = t_re + e_re, t_im + e_im
    if rank == GROUP - 1:
        t_re, t_im = times(whole_re, whole_im, state_re, state_im)
        lead = leads + (lane * groups + group) * BLOCK_W
        store_row(lead, t_re + chunk_re, t_im + chunk_im, columns, everywhere, COMPLEX)
        tl.debug_barrier()
        tl.atomic_or(word, LEAD_BIT, sem="release")

    # The tile again, each warp from its own true start, which enters through its first row.
    s_re, s_im = times(before_re, before_im, state_re[None, :], state_im[None, :])
    s_re, s_im = (s_re + rest_re)[None, :, :], (s_im + rest_im)[None, :, :]
    top = (r == 0)[:, None, None]
    value_re = tl.where(top, value_re + a_re * s_re - a_im * s_im, value_re)
    value_im = tl.where(top, value_im + a_re * s_im + a_im * s_re, value_im)
    run_re, run_im, x_re, x_im = tl.associative_scan((a_re, a_im, value_re, value_im), 0, combine)
    store_cube(out + offset + position * width, x_re, x_im, steps, columns, inside, column_mask, width, COMPLEX)
    if GATE_GRADIENT:
        fed = j + 1 < length
        prev_re, prev_im = load_cube(
            states + offset + (position + toward) * width, steps, columns, inside & fed, column_mask, width, COMPLEX
        )
        if HAS_X0:
            start_re, start_im = load_row(x0 + sample * width + column0, columns, column_mask, COMPLEX)
            prev_re = tl.where(fed[:, :, None], prev_re, start_re[None, None, :])
            prev_im = tl.where(fed[:, :, None], prev_im, start_im[None, None, :])
        da_re = x_re * prev_re + x_im * prev_im
        da_im = x_im * prev_re - x_re * prev_im
        if CONSTANT:
            sum_re = tl.sum(tl.sum(tl.where(inside[:, :, None], da_re, 0.0), axis=0), axis=0)
            sum_im = tl.sum(tl.sum(tl.where(inside[:, :, None], da_im, 0.0), axis=0), axis=0)
            store_row(da + (sample * chunks + chunk) * width + column0, sum_re, sum_im, columns, column_mask, COMPLEX)
        else:
            target = da + offset + position * width
            store_cube(target, da_re, da_im, steps, columns, inside, column_mask, width, COMPLEX)
