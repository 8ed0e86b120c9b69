"""Processor times of the calls for which people wait, in this checkout and in earlier checkouts, with the targets.

Method: with --base PATH, each row runs at the same time in this checkout and in another, in processes with one thread
and an empty cache of compiled kernels; the fastest of some repeats counts, and compilation only where the row names it.
The targets refer to commit 9144762, and for the column of a diagram and the boundaries to commit db457ef, whose
checkout is --older PATH. Rows without another checkout are ratios of two methods in this checkout, or seconds. A
default run starts from spectral weights, and L-BFGS-B of scipy on our compiled risk from random weights, on 300 samples
of L tokens with d = 64, with default settings, and up to the gradient norm of default runs. Iterations over `X @ Q` and
critical points over L-BFGS-B are measured by `gamp_speed`, and tests by CI.

Two-layer attention of the manual (L = r = 2) is solved to 1e-2 and 1e-3, with the accuracy that is reached.

Criterion: the targets in the table, and convergence for two-layer attention. Those that are missed are explained on the
page "Measurements for developers".

With --parts, the other rows are taken from the stored numbers. Running time: 20 minutes on two cores, with --quick two.
"""

import resource
import subprocess
import sys
import time
from contextlib import suppress
from os import environ
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from docs.examples.two_layers import layers
from gamp_attention._tools.display import to_json
from gamp_attention.problem.risk import risk_at
from validation._tools.catalog import ROOT
from validation._tools.checkouts import BASE, run_side_by_side
from validation._tools.report import Verdict, options
from validation._tools.tables import markdown_table

CASES, COMPILATION = (Path(__file__).with_name(name) for name in ("_waiting_cases.py", "_compile_times.py"))
SOLVERS = {  # largest ratio of the time to the time in the other checkout
    "semantic solution to 1e-4": 0.4,
    "positional solution to 1e-4": 0.4,
    "weak penalty and wide tokens to 1e-2": 0.15,
    "trajectory of message passing, 60 steps": 0.35,
    "trajectory of descent, 100 steps": 0.35,
    "Bayes thresholds with score noise": 0.1,
}
COMPARISONS = {"first comparison": 0.7, "comparison, kernels cached": 0.5}
OLDER = {"column of a diagram": 0.36, "boundaries at one ω": 0.35}  # the same, for the older checkout
FIRST, ANOTHER, LAYERS = "user-defined attention map", "the same map, edited", "first result of a sequence model"
SECONDS = {FIRST: 3.0, ANOTHER: 3.0, LAYERS: 60.0}  # largest time in seconds; compilation only, and with compilation
TWO_LAYERS = {  # α, λ, requested accuracy, and target in seconds
    "two layers to 1e-2, α = 6, λ = 0.05": (6.0, 0.05, 1e-2, 30.0),
    "two layers to 1e-2, α = 3, λ = 0.03": (3.0, 0.03, 1e-2, 30.0),
    "two layers to 1e-3, α = 6, λ = 0.05": (6.0, 0.05, 1e-3, 300.0),
    "two layers to 1e-3, α = 3, λ = 0.03": (3.0, 0.03, 1e-3, 300.0),
}
SECONDS |= {name: row[-1] for name, row in TWO_LAYERS.items()}
START = {"import gamp_attention": 0.45, "gamp-attention --help": 0.25}
CODE = ["import gamp_attention"]
CODE += ["from gamp_attention.extensions.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass"]
PARTS = ("long samples", "start", "solvers", "comparisons", "compilation", "diagram", "layers", "two layers")
LENGTHS, N, D, OVER_LBFGS, TOL = (3, 5, 8, 12, 32), 300, 64, 2.0, 1e-8
LBFGS = {"lbfgs": "a default run over one of L-BFGS-B"}
LBFGS["lbfgs to the same norm"] = "a default run over one of L-BFGS-B to the same gradient norm"
TARGETS = SOLVERS | COMPARISONS | OLDER | SECONDS | START
TARGETS |= {f"{name}, L = {L}": OVER_LBFGS for name in LBFGS.values() for L in LENGTHS}


def pairs(base, script, *arguments):
    """Return rows of a script with the names and the seconds in the other checkout and in this checkout."""
    rows = zip(*run_side_by_side(base, script, *arguments), strict=True)
    return {new.get("name", new.get("model")): (old["seconds"], new["seconds"]) for old, new in rows}


def collect(numbers):
    """Return time in the other checkout, time here, and the number that has a target, for each row with a target."""
    rows = {name: row[:2] for part, pairs in numbers.items() for name, row in pairs.items() if name in TARGETS}
    return {name: (*pair, pair[1] if name in SECONDS else pair[1] / pair[0]) for name, pair in rows.items()}


def measure_two_layers(quick):
    """Return seconds without compilation, status and relative error of state evolution of two-layer attention."""
    rows = {}
    for name, (alpha, lam, rtol, _) in TWO_LAYERS.items():
        model = ga.sequence_model(lambda u, noise: layers(u), layers, n_tokens=2, rank=2, lam=lam)
        if not rows:
            ga.solve_state_evolution(model, alpha, rtol=0.1)  # compiles
        began = time.process_time()
        found = ga.solve_state_evolution(model, alpha, rtol=0.1 if quick else rtol)
        rows[name] = None, time.process_time() - began, found.status.value, found.relative_error
        print(f"{name}: {rows[name][1]:.1f} s", flush=True)
    return rows


