"""Numbers that the authors published with their code, and what they come to beside stored results.

From github.com/SPOC-group/positional-and-semantic-attention, commit 0b867fa, in the units of this package: losses
divided by d, θ by σ⁻², and ε_g per token. `theory` and `lines` are the state evolution of figures 2 and 3; `plane`,
`slices`, `figure2`, `sizes` and `rank2` (figure 14, random starts) are means of gradient descent, and spreads of one
instance. `histogram` is what the authors' notebook prints of table 1.
"""

from pathlib import Path

import numpy as np
from scipy.interpolate import PchipInterpolator

from validation._tools import catalogue
from validation._tools import landscape as land

FOLDER = Path(__file__).parent / "_published"
CLEAR = 2e-4  # Δε_t, or difference to the linear baseline, whose sign d = 1000 should show: four spreads of its mean
FAR = 80  # least d at which spreads are compared


def table(name):
    """A table as a structured array."""
    return np.genfromtxt(FOLDER / f"{name}.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")


def lines():
    """Published α_c and α_l beside the stored boundaries, between whose ω a smooth curve is drawn."""
    stored, found = catalogue.stored(catalogue.ROOT / "results" / "phase_diagram.json"), []
    for name in ("alpha_c", "alpha_l"):
        value = land.numbers(stored["lines"][name])
        known = np.isfinite(value)
        curve = _smooth(land.numbers(stored["probed"])[known], value[known])
        for row in (row for row in table("lines") if row["line"] == name):
            ours = float(curve(row["omega"]))
            found.append({"line": name, "omega": float(row["omega"]), "published": float(row["alpha"]), "ours": ours})
    return [row for row in found if np.isfinite(row["ours"])]


def plane(matrix):
    """Published means of descents at d = 1000 beside the stored phase diagram, where that has numbers."""
    name = "phase_diagram" + ("" if matrix == "paper" else "_other")
    stored = catalogue.stored(catalogue.ROOT / "results" / f"{name}.json")
    mine = table("plane")
    mine = mine[mine["matrix"] == matrix]
    at = {(round(row["omega"], 3), round(row["alpha"], 3)): row for row in mine}

    def grid(pick):
        return np.array([[pick(at[round(omega, 3), round(alpha, 3)]) for omega in stored["omegas"]]
                         for alpha in stored["alphas"]])  # fmt: skip

    semantic, positional = (grid(lambda row, b=b: row[f"{b}_train_loss"]) for b in land.BRANCHES)
    errors = {b: grid(lambda row, b=b: row[f"{b}_test_error"]) for b in land.BRANCHES}
    lower = np.where(semantic <= positional, errors["semantic"], errors["positional"])
    linear = grid(lambda row: row["linear_test_error"])
    found = {"difference": _signs(positional - semantic, land.numbers(stored["difference"])),
             "gain": _signs(linear - lower, land.numbers(stored["gain"])),
             "baseline": float(np.max(np.abs(linear.mean(axis=0) / land.numbers(stored["baseline"]) - 1)))}  # fmt: skip
    for branch, losses in zip(land.BRANCHES, (semantic, positional), strict=True):
        for key, value in (("train_loss", losses), ("test_error", errors[branch])):
            ratio = value / land.numbers(stored[f"{branch} {key}"]) - 1
            found[f"{branch} {key}"] = float(np.median(ratio[np.isfinite(ratio)]))
    return found


def rank2():
    """Published training losses of students of rank 2, and those of the minimum of both kinds, at ω = .3."""
    stored = catalogue.stored(catalogue.ROOT / "results" / "rank2_student.json")["theory"]
    known = [row for row in stored if row["train_loss"] is not None]
    curve = _smooth(*([row[name] for row in known] for name in ("alpha", "train_loss")))
    found = [{"alpha": float(row["alpha"]), "published": float(row["train_loss"]), "ours": float(curve(row["alpha"])),
              "spread": float(row["train_loss_spread"])} for row in table("rank2")]  # fmt: skip
    return [row for row in found if np.isfinite(row["ours"])]


def _smooth(x, y):
    """A curve through points, NaN outside of them."""
    return PchipInterpolator(x, y, extrapolate=False)


def _signs(published, ours):
    """In how many cells two maps have the same sign, of all and of those clear of zero; and how far they differ."""
    both = np.isfinite(ours)
    same, clear = np.sign(published) == np.sign(ours), both & (np.abs(np.nan_to_num(ours)) > CLEAR)
    return {"cells": int(both.sum()), "same": int(same[both].sum()), "clear": int(clear.sum()),
            "clear same": int(same[clear].sum()), "rms": float(np.sqrt(np.mean((published - ours)[both] ** 2))),
            "published": published[both].tolist(), "ours": ours[both].tolist()}  # fmt: skip


def sizes():
    """Spreads of one instance times √d, medians over the larger d: published descents and stored message passing."""
    stored, found = catalogue.stored(catalogue.ROOT / "results" / "finite_size.json")["finite_d"], []
    for branch, own in (("semantic", "theta"), ("positional", "m")):
        mine = [row for row in table("sizes") if row["branch"] == branch and row["d"] >= FAR]
        for key in (own, "train_loss", "test_error"):
            theirs = float(np.median([np.sqrt(row["d"]) * row[f"{key}_spread"] for row in mine]))
            ours = float(np.median([np.sqrt(int(d)) * stats[key]["spread"] for d, stats in stored[branch].items()
                                    if int(d) >= FAR]))  # fmt: skip
            found.append({"branch": branch, "key": key, "published": theirs, "ours": ours})
    return found
