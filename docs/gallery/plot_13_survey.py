r"""
Lower minima from random starts
===============================

The training loss of an attention layer has many minima, and most methods end in a minimum of high loss if they start
from random weights. This example trains a layer on :math:`n=d` samples, from the same random weights, by L-BFGS, by
Adam, by GAMP, and by GAMP that begins with survey propagation. :doc:`../survey` explains the method, and when it does
not help.
"""

# %%
# The data
# --------
# A teacher produces the outputs. Training does not use its weights; they only serve as a reference.

import time

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), d=200, alpha=1.0, seed=0)
informed = ga.run_gamp(data, init="semantic")  # starts from the teacher's weights
print(f"training loss of the minimum next to the teacher: {informed.train_loss:.6f}")


def overlap(Q):
    """Return the absolute value of the cosine of the angle between Q and the weights of the teacher."""
    return abs(np.sum(Q * data.Q_star)) / np.linalg.norm(Q) / np.linalg.norm(data.Q_star)


# %%
# The methods
# -----------
# All methods except the last start from the same three random weights. The last method starts from weights that are
# computed from the data (:doc:`../starts`); for this data set it finds the same minimum as survey propagation.

rng = np.random.default_rng(1)
starts = rng.standard_normal((3, data.dim, data.rank))
methods = {
    "L-BFGS": lambda Q: ga.minimize_risk(data, Q, method="lbfgs"),
    "Adam": lambda Q: ga.minimize_risk(data, Q, method="adam", lr=0.05, max_iter=1000),
    "GAMP": lambda Q: ga.run_gamp(data, Q),
    "survey propagation": lambda Q: ga.train(data, Q, survey=True, n_starts=1, escape=False),
    "8 spectral starts": lambda Q: ga.train(data, "spectral", n_starts=8, survey=False, escape=False),
}
ends = {}
for name, train in methods.items():
    ends[name], begin = [], time.perf_counter()
    for Q in starts if "spectral" not in name else starts[:1]:
        result = train(Q)
        ends[name].append((result.train_loss, overlap(result.Q)))
    seconds = (time.perf_counter() - begin) / len(ends[name])
    losses, cosines = np.transpose(ends[name])
    print(
        f"{name:<20}loss {losses.min():.6f} to {losses.max():.6f}, cosine with the teacher {cosines.min():.2f} to "
        f"{cosines.max():.2f}, {seconds:.1f} s per run"
    )

# %%
# The surveys of the last run
# ---------------------------
# A survey that collapses has found a single minimum, from which GAMP continues to zero gradient. Surveys end as soon as
# two of them find the same weights.

result = ga.train(data, starts[0], survey=True, n_starts=1, escape=False)
for record in result.surveys:
    print(record)
print(result)

# %%
# The picture shows the minima. Lower is a better fit of the training data, and further to the right is closer to the
# teacher.

figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
colors, markers = ("#E69F00", "#CC79A7", "#0072B2", "#D55E00", "#009E73"), "sdov^"
for (name, values), color, marker in zip(ends.items(), colors, markers, strict=True):
    losses, cosines = np.transpose(values)
    axes.plot(cosines, losses, marker, color=color, ms=8, alpha=0.8, label=name)
axes.axhline(informed.train_loss, color="0.6", lw=1, zorder=0, label="start from the teacher's weights")
axes.set(xlabel="cosine with the teacher's weights", ylabel=r"training loss $\epsilon_t$", xlim=(0, 1))
axes.legend(frameon=False)
