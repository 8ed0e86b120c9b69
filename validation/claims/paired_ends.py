"""Distances between the minima of two algorithms on the same data, from equations of both algorithms together.

Method: the founding paper's model (ω = 0.3, σ = 0.5, λ = 0.01), α = 1.5, asymptotic loss, from the positions. Two
first-order methods on the same data are one first-order method with two columns of weights; its equations
(`paired_paths`) predict the overlap of both weights at all times. Pairs: GAMP with 20 iterations of global minima, and
heavy-ball descent, whose end is the end of L-BFGS (`reached_minima`); GAMP with 20 and with 0 or 80 such iterations;
GAMP, and heavy-ball descent from the weights of GAMP after 20 iterations. The distance is the mean of both q minus the
overlap. The equations are iterated with up to 2^18 paths and fitted by x + a/N for N paths; the error contains the
difference between two tolerances of the stored times. Measured distances are from the minima of `reached_minima`
(L-BFGS) and `gamp_ends` (other pairs, d = 500 and 1000 only); the former are fitted by x + a/d for d ≥ 1000.

Criterion, fixed before the replicas with more than 2^14 paths, before the new minima of `reached_minima`, and for the
last pair before its replicas: the distance of GAMP and L-BFGS for d → ∞, and their differences in q, m and the training
loss, agree with the equations within 3.5 errors of the difference, and so do these differences for descent from the
weights of GAMP; the predicted distance differs from the distance q_1 − q_0 of equilibrium with one step by more than
3.5 errors. The other pairs are reported: at d = 500 and 1000 many minima of both algorithms are equal, so that
distances depend strongly on d. (Page "Replica symmetry breaking" of the manual.)
"""

import json
from functools import partial

import numpy as np

from gamp_attention.descent.steps import DescentSteps
from gamp_attention.extensions.comparison.figures import COLORS, DARK
from validation._tools.catalog import ROOT, load_result
from validation._tools.drawing import figure
from validation._tools.paired_paths import Descent, MessagePassing, follow_pair
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.tables import fit_sizes, markdown_table, mean_and_error
from validation.claims.end_of_descent import HOW
from validation.claims.gamp_end_theory import BETA, FINE, GLOBAL, TOLERANCE, compare
from validation.claims.positional_minima import ALPHA, KEYS, REACHED
from validation.claims.reached_minima import NEAR_BRANCH

LAST = 200  # iterations of both algorithms
TIMES = (0, 1, 2, 3, 5, 7, 10, 15, 20, 25, 30, 40, 50, 70, 100, 150, LAST)  # stored iterations
NAMES = {
    "descent": "GAMP, descent (L-BFGS)",
    "hold 0": "GAMP, GAMP without global minima",
    "hold 80": "GAMP, GAMP with 80 iterations of global minima",
    "from gamp": "GAMP, descent from GAMP after 20 iterations",
}
MEASURED = {"hold 0": "0", "hold 80": "80", "from gamp": "from gamp"}  # names of the rows of `gamp_ends`
# replicas; six with 2^18 paths were planned, and processor time ended
PATHS = {(2**14, TOLERANCE): 16, (2**16, TOLERANCE): 8, (2**16, FINE): 4, (2**18, TOLERANCE): 3}
OTHER_PATHS = {(2**14, TOLERANCE): 8, (2**16, TOLERANCE): 4}  # replicas of the other pairs
CHECKED = ("descent", "from gamp")  # pairs whose differences are checked here; `gamp_end_theory` checks the others
SMALLEST = 1000  # smallest d of the fit of measured distances
AGREES = 3.5  # errors, see the criterion


def build_pair(name):
    """Return both algorithms."""
    ball = DescentSteps(HOW["lr"], HOW["momentum"])
    first = MessagePassing(BETA, GLOBAL)
    if name == "descent":
        return first, Descent(ball)
    if name == "from gamp":
        return first, MessagePassing(BETA, GLOBAL, ball, GLOBAL)
    return first, MessagePassing(BETA, int(name.split()[1]))


def follow(name, n_paths, tolerance, seed):
    """Return the numbers of one replica at the stored iterations."""
    path = follow_pair(build_pair(name), ALPHA, LAST, n_paths, [n_paths, seed], tolerance)
    row = {"key": key_of(name, n_paths, tolerance, seed), "pair": name, "n_paths": n_paths, "tolerance": tolerance}
    return [row | {"seed": seed} | {key: [path[key][t] for t in TIMES] for key in ("q", "m", "train_loss")}]


