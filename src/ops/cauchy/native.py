"""The response of `cauchy` for a low-rank part of rank 1 on a CPU: sums and Woodbury formula in one pass, in numba.

In the notation of `interface`, I = 1 / d and, for a row v of the products, rho_v = sum_n (q c + i p s) I with weights
q = -2 dt Re(v conj(lambda)), p = 4 dt Re(v). Vectors hold points on the circle; the reciprocals of all poles at one
vector of points stay in the innermost cache while the rows are summed. With e = exp(i theta / 2),
t = 1 / (1 + c rho_QP) and f = rho_QB t,

    K_C = e (rho_CB - c rho_CP f).

Backward, for incoming g_C, with the sums recomputed and g = conj(e) g_C:

    g_CB = g,  g_CP = -c g conj(f),  g_f = -c sum_C g conj(rho_CP),  g_QB = g_f conj(t),  g_QP = -c g_f conj(f t),
    grad q = c Re sum_k g_v conj(I),  grad p = s Re sum_k g_v conj(i I),  g_I = sum_v g_v (q c - i p s),
    g_d = -g_I conj(I)^2,  grad m = sum_k c^2 Re g_d,  grad a = -4 sum_k s c Im g_d.

No array of size (H, P, points) or (H, rows, points) is stored. Sums over poles and points are in the weights'
precision.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numba import prange
from torch import Tensor

from ..runtime import complex_rows
from ..runtime.complex_rows import LANES, compiled, get, minus, negative, plus, put, scaled, times, times_conj
from ..runtime.kernel import Kernel, threads_for
from ..runtime.vectors import add, divide, load, multiply, splat, subtract, zeros_like

_kernel = partial(Kernel, uses=(complex_rows,))


def response(q: Tensor, p: Tensor, m: Tensor, a: Tensor, half: Tensor) -> Tensor:
    """K (directions, H, points) at the angles theta = 2 half.

    Args:
        q, p: (H, directions + 1, 2, P), the rows (C B, C P) of each direction and last (conj(Q) B, conj(Q) P).
        m, a: (H, P), |lambda|^2 and Re lambda.
        half: (points,) float64.
    All are on the CPU and, except for `half`, of one dtype.
    """
    directions, features = q.shape[1] - 1, len(q)
    out = torch.empty(directions, features, len(half), 2, dtype=q.dtype)
    threads = threads_for(out)
    weights, scratch = _weights(q, p, m, a), _scratch(threads, q)
    _response(threads, *weights, _circle(half, q.dtype), out.numpy(), scratch)
    return torch.view_as_complex(out)


def gradients(
    grad: Tensor, q: Tensor, p: Tensor, m: Tensor, a: Tensor, half: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, p, m and a from the gradient of K."""
    found = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, p, m, a)]
    grad = torch.view_as_real(grad.resolve_conj()).contiguous()
    threads = threads_for(grad)
    weights, scratch = _weights(q, p, m, a), _scratch(threads, q)
    _adjoint(threads, grad.numpy(), *weights, _circle(half, q.dtype), *(t.numpy() for t in found), scratch)
    return tuple(found)


def _weights(*given: Tensor) -> list[np.ndarray]:
    return [tensor.detach().contiguous().numpy() for tensor in given]


def _circle(half: Tensor, dtype: torch.dtype) -> np.ndarray:
    """(2, vectors, LANES): cos and sin of the angles, padded with those of angle 0."""
    missing = -len(half) % LANES
    padded = torch.nn.functional.pad(half, (0, missing))
    return torch.stack((torch.cos(padded), torch.sin(padded))).to(dtype).view(2, -1, LANES).numpy()


def _scratch(threads: int, q: Tensor) -> np.ndarray:
    """(threads, rows, 2, LANES) for reciprocals of the poles, sums and their gradients, and per-lane gradients."""
    _, lefts, _, modes = q.shape
    return np.empty((threads, modes + 4 * lefts + lefts * 2 * modes + modes, 2, LANES), _weights(q)[0].dtype)


