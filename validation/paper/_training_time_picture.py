"""The paper's training drawn: where it stops, by theory and by descents, beside fixed points and published means."""

import numpy as np

from gamp_attention.experiments.figures import COLOURS, DARK, GREY, figure
from validation._tools import landscape as land
from validation._tools.drawing import legend_below

COLUMNS = {"semantic": ("q", "theta", "train_loss", "test_error"), "positional": ("q", "m", "train_loss", "test_error")}
SCALED = ("train_loss",)  # divided by α, which they nearly are proportional to


def draw(numbers, path):
    with figure(path, 2, 4, (13.5, 6.6)) as axes:
        for row, branch in zip(axes, land.BRANCHES, strict=True):
            table = numbers[branch]
            alpha = np.array([point["alpha"] for point in table])
            for axis, key in zip(row, COLUMNS[branch], strict=True):
                _draw_key(axis, alpha, table, key, branch)
            row[0].set_ylabel(f"{branch} start", color=COLOURS[branch], fontsize=12)
        legend_below(axes[0, 1], columns=5)
        axes[0, 0].figure.suptitle(f"ω = .3, 5000 steps of .15; instances at d = {numbers['d']}, bars: 2 s.e.")


def _draw_key(axis, alpha, table, key, branch):
    share = alpha if key in SCALED else np.ones_like(alpha)
    fixed = land.numbers([(point["fixed"] or {}).get(key) for point in table])
    told, error = np.array([point["theory"][key] for point in table]).T
    axis.plot(alpha, fixed / share, "--", color=GREY, label="fixed point of state evolution")
    axis.plot(alpha, told / share, color=COLOURS[branch], label="theory of the training that was done")
    axis.fill_between(alpha, (told - 2 * error) / share, (told + 2 * error) / share, color=COLOURS[branch], alpha=0.3,
                      lw=0)  # fmt: skip
    for risk, fill in (("exact", COLOURS[branch]), ("asymptotic", "white")):
        tried = np.array([risk in point for point in table])
        mean, error = (
            land.numbers([point[risk][key][what] for point in table if risk in point]) for what in ("mean", "error")
        )
        axis.errorbar(alpha[tried], mean / share[tried], 2 * error / share[tried], fmt="o", ms=5, mfc=fill,
                      color=COLOURS[branch], lw=1, label=f"descents, {risk} risk")  # fmt: skip
    if key in table[0]["published"]:
        axis.plot(alpha, [point["published"][key][0] for point in table] / share, "x", color=DARK, label="published")
    top = max(np.nanmax(told / share), np.nanmax(fixed / share))
    axis.set(title=land.LABELS[key] + (r"$/\alpha$" if key in SCALED else ""), xlabel=r"$\alpha = n/d$", xlim=(0, None))
    axis.set_ylim(*((0.7 * np.nanmin(told / share), 1.1 * top) if key in SCALED else (0, 1.15 * top)))
