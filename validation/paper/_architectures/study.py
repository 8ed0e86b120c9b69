"""Study of one architecture over the (α, ω) plane, with the paper's model on the same samples and state evolution.

Instances are averaged over cells of the plane. `check_common` has the criteria of all architectures; the scripts have
further criteria.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

from validation._tools import landscape as land
from validation._tools.landscape import ENDED, compute_statistics
from validation._tools.report import Verdict, folder, options, plus_minus, pool
from validation._tools.resumable import run_trials
from validation.paper._architectures.figures import draw, format_table
from validation.paper._architectures.instances import ARCHITECTURES, ORDERS, SLICE, descents
from validation.paper._architectures.theory import crossing, point

RESAMPLED = 200
KEYS = ("train_loss", *ORDERS)


def get_branch(end):
    """Return the kind of solution: the direction, Q* or p_1, with the smaller angle to the weights."""
    return max(ORDERS, key=lambda name: end["order"][name])


def is_on_branch(end, start):
    """Return whether a descent ended at zero gradient, on the branch that its start names."""
    return end["status"] in ENDED and (start not in ORDERS or get_branch(end) == start)


def summarize_cell(rows, starts, kinds=True):
    """Return statistics of the instances of one (α, ω), without runs that left their branch, if there are branches."""
    ends = {name: [row[name] for row in rows] for name in starts}
    kept = {
        name: [is_on_branch(end, name) if kinds else end["status"] in ENDED for end in ends[name]] for name in starts
    }
    table = {
        name: compute_statistics(
            [{"train_loss": end["train_loss"]} | end["order"] for end, good in zip(ends[name], kept[name], strict=True)
             if good], KEYS)
        | {"count": sum(kept[name])}
        for name in starts
    }  # fmt: skip
    deepest = [min((row[name] for name in starts), key=lambda end: end["train_loss"]) for row in rows]
    return {
        "omega": rows[0]["omega"], "alpha": rows[0]["alpha"], "instances": len(rows), "starts": table,
        "difference": compute_statistics([{"all": value} for value in compute_differences(rows)], ["all"])["all"],
        "pairs": len(compute_differences(rows)),
        "semantic_deeper": float(np.mean([get_branch(end) == "semantic" for end in deepest])),
        "deepest": compute_statistics([{"train_loss": end["train_loss"]} | end["order"] for end in deepest], KEYS),
    }  # fmt: skip


def compute_differences(rows):
    """Return ε_t(positional) − ε_t(semantic) of the instances in which both starts ended on their branches."""
    return [
        row["positional"]["train_loss"] - row["semantic"]["train_loss"]
        for row in rows
        if all(is_on_branch(row[name], name) for name in ORDERS)
    ]


def group_by_alpha(rows, omega):
    """Return the instances at one ω, by α."""
    mine = [row for row in rows if row["omega"] == omega]
    return {alpha: [row for row in mine if row["alpha"] == alpha] for alpha in sorted({row["alpha"] for row in mine})}


def find_finite_crossing(rows, omega):
    """Return α_c of the mean Δε_t at one ω and its error by resampling; None without a change of sign.

    Only α at which at least half of the instances keep both branches count.
    """
    values = {alpha: compute_differences(part) for alpha, part in group_by_alpha(rows, omega).items()}
    wanted = {alpha: len(part) / 2 for alpha, part in group_by_alpha(rows, omega).items()}
    values = {alpha: np.array(part) for alpha, part in values.items() if len(part) >= max(2, wanted[alpha])}
    alphas, rng = np.array(list(values)), np.random.default_rng(0)
    if len(alphas) < 2:
        return {"alpha_c": None, "alpha_c_error": None}
    crossing = find_root(alphas, [part.mean() for part in values.values()])
    again = [
        find_root(alphas, [rng.choice(part, len(part)).mean() for part in values.values()]) for _ in range(RESAMPLED)
    ]
    again = [value for value in again if value is not None]
    if crossing is None or len(again) < RESAMPLED / 2:
        return {"alpha_c": None, "alpha_c_error": None}
    return {"alpha_c": crossing, "alpha_c_error": float(np.std(again))}


def find_root(alphas, values):
    """Return the last α at which a monotone interpolation changes from negative to positive, or None."""
    curve = PchipInterpolator(alphas, values)
    roots = [x for x in curve.roots(extrapolate=False) if curve(x, 1) > 0]
    return float(roots[-1]) if roots else None


GRADIENT, FRACTION = 1e-6, 0.95  # gradient norm of a descent, at most, in at least this fraction of them
MIN_FRACTION = 0.75  # fraction of the instances for which a claim must hold
ERRORS = 3.0


def check_common(verdict, study):
    """Check the criteria of all architectures."""
    ends = [row[name] for row in study.rows for name in study.starts]
    small = np.mean([end["gradient_norm"] <= GRADIENT for end in ends])
    claim = f"{small:.1%} of {len(ends)} descents leave a gradient norm of at most {GRADIENT:g}"
    verdict.check(small >= FRACTION, claim)
    alphas, omegas = study.size["alphas"], study.size["omegas"]
    for kind, alpha, omega in (("semantic", alphas[-1], omegas[0]), ("positional", alphas[0], omegas[-1])):
        rows = group_by_alpha(study.rows, omega)[alpha]
        deepest = [min((row[name] for name in study.starts), key=lambda end: end["train_loss"]) for row in rows]
        share = np.mean([get_branch(end) == kind for end in deepest])
        claim = f"α={alpha:g}, ω={omega:g}: the deepest minimum is {kind} in {share:.0%} of {len(rows)}"
        verdict.check(share >= MIN_FRACTION, claim)
    for entry in compare(study):
        words = (
            f"α={entry['alpha']:g}, {entry['branch']}: {entry['key']} {plus_minus(entry['value'], entry['error'])}, "
            f"state evolution {entry['predicted']:.5g}"
        )
        if entry["judged"]:
            verdict.check(entry["excess"] <= 1, f"{words}: {entry['excess']:.2f} of the allowed deviation")


def compare(study):
    """Return means of the slice against state evolution, each gap in units of 3 errors plus value/√d."""
    table, d = [], study.size["d"]
    for theory in study.theory:
        if not theory["solved"]:
            continue
        rows, branch = group_by_alpha(study.rows, SLICE)[theory["alpha"]], theory["branch"]
        kept = [row[branch] for row in rows if is_on_branch(row[branch], branch)]
        why = "" if theory["consistent"] else theory["validity"].split(" (")[0]
        if len(kept) < MIN_FRACTION * len(rows):
            why = f"{len(kept)} of {len(rows)} on this branch"
        runs = [{"train_loss": end["train_loss"]} | end["order"] for end in kept]
        for key, measured in land.compute_statistics(
            runs, ("train_loss", *(ORDERS if branch == "mixed" else (branch,)))
        ).items():
            predicted = theory["train_loss"] if key == "train_loss" else theory["order"][key]
            own = theory["train_loss_error"] if key == "train_loss" else theory["order_error"][key]
            allowed = ERRORS * np.hypot(measured["error"], own) + abs(predicted) / np.sqrt(d)
            table.append({
                "alpha": theory["alpha"], "branch": branch, "key": key, "value": measured["mean"],
                "error": measured["error"], "predicted": predicted,
                "excess": abs(measured["mean"] - predicted) / allowed, "judged": not why, "why": why,
            })  # fmt: skip
    return table


def get_alpha_c(study, name, omega=SLICE):
    """Return α_c and its error on one of the lines, NaN if there is none."""
    for line in study.lines[name]:
        if line["omega"] == omega:
            return land.to_array([line["alpha_c"], line["alpha_c_error"]])
    return np.full(2, np.nan)


def check_lines(verdict, study):
    """Check α_c at finite d against state evolution, for ω that have both."""
    d = study.size["d"]
    for line in study.lines[f"{study.name}, state evolution"]:
        (value, error), (predicted, own) = (
            get_alpha_c(study, f"{study.name}, {what}", line["omega"]) for what in (f"d = {d}", "state evolution")
        )
        if np.isfinite(value + predicted):
            allowed = ERRORS * np.hypot(error, own) + predicted / np.sqrt(d)
            verdict.check(
                abs(value - predicted) <= allowed,
                f"ω={line['omega']:g}: α_c = {plus_minus(value, error)} at d = {d}, state evolution {predicted:.3f}",
            )


def check_shift(verdict, study, later):
    """Check whether the transition at the slice is at a larger α than in the paper's model, or at the same α."""
    d = study.size["d"]
    (value, error), (plain, plain_error) = (get_alpha_c(study, f"{name}, d = {d}") for name in (study.name, "paper"))
    both = float(np.hypot(error, plain_error))
    measured, expected = plus_minus(value, error), plus_minus(plain, plain_error)
    words = f"α_c(0.3) = {measured}, {expected} in the paper's model, d = {d}"
    if later:
        verdict.check(value - plain > ERRORS * both, f"{words}: later by more than {ERRORS:g} errors")
    else:
        verdict.check(abs(value - plain) <= ERRORS * both + plain / np.sqrt(d), f"{words}: the same")


