"""Escapes from saddles of the risk, and flips of single samples, by which runs reach lower minima."""

import numpy as np
import pytest
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention.extensions.train.runs import flipped_starts
from tests.conftest import compute_hessian, layer_gradient_norm
from tests.extensions.train.conftest import train_one

MODEL = ga.paper_model(omega=0.2, sigma=0.8)


@pytest.mark.parametrize("risk", ["exact", "asymptotic"])
def test_a_run_leaves_the_saddle_at_zero_weights(data, risk):
    zeros = np.zeros_like(data.Q_star)
    saddle, result = ga.run_gamp(data, zeros, risk), train_one(data, zeros, risk, escape=True)
    assert saddle.converged
    assert result.converged
    assert result.is_minimum
    assert result.n_escapes >= 1
    assert result.train_loss < saddle.train_loss
    assert layer_gradient_norm(data, result.Q, risk) < 1.1e-8
    assert len(result.history.q) == result.n_iter + 1
    assert np.isnan(result.history.damping).sum() == result.n_escapes
    assert np.linalg.eigvalsh(compute_hessian(data, result.Q, risk))[0] > 0


@pytest.fixture(scope="module")
def few():
    """Few samples, for which surveys miss lower minima."""
    return ga.sample(MODEL, d=40, alpha=0.3, seed=0)


@pytest.fixture(scope="module")
def minimum(few):
    return ga.run_gamp(few, "random")


@pytest.fixture(scope="module")
def surveyed(few):
    return train_one(few, "random", survey=True)


def slope(data, mu, z):
    """Return the gradient of a sample's loss with respect to its fields, from the gradient of its risk."""
    X = (data.tokens[mu] + data.positions) / np.sqrt(data.dim)
    Q = np.linalg.pinv(X) @ z[:, None]
    gradient = ga.gradient(data.select_rows(np.array([mu])), Q, "exact") - 0.01 * Q
    return (np.linalg.pinv(X.T) @ gradient)[:, 0]


def test_one_sample_moves_to_another_minimum_of_its_proximal_objective(few, minimum):
    V = minimum.overlaps.V[:, 0, 0]
    z = (few.tokens + few.positions) @ minimum.Q[:, 0] / np.sqrt(few.dim)
    nodes, weights = np.polynomial.legendre.leggauss(64)
    gaps = []
    for name, state in flipped_starts(few, "exact", minimum.Q, minimum.overlaps.V):
        mu, moved = int(name.split()[-1]), state.z[..., 0]
        others = np.delete(np.arange(few.n_samples), mu)
        assert np.allclose(moved[others], z[others], atol=1e-6)
        assert np.linalg.norm(moved[mu] - z[mu]) > 0.1 * np.linalg.norm(z[mu])
        omega = z[mu] + V * slope(few, mu, z[mu])  # z is a stationary point there

        def residual(point, mu=mu, omega=omega):
            return (point - omega) / V + slope(few, mu, point)

        assert np.allclose(residual(moved[mu]), 0, atol=1e-6)
        step = 1e-4 * np.eye(2)
        hessian = [(residual(moved[mu] + h) - residual(moved[mu] - h)) / 2e-4 for h in step]
        assert np.linalg.eigvalsh(np.array(hessian)).min() > 0
        path = [residual(z[mu] + 0.5 * (1 + t) * (moved[mu] - z[mu])) @ (moved[mu] - z[mu]) for t in nodes]
        gaps.append(0.5 * weights @ path)
    assert len(gaps) >= 3
    assert np.all(np.diff(gaps) > -1e-8)


def test_flips_lead_to_a_lower_minimum(surveyed):
    kept = next(record for record in surveyed.starts if record.kept)
    earlier = [record.train_loss for record in surveyed.starts if not record.name.startswith("flip")]
    assert kept.name.startswith("flip")
    assert surveyed.train_loss < 0.95 * min(earlier)
    assert surveyed.is_minimum
    assert surveyed.gradient_norm <= 1e-8


def test_runs_that_were_stopped_early_would_not_end_in_a_lower_minimum(few, surveyed):
    stopped = [record for record in surveyed.starts if record.status is None]
    assert any(record.n_iter not in (20, 30) for record in stopped)  # not only by comparisons of their losses
    for record in stopped:
        end = minimize(lambda x: ga.train_loss(few, x[:, None], "exact"), record.Q[:, 0], method="L-BFGS-B",
                       jac=lambda x: ga.gradient(few, x[:, None], "exact")[:, 0] / few.dim)  # fmt: skip
        assert end.fun <= record.train_loss
        assert end.fun > (1 - 1e-6) * surveyed.train_loss


def test_convex_losses_and_singular_variances_have_no_flips(few, minimum):
    convex = ga.sample(ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels()), d=30, alpha=2.0, seed=0)
    assert flipped_starts(convex, "exact", np.ones((30, 1)), np.ones((1, 1, 1))) == []
    assert flipped_starts(few, "exact", minimum.Q, np.zeros((2, 1, 1))) == []
    assert flipped_starts(few, "exact", minimum.Q, np.full((2, 1, 1), np.nan)) == []
