"""Speed of GAMP: time of an iteration and to a critical point, memory, and growth of the cost.

Method: all times are ratios of runs that alternate on one machine, with the threads that numba and BLAS are given. With
one thread (`NUMBA_NUM_THREADS=1 OMP_NUM_THREADS=1`) they are processor times, which other programs disturb less. The
minimum of some repeats counts, or the median over instances for whole solutions. There is a pause after each X @ Q,
because BLAS's threads keep the cores busy for a while before they sleep. Stored parts are not measured again.
Missed targets are shown in the table. The page "Measurements for developers" of the manual explains what limits an
iteration.

Criteria, the targets of the project: an iteration takes at most 1.4 times as long as the best `X @ Q` in double
precision and 1.6 times in single precision, as the difference of runs of 40 and of 10 iterations. By default a critical
point takes at most half of the evaluations of L-BFGS-B on our compiled loss and gradient, 0.6 of its time, and a
hundredth of the time of the paper's torch descent. The time ends when the critical point is reached; the later analysis
of this point, mainly whether it is a minimum, is counted "with the analysis of the end". Memory is at most 1.1 times
the data plus the state. Quick sizes only have to be close.

Running time with --quick: about 30 s on one core, after compilation.
"""

import subprocess
import sys
import time

import numba
import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention._kernels.compiled import field_kernel
from gamp_attention.extensions.comparison.figures import draw_legend
from gamp_attention.gamp.step import GampState, gamp_step
from gamp_attention.problem.passes import LOOP_ROWS, add_up, project
from gamp_attention.problem.risk import gradient_norm, risk_at
from gamp_attention.problem.starts import initial_weights
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_parts

ALPHA, PAUSE = 1.5, 0.03
# processor time on one thread, which other programs on the machine disturb less
clock = time.process_time if numba.config.NUMBA_NUM_THREADS == 1 else time.perf_counter
SHORT, LONG, RUNS = 10, 40, 3  # iterations of two runs, whose difference is measured, and number of repeats
IN_CACHE = 16  # number of rows that fit into the cache


def measure_in_turns(tasks, repeats):
    """Return median and minimum of the seconds of each task. Tasks alternate, after one run of each."""
    seconds = {name: [] for name in tasks}
    for turn in range(repeats + 1):
        for name, task in tasks.items():
            time.sleep(PAUSE)
            began = clock()
            task()
            if turn:
                seconds[name].append(clock() - began)
    return {name: (float(np.median(values)), min(values)) for name, values in seconds.items()}


def build_state(data, branch, n_iter=25):
    """Return a state in the middle of a run, with minima held."""
    state = ga.initial_state(data, initial_weights(data, branch))
    for t in range(n_iter):
        state, _ = gamp_step(data, "asymptotic", state, 0.3, hold=t >= 20)
    return state


