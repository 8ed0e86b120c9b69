"""Criteria of the architectures: what holds for all, state evolution at the slice, and where transitions are."""

import numpy as np

from validation._tools import landscape as land
from validation._tools.report import plus_minus
from validation.paper._architectures.instances import ORDERS, SLICE
from validation.paper._architectures.tables import by_alpha, on_branch, reached

GRADIENT, SHARE = 1e-6, 0.95  # of a descent, at most, in at least this share of them
MIN_SHARE = 0.75  # of the instances, for a claim about all
ERRORS = 3.0


def judge(verdict, study):
    """Criteria of all architectures; what single ones add is in their scripts."""
    ends = [row[name] for row in study.rows for name in study.starts]
    small = np.mean([end["gradient_norm"] <= GRADIENT for end in ends])
    verdict.check(small >= SHARE, f"{small:.1%} of {len(ends)} descents leave a gradient norm of at most {GRADIENT:g}")
    alphas, omegas = study.size["alphas"], study.size["omegas"]
    for kind, alpha, omega in (("semantic", alphas[-1], omegas[0]), ("positional", alphas[0], omegas[-1])):
        rows = by_alpha(study.rows, omega)[alpha]
        deepest = [min((row[name] for name in study.starts), key=lambda end: end["train_loss"]) for row in rows]
        share = np.mean([reached(end) == kind for end in deepest])
        verdict.check(
            share >= MIN_SHARE, f"α={alpha:g}, ω={omega:g}: the deepest minimum is {kind} in {share:.0%} of {len(rows)}"
        )
    for entry in compare(study):
        words = (
            f"α={entry['alpha']:g}, {entry['branch']}: {entry['key']} {plus_minus(entry['value'], entry['error'])}, "
            f"state evolution {entry['predicted']:.5g}"
        )
        if entry["judged"]:
            verdict.check(entry["excess"] <= 1, f"{words}: {entry['excess']:.2f} of the room")
        else:
            print(f"        {words}; not judged: {entry['why']}")


def compare(study):
    """Means of the slice beside state evolution: each gap in units of its room, 3 errors plus value/√d."""
    table, d = [], study.size["d"]
    for theory in study.theory:
        if not theory["solved"]:
            continue
        rows, branch = by_alpha(study.rows, SLICE)[theory["alpha"]], theory["branch"]
        kept = [row[branch] for row in rows if on_branch(row[branch], branch)]
        why = "" if theory["consistent"] else theory["validity"].split(" (")[0]
        if len(kept) < MIN_SHARE * len(rows):
            why = f"{len(kept)} of {len(rows)} on this branch"
        runs = [{"train_loss": end["train_loss"]} | end["order"] for end in kept]
        for key, found in land.statistics(runs, ("train_loss", *(ORDERS if branch == "mixed" else (branch,)))).items():
            predicted = theory["train_loss"] if key == "train_loss" else theory["order"][key]
            own = theory["train_loss_error"] if key == "train_loss" else theory["order_error"][key]
            room = ERRORS * np.hypot(found["error"], own) + abs(predicted) / np.sqrt(d)
            table.append({
                "alpha": theory["alpha"], "branch": branch, "key": key, "value": found["mean"], "error": found["error"],
                "predicted": predicted, "excess": abs(found["mean"] - predicted) / room, "judged": not why, "why": why,
            })  # fmt: skip
    return table


def alpha_c(study, name, omega=SLICE):
    """α_c and its error on one of the lines, NaN where there is none."""
    for line in study.lines[name]:
        if line["omega"] == omega:
            return land.numbers([line["alpha_c"], line["alpha_c_error"]])
    return np.full(2, np.nan)


def judge_lines(verdict, study):
    """α_c at finite d against state evolution, wherever both are known."""
    d = study.size["d"]
    for line in study.lines[f"{study.name}, state evolution"]:
        (value, error), (predicted, own) = (
            alpha_c(study, f"{study.name}, {what}", line["omega"]) for what in (f"d = {d}", "state evolution")
        )
        if np.isfinite(value + predicted):
            room = ERRORS * np.hypot(error, own) + predicted / np.sqrt(d)
            verdict.check(
                abs(value - predicted) <= room,
                f"ω={line['omega']:g}: α_c = {plus_minus(value, error)} at d = {d}, state evolution {predicted:.3f}",
            )


def judge_shift(verdict, study, later):
    """Whether the transition at the slice is at a larger α than in the paper's model, or at the same."""
    d = study.size["d"]
    (value, error), (plain, plain_error) = (alpha_c(study, f"{name}, d = {d}") for name in (study.name, "paper"))
    both = float(np.hypot(error, plain_error))
    found, expected = plus_minus(value, error), plus_minus(plain, plain_error)
    words = f"α_c(.3) = {found}, {expected} in the paper's model, d = {d}"
    if later:
        verdict.check(value - plain > ERRORS * both, f"{words}: later by more than {ERRORS:g} errors")
    else:
        verdict.check(abs(value - plain) <= ERRORS * both + plain / np.sqrt(d), f"{words}: the same")
