"""Token distributions estimated from data: their parts against the true distribution, predictions against finite d."""

import json

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.inference.law_of import SpectrumFit, moments_along
from gamp_attention.theory.models.mixtures import ShiftedTeacher

SPECTRUM = ga.power_law_spectrum(1.0, 20)


def rotate(data, seed=0):
    """Return samples as plain arrays in a rotated basis, and the teacher's weights in that basis."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((data.dim, data.dim)))
    rotated = ga.Dataset(data.tokens @ basis, data.outputs @ basis, data.positions @ basis, lam=data.lam)
    return rotated, basis.T @ data.Q_star


@pytest.fixture(scope="module")
def anisotropic():
    model = ga.attention_model(coordinates=ga.coordinate_law(SPECTRUM))
    return ga.sample(model, 200, 2.0, seed=1)


@pytest.fixture(scope="module")
def law(anisotropic):
    rotated, weights = rotate(anisotropic)
    return ga.law_of(rotated, weights, target=anisotropic.model.teacher)


def predict(model, **more):
    se = ga.solve_state_evolution(model, 2.0, rtol=1e-2, stability=False, **more)
    assert se.converged
    return np.array([*[float(v) for v in se.overlaps.scalars().values()], se.train_loss, se.test_error])


def test_prediction_agrees_with_the_instance_and_with_message_passing(anisotropic, law):
    """Sampling errors of variances, √(2/n), are 7 %; errors of single eigenvalues would be larger."""
    predicted, true = predict(law), predict(anisotropic.instance_model())
    q, _, theta, V, loss, error = np.abs(predicted / true - 1)
    assert max(q, theta) < 0.12
    assert max(V, loss, error) < 0.08
    gamp = ga.run_gamp(anisotropic, "semantic", "asymptotic")
    ends = gamp.overlaps.scalars()
    assert float(ends["q"]) == pytest.approx(predicted[0], rel=0.12)
    assert gamp.train_loss == pytest.approx(predicted[4], rel=0.12)


def test_law_has_traces_positions_and_teacher_of_the_data(anisotropic, law):
    assert np.allclose(law.trace, np.asarray(anisotropic.tokens).var(axis=0).mean(axis=1), rtol=0.01)
    gram = np.einsum("k,kl,km->lm", law.weight, law.tau, law.tau)
    assert np.allclose(gram, anisotropic.positions @ anisotropic.positions.T, rtol=1e-6)
    sizes = np.einsum("k,kst->st", law.weight, law.moments[:, 2:, 2:])
    assert np.allclose(sizes, anisotropic.Q_star.T @ anisotropic.Q_star / 200, rtol=1e-6)
    fields = np.asarray(anisotropic.tokens) @ anisotropic.Q_star / np.sqrt(200)
    assert np.allclose(law.rho, np.mean(fields**2, axis=0)[:, :, None], rtol=0.1)
    assert law.noise == 0.0
    assert law.outside == 0.0
    assert law.strong == ()


def test_law_has_the_products_of_positions_and_teacher_of_the_data():
    """Also if the tokens are isotropic, so that the estimated eigenvalues differ by chance only."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(400, 2, 200)), rng.normal(size=(200, 2))
    positions = np.outer([1, -1], np.ones(200)) / np.sqrt(200)
    law = ga.law_of(ga.Dataset(x, x[:, ::-1], positions, rank=2), weights, noise=0.0)
    columns = np.concatenate([np.sqrt(200) * positions.T, weights], axis=1)
    assert np.allclose(np.einsum("k,kab->ab", law.weight, law.moments), columns.T @ columns / 200, atol=1e-8)


def test_data_of_a_model_need_no_other_argument():
    data = ga.sample(ga.paper_model(omega=0.2, score_noise=0.1), 150, 2.0, seed=0)
    law = ga.law_of(data)
    assert law.noise == pytest.approx(0.1, rel=0.05)
    assert law.model.teacher is data.model.teacher
    assert ga.attention_model(coordinates=law).coordinates is law
    assert ga.sample(law, 100, 1.0).dim == 100
    assert ga.linear_baseline(law).converged
    assert "as assumed" in str(law)
    assert json.loads(json.dumps(law.to_dict(), allow_nan=False)) == law.to_dict()
    assert law.to_dict()["departures"][1]["name"] == "correlation of tokens"


