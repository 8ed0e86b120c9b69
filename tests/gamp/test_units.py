"""Multiplying tokens or labels by a number changes the unit of the weights, and nothing else: also not the accuracy."""

from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga

SCALES = [1e5, 1e-5]
PAPER = ga.sample(ga.paper_model(omega=0.3, sigma=0.5, lam=0.01), d=60, alpha=2.0, seed=0)


def scaled_attention(scale):
    """Return samples whose tokens are multiplied by a number, with the λ at which the minima are proportional."""
    tokens, outputs, positions = scale * PAPER.tokens, scale * PAPER.outputs, scale * PAPER.positions
    return ga.Dataset(tokens, outputs, positions, lam=0.01 * scale**4)


def distance(Q, other):
    return min(np.linalg.norm(Q - other), np.linalg.norm(Q + other)) / np.linalg.norm(other)


@pytest.mark.parametrize("scale", SCALES)
def test_message_passing_is_as_accurate_for_tokens_of_any_size(scale):
    expected = ga.run_gamp(scaled_attention(1.0), PAPER.Q_star).Q
    result = ga.run_gamp(scaled_attention(scale), PAPER.Q_star / scale)
    assert result.converged
    assert distance(result.Q * scale, expected) < 1e-5


@pytest.mark.parametrize("scale", SCALES)
def test_descent_is_as_accurate_for_tokens_of_any_size(scale):
    expected = ga.minimize_risk(scaled_attention(1.0), PAPER.Q_star, method="lbfgs")
    result = ga.minimize_risk(scaled_attention(scale), PAPER.Q_star / scale, method="lbfgs")
    assert result.converged
    assert distance(result.Q * scale, expected.Q) < 1e-5
    assert result.train_loss == pytest.approx(expected.train_loss * scale**2, rel=1e-9)
    assert result.overlaps.q == pytest.approx(expected.overlaps.q, rel=1e-4)
    assert result.history.train_loss[0] == pytest.approx(expected.history.train_loss[0] * scale**2, rel=1e-9)
    assert result.history.gradient_norm[0] == pytest.approx(expected.history.gradient_norm[0] / scale, rel=1e-6)


ROWS = [(1.0, 1.0), (1e4, 1.0), (1.0, 1e-3), (1e4, 1e-6), (1e-3, 1e3), (1.0, 1e-20)]


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((100, 30))
    return x, x @ rng.standard_normal(30) / np.sqrt(30) + 0.5 * rng.standard_normal(100)


@pytest.mark.parametrize(("of_rows", "of_labels"), ROWS)
def test_regressions_are_as_accurate_for_rows_and_labels_of_any_size(regression, of_rows, of_labels):
    x, y = regression
    data = ga.LabelledDataset(of_rows * x, of_labels * y, ga.SquaredLoss(), lam=0.1 * of_rows**2)
    result = ga.run_gamp(data, "random")
    exact = np.linalg.solve(x.T @ x / 30 + 0.1 * np.eye(30), x.T @ y / np.sqrt(30))
    assert result.converged
    assert np.allclose(result.Q[:, 0] * of_rows / of_labels, exact, rtol=0, atol=1e-6)


@pytest.mark.extensions
@pytest.mark.parametrize(("of_rows", "of_labels"), ROWS)
def test_paths_are_as_accurate_for_rows_and_labels_of_any_size(regression, of_rows, of_labels):
    x, y = regression
    lams = np.array([0.01, 0.1, 0.3, 1.0, 10.0])
    exact = []
    for lam in lams:
        hat = x @ np.linalg.solve(x.T @ x + 30 * lam * np.eye(30), x.T)
        exact.append(np.mean(((y - hat @ y) / (1 - np.diag(hat))) ** 2) / 2)
    path = ga.regularization_path(
        ga.LabelledDataset(of_rows * x, of_labels * y, ga.SquaredLoss()), lams * of_rows**2, "random"
    )
    assert path.best == np.argmin(exact)
    assert np.allclose(path.test_error / of_labels**2, exact, rtol=2e-3)


@ga.register_loss
class Halved(NamedTuple):
    """Squared loss of half of the labels, whose fields have half of their size."""

    convex = True

    def value(self, p, z):
        return 0.5 * (z[0, 0] - 0.5 * p[0]) ** 2

    def derivatives(self, p, z, grad, hess):
        grad[0], hess[0, 0] = z[0, 0] - 0.5 * p[0], 1.0
        return 0.5 * grad[0] ** 2

    def field_size(self, size):
        return 0.5 * size


@ga.register_loss
class Quartic(NamedTuple):
    """Loss of a user that does not state the size of fields."""

    convex = True

    def value(self, p, z):
        return (z[0, 0] - p[0]) ** 4


def test_user_losses_are_as_accurate_for_large_labels_if_they_state_the_size_of_fields(regression):
    """A loss states for labels of size s that fields have the size s/2, as the squared loss does for half of them."""
    x, y = regression
    of_user = ga.LabelledDataset(x, 1e-6 * y, Halved(), lam=0.1)
    of_package = ga.LabelledDataset(x, 0.5e-6 * y, ga.SquaredLoss(), lam=0.1)
    first, second = (ga.run_gamp(data, "random", seed=0) for data in (of_user, of_package))
    assert first.converged
    assert first.n_iter == second.n_iter
    assert np.allclose(first.Q, second.Q, rtol=1e-9, atol=1e-12 * np.abs(second.Q).max())


@pytest.mark.parametrize(
    ("loss", "size", "of_fields"),
    [
        (ga.SquaredLoss(), 9.0, 9.0), (ga.SquaredLoss(), 0.04, 0.04),
        (ga.PhaseRetrievalLoss(), 9.0, 1.0), (ga.PhaseRetrievalLoss(), 0.04, 0.2),
        (ga.LogisticLoss(), 1.0, 1.0), (ga.MultinomialLoss(), 0.04, 1.0), (Halved(), 9.0, 4.5),
        (Quartic(), 9.0, 1.0), (Quartic(), 0.04, 0.04),
    ],
)  # fmt: skip
def test_losses_state_the_size_of_fields_that_fit_labels(loss, size, of_fields):
    assert loss.field_size(size) == pytest.approx(of_fields)
