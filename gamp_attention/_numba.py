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

from numba import config, extending, njit

kernel = njit(cache=True, error_model="numpy", nogil=True)
# for code of the user's, which numba's cache would not see change
fresh_kernel = njit(error_model="numpy", nogil=True)
# reassociation for the long dot products over the data alone; the small algebra stays strict
field_kernel = njit(cache=True, error_model="numpy", nogil=True, fastmath={"reassoc", "contract", "nsz"})
inline_kernel = extending.register_jitable(error_model="numpy", forceinline=True)
overload = partial(extending.overload, jit_options={"error_model": "numpy", "forceinline": True})


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
    for future in futures:
        future.result()


__all__ = ["field_kernel", "fresh_kernel", "inline_kernel", "kernel", "over_blocks", "overload"]
