"""90 % intervals of weights and bounds on errors cover 90 %, or are not trusted.

Method: planted instances of ridge, lasso, logistic regression and attention. If the labels are linear in the teacher's
fields, the intervals are for the teacher's weights, otherwise for κ times these, where κ is the projection of the
debiased weights on the teacher. Zero weights of a sparse teacher should have uniform p-values. The conformal bound on
the error of a new sample is tested on fresh samples. The same holds for features of twelve distributions (columns of
different sizes, correlated, with heavy tails, rows of different norms, nonzero means) and 0.5 to 10 samples per column.

Criterion: over all instances of each problem, between 87 and 93 % of the weights are in their intervals, between 7 and
13 % of the zero weights have p below 0.1, and between 87 and 93 % of fresh samples have errors below the bound. Of
trusted intervals for each distribution and problem, 85 to 95 % contain their weight, also in each third of the columns
by size; for each number of samples 84 to 96 %. Rows with at least 2 samples per column are trusted in 90 % of the
instances; strongly correlated rows with fewer samples in none; labels that are not linear in their fields in at most 15
%. Attention with independent columns and at least 2 samples per column is trusted in half of the instances or more, and
in none of the other cases. (Page "Test error from the training data" of the manual.)
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
ROWS_D, SENTENCES_D, RATIOS = 120, 150, (0.5, 1.0, 2.0, 10.0)
FEATURE_PROBLEMS = ("ridge", "lasso", "elastic net", "logistic")
EXACT = ("ridge", "lasso", "elastic net", "not linear")
PENALTIES = {"lasso": ga.ElasticNet(0.0, 0.3), "elastic net": ga.ElasticNet(0.2, 0.2)}
INDEPENDENT = ("independent", "sizes", "t5")
STRONG = ("AR(0.9)", "sizes, AR(0.8)", "mean 1", "common factor", "blocks")
KINDS = (*INDEPENDENT, "row norms", "binary", "AR(0.1)", "AR(0.5)", *STRONG)
SENTENCE_KINDS = (*INDEPENDENT, "AR(0.9)", "mean 1", "similar tokens")
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


def draw_features(kind, rng, n, d):
    """Return rows (n, d) of a distribution, and the sizes (d,) of their columns."""
    x, sizes = rng.standard_normal((n, d)), np.ones(d)
    if kind in ("sizes", "sizes, AR(0.8)"):
        sizes = rng.permutation(np.exp(np.linspace(-1.6, 1.6, d)))
    if "AR" in kind:
        a = float(kind[kind.index("(") + 1 : -1])
        for i in range(1, d):
            x[:, i] = a * x[:, i - 1] + np.sqrt(1 - a * a) * x[:, i]
    if kind == "row norms":
        x *= np.exp(0.7 * rng.standard_normal(n))[:, None]
    if kind == "mean 1":
        x += 1
    if kind == "common factor":
        x += 1.5 * rng.standard_normal((n, 1))
    if kind == "blocks":
        x = np.sqrt(0.3) * x + np.sqrt(0.7) * np.repeat(rng.standard_normal((n, d // 5)), 5, axis=1)
    if kind == "t5":
        x = rng.standard_t(5, (n, d)) / np.sqrt(5 / 3)
    if kind == "binary":
        x = (rng.random((n, d)) < 0.2).astype(float)
    return x * sizes, sizes


def build_rows(kind, problem, ratio, rng):
    """Return rows with labels, the teacher's weights (d, 1), and the sizes of the columns."""
    d = ROWS_D
    x, sizes = draw_features(kind, rng, int(ratio * d), d)
    star = rng.standard_normal((d, 1))
    if problem == "lasso":
        star *= 2 * (rng.random((d, 1)) < 0.2)
    u, noise = x @ star / np.sqrt(d), rng.standard_normal((len(x), 1))
    if problem == "logistic":
        y = np.where(rng.random(u.shape) < 1 / (1 + np.exp(-2 * u)), 1.0, -1.0)
        return ga.LabelledDataset(x, y, ga.LogisticLoss(), lam=0.2), star, sizes
    y = np.tanh(2 * u / u.std()) + 0.2 * noise if problem == "not linear" else u + 0.5 * noise
    return ga.LabelledDataset(x, y, ga.SquaredLoss(), penalty=PENALTIES.get(problem, ga.Ridge(0.2))), star, sizes


