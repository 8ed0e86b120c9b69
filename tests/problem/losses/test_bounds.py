"""Lower bounds of the curvature of a loss are valid in their balls, and sharp enough to certify minima."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.losses.attention import pack_attention_parameters
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.losses.registration import curvature_bound


@pytest.mark.parametrize(("L", "heads"), [(2, 1), (3, 1), (3, 2)])
def test_curvature_in_a_ball_is_above_its_lower_bound(L, heads):
    rng, k = np.random.default_rng(L), L * heads
    loss = ga.AttentionLoss(ga.MultiHeadAttention(heads, 0.7), L, heads)
    for size, reach in [(0.3, 1e-6), (0.3, 0.05), (1.0, 0.3), (3.0, 0.1), (40.0, 1e-3)] * 20:
        x = rng.normal(size=(L, 8))
        M = x @ x.T @ rng.dirichlet(np.ones(L), L).T + rng.normal(size=(L, L)) * rng.choice([0.0, 1.0])
        p = pack_attention_parameters((x @ x.T)[None], M[None])[0]
        center = size * rng.normal(size=k)
        steps = rng.normal(size=(400, k))
        steps *= reach * rng.uniform(size=(400, 1)) ** (1 / k) / np.linalg.norm(steps, axis=1, keepdims=True)
        z = (center + steps).reshape(400, L, heads)
        hessians = sample_derivatives(loss, np.tile(p, (400, 1)), z)[2]
        lowest, bound = np.linalg.eigvalsh(hessians).min(), curvature_bound(loss, p, center, reach)
        assert bound <= lowest + 1e-9 * np.abs(hessians).max()
        assert L > 2 or bound >= curvature_bound(loss, p, np.zeros(k), np.linalg.norm(center) + reach)


def test_most_minima_of_two_tokens_are_certified(model):
    """Without certificates, all samples would be searched for other minima, which takes most of the time of a run."""
    data = ga.sample(model, 300, 1.5, seed=0)
    result = ga.run_gamp(data, "semantic", "asymptotic", max_iter=10, tol=0)
    bounds = []
    for p, center in zip(data.terms("asymptotic").params, result.state.z[:, :, 0], strict=True):
        bounds.append(curvature_bound(data.loss, p, center, 0.1) + 1 / result.state.V.max())
    assert np.mean(np.array(bounds) > 0) > 0.7
