"""Pointers to structures that many kernels share (scratch arrays of a thread, metrics, results), and views of memory.

Numba passes a NamedTuple by value: each call copies all numbers in it, more than 200 for the scratch arrays of a
thread, which takes longer than a Newton step. A `sample_kernel` therefore makes a pointer once (`point_to`) and passes
it to the kernels that run for each sample. These read fields of the structure (`load_from`), and pass on the pointer.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

ROOM = 256  # numbers that `place` uses


def _load_from(typing_context: Any, value: Any) -> Any:
    """Return the value that a pointer points to; return any other argument unchanged."""
    if not isinstance(value, types.CPointer):
        return value(value), lambda context, builder, signature, arguments: arguments[0]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = context.unpack_value(builder, signature.return_type, arguments[0])
        if context.enable_nrt:
            context.nrt.incref(builder, signature.return_type, loaded)
        return loaded

    return value.dtype(value), generate


def _place(typing_context: Any, value: Any, memory: Any) -> Any:
    """Store a structure in the first `ROOM` numbers of a vector; return a pointer, valid as long as the vector is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, start = signature.args[0], context.make_array(memory)(context, builder, arguments[1]).data
        if context.get_abi_sizeof(context.get_data_type(kind)) > ROOM * memory.dtype.bitwidth // 8:
            raise TypeError(f"place: needs a structure of at most {ROOM} numbers, got {kind}")
        pointer = builder.bitcast(start, context.get_data_type(kind).as_pointer())
        context.pack_value(builder, kind, arguments[0], pointer)
        return pointer

    return types.CPointer(value)(value, memory), generate


def _point_to(typing_context: Any, value: Any) -> Any:
    """Return a pointer to a copy of a structure; it is valid until the calling kernel returns.

    The calling kernel must not count references, or the arrays of the structure might be freed before.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if context.enable_nrt:
            raise TypeError("point_to: needs a kernel that does not count references")
        kind = signature.args[0]
        pointer = cgutils.alloca_once(builder, context.get_data_type(kind))
        context.pack_value(builder, kind, arguments[0], pointer)
        return pointer

    return types.CPointer(value)(value), generate


def _view(typing_context: Any, memory: Any, first: Any, shape: Any) -> Any:
    """Return an array of a shape, a tuple, that shares the numbers of a vector from index `first` on."""
    kind = types.Array(memory.dtype, len(shape), "C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = context.make_array(memory)(context, builder, arguments[0])
        result, lengths = context.make_array(kind)(context, builder), cgutils.unpack_tuple(builder, arguments[2])
        stride = context.get_constant(types.intp, memory.dtype.bitwidth // 8)
        strides = [stride]
        for length in lengths[:0:-1]:
            strides.insert(0, builder.mul(strides[0], length))
        data = builder.gep(source.data, [arguments[1]])
        populate_array(result, data, lengths, strides, stride, None)
        return result._getvalue()

    return kind(memory, types.intp, types.UniTuple(types.intp, len(shape))), generate


load_from: Any = intrinsic(_load_from)
point_to: Any = intrinsic(_point_to)
place: Any = intrinsic(_place)
view: Any = intrinsic(_view)


def point_to_field(name: str) -> Any:
    """Return an intrinsic that returns a pointer to the field `name` of a structure, from a pointer to the structure.

    If the field is a number instead of a structure, its value is returned.
    """

    def _point_to_field(typing_context: Any, pointer: Any) -> Any:
        index = pointer.dtype.fields.index(name)
        kind = pointer.dtype.types[index]
        is_structure = isinstance(kind, types.BaseTuple)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            number = ir.IntType(32)
            field = builder.gep(arguments[0], [number(0), number(index)])
            return field if is_structure else context.unpack_value(builder, kind, field)

        return (types.CPointer(kind) if is_structure else kind)(pointer), generate

    return intrinsic(_point_to_field)


def emit_call(
    context: Any, builder: Any, address: Any, returns: Any, kinds: Sequence[Any], values: Sequence[Any]
) -> Any:
    """Add a call of the kernel at an address, an integer; return its result, and propagate its exceptions.

    `returns` and `kinds` are the numba types of the result and of the arguments, whose LLVM values are `values`.
    """
    convention = context.call_conv
    function = builder.inttoptr(address, convention.get_function_type(returns, kinds).as_pointer())
    status, result = convention.call_function(builder, function, returns, kinds, values)
    with builder.if_then(status.is_error, likely=False):
        convention.return_status_propagate(builder, status)
    return result