def build_samples(kind, ratio, rng):
    """Return samples of two tokens with a noisy teacher, the teacher's weights, and the sizes of the columns."""
    d = SENTENCES_D
    n = int(ratio * d)
    if kind == "similar tokens":
        both = rng.standard_normal((n, 1, d))
        x, sizes = np.sqrt(0.5) * (both + rng.standard_normal((n, 2, d))), np.ones(d)
    else:
        seed = rng.integers(2**31)  # columns have the same sizes in both tokens
        first, sizes = draw_features(kind, np.random.default_rng(seed), 2 * n, d)
        x = np.stack([first[:n], first[n:]], axis=1)
    x, star = 0.8 * x, rng.standard_normal((d, 1))
    u = x @ star / np.sqrt(d)
    T = np.exp(u @ u.transpose(0, 2, 1))
    T = 0.8 * T / T.sum(axis=2, keepdims=True) + 0.2 * np.array([[0.6, 0.4], [0.4, 0.6]])
    T += 0.1 * rng.standard_normal(T.shape)
    return ga.Dataset(x, T @ x, np.outer([1, -1], np.full(d, d**-0.5)), lam=0.02), star, sizes


def measure_on_features(kind, problem, ratio, seed):
    """Return the fraction of weights in their intervals, over all and in each third of the columns, and `trusted`."""
    rng = np.random.default_rng([seed, 36, *map(ord, kind + problem), int(10 * ratio)])
    attention = problem == "attention"
    data, star, sizes = build_samples(kind, ratio, rng) if attention else build_rows(kind, problem, ratio, rng)
    try:
        debiased = ga.debias(data, ga.run_gamp(data, star if attention else np.zeros(star.shape)))
    except ValueError as error:  # no positive definite response
        return {"covered": None, "thirds": [], "trusted": False, "form": "", "message": str(error)}
    w = 1 / debiased.std**2
    kappa = 1.0 if problem in EXACT else float(np.sum(w * debiased.weights * star) / np.sum(w * star**2))
    ends = debiased.interval(LEVEL)
    inside = ((ends[..., 0] <= kappa * star) & (kappa * star <= ends[..., 1]))[:, 0]
    thirds = np.array_split(np.argsort(sizes, kind="stable"), 3)
    return {
        "covered": round(float(inside.mean()), 4), "thirds": [round(float(inside[part].mean()), 4) for part in thirds],
        "trusted": debiased.trusted, "form": debiased.form, "message": debiased.message,
    }  # fmt: skip


def check_features(rows, verdict, slack):
    """Check coverage on all distributions of features, and return a table."""
    ratios = sorted({row["ratio"] for row in rows})
    lines = []
    for problem, kind in dict.fromkeys((row["problem"], row["kind"]) for row in rows):
        mine = [row for row in rows if (row["problem"], row["kind"]) == (problem, kind)]
        cells, means = [], []
        for ratio in ratios:
            here = [row for row in mine if row["ratio"] == ratio]
            trusted = [row["covered"] for row in here if row["trusted"]]
            if len(trusted) > 2:
                means.append(float(np.mean(trusted)))
            of = f"{len(trusted)} of {len(here)}"
            known = [row["covered"] for row in here if row["covered"] is not None]
            shown = 100 * np.mean(trusted or known or [np.nan])
            words = f"{shown:.0f} % ({of})" if trusted else f"not trusted ({shown:.0f} %)"
            cells.append(words if here else "")
        thirds = [row["thirds"] for row in mine if row["trusted"]]
        if problem != "not linear" and len(thirds) > 5:
            lowest, highest = 100 * min(means), 100 * max(means)
            said = f"{problem}, {kind}: {lowest:.1f} to {highest:.1f} % over n/d"
            columns = np.mean(thirds, axis=0)
            said += f", {100 * columns.min():.1f} to {100 * columns.max():.1f} % over thirds of the columns"
            inside = 84 - 100 * slack <= lowest and highest <= 96 + 100 * slack
            verdict.check(inside and 0.85 - slack <= columns.min() and columns.max() <= 0.95 + slack, said)
        words = ", ".join(f"{100 * t:.0f}" for t in np.mean(thirds, axis=0)) if thirds else ""
        lines.append([problem, kind, *cells, words])
    heads = [f"n/d = {ratio:g}" for ratio in ratios]
    return markdown_table(["problem", "features", *heads, "thirds of the columns"], lines)


def build_histogram(rows, problem):
    """Return the density of the errors of all weights of a problem in each bin, in units of their stated errors."""
    scores = np.concatenate([row["scores"] for row in rows if row["problem"] == problem])
    return round_curve(np.histogram(scores, BINS, density=True)[0])


