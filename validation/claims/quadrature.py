"""The error estimates of state evolution cover the difference to finer runs, and two independent rules agree.

Method: random problems (α, ω, λ, σ, A) on both branches, by the split rule, by randomised Sobol points, and by a split
run with a tenth of the tolerance.

Criterion: the split rule and Sobol points agree within the sum of their stated errors, and the stated error of each
covers its difference to the finer run, in at least 95 % of all overlaps and losses. With --quick all numbers come from
a few solutions, and none may be off by more than three errors. (State evolution page of the manual.)
"""

import time
from operator import itemgetter

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import DARK, GREY, draw_legend
from validation._tools.drawing import figure
from validation._tools.report import Verdict, options
from validation._tools.resumable import complete_rows

PROBLEMS, ASKED = 60, (1e-3, 1e-4)  # number of problems; rtol of even and of odd problems
FINER = 0.1  # rtol of the finer run, in units of the problem's rtol
FEW = 3.0  # allowed deviation in stated errors, if there are too few numbers for a fraction
MAX_POINTS, MAX_NODES = 6e5, 3e6  # number of proximal problems of an average, roughly


def draw_problems(count):
    """Yield random problems on most of which both branches exist."""
    rng = np.random.default_rng(20)
    for number in range(count):
        a, b = rng.uniform(0.5, 0.9, 2)
        if number % 3:  # two of three are symmetric under reversal of the tokens, as the paper's model
            b = a
        model = ga.paper_model(
            omega=rng.uniform(0.05, 0.6),
            sigma=rng.uniform(0.35, 0.7),
            lam=10 ** rng.uniform(-2.3, -1.3),
            A=((a, 1 - a), (1 - b, b)),
        )
        yield model, rng.uniform(0.8, 2.5)


def collect_numbers(se):
    """Return values and errors of all numbers that have an error."""
    pairs = [(getattr(se.overlaps, k).ravel(), getattr(se.overlaps_error, k).ravel()) for k in ("q", "m", "theta", "V")]
    values = np.concatenate([v for v, _ in pairs] + [[se.train_loss, se.test_error]])
    errors = np.concatenate([e for _, e in pairs] + [[se.train_loss_error, se.test_error_error]])
    return values, errors


def solve_problem(number, model, alpha, branch):
    """Solve one problem by the three rules and return differences in units of stated errors."""
    began = time.perf_counter()
    split = ga.solve_state_evolution(model, alpha, branch, rtol=ASKED[number % 2], max_iter=60, stability=False)
    seconds = time.perf_counter() - began
    row = {"problem": number, "branch": branch, "alpha": alpha, "status": split.status.value, "seconds": seconds}
    if not split.converged:
        return row
    fine = ga.solve_state_evolution(
        model, alpha, split.overlaps, rtol=FINER * ASKED[number % 2], max_work=MAX_NODES, stability=False
    )
    seed = 2 * number + (branch == "positional")
    points = ga.solve_state_evolution(
        model, alpha, split.overlaps, rule="sobol", rtol=2e-2, max_work=MAX_POINTS, stability=False, seed=seed
    )
    (a, a_error), (f, f_error), (b, b_error) = collect_numbers(split), collect_numbers(fine), collect_numbers(points)
    known = np.abs(f) > 0
    return row | {
        "reached": (split.status.value, fine.status.value, points.status.value),
        "split": ((a - f)[known] / (a_error + f_error)[known]).tolist(),
        "sobol": ((b - f)[known] / (b_error + f_error)[known]).tolist(),
        "between": ((a - b)[known] / (a_error + b_error)[known]).tolist(),
        "error": (split.relative_error, fine.relative_error, points.relative_error),
    }


def collect(args, path):
    """Return the rows of all problems, stored or computed now."""
    plan = {
        (number, branch): lambda at=(number, model, alpha, branch): [solve_problem(*at)]
        for number, (model, alpha) in enumerate(draw_problems(2 if args.quick else PROBLEMS))
        for branch in ("semantic", "positional")
    }
    return complete_rows(path, plan, itemgetter("problem", "branch"), "problems")


def _collect_ratios(rows, key):
    """Return the finite differences in units of their stated errors."""
    ratios = np.abs(np.concatenate([row[key] for row in rows]))
    return ratios[np.isfinite(ratios)]


KEYS = (
    ("split", "-", "split rule, against a finer run"), ("sobol", "--", "Sobol points, against a finer run"),
    ("between", ":", "split rule against Sobol points"),
)  # fmt: skip


def draw(numbers, path):
    """Draw the distributions of differences in units of the stated errors."""
    with figure(path, 1, 1, (7.5, 4.6)) as axes:
        axis = axes[0, 0]
        for key, style, label in KEYS:
            ratios = np.sort(_collect_ratios(numbers["rows"], key))
            axis.plot(ratios + 1e-4, np.arange(1, len(ratios) + 1) / len(ratios), style, lw=2, label=label)
        axis.axvline(1, color=GREY, lw=1)
        axis.axhline(0.95, color=GREY, lw=1)
        axis.text(1.1, 0.3, "difference =\nstated error", color=DARK)
        axis.text(1.2e-3, 0.96, "95 % of the numbers", color=DARK)
        axis.set(xlabel="difference / stated error", ylabel="fraction of numbers with a smaller difference",
                 xscale="log", xlim=(1e-3, 5), ylim=(0, 1.03))  # fmt: skip
        draw_legend(axis, columns=3)


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("quadrature", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    rows = collect(args, verdict.path("_runs.jsonl"))
    skipped = [(row["problem"], row["branch"], row["status"]) for row in rows if "split" not in row]
    rows = [row for row in rows if "split" in row]
    print(f"{len(rows)} fixed points; without the branch: {skipped}")
    without = [(row["problem"], row["branch"]) for row in rows if row["reached"][2] not in ("converged", "inaccurate")]
    verdict.check(
        len(without) <= 0.05 * len(rows),
        f"Sobol points find the fixed point in {len(rows) - len(without)} cases; not: {without}",
    )
    coarse = [(r["problem"], r["branch"], r["error"][1]) for r in rows if r["reached"][1] != "converged"]
    print(f"finer runs that are not ten times finer: {coarse}")
    for key, claim in (
        ("split", "the split rule's errors cover the difference to the finer run"),
        ("sobol", "the errors of Sobol points cover the difference to the finer run"),
        ("between", "the two rules agree within their errors"),
    ):
        ratios = _collect_ratios(rows, key)
        share = float(np.mean(ratios <= 1))
        fine = share >= 0.95 if not args.quick else ratios.max() <= FEW
        verdict.check(
            fine, f"{claim} in {100 * share:.1f} % of {len(ratios)} numbers, at most {ratios.max():.1f} times"
        )
    print(f"seconds, contention included: median {np.median([row['seconds'] for row in rows]):.2f}")
    verdict.end({"rows": rows, "skipped": skipped}, draw)


if __name__ == "__main__":
    main()
