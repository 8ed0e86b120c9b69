"""Pictures of the scripts, and parts that several pictures have in common."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gamp_attention._tools.check import require_module
from gamp_attention.extensions.comparison import figures
from gamp_attention.extensions.comparison.figures import COLORS

PAGE = 736 / 96  # width of the text on a page of the manual, inches: 736 CSS pixels
SMALLEST = 7.0  # minimum size of a text on such a page, points
BOUNDARIES = {"alpha_c": r"$\alpha_c$: equal training loss", "alpha_l": r"$\alpha_l$: better than the linear baseline"}


@contextmanager
def figure(path: Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[np.ndarray]:
    """Yield the axes (rows, columns) of a picture, which is saved at the end.

    Raises
    ------
    ValueError : if a text is smaller than 7 points when the picture is as wide as a page of the manual.
    """
    with figures.figure(path, rows, columns, size) as axes:
        yield axes
        _require_legible(axes[0, 0].figure)
    compress(path)


def compress(path: Path) -> None:
    """Store a picture with a palette of 128 colors, at a third of the size."""
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def _require_legible(drawing: Any) -> None:
    from matplotlib.text import Text

    drawing.canvas.draw()  # creates the tick labels
    scale = min(1.0, PAGE / drawing.get_figwidth())
    sizes = {
        text.get_text(): scale * text.get_fontsize()
        for text in drawing.findobj(Text) if text.get_visible() and text.get_text().strip()
    }  # fmt: skip
    small = {text: f"{size:.1f}" for text, size in sizes.items() if size < SMALLEST}
    if small:
        raise ValueError(f"texts of a picture need {SMALLEST:g} points at the width of a page, got {small}")


def build_branch_colormap(missing: str) -> Any:
    """Return a color map from the positional branch (negative) over white to the semantic branch (positive).

    `missing` is the color of cells without a number.
    """
    require_module("a picture", "matplotlib")
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("two kinds", [COLORS["positional"], "#FFFFFF", COLORS["semantic"]])
    colors.set_bad(missing)
    return colors


def draw_means(
    axis: Any, x: np.ndarray, mean: np.ndarray, error: np.ndarray, judged: np.ndarray, color: str, label: str
) -> None:
    """Draw means of GAMP with bars of two standard errors; markers are filled if a criterion applies, else empty."""
    for chosen, fill, words in ((judged, color, "GAMP"), (~judged, "white", "GAMP, not compared")):
        axis.errorbar(
            x[chosen], mean[chosen], 2 * error[chosen], fmt="o", ms=4.5, capsize=2, lw=1, color=color, mfc=fill,
            label=f"{label}, {words}",
        )  # fmt: skip
