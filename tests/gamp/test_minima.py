"""Minima and saddles: the lowest eigenvalue of the Hessian, compared with dense matrices."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.curvature import lowest_curvature
from gamp_attention.problem.risk import hessian_product, on_kinks, risk_at
from tests.conftest import compute_hessian

MODELS = {
    "paper": ga.paper_model(),
    "two columns": ga.attention_model(2, 2, 2, omega=0.2, lam=0.05),
    "untied keys": ga.attention_model(2, 4, 2, student=ga.DotProductAttention(tied=False), lam=0.05),
    "labels": ga.glm_model(ga.PhaseRetrievalLoss(), lam=0.1),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("d", [30, 60])  # all eigenvalues at once, and Lanczos iterations
def test_lowest_eigenvalue_agrees_with_finite_differences(name, d):
    data = ga.sample(MODELS[name], d // MODELS[name].rank, 2.0, seed=3)
    result = ga.run_gamp(data, "semantic", "exact")
    values = np.linalg.eigvalsh(compute_hessian(data, result.Q, "exact"))
    assert result.converged
    assert result.lowest_eigenvalue == pytest.approx(values[0], rel=1e-4, abs=1e-4 * data.lam)
    assert result.is_minimum == (values[0] > -1e-4 * data.lam)


NEIGHBORS = {  # the lowest eigenvalue is next to others, of which some had been returned
    "two strengths": (ga.attention_model(2, 2, 2, omega=0.3, penalty=ga.ColumnRidge((0.05, 0.1))), 200, 2.0, 1),
    "rotations": (ga.attention_model(2, 2, 2, omega=0.3, lam=0.05), 100, 2.0, 1),
    "weak penalty": (ga.paper_model(), 400, 1.5, 1),
    "kinks": (ga.paper_model(penalty=ga.ElasticNet(0.02, 0.01)), 200, 2.0, 1),
    "convex": (ga.glm_model(ga.LogisticLoss(), lam=0.1), 400, 3.0, 1),
}


@pytest.mark.parametrize("name", NEIGHBORS)
def test_the_lowest_pair_has_the_stated_error(name):
    model, d, alpha, seed = NEIGHBORS[name]
    data = ga.sample(model, d, alpha, seed=seed)
    result = ga.run_gamp(data, "semantic")
    at, size = risk_at(data, result.Q, "exact"), result.Q.size
    _, free, curvature = on_kinks(data.penalty, result.Q, at.smooth)
    units = np.eye(size).reshape(size, *result.Q.shape)
    H = np.array([hessian_product(data, at, unit, curvature).ravel() for unit in units])
    movable, error = free.ravel() > 0, result.lowest_eigenvalue_error
    lowest, direction = np.linalg.eigvalsh(H[np.ix_(movable, movable)])[0], result.direction.ravel()
    assert result.is_minimum
    assert error <= 2e-4 * (result.lowest_eigenvalue + data.penalty.strength)
    assert abs(result.lowest_eigenvalue - lowest) <= error + 1e-12
    residual = (H @ direction - result.lowest_eigenvalue * direction)[movable]
    assert np.linalg.norm(residual) == pytest.approx(error, rel=1e-3, abs=1e-12)
    assert np.linalg.norm(direction) == pytest.approx(1)


def test_common_rotations_do_not_make_a_minimum_a_saddle():
    data = ga.sample(MODELS["two columns"], 60, 2.0, seed=3)
    result = ga.run_gamp(data, "semantic", "exact")
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    along = (result.Q @ turn) / np.linalg.norm(result.Q @ turn)
    eps = 1e-5
    moved = ga.gradient(data, result.Q + eps * along, "exact") - ga.gradient(data, result.Q - eps * along, "exact")
    assert np.linalg.norm(moved) / (2 * eps) < 1e-5 * data.lam
    assert result.is_minimum
    assert abs(result.lowest_eigenvalue) < 1e-6 * data.lam


def test_zero_weights_are_a_saddle(data):
    saddle = ga.run_gamp(data, np.zeros_like(data.Q_star))
    assert saddle.converged
    assert saddle.n_iter == 0
    assert not saddle.is_minimum
    assert saddle.lowest_eigenvalue < -data.lam
    assert "saddle" in saddle.message


def test_weights_at_kinks_do_not_affect_the_curvature():
    data = ga.sample(ga.paper_model(penalty=ga.ElasticNet(0.008, 0.004)), 60, 2.0, seed=0)
    result = ga.run_gamp(data, "semantic", "exact")
    free = result.Q.ravel() != 0
    assert result.converged
    assert 0 < free.sum() < free.size
    values = np.linalg.eigvalsh(compute_hessian(data, result.Q, "exact", 1e-7)[np.ix_(free, free)])
    assert result.lowest_eigenvalue == pytest.approx(values[0], rel=2e-2)
    heavy = ga.sample(ga.paper_model(penalty=ga.ElasticNet(0.01, 100.0)), 60, 2.0, seed=0)
    nothing = ga.run_gamp(heavy, "semantic", "exact")
    assert not nothing.Q.any()
    assert nothing.is_minimum
    assert nothing.lowest_eigenvalue == np.inf


@pytest.mark.parametrize("name", ["paper", "two columns"])
def test_the_lowest_eigenvalue_does_not_depend_on_the_initial_vector(name):
    data = ga.sample(MODELS[name], 100, 2.0, seed=3)
    result = ga.run_gamp(data)
    at, values = risk_at(data, result.Q, "exact"), np.linalg.eigh(compute_hessian(data, result.Q, "exact"))
    for k in (1, 5, -1):
        wrong = values[1][:, k].reshape(result.Q.shape)
        again = lowest_curvature(data, at, result.Q, wrong)
        assert again.lowest_eigenvalue == pytest.approx(result.lowest_eigenvalue, rel=2e-2, abs=1e-4 * data.lam)
        assert again.is_minimum
    zeros = np.zeros_like(result.Q)
    at = risk_at(data, zeros, "exact")
    saddle = lowest_curvature(data, at, zeros)
    assert not lowest_curvature(data, at, zeros, values[1][:, 0].reshape(zeros.shape)).is_minimum
    assert np.isclose(lowest_curvature(data, at, zeros, saddle.direction).lowest_eigenvalue, saddle.lowest_eigenvalue)
