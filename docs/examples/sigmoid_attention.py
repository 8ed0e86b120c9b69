"""A user-defined attention map: each entry of the attention matrix is a sigmoid of the product of two fields."""

from typing import NamedTuple

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


def main() -> None:
    """Compare GAMP with state evolution for the new map."""
    model = ga.attention_model(student=SigmoidAttention(2.0), lam=0.02)
    run = ga.run_gamp(ga.sample(model, d=300, alpha=3.0, seed=0), init="semantic", risk="asymptotic")
    theory = ga.solve_state_evolution(model, alpha=3.0, init="semantic", stability=False, rtol=5e-3)
    for name, found in (("GAMP", run), ("theory", theory)):
        q, theta = found.overlaps.q[0, 0, 0], found.overlaps.theta[0, 0, 0]
        print(f"{name} {found.status.value}: q = {q:.3f}, θ = {theta:.3f}")


if __name__ == "__main__":
    main()
