"""Passes over memory on the CPU, compiled by numba at their first call and cached on disk.

Arrays are C-contiguous (1, rows, columns), as `scan.vectors` reads them. An element's result depends on nothing but its
inputs, and sums over rows are taken in tiles of a fixed number of rows: results are the same for any number of threads.
Functions named `_..._at` do one vector, of the type of `like`, at columns p and following.
"""

from __future__ import annotations

import functools
import math

from numba import njit, prange

from ..kernel import Kernel
from ..scan.vectors import store
from . import lanes
from .lanes import at, sigmoids, zeros

# Numbers in a vector: two cache lines of float32. What is left of a row goes one by one.
_LANES = 32
# Rows of a tile: of 128 float32 columns it takes 32 kB.
TILE = 64

# tanh GELU: x sigmoid(_SLOPE x + _CUBE x^3).
_SLOPE = 2 * math.sqrt(2 / math.pi)
_CUBE = 0.044715 * _SLOPE

_kernel = functools.partial(Kernel, uses=(lanes,))


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
def gate(v, w, first, silu, out):
    """out = v sigmoid(w), or v w sigmoid(w) with `silu`; w's columns from `first` on."""
    wide, single = zeros(v, _LANES), zeros(v, 1)
    rows, columns = out.shape[1:]
    for row in prange(rows):
        p = 0
        while p + _LANES <= columns:
            _gate_at(v, w, first, silu, out, row, p, wide)
            p += _LANES
        while p < columns:
            _gate_at(v, w, first, silu, out, row, p, single)
            p += 1


@njit
def _gate_at(v, w, first, silu, out, row, p, like):
    x = at(w, row, first + p, like)
    s = sigmoids(x)[0]
    if silu:
        s = x * s
    store(out, 0, row, p, at(v, row, p, like) * s)


@_kernel
def gate_gradients(g, v, w, first, silu, dv, dw):
    """Gradients of `gate`; that of w goes to dw's columns from `first` on."""
    wide, single = zeros(v, _LANES), zeros(v, 1)
    rows, columns = g.shape[1:]
    for row in prange(rows):
        p = 0
        while p + _LANES <= columns:
            _gate_gradients_at(g, v, w, first, silu, dv, dw, row, p, wide)
            p += _LANES
        while p < columns:
            _gate_gradients_at(g, v, w, first, silu, dv, dw, row, p, single)
            p += 1


@njit
def _gate_gradients_at(g, v, w, first, silu, dv, dw, row, p, like):
    x, up = at(w, row, first + p, like), at(g, row, p, like)
    s, rest = sigmoids(x)
    slope = s * rest
    if silu:
        s, slope = x * s, s + x * slope
    of_w = up * at(v, row, p, like) * slope
    store(dv, 0, row, p, up * s)
    store(dw, 0, row, first + p, of_w)


@_kernel
def moments(x, mean, squares):
    """Of every tile of rows (rows of the outputs) and column: the mean, and the sum of squared distances from it."""
    wide, single = zeros(x, _LANES), zeros(x, 1)
    rows, columns = x.shape[1:]
    for tile in prange(mean.shape[1]):
        low, high = tile * TILE, min(rows, (tile + 1) * TILE)
        p = 0
        while p + _LANES <= columns:
            _moments_at(x, mean, squares, tile, low, high, p, wide)
            p += _LANES
        while p < columns:
            _moments_at(x, mean, squares, tile, low, high, p, single)
            p += 1


@njit
def _moments_at(x, mean, squares, tile, low, high, p, like):
    total = like
    for row in range(low, high):
        total = total + at(x, row, p, like)
    center = total / (high - low)
    total = like
    for row in range(low, high):
        distance = at(x, row, p, like) - center
        total = total + distance * distance
    store(mean, 0, tile, p, center)
    store(squares, 0, tile, p, total)


@_kernel
def products(g, x, mean, sums, weighted):
    """Of every tile of rows and column: the sum of g, and of g (x - mean); mean (1, 1, columns)."""
    wide, single = zeros(x, _LANES), zeros(x, 1)
    rows, columns = x.shape[1:]
    for tile in prange(sums.shape[1]):
        low, high = tile * TILE, min(rows, (tile + 1) * TILE)
        p = 0
        while p + _LANES <= columns:
            _products_at(g, x, mean, sums, weighted, tile, low, high, p, wide)
            p += _LANES
        while p < columns:
            _products_at(g, x, mean, sums, weighted, tile, low, high, p, single)
            p += 1


@njit
def _products_at(g, x, mean, sums, weighted, tile, low, high, p, like):
    center, plain, product = at(mean, 0, p, like), like, like
    for row in range(low, high):
        up = at(g, row, p, like)
        plain = plain + up
        product = product + up * (at(x, row, p, like) - center)
    store(sums, 0, tile, p, plain)
    store(weighted, 0, tile, p, product)


@_kernel
def normalise(x, mean, scale, shift, out):
    """out = (x - mean) scale + shift, all but x and out (1, 1, columns)."""
    wide, single = zeros(x, _LANES), zeros(x, 1)
    rows, columns = x.shape[1:]
    for row in prange(rows):
        p = 0
        while p + _LANES <= columns:
            _normalise_at(x, mean, scale, shift, out, row, p, wide)
            p += _LANES
        while p < columns:
            _normalise_at(x, mean, scale, shift, out, row, p, single)
            p += 1


@njit
def _normalise_at(x, mean, scale, shift, out, row, p, like):
    centered = at(x, row, p, like) - at(mean, 0, p, like)
    store(out, 0, row, p, centered * at(scale, 0, p, like) + at(shift, 0, p, like))


@_kernel
def normalise_gradient(g, x, mean, level, slope, scale, out):
    """out = (g - level - (x - mean) slope) scale, all but g, x and out (1, 1, columns)."""
    wide, single = zeros(x, _LANES), zeros(x, 1)
    rows, columns = x.shape[1:]
    for row in prange(rows):
        p = 0
        while p + _LANES <= columns:
            _normalise_gradient_at(g, x, mean, level, slope, scale, out, row, p, wide)
            p += _LANES
        while p < columns:
            _normalise_gradient_at(g, x, mean, level, slope, scale, out, row, p, single)
            p += 1


@njit
def _normalise_gradient_at(g, x, mean, level, slope, scale, out, row, p, like):
    centered = at(x, row, p, like) - at(mean, 0, p, like)
    rest = at(g, row, p, like) - at(level, 0, p, like) - centered * at(slope, 0, p, like)
    store(out, 0, row, p, rest * at(scale, 0, p, like))
