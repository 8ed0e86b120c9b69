"""Responses of descent's fields that count the paths whose derivatives are too rare and too large to be sampled.

Where samples choose between two wells, the derivatives of their paths grow exponentially, on a share of the paths that
shrinks as fast. Sampled averages miss what these carry, once it is fewer than one path. Stein's lemma has it all: with
(y, ω̃⁰, ω̃¹, …) = F w and white w,

    α E[f^t w_j] = Σ_k D_k F_kj,   D = (θ̂^t, Γ(t, 0), Γ(t, 1), …),

so D is corrected such that this holds for the leading w_j, on which the choice of a well depends. The first ones are y
and the fields of the first steps; along the others sampled derivatives have the smaller noise.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from unittest.mock import patch

from scipy.linalg import solve_triangular

from gamp_attention.state_evolution.dynamics.descent_paths import DescentForces, DescentPaths

SAMPLED = DescentPaths.advance


def counted_jumps(directions: int) -> AbstractContextManager[object]:
    """Predictions with so many directions from Stein's lemma, for ranks of one; with none, the package's own."""

    def advance(self: DescentPaths, alpha: float, *known: object) -> DescentForces:
        found = SAMPLED(self, alpha, *known)  # type: ignore[arg-type]
        theta, response, force = found.theta.copy(), found.response.copy(), self._forces[len(found.response) - 1]
        leading = min(directions, len(response) + 1)
        for l, path in enumerate(self._paths._of_token):
            mean = alpha * force[:, l, 0] @ path._white[:, :leading] / len(force)
            told = theta[l, 0] @ path._factor[:1, :leading] + response[:, l, 0, 0] @ path._factor[1:, :leading]
            change = solve_triangular(path._factor[:leading, :leading].T, mean - told)
            theta[l, 0] += change[:1]
            response[: leading - 1, l, 0, 0] += change[1:]
        return replace(found, theta=theta, response=response)

    return patch.object(DescentPaths, "advance", advance if directions else SAMPLED)
