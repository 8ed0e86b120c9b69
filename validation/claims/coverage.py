"""Coverage of 90 % intervals of weights over planted instances of ridge, lasso, logistic regression and attention.

Where the labels are linear in the teacher's fields the intervals are of the teacher's weights, otherwise of κ times
them, κ being the projection of the debiased weights on the teacher. Weights that are zero in a sparse teacher have
uniform p-values. The conformal bound on the error of a new sample is tried on fresh samples.

Criterion: over all instances of each problem between 87 and 93 % of the weights are in their intervals, the share of
the zero weights with p below .1 is between 7 and 13 %, and between 87 and 93 % of fresh samples have errors below the
bound.
"""

from itertools import product

import numpy as np

import gamp_attention as ga
from gamp_attention.experiments.figures import DARK, GREY, figure
from gamp_attention.experiments.inference.leave_one_out import sample_errors
from validation._tools.report import Verdict, folder, options, plus_minus, pool
from validation._tools.trials import run_trials

NOISE = ga.LinearLabels(noise=0.5)
PROBLEMS = {
    "ridge": (lambda: ga.glm_model(ga.SquaredLoss(), NOISE, lam=0.3), 1.5, "random", True),
    "lasso": (lambda: ga.glm_model(ga.SquaredLoss(), NOISE, penalty=ga.ElasticNet(0.0, 0.3)), 1.5, "random", True),
    "logistic": (lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1), 3.0, "random", False),
    "attention": (lambda: ga.paper_model(), 1.5, "semantic", False),
    "attention, noisy": (lambda: ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.1), 2.0, "semantic", False),
}
SIZES, SEEDS, LEVEL, LOW, HIGH = (200, 500), 20, 0.9, 0.87, 0.93
SPARSE = {"d": 300, "alpha": 2.0, "share": 0.1, "size": 3.0, "l1": 0.2, "noise": 0.5}


def covered(problem, d, seed):
    """The share of weights in their intervals, and of fresh samples below the bound, of one instance."""
    make, alpha, init, exact = PROBLEMS[problem]
    data = ga.sample(make(), d=d, alpha=alpha, seed=np.random.default_rng([d, seed, 33]))
    gamp = ga.run_gamp(data, init)
    found, star = ga.debias(data, gamp), data.Q_star
    kappa = float(np.sum(found.weights * star) / np.sum(star**2))
    target = star if exact else kappa * star
    ends = found.interval(LEVEL)
    scores = (found.weights - target) / found.std
    bound, fresh = ga.leave_one_out(data, gamp).bound(LEVEL), _like(data, 4 * d, [d, seed, 34])
    below = sample_errors(fresh, fresh.fields(gamp.Q)) <= bound
    inside = (ends[..., 0] <= target) & (target <= ends[..., 1])
    return {
        "covered": float(inside.mean()), "kappa": kappa, "spread": float(scores.std()), "trusted": found.trusted,
        "below": float(below.mean()), "scores": scores.ravel().tolist() if seed < 2 else [],
    }  # fmt: skip


def _like(data, n, seed):
    """Fresh samples of the same teacher."""
    rng, d = np.random.default_rng(seed), data.dim
    tokens = np.sqrt(data.spectra[None]) * rng.standard_normal((n, data.n_tokens, d))
    fields, task = tokens @ data.Q_star / np.sqrt(d), data.model.task
    if data.labels is not None:
        labels = task.terms(fields, rng.standard_normal((n, task.n_noise))).params
        return ga.LabelledDataset(tokens, labels, data.student, penalty=data.penalty)
    targets = task.teacher(fields) + task.noise * rng.standard_normal((n, data.n_tokens, data.n_tokens))
    return ga.Dataset(tokens, targets @ tokens, data.positions, student=data.student, penalty=data.penalty)


def zeros(seed):
    """p-values of the lasso for a teacher most of whose weights are zero."""
    d, rng = SPARSE["d"], np.random.default_rng([seed, 35])
    x, star = rng.standard_normal((int(SPARSE["alpha"] * d), d)), np.zeros(d)
    star[: int(SPARSE["share"] * d)] = SPARSE["size"]
    y = x @ star / np.sqrt(d) + SPARSE["noise"] * rng.standard_normal(len(x))
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), penalty=ga.ElasticNet(0.0, SPARSE["l1"]))
    p = ga.debias(data, ga.run_gamp(data, "random")).p_values[:, 0]
    return {"rejected": float((p[star == 0] < 1 - LEVEL).mean()), "found": float((p[star > 0] < 1 - LEVEL).mean())}


def draw(rows, path):
    grid = np.linspace(-3, 3, 61)
    with figure(path, 1, len(PROBLEMS), (13, 3)) as axes:
        for axis, problem in zip(axes[0], PROBLEMS, strict=True):
            scores = np.concatenate([row["scores"] for row in rows if row["problem"] == problem])
            axis.hist(scores, grid[::3], density=True, color=GREY)
            axis.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=DARK)
            axis.set(title=problem, xlabel="(weight − teacher's)/std")


def main():
    found = options(__doc__, workers=True)
    verdict, quick = Verdict("coverage", found), found.quick
    sizes, seeds = ((200,), 4) if quick else (SIZES, SEEDS)
    asked = [{"problem": p, "d": d, "seed": s} for p, d, s in product(PROBLEMS, sizes, range(seeds))]
    with pool(found) as executor:
        rows = run_trials(folder(found, "coverage"), covered, asked, executor)
        sparse = run_trials(folder(found, "coverage_zeros"), zeros, [{"seed": s} for s in range(seeds)], executor)
    verdict.check(len(rows) == len(asked), f"{len(rows)} of {len(asked)} instances ran")
    lines = ["| problem | d | in 90 % intervals | below the 90 % bound | κ | trusted |", "|" + "---|" * 6]
    slack = 0.02 if quick else 0.0
    for problem, d in product(PROBLEMS, sizes):
        mine = [row for row in rows if (row["problem"], row["d"]) == (problem, d)]
        cells = []
        for name, what in (
            ("covered", "of the weights are in their intervals"),
            ("below", "of fresh errors below the bound"),
        ):
            values = [row[name] for row in mine]
            mean, error = float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))
            verdict.check(LOW - slack <= mean <= HIGH + slack, f"{problem}, d = {d}: {100 * mean:.1f} % {what}")
            cells.append(plus_minus(100 * mean, 100 * error) + " %")
        kappa, trusted = np.mean([row["kappa"] for row in mine]), sum(row["trusted"] for row in mine)
        lines.append(f"| {problem} | {d} | {' | '.join(cells)} | {kappa:.2f} | {trusted} of {len(mine)} |")
    rejected = float(np.mean([row["rejected"] for row in sparse]))
    most = 0.13 + slack
    verdict.check(0.07 - slack <= rejected <= most, f"{100 * rejected:.1f} % of zero weights have p-values below .1")
    print("\n".join(lines))
    verdict.path(".md").write_text("\n".join(lines) + "\n")
    if not quick:
        draw(rows, verdict.path(".png"))
    kept = [{name: value for name, value in row.items() if name != "scores"} for row in rows]
    verdict.end({"rows": kept, "zeros": sparse})


if __name__ == "__main__":
    main()
