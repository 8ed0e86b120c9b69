"""Protocol of per-sample losses ℓ(z; p): the functions that compiled code calls, whatever the loss.

A loss is a NamedTuple. Numba selects the code of the following functions by its type: the code of attention layers is
in `gamp_attention.problem.losses.attention`, and the code of registered losses and attention maps in `point`. The
fields z (L, r) of a sample are flat, with z[l * r + a], and p (P,) are the parameters of the sample.

- `make_work(loss, memory)` returns scratch for the other functions, in a vector of `work_size(loss)` numbers.
- `loss_value(loss, p, z, work)` returns ℓ(z).
- `loss_derivatives(loss, p, z, grad, hess, work, second)` returns ℓ(z) and fills its gradient, and its Hessian if
  `second` is True; if not, hess is scratch.
- `loss_floor(loss, p, work)` returns a lower bound of ℓ over all z.
- `loss_curvature(loss, p, center, reach)` returns a lower bound of the eigenvalues of ∇²ℓ on ‖z − center‖ ≤ reach.

A loss without a bound returns −inf. In Python, a loss has the attributes `n_tokens`, `rank` and `n_fields`, `n_params`
(the number P, or None if any number is possible), `by_differences` (whether derivatives may be central
differences of values, and kernels call the loss through a table), and the method `torch(params, z)`.

**Indirect calls.** Passes over the tokens, denoisers and searches for minima call a few kernels that depend on the
loss: the functions decorated with `loss_kernel`. To compile all of these callers again for every user-defined loss or
attention map would take long. Therefore, compiled code receives the loss of a registered class as an `IndirectLoss`,
which has the address of a function table. The table consists of words of eight bytes:

    word 0, 1, ...    addresses of the kernels in `TableSlots`, compiled for the class of this loss; zero before
    word LOSS, ...    the loss: a NamedTuple of numbers, in numba's memory layout

A caller reads the address of a kernel from the table and calls it with a pointer to the word LOSS. The kernel reads the
loss from there (`load_from`). Losses that are not registered, or that contain arrays, are compiled into the callers;
for these, the kernel receives the loss itself.
"""

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba import typeof
from numba.core import types
from numba.core.registry import cpu_target
from numba.core.types import boolean, float64
from numba.extending import intrinsic

from gamp_attention._kernels.compiled import (
    dispatch_on_type,
    inline_kernel,
    is_instance,
    kernel,
    overload,
    sample_kernel,
)
from gamp_attention._kernels.deferred import WORD, compile_kernel, deferred_kernel, define_function, emit_address
from gamp_attention._kernels.pointers import emit_call, load_from, place

VECTOR, MATRIX = types.float64[::1], types.float64[:, ::1]
COMPILE = "gamp_attention.compile_loss_kernel"  # symbol of the function that returns the address of a kernel


class IndirectLoss(NamedTuple):
    """A registered loss as compiled code receives it: all registered losses have this type."""

    table: int  # address of the function table
    n_fields: int  # number of fields per sample, L r
    kinked: bool = False  # whether the loss has kinks in several fields


def work_size(loss: Any) -> int:
    """Return the size of the memory of `make_work`: by default enough for derivatives by differences of values."""
    return int(getattr(loss, "work_size", (loss.n_fields + 2) * loss.n_fields))


class TableSlots(IntEnum):
    """Indices of the words of a function table."""

    DIFFERENTIATE = 0
    OBJECTIVE = 1
    OBJECTIVE_DERIVATIVES = 2
    IS_UNIQUE = 3
    LOSS = 4  # first word of the loss; the words before it are addresses of kernels


_KERNELS: dict[TableSlots, tuple[Any, tuple[Any, ...], Any]] = {}  # kernels, types of their arguments and results
_TABLES: dict[Any, np.ndarray] = {}  # tables by content of the loss; never freed, as compiled code has their addresses
_TYPES: dict[int, Any] = {}  # numba types of the losses of all tables, by address of the table


def loss_kernel(slot: TableSlots, returns: Any, *kinds: Any, inline: Any = None) -> Callable[[Any], Any]:
    """Return a decorator that makes a function(loss, *others) a kernel, called through its table by an `IndirectLoss`.

    `returns` and `kinds` are the numba types of the result and of `others`. `inline` is a decorator for calls with
    other losses; by default the same kernel is called. The function must read the loss by `load_from(loss)`, as it
    receives a pointer if it is called through a table.
    """

    def decorate(function: Any) -> Any:
        deferred = deferred_kernel(returns)(function)
        direct, call = inline(function) if inline else deferred, _make_indirect_call(slot, kinds, returns)
        _KERNELS[slot] = deferred.kernel, kinds, returns
        stub = dispatch_on_type(function)

        @overload(stub, strict=False)
        def choose(loss, *others):
            if is_instance(loss, IndirectLoss):
                return lambda loss, *others: call(loss.table, others)
            return lambda loss, *others: direct(loss, *others)

        stub.kernel = deferred.kernel
        return stub

    return decorate


