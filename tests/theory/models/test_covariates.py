"""Gaussian covariates: the teacher's labels depend on other features than the student's."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from docs.examples import own_equations

P, D, ALPHA, LAM = 30, 40, 2.0, 0.1


def make_features(t=1, p=P, d=D):
    """Return the covariances of u ~ N(0, Ψ) and of v = F u + noise, and weights whose fields have variance 1."""
    rng = np.random.default_rng(0)
    F, Psi = 0.8 * rng.standard_normal((d, p)) / np.sqrt(p), np.diag(np.arange(1, p + 1) ** -0.5)
    theta, noise = rng.standard_normal((p, t)), np.diag(rng.uniform(0.1, 0.5, d))
    theta *= np.sqrt(p / np.diag(theta.T @ Psi @ theta))
    return {"teacher": theta, "teacher_covariance": Psi, "cross": Psi @ F.T, "covariance": F @ Psi @ F.T + noise}


def make_model(loss, labels, features):
    t = features["teacher"].shape[1]
    return replace(ga.glm_model(loss, labels, rank=t, lam=LAM), coordinates=ga.coordinate_law(**features))


def iterate_ridge(noise, teacher, teacher_covariance, cross, covariance):
    """Return q, m, V and ρ of the paper's equations for the squared loss, in the basis of the student's features."""
    p, d = cross.shape
    rho, force, q, m, V = teacher.T @ teacher_covariance @ teacher / p, np.sqrt(d / p) * cross.T @ teacher, 1, 0, 1
    for _ in range(200):
        pull = ALPHA / (1 + V)
        q_hat = ALPHA * (rho + noise**2 * np.eye(len(rho)) + q - m - np.transpose(m)) / (1 + V) ** 2
        C = np.linalg.inv(LAM * np.eye(d) + pull * covariance)
        x = pull * C @ force
        V, m = np.trace(C @ covariance) / d, x.T @ force / d
        q = x.T @ covariance @ x / d + np.trace(covariance @ C @ covariance @ C) / d * q_hat
    return q, m, V, rho


@pytest.mark.parametrize("wide", [False, True])
def test_ridge_regression_solves_the_equations_of_the_paper(wide):
    """With more features than the teacher and no noise on them, Ω is singular and no part is unseen."""
    features = make_features()
    if wide:
        cross = features["cross"]
        features["covariance"] = cross.T @ np.linalg.inv(features["teacher_covariance"]) @ cross
    model = make_model(ga.SquaredLoss(), ga.LinearLabels(0.3), features)
    theory = ga.solve_state_evolution(model, ALPHA, rtol=1e-4, stability=False)
    q, m, V, rho = iterate_ridge(0.3, **features)
    for name, value in {"q": q, "theta": m, "V": V}.items():
        assert getattr(theory.overlaps, name).item() == pytest.approx(np.asarray(value).item(), rel=1e-4), name
    assert theory.test_error == pytest.approx(0.5 * (rho + 0.3**2 + q - 2 * m).item(), rel=1e-4)
    assert model.coordinates.rho.item() == pytest.approx(1.0)
    assert wide == (model.coordinates.unseen.item() < 1e-6)


@pytest.mark.parametrize("of_identity", [False, True])
def test_several_columns(of_identity):
    """The fields have the covariances θᵀΨθ/p with each other and Φᵀθ/√p with the features."""
    features = make_features(t=2)
    if of_identity:
        features["covariance"] = np.diag(np.full(D, 3.0))
    law, theta = ga.coordinate_law(**features), features["teacher"]
    assert np.allclose(law.rho, theta.T @ features["teacher_covariance"] @ theta / P)
    with_features = features["cross"].T @ theta / np.sqrt(P)
    explained = with_features.T @ np.linalg.inv(features["covariance"]) @ with_features
    assert np.allclose(law.rho - law.unseen, explained)
    assert len(law.weight) == (1 if of_identity else D)
    assert law.rotated == (not of_identity)


def test_logistic_regression_agrees_with_user_defined_equations():
    features = make_features()
    omega, vectors = np.linalg.eigh(features["covariance"])
    s = np.sqrt(D / P) * vectors.T @ features["cross"].T @ features["teacher"][:, 0]
    given = {"alpha": ALPHA, "lam": LAM, "omega": omega, "s": s}
    paper = ga.solve_equations(own_equations.random_features, {"m": 0.1, "q": 0.5, "V": 1.0}, rtol=1e-4, **given)
    model = make_model(ga.LogisticLoss(), ga.LogisticLabels(temperature=0), features)
    theory = ga.solve_state_evolution(model, ALPHA, rtol=1e-4, stability=False).overlaps
    found = theory.theta.item(), theory.q.item(), theory.V.item()
    assert np.allclose(found, (paper.m, paper.q, paper.V), rtol=1e-4)


def measure(model, seed):
    data = ga.sample(model, 120, ALPHA, seed=seed)
    run = ga.run_gamp(data)
    assert run.converged
    error, _ = ga.sampled_test_error(data, run.Q, n_samples=1000, seed=seed)
    return [run.overlaps.q.item(), run.overlaps.theta.item(), run.train_loss, error]


def test_weights_at_finite_d_agree_with_theory():
    model = make_model(ga.LogisticLoss(), None, make_features(p=90, d=120))
    theory = ga.solve_state_evolution(model, ALPHA, rtol=1e-3, stability=False)
    expected = theory.overlaps.q.item(), theory.overlaps.theta.item(), theory.train_loss, theory.test_error
    runs = np.array([measure(model, seed) for seed in range(8)])
    assert (np.abs(runs.mean(axis=0) - expected) < 4 * runs.std(axis=0, ddof=1) / np.sqrt(len(runs))).all()


def test_an_instance_has_the_law_of_its_model():
    """All eigenvalues differ, so that each coordinate is a class and d coordinates have these weights exactly."""
    model = make_model(ga.LogisticLoss(), None, make_features())
    instance = ga.sample(model, D, ALPHA).instance_model()
    assert np.allclose(instance.coordinates.rho, model.coordinates.rho)
    assert np.allclose(instance.coordinates.unseen, model.coordinates.unseen)
    assert instance.coordinates.rotated


def change(**changes):
    return lambda: ga.coordinate_law(**make_features() | changes)


def with_unseen(model, **changes):
    return replace(model, coordinates=replace(model.coordinates, unseen=[[0.1]], **changes))


CASES = {
    "no cross": (change(cross=None), r"cross.*\(30, d\).*None"),
    "no teacher": (change(teacher=None), r"teacher.*\(p, t\).*None"),
    "spectra": (change(spectra=0.25), "spectra.*no value"),
    "tau": (change(tau=[0.0]), "tau.*no value"),
    "tokens": (change(n_tokens=2), "n_tokens.*1 with.*got 2"),
    "rank": (change(teacher_rank=2), "teacher_rank.*1 with.*got 2"),
    "shape of cross": (change(cross=np.ones((D, P))), "cross.*shape"),
    "shape of covariance": (change(covariance=np.eye(P)), "covariance.*shape"),
    "large cross": (change(cross=np.ones((P, D))), "teacher_covariance, cross, covariance.*semi-definite"),
    "units of the user": (
        lambda: ga.coordinate_law(teacher=[1.0], teacher_covariance=[[4.0]], cross=[[7.0]], covariance=[[9.0]]),
        r"semi-definite.*got array\(\[\[\[4., 7.\], \[7., 9.\]\]\]\)",
    ),
    "asymmetric": (change(covariance=np.triu(np.ones((D, D)))), "covariance.*symmetric"),
    "zero": (change(covariance=np.zeros((D, D)), cross=np.zeros((P, D))), "covariance.*positive trace"),
    "penalty": (lambda: replace(LOGISTIC, penalty=ga.ElasticNet(0.1, 0.1)), "penalty.*ridge.*ElasticNet"),
    "several tokens": (lambda: with_unseen(ga.glm_model(ga.SquaredLoss(), n_tokens=2)), "unseen.*several tokens"),
    "negative": (lambda: replace(LOGISTIC.coordinates, unseen=[[-0.1]]), "unseen.*semi-definite"),
    "attention": (lambda: with_unseen(ONE_TOKEN), "unseen.*attention"),
    "Bayes": (lambda: ga.solve_bayes_state_evolution(LOGISTIC, ALPHA), "unseen.*Bayes"),
    "law of data": (lambda: ga.law_of(ga.sample(LOGISTIC, D, ALPHA)), "unseen.*data's teacher"),
}
LOGISTIC = make_model(ga.LogisticLoss(), None, make_features())
ONE_TOKEN = ga.attention_model(1, student=ga.DotProductAttention(softmax=False))


@pytest.mark.parametrize(("call", "message"), CASES.values(), ids=CASES)
def test_errors_name_the_argument(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_diagonal_covariance_allows_other_penalties():
    features = make_features()
    features["covariance"] = np.diag(np.arange(D, 0, -1.0))
    model = make_model(ga.LogisticLoss(), None, features)
    assert replace(model, penalty=ga.ElasticNet(0.1, 0.1)).coordinates.unseen.item() > 0


@pytest.mark.extensions
def test_extensions_agree_with_a_teacher_on_coordinates_without_variance():
    """A few coordinates with nearly no variance and large teacher weights add a part that the student cannot learn."""
    small = 1e-8
    law = ga.CoordinateLaw([1.0], [[1.0]], [[0.0]], [[0.0]], [[[0.9]]], unseen=[[0.1]])
    hidden = ga.CoordinateLaw(
        [1 - small, small], [[1.0], [small]], np.zeros((2, 1)), np.zeros((2, 1)), [[[0.9]], [[0.1 / small**2]]]
    )
    models = [replace(LOGISTIC, coordinates=coordinates) for coordinates in (law, hidden)]
    one, other = (ga.trajectory(model, ALPHA, "random", n_iter=3, n_paths=256, n_replicas=2) for model in models)
    assert one.theta[-1].item() > 0.1
    for name in ("q", "theta", "V", "train_loss", "test_error"):
        assert np.allclose(getattr(one, name), getattr(other, name), rtol=1e-3), name
    models = [replace(ga.glm_model(ga.PhaseRetrievalLoss(), lam=0.05), coordinates=each) for each in (law, hidden)]
    theory = ga.solve_state_evolution(models[0], 8.0, rtol=1e-3, stability=False)
    one, other = (ga.limiting_spectrum(m, 8.0, theory, [1.0], n_points=256, n_replicas=2) for m in models)
    assert len(one.eigenvalues)
    assert np.allclose(one.eigenvalues, other.eigenvalues, rtol=1e-3)
    assert np.allclose(one.weights, other.weights, rtol=1e-3)
