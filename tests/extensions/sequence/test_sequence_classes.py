"""Sequence models whose samples have classes: samples, averages, runs and theory against independent calculations."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import gamp_attention as ga
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.choice import first_rule
from gamp_attention.theory.rules.rule import average_channels
from tests.theory.models.test_mixtures import ravel

L, NU, NOISE = 2, 4.0, 0.5
PROBABILITY, SIGMA = [0.3, 0.7], [[1.0, 0.8], [1.2, 0.9]]
MEANS = [[0.5, -0.4], [0.0, 0.7]]
SPIKES = [[[1.5, 0.0], [0.2, -0.3]], [[0.0, 0.4], [1.0, 0.0]]]


def locate(z, xp=np):
    """Return the value, column 1, of the token that column 0 selects softly."""
    weights = xp.exp(z[:, 0] - z[:, 0].max())
    return (weights * z[:, 1]).sum() / weights.sum()


def uneven(**options):
    """A model whose classes differ in probabilities, means, spikes, variances and targets."""
    model = ga.sequence_model(
        lambda u, noise, c: np.tanh(u[c, 1]) + (0.5 - c) * u[1 - c, 0] + NOISE * noise[0], locate, n_tokens=L, rank=2,
        n_noise=1, lam=0.3, classes=PROBABILITY, means=MEANS, spikes=SPIKES, sigma=SIGMA, **options,
    )  # fmt: skip
    tau = model.coordinates.tau + np.tile([0.3, -0.2], len(PROBABILITY))
    return replace(model, coordinates=replace(model.coordinates, tau=tau))


def two_clouds(**options):
    """Labels c − ½ of rows of two classes with different means and variances, fitted by linear regression."""
    options = {"means": [[1.0], [-0.6]], "lam": 0.4} | options
    return ga.sequence_model(
        lambda u, noise, c: c - 0.5, lambda z: z[0, 0], n_tokens=1, rank=1, classes=[0.7, 0.3],
        sigma=[[1.0], [0.8]], **options,
    )  # fmt: skip


def some_overlaps(model, seed=0):
    """Return overlaps that differ between the sources, as weights x = B (τ, π) + noise have them."""
    rng, r, law = np.random.default_rng(seed), model.rank, model.coordinates
    q, theta = [], []
    for gamma in law.gamma[0]:
        mixing = np.array([[0.6, 0.1], [-0.2, 0.7]])[:r, : model.teacher_rank]
        theta.append(gamma * mixing)
        q.append(gamma * (mixing @ mixing.T + np.diag([0.5, 0.3])[:r, :r]))
    V = np.array([np.diag(row) for row in rng.uniform(0.5, 1.5, (model.n_sources, r))])
    return ga.Overlaps(np.array(q), rng.uniform(-1, 1, (model.n_sources, r)), np.array(theta), V)


def test_samples_have_the_means_and_targets_of_their_classes():
    model = uneven()
    d = 3000
    data = ga.sample(model, d, 0.1, seed=0)
    assert [group.rows.stop for group in data.groups][-1] == data.n_samples
    for c, (group, probability) in enumerate(zip(data.groups, PROBABILITY, strict=True)):
        assert group.sources.tolist() == [2 * c, 2 * c + 1]
        count = group.rows.stop - group.rows.start
        assert abs(count - 300 * probability) < 4 * np.sqrt(300 * probability)
        x = data.tokens[group.rows]
        mean = np.outer(MEANS[c], np.ones(d)) / np.sqrt(d) + np.array(SPIKES[c]) @ data.Q_star.T / np.sqrt(d)
        assert np.allclose((x - mean).std(axis=(0, 2)), SIGMA[c], rtol=0.01)
        directions = np.column_stack([np.ones(d), data.Q_star]) / np.sqrt(d)
        error = 4 * np.max(SIGMA[c]) / np.sqrt(count)
        assert (np.abs((x.mean(axis=0) - mean) @ directions) < 1.1 * error).all()
        assert np.allclose(data.source_means[group.sources], mean + data.positions)
        u = x @ data.Q_star / np.sqrt(d)
        residual = data.targets[group.rows] - np.tanh(u[:, c, 1]) - (0.5 - c) * u[:, 1 - c, 0]
        assert np.std(residual) == pytest.approx(NOISE, abs=4 * NOISE / np.sqrt(2 * count))


def test_averages_agree_with_brute_force():
    model, n, rng = uneven(), 40_000, np.random.default_rng(1)
    at = some_overlaps(model)
    c = rng.choice(2, n, p=PROBABILITY)
    variance = np.array(SIGMA)[c] ** 2
    y = np.sqrt(variance)[:, :, None] * rng.standard_normal((n, L, 2))  # cov(Q*) = 1
    rows = 2 * c[:, None] + np.arange(L)
    slope = at.theta[rows] / variance[:, :, None, None]
    rest = at.q[rows] - slope @ np.swapaxes(at.theta[rows], 2, 3)
    noise = np.einsum("nlab,nlb->nla", slope, y)
    noise += np.einsum("nlab,nlb->nla", np.linalg.cholesky(rest), rng.standard_normal((n, L, 2)))
    u = y + np.array(SPIKES)[c]  # Q*ᵀ Q* a/d = a, and 1_d is orthogonal to Q*
    k = np.arange(n)
    targets = np.tanh(u[k, c, 1]) + (0.5 - c) * u[k, 1 - c, 0] + NOISE * rng.standard_normal(n)
    g, moreau = np.empty((n, L, 2)), np.empty(n)
    for number in range(2):
        here = c == number
        out = ga.denoise(model.loss, targets[here, None], (noise + at.m[rows])[here], at.V[2 * number : 2 * number + 2])
        g[here], moreau[here] = out.g, out.moreau
    moments = average_channels(first_rule("sobol", model, (0,)), model, at)
    means = {name: np.mean([getattr(part, name) for part in moments], axis=0) for name in ("g", "gg", "with_teacher")}
    errors = {name: np.std([getattr(part, name) for part in moments], axis=0) for name in means}
    for s in range(4):
        inside = ((c == s // 2) * 1.0)[:, None, None]
        one, other = g[:, s % 2, :, None] * inside, y[:, s % 2, None]
        for name, values in {"g": one, "gg": one * g[:, s % 2, None], "with_teacher": one * other}.items():
            mean, spread = values.mean(axis=0), values.std(axis=0) / np.sqrt(n)
            expected = means[name][s].reshape(mean.shape)
            allowed = 4.5 * np.hypot(spread, errors[name][s].reshape(mean.shape))
            assert (np.abs(mean - expected) <= allowed).all(), (name, s)
    predicted = np.mean([part.moreau for part in moments])
    spread = np.hypot(moreau.std() / np.sqrt(n), np.std([part.moreau for part in moments]))
    assert abs(moreau.mean() - predicted) < 4.5 * spread


def test_spikes_equal_means_given_for_every_coordinate():
    """The theory of an instance is the same whether its means are called spikes, or given for each coordinate."""
    data = ga.sample(uneven(), 60, 1.0, seed=2)
    by_spikes = data.instance_model()
    gamma, tau, class_means, pi = data.coordinate_samples()
    law = ga.CoordinateLaw(np.full(60, 1 / 60), gamma, tau, pi, np.zeros((60, 2, 2)))
    by_means = replace(by_spikes, coordinates=law, class_means=class_means)
    assert len(by_spikes.coordinates.weight) == 1
    assert np.allclose(by_spikes.teacher_shift, by_means.teacher_shift, atol=1e-12)
    at = some_overlaps(by_spikes)
    images = [OverlapMap(model, 1.5, first_rule("sobol", model, (0,)))(at) for model in (by_spikes, by_means)]
    assert np.allclose(ravel(images[0]), ravel(images[1]), rtol=1e-8, atol=1e-10)
    for start in ("semantic", "positional"):
        paths = [ga.trajectory(model, 1.5, start, n_iter=1, n_paths=256) for model in (by_spikes, by_means)]
        assert np.allclose(ravel(paths[0]), ravel(paths[1]), rtol=1e-6, atol=1e-9)


def test_a_run_ends_at_a_zero_gradient_of_torch():
    data = ga.sample(uneven(), 100, 3.0, seed=0)
    run = ga.run_gamp(data, "semantic")
    assert run.converged
    weights = torch.tensor(run.Q, requires_grad=True)
    fields = torch.tensor(data.tokens + data.positions) @ weights / np.sqrt(data.dim)
    predicted = torch.vmap(lambda z: locate(z, torch))(fields)
    risk = 0.5 * ((torch.tensor(data.targets) - predicted) ** 2).sum() + data.lam / 2 * (weights**2).sum()
    (gradient,) = torch.autograd.grad(risk, weights)
    assert float(gradient.norm()) < 1e-6 * data.lam * np.sqrt(data.dim)
    assert run.train_loss == pytest.approx(float(risk.detach()) / data.dim)


def ridge(data, intercept=False):
    """Return weights, predictions without each sample, and the intercept of ridge regression, by numpy."""
    x, y = data.tokens[:, 0, : data.dim - intercept] / np.sqrt(data.dim), np.ravel(data.targets)
    penalty = np.full(x.shape[1], data.lam)
    if intercept:
        x, penalty = np.column_stack([x, np.ones(len(x))]), np.append(penalty, 0)
    hat = x @ np.linalg.solve(x.T @ x + np.diag(penalty), x.T)
    fitted = hat @ y
    weights = np.linalg.solve(x.T @ x + np.diag(penalty), x.T @ y)
    return weights, fitted - np.diag(hat) / (1 - np.diag(hat)) * (y - fitted), y


@pytest.mark.parametrize("intercept", [False, True])
def test_linear_regression_of_two_clouds(intercept):
    data = ga.sample(two_clouds(intercept=intercept), 120, 2.5, seed=3)
    run = ga.run_gamp(data, "random")
    weights, left_out, y = ridge(data, intercept)
    assert run.converged
    if intercept:
        assert data.intercepts(run.Q)[0] == pytest.approx(weights[-1], abs=1e-6)
        assert abs(weights[-1]) > 0.05
    assert np.allclose(run.Q[:120, 0], weights[:120], atol=1e-6)
    errors = ga.leave_one_out(data, run).errors
    assert np.allclose(errors, 0.5 * (y - left_out) ** 2, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": [1.0]}, "classes: needs the probabilities of 2 or more.*list a single class twice"),
        ({"classes": [0.5, 0.6]}, "classes: needs the probabilities"),
        ({"classes": [1.5, -0.5]}, "classes: needs the probabilities"),
        ({"classes": [[0.5, 0.5]]}, "classes"),
        ({"spikes": np.zeros((2, 2, 3))}, "spikes"),
        ({"means": np.zeros((2, 3))}, "means"),
        ({"sigma": np.ones((3, 2))}, "sigma"),
        ({"classes": None}, "spikes: needs None"),
        ({"classes": None, "spikes": None, "means": np.zeros((2, 2))}, "means: needs None"),
        ({"teacher": lambda u, noise, c: u[: c + 1, 0]}, "one shape for all classes"),
        ({"teacher": lambda u, noise: u[0, 0]}, r"teacher\(u, noise, c\)"),
    ],
)
def test_bad_classes_are_refused_by_name(changes, message):
    arguments = {
        "teacher": lambda u, noise, c: u[c, 1], "student": locate, "n_tokens": L, "rank": 2, "classes": [0.5, 0.5],
        "spikes": np.zeros((2, 2, 2)),
    } | changes  # fmt: skip
    with pytest.raises((ValueError, TypeError), match=message):
        ga.sequence_model(**arguments)
