"""Seconds of an iteration of GAMP: beside one X @ Q, part by part, and against d, n, L and r."""

import time

import numpy as np

import gamp_attention as ga
from gamp_attention.data.fields import back_project, local_fields
from gamp_attention.data.starts import initial_weights
from gamp_attention.gamp.step import GampState, gamp_step

ALPHA, PAUSE = 1.5, 0.03


def alternate(tasks, repeats):
    """Median and minimum of the seconds of each task. Tasks take turns, and each is run once before."""
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
