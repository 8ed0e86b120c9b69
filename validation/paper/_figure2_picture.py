"""Fig. 2 drawn: overlaps and errors of both branches against α, and q of the positional one beside both V̂."""

import numpy as np

from gamp_attention.experiments.figures import COLOURS, DARK, GREY, figure
from validation._tools import landscape as land
from validation._tools.drawing import draw_judged, legend_below
from validation.paper._figure2_points import KEYS, OMEGA


def draw(numbers, path):
    with figure(path, 2, 3, (13, 7.2)) as axes:
        for axis, key in zip(axes.flat, KEYS, strict=False):
            for branch in land.BRANCHES:
                _draw_branch(axis, key, branch, numbers[branch])
            for name, style in (("alpha_c", "-"), ("alpha_l", ":")):
                if numbers["lines"][name]["value"]:
                    label = {"alpha_c": r"$\alpha_c$", "alpha_l": r"$\alpha_l$"}[name]
                    axis.axvline(numbers["lines"][name]["value"], color=GREY, ls=style, lw=1, label=label)
            axis.set(title=land.LABELS[key], xlabel=r"$\alpha = n/d$", xlim=(0, None))
        axes[1, 1].axhline(numbers["baseline"], color=DARK, ls="--", lw=1.2, label="linear baseline")
        _draw_gap(axes[1, 2], numbers["positional"])
        legend_below(axes[1, 1], columns=5)
        axes[0, 0].figure.suptitle(f"ω = {OMEGA:g}, d = {numbers['d']}, exact risk; bars: 2 s.e.")


def _draw_branch(axis, key, branch, table):
    alpha = land.numbers([p["alpha"] for p in table])
    axis.plot(
        alpha,
        land.numbers([p["theory"][key] for p in table]),
        color=COLOURS[branch],
        label=f"{branch}, state evolution",
    )
    mean, error = (land.numbers([p["gamp"][key][what] for p in table]) for what in ("mean", "error"))
    judged = np.array([p["judged"] for p in table])
    draw_judged(axis, alpha, mean, error, judged, COLOURS[branch], branch)
    ends = [p for p in table if p["gd"][key]["mean"] is not None and np.isfinite(p["gd"][key]["mean"])]
    if ends:
        axis.plot([p["alpha"] for p in ends], [p["gd"][key]["mean"] for p in ends], "D", ms=9, mfc="none",
                  mec=DARK, label="GD, few instances")  # fmt: skip
        same = [p["gd"][key]["mean"] - np.mean(p["gd_minus_gamp"][key]) for p in ends]
        axis.plot([p["alpha"] for p in ends], same, "+", ms=7, color=DARK, label="GAMP, the same instances")


def _draw_gap(axis, table):
    """q of the positional branch relative to Stein's fixed point."""
    shown = [p for p in table if p["exists"] and p["derivative"]]
    alpha, stein = (land.numbers(v) for v in ([p["alpha"] for p in shown], [p["theory"]["q"] for p in shown]))
    axis.axhline(0, color=COLOURS["positional"], label="Stein's V̂")
    gap = land.numbers([p["derivative"]["q"] for p in shown]) / stein - 1
    axis.plot(alpha, 100 * gap, color=DARK, ls="--", label="the derivative's V̂")
    mean, error = (land.numbers([p["gamp"]["q"][what] for p in shown]) for what in ("mean", "error"))
    axis.errorbar(alpha, 100 * (mean / stein - 1), 200 * error / stein, fmt="o", ms=4.5, capsize=2,
                  color=COLOURS["positional"], label="GAMP")  # fmt: skip
    axis.set(title="positional $q$, % off Stein's fixed point", xlabel=r"$\alpha = n/d$", xlim=(0, None))
    axis.legend(frameon=False, fontsize=9)
