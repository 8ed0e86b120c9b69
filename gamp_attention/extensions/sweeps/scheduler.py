"""Chains of jobs on any executor; workers store the row of each job when it is finished."""

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, ProcessPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from multiprocessing import connection, current_process, get_context, parent_process
from typing import Any

from numba import config

from gamp_attention._tools import check
from gamp_attention._tools.numerics import one_thread
from gamp_attention._tools.progress import Progress, is_shown
from gamp_attention.extensions.sweeps.store import Store

NEEDS_GUARD = (
    'a worker process ended; scripts with local_pool need the guard `if __name__ == "__main__":` above their '
    "statements, because each worker imports the script"
)
WAIT = 0.5  # seconds between two updates of the progress bar
_computing = threading.Lock()  # one job at a time in a process, since the number of threads is set per process


def run_chains(chains: Sequence[Sequence[Any]], store: Store, executor: Any = None) -> int:
    """Compute all jobs that are not stored yet, chain by chain; return the number of jobs that this call computed.

    Parameters
    ----------
    chains : picklable jobs, in the order in which the jobs of a chain are run. A job has a `key`, the name of its file
        without suffix; `parameters`, plain data that are stored with its row; and a method `run`, which returns the row
        (plain data), given the stored row of the previous job. An exception in `run` ends all chains.
    store : a store after `begin`, on a file system that all workers can access.
    executor : object with `submit` that returns futures of concurrent.futures, on which compiled kernels use one
        thread; serial, with all threads, if not given.

    Raises
    ------
    RuntimeError : if a worker failed; the message explains how to resume.
    KeyboardInterrupt : by Ctrl-C; the message explains how to resume.
    """
    check_workers(executor)
    missing = {job.key for chain in chains for job in chain if store.load(job.key) is None}
    waiting = [chain for chain in chains if any(job.key in missing for job in chain)]
    total = sum(len(chain) for chain in chains)
    with Progress("cells ", total=total) as bar:
        bar.update(total - len(missing))

        def advance() -> None:  # counts files, which other processes may have written
            if is_shown():
                bar.update(total - len(missing - store.present()) - bar.done)

        try:
            if executor is None:
                return sum(run_chain(str(store.folder), chain, False, advance) for chain in waiting)
            return _submit(waiting, store, executor, advance)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_resume("interrupted", store)) from None


def check_workers(executor: Any) -> None:
    """Raise TypeError unless an executor can run jobs."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise check.fail("executor", executor, "an executor with submit(), or None", TypeError)


def run_chain(
    folder: str, chain: Sequence[Any], single: bool, finished: Callable[[], Any] | None = None, run: str = ""
) -> int:
    """Compute and store the missing jobs of one chain; return their number.

    If `single`, kernels use one thread. `finished` is called after each job. `run` is not used: it distinguishes calls
    for executors that remember the results of calls.
    """
    store, previous, count = Store(folder), None, 0
    for job in chain:
        with _computing:
            row = store.load(job.key)  # looked up only now: another process may have computed it
            if row is None:
                began = time.perf_counter()
                with one_kernel_thread() if single else nullcontext():
                    computed = job.run(previous)
                if store.load(job.key) is None:
                    store.save(job.key, job.parameters, computed, time.perf_counter() - began)
                row = store.load(job.key)
                count += 1
        if finished is not None:
            finished()
        previous = row
    return count


@contextmanager
def one_kernel_thread() -> Iterator[None]:
    """Let compiled kernels and BLAS use one thread in the block."""
    before = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    config.NUMBA_NUM_THREADS = 1  # type: ignore[attr-defined]
    try:
        with one_thread():
            yield
    finally:
        config.NUMBA_NUM_THREADS = before  # type: ignore[attr-defined]


def _submit(chains: Sequence[Sequence[Any]], store: Store, executor: Any, advance: Callable[[], None]) -> int:
    """Run chains on an executor, the longest first."""
    count, futures = 0, set[Any]()
    try:
        for chain in sorted(chains, key=len, reverse=True):
            run = uuid.uuid4().hex  # dask caches results by arguments; a new argument makes it run the call again
            futures.add(executor.submit(run_chain, str(store.folder), chain, True, run=run))
        while futures:
            done, futures = wait(futures, timeout=WAIT, return_when=FIRST_COMPLETED)
            count += sum(future.result() for future in done)
            advance()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and isinstance(executor, ProcessPoolExecutor):
            for process in list((executor._processes or {}).values()):  # rows that are already stored remain
                process.terminate()
        else:
            for future in futures:
                future.cancel()
        if not isinstance(error, Exception):
            raise
        reason = NEEDS_GUARD if isinstance(error, BrokenExecutor) else f"{type(error).__name__}: {error}"
        raise RuntimeError(_resume(f"a worker failed ({reason})", store)) from error
    return count


def _resume(event: str, store: Store) -> str:
    if store.temporary:
        remedy = "run the same command again, with `folder` to be able to continue it"
        return f"{event}; nothing was stored: {remedy}"
    return f"{event}; finished cells are stored in {store.folder}: run the same command again to continue"


def local_pool(workers: int | None = None) -> ProcessPoolExecutor:
    """Return a pool of processes on this machine, an executor for `sweep` and `phase_boundaries`.

    The processes end if the process that created the pool is killed. Scripts need the guard
    ``if __name__ == "__main__":`` above their statements, because each worker imports the script.

    Parameters
    ----------
    workers : number of processes; one for each core if not given.

    Returns
    -------
    concurrent.futures.ProcessPoolExecutor

    Raises
    ------
    TypeError : if `workers` is not an integer.
    ValueError : if `workers` is not between 1 and 1024.
    RuntimeError : by `sweep` or `phase_boundaries`, if a script has no guard.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> with ga.local_pool(2) as pool:
    ...     list(pool.map(abs, [-1, 2]))
    [1, 2]
    """
    if workers is not None:
        check.integer("workers", workers, low=1, high=1024)  # all are started at once
    if getattr(current_process(), "_inheriting", False):
        os._exit(1)  # this process is a worker that imports a script without a guard; the parent raises the error
    return ProcessPoolExecutor(workers or os.cpu_count() or 1, get_context("spawn"), _prepare_worker)


def _prepare_worker() -> None:
    """Ignore Ctrl-C, to which the parent reacts, and end this process when its parent has ended.

    The operating system does not end workers of a killed parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:

        def watch() -> None:
            connection.wait([parent.sentinel])
            os._exit(1)

        threading.Thread(target=watch, daemon=True, name="end with parent").start()
