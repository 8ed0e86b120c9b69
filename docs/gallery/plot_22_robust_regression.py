"""
Robust regression with outliers
===============================

A tenth of the labels of a linear regression is replaced by noise. Huber's loss limits the influence of such outliers,
and Tukey's loss, which is not convex, removes it. This example trains with both losses and compares the errors of the
weights. :doc:`/extend` also uses state evolution, which determines the best λ and widths.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga


# %%
# The label of a sample is a function of the teacher's field u and of two standard normal numbers. The second number
# determines whether the label is an outlier, which happens with probability 0.1.
def label(u, noise):
    """Return u + √0.1 N(0, 1), or N(0, 1) for an outlier."""
    return np.where(noise[1] < -1.28155, noise[0], u[0, 0] + np.sqrt(0.1) * noise[0])


# %%
# The losses of a label and a prediction, with widths near the optimum. The package differentiates and compiles them.
def huber(label, prediction, width=0.35):
    """Return t²/2 for a residual |t| ≤ width; beyond, the loss is linear."""
    t = np.abs(label - prediction)
    return np.where(t < width, 0.5 * t * t, width * (t - 0.5 * width))


def tukey(label, prediction, width=1.5):
    """Return a loss that is constant for residuals larger than the width."""
    rest = np.maximum(1 - ((label - prediction) / width) ** 2, 0.0)
    return width**2 / 6 * (1 - rest**3)


# %%
# Both losses are trained from random weights on the same samples.
ALPHAS, SIZE, INSTANCES = (2.0, 3.0, 5.0, 10.0), 300, 6
figure, axis = plt.subplots(figsize=(5.4, 4), layout="constrained")
for loss, convex, lam, color in ((huber, True, 0.03, "#0072B2"), (tukey, False, 0.06, "#D55E00")):
    model = ga.sequence_model(label, lambda z: z[0, 0], loss, n_tokens=1, rank=1, n_noise=2, lam=lam, convex=convex)
    errors = np.zeros((len(ALPHAS), INSTANCES))
    for (i, seed), _ in np.ndenumerate(errors):
        data = ga.sample(model, SIZE, ALPHAS[i], seed=seed)
        errors[i, seed] = np.sum((ga.run_gamp(data, "random").Q - data.Q_star) ** 2) / SIZE
    mean, spread = errors.mean(axis=1), errors.std(axis=1, ddof=1) / INSTANCES**0.5
    name = loss.__name__.capitalize()
    print(f"{name}: errors {mean.round(4)} for α = {ALPHAS}")
    axis.errorbar(ALPHAS, mean, spread, fmt="o-", color=color, label=f"{name}'s loss, d = {SIZE}")
axis.set(xscale="log", yscale="log", xlabel="samples per dimension α", ylabel=r"error $\|Q - Q^*\|^2/d$")
axis.set_xticks(ALPHAS, [f"{alpha:g}" for alpha in ALPHAS])
axis.set_xticks([], minor=True)
axis.legend()
plt.show()
