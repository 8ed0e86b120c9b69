"""The output denoiser on problems with known solutions: saddles, equal minima, flat directions, certified minima."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.losses.attention import pack_attention_parameters
from tests.conftest import MarginLoss

POSITIVE = np.array([[0.9, 0.1], [0.1, 0.9]])  # attention matrix that S[0] cannot equal


def problem(T, n=1, rank=1, rho=0.25):
    T = np.broadcast_to(T, (n, *T.shape[-2:]))
    L = T.shape[-1]
    params = pack_attention_parameters(rho * np.eye(L)[None], rho * T.transpose(0, 2, 1))
    return ga.AttentionLoss(ga.DotProductAttention(), L, rank), params


def test_a_saddle_at_the_origin_is_left():
    """At ω = 0 the gradient vanishes at z = 0 by symmetry; there are two equal minima ±z elsewhere."""
    loss, params = problem(POSITIVE)
    out = ga.denoise(loss, params, np.zeros((1, 2, 1)), np.full((2, 1, 1), 50.0))
    assert out.solved.all()
    assert np.abs(out.z).max() > 0.5
    assert out.gap[0] == pytest.approx(0, abs=1e-12)  # the proximal map jumps at ω = 0
    origin = 0.25 * ((0.5 - POSITIVE) ** 2).sum() / 2 - 0.25 * (POSITIVE**2).sum() / 2
    assert out.moreau[0] < origin - 1e-3


def test_small_variance_is_certified_by_one_start():
    rng = np.random.default_rng(0)
    loss, params = problem(rng.dirichlet(np.ones(2), (200, 2)), n=200)
    out = ga.denoise(loss, params, 0.5 * rng.normal(size=(200, 2, 1)), np.full((2, 1, 1), 0.1))
    assert np.isinf(out.gap).all()


def test_hold_returns_the_local_minimum_of_the_start():
    loss, params = problem(POSITIVE)
    V, omega = np.full((2, 1, 1), 50.0), np.array([[[0.05], [-0.05]]])
    best = ga.denoise(loss, params, omega, V)
    held = ga.denoise(loss, params, omega, V, -best.z, hold=True)
    assert np.sign(held.z[0, 0, 0]) == -np.sign(best.z[0, 0, 0])
    assert held.moreau[0] > best.moreau[0]
    assert held.moreau[0] - best.moreau[0] == pytest.approx(best.gap[0], rel=1e-6)


def test_minima_of_sixteen_fields_are_global():
    """L = 8, r = 2: no other start leads to a lower minimum."""
    rng = np.random.default_rng(0)
    loss, params = problem(rng.dirichlet(np.ones(8), (4, 8)), n=4, rank=2)
    omega = 0.4 * rng.normal(size=(4, 8, 2))
    V = np.tile(5.0 * np.eye(2), (8, 1, 1))
    out = ga.denoise(loss, params, omega, V)
    assert out.solved.all()
    for _ in range(20):
        other = ga.denoise(loss, params, omega, V, omega + rng.normal(size=omega.shape), hold=True)
        assert np.all(out.moreau <= np.where(other.solved, other.moreau, np.inf) + 1e-9)


def test_variance_must_be_positive_definite():
    loss, params = problem(POSITIVE)
    with pytest.raises(ValueError, match="positive definite"):
        ga.denoise(loss, params, np.zeros((1, 2, 1)), np.array([[[1.0]], [[-1.0]]]))


@pytest.mark.parametrize("V", [0.1, 16.0, 400.0])
def test_two_tokens_match_the_minimum_on_a_dense_grid(V):
    """Two tokens have separate code for Newton steps, in scalars instead of arrays."""
    rng = np.random.default_rng(3)
    n = 300
    T = rng.dirichlet(np.ones(2), size=(n, 2))
    loss, params = problem(T, n)
    omega = rng.normal(size=(n, 2, 1)) * rng.choice([0.1, 0.5, 2.0], size=(n, 1, 1))
    out = ga.denoise(loss, params, omega, np.full((2, 1, 1), V))
    assert out.solved.all()
    grid = np.linspace(-1, 1, 401) * (np.abs(omega).max() + 2 * np.sqrt(V))
    x, y = np.meshgrid(grid, grid, indexing="ij")
    z = np.stack([x, y], axis=-1)
    scores = z[..., :, None] * z[..., None, :]
    S = np.exp(scores - scores.max(axis=-1, keepdims=True))
    S /= S.sum(axis=-1, keepdims=True)
    for i in range(0, n, 10):
        value = 0.25 * ((0.5 * S - T[i]) * S).sum(axis=(-1, -2)) + 0.5 * ((z - omega[i, :, 0]) ** 2).sum(axis=-1) / V
        assert out.moreau[i] <= value.min() + 1e-12
        assert out.moreau[i] >= value.min() - 20 * (grid[1] - grid[0]) ** 2 * (1 + 1 / V)


@pytest.mark.parametrize("V", [3.0, 300.0])
def test_few_starts_find_the_lowest_of_many_minima_of_two_tokens(V):
    """At most 1 of 500 samples has a lower minimum next to one of 60 random starts; other starts missed 1 of 125."""
    rng, n = np.random.default_rng(5), 2000
    x = rng.standard_normal((n, 2, 3)) / np.sqrt(3)
    G = x @ x.transpose(0, 2, 1)
    M = G @ rng.dirichlet(np.full(2, 0.5), (n, 2)).transpose(0, 2, 1)
    loss, params = ga.AttentionLoss(ga.DotProductAttention(), 2, 1), np.hstack([G.reshape(n, 4), M.reshape(n, 4)])
    omega, block = np.sqrt(V) * rng.standard_normal((n, 2, 1)), np.full((2, 1, 1), V)
    found, lowest = ga.denoise(loss, params, omega, block), np.full(n, np.inf)
    for _ in range(60):
        start = omega + 2 * np.sqrt(V) * rng.standard_normal(omega.shape)
        out = ga.denoise(loss, params, omega, block, start, hold=True)
        lowest = np.minimum(lowest, np.where(out.solved, out.moreau, np.inf))
    assert found.solved.all()
    assert (np.isfinite(found.gap)).mean() > 0.05
    assert (found.moreau > lowest + 1e-9).mean() <= 0.002


def test_minimizations_leave_points_where_a_minimum_is_about_to_exist():
    """There, the gradient and the curvature along it are about 1e-8: steps must not be as short as the gradient."""
    loss = ga.AttentionLoss(ga.DotProductAttention(), 2, 1)
    p = np.array([[0.25, 0.0, 0.0, 0.25, 0.16698503578229162, 0.10533812002903643, 0.08301496421770836]])
    params = np.append(p, [[0.14466187997096355]], axis=1).repeat(5, axis=0)
    omega = np.tile([[-0.08302486495459413], [-0.11918558974681986]], (5, 1, 1))
    start = np.tile([[-0.09051], [-0.10846]], (5, 1, 1)) + 1e-5 * np.arange(-2, 3)[:, None, None] * [[-1], [1]]
    out = ga.denoise(loss, params, omega, np.full((2, 1, 1), 1 / 0.06242516096215008), start, hold=True)
    assert out.solved.all()


@pytest.mark.parametrize("name", ["squared", "logistic", "phase retrieval"])
@pytest.mark.parametrize("V", [0.05, 1.0, 30.0])
def test_a_single_field_matches_the_minimum_on_a_dense_grid(name, V):
    """The minimum, its derivatives, and the values of the objective and of the loss."""
    losses = {"squared": ga.SquaredLoss(), "logistic": ga.LogisticLoss(), "phase retrieval": ga.PhaseRetrievalLoss()}
    rng, n = np.random.default_rng(3), 40
    p = np.where(rng.random((n, 1)) < 0.5, -1.0, 1.0) if name == "logistic" else rng.random((n, 1)) * 3
    loss = ga.LabelledDataset(rng.standard_normal((n, 4)), p, losses[name]).loss
    omega, blocks = rng.standard_normal((n, 1, 1)) * 2, np.full((1, 1, 1), V)

    def value(z):
        if name == "squared":
            return 0.5 * (z - p) ** 2
        return np.logaddexp(0, -p * z) if name == "logistic" else 0.25 * (z**2 - p) ** 2

    grid = np.linspace(-8, 8, 160_001)[None]
    objective = 0.5 * (grid - omega[:, 0]) ** 2 / V + value(grid)
    out, step = ga.denoise(loss, p, omega, blocks, jacobian=True), 1e-4
    assert out.solved.all()
    assert np.allclose(out.moreau, objective.min(axis=1), rtol=0, atol=1e-6)
    assert np.allclose(out.z[:, 0, 0], grid[0, objective.argmin(axis=1)], atol=2e-4)
    assert np.allclose(out.g, (out.z - omega) / V)
    assert np.allclose(out.loss, value(out.z[:, 0])[:, 0])
    near = [ga.denoise(loss, p, omega + s * step, blocks, out.z, hold=True) for s in (1, -1)]
    slope = (near[0].z - near[1].z)[:, 0, 0] / (2 * step)
    assert np.allclose(out.jacobian[:, 0, 0], slope, atol=1e-5)
    assert np.allclose(out.response[:, 0, 0, 0], (1 - slope) / V, atol=1e-5 / V)
    assert (np.isinf(out.gap) | (name == "phase retrieval")).all()


def test_plateaus_of_a_bounded_loss_take_few_evaluations():
    """Far out, ½ (1 − tanh z) is smaller than its rounding error, so that line searches fail."""
    p = np.repeat([[1.0], [-1.0]], 400, axis=0)
    loss = ga.LabelledDataset(np.zeros((800, 4)), p, MarginLoss()).loss
    omega, V = np.tile(np.linspace(-16.0, 16.0, 400), 2)[:, None, None], 176.0
    out = ga.denoise(loss, p, omega, np.full((1, 1, 1), V))
    assert out.solved.all()
    assert out.n_hessians.max() <= 40  # thousands before: a search from 400 starts wherever a minimization failed
    residual = out.z - omega - 0.5 * V * p[:, :, None] / np.cosh(out.z) ** 2
    assert np.abs(residual).max() < 1e-8
    grid = np.linspace(-30, 30, 6001)[None]
    objective = 0.5 * (grid - omega[:, 0]) ** 2 / V + 0.5 * (1 - p * np.tanh(grid))
    assert np.allclose(out.moreau, objective.min(axis=1), rtol=0, atol=1e-5)
