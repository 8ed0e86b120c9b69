"""Processor times of the calls for which people wait, as lines of JSON; for `waiting_times --base`.

The arguments are names of `CASES`, and optionally "quick". A case runs once at its quick size before it is measured, so
that compilation does not count; of the repeats the fastest counts. Cases without repeats are measured at their first
call, with compilation, each in a separate process.
"""

import json
import sys
import tempfile
import time

import numpy as np

import gamp_attention as ga

CASES = {}
QUICK = "quick" in sys.argv


def case(name, repeats):
    """Register a function that makes a call once the preparation is done."""

    def register(prepare):
        CASES[name] = prepare, repeats
        return prepare

    return register


def solve(branch, rtol=1e-4, alpha=1.5, **model):
    """Solve state evolution of the paper's model."""
    return ga.solve_state_evolution(ga.paper_model(**model), alpha, branch, rtol=rtol)


@case("semantic solution to 1e-4", repeats=5)
def solve_semantic():
    """State evolution, default call."""
    return lambda: solve("semantic")


@case("positional solution to 1e-4", repeats=5)
def solve_positional():
    """State evolution, default call."""
    return lambda: solve("positional")


@case("weak penalty and wide tokens to 1e-2", repeats=1)
def solve_wide():
    """State evolution where a prediction takes long."""
    return lambda: solve(
        "semantic", 1e-2, 0.5 if QUICK else 0.768, omega=0.404, sigma=0.5 if QUICK else 1.51, lam=0.0016
    )


@case("column of a diagram", repeats=1)
def compute_diagram():
    """Both branches at 25 values of α."""

    def run():
        with tempfile.TemporaryDirectory() as folder:
            alphas = np.linspace(0.01, 2, 5 if QUICK else 25)
            return ga.sweep(ga.paper_model(0.3), folder, alpha=alphas, omega=[0.3], rtol=1e-3)

    return run


@case("boundaries at one ω", repeats=1)
def find_boundaries():
    """Ends of both branches, transition and stability."""
    if QUICK:
        return solve_semantic()
    return lambda: ga.phase_boundaries(ga.paper_model(0.3), omegas=[0.3], alphas=(0.01, 2.0))


@case("trajectory of message passing, 60 steps", repeats=1)
def follow_messages():
    """4096 paths in each of eight replicas."""
    n, paths = (6, 512) if QUICK else (60, 4096)
    return lambda: ga.trajectory(ga.paper_model(0.3), 1.5, n_iter=n, n_paths=paths)


@case("trajectory of descent, 100 steps", repeats=1)
def follow_descent():
    """4096 paths in each of eight replicas."""
    n, paths = (6, 512) if QUICK else (100, 4096)
    return lambda: ga.trajectory(ga.paper_model(0.3), 1.5, method=ga.GradientDescent(lr=0.15), n_iter=n, n_paths=paths)


@case("Bayes thresholds with score noise", repeats=1)
def find_thresholds():
    """An eighth of the default number of points, to which the time is proportional."""
    points = 64 if QUICK else 512
    return lambda: ga.bayes_thresholds(ga.attention_model(2, 1, 1, score_noise=0.1), n_points=points)


@case("comparison, kernels cached", repeats=3)
def compare_again():
    """Message passing, descent and theory, without graphics."""
    return lambda: compare(ga.paper_model())


@case("first comparison", repeats=0)
def compare_first():
    """Comparison with compilation."""
    return lambda: compare(ga.paper_model())


def compare(model):
    """Compare message passing, descent and theory at small d."""
    return ga.compare(model, d=60, alpha=2.0, rtol=0.1, gd_steps=20, instances=2, branches=["semantic"])


@case("first result of a sequence model", repeats=0)
def solve_layers():
    """Two-layer attention of the manual, with compilation; absent from older checkouts."""
    if not hasattr(ga, "sequence_model"):
        return None

    from docs.examples.two_layers import layers

    model = ga.sequence_model(lambda u, noise: layers(u), layers, n_tokens=2, rank=2, lam=0.1)
    return lambda: ga.solve_state_evolution(model, 3.0, rtol=1e-1 if QUICK else 1e-2)


def describe(found):
    """Return status and q of a result of state evolution; otherwise nothing."""
    if not hasattr(found, "status") or not hasattr(found, "overlaps"):
        return {}
    return {"status": found.status.value, "q": float(np.ravel(found.overlaps.q)[0])}


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name == "quick":
            continue
        prepare, repeats = CASES[name]
        if repeats:
            size, QUICK = QUICK, True
            prepare()()
            QUICK = size
        seconds, run, found = [], prepare(), None
        for _ in range(0 if run is None else max(repeats, 1)):
            began = time.process_time()
            found = run()
            seconds.append(time.process_time() - began)
        least = min(seconds, default=None)
        print(json.dumps({"name": name, "seconds": least, **describe(found)}), flush=True)
