"""The Triton kernel of the scan: one function for the forward, the adjoint and the chunk ends.

Layout. Tensors are (B, L, P) contiguous; a complex one is read as (B, L, P, 2) reals and computed as separate real and
imaginary parts in the pointers' own precision (float32, or float64 for checks). A program owns BLOCK_W neighbouring
reals of one sample's steps and walks `rows` steps in tiles of BLOCK_L, carrying the state from tile to tile in
registers. With one warp and BLOCK_W covering a warp's width, every thread holds whole columns of the tile, so that the
scan inside a tile is serial arithmetic in registers: no shuffle, no shared memory, the rounding of the plain loop.

Walking. Step j of the walk visits position k(j) = j, or L-1-j with DESCEND, so a reversed scan is address arithmetic
and never Triton's own `reverse`. The adjoint G_k = g_k + conj(a_{k+1}) G_{k+1} walks the other way with the gates of
the position visited just before, conjugated; da_k = G_k conj(x_{k-1}) takes the state of the position visited next.

Chunks. When B P alone does not fill the GPU, the sequence is cut into chunks that run in parallel, in three passes: one
that writes only each chunk's end state and gate product (ENDS), the same kernel over the (B, chunks, P) ends, and the
main pass, in which each chunk starts from its predecessor's end.

Bytes per complex64 element, and the least time at 4.3 TB/s (1 ps per element is 1 us per million elements):
    forward, one chunk     b read, x written                            16 B   3.7 ps
    forward, chunks        b read twice, x written                      24 B   5.6 ps
    adjoint, constant a    g read (twice in chunks), x read, G written  24 B   5.6 ps  (32 B, 7.4 ps)
    adjoint, full a        g, a (twice in chunks), x read, G, da written  40 B   9.3 ps  (56 B, 13 ps)
The forward of (32, 4096, 64) thus needs at least 31 us in one chunk, or 47 us in several, which this shape uses.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combine(a_re, a_im, b_re, b_im, c_re, c_im, d_re, d_im):
    """First x -> a x + b, then x -> c x + d: x -> (c a) x + (c b + d). Associative, not commutative."""
    return (
        c_re * a_re - c_im * a_im,
        c_re * a_im + c_im * a_re,
        d_re + c_re * b_re - c_im * b_im,
        d_im + c_re * b_im + c_im * b_re,
    )


@triton.jit
def load_tile(base, steps, columns, step_mask, column_mask, width, COMPLEX: tl.constexpr):
    """Tile (steps, columns) as (re, im); `steps` are row offsets from `base`; masked entries are 0."""
    rows: tl.constexpr = steps.shape[0]
    modes: tl.constexpr = columns.shape[0] // 2 if COMPLEX else columns.shape[0]
    values = tl.load(
        base + steps[:, None] * width + columns[None, :],
        mask=step_mask[:, None] & column_mask[None, :],
        other=0.0,
    )
    if COMPLEX:
        re, im = tl.split(tl.reshape(values, (rows, modes, 2)))
    else:
        re, im = values, tl.zeros_like(values)
    return re, im


@triton.jit
def store_tile(base, re, im, steps, columns, step_mask, column_mask, width, COMPLEX: tl.constexpr):
    if COMPLEX:
        values = tl.reshape(tl.join(re, im), (steps.shape[0], columns.shape[0]))
    else:
        values = re
    tl.store(
        base + steps[:, None] * width + columns[None, :],
        values,
        mask=step_mask[:, None] & column_mask[None, :],
    )


@triton.jit
def load_row(base, columns, column_mask, COMPLEX: tl.constexpr):
    values = tl.load(base + columns, mask=column_mask, other=0.0)
    if COMPLEX:
        re, im = tl.split(tl.reshape(values, (columns.shape[0] // 2, 2)))
    else:
        re, im = values, tl.zeros_like(values)
    return re, im


@triton.jit
def store_row(base, re, im, columns, column_mask, COMPLEX: tl.constexpr):
    values = tl.reshape(tl.join(re, im), (columns.shape[0],)) if COMPLEX else re
    tl.store(base + columns, values, mask=column_mask)


@triton.jit
def last_row(values, index, BLOCK_L: tl.constexpr):
    # -0.0 is the exact neutral element of addition: filled with it, the sum folds away at compile time. (A literal
    # -0.0 would become 0.0 on the way.)
    return tl.sum(tl.where(index[:, None] == BLOCK_L - 1, values, tl.zeros_like(values) * -1.0), axis=0)


# No specialisation on lengths: one compilation serves every sequence length.
@triton.jit(do_not_specialize=["length", "rows", "chunks", "log_rows"])
def scan_kernel(
    a,
    b,
    x0,
    starts,
    out,
    states,
    da,
    products,
    length,
    width,
    rows,
    chunks,
    log_rows,
    a_sample,
    a_step,
    COMPLEX: tl.constexpr,
    DESCEND: tl.constexpr,
    ADJOINT: tl.constexpr,
    CONSTANT: tl.constexpr,
    HAS_X0: tl.constexpr,
    ENDS: tl.constexpr,
    GATE_GRADIENT: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One chunk of one sample's block of modes.

    Pointers to reals: a; b (L steps in, or the incoming gradient); x0 (B, width), start of the walk (the forward's x0
    for the adjoint, where only da needs it); starts (B, chunks, width), state at each chunk's end, read by the next
    chunk when chunks > 1; out (B, L, width), or (B, chunks, width) with ENDS; states: the forward's x; da: rows
    (B, L, width), or partial sums (B, chunks, width) of a constant gate; products: gate product of each chunk (ENDS).
    width: reals per step, 2 P or P. rows: steps per chunk, 2**log_rows. a_sample, a_step: strides of a in reals.
    """
    # Convert to 64 bits before multiplying: B L P may exceed 2**31 on a large card.
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(width, BLOCK_W)
    block = pid % blocks
    chunk = (pid // blocks) % chunks
    sample = pid // blocks // chunks

    index = tl.arange(0, BLOCK_L)
    lanes = tl.arange(0, BLOCK_W)
    column0 = block * BLOCK_W
    lane_mask = lanes < width - column0
    # Row offsets inside a tile fit 32 bits; the tile's own base address is 64-bit.
    toward: tl.constexpr = -1 if DESCEND else 1
    steps = index * toward
    first = chunk * rows
    last = tl.minimum(first + rows, length)
    b_sample = b + sample * length * width + column0
    a_column = a + sample * a_sample + column0

    half: tl.constexpr = BLOCK_W // 2 if COMPLEX else BLOCK_W
    dtype = b.dtype.element_ty
    state_re = tl.zeros((half,), dtype)
    state_im = tl.zeros((half,), dtype)
    if not ENDS:
        if chunk > 0:
            state_re, state_im = load_row(
                starts + (sample * chunks + chunk - 1) * width + column0, lanes, lane_mask, COMPLEX
            )
        elif HAS_X0 and not ADJOINT:
            state_re, state_im = load_row(x0 + sample * width + column0, lanes, lane_mask, COMPLEX)
    product_re = tl.full((half,), 1.0, dtype)
    product_im = tl.zeros((half,), dtype)
    sum_re = tl.zeros((half,), dtype)
    sum_im = tl.zeros((half,), dtype)
    if CONSTANT:
        gate_re, gate_im = load_row(a_column, lanes, lane_mask, COMPLEX)
        if ADJOINT:
            gate_im = -gate_im

    for j0 in range(first, last, BLOCK_L):
        j = j0 + index
        inside = j < last
        position = length - 1 - j0 if DESCEND else j0
        value_re, value_im = load_tile(b_sample + position * width, steps, lanes, inside, lane_mask, width, COMPLEX)
        if CONSTANT:
            a_re = tl.broadcast_to(gate_re[None, :], (BLOCK_L, half))
            a_im = tl.broadcast_to(gate_im[None, :], (BLOCK_L, half))
        else:
            shift: tl.constexpr = toward if ADJOINT else 0
            known = inside & (j > 0) if ADJOINT else inside
            a_re, a_im = load_tile(
                a_column + (position - shift) * a_step, steps, lanes, known, lane_mask, a_step, COMPLEX
            )
            if ADJOINT:
                a_im = -a_im
        # The carry enters through the first row; the scan then needs no gate products. Only the last tile of a
        # sequence can be partial, and nothing reads its carry, so steps past the end need no identity element.
        top = index[:, None] == 0
        value_re = tl.where(top, value_re + a_re * state_re[None, :] - a_im * state_im[None, :], value_re)
        value_im = tl.where(top, value_im + a_re * state_im[None, :] + a_im * state_re[None, :], value_im)
        gates_re, gates_im, x_re, x_im = tl.associative_scan((a_re, a_im, value_re, value_im), 0, combine)
        state_re, state_im = last_row(x_re, index, BLOCK_L), last_row(x_im, index, BLOCK_L)
        if ENDS:
            if not CONSTANT:
                tile_re, tile_im = last_row(gates_re, index, BLOCK_L), last_row(gates_im, index, BLOCK_L)
                old_re = product_re
                product_re = tile_re * old_re - tile_im * product_im
                product_im = tile_re * product_im + tile_im * old_re
        else:
            store_tile(
                out + sample * length * width + column0 + position * width,
                x_re,
                x_im,
                steps,
                lanes,
                inside,
                lane_mask,
                width,
                COMPLEX,
            )
        if GATE_GRADIENT:
            fed = j + 1 < length
            prev_re, prev_im = load_tile(
                states + sample * length * width + column0 + (position + toward) * width,
                steps,
                lanes,
                inside & fed,
                lane_mask,
                width,
                COMPLEX,
            )
            if HAS_X0:
                start_re, start_im = load_row(x0 + sample * width + column0, lanes, lane_mask, COMPLEX)
                prev_re = tl.where(fed[:, None], prev_re, start_re[None, :])
                prev_im = tl.where(fed[:, None], prev_im, start_im[None, :])
            da_re = x_re * prev_re + x_im * prev_im
            da_im = x_im * prev_re - x_re * prev_im
            if CONSTANT:
                sum_re += tl.sum(tl.where(inside[:, None], da_re, 0.0), axis=0)
                sum_im += tl.sum(tl.where(inside[:, None], da_im, 0.0), axis=0)
            else:
                store_tile(
                    da + sample * length * width + column0 + position * width,
                    da_re,
                    da_im,
                    steps,
                    lanes,
                    inside,
                    lane_mask,
                    width,
                    COMPLEX,
                )

    end = (sample * chunks + chunk) * width + column0
    if ENDS:
        store_row(out + end, state_re, state_im, lanes, lane_mask, COMPLEX)
        if not CONSTANT:
            store_row(products + end, product_re, product_im, lanes, lane_mask, COMPLEX)
        else:
            # a ** rows by repeated squaring, in double precision because each squaring doubles the relative error.
            # Adjoint gates are already conjugated. Samples that share a gate write the same value.
            power_re, power_im = gate_re.to(tl.float64), gate_im.to(tl.float64)
            for _ in range(log_rows):
                old = power_re
                power_re = old * old - power_im * power_im
                power_im = 2 * old * power_im
            powers = products + sample * a_sample + column0
            store_row(powers, power_re.to(dtype), power_im.to(dtype), lanes, lane_mask, COMPLEX)
    if GATE_GRADIENT and CONSTANT:
        store_row(da + end, sum_re, sum_im, lanes, lane_mask, COMPLEX)


@triton.jit(do_not_specialize=["length"])
def shared_gate_kernel(
    g,
    x,
    x0,
    da,
    batch,
    length,
    width,
    DESCEND: tl.constexpr,
    COMPLEX: tl.constexpr,
    HAS_X0: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """da_k = sum over samples of G_k conj(x_{k-1}); one block of steps and modes per program, samples in order.

    DESCEND is the direction of the forward scan: x_{k-1} is then the state at k+1.
    """
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(width, BLOCK_W)
    column0 = (pid % blocks) * BLOCK_W
    k0 = (pid // blocks) * BLOCK_L
    index = tl.arange(0, BLOCK_L)
    lanes = tl.arange(0, BLOCK_W)
    lane_mask = lanes < width - column0
    k = k0 + index
    inside = k < length
    back: tl.constexpr = 1 if DESCEND else -1
    fed = inside & (k + back >= 0) & (k + back < length)
    half: tl.constexpr = BLOCK_W // 2 if COMPLEX else BLOCK_W
    dtype = g.dtype.element_ty
    sum_re = tl.zeros((BLOCK_L, half), dtype)
    sum_im = tl.zeros((BLOCK_L, half), dtype)
    offset = k0 * width + column0
    base, start = offset, column0
    for _ in range(batch):
        g_re, g_im = load_tile(g + base, index, lanes, inside, lane_mask, width, COMPLEX)
        p_re, p_im = load_tile(x + base + back * width, index, lanes, fed, lane_mask, width, COMPLEX)
        if HAS_X0:
            s_re, s_im = load_row(x0 + start, lanes, lane_mask, COMPLEX)
            p_re = tl.where(fed[:, None], p_re, s_re[None, :])
            p_im = tl.where(fed[:, None], p_im, s_im[None, :])
        sum_re += g_re * p_re + g_im * p_im
        sum_im += g_im * p_re - g_re * p_im
        base += tl.cast(length, tl.int64) * width
        start += width
    store_tile(da + offset, sum_re, sum_im, index, lanes, inside, lane_mask, width, COMPLEX)


@triton.jit
def power(re, im, log_exponent: tl.constexpr):
    """z ** (2 ** log_exponent) by repeated squaring, in double precision: each squaring doubles the relative error."""
    wide_re, wide_im = re.to(tl.float64), im.to(tl.float64)
    for _ in tl.static_range(log_exponent):
        old = wide_re
        wide_re = old * old - wide_im * wide_im
        wide_im = 2 * old * wide_im
    return wide_re.to(re.dtype), wide_im.to(re.dtype)


@triton.jit
def times(a_re, a_im, b_re, b_im):
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re