FULL = {
    "alphas": (0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2), "omegas": (0.05, 0.1, 0.2, 0.3, 0.4, 0.5), "d": 300,
    "seeds": 4, "slice_seeds": 16, "predicted": (0.8, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2), "crossed": (0.1, 0.2, 0.3, 0.4),
}  # fmt: skip
QUICK = {
    "alphas": (0.8, 1.6, 3.2), "omegas": (0.1, 0.3), "d": 100, "seeds": 2, "slice_seeds": 4, "predicted": (3.2,),
    "crossed": (),
}  # fmt: skip


@dataclass(frozen=True)
class Study:
    """Results of an architecture: instances of it and of the paper's model, predictions, transitions, sizes."""

    name: str
    size: dict[str, Any]
    rows: list[dict[str, Any]]
    paper: list[dict[str, Any]]
    theory: list[dict[str, Any]]
    lines: dict[str, list[dict[str, Any]]]

    @property
    def starts(self):
        return ARCHITECTURES[self.name].starts

    @property
    def kinds(self):
        """Return whether minima are of one kind or the other; minima of a rank-2 student may be of both kinds."""
        return "mixed" not in self.starts


def main(description, script, name, own_checks):
    """Run, check, store and draw one architecture."""
    args = options(description, draw=True, workers=True)
    verdict = Verdict(script, args)
    if args.draw:
        return write_results(verdict.stored(), verdict)
    study = run(args, name)
    check_common(verdict, study)
    own_checks(verdict, study)
    result = collect_numbers(study)
    write_results(result, verdict)
    verdict.end(result)