def test_without_a_teacher_its_weights_are_random(anisotropic):
    rotated, _ = rotate(anisotropic)
    law = ga.law_of(rotated, noise=0.0)
    assert not law.teacher_mean.any()
    assert np.array_equal(law.teacher_cov, np.ones((len(law.weight), 1, 1)))
    assert law.model.teacher(np.zeros((2, 1))).tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_covariances_of_different_shapes_have_separate_eigenvalues():
    values = np.stack([SPECTRUM.values, np.full(20, 0.25)], axis=1)
    data = ga.sample(ga.attention_model(coordinates=ga.coordinate_law(values)), 200, 3.0, seed=0)
    law = ga.law_of(rotate(data)[0], noise=0.0)
    spread = np.sqrt(law.weight @ law.gamma**2) / law.trace
    assert spread[0] == pytest.approx(np.sqrt(np.mean(SPECTRUM.values**2)) / 0.25, rel=0.1)
    assert spread[1] == pytest.approx(1.0, abs=0.1)


def test_laws_of_labelled_data():
    model = ga.glm_model(ga.LogisticLoss(), lam=0.1)
    data = ga.sample(model, 100, 4.0, seed=0)
    law = ga.law_of(data)
    assert isinstance(law.model, ga.GLMModel)
    loss, of_instance = (
        ga.solve_state_evolution(problem, 4.0, rtol=1e-2, stability=False).train_loss
        for problem in (law, data.instance_model())
    )
    assert loss == pytest.approx(of_instance, rel=0.02)
    tokens = data.tokens + np.full(100, 0.3)
    moved = ga.law_of(ga.LabelledDataset(tokens, data.labels, ga.LogisticLoss(), lam=0.1), data.Q_star)
    assert isinstance(moved.model.teacher, ShiftedTeacher)
    assert np.allclose(moved.model.teacher.shift, 0.03 * data.Q_star.sum(), atol=0.15)


@pytest.mark.parametrize("penalty", [ga.Ridge(0.3), ga.ElasticNet(0.2, 0.1)])
def test_intercepts_of_student_and_teacher_are_part_of_the_law(penalty):
    rng, d = np.random.default_rng(0), 300
    tokens, weights = rng.standard_normal((3 * d, d)), rng.standard_normal((d, 1))
    fields = tokens @ weights / np.sqrt(d) + 0.8
    labels = np.where(rng.random(fields.shape) < 1 / (1 + np.exp(-fields)), 1.0, -1.0)
    data = ga.LabelledDataset(tokens, labels, ga.LogisticLoss(), penalty=penalty, intercept=True)
    law = ga.law_of(data, np.sqrt(d + 1) * np.append(weights / np.sqrt(d), [[0.8]], axis=0))
    se = ga.solve_state_evolution(law, 3.0, rtol=1e-2, stability=False)
    trained = ga.run_gamp(data, "random")
    assert se.converged
    assert se.train_loss == pytest.approx(trained.train_loss, rel=0.05)
    assert se.overlaps.m.item() == pytest.approx(data.intercepts(trained.Q).item(), abs=0.15)
    assert se.overlaps.q.item() == pytest.approx(trained.overlaps.q.item(), rel=0.15)


def test_penalties_that_depend_on_the_basis_keep_single_coordinates():
    data = ga.sample(ga.paper_model(penalty=ga.ElasticNet(0.05, 0.02)), 60, 3.0, seed=0)
    law = ga.law_of(data)
    assert len(law.weight) == 60
    assert np.allclose(law.teacher_mean, data.Q_star)
    assert np.allclose(law.gamma, np.asarray(data.tokens).var(axis=0, ddof=1).T)


def test_means_of_tokens_are_a_departure_and_part_of_the_model():
    tokens = np.random.default_rng(0).standard_normal((400, 2, 100)) + np.array([[0.5], [-0.2]])
    law = ga.law_of(ga.Dataset(tokens, tokens[:, ::-1], np.zeros((2, 100))), noise=0.0)
    assert next(d for d in law.departures if d.name == "norm of the mean token").value == pytest.approx(5, rel=0.05)
    assert np.allclose(np.sqrt(law.weight @ law.tau**2), [5, 2], rtol=0.05)


