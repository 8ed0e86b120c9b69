"""A user-defined loss: robust regression with the pseudo-Huber loss."""

from typing import NamedTuple

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


def main() -> None:
    """Compare GAMP with state evolution for the new loss."""
    model = ga.glm_model(PseudoHuber(0.5), ga.LinearLabels(noise=0.3), lam=0.1)
    run = ga.run_gamp(ga.sample(model, d=300, alpha=2.0, seed=0), init="random")
    theory = ga.solve_state_evolution(model, alpha=2.0, init="random", stability=False, rtol=5e-3)
    for name, found in (("GAMP", run), ("theory", theory)):
        q, theta = found.overlaps.q[0, 0, 0], found.overlaps.theta[0, 0, 0]
        print(f"{name} {found.status.value}: q = {q:.3f}, θ = {theta:.3f}")


if __name__ == "__main__":
    main()
