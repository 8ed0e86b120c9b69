"""Survey propagation from random starts: the minima it finds, compared with GAMP, L-BFGS and Adam in equal time.

Method: `run_gamp(init="random", survey=True)` on noiseless and noisy attention data with the exact risk, and on phase
retrieval. The competitors start from random weights again and again, the first time from the weights of the survey, as
long as less processor time has passed than survey propagation took in total, and keep the result of lowest training
loss: GAMP with default settings; L-BFGS-B of scipy on the compiled risk, until the gradient is zero (faster than
`minimize_risk`); Adam in torch (1500 steps of 0.05), continued by L-BFGS-B. The last run of each is completed, so that
competitors take longer. "Informed" is message passing from the weights of the teacher. Test errors are on the same
fresh samples for all methods.

Targets: σ = 0.8, ω = 0.2, λ = 0.01, d = 300, one random start. Equal time: the same layer over α and noise s on the
scores, then three and five tokens, rank 2, queries and keys with separate weights ("untied"), two layers, phase
retrieval, and labels ±1 of a logistic model with a bounded loss. Two branches: the founding paper's layer (ω = 0.3, σ =
0.5), whose minima are semantic (cosine with the teacher of at least 0.5) or positional; one random start for each
method, d = 300.

Criterion: the training loss of at least 95 % of the instances at α = 1, and 80 % at α = 0.7, is at most (1 + 1e-6)
times the informed loss, and the median ratio of the times of survey propagation and of one GAMP run from the same start
is at most 10; every result of survey propagation has a gradient norm of at most 1e-8 and is a minimum; in equal time,
survey propagation has the lowest median training loss in each setting.

Comparisons: for each setting and competitor, the exact sign test of equal numbers of lower and higher losses, corrected
for the number of comparisons (Holm, 1979). For each comparison that is not significant, the table has the number of
instances that a sign test needs for a power of 80 % if the counted fractions are true. Three of these comparisons have
further instances, planned before the first of them, which are tested without the others. Four comparisons, which need
the fewest instances, have further instances in a sequential test (`SEQUENTIAL`): after 5, 10, 15 and 20 instances, at
the level 5 % divided by the four tests and four looks; a setting ends at the look at which both of its tests are
significant. The seven comparisons of `STOPPED` have further instances (seeds from 300 on) in tests without looks: after
each instance, a p-value that is valid at any stopping time is computed (`sequential_p_values`), and compared with 5 %
divided by the seven tests. A method is no longer run in a setting as soon as its test is decided, and a setting ends if
all its tests are decided, after 60 instances, or if the computing time ends. The probability that any of the seven
tests rejects equality although lower and higher losses are equally probable is therefore at most 5 %.

Fixed samples: the first comparisons have 6 to 14 instances in each setting (`FIRST`). Further instances bring each
setting to 100, in the order of their computing time, as far as the computing time suffices. All 42 comparisons are
tested again with the further instances alone, without looks, by exact sign tests with Holm's correction for 42 tests.
The number of further instances does not depend on their results: it is 100 without the first ones, or the number that
the computing time allowed, counted in the order of seeds up to the first one that is missing. The table also has the
test errors, which are not tested. Criterion: no other method is significantly lower than survey propagation.

Over λ and s: the comparisons above have λ = 0.01 for attention, and s = 0 or 0.3. Four further settings (`VARIED`) of
the layer with two tokens have other λ and s, with 100 instances each, whose seeds begin at 400, so that no part of the
schedule was chosen with their samples. They are a separate family: the training losses are compared by 12 exact sign
tests with Holm's correction for 12 tests, without looks, and the test errors by 12 further tests with the same
correction. The order of the settings is the order of the runs; if the computing time ends, a setting is tested with
its instances up to the first seed that is missing. Criterion: no other method has significantly lower training losses
than survey propagation. There is no criterion for test errors, because a lower training loss can generalize worse.

Every instance is stored in a file of runs and not computed again; `--instances` asks for more of them, and `--only`
restricts further instances to keys with a text. After a change of the algorithm, delete this file. `--stored` evaluates
the stored instances only.
"""

