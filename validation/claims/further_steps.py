"""Positional branch with one and two steps of replica symmetry breaking.

Method: the founding paper's model (ω = .3, σ = .5), positional branch. `solve_state_evolution(..., rsb=k)` for k = 1
and 2 at the ground state, from the overlaps of replica symmetry. The minima are the stored minima of GAMP from positional
starts, extrapolated to d → ∞ (`rs_validity`, the asymptotic loss). Parts that ended are stored, so that a rerun
continues (--quick: one step, at one α).

Criterion: all results converge; V decreases from one step to two by more than its errors, and is nearer to V of the
minima; the outer replicon decreases towards 1.
(Page "Replica symmetry breaking" of the manual.)
"""

from functools import partial

import numpy as np

import gamp_attention as ga
from validation._tools.catalogue import ROOT, load_result
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_parts
from validation._tools.tables import markdown_table

ALPHAS = (1.5, 2.0)
RTOL = 1e-2
NUMBERS = ("V", "q", "m")


def solve(alpha, k):
    """Return the numbers of the solution with k steps, with their errors."""
    model = ga.paper_model()
    symmetric = ga.solve_state_evolution(model, alpha, "positional", rtol=1e-3, stability=False)
    se = ga.solve_state_evolution(model, alpha, symmetric.overlaps, rsb=k, rtol=RTOL)
    overlaps = {
        name: [float(getattr(o, name).ravel()[0]) for o in (se.overlaps, se.overlaps_error)] for name in NUMBERS
    }
    return overlaps | {
        "train_loss": [se.train_loss, se.train_loss_error],
        "levels": [se.levels[:, 0, 0, 0], se.levels_error[:, 0, 0, 0]],
        "parisi": [se.parisi, se.parisi_error],
        "replicons": [se.replicons, se.replicons_error],
        "status": se.status.value,
        "validity": se.validity,
        "n_iter": se.n_iter,
    }


def main():
    args = options(__doc__)
    verdict = Verdict("further_steps", args)
    plan = [(1.5, 1)] if args.quick else [(alpha, k) for alpha in ALPHAS for k in (1, 2)]
    parts = {f"α = {alpha}, k = {k}": partial(solve, alpha, k) for alpha, k in plan}
    quick = "_quick" if args.quick else ""
    results = complete_parts(args.out / f"further_steps{quick}_parts.json", parts)
    minima = load_result(ROOT / "results" / "rs_validity.json")["numbers"]
    rows = []
    for alpha, k in plan:
        r = results[f"α = {alpha}, k = {k}"]
        verdict.check(r["status"] == "converged", f"α = {alpha}, k = {k}: {r['status']}")
        rows.append(
            [
                f"{alpha}",
                f"{k} step{'s'[: k - 1]}",
                *(show(*r[name]) for name in NUMBERS),
                f"{1e6 * r['train_loss'][0]:.4f} ± {1e6 * r['train_loss'][1]:.1g}",
                *(", ".join(show(*pair) for pair in zip(*r[name], strict=True)) for name in ("parisi", "replicons")),
            ]
        )
        if k == 2:
            compare(verdict, alpha, results[f"α = {alpha}, k = 1"], r, minima)
        if (alpha, k) == plan[-1] or k == 2:
            measured = [minima[f"{alpha} asymptotic {name}"]["limit"] for name in (*NUMBERS, "train_loss")]
            cells = [show(*pair) for pair in measured[:3]]
            rows.append([f"{alpha}", "minima of GAMP", *cells, show(*(1e6 * v for v in measured[3])), "", ""])
    columns = ["α", "", "V", "q", "m", "training loss, 10⁻⁶", "Parisi parameters", "replicons, level 0 to k"]
    verdict.write_table(markdown_table(columns, rows))
    verdict.end({"results": results})


def compare(verdict, alpha, one, two, minima):
    """Check the changes from one step to two."""
    V, target = [r["V"] for r in (one, two)], minima[f"{alpha} asymptotic V"]["limit"][0]
    change, error = V[1][0] - V[0][0], float(np.hypot(V[0][1], V[1][1]))
    verdict.check(change < -error, f"α = {alpha}: V changes by {change:.4f} ± {error:.1g}")
    verdict.check(
        abs(V[1][0] - target) < abs(V[0][0] - target), f"α = {alpha}: V is nearer to {target:.3f} of the minima"
    )
    gain = two["train_loss"][0] - one["train_loss"][0]
    spread = float(np.hypot(two["train_loss"][1], one["train_loss"][1]))
    print(f"α = {alpha}: the training loss changes by {gain:.2g} ± {spread:.1g}")
    outer = [float(r["replicons"][0][0]) for r in (one, two)]
    verdict.check(
        1 < outer[1] < outer[0], f"α = {alpha}: the outer replicon decreases from {outer[0]:.4f} to {outer[1]:.4f}"
    )


def show(value, error):
    """Return a number with its error."""
    return f"{value:.6g} ± {error:.1g}"


if __name__ == "__main__":
    main()
