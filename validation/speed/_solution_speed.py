"""Seconds to a critical point: GAMP by default and damped, L-BFGS-B on the same risk, and the paper's descent."""

import time

import numpy as np
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention.data.risk import gradient_norm, risk_at
from gamp_attention.data.starts import initial_weights
from validation.speed._iteration_speed import ALPHA, PAUSE, clock

TOL, STEPS = 1e-8, 5000
INSTANCES = 5  # solved
RATIOS = "evaluations", "over_lbfgs", "with_verdict"


def descend(data, start):
    """L-BFGS-B until the gradient norm is at most TOL: evaluations, and seconds until then."""
    began, found = clock(), {}

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
    return {**found, "s": clock() - began}


def message_passing(data, start, **options):
    """A run, and the seconds until it was at the critical point: what is found out about it there comes after."""
    began, reached = clock(), []
    run = ga.run_gamp(data, start, "asymptotic", callback=lambda *_: reached.append(clock()), **options)
    whole = clock() - began
    return run, whole if run.n_settle else reached[-1] - began


def torch_seconds(data, branch, steps):
    """Seconds of `steps` steps of the paper's descent, without the overheads of starting and ending."""
    times = []
    for n in (2, 2 + steps):
        began = clock()
        ga.minimize_risk(data, branch, "asymptotic", method="gd", max_iter=n, tol=0)
        times.append(clock() - began)
    return times[1] - times[0]


def solution(d, quick):
    """Time to a critical point, beside L-BFGS-B and the paper's descent; medians over instances."""
    rows = {}
    for branch in ("semantic", "positional"):
        found = []
        for seed in range(1 if quick else INSTANCES):
            data = ga.sample(ga.paper_model(), d, ALPHA, seed=seed)
            start = initial_weights(data, branch)
            ga.run_gamp(data, start, "asymptotic", max_iter=2)  # compiled and imported
            risk_at(data, start, "asymptotic")
            tasks = {
                "gamp": lambda data=data, start=start: message_passing(data, start),
                "lbfgs": lambda data=data, start=start: descend(data, start),
                "damped": lambda data=data, start=start: message_passing(data, start, accelerate=False),
            }
            ends, seconds = {}, {}
            for name, task in tasks.items():
                time.sleep(PAUSE)
                began = clock()
                ends[name] = task()
                seconds[name] = clock() - began
            (gamp, reached), (damped, _), lbfgs = ends["gamp"], ends["damped"], ends["lbfgs"]
            found.append({
                "seed": seed, "status": gamp.status.value, "n_iter": gamp.n_iter, "n_settle": gamp.n_settle,
                "norm": gamp.gradient_norm, "loss": gamp.train_loss, "n_damped": damped.n_iter, "lbfgs": lbfgs,
                "evaluations": (gamp.n_iter + 1 + gamp.n_settle) / lbfgs["n"], "reached": reached,
                "seconds": seconds, "over_lbfgs": reached / seconds["lbfgs"],
                "with_verdict": seconds["gamp"] / seconds["lbfgs"], "loss_damped": damped.train_loss,
            })  # fmt: skip
        data = ga.sample(ga.paper_model(), d, ALPHA, seed=0)
        ga.minimize_risk(data, branch, "asymptotic", method="gd", max_iter=2, tol=0)
        steps = 20 if quick else 200_000 // d
        torch = torch_seconds(data, branch, steps) / steps * STEPS
        median = {
            "n_iter": float(np.median([row["n_iter"] for row in found])),
            "n_lbfgs": float(np.median([row["lbfgs"]["n"] for row in found])),
            **{name: float(np.median([row[name] for row in found])) for name in RATIOS},
            "torch_over": torch / float(np.median([row["seconds"]["gamp"] for row in found])),
        }
        rows[branch] = {"d": d, "norm": max(row["norm"] for row in found), "torch": torch, "instances": found} | median
    return rows