import time
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from scipy.stats import binomtest

import gamp_attention as ga
from gamp_attention.data import agreement_of, several_starts
from gamp_attention.experiments import ALPHA, DARK, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.sign_tests import LEVEL, find_decision
from validation._tools.tables import markdown_table
from validation.claims._survey_comparisons import (
    COMPLETE,
    EQUAL,
    FIRST_VARIED,
    LOOKS,
    METHODS,
    SEQUENTIAL,
    STOPPED,
    STOPPED_LEVEL,
    VARIED,
    collect,
    compute_ratios,
    find_end,
    format_comparisons,
    format_fixed,
    format_stopped,
    format_varied,
    list_comparisons,
    list_fixed,
    list_parts,
    list_signs,
    list_varied,
)
from validation.claims.lower_minima import run_lbfgs

TARGETS = {1.0: 0.95, 0.7: 0.8}  # required fractions of instances, by α
DIM, INSTANCES = 300, 100
MOST_TIME, TOL, SEMANTIC, TESTED = 10.0, 1e-8, 0.5, 4000
BRANCH_ALPHAS, BRANCH_DIM, BRANCH_INSTANCES = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5), 300, 10
LOWEST_FROM = 1.25  # α_c: the semantic solution has the lower training loss above it (d → ∞)
STEPS, MAX_RESTARTS = 1500, 1000  # steps of Adam; maximum number of random starts
COLORS = {"survey": "#0072B2", "gamp": "#E69F00", "lbfgs": "#009E73", "adam": "#CC79A7"}  # Okabe and Ito
MARKERS = {"survey": "o", "gamp": "s", "lbfgs": "^", "adam": "D"}
STYLES = {"survey": "-", "gamp": "--", "lbfgs": ":"}
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
SETTINGS = {  # for each setting: function that returns a model, its arguments, α, d, default number of instances
    "α = 0.6": (ga.paper_model, LAYER, 0.6, 300, 6),
    "α = 0.8": (ga.paper_model, LAYER, 0.8, 300, 6),
    "α = 1": (ga.paper_model, LAYER, 1.0, 300, 6),
    "α = 1.5": (ga.paper_model, LAYER, 1.5, 300, 6),
    "α = 1.5, s = 0.3": (ga.paper_model, LAYER | {"score_noise": 0.3}, 1.5, 300, 6),
    "L = 3, α = 0.5": (ga.attention_model, LAYER | {"n_tokens": 3}, 0.5, 200, 6),
    "L = 5, α = 0.3": (ga.attention_model, LAYER | {"n_tokens": 5}, 0.3, 200, 6),
    "untied, α = 1.5": (ga.attention_model, UNTIED, 1.5, 150, 6),
    "phases, α = 2": (ga.glm_model, PHASES, 2.0, 300, 6),
    "phases, α = 3": (ga.glm_model, PHASES, 3.0, 300, 6),
    "two layers, α = 2": (build_two_layers, {}, 2.0, 150, 4),
    "bounded, α = 1.5": (ga.glm_model, BOUNDED, 1.5, 300, 12),
    "bounded, α = 3": (ga.glm_model, BOUNDED, 3.0, 300, 12),
    "r = 2, α = 1.5": (ga.attention_model, LAYER | {"rank": 2, "teacher_rank": 2}, 1.5, 150, 4),
    "α = 1, λ = 0.1": (ga.paper_model, LAYER | {"lam": 0.1}, 1.0, 300, 0),
    "α = 1, s = 0.1": (ga.paper_model, LAYER | {"score_noise": 0.1}, 1.0, 300, 0),
    "α = 1, λ = 0.001": (ga.paper_model, LAYER | {"lam": 0.001}, 1.0, 300, 0),
    "α = 1.5, s = 0.3, λ = 0.1": (ga.paper_model, LAYER | {"score_noise": 0.3, "lam": 0.1}, 1.5, 300, 0),
}
PAIRS = {"α = 1.5": ("gamp",), "L = 3, α = 0.5": ("gamp",), "L = 5, α = 0.3": ("lbfgs",)}  # further comparisons
FIRST_PAIR, N_PAIRS = 100, 60  # first seed, and number of instances of further comparisons
FIRST_STOPPED, MOST_STOPPED = 300, 60  # first seed and largest number of instances of tests without looks
QUICK_SETTINGS = {"α = 1": (ga.paper_model, LAYER, 1.0, 100, 2)}


