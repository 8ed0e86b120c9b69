"""Figures of comparisons, trajectories, phase diagrams, fits and regularization paths. They need matplotlib."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.files import PICTURE, picture_metadata, require_replaceable, write_atomically
from gamp_attention._tools.optional import require_modules
from gamp_attention.extensions.dynamics.replicas import Trajectory
from gamp_attention.extensions.inference.paths import RegularizationPath
from gamp_attention.extensions.train.records import AGREEMENT
from gamp_attention.extensions.train.train import TrainResult
from gamp_attention.gamp.result import GampResult
from gamp_attention.results import History

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
    all_panels : whether to draw q too, a row of panels for each branch, the ends of all solvers, and the spread of the
        other `instances` around their predictions.

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
    pale, seen = {"color": color, "alpha": 0.55}, branch.gamp.history.scalars()[key]
    if everything and branch.instances:
        spread = np.sqrt((branch.instances[key] ** 2).mean(axis=0))
        band = branch.predicted.scalars()[key] + np.outer((-1, 1), spread)
        axis.fill_between(np.arange(len(spread)), *band, color=color, alpha=0.2, lw=0, label=f"{name}: other instances")
    _draw_prediction(axis, branch.predicted, key, f"{name}: theory of GAMP", color)
    axis.plot(seen, "o", ms=3.5, color=color, label=f"{name}: GAMP")
    axis.axhline(branch.rows[0].values[key], color=color, lw=0.8, ls=":", label=f"{name}: fixed point of the theory")
    if key != "V":
        axis.plot(branch.predicted_descent.scalars()[key], "--", lw=1.5, **pale, label=f"{name}: theory of descent")
        values, steps = descent.history.scalars()[key], descent.iterations
        late = np.searchsorted(steps, np.geomspace(5, end, 20)).clip(max=len(steps) - 1)
        shown = np.unique([*np.flatnonzero(steps <= 20), *late])
        axis.plot(steps[shown], values[shown], "s", ms=4, mfc="white", **pale, label=f"{name}: gradient descent")
    else:  # V of a descent is known at its end only
        axis.plot(descent.n_iter, branch.rows[2].values[key], "s", ms=4, mfc="white", **pale)
    for row, marker, shift in zip(branch.rows[1:] if everything else [], "osD^", (1.3, 1.75, 2.35, 3.1), strict=False):
        style = {"color": color if marker == "o" else GREY, "mec": DARK, "ms": 6, "clip_on": False}
        axis.plot(shift * end, row.values[key], marker, **style, label=f"end: {row.name}")
    ticks = [time for time in (0, 5, 20, 60, 200, 600, 2000, 6000) if time <= end]
    axis.set_xscale("asinh", linear_width=5)
    axis.set_xticks(ticks, [str(time) for time in ticks])
    axis.set_xlim(-0.5, (3.4 if everything else 1.2) * end)


def _draw_gradient(axis: Any, branch: "Branch") -> None:
    """Draw the gradient norms of GAMP and of gradient descent, which are zero at the end in theory."""
    color, norms, descent = COLORS.get(branch.name, DARK), branch.gamp.history.gradient_norm, branch.descent
    axis.loglog(1 + np.arange(len(norms)), norms, "o", ms=3.5, color=color, label=f"{branch.name}: GAMP")
    style = {"ms": 4, "mfc": "white", "color": color, "alpha": 0.55, "label": f"{branch.name}: gradient descent"}
    axis.loglog(1 + descent.iterations, descent.history.gradient_norm, "s", **style)
    axis.set(title=WORDS["gradient"], xlabel="iteration + 1")


def plot_trajectory(
    predicted: Trajectory,
    runs: GampResult | History | Sequence[GampResult | History] = (),
    path: str | Path | None = None,
    overwrite: bool = False,
) -> np.ndarray:
    """Draw a predicted trajectory, and runs of message passing as dots on it.

    Parameters
    ----------
    predicted : result of `trajectory`, drawn as a line with a band of two standard errors.
    runs : results of `run_gamp` or their histories, one or several of equal length; for several runs, the mean is drawn
        with its standard error.
    path, overwrite : as for `plot_comparison`.

    Returns
    -------
    array (1, 4) of matplotlib Axes: q, m, θ and V.

    Raises
    ------
    ImportError, ValueError : as for `plot_comparison`.
    TypeError : if `predicted` is not a trajectory or `runs` are not results of `run_gamp` or histories.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> run = ga.run_gamp(data, "semantic", "asymptotic", damping=0.5, tol=0, max_iter=5)
    >>> predicted = ga.trajectory(data.instance_model(), 1.5, "semantic", n_iter=5, n_paths=256)
    >>> ga.plot_trajectory(predicted, run).shape
    (1, 4)
    """
    check.require_attributes("predicted", predicted, "a gamp_attention.Trajectory", "scalars", "error", "q")
    given: Any = [runs] if hasattr(runs, "history") or hasattr(runs, "scalars") else runs
    histories = [getattr(run, "history", run) for run in given]
    for history in histories:
        check.require_attributes("runs", history, "results of run_gamp, or histories", "scalars")
    seen = [history.scalars() for history in histories]
    with figure(path, 1, len(LABELS), (9.8, 3.0), overwrite) as axes:
        for axis, key in zip(axes[0], LABELS, strict=True):
            _draw_prediction(axis, predicted, key)
            if seen:
                values = np.array([run[key][: len(predicted.q)] for run in seen])
                error = values.std(axis=0, ddof=1) / np.sqrt(len(seen)) if len(seen) > 1 else None
                style = {"fmt": "o", "ms": 4, "color": COLORS["semantic"], "label": "message passing"}
                axis.errorbar(np.arange(values.shape[1]), values.mean(axis=0), error, **style)
        draw_legend(axes[0, 0], columns=3)
    return axes


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


def _draw_prediction(
    axis: Any, predicted: Trajectory, key: str, label: str = "state evolution", color: str = DARK
) -> None:
    values, error = predicted.scalars()[key], predicted.error.scalars()[key]
    axis.plot(values, color=color, lw=1.5, label=label)
    steps, style = np.arange(len(values)), {"color": color, "alpha": 0.3, "lw": 0}
    error_label = "its sampling error, 2 s.e." if color == DARK else None
    axis.fill_between(steps, values - 2 * error, values + 2 * error, label=error_label, **style)
    axis.set(title=WORDS[key], xlabel="iteration")
    axis.margins(y=0.15)


def draw_legend(*axes: Any, columns: int, **style: Any) -> None:
    """Draw one legend below the picture with all labels of the axes, each once."""
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    axes[0].figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, **style)


def require_matplotlib() -> Any:
    """Return the module matplotlib, or raise ImportError with the command to install it."""
    require_modules("a picture", "matplotlib")
    # the import fails if MPLBACKEND has a backend that is not installed, as in processes that a notebook has started
    backend = None if "matplotlib" in sys.modules else os.environ.pop("MPLBACKEND", None)
    import matplotlib

    if backend:
        os.environ["MPLBACKEND"] = backend
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = backend
    return matplotlib


def require_format(path: str | Path) -> str:
    """Return the format of a picture by the suffix of its name; raise ValueError if matplotlib cannot write it."""
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    formats, suffix = FigureCanvasBase.get_supported_filetypes(), Path(path).suffix[1:].lower()
    if suffix not in formats:
        raise ValueError(f"pictures need a name that ends in one of {', '.join(sorted(formats))}")
    return suffix


@contextmanager
def figure(
    path: str | Path | None, rows: int, columns: int, size: tuple[float, float], overwrite: bool = True
) -> Iterator[np.ndarray]:
    """Yield the axes (rows, columns) of a figure in the style of the package, which is saved to `path` at the end.

    The figure is `axes[0, 0].figure`. Without a path it is a figure of pyplot and stays open. Unless `overwrite` is
    True, a file at `path` is replaced only if it is a picture that this package saved.
    """
    matplotlib, kind = require_matplotlib(), None if path is None else require_format(path)
    check.flag("overwrite", overwrite)
    with matplotlib.rc_context(STYLE):
        if path is None:
            from matplotlib import pyplot

            yield pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)[1]
        else:
            from matplotlib.figure import Figure  # needs no screen and is not registered in pyplot

            require_replaceable("path", path, PICTURE, overwrite)
            drawing = Figure(figsize=size, layout="constrained")
            yield drawing.subplots(rows, columns, squeeze=False)
            marked: dict[str, Any] = {"format": kind, "dpi": 150, **picture_metadata(str(kind))}
            write_atomically(path, lambda file: drawing.savefig(file, **marked), kind=PICTURE, overwrite=overwrite)


KINDS = {"spectral": COLORS["semantic"], "random": COLORS["random"], "positional": COLORS["positional"]}


def plot_fit(
    result: TrainResult, attention: np.ndarray, path: str | Path | None = None, overwrite: bool = False
) -> np.ndarray:
    """Draw a run on data: loss and gradient at each iteration, and attention matrices (n, L, L) of samples.

    Returns the axes (2, 4); empty axes are switched off.
    """
    columns = 4
    with figure(path, 2, columns, (9.8, 6.2), overwrite) as axes:
        _draw_curves(axes[0], result)
        _draw_starts(axes[0, 3], result)
        spread = np.linspace(0, len(attention) - 1, min(columns - 1, len(attention))).astype(int)
        shown = [("attention,\nmean over all samples", attention.mean(axis=0))]
        shown += [(f"attention,\nsample {row}", attention[row]) for row in spread]
        matrices = np.array([matrix for _, matrix in shown])
        low, high = min(0.0, float(matrices.min())), max(1.0, float(matrices.max()))
        ticks = np.arange(0, len(matrices[0]), -(-len(matrices[0]) // 8))
        for axis, (title, matrix) in zip(axes[1], shown, strict=False):
            image = axis.imshow(matrix, "Blues", vmin=low, vmax=high)
            axis.set(title=title, xlabel="attends to token", xticks=ticks, yticks=ticks)
            axis.spines[:].set_visible(False)
            if len(matrix) <= 4:
                for (i, j), weight in np.ndenumerate(matrix):
                    pale = weight - low > 0.6 * (high - low)
                    axis.text(j, i, f"{weight:.2f}", ha="center", va="center", color="white" if pale else DARK)
        axes[1, 0].set_ylabel("token")
        axes[1, 0].figure.colorbar(image, ax=list(axes[1, : len(shown)]), label="attention", shrink=0.7)
        for axis in axes.flat:
            if not axis.has_data():
                axis.axis("off")
    return axes


def _draw_curves(row: Any, result: TrainResult) -> None:
    """Draw training loss and gradient norm of message passing, followed by the descent that finished the run."""
    phases: list[tuple[str, str, int, Any]] = [("message passing", COLORS["semantic"], 0, result.history)]
    if result.settling_history is not None:
        begin = len(result.history.train_loss) - 1
        phases.append(("descent", COLORS["positional"], begin, result.settling_history))
    for label, color, begin, curve in phases:
        steps = begin + np.arange(len(curve.train_loss))
        above = curve.train_loss - result.train_loss
        above = np.where(above > 1e-14 * abs(result.train_loss), above, np.nan)
        row[0].plot(steps, curve.train_loss, color=color)
        row[1].semilogy(steps, above, color=color)
        row[2].semilogy(steps, curve.gradient_norm, color=color, label=label)
    row[0].axhline(result.train_loss, color=GREY, lw=0.8, ls="--")
    if len(phases) > 1:
        row[2].legend()
    row[0].ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=True)
    row[0].set(title="training loss\n" + r"$\epsilon_t$", xlabel="iteration")
    row[1].set(title="training loss\n" + r"$\epsilon_t$ − value at the end", xlabel="iteration")
    row[2].set(title="gradient norm\n" + r"$\|\nabla R\|/\lambda\sqrt{d}$", xlabel="iteration")


def _draw_starts(axis: Any, result: TrainResult) -> None:
    """Draw the training losses of all starts when they ended or were stopped; diamonds have the selected weights."""
    drawn = set()
    for place, record in enumerate(sorted(result.starts, key=lambda start: start.train_loss), 1):
        name = record.name.rpartition(" ")[0] or record.name
        color, marker = KINDS.get(name, DARK), "D" if record.agreement >= AGREEMENT else "o"
        face = color if record.status is not None else "white"
        axis.plot(place, record.train_loss, marker, color=color, mfc=face, ms=6)
        drawn.add((name, color))
        if record.kept:
            axis.plot(place, record.train_loss, "o", ms=13, mfc="none", color=DARK, label="selected")
    for name, color in sorted(drawn):
        axis.plot([], [], "s", color=color, label=name)
    agreeing = sum(record.agreement >= AGREEMENT for record in result.starts)
    axis.plot([], [], "D", color=GREY, label=f"{agreeing} with (nearly) the selected weights")
    axis.plot([], [], "o", color=GREY, label=f"{len(result.starts) - agreeing} with other weights")
    axis.plot([], [], "s", color=GREY, mfc="white", label="stopped early")
    axis.set(title="training loss $\\epsilon_t$\nof all starts", xlabel="start, in order of loss")
    axis.set_xticks(range(1, len(result.starts) + 1))
    axis.ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=True)
    draw_legend(axis, columns=3)


def plot_path(path: RegularizationPath, file: str | Path | None = None, overwrite: bool = False) -> Any:
    """Draw estimated test errors with standard errors, training errors, and theory if known; return the axes."""
    order = np.argsort(path.lam)
    lam = path.lam[order]
    with figure(file, 1, 1, (7.5, 4.8), overwrite) as axes:
        axis = axes[0, 0]
        mean, spread = path.test_error[order], path.test_error_error[order]
        label = "cross-validation" if path.form == "folds" else "leave-one-out"
        axis.plot(lam, mean, "o-", ms=4, color=COLORS["semantic"], label=label)
        axis.fill_between(lam, mean - spread, mean + spread, color=COLORS["semantic"], alpha=0.2, lw=0)
        axis.plot(lam, path.in_training[order], color=GREY, label="in training")
        if np.isfinite(path.predicted).any():
            axis.plot(lam, path.predicted[order], "--", color=DARK, label="state evolution")
        doubtful = [k for k, trusted in enumerate(path.trusted) if not trusted]
        if doubtful:
            hollow = {"ms": 4, "mfc": "white", "color": COLORS["semantic"], "label": "not trusted"}
            axis.plot(path.lam[doubtful], path.test_error[doubtful], "o", **hollow)
        best, strong, color = path.lam[path.best], path.lam[path.best_1se], COLORS["positional"]
        axis.axvline(best, color=color, lw=1, label=f"minimum: {best:.3g}")
        if strong != best:
            axis.axvline(strong, color=color, lw=1, ls=":", label=f"within 1 s.e.: {strong:.3g}")
        name = LAMBDA if path.parameter == "lam" else path.parameter
        axis.set(xlabel=name, ylabel=WORDS["test_error"])
        if (lam > 0).all() and len(lam) > 2:
            axis.set_xscale("log")
        draw_legend(axis, columns=2)
    return axes
