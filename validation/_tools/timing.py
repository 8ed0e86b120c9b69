"""Times of repeated calls."""

import time
from collections.abc import Callable
from typing import Any


def measure_times(task: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.process_time) -> list[float]:
    """Return the seconds of each of several calls; a call before them, which compiles, is not counted.

    Parameters
    ----------
    task : called without arguments.
    repeats : number of calls that are counted.
    clock : processor time by default, or `time.perf_counter` for the time that passes.
    """
    task()
    times = []
    for _ in range(repeats):
        began = clock()
        task()
        times.append(clock() - began)
    return times
