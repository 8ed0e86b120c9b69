"""Positional branch with one, two and three steps of replica symmetry breaking.

Method: the founding paper's model (ω = .3, σ = .5), α = 1.5, positional branch. `solve_state_evolution(..., rsb=k)` for
k = 1, 2 and 3 at the ground state, from the overlaps of replica symmetry (k = 0). V, q, m and the training loss are
extrapolated to k → ∞ from the last two k as by `rsb="full"`, with twice the change of the limit by the last step as its
error. The minima are the stored minima of GAMP from positional starts, extrapolated to d → ∞ (`rs_validity`, the
asymptotic loss). Parts that ended are stored, so that a rerun continues (--quick: one step).

Criterion: all results converge; with each further step, V decreases by more than its errors, and is nearer to V of the
minima; the outer replicon decreases towards 1.
(Page "Replica symmetry breaking" of the manual.)
"""

from functools import partial

import numpy as np

import gamp_attention as ga
from gamp_attention.state_evolution.fixed_points.broken import LIMIT_SAFETY, POWER, SHIFT
from validation._tools.catalogue import ROOT, load_result
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_parts
from validation._tools.tables import markdown_table

ALPHA, RTOL = 1.5, 1e-2
NUMBERS = ("V", "q", "m")


def solve(k, alpha=ALPHA):
    """Return the numbers of the solution with k steps, with their errors."""
    model = ga.paper_model()
    symmetric = ga.solve_state_evolution(model, alpha, "positional", rtol=1e-3, stability=False)
    se = ga.solve_state_evolution(model, alpha, symmetric.overlaps, rsb=k, rtol=RTOL) if k else symmetric
    overlaps = {
        name: [float(getattr(o, name).ravel()[0]) for o in (se.overlaps, se.overlaps_error)] for name in NUMBERS
    }
    levels = {name: [getattr(se, name), getattr(se, f"{name}_error")] for name in ("parisi", "replicons")} if k else {}
    return overlaps | levels | {
        "train_loss": [se.train_loss, se.train_loss_error],
        "levels": [se.levels[:, 0, 0, 0], se.levels_error[:, 0, 0, 0]] if k else [],
        "status": se.status.value,
        "validity": se.validity,
        "n_iter": se.n_iter,
    }  # fmt: skip


def main():
    args = options(__doc__)
    verdict = Verdict("further_steps", args)
    parts = {f"k = {k}": partial(solve, k) for k in range(2 if args.quick else 4)}
    quick = "_quick" if args.quick else ""
    stored = complete_parts(args.out / f"further_steps{quick}_parts.json", parts)
    results = {name: stored[name] for name in parts}
    minima = load_result(ROOT / "results" / "rs_validity.json")["numbers"]
    measured = {name: minima[f"{ALPHA} asymptotic {name}"]["limit"] for name in (*NUMBERS, "train_loss")}
    rows = []
    for name, r in results.items():
        verdict.check(r["status"] == "converged", f"{name}: {r['status']}, {r['validity']}")
        levels = [pairs(r[key]) if key in r else "" for key in ("parisi", "replicons")]
        rows.append([name, *(show(*r[key]) for key in NUMBERS), micro(r["train_loss"]), *levels])
    limits = {}
    if not args.quick:
        compare(verdict, results["k = 1"], results["k = 2"], measured["V"][0])
        limits = {name: extrapolate([r[name][0] for r in results.values()]) for name in NUMBERS}
        rows.append(["k → ∞", *(show(*limits[name]) for name in NUMBERS), "", "", ""])
    rows.append(["minima of GAMP", *(show(*measured[name]) for name in NUMBERS), micro(measured["train_loss"]), "", ""])
    columns = ["", "V", "q", "m", "training loss, 10⁻⁶", "Parisi parameters", "replicons, level 0 to k"]
    verdict.write_table(markdown_table(columns, rows))
    verdict.end({"results": results, "limits": limits})


def extrapolate(values):
    """Return the limit k → ∞ of numbers for k = 0, 1, 2, and its error."""
    limits = []
    for k in (1, 2):
        ratio = ((k + SHIFT) / (k - 1 + SHIFT)) ** POWER
        limits.append(values[k] + (values[k] - values[k - 1]) / (ratio - 1))
    return limits[1], LIMIT_SAFETY * abs(limits[1] - limits[0])


def compare(verdict, one, two, target):
    """Check the changes from one step to two."""
    V = [r["V"] for r in (one, two)]
    change, error = V[1][0] - V[0][0], float(np.hypot(V[0][1], V[1][1]))
    verdict.check(change < -error, f"V changes by {change:.4f} ± {error:.1g}")
    verdict.check(abs(V[1][0] - target) < abs(V[0][0] - target), f"V is nearer to {target:.3f} of the minima")
    for name in ("q", "m", "train_loss"):
        change, error = two[name][0] - one[name][0], float(np.hypot(two[name][1], one[name][1]))
        print(f"{name} changes by {change:.2g} ± {error:.1g}")
    outer = [float(r["replicons"][0][0]) for r in (one, two)]
    verdict.check(1 < outer[1] < outer[0], f"the outer replicon decreases from {outer[0]:.4f} to {outer[1]:.4f}")


def pairs(numbers):
    """Return numbers with errors in one cell."""
    return ", ".join(f"{value:.4g} ± {error:.1g}" for value, error in zip(*numbers, strict=True))


def show(value, error):
    """Return a number with its error."""
    return f"{value:.6g} ± {error:.1g}"


def micro(pair):
    """Return a training loss with its error in units of 10⁻⁶."""
    return f"{1e6 * pair[0]:.4f} ± {1e6 * pair[1]:.1g}"


if __name__ == "__main__":
    main()
