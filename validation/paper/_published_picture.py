"""The published tables drawn beside ours."""

import numpy as np

from gamp_attention.experiments.figures import COLOURS, DARK, GREY, figure
from validation._tools import landscape as land
from validation._tools.drawing import legend_below

SHADES = ("-", "--", ":")


def draw(numbers, path):
    with figure(path, 2, 4, (15, 7)) as axes:
        for axis, key, label in zip(
            axes[0, :2], ("own", "V"), (r"$\theta$ (semantic), $m_1$ (positional)", "$V$"), strict=True
        ):
            _curves(axis, numbers["curves"], key)
            axis.set(title=f"Fig. 2: {label}", xlabel=r"$\alpha = n/d$", ylim=(0, None))
        _lines(axes[0, 2], numbers["lines"])
        _signs(axes[0, 3], numbers["planes"])
        _sizes(axes[1, 0], numbers["sizes"])
        for axis, name, symbol in zip(axes[1, 1:], ("omega", "sigma", "lam"), ("ω", "σ", "λ"), strict=True):
            _slices(axis, numbers["slices"], name, symbol)
        legend_below(axes[0, 0], axes[0, 2], axes[0, 3], axes[1, 0], columns=5, fontsize=9)
        axes[0, 0].figure.suptitle("Published numbers (marks) beside ours (lines)")


def _curves(axis, curves, key):
    for branch, rows in curves.items():
        alpha = [row["alpha"] for row in rows]
        ours = land.numbers([(row["ours"] or {}).get(key) for row in rows])
        axis.plot(alpha, ours, color=COLOURS[branch], label=f"{branch}, state evolution")
        axis.plot(alpha, [row["rule"][key] for row in rows], "--", color=GREY, lw=1, label="with the authors' rule")
        axis.plot(alpha, [row["published"][key] for row in rows], "x", color=COLOURS[branch], ms=5,
                  label=f"{branch}, published")  # fmt: skip


def _lines(axis, rows):
    for name, label, style in (("alpha_c", r"$\alpha_c$", "-"), ("alpha_l", r"$\alpha_l$", "--")):
        omega, published, ours = np.array([[row[k] for k in ("omega", "published", "ours")] for row in rows
                                           if row["line"] == name]).T  # fmt: skip
        axis.plot(omega, ours, style, color=DARK, label=f"{label}, ours")
        axis.plot(omega, published, "x", color=DARK, ms=6)
    axis.set(title="Fig. 3: phase lines", xlabel="ω", ylabel=r"$\alpha$")


def _signs(axis, planes):
    for matrix, marker, colour in (("paper", ".", COLOURS["semantic"]), ("other", "s", COLOURS["positional"])):
        one = planes[matrix]["difference"]
        axis.plot(1e3 * np.array(one["ours"]), 1e3 * np.array(one["published"]), marker, color=colour, ms=3,
                  label=f"{'Fig. 3' if matrix == 'paper' else 'Fig. 9'}, descents at d = 1000")  # fmt: skip
    axis.axline((0, 0), slope=1, color=GREY, lw=1)
    axis.set(title=r"Fig. 3, 9: $10^3\,\Delta\varepsilon_t$", xlabel="state evolution", ylabel="published")


def _sizes(axis, rows):
    names = [f"{land.LABELS[row['key']]}, {row['branch'][:3]}." for row in rows]
    axis.axhline(1, color=GREY, lw=1)
    axis.plot(range(len(rows)), [row["published"] / row["ours"] for row in rows], "x", color=DARK, ms=7)
    axis.set_xticks(range(len(rows)), names, rotation=45, ha="right")
    axis.set(title="Fig. 3, 7: spreads, published / ours", ylim=(0.5, 1.5))


def _slices(axis, rows, name, symbol):
    base = {"sigma": 0.5, "lam": 0.01, "omega": 0.3}
    others = [other for other in base if other != name]
    mine = [row for row in rows if all(row[other] == base[other] for other in others)]
    for value, style in zip(sorted({row[name] for row in mine}), SHADES, strict=False):
        for branch in land.BRANCHES:
            part = [row for row in mine if row[name] == value and row["branch"] == branch]
            alpha, told = [row["alpha"] for row in part], [1e3 * row["test_error"] for row in part]
            ours = 1e3 * land.numbers([row["ours"] for row in part])
            axis.plot(alpha, ours, style, color=COLOURS[branch])
            bars = [1e3 * row["test_error_spread"] for row in part]
            late = [(row["alpha"], 1e3 * row["trained"]) for row in part if "trained" in row]
            axis.plot(*np.reshape(late, (-1, 2)).T, "o", ms=6, mfc="none", color=DARK, label="theory of training")
            axis.errorbar(alpha, told, bars, fmt="x", color=COLOURS[branch], ms=4, lw=0.7)
        axis.plot([], [], style, color=DARK, label=f"{symbol} = {value:g}")
    if mine:
        handles, labels = axis.get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True))
        axis.legend(once.values(), once.keys(), frameon=False, fontsize=8)
    axis.set(title=rf"Fig. 8: $10^3\,\varepsilon_g$ for several {symbol}", xlabel=r"$\alpha = n/d$")
