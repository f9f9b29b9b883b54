"""Triton kernels of the fused SSM with gates constant along L: input to output without the states in memory.

    x_j = a x_{j-1} + W_in^T u_j,   y_j = [Re x_j, Im x_j] W_out          (j counts the steps of the walk)

The walk is cut into chunks of `rows` steps. A program owns BLOCK_M chunks of one sample and advances all of them by one
step at a time: the rows of its matrix products are chunks, its state (BLOCK_M, modes) stays in registers, and the
recurrence is the plain loop, with the rounding of that loop and no exchange between threads.

1. `ends_kernel`: every chunk from rest, v = u W_in by `tl.dot`; only the state after its last step is written;
2. the ordinary scan runs over these ends, with gates a ** rows: the state at every chunk's border;
3. `outputs_kernel`: every chunk from its true start, y = x W_out at each step.

The adjoint is the same system with conj(a), W_out^T for W_in and W_in^T for W_out, walked from the last step to the
first, so that the input gradient is another run of 1, 2, 3. Its chunks are those of the forward: the short one comes
first, from rest, and zeros before its first step change nothing. `weights_kernel` recomputes the states of a block of
modes once more and sums; each program writes one partial sum, and these are added in a fixed order (no atomics):

    of the forward   gW_out += gy_j^T x_j,    of the adjoint   gW_in += u_j^T G_j

Gates. ga = sum_j G_j conj(x_{j-1}) needs x and G of the same step, which walk in opposite directions. Inside a chunk
it is therefore summed along the forward as sum_j d_j conj(D_j) + conj(a) G_next conj(D_last), with d = gy W_out^T,
D_j = a D_{j-1} + x_{j-1} = dx_j/da (0 before the chunk) and G_next the adjoint of the first step behind the chunk.

Rounding. Tensor cores round sums towards zero, which biases a long sum. Here they add over BLOCK_K features or BLOCK_M
chunks only; every longer sum is computed outside them (by `tl.fma` with 1, since Triton merges an ordinary addition
back into the product).

Bytes per position in float32, H features in and out, P modes, at 4.3 TB/s:
    forward             u read twice, y written, carries              12 H + 32 P / rows
    backward            gy read five times, u three times, gu written 36 H + 32 P / rows
    unfused forward     u, v (written, read twice), x (twice), y       8 H + 40 P
    unfused backward    gy twice, u, gu, x twice, G (six times)       16 H + 64 P
At H 128, P 64, rows 16: 1664 B (0.39 ns) against 3584 B (0.83 ns) forward, 4736 B (1.1 ns) against 6144 B (1.4 ns)
backward, and nothing of size (B, L, P) is kept. In addition the matrices are read from the cache once per BLOCK_M
positions. The cost is arithmetic: 3 and 8 products of 4 H P flops per position, where the unfused path needs 2 and 4.
At 165 Tflop/s (a third of TF32's 495, for "tf32x3") they take at least 0.6 ns and 1.6 ns at H 128, P 64.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..scan.triton_kernels import power, times
from .triton_parts import (
    add_kick,
    load_block,
    load_gate,
    product,
    project,
    start_states,
    step,
    store_block,
    store_complex,
)


@triton.jit
def power_kernel(a, out, count, LOG_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """out = a ** (2 ** LOG_ROWS) of `count` complex numbers."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < count
    re, im = tl.load(a + 2 * i, mask=mask, other=0.0), tl.load(a + 2 * i + 1, mask=mask, other=0.0)
    re, im = power(re, im, LOG_ROWS)
    tl.store(out + 2 * i, re, mask=mask)
    tl.store(out + 2 * i + 1, im, mask=mask)


