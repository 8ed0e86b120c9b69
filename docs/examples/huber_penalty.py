"""A user-defined penalty: the Huber function, quadratic near zero and linear beyond a knee."""

from typing import NamedTuple

import gamp_attention as ga


@ga.register_penalty
class Huber(NamedTuple):
    """ρ(x) = λ x²/2 for |x| <= knee, λ knee (|x| − knee/2) beyond."""

    lam: float
    knee: float

    @property
    def strength(self) -> float:
        """Return the unit of gradients and variances."""
        return self.lam

    def value(self, x):
        """Return ρ(x)."""
        if abs(x) <= self.knee:
            return 0.5 * self.lam * x * x
        return self.lam * self.knee * (abs(x) - 0.5 * self.knee)

    def slopes(self, x):
        """Return both ends of the subdifferential ∂ρ(x), which are equal for a differentiable ρ."""
        slope = self.lam * min(max(x, -self.knee), self.knee)
        return slope, slope

    def prox(self, b, a):
        """Return argmin ρ(x) + a x²/2 − b x and its derivative with respect to b."""
        x = b / (self.lam + a)
        if abs(x) <= self.knee:
            return x, 1.0 / (self.lam + a)
        push = self.lam * self.knee
        return (b - push) / a if b > 0 else (b + push) / a, 1.0 / a


def main() -> None:
    """Compare GAMP with state evolution for the new penalty."""
    model = ga.paper_model(penalty=Huber(lam=0.02, knee=0.2))
    run = ga.run_gamp(ga.sample(model, d=300, alpha=1.5, seed=0), "semantic", risk="asymptotic")
    theory = ga.solve_state_evolution(model, alpha=1.5, init="semantic", stability=False)
    for name, found in (("GAMP", run), ("theory", theory)):
        q, theta = found.overlaps.q[0, 0, 0], found.overlaps.theta[0, 0, 0]
        print(f"{name} {found.status.value}: q = {q:.3f}, θ = {theta:.3f}")


if __name__ == "__main__":
    main()
