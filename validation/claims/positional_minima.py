"""Overlaps of the minima of GAMP on the positional branch, with small errors, against two steps of breaking.

Method: the founding paper's model (ω = 0.3, σ = 0.5, λ = 0.01), α = 1.5, asymptotic loss. GAMP runs to zero gradient
from positional starts on many instances at d = 500 and 1000; the stored minima of `rs_validity` at d = 1000 to 8000 are
added. Most of the scatter of a number X of a minimum is already in the number X_20 of the same instance after 20
iterations of GAMP with constant steps, whose limit d → ∞ is known from the equations of these iterations
(`gamp_end_theory`). Therefore X − X_20 is fitted by x + a/d with noise of variance 1/d, and x is added to this limit (a
control variate). Before this, the control variate was the part of the loss that does not depend on the weights, whose
mean is known; its limits are listed, too. Every run is stored when it ends. The predictions are the stored results of
`further_steps`.

Criterion: all runs reach a gradient norm of 1e-6 on the positional branch; the training loss agrees with two steps
within 3 standard errors, with an error below 1 %; both limits of a number differ by less than 3 errors of the less
accurate limit; a fit with d^(−1/2) or d^(−2) in place of 1/d differs by less than 2 errors, and the means by d scatter
around the fit with a probability above 1 % (χ²). Differences of V, q and m from replica symmetry, one and two steps
are reported, in units of their errors.
(Page "Replica symmetry breaking" of the manual.)
"""

import json
from functools import partial
from operator import itemgetter

import numpy as np
from scipy import stats

import gamp_attention as ga
from gamp_attention.state_evolution.rsb import TwoFields
from validation._tools.catalog import ROOT, load_result
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.resumable import complete_rows
from validation._tools.tables import fit_sizes, markdown_table, mean_and_error

ALPHA = 1.5
COUNTS = {500: 200, 1000: 194, 4000: 13}  # instances by d
FIRST = {500: 90_000, 1000: 100_000, 4000: 110_000}  # first seed
STORED = {1000: 16, 2000: 8, 4000: 8, 8000: 6}  # instances of `rs_validity` by d, with seeds from 50 000
KEYS = {"V": "V", "q": "q", "m": "m", "train_loss": "training loss"}
START = 8  # index of iteration 20 in the stored times of `gamp_end_theory`
REACHED, ON_BRANCH = 1e-6, 0.1  # gradient norm of a minimum, and its m on the positional branch
FINE = 4  # resolution of the average over labels


def run_cell(d, number):
    """Return the numbers of the minimum of one instance, and the constant of its loss."""
    data = ga.sample(ga.paper_model(0.3), d, ALPHA, FIRST[d] + number)
    run = ga.run_gamp(data, "positional", "asymptotic", max_iter=1000)
    overlaps = {name: abs(float(value)) for name, value in run.overlaps.scalars().items()}
    constant = float(data.terms("asymptotic").constant.mean())
    return [{"d": d, "seed": FIRST[d] + number, "norm": run.gradient_norm, "constant": constant,
             "train_loss": run.train_loss, **overlaps}]  # fmt: skip


def check_reached(verdict, rows):
    """Check that at least 95 % of the runs reach the gradient norm of a minimum."""
    reached = float(np.mean([row["norm"] <= REACHED for row in rows]))
    verdict.check(reached >= 0.95, f"{100 * reached:.0f} % of {len(rows)} runs reach a gradient norm of {REACHED:g}")


def read_cell(d, number, minima, alpha=ALPHA):
    """Return the same for a stored minimum of `rs_validity`."""
    data = ga.sample(ga.paper_model(0.3), d, alpha, 50_000 + number)
    constant = float(data.terms("asymptotic").constant.mean())
    row = minima[d, number]
    return [{"d": d, "seed": 50_000 + number, "norm": row["gradient_norm"], "constant": constant,
             **{name: row[name] for name in ("V", "q", "m", "theta", "train_loss")}}]  # fmt: skip


def stored_minima(alpha):
    """Return the stored minima of `rs_validity` by d and number of the instance."""
    lines = (ROOT / "results" / "rs_validity_runs.jsonl").read_text().splitlines()
    return {
        (row["d"], row["seed"]): row
        for row in map(json.loads, lines)
        if row["alpha"] == alpha and row["risk"] == "asymptotic"
    }


def main():
    args = options(__doc__, stored=True)
    verdict = Verdict("positional_minima", args)
    counts, stored = ({500: 20}, {}) if args.quick else (COUNTS, STORED)
    plan = {(d, FIRST[d] + i): partial(run_cell, d, i) for d, count in counts.items() for i in range(count)}
    minima = stored_minima(ALPHA)
    plan |= {(d, 50_000 + i): partial(read_cell, d, i, minima) for d, count in stored.items() for i in range(count)}
    rows = complete_rows(verdict.path("_runs.jsonl"), {} if args.stored else plan, itemgetter("d", "seed"), "instances")
    rows = [row for row in rows if (row["d"], row["seed"]) in plan]
    reached = [row["norm"] <= REACHED and row["m"] > ON_BRANCH for row in rows]
    verdict.check(all(reached), f"{sum(reached)} of {len(rows)} runs reach a minimum on the positional branch")
    limits = {}
    if not args.quick:
        start = read_start()
        limits = {name: fit_limit(rows, start, name) for name in KEYS}
        check_fits(verdict, limits)
        verdict.write_table(comparison(verdict, rows, limits))
    verdict.end({"limits": limits, "constant": expected_constant()})


