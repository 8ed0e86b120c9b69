"""State evolution of penalties other than the ridge: averages over weights, fixed points and trajectories."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

import gamp_attention as ga
from docs.examples.huber_penalty import Huber
from gamp_attention.problem.denoisers.input import denoise_weights, precisions
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.equations.weights import weight_averages, weights_step
from gamp_attention.theory.fixed_points.observables import free_energy, moreau_loss, replicon
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.models.coordinates import CoordinateLaw
from gamp_attention.theory.rules.panels import PanelRule
from tests.conftest import make_overlaps

ELASTIC = ga.ElasticNet(0.008, 0.004)
NETS = [ga.ElasticNet(0.3, 0.2), ga.ElasticNet(0.0, 0.5), ga.ElasticNet(0.3, 0.0), ga.ElasticNet(0.0, 3.0)]


def draw_classes(rank, n=6):
    """Random precisions, means and covariances of b."""
    rng = np.random.default_rng(rank)
    roots = rng.normal(size=(2, n, rank, rank))
    A, covariance = roots @ roots.transpose(0, 1, 3, 2) + 0.1 * np.eye(rank)
    return A, 0.5 * rng.normal(size=(n, rank)), covariance


def elastic_net_averages(net, A, mean, covariance):
    """Return E[x], E[x²], E[∂x/∂b] and E[r(x)] of the elastic net with one column, in closed form."""
    scale, C = np.sqrt(covariance[:, 0, 0]), 1 / (net.lam + A[:, 0, 0])
    x, xx, response, size = np.zeros((4, len(mean)))
    for sign in (1, -1):  # the two signs of b: x = sign · C (sign · b − l₁) if sign · b > l₁, else 0
        over = sign * mean[:, 0] - net.l1
        tail, density = norm.cdf(over / scale), norm.pdf(over / scale)
        first = C * (over * tail + scale * density)
        x, size = x + sign * first, size + first
        xx = xx + C**2 * ((over**2 + scale**2) * tail + over * scale * density)
        response = response + C * tail
    return x, xx, response, 0.5 * net.lam * xx + net.l1 * size


@pytest.mark.parametrize("penalty", NETS)
def test_closed_form_and_quadrature_agree(penalty):
    A, mean, covariance = draw_classes(1)
    closed, rule = elastic_net_averages(penalty, A, mean, covariance), weight_averages(penalty, A, mean, covariance)
    scale = (np.sqrt(covariance[:, 0, 0]) + np.abs(mean[:, 0])) / (A[:, 0, 0] + penalty.lam)
    for exact, value, power in zip(closed, (rule.x, rule.xx, rule.response), (1, 2, 0), strict=False):
        gap = np.abs(exact - value.ravel())
        assert (gap <= 2e-6 * scale**power * np.maximum(1, 1 / (A[:, 0, 0] + penalty.lam) ** (power == 0))).all()
    assert np.allclose(closed[3], rule.penalty, rtol=2e-6, atol=1e-8)
    pairs = closed[2] / (A[:, 0, 0] + penalty.lam)
    assert np.allclose(pairs, rule.pairs.ravel(), rtol=4e-3, atol=4e-4)  # a jump: first order in the spacing


@pytest.mark.parametrize("rank", [2, 3])
def test_sampled_averages_of_several_columns_agree_with_closed_forms(rank):
    """Without l1 there is a closed form; with diagonal A and N, columns are independent."""
    A, mean, covariance = draw_classes(rank)
    averages = weight_averages(ga.ElasticNet(0.3, 0.0), A, mean, covariance)
    C = np.linalg.inv(A + 0.3 * np.eye(rank))
    x = np.einsum("kab,kb->ka", C, mean)
    assert np.allclose(averages.x, x, rtol=1e-10, atol=1e-12)
    assert np.allclose(averages.xx, x[:, :, None] * x[:, None] + C @ covariance @ C, rtol=1e-10, atol=1e-12)
    assert np.allclose(averages.response, C, rtol=1e-9, atol=1e-12)
    net, diagonal = NETS[0], np.eye(rank)
    averages = weight_averages(net, A * diagonal, mean, covariance * diagonal)
    for a in range(rank):
        one = elastic_net_averages(
            net, A[:, a : a + 1, a : a + 1], mean[:, a : a + 1], covariance[:, a : a + 1, a : a + 1]
        )
        assert np.allclose(averages.x[:, a], one[0], atol=2e-3)
        assert np.allclose(averages.xx[:, a, a], one[1], rtol=2e-3, atol=1e-3)
        assert np.allclose(averages.response[:, a, a], one[2], rtol=5e-3)


def draw_hats(L, r, t, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(2, L, r, r))
    q, V = root @ root.transpose(0, 1, 3, 2) + 0.2 * np.eye(r)
    nothing = np.zeros((L, L, r * r, r * r))
    return Hats(rng.normal(size=(L, r)), q, rng.normal(size=(L, r, t)), V, V, nothing, 0.0, 0.0)


def make_uneven_model(penalty, rank):
    """Two classes of coordinates, teachers with a mean, tokens of different variances."""
    law = CoordinateLaw(
        weight=np.array([0.3, 0.7]),
        gamma=np.array([[0.5, 1.0], [1.5, 0.2]]),
        tau=np.array([[1.0, -1.0], [0.5, 2.0]]),
        teacher_mean=np.array([[0.4], [-0.2]]),
        teacher_cov=np.array([[[1.0]], [[0.5]]]),
    )
    return replace(ga.attention_model(2, rank, 1, penalty=penalty), coordinates=law)


def draw_overlaps(model, hats, n, rng):
    """Overlaps of n coordinates drawn in each class."""
    law, penalty, r = model.coordinates, model.penalty, model.rank
    A = precisions(penalty, law.gamma.T, hats.V)
    overlaps = ga.Overlaps(np.zeros((2, r, r)), np.zeros((2, r)), np.zeros((2, r, 1)), np.zeros((2, r, r)))
    for k, weight in enumerate(law.weight):
        teacher = law.teacher_mean[k] + rng.normal(size=(n, 1)) * np.sqrt(law.teacher_cov[k, 0, 0])
        noise = rng.multivariate_normal(np.zeros(r), np.einsum("l,lab->ab", law.gamma[k], hats.q), size=n)
        b = law.tau[k] @ hats.m + teacher @ np.einsum("l,lat->ta", law.gamma[k], hats.theta) + noise
        x, C = denoise_weights(penalty, b, A[k : k + 1])
        gamma = weight * law.gamma[k][:, None, None]
        overlaps.q[:] += gamma * (x.T @ x / n)
        overlaps.m[:] += weight * law.tau[k][:, None] * x.mean(axis=0)
        overlaps.theta[:] += gamma * (x.T @ teacher / n)
        overlaps.V[:] += gamma * C.mean(axis=0)
    return overlaps.arrays()


@pytest.mark.parametrize("penalty", [ga.ElasticNet(0.3, 0.6), Huber(0.5, 0.4)])
@pytest.mark.parametrize("rank", [1, 2])
def test_weights_step_agrees_with_monte_carlo(penalty, rank):
    model, rng, hats = make_uneven_model(penalty, rank), np.random.default_rng(1), draw_hats(2, rank, 1)
    draws = [draw_overlaps(model, hats, 5000, rng) for _ in range(40)]
    overlaps, _ = weights_step(model, hats)
    for name, values in overlaps.arrays().items():
        seen = np.array([draw[name] for draw in draws])
        assert (np.abs(seen.mean(axis=0) - values) <= 5 * seen.std(axis=0, ddof=1) / np.sqrt(40)).all(), name


def test_overlaps_are_derivatives_of_the_free_energy_in_the_hats():
    model, hats = make_uneven_model(ga.ElasticNet(0.3, 0.6), 1), draw_hats(2, 1, 1)
    overlaps, _ = weights_step(model, hats)
    for family in ("m", "q", "theta", "V"):
        values = getattr(hats, family)
        for index in np.ndindex(values.shape):
            shift = np.zeros(values.shape)
            shift[index] = 1e-5
            ends = [free_energy(model, overlaps, replace(hats, **{family: values + s * shift})) for s in (1, -1)]
            assert abs(ends[0] - ends[1]) / 2e-5 < 1e-8, (family, index)


def test_without_l1_the_map_equals_the_map_of_the_ridge(model):
    net = replace(model, penalty=ga.ElasticNet(0.01, 0.0))
    start = make_overlaps(0.08, 0.1, 0.1, 14.0)
    images = [OverlapMap(m, 1.5, PanelRule()).images(start, squares=True)[0] for m in (model, net)]
    for name, values in images[0].overlaps.arrays().items():
        assert np.allclose(values, images[1].overlaps.arrays()[name], rtol=1e-12)
    assert images[0].penalty == pytest.approx(images[1].penalty, rel=1e-12)
    radii = [replicon(m, image.hats, "stein") for m, image in zip((model, net), images, strict=True)]
    assert radii[0] == pytest.approx(radii[1], rel=1e-12)
    energies = [free_energy(m, start, image.hats) for m, image in zip((model, net), images, strict=True)]
    assert energies[0] == pytest.approx(energies[1], rel=1e-12)


@pytest.fixture(scope="module")
def elastic():
    return ga.paper_model(penalty=ELASTIC)


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_fixed_points_predict_message_passing(elastic, branch):
    se = ga.solve_state_evolution(elastic, 1.5, branch, rtol=1e-3, stability=False)
    assert se.converged
    image = OverlapMap(elastic, 1.5, PanelRule(level=1)).images(se.overlaps)[0]
    for value in (moreau_loss(se.overlaps, image.hats, image.penalty), image.hats.loss + image.penalty):
        assert value == pytest.approx(se.train_loss, rel=3e-3)
    assert free_energy(elastic, se.overlaps, image.hats) == pytest.approx(se.train_loss, rel=3e-3)
    runs = [ga.run_gamp(ga.sample(elastic, 400, 1.5, seed), branch, "asymptotic", damping=0.3) for seed in range(8)]
    runs = [run for run in runs if run.converged]
    assert len(runs) >= 6
    seen = {key: np.array([abs(run.overlaps.scalars()[key]) for run in runs]) for key in ("q", "m", "theta")}
    seen["train_loss"] = np.array([run.train_loss for run in runs])
    predicted = {key: abs(float(se.overlaps.scalars()[key])) for key in ("q", "m", "theta")}
    predicted["train_loss"] = se.train_loss
    for key in ("q", "train_loss", "theta" if branch == "semantic" else "m"):
        error = seen[key].std(ddof=1) / np.sqrt(len(runs))
        assert abs(seen[key].mean() - predicted[key]) <= 4 * error, key


@pytest.mark.extensions
def test_the_branch_is_lost_if_the_lasso_removes_all_weights():
    model = ga.paper_model(penalty=ga.ElasticNet(0.0, 0.1))
    for branch in ("semantic", "positional"):
        result = ga.solve_state_evolution(model, 1.5, branch, rtol=1e-3)
        assert result.status is ga.Status.LOST
        assert np.abs(result.overlaps.q).max() < 1e-3
    path = ga.trajectory(model, 1.5, "semantic", n_iter=40, n_paths=512, n_replicas=2)
    assert np.isfinite(path.q).all()
    assert path.q[-1].max() < 1e-6
