"""One step of the vector unit for compiled code: the maximum of two rows of bytes.

LLVM vectorises a plain loop over so few bytes badly, because the arrays might overlap. Written out, it takes a fifth to
a tenth of the time of that loop, which took most of the generator's time.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

# Bytes of a row; LLVM splits or joins them to fit the machine's vector unit.
WIDTH = 32


@intrinsic
def raise_row(typing_context, target, at, source, begin):
    """raise_row(target, at, source, begin): target[at + i] = max(target[at + i], source[begin + i]) for i < WIDTH.

    target, source: contiguous uint8 arrays, seen as flat; at, begin: int64. No bounds are checked.
    """
    if not all(isinstance(array, types.Array) and array.dtype == types.uint8 for array in (target, source)):
        return None
    signature = types.void(target, types.int64, source, types.int64)

    def generate(context, builder, signature, arguments):
        row = ir.VectorType(ir.IntType(8), WIDTH)

        def pointer(array: int, index: int):
            data = cgutils.create_struct_proxy(signature.args[array])(context, builder, value=arguments[array]).data
            return builder.bitcast(builder.gep(data, [arguments[index]]), row.as_pointer())

        def load(place):
            values = builder.load(place)
            values.align = 1
            return values

        place = pointer(0, 1)
        old, new = load(place), load(pointer(2, 3))
        stored = builder.store(builder.select(builder.icmp_unsigned(">", old, new), old, new), place)
        stored.align = 1
        return context.get_dummy_value()

    return signature, generate
