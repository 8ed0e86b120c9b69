"""Ratios of times, measured side by side: an iteration, critical points, averages, proximal steps, and first processes.

Method: all times are ratios of runs that alternate on one machine, on one thread, in processor time, which other
programs disturb least. The minimum of some repeats counts, or the median over instances for whole solutions.

1. An iteration of GAMP at d = 4000, from runs of 40 and of 10 iterations, over the best `X @ Q`, with its parts by
   themselves: reading the tokens, products and sums (of all rows, and of rows in the level-2 cache), proximal steps.
2. A run to a critical point at d = 1000 over L-BFGS-B on the compiled loss and gradient, up to the same gradient norm,
   and the paper's 5000 steps of torch descent over this run.
3. Scipy's BFGS at every node of a 12⁴ product rule for the four averages of one step of state evolution, scaled up
   from a random sample of nodes, over a whole solution of state evolution to 1e-4.
4. One proximal problem of the package against scipy's BFGS, in a convex case.
5. Message passing and state evolution in two processes with a common empty cache folder: seconds of both. The same for
   the README's example, on all threads, in wall-clock time, the least of some repeats.

Criterion, the targets of the project: an iteration takes at most 1.4 times as long as `X @ Q` in double precision and
1.6 times in single precision; a critical point, with the check that it is a minimum, takes at most 0.6 of the time of
L-BFGS-B, and torch descent at least 100 times as long; a
solution of state evolution is at least 100 times faster than BFGS at the nodes of one step, and a proximal problem at
least 100 times faster than BFGS; the second process compiles nothing; the README's example takes at most 15 s in a
fresh installation, and 3 s afterwards.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}  # before numba and BLAS are loaded

import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention._kernels.compiled import field_kernel
from gamp_attention.problem.losses.attention import pack_attention_parameters
from gamp_attention.problem.passes import LOOP_ROWS, add_up, project
from gamp_attention.problem.risk import gradient_norm, risk_at
from gamp_attention.problem.starts import initial_weights
from validation._tools.catalog import ROOT
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table

ALPHA, SHORT, LONG, IN_CACHE = 1.5, 10, 40, 16  # iterations of two runs; rows that fit into the cache
TOL, STEPS, INSTANCES = 1e-8, 5000, 5
NODES, SAMPLED = 12, 400  # points of the product rule for each Gaussian; nodes at which BFGS runs
MODELS = ("ga.paper_model()", "ga.attention_model(3)", "ga.glm_model(ga.LogisticLoss(), lam=0.1)")
SCRIPT = """
import sys, time
from numba.core import event
began, recorder = time.process_time(), event.RecordingListener()
event.register("numba:compile", recorder)
import gamp_attention as ga
model = eval(sys.argv[1])
ga.run_gamp(ga.sample(model, d=60, alpha=2.0), "semantic", max_iter=50)
ga.solve_state_evolution(model, 2.0, rtol=0.1, max_work=1e4, max_iter=3, stability=False)
print(sum(e.is_start for _, e in recorder.buffer), time.process_time() - began)
"""
# reasons for targets that are not reached
LOOPS = (
    "the products and the sums of a pass, which reads the tokens once, take 1.3 times as long as X @ Q by themselves"
)
CLOCK = "the speed of the machine varied by a third within minutes"
END = "an iteration takes a proximal step of each sample, and the time includes the check of the end"


def measure_seconds(task):
    """Return the processor time of a call."""
    began = time.process_time()
    task()
    return time.process_time() - began


def measure_in_turns(tasks, repeats):
    """Return the smallest time of each task. Tasks alternate, after one run of each."""
    seconds = {name: [] for name in tasks}
    for turn in range(repeats + 1):
        for name, task in tasks.items():
            seconds[name].append(measure_seconds(task) if turn else measure_seconds(task) * np.inf)
    return {name: min(values) for name, values in seconds.items()}


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


def measure_iteration(dtype, d, repeats):
    """Return times of an iteration and of its parts over the time of one X @ Q, and the bandwidth of reading."""
    data = ga.sample(ga.paper_model(), d, ALPHA, seed=0, dtype=dtype)
    X, state = data.tokens.reshape(-1, d), ga.initial_state(data, initial_weights(data, "semantic"))
    for t in range(25):
        state, _ = ga.gamp_step(data, "asymptotic", state, 0.3, hold=t >= 20)
    Q, params = state.Q.astype(dtype), data.terms("asymptotic").params

    def run(n_iter):
        return lambda: ga.run_gamp(data, "semantic", "asymptotic", damping=0.3, max_iter=n_iter)

    seconds = measure_in_turns(
        {
            "product": lambda: X @ Q, "stream": lambda: np.dot(X.ravel(), X.ravel()),
            "loops": lambda: run_loops(X, state.Q, 1),
            "cached": lambda: run_loops(X[:IN_CACHE], state.Q, len(X) // IN_CACHE),
            "prox": lambda: ga.denoise(data.loss, params, state.z - state.D, state.V, state.z, hold=True),
            "short": run(SHORT), "long": run(LONG),
        },
        repeats,
    )  # fmt: skip
    seconds["run"] = (seconds.pop("long") - seconds.pop("short")) / (LONG - SHORT)
    least = {name: value / seconds["product"] for name, value in seconds.items()}
    return {"least": least, "bandwidth": X.nbytes / seconds["stream"]}


class Reached(Exception):
    """Exception that ends L-BFGS-B at a gradient norm."""


def run_lbfgs(data, start):
    """Run L-BFGS-B until the gradient norm is at most TOL."""

    def evaluate(x):
        at = risk_at(data, x.reshape(start.shape), "asymptotic")
        if gradient_norm(data, at.gradient) <= TOL:
            raise Reached
        return at.train_loss * data.dim, at.gradient.ravel()

    limits = {"maxiter": 5000, "maxfun": 5000, "ftol": 0.0, "gtol": 0.0}
    with suppress(Reached):
        minimize(evaluate, start.ravel(), jac=True, method="L-BFGS-B", options=limits)


def measure_solution(branch, d, instances, steps):
    """Return medians over instances of seconds to a critical point, by GAMP, L-BFGS-B and torch descent."""
    ratios = {"lbfgs": [], "torch": []}
    for seed in range(instances):
        data = ga.sample(ga.paper_model(), d, ALPHA, seed=seed)
        start = initial_weights(data, branch)
        ends = [
            lambda n=n, data=data: ga.minimize_risk(data, branch, "asymptotic", method="gd", max_iter=n, tol=0)
            for n in (2, 2 + steps)
        ]
        tasks = {"gamp": lambda data=data, start=start: ga.run_gamp(data, start, "asymptotic"),
                 "lbfgs": lambda data=data, start=start: run_lbfgs(data, start)}  # fmt: skip
        seconds = measure_in_turns(tasks, 2)
        ratios["lbfgs"].append(seconds["gamp"] / seconds["lbfgs"])
        few, many = map(measure_seconds, ends)
        ratios["torch"].append((many - few) / steps * STEPS / seconds["gamp"])
    return {name: float(np.median(values)) for name, values in ratios.items()}


def evaluate_objective(z, omega, V, T, rho):
    """Return ½ Σ (z−ω)²/V + ½ Tr S ρ Sᵀ − Tr S ρ Tᵀ, as in the equations."""
    scores = np.outer(z, z)
    S = np.exp(scores - scores.max(axis=1, keepdims=True))
    S /= S.sum(axis=1, keepdims=True)
    return 0.5 * np.sum((z - omega) ** 2 / V) + np.sum((0.5 * S - T) * S * rho)


def measure_averages(branch, sampled):
    """Return the time of scipy's BFGS at all nodes of a product rule, four times, over a solution to 1e-4."""
    model, rng = ga.paper_model(0.3), np.random.default_rng(0)

    def solve():
        return ga.solve_state_evolution(model, ALPHA, branch, rtol=1e-4, stability=False)

    o, rho = solve().overlaps, model.coordinates.rho[0, 0, 0]
    q, m, theta, V = o.q[:, 0, 0], o.m[:, 0], o.theta[:, 0, 0], o.V[:, 0, 0]
    first, second = rng.choice(np.polynomial.hermite_e.hermegauss(NODES)[0], (2, sampled, 2))  # nodes of both tokens
    omega = np.sqrt(q) * first + m
    T = model.teacher((theta / np.sqrt(q) * first + np.sqrt(rho - theta**2 / q) * second)[:, :, None])

    def run_bfgs():
        for i in range(sampled):
            minimize(evaluate_objective, omega[i], args=(omega[i], V, T[i], rho), method="BFGS")

    ours = measure_in_turns({"solution": solve}, 3)["solution"]
    return {"ratio": measure_seconds(run_bfgs) / sampled * NODES**4 * 4 / ours, "own": ours}


