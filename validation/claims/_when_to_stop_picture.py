"""When to stop, drawn: test errors along training, the four ways to train, and maps over noise and α."""

import numpy as np

from gamp_attention.experiments.figures import DARK, GREY, figure
from validation._tools.drawing import legend_below

SHOWN = (0.3, 2.0)  # s and α of the curves
WAYS = {  # colours (Okabe and Ito) and styles
    "smallest λ, to the end": ("#999999", "--"), "best λ, to the end": ("#D55E00", "-"),
    "smallest λ, stopped": ("#0072B2", "-"), "best λ, stopped": ("#009E73", ":"),
}  # fmt: skip


def excess(ways):
    """How much more the best λ at the end errs than the smallest λ stopped in time, relative."""
    return ways["best λ, to the end"]["test_error"] / ways["smallest λ, stopped"]["test_error"] - 1


def draw(numbers, path):
    noises, alphas = (np.array(numbers[name]) for name in ("noises", "alphas"))
    noise, alpha = (
        values[np.abs(values - wanted).argmin()] for values, wanted in zip((noises, alphas), SHOWN, strict=True)
    )
    with figure(path, 2, 3, (13, 7.4)) as axes:
        _draw_curves(axes[0, 0], numbers, noise, alpha)
        _draw_ways(axes[0, 1], numbers, "noise", noises, lambda point: point["alpha"] == alpha)
        axes[0, 1].set(xlabel="noise s", title=f"α = {alpha:g}")
        _draw_ways(axes[0, 2], numbers, "alpha", alphas, lambda point: point["noise"] == noise)
        axes[0, 2].set(xlabel="α = n/d", title=f"s = {noise:g}")
        ways = {(point["noise"], point["alpha"]): point["ways"] for point in numbers["points"]}
        maps = (
            ("best λ to the end: % above the best stop\nwith the smallest λ", lambda w: 100 * excess(w), "{:+.0f}"),
            ("time to stop with the smallest λ", lambda w: w["smallest λ, stopped"]["time"], "{:.0f}"),
            ("best λ for training to the end", lambda w: w["best λ, to the end"]["lam"], "{:g}"),
        )
        for axis, (title, value, words) in zip(axes[1], maps, strict=True):
            _draw_map(axis, noises, alphas, np.array([[value(ways[s, a]) for s in noises] for a in alphas]), words)
            axis.set(title=title, xlabel="noise s", ylabel="α = n/d")
        legend_below(axes[0, 1], columns=4)


def _draw_curves(axis, numbers, noise, alpha):
    times = np.array(numbers["times"])
    mine = [row for row in numbers["told"] if (row["noise"], row["alpha"]) == (noise, alpha)]
    for k, row in enumerate(mine):
        colour = (0.1, 0.25 + 0.6 * k / max(len(mine) - 1, 1), 0.75 - 0.5 * k / max(len(mine) - 1, 1))
        axis.plot(times[1:], row["test_error"][1:], color=colour, label=f"λ = {row['lam']:g}")
        for point in numbers["tried"]:
            if all(point[key] == row[key] for key in ("noise", "alpha", "lam")):
                for name, step in (("stopped", point["best"]), ("ended", -1)):
                    seen = point[name]
                    axis.errorbar(times[step], seen["mean"], 2 * seen["error"], fmt="o", ms=4, color=colour)
                    axis.plot(times[step], seen["own"], "x", ms=7, color=colour)
    axis.set(xscale="log", xlabel="training time", title=f"s = {noise:g}, α = {alpha:g}")
    axis.plot([], [], "o", ms=4, color=GREY, label=f"instances, d = {numbers['d']}")
    axis.plot([], [], "x", ms=7, color=GREY, label="predicted with their m")
    axis.set_ylabel("test error without the noise's own")
    axis.legend(frameon=False, fontsize=8)


def _draw_ways(axis, numbers, key, values, chosen):
    points = sorted((point for point in numbers["points"] if chosen(point)), key=lambda point: point[key])
    for name, (colour, style) in WAYS.items():
        axis.plot(values, [point["ways"][name]["test_error"] for point in points], style, marker="o", ms=4,
                  color=colour, label=name)  # fmt: skip
    axis.set(yscale="log")


def _draw_map(axis, noises, alphas, values, words):
    axis.imshow(np.log(np.maximum(np.abs(values), 1e-3)), origin="lower", aspect="auto", cmap="Blues", alpha=0.6)
    for i in range(len(alphas)):
        for j in range(len(noises)):
            axis.text(j, i, words.format(values[i, j]), ha="center", va="center", color=DARK)
    axis.set_xticks(range(len(noises)), [f"{s:g}" for s in noises])
    axis.set_yticks(range(len(alphas)), [f"{a:g}" for a in alphas])
    axis.tick_params(color=GREY)
