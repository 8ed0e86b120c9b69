"""The table of gaps as markdown, the scatter of a relation over models, and the picture."""

import numpy as np
from scipy.optimize import brentq

from gamp_attention.experiments.figures import COLOURS, DARK, figure
from gamp_attention.state_evolution.fixed_points.stability import GAP_PER_SHIFT, NEGLIGIBLE_JUMPS

HEADS = (
    "model", "α", "d", "minima", "jump mass / V̂", "shift of V", "derivative's V", "V of minima", "over shift", "q",
    "m", "ε_t",
)  # fmt: skip


def scattered(x, gaps):
    """Factor c of gap = c x, and the scatter of c over models beyond the errors: random effects."""
    gaps, x = np.array(gaps), np.array(x)
    ratio, error = gaps[:, 0] / x, np.abs(gaps[:, 1] / x)

    def surplus(spread):
        weight = 1 / (error**2 + spread**2)
        return (weight * (ratio - (weight @ ratio) / weight.sum()) ** 2).sum() - (len(x) - 1)

    spread = brentq(surplus, 0, 10 * np.abs(ratio).max()) if surplus(0) > 0 else 0.0
    weight = 1 / (error**2 + spread**2)
    return float((weight @ ratio) / weight.sum()), float(spread)


def markdown(parts):
    """One line for each model, d and method."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    for part in parts:
        gap, error = part["gaps"]["V"]
        jumps = abs(part["jump_share"]) > NEGLIGIBLE_JUMPS
        over = f"{gap / part['shift']:.2f} ± {abs(error / part['shift']):.2f}" if jumps else "–"
        end = [_percent(part["gaps"].get(key)) for key in ("q", "m", "train_loss")]
        how = " (L-BFGS)" if part["method"] == "lbfgs" else ""
        cells = [
            part["name"].partition(", α =")[0], f"{part['alpha']:g}", f"{part['d']}{how}", str(part["n"]),
            *(f"{100 * value:.1f} %" for value in (part["jump_share"], part["shift"], part["forms"]["V"])),
            _percent(part["gaps"]["V"]), over, *end,
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _percent(gap):
    if gap is None:
        return "–"
    return f"{100 * gap[0]:+.1f} ± {100 * gap[1]:.1f} %"


def draw(parts, path):
    """Gap of V against the three numbers that might predict it, and that of q."""
    d = max({part["d"] for part in parts}, key=[part["d"] for part in parts].count)
    shown = [part for part in parts if part["d"] == d and part["method"] == "gamp"]
    numbers = {
        "shift of V without jumps in V̂, %": lambda part: part["shift"],
        "V: derivative's fixed point less Stein's, %": lambda part: part["forms"]["V"],
        "jump mass / V̂, % (symlog)": lambda part: part["jump_share"],
    }
    with figure(path, 1, len(numbers), (4.4 * len(numbers), 4)) as axes:
        for axis, (label, number) in zip(axes[0], numbers.items(), strict=True):
            for part in shown:
                gap, error = part["gaps"]["V"]
                axis.errorbar(
                    100 * number(part), 100 * gap, 200 * error, fmt="s" if part["held_out"] else "o", ms=4, lw=1,
                    color=COLOURS[part["branch"]], mfc="none" if part["held_out"] else None,
                )  # fmt: skip
            axis.axhline(0, color=DARK, lw=0.6)
            axis.set(xlabel=label, ylabel=f"gap of V at d = {d}, %, ± 2 s.e.")
        ends = np.array([100 * min(part["shift"] for part in shown), 0])
        factor = GAP_PER_SHIFT
        axes[0, 0].plot(ends, factor * ends, color=DARK, lw=1, label=f"{factor} × shift")
        axes[0, 0].legend(frameon=False, loc="upper left")
        axes[0, 2].set_xscale("symlog", linthresh=5)
        axes[0, 2].set(xlim=(-4000, 2), xticks=(-1000, -100, -10, 0), xticklabels=("−1000", "−100", "−10", "0"))
        axes[0, 2].minorticks_off()
        axes[0, 0].figure.suptitle("Open squares: models chosen after the factor was measured")