def measure_prox(n, sampled):
    """Return the time of scipy's BFGS over the time of a global minimum of a convex proximal problem."""
    model, rng, V = ga.paper_model(), np.random.default_rng(0), 0.3
    T = model.teacher(0.5 * rng.normal(size=(n, 2, 1)))
    params = pack_attention_parameters(0.25 * np.eye(2)[None], 0.25 * T.transpose(0, 2, 1))
    omega, blocks = 0.4 * rng.normal(size=(n, 2, 1)), np.full((2, 1, 1), V)

    def run_bfgs():
        for k in range(sampled):
            arguments = (omega[k, :, 0], V, T[k], 0.25 * np.eye(2))
            minimize(evaluate_objective, omega[k, :, 0], args=arguments, method="BFGS")

    ours = measure_in_turns({"prox": lambda: ga.denoise(model.loss, params, omega, blocks)}, 5)["prox"] / n
    return {"ratio": measure_seconds(run_bfgs) / sampled / ours, "own": ours}


def run_twice(arguments, environment):
    """Return output and wall-clock time of two processes that run code, with a common, first empty, cache."""
    ended, command = [], [sys.executable, "-c", *arguments]
    with tempfile.TemporaryDirectory() as cache:
        run = partial(subprocess.run, command, capture_output=True, text=True, cwd=ROOT.parent, check=True)
        for _ in range(2):
            began = time.perf_counter()
            output = run(env=environment | {"NUMBA_CACHE_DIR": cache}).stdout
            ended.append((output, time.perf_counter() - began))
    return ended


