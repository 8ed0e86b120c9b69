"""Minima of GAMP, descent and survey propagation from random starts, against two steps of breaking at another α.

Method: the founding paper's model (ω = 0.3, σ = 0.5, λ = 0.01), α = 1, asymptotic loss; below α_c = 1.25, so that the
positional branch is the ground state. On each instance GAMP, L-BFGS and survey propagation (at the Parisi parameter of
the ground state with one step, then GAMP) run to zero gradient from the same start, independent of the data, with
entries N(0, 1); GAMP runs from the positions, too, to which the stored minima of `rs_validity` at d = 1000 to 4000 are
added. Limits d → ∞ of V, q, m and the training loss of the minima with |m| > 0.1 are fitted with the labels' constant
as a control variate (`positional_minima`). The excess of the loss of every minimum over the minimum from the positions
is paired by instance. The predictions are solutions with k = 0 to 2 steps at the same α. For d → ∞, descent from a
random start keeps m = 0; its end, after 500 steps of the heavy-ball method, is extrapolated in the number of paths, and
compared with minima of L-BFGS with |m| < 0.1. Runs and solutions are stored when they end (--quick: k = 0, d = 200).

Criterion: all solutions converge; 95 % of the runs reach a gradient norm of 1e-6; the training loss of GAMP from the
positions agrees with the ground state within 3 standard errors. The other differences are reported in units of their
errors. Added when the minima were known: q and the loss of minima of L-BFGS with |m| < 0.1, the latter relative to the
minimum from the positions of the same instance, agree with the end of descent within 3.5 errors.
(Page "Replica symmetry breaking" of the manual.)
"""

import json
from functools import partial

import numpy as np

import gamp_attention as ga
from validation._tools.catalog import ROOT
from validation._tools.descents import predicted_descent
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.resumable import complete_instances, complete_parts
from validation._tools.tables import extrapolate, markdown_table, mean_and_error
from validation.claims.end_of_descent import HOW
from validation.claims.further_steps import pairs, show, solve
from validation.claims.positional_minima import (
    KEYS,
    ON_BRANCH,
    REACHED,
    check_reached,
    fit_by_labels,
)

ALPHA = 1.0
COUNTS = {500: 20, 1000: 12, 2000: 4}  # instances by d
NAMES = {
    "positions": "GAMP from the positions",
    "gamp": "GAMP",
    "lbfgs": "L-BFGS",
    "survey": "survey propagation",
}
QUICK_PARISI = 957.0  # Parisi parameter of the surveys with --quick, which does not solve the equations of one step
DESCENTS, LONG = {2**12: 8, 2**14: 4}, 500  # replicas of the theory of descent by number of paths, and its steps
AGREES = 3.5  # errors, see the criterion
EQUAL = 1e-3  # relative excess of the loss below which a minimum is as low as the minimum from the positions


def run_cell(d, seed, parisi):
    """Return the minima of all algorithms on one instance."""
    data = ga.sample(ga.paper_model(0.3), d, ALPHA, 110_000 + seed)
    constant = float(data.terms("asymptotic").constant.mean())
    start = np.random.default_rng([d, seed]).standard_normal((d, 1))
    rows = []
    for name in NAMES:
        if name == "lbfgs":
            run = ga.minimize_risk(data, start, "asymptotic", "lbfgs", max_iter=3000)
        else:
            survey = parisi if name == "survey" else False
            init = "positional" if name == "positions" else start
            run = ga.train(data, init, "asymptotic", max_iter=1000, survey=survey, n_starts=1, escape=False)
        overlaps = {key: abs(float(value)) for key, value in run.overlaps.scalars().items()}
        rows.append({"algorithm": name, "d": d, "seed": seed, "norm": run.gradient_norm, "constant": constant,
                     "train_loss": run.train_loss, **overlaps})  # fmt: skip
    return rows


