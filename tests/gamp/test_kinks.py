"""Runs for losses with kinks: exact minima for intercepts, and subgradients at kinks of several fields."""

import numpy as np
import pytest

import gamp_attention as ga
from validation.speed.several_fields import ClassHinge, Errors

ABSOLUTE = Errors(1.0, 1.0)  # Σ |p − z|


def regression(d, n, seed, columns=1):
    """Return tokens, and labels (n, columns) of a noisy linear teacher."""
    rng = np.random.default_rng(seed)
    X, w = rng.standard_normal((n, d)), rng.standard_normal((d, columns))
    return X, X @ w / np.sqrt(d) + 0.5 * rng.standard_normal((n, columns))


def test_no_run_converges_at_a_loss_above_the_loss_of_zero_weights():
    """At huge intercepts, forces are rounded to zero, but all weights there are far from the minimum."""
    rng = np.random.default_rng(3)
    X = 0.1 * rng.standard_normal((81, 71))
    y = (rng.random((81, 1)) < 0.2) * rng.integers(1, 3, (81, 1)).astype(float)
    data = ga.LabelledDataset(X, y, ClassHinge(), rank=3, intercept=True, lam=2.7)
    run = ga.run_gamp(data)
    assert run.converged
    assert run.train_loss < ga.train_loss(data, 0 * run.Q)


@pytest.mark.parametrize(("mean", "lam", "d", "n", "seed"), [(30.0, 0.1, 60, 180, 1), (1.0, 0.03, 60, 300, 0)])
def test_labels_far_from_zero_are_fitted_by_the_intercept(mean, lam, d, n, seed):
    """The minimum for labels with a mean is the minimum for centered labels, with another intercept."""
    X, y = regression(d, n, seed)
    runs = [ga.run_gamp(ga.LabelledDataset(X, y + b, ABSOLUTE, intercept=True, lam=lam)) for b in (0.0, mean)]
    assert all(run.converged for run in runs)
    assert runs[1].train_loss == pytest.approx(runs[0].train_loss, rel=1e-6)


def test_the_gradient_vanishes_at_minima_with_kinks_of_two_fields():
    """The smallest subgradient is found from the weights alone, so that leave-one-out accepts the run."""
    X, y = regression(60, 120, seed=3, columns=3)
    data = ga.LabelledDataset(X, y[:, :2] + 1, ABSOLUTE, lam=0.03, rank=2, intercept=True)
    run = ga.run_gamp(data)
    assert run.converged
    ga.leave_one_out(data, run)
    assert np.linalg.norm(ga.gradient(data, run.Q)) < 1e-5 * data.lam * np.sqrt(data.dim)
