"""
Lowest training loss of phase retrieval
=======================================

The training loss of phase retrieval has many minima. This example computes the lowest loss for d → ∞ with one step of
replica symmetry breaking, at which minima form clusters, and compares it with published values and with the
replica-symmetric value. :doc:`/replica_symmetry_breaking` explains the equations.
"""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np

import gamp_attention as ga


# %%
# Labels are amplitudes \|u\| with noise of variance 0.001, and the loss of a sample is (\|z\| − p)². A registered loss
# is compiled on first use.
@ga.register_loss
class AmplitudeLoss(NamedTuple):
    """ℓ(z) = (|z| − p)²."""

    even = True

    def value(self, p, z):
        """Return the loss."""
        return (abs(z[0, 0]) - p[0]) ** 2

    def derivatives(self, p, z, grad, hess):
        """Return the loss, and fill its derivatives."""
        excess = abs(z[0, 0]) - p[0]
        grad[0], hess[0, 0] = 2 * excess * (1.0 if z[0, 0] >= 0 else -1.0), 2.0
        return excess**2

    def floor(self, p):
        """Return a lower bound of the loss."""
        return 0.0


class Amplitudes:
    """Labels |u| with noise."""

    even = False

    def n_noise(self, n_tokens, rank):
        """Return the number of noise variables of a label."""
        return 1

    def __call__(self, u, noise):
        """Return labels for teacher fields u (N, 1, 1)."""
        return np.abs(u[:, 0]) + np.sqrt(0.001) * noise


model = ga.glm_model(AmplitudeLoss(), Amplitudes(), lam=1e-7)

# %%
# At the ground state, the Parisi parameter y maximizes the free energy F. The start "random" and the solution have no
# overlap with the teacher: the minima of lowest loss that are unrelated to the teacher form clusters.
ground = ga.solve_broken(model, alpha=3.0, init="random", rtol=1e-3)
print(ground)

# %%
# Published values at α = 3: F = 0.292785 at y = 1.767 (Lucibello, Saglietti and Lu, "Generalized approximate survey
# propagation for high-dimensional estimation", arXiv 1905.05313), and 0.2072 with replica symmetry at noise variance
# 0.0015.
parisi = [1.3, 1.8, 2.4, 3.2]
start = ground.overlaps
curve = [ga.solve_broken(model, 3.0, start, parisi=y, rtol=1e-2).train_loss for y in parisi]

fig, ax = plt.subplots(figsize=(6, 4))
ax.plot(parisi, curve, "o-", label="fixed Parisi parameter")
ax.plot(ground.parisi, ground.train_loss, "s", ms=9, label="ground state")
ax.plot(1.76699, 0.2927849, "k+", ms=14, label="published ground state")
ax.set(xlabel="Parisi parameter y", ylabel="free energy F per coordinate")
ax.legend()
plt.show()
