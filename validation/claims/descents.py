"""Gradient descent follows its theory at every step, and the deviation of one instance falls like d^(−1/2).

Method: full-batch descent, heavy ball, Nesterov and minibatches, from the semantic and the positional start, and plain
descent on noisy targets. The effect of the instance's teacher is subtracted, as the difference of two predictions on
the same random numbers; the remainder is compared with one prediction on many paths, as a prediction on few paths
deviates as much as an instance does.

Criterion: the mean over seeds differs from the theory by at most 4 standard errors (of both) in q, m, θ and the
training loss at every step and every d. The spread of an instance at each step is pooled over all d as s/√d, since a
few seeds determine it badly; "4" is the quantile of Student's t distribution with the probability of 4 standard
deviations of a Gaussian. The deviation of one instance falls like d^(−1/2). The theory without its memory term fails
the check for plain descent on both branches. (Dynamics page of the manual.)
"""

from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
from scipy import stats

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, DARK, WORDS, draw_legend
from gamp_attention.extensions.dynamics.stored_times import StoredPaths
from validation._tools.drawing import figure
from validation._tools.report import run_claim
from validation._tools.tables import fit_slope, round_curve

ALPHA = 1.5
NOISE = 0.3
# for each name the branch, the options of descent and theory, and the noise on the scores
RUNS = {
    "semantic": ("semantic", {"method": "gd", "lr": 1.0}, 0.0),
    "positional": ("positional", {"method": "gd", "lr": 3.0}, 0.0),
    "heavy ball": ("semantic", {"method": "momentum", "lr": 0.4, "momentum": 0.8}, 0.0),
    "Nesterov": ("positional", {"method": "nesterov", "lr": 0.8, "momentum": 0.8}, 0.0),
    "minibatches": ("semantic", {"method": "sgd", "lr": 1.0, "batch": 0.2}, 0.0),
    "minibatches, positional": ("positional", {"method": "sgd", "lr": 2.0, "batch": 0.2}, 0.0),
    "noise": ("semantic", {"method": "gd", "lr": 1.0}, NOISE),
    "noise, positional": ("positional", {"method": "gd", "lr": 3.0}, NOISE),
}
SEEDS = {500: 32, 1000: 24, 2000: 16, 4000: 10}
QUICK = {250: 6, 500: 6}
STEPS, MAX_ERRORS = 30, 4.0  # number of steps; allowed deviation in standard errors
FEW = {"n_paths": 512, "n_replicas": 2}  # size of the two predictions whose difference is the teacher's effect
MANY, QUICK_MANY = {"n_paths": 8192, "n_replicas": 8}, {"n_paths": 2048, "n_replicas": 4}
KEYS = ("q", "m", "theta", "train_loss")


def stack_scalars(history, losses):
    """Return q, m, θ and the loss of a history as an array (4, T + 1)."""
    return np.array([history.scalars()[key] for key in KEYS[:3]] + [losses])


def predict(run, model, **size):
    """Return the prediction (4, T + 1) and its standard errors."""
    branch, how, _ = RUNS[run]
    steps = {name: value for name, value in how.items() if name != "method"}
    method = ga.GradientDescent(**steps, nesterov=how["method"] == "nesterov")
    path = ga.trajectory(model, ALPHA, branch, method, STEPS, **size)
    return stack_scalars(path, path.train_loss), stack_scalars(path.error, path.train_loss_error)


def run_trial(d, seed):
    """Return descents (4, T + 1) of every run on one instance, without the effect of its teacher on the prediction."""
    paths, drawn = {}, {}
    for run, (branch, how, noise) in RUNS.items():
        model = ga.paper_model(score_noise=noise)
        if noise not in drawn:
            drawn = {noise: ga.sample(model, d, ALPHA, np.random.default_rng([d, seed]))}
        data = drawn[noise]
        own, usual = (predict(run, each, seed=seed, **FEW)[0] for each in (data.instance_model(), model))
        done = ga.minimize_risk(data, branch, "asymptotic", max_iter=STEPS, tol=0, seed=seed, **how).history
        paths[run] = (stack_scalars(done, done.train_loss) - own + usual).tolist()
    return paths


def estimate_spread(gaps):
    """Return the standard deviation (4, T + 1) of an instance times √d, from the instances at all d."""
    squares = sum(d * ((each - each.mean(axis=0)) ** 2).sum(axis=0) for d, each in gaps.items())
    return np.sqrt(squares / sum(len(each) - 1 for each in gaps.values()))


def find_worst(gaps, error):
    """Return the largest mean deviation in standard errors, by d and overlap."""
    spread, scale = estimate_spread(gaps), 1e-9 * max(np.abs(each).max() for each in gaps.values())
    worst = {}
    for d, each in gaps.items():
        both = np.sqrt(spread**2 / (d * len(each)) + error**2)
        ratio = np.abs(each.mean(axis=0)) / np.where(both > scale, both, np.inf)  # the start is exact
        worst[d] = dict(zip(KEYS, ratio.max(axis=1).tolist(), strict=True))
    return worst