@cache
def compile_methods(setting):
    """Run all methods on a small instance, so that no time contains compilation."""
    build, arguments, alpha = (SETTINGS | {"branches": (ga.paper_model, {}, 1.0)})[setting][:3]
    data = ga.sample(build(**arguments), 40, alpha, 0)
    ga.run_gamp(data, "random", survey=True, max_iter=100)
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
    run = ga.run_gamp(data, Q0, survey=True, seed=seed)
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
    Q0 = draw_starts(data, 1, seed)[0]
    rows = {"informed": measure(data, ga.run_gamp(data, "semantic").Q), "survey": run_survey(data, Q0, seed)}
    return rows | {"gamp": restart("gamp", data, [Q0], 0.0)}


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


def plan_runs(quick, instances):
    """Return functions that compute the rows of each instance, by key, in order of priority."""
    n, d = (3, 200) if quick else (max(INSTANCES, instances), DIM)
    plan = {f"target {alpha:g} {seed}": partial(run_target, alpha, d, seed) for seed in range(n) for alpha in TARGETS}
    settings = QUICK_SETTINGS if quick else SETTINGS
    n, d, alphas = (1, 100, BRANCH_ALPHAS[-1:]) if quick else (BRANCH_INSTANCES, BRANCH_DIM, BRANCH_ALPHAS)
    for seed in range(max(instances, n, *(setting[4] for setting in settings.values()))):
        for name, setting in settings.items():
            if name not in VARIED and seed < max(setting[4], instances):
                plan[f"equal time {name} {seed}"] = partial(run_setting, name, setting[3], seed)
        if seed < max(n, instances):
            plan |= {f"branches {alpha:g} {seed}": partial(run_branches, alpha, d, seed) for alpha in alphas}
    for seed in range(FIRST_PAIR, FIRST_PAIR + N_PAIRS * (not quick)):
        plan |= {
            f"pairs {name} {seed}": partial(run_setting, name, SETTINGS[name][3], seed, methods)
            for name, methods in PAIRS.items()
        }
    for name in [] if quick else VARIED:
        for seed in range(FIRST_VARIED, FIRST_VARIED + COMPLETE):
            plan[f"equal time {name} {seed}"] = partial(run_setting, name, SETTINGS[name][3], seed)
    return plan


def plan_look(name, n):
    """Return functions that compute the rows of the first n further instances of a sequential test, by key."""
    keys = {f"pairs {name} {seed}": seed for seed in range(FIRST_PAIR, FIRST_PAIR + n)}
    return {
        key: partial(run_part, key, partial(run_setting, name, SETTINGS[name][3], seed, SEQUENTIAL[name]))
        for key, seed in keys.items()
    }


def run_part(key, function):
    """Return the row of an instance with its key."""
    part, _, seed = key.rpartition(" ")
    return [{"key": key, "part": part, "seed": int(seed), "runs": function()}]


def format_range(values, form="{:.3f}"):
    """Format the median and the range of numbers."""
    return f"{form} ({form} to {form})".format(np.median(values), np.min(values), np.max(values))


def format_count(count, n):
    """Format a number of instances, and the 95 % interval of its fraction by Wilson's method."""
    interval = binomtest(int(count), n).proportion_ci(method="wilson")
    return f"{count} ({100 * interval.low:.0f} to {100 * interval.high:.0f} %)"


