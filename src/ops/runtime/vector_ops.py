"""Arithmetic on the vectors of `vectors`: operators between them and with numbers, and the logistic function.

Without Intel's SVML numba has no vectorised exp and calls the C library once per element.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from .vectors import Vector, add, divide, load, multiply, splat, subtract


@intrinsic(prefer_literal=True)
def zeros(_, array, lanes):
    """A vector of `lanes` (a constant) zeros of the array's type."""
    vector = Vector(array.dtype, lanes.literal_value)
    return vector(array, lanes), lambda context, builder, signature, arguments: ir.Constant(vector.llvm(), None)


def at(array, row, p, like):
    """array[0, row, p : p + n] as a vector of the type of `like`, which has n lanes."""


@overload(at)
def _(array, row, p, like):
    n = like.lanes
    return lambda array, row, p, like: load(array, 0, row, p, n)


def _register(symbol: Callable[..., Any], operation: Any) -> None:
    @overload(symbol)
    def _(x, y):
        if isinstance(x, Vector) and isinstance(y, Vector):
            return lambda x, y: operation(x, y)
        if isinstance(x, Vector):
            return lambda x, y: operation(x, splat(y, x))
        if isinstance(y, Vector):
            return lambda x, y: operation(splat(x, y), y)
        return None


for _symbol, _operation in (
    (operator.add, add),
    (operator.sub, subtract),
    (operator.mul, multiply),
    (operator.truediv, divide),
):
    _register(_symbol, _operation)


@intrinsic
def where_negative(_, x, a, b):
    """a where x < 0, b elsewhere and where x is nan."""

    def generate(context, builder, signature, arguments):
        zero = ir.Constant(x.llvm(), None)
        return builder.select(builder.fcmp_ordered("<", arguments[0], zero), arguments[1], arguments[2])

    return x(x, a, b), generate


# For float32 and float64: bits of the fraction, degree of the Taylor polynomial of e^r for |r| <= log(2) / 2 (with
# remainders of 5e-9 and 4e-18), smallest x for which e^x is a normal number.
_EXP = {types.float32: (23, 7, -87.3), types.float64: (52, 13, -708.0)}


@intrinsic
def exp_nonpositive(_, x):
    """e^x for x <= 0; 0 where e^x is not a normal number (below 1.2e-38, 3e-308). Within 2 units in the last place.

    x = n log(2) + r; n is read from the low bits of x / log(2) + 1.5 * 2^bits and added to the exponent of e^r.
    """
    bits, degree, lowest = _EXP[x.real]
    high = math.ldexp(round(math.ldexp(math.log(2), bits - 10)), 10 - bits)
    low = float(Decimal(2).ln() - Decimal(high))

    def generate(context, builder, signature, arguments):
        def number(value):
            return ir.Constant(x.llvm(), [float(value)] * x.lanes)

        def fused(a, b, c):
            return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))

        shifter = number(math.ldexp(1.5, bits))
        shifted = fused(arguments[0], number(1 / math.log(2)), shifter)
        n = builder.fsub(shifted, shifter)
        r = fused(n, number(-low), fused(n, number(-high), arguments[0]))
        power = number(1 / math.factorial(degree))
        for k in reversed(range(degree)):
            power = fused(power, r, number(1 / math.factorial(k)))
        integers = ir.VectorType(ir.IntType(x.real.bitwidth), x.lanes)
        exponent = builder.shl(builder.bitcast(shifted, integers), ir.Constant(integers, [bits] * x.lanes))
        power = builder.bitcast(builder.add(builder.bitcast(power, integers), exponent), x.llvm())
        tiny = builder.fcmp_ordered("<", arguments[0], number(lowest))
        # The bits of a nan may shift to any number.
        power = builder.select(builder.fcmp_unordered("uno", arguments[0], arguments[0]), arguments[0], power)
        return builder.select(tiny, number(0), power)

    return x(x), generate


@numba.njit
def sigmoids(x):
    """1 / (1 + e^-x) and 1 / (1 + e^x), each accurate to a few units in the last place, however small it is."""
    e = exp_nonpositive(where_negative(x, x, 0.0 - x))
    large = 1.0 / (e + 1.0)
    small = e * large
    return where_negative(x, small, large), where_negative(x, large, small)