def read_cell(d, number, minima):
    """Return the numbers of a stored minimum of `rs_validity`."""
    data = ga.sample(ga.paper_model(0.3), d, ALPHA, 50_000 + number)
    constant = float(data.terms("asymptotic").constant.mean())
    row = minima[d, number]
    return [{"d": d, "seed": 50_000 + number, "norm": row["gradient_norm"], "constant": constant,
             **{name: row[name] for name in ("V", "q", "m", "theta", "train_loss")}}]  # fmt: skip


def stored_minima():
    """Return the stored minima of `rs_validity` by d and number of the instance."""
    lines = (ROOT / "results" / "rs_validity_runs.jsonl").read_text().splitlines()
    return {
        (row["d"], row["seed"]): row
        for row in map(json.loads, lines)
        if row["alpha"] == ALPHA and row["risk"] == "asymptotic"
    }


def follow_descent(n_paths, n_replicas):
    """Return q and the training loss at the end of descent from a random start in theory, each with its error."""
    settings = {"n_iter": LONG, "n_paths": n_paths, "n_replicas": n_replicas, "seed": n_paths}
    path = ga.trajectory(ga.paper_model(), ALPHA, "random", predicted_descent(HOW, 1e-2), **settings)
    q = [float(of.q[-1, 0, 0, 0]) for of in (path, path.error)]
    return {"q": q, "train_loss": [float(path.train_loss[-1]), float(path.train_loss_error[-1])]}


def main():
    args = options(__doc__)
    verdict = Verdict("minima_from_random_starts", args)
    counts, steps = ({200: 4}, (0,)) if args.quick else (COUNTS, (0, 1, 2))
    quick = "_quick" if args.quick else ""
    stored = complete_parts(
        args.out / f"minima_from_random_starts{quick}_parts.json",
        {f"k = {k}": partial(solve, k, ALPHA) for k in steps}
        | {
            f"descent, {n} paths": partial(follow_descent, n, k)
            for n, k in (DESCENTS if not args.quick else {}).items()
        },
    )
    theory = [stored[f"k = {k}"] for k in steps]
    for k, r in zip(steps, theory, strict=True):
        verdict.check(r["status"] == "converged", f"k = {k}: {r['status']}, {r['validity']}")
    parisi = QUICK_PARISI if args.quick else float(theory[1]["parisi"][0][0])
    rows = complete_instances(verdict.path("_runs.jsonl"), partial(run_cell, parisi=parisi), counts)
    check_reached(verdict, rows)
    kept = [row for row in rows if row["norm"] <= REACHED and row["m"] > ON_BRANCH]
    if args.quick:
        verdict.end({})
        return
    on_branch = {name: [row for row in kept if row["algorithm"] == name] for name in NAMES}
    minima = stored_minima()
    on_branch["positions"] += [row for cell in minima for row in read_cell(*cell, minima)]
    limits = {
        name: {key: fit_by_labels([r for r in on_branch[name] if np.isfinite(r[key])], key)[0] for key in KEYS}
        for name in NAMES
    }  # V is NaN if the equations of the response have no solution
    away = {name: [differences(limits[name], r) for r in theory] for name in NAMES}
    loss = away["positions"][-1]["train_loss"]
    verdict.check(abs(loss) < 3, f"the training loss of GAMP from the positions differs by {loss:.1f} errors")
    verdict.write_table(comparison(theory, limits, away))
    verdict.write_table(excess(rows), "_losses.md")
    few, many = (stored[f"descent, {n} paths"] for n in DESCENTS)
    end = {key: extrapolate(list(DESCENTS), *zip(few[key], many[key], strict=True)) for key in few}
    end["train_loss"] = [end["train_loss"][0] - theory[-1]["train_loss"][0], end["train_loss"][1]]
    found = measure_small(rows)
    verdict.write_table(tabulate_small(verdict, end, found), "_descent.md")
    verdict.end({"theory": theory, "limits": limits, "differences": away, "descent": [end, found]})


