"""Kernels that are compiled for the class of a loss and called at an address, so that what calls them is not.

To kernels, registered losses have one type: the passes, denoisers and searches that are above these kernels are
compiled once for all of them. What is called for every step of a minimisation is compiled for each class, as before.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, NamedTuple

import numpy as np
from numba import typeof
from numba.core import types

from gamp_attention._core.compiled import is_instance, kernel, overload, sample_kernel
from gamp_attention._core.function_tables import byte_size, caller, put


class CalledLoss(NamedTuple):
    """A loss whose class its callers do not know."""

    table: int  # the address of a table


class Places(NamedTuple):
    """What is where in the table of a loss, in words of eight bytes: addresses of kernels, and what the loss holds."""

    differentiate: int = 0
    objective: int = 1
    objective_derivatives: int = 2
    minimise_from: int = 3
    is_unique: int = 4
    gradient: int = 5
    fields: int = 6


PLACES = Places()
VECTOR, MATRIX = types.float64[::1], types.float64[:, ::1]
_KERNELS: dict[int, Any] = {}  # of each place, with the types of its arguments and of what it returns
_TABLES: dict[Any, np.ndarray] = {}  # by what the loss holds; never given up, as kernels may have the address


def loss_kernel(place: int, returns: Any, *kinds: Any, inline: Any = None) -> Callable[[Any], Any]:
    """A kernel function(loss, *others): where the loss is a CalledLoss, it is called at the address in its table.

    `kinds` are numba's types of the others, and `returns` that of the answer; the kernel is given a pointer to the
    loss, see `behind`. For a loss of another type it is a `sample_kernel`, or what `inline` makes of the function.
    """

    def compile_for_each(function: Any) -> Any:
        alone, call = sample_kernel(function), caller(place, PLACES.fields, kinds, returns)
        _KERNELS[place], plain = (alone, kinds, returns), inline(function) if inline else alone

        @wraps(function)
        def dispatched(*arguments: Any) -> Any:
            raise NotImplementedError(f"{function.__name__}() is called by compiled code only")

        @overload(dispatched, strict=False)
        def choose(loss, *others):
            if is_instance(loss, CalledLoss):
                return lambda loss, *others: call(loss.table, others)
            return lambda loss, *others: plain(loss, *others)

        dispatched.kernel = alone  # type: ignore[attr-defined]
        return dispatched

    return compile_for_each


def called(loss: Any) -> Any:
    """A registered loss at its fields as a CalledLoss; as it is where it holds anything else than numbers."""
    content = _content(loss)
    if content is None:
        return loss
    table = _TABLES.get(content)
    if table is None:
        kind = typeof(loss)
        table = np.zeros(PLACES.fields + -(-byte_size(kind) // 8), dtype=np.int64)
        _store(loss, table[PLACES.fields :].ctypes.data)
        table[: PLACES.fields] = _addresses(kind)
        table = _TABLES.setdefault(content, table)
    return CalledLoss(table.ctypes.data)


def _content(value: Any) -> Any:
    """The numbers that a loss holds, with all types, as others may be equal; None where it holds anything else."""
    if isinstance(value, tuple):
        parts = tuple(map(_content, value))
        return None if None in parts else (type(value), parts)
    return (type(value), repr(value)) if isinstance(value, bool | int | float | np.bool_ | np.number) else None


@lru_cache
def _addresses(kind: Any) -> list[int]:
    """Of the kernels for a type of losses, in the order of their places."""
    found = []
    for place in range(PLACES.fields):
        alone, kinds, returns = _KERNELS[place]
        address, given = alone.address((types.CPointer(kind), *kinds))
        if given != returns:
            raise TypeError(f"{alone.py_func.__name__}: needs to return {returns}, got {given}")
        found.append(address)
    return found


@kernel
def _store(loss, address):
    """Write what a loss holds to an address."""
    put(loss, address)