def compare_pairs(rows, part, method):
    """Return how often a method's loss is lower, equal or higher than the loss of surveys, and its mean logarithm."""
    if method == "survey":
        return "–", "–"
    ratios = compute_ratios(rows, part, method, "survey")
    lower, higher = np.sum(ratios < 1 - EQUAL), np.sum(ratios > 1 + EQUAL)
    logs = np.log(ratios)
    difference = plus_minus(logs.mean(), logs.std(ddof=1) / np.sqrt(len(logs))) if len(logs) > 1 else f"{logs[0]:.3f}"
    return f"{lower}, {len(ratios) - lower - higher}, {higher}", difference


def plan_stopped(rows, name):
    """Return the function that computes the next instance of a setting of `STOPPED`, by key; none if it has ended."""
    part = f"stopped {name}"
    open_tests = [each for each in STOPPED[name] if find_decision(list_signs(rows, part, each), STOPPED_LEVEL) is None]
    n = sum(row["part"] == part for row in rows)
    if not open_tests or n == MOST_STOPPED:
        return {}
    key, seed = f"{part} {FIRST_STOPPED + n}", FIRST_STOPPED + n
    return {key: partial(run_part, key, partial(run_setting, name, SETTINGS[name][3], seed, open_tests))}


def format_table(rows):
    """Return the table of equal times: medians and ranges for each setting and method, and pairs with surveys."""
    heads = ["setting, instances", "method", "training loss / informed", "not above informed (95 %)",
             "lower, equal, higher than survey", "mean ln(loss / survey)", "test error", "cosine with the teacher",
             "starts", "seconds"]  # fmt: skip
    lines = []
    for part in list_parts(rows, "equal time"):
        for method, words in {"informed": "informed", **METHODS}.items():
            ratios = compute_ratios(rows, part, method)
            name = f"{part.removeprefix('equal time ')}, {len(ratios)}" if method == "informed" else ""
            low = format_count(np.sum(ratios <= 1 + EQUAL), len(ratios)) if method != "informed" else "–"
            form = "{:.3g}" if ratios.max() > 10 else "{:.4f}"
            loss = format_range(ratios, form) if method != "informed" else "1"
            test = format_range(collect(rows, part, method, "test_error"), "{:.3g}")
            cosine = format_range(collect(rows, part, method, "cosine"), "{:.2f}")
            starts = f"{np.median(collect(rows, part, method, 'n_runs')):g}"
            seconds = "–" if method == "informed" else f"{np.median(collect(rows, part, method, 'seconds')):.1f}"
            lines.append([name, words, loss, low, *compare_pairs(rows, part, method), test, cosine, starts, seconds])
    return markdown_table(heads, lines)


def format_branches(rows):
    """Return the table of both branches: semantic ends, and losses relative to both branches."""
    heads = ["α, instances", "method", "semantic", "loss / semantic", "loss / positional", "below both branches",
             "cosine with the teacher"]  # fmt: skip
    lines = []
    for part in list_parts(rows, "branches"):
        both = [collect(rows, part, branch, "loss") for branch in ("semantic", "positional")]
        for method in list(METHODS)[:3]:
            loss, cosine = (collect(rows, part, method, name) for name in ("loss", "cosine"))
            name = f"{part.removeprefix('branches ')}, {len(loss)}" if method == "survey" else ""
            ratios = [format_range(loss / other, "{:.4f}") for other in both]
            counts = [np.sum(cosine >= SEMANTIC), np.sum(loss < np.minimum(*both) * (1 - EQUAL))]
            lines.append([name, METHODS[method], counts[0], *ratios, counts[1], format_range(cosine, "{:.2f}")])
    return markdown_table(heads, lines)


