"""Sequence models: exact derivatives, minima at finite d, state evolution, and messages about faulty functions."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy import special

import gamp_attention as ga
import gamp_attention.problem.denoisers.output  # kernels of losses
from gamp_attention.problem.losses.point import sample_derivatives, sample_loss
from tests.conftest import examples
from validation._tools.agreement import gradient_norm_by_torch

L, R = 2, 2
UNARY = {
    "tanh": lambda x, xp: xp.tanh(x),
    "sin": lambda x, xp: xp.sin(x),
    "gauss": lambda x, xp: xp.exp(-x * x),
    "root": lambda x, xp: xp.sqrt(1 + x * x),
    "log": lambda x, xp: xp.log(2 + x * x),
    "atan": lambda x, xp: xp.arctan(x),
    "ratio": lambda x, xp: 1 / (1 + x * x),
    "choice": lambda x, xp: xp.where(x > 0.3, x * x * x, 0.3 * x * x),
}
BINARY = {"add": lambda x, y: x + y, "sub": lambda x, y: x - 0.5 * y, "mul": lambda x, y: x * y}


def trees():
    """Draw smooth functions of the fields z (L, R): nested tuples of operations."""
    leaves = st.tuples(st.just("field"), st.integers(0, L - 1), st.integers(0, R - 1))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(sorted(UNARY)), inner), st.tuples(st.sampled_from(sorted(BINARY)), inner, inner)
        ),
        max_leaves=6,
    )


def value_of(tree, z, xp):
    """Evaluate a tree at fields of numpy or torch."""
    name, *parts = tree
    if name == "field":
        return z[parts[0], parts[1]]
    values = [value_of(part, z, xp) for part in parts]
    return UNARY[name](*values, xp) if name in UNARY else BINARY[name](*values)


def softmax(scores, xp=np):
    weights = xp.exp(scores - scores.max())
    return weights / weights.sum(1)[:, None]


def two_layers(z, xp=np):
    """Two-layer attention of arXiv 2502.00901 with skip strength 1, in numpy or torch."""
    second = (xp.eye(2) + softmax(xp.outer(z[:, 0], z[:, 0]), xp)) @ z[:, 1]
    return softmax(xp.outer(second, second), xp)


@examples(20)
@given(trees(), trees(), st.integers(0, 100))
def test_derivatives_equal_autograd(first, second, seed):
    def student(z):
        return [value_of(first, z, np), value_of(second, z, np)]

    model = ga.sequence_model(lambda u, noise: student(u), student, n_tokens=L, rank=R)
    rng = np.random.default_rng(seed)
    target, z = rng.standard_normal(2), rng.standard_normal((L, R))
    value, gradient, hessian = (result[0] for result in model.derivatives(target[None], z[None]))

    def loss(fields):
        return sum(0.5 * (y - value_of(tree, fields, torch)) ** 2 for y, tree in zip(target, (first, second)))  # noqa: B905

    fields = torch.tensor(z, requires_grad=True)
    exact = loss(fields)
    (slope,) = torch.autograd.grad(exact, fields)
    curvature = torch.autograd.functional.hessian(loss, fields)
    size = 1 + np.abs(curvature.numpy()).max()
    assert abs(value - exact.item()) < 1e-12 * size
    assert np.abs(gradient - slope.numpy()).max() < 1e-12 * size
    assert np.abs(hessian - curvature.numpy()).max() < 1e-12 * size


def test_two_layer_attention_end_to_end():
    model = ga.sequence_model(lambda u, noise: two_layers(u), two_layers, n_tokens=2, rank=2, lam=0.01)
    data = ga.sample(model, d=100, alpha=2.0, seed=0)
    assert data.targets.shape == (200, 2, 2)
    assert np.array_equal(data.labels, data.targets.reshape(200, 4))
    gamp = ga.run_gamp(data, "semantic")
    assert gamp.converged
    assert gradient_norm_by_torch(data, gamp.Q, two_layers) < 1e-7
    descent = ga.minimize_risk(data, gamp.Q, method="lbfgs", max_iter=20)
    assert np.abs(descent.Q - gamp.Q).max() < 1e-5
    assert np.allclose(model.predict(data.tokens @ data.Q_star / 10.0), data.targets, atol=1e-12)
    again = ga.LabelledDataset(data.tokens, data.targets, model.student, 0.01, rank=2)
    assert np.array_equal(again.labels, data.labels)
    assert type(pickle.loads(pickle.dumps(model)).student) is type(model.student)


@examples(2)
@given(trees(), st.integers(0, 100))
def test_random_models_have_zero_gradient_at_minima(tree, seed):
    def student(z):
        return value_of(tree, z, np)

    model = ga.sequence_model(lambda u, noise: student(u), student, n_tokens=L, rank=R, lam=0.1)
    data = ga.sample(model, d=30, alpha=2.0, seed=seed)
    gamp = ga.run_gamp(data, "semantic")
    norm = gradient_norm_by_torch(data, gamp.Q, lambda z, xp: value_of(tree, z, xp))
    assert norm == pytest.approx(gamp.gradient_norm, abs=1e-9, rel=1e-6)
    assert norm < 1e-7 or not gamp.converged


def test_a_linear_student_is_ridge_regression():
    """Also for sparse weights: state evolution and the Bayes-optimal overlap are those of the linear model."""
    law = ga.coordinate_law(1.0, [0.0], ga.sparse_teacher(0.3), n_tokens=1)
    model = ga.sequence_model(
        lambda u, noise: u[0, 0] + 0.3 * noise[0], lambda z: z[0, 0], n_tokens=1, rank=1, n_noise=1, lam=0.1
    )
    data = ga.sample(model, d=50, alpha=2.0, seed=0)
    assert model.student.convex
    x = data.tokens[:, 0] / np.sqrt(50)
    ridge = np.linalg.solve(x.T @ x + 0.1 * np.eye(50), x.T @ data.labels)
    assert np.abs(ga.run_gamp(data, "random").Q - ridge).max() < 1e-7
    linear = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.3), lam=0.1)
    model, linear = (replace(each, coordinates=law) for each in (model, linear))
    assert np.mean(ga.sample(model, 200, 1.0, seed=0).Q_star == 0) == 0.7
    overlaps = [ga.solve_state_evolution(each, 1.5, "random").overlaps for each in (model, linear)]
    assert np.allclose(overlaps[0].q, overlaps[1].q, rtol=1e-6)
    assert np.allclose(overlaps[0].theta, overlaps[1].theta, rtol=1e-6)
    found = ga.solve_bayes_state_evolution(model, 0.8, n_points=256)
    exact = ga.solve_bayes_state_evolution(linear, 0.8)
    assert abs(found.q - exact.q) <= found.q_error + 1e-3


def loops(z):
    """Fill an array by loops, with functions of math and a condition, as compiled code is written."""
    out = np.zeros((2, 2))
    for i in range(2):
        total = 0.0
        for j in range(2):
            out[i, j] = math.exp(0.5 * z[i, 0] * z[j, 1])
            total += out[i, j]
        if z[i, 0] > z[i, 1]:
            out[i] /= total
    return out


def accumulate(z):
    total = -np.inf
    for field in z[:, 0]:
        total = np.logaddexp(total, field)
    return total


@pytest.mark.parametrize(
    "student",
    [
        loops,
        lambda z: special.softmax(z @ z.T, axis=1),
        lambda z: np.einsum("la,ka->lk", z, z) / np.linalg.norm(z),
        lambda z: (z - z.mean(axis=0)) / np.sqrt(z.var(axis=0) + 1e-3),
        lambda z: z[np.argmax(z[:, 0])] * special.expit(z.sum()),
        lambda z: np.where(np.tri(2) > 0, z @ z.T, 0.0),
        lambda z: [max(z[0, 0], 0.0) ** 3, np.sort(z[:, 1])[0] ** 2],
        lambda z: np.concatenate([np.full(2, z[0, 0]), np.logaddexp(z[0], z[1])]),
        accumulate,
        lambda z: np.ones_like(z[0, 0]) * z[0, 0] + np.full_like(z[1, 0], 2.0) * z + np.zeros_like(z),
        lambda z: special.xlogy(z[0, 0] ** 2, z[1, 0] ** 2) + special.log_ndtr(z[0, 1]) + special.log_softmax(z[1])[0],
    ],
)
def test_traced_functions_equal_python(student):
    model = ga.sequence_model(lambda u, noise: student(u), student, n_tokens=2, rank=2)
    z = np.random.default_rng(1).standard_normal((20, 2, 2))
    assert np.allclose(model.predict(z), [student(fields) for fields in z], rtol=1e-13, atol=1e-13)


def test_derivatives_of_norms_are_zero_at_zero():
    """Padding has fields of zero, at which slopes of roots count as zero."""

    def student(z):
        powers = np.linalg.norm(z[:, 0]) ** 2 + np.linalg.norm(z[:, 1]) ** 3 + np.hypot(z[0, 1], z[1, 1])
        return powers + np.where(z[0, 0] > 0, np.log(z[0, 0]) * np.sqrt(z[0, 0]), z[0, 0])

    model = ga.sequence_model(lambda u, noise: 0.0 * u[0, 0], student, lambda y, p: p + 3, n_tokens=2, rank=2)
    value, gradient, hessian = model.derivatives(np.zeros(1), np.zeros((1, 2, 2)))
    assert (value, gradient.tolist()) == (3, [[[1, 0], [0, 0]]])
    assert np.isfinite(hessian).all()
    compiled = sample_derivatives(sample_loss(model.student, 2, 2), np.zeros((1, 1)), np.zeros((1, 2, 2)))
    for result, wanted in zip(compiled, (value, gradient, hessian.reshape(1, 4, 4)), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)
    targets, fields = torch.zeros((1, 1), dtype=torch.float64), torch.zeros((1, 2, 2), dtype=torch.float64)
    fields.requires_grad = True
    (2 * model.student.torch(targets, fields)).sum().backward()
    np.testing.assert_allclose(fields.grad.numpy(), 2 * gradient, rtol=1e-12)


def linear(z):
    return z[0, 0]


BAD = {
    r"student: needs operations .* cannot differentiate j0; .* \(line \d+ of": {
        "student": lambda z: special.j0(z[0, 0])
    },
    r"student: .* cannot differentiate gammaln; .* \(line \d+ of .*; in student\(z\), z has shape": {
        "student": lambda z: special.gammaln(z[0, 0] ** 2 + 0.5)
    },
    r"loss: .* cannot differentiate gammaln; .* \(line \d+ of .*; in loss\(target": {
        "loss": lambda y, p: special.gammaln(y**2 + 1) + math.lgamma(p**2 + 1) + 1
    },
    "teacher: needs a function": {"teacher": 3},
    "teacher: needs to run on arrays.*takes 1 positional": {"teacher": lambda u: u},
    "student: needs to run on arrays.*IndexError.*test_sequence.py.*shape": {"student": lambda z: z[5, 0]},
    r"student: needs to return an array of the teacher's shape \(\), got shape \(1, 1\)": {"student": lambda z: z},
    "teacher: needs to return finite numbers for random arguments.*, got nan for u": {
        "teacher": lambda u, noise: np.log(-(u[0, 0] ** 2))
    },
    "student: needs to return a number or an array.*NoneType": {"student": lambda z: None},
    "student: needs operations that can be differentiated.*np.where": {"student": lambda z: float(z[0, 0])},
    "student: needs the same values": {"student": lambda z: z[0, 0] * np.random.default_rng().normal()},
    "teacher: needs the same values.*random numbers need to come from its argument noise": {
        "teacher": lambda u, noise: u[0, 0] + np.random.default_rng().normal()
    },
    r"loss: needs to return one number, got an array of shape \(1,\)": {"loss": lambda y, p: np.ones(1) * (y - p)},
    "loss: needs values of at least 0, got -": {"loss": lambda y, p: y * p},
    r"loss: needs to return finite .* for random arguments, .* such as np\.log\(np\.maximum\(y, 1e-9\)\), got nan": {
        "loss": lambda y, p: np.exp(p) - y * p + y * np.log(y) - y + 1
    },
    "convex: needs to be False": {"convex": True, "student": lambda z: np.tanh(z[0, 0])},
    "n_tokens: needs": {"n_tokens": 0},
}


@pytest.mark.parametrize("pattern", BAD)
def test_bad_functions_are_named(named_error, pattern):
    valid = {"teacher": lambda u, noise: u[0, 0], "student": linear, "n_tokens": 1, "rank": 1}
    named_error(lambda: ga.sequence_model(**(valid | BAD[pattern])), pattern)