def compute_deviations(gaps):
    """Return the deviation of each instance at each d: rms over overlaps and steps, in units of the spread at d = 1."""
    spread = estimate_spread(gaps)
    known = spread > 1e-9 * spread.max(axis=1, keepdims=True)  # the start is exact
    return [np.sqrt(np.mean((each[:, known] / spread[known]) ** 2, axis=1)) for each in gaps.values()]


def compute_limit(gaps):
    """Return the number of standard errors with the probability of four, given the number of instances."""
    return float(stats.t.isf(stats.norm.sf(MAX_ERRORS), sum(len(each) - 1 for each in gaps.values())))


def average_without_memory(self, alpha, overlaps, average=StoredPaths.average):
    """Average over the paths as if the responses to earlier steps were zero."""
    memory, self._h = self._h, 0 * self._h
    forces = average(self, alpha, overlaps)
    self._h = memory
    return forces


def compute_prediction(run, n_paths, n_replicas, remembers):
    """Return the prediction for the model and its standard errors, with or without the memory term."""
    model = ga.paper_model(score_noise=RUNS[run][2])
    with nullcontext() if remembers else patch.object(StoredPaths, "average", average_without_memory):
        path, spread = predict(run, model, n_paths=n_paths, n_replicas=n_replicas)
    return {"path": path.tolist(), "spread": spread.tolist()}


def draw(numbers, path):
    """Draw overlaps and loss of three runs at the largest d with their theory."""
    rows = {"semantic": "semantic start", "positional": "positional start", "noise": "semantic, noisy outputs"}
    d = numbers["largest d"]
    with figure(path, len(rows), len(KEYS), (9.8, 2.7 * len(rows))) as axes:
        for row, (run, words) in zip(axes, rows.items(), strict=True):
            stored, branch = numbers["runs"][run], RUNS[run][0]
            parts = stored["theory"], stored["mean gap"], stored["mean error"]
            label = f"descent, d = {d}, {branch} start, mean ± 2 s.e."
            for axis, key, *curves in zip(row, KEYS, *parts, strict=True):
                theory, gap, error = map(np.array, curves)
                style = {"fmt": "o", "ms": 3, "color": COLORS[branch], "label": label}
                axis.errorbar(np.arange(len(theory)), theory + gap, 2 * error, **style)
                axis.plot(theory, color=DARK, label="theory", zorder=3)
                axis.set(title=WORDS[key], xlabel="step")
            row[0].set_ylabel(words)
        draw_legend(*axes[:, 0], columns=3)


def plan(quick):
    """Return the instances and the predictions, two of them without the memory term."""
    sizes, many = (QUICK, QUICK_MANY) if quick else (SEEDS, MANY)
    paths = [{"run": run, "remembers": True} | many for run in RUNS]
    paths += [{"run": run, "remembers": False} | many for run in ("semantic", "positional")]
    return {
        run_trial: [{"d": d, "seed": seed} for d, seeds in sizes.items() for seed in range(seeds)],
        compute_prediction: paths,
    }


def judge(verdict, rows, predictions):
    """Check the distances from the theory at every step, and the exponent of the deviation of one instance."""
    stored, sizes = {}, sorted({row["d"] for row in rows})
    for each in predictions:
        run, path, error = each["run"], *(np.array(each[name]) for name in ("path", "spread"))
        gaps = {d: np.array([row[run] for row in rows if row["d"] == d]) - path for d in sizes}
        worst, allowed = find_worst(gaps, error), compute_limit(gaps)
        if not each["remembers"]:
            least = min(max(ratios.values()) for ratios in worst.values())
            verdict.check(least > allowed, f"{run} without memory: at least {least:.0f} standard errors away")
            continue
        for d, ratios in worst.items():
            most = max(ratios.values())
            words = f"{run}, d = {d}: at most {most:.2f} standard errors from its theory, of {allowed:.2f}"
            verdict.check(most <= allowed, words)
        last = gaps[sizes[-1]]
        stored[run] = {
            "theory": path, "mean gap": last.mean(axis=0),
            "mean error": [round_curve(error) for error in last.std(axis=0, ddof=1) / np.sqrt(len(last))],
        }  # fmt: skip
        if not verdict.quick:
            slope, error = fit_slope(sizes, compute_deviations(gaps))
            words = f"{run}: one instance deviates (median) like d^({slope:.2f} ± {error:.2f}), expected -0.5"
            verdict.check(abs(slope + 0.5) <= 3 * error and error < 0.2, words)
    return {"largest d": sizes[-1], "runs": stored}


def main():
    run_claim("descents", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
