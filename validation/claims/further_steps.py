"""Positional branch with one, two and three steps of replica symmetry breaking, and the limit of many steps.

Method: the founding paper's model (ω = 0.3, σ = 0.5), α = 1.5, positional branch. `solve_broken(..., steps=k)`
for k = 1 and 2 at the ground state, from the overlaps of replica symmetry (k = 0). Then the computation of
`steps="full"`: k = 1, 2 and 3 with a lower accuracy, and their limit k → ∞. The minima are the stored minima of GAMP
from positional starts, extrapolated to d → ∞ (`positional_minima`). The distribution of the gap between the two lowest
proximal minima of a sample is computed for k = 0 to 3 (`state_evolution.rsb.gap_distribution`). Parts that ended are
stored, so that a rerun continues (--quick: one step).

Criterion: all results converge; with each further step, V decreases by more than its errors, and is nearer to V of the
minima; the outer replicon decreases towards 1; the jump mass of the smallest gaps decreases; V of the limit and of the
minima agree within two errors.
(Page "Replica symmetry breaking" of the manual.)
"""

from functools import partial
from itertools import pairwise

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.rsb import broken
from gamp_attention.extensions.rsb.gaps import gap_distribution
from gamp_attention.extensions.rsb.two_fields import TwoFields
from gamp_attention.extensions.rsb.weights import Levels
from validation._tools.catalog import ROOT, load_result
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_parts, write_json
from validation._tools.tables import markdown_table

ALPHA, RTOL, FULL_RTOL = 1.5, 1e-2, 2e-2
NUMBERS = ("V", "q", "m")
GAPS, GAP_RESOLUTION = np.array([4e-4, 8e-4, 1.6e-3, 3.2e-3]), 1  # gaps in units of the loss of a sample, and grids


def solve(k, alpha=ALPHA):
    """Return the numbers of the solution with k steps, with their errors."""
    model = ga.paper_model()
    symmetric = ga.solve_state_evolution(model, alpha, "positional", rtol=1e-3, stability=False)
    if not k:
        return describe(symmetric)
    return describe(ga.solve_broken(model, alpha, symmetric.overlaps, steps=k, rtol=RTOL))


def solve_limit(alpha=ALPHA):
    """Return the numbers of the solutions with 1 to 3 steps and of the limit of many steps, as by `steps="full"`."""
    model = ga.paper_model()
    symmetric = ga.solve_state_evolution(model, alpha, "positional", rtol=1e-3, stability=False)
    problem = broken.require_problem(model, alpha)
    ladder = broken.solve_ladder(model, problem, symmetric.overlaps, broken.MAX_STEPS, None, FULL_RTOL, True)
    return [describe(se) for se in (*ladder.results, broken.extrapolate(ladder, FULL_RTOL))]


def describe(se):
    """Return the numbers of a solution, with their errors."""
    overlaps = {
        name: [float(getattr(o, name).ravel()[0]) for o in (se.overlaps, se.overlaps_error)] for name in NUMBERS
    }
    steps = hasattr(se, "parisi")
    levels = (
        {name: [getattr(se, name), getattr(se, f"{name}_error")] for name in ("parisi", "replicons")} if steps else {}
    )
    return overlaps | levels | {
        "train_loss": [se.train_loss, se.train_loss_error],
        "levels": [se.levels[:, 0, 0, 0], se.levels_error[:, 0, 0, 0]] if steps else [],
        "status": se.status.value,
        "validity": se.validity,
        "n_iter": se.n_iter,
    }  # fmt: skip


def measure_gaps(solutions):
    """Return P(gap < ε)/ε and the jump mass of these gaps α E[1(gap < ε)(Δg)²]/2ε of solutions, for all ε in `GAPS`."""
    problem, signs, both, numbers = TwoFields(ga.paper_model(), ALPHA), np.array([1.0, -1.0]), np.ones(2), {}
    for name, r in solutions.items():
        q, parisi = (
            np.array(r[key][0] if r["levels"] else other) for key, other in (("levels", r["q"][:1]), ("parisi", []))
        )
        levels = Levels(np.outer(q, both), r["m"][0] * signs, 0 * both, r["V"][0] * both)
        found = gap_distribution(problem, levels, parisi, GAPS, GAP_RESOLUTION)
        numbers[name] = [found.probability / GAPS, ALPHA * found.squares.mean(axis=1) / (2 * GAPS)]
    return numbers