def write_results(result, verdict):
    """Write the table and the picture."""
    verdict.path(".md").write_text(format_table(result))
    draw(result, verdict.path(".png"))


def run(args, name):
    """Return all instances and predictions, stored or computed now."""
    size = QUICK if args.quick else FULL
    plan = {
        which: [
            {"architecture": which, "omega": omega, "alpha": alpha, "d": size["d"], "seed": seed}
            for omega in size["omegas"] for alpha in size["alphas"]
            for seed in range(size["slice_seeds" if omega == SLICE else "seeds"])
        ]
        for which in ("paper", name)
    }  # fmt: skip
    branches = ("mixed",) if name == "rank2" else ORDERS
    predicted = [
        {"architecture": name, "omega": SLICE, "alpha": alpha, "branch": branch}
        for alpha in size["predicted"] for branch in branches
    ]  # fmt: skip
    crossed = [
        {"architecture": which, "omega": omega, "alphas": list(size["alphas"])}
        for which in ("paper", *(() if name == "rank2" else (name,))) for omega in size["crossed"]
    ]  # fmt: skip
    with pool(args) as executor:
        where = folder(args, "architectures")
        rows = {which: run_trials(where / "descents", descents, jobs, executor) for which, jobs in plan.items()}
        theory = run_trials(where / "theory", point, predicted, executor)
        lines = run_trials(where / "alpha_c", crossing, crossed, executor)
    transitions = {}
    for which in ("paper",) if name == "rank2" else (name, "paper"):
        transitions[f"{which}, state evolution"] = [line for line in lines if line["architecture"] == which]
        transitions[f"{which}, d = {size['d']}"] = [
            {"omega": omega} | find_finite_crossing(rows[which], omega) for omega in size["omegas"]
        ]
    return Study(name, size, rows[name], rows["paper"], theory, transitions)


def collect_numbers(study):
    """Return the stored and drawn numbers: means of all cells, predictions, transitions."""

    def cells(rows, starts, kinds):
        return [
            summarize_cell(part, starts, kinds)
            for omega in study.size["omegas"]
            for part in group_by_alpha(rows, omega).values()
        ]

    return {
        "architecture": study.name, "title": ARCHITECTURES[study.name].title, "size": study.size, "slice": SLICE,
        "starts": study.starts, "kinds": study.kinds, "theory": study.theory, "lines": study.lines,
        "cells": cells(study.rows, study.starts, study.kinds), "paper": cells(study.paper, ORDERS, True),
        "compared": compare(study),
    }  # fmt: skip
