"""Channel posteriors agree with independent sums and integrals, and have the symmetries of their models."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import multivariate_normal, norm

import gamp_attention as ga
from gamp_attention.extensions.bayes.channels.channel import channel_response
from gamp_attention.extensions.bayes.channels.choice import channel_of
from gamp_attention.extensions.bayes.channels.noiseless import fields_of_targets
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


@examples(20)
@given(draw_situations(columns=2, fewest_tokens=3))
def test_fields_known_up_to_a_rotation_and_reflection(problem):
    omega, V, u, _ = problem
    channel = channel_of(ga.attention_model(len(V), 2, 2))
    angle = 2 * np.pi * np.arange(20000) / 20000
    turn = np.stack([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]).transpose(2, 0, 1)
    all_turned = np.concatenate([u[0] @ turn, u[0] * [1, -1] @ turn])
    mean, cov, log_z = compute_averages(
        all_turned, compute_log_prior(all_turned, omega[0], V) - np.log(len(all_turned))
    )
    assert_posterior(channel.posterior(u, omega, V), mean, cov, log_z)


@pytest.mark.slow
@examples(10)
@given(draw_situations(columns=2, most_tokens=2))
def test_two_tokens_of_two_columns_have_an_undetermined_shift(problem):
    omega, V, u, _ = problem
    channel = channel_of(ga.attention_model(2, 2, 2))
    along = channel.observe(u, np.zeros((1, 0)))[0, :, 0]
    spread = np.abs(omega).max() + 8 * np.sqrt(np.linalg.eigvalsh(V).max()) + np.abs(u).max()
    angle, shift = 2 * np.pi * np.arange(1500) / 1500, np.linspace(-spread, spread, 801)
    first = np.stack([np.cos(angle), np.sin(angle)], axis=1)[:, None, None]
    second = np.stack([-np.sin(angle), np.cos(angle)], axis=1)[:, None, None]
    fields = (along[:, None] * first + shift[None, :, None, None] * second).reshape(-1, 2, 2)
    logs = compute_log_prior(fields, omega[0], V) - np.log(1500) + np.log(shift[1] - shift[0])
    assert_posterior(channel.posterior(along[None, :, None], omega, V), *compute_averages(fields, logs), tolerance=2e-5)


class Lopsided:
    """Attention map that is not even."""

    even = False

    def __call__(self, u):
        shifted = u[..., 0] + 0.5
        return shifted[..., :, None] * np.tanh(shifted)[..., None, :]


MAPS = {
    "tied": ga.attention_model(2, score_noise=0.3),
    "keys": ga.attention_model(
        2, 2, 2, score_noise=0.6, teacher=ga.SoftmaxTeacher(0.0, np.eye(2), ga.DotProductAttention(tied=False))
    ),
    "causal": ga.attention_model(
        2, score_noise=0.3, teacher=ga.SoftmaxTeacher(0.3, np.eye(2), ga.DotProductAttention(causal=True))
    ),
    "own": ga.attention_model(2, score_noise=0.5, teacher=Lopsided()),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("size", [0.02, 0.25])
def test_noisy_scores_agree_with_a_dense_grid(name, size):
    model, rng = MAPS[name], np.random.default_rng(5)
    L, t, s = 2, model.teacher_rank, model.score_noise
    V = np.tile(size * np.eye(t), (L, 1, 1))
    omega = 0.3 * rng.standard_normal((1, L, t))
    channel = channel_of(model)
    u = omega + np.sqrt(size) * rng.standard_normal((1, L, t))
    y = channel.observe(u, rng.standard_normal((1, L * L)))
    line = np.linspace(-6, 6, 301 if t == 1 else 27)
    white = np.stack(np.meshgrid(*[line] * (L * t), indexing="ij"), axis=-1).reshape(-1, L, t)
    fields = omega + np.sqrt(size) * white
    squares = ((model.teacher(fields) - y) ** 2).sum(axis=(1, 2))
    logs = -0.5 * squares / s**2 - L * L * np.log(np.sqrt(2 * np.pi) * s) - 0.5 * (white**2).sum(axis=(1, 2))
    mean, cov, log_z = compute_averages(fields, logs)
    log_z += L * t * (np.log(line[1] - line[0]) - 0.5 * np.log(2 * np.pi))
    posterior = channel.posterior(y, omega, V)
    assert_posterior(posterior, mean, cov, log_z, tolerance=1e-4 if t == 1 else 2e-2)
    weights = np.exp(logs - logs.max())
    assert posterior.misfit[0] == pytest.approx(weights @ squares / weights.sum(), rel=1e-4 if t == 1 else 2e-2)


LABELS = {
    "sign": (ga.LogisticLoss(), ga.LogisticLabels(0.0), lambda y, s: float(y * s > 0)),
    "logistic": (ga.LogisticLoss(), ga.LogisticLabels(0.4), lambda y, s: expit(y * s / 0.4)),
    "intensity": (ga.PhaseRetrievalLoss(), ga.IntensityLabels(0.5), lambda y, s: norm.pdf(y, s**2, 0.5)),
}


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("L", [1, 2])
@pytest.mark.parametrize(("y", "center"), [(1.0, 0.4), (-1.0, 0.3), (1.0, -0.8)])
def test_labels_of_a_sum_agree_with_integrals(name, L, y, center):
    loss, labels, likelihood = LABELS[name]
    channel = channel_of(ga.glm_model(loss, labels, n_tokens=L))
    y = abs(y) * 1.3 if name == "intensity" else y
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


def test_noiseless_phase_retrieval_averages_over_a_sign():
    channel = channel_of(ga.glm_model(ga.PhaseRetrievalLoss()))
    posterior = channel.posterior(np.array([[2.25]]), np.full((1, 1, 1), 0.3), np.full((1, 1, 1), 0.8))
    plus = 1 / (1 + np.exp(-2 * 1.5 * 0.3 / 0.8))
    assert posterior.mean[0, 0, 0] == pytest.approx(1.5 * (2 * plus - 1))
    assert posterior.cov[0, 0, 0] == pytest.approx(2.25 * (1 - (2 * plus - 1) ** 2))


def test_classes_agree_with_a_sum_over_samples():
    channel = channel_of(ga.glm_model(ga.MultinomialLoss(), rank=2))
    V, omega = np.array([[[0.5, 0.1], [0.1, 0.3]]]), np.array([[[0.3, -0.2]]])
    line = np.linspace(-7, 7, 401)
    white = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 1, 2)
    u = omega + white @ np.linalg.cholesky(V[0]).T
    logs = np.log(expit(u[:, 0, 1] - u[:, 0, 0])) - 0.5 * (white**2).sum(axis=(1, 2))
    mean, cov, log_z = compute_averages(u, logs)
    log_z += 2 * np.log(line[1] - line[0]) - np.log(2 * np.pi)
    assert_posterior(channel.posterior(np.array([[1.0]]), omega, V), mean, cov, log_z)


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


@pytest.mark.parametrize(("L", "t"), [(2, 1), (3, 1), (4, 1), (3, 2), (4, 2), (2, 2)])
@pytest.mark.parametrize("attention", [ga.DotProductAttention(2.0), ga.DotProductAttention(softmax=False)])
def test_attention_matrices_determine_fields_up_to_symmetries(L, t, attention):
    rng = np.random.default_rng(L + 7 * t)
    teacher = ga.SoftmaxTeacher(0.4, rng.normal(size=(L, L)), attention)
    u = rng.standard_normal((20, L, t))
    fields = fields_of_targets(teacher, teacher(u), t)
    if attention.softmax and t == L:  # all but the shift of both tokens across their difference
        assert fields.shape[2] == L - 1
        away = u - u.mean(axis=1, keepdims=True)
        gram = (fields - fields.mean(axis=1, keepdims=True)) @ fields.transpose(0, 2, 1)
        np.testing.assert_allclose(gram, away @ u.transpose(0, 2, 1), atol=1e-9)
    else:
        np.testing.assert_allclose(fields @ fields.transpose(0, 2, 1), u @ u.transpose(0, 2, 1), atol=1e-8)


@pytest.mark.parametrize(
    "model",
    [ga.attention_model(3), ga.attention_model(3, 2, 2), ga.attention_model(2, 2, 2), MAPS["tied"], MAPS["own"],
     *(ga.glm_model(loss, labels) for loss, labels, _ in LABELS.values())],
)  # fmt: skip
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
    "three columns": (ga.attention_model(4, 3, 3), "rotations of more"),
    "a mask": (ga.attention_model(2, teacher=MAPS["causal"].teacher), "without a mask"),
    "nothing but positions": (ga.paper_model(omega=1.0), "omega < 1"),
    "one token": (ga.attention_model(1, student=ga.DotProductAttention(softmax=False)), "two tokens"),
    "classes": (ga.mixture_model([[0.5, 0.0], [0.0, 0.5]], [[0.1, 0.2], [0.1, 0.3]]), "without classes"),
    "classes of a function": (
        ga.sequence_model(
            lambda u, noise, c: u[0, 0],
            lambda z: z[0, 0],
            n_tokens=1,
            rank=1,
            classes=[0.5, 0.5],
            spikes=[[[1.0]], [[-1.0]]],
        ),
        "model: needs tokens without classes, got SequenceMixture",
    ),
    "known columns": (
        ga.fix_columns(
            ga.sequence_model(lambda u, noise: u[0, 0], lambda z: z[0, 0] + z[0, 1], n_tokens=1, rank=2),
            {1: [0.0, 1.0]},
        ),
        r"model.fixed_columns: needs none for the posterior .*, got \[1\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_without_a_channel_raise_named_errors(name):
    model, words = REFUSED[name]
    for call in (ga.solve_bayes_state_evolution, lambda model, alpha: ga.run_bayes_amp(ga.sample(model, 20, alpha))):
        with pytest.raises(ValueError, match=words):
            call(model, 1.0)