def _make_indirect_call(slot: TableSlots, kinds: tuple[Any, ...], returns: Any) -> Any:
    """Return an intrinsic call(table, others) that calls the kernel in a slot of the table at an address.

    `others` is a tuple of values of the numba types `kinds`. Exceptions of the kernel are propagated.
    """

    def _call(typing_context: Any, table: Any, others: Any) -> Any:
        if tuple(map(_layout, map(types.unliteral, others))) != tuple(map(_layout, kinds)):
            return None

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            words = builder.inttoptr(arguments[0], WORD.as_pointer())
            cell = builder.gep(words, [WORD(int(slot))])
            address = emit_address(context, builder, cell, COMPILE, [arguments[0], WORD(int(slot))])
            first_word = builder.gep(words, [WORD(int(TableSlots.LOSS))])
            loss = builder.bitcast(first_word, context.get_value_type(types.voidptr))
            values = [builder.extract_value(arguments[1], i) for i in range(len(kinds))]
            return emit_call(context, builder, address, returns, (types.voidptr, *kinds), [loss, *values])

        return returns(types.int64, types.Tuple(others)), generate

    return intrinsic(_call)


def _layout(kind: Any) -> Any:
    """Return a type without the flag `readonly` of arrays, which does not affect how they are passed."""
    return kind.copy(readonly=False) if isinstance(kind, types.Array) else kind


def for_kernels(loss: Any) -> Any:
    """Return a loss as kernels receive it: an `IndirectLoss` if it is registered and contains nothing but numbers."""
    content = _content(loss) if getattr(loss, "by_differences", False) else None
    if content is None:
        return loss
    if content not in _TABLES:
        kind, context = typeof(loss), cpu_target.target_context
        n_bytes = context.get_abi_sizeof(context.get_data_type(kind))
        table = np.zeros(TableSlots.LOSS + -(-n_bytes // 8), dtype=np.int64)
        _store_loss(loss, table[TableSlots.LOSS :])
        _TYPES[table.ctypes.data] = kind
        _TABLES.setdefault(content, table)  # another thread may have made one
    return IndirectLoss(_TABLES[content].ctypes.data, loss.n_fields)


def _content(value: Any) -> Any:
    """Return the numbers in a loss, with their types because 1 == 1.0; None if it contains anything else."""
    if isinstance(value, tuple):
        parts = tuple(map(_content, value))
        return None if None in parts else (type(value), parts)
    return (type(value), repr(value)) if isinstance(value, bool | int | float | np.bool_ | np.number) else None


def _kernel_address(table: int, slot: int) -> int:
    """Return the address of the kernel in a slot for the loss of a table."""
    compiled, kinds, returns = _KERNELS[TableSlots(slot)]
    return compile_kernel(compiled, (types.CPointer(_TYPES[table]), *kinds), returns)


define_function(COMPILE, _kernel_address, 2)


@kernel
def _store_loss(loss, words):
    """Write a loss to the words of a table from LOSS on, in numba's memory layout."""
    place(loss, words)


@dispatch_on_type
def make_work(loss, memory):
    """Return scratch for the other functions. Compiled code only."""


@dispatch_on_type
def loss_value(loss, p, z, work):
    """Return ℓ(z). Compiled code only."""


@dispatch_on_type
def loss_derivatives(loss, p, z, grad, hess, work, second):
    """Return ℓ(z), and fill its gradient and, if `second` is True, its Hessian. Compiled code only."""


@dispatch_on_type
def loss_floor(loss, p, work):
    """Return a lower bound of ℓ over all z. Compiled code only."""


@dispatch_on_type
def loss_curvature(loss, p, center, reach):
    """Return a lower bound of the eigenvalues of ∇²ℓ on a ball around a point. Compiled code only."""


@loss_kernel(TableSlots.DIFFERENTIATE, float64, VECTOR, VECTOR, VECTOR, MATRIX, VECTOR, boolean, inline=sample_kernel)
def differentiate(loss, p, z, grad, hess, work, second):
    """Return `loss_derivatives`, compiled once for all calling kernels."""
    return loss_derivatives(load_from(loss), p, z, grad, hess, work, second)


@inline_kernel
def outer_radius(center, reach):
    """Return the radius of the smallest ball around zero that contains a ball around `center`."""
    total = 0.0
    for i in range(center.shape[0]):
        total += center[i] * center[i]
    return math.sqrt(total) + reach
