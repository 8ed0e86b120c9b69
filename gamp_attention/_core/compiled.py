"""Prefetch hint for compiled loops that know which memory they will read soon.

The only place with compile options, and the threads that compiled kernels run on.

Kernels release the GIL and work on a range of rows; `over_blocks` deals fixed blocks of rows to threads.
Blocks never depend on the number of threads, so results do not either, and calling from several Python
threads is safe (numba's own parallel layer is not, and rejects nested NamedTuples).
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, extending
from numba.core import cgutils, types
from numba.extending import intrinsic

from gamp_attention._core.function_tables import InlinedCompiler, Kernel

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


COMMON: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}  # nothing but kernels and Python calls them
INLINED: dict[str, Any] = {  # only kernels
    **COMMON, "forceinline": True, "no_cpython_wrapper": True, "pipeline_class": InlinedCompiler,
}  # fmt: skip


def kernel(function: Callable[..., Any], counted: bool = True, inner: bool = False, **options: Any) -> Any:
    """Compile a function when it is called, or take it from the disk. Kernels call each other through addresses.

    `counted`: references to arrays are counted, as allocating any inside needs. Counts are atomic, and threads wait for
    each other at those of shared arrays: what runs once a sample does without.
    `inner`: only kernels call it, so that nothing is compiled that takes its arguments from Python.
    """
    own = {"nopython": True, "nogil": True, "_nrt": counted, "no_cpython_wrapper": inner}
    made = Kernel(function, targetoptions={**COMMON, **own, **options})
    made.enable_caching()
    return made


inner_kernel = partial(kernel, inner=True)
sample_kernel = partial(kernel, counted=False, inner=True)
# reassociation for the long dot products over the data alone; the small algebra stays strict
field_kernel = partial(kernel, counted=False, fastmath={"reassoc", "contract", "nsz"})
inline_kernel = extending.register_jitable(**INLINED, _nrt=False)
user_kernel = extending.register_jitable(**INLINED, _nrt=True)  # it may allocate


def overload(function: Any, counted: bool = False, strict: bool = True) -> Any:
    """Code of a function for one type, chosen when a kernel is compiled; `counted` as for `kernel`."""
    options: Any = {**INLINED, "_nrt": counted}
    return extending.overload(function, jit_options=options, strict=strict)


def is_instance(numba_type: Any, cls: type) -> bool:
    """Whether a numba type is the NamedTuple `cls`; used to choose an overload."""
    return isinstance(numba_type, types.BaseNamedTuple) and getattr(numba_type, "instance_class", None) is cls


@lru_cache
def _pool(pid: int, n_threads: int) -> ThreadPoolExecutor:  # threads do not survive a fork: one pool a process
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
    """Call task(first, last, stop) as `over_blocks` does, such that Ctrl-C ends it at once.

    While a kernel runs in the main thread, Python cannot act on a signal. So if the work may be long, it runs in other
    threads. When the main thread is interrupted, it sets `stop` (1,) to 1, which kernels have to look at between steps
    that take milliseconds.
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
    """Wait for tasks; if one fails, or this thread is interrupted, those that have not begun are given up."""
    try:
        for future in futures:
            future.result()
    except BaseException:
        for future in futures:
            future.cancel()
        raise
