"""Data beyond memory: tokens on disk, drawn again at every pass, or on the workers of a dask cluster.

Criteria. Out of core, in a process whose memory is capped at a quarter of the data, an iteration takes at most 1.5
times as long as reading the file once. Two dask workers find the Q of one process to 1e-10, also if one of them is
killed during the run. Drawn again at every pass, d = 50 000 and n = 75 000 take at most 2 GB. The time of such an
iteration is reported, and the state of the run after `-- --iterations N`. Finished parts, and the iterations of the
largest run, are stored, and an interrupted script resumes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gamp_attention as ga
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_parts

ALPHA, DAMPING = 1.5, 0.5
LIMITS = {"out of core": 1.5, "distributed": 1e-10, "memory": 2e9}

OUT_OF_CORE = """
import json, os, resource, sys, time
import numpy as np
import gamp_attention as ga
from gamp_attention.gamp.step import gamp_step
from gamp_attention.problem.stores import BLOCK_BYTES, FileTokens
path, d, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = ga.paper_model()
small = ga.sample(model, 60, 1.5, seed=0, storage="none")
gamp_step(small, "asymptotic", ga.initial_state(small, small.Q_star), 0.3)  # compiles the kernels
data = ga.sample(model, d, 1.5, seed=0, storage=path)
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
limit = used + data.tokens.nbytes // 4
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones(data.tokens.nbytes // 24)  # a third: the cap must hold
    sys.exit("memory is not capped")
except MemoryError:
    pass

def forget():
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

def read():
    buffer = bytearray(BLOCK_BYTES)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass

state = ga.initial_state(data, data.Q_star)
found = {"bytes": data.tokens.nbytes}
for name, before in (("cold", forget), ("warm", lambda: None)):
    seconds = {"read": [], "iteration": []}
    for turn in range(repeats + 1):
        for task, record in (("read", read), ("iteration", None)):
            before()
            began = time.perf_counter()
            if record:
                record()
            else:
                state, _ = gamp_step(data, "asymptotic", state, 0.5)
            if turn:
                seconds[task].append(time.perf_counter() - began)
    found[name] = {task: float(np.median(values)) for task, values in seconds.items()}
print(json.dumps(found))
"""

LARGE = """
import json, re, sys, time
import numpy as np
import gamp_attention as ga
from pathlib import Path
d, iterations, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
began = time.perf_counter()
data = ga.sample(ga.paper_model(), d, 1.5, seed=0, dtype="float32", storage="none")
drawn, times, norms = time.perf_counter() - began, [time.perf_counter()], []

def callback(t, state, report):
    times.append(time.perf_counter())
    norms.append(report.gradient_norm)
    print(f"iteration {t}: {times[-1] - times[-2]:.0f} s, gradient {norms[-1]:.1e}", file=sys.stderr, flush=True)

options = ga.IterationOptions(accelerate=True, settling=False, callback=callback)
result = ga.train(data, risk="asymptotic", n_starts=1, survey=False, max_iter=iterations, iteration=options,
                  checkpoint=ga.Checkpoint(folder / "large.npz", 0))
peak = 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
theta, q = (float(getattr(result.overlaps, name).mean()) for name in ("theta", "q"))
print(json.dumps({"d": d, "n": data.n_samples, "bytes": data.tokens.nbytes, "peak": peak, "sampling": drawn,
                  "iteration": float(np.median(np.diff(times))) if len(times) > 1 else None, "n_iter": result.n_iter,
                  "status": result.status.value, "gradient_norm": result.gradient_norm, "theta": theta, "q": q}))
"""


def run_child(code, *arguments):
    """Return the last line that a script prints, as JSON; its standard error is passed on."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def measure_out_of_core(quick):
    """Return the times of an iteration over a file and of reading it, from the disk and from the system's cache."""
    with tempfile.TemporaryDirectory() as folder:
        measured = run_child(OUT_OF_CORE, Path(folder) / "tokens.npy", 3000 if quick else 8000, 3 if quick else 5)
    return measured | {
        f"{kind} ratio": measured[kind]["iteration"] / measured[kind]["read"] for kind in ("cold", "warm")
    }


def compare_distributed(quick):
    """Return the same run in one process, on two workers, and on two workers, one of which is killed."""
    from distributed import Client, LocalCluster

    d = 300 if quick else 2000
    data = ga.sample(ga.paper_model(), d, ALPHA, seed=0, storage="none")
    ga.run_gamp(data, risk="asymptotic", damping=DAMPING, max_iter=25)  # compiles the kernels of a run
    began = time.perf_counter()
    expected, rows = ga.run_gamp(data, risk="asymptotic", damping=DAMPING), {}
    alone = time.perf_counter() - began
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(**options, local_directory=folder, env={"NUMBA_NUM_THREADS": "1"}) as cluster,
        Client(cluster) as client,
    ):
        for name in ("two workers", "one killed"):

            def callback(t, state, report, name=name):
                if name == "one killed" and t == 10:
                    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

            there = ga.DistributedDataset(data, client)
            began = time.perf_counter()
            result = ga.run_gamp(
                there, risk="asymptotic", damping=DAMPING, iteration=ga.IterationOptions(callback=callback)
            )
            rows[name] = {
                "d": d, "status": result.status.value, "n_iter": result.n_iter, "seconds": time.perf_counter() - began,
                "alone": alone, "distance": float(abs(result.Q - expected.Q).max()),
            }  # fmt: skip
    return rows


