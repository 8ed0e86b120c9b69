"""Prefetch hint for compiled loops that know which memory they will read soon."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

CACHE_LINE = 64  # bytes that are loaded together


def _prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Start loading the cache line of array[row, column] into the second-level cache; it may be beyond the array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, (array, *place) = signature.args[0], arguments
        view = context.make_array(kind)(context, builder, array)
        item = cgutils.get_item_pointer(context, builder, kind, view, place, wraparound=False, boundscheck=False)
        address, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        shape = ir.FunctionType(ir.VoidType(), [address, number, number, number])
        hint = cgutils.get_or_insert_function(builder.module, shape, "llvm.prefetch.p0")
        reading, second_cache, data = number(0), number(2), number(1)
        builder.call(hint, [builder.bitcast(item, address), reading, second_cache, data])
        return context.get_dummy_value()

    return types.void(array, row, column), generate


prefetch: Any = intrinsic(_prefetch)
