"""Passes over memory on the CPU, compiled by numba at their first call and cached on disk.

Arrays are C-contiguous (1, rows, columns), as `runtime.vectors` reads them. An element's result depends only on its
inputs, not on the number of threads. Functions named `_..._at` process one vector of the type of `like`, from column p
on.
"""

from __future__ import annotations

import functools
import math

from numba import njit, prange

from ..runtime import vector_ops
from ..runtime.kernel import Kernel
from ..runtime.vector_ops import at, sigmoids, zeros
from ..runtime.vectors import store

# Numbers in a vector: two cache lines of float32. The rest of a row is processed one by one.
_LANES = 32

# tanh GELU: x sigmoid(_SLOPE x + _CUBE x^3).
_SLOPE = 2 * math.sqrt(2 / math.pi)
_CUBE = 0.044715 * _SLOPE

_kernel = functools.partial(Kernel, uses=(vector_ops,))


@_kernel
def gelu(x, out):
    wide, single = zeros(x, _LANES), zeros(x, 1)
    rows, columns = x.shape[1:]
    for row in prange(rows):
        p = 0
        while p + _LANES <= columns:
            _gelu_at(x, out, row, p, wide)
            p += _LANES
        while p < columns:
            _gelu_at(x, out, row, p, single)
            p += 1


@njit
def _gelu_at(x, out, row, p, like):
    v = at(x, row, p, like)
    store(out, 0, row, p, v * sigmoids((v * v * _CUBE + _SLOPE) * v)[0])


@_kernel
def gelu_gradient(g, x, out):
    """out = g gelu'(x)."""
    wide, single = zeros(x, _LANES), zeros(x, 1)
    rows, columns = x.shape[1:]
    for row in prange(rows):
        p = 0
        while p + _LANES <= columns:
            _gelu_gradient_at(g, x, out, row, p, wide)
            p += _LANES
        while p < columns:
            _gelu_gradient_at(g, x, out, row, p, single)
            p += 1


@njit
def _gelu_gradient_at(g, x, out, row, p, like):
    v = at(x, row, p, like)
    square = v * v
    s, rest = sigmoids((square * _CUBE + _SLOPE) * v)
    slope = s + v * (s * rest) * (square * (3 * _CUBE) + _SLOPE)
    store(out, 0, row, p, at(g, row, p, like) * slope)


@_kernel
def gate(v, w, silu, out):
    """out = v sigmoid(w), or v w sigmoid(w) with `silu`."""
    wide, single = zeros(v, _LANES), zeros(v, 1)
    rows, columns = out.shape[1:]
    for row in prange(rows):
        p = 0
        while p + _LANES <= columns:
            _gate_at(v, w, silu, out, row, p, wide)
            p += _LANES
        while p < columns:
            _gate_at(v, w, silu, out, row, p, single)
            p += 1


@njit
def _gate_at(v, w, silu, out, row, p, like):
    x = at(w, row, p, like)
    s = sigmoids(x)[0]
    if silu:
        s = x * s
    store(out, 0, row, p, at(v, row, p, like) * s)


@_kernel
def gate_gradients(g, v, w, silu, dv, dw):
    """dv, dw = the gradients of `gate`."""
    wide, single = zeros(v, _LANES), zeros(v, 1)
    rows, columns = g.shape[1:]
    for row in prange(rows):
        p = 0
        while p + _LANES <= columns:
            _gate_gradients_at(g, v, w, silu, dv, dw, row, p, wide)
            p += _LANES
        while p < columns:
            _gate_gradients_at(g, v, w, silu, dv, dw, row, p, single)
            p += 1


@njit
def _gate_gradients_at(g, v, w, silu, dv, dw, row, p, like):
    x, up = at(w, row, p, like), at(g, row, p, like)
    s, rest = sigmoids(x)
    slope = s * rest
    if silu:
        s, slope = x * s, s + x * slope
    store(dv, 0, row, p, up * s)
    store(dw, 0, row, p, up * at(v, row, p, like) * slope)