def check_targets(verdict, rows, quick):
    """Check the targets and return their numbers."""
    numbers = {}
    for alpha, target in TARGETS.items():
        part, slack = f"target {alpha:g}", 0.5 if quick else 0.0
        low = {name: compute_ratios(rows, part, name) <= 1 + EQUAL for name in ("survey", "gamp")}
        fraction, wanted = float(low["survey"].mean()), target - slack
        text = f"{100 * fraction:.0f} % of {len(low['survey'])} instances are not above the informed loss, at least"
        verdict.check(fraction >= wanted, f"α = {alpha:g}: {text} {100 * wanted:.0f} %")
        times = compute_ratios(rows, part, "survey", "gamp", "seconds")
        median, most = float(np.median(times)), MOST_TIME * (3 if quick else 1)
        text = f"median time of {median:.1f} GAMP runs ({times.min():.1f} to {times.max():.1f}), at most"
        verdict.check(median <= most, f"α = {alpha:g}: {text} {most:g}")
        numbers[f"{alpha:g}"] = {
            "instances": len(times), "fraction": fraction, "gamp": float(low["gamp"].mean()), "time": median,
            "loss": format_range(compute_ratios(rows, part, "survey"), "{:.5f}"),
        }  # fmt: skip
    return numbers


def check_minima(verdict, rows):
    """Check that all results of survey propagation are minima."""
    surveys = [row["runs"]["survey"] for row in rows]
    norms, minima = (np.array([each[name] for each in surveys]) for name in ("gradient_norm", "is_minimum"))
    text = f"{np.sum(norms <= TOL)} of {len(rows)} gradients are at most 1e-8 (largest {norms.max():.1e})"
    verdict.check(bool(np.all(norms <= TOL) and np.all(minima)), f"{text}, {np.sum(minima)} are minima")


def check_equal_times(verdict, rows):
    """Check that survey propagation has the lowest median loss, and return medians."""
    numbers = {}
    for part in list_parts(rows, "equal time"):
        medians = {method: float(np.median(compute_ratios(rows, part, method))) for method in METHODS}
        name, others = part.removeprefix("equal time "), min(medians[method] for method in list(METHODS)[1:])
        text = f"median loss of survey propagation is {medians['survey']:.4f} of the informed loss, lowest other method"
        verdict.check(medians["survey"] <= others * (1 + EQUAL), f"{name}: {text} {others:.4f}")
        numbers[name] = medians
    return numbers


def check_tests(verdict, tests, words):
    """Check that no method is significantly lower than survey propagation in tests, and return counts."""
    significant = [(lower, higher) for *_, (lower, higher, _), p in tests if p <= LEVEL]
    n_lower = sum(lower > higher for lower, higher in significant)
    n_tests = sum(n > 0 for *_, (_, _, n), _ in tests)
    text = f"{words}: {len(significant)} of {n_tests} comparisons are significant, other methods lower in"
    verdict.check(n_lower == 0, f"{text} {n_lower}")
    instances = {name: n for name, _, (_, _, n), _ in tests}
    return {"comparisons": n_tests, "significant": len(significant), "lower": n_lower, "instances": instances}


