"""Speed of GAMP: time of an iteration and to a critical point, memory, and how cost grows.

All times are ratios of runs that take turns on one machine, medians over repeats, with the threads that numba and BLAS
have by default; those of whole solutions over instances. A pause after each X @ Q lets BLAS's threads go to sleep, as
they keep the cores busy for a while.

Criteria, which are the targets of the project: an iteration takes at most 1.3 times as long as one `X @ Q`, in double
and in single precision; a critical point at most half of L-BFGS-B on our own compiled loss and gradient, and a
hundredth of the paper's torch descent; at most 1.1 times the data plus the state are in memory. Quick sizes only have
to be near. Stored parts are not measured again.
"""

import json
import subprocess
import sys
import time

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention.fields import back_project, local_fields
from gamp_attention.gamp import GampState, gamp_step
from gamp_attention.plotting import figure
from gamp_attention.report import plain
from gamp_attention.risk import gradient_norm, risk_at
from gamp_attention.starts import initial_weights
from validation._report import Verdict, options

ALPHA, TOL, PAUSE, STEPS = 1.5, 1e-8, 0.03, 5000
INSTANCES = 5  # solved
PARTS = {"projections X̃Q": "fields", "one of the two sums X̃ᵀg, X̃ᵀ∇ℓ": "sums", "proximal steps": "prox"}
TICKS = (1, 2, 5, 10, 20, 50, 100, 200, 500)  # ms
FAST = {"semantic": 0.5, "positional": 0.3}  # damping of the accelerated runs


def alternate(tasks, repeats):
    """Median and least seconds of each task, the tasks taking turns; all are run once before."""
    seconds = {name: [] for name in tasks}
    for turn in range(repeats + 1):
        for name, task in tasks.items():
            time.sleep(PAUSE)
            began = time.perf_counter()
            task()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: (float(np.median(values)), min(values)) for name, values in seconds.items()}


def warm_state(data, branch, n_iter=25):
    """A state in the middle of a run, its minima held."""
    state = ga.initial_state(data, initial_weights(data, branch))
    for t in range(n_iter):
        state, _ = gamp_step(data, "asymptotic", state, 0.3, hold=t >= 20)
    return state


def iteration(quick):
    """Time of an iteration over the time of one X @ Q."""
    d, repeats, rows = 1000 if quick else 4000, 5 if quick else 15, {}
    for dtype in ("float64", "float32"):
        data = ga.sample(ga.paper_model(), d, ALPHA, seed=0, dtype=dtype)
        X = data.tokens.reshape(-1, d)
        state = warm_state(data, "semantic")
        Q = state.Q.astype(dtype)
        seconds = alternate(
            {
                "product": lambda X=X, Q=Q: X @ Q,
                "held": lambda data=data, state=state: gamp_step(data, "asymptotic", state, 0.3, hold=True),
                "global": lambda data=data, state=state: gamp_step(data, "asymptotic", state, 0.3),
                "prox": lambda data=data, state=state: prox(data, state),
                "fields": lambda data=data, state=state: local_fields(data.tokens, data.positions, state.Q),
                "sums": lambda data=data, state=state: back_project(data.tokens, data.positions, state.D),
            },
            repeats,
        )
        median, least = seconds["product"]
        rows[dtype] = {"d": d, **{name: s / median for name, (s, _) in seconds.items()}, "seconds": seconds}
        rows[dtype]["least"] = {name: s / least for name, (_, s) in seconds.items()}
    return rows


def prox(data, state):
    """The proximal steps of an iteration alone; a state's centres are near its minimisers."""
    return ga.denoise(data.loss, data.terms("asymptotic").params, state.z - state.D, state.V, state.z, hold=True)


def descend(data, start):
    """L-BFGS-B until the gradient norm is at most TOL: evaluations, and seconds until then."""
    began, found = time.perf_counter(), {}

    class Reached(Exception):
        pass

    def value_and_gradient(x):
        at = risk_at(data, x.reshape(start.shape), "asymptotic")
        found["n"] = found.get("n", 0) + 1
        found["norm"] = gradient_norm(data, at.gradient)
        found["loss"] = at.train_loss
        if found["norm"] <= TOL:
            raise Reached
        return at.train_loss * data.dim, at.gradient.ravel()

    try:
        limits = {"maxiter": 5000, "maxfun": 5000, "ftol": 0.0, "gtol": 0.0}
        minimize(value_and_gradient, start.ravel(), jac=True, method="L-BFGS-B", options=limits)
    except Reached:
        pass
    return {**found, "s": time.perf_counter() - began}


