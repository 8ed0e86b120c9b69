"""Survey propagation from random starts: the minima it finds, compared with GAMP, L-BFGS and Adam in equal time.

Method: `train(init="random", survey=True)` on noiseless and noisy attention data with the exact risk, and on phase
retrieval; two to five tokens, rank 2, and separate weights for queries and keys ("untied"). The competitors start from
random weights again and again, the first time from the weights of the survey, as long as less processor time has passed
than survey propagation took in total, and keep the result of lowest training loss: GAMP with default settings; L-BFGS-B
of scipy on the compiled risk, until the gradient is zero; Adam in torch (1500 steps of 0.05), continued by L-BFGS-B.
The last run of each is completed, so that competitors take longer. "Informed" is message passing from the weights of
the teacher.

Criterion: every result of survey propagation has a gradient norm of at most 1e-8 and is a minimum; it has the lowest
median training loss in each setting; and in no setting a competitor is significantly lower, by exact sign tests of
equal numbers of lower and higher losses with Holm's correction for all comparisons together. Parts of the schedule were
chosen with the first instances; these, with seeds below 14, are not tested. (Page "Survey propagation" of the manual.)
"""

import time
from functools import cache

import numpy as np
from scipy.optimize import minimize
from scipy.stats import binomtest

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, draw_legend
from gamp_attention.problem.risk import risk_at
from gamp_attention.problem.starts import several_starts
from validation._tools.drawing import figure
from validation._tools.report import run_claim
from validation._tools.tables import markdown_table, round_curve

METHODS = {"survey": "survey", "gamp": "GAMP", "lbfgs": "L-BFGS", "adam": "Adam"}
COLORS = {"survey": "#0072B2", "gamp": "#E69F00", "lbfgs": "#009E73", "adam": "#CC79A7"}  # Okabe and Ito
EQUAL, LEVEL, TOL = 1e-6, 0.05, 1e-8  # relative difference of equal losses, level of all tests, gradient norm at ends
FIRST_TESTED, LAST = 14, 100  # seeds of tested instances
STEPS, ROUNDS, MAX_RESTARTS = 1500, 20, 1000  # steps of Adam, restarts of L-BFGS-B, and random starts


LAYER = {"omega": 0.2, "sigma": 0.8}
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
    "r = 2, α = 1.5": (ga.attention_model, LAYER | {"rank": 2, "teacher_rank": 2}, 1.5, 150),
    "α = 1, λ = 0.1": (ga.paper_model, LAYER | {"lam": 0.1}, 1.0, 300),
    "α = 1, s = 0.1": (ga.paper_model, LAYER | {"score_noise": 0.1}, 1.0, 300),
    "α = 1, λ = 0.001": (ga.paper_model, LAYER | {"lam": 0.001}, 1.0, 300),
    "α = 1.5, s = 0.3, λ = 0.1": (ga.paper_model, LAYER | {"score_noise": 0.3, "lam": 0.1}, 1.5, 300),
}


def run_lbfgs(data, Q):
    """Return weights of L-BFGS-B, restarted until the gradient is zero."""
    scale, norm = data.penalty.strength * np.sqrt(data.dim), np.inf
    settings = {"gtol": 0.1 * TOL * scale / np.sqrt(Q.size), "ftol": 0.0, "maxiter": 5000, "maxfun": 20000,
                "maxcor": 30}  # fmt: skip

    def both(x):
        at = risk_at(data, x.reshape(Q.shape), "exact")
        return at.train_loss * data.dim, at.gradient.ravel()

    for _ in range(ROUNDS):
        result = minimize(both, Q.ravel(), jac=True, method="L-BFGS-B", options=settings)
        Q, before, norm = result.x.reshape(Q.shape), norm, float(np.linalg.norm(result.jac)) / scale
        if norm <= TOL or norm > 0.9 * before:
            break
    return Q


@cache
def compile_methods(setting):
    """Run all methods on a small instance, so that no time contains compilation."""
    build, arguments, alpha, _ = SETTINGS[setting]
    data = ga.sample(build(**arguments), 40, alpha, 0)
    ga.train(data, "random", survey=True, max_iter=100, n_starts=1, escape=False)
    run_lbfgs(data, data.Q_star)


def run_competitor(method, data, Q0):
    """Return the weights of a competitor from a start."""
    if method == "gamp":
        return ga.run_gamp(data, Q0).Q
    if method == "adam":
        Q0 = ga.minimize_risk(data, Q0, "exact", "adam", lr=0.05, max_iter=STEPS, tol=TOL).Q
    return run_lbfgs(data, Q0)