def measure_processes(model):
    """Return the compiled functions and the processor time of two processes with a common, first empty, cache."""
    rows = [output.split() for output, _ in run_twice([SCRIPT, model], os.environ)]
    return {"functions": [int(row[0]) for row in rows], "process": [float(row[1]) for row in rows]}


def measure_example(repeats):
    """Return the least wall-clock times of two processes that run the README's example with a first empty cache."""
    text = (ROOT.parent / "README.md").read_text(encoding="utf-8").split("## Ten lines")[1].split("\n## ")[0]
    lines = [line[4:] for line in text.splitlines() if line.startswith(">>> ")]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    seconds = [[clock for _, clock in run_twice(["\n".join(lines)], environment)] for _ in range(repeats)]
    return {"process": np.min(seconds, axis=0).tolist()}


def plan(quick):
    """Return the sizes of all measurements."""
    d, repeats = (1000, 2) if quick else (4000, 9)
    solution = {"d": 300, "instances": 1, "steps": 20} if quick else {"d": 1000, "instances": INSTANCES, "steps": 200}
    branches = ("semantic", "positional")
    return {
        measure_iteration: [{"dtype": dtype, "d": d, "repeats": repeats} for dtype in ("float64", "float32")],
        measure_solution: [{"branch": branch} | solution for branch in branches],
        measure_averages: [{"branch": branch, "sampled": 40 if quick else SAMPLED} for branch in branches],
        measure_prox: [{"n": 20_000, "sampled": 20 if quick else 100}],
        measure_processes: [{"model": model} for model in MODELS[: 1 if quick else None]],
        measure_example: [] if quick else [{"repeats": 3}],
    }


def judge(verdict, iterations, solutions, averages, prox, processes, example):
    """Check all ratios; with --quick only whether the second process compiles nothing."""
    table, quick = [], verdict.quick
    for row in iterations:
        least = row["least"]
        parts = ", ".join(f"{name} {least[name]:.2f}" for name in ("stream", "cached", "loops", "prox"))
        table.append([f"an iteration over one X @ Q, d = {row['d']}, {row['dtype']}", f"{least['run']:.2f} ({parts})"])
    for row, limit in zip(iterations, (1.4, 1.6), strict=False):
        claim = f"an iteration takes {row['least']['run']:.2f} of one X @ Q in {row['dtype']}, at most {limit}"
        verdict.check(quick or row["least"]["run"] <= limit, claim, LOOPS)
    for row in solutions:
        name = f"d = {row['d']}, {row['branch']}"
        table.append([f"GAMP to a critical point over L-BFGS-B, {name}", f"{row['lbfgs']:.2f}"])
        table.append([f"5000 steps of torch descent over GAMP, {name}", f"{row['torch']:.0f}"])
        verdict.check(quick or row["lbfgs"] <= 0.6, f"{name}: {row['lbfgs']:.2f} of L-BFGS-B's time, at most 0.6", END)
        verdict.check(
            quick or row["torch"] >= 100, f"{name}: {row['torch']:.0f} times faster than torch, at least 100", END
        )
    for row in averages:
        table.append([f"BFGS at the nodes of one step over a solution to 1e-4, {row['branch']}", f"{row['ratio']:.0f}"])
        verdict.check(quick or row["ratio"] >= 100, f"theory, {row['branch']}: {row['ratio']:.0f} times faster")
    table.append(["BFGS over one proximal problem", f"{prox[0]['ratio']:.0f} ({1e6 * prox[0]['own']:.1f} µs)"])
    verdict.check(quick or prox[0]["ratio"] >= 100, f"a proximal problem: {prox[0]['ratio']:.0f} times faster")
    for row in processes:
        (first, second), (slow, fast) = row["functions"], row["process"]
        table.append([f"first and second process, {row['model']}", f"{slow:.1f} s, {fast:.1f} s"])
        verdict.check(first > 0 == second, f"{row['model']}: {first} functions compiled, then {second}")
    for row in example:
        slow, fast = row["process"]
        table.append(["first and second process, the README's example", f"{slow:.1f} s, {fast:.1f} s"])
        verdict.check(slow <= 15, f"the README's example in a fresh installation: {slow:.1f} s, at most 15", CLOCK)
        verdict.check(fast <= 3, f"the README's example in a second process: {fast:.1f} s, at most 3", CLOCK)
    verdict.write_table(markdown_table(["measured", "reached"], table))
    return {"iteration": {row["dtype"]: row for row in iterations}, "solution": solutions, "averages": averages,
            "prox": prox[0], "processes": processes, "example": example}  # fmt: skip


def main():
    run_claim("speed", __doc__, plan, judge)


if __name__ == "__main__":
    main()
