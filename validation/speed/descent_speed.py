"""Gradient descent against GAMP: steps and seconds to the same minimum along the (α, ω) plane, exact risk.

Method: at every point both branches are solved from the informed starts: by GAMP and, in torch, by L-BFGS, to a
gradient norm of 1e-8; by plain gradient descent as in the paper, step 0.15, in torch, for at most 5000 steps. The cost
of that descent is the cost of coming within 1e-4 of GAMP's loss; the gradient after all steps is listed, too. All are
timed one after the other in one process.

Criterion: if state evolution has the branch and replica symmetry is consistent on it, there is one minimum, and GAMP
and L-BFGS both end there, their weights within 1e-4 of √d. Otherwise there are many minima, or the branch does not
exist, and the ends are reported; on the positional branch GAMP's minimum is not the higher one, to 1e-6, in three of
four cases.
"""

import time

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import COLORS, draw_legend
from gamp_attention.gamp.damping import DAMPING
from validation._tools import landscape as land
from validation._tools.drawing import figure
from validation._tools.report import Verdict, folder, options
from validation._tools.resumable import run_trials

ALPHAS, OMEGAS = (0.5, 1.0, 1.5, 2.0), (0.1, 0.2, 0.3, 0.4)
D, QUICK_D, STEPS, QUICK_STEPS = 1000, 150, 5000, 500
NEAR, SAME, HIGHER = 1e-4, 1e-4, 1e-6  # relative loss of descent, ‖ΔQ‖/√d of one minimum, relative loss of GAMP
DEEPER = 0.75  # required fraction of the cases on the positional branch


def measure_time(solver, *arguments, **options):
    began = time.perf_counter()
    return solver(*arguments, **options), time.perf_counter() - began


def run_trial(alpha, omega, branch, d, steps, seed):
    """Return every solver's iterations, seconds, loss, gradient and distance to GAMP's minimum on one instance."""
    data = ga.sample(ga.paper_model(omega), d, alpha, seed)
    ga.run_gamp(data, branch, "exact", max_iter=2)  # compiles
    ga.minimize_risk(data, branch, "exact", "lbfgs", max_iter=1)  # imports torch
    gamp, seconds = measure_time(ga.run_gamp, data, branch, "exact", damping=DAMPING[branch])
    row = {"gamp": {"iterations": gamp.n_iter, "settling": gamp.n_settle, "seconds": seconds}}
    results = {"gamp": gamp}
    for name, method, most in (("lbfgs", "lbfgs", 5000), ("gd", "gd", steps)):
        results[name], seconds = measure_time(ga.minimize_risk, data, branch, "exact", method, max_iter=most)
        row[name] = {"iterations": results[name].n_iter, "seconds": seconds}
    for name, result in results.items():
        distance = min(np.linalg.norm(result.Q - sign * gamp.Q) for sign in (1, -1)) / np.sqrt(d)
        row[name] |= {
            "status": result.status.value, "converged": result.converged, "train_loss": result.train_loss,
            "gradient_norm": result.gradient_norm, "distance": float(distance),
        }  # fmt: skip
    gd = results["gd"]
    reached = np.flatnonzero(gd.history.train_loss <= (1 + NEAR) * gamp.train_loss)
    row["gd"]["reached"] = int(gd.iterations[reached[0]]) if len(reached) else None
    return row


def compute_excess(row):
    """Return the relative excess of GAMP's loss over L-BFGS's."""
    return row["gamp"]["train_loss"] / row["lbfgs"]["train_loss"] - 1


def predict_one_minimum(alpha, omega, branch):
    """Return whether state evolution has the branch, with replica symmetry consistent."""
    se = ga.solve_state_evolution(ga.paper_model(omega), alpha, branch, rtol=1e-3, stability=False)
    return {"status": se.status.value, "validity": se.validity, "one": bool(se.converged and se.consistent)}


