"""Gradient descent follows its theory at every step: mean deviation over seeds, and how one instance's falls with d.

Full-batch descent, heavy ball, Nesterov and minibatches, from the semantic and the positional start, and plain descent
on noisy targets, each instance beside the prediction for its own teacher.

Criterion: the mean over seeds differs from the theory by at most 4 standard errors (of both) in q, m, θ and the
training loss at every step, at every d. The deviation of one instance falls like d^(−1/2). The same theory without its
memory term fails the check for plain descent on both branches.
"""

from unittest.mock import patch

import numpy as np
from tqdm import tqdm

import gamp_attention as ga
from gamp_attention.experiments.figures import COLOURS, DARK, LABELS, figure
from gamp_attention.state_evolution.dynamics.descent_paths import DescentPaths
from validation._tools.report import Verdict, options
from validation.claims.trajectories import slope_and_error, standard_errors

ALPHA = 1.5
NOISE = 0.3
# name: branch, options of both sides, score noise
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
SEEDS = {500: 24, 1000: 16, 2000: 12, 4000: 6}
QUICK = {250: 6, 500: 6}
STEPS, PATHS, MOST = 30, 1024, 4.0
KEYS = ("q", "m", "theta", "train_loss")


def scalars(history, losses):
    return np.array([history.scalars()[key] for key in KEYS[:3]] + [losses])


def one(run, d, seed):
    """Deviations (4, T + 1) of a descent from its prediction, the standard errors of this, and the prediction."""
    branch, how, noise = RUNS[run]
    data = ga.sample(ga.paper_model(score_noise=noise), d, ALPHA, np.random.default_rng([d, seed]))
    told = ga.trajectory(
        data.instance_model(), data.alpha, branch, n_iter=STEPS, n_paths=PATHS, n_replicas=2, seed=seed, **how
    )
    done = ga.minimize_risk(data, branch, "asymptotic", max_iter=STEPS, tol=0, seed=seed, **how).history
    path = scalars(told, told.train_loss)
    return scalars(done, done.train_loss) - path, scalars(told.error, told.train_loss_error), path


def deviations(run, d, seeds):
    """The largest mean deviation in standard errors, the deviation of each instance, and the curves."""
    found = [one(run, d, seed) for seed in tqdm(range(seeds), desc=f"{run}, d = {d}", disable=None, leave=False)]
    gaps, errors, paths = (np.array(each) for each in zip(*found, strict=True))
    scale = np.abs(paths).max(axis=(0, 2))
    worst = {key: standard_errors(gaps[:, k], errors[:, k], scale[k]) for k, key in enumerate(KEYS)}
    main = 2 if RUNS[run][0] == "semantic" else 1
    squares = [(gaps[:, k] / scale[k]) ** 2 for k in (0, main)]
    return {"worst": worst, "of one": np.sqrt(np.mean(squares, axis=(0, 2))), "gaps": gaps, "paths": paths}


def forgetful(self, alpha, overlaps, covariances, memory, advance=DescentPaths.advance):
    return advance(self, alpha, overlaps, covariances, 0 * memory)


def draw(found, path):
    rows = ("semantic", "positional", "noise")
    with figure(path, len(rows), 4, (13, 2.6 * len(rows))) as axes:
        for row, run in zip(axes, rows, strict=True):
            d = max(found[run])
            gaps, paths = (np.array(found[run][d][name]) for name in ("gaps", "paths"))
            for axis, key, k in zip(row, KEYS, range(4), strict=True):
                mean, seen = paths[:, k].mean(axis=0), (paths + gaps)[:, k]
                axis.plot(mean, color=DARK, label="theory")
                error = seen.std(axis=0, ddof=1) / np.sqrt(len(seen))
                axis.errorbar(np.arange(STEPS + 1), seen.mean(axis=0), error, fmt="o", ms=3,
                              color=COLOURS[RUNS[run][0]], label=f"descent, d = {d}")  # fmt: skip
                axis.set(title=LABELS.get(key, "training loss"), xlabel="step")
            row[0].set_ylabel(run)
        axes[0, 0].legend(frameon=False, fontsize=8)


def main():
    found = options(__doc__)
    verdict, sizes = Verdict("descents", found), QUICK if found.quick else SEEDS
    results = {run: {d: deviations(run, d, seeds) for d, seeds in sizes.items()} for run in RUNS}
    for run, by_size in results.items():
        for d, each in by_size.items():
            worst = max(each["worst"].values())
            verdict.check(worst <= MOST, f"{run}, d = {d}: at most {worst:.2f} standard errors from its theory")
        if not found.quick:
            slope, error = slope_and_error(list(by_size), [each["of one"] for each in by_size.values()])
            told = f"{run}: one instance deviates (median) like d^({slope:.2f} ± {error:.2f}), expected -0.5"
            verdict.check(abs(slope + 0.5) <= 3 * error, told)
    with patch.object(DescentPaths, "advance", forgetful):
        for run in ("semantic", "positional"):
            d, seeds = list(sizes.items())[-2]
            worst = max(deviations(run, d, seeds)["worst"].values())
            verdict.check(worst > MOST, f"{run} without memory: {worst:.1f} standard errors away")
    draw(results, verdict.path(".png"))
    stored = {
        run: {
            d: {"worst": each["worst"], "mean gap": each["gaps"].mean(axis=0), "theory": each["paths"].mean(axis=0)}
            for d, each in by_size.items()
        }
        for run, by_size in results.items()
    }  # fmt: skip
    verdict.end({"keys": KEYS, "runs": stored})


if __name__ == "__main__":
    main()
