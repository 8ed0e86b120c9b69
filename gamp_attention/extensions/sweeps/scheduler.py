"""Chains of jobs on any executor; workers store the row of each job when it is finished."""

import math
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection, current_process, parent_process
from multiprocessing.context import SpawnContext, SpawnProcess
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from numba import config

from gamp_attention._tools import check
from gamp_attention._tools.progress import Progress, describe, is_shown
from gamp_attention.extensions.sweeps.store import Store

LIBRARY_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
WORKER, UNGUARDED = "local_pool", 97  # name of workers, and their exit status if a script lacks its guard
NEEDS_GUARD = (
    'local_pool: needs the guard `if __name__ == "__main__":` above the statements of the script, because each worker '
    "process imports the script; put local_pool and all other calls into the indented block below this line"
)
WAIT = 0.5  # seconds between two checks of jobs that other processes are computing
_computing = threading.Lock()  # one job at a time in a process, since the number of threads is set per process


class Job(Protocol):
    """Unit of work of `run_chains`; it must be picklable.

    An exception in `run` ends all chains. A job whose failure should not do so returns a row with the error.
    """

    @property
    def key(self) -> str:
        """Name of the job's file, without suffix."""

    @property
    def parameters(self) -> dict[str, Any]:
        """Plain data that are stored with the row."""

    def run(self, previous: dict[str, Any] | None) -> dict[str, Any]:
        """Return a row of plain data, given the stored row of the previous job in the chain."""


def run_chains(chains: Sequence[Sequence[Job]], store: Store, executor: Any = None) -> int:
    """Compute all jobs that are not stored yet, chain by chain; return the number of jobs that this call computed.

    Parameters
    ----------
    chains : jobs; the jobs of a chain are run in order, each with the row of the previous job.
        If several processes run the same chains in one folder, they divide the jobs among them, and each process
        returns when all jobs are stored.
    store : a store after `begin`, on a file system that all workers can access.
    executor : object with `submit` that returns futures, as in concurrent.futures, on which compiled kernels use one
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
                return _run_in_turn(waiting, store, advance)
            return _submit(waiting, store, executor, advance)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_resume("interrupted", store)) from None


def check_workers(executor: Any) -> None:
    """Raise TypeError unless an executor can run jobs."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise check.fail("executor", executor, "an executor with submit(), or None", TypeError)


class ChainRun(NamedTuple):
    """Outcome of `run_chain`."""

    computed: int  # number of jobs that were computed
    complete: bool  # False if the call ended at a job that another process is computing


def run_chain(
    folder: str, chain: Sequence[Job], threads: int | None, finished: Callable[[], Any] | None = None, run: str = ""
) -> ChainRun:
    """Compute and store the missing jobs of one chain, up to a job that another process is computing.

    `finished` is called after each job. `run` is not used: it distinguishes calls for executors that remember the
    results of calls.
    """
    store, previous, count = Store(folder), None, 0
    for job in chain:
        with _computing:
            row = store.load(job.key)  # looked up only now: another process may have computed it
            if row is None:
                with store.claims.hold(job.key) as free:
                    if not free:
                        return ChainRun(count, False)
                    row = store.load(job.key)  # again: it may have been stored just before the claim
                    if row is None:
                        began = time.perf_counter()
                        with kernel_threads(threads):
                            computed = job.run(previous)
                        store.save(job.key, job.parameters, computed, time.perf_counter() - began)
                        row = store.load(job.key)
                        count += 1
        if finished is not None:
            finished()
        previous = row
    return ChainRun(count, True)


def _run_in_turn(chains: Sequence[Sequence[Job]], store: Store, finished: Callable[[], Any]) -> int:
    """Run chains in this process; chains that other processes are computing are tried again after the others."""
    count, waiting = 0, list(chains)
    while waiting:
        before, postponed = count, []
        for chain in waiting:
            done = run_chain(str(store.folder), chain, None, finished)
            count += done.computed
            if not done.complete:
                postponed.append(chain)
        if len(postponed) == len(waiting) and count == before:
            describe("waiting for cells that other processes compute")
            time.sleep(WAIT)
        waiting = postponed
    return count


@contextmanager
def kernel_threads(threads: int | None) -> Iterator[None]:
    """Set the number of threads of compiled kernels in the block; None leaves numba's setting unchanged."""
    before = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    try:
        if threads is not None:
            config.NUMBA_NUM_THREADS = threads  # type: ignore[attr-defined]
        yield
    finally:
        config.NUMBA_NUM_THREADS = before  # type: ignore[attr-defined]


