"""Figures of comparisons, phase diagrams and fits. They need matplotlib."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.files import PICTURE, SIGNATURE, as_path, require_replaceable, write_atomically
from gamp_attention.extensions.train.runs import AGREEMENT
from gamp_attention.extensions.train.train import TrainResult

if TYPE_CHECKING:
    from gamp_attention.extensions.comparison.comparison import Branch, Comparison
    from gamp_attention.extensions.phases.phase_boundaries import PhaseBoundaries


COLORS = {"semantic": "#0072B2", "positional": "#D55E00", "random": "#009E73"}  # Okabe and Ito
GREY, DARK = "#999999", "#333333"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#333333", "#999999")  # Okabe and Ito
BOUNDARIES = (
    ("alpha_c", "α_c: equal training loss", {"color": DARK, "fmt": "o-"}),
    ("alpha_l", "α_l: attention beats the linear baseline", {"color": DARK, "fmt": "s--", "mfc": "white"}),
    ("semantic_from", "semantic branch appears", {"color": COLORS["semantic"], "fmt": "^:"}),
    ("semantic_stable_from", "semantic branch becomes stable", {"color": COLORS["semantic"], "fmt": "P-"}),
    ("positional_to", "positional branch ends", {"color": COLORS["positional"], "fmt": "v:"}),
    ("positional_stable_to", "positional branch becomes unstable", {"color": COLORS["positional"], "fmt": "*-"}),
)
STYLE: Any = {
    "axes.prop_cycle": f"cycler('color', {list(PALETTE)})",
    "axes.spines.top": False, "axes.spines.right": False,
    "font.size": 10, "axes.titlesize": 10.5, "figure.titlesize": 11, "xtick.labelsize": 9, "ytick.labelsize": 9,
    "legend.fontsize": 9, "legend.frameon": False,
}  # fmt: skip
LABELS = {"q": "$q$", "m": "$m_1$", "theta": r"$\theta$", "V": "$V$"}
WORDS = {  # names of numbers, for titles and axes
    "q": "squared norm $q$", "m": "overlap with positions $m_1$", "theta": r"overlap with teacher $\theta$",
    "V": "variance of fields $V$", "train_loss": r"training loss $\epsilon_t$",
    "test_error": r"test error $\epsilon_g$", "gradient": r"gradient norm $\|\nabla R\|/\lambda\sqrt{d}$",
}  # fmt: skip
ALPHA, OMEGA, LAMBDA = "samples per dimension α = n/d", "positional fraction ω", "penalty λ"


def plot_comparison(
    comparison: "Comparison", path: str | Path | None = None, overwrite: bool = False, all_panels: bool = False
) -> np.ndarray:
    """Draw a comparison: theory, GAMP and gradient descent at each iteration, with one legend.

    The axis of iterations is logarithmic after the first five.

    Parameters
    ----------
    comparison : result of `compare`.
    path : a file to save the picture to; if not given, the figure stays open in pyplot.
    overwrite : replace a file at `path` even if it is not a picture that this package saved.
    all_panels : whether to draw q too, a row of panels for each branch, and the ends of all solvers.

    Returns
    -------
    array (1, 4) of matplotlib Axes: the overlaps θ with the teacher and m with the positions, V, and gradient norms.
        With `all_panels`, one row for each branch: θ, m, V, q and the gradient norms.

    Raises
    ------
    ImportError : if matplotlib is not installed; install gamp-attention[plot].
    TypeError : if `comparison` is no result of `compare`.
    ValueError : if matplotlib cannot write the format of `path`, or `path` is a file that must not be replaced.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), lam=0.1)
    >>> comparison = ga.compare(model, d=60, alpha=1.5, gd_steps=20)
    >>> ga.plot_comparison(comparison).shape
    (1, 4)
    """
    check.require_attributes("comparison", comparison, "a result of compare", "branches", "heading", "settings")
    check.flag("all_panels", all_panels)
    branches, settings = comparison.branches, comparison.settings
    count, keys = len(branches), ("theta", "m", "V", *(["q"] if all_panels else []))
    shape, size = ((2 * count, 3), (9.8, 1.0 + 5.4 * count)) if all_panels else ((2, 2), (8.5, 7.4))
    with figure(path, *shape, size, overwrite) as grid:
        panels = grid.reshape(count, 6)[:, :5] if all_panels else np.repeat(grid.reshape(1, 4), count, axis=0)
        ends = [max(len(branch.gamp.history.q) - 1, branch.descent.n_iter) for branch in branches]
        for row, branch, end in zip(panels, branches, ends if all_panels else [max(ends)] * count, strict=True):
            for axis, key in zip(row, keys, strict=False):
                _draw_overlap(axis, branch, key, end, all_panels)
            _draw_gradient(row[-1], branch)
        for unused in grid.reshape(count, 6)[:, 5] if all_panels else ():
            unused.axis("off")
        draw_legend(*panels.flat, columns=2)
        grid[0, 0].figure.suptitle(
            f"{comparison.heading('d', 'alpha', 'omega', 'lam')}, {settings['risk']} risk, seed {settings['seed']}"
        )
    return panels if all_panels else panels[:1]


def _draw_overlap(axis: Any, branch: "Branch", key: str, end: int, everything: bool) -> None:
    """Draw theory, GAMP and gradient descent for one scalar up to iteration `end`; with `everything`, all results."""
    color, name, descent = COLORS.get(branch.name, DARK), branch.name, branch.descent
    pale = {"color": color, "alpha": 0.55}
    values, error = branch.predicted.scalars()[key], branch.predicted.error.scalars()[key]
    axis.plot(values, color=color, lw=1.5, label=f"{name}: theory of GAMP")
    axis.fill_between(np.arange(len(values)), values - 2 * error, values + 2 * error, color=color, alpha=0.3, lw=0)
    axis.set(title=WORDS[key], xlabel="iteration")
    axis.margins(y=0.15)
    axis.plot(branch.gamp.history.scalars()[key], "o", ms=3.5, color=color, label=f"{name}: GAMP")
    axis.axhline(branch.rows[0].values[key], color=color, lw=0.8, ls=":", label=f"{name}: fixed point of the theory")
    # V of a descent is known at its end only
    steps, shown, values = descent.iterations, np.array([-1]), np.array([branch.rows[2].values[key]])
    if key != "V" and branch.predicted_descent is not None:
        axis.plot(branch.predicted_descent.scalars()[key], "--", lw=1.5, **pale, label=f"{name}: theory of descent")
    if key != "V":
        late = np.searchsorted(steps, np.geomspace(5, end, 20)).clip(max=len(steps) - 1)
        shown = np.unique([*np.flatnonzero(steps <= 20), *late])
        values = descent.history.scalars()[key][shown]
    axis.plot(steps[shown], values, "s", ms=4, mfc="white", **pale, label=f"{name}: gradient descent")
    for row, marker, shift in zip(branch.rows[1:] if everything else [], "osD", (1.3, 1.75, 2.35), strict=False):
        style = {"color": color if marker == "o" else GREY, "mec": DARK, "ms": 6, "clip_on": False}
        axis.plot(shift * end, row.values[key], marker, **style, label=f"end: {row.name}")
    ticks = [time for time in (0, 5, 20, 60, 200, 600, 2000, 6000) if time <= end]
    axis.set_xscale("asinh", linear_width=5)
    axis.set_xticks(ticks, [str(time) for time in ticks])
    axis.set_xlim(-0.5, (2.6 if everything else 1.2) * end)


def _draw_gradient(axis: Any, branch: "Branch") -> None:
    """Draw the gradient norms of GAMP and of gradient descent, which are zero at the end in theory."""
    style: Any = {"color": COLORS.get(branch.name, DARK), "label": f"{branch.name}: GAMP"}
    norms, descent = branch.gamp.history.gradient_norm, branch.descent
    axis.loglog(1 + np.arange(len(norms)), norms, "o", ms=3.5, **style)
    style |= {"ms": 4, "mfc": "white", "alpha": 0.55, "label": f"{branch.name}: gradient descent"}
    axis.loglog(1 + descent.iterations, descent.history.gradient_norm, "s", **style)
    axis.set(title=WORDS["gradient"], xlabel="iteration + 1")


def plot_phase_diagram(
    boundaries: "PhaseBoundaries", path: str | Path | None = None, overwrite: bool = False
) -> np.ndarray:
    """Draw a phase diagram: α_c, α_l and the α at which branches appear and become stable, against ω.

    Parameters
    ----------
    boundaries : result of `phase_boundaries`.
    path, overwrite : as for `plot_comparison`.

    Returns
    -------
    array (1, 1) of matplotlib Axes.

    Raises
    ------
    ImportError, ValueError : as for `plot_comparison`.
    TypeError : if `boundaries` is no result of `phase_boundaries`.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> pb = ga.phase_boundaries(ga.paper_model(), omegas=[0.3], alphas=(1.0, 2.0))
    >>> ga.plot_phase_diagram(pb)[0, 0].get_ylabel()
    'samples per dimension α = n/d'
    """
    check.require_attributes("boundaries", boundaries, "a result of phase_boundaries", "line", "lines", "values")
    across = boundaries.values
    with figure(path, 1, 1, (7.5, 5.4), overwrite) as axes:
        axis = axes[0, 0]
        for name, label, style in BOUNDARIES:
            value, error = boundaries.line(name)
            if np.isfinite(value).any():
                axis.errorbar(across, value, error, label=label, capsize=2, ms=6, **style)
        axis.set(xlabel=OMEGA, ylabel=ALPHA, ylim=(0, None))
        draw_legend(axis, columns=2)
    return axes


def draw_legend(*axes: Any, columns: int, **style: Any) -> None:
    """Draw one legend below the picture with all labels of the axes, each once."""
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    axes[0].figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, **style)


def require_format(name: str, path: str | Path) -> str:
    """Return the format of a picture by the suffix of its path; raise ValueError if matplotlib cannot write it."""
    check.require_module("a picture", "matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    formats, suffix = FigureCanvasBase.get_supported_filetypes(), as_path(name, path).suffix[1:].lower()
    if suffix not in formats:
        raise check.fail(name, str(path), f"the name of a picture, which ends in one of {', '.join(sorted(formats))}")
    return suffix


@contextmanager
def figure(
    path: str | Path | None, rows: int, columns: int, size: tuple[float, float], overwrite: bool = True
) -> Iterator[np.ndarray]:
    """Yield the axes (rows, columns) of a figure in the style of the package, which is saved to `path` at the end.

    The figure is `axes[0, 0].figure`. Without a path it is a figure of pyplot and stays open. Unless `overwrite` is
    True, a file at `path` is replaced only if it is a picture that this package saved.
    """
    kind = require_format("path", "picture.png" if path is None else path)
    check.flag("overwrite", overwrite)
    from matplotlib import rc_context

    with rc_context(STYLE):
        if path is None:
            from matplotlib import pyplot

            yield pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)[1]
        else:
            from matplotlib.figure import Figure  # needs no screen and is not registered in pyplot

            require_replaceable("path", path, PICTURE, overwrite)
            drawing = Figure(figsize=size, layout="constrained")
            yield drawing.subplots(rows, columns, squeeze=False)
            marked: dict[str, Any] = {"format": kind, "dpi": 150}
            if kind in ("png", "pdf", "ps", "eps", "svg", "svgz"):  # formats with metadata
                marked["metadata"] = {"Software" if kind == "png" else "Creator": SIGNATURE}
            write_atomically(path, lambda file: drawing.savefig(file, **marked), kind=PICTURE, overwrite=overwrite)


def plot_fit(
    result: TrainResult, attention: np.ndarray, path: str | Path | None = None, overwrite: bool = False
) -> np.ndarray:
    """Draw loss and gradient of a run, its starts, and attention matrices (n, L, L) of samples; return axes (2, 3)."""
    with figure(path, 2, 3, (9.0, 6.2), overwrite) as axes:
        curves: list[Any] = [("message passing", COLORS["semantic"], 0, result.history)]
        if result.settling_history is not None:
            begin = len(result.history.train_loss) - 1
            curves.append(("descent", COLORS["positional"], begin, result.settling_history))
        for label, color, begin, curve in curves:
            steps, above = begin + np.arange(len(curve.train_loss)), curve.train_loss - result.train_loss
            axes[0, 0].semilogy(steps, np.where(above > 1e-14 * abs(result.train_loss), above, np.nan), color=color)
            axes[0, 1].semilogy(steps, curve.gradient_norm, color=color, label=label)
        axes[0, 0].set(title=f"{WORDS['train_loss']}\nminus its value at the end", xlabel="iteration")
        axes[0, 1].set(title=WORDS["gradient"], xlabel="iteration")
        axes[0, 1].legend()
        _draw_starts(axes[0, 2], result)
        shown = [("mean over all samples", attention.mean(axis=0))]
        shown += [(f"sample {row}", attention[row]) for row in sorted({0, len(attention) - 1})]
        ticks = np.arange(0, len(attention[0]), -(-len(attention[0]) // 8))
        for axis, (title, matrix) in zip(axes[1], shown, strict=False):
            image = axis.imshow(matrix, "Blues", vmin=min(0.0, float(attention.min())), vmax=1.0)
            axis.set(
                title=f"attention,\n{title}", xlabel="attends to token", ylabel="token", xticks=ticks, yticks=ticks
            )
        axes[0, 0].figure.colorbar(image, ax=list(axes[1]), label="attention", shrink=0.7)
        for axis in axes[1, len(shown) :]:
            axis.axis("off")
    return axes


def _draw_starts(axis: Any, result: TrainResult) -> None:
    """Draw the training losses of all starts when they ended or were stopped; diamonds have the selected weights."""
    labels = {"D": "(nearly) the selected weights", "o": "other weights"}
    for place, record in enumerate(sorted(result.starts, key=lambda start: start.train_loss), 1):
        marker = "D" if record.agreement >= AGREEMENT else "o"
        face = "white" if record.status is None else COLORS["semantic"]
        axis.plot(place, record.train_loss, marker, color=COLORS["semantic"], mfc=face, label=labels.get(marker))
        if record.kept:
            axis.plot(place, record.train_loss, "o", ms=13, mfc="none", color=DARK, label="selected")
    axis.set(title=f"{WORDS['train_loss']} of all starts,\nopen: stopped early", xlabel="start, in order of loss")
    axis.set_xticks(range(1, len(result.starts) + 1))
    axis.ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=True)
    draw_legend(axis, columns=3)