def key_of(name, n_paths, tolerance, seed):
    """Return the key of a replica."""
    return f"{name}, {n_paths} paths, {tolerance}, seed {seed}"


def plan_rows(quick):
    """Return functions that compute the replicas, by key."""
    plan = {}
    for name in NAMES:
        counts = {(2**12, TOLERANCE): 2} if quick else PATHS if name == "descent" else OTHER_PATHS
        for (n, tolerance), count in counts.items():
            for seed in range(count):
                plan[key_of(name, n, tolerance, seed)] = partial(follow, name, n, tolerance, seed)
    return plan


def read_number(row, key, i):
    """Return the distance, or the difference of a number of the second algorithm from the first, at stored time i."""
    if key == "distance":
        first, both, second = row["q"][i]
        return 0.5 * (first + second) - both
    if key == "q":
        return row["q"][i][2] - row["q"][i][0]
    first, second = np.abs(row[key][i]) if key == "m" else row[key][i]
    return second - first


def predict(rows, key, i):
    """Return a number of the equations for N → ∞ and its error, with the difference between two tolerances."""
    coarse = [row for row in rows if row["tolerance"] == TOLERANCE]
    found, errors = fit_sizes([row["n_paths"] for row in coarse], [read_number(row, key, i) for row in coarse])
    fine = {row["seed"]: row for row in rows if row["tolerance"] == FINE}
    pairs = [(row, fine[row["seed"]]) for row in coarse if row["n_paths"] == 2**16 and row["seed"] in fine]
    away = [np.subtract(*(read_number(row, key, i) for row in pair)) for pair in pairs]
    compression = np.hypot(*mean_and_error(away)) if away else 0.0
    return [float(found[0]), float(np.hypot(errors[0], compression))]


