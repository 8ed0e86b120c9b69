"""Leave-one-out errors agree with exact refits of 200 samples, and their mean with fresh data, if they are trusted.

Method: nine problems. Each refit is a descent from the minimum, on the risk without the sample. Both formulas (the
Newton step without each sample and the cavity field of message passing) and the default estimate, in which refits by
Newton steps correct the formula, are compared with the refits. Over noise, penalties and starts, landscapes change from
smooth to rough, and estimates from right to too low.

Criterion: if an estimate is trusted, the errors by the formulas correlate with the refits by at least 0.99 (Newton
step) and 0.98 (cavity field), or 0.95 if the penalty has kinks, with a median deviation of at most 2 % and 3 % (10 %);
the default mean is within 2 % of the refits over the same samples. It is within 3 combined standard errors of the error
on fresh data. Over noise, penalties and starts, each trusted estimate is within 5 % or three standard errors of fresh
data, their mean is within 2 %, and settings whose mean is more than 7 % too low are trusted in at most a quarter of
their instances. (Page "Test error from the training data" of the manual.)
"""

from itertools import product

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, GREY, draw_legend
from gamp_attention.extensions.inference.refits import Refitter, sample_errors
from validation._tools.drawing import figure
from validation._tools.report import plus_minus, run_claim
from validation._tools.tables import markdown_table, mean_and_error

NOISY = {"omega": 0.2, "sigma": 0.8, "score_noise": 0.3}
KINDS = {
    "semantic": (lambda: ga.paper_model(), 1.5, "semantic", 300),
    "positional": (lambda: ga.paper_model(), 1.0, "positional", 300),
    "noisy, weak penalty": (lambda: ga.paper_model(**NOISY, lam=0.01), 2.0, "semantic", 300),
    "noisy, strong penalty": (lambda: ga.paper_model(**NOISY, lam=0.5), 2.0, "semantic", 300),
    "rank 2": (lambda: ga.attention_model(2, 2, 2, omega=0.2, sigma=0.7, lam=0.1), 3.0, "semantic", 200),
    "lasso": (lambda: ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), penalty=ga.ElasticNet(0.0, 0.2)), 1.5,
              "random", 300),
    "logistic": (lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1), 3.0, "random", 500),
    "phase retrieval": (lambda: ga.glm_model(ga.PhaseRetrievalLoss(), lam=0.1), 3.0, "semantic", 300),
    "multinomial": (lambda: ga.glm_model(ga.MultinomialLoss(), rank=3, lam=0.1), 3.0, "random", 200),
}  # fmt: skip
REFITS, FRESH, OFF, MEAN, MOST_ERRORS = 200, 20000, 0.1, 0.02, 3.0
# minimum correlation and maximum median deviation, for smooth penalties and others
LEAST = {True: (0.99, 0.02), False: (0.95, 0.1)}
LEAST_CAVITY = {True: (0.98, 0.03), False: (0.95, 0.1)}
NOISES, WEAK, EACH = (0.1, 0.2, 0.3), (0.01, 0.1, 0.5), 8  # noise on the scores, λ, and number of instances
FIRST_SEED = 1000  # seeds of these instances, none of which occurs twice, so that all of them are independent
STARTS = {"spectral": 8, "random": 1}  # number of starts
FAIR, FAIR_MEAN, LOW, BELIEVED = 0.05, 0.02, 0.07, 0.25
CHOICE = "the lowest of several minima is chosen; this check leaves out the allowance for it in the stated error"


def compare_errors(kind, d, refits, seed):
    """Return errors of some samples by the formulas and by refits, and the mean on fresh data."""
    make, alpha, init, _ = KINDS[kind]
    data = ga.sample(make(), d=d, alpha=alpha, seed=np.random.default_rng([d, seed, 31]))
    gamp = ga.run_gamp(data, init)
    loo, corrected = ga.leave_one_out(data, gamp, refits=0), ga.leave_one_out(data, gamp)
    cavity = ga.leave_one_out(data, gamp, form="cavity", refits=0)
    samples = np.sort(np.random.default_rng([seed, 32]).permutation(data.n_samples)[:refits])
    fields, done = loo.fields.copy(), []
    for sample in map(int, samples):
        Q, reached = Refitter().refit(data, gamp.Q, sample)
        fields[sample] = data.fields(Q)[sample]
        done.append(bool(reached))
    exact = sample_errors(data, fields)[samples]
    fresh = ga.sampled_test_error(data, gamp.Q, n_samples=FRESH, seed=seed)
    return {
        "smooth": data.penalty.smooth, "minimum": bool(gamp.is_minimum), "trusted": corrected.trusted,
        "refitted": done,
        "exact": exact.tolist(), "errors": loo.errors[samples].tolist(), "cavity": cavity.errors[samples].tolist(),
        "corrected": corrected.errors[samples].tolist(),
        "in_training": loo.in_training,
        "mean": [corrected.test_error, corrected.test_error_error], "cavity_mean": cavity.test_error,
        "fresh": list(fresh),
    }  # fmt: skip


