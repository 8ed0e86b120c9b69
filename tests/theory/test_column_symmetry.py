"""Columns of student and teacher that may be permuted together have the same overlaps, and fewer unknowns."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.equations.units import Packing
from tests.conftest import assert_solutions_agree


@ga.register_loss
class Quantiles(NamedTuple):
    """Σ_k max(τ_k x_k, (τ_k − 1) x_k) for x = p − z."""

    tau: tuple
    convex = True

    def value(self, p, z):
        total = 0.0
        for k in range(z.shape[1]):
            x = p[k] - z[0, k]
            total += max(self.tau[k] * x, (self.tau[k] - 1) * x)
        return total


@ga.register_loss
class Clipped(NamedTuple):
    """Absolute errors that are steeper beyond 12 in the second column, and equal at most fields."""

    convex = True

    def value(self, p, z):
        x, y = abs(p[0] - z[0, 0]), abs(p[1] - z[0, 1])
        return x + y + max(y - 12.0, 0.0)


@dataclass(frozen=True)
class Positive(ga.LinearLabels):
    """Labels max(a_k u_k, 0) with noise."""

    factors: tuple = (1.0, 1.0)

    def __call__(self, u, noise):
        return super().__call__(np.maximum(u * self.factors, 0), noise)

    def split_noise(self):
        return self, 0.0


class TiltedClasses(ga.ClassLabels):
    """Classes of which the first is preferred."""

    def outcomes(self, u):
        return super().outcomes(u + np.array([1.0, 0.0, 0.0]))


SYMMETRIC = {
    "noise of each label": ga.glm_model(Quantiles((0.8, 0.8)), Positive(0.5), rank=2, lam=0.5),
    "classes": ga.glm_model(ga.MultinomialLoss(), rank=3, lam=0.5),
}
OTHERS = {
    "another loss": ga.glm_model(Quantiles((0.8, 0.7)), Positive(0.5), rank=2, lam=0.5),
    "another label": ga.glm_model(Quantiles((0.8, 0.8)), Positive(0.5, (1.0, 2.0)), rank=2, lam=0.5),
    "another probability": ga.glm_model(ga.MultinomialLoss(), TiltedClasses(), rank=3, lam=0.5),
    "another loss of large errors": ga.glm_model(Clipped(), ga.LinearLabels(6.0), rank=2, lam=0.1),
    "another penalty": ga.glm_model(ga.MultinomialLoss(), rank=3, lam=[0.5, 0.5, 0.6]),
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_columns_with_the_same_law_have_equal_overlaps(name):
    """The solution without this symmetry, which a strength for each column hides, is the same, with more unknowns."""
    model = SYMMETRIC[name]
    hidden = replace(model, penalty=ga.ColumnRidge((0.5,) * model.rank))
    same, free = (ga.solve_state_evolution(each, 3.0, rtol=3e-3) for each in (model, hidden))
    q, V = same.overlaps.q[0], same.overlaps.V[0]
    for values in (q, V, same.overlaps.theta[0]):
        assert len(set(np.diagonal(values))) == 1
        assert len(set(values[~np.eye(model.rank, dtype=bool)])) == 1
    assert_solutions_agree(same, free)
    assert len(Packing.of(model.reduced, same.overlaps).pack(same.overlaps)) == 6


@pytest.mark.parametrize("name", OTHERS)
def test_columns_with_different_laws_have_different_overlaps(name):
    se = ga.solve_state_evolution(OTHERS[name], 3.0, rtol=1e-2)
    diagonal = np.diagonal(se.overlaps.q[0])
    assert se.converged
    assert np.ptp(diagonal) > 4 * se.overlaps_error.q.max()
