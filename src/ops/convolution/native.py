"""Long convolutions on a CPU: one transform of at least L points per sequence, in vectors of features, in numba.

Polynomials in x modulo x^n - i, n >= L. A sequence is the real polynomial sum_t u_t x^t. A two-sided kernel is

    k = sum_{l >= 0} kernel_l x^l - i sum_{m >= 1} reverse_{m-1} x^(n-m),        as x^-m = -i x^(n-m),

and the coefficient of x^t in a product is y_t + i (y_(t+n) - y_(t-n)), with y the linear convolution at -n < t < 2 n.
Its real part is the result, from n complex points instead of the 2 n real ones of zero padding. The product of two real
sequences, one of them reversed, likewise gives the gradient at all lags: the real part holds lags >= 0, and minus the
imaginary part at n - m is lag -m.

The transform (`fourier`) evaluates at the n-th roots of i; the product and the inverse transform follow block by block.
conj(value) is the value of the polynomial in 1/x, whose products give gradients.

A row holds one coefficient of `LANES` features, as stored in (B, L, H): nothing is transposed, and many features are
transformed at once without a shuffle. Nothing is kept between the passes: for the backward, transforming u again is
faster than writing and reading its spectrum.

Source: the weighted transform is that of R. Crandall and B. Fagin, Math. Comp. 62 (1994) 305.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numba import prange
from torch import Tensor

from ..runtime import complex_rows
from ..runtime.complex_rows import LANES, compiled
from ..runtime.kernel import Kernel, threads_for
from . import fourier
from .fourier import Plan, correlate_rows, down, first, last, multiply_rows, plan_of, up

_kernel = partial(Kernel, uses=(complex_rows, fourier))


def convolution(u: Tensor, kernel: Tensor, reverse: Tensor | None) -> Tensor:
    """y (B, L, H) of `ops.convolution.convolve`: u and the kernels of one dtype, float32 or float64, on the CPU."""
    return _convolved(u, kernel, reverse, conjugate=False)


def gradients(
    grad: Tensor, u: Tensor, kernel: Tensor, reverse: Tensor | None, needs_u: bool, needs_kernel: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of u and of both kernels from the gradient of y; None for those not needed."""
    if not needs_kernel:
        return _convolved(grad, kernel, reverse, conjugate=True) if needs_u else None, None, None
    (batch, length, features), plan = u.shape, plan_of(u.shape[1], u.dtype)
    g = _whole_rows(grad)
    threads, tiles = threads_for(g), g.shape[2] // LANES
    # Samples of a group share a sum. If there are fewer tiles of features than threads, several groups keep all busy.
    groups = 1 if tiles >= threads else min(batch, -(-threads // tiles))
    grad_u = torch.empty_like(g) if needs_u else g[:, :0].contiguous()
    kernels = _reached(kernel, reverse, length)
    found = [torch.empty(groups, *lags.shape, dtype=g.dtype) for lags in kernels]
    arrays = map(_np, (g, _whole_rows(u), *kernels, grad_u, *found))
    _adjoint(threads, *arrays, _scratch(threads, 4, plan), *plan)
    whole = [
        None if one is None else F.pad(part.sum(0)[:features], (0, one.shape[1] - part.shape[2]))
        for one, part in zip((kernel, reverse), found, strict=True)
    ]
    return grad_u[..., :features].contiguous() if needs_u else None, whole[0], whole[1]


def _convolved(u: Tensor, kernel: Tensor, reverse: Tensor | None, conjugate: bool) -> Tensor:
    length, features = u.shape[1:]
    u = _whole_rows(u)
    y, plan, threads = torch.empty_like(u), plan_of(length, u.dtype), threads_for(u)
    arrays = map(_np, (u, *_reached(kernel, reverse, length), y))
    _apply(threads, *arrays, conjugate, _scratch(threads, 2, plan), *plan)
    return y[..., :features].contiguous()


def _np(tensor: Tensor) -> np.ndarray:
    return tensor.detach().resolve_neg().numpy()


def _whole_rows(tensor: Tensor, axis: int = -1) -> Tensor:
    """The tensor, contiguous and with its features zero-padded to a multiple of LANES."""
    missing = -tensor.shape[axis] % LANES
    padding = [0, 0] * (tensor.dim() - 1 - axis % tensor.dim()) + [0, missing]
    return (F.pad(tensor, padding) if missing else tensor).contiguous()


def _reached(kernel: Tensor, reverse: Tensor | None, length: int) -> tuple[Tensor, Tensor]:
    """Both kernels, cut to the lags that an output reaches."""
    reverse = kernel[:, :0] if reverse is None else reverse[:, : length - 1]
    return _whole_rows(kernel[:, :length], 0), _whole_rows(reverse, 0)


def _scratch(threads: int, each: int, plan: Plan) -> np.ndarray:
    return np.empty((threads, each, plan.size, 2, LANES), plan.table.dtype)


@_kernel
def _apply(u, kernel, reverse, y, conjugate, scratch, size, radices, block, table, offsets):
    """y = u times the kernels, or times their reversals; scratch (workers, 2, n, 2, LANES)."""
    (batch, _, features), workers = u.shape, len(scratch)
    tasks = batch * (features // LANES)
    for worker in prange(workers):
        x, k = scratch[worker, 0], scratch[worker, 1]
        begin, end = worker * tasks // workers, (worker + 1) * tasks // workers
        for task in range(begin, end):
            tile, b = task // batch, task % batch
            if b == 0 or task == begin:
                _transform_kernel(k, kernel, reverse, tile, size, radices, block, table, offsets)
            first(x, u, b, tile * LANES, table)
            for start in range(0, size, block):
                down(x, start, 1, size, radices, block, table, offsets)
                multiply_rows(x, k, start, block, conjugate)
                up(x, start, 1, size, radices, block, table, offsets)
            last(x, y, b, tile * LANES, table)


@_kernel
def _adjoint(g, u, kernel, reverse, grad_u, of_kernel, of_reverse, scratch, size, radices, block, table, offsets):
    """Write grad_u (unless it is empty) and the kernels' gradients (groups, H, lags), one per group of samples.

    scratch (workers, 4, n, 2, LANES).
    """
    (batch, length, features), groups, workers = u.shape, len(of_kernel), len(scratch)
    tasks = groups * (features // LANES)
    for worker in prange(workers):
        x, v, k, total = scratch[worker, 0], scratch[worker, 1], scratch[worker, 2], scratch[worker, 3]
        for task in range(worker * tasks // workers, (worker + 1) * tasks // workers):
            tile, group = task // groups, task % groups
            if grad_u.shape[1] == length:
                _transform_kernel(k, kernel, reverse, tile, size, radices, block, table, offsets)
            total[:] = 0
            for b in range(group * batch // groups, (group + 1) * batch // groups):
                first(x, g, b, tile * LANES, table)
                first(v, u, b, tile * LANES, table)
                for start in range(0, size, block):
                    down(x, start, 1, size, radices, block, table, offsets)
                    down(v, start, 1, size, radices, block, table, offsets)
                    correlate_rows(x, v, total, start, block)
                    if grad_u.shape[1] == length:
                        multiply_rows(x, k, start, block, True)
                        up(x, start, 1, size, radices, block, table, offsets)
                if grad_u.shape[1] == length:
                    last(x, grad_u, b, tile * LANES, table)
            for start in range(0, size, block):
                up(total, start, 0, size, radices, block, table, offsets)
            _put_lags(total, of_kernel[group], of_reverse[group], tile, size)


@compiled
def _transform_kernel(x, kernel, reverse, tile, size, radices, block, table, offsets):
    """x (n, 2, LANES) = the kernels' values at the roots, divided by n."""
    scale = x.dtype.type(1 / size)
    x[:] = 0
    # Copy square pieces of LANES x LANES: going through all of x for one lane after another would miss the cache.
    for begin in range(0, kernel.shape[1], LANES):
        for lane in range(LANES):
            for t in range(begin, min(begin + LANES, kernel.shape[1])):
                x[t, 0, lane] = kernel[tile * LANES + lane, t] * scale
    for begin in range(0, reverse.shape[1], LANES):
        for lane in range(LANES):
            for t in range(begin, min(begin + LANES, reverse.shape[1])):
                x[size - 1 - t, 1, lane] = -reverse[tile * LANES + lane, t] * scale
    for start in range(0, size, block):
        down(x, start, 0, size, radices, block, table, offsets)


@compiled
def _put_lags(x, kernel, reverse, tile, size):
    """Write the lags that x / n holds to the rows of both kernels."""
    scale = x.dtype.type(1 / size)
    for begin in range(0, kernel.shape[1], LANES):
        for lane in range(LANES):
            for t in range(begin, min(begin + LANES, kernel.shape[1])):
                kernel[tile * LANES + lane, t] = x[t, 0, lane] * scale
    for begin in range(0, reverse.shape[1], LANES):
        for lane in range(LANES):
            for t in range(begin, min(begin + LANES, reverse.shape[1])):
                reverse[tile * LANES + lane, t] = -x[size - 1 - t, 1, lane] * scale
