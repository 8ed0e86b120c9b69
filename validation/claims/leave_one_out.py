"""Leave-one-out errors agree with exact refits of 200 samples, and their mean with fresh data, if they are trusted.

Method: nine problems. Each refit is a descent from the minimum, on the risk without the sample. Both formulas (the
Newton step without each sample and the cavity field of message passing) and the default estimate, in which refits by
Newton steps correct the formula, are compared with the refits. Under noise, the effect of choosing the lowest of eight
starts is shown, with and without repeating the choice without each sample. Over noise, penalties and starts, landscapes
change from smooth to rough, and estimates from right to too low. There, refits from the minimum are compared with
training again, from the same random start, without a sample.

Criterion: if an estimate is trusted, the errors by the formulas correlate with the refits by at least 0.99 (Newton
step) and 0.98 (cavity field), or 0.95 if the penalty has kinks, with a median deviation of at most 2 % and 3 % (10 %);
the default mean is within 2 % of the refits over the same samples. Means over two instances are within 3 combined
standard errors of the error on fresh data. Over noise, penalties and starts, each trusted estimate is within 5 % or
three standard errors of fresh data, their mean is within 2 %, and settings whose mean is more than 7 % too low are
trusted in at most a quarter of their instances. Under noise, with random starts, the formula is within 2 % of refits
from the minimum, while training again ends in other minima for more than a tenth of the samples, with higher errors.
(Page "Test error from the training data" of the manual.)
"""

from itertools import product

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, DARK, GREY, draw_legend
from gamp_attention.extensions.inference.refits import Refitter, sample_errors, tokens_fields
from validation._tools.drawing import figure
from validation._tools.report import Verdict, folder, options, plus_minus, pool
from validation._tools.resumable import run_trials
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
INSTANCES = 2  # instances of each problem, over which means are averaged
REFITS, FRESH, OFF, MEAN, MOST_ERRORS = 200, 20000, 0.1, 0.02, 3.0
# minimum correlation and maximum median deviation, for smooth penalties and others
LEAST = {True: (0.99, 0.02), False: (0.95, 0.1)}
LEAST_CAVITY = {True: (0.98, 0.03), False: (0.95, 0.1)}
NOISES, WEAK, EACH = (0.1, 0.2, 0.3), (0.01, 0.1, 0.5), 8  # noise on the scores, λ, and number of instances
RETRAINED, RETRAINED_SEEDS, NEAR = 15, range(2000, 2006), 0.95  # samples, seeds, and cosine with the same minimum
FIRST_SEED = 1000  # seeds of these instances, none of which occurs twice, so that all of them are independent
STARTS = {"spectral": 8, "random": 1}  # number of starts
FAIR, FAIR_MEAN, LOW, BELIEVED = 0.05, 0.02, 0.07, 0.25


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
        fields[sample] = tokens_fields(data, Q, np.array([sample]))[0]
        done.append(bool(reached))
    exact = sample_errors(data, fields)[samples]
    fresh = ga.sampled_test_error(data, gamp.Q, n_samples=FRESH, seed=seed)
    return {
        "smooth": data.penalty.smooth, "minimum": bool(gamp.is_minimum), "trusted": corrected.trusted,
        "refitted": done, "doubtful": corrected.doubtful[samples].tolist(),
        "exact": exact.tolist(), "errors": loo.errors[samples].tolist(), "cavity": cavity.errors[samples].tolist(),
        "corrected": corrected.errors[samples].tolist(),
        "in_training": loo.in_training,
        "mean": [corrected.test_error, corrected.test_error_error], "cavity_mean": cavity.test_error,
        "fresh": list(fresh),
    }  # fmt: skip


