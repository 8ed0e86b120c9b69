"""
Two-layer attention from a plain function
=========================================

A sequence model consists of a teacher and a student that are plain Python functions of a few projections of each token.
This example trains two layers of attention on the targets of two such layers, and compares the weights of each layer
with published results for Bayes-optimal estimation. :doc:`/sequence_models` describes the interface.
"""

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga

SIZE = 200


# %%
# Each sample has two tokens. Column 0 of the fields z (2, 2) belongs to the first layer and column 1 to the second
# layer, which reads the averages that the first layer has computed. The target is the attention matrix of the second
# layer.
def softmax(scores):
    """Return the softmax of each row."""
    weights = np.exp(scores - scores.max(axis=1)[:, None])
    return weights / weights.sum(axis=1)[:, None]


def two_layers(z):
    """Return the attention matrix (2, 2) of the second layer for fields z (2, 2)."""
    averages = np.eye(2) + softmax(np.outer(z[:, 0], z[:, 0]))
    second = averages @ z[:, 1]
    return softmax(np.outer(second, second))


model = ga.sequence_model(lambda u, noise: two_layers(u), two_layers, n_tokens=2, rank=2, lam=0.001)

# %%
# Squared overlaps of the Bayes-optimal estimate with the weights of both layers, as published with Troiani, Cui, Dandi,
# Krzakala and Zdeborová, "Fundamental limits of learning in sequence multi-index models and deep attention networks"
# (arXiv 2502.00901), for the same two layers without noise. The published averages have a Monte Carlo error of a few
# per cent.
published = np.array(
    [
        # α, first layer, second layer
        [0.2, 0.0, 0.0294],
        [0.4, 0.0, 0.4988],
        [0.6, 0.0, 0.9212],
        [0.8, 0.0001, 0.9846],
        [1.0, 0.6140, 0.9947],
        [1.2, 0.8226, 0.9978],
        [1.4, 0.9105, 0.9997],
    ]
)

# %%
# Message passing trains the student from the teacher's weights, which gives the informed minimum of the training loss,
# and from random weights. For large d, the squared cosine between the weights of an estimate and the teacher's weights
# is at most the Bayes-optimal overlap, if the estimate uses the samples only. The informed minimum also uses the
# teacher's weights, so it may lie above.
alphas = (0.6, 1.0, 1.4, 2.0)
cosines: dict[str, list[np.ndarray]] = {"semantic": [], "random": []}
for alpha in alphas:
    data = ga.sample(model, SIZE, alpha, seed=0)
    for start, values in cosines.items():
        run = ga.run_gamp(data, start)
        size = np.linalg.norm(run.Q, axis=0) * np.linalg.norm(data.Q_star, axis=0)
        values.append((np.sum(run.Q * data.Q_star, axis=0) / size) ** 2)
        print(f"α = {alpha}, {start}: {run.status.value}, ε_t = {run.train_loss:.5f}, cos² = {values[-1].round(3)}")

# %%
# Lines are the published overlaps. Circles are the informed minimum and crosses the runs from random weights, on one
# instance with d = 200. Runs from random weights end in minima of higher loss, and find the weights of neither layer.
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
for layer, axis in enumerate(axes):
    axis.plot(published[:, 0], published[:, 1 + layer], color="0.2", label="Bayes-optimal (published)")
    for (start, values), marker in zip(cosines.items(), ("o", "x"), strict=True):
        axis.plot(alphas, np.array(values)[:, layer], marker, color=f"C{layer}", label=f"trained, {start} start")
    axis.set(xlabel="samples per dimension α = n/d", title=("first layer", "second layer")[layer])
axes[0].set_ylabel("squared overlap with the teacher")
axes[0].legend(frameon=False, fontsize=9)
