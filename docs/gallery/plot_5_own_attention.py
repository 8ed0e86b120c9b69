"""
A user-defined attention map
============================

A user-defined attention map is a class with one method, which fills the attention matrix. In this example each entry of
the matrix is a sigmoid of the product of two fields, so that the rows do not add up to one. :doc:`/extend` lists
the optional methods of an attention map.
"""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga


@ga.register_attention
class SigmoidAttention(NamedTuple):
    """S_ij = 1/(1 + exp(−gain z_i·z_j))."""

    gain: float = 1.0

    even = True
    rotations = True

    def attend(self, z, S):
        """Fill S (L, L) from fields z (L, r)."""
        for i in range(z.shape[0]):
            for j in range(z.shape[0]):
                S[i, j] = 1 / (1 + np.exp(-self.gain * np.sum(z[i] * z[j])))

    def torch(self, z):
        """Return S (n, L, L) for a tensor of fields (n, L, r), as `minimize_risk` requires."""
        return (self.gain * z @ z.transpose(1, 2)).sigmoid()


# %%
# The teacher uses the softmax of the paper. One student uses the same map, and the other student uses the sigmoid. Both
# start from the teacher's weights, and state evolution predicts both trajectories.
ALPHA, STEPS = 3.0, 15
students = {"softmax": ga.DotProductAttention(), "sigmoid": SigmoidAttention(2.0)}
predicted, followed, ends = {}, {}, {}
for name, student in students.items():
    data = ga.sample(ga.attention_model(student=student, lam=0.02), d=500, alpha=ALPHA, seed=0)
    followed[name] = ga.run_gamp(data, "semantic", "asymptotic", damping=0.5, tol=0, max_iter=STEPS)
    predicted[name] = ga.trajectory(data.instance_model(), ALPHA, "semantic", n_iter=STEPS, n_paths=512)
    ends[name] = ga.run_gamp(data, "semantic")

# %%
# Both runs reach zero gradient. The softmax student has the lower training loss.
for name, end in ends.items():
    print(f"{name}: {end.status.value} in {end.n_iter} iterations, ε_t = {end.train_loss:.5f}")

# %%
# Lines are state evolution, and dots are message passing on one instance with d = 500.
TITLES = {"q": "squared norm q", "theta": "overlap with teacher θ", "V": "variance of fields V"}
figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.8), layout="constrained")
for name, color in (("softmax", "C0"), ("sigmoid", "C1")):
    line, dots = predicted[name].scalars(), followed[name].history.scalars()
    for axis, (key, title) in zip(axes, TITLES.items(), strict=True):
        axis.plot(line[key], color=color, label=f"{name}, state evolution")
        axis.plot(dots[key][: STEPS + 1], "o", ms=4, color=color, label=f"{name}, message passing")
        axis.set(title=title, xlabel="iteration")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