def expected_constant():
    """Return the average over labels of the constant of the loss."""
    problem = TwoFields(ga.paper_model(), ALPHA)
    u, probability = problem.teacher(True, FINE)
    return float(probability @ problem.model.task.terms(u[:, :, None], np.zeros((len(u), 0))).constant)


def read_start():
    """Return numbers after 20 iterations of GAMP with constant steps: their limits, and of each instance."""
    equations = load_result(ROOT / "results" / "gamp_end_theory.json")["comparison"]["20"]
    lines = (ROOT / "results" / "gamp_end_theory_runs.jsonl").read_text().splitlines()
    runs = {(row["d"], row["seed"]): row for row in map(json.loads, lines) if "d" in row}
    return {name: equations[name]["theory"] for name in KEYS}, runs


def fit_limit(rows, start, name):
    """Return the limit d → ∞ of a number with both control variates, and checks of the fit.

    "change" is the limit of the change since iteration 20, and its coefficient of 1/d; "explained" has the fractions of
    the scatter at the smallest d that the labels and the number at iteration 20 explain.
    """
    known, runs = start
    d, y = (np.array([row[key] for row in rows], dtype=float) for key in ("d", name))
    excess = np.array([row["constant"] for row in rows]) - expected_constant()
    before = np.array([runs[row["d"], row["seed"]][name][START] for row in rows])
    found, errors = fit_sizes(d, y - before)
    by_labels, label_errors = fit_sizes(d, y, [excess])
    powers = [fit_sizes(d, y - before, power=power)[0][0] for power in (0.5, 2.0)]
    small = d == d.min()
    return {
        "limit": [known[name][0] + found[0], float(np.hypot(known[name][1], errors[0]))],
        "slope": [by_labels[1], label_errors[1]],
        "by labels": [by_labels[0], label_errors[0]],
        "change": [[found[k], errors[k]] for k in (0, 1)],
        "powers": [(limit - found[0]) / errors[0] for limit in powers],
        "chi2": scatter_of_means(d, y - before - found[0] - found[1] / d),
        "explained": [
            np.corrcoef(excess[small], y[small])[0, 1] ** 2, 1 - np.var((y - before)[small]) / np.var(y[small])
        ],
    }  # fmt: skip


def scatter_of_means(d, residuals):
    """Return χ² of the mean residuals by d, its degrees of freedom, and the probability of a larger value."""
    means = [mean_and_error(residuals[d == size]) for size in np.unique(d)]
    chi2, freedom = float(sum((mean / error) ** 2 for mean, error in means)), len(means) - 2
    return [chi2, freedom, float(stats.chi2.sf(chi2, freedom))]


def check_fits(verdict, limits):
    """Check the fits of the numbers: both control variates, the power of d, and the scatter around the fit."""
    for name, fit in limits.items():
        away = (fit["limit"][0] - fit["by labels"][0]) / fit["by labels"][1]
        verdict.check(abs(away) < 3, f"{name}: the limit changes by {away:.1f} errors with the new control variate")
        words = ", ".join(f"{value:.1f}" for value in fit["powers"])
        verdict.check(np.abs(fit["powers"]).max() < 2, f"{name}: powers −1/2 and −2 of d change it by {words} errors")
        chi2, freedom, probability = fit["chi2"]
        claim = f"{name}: the means by d have χ² = {chi2:.1f} for {freedom} degrees of freedom, p = {probability:.2f}"
        verdict.check(probability > 0.01, claim)


def comparison(verdict, rows, limits):
    """Return the differences of the limits from the predictions as a table."""
    steps = load_result(ROOT / "results" / "further_steps.json")["results"]
    symmetric = ga.solve_state_evolution(ga.paper_model(), ALPHA, "positional", rtol=1e-4, stability=False)
    table = []
    for name, label in KEYS.items():
        value, error = limits[name]["limit"]
        predictions = [symmetric.train_loss if name == "train_loss" else abs(float(symmetric.overlaps.scalars()[name]))]
        predictions += [steps[f"k = {k}"][name][0] for k in (1, 2)]
        spreads = [0.0, *(steps[f"k = {k}"][name][1] for k in (1, 2))]
        away = [(value - p) / np.hypot(error, s) for p, s in zip(predictions, spreads, strict=True)]
        if name == "train_loss":
            claim = f"the training loss differs by {away[2]:.1f} errors from two steps, with an error below 1 %"
            verdict.check(abs(away[2]) < 3 and error < 0.01 * value, claim)
        factor = 1e6 if name == "train_loss" else 1.0
        table.append([
            label + (", 10⁻⁶" if factor > 1 else ""), *(f"{100 * v:.0f} %" for v in limits[name]["explained"]),
            plus_minus(*(factor * v for v in limits[name]["change"][1])),
            plus_minus(*(factor * v for v in limits[name]["by labels"])), plus_minus(factor * value, factor * error),
            *(f"{factor * p:.5g}" for p in predictions), *(f"{v:.1f}" for v in away),
        ])  # fmt: skip
    names = ["replica symmetry", "one step", "two steps"]
    columns = ["", "scatter explained by labels", "by iteration 20", "coefficient of 1/d of the change",
               "minima, d → ∞, by labels", "minima, d → ∞", *names,
               *(f"{name}: difference/error" for name in names)]  # fmt: skip
    return markdown_table(columns, table)


if __name__ == "__main__":
    main()
