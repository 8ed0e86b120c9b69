"""Gaps between the two lowest minima of the proximal problem of one field, against closed forms and brute force."""

import numpy as np
import pytest
from scipy.stats import norm

import gamp_attention as ga
from gamp_attention.extensions.rsb.gaps import gap_distribution
from gamp_attention.extensions.rsb.one_field import OneField
from gamp_attention.extensions.rsb.weights import Levels
from validation._tools.glasses import amplitude_model

ONE, NONE = np.ones(1), np.zeros(0)
# Near the solution of phase retrieval with amplitudes at α = 3 with one step
ONE_STEP, PARISI = Levels(np.array([[0.4726], [1.3551]]), 0 * ONE, 0 * ONE, 0.4235 * ONE), np.array([1.767])


def symmetric(q, V):
    return Levels(np.array([[q]]), 0 * ONE, 0 * ONE, V * ONE)


def test_gaps_of_amplitudes_have_a_closed_form():
    """ℓ(z) = (|z| − p)² has gap 4p|ω|/(1 + 2V) for |ω| < 2Vp, where both minima exist."""
    q, V, gaps = 1.3, 0.5, np.array([0.01, 0.1, 0.5])
    found = gap_distribution(OneField(amplitude_model(), 3.0), symmetric(q, V), NONE, gaps, 2)
    p = np.linspace(0, 9, 100_001)[1:]
    weight = 2 * norm.pdf(p) * p[0]
    for gap, probability, square in zip(gaps, found.probability, found.squares[:, 0], strict=True):
        reach = np.minimum(gap * (1 + 2 * V) / (4 * p), 2 * V * p) / np.sqrt(q)
        inside = weight * (norm.cdf(reach) - norm.cdf(-reach))
        assert abs(probability / inside.sum() - 1) < 3e-3
        assert abs(square / (inside @ (4 * p / (1 + 2 * V)) ** 2) - 1) < 3e-3


def test_gaps_of_a_quartic_loss_agree_with_the_roots_of_its_cubic_equation():
    """ℓ(z) = ¼(z² − u²)²: where z³ + (1/V − u²) z = ω/V has three real roots, the outer two are minima."""
    q, V, gaps = 0.9, 1.2, np.array([0.02, 0.2])
    model = ga.glm_model(ga.PhaseRetrievalLoss(), lam=0.1)
    found = gap_distribution(OneField(model, 2.0), symmetric(q, V), NONE, gaps, 14)  # without gaps at u² < 1/V
    u, omega = np.linspace(1 / np.sqrt(V) + 1e-6, 7, 500)[:, None], np.linspace(0, 4, 4001)
    linear, constant = 1 / V - u**2, -omega / V
    cosine = 1.5 * constant / linear * np.sqrt(-3 / linear)
    angle = np.arccos(np.where(np.abs(cosine) < 1, cosine, 0.0)) / 3
    high, low = (2 * np.sqrt(-linear / 3) * np.cos(angle - 2 * np.pi * k / 3) for k in (0, 2))
    high, low = np.maximum(high, low), np.minimum(high, low)
    values = [0.25 * (z**2 - u**2) ** 2 + 0.5 * (z - omega) ** 2 / V for z in (high, low)]
    gap = np.where(np.abs(cosine) < 1, np.abs(values[0] - values[1]), np.inf)
    weight = 2 * norm.pdf(u) * (u[1, 0] - u[0, 0]) * 2 * norm.pdf(omega, scale=np.sqrt(q)) * omega[1]
    weight[:, 0] *= 0.5
    for size, probability in zip(gaps, found.probability, strict=True):
        assert abs(probability / weight[gap < size].sum() - 1) < 0.01


@pytest.mark.parametrize(("levels", "parisi"), [(symmetric(1.398, 1.2996), NONE), (ONE_STEP, PARISI)])
def test_small_gaps_give_the_jump_mass(levels, parisi):
    """α E[1(gap < ε)(Δg)²]/2ε tends to V̂_derivative − V̂ for ε → 0, over the fields of minima in their clusters."""
    problem, gap = OneField(amplitude_model(), 3.0), np.array([1e-4])
    hats = problem.hats(levels, parisi, 1)
    squares = gap_distribution(problem, levels, parisi, gap, 1).squares[0, 0]
    assert abs(3.0 * squares / (2 * gap[0]) / (hats.V_derivative[0] - hats.V[0]) - 1) < 1e-3


def test_breaking_removes_small_gaps():
    problem, gap = OneField(amplitude_model(), 3.0), np.array([1e-3])
    before, after = (
        gap_distribution(problem, levels, parisi, gap).probability[0]
        for levels, parisi in ((symmetric(1.398, 1.2996), NONE), (ONE_STEP, PARISI))
    )
    assert after < 0.9 * before
