"""Near the end of a branch, state evolution never reports a lost branch as converged, and states the reason.

Method: 200 random models (the paper's model with ω up to 0.6, σ from 0.3 to 0.9, λ from 1e-3 to 0.05, random A; noise
on the scores of every twentieth) at α from 0.4 to 1.6, where about half of the branches have ended, are solved by the
public function with rtol = 1e-2. On every tenth model `run_gamp` runs from the same start at d = 600.

Criterion: no converged result has lost its branch, with θ or m zero within twice its error; every LOST result states a
reason: all weights go to zero, there is no such branch and replica symmetry holds, replica symmetry is unstable, or the
proximal map jumps; if another form of V̂ is suggested, it has the branch; every solution is found or lost, or names the
exhausted budget, after at most 200 damped steps. (State evolution page of the manual.)
"""

import numpy as np

import gamp_attention as ga
from validation._tools.report import Verdict, counts_table, folder, options, pool
from validation._tools.resumable import run_trials

PROBLEMS, QUICK = 200, 4
RANGE = 0.4, 1.6  # range of α
RTOL, MAX_WORK = 1e-2, 3e5
EVERY, DIM = 20, 600  # period of models with noise on the scores, and d of the minima
STEPS = 200  # number of damped steps, at most
FAMILY = {"semantic": "theta", "positional": "m"}
KNOWN = {  # first words of `validity`, and the words of the table
    "none: all weights go to zero": "weights vanish",
    "no such branch": "no such branch",
    "inconsistent": "replica symmetry is unstable",
    "unknown: the proximal map jumps": "the map jumps",
}


def draw_problem(number):
    """Return a random model, a branch, the parameters of the model, and α."""
    rng = np.random.default_rng([33, number])
    numbers = {
        "omega": rng.uniform(0, 0.6),
        "sigma": rng.uniform(0.3, 0.9),
        "lam": 10 ** rng.uniform(-3, np.log10(0.05)),
    }
    numbers |= {"A": rng.uniform(-0.2, 1, (2, 2)).tolist(), "score_noise": 0.05 * (number % EVERY == 9)}
    alpha = float(np.exp(rng.uniform(*np.log(RANGE))))
    return ga.paper_model(**numbers), ("semantic", "positional")[number % 2], numbers, alpha


def compute_size(overlaps, branch):
    """Return the largest entry of the overlap that defines the branch."""
    return float(np.abs(getattr(overlaps, FAMILY[branch])).max())


def solve_near_end(number):
    """Solve one problem near the end of its branch and return statuses and overlaps."""
    model, branch, numbers, alpha = draw_problem(number)
    se = ga.solve_state_evolution(model, alpha, branch, rtol=RTOL, max_work=MAX_WORK, stability=False)
    row = {"branch": branch, "alpha": alpha, **numbers, "status": se.status.value}
    row |= {"validity": se.validity, "message": se.message, "n_iter": se.n_iter}
    if se.status in (ga.Status.CONVERGED, ga.Status.INACCURATE):
        error = float(np.abs(getattr(se.overlaps_error, FAMILY[branch])).max())
        row |= {"size": compute_size(se.overlaps, branch), "half_width": error, "q": float(se.overlaps.q.max())}
    if "has a fixed point with" in se.message:
        other = ga.solve_state_evolution(
            model, alpha, branch, response="derivative", rtol=RTOL, max_work=MAX_WORK, stability=False
        )
        row |= {"offered": other.status.value, "offered_size": compute_size(other.overlaps, branch)}
    if number % EVERY < 2:
        run = ga.run_gamp(ga.sample(model, DIM, alpha, seed=number), branch, "asymptotic", tol=1e-5)
        row |= {"finite_d": compute_size(run.overlaps, branch), "finite_d_status": run.status.value}
    return row


def classify(row):
    """Return the status of a row, with the stated reason of a lost branch."""
    if row["status"] != "lost":
        return row["status"]
    said = [words for begin, words in KNOWN.items() if row["validity"].startswith(begin)]
    return f"lost: {said[0]}" if said and row["message"] else "lost: nothing is said"


def build_table(rows):
    """Return, for each status, counts of models and offers, overlaps at finite d, and the median number of steps."""
    table = {}
    for name in sorted({classify(row) for row in rows}):
        mine = [row for row in rows if classify(row) == name]
        kept = [row for row in mine if "finite_d" in row]
        table[name] = {
            "models": len(mine),
            "derivative form offered": sum("offered" in row for row in mine),
            "θ or m at d = 600": ", ".join(f"{row['finite_d']:.2f}" for row in kept) or "–",
            "steps": float(np.median([row["n_iter"] for row in mine])),
        }
    return table


def main():
    args = options(__doc__, workers=True)
    verdict = Verdict("branch_ends", args)
    numbers = range(QUICK) if args.quick else range(PROBLEMS)
    asked = [{"number": number} for number in numbers]
    with pool(args) as executor:
        rows = run_trials(folder(args, verdict.name), solve_near_end, asked, executor)
    verdict.check(len(rows) == len(asked), f"{len(rows)} of {len(asked)} models ended")
    table = build_table(rows)
    text = counts_table(table, "{:.0f}", "status")
    verdict.write_table(text)
    converged = [row for row in rows if row["status"] == "converged"]
    gone = [
        row["number"] for row in converged if not row["size"] > max(2 * row["half_width"], 1e-3 * np.sqrt(row["q"]))
    ]
    verdict.check(not gone, f"none of {len(converged)} converged solutions has lost its branch; did: {gone}")
    silent = [row["number"] for row in rows if classify(row) == "lost: nothing is said"]
    lost = sum(row["status"] == "lost" for row in rows)
    verdict.check(not silent, f"each of {lost} lost branches states the reason; not: {silent}")
    wrong = [row["number"] for row in rows if row.get("offered", "converged") not in ("converged", "inaccurate")]
    offered = sum("offered" in row for row in rows)
    verdict.check(
        not wrong, f"the derivative form has the branch wherever it is offered, {offered} times; not: {wrong}"
    )
    other = [row["number"] for row in rows if row["status"] not in ("converged", "inaccurate", "lost")
             and "raise max_work" not in row["message"]]  # fmt: skip
    verdict.check(not other, f"each solution is found or lost, or names the budget that ended it; not: {other}")
    longest = max(row["n_iter"] for row in rows)
    verdict.check(longest <= STEPS, f"no solution takes more than {STEPS} damped steps; at most {longest}")
    verdict.end({"table": table, "rows": rows})


if __name__ == "__main__":
    main()
