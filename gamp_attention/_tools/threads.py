"""Threads that run compiled kernels on blocks of rows.

The blocks do not depend on the number of threads, so neither do the results, and several Python threads may call
kernels. (Numba's parallel layer is not safe in this case, and rejects nested NamedTuples.)
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from time import perf_counter
from typing import Any

import numpy as np
from numba import config

SHORT = 5e-4  # seconds of work before threads start, which takes about this long


@lru_cache
def _pool(pid: int, n_threads: int) -> ThreadPoolExecutor:
    """Return the threads of a process; each process has its own, because threads do not survive a fork."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="gamp_attention")


def over_blocks(task: Callable[[int, int], Any], n_rows: int, block: int) -> None:
    """Call task(first, last) for every block of rows, on NUMBA_NUM_THREADS threads."""
    interruptible_blocks(lambda first, last, stop: task(first, last), n_rows, block, False)


def interruptible_blocks(task: Callable[[int, int, np.ndarray], Any], n_rows: int, block: int, long: bool) -> None:
    """Call task(first, last, stop) for every block of rows, as `over_blocks`, and end at once after Ctrl-C.

    Python cannot handle a signal while a kernel runs in the main thread. If the work may be `long`, it is therefore run
    in other threads. If the main thread is interrupted, it sets `stop` (1,) to 1; kernels must check `stop` between
    steps that take milliseconds. Other work begins in this thread, because threads cost more than they save if it is
    done within `SHORT` seconds.
    """
    stop, ranges = np.zeros(1, dtype=np.int64), [(k, min(k + block, n_rows)) for k in range(0, n_rows, block)]
    n_threads = min(config.NUMBA_NUM_THREADS, len(ranges))  # type: ignore[attr-defined]
    n_done, end = 0, perf_counter() + SHORT
    while not long and n_done < len(ranges) and (n_threads <= 1 or perf_counter() < end):
        task(*ranges[n_done], stop)
        n_done += 1
    if n_done == len(ranges):
        return
    pool = ThreadPoolExecutor(1) if n_threads <= 1 else _pool(os.getpid(), n_threads)
    futures = [pool.submit(task, first, last, stop) for first, last in ranges[n_done:]]
    try:
        for future in futures:
            future.result()
    except BaseException:  # a task failed, or this thread was interrupted: cancel all tasks that have not begun
        stop[0] = 1
        for future in futures:
            future.cancel()
        raise
    finally:
        if n_threads <= 1:
            pool.shutdown()
