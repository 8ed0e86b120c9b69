"""Parts that several pictures have in common."""

from typing import Any

import numpy as np

from gamp_attention.experiments.figures import COLOURS, require_matplotlib


def build_branch_colormap(missing: str) -> Any:
    """Return a colour map from the positional branch (negative) over white to the semantic branch (positive).

    `missing` is the colour of cells without a number.
    """
    require_matplotlib()
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list("two kinds", [COLOURS["positional"], "#FFFFFF", COLOURS["semantic"]])
    colours.set_bad(missing)
    return colours


def draw_means(
    axis: Any, x: np.ndarray, mean: np.ndarray, error: np.ndarray, judged: np.ndarray, colour: str, label: str
) -> None:
    """Draw means of GAMP with bars of two standard errors; markers are filled if a criterion applies, else empty."""
    for chosen, fill, words in ((judged, colour, "GAMP"), (~judged, "white", "GAMP, not judged")):
        axis.errorbar(
            x[chosen], mean[chosen], 2 * error[chosen], fmt="o", ms=4.5, capsize=2, lw=1, color=colour, mfc=fill,
            label=f"{label}, {words}",
        )  # fmt: skip


def draw_legend(*axes: Any, columns: int, **style: Any) -> None:
    """Draw one legend below the picture with all labels of the axes, each once."""
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    axes[0].figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False, **style
    )