def draw(path, rows):
    """Draw losses relative to the informed minimum for all methods, and the fraction of semantic ends."""
    parts = [*list_parts(rows, "target")[::-1], *list_parts(rows, "equal time")]
    parts = [part for part in parts if not part.startswith("equal time phases")]
    with figure(path, 1, 2, (9.6, 5.6)) as axes:
        losses, ends = axes[0]
        losses.get_gridspec().set_width_ratios([2.6, 1])
        losses.axhline(0, color=DARK, lw=0.8)
        for k, method in enumerate(METHODS):
            label, color = METHODS[method], COLORS[method]
            for x, part in enumerate(parts):
                if all(method in row["runs"] for row in rows if row["part"] == part):
                    excess = 100 * (compute_ratios(rows, part, method) - 1)
                    at = x + 0.2 * (k - 1.5) + np.linspace(-0.08, 0.08, len(excess))
                    losses.plot(at, np.sort(excess), MARKERS[method], ms=4, alpha=0.7, mew=0, color=color, label=label)
                    losses.plot(at[[0, -1]] + [-0.03, 0.03], [np.median(excess)] * 2, color=color, lw=2.5)
                    label = None
            alphas = [float(part.split()[1]) for part in list_parts(rows, "branches")]
            if method != "adam" and alphas:
                cosines = [collect(rows, part, method, "cosine") for part in list_parts(rows, "branches")]
                fractions = [100 * np.mean(each >= SEMANTIC) for each in cosines]
                style = {"ms": 12 - 3 * k, "lw": 2, "color": COLORS[method]}  # lines may lie on one another
                ends.plot(alphas, fractions, MARKERS[method] + STYLES[method], **style)
        words = [part.replace("target ", "one start, α = ").removeprefix("equal time ") for part in parts]
        losses.set_xticks(range(len(parts)), [each.replace(", ", "\n") for each in words], rotation=60, ha="right",
                          rotation_mode="anchor")  # fmt: skip
        losses.set_yscale("symlog", linthresh=1.0)
        ticks = (-10, -1, 0, 1, 10, 100)
        losses.set_yticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
        losses.set(
            ylabel="training loss relative to the minimum\nnext to the teacher, %",
            title="all runs; bars: medians",
        )
        ends.axvline(LOWEST_FROM, color=DARK, ls="--", lw=1)
        ends.annotate(r"$\alpha_c$", (LOWEST_FROM, 50), (4, 0), textcoords="offset points")
        ends.set(xlabel=ALPHA, ylabel="runs that end in the semantic minimum, %", ylim=(-4, 104),
                 title="one start (ω = 0.3, σ = 0.5)")  # fmt: skip
        draw_legend(losses, columns=4)


def main():
    args = options(
        __doc__,
        draw=True,
        stored=True,
        instances={"type": int, "default": 0, "help": "minimum number of instances of each setting"},
        sequential={"action": "store_true", "help": "only run further instances of the sequential tests"},
        only={"default": "", "help": "only run further instances whose key or setting contains this text"},
    )
    verdict = Verdict("survey_propagation", args)
    plan = {} if args.sequential else plan_runs(args.quick, args.instances)
    plan = {key: partial(run_part, key, function) for key, function in plan.items() if args.only in key}
    rows = verdict.complete_rows(plan)
    for name in [] if args.quick else [name for name in SEQUENTIAL if args.only in name]:
        for look in LOOKS:
            if not find_end(rows, name):
                rows = verdict.complete_rows(plan_look(name, look))
    for name in [] if args.quick or args.stored or args.draw else [name for name in STOPPED if args.only in name]:
        while further := plan_stopped(rows, name):
            rows = verdict.complete_rows(further)
    draw(verdict.path(".png"), rows)
    if args.draw:
        return
    numbers = {"targets": check_targets(verdict, rows, args.quick)}
    check_minima(verdict, rows)
    numbers["equal_times"] = check_equal_times(verdict, rows)
    if not args.quick:
        numbers["fixed"] = check_tests(verdict, list_fixed(rows), "further instances")
        verdict.write_table(format_fixed(rows), "_fixed.md")
    if any(n for *_, (_, _, n), _ in list_varied(rows)):
        numbers["varied"] = check_tests(verdict, list_varied(rows), "over λ and s")
        verdict.write_table(format_varied(rows), "_varied.md")
    verdict.write_table(format_table(rows))
    verdict.write_table(format_branches(rows), "_branches.md")
    verdict.write_table(format_comparisons(rows), "_comparisons.md")
    if any(row["part"].startswith("stopped") for row in rows):
        verdict.write_table(format_stopped(rows), "_stopped.md")
    ps = [p for *_, p in list_comparisons(rows)]
    numbers["comparisons"] = {"number": len(ps), "significant": int(np.sum(np.array(ps) <= LEVEL))}
    verdict.end(numbers)


if __name__ == "__main__":
    main()
