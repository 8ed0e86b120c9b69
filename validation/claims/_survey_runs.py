"""Instances of survey_propagation: settings, and the methods that run from random starts in equal time.

`survey_propagation` states how the methods start again and which numbers are compared.
"""

import time
from functools import cache
from typing import NamedTuple

import numpy as np

import gamp_attention as ga
from gamp_attention.problem.starts import several_starts
from gamp_attention.problem.symmetries import agreement_of
from validation.claims._survey_comparisons import METHODS
from validation.claims.lower_minima import run_lbfgs

TOL, TESTED = 1e-8, 4000  # gradient norm at the end of runs; number of fresh samples for test errors
STEPS, MAX_RESTARTS = 1500, 1000  # steps of Adam; maximum number of random starts
LAYER = {"omega": 0.2, "sigma": 0.8}


def two_layers(z):
    """Return the attention matrix of the second of two layers of attention, with fields z (2, 2)."""
    first = np.eye(2) + softmax(np.outer(z[:, 0], z[:, 0]))
    second = first @ z[:, 1]
    return softmax(np.outer(second, second))


def softmax(scores):
    """Return weights that add up to one in each row."""
    weights = np.exp(scores - scores.max(axis=1)[:, None])
    return weights / weights.sum(axis=1)[:, None]


def build_two_layers():
    """Return the model in which a student of two layers learns from a teacher of two layers."""
    return ga.sequence_model(lambda u, noise: two_layers(u), two_layers, n_tokens=2, rank=2, lam=0.01)


@ga.register_loss
class BoundedLoss(NamedTuple):
    """ℓ(z) = (1 − p tanh z)/2 for labels p = ±1, which is not convex."""

    def value(self, p, z):
        """Return the loss."""
        return 0.5 * (1 - p[0] * np.tanh(z[0, 0]))

    def derivatives(self, p, z, grad, hess):
        """Return the loss, and fill its derivatives."""
        tanh = np.tanh(z[0, 0])
        grad[0], hess[0, 0] = -0.5 * p[0] * (1 - tanh**2), p[0] * tanh * (1 - tanh**2)
        return 0.5 * (1 - p[0] * tanh)

    def floor(self, p):
        """Return a lower bound of the loss."""
        return 0.0

    def torch(self, p, z):
        """Return losses (n,) for tensors."""
        return 0.5 * (1 - p[:, 0] * z[:, 0, 0].tanh())


BOUNDED = {"loss": BoundedLoss(), "labels": ga.LogisticLabels(0.3), "lam": 0.01}
PHASES = {"loss": ga.PhaseRetrievalLoss(), "labels": ga.IntensityLabels(0.0), "lam": 1e-3}
UNTIED = LAYER | {"rank": 2, "teacher_rank": 1, "student": ga.DotProductAttention(tied=False)}
SETTINGS = {  # for each setting: function that returns a model, its arguments, α, d
    "α = 0.6": (ga.paper_model, LAYER, 0.6, 300),
    "α = 0.8": (ga.paper_model, LAYER, 0.8, 300),
    "α = 1": (ga.paper_model, LAYER, 1.0, 300),
    "α = 1.5": (ga.paper_model, LAYER, 1.5, 300),
    "α = 1.5, s = 0.3": (ga.paper_model, LAYER | {"score_noise": 0.3}, 1.5, 300),
    "L = 3, α = 0.5": (ga.attention_model, LAYER | {"n_tokens": 3}, 0.5, 200),
    "L = 5, α = 0.3": (ga.attention_model, LAYER | {"n_tokens": 5}, 0.3, 200),
    "untied, α = 1.5": (ga.attention_model, UNTIED, 1.5, 150),
    "phases, α = 2": (ga.glm_model, PHASES, 2.0, 300),
    "phases, α = 3": (ga.glm_model, PHASES, 3.0, 300),
    "two layers, α = 2": (build_two_layers, {}, 2.0, 150),
    "bounded, α = 1.5": (ga.glm_model, BOUNDED, 1.5, 300),
    "bounded, α = 3": (ga.glm_model, BOUNDED, 3.0, 300),
    "r = 2, α = 1.5": (ga.attention_model, LAYER | {"rank": 2, "teacher_rank": 2}, 1.5, 150),
    "α = 1, λ = 0.1": (ga.paper_model, LAYER | {"lam": 0.1}, 1.0, 300),
    "α = 1, s = 0.1": (ga.paper_model, LAYER | {"score_noise": 0.1}, 1.0, 300),
    "α = 1, λ = 0.001": (ga.paper_model, LAYER | {"lam": 0.001}, 1.0, 300),
    "α = 1.5, s = 0.3, λ = 0.1": (ga.paper_model, LAYER | {"score_noise": 0.3, "lam": 0.1}, 1.5, 300),
}


@cache
def compile_methods(setting):
    """Run all methods on a small instance, so that no time contains compilation."""
    build, arguments, alpha = (SETTINGS | {"branches": (ga.paper_model, {}, 1.0)})[setting][:3]
    data = ga.sample(build(**arguments), 40, alpha, 0)
    ga.train(data, "random", survey=True, max_iter=100, n_starts=1, escape=False)
    run_lbfgs(data, data.Q_star)