def format_table(numbers):
    """Return the lines of the manual's table."""
    lines = ["| measured | reached | target |", "|---|---|---|"]
    core = numbers["out of core"]
    size = f"{core['bytes'] / 1e9:.1f} GB, memory capped at a quarter"
    for kind, where in (("cold", "disk"), ("warm", "system's cache")):
        seconds = f"{core[kind]['iteration']:.2f} s over {core[kind]['read']:.2f} s"
        lines.append(f"| iteration over reading the file once, from the {where}, {size} "
                     f"| {core[f'{kind} ratio']:.2f} ({seconds}) | 1.5 |")  # fmt: skip
    for name, row in numbers["distributed"].items():
        times = f"{row['n_iter']} iterations in {row['seconds']:.1f} s; one process drawing again: {row['alone']:.1f} s"
        lines.append(
            f"| largest difference of Q, dask, {name}, d = {row['d']} | {row['distance']:.0e} ({times}) | 1e-10 |"
        )
    row = numbers["regenerated"]
    lines.append(
        f"| peak memory, drawn again, d = {row['d']}, n = {row['n']} ({row['bytes'] / 1e9:.0f} GB in float32) "
        f"| {row['peak'] / 1e9:.2f} GB; sampling {row['sampling']:.0f} s, an iteration {row['iteration']:.0f} s; "
        f"gradient norm {row['gradient_norm']:.1e} after {row['n_iter']} ({row['status']}) | 2 GB |"
    )
    return "\n".join(lines) + "\n"


def main():
    most = {"type": int, "default": 60, "help": "iterations of the run that draws its tokens again (default 60)"}
    args = options(__doc__, iterations=most)
    verdict = Verdict("scale", args)
    folder = verdict.path("_runs")
    folder.mkdir(exist_ok=True)
    parts = {
        "out of core": lambda: measure_out_of_core(args.quick),
        "distributed": lambda: compare_distributed(args.quick),
        "regenerated": lambda: run_child(LARGE, 2000 if args.quick else 50_000, args.iterations, folder),
    }
    numbers = complete_parts(verdict.path("_parts.json"), parts)
    verdict.write_table(format_table(numbers))
    limit = (4 if args.quick else 1) * LIMITS["out of core"]  # quick sizes are too small to time
    for kind in ("cold", "warm"):
        ratio = numbers["out of core"][f"{kind} ratio"]
        verdict.check(ratio <= limit, f"out of core, {kind}: {ratio:.2f} times reading the file (<= {limit:g})")
    for name, row in numbers["distributed"].items():
        good = row["status"] == "converged" and row["distance"] <= LIMITS["distributed"]
        verdict.check(good, f"dask, {name}: {row['status']}, Q differs by {row['distance']:.0e}")
    row = numbers["regenerated"]
    peak = row["peak"]
    verdict.check(peak <= LIMITS["memory"], f"drawn again, d = {row['d']}: peak memory {peak / 1e9:.2f} GB")
    verdict.end(numbers)


if __name__ == "__main__":
    main()
