"""Draw the picture of the README: predicted and measured training loss of two solutions as the number of samples grows.

Usage: python first_picture.py [FILE]
"""

import sys

import numpy as np
from matplotlib.axes import Axes

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import figure

DIMENSION = 2000  # numbers per token of the data sets that are trained on
COLORS = {"semantic": "#0072B2", "positional": "#D55E00"}  # Okabe and Ito
LABELS = {"semantic": ("attention\nby content", (-14, -44)), "positional": ("attention\nby position", (-74, -2))}


def main(file: str = "first_picture.png") -> None:
    """Draw the picture into a file, unless the file exists and is not a picture of this package."""
    with figure(file, 1, 1, (6.4, 3.8), overwrite=False) as axes:
        crossing = draw(axes[0, 0])
    print(f"The solutions have equal training loss at n/d = {crossing:.2f}. Picture: {file}")


def draw(axis: Axes) -> float:
    """Draw training losses, predicted at 13 and trained at 5 numbers of samples, and return n/d of the crossing."""
    model = ga.paper_model(omega=0.3)
    alphas = np.linspace(0.8, 2.0, 13)
    data_sets = {alpha: ga.sample(model, DIMENSION, alpha, seed=0) for alpha in alphas[::3]}
    losses = {}
    for start, color in COLORS.items():
        predictions = [ga.solve_state_evolution(model, alpha, start, rtol=2e-3, stability=False) for alpha in alphas]
        losses[start] = 1e3 * np.array([prediction.train_loss for prediction in predictions])
        axis.plot(alphas, losses[start], color=color)
        trained = [1e3 * ga.run_gamp(data, start).train_loss for data in data_sets.values()]
        axis.plot(list(data_sets), trained, "o", color=color)
        text, offset = LABELS[start]
        axis.annotate(text, (alphas[-1], losses[start][-1]), offset, textcoords="offset points", color=color)
    crossing = np.interp(0, losses["positional"] - losses["semantic"], alphas)
    axis.axvline(crossing, color="0.4", linestyle="--", linewidth=1)
    axis.annotate(
        "content has the lower loss →", (crossing, losses["positional"][0]), (6, 0), textcoords="offset points"
    )
    axis.plot([], [], color="0.2", label="predicted")
    axis.plot([], [], "o", color="0.2", label="trained on data")
    axis.set(xlabel="number of samples / dimension of a token, n/d", ylabel="training loss, in units of 0.001")
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.08)
    axis.legend(frameon=False, loc="upper left")
    return float(crossing)


if __name__ == "__main__":
    main(*sys.argv[1:])
