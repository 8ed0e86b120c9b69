"""Risks without a minimum: weights without a penalty that grow without bound, and similar fits that converge."""

from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.curvature import grows_without_bound

N, D = 120, 6
UNITS = np.logspace(-2, 2, D + 1)


@ga.register_loss
class Poisson(NamedTuple):
    """Poisson regression with a logarithmic link."""

    convex = True

    def value(self, p, z):
        return np.exp(z[0, 0]) - p[0] * z[0, 0]


@ga.register_loss
class SquaredHinge(NamedTuple):
    """Squared hinge loss, which is zero beyond a margin, so that separated classes have a minimum."""

    convex = True

    def value(self, p, z):
        return 0.5 * max(1 - p[0] * z[0, 0], 0.0) ** 2

    def derivatives(self, p, z, grad, hess):  # by differences, gradients would not be zero just beyond the margin
        slack = max(1 - p[0] * z[0, 0], 0.0)
        grad[0], hess[0, 0] = -p[0] * slack, 1.0 if slack > 0 else 0.0
        return 0.5 * slack**2


@ga.register_loss
class BoundedTail(NamedTuple):
    """Loss that is not convex and decays only as 1/z for large margins."""

    def value(self, p, z):
        margin = p[0] * z[0, 0]
        return 1 / (1 + margin) if margin > 0 else 1 - margin / (1 + margin**2)

    def floor(self, p):
        return 0.0


def draw(seed=0, n=N, d=D):
    """Return rows, the fields of a teacher, its classes, noisy classes and counts."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d))
    fields = rows @ rng.standard_normal(d) / np.sqrt(d)
    return rows, fields, np.sign(fields), np.sign(fields + rng.standard_normal(n)), rng.poisson(np.exp(fields)) * 1.0


X, FIELDS, SEPARATED, NOISY, COUNTS = draw()
FEW = np.arange(N) < 5
DUMMY = np.column_stack([X, FEW])
INTERCEPT, ONE = {"intercept": True}, np.ones(N)
WITHOUT_MINIMUM = {
    "a plane separates classes": (X, SEPARATED, ga.LogisticLoss(), 0, {}),
    "more weights than samples": (X.T, SEPARATED[:D], ga.LogisticLoss(), 0, {}),
    "three classes": (X, np.digitize(FIELDS, [-0.5, 0.5]) * 1.0, ga.MultinomialLoss(), 0, INTERCEPT | {"rank": 3}),
    "a dummy of one class": (DUMMY * UNITS, np.where(FEW, 1.0, NOISY), ga.LogisticLoss(), 0, INTERCEPT),
    "a dummy of zero counts": (DUMMY, np.where(FEW, 0.0, COUNTS), Poisson(), 0, {}),
    "zero counts": (X, 0 * COUNTS, Poisson(), 0.1, INTERCEPT),
    "one class": (X, ONE, ga.LogisticLoss(), 0.1, INTERCEPT),
    "a class without samples": (X, (NOISY > 0) * 1.0, ga.MultinomialLoss(), 0.1, INTERCEPT | {"rank": 3}),
    "one class, lasso": (X, ONE, ga.LogisticLoss(), 0.1, INTERCEPT | {"penalty": ga.ElasticNet(0.1, 0.1)}),
    "a slow decay": (X, SEPARATED, BoundedTail(), 0, {}),
}
WITH_MINIMUM = {
    "classes": (X, NOISY, ga.LogisticLoss(), 0, {}),
    "classes and an intercept": (X * UNITS[1:], NOISY, ga.LogisticLoss(), 0, INTERCEPT),
    "an unpenalized intercept": (X, np.where(FEW, 1.0, -1.0), ga.LogisticLoss(), 0.1, INTERCEPT),
    "two classes": (X, (NOISY > 0) * 1.0, ga.MultinomialLoss(), 0, INTERCEPT | {"rank": 2}),
    "counts": (X, COUNTS, Poisson(), 0, INTERCEPT),
    "large tokens": (1e3 * DUMMY, NOISY, ga.LogisticLoss(), 0, {}),
    "small tokens": (1e-3 * DUMMY, COUNTS, Poisson(), 0, {}),
    "weak noise": (X * UNITS[1:], FIELDS + 1e-3 * NOISY, ga.SquaredLoss(), 0, {}),
    "no noise": (X, FIELDS, ga.SquaredLoss(), 0, {}),
    "more weights than labels": (X.T, FIELDS[:D], ga.SquaredLoss(), 0, {}),
    "equal columns": (np.column_stack([X, X[:, 0]]), NOISY, ga.LogisticLoss(), 0, {}),
    "margins": (X, NOISY, SquaredHinge(), 0, {}),
    "separated margins": (X, SEPARATED, SquaredHinge(), 0, {}),
    "intensities": (X, FIELDS**2, ga.PhaseRetrievalLoss(), 0, {}),
}


def dataset(case):
    rows, labels, loss, lam, options = case
    return ga.LabelledDataset(rows, labels, loss, lam, **options)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "a slow decay")) for name in WITHOUT_MINIMUM]
)
def test_runs_without_a_minimum_end_as_diverged(name):
    result = ga.run_gamp(dataset(WITHOUT_MINIMUM[name]), "random")
    assert result.status is ga.Status.DIVERGED
    assert "the weights grow without bound" in result.message
    assert not result.is_minimum


@pytest.mark.parametrize("name", WITH_MINIMUM)
def test_runs_with_a_minimum_converge(name):
    result = ga.run_gamp(dataset(WITH_MINIMUM[name]), "random")
    assert result.converged, result.message


def test_descents_end_with_the_same_status():
    for case, status in (("one class", ga.Status.DIVERGED), ("a plane separates classes", ga.Status.DIVERGED)):
        assert ga.minimize_risk(dataset(WITHOUT_MINIMUM[case]), "random", method="lbfgs").status is status
    assert ga.minimize_risk(dataset(WITH_MINIMUM["classes"]), "random", method="lbfgs").converged


def test_the_test_decides_by_separation_for_one_wrong_label_at_any_distance():
    """A linear program decides whether a plane separates the classes."""
    from scipy.optimize import linprog

    found = set()
    for seed in range(12):
        rows, fields, classes, *_ = draw(seed, n=40, d=5)
        classes[np.argsort(np.abs(fields))[seed % 6 * 3]] *= -1
        margins = classes[:, None] * rows
        gain = linprog(-margins.sum(axis=0), A_ub=-margins, b_ub=np.zeros(40), bounds=(-1, 1))
        data = ga.LabelledDataset(rows, classes, ga.LogisticLoss(), lam=0)
        found.add(grows_without_bound(data, np.zeros((5, 1)), "exact"))
        assert grows_without_bound(data, np.zeros((5, 1)), "exact") == (-gain.fun > 1e-6)
    assert found == {True, False}


def test_many_correlated_weights_are_decided():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((900, 150)) * np.logspace(0, -4, 150) @ np.linalg.qr(rng.standard_normal((150, 150)))[0]
    fields = rows @ rng.standard_normal(150)
    for labels, loss, grows in (
        (np.sign(fields), ga.LogisticLoss(), True),
        (np.sign(fields + 3 * rng.standard_normal(900)), ga.LogisticLoss(), False),
        (fields + 0.1 * rng.standard_normal(900), ga.SquaredLoss(), False),
    ):
        data = ga.LabelledDataset(rows, labels, loss, lam=0)
        assert grows_without_bound(data, np.zeros((150, 1)), "exact") == grows