def check_trust(rows, verdict):
    """Check that intervals that cover are trusted and others are not; rows with labels over all problems together."""
    groups = {}
    for row in rows:
        part = row["problem"] if row["problem"] in ("not linear", "attention") else "rows"
        groups.setdefault((part, row["kind"], row["ratio"]), []).append(row["trusted"])
    for (part, kind, ratio), trusted in groups.items():
        share = float(np.mean(trusted))
        words = f"{part}, {kind}, n/d = {ratio:g}: {sum(trusted)} of {len(trusted)} trusted"
        if part == "not linear":
            verdict.check(share <= 0.15, words)
        elif part == "attention":
            verdict.check(share >= 0.5 if kind in INDEPENDENT and ratio >= 2 else share == 0, words)
        elif ratio >= 2:
            verdict.check(share >= 0.9, words)
        elif kind in STRONG:
            verdict.check(share == 0, words)


def draw(numbers, path):
    """Draw the distributions of the errors of weights, and the coverage of intervals on all features."""
    on, histograms = numbers["features"], numbers["scores"]
    problems = [*FEATURE_PROBLEMS, "attention"]
    with figure(path, 2, len(PROBLEMS), (9.8, 6.4)) as axes:
        for axis, problem in zip(axes[1], problems, strict=True):
            mine = [row for row in on if row["problem"] == problem]
            kinds = list(dict.fromkeys(row["kind"] for row in mine))
            axis.axhspan(85, 95, color=GREY, alpha=0.3, lw=0)
            for at, kind in enumerate(kinds):
                for trusted in (True, False):
                    here = [row for row in mine if row["kind"] == kind and row["trusted"] == trusted]
                    for k, ratio in enumerate(sorted({row["ratio"] for row in here})):
                        values = [row["covered"] for row in here if row["ratio"] == ratio]
                        mean = 100 * np.mean([value for value in values if value is not None] or [np.nan])
                        face = DARK if trusted else "none"
                        axis.plot(at + 0.15 * (k - 1.5), mean, "o", ms=4, mec=DARK if trusted else GREY, mfc=face)
            axis.set_xticks(range(len(kinds)), kinds, rotation=90, fontsize=9.5)
            axis.set(
                ylim=(50, 101),
                title=problem,
                ylabel="weights in their 90 % intervals, %" if problem == problems[0] else "",
            )
        axes[1, 0].plot([], [], "o", ms=4, mec=DARK, mfc=DARK, label="trusted")
        axes[1, 0].plot([], [], "o", ms=4, mec=GREY, mfc="none", label="not trusted")
        axes[0, 0].plot([], [], color=DARK, label="standard Gaussian")
        draw_legend(axes[0, 0], axes[1, 0], columns=3, fontsize=9.5)
        grid = np.linspace(BINS[0], BINS[-1], 61)
        for axis, problem in zip(axes[0], PROBLEMS, strict=True):
            axis.stairs(histograms[problem], BINS, fill=True, color=GREY)
            axis.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=DARK)
            axis.set(title=problem, xlabel="error of a weight\n/ stated error")
        axes[0, 0].set_ylabel("density")


def plan(quick):
    """Return the instances of all problems, of other features, and of zero weights."""
    sizes, seeds = ((200,), 4) if quick else (SIZES, SEEDS)
    few = 2 if quick else 8
    cases = [
        *product(KINDS, FEATURE_PROBLEMS, (0.5, 2.0) if quick else RATIOS, range(few)),
        *product(("independent", "AR(0.5)"), ("not linear",), (4.0, 10.0), range(few)),
        *product(SENTENCE_KINDS, ("attention",), (2.0,) if quick else (1.0, 2.0, 4.0), range(min(few, 6))),
    ]
    return {
        measure_coverage: [{"problem": p, "d": d, "seed": s} for p, d, s in product(PROBLEMS, sizes, range(seeds))],
        measure_on_features: [dict(zip(("kind", "problem", "ratio", "seed"), case, strict=True)) for case in cases],
        measure_zero_weights: [{"seed": seed} for seed in range(seeds)],
    }


def judge(verdict, rows, on, sparse):
    """Check coverage of intervals and bounds, and which intervals are trusted."""
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
    table = check_features(on, verdict, 0.03 if verdict.quick else 0.0)
    check_trust(on, verdict)
    verdict.write_table(markdown_table(heads, lines) + "\n" + table)
    scores = {problem: build_histogram(rows, problem) for problem in PROBLEMS}
    features = [{name: row[name] for name in ("kind", "problem", "ratio", "covered", "trusted")} for row in on]
    return {"features": features, "scores": scores}


def main():
    run_claim("coverage", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
