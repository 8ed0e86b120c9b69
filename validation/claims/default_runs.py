"""Message passing with default settings ends at a solution on any plain problem.

Method: random instances of every family of models of the manual (the paper's model, more tokens and columns, causal,
untied, linear and user-defined attention, mixtures, other distributions of coordinates, lasso and elastic net, the
losses of labels), and user arrays with noise on the scores, y = (T + s N(0, 1)) x, or on the outputs. d is from 50 to
1000, α from 0.3 to 4, λ from 1e-3 to 1; starts are the teacher, the positions, and random weights. `run_gamp` receives
only data, start and risk. Every answer is checked independently of its report: the gradient is computed again, and for
a third of the instances with at most 150 weights the lowest eigenvalue is computed from the dense Hessian, by
differences of the gradient.

With --base PATH, another checkout of the package runs the first instances at the same time.

Criterion: at least 99.5 % of the runs end converged or settled, in every family at least 97 %; no answer is false; no
run reaches the maximum number of iterations; `is_minimum` agrees with the dense Hessian; and the median time of the
runs is at most 1.05 times the median of the other checkout. (Robustness page of the manual.)

Running time with --quick: about 20 s on one core, after compilation.
"""

import time
from collections import Counter
from pathlib import Path

import numpy as np

import gamp_attention as ga
from validation._tools.checkouts import BASE, run_side_by_side
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.resumable import run_trials
from validation.claims._random_instances import FAMILIES, build_instance

SEEDS = 84  # number of instances of each of the twelve families
MOST_DENSE, EVERY = 150, 3  # maximum number of weights, and period of the seeds, for the dense Hessian
SCRIPT = Path(__file__).with_name("_random_instances.py")
STEP = 1e-5  # step of the differences of the gradient
FLAT = 1e-3  # smallest |eigenvalue|, in units of λ, whose sign the differences determine
SLACK = 1.01  # factor on the tolerance, for rounding in the second computation
SOLVED, SOLVED_EACH = 0.995, 0.97
TIMED, SLOWER = 5, 1.05  # number of timed seeds of each family, and the allowed ratio of median times


def compute_lowest_eigenvalue(data, Q, risk):
    """Return the lowest eigenvalue of ∇²R by central differences of the gradient."""
    rows = []
    for unit in np.eye(Q.size):
        shift = STEP * unit.reshape(Q.shape)
        rows.append((ga.gradient(data, Q + shift, risk) - ga.gradient(data, Q - shift, risk)).ravel() / (2 * STEP))
    return float(np.linalg.eigvalsh(0.5 * (np.array(rows) + np.array(rows).T))[0])


def run_instance(family, seed):
    """Run one instance with default settings and check the answer."""
    data, start, risk = build_instance(family, seed)
    began = time.perf_counter()
    result = ga.run_gamp(data, start, risk)
    row = {"seconds": time.perf_counter() - began, "d": data.dim, "n": data.n_samples}
    norm = float(np.linalg.norm(ga.gradient(data, result.Q, risk)) / (data.penalty.strength * np.sqrt(data.dim)))
    dense = None
    if result.converged and data.penalty.smooth and result.Q.size <= MOST_DENSE and seed % EVERY == 0:
        dense = compute_lowest_eigenvalue(data, result.Q, risk) / data.penalty.strength
    return row | {
        "start": start if isinstance(start, str) else "teacher", "risk": risk, "lam": data.penalty.strength,
        "status": result.status.value, "n_iter": result.n_iter, "n_settle": result.n_settle, "gradient_norm": norm,
        "false": bool(result.converged and not norm <= SLACK * 1e-8), "train_loss": result.train_loss,
        "is_minimum": result.is_minimum, "lowest": result.lowest_eigenvalue / data.penalty.strength, "dense": dense,
    }  # fmt: skip


COLUMNS = ("runs", "converged", "settled", "neither", "minima", "iterations", "longest", "seconds")


def count_outcomes(rows):
    """Return the values of the columns: iterations (including settling) and seconds are medians."""
    seen, total = Counter(row["status"] for row in rows), [row["n_iter"] + row["n_settle"] for row in rows]
    solved = seen["converged"] + seen["settled"]
    values = (
        len(rows), seen["converged"], seen["settled"], len(rows) - solved, sum(row["is_minimum"] for row in rows),
        int(np.median(total)), max(total), float(np.median([row["seconds"] for row in rows])),
    )  # fmt: skip
    return dict(zip(COLUMNS, values, strict=True))


def is_disagreement(row):
    """Return whether the dense Hessian contradicts `is_minimum`."""
    dense = row["dense"]
    return dense is not None and abs(dense) > FLAT and row["is_minimum"] != (dense > 0)


def compare_times(base, verdict):
    """Return statuses and median times of the same runs in another checkout and in this checkout."""
    summary = {}
    for name, rows in zip(("base", "here"), run_side_by_side(base, SCRIPT, TIMED), strict=True):
        statuses = Counter(row["status"] for row in rows)
        seconds = [row["seconds"] for row in rows]
        summary[name] = {"runs": len(rows), "statuses": dict(statuses), "median": float(np.median(seconds))}
        summary[name] |= {
            "all": float(np.sum(seconds)),
            "iterations": float(np.median([row["n_iter"] for row in rows])),
        }
    ratio = summary["here"]["median"] / summary["base"]["median"]
    verdict.check(ratio <= SLOWER, f"{ratio:.2f} of the median time of {base}, at most {SLOWER}: {summary}")
    return summary


def main():
    args = options(__doc__, workers=True, base=BASE)
    verdict = Verdict("default_runs", args)
    seeds = 1 if args.quick else SEEDS
    plan = [{"family": family, "seed": seed} for seed in range(seeds) for family in FAMILIES]
    with pool(args) as executor:
        rows = run_trials(folder(args, verdict.name), run_instance, plan, executor)
    table = {family: count_outcomes([row for row in rows if row["family"] == family]) for family in FAMILIES}
    for start in ("teacher", "semantic", "positional", "random"):
        mine = [row for row in rows if row["start"] == start]
        table |= {f"start: {start}": count_outcomes(mine)} if mine else {}
    table["all"] = count_outcomes(rows)
    verdict.write_table(counts_table(table, "{:.2f}"))
    verdict.check(len(rows) == len(plan), f"{len(rows)} of {len(plan)} runs ended")
    solved = 1 - table["all"]["neither"] / len(rows)
    verdict.check(solved >= SOLVED, f"{100 * solved:.2f} % converged or settled, at least {100 * SOLVED:.1f} %")
    for family in FAMILIES:
        share = 1 - table[family]["neither"] / table[family]["runs"]
        verdict.check(share >= SOLVED_EACH, f"{family}: {100 * share:.1f} %, at least {100 * SOLVED_EACH:.0f} %")
    verdict.check(not any(row["false"] for row in rows), f"{sum(row['false'] for row in rows)} false answers")
    bound = sum(row["status"] == "max_iter" for row in rows)
    verdict.check(bound == 0, f"{bound} runs met the bound on iterations")
    dense = [row for row in rows if row["dense"] is not None]
    wrong = sum(map(is_disagreement, dense))
    verdict.check(wrong == 0, f"{wrong} of {len(dense)} dense Hessians disagree on minima")
    beside = compare_times(args.base, verdict) if args.base else None
    verdict.end({"table": table, "rows": rows, "beside": beside})


if __name__ == "__main__":
    main()
