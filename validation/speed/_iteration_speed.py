"""Seconds of an iteration of GAMP: beside one X @ Q, part by part, and against d, n, L and r."""

import time

import numba
import numpy as np

import gamp_attention as ga
from gamp_attention._core.compiled import field_kernel
from gamp_attention.data.passes import LOOP_ROWS, add_up, project
from gamp_attention.data.risk import risk_at
from gamp_attention.data.starts import initial_weights
from gamp_attention.gamp.step import GampState, gamp_step

ALPHA, PAUSE = 1.5, 0.03
# on one thread the time of the processor, so that what else the machine does counts less
clock = time.process_time if numba.config.NUMBA_NUM_THREADS == 1 else time.perf_counter
SHORT, LONG, RUNS = 10, 40, 3  # iterations of two runs, whose difference is measured, and how often
IN_CACHE = 16  # rows


def alternate(tasks, repeats):
    """Median and minimum of the seconds of each task. Tasks take turns, and each is run once before."""
    seconds = {name: [] for name in tasks}
    for turn in range(repeats + 1):
        for name, task in tasks.items():
            time.sleep(PAUSE)
            began = clock()
            task()
            if turn:
                seconds[name].append(clock() - began)
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
                "risk": lambda data=data, state=state: risk_at(data, state.Q, "asymptotic"),
                "stream": lambda X=X: np.dot(X.ravel(), X.ravel()),
                "loops": lambda X=X, state=state: loops(X, state.Q, 1),
                "cached": lambda X=X, state=state: loops(X[:IN_CACHE], state.Q, len(X) // IN_CACHE),
            },
            repeats,
        )
        median, least = seconds["product"]
        run = min(of_a_run(data) for _ in range(RUNS))
        bandwidth = X.nbytes / seconds["stream"][1]
        rows[dtype] = {"d": d, **{name: s / median for name, (s, _) in seconds.items()}, "seconds": seconds}
        rows[dtype]["least"] = {name: s / least for name, (_, s) in seconds.items()} | {"run": run / least}
        rows[dtype] |= {"bandwidth": bandwidth, "flops": 6 * X.size / seconds["cached"][1]}
    return rows


def of_a_run(data):
    """Seconds of an iteration, from two runs of `run_gamp` that differ in their number alone."""
    times = []
    for n_iter in (SHORT, LONG):
        began = clock()
        ga.run_gamp(data, "semantic", "asymptotic", damping=0.3, max_iter=n_iter)
        times.append(clock() - began)
    return (times[1] - times[0]) / (LONG - SHORT)


def loops(X, Q, repeats):
    """The loops of a pass by themselves: fields of all rows along Q, and two sums of the rows."""
    columns, sums = np.ascontiguousarray(Q.T, dtype=float), np.zeros((2 * Q.shape[1], len(Q)))
    _loops(repeats, X, columns, np.zeros((LOOP_ROWS, len(columns))), np.ones((LOOP_ROWS, len(sums))), sums)


@field_kernel
def _loops(repeats, rows, columns, fields, weights, sums):
    last = rows.shape[0] - rows.shape[0] % LOOP_ROWS - LOOP_ROWS
    for _ in range(repeats):
        for first in range(0, last + 1, LOOP_ROWS):
            ahead = min(first + LOOP_ROWS, last)
            project(first, ahead, rows, columns, fields)
            weights[0, 0] = fields[0, 0]
            add_up(first, ahead, rows, weights, sums)


def prox(data, state):
    """The proximal steps of an iteration alone; a state's centres are near its minimisers."""
    return ga.denoise(data.loss, data.terms("asymptotic").params, state.z - state.D, state.V, state.z, hold=True)


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