def run_setting(setting, d, seed):
    """Return training losses and seconds of all methods in equal time on one instance, and checks of the survey."""
    compile_methods(setting)
    build, arguments, alpha, _ = SETTINGS[setting]
    data = ga.sample(build(**arguments), d, alpha, seed)
    starts = [Q for _, Q in several_starts(data, "random", MAX_RESTARTS, seed, "exact")]
    began = time.process_time()
    run = ga.train(data, starts[0], survey=True, seed=seed, n_starts=1, escape=False)
    seconds = {"survey": time.process_time() - began}
    losses = {"informed": ga.run_gamp(data, "semantic").train_loss, "survey": run.train_loss}
    for method in list(METHODS)[1:]:
        began, losses[method] = time.process_time(), np.inf
        for Q0 in starts:
            losses[method] = min(losses[method], ga.train_loss(data, run_competitor(method, data, Q0), "exact"))
            seconds[method] = time.process_time() - began
            if seconds[method] >= seconds["survey"]:
                break
    return {"losses": losses, "seconds": seconds, "gradient_norm": run.gradient_norm,
            "is_minimum": bool(run.is_minimum)}  # fmt: skip


def plan(quick):
    """Return the instances of all settings."""
    if quick:
        return {run_setting: [{"setting": "α = 1", "d": 100, "seed": seed} for seed in range(2)]}
    seeds = range(FIRST_TESTED, LAST)
    return {run_setting: [{"setting": s, "d": SETTINGS[s][3], "seed": k} for s in SETTINGS for k in seeds]}


def judge(verdict, rows):
    """Check minima, medians and sign tests, and return the ratios of losses for each setting."""
    norms, minima = (np.array([row[name] for row in rows]) for name in ("gradient_norm", "is_minimum"))
    text = f"{np.sum(norms <= TOL)} of {len(rows)} gradients are at most 1e-8 (largest {norms.max():.1e})"
    verdict.check(bool(np.all(norms <= TOL) and np.all(minima)), f"{text}, {np.sum(minima)} are minima")
    settings, tests, table = {}, [], []
    for setting in SETTINGS:
        mine = [row for row in rows if row["setting"] == setting]
        if not mine:
            continue
        losses = {name: np.array([row["losses"][name] for row in mine]) for name in ("informed", *METHODS)}
        ratios = settings[setting] = {name: round_curve(losses[name] / losses["informed"], 6) for name in METHODS}
        medians = {name: float(np.median(values)) for name, values in ratios.items()}
        lowest = min(medians[name] for name in list(METHODS)[1:])
        text = f"median loss of survey propagation is {medians['survey']:.4f} of the informed loss, lowest other method"
        verdict.check(medians["survey"] <= lowest * (1 + EQUAL), f"{setting}: {text} {lowest:.4f}")
        cells = [f"{setting}, {len(mine)}", f"{medians['survey']:.4f}"]
        for name in list(METHODS)[1:]:
            beside = losses[name] / losses["survey"]
            lower, higher = int(np.sum(beside < 1 - EQUAL)), int(np.sum(beside > 1 + EQUAL))
            p = float(binomtest(higher, lower + higher).pvalue) if lower + higher else 1.0
            tests.append((p, lower > higher))
            cells.append(f"{medians[name]:.4g} ({lower}, {len(mine) - lower - higher}, {higher})")
        table.append(cells)
    tests.sort()
    adjusted = np.maximum.accumulate([p * (len(tests) - k) for k, (p, _) in enumerate(tests)])
    significant = [lower for p, (_, lower) in zip(adjusted, tests, strict=True) if p <= LEVEL]
    text = f"{len(significant)} of {len(tests)} comparisons are significant, other methods lower in {sum(significant)}"
    verdict.check(sum(significant) == 0, text)
    heads = ["setting, instances", "survey: median loss / informed",
             *(f"{METHODS[name]} (lower, equal, higher than survey)" for name in list(METHODS)[1:])]  # fmt: skip
    verdict.write_table(markdown_table(heads, table))
    return {"settings": settings}


def draw(numbers, path):
    """Draw the losses of all instances relative to the informed minimum, with a row for each setting."""
    settings = numbers["settings"]
    with figure(path, 1, 1, (9.0, 1.5 + 0.45 * len(settings))) as axes:
        axis = axes[0, 0]
        axis.axvline(0, color=DARK, lw=0.8)
        for y, ratios in enumerate(settings.values()):
            for k, (method, name) in enumerate(METHODS.items()):
                excess = 100 * (np.sort(ratios[method]) - 1)
                at = y + 0.2 * (k - 1.5) + np.linspace(-0.08, 0.08, len(excess))
                style = {"ms": 3, "alpha": 0.7, "mew": 0, "color": COLORS[method]}
                axis.plot(excess, at, "o", label=None if y else name, **style)
                axis.plot([np.median(excess)] * 2, at[[0, -1]] + [-0.03, 0.03], color=COLORS[method], lw=2.5)
        axis.set_yticks(range(len(settings)), settings)
        axis.set_xscale("symlog", linthresh=1.0)
        words = "training loss relative to the minimum next to the teacher, %"
        axis.set(xlabel=words, title="all runs; bars: medians", ylim=(len(settings) - 0.5, -0.5))
        draw_legend(axis, columns=4)


def main():
    run_claim("survey_propagation", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