def compare_means(kind, d, seed):
    """Return the estimated mean and the error on fresh data of one more instance."""
    make, alpha, init, _ = KINDS[kind]
    data = ga.sample(make(), d=d, alpha=alpha, seed=np.random.default_rng([d, seed, 31]))
    gamp = ga.run_gamp(data, init)
    loo, cavity = (ga.leave_one_out(data, gamp, form=form) for form in (None, "cavity"))
    fresh = ga.sampled_test_error(data, gamp.Q, n_samples=FRESH // 4, seed=seed)
    means = {"mean": [loo.test_error, loo.test_error_error], "cavity_mean": cavity.test_error}
    return means | {"fresh": list(fresh), "trusted": loo.trusted}


def measure_under_noise(noise, lam, init, d, seed):
    """Return the estimate over the fresh error for the lowest of some starts, and `trusted`."""
    model = ga.paper_model(omega=NOISY["omega"], sigma=NOISY["sigma"], score_noise=noise, lam=lam)
    data = ga.sample(model, d=d, alpha=2.0, seed=np.random.default_rng([d, seed, 33]))
    gamp = ga.train(data, init, n_starts=STARTS[init], seed=seed, survey=False, escape=False)
    loo = ga.leave_one_out(data, gamp)
    fresh = ga.sampled_test_error(data, gamp.Q, n_samples=FRESH // 2, seed=seed)[0]
    spread = np.sqrt(loo.test_error_error**2 - loo.selection**2)  # without the allowance for the choice of a minimum
    return {"ratio": loo.test_error / fresh, "spread": float(spread) / fresh, "trusted": loo.trusted}


def compare_with_retraining(noise, d, seed):
    """Return errors of some samples by the formula, by a refit from the minimum, and by training again without them.

    Training again begins at the same random start. The last entry is the fraction of samples without which it ends near
    the same minimum.
    """
    model = ga.paper_model(omega=NOISY["omega"], sigma=NOISY["sigma"], score_noise=noise, lam=0.1)
    data = ga.sample(model, d=d, alpha=2.0, seed=np.random.default_rng([d, seed, 34]))
    gamp = ga.run_gamp(data, "random", seed=seed)
    fields = ga.leave_one_out(data, gamp, form="hessian", refits=0).fields
    samples = np.random.default_rng([seed, 35]).permutation(data.n_samples)[:RETRAINED]
    errors = {"formula": sample_errors(data, fields)[samples].mean(), "refit": 0.0, "again": 0.0, "near": 0.0}
    for sample in samples.tolist():
        rows = np.delete(np.arange(data.n_samples), sample)
        ends = {
            "refit": Refitter().refit(data, gamp.Q, sample)[0],
            "again": ga.run_gamp(data.select_rows(rows), "random", seed=seed).Q,
        }
        for name, Q in ends.items():
            fields = tokens_fields(data, Q, np.array([sample]))
            errors[name] += float(sample_errors(data, fields, np.array([sample]))[0]) / RETRAINED
        cosine = np.sum(ends["again"] * gamp.Q) / np.linalg.norm(ends["again"]) / np.linalg.norm(gamp.Q)
        errors["near"] += float(abs(cosine) > NEAR) / RETRAINED
    return errors


def measure_several_starts(starts, d, seed):
    """Return the estimate for the lowest of several random starts, all run to the end, and the fresh error."""
    data = ga.sample(ga.paper_model(**NOISY, lam=0.1), d=d, alpha=1.5, seed=seed)
    gamp = ga.train(data, "random", n_starts=starts, n_finish=starts, seed=seed, survey=False, escape=False)
    loo = ga.leave_one_out(data, gamp, form="hessian", refits=0)
    fresh = ga.sampled_test_error(data, gamp.Q, n_samples=FRESH // 4, seed=seed)[0]
    return {"fresh": fresh, "estimate": loo.test_error, "with_choice": loo.with_choice}


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


def pool_means(row, means):
    """Return deviations of the means over trusted instances in standard errors, and the number of instances."""
    all_of = [row, *(each for each in means if each["kind"] == row["kind"] and each["trusted"])]
    spread = np.sqrt(sum(each["mean"][1] ** 2 + each["fresh"][1] ** 2 for each in all_of))
    apart = [sum(each["mean"][0] - each["fresh"][0] for each in all_of),
             sum(each["cavity_mean"] - each["fresh"][0] for each in all_of)]  # fmt: skip
    return *(float(each / spread) for each in apart), len(all_of)


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
            doubtful = np.array(row["doubtful"], dtype=bool)
            axis.loglog(exact, exact, color=GREY, lw=1, label="equal")
            axis.loglog(exact, errors, ".", color=DARK, ms=4, label="one sample")
            axis.loglog(
                exact[doubtful],
                errors[doubtful],
                "o",
                color=COLORS["positional"],
                ms=6,
                mfc="none",
                label="doubtful sample",
            )
            axis.set(title=f"{row['kind']}, d = {row['d']}")
            axis.tick_params(which="minor", labelbottom=False, labelleft=False)
        for axis in axes[-1]:
            axis.set_xlabel("error, by exact refit")
        for axis in axes[:, 0]:
            axis.set_ylabel("error, by the formula")
        draw_legend(axes[0, 0], columns=3)


def run_all(args, asked):
    """Return the rows of all parts, computed now or loaded from unfinished runs."""
    quick = args.quick
    with pool(args) as executor:
        rows = run_trials(folder(args, "leave_one_out"), compare_errors, asked, executor)
        more = [each | {"seed": s} for each in asked for s in range(1, 2 if quick else INSTANCES)]
        more = [{name: each[name] for name in ("kind", "d", "seed")} for each in more]
        means = run_trials(folder(args, "leave_one_out_means"), compare_means, more, executor)
        starts = [{"starts": k, "d": 50 if quick else 100, "seed": s} for s in range(1 if quick else 6) for k in (1, 8)]
        chosen = run_trials(folder(args, "leave_one_out_starts"), measure_several_starts, starts, executor)
        rough = [
            {"noise": s, "lam": lam, "init": init, "d": 150, "seed": FIRST_SEED + 8 * number + k}
            for number, (init, s, lam) in enumerate(product(STARTS, NOISES, WEAK)) for k in range(EACH)
        ]  # fmt: skip
        noisy = [] if quick else run_trials(folder(args, "leave_one_out_noise"), measure_under_noise, rough, executor)
        asked_again = [] if quick else [{"noise": s, "d": 150, "seed": k} for s in NOISES[1:] for k in RETRAINED_SEEDS]
        retrained = run_trials(folder(args, "leave_one_out_retrained"), compare_with_retraining, asked_again, executor)
    return {"rows": rows, "means": means, "starts": chosen, "noisy": noisy, "retrained": retrained}


def main():
    args = options(__doc__, draw=True, workers=True, stored=True)
    verdict, quick = Verdict("leave_one_out", args), args.quick
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    kinds = ("semantic", "logistic") if quick else KINDS
    asked = [
        {"kind": kind, "d": 100 if quick else KINDS[kind][3], "refits": 20 if quick else REFITS, "seed": 0}
        for kind in kinds
    ]
    names = ("rows", "means", "starts", "noisy", "retrained")
    numbers = {name: verdict.stored()[name] for name in names} if args.stored else run_all(args, asked)
    rows, means, chosen, noisy, retrained = (numbers[name] for name in names)
    verdict.check(len(rows) == len(asked), f"{len(rows)} of {len(asked)} problems ran")
    for row in rows:
        row["summary"] = s = summarize(row)
        about = f"{row['kind']}, d = {row['d']}: "
        reached = sum(row["refitted"])
        ended = f"{reached} of {len(row['refitted'])} refits ended at a gradient norm of 1e-6"
        verdict.check(row["minimum"] and (reached == len(row["refitted"]) or not row["trusted"]), about + ended)
        least, most = LEAST[row["smooth"]]
        if row["trusted"]:
            held = s["correlation"] >= least and s["median"] <= most
            verdict.check(
                held, about + f"correlation {s['correlation']:.4f}, median deviation {100 * s['median']:.2g} %"
            )
            apart = s["corrected"]
            verdict.check(abs(apart) <= MEAN, about + f"the mean by default is {100 * apart:+.2g} % beside refits")
            least, most = LEAST_CAVITY[row["smooth"]]
            held = s["cavity_correlation"] >= least and s["cavity_median"] <= most
            words = f"correlation {s['cavity_correlation']:.3f}, median deviation {100 * s['cavity_median']:.2g} %"
            verdict.check(held, about + "by cavity fields, " + words)
            away, by_cavity, count = pool_means(row, means)
            apart = (
                f"mean over {count} instances {away:.1f} standard errors from fresh data, {s['away']:.1f} in the first"
            )
            verdict.check(
                max(abs(away), abs(by_cavity)) <= MOST_ERRORS, about + apart + f", {by_cavity:.1f} by cavity fields"
            )
        else:
            print(f"        {about}is not trusted;  {s['away']:.1f} standard errors from fresh data")
    said = format_table(rows) + ("\n" + format_noise_table(noisy) if noisy else "")
    verdict.write_table(said)
    if noisy:
        _check_noise(verdict, noisy)
        _check_retraining(verdict, retrained)
    for k in (1, 8):
        mine = [each for each in chosen if each["starts"] == k]
        fresh, *others = (
            float(np.mean(np.array([each[name] for each in mine], float)))
            for name in ("fresh", "estimate", "with_choice")
        )
        low = [f"{100 * (1 - each / fresh):.1f} %" for each in others]
        again = f", {low[1]} with the choice repeated without each sample" if k > 1 else ""
        print(f"        noisy, the lowest of {k}: the estimate is {low[0]} too low{again}")
    verdict.end(numbers, None if quick or args.stored else draw)


def _check_noise(verdict, noisy):
    trusted = [row for row in noisy if row["trusted"]]
    wrong = sum(abs(row["ratio"] - 1) > max(FAIR, MOST_ERRORS * row["spread"]) for row in trusted)
    verdict.check(wrong == 0, f"noisy: {wrong} of {len(trusted)} trusted estimates are wrong")
    mean, error = mean_and_error([row["ratio"] for row in trusted])
    about = f"noisy: trusted estimates are {mean:.3f} ± {error:.3f} of the error on fresh data"
    verdict.check(abs(mean - 1) <= FAIR_MEAN, about)
    deviations = []  # of estimates that are not trusted, and of these about the mean of their setting
    for mine in group_settings(noisy):
        apart = np.array([row["ratio"] - 1 for row in mine])
        centered = (apart - apart.mean()) * np.sqrt(len(mine) / (len(mine) - 1))
        units = [row["spread"] for row in mine]
        deviations += [
            (a / unit, b / unit) for a, b, unit, row in zip(apart, centered, units, mine, strict=True)
            if not row["trusted"]
        ]  # fmt: skip
    all_of, about_mean = np.array(deviations).T
    spread = np.sqrt(np.mean(about_mean**2))
    print(
        f"        noisy: {len(all_of)} estimates that are not trusted are {-all_of.mean():.1f} standard errors too low"
    )
    print(f"        noisy: their spread about the mean of each setting is {spread:.1f} standard errors")
    for mine in group_settings(noisy):
        ratio, share = np.mean([row["ratio"] for row in mine]), np.mean([row["trusted"] for row in mine])
        first = mine[0]
        setting = f"{first['init']} starts, noise {first['noise']}, λ = {first['lam']}"
        if ratio < 1 - LOW:
            about = f"{setting}: estimates are {100 * (1 - ratio):.0f} % too low, {100 * share:.0f} % trusted"
            verdict.check(share <= BELIEVED, about)


def _check_retraining(verdict, retrained):
    """Check that refits from the minimum agree with the formula, and that training again selects other minima."""
    for noise in dict.fromkeys(row["noise"] for row in retrained):
        mine = [row for row in retrained if row["noise"] == noise]
        pairs = {name: [row[name] / row["refit"] - 1 for row in mine] for name in ("formula", "again")}
        formula, again = (tuple(100 * value for value in mean_and_error(pairs[name])) for name in pairs)
        near = 100 * np.mean([row["near"] for row in mine])
        about = f"random starts, noise {noise}, λ = 0.1: the formula is {plus_minus(*formula)} % above refits"
        verdict.check(abs(formula[0]) <= 100 * MEAN, about)
        about = f"training again without a sample ends near the same minimum for {near:.0f} % of the samples"
        verdict.check(near < 90 and again[0] > 0, f"{about}, with errors {plus_minus(*again)} % higher")


if __name__ == "__main__":
    main()
