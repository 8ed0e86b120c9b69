"""Fig. 2: what is known of a branch at each α, from state evolution, GAMP, gradient descent and L-BFGS."""

import numpy as np

import gamp_attention as ga
from gamp_attention.experiments.sweeps.jobs import row_overlaps
from validation._tools import landscape as land

OMEGA = 0.3
KEYS = ("q", "m", "theta", "train_loss", "test_error")


def points(branch, theory, runs, descents, ends, lines):
    """What is known of a branch at each α."""
    table = []
    for raw, se in zip(theory.rows, land.rows_of(theory), strict=True):
        if se["branch"] != branch:
            continue
        alpha, exists = se["alpha"], se["status"] == "converged"
        mine = [row for row in runs if (row["branch"], row["alpha"]) == (branch, alpha)]
        kept, count = land.sorted_out(mine)
        same = {row["seed"]: row for row in kept}
        pairs, polished = (
            [
                (row, same[row["seed"]])
                for row in table_of
                if (row["branch"], row["alpha"], row["reached"]) == (branch, alpha, branch) and row["seed"] in same
            ]
            for table_of in (descents, ends)
        )
        table.append(
            {
                "alpha": alpha, "exists": exists, "status": se["status"], "count": count,
                "judged": exists and land.inside(branch, alpha, {name: line["value"] for name, line in lines.items()}),
                "theory": {k: se[k] if exists else np.nan for k in KEYS},
                "theory_error": errors(raw) if exists else {},
                "derivative": derivative(alpha, raw) if exists and branch == "positional" else {},
                "gamp": land.statistics(kept, KEYS),
                "elsewhere": [{k: r[k] for k in ("seed", "status", "reached", *KEYS)} for r in mine if r not in kept],
                "gd": land.statistics([row for row, _ in pairs], KEYS),
                "gd_minus_gamp": {k: [a[k] - b[k] for a, b in pairs] for k in KEYS},
                "lbfgs_minus_gamp": {k: [a[k] - b[k] for a, b in polished] for k in KEYS},
                "gamp_loss": [b["train_loss"] for _, b in pairs],
            }
        )  # fmt: skip
    return table


def errors(raw):
    value = row_overlaps(raw, "overlaps_error").scalars()
    return {k: float(value[k]) for k in ("q", "m", "theta")} | {
        k: raw[f"{k}_error"] for k in ("train_loss", "test_error")
    }


def derivative(alpha, raw):
    """The fixed point with the derivative's V̂, started from Stein's."""
    se = ga.solve_state_evolution(
        ga.paper_model(OMEGA), alpha, row_overlaps(raw), rtol=1e-3, response="derivative", stability=False
    )
    if not se.converged:
        return {}
    value = {k: abs(float(v)) for k, v in se.overlaps.scalars().items()}
    return {k: value[k] for k in ("q", "m", "theta")} | {"train_loss": se.train_loss, "test_error": se.test_error}