def run_competitor(method, data, Q0):
    """Return the weights of a competitor from a start."""
    if method == "gamp":
        return ga.run_gamp(data, Q0).Q
    if method == "adam":
        Q0 = ga.minimize_risk(data, Q0, "exact", "adam", lr=0.05, max_iter=STEPS, tol=TOL).Q
    return run_lbfgs(data, Q0)[0]


def restart(method, data, starts, seconds):
    """Return the row of the lowest minimum of a competitor from random starts, as long as the time allows."""
    began, best, lowest, n_runs = time.process_time(), starts[0], np.inf, 0
    for Q0 in starts:
        Q, n_runs = run_competitor(method, data, Q0), n_runs + 1
        loss = ga.train_loss(data, Q, "exact")
        best, lowest = (Q, loss) if loss < lowest else (best, lowest)
        if time.process_time() - began >= seconds:
            break
    seconds = time.process_time() - began
    return measure(data, best) | {"seconds": seconds, "n_runs": n_runs}


def measure(data, Q):
    """Return training loss, test error and cosine with the teacher of weights."""
    return {
        "loss": ga.train_loss(data, Q, "exact"),
        "test_error": ga.sampled_test_error(data, Q, n_samples=TESTED)[0],
        "cosine": compute_cosine(data, Q),
    }


def compute_cosine(data, Q):
    """Return the cosine with the teacher, up to symmetries of the risk: rotations, or signs of single columns.

    Queries and keys with separate weights are both compared with the teacher's weights.
    """
    if data.student.rotations:
        return agreement_of(data, Q, np.tile(data.Q_star, Q.shape[1] // data.Q_star.shape[1]))
    norms = np.linalg.norm(Q, axis=0) * np.linalg.norm(data.Q_star, axis=0)
    return float(np.mean(np.abs(np.sum(Q * data.Q_star, axis=0)) / np.maximum(norms, 1e-300)))


def run_survey(data, Q0, seed):
    """Return the row of survey propagation from a start."""
    began = time.process_time()
    run = ga.train(data, Q0, survey=True, seed=seed, n_starts=1, escape=False)
    seconds = time.process_time() - began
    surveys = [
        {"y": each.parisi, "ending": each.ending.value, "spread": each.spread, "loss": each.train_loss}
        for each in run.surveys
    ]
    checks = {"gradient_norm": run.gradient_norm, "is_minimum": run.is_minimum}
    return measure(data, run.Q) | {"seconds": seconds, "n_runs": 1, "surveys": surveys} | checks


def run_target(alpha, d, seed):
    """Run survey propagation and GAMP from the same random start, and the informed run."""
    compile_methods("α = 1")
    data = ga.sample(ga.paper_model(**LAYER), d, alpha, seed)
    start = draw_starts(data, 1, seed)
    informed = {"informed": measure(data, ga.run_gamp(data, "semantic").Q)}
    before = restart("gamp", data, start, 0.0)
    rows = informed | {"survey": run_survey(data, start[0], seed), "gamp": restart("gamp", data, start, 0.0)}
    rows["gamp"]["seconds"] = 0.5 * (before["seconds"] + rows["gamp"]["seconds"])
    return rows


def run_setting(setting, d, seed, methods=tuple(METHODS)):
    """Run methods from random starts in equal time, and the informed run."""
    compile_methods(setting)
    build, arguments, alpha = SETTINGS[setting][:3]
    data = ga.sample(build(**arguments), d, alpha, seed)
    informed = {"informed": measure(data, ga.run_gamp(data, "semantic").Q) | {"n_runs": 1}}
    return informed | run_methods(data, seed, methods)


def run_branches(alpha, d, seed):
    """Run message passing on both branches of the founding paper's layer, and three methods from random starts."""
    compile_methods("branches")
    data = ga.sample(ga.paper_model(), d, alpha, seed)
    branches = {branch: measure(data, ga.run_gamp(data, branch).Q) for branch in ("semantic", "positional")}
    start = draw_starts(data, 1, seed)
    rows = {"survey": run_survey(data, start[0], seed)}
    return branches | rows | {name: restart(name, data, start, 0.0) for name in ("gamp", "lbfgs")}


def run_methods(data, seed, methods):
    """Return rows of survey propagation and of competitors in equal time."""
    starts = draw_starts(data, MAX_RESTARTS, seed)
    rows = {"survey": run_survey(data, starts[0], seed)}
    return rows | {name: restart(name, data, starts, rows["survey"]["seconds"]) for name in methods if name != "survey"}


def draw_starts(data, n, seed):
    """Return the weights of random starts."""
    return [Q for _, Q in several_starts(data, "random", n, seed, "exact")]


def run_part(key, function):
    """Return the row of an instance with its key."""
    part, _, seed = key.rpartition(" ")
    return [{"key": key, "part": part, "seed": int(seed), "runs": function()}]