@_kernel
def _response(q, p, m, a, circle, out, scratch):
    (features, lefts, _, modes), points, workers = q.shape, out.shape[2], len(scratch)
    for worker in prange(workers):
        inverse, rho = scratch[worker, :modes], scratch[worker, modes : modes + 2 * lefts]
        for h in range(worker * features // workers, (worker + 1) * features // workers):
            for k in range(circle.shape[1]):
                c, s = load(circle, 0, k, 0, LANES), load(circle, 1, k, 0, LANES)
                _sums(inverse, rho, q[h], p[h], m[h], a[h], c, s)
                f, _ = _feedback(rho, lefts, c)
                for row in range(lefts - 1):
                    joined = times(get(rho, 2 * row + 1), f)
                    # Reuse the row for the response: its sums are no longer needed.
                    put(rho, 2 * row, times((c, s), minus(get(rho, 2 * row), scaled(c, joined))))
                    for lane in range(min(LANES, points - k * LANES)):
                        out[row, h, k * LANES + lane, 0] = rho[2 * row, 0, lane]
                        out[row, h, k * LANES + lane, 1] = rho[2 * row, 1, lane]


@_kernel
def _adjoint(grad, q, p, m, a, circle, of_q, of_p, of_m, of_a, scratch):
    (features, lefts, _, modes), points, workers = q.shape, grad.shape[2], len(scratch)
    for worker in prange(workers):
        inverse, rho = scratch[worker, :modes], scratch[worker, modes : modes + 2 * lefts]
        g = scratch[worker, modes + 2 * lefts : modes + 4 * lefts]
        totals = scratch[worker, modes + 4 * lefts :]
        for h in range(worker * features // workers, (worker + 1) * features // workers):
            totals[:] = 0
            for k in range(circle.shape[1]):
                for row in range(lefts - 1):
                    for lane in range(LANES):
                        inside = k * LANES + lane < points
                        for part in range(2):
                            g[2 * row, part, lane] = grad[row, h, k * LANES + lane, part] if inside else 0
                c, s = load(circle, 0, k, 0, LANES), load(circle, 1, k, 0, LANES)
                _sums(inverse, rho, q[h], p[h], m[h], a[h], c, s)
                _of_rows(g, rho, lefts, c, s)
                _of_poles(totals, inverse, g, q[h], p[h], c, s)
            for row in range(2 * lefts):
                for n in range(modes):
                    of_q[h, row // 2, row % 2, n] = totals[row * modes + n, 0].sum()
                    of_p[h, row // 2, row % 2, n] = totals[row * modes + n, 1].sum()
            for n in range(modes):
                of_m[h, n] = totals[2 * lefts * modes + n, 0].sum()
                of_a[h, n] = totals[2 * lefts * modes + n, 1].sum()


@compiled
def _sums(inverse, rho, q, p, m, a, c, s):
    """1 / d of every pole to `inverse` (P, 2, LANES), and rho of every row to `rho` (2 lefts, 2, LANES)."""
    four = splat(4.0, c)
    cc, ss, sc = multiply(c, c), multiply(four, multiply(s, s)), multiply(four, multiply(s, c))
    for n in range(len(m)):
        re = subtract(multiply(splat(m[n], c), cc), ss)
        im = multiply(splat(a[n], c), sc)
        norm = add(multiply(re, re), multiply(im, im))
        over = divide(splat(1.0, c), norm)
        put(inverse, n, (multiply(re, over), multiply(im, over)))
    zero = zeros_like(c)
    for left in range(len(q)):
        # Eight independent sums, so that no addition waits for the one before.
        b0, b1, b2, b3, p0, p1, p2, p3 = zero, zero, zero, zero, zero, zero, zero, zero
        for n in range(len(m)):
            re, im = get(inverse, n)
            qb, pb = splat(q[left, 0, n], c), splat(p[left, 0, n], c)
            qp, pp = splat(q[left, 1, n], c), splat(p[left, 1, n], c)
            b0, b1 = add(multiply(qb, re), b0), add(multiply(qb, im), b1)
            b2, b3 = add(multiply(pb, re), b2), add(multiply(pb, im), b3)
            p0, p1 = add(multiply(qp, re), p0), add(multiply(qp, im), p1)
            p2, p3 = add(multiply(pp, re), p2), add(multiply(pp, im), p3)
        put(rho, 2 * left, (subtract(multiply(c, b0), multiply(s, b3)), add(multiply(c, b1), multiply(s, b2))))
        put(rho, 2 * left + 1, (subtract(multiply(c, p0), multiply(s, p3)), add(multiply(c, p1), multiply(s, p2))))


@compiled
def _feedback(rho, lefts, c):
    """f and t."""
    over = get(rho, 2 * lefts - 1)
    re, im = add(splat(1.0, c), multiply(c, over[0])), multiply(c, over[1])
    norm = add(multiply(re, re), multiply(im, im))
    t = (divide(re, norm), divide(negative(im), norm))
    return times(get(rho, 2 * lefts - 2), t), t


@compiled
def _of_rows(g, rho, lefts, c, s):
    """Write the gradients of all rows to `g` (2 lefts, 2, LANES), which holds the gradients of K in rows 2 `row`."""
    f, t = _feedback(rho, lefts, c)
    minus_c = negative(c)
    g_f = (zeros_like(c), zeros_like(c))
    for row in range(lefts - 1):
        of_B = times_conj(get(g, 2 * row), (c, s))
        weighted = scaled(minus_c, of_B)
        g_f = plus(g_f, times_conj(weighted, get(rho, 2 * row + 1)))
        put(g, 2 * row, of_B)
        put(g, 2 * row + 1, times_conj(weighted, f))
    put(g, 2 * lefts - 2, times_conj(g_f, t))
    put(g, 2 * lefts - 1, scaled(minus_c, times_conj(g_f, times(f, t))))


@compiled
def _of_poles(totals, inverse, g, q, p, c, s):
    """Add the gradients of q and p (rows 2 left + right, modes), followed by those of m and a, to `totals`."""
    modes, rows = len(inverse), len(g)
    cc, sc = multiply(c, c), multiply(splat(-4.0, c), multiply(s, c))
    zero = zeros_like(c)
    for n in range(modes):
        re, im = get(inverse, n)
        c_re, c_im, s_re, s_im = multiply(c, re), multiply(c, im), multiply(s, re), multiply(s, im)
        q_re, q_im, p_re, p_im = zero, zero, zero, zero
        for row in range(rows):
            g_re, g_im = get(g, row)
            of_q, of_p = get(totals, row * modes + n)
            of_q = add(multiply(g_im, c_im), add(multiply(g_re, c_re), of_q))
            of_p = subtract(add(multiply(g_im, s_re), of_p), multiply(g_re, s_im))
            put(totals, row * modes + n, (of_q, of_p))
            wq, wp = splat(q[row // 2, row % 2, n], c), splat(p[row // 2, row % 2, n], c)
            q_re, q_im = add(multiply(wq, g_re), q_re), add(multiply(wq, g_im), q_im)
            p_re, p_im = add(multiply(wp, g_re), p_re), add(multiply(wp, g_im), p_im)
        g_I = (add(multiply(c, q_re), multiply(s, p_im)), subtract(multiply(c, q_im), multiply(s, p_re)))
        g_d = times_conj(g_I, times((re, im), (re, im)))
        of_m, of_a = get(totals, rows * modes + n)
        put(totals, rows * modes + n, (subtract(of_m, multiply(cc, g_d[0])), subtract(of_a, multiply(sc, g_d[1]))))
