"""Figures, drawn from results that are already there. Needs matplotlib."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention._core.files import write_aside

if TYPE_CHECKING:
    from gamp_attention.experiments.comparison.result import Comparison
    from gamp_attention.experiments.phase_diagram.phase_boundaries import PhaseBoundaries

COLOURS = {"semantic": "#0072B2", "positional": "#D55E00", "random": "#009E73"}  # Okabe and Ito
GREY, DARK = "#999999", "#333333"
BOUNDARIES = (
    ("alpha_c", "α_c: equal training loss", {"color": DARK, "fmt": "o-"}),
    ("alpha_l", "α_l: attention beats the linear baseline", {"color": DARK, "fmt": "s--", "mfc": "white"}),
    ("semantic_from", "semantic branch appears", {"color": COLOURS["semantic"], "fmt": "^:"}),
    ("semantic_stable_from", "semantic branch becomes stable", {"color": COLOURS["semantic"], "fmt": "^-"}),
    ("positional_to", "positional branch ends", {"color": COLOURS["positional"], "fmt": "v:"}),
    ("positional_stable_to", "positional branch becomes unstable", {"color": COLOURS["positional"], "fmt": "v-"}),
)
STYLE: Any = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}
LABELS = {"q": "$q$", "m": "$m_1$", "theta": r"$\theta$", "V": "$V$"}


def plot_comparison(comparison: "Comparison", path: str | Path) -> None:
    """Save the picture of `gamp-attention compare`: trajectories and end points, one row for each branch."""
    rows = len(comparison.branches)
    with figure(path, rows, 5, (15, 1.2 + 2.4 * rows)) as axes:
        _draw_comparison(comparison, axes)


def _draw_comparison(comparison: "Comparison", axes: Any) -> None:
    instance = f"GAMP, seed {comparison.settings['seed']}"
    for row, branch in zip(axes, comparison.branches, strict=True):
        colour = COLOURS[branch.name]
        seen, predicted = branch.gamp.history.scalars(), branch.predicted.scalars()
        error, time = branch.predicted.error.scalars(), np.arange(len(predicted["q"]))
        n_seen = min(len(time), len(seen["q"]))
        for axis, key in zip(row, LABELS, strict=False):
            spread = np.sqrt((branch.instances[key] ** 2).mean(axis=0))
            axis.fill_between(
                time,
                predicted[key] - spread,
                predicted[key] + spread,
                color=colour,
                alpha=0.2,
                lw=0,
                label="spread of other instances around theirs",
            )
            axis.plot(time, predicted[key], color=DARK, lw=1.5, label="state evolution of this instance")
            low, high = predicted[key] - 2 * error[key], predicted[key] + 2 * error[key]
            axis.fill_between(time, low, high, color=DARK, alpha=0.3, lw=0, label="its sampling error, 2 s.e.")
            axis.plot(
                time[:n_seen],
                seen[key][:n_seen],
                "o",
                ms=4,
                color=colour,
                label=instance,
            )
            ends = {r.name: r.values[key] for r in branch.rows}
            axis.axhline(
                ends["state evolution"], color=GREY, lw=0.8, ls="--", label="fixed point of state evolution, d → ∞"
            )
            for marker, (name, value), shift in zip("sD^", list(ends.items())[2:], (1.5, 2.5, 3.5), strict=False):
                axis.plot(time[-1] + shift, value, marker, color=GREY, mec=DARK, ms=6, label=name, clip_on=False)
            axis.set_title(LABELS[key])
            axis.set_xlabel("iteration")
            axis.margins(y=0.15)
        _gradients(row[4], branch, colour)
        row[0].set_ylabel(f"{branch.name} branch", color=colour, fontsize=12)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    axes[0, 0].figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    axes[0, 0].figure.suptitle(
        comparison.heading("d", "alpha", "omega", "lam") + f", {comparison.settings['risk']} risk; "
        "squares, diamonds and triangles are where descents end"
    )


def _gradients(axis: Any, branch: Any, colour: str) -> None:
    norms = branch.gamp.history.gradient_norm
    descent = branch.descent
    axis.loglog(1 + np.arange(len(norms)), norms, color=colour)
    axis.loglog(1 + descent.iterations, descent.history.gradient_norm, color=GREY)
    axis.annotate("GAMP ", (len(norms), norms[-1]), ha="right", color=colour)
    end = 1 + descent.iterations[-1], descent.history.gradient_norm[-1]
    axis.annotate("gradient\ndescent", end, (0, -6), textcoords="offset points", ha="right", va="top", color=GREY)
    axis.set_title(r"$\|\nabla R\|/\lambda\sqrt{d}$")
    axis.set_xlabel("iteration")


def plot_boundaries(found: "PhaseBoundaries", path: str | Path) -> None:
    """Save the phase diagram: α_c, α_l and where branches appear and become stable, against the parameter varied."""
    across = np.arange(1, len(found.values) + 1) if found.parameter == "A" else found.values
    with figure(path, 1, 1, (6.4, 4.4)) as axes:
        axis = axes[0, 0]
        for name, label, style in BOUNDARIES:
            value, error = found.line(name)
            if np.isfinite(value).any():
                axis.errorbar(across, value, error, label=label, capsize=2, ms=4, **style)
        names = {"omega": "ω", "lam": "λ", "sigma": "σ", "A": "number of the matrix A"}
        axis.set(xlabel=names[found.parameter], ylabel="α = n/d", ylim=(0, None))
        axis.legend(frameon=False, fontsize=9)


def require_matplotlib() -> Any:
    """Import matplotlib without a screen.

    Raises
    ------
    ImportError : saying how to install it.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'gamp-attention[plot]'") from error
    matplotlib.use("Agg")
    return matplotlib


def require_format(path: str | Path) -> str:
    """The format that the name of a picture asks for.

    Raises
    ------
    ImportError : without matplotlib.
    ValueError : if matplotlib does not write it.
    """
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    known, suffix = FigureCanvasBase.get_supported_filetypes(), Path(path).suffix[1:].lower()
    if suffix not in known:
        raise ValueError(f"pictures need a name that ends in one of {', '.join(sorted(known))}")
    return suffix


@contextmanager
def figure(path: str | Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """Axes (rows, columns) in the house style, saved to `path` at the end; their figure is `axes[0, 0].figure`."""
    kind = require_format(path)
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        drawing, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
        try:
            yield axes
            write_aside(path, lambda file: drawing.savefig(file, format=kind, dpi=150))
        finally:
            plt.close(drawing)
