"""Values and compiled functions at memory addresses that are known only at run time.

Kernels that call functions through addresses need not be compiled again for every function that they may call.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

WORD = ir.IntType(64)


def _behind(typing_context: Any, given: Any) -> Any:
    """Return the value that a pointer points to; any other argument is returned as it is."""
    if not isinstance(given, types.CPointer):
        return given(given), lambda context, builder, signature, arguments: arguments[0]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.unpack_value(builder, signature.return_type, arguments[0])

    return given.dtype(given), generate


def _put(typing_context: Any, value: Any, address: Any) -> Any:
    """Store a value at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        pointer = builder.inttoptr(arguments[1], context.get_data_type(kind).as_pointer())
        context.pack_value(builder, kind, arguments[0], pointer)
        return context.get_dummy_value()

    return types.void(value, types.int64), generate


behind: Any = intrinsic(_behind)
put: Any = intrinsic(_put)


def caller(place: int, first: int, kinds: tuple[Any, ...], returns: Any) -> Any:
    """Return an intrinsic that calls the function stored at index `place` of a table.

    The call is call(table, others): the table is an address, the others a tuple of values of numba types `kinds`. The
    function gets a pointer to index `first` of the table, and the others.
    """

    def _call(typing_context: Any, table: Any, others: Any) -> Any:
        given = tuple(map(types.unliteral, others))
        if tuple(map(_layout, given)) != tuple(map(_layout, kinds)):
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            convention, words = context.call_conv, builder.inttoptr(arguments[0], WORD.as_pointer())
            called = types.voidptr, *kinds
            shape = convention.get_function_type(returns, called).as_pointer()
            address = builder.load(builder.gep(words, [WORD(place)]))
            data = builder.bitcast(builder.gep(words, [WORD(first)]), context.get_value_type(types.voidptr))
            values = [builder.extract_value(arguments[1], i) for i in range(len(kinds))]
            status, result = convention.call_function(
                builder, builder.inttoptr(address, shape), returns, called, [data, *values]
            )
            with builder.if_then(status.is_error, likely=False):
                convention.return_status_propagate(builder, status)
            return result

        return returns(types.int64, types.Tuple(others)), generate

    return intrinsic(_call)


def _layout(kind: Any) -> Any:
    """Return a type without the flag `readonly` of arrays, which does not affect how they are passed."""
    return kind.copy(readonly=False) if isinstance(kind, types.Array) else kind


def byte_size(kind: Any) -> int:
    """Return the number of bytes that `put` writes for a value of a numba type."""
    context = cpu_target.target_context
    return int(context.get_abi_sizeof(context.get_data_type(kind)))
