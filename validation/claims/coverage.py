"""90 % intervals of weights and bounds on errors cover 90 % on planted instances.

Method: planted instances of ridge, lasso, logistic regression and attention. If the labels are linear in the teacher's
fields, the intervals are for the teacher's weights, otherwise for κ times these, where κ is the projection of the
debiased weights on the teacher. Zero weights of a sparse teacher should have uniform p-values. The conformal bound on
the error of a new sample is tested on fresh samples.

Criterion: over all instances of each problem, between 87 and 93 % of the weights are in their intervals, between 7 and
13 % of the zero weights have p below 0.1, and between 87 and 93 % of fresh samples have errors below the bound.
(Page "Test error from the training data" of the manual.)
"""

from itertools import product

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, GREY, draw_legend
from gamp_attention.extensions.inference.refits import sample_errors
from validation._tools.drawing import figure
from validation._tools.report import plus_minus, run_claim
from validation._tools.tables import markdown_table, mean_and_error, round_curve

NOISE = ga.LinearLabels(noise=0.5)
PROBLEMS = {
    "ridge": (lambda: ga.glm_model(ga.SquaredLoss(), NOISE, lam=0.3), 1.5, "random", True),
    "lasso": (lambda: ga.glm_model(ga.SquaredLoss(), NOISE, penalty=ga.ElasticNet(0.0, 0.3)), 1.5, "random", True),
    "logistic": (lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1), 3.0, "random", False),
    "attention": (lambda: ga.paper_model(), 1.5, "semantic", False),
    "attention, noisy": (lambda: ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.1), 2.0, "semantic", False),
}
SIZES, SEEDS, LEVEL, LOW, HIGH = (200, 500), 20, 0.9, 0.87, 0.93
BINS = np.linspace(-3, 3, 21)  # of the errors of weights, in units of their stated errors
SPARSE = {"d": 300, "alpha": 2.0, "share": 0.1, "size": 3.0, "l1": 0.2, "noise": 0.5}


def measure_coverage(problem, d, seed):
    """Return the fractions of weights in their intervals and of fresh errors below the bound, on one instance."""
    make, alpha, init, exact = PROBLEMS[problem]
    data = ga.sample(make(), d=d, alpha=alpha, seed=np.random.default_rng([d, seed, 33]))
    gamp = ga.run_gamp(data, init)
    debiased, star = ga.debias(data, gamp), data.Q_star
    kappa = float(np.sum(debiased.weights * star) / np.sum(star**2))
    target = star if exact else kappa * star
    ends = debiased.interval(LEVEL)
    scores = (debiased.weights - target) / debiased.std
    bound, fresh = ga.leave_one_out(data, gamp).bound(LEVEL), _draw_fresh(data, 4 * d, [d, seed, 34])
    below = sample_errors(fresh, fresh.fields(gamp.Q)) <= bound
    inside = (ends[..., 0] <= target) & (target <= ends[..., 1])
    return {
        "covered": float(inside.mean()), "kappa": kappa, "spread": float(scores.std()), "trusted": debiased.trusted,
        "below": float(below.mean()), "scores": scores.ravel().tolist() if seed < 2 else [],
    }  # fmt: skip


def _draw_fresh(data, n, seed):
    """Draw fresh samples of the same teacher."""
    rng, d = np.random.default_rng(seed), data.dim
    tokens = np.sqrt(data.spectra[None]) * rng.standard_normal((n, data.n_tokens, d))
    fields, task = tokens @ data.Q_star / np.sqrt(d), data.model.task
    if data.is_labelled:
        labels = task.terms(fields, rng.standard_normal((n, task.n_noise))).params
        return ga.LabelledDataset(tokens, labels, data.student, penalty=data.penalty)
    targets = task.teacher(fields) + task.noise * rng.standard_normal((n, data.n_tokens, data.n_tokens))
    return ga.Dataset(tokens, targets @ tokens, data.positions, student=data.student, penalty=data.penalty)


def measure_zero_weights(seed):
    """Return the fractions of p-values below 0.1 of zero and of nonzero weights, for a lasso with a sparse teacher."""
    d, rng = SPARSE["d"], np.random.default_rng([seed, 35])
    x, star = rng.standard_normal((int(SPARSE["alpha"] * d), d)), np.zeros(d)
    star[: int(SPARSE["share"] * d)] = SPARSE["size"]
    y = x @ star / np.sqrt(d) + SPARSE["noise"] * rng.standard_normal(len(x))
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), penalty=ga.ElasticNet(0.0, SPARSE["l1"]))
    p = ga.debias(data, ga.run_gamp(data, "random")).p_values[:, 0]
    return {"rejected": float((p[star == 0] < 1 - LEVEL).mean()), "found": float((p[star > 0] < 1 - LEVEL).mean())}


def build_histogram(rows, problem):
    """Return the density of the errors of all weights of a problem in each bin, in units of their stated errors."""
    scores = np.concatenate([row["scores"] for row in rows if row["problem"] == problem])
    return round_curve(np.histogram(scores, BINS, density=True)[0])


def draw(numbers, path):
    """Draw the distributions of the errors of weights."""
    with figure(path, 1, len(PROBLEMS), (9.8, 3.2)) as axes:
        grid = np.linspace(BINS[0], BINS[-1], 61)
        for axis, problem in zip(axes[0], PROBLEMS, strict=True):
            axis.stairs(numbers["scores"][problem], BINS, fill=True, color=GREY)
            axis.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=DARK, label="standard Gaussian")
            axis.set(title=problem, xlabel="error of a weight\n/ stated error")
        axes[0, 0].set_ylabel("density")
        draw_legend(axes[0, 0], columns=1)


def plan(quick):
    """Return the instances of all problems, and of zero weights."""
    sizes, seeds = ((200,), 4) if quick else (SIZES, SEEDS)
    return {
        measure_coverage: [{"problem": p, "d": d, "seed": s} for p, d, s in product(PROBLEMS, sizes, range(seeds))],
        measure_zero_weights: [{"seed": seed} for seed in range(seeds)],
    }


def judge(verdict, rows, sparse):
    """Check the coverage of intervals and bounds."""
    heads, lines = ("problem", "d", "in 90 % intervals", "below the 90 % bound", "κ", "trusted"), []
    slack = 0.02 if verdict.quick else 0.0
    for problem, d in dict.fromkeys((row["problem"], row["d"]) for row in rows):
        mine = [row for row in rows if (row["problem"], row["d"]) == (problem, d)]
        cells = []
        for name, what in (("covered", "of the weights in their intervals"), ("below", "of fresh errors below bounds")):
            mean, error = mean_and_error([row[name] for row in mine])
            verdict.check(LOW - slack <= mean <= HIGH + slack, f"{problem}, d = {d}: {100 * mean:.1f} % {what}")
            cells.append(plus_minus(100 * mean, 100 * error) + " %")
        kappa, trusted = np.mean([row["kappa"] for row in mine]), sum(row["trusted"] for row in mine)
        lines.append([problem, d, *cells, f"{kappa:.2f}", f"{trusted} of {len(mine)}"])
    rejected = float(np.mean([row["rejected"] for row in sparse]))
    most = 0.13 + slack
    verdict.check(0.07 - slack <= rejected <= most, f"{100 * rejected:.1f} % of zero weights have p-values below 0.1")
    verdict.write_table(markdown_table(heads, lines))
    return {"scores": {problem: build_histogram(rows, problem) for problem in PROBLEMS}}


def main():
    run_claim("coverage", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
