"""Overlaps and losses of many minima of one instance on the positional branch, against one step of breaking.

Method: the paper's model (ω = 0.3, σ = 0.5, λ = 0.01), α = 1.5, asymptotic loss. On each instance GAMP and L-BFGS
run to zero gradient from the same four starts near the positions, √d p_1 + N(0, 1); survey propagation
(`train(survey=y)` at the Parisi parameter y of the ground state, then GAMP) runs from two of them at d = 250.
Minima of the semantic branch (|m| < 0.1) are counted and left out. For each algorithm: the overlap q_1 of a minimum
with itself, the overlap q_0 between minima of the same instance, the distance q_1 − q_0, the fraction of pairs that are
the same minimum, and the training loss. Means over instances are extrapolated to d → ∞, linear in 1/d. The differences
of losses between algorithms are paired. Predictions: replica symmetry and the ground state with one step, from the
stored theory of `curvature`; the end of descent from the stored results of `end_of_descent`.

Criterion: at least 90 % of the runs reach a gradient norm of 1e-6; q_1 and the training loss of GAMP's minima,
extrapolated, are within 4 standard errors of replica symmetry and of the ground state, respectively. Distances, and the
order of the losses, are reported.
(Page "Curvature" of the manual.)
"""

from functools import partial
from itertools import combinations
from operator import itemgetter

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import figure
from validation._tools.catalog import ROOT, load_result
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.resumable import complete_rows
from validation._tools.tables import extrapolate, markdown_table, mean_and_error

ALPHA = 1.5
SEEDS = {250: 8, 500: 6, 1000: 4, 2000: 2}  # instances by d
N_STARTS = 4
LBFGS = {250: 8, 500: 6, 1000: 4}  # L-BFGS takes too long at larger d
SURVEY = {250: 3}  # instances with survey propagation by d
REACHED = 1e-6  # gradient norm of a minimum
SAME = 1e-3  # relative distance below which two minima are the same
NAMES = {"gamp": "GAMP", "lbfgs": "L-BFGS", "survey": "survey propagation"}
COLORS = {"gamp": "#0072B2", "lbfgs": "#D55E00", "survey": "#009E73"}
QUANTITIES = {"q_1": "q_1", "q_0": "q_0", "distance": "q_1 − q_0", "same": "fraction of equal pairs", "loss": "ε_t"}


