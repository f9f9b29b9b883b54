"""Rows of complex numbers for the native kernels, each a vector of real parts and a vector of imaginary parts.

An array of rows is (rows, 2, LANES), C-contiguous. numba compiles these functions into the kernels that call them.
"""

from __future__ import annotations

from numba import njit

from .kernel import OPTIONS
from .vectors import add, load, multiply, splat, store, subtract, zeros_like

# Numbers in a row: 16 float32 are a line of the cache.
LANES = 16

compiled = njit(**OPTIONS)


@compiled
def get(x, row):
    return load(x, row, 0, 0, LANES), load(x, row, 1, 0, LANES)


@compiled
def put(x, row, pair):
    store(x, row, 0, 0, pair[0])
    store(x, row, 1, 0, pair[1])


@compiled
def plus(a, b):
    return add(a[0], b[0]), add(a[1], b[1])


@compiled
def minus(a, b):
    return subtract(a[0], b[0]), subtract(a[1], b[1])


@compiled
def times(a, b):
    return (
        subtract(multiply(a[0], b[0]), multiply(a[1], b[1])),
        add(multiply(a[0], b[1]), multiply(a[1], b[0])),
    )


@compiled
def times_conj(a, b):
    """a conj(b)."""
    return (
        add(multiply(a[0], b[0]), multiply(a[1], b[1])),
        subtract(multiply(a[1], b[0]), multiply(a[0], b[1])),
    )


@compiled
def scaled(factor, a):
    """factor a, for a real vector."""
    return multiply(factor, a[0]), multiply(factor, a[1])


@compiled
def turned(re, im, a):
    """(re + i im) a, for numbers re and im."""
    return times((splat(re, a[0]), splat(im, a[0])), a)


@compiled
def negative(x):
    """-x, of a real vector."""
    return subtract(zeros_like(x), x)
