"""Indirect calls to loss kernels: each kernel is compiled once per class, its callers only once for all classes.

Passes over the tokens, denoisers and searches for minima call a few kernels that depend on the loss: the functions
decorated with `loss_kernel`. To compile all of these callers again for every user-defined loss or attention
map would take long. Therefore, compiled code receives the loss of a registered class as an `IndirectLoss`, which is the
address of a function table. The table consists of words of eight bytes:

    word 0, 1, ...    addresses of the kernels in `TableSlots`, compiled for the class of this loss
    word LOSS, ...    the loss: a NamedTuple of numbers, in numba's memory layout

A caller reads the address of a kernel from the table and calls it with a pointer to the word LOSS. The kernel reads the
loss from there (`load_from`). Losses that are not registered, or that contain arrays, are compiled into the callers;
for these, the kernel receives the loss itself.

Numba's first-class functions (`cfunc`, `numba.types.WrapperAddressProtocol`) are not used. If a function that is called
through them raises an exception, numba prints it and continues with an undefined result. In addition, each call of a
kernel from Python would take 0.25 ms to convert the functions.
"""

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import typeof
from numba.core import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from gamp_attention._kernels.compiled import dispatch_on_type, is_instance, kernel, overload, sample_kernel
from gamp_attention._kernels.deferred import compile_kernel, deferred_kernel, define_function, emit_address
from gamp_attention._kernels.pointers import emit_call, store_at

VECTOR, MATRIX = types.float64[::1], types.float64[:, ::1]
WORD = ir.IntType(64)


class IndirectLoss(NamedTuple):
    """A registered loss as compiled code receives it: all registered losses have this type."""

    table: int  # address of the function table


class TableSlots(IntEnum):
    """Indices of the words of a function table."""

    DIFFERENTIATE = 0
    OBJECTIVE = 1
    OBJECTIVE_DERIVATIVES = 2
    IS_UNIQUE = 3
    LOSS = 4  # first word of the loss; the words before it are addresses of kernels


class LossKernel(NamedTuple):
    """A kernel that can be called through a table, with the numba types of its other arguments and of its result."""

    kernel: Any
    kinds: tuple[Any, ...]
    returns: Any
    deferred: bool  # whether it is compiled at its first call; its word of the table is zero before


_KERNELS: dict[TableSlots, LossKernel] = {}
_TABLES: dict[Any, np.ndarray] = {}  # tables by content of the loss; never freed, as compiled code has their addresses
_TYPES: dict[int, Any] = {}  # numba types of the losses of all tables, by address of the table
COMPILE = "gamp_attention.compile_loss_kernel"  # symbol of the function that returns the address of a deferred kernel


def make_indirect_call(slot: TableSlots, kinds: tuple[Any, ...], returns: Any) -> Any:
    """Return an intrinsic call(table, others) that calls the kernel whose address is in a slot of a table.

    `table` is the address of the table, and `others` is a tuple of values of the numba types `kinds`. The kernel is
    called with a pointer to the loss in the table, followed by the other values. Its exceptions are propagated.
    """

    def _call(typing_context: Any, table: Any, others: Any) -> Any:
        if tuple(map(_layout, map(types.unliteral, others))) != tuple(map(_layout, kinds)):
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            words = builder.inttoptr(arguments[0], WORD.as_pointer())
            cell = builder.gep(words, [WORD(int(slot))])
            if _KERNELS[slot].deferred:
                address = emit_address(context, builder, cell, COMPILE, [arguments[0], WORD(int(slot))])
            else:
                address = builder.load(cell)
            first_word = builder.gep(words, [WORD(int(TableSlots.LOSS))])
            loss = builder.bitcast(first_word, context.get_value_type(types.voidptr))
            values = [builder.extract_value(arguments[1], i) for i in range(len(kinds))]
            return emit_call(context, builder, address, returns, (types.voidptr, *kinds), [loss, *values])

        return returns(types.int64, types.Tuple(others)), generate

    return intrinsic(_call)


def _layout(kind: Any) -> Any:
    """Return a type without the flag `readonly` of arrays, which does not affect how they are passed."""
    return kind.copy(readonly=False) if isinstance(kind, types.Array) else kind


def loss_kernel(
    slot: TableSlots, returns: Any, *kinds: Any, inline: Any = None, deferred: bool = False
) -> Callable[[Any], Any]:
    """Return a decorator that makes a function(loss, *others) a kernel, called through its table by an `IndirectLoss`.

    Parameters
    ----------
    slot : index in the table.
    returns, kinds : numba types of the result and of `others`.
    inline : decorator for calls with other losses, for example `inline_kernel`; by default the same kernel is called.
    deferred : whether the kernel is compiled at its first call, because only some problems need it.

    The function must read the loss by `load_from(loss)`, as it receives a pointer if it is called through a table.
    """

    def decorate(function: Any) -> Any:
        compiled: Any = deferred_kernel(returns)(function) if deferred else sample_kernel(function)
        direct = inline(function) if inline else compiled
        call = make_indirect_call(slot, kinds, returns)
        _KERNELS[slot] = LossKernel(compiled.kernel if deferred else compiled, kinds, returns, deferred)

        stub = dispatch_on_type(function)

        @overload(stub, strict=False)
        def choose(loss, *others):
            if is_instance(loss, IndirectLoss):
                return lambda loss, *others: call(loss.table, others)
            return lambda loss, *others: direct(loss, *others)

        stub.kernel = _KERNELS[slot].kernel
        return stub

    return decorate


def as_indirect(loss: Any) -> Any:
    """Return a registered loss as an `IndirectLoss`, or unchanged if it contains anything but numbers."""
    content = _content(loss)
    if content is None:
        return loss
    table = _TABLES.get(content)
    if table is None:
        kind, context = typeof(loss), cpu_target.target_context
        n_bytes = context.get_abi_sizeof(context.get_data_type(kind))
        table = np.zeros(TableSlots.LOSS + -(-n_bytes // 8), dtype=np.int64)
        _store_loss(loss, table[TableSlots.LOSS :].ctypes.data)
        table[: TableSlots.LOSS] = _kernel_addresses(kind)
        _TYPES[table.ctypes.data] = kind
        table = _TABLES.setdefault(content, table)  # another thread may have made one
    return IndirectLoss(table.ctypes.data)


def _content(value: Any) -> Any:
    """Return the numbers in a loss, with their types because 1 == 1.0; None if it contains anything else."""
    if isinstance(value, tuple):
        parts = tuple(map(_content, value))
        return None if None in parts else (type(value), parts)
    return (type(value), repr(value)) if isinstance(value, bool | int | float | np.bool_ | np.number) else None


@lru_cache
def _kernel_addresses(kind: Any) -> list[int]:
    """Return the addresses of all kernels for a loss type, in table order; 0 for deferred kernels."""
    slots = map(TableSlots, range(TableSlots.LOSS))
    return [0 if _KERNELS[slot].deferred else _kernel_address(kind, slot) for slot in slots]


def _kernel_address(kind: Any, slot: TableSlots) -> int:
    """Return the address of the kernel in a slot for a loss type."""
    compiled, kinds, returns, _ = _KERNELS[slot]
    return compile_kernel(compiled, (types.CPointer(kind), *kinds), returns)


define_function(COMPILE, lambda table, slot: _kernel_address(_TYPES[table], TableSlots(slot)), 2)


@kernel
def _store_loss(loss, address):
    """Write a loss to the word LOSS of a table, which is at `address`, in numba's memory layout."""
    store_at(loss, address)