def measure_start(base, times):
    """Return the smallest processor times of processes that import the package and print the help."""
    checkouts = (base.resolve(), ROOT.parent)
    seconds = {name: ([], []) for name in START}
    for _ in range(times):
        for name, code in zip(START, CODE, strict=True):
            for checkout, times_of in zip(checkouts, seconds[name], strict=True):
                times_of.append(start_seconds(checkout, code))
    return {name: tuple(map(min, both)) for name, both in seconds.items()}


def start_seconds(checkout, code):
    """Return the processor time of a process that runs some code with a checkout."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = environ | {"PYTHONPATH": str(checkout)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=checkout, stdout=subprocess.DEVNULL, env=variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_lbfgs(data, start, tol):
    """Run L-BFGS-B with default settings or, if tol > 0, until the gradient norm is at most tol."""

    class Reached(Exception):
        pass

    def both(x):
        at = risk_at(data, x.reshape(start.shape), "exact")
        if at.gradient_norm <= tol:
            raise Reached
        return at.train_loss * data.dim, at.gradient.ravel()

    settings = {"maxiter": 5000, "maxfun": 5000, "ftol": 0.0, "gtol": 0.0} if tol > 0 else {}
    with suppress(Reached):
        minimize(both, start.ravel(), jac=True, method="L-BFGS-B", options=settings)


def measure_long_samples(quick):
    """Return the times of runs of L-BFGS-B from random weights and of a default run, for each number of tokens."""
    rows = {}
    for L in LENGTHS[:2] if quick else LENGTHS:
        data = ga.sample(ga.attention_model(L), D, N / D, seed=0)
        start = 0.5 * np.random.default_rng(1).standard_normal((D, 1))

        tasks = {
            "gamp": lambda data=data: ga.run_gamp(data, "spectral", "exact"),
            "lbfgs": lambda data=data, start=start: run_lbfgs(data, start, 0.0),
            "lbfgs to the same norm": lambda data=data, start=start: run_lbfgs(data, start, TOL),
        }
        seconds = {name: [] for name in tasks}
        for _ in range(1 if quick else 3):  # the first turn compiles
            for name, task in tasks.items():
                began = time.process_time()
                task()
                seconds[name].append(time.process_time() - began)
        for peer, name in LBFGS.items():
            rows[f"{name}, L = {L}"] = min(seconds[peer]), min(seconds["gamp"])
    return rows


def main():
    older = BASE | {"help": "folder of the checkout db457ef"}
    parts = {"nargs": "*", "help": "parts to measure, by default all: " + ", ".join(PARTS), "choices": PARTS}
    args = options(__doc__, base=BASE, older=older, parts=parts)
    verdict, quick = Verdict("waiting_times", args), ["quick"] * args.quick
    base, older_base = args.base, args.older

    def cases(checkout, *names):
        return lambda: pairs(checkout, CASES, *names, *quick)

    parts = {
        "long samples": lambda: measure_long_samples(args.quick), "two layers": lambda: measure_two_layers(args.quick)
    }  # fmt: skip
    if base:
        parts |= {
            "start": lambda: measure_start(base, 2 if args.quick else 7),
            "solvers": cases(base, *SOLVERS),
            "comparisons": cases(base, *COMPARISONS),
            "compilation": lambda: pairs(base, COMPILATION, "first", FIRST, ANOTHER),
        }
    if older_base:
        parts["diagram"] = cases(older_base, *OLDER)
    if base:
        parts["layers"] = cases(base, LAYERS)
    chosen = [name for name in parts if not args.parts or name in args.parts]
    stored = verdict.stored() if args.parts and verdict.path(".json").exists() else {}
    measured = {name: to_json(parts[name]()) for name in chosen}
    numbers = {name: measured.get(name, stored.get(name)) for name in PARTS if name in measured or name in stored}
    lines = []
    for name, (before, now, value) in collect(numbers).items():
        limit, unit = TARGETS[name], "s" if name in SECONDS else "times the time of the other"
        status, error = numbers["two layers"][name][2:] if name in TWO_LAYERS else ("converged", None)
        words = "" if error is None else f", {status} with a relative error of {error:.2g}"
        met = value <= limit and status == "converged"
        verdict.check(args.quick or met, f"{name}: {value:.2g} {unit}{words}, at most {limit:g}")
        times = ["–" if seconds is None else f"{seconds:.2f} s" for seconds in (before, now)]
        lines.append([name, *times, f"{value:.2g}" + " s" * (name in SECONDS) + words, f"{limit:g}"])
    heads = ["processor time", "other", "this checkout", "ratio or time", "target"]
    verdict.write_table(markdown_table(heads, lines))
    verdict.end(numbers)


if __name__ == "__main__":
    main()