def measure_under_noise(noise, lam, init, d, seed):
    """Return the estimate over the fresh error for the lowest of some starts, and `trusted`."""
    model = ga.paper_model(omega=NOISY["omega"], sigma=NOISY["sigma"], score_noise=noise, lam=lam)
    data = ga.sample(model, d=d, alpha=2.0, seed=np.random.default_rng([d, seed, 33]))
    gamp = ga.train(data, init, n_starts=STARTS[init], seed=seed, survey=False, escape=False)
    loo = ga.leave_one_out(data, gamp)
    fresh = ga.sampled_test_error(data, gamp.Q, n_samples=FRESH // 2, seed=seed)[0]
    spread = np.sqrt(loo.test_error_error**2 - loo.selection**2)  # without the allowance for the choice of a minimum
    return {"ratio": loo.test_error / fresh, "spread": float(spread) / fresh, "trusted": loo.trusted}


def summarize(row):
    """Return correlation, median deviation and number of wrong samples of one problem."""
    exact, errors = (np.array(row[name]) for name in ("exact", "errors"))
    apart = np.abs(errors / exact - 1)
    by_cavity = np.abs(np.array(row["cavity"]) / exact - 1)
    away = (row["mean"][0] - row["fresh"][0]) / np.hypot(row["mean"][1], row["fresh"][1])
    return {
        "correlation": float(np.corrcoef(errors, exact)[0, 1]), "median": float(np.median(apart)),
        "cavity_correlation": float(np.corrcoef(row["cavity"], exact)[0, 1]),
        "cavity_median": float(np.median(by_cavity)),
        "off": int(np.sum(apart > OFF)), "away": float(away),
        "corrected": float(np.mean(row["corrected"]) / exact.mean() - 1),
    }  # fmt: skip


def group_settings(noisy):
    """Return the rows of each start, noise and penalty."""
    settings = dict.fromkeys((row["init"], row["noise"], row["lam"]) for row in noisy)
    return [[row for row in noisy if (row["init"], row["noise"], row["lam"]) == setting] for setting in settings]


def format_noise_table(noisy):
    """Return, for each noise and penalty, the estimates over fresh errors, and counts of trusted estimates."""
    lines = []
    for mine in group_settings(noisy):
        ratio, trusted = mean_and_error([row["ratio"] for row in mine]), sum(row["trusted"] for row in mine)
        first = mine[0]
        lines.append([first["init"], first["noise"], first["lam"], plus_minus(*ratio), f"{trusted} of {len(mine)}"])
    return markdown_table(("starts", "noise on the scores", "λ", "estimate over fresh error", "trusted"), lines)


def format_table(rows):
    heads = ("problem", "d", "correlation", "median deviation", "by the cavity field", "off by 10 %",
             "default mean, off refits by", "mean", "fresh data", "trusted")  # fmt: skip
    lines = []
    for row in rows:
        s = row["summary"]
        lines.append([
            row["kind"], row["d"], f"{s['correlation']:.4f}", f"{100 * s['median']:.2g} %",
            f"{s['cavity_correlation']:.3f}, {100 * s['cavity_median']:.2g} %", s["off"],
            f"{100 * s['corrected']:+.2g} %", plus_minus(*row["mean"]), plus_minus(*row["fresh"]),
            "yes" if row["trusted"] else "no",
        ])  # fmt: skip
    return markdown_table(heads, lines)


def draw(numbers, path):
    """Draw the leave-one-out errors of single samples against exact refits."""
    with figure(path, 3, 3, (9.6, 9)) as axes:
        for axis, row in zip(axes.flat, numbers["rows"], strict=False):
            exact, errors = (np.array(row[name]) for name in ("exact", "errors"))
            axis.loglog(exact, exact, color=GREY, lw=1, label="equal")
            axis.loglog(exact, errors, ".", color=DARK, ms=4, label="one sample")
            axis.set(title=f"{row['kind']}, d = {row['d']}")
            axis.tick_params(which="minor", labelbottom=False, labelleft=False)
        for axis in axes[-1]:
            axis.set_xlabel("error, by exact refit")
        for axis in axes[:, 0]:
            axis.set_ylabel("error, by the formula")
        draw_legend(axes[0, 0], columns=3)


def plan(quick):
    """Return the problems, and the instances over noise, penalties and starts."""
    kinds = ("semantic", "logistic") if quick else KINDS
    sizes = {kind: 100 if quick else KINDS[kind][3] for kind in kinds}
    refits = 20 if quick else REFITS
    noisy = [] if quick else [
        {"noise": s, "lam": lam, "init": init, "d": 150, "seed": FIRST_SEED + EACH * number + k}
        for number, (init, s, lam) in enumerate(product(STARTS, NOISES, WEAK)) for k in range(EACH)
    ]  # fmt: skip
    return {
        compare_errors: [{"kind": kind, "d": d, "refits": refits, "seed": 0} for kind, d in sizes.items()],
        measure_under_noise: noisy,
    }


def judge(verdict, rows, noisy):
    """Check estimates against refits and against fresh data."""
    for row in rows:
        row["summary"] = s = summarize(row)
        about, reached = f"{row['kind']}, d = {row['d']}: ", sum(row["refitted"])
        ended = f"{reached} of {len(row['refitted'])} refits ended at a gradient norm of 1e-6"
        verdict.check(row["minimum"] and (reached == len(row["refitted"]) or not row["trusted"]), about + ended)
        if not row["trusted"]:
            continue
        for prefix, words, (least, most) in (
            ("", "", LEAST[row["smooth"]]), ("cavity_", "by cavity fields, ", LEAST_CAVITY[row["smooth"]]),
        ):  # fmt: skip
            correlation, median = s[f"{prefix}correlation"], s[f"{prefix}median"]
            words += f"correlation {correlation:.4f}, median deviation {100 * median:.2g} %"
            verdict.check(correlation >= least and median <= most, about + words)
        apart = s["corrected"]
        verdict.check(abs(apart) <= MEAN, about + f"the mean by default is {100 * apart:+.2g} % beside refits")
        away = s["away"]
        verdict.check(abs(away) <= MOST_ERRORS, about + f"the mean is {away:.1f} standard errors from fresh data")
    verdict.write_table(format_table(rows) + ("\n" + format_noise_table(noisy) if noisy else ""))
    if noisy:
        check_noise(verdict, noisy)
    return {"rows": rows, "noisy": noisy}


def check_noise(verdict, noisy):
    """Check estimates over noise, penalties and starts."""
    trusted = [row for row in noisy if row["trusted"]]
    wrong = sum(abs(row["ratio"] - 1) > max(FAIR, MOST_ERRORS * row["spread"]) for row in trusted)
    verdict.check(wrong == 0, f"noisy: {wrong} of {len(trusted)} trusted estimates are wrong", CHOICE)
    mean, error = mean_and_error([row["ratio"] for row in trusted])
    about = f"noisy: trusted estimates are {mean:.3f} ± {error:.3f} of the error on fresh data"
    verdict.check(abs(mean - 1) <= FAIR_MEAN, about)
    for mine in group_settings(noisy):
        ratio, share = np.mean([row["ratio"] for row in mine]), np.mean([row["trusted"] for row in mine])
        first = mine[0]
        setting = f"{first['init']} starts, noise {first['noise']}, λ = {first['lam']}"
        if ratio < 1 - LOW:
            about = f"{setting}: estimates are {100 * (1 - ratio):.0f} % too low, {100 * share:.0f} % trusted"
            verdict.check(share <= BELIEVED, about, CHOICE)


def main():
    run_claim("leave_one_out", __doc__, plan, judge, draw)


if __name__ == "__main__":
    main()
