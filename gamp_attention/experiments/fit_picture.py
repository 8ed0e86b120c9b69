"""The picture of a fit to your own data: the run, the training losses of all starts, and attention matrices."""

from pathlib import Path
from typing import Any

import numpy as np

from gamp_attention.experiments.figures import COLOURS, DARK, GREY, figure
from gamp_attention.gamp.many_starts import AGREEMENT
from gamp_attention.gamp.result import GampResult

KINDS = {"spectral": COLOURS["semantic"], "random": COLOURS["random"], "positional": COLOURS["positional"]}
COLUMNS = 4


def plot_fit(
    result: GampResult, attention: np.ndarray, path: str | Path | None = None, overwrite: bool = False
) -> np.ndarray:
    """Draw a run on data: loss and gradient at each iteration, and attention matrices (n, L, L) of samples.

    Returns the axes (2, 4); those of panels that have nothing to show are off.
    """
    with figure(path, 2, COLUMNS, (14, 6), overwrite) as axes:
        _draw_curves(axes[0], result)
        _draw_starts(axes[0, 3], result)
        spread = np.linspace(0, len(attention) - 1, min(COLUMNS - 1, len(attention))).astype(int)
        shown = [("mean over all samples", attention.mean(axis=0))]
        shown += [(f"sample {row}", attention[row]) for row in spread]
        low, high = (
            min(0.0, *(float(each.min()) for _, each in shown)),
            max(1.0, *(float(each.max()) for _, each in shown)),
        )
        for axis, (title, matrix) in zip(axes[1], shown, strict=False):
            image = axis.imshow(matrix, "Blues", vmin=low, vmax=high)
            axis.set(title=title, xlabel="attends to token", xticks=_ticks(matrix), yticks=_ticks(matrix))
            axis.spines[:].set_visible(False)
            if len(matrix) <= 4:
                for (i, j), weight in np.ndenumerate(matrix):
                    pale = weight - low > 0.6 * (high - low)
                    axis.text(j, i, f"{weight:.2f}", ha="center", va="center", color="white" if pale else DARK)
        axes[1, 0].set_ylabel("token")
        axes[1, 0].figure.colorbar(image, ax=list(axes[1, : len(shown)]), label="attention", shrink=0.8)
        for axis in axes.flat:
            if not axis.has_data():
                axis.axis("off")
    return axes


def _ticks(matrix: np.ndarray) -> np.ndarray:
    step = -(-len(matrix) // 8)
    return np.arange(0, len(matrix), step)


def _draw_curves(row: Any, result: GampResult) -> None:
    """Draw training loss and gradient norm of message passing and, behind it, of the descent that finished the run."""
    phases: list[tuple[str, str, int, Any]] = [("message passing", COLOURS["semantic"], 0, result.history)]
    if result.settling_history is not None:
        begin = len(result.history.train_loss) - 1
        phases.append(("descent", COLOURS["positional"], begin, result.settling_history))
    for label, colour, begin, curve in phases:
        steps = begin + np.arange(len(curve.train_loss))
        above = curve.train_loss - result.train_loss
        above = np.where(above > 1e-14 * abs(result.train_loss), above, np.nan)
        row[0].plot(steps, curve.train_loss, color=colour)
        row[1].semilogy(steps, above, color=colour)
        row[2].semilogy(steps, curve.gradient_norm, color=colour, label=label)
    row[0].axhline(result.train_loss, color=GREY, lw=0.8, ls="--")
    if len(phases) > 1:
        row[2].legend(frameon=False, fontsize=8)
    row[0].set(title=r"training loss $\epsilon_t$", xlabel="iteration")
    row[1].set(title=r"$\epsilon_t$ above its end", xlabel="iteration")
    row[2].set(title=r"gradient norm $\|\nabla R\|/\lambda\sqrt{d}$", xlabel="iteration")


def _draw_starts(axis: Any, result: GampResult) -> None:
    """Draw the training losses of all starts when they ended or were stopped; diamonds have the selected weights."""
    drawn = set()
    for place, record in enumerate(sorted(result.starts, key=lambda each: each.train_loss), 1):
        name = record.name.rpartition(" ")[0] or record.name
        colour, marker = KINDS.get(name, DARK), "D" if record.agreement >= AGREEMENT else "o"
        face = colour if record.status is not None else "white"
        axis.plot(place, record.train_loss, marker, color=colour, mfc=face, ms=6)
        drawn.add((name, colour))
        if record.kept:
            axis.plot(place, record.train_loss, "o", ms=13, mfc="none", color=DARK, label="selected")
    for name, colour in sorted(drawn):
        axis.plot([], [], "s", color=colour, label=name)
    agreeing = sum(record.agreement >= AGREEMENT for record in result.starts)
    axis.plot([], [], "D", color=GREY, label=f"{agreeing} with (nearly)\nthe selected weights")
    axis.plot([], [], "o", color=GREY, label=f"{len(result.starts) - agreeing} with others")
    axis.plot([], [], "s", color=GREY, mfc="white", label="stopped early")
    axis.set(title=r"$\epsilon_t$ of all starts when stopped", xlabel="start, in order of loss")
    axis.set_xticks(range(1, len(result.starts) + 1))
    axis.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
