"""A numba type for vectors of real or complex numbers in registers.

Without it the compiler vectorises a loop over modes, but keeps the state in memory, tests before every row whether two
arrays overlap, and separates complex numbers with shuffles. Here a vector holds complex numbers as memory does,
(re, im) interleaved, and is loaded, multiplied and stored as a whole. Arrays are C-contiguous (B, L, P).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.extending import intrinsic, register_model

# Allow fused multiply-add, and keep inf and nan exact.
_FLAGS = ("contract",)
# Bytes of a cache line.
_LINE = 64


class Vector(types.Type):
    """`lanes` numbers of a numba type; a complex number takes two real elements."""

    def __init__(self, dtype: types.Type, lanes: int):
        self.dtype, self.lanes = dtype, lanes
        self.complex = isinstance(dtype, types.Complex)
        self.real = dtype.underlying_float if self.complex else dtype
        super().__init__(name=f"Vector({dtype}, {lanes})")

    def llvm(self) -> ir.VectorType:
        """The vector's type in LLVM."""
        scalar = ir.DoubleType() if self.real == types.float64 else ir.FloatType()
        return ir.VectorType(scalar, self.lanes * (2 if self.complex else 1))


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector):
        super().__init__(manager, vector, vector.llvm())


@intrinsic(prefer_literal=True)
def load(_, array, i, k, p, lanes):
    """array[i, k, p : p + lanes] as a vector; `lanes` is a constant. Bounds are not checked."""
    vector = Vector(array.dtype, lanes.literal_value)

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, vector, signature.args, arguments)
        return builder.load(address, align=vector.real.bitwidth // 8)

    return vector(array, i, k, p, lanes), generate


@intrinsic
def store(_, array, i, k, p, vector):
    """array[i, k, p : p + lanes] = vector."""

    def generate(context, builder, signature, arguments):
        address = _address(context, builder, vector, signature.args, arguments)
        builder.store(arguments[4], address, align=vector.real.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, i, k, p, vector), generate


@intrinsic(prefer_literal=True)
def prefetch_to_write(_, array, i, k, p, lanes):
    """Prefetch the cache lines of array[i, k, p : p + lanes], to be written soon; k may be out of range.

    Without the prefetch each store waits until its cache line has been read.
    """
    vector = Vector(array.dtype, lanes.literal_value)
    return types.void(array, i, k, p, lanes), _prefetch(vector, write=True)


@intrinsic(prefer_literal=True)
def prefetch_to_read(_, array, i, k, p, lanes):
    """Prefetch the cache lines of array[i, k, p : p + lanes], to be read soon; k may be out of range.

    The hardware predicts a walk along memory, but not the jump back at the start of the next block of modes.
    """
    vector = Vector(array.dtype, lanes.literal_value)
    return types.void(array, i, k, p, lanes), _prefetch(vector, write=False)


@intrinsic
def zeros_like(_, vector):
    """Zero in every lane."""
    return vector(vector), lambda context, builder, signature, arguments: ir.Constant(vector.llvm(), None)


@intrinsic
def multiply_add(_, a, x, b):
    """a x + b."""
    return a(a, x, b), _product(a, conjugate=False)


@intrinsic
def conj_multiply_add(_, a, x, b):
    """conj(a) x + b."""
    return a(a, x, b), _product(a, conjugate=True)


@intrinsic
def lanewise_multiply_add(_, x, y, z):
    """x y + z lane by lane, real and imaginary parts as separate lanes: (re x)(re y) + re z, (im x)(im y) + im z."""
    return x(x, y, z), lambda context, builder, signature, arguments: _fused(builder, *arguments)


@intrinsic
def parts_swapped(_, x):
    """(im, re) of every complex number; a real vector unchanged."""

    def generate(context, builder, signature, arguments):
        return _swapped(builder, x, arguments[0]) if x.complex else arguments[0]

    return x(x), generate


@intrinsic
def conj_products(_, like, crossed):
    """Sums of conj(x) y from two lanewise sums: `like` of x y, and `crossed` of x parts_swapped(y).

    The two sums take two multiply-adds per step; complex products would take two more, and two shuffles.
    """

    def generate(context, builder, signature, arguments):
        if not like.complex:
            return arguments[0]
        real, imag = (
            combine(vector, _swapped(builder, like, vector), flags=_FLAGS)
            for combine, vector in zip((builder.fadd, builder.fsub), arguments, strict=True)
        )
        # Lanes (re, re, ...) and (im, -im, ...): interleave the even lanes of both.
        count = 2 * like.lanes
        return _shuffled(builder, real, [i if i % 2 == 0 else count + i - 1 for i in range(count)], imag)

    return like(like, crossed), generate


@intrinsic
def splat(_, number, like):
    """The real `number` in every lane of a vector of the type of `like`, which is real."""

    def generate(context, builder, signature, arguments):
        scalar = context.cast(builder, arguments[0], signature.args[0], like.real)
        undefined = ir.Constant(like.llvm(), ir.Undefined)
        first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
        return _shuffled(builder, first, [0] * like.lanes)

    return like(number, like), generate


@intrinsic
def add(_, x, y):
    """x + y."""
    return x(x, y), lambda context, builder, signature, pair: builder.fadd(*pair, flags=_FLAGS)


@intrinsic
def subtract(_, x, y):
    """x - y."""
    return x(x, y), lambda context, builder, signature, pair: builder.fsub(*pair, flags=_FLAGS)


@intrinsic
def multiply(_, x, y):
    """x y, of real vectors."""
    return x(x, y), lambda context, builder, signature, pair: builder.fmul(*pair, flags=_FLAGS)


@intrinsic
def divide(_, x, y):
    """x / y, of real vectors."""
    return x(x, y), lambda context, builder, signature, pair: builder.fdiv(*pair, flags=_FLAGS)


def _prefetch(vector: Vector, write: bool) -> Any:
    """Code that prefetches the cache lines of a vector into every level of the cache."""

    def generate(context, builder, signature, arguments):
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.bitcast(_address(context, builder, vector, signature.args, arguments), byte)
        size = vector.lanes * vector.real.bitwidth // 8 * (2 if vector.complex else 1)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # Operands of llvm.prefetch: write or read, locality 3 (all cache levels), data cache.
        options = [ir.Constant(word, number) for number in (int(write), 3, 1)]
        for offset in range(0, size, _LINE):
            builder.call(function, [builder.gep(address, [ir.Constant(ir.IntType(64), offset)]), *options])
        return context.get_dummy_value()

    return generate


def _product(vector: Vector, conjugate: bool) -> Any:
    """Code for a x + b; complex as (re a) x + (-/+ im a) (im x, re x) + b: two multiply-adds of interleaved vectors."""

    def generate(context, builder, signature, arguments):
        a, x, b = arguments
        if not vector.complex:
            return _fused(builder, a, x, b)
        count = 2 * vector.lanes
        signs = [1.0, -1.0] if conjugate else [-1.0, 1.0]
        real = _shuffled(builder, a, [i & ~1 for i in range(count)])
        imag = _shuffled(builder, a, [i | 1 for i in range(count)])
        imag = builder.fmul(imag, ir.Constant(vector.llvm(), signs * vector.lanes), flags=_FLAGS)
        return _fused(builder, imag, _swapped(builder, vector, x), _fused(builder, real, x, b))

    return generate


def _fused(builder: ir.IRBuilder, x: Any, y: Any, z: Any) -> Any:
    return builder.fadd(builder.fmul(x, y, flags=_FLAGS), z, flags=_FLAGS)


def _swapped(builder: ir.IRBuilder, vector: Vector, x: Any) -> Any:
    return _shuffled(builder, x, [i ^ 1 for i in range(2 * vector.lanes)])


def _shuffled(builder: ir.IRBuilder, vector: Any, order: list[int], second: Any = None) -> Any:
    mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined) if second is None else second, mask)


def _address(context: Any, builder: ir.IRBuilder, vector: Vector, signature: Any, arguments: Any) -> Any:
    """Pointer to a vector at array[i, k, p], given as the first four arguments."""
    array = context.make_array(signature[0])(context, builder, arguments[0])
    _, length, modes = (builder.extract_value(array.shape, axis) for axis in range(3))
    i, k, p = (
        context.cast(builder, value, kind, types.intp)
        for value, kind in zip(arguments[1:4], signature[1:4], strict=True)
    )
    row = builder.mul(builder.add(builder.mul(i, length), k), modes)
    return builder.bitcast(builder.gep(array.data, [builder.add(row, p)]), vector.llvm().as_pointer())