@triton.jit(do_not_specialize=["length", "rows", "chunks"])
def ends_kernel(
    u,
    weights,
    a,
    kick,
    kick_at,
    ends,
    length,
    rows,
    chunks,
    a_sample,
    features,
    modes,
    BACKWARD: tl.constexpr,
    ADJOINT: tl.constexpr,
    HAS_KICK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """State after the last step of each chunk, from rest, for one block of modes.

    u (B, L, features); weights (2, features, modes), a real and an imaginary plane; complex tensors as (re, im) pairs:
    a (B or 1, modes); kick (B, modes), added to the state at step kick_at[sample]; ends (B, chunks, modes).
    BACKWARD: step j is position L-1-j. ADJOINT: conjugated gates, steps from the last to the first.
    """
    # Convert to 64 bits before multiplying: B L H may exceed 2**31 on a large card.
    pid = tl.program_id(0).to(tl.int64)
    p_blocks, m_blocks = tl.cdiv(modes, BLOCK_P), tl.cdiv(chunks, BLOCK_M)
    p0 = (pid % p_blocks).to(tl.int32) * BLOCK_P
    c0 = ((pid // p_blocks) % m_blocks).to(tl.int32) * BLOCK_M
    sample = pid // p_blocks // m_blocks
    columns = p0 + tl.arange(0, BLOCK_P)
    m = tl.arange(0, BLOCK_M)
    first = c0 * rows
    # A program's steps are adjacent, so their offsets from the first one fit 32 bits.
    row = sample * length + (length - 1 - first if BACKWARD else first)
    toward: tl.constexpr = -1 if BACKWARD else 1
    mask = columns < modes
    a_re, a_im = load_gate(a + sample * a_sample, columns, mask, ADJOINT)
    if HAS_KICK:
        at = (tl.load(kick_at + sample) - first).to(tl.int32)
    x_re = tl.zeros((BLOCK_M, BLOCK_P), tl.float32)
    x_im = tl.zeros((BLOCK_M, BLOCK_P), tl.float32)
    for s in range(rows):
        r = rows - 1 - s if ADJOINT else s
        v_re, v_im = project(
            u + (row + r * toward) * features, m * (rows * toward * features), m * rows < length - first - r, features,
            weights, columns, mask, modes, BLOCK_M, BLOCK_P, BLOCK_K, PRECISION,
        )  # fmt: skip
        x_re, x_im = step(a_re, a_im, x_re, x_im, v_re, v_im)
        if HAS_KICK:
            x_re, x_im = add_kick(x_re, x_im, kick + sample * 2 * modes, m * rows + r == at, columns, mask)
    target = ends + (sample * chunks + c0) * 2 * modes
    store_complex(target, x_re, x_im, m * 2 * modes, columns, m < chunks - c0, mask)


@triton.jit(do_not_specialize=["length", "rows", "chunks"])
def outputs_kernel(
    u,
    weights,
    a,
    kick,
    kick_at,
    x0,
    carries,
    out_weights,
    y,
    x_last,
    last_at,
    scratch,
    length,
    rows,
    chunks,
    a_sample,
    features,
    modes,
    out_features,
    BACKWARD: tl.constexpr,
    ADJOINT: tl.constexpr,
    HAS_KICK: tl.constexpr,
    HAS_X0: tl.constexpr,
    HAS_LAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Outputs of BLOCK_M chunks of one sample.

    As in `ends_kernel`, and: x0 (B, modes); carries (B, chunks, modes), the state after each chunk of the walk;
    out_weights (2 modes, out_features); y (B, L, out_features); x_last (B, modes), the state at step last_at[sample];
    scratch (programs, BLOCK_M, 2 modes): the current states, real parts first; small enough to stay in the cache.
    """
    pid = tl.program_id(0).to(tl.int64)
    m_blocks = tl.cdiv(chunks, BLOCK_M)
    c0 = (pid % m_blocks).to(tl.int32) * BLOCK_M
    sample = pid // m_blocks
    m = tl.arange(0, BLOCK_M)
    first = c0 * rows
    row = sample * length + (length - 1 - first if BACKWARD else first)
    toward: tl.constexpr = -1 if BACKWARD else 1
    states = scratch + pid * BLOCK_M * 2 * modes
    everywhere = m < BLOCK_M
    if HAS_KICK:
        at = (tl.load(kick_at + sample) - first).to(tl.int32)
    if HAS_LAST:
        last = (tl.load(last_at + sample) - first).to(tl.int32)
    for p0 in range(0, modes, BLOCK_P):
        columns = p0 + tl.arange(0, BLOCK_P)
        mask = columns < modes
        x_re, x_im = start_states(
            carries + sample * chunks * 2 * modes, x0 + sample * 2 * modes, c0 + m, chunks, columns, mask, modes,
            ADJOINT, HAS_X0,
        )  # fmt: skip
        store_block(states, x_re, m * 2 * modes, columns, everywhere, mask)
        store_block(states + modes, x_im, m * 2 * modes, columns, everywhere, mask)
    for s in range(rows):
        r = rows - 1 - s if ADJOINT else s
        inside = m * rows < length - first - r
        here = row + r * toward
        # Threads read states that other threads wrote: synchronise between writing and reading.
        tl.debug_barrier()
        for p0 in range(0, modes, BLOCK_P):
            columns = p0 + tl.arange(0, BLOCK_P)
            mask = columns < modes
            a_re, a_im = load_gate(a + sample * a_sample, columns, mask, ADJOINT)
            v_re, v_im = project(
                u + here * features, m * (rows * toward * features), inside, features, weights, columns, mask, modes,
                BLOCK_M, BLOCK_P, BLOCK_K, PRECISION,
            )  # fmt: skip
            x_re = load_block(states, m * 2 * modes, columns, everywhere, mask)
            x_im = load_block(states + modes, m * 2 * modes, columns, everywhere, mask)
            x_re, x_im = step(a_re, a_im, x_re, x_im, v_re, v_im)
            if HAS_KICK:
                x_re, x_im = add_kick(x_re, x_im, kick + sample * 2 * modes, m * rows + r == at, columns, mask)
            store_block(states, x_re, m * 2 * modes, columns, everywhere, mask)
            store_block(states + modes, x_im, m * 2 * modes, columns, everywhere, mask)
            if HAS_LAST:
                if (last >= r) & ((last - r) % rows == 0):
                    store_complex(x_last + sample * 2 * modes, x_re, x_im, m * 0, columns, m * rows + r == last, mask)
        tl.debug_barrier()
        for h0 in range(0, out_features, BLOCK_H):
            h = h0 + tl.arange(0, BLOCK_H)
            wanted = h < out_features
            out = product(
                states, m * 2 * modes, everywhere, 2 * modes, out_weights, h, wanted, out_features,
                BLOCK_M, BLOCK_H, BLOCK_K, PRECISION,
            )  # fmt: skip
            store_block(y + here * out_features, out, m * (rows * toward * out_features), h, inside, wanted)


@triton.jit(do_not_specialize=["length", "rows", "chunks", "share"])
def weights_kernel(
    u,
    other,
    weights,
    other_weights,
    a,
    kick,
    kick_at,
    x0,
    carries,
    adjoint_carries,
    sums,
    g_gate,
    length,
    rows,
    chunks,
    share,
    groups,
    a_sample,
    features,
    other_features,
    modes,
    BACKWARD: tl.constexpr,
    ADJOINT: tl.constexpr,
    HAS_KICK: tl.constexpr,
    HAS_X0: tl.constexpr,
    GATE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Sum over steps of other_j^T x_j, for blocks of modes and of features of `other`, over `share` blocks of chunks.

    As in the other kernels; x are the states of this walk (with ADJOINT, of the adjoint). other (B, L,
    other_features); sums (parts, 2, other_features, modes), real and imaginary plane. With GATE, in the forward walk,
    the programs of the first block of features write g_gate (B, chunks, modes), each chunk's gate gradient; kick and
    adjoint_carries then belong to the adjoint, and other_weights (2, other_features, modes) are its weights.
    """
    pid = tl.program_id(0).to(tl.int64)
    p_blocks, h_blocks = tl.cdiv(modes, BLOCK_P), tl.cdiv(other_features, BLOCK_H)
    p0 = (pid % p_blocks).to(tl.int32) * BLOCK_P
    h0 = ((pid // p_blocks) % h_blocks).to(tl.int32) * BLOCK_H
    part = pid // p_blocks // h_blocks
    m_blocks = tl.cdiv(chunks, BLOCK_M)
    m = tl.arange(0, BLOCK_M)
    columns, h = p0 + tl.arange(0, BLOCK_P), h0 + tl.arange(0, BLOCK_H)
    mask, wanted = columns < modes, h < other_features
    toward: tl.constexpr = -1 if BACKWARD else 1
    sum_re = tl.zeros((BLOCK_H, BLOCK_P), tl.float32)
    sum_im = tl.zeros((BLOCK_H, BLOCK_P), tl.float32)
    for group in range(part * share, tl.minimum((part + 1) * share, groups)):
        c0 = (group % m_blocks).to(tl.int32) * BLOCK_M
        sample = group // m_blocks
        first = c0 * rows
        row = sample * length + (length - 1 - first if BACKWARD else first)
        a_re, a_im = load_gate(a + sample * a_sample, columns, mask, ADJOINT)
        if HAS_KICK:
            at = (tl.load(kick_at + sample) - first).to(tl.int32)
        x_re, x_im = start_states(
            carries + sample * chunks * 2 * modes, x0 + sample * 2 * modes, c0 + m, chunks, columns, mask, modes,
            ADJOINT, HAS_X0,
        )  # fmt: skip
        if GATE:
            D_re, D_im = tl.zeros_like(x_re), tl.zeros_like(x_re)
            da_re, da_im = tl.zeros_like(x_re), tl.zeros_like(x_re)
        for s in range(rows):
            r = rows - 1 - s if ADJOINT else s
            inside = m * rows < length - first - r
            here = row + r * toward
            if GATE:
                D_re, D_im = step(a_re, a_im, D_re, D_im, x_re, x_im)
            v_re, v_im = project(
                u + here * features, m * (rows * toward * features), inside, features, weights, columns, mask, modes,
                BLOCK_M, BLOCK_P, BLOCK_K, PRECISION,
            )  # fmt: skip
            x_re, x_im = step(a_re, a_im, x_re, x_im, v_re, v_im)
            if HAS_KICK and ADJOINT:
                x_re, x_im = add_kick(x_re, x_im, kick + sample * 2 * modes, m * rows + r == at, columns, mask)
            base, offsets = other + here * other_features, m * (rows * toward * other_features)
            if GATE:
                if h0 == 0:
                    d_re, d_im = project(
                        base, offsets, inside, other_features, other_weights, columns, mask, modes,
                        BLOCK_M, BLOCK_P, BLOCK_K, PRECISION,
                    )  # fmt: skip
                    if HAS_KICK:
                        d_re, d_im = add_kick(d_re, d_im, kick + sample * 2 * modes, m * rows + r == at, columns, mask)
                    da_re += d_re * D_re + d_im * D_im
                    da_im += d_im * D_re - d_re * D_im
            values = tl.trans(load_block(base, offsets, h, inside, wanted))
            sum_re = tl.fma(tl.dot(values, x_re, input_precision=PRECISION), 1.0, sum_re)
            sum_im = tl.fma(tl.dot(values, x_im, input_precision=PRECISION), 1.0, sum_im)
        if GATE:
            if h0 == 0:
                n_re, n_im = start_states(
                    adjoint_carries + sample * chunks * 2 * modes, x0, c0 + m, chunks, columns, mask, modes,
                    True, False,
                )  # fmt: skip
                n_re, n_im = times(a_re, -a_im, n_re, n_im)
                da_re += n_re * D_re + n_im * D_im
                da_im += n_im * D_re - n_re * D_im
                gate_target = g_gate + (sample * chunks + c0) * 2 * modes
                store_complex(gate_target, da_re, da_im, m * 2 * modes, columns, m < chunks - c0, mask)
    target = sums + part * 2 * other_features * modes
    store_block(target, sum_re, h * modes, columns, wanted, mask)
    store_block(target + other_features * modes, sum_im, h * modes, columns, wanted, mask)
