"""State evolution: values, symmetries, errors, stationarity of the losses it reports."""

import numpy as np
import pytest
from scipy.integrate import dblquad

import gamp_attention as ga
from gamp_attention.comparison import scalars
from gamp_attention.gaussian_points import gaussian_points

# measured by an independent prototype of this project, Stein's form; L = 2, r = t = 1, ω = .3, α = 1.5
VALUES = {
    "semantic": {"q": 0.09396, "theta": 0.13455, "V": 16.02, "train_loss": 0.003054},
    "positional": {"q": 0.0494, "m": 0.2549, "V": 13.58, "train_loss": 0.003297},
}


@pytest.fixture(scope="module", params=["semantic", "positional"])
def branch(request, model):
    return request.param, ga.solve_state_evolution(model, 1.5, request.param)


def test_values_of_both_branches(branch):
    name, se = branch
    assert se.converged
    found = scalars(se.overlaps) | {"train_loss": se.train_loss}
    error = scalars(se.overlaps_error) | {"train_loss": se.train_loss_error}
    for key, expected in VALUES[name].items():
        assert abs(found[key] - expected) <= 1e-3 * expected + 4 * abs(error[key]), key
    assert abs(found["theta"] if name == "positional" else found["m"]) <= 4 * abs(scalars(se.overlaps_error)["theta"])


def test_errors_are_small_and_the_jump_is_reported(branch):
    name, se = branch
    assert np.all(se.overlaps_error.q < 4e-3 * se.overlaps.q)
    share = se.jump_mass.mean() / se.V_hat.mean()
    if name == "semantic":
        assert abs(share) < 0.02
    else:
        assert -0.2 < share < -0.08  # derivative over Stein near 1.12


def test_mean_direction_stays_exactly_silent_on_the_semantic_branch(branch):
    name, se = branch
    if name == "semantic":
        assert np.abs(se.overlaps.m).max() < 1e-12


def test_tokens_are_exchangeable_in_the_papers_model(branch):
    _, se = branch
    assert np.allclose(se.overlaps.m[0], -se.overlaps.m[1], atol=1e-9)
    assert np.allclose(se.overlaps.q[0], se.overlaps.q[1], rtol=1e-9)


def test_history_starts_at_the_start(model):
    start = ga.Overlaps(np.full((2, 1, 1), 0.09), np.zeros((2, 1)), np.full((2, 1, 1), 0.13), np.full((2, 1, 1), 16.0))
    se = ga.solve_state_evolution(model, 1.5, start, n_points=1024, n_replicas=2)
    assert se.converged
    assert np.array_equal(se.history.q[0], start.q)


def test_too_few_iterations_are_reported(model):
    se = ga.solve_state_evolution(model, 1.5, n_points=256, n_replicas=2, max_iter=2)
    assert se.status is ga.Status.MAX_ITER
    assert se.residual > 1e-5
    with pytest.raises(ga.ConvergenceError):
        ga.solve_state_evolution(model, 1.5, n_points=256, n_replicas=2, max_iter=2, raise_on_failure=True)


def test_same_seed_same_result(model):
    one, two = (ga.solve_state_evolution(model, 1.0, n_points=256, n_replicas=2, seed=4) for _ in range(2))
    assert np.array_equal(one.overlaps.q, two.overlaps.q)


def test_more_tokens_and_columns_against_finite_d():
    """L = 3, and r = t = 2 by rotation invariants, against GAMP; all runs converge, some by settling."""
    for model, alpha, d, seeds in (
        (ga.attention_model(3, 1, 1, omega=0.3), 1.5, 500, 4),
        (ga.attention_model(2, 2, 2, omega=0.2), 2.0, 400, 4),
    ):
        se = ga.solve_state_evolution(model, alpha, "semantic", n_points=2048, n_replicas=4, tol=1e-4)
        runs = [
            ga.run_gamp(ga.sample(model, d, alpha, s), "semantic", "asymptotic", max_iter=2000) for s in range(seeds)
        ]
        assert all(run.converged for run in runs)
        for key, room in (("q", 0.06), ("theta", 0.06)):
            values = np.array([np.linalg.norm(getattr(run.overlaps, key)[0], "nuc") for run in runs])
            expected = np.linalg.norm(getattr(se.overlaps, key)[0], "nuc")
            spread = values.std(ddof=1) / np.sqrt(seeds)
            assert abs(values.mean() - expected) < 4 * spread + room * expected, (key, values, expected)


def test_linear_baseline_against_adaptive_quadrature(model):
    """(19) and (20) by scipy's dblquad over the two teacher fields."""
    base = ga.linear_baseline(model)

    def average(f):
        def integrand(b, a):
            u = 0.5 * np.array([[a], [b]])
            return f(model.teacher(u)) * np.exp(-(a * a + b * b) / 2) / (2 * np.pi)

        return dblquad(integrand, -8, 8, -8, 8, epsabs=1e-9)[0]

    W00, square = average(lambda T: T[0, 0]), average(lambda T: T[0, 0] ** 2)
    assert base.weights[0, 0] == pytest.approx(W00, abs=5 * base.weights_error[0, 0] + 1e-9)
    # T is a stochastic matrix: T_01 = 1 − T_00, and both rows have one law
    assert base.test_error == pytest.approx(2 * 0.25 * (square - W00**2), abs=5 * base.test_error_error + 1e-9)
    assert base.weights.sum(axis=1) == pytest.approx([1, 1])


def test_point_sets_are_symmetric_and_white():
    points = gaussian_points(4096, 5, np.random.default_rng(0))
    assert np.array_equal(points[:2048], -points[2048:])
    assert np.allclose(points.T @ points / 4096, np.eye(5), atol=1e-12)
    assert np.allclose((points**4).mean(axis=0), 3, atol=0.5)
