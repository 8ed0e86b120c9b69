"""Draw the picture of the README on training from random weights: minima of four methods on the same arrays.

Usage: python minima_picture.py [FILE]
"""

import sys

import numpy as np
from matplotlib.axes import Axes

import gamp_attention as ga
from gamp_attention.extensions.comparison.figures import figure

DIMENSION, N_STARTS = 200, 8  # numbers per token, and number of random initial weights of each method
METHODS = {
    "Adam": lambda data, Q: ga.minimize_risk(data, Q, method="adam", lr=0.05, max_iter=1500),
    "L-BFGS": lambda data, Q: ga.minimize_risk(data, Q, method="lbfgs"),
    "GAMP": lambda data, Q: ga.run_gamp(data, Q),
    "survey\npropagation": lambda data, Q: ga.train(data, Q, survey=True, n_starts=1, escape=False),
}
COLORS = ("#CC79A7", "#009E73", "#E69F00", "#0072B2")  # Okabe and Ito


def main(file: str = "minima.png") -> None:
    """Draw the picture into a file, unless the file exists and is not a picture of this package."""
    with figure(file, 1, 1, (6.4, 3.4), overwrite=False) as axes:
        draw(axes[0, 0])


def draw(axis: Axes) -> None:
    """Train on arrays of tokens and outputs from random weights, and draw the training losses at the ends."""
    teacher = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), DIMENSION, alpha=1.0, seed=0)
    data = ga.Dataset(teacher.tokens, teacher.outputs, teacher.positions)  # the arrays only, without the teacher
    starts = np.random.default_rng(0).standard_normal((N_STARTS, DIMENSION, 1))
    informed = 1e3 * ga.run_gamp(data, teacher.Q_star).train_loss
    for k, ((name, train), color) in enumerate(zip(METHODS.items(), COLORS, strict=True)):
        losses = np.sort([1e3 * train(data, Q).train_loss for Q in starts])
        axis.plot(k + np.linspace(-0.2, 0.2, N_STARTS), losses, "o", color=color, alpha=0.8)
        label = name.replace("\n", " ")
        print(f"{label}: training losses {losses[0]:.3f} to {losses[-1]:.3f}, in units of 0.001")
    axis.axhline(informed, color="0.4", linestyle="--", linewidth=1)
    axis.annotate("minimum next to the teacher's weights", (-0.4, informed), (0, 4), textcoords="offset points")
    axis.set(xticks=range(len(METHODS)), xlim=(-0.5, len(METHODS) - 0.5), ylabel="training loss, in units of 0.001")
    axis.set_xticklabels(METHODS)
    axis.set_ylim(bottom=0)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main(*sys.argv[1:])