def test_noise_inside_and_outside_the_span_of_the_tokens():
    """Noise on outputs is outside the span of the tokens, except in L of d dimensions."""
    rng = np.random.default_rng(0)
    x, L, d = rng.standard_normal((300, 3, 40)), 3, 40
    noisy = ga.Dataset(x, x[:, ::-1] + 0.5 * rng.standard_normal(x.shape), np.zeros((L, d)))
    known = ga.law_of(noisy, np.zeros((d, 1)), target=ga.SoftmaxTeacher(1.0, np.eye(L)[::-1]))
    unknown = ga.law_of(noisy)
    assert known.outside == unknown.outside == pytest.approx(0.25 * (1 - L / d), rel=0.03)
    assert known.noise == pytest.approx(unknown.noise, rel=0.05)
    assert known.noise == pytest.approx(0.5 * np.sqrt(L / (L * d)), rel=0.06)


def test_spectrum_of_few_samples_is_more_accurate_than_sample_eigenvalues():
    rng = np.random.default_rng(0)
    values, d, n = np.repeat(SPECTRUM.values, 15), 300, 600
    x = rng.standard_normal((n, d)) * np.sqrt(values)
    resolvent = SpectrumFit().resolvent(x.T @ x / n, n)
    spectrum = SpectrumFit().spectrum(resolvent)
    for kappa in (0.02, 0.1, 0.5):
        true, raw = np.mean(values / (values + kappa)), np.mean(resolvent.eigenvalues / (resolvent.eigenvalues + kappa))
        fitted = spectrum.weight @ (spectrum.gamma / (spectrum.gamma + kappa))
        assert abs(fitted / true - 1) < 0.01
        assert abs(raw / true - 1) > 4 * abs(fitted / true - 1)
    columns = np.stack([rng.standard_normal(d), np.sqrt(values / values.mean()) * rng.standard_normal(d)], axis=1)
    moments = moments_along(resolvent, spectrum, columns)
    assert np.allclose(moments.sum(axis=0).diagonal(), (columns**2).mean(axis=0))
    for a in range(2):
        along = spectrum.gamma @ moments[:, a, a]
        assert along == pytest.approx(np.mean(columns[:, a] ** 2 * values), rel=4 * np.sqrt(2 / n))


BAD = {
    "too few samples": (
        lambda d: ga.law_of(ga.Dataset(d.tokens[:5], d.outputs[:5])),
        "data: needs at least 20 samples",
    ),
    "a teacher of another size": (lambda d: ga.law_of(d, np.ones((3, 1))), r"teacher: needs shape \(50, t\)"),
    "a constant token": (
        lambda d: ga.law_of(ga.Dataset(*[d.tokens * [[1.0], [0.0]]] * 2)),
        "data: needs tokens that vary .* index 1",
    ),
    "negative noise": (lambda d: ga.law_of(d, noise=-1.0), "noise: needs a finite number >= 0"),
    "no dataset": (lambda d: ga.law_of(d.tokens), "data: needs a gamp_attention.Dataset"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_raise_named_errors(case, named_error):
    call, words = BAD[case]
    data = ga.sample(ga.paper_model(), 50, 2.0, seed=0)
    named_error(lambda: call(data), words)


TOKENS = {
    "Gaussian": lambda rng, shape: rng.normal(size=shape),
    "lognormal entries": lambda rng, shape: rng.lognormal(0, 1.5, size=shape) - np.exp(1.125),
    "Cauchy rows": lambda rng, shape: rng.normal(size=shape) / np.abs(rng.normal(size=(shape[0], 1, 1))),
}


@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize("n", [200, 2000])
def test_heavy_tails_are_strong_departures_although_they_also_increase_the_errors(kind, n):
    for seed in range(4):
        tokens = TOKENS[kind](np.random.default_rng(seed), (n, 2, 50))
        strong = set(ga.law_of(ga.Dataset(tokens, tokens[:, ::-1], np.zeros((2, 50)))).strong)
        heavy = {"variance of norms / Gaussian variance", "kurtosis along the leading direction"}
        assert not strong if kind == "Gaussian" else heavy <= strong