def _submit(chains: Sequence[Sequence[Job]], store: Store, executor: Any, advance: Callable[[], None]) -> int:
    """Run chains on an executor, the longest first; postponed chains are submitted again after `WAIT` seconds."""
    done: SimpleQueue[Any] = SimpleQueue()
    futures: set[Any] = set()
    postponed = sorted(chains, key=len, reverse=True)
    open_chains, count, submitted = len(chains), 0, -math.inf

    def submit(chain: Sequence[Job]) -> None:
        run = uuid.uuid4().hex  # dask caches results by arguments; a new argument makes it run the call again
        future = executor.submit(run_chain, str(store.folder), chain, 1, run=run)
        futures.add(future)
        future.add_done_callback(lambda ended: done.put((ended, chain)))

    try:
        while open_chains:
            if postponed and time.monotonic() - submitted > WAIT:
                for chain in postponed:
                    submit(chain)
                postponed, submitted = [], time.monotonic()
            try:
                future, chain = done.get(timeout=WAIT)  # after the timeout `advance` updates the progress bar
                futures.discard(future)
                run = future.result()
                count += run.computed
                if run.complete:
                    open_chains -= 1
                else:
                    postponed.append(chain)
            except Empty:
                pass
            advance()
    except BaseException as error:
        if isinstance(error, BrokenExecutor) and getattr(executor, "lacks_guard", False):
            raise RuntimeError(NEEDS_GUARD) from None
        if isinstance(error, KeyboardInterrupt) and hasattr(executor, "abandon"):
            executor.abandon()
        else:
            for future in futures:
                future.cancel()
        if isinstance(error, Exception):
            raise RuntimeError(_resume(f"a worker failed ({type(error).__name__}: {error})", store)) from error
        raise
    return count


def _resume(event: str, store: Store) -> str:
    if store.temporary:
        remedy = "run the same command again, with `folder` to be able to continue it"
        return f"{event}; nothing was stored: {remedy}"
    return f"{event}; finished cells are stored in {store.folder}: run the same command again to continue"


class _QuietProcess(SpawnProcess):
    """Process that starts with one thread for linear algebra, unless the environment sets a number."""

    def start(self) -> None:
        script = sys.modules["__main__"]
        name = getattr(script, "__file__", None)
        if name and not os.path.exists(name):  # <stdin>, which the process could not import
            del script.__file__
        unset = [name for name in LIBRARY_THREADS if name not in os.environ]
        os.environ.update(dict.fromkeys(unset, "1"))
        main = threading.current_thread() is threading.main_thread()
        # the child inherits this handler: only the parent reacts to Ctrl-C
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        try:
            super().start()
        finally:
            if main:
                signal.signal(signal.SIGINT, handler)
            for name in unset:
                del os.environ[name]


class _QuietContext(SpawnContext):
    """Context that starts quiet processes, and remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **options: Any) -> SpawnProcess:  # type: ignore[override]
        process = _QuietProcess(*args, **options | {"name": f"{WORKER}-{len(self.started)}"})
        self.started.append(process)
        return process


class _LocalPool(ProcessPoolExecutor):
    """Pool of processes that can be ended before their jobs are done."""

    def __init__(self, workers: int) -> None:
        self._context = _QuietContext()
        super().__init__(workers, mp_context=self._context, initializer=_end_with_parent)

    @property
    def lacks_guard(self) -> bool:
        """True if a worker ended because it imported a script that makes a pool without a guard; ends the pool."""
        self.shutdown()  # waits for the exit statuses
        return any(process.exitcode == UNGUARDED for process in self._context.started)

    def abandon(self) -> None:
        """End all processes immediately; rows that are already stored remain."""
        for process in self._context.started:
            if process.is_alive():
                process.terminate()


def local_pool(workers: int | None = None) -> ProcessPoolExecutor:
    """Return a pool of processes on this machine, an executor for `sweep` and `phase_boundaries`.

    The processes end if the process that created the pool is killed.

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
    RuntimeError : by `sweep` or `phase_boundaries`, if the pool is made in a script without the guard
        ``if __name__ == "__main__":``. Workers import the script, and would make further pools.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> with ga.local_pool(2) as pool:
    ...     list(pool.map(abs, [-1, 2]))
    [1, 2]
    """
    if workers is not None:
        check.integer("workers", workers, low=1, high=1024)  # all are started at once
    if current_process().name.startswith(WORKER) and getattr(current_process(), "_inheriting", False):
        os._exit(UNGUARDED)  # this process is a worker that imports the script; the parent raises the error
    return _LocalPool(workers or os.cpu_count() or 1)


def _end_with_parent() -> None:
    """End this process when its parent has ended; the operating system does not end workers of a killed parent."""
    parent = parent_process()
    if parent is not None:

        def watch() -> None:
            connection.wait([parent.sentinel])
            os._exit(1)

        threading.Thread(target=watch, daemon=True, name="end with parent").start()