def measure_small(rows):
    """Return means of q and of the excess of the loss, with weights d, over minima of L-BFGS with |m| < 0.1."""
    reached = [row for row in rows if row["norm"] <= REACHED]
    lowest = {(row["d"], row["seed"]): row["train_loss"] for row in reached if row["algorithm"] == "positions"}
    small = [row for row in reached if row["algorithm"] == "lbfgs" and row["m"] < ON_BRANCH]
    small = [row for row in small if (row["d"], row["seed"]) in lowest]
    d = np.array([row["d"] for row in small], dtype=float)
    values = {
        "q": np.array([row["q"] for row in small]),
        "train_loss": np.array([row["train_loss"] - lowest[row["d"], row["seed"]] for row in small]),
    }
    means = {"count": len(small)}
    for key, y in values.items():
        mean = np.average(y, weights=d)
        means[key] = [
            float(mean),
            float(np.sqrt(np.sum((d * (y - mean)) ** 2)) / d.sum() * np.sqrt(len(d) / (len(d) - 1))),
        ]
    return means


def tabulate_small(verdict, end, found):
    """Return the end of descent from a random start and minima of L-BFGS with |m| < 0.1 as a table, and check both."""
    table = []
    for key, label, factor in (("q", "q", 1.0), ("train_loss", "loss above the minimum from the positions, 10⁻⁶", 1e6)):
        off = (found[key][0] - end[key][0]) / float(np.hypot(found[key][1], end[key][1]))
        verdict.check(abs(off) < AGREES, f"L-BFGS with |m| < 0.1: {label} differs from the end by {off:.1f} errors")
        cells = [plus_minus(*(factor * value for value in pair)) for pair in (end[key], found[key])]
        table.append([label, *cells, f"{off:.1f}"])
    heads = ["", "end of descent, m = 0", f"{found['count']} minima of L-BFGS with |m| < 0.1", "difference/error"]
    return markdown_table(heads, table)


def differences(limits, prediction):
    """Return the differences of limits from a prediction in units of the error of the difference."""
    return {
        key: (limits[key][0] - prediction[key][0]) / float(np.hypot(limits[key][1], prediction[key][1])) for key in KEYS
    }


def comparison(theory, limits, away):
    """Return predictions and limits, and the differences from each prediction in units of their errors, as a table."""
    rows = []
    for k, r in enumerate(theory):
        loss = [1e6 * value for value in r["train_loss"]]
        rows.append([f"k = {k}", *(show(*r[key]) for key in ("V", "q", "m")), show(*loss),
                     pairs(r["parisi"]) if k else ""])  # fmt: skip
    for name, label in NAMES.items():
        loss = [1e6 * value for value in limits[name]["train_loss"]]
        rows.append([label, *(plus_minus(*limits[name][key]) for key in ("V", "q", "m")), plus_minus(*loss), ""])
        for k, change in enumerate(away[name]):
            rows.append([f"difference from k = {k}, errors", *(f"{change[key]:.1f}" for key in KEYS), ""])
    return markdown_table(["", "V", "q", "m", "training loss, 10⁻⁶", "Parisi parameters"], rows)


def excess(rows):
    """Return the losses relative to the minimum from the positions on the same instance as a table."""
    reached = [row for row in rows if row["norm"] <= REACHED]
    reference = {(row["d"], row["seed"]): row["train_loss"] for row in reached if row["algorithm"] == "positions"}
    table = []
    for name, label in list(NAMES.items())[1:]:
        for d in COUNTS:
            here = [
                row for row in reached if (row["algorithm"], row["d"]) == (name, d) and (d, row["seed"]) in reference
            ]
            ratio = np.array([row["train_loss"] / reference[d, row["seed"]] - 1 for row in here])
            small = np.mean([row["m"] <= ON_BRANCH for row in here])
            fractions = small, np.mean(ratio < -EQUAL), np.mean(np.abs(ratio) <= EQUAL)
            table.append([label, d, len(here), *(f"{100 * fraction:.0f} %" for fraction in fractions),
                          plus_minus(*mean_and_error(100 * ratio)), f"{100 * np.median(ratio):.2f}"])  # fmt: skip
    columns = ["from random starts", "d", "minima", "|m| < 0.1", "lower", "equal", "mean excess, %", "median, %"]
    return markdown_table(columns, table)


if __name__ == "__main__":
    main()
