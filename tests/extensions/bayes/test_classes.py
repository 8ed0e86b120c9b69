"""Bayes-optimal estimation of samples with classes: against closed forms, importance sampling and Monte Carlo."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad

import gamp_attention as ga
from gamp_attention.extensions.bayes.channels import class_targets
from gamp_attention.extensions.bayes.channels.channel import log_normal
from gamp_attention.extensions.bayes.channels.classes import Seen, class_channel
from validation.claims.single_location import sample_posterior

L, NU, NOISE = 2, 4.0, 0.5
SPIKES = np.array([[[1.5, 0.0], [0.2, -0.3]], [[0.0, 0.4], [1.0, 0.0]]])


def first_field(z):
    """Return the prediction of a student that has no effect here."""
    return z[0, 0]


def build(teacher, n_tokens=1, rank=1, **options):
    """Return a model with two classes of equal probability, if not given otherwise."""
    options = {"classes": [0.5, 0.5]} | options
    return ga.sequence_model(teacher, first_field, n_tokens=n_tokens, rank=rank, **options)


def clusters(spike, sigma, teacher=lambda u, noise, c: 0.0, **options):
    """Return two Gaussian clusters around ±Q* spike/√d, by default without labels."""
    return build(teacher, spikes=[[[spike]], [[-spike]]], sigma=sigma, **options)


def spiked():
    """Return single-location regression: the mean of the token with the target is shifted by √ν along Q*_1."""
    spikes = [[[np.sqrt(NU) * (l == c), 0] for l in range(L)] for c in range(L)]
    return build(lambda u, noise, c: u[c, 1] + NOISE * noise[0], L, 2, n_noise=1, spikes=spikes)


def uneven(sigma):
    """Return a model whose classes differ in probabilities, means, spikes and targets."""
    model = build(
        lambda u, noise, c: u[c, 1] + (0.5 - c) * u[1 - c, 0] + NOISE * noise[0], L, 2, n_noise=1,
        classes=[0.3, 0.7], means=[[0.5, -0.4], [0.0, 0.7]], spikes=SPIKES, sigma=sigma,
    )  # fmt: skip
    tau = model.coordinates.tau + np.tile([0.3, -0.2], 2)
    return replace(model, coordinates=replace(model.coordinates, tau=tau))


def overlap_of_clusters(alpha, signal):
    """Return q of two clusters with (spike/σ)² = signal, from q = A/(1 + A), A = α signal E tanh(signal q + √·)."""
    q = 0.5
    for _ in range(500):
        A = alpha * signal * quad(
            lambda z, q=q: np.exp(-z * z / 2) * np.tanh(signal * q + np.sqrt(signal * q) * z), -9, 9
        )[0] / np.sqrt(2 * np.pi)  # fmt: skip
        q = A / (1 + A)
    return q


@pytest.mark.parametrize(("alpha", "spike", "sigma"), [(1.0, 1.3, 1.0), (0.6, 1.3, 0.7), (0.3, 1.3, 1.0)])
def test_clusters_without_labels_have_the_known_overlap(alpha, spike, sigma):
    point = ga.solve_bayes_state_evolution(clusters(spike, sigma), alpha, n_points=2048)
    exact = overlap_of_clusters(alpha, (spike / sigma) ** 2)
    assert point.converged
    assert abs(point.q[0, 0] - exact) <= point.q_error[0, 0] + 1e-6
    assert np.allclose(point.V, sigma**2 * (1 - point.q))
    assert point.V.shape == (2, 1, 1)


def test_clusters_are_found_from_their_threshold():
    thresholds = ga.bayes_thresholds(clusters(1.3, 0.7), n_points=512, n_replicas=3)
    assert thresholds.weak_recovery == pytest.approx((0.7 / 1.3) ** 4, rel=1e-3)


def test_labels_that_are_the_class_leave_no_mixture():
    """With the class known, a token with a spike a measures Q* with the precision a²/(d σ²)."""
    spikes = np.array([[2, 2, 0], [0, 0, 1]])[..., None]
    model = build(lambda u, noise, c: 1.0 - 2.0 * c, 3, classes=[0.4, 0.6], spikes=spikes, sigma=0.8)
    A = 1.5 * (0.4 * 8 + 0.6) / 0.64
    point = ga.solve_bayes_state_evolution(model, 1.5, n_points=64, n_replicas=2)
    assert point.q[0, 0] == pytest.approx(A / (1 + A), abs=1e-6)


def test_a_token_in_one_of_many_places_is_nearly_found():
    """A strong spike in one of ten places: q is slightly below the value for a known place."""
    spikes = np.concatenate([6 * np.eye(10), np.zeros((1, 10))])[..., None]
    model = build(lambda u, noise, c: 1.0 - 2.0 * (c == 10), 10, classes=[*[0.02] * 10, 0.8], spikes=spikes)
    point = ga.solve_bayes_state_evolution(model, 2.0, n_points=256, n_replicas=2)
    A = 2.0 * 0.2 * 36
    assert point.converged
    assert 0.98 * A / (1 + A) < point.q[0, 0] <= A / (1 + A) + point.q_error[0, 0]


@pytest.mark.parametrize("sigma", [1.0, [[1.0], [1.0]]])
def test_classes_that_differ_in_nothing_give_the_model_without_classes(sigma):
    model = build(lambda u, noise, c: u[0, 0] + 0.3 * noise[0], n_noise=1, sigma=sigma)
    exact = ga.solve_bayes_state_evolution(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.3)), 1.5)
    point = ga.solve_bayes_state_evolution(model, 1.5, n_points=1024)
    for name in ("q", "test_error", "free_entropy"):
        error = np.max(getattr(point, f"{name}_error"))
        assert np.allclose(getattr(point, name), getattr(exact, name), rtol=0, atol=error + 1e-3), name


@pytest.mark.parametrize("sigma", [1.0, [[0.7, 1.1], [1.2, 0.9]]])
def test_covariances_within_tokens_are_the_blocks_of_all_covariances(sigma):
    """The derivative of the means in ω is the covariance times V⁻¹, here in the first field."""
    channel, rng, n = class_channel(uneven(sigma)), np.random.default_rng(3), 6
    group = np.arange(n) % channel.n_groups
    seen = Seen(rng.standard_normal((n, 1)), group, rng.standard_normal((n, 2)))
    omega, V = rng.standard_normal((n, L, 2)), 0.4 * channel.rho
    whole, blocks = (channel.posterior(seen, omega, V, blocks=blocks) for blocks in (False, True))
    within = np.kron(np.eye(L), np.ones((2, 2)))
    assert np.allclose(blocks.cov, whole.cov * within)
    assert np.array_equal(blocks.mean, whole.mean)
    shifted = channel.posterior(seen, omega + 1e-4 * np.array([1.0, 0.0]) * (np.arange(L) == 0)[:, None], V)
    for row in range(n):  # ∂E[u]/∂ω = cov V⁻¹, see the channel's probabilities of the classes
        change = (shifted.mean - whole.mean)[row].ravel() / 1e-4
        inverse = np.linalg.inv(V.reshape(channel.n_groups, L, 2, 2)[group[row], 0])
        assert np.allclose(change, whole.cov[row][:, :2] @ inverse[:, 0], atol=1e-3)


def test_known_classes_with_linear_targets_have_closed_forms():
    """If the class follows from σ, posteriors of classes are Gaussian: iterate A = α Σ_c p_c Σ_l σ² E[g gᵀ] by hand."""
    sigma = np.array([[1.0, 0.8], [1.2, 0.9]])
    alpha, q = 1.5, np.zeros((2, 2))
    slopes = np.zeros((2, 4))
    slopes[0, 1], slopes[0, 2], slopes[1, 3], slopes[1, 0] = 1, 0.5, 1, -0.5  # targets are slopes·(u₀, u₁) + noise
    for _ in range(100):
        C, A = np.eye(2) - q, np.zeros((2, 2))
        for c, p in enumerate((0.3, 0.7)):
            V = np.kron(np.diag(sigma[c] ** 2), C)
            information = np.outer(slopes[c], slopes[c]) / (slopes[c] @ V @ slopes[c] + NOISE**2)
            for l in range(2):
                part, a = slice(2 * l, 2 * l + 2), SPIKES[c, l] / sigma[c, l]
                A += alpha * p * (sigma[c, l] ** 2 * information[part, part] + np.outer(a, a))
        q = A @ np.linalg.inv(np.eye(2) + A)
    point = ga.solve_bayes_state_evolution(uneven(sigma), alpha, n_points=64, n_replicas=2)
    assert np.allclose(point.q, q, atol=1e-6)
    assert np.allclose(point.V[3], 0.81 * (np.eye(2) - q), atol=1e-6)


def test_posterior_agrees_with_importance_sampling():
    """Weigh points of N(ω, V) by the density of tokens and targets, summed over classes."""
    channel, rng = class_channel(uneven([1.0, 0.8])), np.random.default_rng(0)
    root = np.linalg.cholesky([[0.5, 0.1], [0.1, 0.4]])
    C, q, sigma2 = root @ root.T, np.eye(2) - root @ root.T, np.array([1.0, 0.64])
    V, known, omega = sigma2[:, None, None] * C, sigma2[:, None, None] * q, np.array([[0.4, -0.7], [0.9, 0.3]])
    y, logs = 0.6, np.log([0.3, 0.7]) + np.array([0.2, -0.1])
    seen = Seen(np.array([[y]]), np.zeros(1, dtype=int), logs[None])
    posterior = channel.posterior(seen, omega[None], V, known)
    u = omega + np.sqrt(sigma2)[:, None] * (rng.standard_normal((400_000, L, 2)) @ root.T)
    weights = np.empty((2, len(u)))
    for c in range(2):
        a = SPIKES[c] / sigma2[:, None]
        tokens = np.einsum("nla,la->n", u, a) - 0.5 * np.einsum("la,la->", a, SPIKES[c])  # N = 1
        rest = y - u[:, c, 1] - (0.5 - c) * u[:, 1 - c, 0]
        weights[c] = np.exp(logs[c] + tokens + log_normal(rest[:, None, None], np.full((1, 1, 1), NOISE**2)))
    total = weights.sum(axis=0)
    flat = u.reshape(len(u), 4)
    mean = total @ flat / total.sum()
    assert np.allclose(posterior.of_class[0], weights.sum(axis=1) / total.sum(), atol=5e-3)
    assert np.allclose(posterior.mean.ravel(), mean, atol=1e-2)
    assert np.allclose(posterior.cov[0], (total * flat.T) @ flat / total.sum() - np.outer(mean, mean), atol=1e-2)
    assert posterior.log_z[0] == pytest.approx(np.log(total.mean()), abs=1e-2)


@pytest.mark.slow
def test_message_passing_has_the_posterior_mean_of_monte_carlo():
    data = ga.sample(spiked(), 60, 2.0, seed=1)
    mean, _ = sample_posterior(data, 600, np.random.default_rng(0))
    run = ga.run_bayes_amp(data)
    assert run.converged
    assert np.linalg.norm(run.Q - mean) < 0.1 * np.linalg.norm(mean)


@pytest.mark.parametrize(
    ("model", "alpha"),
    [(spiked(), 1.5), (uneven([1.0, 0.8]), 1.5), (uneven([[1.0, 0.8], [1.2, 0.9]]), 1.0)],
    ids=["spiked", "one group", "two groups"],
)
def test_message_passing_agrees_with_state_evolution(model, alpha):
    d, runs = 400, 4
    point = ga.solve_bayes_state_evolution(model, alpha, n_points=512)
    samples = [ga.sample(model, d, alpha, seed=seed) for seed in range(runs)]
    found = [ga.run_bayes_amp(data, tol=1e-3) for data in samples]
    assert all(run.converged for run in found)
    along = np.array([(run.Q - data.Q_star).mean(axis=0) for run, data in zip(found, samples, strict=True)])
    assert (np.abs(along) < 5 * np.sqrt((1 - np.diagonal(point.q)) / d)).all()  # the known means do not add a bias
    values = np.array([np.diagonal(run.history.norm[-1]) for run in found])
    spread = values.std(axis=0, ddof=1) / np.sqrt(runs)
    assert (np.abs(values.mean(axis=0) - np.diagonal(point.q)) < 5 * spread + np.diagonal(point.q_error) + 5 / d).all()
    assert found[0].V.shape == point.V.shape == (4, 2, 2)


@pytest.mark.slow
def test_features_with_random_signs_are_found_in_stages():
    """The spike is k₁ ± 2 k₂ in one of two tokens: k₁ is found at any α, k₂ above a threshold."""
    spikes = np.zeros((4, L, 2))
    for number in range(4):
        spikes[number, number // 2] = 1, 2 - 4 * (number % 2)
    model = build(lambda u, noise, c: 0.0, L, 2, classes=np.full(4, 0.25), spikes=spikes)
    first, second = ga.bayes_thresholds(model, n_points=1024, n_replicas=3).stages
    assert (first.columns, first.alpha) == ((0,), 0.0)
    assert second.columns == (1,)
    assert 0 < second.alpha < 0.25
    data = ga.sample(model, 400, 1.0, seed=0)
    run = ga.run_bayes_amp(data, "staged", max_iter=60)
    point = ga.solve_bayes_state_evolution(model, 1.0, n_points=512)
    assert np.abs(np.diagonal(run.history.norm[-1]) - np.diagonal(point.q)).max() < 0.15
    assert point.q[1, 1] > 0.6


CURVED = (lambda u: np.tanh(2 * u)), (lambda u: u * u - 0.5)  # targets of two classes without noise
CURVED_NOISE, CURVED_SPIKES = 0.4, np.array([0.8, -0.5])


def curved():
    """Return a model with one token whose targets are not linear in the field."""
    return build(
        lambda u, noise, c: CURVED[c](u[0, 0]) + CURVED_NOISE * noise[0], n_noise=1, classes=[0.4, 0.6],
        spikes=CURVED_SPIKES.reshape(2, 1, 1),
    )  # fmt: skip


def sample_curved(q, n, rng):
    """Return classes (n,), cavity means and targets of samples of this model, for V = 1 − q."""
    c = rng.choice(2, n, p=[0.4, 0.6])
    omega = q * CURVED_SPIKES[c] + np.sqrt(q) * rng.standard_normal(n)
    u = omega + (1 - q) * CURVED_SPIKES[c] + np.sqrt(1 - q) * rng.standard_normal(n)
    return c, omega, np.where(c == 0, *(of_class(u) for of_class in CURVED)) + CURVED_NOISE * rng.standard_normal(n)


def integrate_curved(omega, y, q):
    """Return means, variances, log Z and probabilities of class 0 by sums over a grid of the field."""
    grid, moments = np.linspace(-7, 7, 1401), []
    for c, of_class in enumerate(CURVED):
        a, V = CURVED_SPIKES[c], 1 - q
        logs = np.log((0.4, 0.6)[c]) + a * omega - 0.5 * a * a * q
        logs = logs[:, None] - 0.5 * (grid - omega[:, None] - V * a) ** 2 / V - 0.5 * np.log(2 * np.pi * V)
        logs -= 0.5 * ((y[:, None] - of_class(grid)) / CURVED_NOISE) ** 2 + np.log(CURVED_NOISE * np.sqrt(2 * np.pi))
        moments.append(np.exp(logs) @ np.stack([grid**0, grid, grid**2], axis=1) * (grid[1] - grid[0]))
    z, first, second = sum(moments).T
    return first / z, second / z - (first / z) ** 2, np.log(z), moments[0][:, 0] / z


def with_more_points(channel):
    """Return a channel with 16 times as many random points as by default."""
    targets = (replace(each, channel=replace(each.channel, n_nodes=1 << 12)) for each in channel.targets)
    return replace(channel, targets=tuple(targets))


def test_posteriors_of_targets_that_are_not_linear_are_integrals():
    """Few random points are near the field of the rare samples whose field is far from its prior mean."""
    q, n, channel = 0.5, 200, with_more_points(class_channel(curved()))
    _, omega, y = sample_curved(q, n, np.random.default_rng(0))
    seen = Seen(y[:, None], np.zeros(n, dtype=int), np.tile(np.log(channel.probability), (n, 1)))
    found = channel.posterior(seen, omega[:, None, None], np.full((1, 1, 1), 1 - q))
    mean, variance, log_z, first = integrate_curved(omega, y, q)
    for got, exact in ((found.mean, mean), (found.cov, variance), (found.log_z, log_z), (found.of_class[:, 0], first)):
        assert np.quantile(np.abs(got.ravel() - exact), 0.95) < 0.02
    halves = found.halves.mean[:, :, 0, 0] - mean
    products = halves[0] * halves[1]
    assert abs(products.mean()) < 5 * products.std() / np.sqrt(n)  # the errors of both halves are independent
    second = found.halves.second[:, :, 0, 0] - (variance + mean**2)
    assert np.quantile(np.abs(second), 0.95) < 0.1


def test_linear_targets_by_random_points_agree_with_closed_forms(monkeypatch):
    exact = class_channel(spiked())
    monkeypatch.setattr(class_targets, "linear_targets", lambda *arguments: None)
    sampled = with_more_points(class_channel(spiked()))
    assert sampled.is_sampled
    assert not exact.is_sampled
    rng, n = np.random.default_rng(1), 100
    seen = Seen(rng.standard_normal((n, 1)), np.zeros(n, dtype=int), np.log(0.5) * np.ones((n, 2)))
    omega, V = 0.6 * rng.standard_normal((n, L, 2)), 0.4 * exact.rho
    one, other = (channel.posterior(seen, omega, V) for channel in (exact, sampled))
    for name in ("mean", "cov", "log_z", "of_class"):
        assert np.abs(getattr(one, name) - getattr(other, name)).mean() < 0.02, name
    errors = [channel.target_error(seen, omega, V, exact.rho - V) for channel in (exact, sampled)]
    assert np.allclose(*errors, rtol=0.03)
    blocks = sampled.posterior(seen, omega, V, blocks=True)
    assert np.allclose(blocks.cov, other.cov * np.kron(np.eye(L), np.ones((2, 2))))


@pytest.mark.slow
def test_overlap_with_targets_that_are_not_linear_follows_from_integrals_and_is_reached():
    """q = A/(1 + A) with A = α E[g²]; message passing reaches q at d = 500."""
    alpha, n = 1.5, 40_000
    point = ga.solve_bayes_state_evolution(curved(), alpha, n_points=1024)
    q = float(point.q[0, 0])
    _, omega, y = sample_curved(q, n, np.random.default_rng(2))
    square = ((np.concatenate([
        integrate_curved(omega[part], y[part], q)[0] for part in np.split(np.arange(n), 20)
    ]) - omega) / (1 - q)) ** 2  # fmt: skip
    A, error = alpha * square.mean(), alpha * square.std() / np.sqrt(n)
    assert point.converged
    assert abs(A / (1 + A) - q) <= point.q_error[0, 0] + 4 * error / (1 + A) ** 2
    norms = [ga.run_bayes_amp(ga.sample(curved(), 500, alpha, seed=s)).history.norm[-1][0, 0] for s in range(4)]
    assert abs(np.mean(norms) - q) <= point.q_error[0, 0] + 4 * np.std(norms, ddof=1) / 2


def test_own_arrays_with_the_model():
    data = ga.sample(spiked(), 200, 2.0, seed=0)
    own = ga.LabelledDataset(data.tokens, data.targets, data.student, lam=0.1, rank=2)
    assert np.allclose(ga.run_bayes_amp(own, model=spiked()).Q, ga.run_bayes_amp(data).Q, atol=1e-8)


def curved_location(n_tokens):
    """Return single-location regression whose target is a curved function of the value, 2 L fields."""
    spikes = [[[1.5 * (token == place), 0.0] for token in range(n_tokens)] for place in range(n_tokens)]
    return ga.sequence_model(
        lambda u, noise, c: np.tanh(2 * u[c, 1]) + NOISE * noise[0], lambda z: z[0, 0] + z[0, 1], n_tokens=n_tokens,
        rank=2, n_noise=1, classes=np.full(n_tokens, 1 / n_tokens), spikes=spikes,
    )  # fmt: skip


def test_fields_of_tokens_without_influence_keep_their_prior():
    """Eight fields, of which the targets of each class depend on one: posteriors are integrals over this field."""
    n_tokens, channel = 4, with_more_points(class_channel(curved_location(4)))
    rng, n = np.random.default_rng(0), 3
    omega, y = 0.5 * rng.standard_normal((n, n_tokens, 2)), 0.4 * rng.standard_normal((n, 1))
    block = np.array([[0.7, 0.2], [0.2, 0.5]])
    V, q = np.tile(block, (n_tokens, 1, 1)), np.tile(np.eye(2) - block, (n_tokens, 1, 1))
    seen = Seen(y, np.zeros(n, dtype=int), np.full((n, n_tokens), -np.log(n_tokens)))
    found = channel.posterior(seen, omega, V, q)
    a = np.array([1.5, 0.0])
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    logs, means, seconds = [], [], []
    for place in range(n_tokens):
        mean = omega.copy()
        mean[:, place] += block @ a
        value = mean[:, place, 1, None] + np.sqrt(block[1, 1]) * nodes
        likelihood = weights * np.exp(-0.5 * ((y - np.tanh(2 * value)) / NOISE) ** 2)
        z = likelihood.sum(axis=1)
        logs.append(omega[:, place] @ a - 0.5 * a @ q[0] @ a + np.log(z))
        first = (likelihood * value).sum(axis=1) / z
        second = (likelihood * value**2).sum(axis=1) / z
        gain = np.array([block[0, 1] / block[1, 1], 1.0])
        cov = np.tile(np.kron(np.eye(n_tokens), block), (n, 1, 1))
        part = slice(2 * place, 2 * place + 2)
        cov[:, part, part] += (second - first**2 - block[1, 1])[:, None, None] * np.outer(gain, gain)
        mean[:, place] += gain * (first - mean[:, place, 1])[:, None]
        flat = mean.reshape(n, -1)
        means.append(flat)
        seconds.append(cov + flat[:, :, None] * flat[:, None])
    chance = np.exp(np.array(logs) - np.max(logs, axis=0))
    chance /= chance.sum(axis=0)
    expected = np.einsum("cn,cnk->nk", chance, means)
    moments = np.einsum("cn,cnkl->nkl", chance, seconds)
    assert np.allclose(found.mean.reshape(n, -1), expected, atol=0.01)
    assert np.allclose(np.mean(found.second_moments(), axis=0), moments, atol=0.03)


@pytest.mark.slow
def test_a_pair_of_spikes_in_eleven_tokens_has_121_classes():
    """Moments are products of few features of each class and matrices, so that this does not take minutes."""
    places = list(product(range(11), repeat=2))
    spikes = np.zeros((121, 11, 2))
    for c, (first, second) in enumerate(places):
        spikes[c, first, 0] += 2
        spikes[c, second, 1] += 2
    model = build(
        lambda u, noise, c: u[c // 11, 1] + NOISE * noise[0], 11, 2, n_noise=1, classes=np.full(121, 1 / 121),
        spikes=spikes,
    )  # fmt: skip
    point = ga.solve_bayes_state_evolution(model, 1.0, n_points=512, n_replicas=2)
    assert point.converged
    assert 0.5 < point.q[0, 0] < 4 / 5  # q = α a²/(1 + α a²) for known places and no labels
    assert point.q[0, 0] - point.q_error[0, 0] < point.q[1, 1]  # the labels are fields of the second column


DEPENDENT = ga.sequence_model(  # two targets of one field
    lambda u, noise, c: np.array([np.tanh(u[0, 0]), u[0, 0] ** 2]), lambda z: np.array([z[0, 0], z[0, 0]]),
    n_tokens=1, rank=1, classes=[0.5, 0.5],
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (build(lambda u, noise, c: np.tanh(u.sum()), 7), "at most 6, got L t = 7"),
        pytest.param(DEPENDENT, "targets of class 0 that determine each other", marks=pytest.mark.slow),
    ],
    ids=["fields", "targets"],
)
def test_refusals_name_the_reason(model, message):
    with pytest.raises(ValueError, match=message):
        ga.solve_bayes_state_evolution(model, 1.0)


def test_targets_that_no_class_has_are_refused():
    model = clusters(1.0, 1.0, teacher=lambda u, noise, c: 2.0 * c)
    data = ga.sample(model, 50, 1.0, seed=0)
    wrong = ga.LabelledDataset(data.tokens, np.ravel(data.targets) + 1, data.student, lam=0.1, rank=1)
    with pytest.raises(ValueError, match="targets no class has"):
        ga.run_bayes_amp(wrong, model=model)
