"""The only place with compile options, and the threads that compiled kernels run on.

Kernels release the GIL and work on a range of rows; `over_blocks` deals fixed blocks of rows to threads.
Blocks never depend on the number of threads, so results do not either, and calling from several Python
threads is safe (numba's own parallel layer is not, and rejects nested NamedTuples).
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any

from numba import config, extending
from numba.core import types

from gamp_attention._core.inlined import InlinedCompiler
from gamp_attention._core.kernels import Kernel

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
    futures = [_pool(os.getpid(), n_threads).submit(task, first, min(first + block, n_rows)) for first in starts]
    try:
        for future in futures:
            future.result()
    finally:  # after Ctrl-C no further block begins, which the end of the process would wait for
        for future in futures:
            future.cancel()
