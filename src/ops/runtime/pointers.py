"""Rows of numbers at an address, read and written as vectors; `vectors` has the arithmetic on them.

A row of complex numbers is handled as twice as many reals, (re, im) interleaved, until it is multiplied as complex.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from .vectors import Vector, multiply_add, splat

__all__ = ["as_complex", "as_real", "at", "load", "multiply_add", "splat", "store", "sums", "zeros"]


@intrinsic
def at(_, address, like):
    """The address as a pointer to numbers of the type of `like`."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(address, like), generate


@intrinsic(prefer_literal=True)
def load(_, pointer, index, lanes):
    """pointer[index : index + lanes]; `lanes` a constant."""
    vector = Vector(pointer.dtype, lanes.literal_value)

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, vector, signature, arguments)
        return builder.load(address, align=vector.real.bitwidth // 8)

    return vector(pointer, index, lanes), generate


@intrinsic
def store(_, pointer, index, vector):
    """pointer[index : index + lanes] = vector."""

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, vector, signature, arguments)
        builder.store(arguments[2], address, align=vector.real.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(pointer, index, vector), generate


@intrinsic(prefer_literal=True)
def zeros(_, pointer, lanes):
    """A vector of `lanes` (a constant) zeros of the pointer's element type."""
    vector = Vector(pointer.dtype, lanes.literal_value)
    return vector(pointer, lanes), lambda context, builder, signature, arguments: ir.Constant(vector.llvm(), None)


@intrinsic
def as_complex(_, vector):
    """Reinterpret pairs of real lanes (re, im) as complex numbers."""
    dtype = types.complex64 if vector.dtype == types.float32 else types.complex128
    return Vector(dtype, vector.lanes // 2)(vector), lambda context, builder, signature, arguments: arguments[0]


@intrinsic
def as_real(_, vector):
    """Reinterpret complex lanes as twice as many real ones."""
    return Vector(vector.real, 2 * vector.lanes)(vector), lambda context, builder, signature, arguments: arguments[0]


@intrinsic
def sums(_, vector):
    """The sum of the even lanes and the sum of the odd lanes; the number of lanes is a power of two."""

    def generate(context, builder, signature, arguments):
        (total,) = arguments
        while total.type.count > 2:
            half = total.type.count // 2
            low, high = _shuffled(builder, total, range(half)), _shuffled(builder, total, range(half, 2 * half))
            total = builder.fadd(low, high)
        both = [builder.extract_element(total, ir.Constant(ir.IntType(32), lane)) for lane in (0, 1)]
        return context.make_tuple(builder, signature.return_type, both)

    return types.UniTuple(vector.dtype, 2)(vector), generate


def _shuffled(builder, vector, order):
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), mask)


def _address(context, builder, vector, signature, arguments):
    index = context.cast(builder, arguments[1], signature.args[1], types.intp)
    return builder.bitcast(builder.gep(arguments[0], [index]), vector.llvm().as_pointer())
