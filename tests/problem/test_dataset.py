"""Datasets: reduction to a matrix per sample, the distribution of samples, and immutability."""

from fractions import Fraction

import numpy as np
import pytest

import gamp_attention as ga


def apply_layer(data, Q):
    """Compute f_Q(x) = S[(x+p)Q/√d](x+p), eq. (2), from its definition."""
    x = data.tokens + data.positions
    scores = np.einsum("nlr,nkr->nlk", x @ Q, x @ Q) / data.dim
    weights = np.exp(scores)
    return (weights / weights.sum(axis=2, keepdims=True)) @ x


def test_exact_terms_reproduce_the_square_error(data):
    Q = np.random.default_rng(3).normal(size=(data.dim, 1))
    square = ((data.outputs - apply_layer(data, Q)) ** 2).sum() / (2 * data.dim)
    expected = (square + data.lam / 2 * (Q**2).sum()) / data.dim
    assert ga.train_loss(data, Q, "exact") == pytest.approx(expected, rel=1e-12)


def test_targets_are_computed_by_the_teacher(data):
    u = data.tokens @ data.Q_star / np.sqrt(data.dim)
    scores = np.exp(u @ u.transpose(0, 2, 1))
    T = 0.7 * scores / scores.sum(axis=2, keepdims=True) + 0.3 * np.array([[0.6, 0.4], [0.4, 0.6]])
    assert np.allclose(data.targets, T)
    assert np.allclose(data.outputs, T @ data.tokens)


def test_asymptotic_risk_approaches_the_exact_risk(model):
    gaps = []
    for d in (100, 1600):
        data = ga.sample(model, d, 1.0, seed=2)
        gaps.append(abs(ga.train_loss(data, data.Q_star, "exact") - ga.train_loss(data, data.Q_star, "asymptotic")))
    assert gaps[1] < 0.5 * gaps[0]


def test_labels_may_be_objects_that_are_exactly_floats():
    rows, exact = np.ones((3, 4)), [1.0, 2, True]
    data = ga.LabelledDataset(rows, np.array([np.float32(1), Fraction(2), True], dtype=object), ga.SquaredLoss())
    assert data.labels.tolist() == [[float(label)] for label in exact]
    for label in ("1", None, Fraction(1, 3), 1j):
        with pytest.raises(TypeError, match="labels: needs a real array"):
            ga.LabelledDataset(rows, np.array([label, 1, 1], dtype=object), ga.SquaredLoss())


def test_samples_have_the_distribution_of_the_model():
    model = ga.attention_model(3, 2, 2, sigma=[0.3, 0.5, 1.0], tau=[1.0, 0.0, -2.0])
    data = ga.sample(model, 2000, 1.0, seed=1)
    assert np.allclose(data.tokens.std(axis=(0, 2)), [0.3, 0.5, 1.0], rtol=5e-3)
    assert np.allclose(np.linalg.norm(data.positions, axis=1), [1.0, 0.0, 2.0])
    gram = data.Q_star.T @ data.Q_star / 2000
    assert np.allclose(gram, np.eye(2), atol=0.1)


def test_attributes_cannot_be_set(data):
    labelled = ga.LabelledDataset(np.eye(4), [1.0, -1.0, 1.0, -1.0], ga.LogisticLoss())
    for dataset in (data, labelled):
        for name in ("tokens", "penalty", "rank", "model", "other"):
            with pytest.raises(AttributeError, match=f"{name}: cannot be set, because datasets are immutable"):
                setattr(dataset, name, None)


def test_replace_returns_a_new_dataset_and_does_not_change_the_old_dataset(data):
    before = {name: np.array(getattr(data, name)) for name in ("tokens", "outputs", "positions", "spectra", "Q_star")}
    terms = data.terms("exact").params.copy()
    other = data.replace(penalty=ga.ElasticNet(0.2, 0.1), rank=2)
    assert (other.lam, other.rank, other.model.penalty, other.model.rank) == (0.2, 2, other.penalty, 2)
    assert (data.lam, data.rank, data.model.rank) == (0.01, 1, 1)
    assert other.replace(lam=0.5).penalty == ga.ElasticNet(0.5, 0.1)
    for name, values in before.items():
        assert np.array_equal(getattr(data, name), values)
    assert other.tokens is data.tokens
    assert np.array_equal(data.terms("exact").params, terms)
    fresh = ga.Dataset(data.tokens, data.outputs, data.positions, rank=2, penalty=ga.ElasticNet(0.2, 0.1))
    Q = np.random.default_rng(0).normal(size=(data.dim, 2))
    assert np.allclose(ga.gradient(other, Q), ga.gradient(fresh, Q), rtol=1e-10, atol=1e-12)


def test_replace_changes_the_loss_of_labels():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 10))
    data = ga.LabelledDataset(x, np.sign(x[:, 0]), ga.LogisticLoss())
    other, Q = data.replace(student=ga.SquaredLoss()), rng.normal(size=(10, 1))
    fresh = ga.LabelledDataset(x, np.sign(x[:, 0]), ga.SquaredLoss())
    assert np.array_equal(ga.gradient(other, Q), ga.gradient(fresh, Q))
    assert not np.array_equal(ga.gradient(data, Q), ga.gradient(fresh, Q))


def test_replace_checks_its_arguments(data, named_error):
    for name, value in (("lam", -1.0), ("rank", 0), ("student", 3)):
        named_error(lambda changes={name: value}: data.replace(**changes), f"{name}: needs")


def test_small_arrays_of_the_caller_are_copied():
    """Later changes of these arrays must not change data sets or models."""
    A = np.array([[0.7, 0.3], [0.2, 0.8]])
    model = ga.paper_model(A=A)
    error = ga.linear_baseline(model).test_error
    A[:] = 0
    assert ga.linear_baseline(model).test_error == error
    rng = np.random.default_rng(0)
    x, p, labels = rng.normal(size=(6, 2, 3)), np.ones((2, 3)), np.ones((6, 2))
    data, rows = ga.Dataset(x, x, p), ga.LabelledDataset(x, labels, ga.SquaredLoss(), 0.1, positions=p)
    gradients = ga.gradient(data, np.ones((3, 1))), ga.gradient(rows, np.ones((3, 1)))
    p[:] = labels[:] = 7
    assert np.array_equal(ga.gradient(data, np.ones((3, 1))), gradients[0])
    assert np.array_equal(ga.gradient(rows, np.ones((3, 1))), gradients[1])
    assert data.positions.max() == rows.labels.max() == 1
