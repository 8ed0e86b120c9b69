"""How the time of a solution of state evolution grows with the accuracy, the tokens and the columns."""

import time

import numpy as np

import gamp_attention as ga
from gamp_attention.state_evolution.equations.channel import Channel
from gamp_attention.state_evolution.rules.sobol import SobolRule

ACCURACIES = {  # 1/rtol: model, α, branch and values; the last ones tell the exponent
    "1/rtol, split rule, semantic": (ga.paper_model(0.3), 1.5, "semantic", (1e2, 1e3, 1e4, 1e5, 1e6)),
    "1/rtol, split rule, positional": (ga.paper_model(0.3), 1.5, "positional", (1e2, 1e3, 1e4, 1e5)),
    "1/rtol, points, three tokens": (ga.attention_model(3), 1.5, "semantic", (1e2, 5e2, 1e3, 2e3)),
    "1/rtol, points, two columns": (ga.attention_model(2, 2, 2), 2.0, "semantic", (1e2, 2e2, 4e2, 8e2)),
}
SIZES = {  # of one average over 8 × 1024 points
    "L, an average by points": {L: (L, 1) for L in (2, 3, 4, 6, 8)},
    "r = t, an average by points": {r: (2, r) for r in (1, 2, 3)},
}
RULE = SobolRule(1024, 8)


def growth(quick):
    """Seconds of solutions and exponents, by what is varied."""
    rows = {}
    for name, (model, alpha, branch, values) in ACCURACIES.items():
        chosen = values[:2] if quick else values
        found = [_seconds(model, alpha, branch, 1 / value) for value in chosen]
        rows[name] = _row(chosen, found)
    for name, cases in SIZES.items():
        chosen = list(cases)[:2] if quick else list(cases)
        rows[name] = _row(chosen, [_average_seconds(*cases[value]) for value in chosen])
    return rows


def _seconds(model, alpha, branch, rtol):
    """Processor time of a solution, after compilation."""
    ga.solve_state_evolution(model, alpha, branch, rtol=0.1, stability=False)
    began = time.process_time()
    se = ga.solve_state_evolution(model, alpha, branch, rtol=rtol, stability=False)
    print(f"{model.n_tokens} tokens, {model.rank} columns, {branch}, rtol {rtol:g}: {se.status.value}", flush=True)
    return time.process_time() - began


def _average_seconds(n_tokens, rank):
    """Processor time of one average by points, the least of three."""
    one = np.tile(np.eye(rank), (n_tokens, 1, 1))
    at = ga.Overlaps(0.15 * one, np.zeros((n_tokens, rank)), 0.17 * one, 12.0 * one)
    channel, times = Channel(ga.attention_model(n_tokens, rank, rank), at), []
    for _ in range(3):
        began = time.process_time()
        RULE.moments(channel)
        times.append(time.process_time() - began)
    return min(times)


def _row(values, seconds):
    slope = np.polyfit(np.log(values[-3:]), np.log(seconds[-3:]), 1)[0]  # where fixed costs count least
    return {"sizes": list(values), "seconds": seconds, "exponent": float(slope)}
