"""Bayes-optimal estimation with fixed columns, against posteriors and fixed points in closed form."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import gamp_attention as ga
from gamp_attention.extensions.bayes.known_columns import separate_known_columns

NOISE = 0.3


def gate(z):
    return z[0, 0] * np.tanh(z[0, 1])


@pytest.fixture(scope="module")
def gated():
    """Return the model of a regression behind a known gate."""
    model = ga.sequence_model(
        lambda u, noise: gate(u) + NOISE * noise[0], gate, n_tokens=1, rank=2, n_noise=1, lam=0.1
    )  # fmt: skip
    return ga.fix_columns(model, {1: [0.0, 1.0]}, convex=True)


def test_posterior_behind_a_known_gate_is_gaussian(gated):
    """The targets are linear in the unknown column, with known coefficients tanh(κ)."""
    d = 150
    data = ga.sample(gated, d, 1.5, seed=0)
    run = ga.run_bayes_amp(data)
    x, (y, seen) = np.asarray(data.tokens)[:, 0], data.targets.T
    scaled = x * np.tanh(seen)[:, None] / (NOISE * np.sqrt(d))
    precision = np.eye(d) + scaled.T @ scaled
    mean = np.linalg.solve(precision, scaled.T @ y / NOISE)
    assert run.converged
    assert np.linalg.norm(run.Q[:, 0] - mean) < 0.02 * np.linalg.norm(mean)
    assert abs(run.variance[:, 0].mean() / np.diag(np.linalg.inv(precision)).mean() - 1) < 0.02
    assert_allclose(run.Q[:, 1], data.Q_star[:, 1], atol=1e-12)
    assert_allclose(run.variance[:, 1], 0, atol=1e-12)
    assert_allclose(run.overlap, run.Q.T @ data.Q_star / d)


@pytest.mark.slow
def test_state_evolution_behind_a_known_gate_has_a_closed_form(gated):
    """1/C = 1 + α E[c²/(σ² + c² C)] with c = tanh of a standard normal number."""
    alpha = 1.5
    point = ga.solve_bayes_state_evolution(gated, alpha, n_points=1024)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    squares, weights = np.tanh(nodes) ** 2, weights / weights.sum()
    C = point.V[0, 0, 0]
    for _ in range(200):
        C = 1 / (1 + alpha * (weights @ (squares / (NOISE**2 + squares * C))))
    assert abs(point.q[0, 0] - (1 - C)) < 3 * point.q_error[0, 0]
    assert_allclose(point.q[1], [0, 1], atol=1e-12)
    assert abs(point.test_error - C * (weights @ squares) - NOISE**2) < 3 * point.test_error_error
    assert ga.bayes_thresholds(gated, n_points=64, n_replicas=2).stages[0].columns == (0,)


def sparse_tokens(coefficients):
    """Return sparse-token classification with a fixed query, whose first token has the signal."""
    spikes = [[[4.0 * (c == 0 and token == 0)] for token in range(4)] for c in range(2)]

    def attend(z):
        weights = np.exp(z[:, 0] - z[:, 0].max())
        return weights @ z[:, 1] / weights.sum()

    model = ga.sequence_model(
        lambda u, noise, c: 1.0 - 2.0 * c, attend, lambda y, f: np.logaddexp(0.0, -y * f), n_tokens=4, rank=2,
        teacher_rank=1, intercept=True, classes=[0.5, 0.5], spikes=spikes, lam=0.1,
    )  # fmt: skip
    return ga.fix_columns(model, {0: coefficients}, convex=True)


def test_fixed_query_of_sparse_tokens_is_prior_knowledge():
    """The labels determine the classes, so that the signal given query and samples is Gaussian."""
    a, b, alpha, d = 0.8, 0.6, 0.3, 300
    known = sparse_tokens([a, b])
    point = ga.solve_bayes_state_evolution(known, alpha, n_points=256, n_replicas=2)
    assert_allclose(point.q[0, 0], 1 - b**2 / (1 + alpha * 0.5 * 16 * b**2), atol=1e-6)
    data = ga.sample(known, d, alpha, seed=0)
    run = ga.run_bayes_amp(data)
    signal = np.asarray(data.tokens)[data.targets[:, 0] > 0, 0]
    query = data.Q_star @ [a, b]
    precision = 1 / b**2 + 16 * len(signal) / d
    mean = (a * query / b**2 + 4 * signal.sum(axis=0) / np.sqrt(d)) / precision
    assert np.linalg.norm(run.Q[:, 0] - mean) < 2e-3 * np.linalg.norm(mean)
    assert abs(run.variance[:, 0].mean() * precision - 1) < 0.01
    assert_allclose(run.Q @ [a, b], query, atol=1e-10)


def test_unrelated_fixed_column_changes_nothing():
    """A fixed column that is independent of the teacher has no information on it, also if classes are not observed."""
    spikes = [[[2.0], [0.0]], [[0.0], [2.0]]]
    model = ga.sequence_model(
        lambda u, noise, c: 0.0, lambda z: z[0, 0] + z[0, 1], n_tokens=2, rank=2, teacher_rank=1, classes=[0.5, 0.5],
        spikes=spikes,
    )  # fmt: skip
    plain = ga.solve_bayes_state_evolution(model, 0.5, n_points=1024)
    related, unrelated = (
        ga.solve_bayes_state_evolution(ga.fix_columns(model, {1: c}), 0.5, n_points=1024)
        for c in ([0.6, 0.8], [0.0, 1.0])
    )
    assert abs(unrelated.q[0, 0] - plain.q[0, 0]) < 3 * (unrelated.q_error[0, 0] + plain.q_error[0, 0])
    assert related.q[0, 0] > plain.q[0, 0] + 0.03


@pytest.mark.slow
def test_message_passing_with_unknown_places_and_a_fixed_column():
    """Message passing agrees with state evolution if classes are not observed."""
    model = ga.sequence_model(
        lambda u, noise, c: 0.0, lambda z: z[0, 0] + z[0, 1], n_tokens=2, rank=2, teacher_rank=1, classes=[0.5, 0.5],
        spikes=[[[2.0], [0.0]], [[0.0], [2.0]]],
    )  # fmt: skip
    known = ga.fix_columns(model, {1: [0.6, 0.8]})
    theory = ga.solve_bayes_state_evolution(known, 0.5)
    runs = [ga.run_bayes_amp(ga.sample(known, 1000, 0.5, seed=seed)) for seed in range(8)]
    overlaps = np.array([run.overlap[0, 0] for run in runs])
    assert all(run.converged for run in runs)
    error = overlaps.std(ddof=1) / np.sqrt(len(overlaps)) + theory.q_error[0, 0]
    assert abs(overlaps.mean() - theory.q[0, 0]) < 4 * error


def test_columns_that_are_fixed_one_after_another():
    """The known fields of both calls of `fix_columns` are covariates, and only the first column is estimated."""

    def teacher(u, noise):
        return u[0, 0] * u[0, 1] + u[1, 0] * u[1, 2] + NOISE * noise[0]

    model = ga.sequence_model(teacher, lambda z: z[0, 0] + z[0, 1] + z[0, 2], n_tokens=2, rank=3, n_noise=1)
    known = ga.fix_columns(ga.fix_columns(model, {2: [0.0, 0.6, 0.8]}), {1: [0.0, 0.8, -0.6]})
    data = ga.sample(known, 60, 3.0, seed=0)
    run = ga.run_bayes_amp(data)
    x, u = np.asarray(data.tokens), np.asarray(data.tokens) @ data.Q_star / np.sqrt(60)
    scaled = (x[:, 0] * u[:, 0, 1:2] + x[:, 1] * u[:, 1, 2:3]) / (NOISE * np.sqrt(60))
    mean = np.linalg.solve(np.eye(60) + scaled.T @ scaled, scaled.T @ data.targets[:, 0] / NOISE)
    assert np.linalg.norm(run.Q[:, 0] - mean) < 0.05 * np.linalg.norm(mean)
    assert_allclose(run.Q[:, 1:], data.Q_star[:, 1:], atol=1e-10)


def test_rounding_errors_of_fixed_columns_are_not_estimated():
    """Two fixed columns are multiples of two columns of the teacher; only the first column is unknown."""
    model = ga.sequence_model(
        lambda u, noise: u[0, 0] + noise[0], lambda z: z[0, 0] + z[0, 1] + z[0, 2], n_tokens=1, rank=3, n_noise=1
    )  # fmt: skip
    for first, second in np.random.default_rng(0).normal(size=(50, 2)):
        known = ga.fix_columns(model, {1: [0.0, first, 0.0], 2: [0.0, 0.0, second]})
        assert_allclose(separate_known_columns(known).directions, [[1.0], [0.0], [0.0]], atol=1e-12)


def test_starts_and_messages(gated):
    """Starts are for all columns of the teacher; other data and learning are refused."""
    data = ga.sample(gated, 60, 4.0, seed=0)
    run = ga.run_bayes_amp(data, data.Q_star)
    assert run.converged
    assert run.Q.shape == (60, 2)
    with pytest.raises(ValueError, match=r"init: needs an array \(d, 2\)"):
        ga.run_bayes_amp(data, data.Q_star[:, :1])
    with pytest.raises(ValueError, match="learn: needs \\(\\) for models with fixed columns"):
        ga.run_bayes_amp(data, learn="prior")
    with pytest.raises(ValueError, match="data: needs fields of the columns of the teacher"):
        ga.run_bayes_amp(ga.sample(gated, 60, 4.0, seed=1).copy_with(labels=data.labels), model=gated)
    other = ga.LabelledDataset(data.tokens, data.targets, gated.student, lam=0.1, rank=1)
    with pytest.raises(ValueError, match="data: needs samples of this model"):
        ga.run_bayes_amp(other, model=gated)
    all_known = ga.sequence_model(
        lambda u, noise: u[0, 0], lambda z: z[0, 0] + z[0, 1], n_tokens=1, rank=2, teacher_rank=1
    )
    with pytest.raises(ValueError, match="fixed_columns: needs at least one column of the teacher"):
        ga.solve_bayes_state_evolution(ga.fix_columns(all_known, {1: [1.0]}), 1.0)
