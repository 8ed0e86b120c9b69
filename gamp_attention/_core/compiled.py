"""Decorators that compile functions with numba, and threads that run compiled kernels on blocks of rows.

All compile options are in this module. Kernels release the GIL and work on a range of rows. `over_blocks` gives blocks
of rows to threads. The blocks do not depend on the number of threads, so neither do the results, and several Python
threads may call kernels. (Numba's parallel layer is not safe in this case, and rejects nested NamedTuples.)
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial, wraps
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, extending
from numba.core import cgutils, types
from numba.extending import intrinsic

from gamp_attention._core.kernels import InlinedCompiler, Kernel

CACHE_LINE = 64  # size in bytes of the unit of memory that a processor loads


def _prefetch(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    """Start loading the cache line of array[row, column] into the second-level cache.

    The index may lie outside the array.
    """

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


COMMON: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}  # no entry point for C code
INLINED: dict[str, Any] = {  # copied into kernels: no entry point for Python either
    **COMMON, "forceinline": True, "no_cpython_wrapper": True, "pipeline_class": InlinedCompiler,
}  # fmt: skip


def kernel(function: Callable[..., Any], counted: bool = True, inner: bool = False, **options: Any) -> Any:
    """Return a `Kernel`, which is compiled or loaded from disk at its first call.

    Parameters
    ----------
    function : function to compile.
    counted : whether references to arrays are counted, which a function that allocates arrays needs. The counts are
        atomic, and threads wait for each other at the counts of shared arrays, so functions that run once per sample
        should not count.
    inner : if True, only kernels can call the function; there is no entry point for Python.
    options : further options of numba.
    """
    chosen = {"nopython": True, "nogil": True, "_nrt": counted, "no_cpython_wrapper": inner}
    compiled = Kernel(function, targetoptions={**COMMON, **chosen, **options})
    compiled.enable_caching()
    return compiled


inner_kernel = partial(kernel, inner=True)
sample_kernel = partial(kernel, counted=False, inner=True)
# sums may be reordered in the long dot products over the data only; short sums are computed in the order of the source
field_kernel = partial(kernel, counted=False, fastmath={"reassoc", "contract", "nsz"})
inline_kernel = extending.register_jitable(**INLINED, _nrt=False)
user_kernel = extending.register_jitable(**INLINED, _nrt=True)  # user-defined methods may allocate arrays


def overload(function: Any, counted: bool = False, strict: bool = True) -> Any:
    """Return a decorator for the inlined code of a stub for some types of arguments, see `dispatch_on_type`.

    `counted` has the meaning that it has for `kernel`. With `strict`, the code must name its arguments as the decorated
    function does.
    """
    options: Any = {**INLINED, "_nrt": counted}
    return extending.overload(function, jit_options=options, strict=strict)


def dispatch_on_type(function: Callable[..., Any]) -> Any:
    """Return a stub that compiled code calls, whose code numba selects by the types of the arguments.

    It is the counterpart of `functools.singledispatch` for kernels. The decorated function has no body: its name and
    docstring state which result all implementations have in common. A module that defines a type, for example a loss,
    adds the implementation for this type by `overload(stub)`. The function that `overload` decorates receives the numba
    types of the arguments, not their values. It returns a Python function with the same arguments, which is compiled,
    or None for types that it does not handle. If no implementation handles the types, numba raises a TypingError. Calls
    outside of compiled code raise NotImplementedError.
    """

    @wraps(function)
    def stub(*arguments: Any) -> Any:
        raise NotImplementedError(f"{function.__name__}() can be called by compiled code only")

    return stub


def is_instance(numba_type: Any, cls: type) -> bool:
    """Return whether a numba type is the NamedTuple `cls`; used to select an overload."""
    return isinstance(numba_type, types.BaseNamedTuple) and getattr(numba_type, "instance_class", None) is cls


@lru_cache
def _pool(
    pid: int, n_threads: int
) -> ThreadPoolExecutor:  # one pool per process, because threads do not survive a fork
    return ThreadPoolExecutor(n_threads, thread_name_prefix="gamp_attention")


def over_blocks(task: Callable[[int, int], Any], n_rows: int, block: int) -> None:
    """Call task(first, last) for every block of rows, on NUMBA_NUM_THREADS threads."""
    starts = range(0, n_rows, block)
    n_threads = min(config.NUMBA_NUM_THREADS, len(starts))  # type: ignore[attr-defined]
    if n_threads <= 1:
        for first in starts:
            task(first, min(first + block, n_rows))
        return
    _wait([_pool(os.getpid(), n_threads).submit(task, first, min(first + block, n_rows)) for first in starts])


def interruptible_blocks(task: Callable[[int, int, np.ndarray], Any], n_rows: int, block: int, long: bool) -> None:
    """Call task(first, last, stop) for every block of rows, as `over_blocks`, and end at once after Ctrl-C.

    Python cannot handle a signal while a kernel runs in the main thread. If the work may be `long`, it is therefore run
    in other threads. If the main thread is interrupted, it sets `stop` (1,) to 1; kernels must check `stop` between
    steps that take milliseconds.
    """
    stop = np.zeros(1, dtype=np.int64)
    n_threads = min(config.NUMBA_NUM_THREADS, -(-n_rows // block))  # type: ignore[attr-defined]
    if not long and n_threads <= 1:
        over_blocks(lambda first, last: task(first, last, stop), n_rows, block)
        return
    ranges = [(first, min(first + block, n_rows)) for first in range(0, n_rows, block)]
    pool = ThreadPoolExecutor(1) if n_threads <= 1 else _pool(os.getpid(), n_threads)
    try:
        _wait([pool.submit(task, first, last, stop) for first, last in ranges])
    except BaseException:
        stop[0] = 1
        raise
    finally:
        if n_threads <= 1:
            pool.shutdown()


def _wait(futures: list[Future[Any]]) -> None:
    """Wait for tasks; if a task fails or this thread is interrupted, cancel all tasks that have not begun."""
    try:
        for future in futures:
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        raise