def format_table(rows):
    """Return a line for each point and branch."""
    heads = (
        "α", "ω", "branch", "GAMP, iterations", "s", "L-BFGS, steps", "s", "one minimum", "GAMP's loss above, %",
        "descent, steps to 1e-4 of the loss", "s", "gradient it leaves",
    )  # fmt: skip
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in rows:
        gamp, quasi, gd = row["gamp"], row["lbfgs"], row["gd"]
        steps, per_step = gd["reached"], gd["seconds"] / max(gd["iterations"], 1)
        lines.append(
            f"| {row['alpha']:g} | {row['omega']:g} | {row['branch']} | {gamp['iterations']}"
            + (f" + {gamp['settling']}" if gamp["settling"] else "")
            + f" ({gamp['status']}) | {gamp['seconds']:.2f} | {quasi['iterations']} ({quasi['status']}) "
            f"| {quasi['seconds']:.2f} | {'yes' if quasi['distance'] < SAME else 'no'}"
            f"{' (expected)' if row['one'] else ''} | {round(100 * compute_excess(row), 4) + 0:.2g} "
            f"| {steps if steps is not None else '> ' + str(gd['iterations'])} "
            f"| {per_step * (steps if steps is not None else gd['iterations']):.1f} | {gd['gradient_norm']:.0e} |"
        )
    return "\n".join(lines) + "\n"


def draw(numbers, path):
    """Draw the seconds of each solver against α, one panel for each ω and branch."""
    rows = numbers["rows"]
    omegas = sorted({row["omega"] for row in rows})
    styles = {
        "gamp": ("o-", "GAMP to a gradient norm of 1e-8"),
        "lbfgs": ("s--", "L-BFGS to 1e-8"),
        "gd": ("^:", "gradient descent, all steps"),
    }
    with figure(path, 2, len(omegas), (9.6, 5.6)) as axes:
        for line, branch in zip(axes, land.BRANCHES, strict=True):
            for axis, omega in zip(line, omegas, strict=True):
                mine = [row for row in rows if row["omega"] == omega and row["branch"] == branch]
                for name, (style, label) in styles.items():
                    values = [[row["alpha"], row[name]["seconds"]] for row in mine]
                    axis.semilogy(*np.array(values).T, style, color=COLORS[branch], label=label, mfc="white", ms=4)
                axis.set(title=f"ω = {omega:g}", xlabel="α = n/d")
            line[0].set_ylabel(f"{branch} branch: time, s", color=COLORS[branch])
        draw_legend(axes[0, 0], columns=min(len(styles), len(omegas)))


def main():
    args = options(__doc__, draw=True)
    verdict = Verdict("descent_speed", args)
    if args.draw:
        return draw(verdict.stored(), verdict.path(".png"))
    d, steps = (QUICK_D, QUICK_STEPS) if args.quick else (D, STEPS)
    alphas, omegas = ((0.5, 2.0), (0.3,)) if args.quick else (ALPHAS, OMEGAS)
    plan = [
        {"alpha": alpha, "omega": omega, "branch": branch, "d": d, "steps": steps, "seed": 0}
        for omega in omegas for alpha in alphas for branch in land.BRANCHES
    ]  # fmt: skip
    rows = run_trials(folder(args, verdict.name), run_trial, plan)
    places = [{key: row[key] for key in ("alpha", "omega", "branch")} for row in rows]
    expected = run_trials(folder(args, "descent_speed_theory"), predict_one_minimum, places)
    rows = [row | {"one": each["one"], "state evolution": each} for row, each in zip(rows, expected, strict=True)]
    verdict.write_table(format_table(rows))
    verdict.check(len(rows) == len(plan), f"{len(rows)} of {len(plan)} cases were finished")
    both = [row for row in rows if row["gamp"]["converged"] and row["lbfgs"]["converged"]]
    clear = [row for row in both if row["one"]]
    apart = max((row["lbfgs"]["distance"] for row in clear), default=np.inf)
    verdict.check(
        apart < SAME, f"one minimum if replica symmetry is consistent, {len(clear)} cases: within {apart:.1e}"
    )
    unclear = [row for row in both if row["branch"] == "positional"]
    deeper = np.mean([compute_excess(row) <= HIGHER for row in unclear])
    verdict.check(
        deeper >= DEEPER, f"GAMP's minimum is not the higher one in {deeper:.0%} of {len(unclear)}, positional branch"
    )
    verdict.end({"rows": rows}, draw)


if __name__ == "__main__":
    main()
