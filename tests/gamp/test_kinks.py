"""Runs for losses with kinks: exact minima for intercepts, and subgradients at kinks of several fields."""

from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga


@ga.register_loss
class Distance(NamedTuple):
    """Absolute differences of a field and a label."""

    convex = True

    def value(self, p, z):
        """Return the loss of a sample."""
        return abs(p[0] - z[0, 0])


@ga.register_loss
class Distances(NamedTuple):
    """Sum of the absolute differences of two fields and two labels."""

    convex = True

    def value(self, p, z):
        """Return the loss of a sample."""
        return abs(p[0] - z[0, 0]) + abs(p[1] - z[0, 1])


@ga.register_loss
class LargestOfThree(NamedTuple):
    """Hinge loss of three classes; the label is the number of the class."""

    convex = True

    def value(self, p, z):
        """Return the loss of a sample."""
        k, largest = int(p[0]), 0.0
        for a in range(3):
            largest = max(largest, z[0, a] - z[0, k] + (0.0 if a == k else 1.0))
        return largest


def regression(d, n, seed, columns=1):
    """Return tokens, and labels (n, columns) of a noisy linear teacher."""
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((n, d)), rng.standard_normal((d, columns))
    return X, X @ w / np.sqrt(d) + 0.5 * rng.standard_normal((n, columns))


@pytest.mark.parametrize("seed", [0, 3])
def test_no_run_converges_at_a_loss_above_the_loss_of_zero_weights(seed):
    """At huge intercepts, forces are rounded to zero, but all weights there are far from the minimum."""
    rng = np.random.default_rng(seed)
    X = 0.1 * rng.standard_normal((81, 71))
    y = (rng.random((81, 1)) < 0.2) * rng.integers(1, 3, (81, 1)).astype(float)
    data = ga.LabelledDataset(X, y, LargestOfThree(), rank=3, intercept=True, lam=2.7)
    run = ga.run_gamp(data)
    assert run.converged
    assert run.train_loss < ga.train_loss(data, 0 * run.Q)


@pytest.mark.parametrize(("mean", "lam", "d", "n", "seed"), [(30.0, 0.1, 100, 300, 1), (1.0, 0.03, 60, 300, 0)])
def test_labels_far_from_zero_are_fitted_by_the_intercept(mean, lam, d, n, seed):
    """The minimum for labels with a mean is the minimum for centered labels, with another intercept."""
    X, y = regression(d, n, seed)
    runs = [ga.run_gamp(ga.LabelledDataset(X, y + b, Distance(), intercept=True, lam=lam)) for b in (0.0, mean)]
    assert all(run.converged for run in runs)
    assert runs[1].train_loss == pytest.approx(runs[0].train_loss, rel=1e-6)


def test_the_gradient_vanishes_at_minima_with_kinks_of_two_fields():
    """The smallest subgradient is found from the weights alone, so that leave-one-out accepts the run."""
    X, y = regression(60, 120, seed=3, columns=3)
    data = ga.LabelledDataset(X, y[:, :2] + 1, Distances(), lam=0.03, rank=2, intercept=True)
    run = ga.run_gamp(data)
    assert run.converged
    ga.leave_one_out(data, run)
    assert np.linalg.norm(ga.gradient(data, run.Q)) < 1e-5 * data.lam * np.sqrt(data.dim)