def torch_seconds(data, branch, steps):
    """Seconds of `steps` steps of the paper's descent, without the overheads of starting and ending."""
    times = []
    for n in (2, 2 + steps):
        began = time.perf_counter()
        ga.minimize_risk(data, branch, method="gd", max_iter=n, tol=0)
        times.append(time.perf_counter() - began)
    return times[1] - times[0]


def solution(d, quick):
    """Time to a critical point, beside L-BFGS-B and the paper's descent; medians over instances."""
    rows = {}
    for branch in ("semantic", "positional"):
        fast = {"damping": FAST[branch], "accelerate": True, "tol": TOL}
        found = []
        for seed in range(1 if quick else INSTANCES):
            data = ga.sample(ga.paper_model(), d, ALPHA, seed=seed)
            start = initial_weights(data, branch)
            ga.run_gamp(data, start, max_iter=2, **{**fast, "tol": 0})  # compiled and imported
            risk_at(data, start, "asymptotic")
            tasks = {
                "gamp": lambda data=data, start=start, fast=fast: ga.run_gamp(data, start, **fast),
                "lbfgs": lambda data=data, start=start: descend(data, start),
                "damped": lambda data=data, start=start, slow=fast | {"accelerate": False}: ga.run_gamp(
                    data, start, **slow
                ),
            }
            ends, seconds = {}, {}
            for name, task in tasks.items():
                time.sleep(PAUSE)
                began = time.perf_counter()
                ends[name] = task()
                seconds[name] = time.perf_counter() - began
            gamp, damped, lbfgs = ends["gamp"], ends["damped"], ends["lbfgs"]
            found.append({
                "seed": seed, "status": gamp.status.value, "n_iter": gamp.n_iter, "n_settle": gamp.n_settle,
                "norm": gamp.gradient_norm, "loss": gamp.train_loss, "n_damped": damped.n_iter, "lbfgs": lbfgs,
                "seconds": seconds, "over_lbfgs": seconds["gamp"] / seconds["lbfgs"],
            })  # fmt: skip
        data = ga.sample(ga.paper_model(), d, ALPHA, seed=0)
        ga.minimize_risk(data, branch, method="gd", max_iter=2, tol=0)
        steps = 20 if quick else 200_000 // d
        torch = torch_seconds(data, branch, steps) / steps * STEPS
        median = {
            "n_iter": float(np.median([row["n_iter"] for row in found])),
            "n_lbfgs": float(np.median([row["lbfgs"]["n"] for row in found])),
            "over_lbfgs": float(np.median([row["over_lbfgs"] for row in found])),
            "torch_over": torch / float(np.median([row["seconds"]["gamp"] for row in found])),
        }
        rows[branch] = {"d": d, "norm": max(row["norm"] for row in found), "torch": torch, "instances": found} | median
    return rows


