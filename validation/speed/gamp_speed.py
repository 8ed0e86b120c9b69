"""Speed of GAMP: time of an iteration and to a critical point, memory, and how cost grows.

All times are ratios of runs that take turns on one machine, with the threads that numba and BLAS are given. With one
(`NUMBA_NUM_THREADS=1 OMP_NUM_THREADS=1`) it is the processor's time, which other work disturbs less. The least of some
repeats counts, or the median over instances for whole solutions. There is a pause after each X @ Q, because BLAS's
threads keep the cores busy for a while before they sleep.

Criteria, which are the targets of the project: an iteration takes at most 1.4 times as long as the best `X @ Q` in
double precision and 1.6 times in single, as the difference of runs of 40 and of 10. By default a critical point takes
at most half of the evaluations of L-BFGS-B on our own compiled loss and gradient and .6 of the time, and a hundredth
of that of the paper's torch descent. Time is that until the critical point is reached; what is then found out about
it, whether it is a minimum above all, is counted "with what is told of the end". At most 1.1 times the data plus the
state are in memory. Quick sizes only have to be near. Stored parts are not measured again.
"""

import subprocess
import sys

from validation._tools.parts import kept_parts
from validation._tools.report import Verdict, options
from validation.speed._iteration_speed import growth, iteration
from validation.speed._solution_speed import TOL, solution
from validation.speed._speed_table import ITERATION, draw, table

CHILD = """
import re, sys, gamp_attention as ga
from pathlib import Path
from gamp_attention.gamp.step import gamp_step
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # not the parent's
small = ga.sample(ga.paper_model(), 50, 1.5, seed=0, dtype=sys.argv[2])
gamp_step(small, "asymptotic", ga.initial_state(small, small.Q_star), 0.3)
before = peak()
data = ga.sample(ga.paper_model(), int(sys.argv[1]), 1.5, seed=0, dtype=sys.argv[2])
result = ga.run_gamp(data, risk="asymptotic", damping=0.5, accelerate=sys.argv[3] == "1", max_iter=25, tol=0)
state = result.state
print((peak() - before) / data.tokens.nbytes, (state.Q.nbytes + 3 * state.D.nbytes) / data.tokens.nbytes)
"""


def memory(quick):
    """Peak resident memory of sampling and a run, over the size of the tokens."""
    rows, d = {}, 1000 if quick else 4000
    for dtype in ("float64", "float32"):
        for mode in ("damped", "accelerated"):
            command = [sys.executable, "-c", CHILD, str(d), dtype, str(int(mode == "accelerated"))]
            words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            rows[f"{dtype}, {mode}"] = {"d": d, "peak": float(words[0]), "state": float(words[1])}
    return rows


def main():
    found = options(__doc__)
    verdict = Verdict("gamp_speed", found)
    parts = {
        "iteration": lambda: iteration(found.quick),
        "solution 1000": lambda: solution(300 if found.quick else 1000, found.quick),
        "solution 4000": lambda: {} if found.quick else solution(4000, found.quick),
        "memory": lambda: memory(found.quick),
        "growth": lambda: growth(found.quick),
    }
    numbers = kept_parts(verdict.path("_parts.json"), parts)
    print(table(numbers))
    for dtype, row in numbers["iteration"].items():
        limit, ratio = 5.0 if found.quick else ITERATION[dtype], row["least"]["run"]
        verdict.check(ratio <= limit, f"{dtype}: an iteration takes {ratio:.2f} of one X @ Q (<= {limit})")
    for key in ("solution 1000", "solution 4000"):
        for branch, row in numbers[key].items():
            where = f"d = {row['d']}, {branch}"
            verdict.check(row["norm"] <= TOL, f"{where}: gradient norm {row['norm']:.1e} at most")
            if not found.quick:
                ratio, faster, share = row["over_lbfgs"], row["torch_over"], row["evaluations"]
                verdict.check(share <= 0.5, f"{where}: {share:.2f} of L-BFGS-B's evaluations (<= 0.5)")
                verdict.check(ratio <= 0.6, f"{where}: {ratio:.2f} of L-BFGS-B's time (<= 0.6)")
                verdict.check(faster >= 100, f"{where}: {faster:.0f} times faster than torch (>= 100)")
    for name, row in numbers["memory"].items():
        limit = 1.1 + row["state"] + (1.0 if found.quick else 0.0)
        verdict.check(row["peak"] <= limit, f"{name}: peak {row['peak']:.2f} of the data (<= {limit:.2f})")
    draw(verdict.path(".png"), numbers["growth"])
    verdict.path(".md").write_text(table(numbers))
    verdict.end(numbers)


if __name__ == "__main__":
    main()
