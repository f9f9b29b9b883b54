"""The sums over poles of the Cauchy kernel, and their gradients, as Triton kernels; the formulas are in `ops.cauchy`.

    S[h, r, k] = sum_n weights[h, r, n] / d[h, n, k],     d = c_k^2 m - 4 s_k^2 - 4 i s_k c_k a

A program owns one feature and BLOCK_K points: it forms the reciprocals of BLOCK_N poles in registers and multiplies
them by the weights in a matrix product ("ieee": no tf32), so no (H, N, K) tensor is written. The backward recomputes
them. The points are cut into chunks whose partial gradients are added in a fixed order afterwards: the same inputs give
the same bits.

Accuracy is that of the torch backend in the same precision: next to a pole on the circle d is a small difference, and a
float32 result of either may be off by 1e-3 of the largest value at 16,384 points.

Not yet run on a GPU: tested in Triton's interpreter and compiled ahead of time (tests/ops).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows, poles and points of a program's product. A product without tensor cores is unrolled over the summed axis and
# keeps it in registers; more than 16, the smallest size that Triton accepts, would spill.
FORWARD = {"BLOCK_R": 16, "BLOCK_N": 16, "BLOCK_K": 64}
# WALK: blocks of points per program; the partial sums are then 1 / 1024 the size of the incoming gradient.
BACKWARD = {"BLOCK_R": 16, "BLOCK_N": 16, "BLOCK_K": 16, "WALK": 64}


@triton.jit
def reciprocals(m, a, c, s):
    """Re and Im of 1 / d, each (poles, points)."""
    re = m[:, None] * (c * c)[None, :] - (4 * s * s)[None, :]
    im = a[:, None] * (-4 * s * c)[None, :]
    norm = re * re + im * im
    return re / norm, -im / norm


@triton.jit
def load_poles(m, a, feature, n, poles):
    # The padding values keep d away from 0.
    inside = n < poles
    return tl.load(m + feature * poles + n, mask=inside, other=1.0), tl.load(
        a + feature * poles + n, mask=inside, other=-1.0
    )


@triton.jit
def load_points(c, s, k, points):
    inside = k < points
    return tl.load(c + k, mask=inside, other=1.0), tl.load(s + k, mask=inside, other=0.0)


@triton.jit
def load_weights(weights, feature, r, n, rows, poles):
    """(rows, poles), zeros outside."""
    at = weights + (feature * rows + r)[:, None] * poles + n[None, :]
    return tl.load(at, mask=(r < rows)[:, None] & (n < poles)[None, :], other=0.0)


@triton.jit
def pole_sums_kernel(
    weights,
    m,
    a,
    c,
    s,
    out,
    rows,
    poles,
    points,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """weights (H, R, N), m and a (H, N), c and s (K,) to out (H, R, K, 2)."""
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(points, BLOCK_K)
    line = pid // blocks
    row_blocks = tl.cdiv(rows, BLOCK_R)
    feature = line // row_blocks
    k = (pid % blocks).to(tl.int32) * BLOCK_K + tl.arange(0, BLOCK_K)
    r = (line % row_blocks).to(tl.int32) * BLOCK_R + tl.arange(0, BLOCK_R)
    cos, sin = load_points(c, s, k, points)
    sum_re = tl.zeros((BLOCK_R, BLOCK_K), weights.dtype.element_ty)
    sum_im = tl.zeros_like(sum_re)
    for start in range(0, poles, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        m_n, a_n = load_poles(m, a, feature, n, poles)
        re, im = reciprocals(m_n, a_n, cos, sin)
        weight = load_weights(weights, feature, r, n, rows, poles)
        sum_re = tl.dot(weight, re, sum_re, input_precision="ieee", out_dtype=sum_re.dtype)
        sum_im = tl.dot(weight, im, sum_im, input_precision="ieee", out_dtype=sum_re.dtype)
    at = out + ((feature * rows + r)[:, None] * points + k[None, :]) * 2
    inside = (r < rows)[:, None] & (k < points)[None, :]
    tl.store(at, sum_re, mask=inside)
    tl.store(at + 1, sum_im, mask=inside)


@triton.jit
def pole_gradients_kernel(
    grad,
    weights,
    m,
    a,
    c,
    s,
    grad_weights,
    grad_m,
    grad_a,
    rows,
    poles,
    points,
    chunks,
    WALK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """grad (H, R, K, 2) to the partial gradients of each of T chunks of points and each block of rows.

    grad_weights (H, T, R, N), grad_m and grad_a (H, T, row blocks, N).
    """
    pid = tl.program_id(0).to(tl.int64)
    blocks = tl.cdiv(poles, BLOCK_N)
    n = (pid % blocks).to(tl.int32) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_blocks = tl.cdiv(rows, BLOCK_R)
    part = pid // blocks
    line = part // row_blocks
    feature = line // chunks
    r = (part % row_blocks).to(tl.int32) * BLOCK_R + tl.arange(0, BLOCK_R)
    m_n, a_n = load_poles(m, a, feature, n, poles)
    weight = load_weights(weights, feature, r, n, rows, poles)
    of_weight = tl.zeros((BLOCK_R, BLOCK_N), weights.dtype.element_ty)
    of_m = tl.zeros((BLOCK_N,), weights.dtype.element_ty)
    of_a = tl.zeros_like(of_m)
    first = (line % chunks).to(tl.int32) * WALK * BLOCK_K
    for start in range(0, WALK * BLOCK_K, BLOCK_K):
        k = first + start + tl.arange(0, BLOCK_K)
        cos, sin = load_points(c, s, k, points)
        re, im = reciprocals(m_n, a_n, cos, sin)
        at = grad + ((feature * rows + r)[:, None] * points + k[None, :]) * 2
        inside = (r < rows)[:, None] & (k < points)[None, :]
        g_re = tl.load(at, mask=inside, other=0.0)
        g_im = tl.load(at + 1, mask=inside, other=0.0)
        of_weight = tl.dot(g_re, tl.trans(re), of_weight, input_precision="ieee", out_dtype=of_m.dtype)
        of_weight = tl.dot(g_im, tl.trans(im), of_weight, input_precision="ieee", out_dtype=of_m.dtype)
        all_re = tl.dot(tl.trans(weight), g_re, input_precision="ieee", out_dtype=of_m.dtype)
        all_im = tl.dot(tl.trans(weight), g_im, input_precision="ieee", out_dtype=of_m.dtype)
        square_re = re * re - im * im
        square_im = 2 * re * im
        of_m -= tl.sum((all_re * square_re + all_im * square_im) * (cos * cos)[None, :], axis=1)
        of_a -= 4 * tl.sum((all_re * square_im - all_im * square_re) * (sin * cos)[None, :], axis=1)
    tl.store(
        grad_weights + (line * rows + r)[:, None] * poles + n[None, :],
        of_weight,
        mask=(r < rows)[:, None] & (n < poles)[None, :],
    )
    tl.store(grad_m + part * poles + n, of_m, mask=n < poles)
    tl.store(grad_a + part * poles + n, of_a, mask=n < poles)


def pole_sums(weights: Tensor, m: Tensor, a: Tensor, c: Tensor, s: Tensor) -> Tensor:
    """S (H, R, K) complex from real weights (H, R, N), m and a (H, N), c and s (K,)."""
    features, rows, poles = weights.shape
    out = torch.empty(features, rows, len(c), dtype=weights.dtype.to_complex(), device=weights.device)
    if out.numel():
        programs = features * triton.cdiv(rows, FORWARD["BLOCK_R"]) * triton.cdiv(len(c), FORWARD["BLOCK_K"])
        pole_sums_kernel[(programs,)](
            *(value.contiguous() for value in (weights, m, a, c, s)),
            torch.view_as_real(out), rows, poles, len(c), **FORWARD,
        )  # fmt: skip
    return out


def pole_gradients(
    grad: Tensor, weights: Tensor, m: Tensor, a: Tensor, c: Tensor, s: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of weights, m and a from the gradient of S (H, R, K)."""
    features, rows, poles = weights.shape
    chunks = triton.cdiv(len(c), BACKWARD["WALK"] * BACKWARD["BLOCK_K"])
    row_blocks = triton.cdiv(rows, BACKWARD["BLOCK_R"])
    of_weights = weights.new_empty(features, chunks, rows, poles)
    of_m, of_a = weights.new_empty(2, features, chunks * row_blocks, poles)
    if of_weights.numel():
        pole_gradients_kernel[(features * chunks * row_blocks * triton.cdiv(poles, BACKWARD["BLOCK_N"]),)](
            torch.view_as_real(grad.resolve_conj().contiguous()),
            *(value.contiguous() for value in (weights, m, a, c, s)),
            of_weights, of_m, of_a, rows, poles, len(c), chunks, **BACKWARD,
        )  # fmt: skip
    return of_weights.sum(1), of_m.sum(1), of_a.sum(1)