CHILD = """
import re, sys, gamp_attention as ga
from pathlib import Path
from gamp_attention.gamp import gamp_step
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # not the parent's
small = ga.sample(ga.paper_model(), 50, 1.5, seed=0, dtype=sys.argv[2])
gamp_step(small, "asymptotic", ga.initial_state(small, small.Q_star), 0.3)
before = peak()
data = ga.sample(ga.paper_model(), int(sys.argv[1]), 1.5, seed=0, dtype=sys.argv[2])
result = ga.run_gamp(data, damping=0.5, accelerate=sys.argv[3] == "1", max_iter=25, tol=0)
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


def growth(quick):
    """Seconds of an iteration against d, n, L and r, and exponents."""
    base = {"d": 400 if quick else 1000, "n": 6000, "L": 2, "r": 1}
    sizes = {"d": (250, 500, 1000, 2000, 4000), "n": (1500, 3000, 6000, 12000, 24000), "L": (2, 4, 8), "r": (1, 2, 4)}
    if quick:
        base["n"], sizes = 400, {"d": (200, 400, 800), "L": (2, 3), "r": (1, 2)}
    rows = {}
    for name, values in sizes.items():
        found = []
        for value in values:
            at = {**base, name: value}
            model = ga.attention_model(at["L"], at["r"], 1)
            data = ga.sample(model, at["d"], at["n"] / at["d"], seed=0)
            state = ga.initial_state(data, initial_weights(data, "semantic"))
            for t in range(8):
                state, _ = gamp_step(data, "asymptotic", state, 0.3, hold=t >= 4)
            held = GampState(state.Q, state.V, state.D, state.z)
            task = {"s": lambda d=data, s=held: gamp_step(d, "asymptotic", s, 0.3, hold=True)}
            found.append(alternate(task, 5)["s"][0])
        slope = np.polyfit(np.log(values[-3:]), np.log(found[-3:]), 1)[0]  # where fixed costs count least
        rows[name] = {"sizes": list(values), "seconds": found, "exponent": float(slope), "base": base}
    return rows


def draw(verdict, rows):
    with figure(verdict.path(".png"), 1, len(rows), (2.4 * len(rows), 2.4)) as axes:
        for axis, (name, row) in zip(axes[0], rows.items(), strict=True):
            size, ms = np.array(row["sizes"]), 1e3 * np.array(row["seconds"])
            axis.plot(size, ms, "o", color="#0072B2")
            last = slice(-3, None)
            fit = row["exponent"] * np.log(size[last] / size[-1])
            axis.plot(size[last], np.exp(fit - fit.mean() + np.log(ms[last]).mean()), "-", color="#D55E00")
            axis.set(xscale="log", yscale="log", xlabel=name, title=f"exponent {row['exponent']:.2f}")
            axis.set_xticks(size, [str(value) for value in size])
            ticks = [tick for tick in TICKS if ms.min() <= 1.1 * tick and tick <= 1.1 * ms.max()]
            axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
        axes[0, 0].set_ylabel("ms an iteration")


def table(numbers):
    """The lines of the docs' table."""
    lines = ["| measured | reached | target |", "|---|---|---|"]
    for dtype, row in numbers.get("iteration", {}).items():
        name = f"iteration over one `X @ Q`, d = {row['d']}, {dtype}"
        held, least = f"{row['held']:.2f}", f"{row['least']['held']:.2f}"
        lines.append(f"| {name} | {held}, of least times {least} (global minima: {row['global']:.2f}) | 1.3 |")
        parts = ", ".join(f"{part} {row[key]:.2f}" for part, key in PARTS.items())
        lines.append(f"| its parts by themselves, {dtype} | {parts} | |")
    for key in ("solution 1000", "solution 4000"):
        for branch, row in numbers.get(key, {}).items():
            counts = f"{row['n_iter']:g} iterations, {row['n_lbfgs']:g} evaluations"
            where, each = f"d = {row['d']}, {branch}", [one["over_lbfgs"] for one in row["instances"]]
            spread = f"{min(each):.2f} to {max(each):.2f} in {len(each)} instances, {counts}"
            lines.append(f"| accelerated GAMP over L-BFGS-B, {where} | {row['over_lbfgs']:.2f} ({spread}) | 0.5 |")
            lines.append(f"| torch descent over accelerated GAMP, {where} | {row['torch_over']:.0f} | 100 |")
    for name, row in numbers.get("memory", {}).items():
        lines.append(f"| peak memory over the tokens', d = {row['d']}, {name} | {row['peak']:.2f} | 1.1 + state |")
    for name, row in numbers.get("growth", {}).items():
        lines.append(f"| exponent of an iteration in {name} | {row['exponent']:.2f} | |")
    return "\n".join(lines) + "\n"


def main():
    found = options(__doc__)
    verdict = Verdict("gamp_speed", found)
    stored = verdict.path("_parts.json")
    numbers = json.loads(stored.read_text()) if stored.exists() else {}
    parts = {
        "iteration": lambda: iteration(found.quick),
        "solution 1000": lambda: solution(300 if found.quick else 1000, found.quick),
        "solution 4000": lambda: {} if found.quick else solution(4000, found.quick),
        "memory": lambda: memory(found.quick),
        "growth": lambda: growth(found.quick),
    }
    for name, part in parts.items():
        if name not in numbers:
            numbers[name] = plain(part())
            stored.write_text(json.dumps(numbers, indent=1) + "\n")
    print(table(numbers))
    for dtype, row in numbers["iteration"].items():
        limit = {"float64": 3.0, "float32": 5.0}[dtype] if found.quick else 1.3
        verdict.check(row["held"] <= limit, f"{dtype}: an iteration takes {row['held']:.2f} of one X @ Q (<= {limit})")
    for key in ("solution 1000", "solution 4000"):
        for branch, row in numbers[key].items():
            where = f"d = {row['d']}, {branch}"
            verdict.check(row["norm"] <= TOL, f"{where}: gradient norm {row['norm']:.1e} at most")
            if not found.quick:
                ratio, faster = row["over_lbfgs"], row["torch_over"]
                verdict.check(ratio <= 0.5, f"{where}: {ratio:.2f} of L-BFGS-B's time (<= 0.5)")
                verdict.check(faster >= 100, f"{where}: {faster:.0f} times faster than torch (>= 100)")
    for name, row in numbers["memory"].items():
        limit = 1.1 + row["state"] + (1.0 if found.quick else 0.0)
        verdict.check(row["peak"] <= limit, f"{name}: peak {row['peak']:.2f} of the data (<= {limit:.2f})")
    draw(verdict, numbers["growth"])
    verdict.path(".md").write_text(table(numbers))
    verdict.end(numbers)


if __name__ == "__main__":
    main()