def run_cell(algorithm, d, seed, parisi):
    """Return the numbers of the minima of one instance."""
    data = ga.sample(ga.paper_model(0.3), d, ALPHA, 70_000 + seed)
    rng = np.random.default_rng(seed)
    minima, norms, losses, left_out = [], [], [], 0
    for _ in range(N_STARTS if algorithm != "survey" else 2):
        start = np.sqrt(d) * data.positions[0][:, None] + rng.standard_normal((d, 1))
        if algorithm == "lbfgs":
            run = ga.minimize_risk(data, start, "asymptotic", "lbfgs", max_iter=3000)
        else:
            survey = parisi if algorithm == "survey" else False
            run = ga.train(data, start, "asymptotic", max_iter=1000, survey=survey, n_starts=1, escape=False)
        norms.append(run.gradient_norm)
        m = float(np.ravel(run.overlaps.m)[0])
        if run.gradient_norm > REACHED or abs(m) < 0.1:
            left_out += run.gradient_norm <= REACHED
            continue
        minima.append(np.sign(m) * run.Q[:, 0] * 0.5 / np.sqrt(d))  # σ = 0.5
        losses.append(run.train_loss)
    pairs = [(float(a @ b), float(np.sum((a - b) ** 2) / (a @ a))) for a, b in combinations(minima, 2)]
    row = {"algorithm": algorithm, "d": d, "seed": seed, "norms": norms, "semantic": left_out, "losses": losses}
    row["q_1"] = float(np.mean([a @ a for a in minima])) if minima else None
    row["q_0"] = float(np.mean([overlap for overlap, _ in pairs])) if pairs else None
    row["distance"] = row["q_1"] - row["q_0"] if pairs else None
    row["same"] = float(np.mean([change < SAME for _, change in pairs])) if pairs else None
    row["loss"] = float(np.mean(losses)) if losses else None
    return [row]


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("minima_overlaps", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    results = ROOT / "results"
    ground = load_result(results / "positional_breaking.json")
    sizes, descents, surveys = ({200: 3, 300: 3}, {200: 3, 300: 3}, {}) if args.quick else (SEEDS, LBFGS, SURVEY)
    plan = {}
    for algorithm, seeds in (("gamp", sizes), ("lbfgs", descents), ("survey", surveys)):
        for d, count in seeds.items():
            for seed in range(count):
                plan[algorithm, d, seed] = partial(run_cell, algorithm, d, seed, ground["ground"][0])
    rows = complete_rows(verdict.path("_runs.jsonl"), plan, itemgetter("algorithm", "d", "seed"), "instances")
    rows = [row for row in rows if (row["algorithm"], row["d"], row["seed"]) in plan]
    norms = np.array([norm for row in rows for norm in row["norms"]])
    share = float(np.mean(norms <= REACHED))
    verdict.check(share >= 0.9, f"{100 * share:.0f} % of {len(norms)} runs reach a gradient norm of 1e-6")
    print(f"{sum(row['semantic'] for row in rows)} of them are semantic minima and left out")
    table, limits = [], {}
    for name, label in NAMES.items():
        for quantity, symbol in QUANTITIES.items():
            pairs = {}
            for d in sizes:
                values = [row[quantity] for row in rows if (row["algorithm"], row["d"]) == (name, d)]
                values = [value for value in values if value is not None]
                pairs[d] = mean_and_error(values) if len(values) > 1 else (np.nan, np.nan)
            usable = {d: pair for d, pair in pairs.items() if pair[1] > 0 and quantity != "same"}
            limit = extrapolate([*usable], *zip(*usable.values(), strict=True)) if len(usable) > 2 else (np.nan, np.nan)
            limits[f"{name} {quantity}"] = limit
            digits = 1e6 if quantity == "loss" else 1.0
            cells = [
                "" if np.isnan(a) else plus_minus(digits * a, digits * b or np.nan) for a, b in (*pairs.values(), limit)
            ]
            table.append([label, f"{symbol}, 1e-6" if quantity == "loss" else symbol, *cells])
    table += paired_losses(rows, sizes)
    theory = load_result(results / "curvature.json")["theory"]
    one, symmetric = theory.get("positional, one step"), theory["positional"]
    if one:
        q_0, q_1 = one["q"]
        values = {"q_1": q_1, "q_0": q_0, "q_1 − q_0": q_1 - q_0, "ε_t, 1e-6": 1e6 * one["train_loss"]}
        table += [
            ["one step, ground state", name, *[""] * len(sizes), f"{value:.5g}"] for name, value in values.items()
        ]
    values = {"q_1": symmetric["q"][0], "ε_t, 1e-6": 1e6 * symmetric["train_loss"]}
    table += [["replica symmetry", name, *[""] * len(sizes), f"{value:.5g}"] for name, value in values.items()]
    verdict.write_table(markdown_table(["", "", *[f"d = {d}" for d in sizes], "d → ∞"], table))
    if not args.quick:
        for quantity, value in (("q_1", symmetric["q"][0]), ("loss", ground["ground"][3])):
            limit = limits[f"gamp {quantity}"]
            claim = (
                f"{quantity} of GAMP {limit[0]:.5g} ± {limit[1]:.1g}, prediction {value:.5g}, within 4 standard errors"
            )
            verdict.check(abs(limit[0] - value) < 4 * limit[1], claim)
    levels = None if one is None else one["q"]
    verdict.end({"rows": rows, "limits": limits, "levels": levels, "ground_loss": ground["ground"][3]}, draw)


def paired_losses(rows, sizes):
    """Return a table row of the relative differences between mean losses of the algorithms on the same instances."""
    table = []
    by_cell = {(row["algorithm"], row["d"], row["seed"]): row["loss"] for row in rows if row["loss"] is not None}
    for name in ("lbfgs", "survey"):
        cells = []
        for d in sizes:
            pairs = [
                (loss / by_cell["gamp", d, seed] - 1) * 100
                for (algorithm, size, seed), loss in by_cell.items()
                if (algorithm, size) == (name, d) and ("gamp", d, seed) in by_cell
            ]
            cells.append(plus_minus(*mean_and_error(pairs)) if len(pairs) > 1 else "")
        table.append([NAMES[name], "ε_t above GAMP, %", *cells, ""])
    return table


def draw(stored, path):
    """Draw the distances between minima and their losses against 1000/d."""
    with figure(path, 1, 2, (10, 4)) as axes:
        for ax, quantity in zip(axes[0], ("distance", "loss"), strict=True):
            for name, label in NAMES.items():
                rows = [row for row in stored["rows"] if row["algorithm"] == name and row[quantity] is not None]
                sizes = sorted({row["d"] for row in rows})
                pairs = [mean_and_error([row[quantity] for row in rows if row["d"] == d]) for d in sizes]
                if pairs:
                    mean, error = np.array(pairs).T
                    ax.errorbar(1000 / np.array(sizes), mean, error, fmt="o-", color=COLORS[name], label=label)
            ax.set(xlabel="1000/d", xlim=(-0.1, None))
        if stored["levels"]:
            axes[0][0].axhline(np.diff(stored["levels"])[0], color="#777777", ls="--", label="one step, ground state")
        axes[0][1].axhline(stored["ground_loss"], color="#777777", ls="--", label="ground state, d → ∞")
        axes[0][0].set(ylabel="$q_1 - q_0$ of minima of an instance", title="distance between minima")
        axes[0][0].set_ylim(bottom=-0.002)
        axes[0][1].set(ylabel="training loss", title="loss of the minima")
        for ax in axes[0]:
            ax.legend(fontsize=8)


if __name__ == "__main__":
    main()
