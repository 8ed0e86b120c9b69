"""
A user-defined loss
===================

A user-defined loss is a class with one method. This example adds the pseudo-Huber loss, which is less sensitive to
outliers among the labels than the squared loss. :doc:`/extend` lists the optional methods of a loss.
"""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga


@ga.register_loss
class PseudoHuber(NamedTuple):
    """ℓ(z) = w² (√(1 + ((z − p)/w)²) − 1): quadratic near the label p, linear far from it."""

    width: float = 1.0

    convex = True

    def value(self, p, z):
        """Return the loss ℓ at fields z (L, r) of a sample with labels p (P,)."""
        ratio = (z[0, 0] - p[0]) / self.width
        return self.width**2 * (np.sqrt(1 + ratio**2) - 1)


# %%
# Numerical code for a class that is defined in a script or notebook is compiled in each new process. If you move the
# class to a module and import it, the compiled code is stored on disk.
#
# State evolution and message passing accept the new loss like any other. Here they compute the overlaps at every
# iteration, for linear labels with Gaussian noise.
LAM, SIZE = 0.1, 300
model = ga.glm_model(PseudoHuber(0.5), ga.LinearLabels(noise=0.3), lam=LAM)
data = ga.sample(model, SIZE, alpha=2.0, seed=0)
run = ga.run_gamp(data, "random", damping=0.7, tol=0, max_iter=12)
start = ga.Overlaps(*(run.history.arrays()[name][0] for name in ("q", "m", "theta", "V")))
theory = ga.trajectory(data.instance_model(), 2.0, start, ga.MessagePassing(damping=0.7), n_iter=12, n_paths=1024)

# %%
# The second test uses arrays in which a fraction of the labels is replaced by large random numbers. The cosine
# between the fitted weights and the weights that produced the other labels measures the effect of these
# outliers.
rng = np.random.default_rng(1)
shares = np.array([0.0, 0.05, 0.1, 0.2, 0.3])
tokens = rng.standard_normal((3 * SIZE, SIZE))
direction = rng.standard_normal(SIZE)
labels = tokens @ direction / np.sqrt(SIZE) + 0.3 * rng.standard_normal(len(tokens))
wild = 10 * rng.standard_normal(len(tokens))
order = rng.permutation(len(tokens))
cosines: dict[str, list[float]] = {"PseudoHuber(0.5)": [], "SquaredLoss()": []}
for share in shares:
    spoiled = np.where(order < share * len(tokens), wild, labels)
    for name, loss in (("PseudoHuber(0.5)", PseudoHuber(0.5)), ("SquaredLoss()", ga.SquaredLoss())):
        fit = ga.run_gamp(ga.LabelledDataset(tokens, spoiled, loss, LAM), "random")
        cosines[name].append(fit.Q[:, 0] @ direction / np.linalg.norm(fit.Q) / np.linalg.norm(direction))
        print(f"{name:<18}{share:.0%} outliers: {fit.status.value}, cosine {cosines[name][-1]:.3f}")

# %%
# Left: lines are state evolution, and dots are message passing on one instance. Right: the cosine for one data set,
# fitted with each of the two losses, against the fraction of outliers.
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for key, color, label in (("q", "0.2", "squared norm q"), ("theta", "C0", "overlap with teacher θ")):
    left.plot(getattr(theory, key)[:, 0, 0, 0], color=color, label=f"{label}, state evolution")
    left.plot(getattr(run.history, key)[:13, 0, 0, 0], "o", color=color, label=f"{label}, message passing")
left.set(xlabel="iteration", ylabel="overlap", title="message passing and its prediction")
left.legend()
for (name, values), color in zip(cosines.items(), ("C0", "C1"), strict=True):
    right.plot(shares, values, "o-", color=color, label=name)
right.set(xlabel="fraction of outliers", ylabel="cosine with the true direction", title="fits of labels with outliers")
right.legend()
