"""Grids, cached sweeps and statistics of the paper's figures in the (α, ω) plane."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import gamp_attention as ga
from gamp_attention.extensions.sweeps.jobs import row_overlaps
from gamp_attention.theory.fixed_points.solve import FAMILY_OF
from validation._tools.report import folder

ALPHAS = np.linspace(0.01, 2, 25)  # α of the paper's figures
OMEGAS = np.linspace(0.02, 0.5, 25).round(10)
BOUNDARY_OMEGAS = OMEGAS[2::2]  # 12 values of ω, one of them 0.3
QUICK_ALPHAS = ALPHAS[[2, 8, 13, 18, 24]]
QUICK_OMEGAS = {"paper": OMEGAS[[4, 14, 19, 24]], "other": OMEGAS[[2, 6, 14]]}
QUICK_BOUNDARY_OMEGAS = {"paper": OMEGAS[[4, 14]], "other": OMEGAS[[2, 6]]}  # α_c and α_l both exist at the first
STEP = {"paper": 1, "other": 2}  # stride in the grid: without the symmetry of A averages take four times as long
LOWEST, HIGHEST = 0.05, 2.5  # range of α in which boundaries are searched
WINDOW = 0.08  # distance in α from the end of a branch or of its stability below which no criterion applies
SPREAD = 0.5  # allowance of means in addition to their errors, in units of the spread of one instance, O(1/√d)
BRANCHES = ("semantic", "positional")
OTHER_MATRIX = ((0.3, 0.7), (0.8, 0.2))  # A of figure 9
ENDED = ("converged", "settled")  # statuses of runs that reached zero gradient
SYMBOLS = {"q": "q", "m": "m", "theta": "θ", "V": "V", "train_loss": "ε_t", "test_error": "ε_g"}
LABELS = {
    "q": "$q$", "m": "$m_1$", "theta": r"$\theta$", "V": "$V$",
    "train_loss": r"$\varepsilon_t$", "test_error": r"$\varepsilon_g$",
}  # fmt: skip


def build_model(matrix: str, omega: float = 0.3) -> ga.Model:
    """Return the model of the paper, or the model of figure 9."""
    return ga.paper_model(omega) if matrix == "paper" else ga.paper_model(omega, A=OTHER_MATRIX)


def compute_diagram(args: argparse.Namespace, matrix: str, executor: Any) -> ga.Sweep:
    """Solve state evolution over (α, ω) on both branches to a relative accuracy of 1e-3; figure 9 has half the grid."""
    alphas, omegas = (
        (QUICK_ALPHAS, QUICK_OMEGAS[matrix]) if args.quick else (ALPHAS[:: STEP[matrix]], OMEGAS[:: STEP[matrix]])
    )
    where = get_diagram_folder(args, matrix) / "grid"
    return ga.sweep(build_model(matrix), where, alpha=alphas, omega=omegas, rtol=1e-3, executor=executor)


def compute_boundaries(args: argparse.Namespace, matrix: str, executor: Any) -> ga.PhaseBoundaries:
    """Compute the boundaries at some ω of the grid."""
    probed, where = (
        QUICK_BOUNDARY_OMEGAS[matrix] if args.quick else BOUNDARY_OMEGAS[:: STEP[matrix]],
        get_diagram_folder(args, matrix) / "boundaries",
    )
    return ga.phase_boundaries(
        build_model(matrix), omegas=probed, alphas=(LOWEST, HIGHEST), folder=where, executor=executor
    )


def get_diagram_folder(args: argparse.Namespace, matrix: str) -> Path:
    """Return the folder of the stored grid and boundaries."""
    return folder(args, "phase_diagram" + ("" if matrix == "paper" else f"_{matrix}") + "_quick" * args.quick)


def is_inside(branch: str, alpha: float, lines: dict[str, Any]) -> bool:
    """Return whether a branch exists and is stable at α, at a distance from the ends in `lines`."""
    low = np.fmax(*(to_array(lines[f"{branch}_{name}"]) for name in ("from", "stable_from")))
    high = np.fmin(*(to_array(lines[f"{branch}_{name}"]) for name in ("to", "stable_to")))
    return not (alpha < low + WINDOW or alpha > high - WINDOW)  # NaN if there is no end, which compares as false


def flatten_rows(result: ga.Sweep) -> list[dict[str, Any]]:
    """Return one flat dict for each cell; missing numbers are NaN.

    Q and −Q are the same solution: the sign is chosen such that the overlap that names the branch is positive.
    "reached" is the branch on which a run ended: the direction, Q* or p_1, with the smaller angle to the weights.
    """
    rows = []
    for cell, row in zip(result.cells, result.rows, strict=True):
        overlaps = row_overlaps(row)
        value = (
            dict.fromkeys(SYMBOLS, np.nan) if overlaps is None else {k: float(v) for k, v in overlaps.scalars().items()}
        )
        sigma = 0.5 if cell.sigma is None else cell.sigma
        angles = {"semantic": abs(value["theta"]) / sigma, "positional": abs(value["m"]) * sigma}  # times √q
        sign = -1.0 if value[FAMILY_OF[cell.branch]] < 0 else 1.0
        rows.append(
            {
                "method": cell.method, "branch": cell.branch, "alpha": cell.alpha, "omega": cell.omega, "d": cell.d,
                "seed": cell.seed, "status": row["status"], "message": row["message"], "seconds": row["seconds"],
                "reached": max(angles, key=lambda name: angles[name]),
            }
            | value
            | {"m": sign * value["m"], "theta": sign * value["theta"]}
            | {k: row.get(k, np.nan) for k in ("train_loss", "test_error", "train_loss_error", "test_error_error")}
        )  # fmt: skip
    return rows


def select_on_branch(runs: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the runs that ended on their branch with zero gradient, and counts of how all runs ended."""
    ended = [run for run in runs if run["status"] in ENDED]
    on_branch = [run for run in ended if run["reached"] == run["branch"]]
    count = dict(sorted(Counter(run["status"] for run in runs).items()))
    return on_branch, count | {"on the branch": len(on_branch), "on the other branch": len(ended) - len(on_branch)}


def compute_statistics(runs: list[dict[str, Any]], keys: Any) -> dict[str, dict[str, float]]:
    """Return mean, standard deviation and standard error of each number; NaN if there are too few runs."""
    table = {}
    for key in keys:
        values = np.array([run[key] for run in runs if np.isfinite(run[key])])
        spread = float(values.std(ddof=1)) if len(values) > 1 else np.nan
        mean = float(values.mean()) if len(values) else np.nan
        table[key] = {"mean": mean, "spread": spread, "error": spread / np.sqrt(max(len(values), 1))}
    return table


def to_array(values: Any) -> np.ndarray:
    """Return an array of stored numbers, with NaN for null."""
    return np.array(values, dtype=float)
