"""Where descent ends on the positional branch, drawn: along training, and against d beside GAMP's minima."""

import numpy as np

from gamp_attention.experiments.figures import COLOURS, DARK, GREY, LABELS, figure
from validation._tools import landscape as land
from validation._tools.drawing import legend_below


def draw(numbers, path):
    with figure(path, 1, 4, (15, 4.2)) as axes:
        for k, key in enumerate(("q", "m")):
            _draw_training(axes[0, k], numbers, key)
            _draw_ends(axes[0, 2 + k], numbers, key)
        legend_below(axes[0, 0], axes[0, 2], columns=4)


def _draw_training(axis, numbers, key):
    time, styles = np.array(numbers["times"]), (("--", GREY, "as sampled"), ("-", DARK, "with jumps counted"))
    for told, (style, colour, words) in zip(numbers["theory"].values(), styles, strict=True):
        mean, error = (100 * np.array(told[key][what]) for what in ("mean", "error"))
        axis.plot(time, mean, style, color=colour, label=f"theory, {words}")
        axis.fill_between(time, mean - 2 * error, mean + 2 * error, color=colour, alpha=0.2, lw=0)
    d, seen = numbers["followed"], numbers["path"][key]
    axis.errorbar(time, 100 * np.array(seen["mean"]), 200 * np.array(seen["error"]), fmt="o", ms=2.5, lw=0.6,
                  color=COLOURS["positional"], label=f"descents, d = {d}, ± 2 s.e.", zorder=0)  # fmt: skip
    axis.axhline(0, color=GREY, lw=0.8)
    axis.set(title=f"{LABELS[key]}, % off the fixed point", xlabel="training time", ylim=(-12, 8))


def _draw_ends(axis, numbers, key):
    for name, marker, colour in (("descent", "o", COLOURS["positional"]), ("gamp", "s", COLOURS["semantic"])):
        table = numbers["ends"][name]
        d = np.array([float(each) for each in table])
        mean, error = (100 * land.numbers([table[each][key][what] for each in table]) for what in ("mean", "error"))
        label = {"descent": "where descents end", "gamp": "GAMP's minima"}[name]
        axis.errorbar(1 / np.sqrt(d), mean, 2 * error, fmt=marker, ms=5, capsize=2, color=colour, label=label)
        limit = numbers["limits"][name][key]
        axis.errorbar([0.0], [100 * limit["mean"]], [200 * limit["error"]], fmt=marker, ms=7, mfc="white", color=colour)
    for told, x, colour in zip(numbers["theory"].values(), (-0.001, -0.002), (GREY, DARK), strict=True):
        end = told[key]["end"]
        axis.errorbar([x], [100 * end["mean"]], [200 * end["error"]], fmt="D", ms=5, color=colour)
    axis.axhline(0, color=GREY, lw=0.8)
    axis.set(title=f"{LABELS[key]} at the end, % off the fixed point", xlabel="$1/\\sqrt{d}$; diamonds: theory")
