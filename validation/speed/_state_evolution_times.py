"""CPU times of state evolution, as lines of JSON; started by `state_evolution_speed --base` in two checkouts.

An argument "quick" leaves out what takes minutes: three tokens, a column of the phase diagram and its boundaries.
"""

import json
import sys
import tempfile
import time

import numpy as np

import gamp_attention as ga

REPEATS = 5
CELLS = np.linspace(0.01, 2, 25), [0.3]  # α and ω of a column of the phase diagram


def solved(model, alpha, branch, rtol):
    """Seconds, status and error of one solution."""
    began = time.process_time()
    try:
        se = ga.solve_state_evolution(model, alpha, branch, rtol=rtol, stability=False)
    except TypeError:  # in older checkouts
        se = ga.solve_state_evolution(model, alpha, branch, rtol=rtol, stability=False)
    return {"seconds": time.process_time() - began, "status": se.status.value, "q": float(np.ravel(se.overlaps.q)[0])}


def told(name, run, repeats=1):
    """Print the fastest of some runs."""
    print(
        json.dumps({"name": name, **min((run() for _ in range(repeats)), key=lambda row: row["seconds"])}), flush=True
    )


def timed(run):
    """Seconds of a call."""
    began = time.process_time()
    run()
    return {"seconds": time.process_time() - began}


model, quick = ga.paper_model(0.3), "quick" in sys.argv
for branch in ("semantic", "positional"):
    solved(model, 1.5, branch, 1e-2)  # compiles
    told(f"{branch} 1e-4", lambda branch=branch: solved(model, 1.5, branch, 1e-4), REPEATS)
if not quick:
    with tempfile.TemporaryDirectory() as folder:
        alphas, omegas = CELLS
        told("diagram", lambda: timed(lambda: ga.sweep(model, folder, alpha=alphas, omega=omegas, rtol=1e-3)))
    told("boundaries", lambda: timed(lambda: ga.phase_boundaries(model, omegas=[0.3], alphas=(0.01, 2.0))))
    three = ga.attention_model(3)
    solved(three, 1.5, "semantic", 0.1)  # compiles
    told("three tokens", lambda: solved(three, 1.5, "semantic", 1e-3))
