"""The semantic branch where it exists only with broken replica symmetry, with one, two and three steps, against runs.

Method: the founding paper's model (ω = 0.3, σ = 0.5, λ = 0.01), α = 0.6; with replica symmetry the branch begins at
α = 0.719. `solve_broken(..., steps=k)` for k = 1, 2 and 3, and the limit k → ∞ as for `steps="full"`. GAMP runs
from the teacher's weights to zero gradient on instances at d = 1000, 2000 and 4000, asymptotic loss. Minima with
θ < 0.4 q are not on the branch. Limits d → ∞ of V, q, θ and the training loss are fitted by x + a/d.
The end of runs is also predicted by the equations of their iteration, `trajectory(..., MessagePassing(hold_after=20))`.
Runs and solutions are stored when they end.

Criterion, fixed before the runs: all solutions converge, and V decreases with k; 95 % of the runs reach a gradient norm
of 1e-6, and 80 % end on the branch; V of the minima is nearer to k = 3 than to k = 1. Differences from all solutions
are reported in units of their errors. Added when θ of the minima was known to differ from the solutions: all numbers of
the minima agree with the equations of the iteration within 3.5 errors.
(Page "Replica symmetry breaking" of the manual.)
"""

from functools import partial

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.rsb import broken
from validation._tools.report import Verdict, options, plus_minus
from validation._tools.resumable import complete_instances, complete_parts
from validation._tools.tables import fit_sizes, markdown_table, mean_and_error
from validation.claims.further_steps import describe
from validation.claims.positional_minima import REACHED, check_reached

ALPHA, STEPS = 0.6, {1: 1e-2, 2: 1e-2, 3: 2e-2}  # numbers of steps, and the requested accuracy
COUNTS = {1000: 24, 2000: 16, 4000: 8}  # instances by d
LABELS = {"V": "V", "q": "q", "theta": "θ", "train_loss": "training loss, 10⁻⁶"}
ITERATIONS = {"method": ga.MessagePassing(0.3, hold_after=20), "n_iter": 150, "n_paths": 2**15, "n_replicas": 6}
AGREES = 3.5  # errors, see the criterion
ON_BRANCH = 0.4  # smallest θ/q of a minimum on the branch


def solve(k, rtol):
    """Return the solution with k steps."""
    se = ga.solve_broken(ga.paper_model(), ALPHA, "semantic", steps=k, rtol=rtol)
    theta = [float(of.theta[0, 0, 0]) for of in (se.overlaps, se.overlaps_error)]
    return describe(se) | {"theta": theta, "test_error": [float(se.test_error), float(se.test_error_error)]}


def follow_runs():
    """Return the end of GAMP from the teacher's weights by the equations of its iteration."""
    path = ga.trajectory(ga.paper_model(), ALPHA, "semantic", **ITERATIONS)
    numbers = {key: [float(getattr(of, key)[-1].flat[0]) for of in (path, path.error)] for key in ("V", "q", "theta")}
    return numbers | {"train_loss": [float(path.train_loss[-1]), float(path.train_loss_error[-1])]}


def run_cell(d, seed):
    """Return the minimum of GAMP from the teacher's weights on one instance."""
    data = ga.sample(ga.paper_model(), d, ALPHA, 120_000 + seed)
    run = ga.run_gamp(data, "semantic", "asymptotic", max_iter=1000)
    overlaps = {key: abs(float(value)) for key, value in run.overlaps.scalars().items()}
    return [{"d": d, "seed": seed, "norm": run.gradient_norm, "train_loss": run.train_loss,
             **overlaps}]  # fmt: skip


def main():
    args = options(__doc__)
    verdict = Verdict("broken_semantic", args)
    quick = "_quick" if args.quick else ""
    steps = {1: STEPS[1]} if args.quick else STEPS
    parts = {f"k = {k}": partial(solve, k, rtol) for k, rtol in steps.items()}
    parts |= {} if args.quick else {"GAMP, equations": follow_runs}
    solutions = complete_parts(args.out / f"broken_semantic{quick}_parts.json", parts)
    iterated = solutions.pop("GAMP, equations", None)
    for name, solution in solutions.items():
        verdict.check(solution["status"] == "converged", f"{name}: {solution['status']}, {solution['validity']}")
    rows = complete_instances(verdict.path("_runs.jsonl"), run_cell, {300: 4} if args.quick else COUNTS)
    check_reached(verdict, rows)
    if args.quick:
        verdict.end({})
        return
    kept = [row for row in rows if row["norm"] <= REACHED and row["theta"] > ON_BRANCH * row["q"]]
    claim = f"{len(kept)} of {len(rows)} runs end on the branch"
    verdict.check(len(kept) >= 0.8 * len(rows), claim)
    responses = [solution["V"][0] for solution in solutions.values()]
    words = ", ".join(f"{value:.3f}" for value in responses)
    verdict.check(bool((np.diff(responses) < 0).all()), f"V decreases with k: {words}")
    limits = {}
    for key in LABELS:
        found, errors = fit_sizes([row["d"] for row in kept], [row[key] for row in kept])
        limits[key] = [[float(found[k]), float(errors[k])] for k in (0, 1)]
    away = [abs(limits["V"][0][0] - value) for value in responses]
    verdict.check(away[-1] < away[0], f"V of the minima, {limits['V'][0][0]:.2f}, is nearer to k = 3 than to k = 1")
    states = solutions | {"k → ∞": extrapolate(list(solutions.values())), "GAMP, equations": iterated}
    for key, label in LABELS.items():
        off = (limits[key][0][0] - iterated[key][0]) / np.hypot(limits[key][0][1], iterated[key][1])
        verdict.check(abs(off) < AGREES, f"{label} differs from the equations of the iteration by {off:.1f} errors")
    verdict.write_table(tabulate(states, kept, limits))
    verdict.end({"solutions": states, "limits": limits})


def extrapolate(solutions):
    """Return the numbers for k → ∞ with errors, by the formulas of `steps="full"`."""
    limit = {}
    for key in LABELS:
        values = [solution[key][0] for solution in solutions]
        value, change = broken.extrapolate_steps(values, broken.ENERGY_POWER if key == "train_loss" else broken.POWER)
        at_least = abs(value - values[-1]) if key != "train_loss" else 0.0
        limit[key] = [float(value), solutions[-1][key][1] + max(float(change), at_least)]
    return limit


def tabulate(solutions, rows, limits):
    """Return solutions, means of minima by d, their limits, and differences from the solutions as a table."""
    factor = {key: 1e6 if "10⁻⁶" in label else 1.0 for key, label in LABELS.items()}

    def show(key, pair):
        return plus_minus(*(factor[key] * value for value in pair))

    table = [[name, *(show(key, solution[key]) for key in LABELS)] for name, solution in solutions.items()]
    for d in COUNTS:
        here = [row for row in rows if row["d"] == d]
        cells = [show(key, mean_and_error([row[key] for row in here])) for key in LABELS]
        table.append([f"minima, d = {d} ({len(here)} instances)", *cells])
    table.append(["minima, d → ∞", *(show(key, limits[key][0]) for key in LABELS)])
    for name, solution in solutions.items():
        pairs = [(limits[key][0], solution[key]) for key in LABELS]
        cells = [f"{(a[0] - b[0]) / np.hypot(a[1], b[1]):.1f}" for a, b in pairs]
        table.append([f"− {name}, in errors", *cells])
    return markdown_table([f"α = {ALPHA}", *LABELS.values()], table)


if __name__ == "__main__":
    main()
