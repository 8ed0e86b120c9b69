"""Channel posteriors agree with independent sums and integrals, and have the symmetries of their models."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import multivariate_normal, norm

import gamp_attention as ga
from gamp_attention.extensions.bayes.channels.attention import fields_of_targets
from gamp_attention.extensions.bayes.channels.channel import channel_response
from gamp_attention.extensions.bayes.channels.labels import channel_of
from tests.conftest import examples


def compute_log_prior(u, omega, V):
    """Return Σ_l log N(u_l; ω_l, V_l) (N,) of fields (N, L, t)."""
    return sum(multivariate_normal(omega[l], V[l]).logpdf(u[:, l]) for l in range(len(V)))


def compute_averages(u, logs):
    """Return mean, covariance and log total weight of fields (N, L, t) with given log-weights."""
    top = logs.max()
    weights = np.exp(logs - top)
    total = weights.sum()
    flat = u.reshape(len(u), -1)
    mean = weights @ flat / total
    return mean, (weights[:, None] * (flat - mean)).T @ (flat - mean) / total, np.log(total) + top


def assert_posterior(posterior, mean, cov, log_z, tolerance=1e-6):
    scale = np.sqrt(np.abs(cov).max()) + tolerance
    np.testing.assert_allclose(posterior.mean[0].ravel(), mean, atol=tolerance * scale, rtol=tolerance)
    np.testing.assert_allclose(posterior.cov[0], cov, atol=tolerance * scale**2, rtol=tolerance)
    if log_z is not None:
        assert posterior.log_z[0] == pytest.approx(log_z, abs=tolerance * 10)


@st.composite
def draw_situations(draw, columns=1, most_tokens=4, fewest_tokens=2):
    """Draw ω (1, L, t), V (L, t, t) and teacher fields from this prior."""
    L = draw(st.integers(fewest_tokens, most_tokens))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    root = rng.normal(size=(L, columns, columns)) * 0.3 + np.eye(columns)
    V = 10 ** draw(st.floats(-2, 0.3)) * (root @ root.transpose(0, 2, 1))
    omega = rng.normal(size=(1, L, columns)) * draw(st.floats(0, 2))
    u = omega + np.einsum("lab,nlb->nla", np.linalg.cholesky(V), rng.normal(size=(1, L, columns)))
    return omega, V, u, rng


@examples(30)
@given(draw_situations())
def test_fields_known_up_to_a_sign(problem):
    omega, V, u, _ = problem
    channel = channel_of(ga.attention_model(len(V)))
    both = np.concatenate([u, -u])
    mean, cov, log_z = compute_averages(both, compute_log_prior(both, omega[0], V) - np.log(2))
    assert_posterior(channel.posterior(u, omega, V), mean, cov, log_z)


class Lopsided:
    """Attention map that is not even."""

    even = False

    def __call__(self, u):
        shifted = u[..., 0] + 0.5
        return shifted[..., :, None] * np.tanh(shifted)[..., None, :]


MAPS = {
    "tied": ga.attention_model(2, score_noise=0.3),
    "causal": ga.attention_model(
        2, score_noise=0.3, teacher=ga.SoftmaxTeacher(0.3, np.eye(2), ga.DotProductAttention(causal=True))
    ),
    "own": ga.attention_model(2, score_noise=0.5, teacher=Lopsided()),
}


def compute_on_grid(model, y, omega, variance, line):
    """Return mean, covariance and log Z of the fields of a sample by a sum over a product grid of white fields."""
    (L, t), s = omega.shape, model.score_noise
    white = np.stack(np.meshgrid(*[line] * (L * t), indexing="ij"), axis=-1).reshape(-1, L, t)
    fields = omega + np.sqrt(variance) * white
    logs = -0.5 * ((model.teacher(fields) - y) ** 2).sum(axis=(1, 2)) / s**2 - 0.5 * (white**2).sum(axis=(1, 2))
    mean, cov, log_z = compute_averages(fields, logs)
    log_z += L * t * np.log((line[1] - line[0]) / np.sqrt(2 * np.pi)) - L * L * np.log(np.sqrt(2 * np.pi) * s)
    return mean, cov, log_z


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(("n", "spread"), [(10, 1.0), (300, 0.3)], ids=["few samples", "many samples"])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-9], ids=["default grid", "fine grid"])
def test_noisy_scores_agree_with_a_dense_grid(name, n, spread, tolerance):
    model, rng, size = MAPS[name], np.random.default_rng(5), 0.25
    V, omega = np.full((2, 1, 1), size), spread * rng.standard_normal((n, 2, 1))
    channel = channel_of(model)
    if tolerance < 1e-4:
        channel = replace(channel, settings=replace(channel.settings, spacing=0.35, radius=9.0))
    u = omega + np.sqrt(size) * rng.standard_normal((n, 2, 1))
    y = channel.observe(u, rng.standard_normal((n, 4)))
    posterior = channel.posterior(y, omega, V)
    for i in range(0, n, n // 5):
        of_sample = type(posterior)(*(part[i : i + 1] for part in posterior[:3]))
        assert_posterior(of_sample, *compute_on_grid(model, y[i], omega[i], size, np.linspace(-9, 9, 301)), tolerance)


def test_noisy_scores_of_separate_keys_agree_with_a_dense_grid():
    model = ga.attention_model(
        2, 2, 2, score_noise=0.6, teacher=ga.SoftmaxTeacher(0.0, np.eye(2), ga.DotProductAttention(tied=False))
    )
    rng, n, size = np.random.default_rng(5), 10, 0.25
    omega = 0.3 * rng.standard_normal((n, 2, 2))
    channel = replace(channel_of(model), n_nodes=2048)
    u = omega + np.sqrt(size) * rng.standard_normal((n, 2, 2))
    y = channel.observe(u, rng.standard_normal((n, 4)))
    posterior = channel.posterior(y, omega, np.tile(size * np.eye(2), (2, 1, 1)))
    for i in range(n):
        mean, cov, _ = compute_on_grid(model, y[i].reshape(2, 2), omega[i], size, np.linspace(-6, 6, 23))
        deviation = np.sqrt(np.diag(cov))
        assert (np.abs(posterior.mean[i].ravel() - mean) < 0.15 * deviation).all()
        assert np.linalg.norm(posterior.cov[i] - cov) < 0.25 * np.linalg.norm(cov)


LABELS = {
    "sign": (ga.LogisticLoss(), ga.LogisticLabels(0.0), lambda y, s: float(y * s > 0)),
    "logistic": (ga.LogisticLoss(), ga.LogisticLabels(0.4), lambda y, s: expit(y * s / 0.4)),
    "nearly no information": (ga.LogisticLoss(), ga.LogisticLabels(3.0), lambda y, s: expit(y * s / 3.0)),
}


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("L", [1, 2])
@pytest.mark.parametrize(("y", "center"), [(1.0, 0.4), (-1.0, 0.3), (1.0, -0.8)])
def test_labels_of_a_sum_agree_with_integrals(name, L, y, center):
    loss, labels, likelihood = LABELS[name]
    channel = channel_of(ga.glm_model(loss, labels, n_tokens=L))
    V = np.array([0.7, 0.4])[:L]
    omega = np.full((1, L, 1), center / L)
    total = V.sum()

    def integral(power):
        whole = lambda s: s**power * likelihood(y, s) * norm.pdf(s, center, np.sqrt(total))  # noqa: E731
        return quad(whole, -12, 12, points=[0, -1.14, 1.14, center], epsabs=1e-13, limit=400)[0]

    z, mean = integral(0), integral(1) / integral(0)
    variance = integral(2) / z - mean**2
    posterior = channel.posterior(np.array([[y]]), omega, V[:, None, None])
    assert posterior.log_z[0] == pytest.approx(np.log(z), abs=1e-6)
    np.testing.assert_allclose(posterior.mean[0, :, 0], omega[0, :, 0] + V / total * (mean - center), atol=1e-6)
    wanted = np.diag(V) + np.outer(V, V) * (variance - total) / total**2
    np.testing.assert_allclose(posterior.cov[0], wanted, atol=1e-6)


@examples(20)
@given(draw_situations(columns=2, most_tokens=3, fewest_tokens=1))
def test_linear_labels_have_gaussian_posteriors(problem):
    omega, V, u, rng = problem
    L, t = omega.shape[1:]
    channel = channel_of(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.6), n_tokens=L, rank=2))
    y = channel.observe(u, rng.standard_normal((1, L * t)))
    full = np.zeros((L * t, L * t))
    for l in range(L):
        full[l * t : (l + 1) * t, l * t : (l + 1) * t] = V[l]
    gain = full @ np.linalg.inv(full + 0.36 * np.eye(L * t))
    mean = omega.ravel() + gain @ (y - omega.reshape(1, -1))[0]
    log_z = multivariate_normal(omega.ravel(), full + 0.36 * np.eye(L * t)).logpdf(y[0])
    assert_posterior(channel.posterior(y, omega, V), mean, full - gain @ full, log_z)


@pytest.mark.parametrize("L", [2, 3, 4])
@pytest.mark.parametrize("attention", [ga.DotProductAttention(2.0), ga.DotProductAttention(softmax=False)])
def test_attention_matrices_determine_fields_up_to_a_sign(L, attention):
    rng = np.random.default_rng(L)
    teacher = ga.SoftmaxTeacher(0.4, rng.normal(size=(L, L)), attention)
    u = rng.standard_normal((20, L, 1))
    fields = fields_of_targets(teacher, teacher(u))
    np.testing.assert_allclose(fields @ fields.transpose(0, 2, 1), u @ u.transpose(0, 2, 1), atol=1e-8)


@pytest.mark.parametrize(
    "model",
    [ga.attention_model(3), *MAPS.values(), *(ga.glm_model(loss, labels) for loss, labels, _ in LABELS.values())],
)
def test_slopes_are_derivatives_of_g(model):
    L, t, rng = model.n_tokens, model.teacher_rank, np.random.default_rng(2)
    channel = channel_of(model)
    omega, V = 0.3 * rng.standard_normal((1, L, t)), np.tile(0.4 * np.eye(t), (L, 1, 1))
    y = channel.observe(omega + 0.6 * rng.standard_normal((1, L, t)), rng.standard_normal((1, channel.n_noise)))
    slope = channel_response(channel.posterior(y, omega, V), omega, V)[1]
    for l in range(L):
        for a in range(t):
            step = np.zeros((1, L, t))
            step[0, l, a] = 1e-5
            high, low = (channel_response(channel.posterior(y, omega + d, V), omega + d, V)[0] for d in (step, -step))
            np.testing.assert_allclose(-(high - low)[0, l] / 2e-5, slope[l, :, a], atol=1e-5)


REFUSED = {
    "seven fields": (ga.attention_model(7, score_noise=0.1), "at most 6"),
    "nothing but positions": (ga.paper_model(omega=1.0), "omega < 1"),
    "one token": (ga.attention_model(1, student=ga.DotProductAttention(softmax=False)), "two tokens"),
    "numbered classes": (ga.glm_model(ga.MultinomialLoss(), rank=2), "a teacher of sequence_model"),
    "noisy intensities": (ga.glm_model(ga.PhaseRetrievalLoss(), ga.IntensityLabels(0.5)), "of sequence_model"),
    "classes": (ga.mixture_model([[0.5, 0.0], [0.0, 0.5]], [[0.1, 0.2], [0.1, 0.3]]), "without classes"),
    "classes of a function": (
        ga.sequence_model(
            lambda u, noise, c: u[0, 0], lambda z: z[0, 0], n_tokens=1, rank=1, classes=[0.5, 0.5],
            spikes=[[[1.0]], [[-1.0]]],
        ),
        "model: needs tokens without classes, got SequenceMixture",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_models_without_a_channel_raise_named_errors(name):
    model, words = REFUSED[name]
    for call in (ga.solve_bayes_state_evolution, lambda model, alpha: ga.run_bayes_amp(ga.sample(model, 20, alpha))):
        with pytest.raises(ValueError, match=words):
            call(model, 1.0)