def measure_iteration(quick):
    """Return the time of an iteration over the time of one X @ Q."""
    d, repeats, rows = 1000 if quick else 4000, 5 if quick else 15, {}
    for dtype in ("float64", "float32"):
        data = ga.sample(ga.paper_model(), d, ALPHA, seed=0, dtype=dtype)
        X = data.tokens.reshape(-1, d)
        state = build_state(data, "semantic")
        Q = state.Q.astype(dtype)
        seconds = measure_in_turns(
            {
                "product": lambda X=X, Q=Q: X @ Q,
                "held": lambda data=data, state=state: gamp_step(data, "asymptotic", state, 0.3, hold=True),
                "global": lambda data=data, state=state: gamp_step(data, "asymptotic", state, 0.3),
                "prox": lambda data=data, state=state: run_prox(data, state),
                "risk": lambda data=data, state=state: risk_at(data, state.Q, "asymptotic"),
                "stream": lambda X=X: np.dot(X.ravel(), X.ravel()),
                "loops": lambda X=X, state=state: run_loops(X, state.Q, 1),
                "cached": lambda X=X, state=state: run_loops(X[:IN_CACHE], state.Q, len(X) // IN_CACHE),
            },
            repeats,
        )
        median, least = seconds["product"]
        run = min(measure_run(data) for _ in range(RUNS))
        bandwidth = X.nbytes / seconds["stream"][1]
        rows[dtype] = {"d": d, **{name: s / median for name, (s, _) in seconds.items()}, "seconds": seconds}
        rows[dtype]["least"] = {name: s / least for name, (_, s) in seconds.items()} | {"run": run / least}
        rows[dtype] |= {"bandwidth": bandwidth, "flops": 6 * X.size / seconds["cached"][1]}
    return rows


def measure_run(data):
    """Return the seconds of an iteration, from two runs of `run_gamp` with different numbers of iterations."""
    times = []
    for n_iter in (SHORT, LONG):
        began = clock()
        ga.run_gamp(data, "semantic", "asymptotic", damping=0.3, max_iter=n_iter)
        times.append(clock() - began)
    return (times[1] - times[0]) / (LONG - SHORT)


def run_loops(X, Q, repeats):
    """Run the loops of a pass separately: fields of all rows along Q, and two sums of the rows."""
    columns, sums = np.ascontiguousarray(Q.T, dtype=float), np.zeros((2 * Q.shape[1], len(Q)))
    _run_loops(repeats, X, columns, np.zeros((LOOP_ROWS, len(columns))), np.ones((LOOP_ROWS, len(sums))), sums)


@field_kernel
def _run_loops(repeats, rows, columns, fields, weights, sums):
    last = rows.shape[0] - rows.shape[0] % LOOP_ROWS - LOOP_ROWS
    for _ in range(repeats):
        for first in range(0, last + 1, LOOP_ROWS):
            ahead = min(first + LOOP_ROWS, last)
            project(first, ahead, rows, columns, fields)
            weights[0, 0] = fields[0, 0]
            add_up(first, ahead, rows, weights, sums)


def run_prox(data, state):
    """Run the proximal steps of an iteration; the centers of the state are near its minimizers."""
    return ga.denoise(data.loss, data.terms("asymptotic").params, state.z - state.D, state.V, state.z, hold=True)


def measure_growth(quick):
    """Return seconds of an iteration against d, n, L and r, and exponents."""
    base = {"d": 400 if quick else 1000, "n": 6000, "L": 2, "r": 1}
    sizes = {"d": (250, 500, 1000, 2000, 4000), "n": (1500, 3000, 6000, 12000, 24000), "L": (2, 4, 8), "r": (1, 2, 4)}
    if quick:
        base["n"], sizes = 400, {"d": (200, 400, 800), "L": (2, 3), "r": (1, 2)}
    rows = {}
    for name, values in sizes.items():
        medians = []
        for value in values:
            at = {**base, name: value}
            model = ga.attention_model(at["L"], at["r"], 1)
            data = ga.sample(model, at["d"], at["n"] / at["d"], seed=0)
            state = ga.initial_state(data, initial_weights(data, "semantic"))
            for t in range(8):
                state, _ = gamp_step(data, "asymptotic", state, 0.3, hold=t >= 4)
            held = GampState(state.Q, state.V, state.D, state.z)
            task = {"s": lambda d=data, s=held: gamp_step(d, "asymptotic", s, 0.3, hold=True)}
            medians.append(measure_in_turns(task, 5)["s"][0])
        # from the largest sizes, where fixed costs count least
        slope = np.polyfit(np.log(values[-3:]), np.log(medians[-3:]), 1)[0]
        rows[name] = {"sizes": list(values), "seconds": medians, "exponent": float(slope), "base": base}
    return rows


TOL, STEPS = 1e-8, 5000
INSTANCES = 5  # number of solved instances
RATIOS = "evaluations", "over_lbfgs", "with_verdict"


def run_lbfgs(data, start):
    """Run L-BFGS-B until the gradient norm is at most TOL; return evaluations and seconds until then."""
    began, row = clock(), {}

    class Reached(Exception):
        pass

    def value_and_gradient(x):
        at = risk_at(data, x.reshape(start.shape), "asymptotic")
        row["n"] = row.get("n", 0) + 1
        row["norm"] = gradient_norm(data, at.gradient)
        row["loss"] = at.train_loss
        if row["norm"] <= TOL:
            raise Reached
        return at.train_loss * data.dim, at.gradient.ravel()

    try:
        limits = {"maxiter": 5000, "maxfun": 5000, "ftol": 0.0, "gtol": 0.0}
        minimize(value_and_gradient, start.ravel(), jac=True, method="L-BFGS-B", options=limits)
    except Reached:
        pass
    return {**row, "s": clock() - began}


def run_message_passing(data, start, accelerate=None):
    """Return a run, and the seconds until it reached the critical point, without its later analysis."""
    began, reached = clock(), []
    options = ga.IterationOptions(accelerate=accelerate, callback=lambda *_: reached.append(clock()))
    run = ga.run_gamp(data, start, "asymptotic", iteration=options)
    whole = clock() - began
    return run, whole if run.n_settle else reached[-1] - began


def measure_torch(data, branch, steps):
    """Return the seconds of `steps` steps of the paper's descent, without the overheads of start and end."""
    times = []
    for n in (2, 2 + steps):
        began = clock()
        ga.minimize_risk(data, branch, "asymptotic", method="gd", max_iter=n, tol=0)
        times.append(clock() - began)
    return times[1] - times[0]


def measure_solution(d, quick):
    """Return times to a critical point, of L-BFGS-B and of the paper's descent; medians over instances."""
    rows = {}
    for branch in ("semantic", "positional"):
        instances = []
        for seed in range(1 if quick else INSTANCES):
            data = ga.sample(ga.paper_model(), d, ALPHA, seed=seed)
            start = initial_weights(data, branch)
            ga.run_gamp(data, start, "asymptotic", max_iter=2)  # compiles and imports before times are measured
            risk_at(data, start, "asymptotic")
            tasks = {
                "gamp": lambda data=data, start=start: run_message_passing(data, start),
                "lbfgs": lambda data=data, start=start: run_lbfgs(data, start),
                "damped": lambda data=data, start=start: run_message_passing(data, start, accelerate=False),
            }
            ends, seconds = {}, {}
            for name, task in tasks.items():
                time.sleep(PAUSE)
                began = clock()
                ends[name] = task()
                seconds[name] = clock() - began
            (gamp, reached), (damped, _), lbfgs = ends["gamp"], ends["damped"], ends["lbfgs"]
            instances.append({
                "seed": seed, "status": gamp.status.value, "n_iter": gamp.n_iter, "n_settle": gamp.n_settle,
                "norm": gamp.gradient_norm, "loss": gamp.train_loss, "n_damped": damped.n_iter, "lbfgs": lbfgs,
                "evaluations": (gamp.n_iter + 1 + gamp.n_settle) / lbfgs["n"], "reached": reached,
                "seconds": seconds, "over_lbfgs": reached / seconds["lbfgs"],
                "with_verdict": seconds["gamp"] / seconds["lbfgs"], "loss_damped": damped.train_loss,
            })  # fmt: skip
        data = ga.sample(ga.paper_model(), d, ALPHA, seed=0)
        ga.minimize_risk(data, branch, "asymptotic", method="gd", max_iter=2, tol=0)
        steps = 20 if quick else 200_000 // d
        torch = measure_torch(data, branch, steps) / steps * STEPS
        median = {
            "n_iter": float(np.median([row["n_iter"] for row in instances])),
            "n_lbfgs": float(np.median([row["lbfgs"]["n"] for row in instances])),
            **{name: float(np.median([row[name] for row in instances])) for name in RATIOS},
            "torch_over": torch / float(np.median([row["seconds"]["gamp"] for row in instances])),
        }
        rows[branch] = {
            "d": d,
            "norm": max(row["norm"] for row in instances),
            "torch": torch,
            "instances": instances,
        } | median
    return rows


PARTS = {
    "reading the tokens": "stream",
    "products and sums in cache": "cached",
    "products and sums": "loops",
    "a risk": "risk",
    "proximal steps": "prox",
    "an iteration": "held",
    "with global minima": "global",
}
ITERATION = {"float64": 1.4, "float32": 1.6}  # targets of an iteration over one X @ Q
TICKS = tuple(lead * 10**power for power in range(6) for lead in (1, 2, 5))  # ms


def draw_growth(path, rows, what, across, labels):
    """Draw times against sizes, one panel for each row, with the fitted power of the last three sizes."""
    down = -(-len(rows) // across)
    with figure(path, down, min(len(rows), across), (2.4 * min(len(rows), across), 2.6 * down + 0.3)) as axes:
        for axis, (name, row) in zip(axes.ravel(), rows.items(), strict=False):
            size, ms = np.array(row["sizes"]), 1e3 * np.array(row["seconds"])
            axis.plot(size, ms, "o", label="measured")
            last = slice(-3, None)
            fit = row["exponent"] * np.log(size[last] / size[-1])
            axis.plot(size[last], np.exp(fit - fit.mean() + np.log(ms[last]).mean()), "-", label="fitted power")
            axis.set(xscale="log", yscale="log", xlabel=labels[name], title=f"exponent {row['exponent']:.2f}")
            axis.set_xticks(size, [_label(value) for value in size], rotation=45, ha="right", rotation_mode="anchor")
            ticks = [tick for tick in TICKS if ms.min() <= 1.1 * tick and tick <= 1.1 * ms.max()]
            axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
        for axis in axes.ravel()[len(rows) :]:
            axis.set_axis_off()
        for row in axes:
            row[0].set_ylabel(what)
        draw_legend(axes[0, 0], columns=2)


LABELS = {"d": "dimension d", "n": "samples n", "L": "tokens per sample L", "r": "columns of weights r"}


def draw(numbers, path):
    """Draw the time of an iteration against each size."""
    draw_growth(path, numbers["growth"], "time of an iteration, ms", 4, LABELS)


def _label(value):
    power = np.log10(value)
    return f"1e{power:.0f}" if power >= 4 and power == int(power) else f"{value:g}"


def format_table(numbers):
    """Return the lines of the manual's table."""
    lines = ["| measured | reached | target |", "|---|---|---|"]
    for dtype, row in numbers.get("iteration", {}).items():
        least, limit = row["least"], ITERATION[dtype]
        lines.append(f"| iteration over one `X @ Q`, d = {row['d']}, {dtype} | {least['run']:.2f} | {limit} |")
        parts = ", ".join(f"{part} {least[key]:.2f}" for part, key in PARTS.items())
        lines.append(f"| its parts by themselves, {dtype} | {parts} | |")
        speeds = f"{row['bandwidth'] / 1e9:.0f} GB/s from memory, {row['flops'] / 1e9:.0f} GFlop/s in cache"
        lines.append(f"| bounds, {dtype} | {speeds} | |")
    for key in ("solution 1000", "solution 4000"):
        for branch, row in numbers.get(key, {}).items():
            counts = f"{row['n_iter']:g} iterations, {row['n_lbfgs']:g} evaluations"
            where, each = f"d = {row['d']}, {branch}", [one["over_lbfgs"] for one in row["instances"]]
            lines.append(f"| evaluations of GAMP over L-BFGS-B, {where} | {row['evaluations']:.2f} ({counts}) | 0.5 |")
            spread = f"{min(each):.2f} to {max(each):.2f} in {len(each)} instances; {row['with_verdict']:.2f} with"
            text = f"{row['over_lbfgs']:.2f} ({spread} the analysis of the end)"
            lines.append(f"| time of GAMP over L-BFGS-B, {where} | {text} | 0.6 |")
            lines.append(f"| torch descent over GAMP, {where} | {row['torch_over']:.0f} | 100 |")
    for name, row in numbers.get("memory", {}).items():
        lines.append(f"| peak memory over the tokens', d = {row['d']}, {name} | {row['peak']:.2f} | 1.1 + state |")
    for name, row in numbers.get("growth", {}).items():
        lines.append(f"| exponent of an iteration in {name} | {row['exponent']:.2f} | |")
    return "\n".join(lines) + "\n"


CHILD = """
import re, sys, gamp_attention as ga
from pathlib import Path
from gamp_attention.gamp.step import gamp_step
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # not the parent's
small = ga.sample(ga.paper_model(), 50, 1.5, seed=0, dtype=sys.argv[2])
gamp_step(small, "asymptotic", ga.initial_state(small, small.Q_star), 0.3)
before = peak()
data = ga.sample(ga.paper_model(), int(sys.argv[1]), 1.5, seed=0, dtype=sys.argv[2])
options = ga.IterationOptions(accelerate=sys.argv[3] == "1")
result = ga.run_gamp(data, risk="asymptotic", damping=0.5, max_iter=25, tol=0, iteration=options)
state = result.state
print((peak() - before) / data.tokens.nbytes, (state.Q.nbytes + 3 * state.D.nbytes) / data.tokens.nbytes)
"""


def measure_memory(quick):
    """Return the peak resident memory of sampling and a run, over the size of the tokens."""
    rows, d = {}, 1000 if quick else 4000
    for dtype in ("float64", "float32"):
        for mode in ("damped", "accelerated"):
            command = [sys.executable, "-c", CHILD, str(d), dtype, str(int(mode == "accelerated"))]
            words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            rows[f"{dtype}, {mode}"] = {"d": d, "peak": float(words[0]), "state": float(words[1])}
    return rows


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("gamp_speed", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    parts = {
        "iteration": lambda: measure_iteration(args.quick),
        "solution 1000": lambda: measure_solution(300 if args.quick else 1000, args.quick),
        "solution 4000": lambda: {} if args.quick else measure_solution(4000, args.quick),
        "memory": lambda: measure_memory(args.quick),
        "growth": lambda: measure_growth(args.quick),
    }
    numbers = complete_parts(verdict.path("_parts.json"), parts)
    verdict.write_table(format_table(numbers))
    for dtype, row in numbers["iteration"].items():
        limit, ratio = 5.0 if args.quick else ITERATION[dtype], row["least"]["run"]
        verdict.check(ratio <= limit, f"{dtype}: an iteration takes {ratio:.2f} of one X @ Q (<= {limit})")
    for key in ("solution 1000", "solution 4000"):
        for branch, row in numbers[key].items():
            where = f"d = {row['d']}, {branch}"
            verdict.check(row["norm"] <= TOL, f"{where}: gradient norm {row['norm']:.1e} at most")
            if not args.quick:
                ratio, faster, share = row["over_lbfgs"], row["torch_over"], row["evaluations"]
                verdict.check(share <= 0.5, f"{where}: {share:.2f} of L-BFGS-B's evaluations (<= 0.5)")
                verdict.check(ratio <= 0.6, f"{where}: {ratio:.2f} of L-BFGS-B's time (<= 0.6)")
                verdict.check(faster >= 100, f"{where}: {faster:.0f} times faster than torch (>= 100)")
    for name, row in numbers["memory"].items():
        limit = 1.1 + row["state"] + (1.0 if args.quick else 0.0)
        verdict.check(row["peak"] <= limit, f"{name}: peak {row['peak']:.2f} of the data (<= {limit:.2f})")
    verdict.end(numbers, draw)


if __name__ == "__main__":
    main()
