"""
Bayes-optimal estimation of two-layer attention
===============================================

A trained model can fail although the data contain enough information. The Bayes-optimal estimate shows how much
information there is. For a teacher that is a plain Python function, the package computes the posterior of a sample from
this function alone. This example estimates both layers of a two-layer attention teacher from its targets, and compares
the overlaps with published results. :doc:`/sequence_models` has more results.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

SIZE = 150


# %%
# The target of a sample of two tokens is the attention matrix of the second layer, which reads the averages that the
# first layer has computed. Column 0 of the fields z (2, 2) belongs to the first layer and column 1 to the second layer.
def softmax(scores):
    """Return the softmax of each row."""
    weights = np.exp(scores - scores.max(axis=1)[:, None])
    return weights / weights.sum(axis=1)[:, None]


def two_layers(z):
    """Return the attention matrix (2, 2) of the second layer for fields z (2, 2)."""
    second = (np.eye(2) + softmax(np.outer(z[:, 0], z[:, 0]))) @ z[:, 1]
    return softmax(np.outer(second, second))


model = ga.sequence_model(lambda u, noise: two_layers(u), two_layers, n_tokens=2, rank=2)

# %%
# Published overlaps of the Bayes-optimal estimate with the weights of both layers (Troiani, Cui, Dandi, Krzakala and
# Zdeborová, arXiv 2502.00901, from the files of the authors). These averages have a Monte Carlo error of a few per
# cent.
published = np.array(
    [
        # α, first layer, second layer
        [0.2, 0.0, 0.0294],
        [0.3333, 0.0, 0.2938],
        [0.4, 0.0, 0.4988],
        [0.5333, 0.0, 0.8470],
        [0.6, 0.0, 0.9212],
        [0.7333, 0.0, 0.9736],
        [0.8, 0.0001, 0.9846],
        [0.8667, 0.3498, 0.9892],
        [1.0, 0.6140, 0.9947],
        [1.1333, 0.7733, 0.9978],
        [1.3333, 0.8737, 0.9986],
    ]
)

# %%
# State evolution gives the overlaps for d → ∞ from this function alone, with errors. A small number of samples suffices
# for a picture.
theory = {}
for alpha in (0.4, 0.7, 0.9):
    theory[alpha] = ga.solve_bayes_state_evolution(model, alpha, n_points=512, n_replicas=3)
    q, error = (np.diagonal(values).round(3) for values in (theory[alpha].q, theory[alpha].q_error))
    print(f"α = {alpha}: overlaps {q}, errors {error}")

# %%
# Message passing starts from an eigenvector that is computed from the samples. It does not use the teacher's weights.
# An overlap is known up to the sign of a layer, which the targets do not determine. The eigenvector contains the second
# layer; the first layer starts from small random weights, and grows when the second layer is known.
alphas = (0.5, 1.3)
overlaps = []
for alpha in alphas:
    data = ga.sample(model, SIZE, alpha, seed=0)
    run = ga.run_bayes_amp(data, tol=1e-2, max_iter=60)
    overlaps.append(np.abs(np.diagonal(run.overlap)))
    print(f"α = {alpha}: {run.status.value}, overlaps {overlaps[-1].round(3)}")

# %%
# Dashed lines are the published overlaps, error bars are state evolution and circles are runs at d = 150, whose
# fluctuations are of order 0.1. The second layer is found from α = 0.185 on, as published, and the first layer from
# about α = 0.74 on, with larger overlaps than published.
figure, axis = plt.subplots(figsize=(8.4, 4), layout="constrained")
for layer, name in enumerate(("first layer", "second layer")):
    axis.plot(published[:, 0], published[:, 1 + layer], "--", color=f"C{layer}", label=f"{name}, published")
    q, error = (np.array([values[layer, layer] for values in column]) for column in zip(
        *((point.q, point.q_error) for point in theory.values()), strict=True
    ))  # fmt: skip
    axis.errorbar(list(theory), q, error, fmt="s-", color=f"C{layer}", label=f"{name}, state evolution")
    axis.plot(alphas, np.array(overlaps)[:, layer], "o", color=f"C{layer}", label=f"{name}, d = {SIZE}")
axis.set(xlabel="α = n/d", ylabel="overlap with the teacher")
axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