def main():
    args = options(__doc__, stored=True)
    verdict = Verdict("further_steps", args)
    parts = {f"k = {k}": partial(solve, k) for k in range(2 if args.quick else 3)}
    if not args.quick:
        parts["limit"] = solve_limit
    path = args.out / f"further_steps{'_quick' if args.quick else ''}_parts.json"
    if args.stored:
        known = verdict.stored()
        write_json(path, known["results"] | {"limit": known["limit"], "gaps": known["gaps"]})
    stored = complete_parts(path, parts)
    ladder = stored.get("limit", [])
    results = {name: stored[name] for name in parts if name != "limit"}
    results |= dict(zip(("k = 3", "k → ∞"), ladder[2:], strict=False))
    gaps = {}
    if not args.quick:
        known = {name: r for name, r in results.items() if name != "k → ∞"}
        gaps = complete_parts(path, {"gaps": partial(measure_gaps, known)})["gaps"]
        masses = [each[1][0] for each in gaps.values()]
        verdict.check(masses == sorted(masses, reverse=True), f"jump mass of gaps below {GAPS[0]:g}: {masses}")
        cells = [[name, *(f"{v:.2f}" for v in density), *(f"{1e4 * v:.2f}" for v in mass)]
                 for name, (density, mass) in gaps.items()]  # fmt: skip
        columns = [f"{words}, ε = {1e3 * gap:g}·10⁻³" for words in ("P(gap < ε)/ε", "jump mass, 10⁻⁴") for gap in GAPS]
        verdict.write_table(markdown_table(["", *columns], cells), "_gaps.md")
    minima = {} if args.quick else load_result(ROOT / "results" / "positional_minima.json")["limits"]
    measured = {name: minima[name]["limit"] for name in minima}
    rows = []
    for name, r in results.items():
        verdict.check(r["status"] == "converged", f"{name}: {r['status']}, {r['validity']}")
        levels = [pairs(r[key]) if key in r and name != "k → ∞" else "" for key in ("parisi", "replicons")]
        rows.append([name, *(show(*r[key]) for key in NUMBERS), micro(r["train_loss"]), *levels])
    if not args.quick:
        steps = [r for name, r in results.items() if name != "k → ∞"]
        for r, further in pairwise(steps[1:]):
            compare(verdict, r, further, measured["V"][0])
        for r, coarse in zip(steps[1:3], ladder, strict=False):
            change = abs(r["V"][0] - coarse["V"][0])
            verdict.check(
                change < r["V"][1] + coarse["V"][1], f"V with the accuracy of the limit differs by {change:.2g}"
            )
        away = {name: difference(measured[name], ladder[-1][name]) for name in measured}
        verdict.check(abs(away["V"]) < 2, f"V of the minima differs from the limit by {away['V']:.1f} errors")
        rows.append(
            ["minima of GAMP", *(show(*measured[name]) for name in NUMBERS), micro(measured["train_loss"]), "", ""]
        )
        rows.append(["minima − limit, in errors", *(f"{away[name]:.1f}" for name in (*NUMBERS, "train_loss")), "", ""])
    columns = ["", "V", "q", "m", "training loss, 10⁻⁶", "Parisi parameters", "replicons, level 0 to k"]
    verdict.write_table(markdown_table(columns, rows))
    verdict.end({"results": results, "limit": ladder, "gaps": gaps})


def difference(a, b):
    """Return the difference of two numbers with errors, in units of its error."""
    return float((a[0] - b[0]) / np.hypot(a[1], b[1]))


def compare(verdict, r, further, target):
    """Check the changes by a further step."""
    V = [each["V"] for each in (r, further)]
    change, error = V[1][0] - V[0][0], float(np.hypot(V[0][1], V[1][1]))
    verdict.check(change < -error, f"V changes by {change:.4f} ± {error:.1g}")
    verdict.check(abs(V[1][0] - target) < abs(V[0][0] - target), f"V is nearer to {target:.3f} of the minima")
    for name in ("q", "m", "train_loss"):
        change, error = further[name][0] - r[name][0], float(np.hypot(r[name][1], further[name][1]))
        print(f"{name} changes by {change:.2g} ± {error:.1g}")
    outer = [float(each["replicons"][0][0]) for each in (r, further)]
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
