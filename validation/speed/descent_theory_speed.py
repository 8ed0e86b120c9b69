"""A long prediction of gradient descent, 300 steps, takes less than a minute of each of two cores.

Method: derivatives along every path take T³ operations per path and are read from memory at every step, which limits
the speed; other parts take T² operations. Replicas are computed one after the other, in the memory of one. Processor
time and time by the clock are listed separately, for machines with other users; the peak of memory is of the whole
process.

Criterion: 300 steps of two replicas of 4096 paths of the paper's model take less than a minute of each of two cores.
"""

import resource
import time

import numba

import gamp_attention as ga
from gamp_attention.extensions.dynamics.field_paths import bytes_per_path
from validation._tools.report import Verdict, options

HOW = {"method": ga.GradientDescent(lr=3.0), "n_replicas": 2}
SIZES = {100: 4096, 200: 4096, 300: 4096}  # number of paths by number of steps
QUICK = {30: 512, 60: 512}
MINUTE, CORES = 60.0, 2


def measure_time(n_iter, n_paths):
    """Return seconds by the clock and of all threads, and the memory of the paths."""
    clock, work = time.perf_counter(), time.process_time()
    ga.trajectory(ga.paper_model(), 1.5, "positional", n_iter=n_iter, n_paths=n_paths, **HOW)
    seconds = {"seconds": time.perf_counter() - clock, "cpu_seconds": time.process_time() - work}
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # over all runs so far
    needed = n_paths * bytes_per_path(n_iter + 1, 2)
    return {"n_iter": n_iter, "n_paths": n_paths, "bytes": needed, "peak": peak} | seconds


def main():
    args = options(__doc__)
    verdict = Verdict("descent_theory_speed", args)
    measure_time(2, 64)  # compiles
    rows = [measure_time(n_iter, n_paths) for n_iter, n_paths in (QUICK if args.quick else SIZES).items()]
    for row in rows:
        text = "{n_iter} steps of two times {n_paths} paths, {bytes:.2g} bytes, {peak:.2g} in all".format(**row)
        print(f"{text}: {row['cpu_seconds']:.1f} s of processors, {row['seconds']:.1f} s by the clock")
    last = rows[-1]["cpu_seconds"] / CORES
    words = f"{rows[-1]['n_iter']} steps of two times {rows[-1]['n_paths']} paths"
    verdict.check(last <= MINUTE, f"{words}: {last:.0f} s of each of {CORES} cores")
    verdict.end({"rows": rows, "threads": numba.config.NUMBA_NUM_THREADS})


if __name__ == "__main__":
    main()
