"""CPU times of state evolution, as lines of JSON; `state_evolution_speed --base` starts this in two checkouts.

The argument "quick" leaves out the cases that take minutes: three tokens, a column of the phase diagram and its
boundaries.
"""

import json
import sys
import tempfile
import time
from functools import partial

import numpy as np

import gamp_attention as ga

REPEATS = 5
CELLS = np.linspace(0.01, 2, 25), [0.3]  # α and ω of a column of the phase diagram


def solve(model, alpha, branch, rtol):
    """Return seconds, status and q of one solution."""
    began = time.process_time()
    try:
        se = ga.solve_state_evolution(model, alpha, branch, rtol=rtol, stability=False)
    except TypeError:  # older checkouts have another parameter
        se = ga.solve_state_evolution(model, alpha, branch, rtol=rtol, stable=False)
    return {"seconds": time.process_time() - began, "status": se.status.value, "q": float(np.ravel(se.overlaps.q)[0])}


def print_fastest(name, run, repeats=1):
    """Print the fastest of some runs."""
    print(
        json.dumps({"name": name, **min((run() for _ in range(repeats)), key=lambda row: row["seconds"])}), flush=True
    )


def measure_time(run):
    """Return the seconds of a call."""
    began = time.process_time()
    run()
    return {"seconds": time.process_time() - began}


model, quick = ga.paper_model(0.3), "quick" in sys.argv
for branch in ("semantic", "positional"):
    solve(model, 1.5, branch, 1e-2)  # compiles
    print_fastest(f"{branch} 1e-4", lambda branch=branch: solve(model, 1.5, branch, 1e-4), REPEATS)
if not quick:
    with tempfile.TemporaryDirectory() as folder:
        alphas, omegas = CELLS
        run = partial(ga.sweep, model, folder, alpha=alphas, omega=omegas, rtol=1e-3)
        print_fastest("diagram", lambda: measure_time(run))
    run = partial(ga.phase_boundaries, model, omegas=[0.3], alphas=(0.01, 2.0))
    print_fastest("boundaries", lambda: measure_time(run))
    three = ga.attention_model(3)
    solve(three, 1.5, "semantic", 0.1)  # compiles
    print_fastest("three tokens", lambda: solve(three, 1.5, "semantic", 1e-3))