def read_minima():
    """Return distances of the minima of GAMP and L-BFGS on the same data by d."""
    lines = (ROOT / "results" / "reached_minima_runs.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["algorithm"] in ("gamp", "lbfgs")]
    rows = {
        (row["algorithm"], row["d"], row["seed"]): row
        for row in rows
        if row["norm"] <= REACHED and row["m"] > NEAR_BRANCH
    }
    distances = {}
    for (name, d, seed), row in rows.items():
        if name == "lbfgs" and ("gamp", d, seed) in rows and "gamp" in row.get("overlaps", {}):
            mean = 0.5 * (row["q"] + rows["gamp", d, seed]["q"])
            distances.setdefault(d, []).append(mean - row["overlaps"]["gamp"])
    return distances


def read_ends(name):
    """Return distances of the minima of `gamp_ends` from the minimum of GAMP by d, with q as the unit of length."""
    lines = (ROOT / "results" / "gamp_ends_runs.jsonl").read_text().splitlines()
    distances = {}
    for row in map(json.loads, lines):
        if row["algorithm"] == MEASURED[name] and row["norm"] <= REACHED and row["m"] > NEAR_BRANCH:
            distances.setdefault(row["d"], []).append(0.5 * row["distance"] * row["q"])
    return distances


def main():
    args = options(__doc__, draw=True, stored=True)
    verdict = Verdict("paired_ends", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    rows = verdict.complete_rows(plan_rows(args.quick))
    if args.quick:
        for name in NAMES:
            sizes = [read_number(row, "distance", len(TIMES) - 1) for row in rows if row["pair"] == name]
            verdict.check(min(sizes) > 0 and max(sizes) < 0.01, f"{NAMES[name]}: distances {np.round(sizes, 5)}")
        verdict.end({})
        return
    by_pair = {name: [row for row in rows if row["pair"] == name] for name in NAMES}
    ends = {name: predict(part, "distance", len(TIMES) - 1) for name, part in by_pair.items()}
    minima = read_minima()
    sizes, values = (np.concatenate(part) for part in zip(*(
        (np.full(len(each), d), each) for d, each in minima.items() if d >= SMALLEST), strict=True))  # fmt: skip
    found, errors = fit_sizes(sizes, values, scatter=0.0)
    limit = [float(found[0]), float(errors[0])]
    off = compare(limit, ends["descent"])
    verdict.check(abs(off) < AGREES, f"distance of GAMP and L-BFGS differs from the equations by {off:.1f} errors")
    equal = load_result(ROOT / "results" / "further_steps.json")["results"]["k = 1"]["levels"][0]
    away = (ends["descent"][0] - (equal[1] - equal[0])) / ends["descent"][1]
    verdict.check(abs(away) > AGREES, f"the predicted distance differs from equilibrium by {away:.1f} errors")
    changes = {"descent": load_result(ROOT / "results" / "reached_minima.json")["changes"]["lbfgs"]}
    stored = load_result(ROOT / "results" / "gamp_ends.json")["changes"]
    changes |= {name: stored[row] for name, row in MEASURED.items()}
    differences = {name: {} for name in NAMES}
    for name, part in by_pair.items():
        for key, label in KEYS.items():
            if key != "V":
                theory = predict(part, key, len(TIMES) - 1)
                off = compare(changes[name][key], theory)
                differences[name][key] = [theory, changes[name][key], off]
                if name in CHECKED:
                    claim = f"{NAMES[name]}: the difference in {label} is {off:.1f} errors from the equations"
                    verdict.check(abs(off) < AGREES, claim)
    verdict.write_table(tabulate_distances(ends, minima, limit))
    verdict.write_table(tabulate_differences(differences), "_differences.md")
    curves = {name: [predict(part, "distance", i) for i in range(len(TIMES))] for name, part in by_pair.items()}
    means = {f"{d}": mean_and_error(values) for d, values in minima.items()}
    verdict.end({"ends": ends, "limit": limit, "curves": curves, "minima": means, "differences": differences}, draw)


def tabulate_distances(ends, minima, limit):
    """Return predicted and measured distances in units of 10⁻⁴ as a table."""
    all_d, table = (500, 1000, 2000, 4000), []
    for name, end in ends.items():
        measured = minima if name == "descent" else read_ends(name)
        cells = [plus_minus(*mean_and_error(1e4 * np.array(measured[d]))) if d in measured else "" for d in all_d]
        counts = [f"{cell} ({len(measured[d])})" if cell else "" for d, cell in zip(all_d, cells, strict=True)]
        last = ["", ""]
        if name == "descent":
            last = [plus_minus(*(1e4 * value for value in limit)), f"{compare(limit, end):.1f}"]
        table.append([NAMES[name], *counts, *last[:1], plus_minus(*(1e4 * value for value in end)), *last[1:]])
    heads = ["distance, 10⁻⁴", *(f"d = {d} (instances)" for d in all_d), "d → ∞", "equations", "difference/error"]
    return markdown_table(heads, table)


def tabulate_differences(differences):
    """Return differences of the second algorithm from the first, from the equations and from minima, as a table."""
    table = []
    for name, numbers in differences.items():
        for key, (theory, measured, off) in numbers.items():
            factor, label = (1e6, "training loss, 10⁻⁶") if key == "train_loss" else (1e4, f"{KEYS[key]}, 10⁻⁴")
            cells = [plus_minus(*(factor * value for value in pair)) for pair in (theory, measured)]
            table.append([NAMES[name], label, *cells, f"{off:.1f}"])
    return markdown_table(["second − first", "", "equations", "minima", "difference/error"], table)


def draw(numbers, path):
    """Draw the distance of both algorithms against the iteration, with the distances of minima."""
    colors = dict(zip(NAMES, (DARK, COLORS["positional"], COLORS["semantic"], COLORS["random"]), strict=True))
    with figure(path, 1, 1, (6.4, 4.2)) as axes:
        (axis,) = np.ravel(axes)
        for name, curve in numbers["curves"].items():
            mean, error = 1e4 * np.array(curve).T
            axis.errorbar(TIMES[1:], mean[1:], 2 * error[1:], lw=1.2, color=colors[name], label=NAMES[name])
        minima = sorted(numbers["minima"].items(), key=lambda each: int(each[0]))
        for shift, ((d, (mean, error)), marker) in enumerate(zip(minima, "os^D", strict=True)):
            style = {"fmt": marker, "ms": 4, "color": DARK, "mfc": "white", "lw": 0.8, "label": f"minima, d = {d}"}
            axis.errorbar(LAST * 1.3 * 1.25**shift, 1e4 * mean, 2e4 * error, **style)
        axis.set(xscale="log", xlabel="iteration", ylabel="distance, 10⁻⁴", ylim=(0, 52))
        axis.legend(frameon=False, loc="upper left", ncols=2, fontsize=8)


if __name__ == "__main__":
    main()
