"""Attention layers, generalized linear models and mixtures are special cases of `sequence_model`, sample by sample."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, ndtr

import gamp_attention as ga
from docs.examples.two_layers import softmax
from gamp_attention.problem.losses.point import sample_derivatives, sample_loss

N, OMEGA = 12, 0.3


def draw_class(u, noise):
    """Return the class of a sample with probabilities softmax(Σ_l u_l), as a unit vector."""
    number = (ndtr(noise[0]) > np.cumsum(softmax(u.sum(axis=0)[None]))[:-1]).sum()
    return np.where(np.arange(u.shape[1]) == number, 1.0, 0.0)


GENERALIZED_LINEAR = {  # loss, label model, r, teacher, student, loss of both, and target of a label
    "squared": (
        ga.SquaredLoss(), ga.LinearLabels(0.3), 2, lambda u, noise: u.ravel() + 0.3 * noise, lambda z: z.ravel(),
        None, lambda labels: labels,
    ),
    "logistic": (
        ga.LogisticLoss(), None, 1, lambda u, noise: np.where(ndtr(noise[0]) < expit(u.sum()), 1.0, -1.0),
        lambda z: z.sum(), lambda y, total: np.logaddexp(0.0, -y * total), lambda labels: labels[:, 0],
    ),
    "multinomial": (
        ga.MultinomialLoss(), None, 3, draw_class, lambda z: z.sum(axis=0),
        lambda y, total: np.log(np.exp(total).sum()) - y @ total, lambda labels: np.eye(3)[labels[:, 0].astype(int)],
    ),
    "phase retrieval": (
        ga.PhaseRetrievalLoss(), None, 1, lambda u, noise: u.sum() ** 2, lambda z: z.sum() ** 2,
        lambda y, square: 0.25 * (square - y) ** 2, lambda labels: labels[:, 0],
    ),
}  # fmt: skip


def require_equal(model, params, constant, same, targets, z):
    """Require equal losses, gradients and Hessians of samples with fields z, up to rounding."""
    loss = sample_loss(model.student, model.n_tokens, model.rank)
    value, gradient, hessian = sample_derivatives(loss, params, z)
    own_value, own_gradient, own_hessian = same.derivatives(targets, z)
    np.testing.assert_allclose(own_value, value + constant, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(own_gradient.ravel(), gradient.ravel(), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(own_hessian.ravel(), hessian.ravel(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", GENERALIZED_LINEAR)
def test_generalized_linear_models_are_special_cases(name):
    loss, labels, rank, teacher, student, own_loss, convert = GENERALIZED_LINEAR[name]
    model = ga.glm_model(loss, labels, n_tokens=2, rank=rank)
    n_noise = model.teacher.n_noise(2, rank)
    same = ga.sequence_model(teacher, student, own_loss, n_tokens=2, rank=rank, n_noise=n_noise)
    rng = np.random.default_rng(0)
    u, z, noise = *rng.standard_normal((2, N, 2, rank)), rng.standard_normal((N, n_noise))
    params = model.teacher(u, noise)
    targets = convert(params)
    np.testing.assert_allclose(same.teacher(u, noise), targets.reshape(N, -1), rtol=1e-14)
    require_equal(model, params, 0.0, same, targets, z)


def test_attention_layers_are_special_cases():
    A, sigma = np.array([[0.5, 0.2, 0.3], [0.1, 0.8, 0.1], [0.4, 0.4, 0.2]]), np.array([0.4, 0.5, 0.7])
    model = ga.attention_model(3, 2, 2, omega=OMEGA, sigma=sigma, A=A)
    same = ga.sequence_model(
        lambda u, noise: (1 - OMEGA) * softmax(u @ u.T) + OMEGA * A, lambda z: softmax(z @ z.T),
        lambda T, S: 0.5 * ((T - S) ** 2 * sigma**2).sum(), n_tokens=3, rank=2, sigma=sigma,
    )  # fmt: skip
    same = replace(same, coordinates=replace(same.coordinates, tau=[[1, 0, -1]]))
    for name in ("gamma", "tau", "teacher_cov"):
        np.testing.assert_allclose(getattr(same.coordinates, name), getattr(model.coordinates, name), rtol=1e-14)
    data = ga.sample(model, d=30, alpha=0.5, seed=0)
    u = data.tokens @ data.Q_star / np.sqrt(30)
    np.testing.assert_allclose(same.teacher(u, np.zeros((len(u), 0))), data.targets.reshape(len(u), 9), rtol=1e-11)
    z, terms = np.random.default_rng(0).standard_normal(u.shape), data.terms("asymptotic")
    require_equal(model, terms.params, terms.constant, same, data.targets, z)
