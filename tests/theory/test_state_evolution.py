"""Fixed points of state evolution: values, symmetries, errors, budgets and special cases."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.risk import hessian_product, risk_at
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.panels import PanelRule
from tests.conftest import assert_solutions_agree, make_overlaps

# measured by an independent prototype of this project, Stein's form; L = 2, r = t = 1, ω = 0.3, α = 1.5
VALUES = {
    "semantic": {"q": 0.09396, "theta": 0.13455, "V": 16.02, "train_loss": 0.003054},
    "positional": {"q": 0.0494, "m": 0.2549, "V": 13.58, "train_loss": 0.003297},
}


@pytest.fixture(scope="module", params=["semantic", "positional"])
def branch(request, model):
    return request.param, ga.solve_state_evolution(model, 1.5, request.param)


def test_both_branches_have_the_expected_values(branch):
    """Compared with the prototype, whose quadrature has relative errors of about 1e-3."""
    name, se = branch
    assert se.converged
    values = se.overlaps.scalars() | {"train_loss": se.train_loss}
    for key, expected in VALUES[name].items():
        assert abs(values[key] - expected) <= 1.5e-3 * expected, key


@pytest.mark.slow(keep=1)
def test_errors_cover_a_finer_run(branch, model):
    se = branch[1]
    assert se.relative_error <= 1e-4
    fine = ga.solve_state_evolution(model, 1.5, se.overlaps, rtol=1e-5, stability=False)
    assert fine.converged
    assert fine.relative_error <= 1e-5
    assert_solutions_agree(se, fine)


def test_the_jump_is_reported(branch):
    name, se = branch
    share = se.jump_mass.mean() / se.V_hat.mean()
    if name == "semantic":
        assert abs(share) < 0.01
        assert se.consistent
        assert se.validity.startswith("consistent")
    else:
        assert -0.15 < share < -0.09  # derivative over Stein near 1.12
        assert not se.consistent
        assert se.validity.startswith("broken: the proximal map jumps")
        assert "the lowest training loss is higher than stated" in se.validity


def test_symmetries_are_exact(branch):
    name, se = branch
    zero = se.overlaps.m if name == "semantic" else se.overlaps.theta
    assert not zero.any()
    assert np.array_equal(se.overlaps.m[0], -se.overlaps.m[1])
    assert np.array_equal(se.overlaps.q[0], se.overlaps.q[1])


def test_too_few_iterations_are_reported(model):
    start = make_overlaps(0.2, 0.0, 0.02, 5.0)
    se = ga.solve_state_evolution(model, 1.5, start, max_iter=1)
    assert se.status is ga.Status.MAX_ITER
    assert se.residual > 1e-3
    with pytest.raises(ga.ConvergenceError):
        ga.solve_state_evolution(model, 1.5, start, max_iter=1, raise_on_failure=True)


@pytest.mark.parametrize("init", ["semantic", "positional"])
def test_vanishing_weights_have_a_definite_status(init):
    """Targets attend to the other token, as softmax(zzᵀ) cannot; at finite d, Q = 0 is a minimum as well."""
    model = ga.paper_model(0.5, A=((0.3, 0.7), (0.8, 0.2)))
    se = ga.solve_state_evolution(model, 1.5, init, rtol=1e-3)
    assert se.status is ga.Status.LOST
    assert se.validity == "none: all weights go to zero"
    assert se.n_iter < 40
    assert se.overlaps.q.max() < 1e-7
    data = ga.sample(model, 100, 1.5, 0)
    at = risk_at(data, np.zeros((100, 1)), "exact")
    hessian = np.column_stack([hessian_product(data, at, e[:, None], model.lam) for e in np.eye(100)])
    assert np.linalg.eigvalsh(hessian)[0] > 0.2 * model.lam


@pytest.mark.parametrize("alpha", [0.2, 3.0, 10.0])
def test_large_and_small_sample_complexities_are_solved(model, alpha):
    se = ga.solve_state_evolution(model, alpha, "positional", rtol=1e-2, stability=False)
    assert se.converged
    assert se.overlaps.m[0, 0] > 0.1


RIDGE = [(0.1, 2.0, 0.0, 1e-2), (0.1, 2.0, 0.3, 1e-2), (0.1, 0.5, 0.5, 1e-9)]
RIDGE += [(lam, alpha, 0.5, 1e-4) for lam in (1e-8, 1e-5) for alpha in (0.9, 1.0, 1.1)] + [(0.1, 2.0, 0.5, 1e-9)]


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize(("lam", "alpha", "noise", "rtol"), RIDGE)
def test_ridge_regression_has_its_closed_form(lam, alpha, noise, rtol):
    """At α = 1 and small λ, where double descent has its peak, V is 1/√λ, and far from its start 1/λ."""
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=noise), lam=lam)
    se = ga.solve_state_evolution(model, alpha, rtol=rtol, stability=False)
    assert se.converged
    b = lam + alpha - 1  # V = 1/(λ + α/(1 + V)), hence λV² + bV = 1
    V = 2 / (b + np.sqrt(b**2 + 4 * lam))
    m = alpha * V / (1 + V)  # V times α/(1 + V)
    s = m**2 / alpha
    q = (m**2 + s * (1 - 2 * m + noise**2)) / (1 - s)
    test = 0.5 * (1 - 2 * m + q + noise**2)
    found = [*se.overlaps.arrays().values(), se.train_loss, se.test_error]
    errors = [*se.overlaps_error.arrays().values(), se.train_loss_error, se.test_error_error]
    exact = [q, 0.0, m, V, alpha * test / (1 + V) ** 2 + 0.5 * lam * q, test]
    for value, error, wanted in zip(found, errors, exact, strict=True):
        assert abs(np.ravel(value)[0] - wanted) <= max(np.ravel(error)[0], 1e-9)
        assert np.ravel(error)[0] <= 1.001 * rtol * wanted + 1e-15


def test_vanishing_penalty_has_a_clear_status():
    """λ = 1e-8: the semantic branch exists, with θ² near ρ q; nothing is NaN without a status."""
    se = ga.solve_state_evolution(ga.paper_model(0.3, lam=1e-8), 1.5, "semantic", rtol=1e-2, stability=False)
    assert se.converged
    assert se.overlaps.theta[0, 0, 0] ** 2 / (0.25 * se.overlaps.q[0, 0, 0]) > 0.9


def test_the_derivative_form_of_the_response_solves_its_equations(model):
    """Another fixed point of the positional branch than in Stein's form, measured by an independent prototype."""
    se = ga.solve_state_evolution(model, 1.5, "positional", rtol=1e-3, response="derivative", stability=False)
    found = [se.overlaps.q[0, 0, 0], se.overlaps.m[0, 0], se.overlaps.V[0, 0, 0]]
    assert found == pytest.approx([0.0464, 0.2569, 12.71], rel=2e-3)


def test_weights_of_zero_stay_zero(model):
    """Fields without variance, for which quadrature must not refine rounding errors."""
    zero = np.zeros((2, 1, 1))
    after = OverlapMap(model, 0.5, PanelRule(), "stein")(ga.Overlaps(zero, zero[..., 0], zero, zero + 1))
    for values in (after.q, after.m, after.theta):
        assert np.abs(values).max() < 1e-20
    assert (after.V > 0).all()


@pytest.mark.slow
def test_more_tokens_and_columns_agree_with_finite_d():
    """L = 3, and r = t = 2 by rotation invariants, against GAMP; all runs converge, some by settling."""
    for model, alpha, d, seeds in (
        (ga.attention_model(3, 1, 1, omega=0.3), 1.5, 500, 4),
        (ga.attention_model(2, 2, 2, omega=0.2), 2.0, 400, 4),
    ):
        se = ga.solve_state_evolution(model, alpha, "semantic", rtol=5e-2, stability=False)
        assert se.converged
        assert se.rule == "sobol"
        runs = [
            ga.run_gamp(ga.sample(model, d, alpha, s), "semantic", "asymptotic", max_iter=2000) for s in range(seeds)
        ]
        assert all(run.converged for run in runs)
        for key, room in (("q", 0.06), ("theta", 0.06)):
            values = np.array([np.linalg.norm(getattr(run.overlaps, key)[0], "nuc") for run in runs])
            expected = np.linalg.norm(getattr(se.overlaps, key)[0], "nuc")
            spread = values.std(ddof=1) / np.sqrt(seeds)
            assert abs(values.mean() - expected) < 4 * spread + room * expected, (key, values, expected)


def test_reversed_tokens_have_reversed_overlaps():
    """Positions, variances and A are reversed together with the tokens."""
    A, sigma, tau = np.array([[0.3, 0.7], [0.8, 0.2]]), np.array([0.5, 0.4]), np.array([1.0, -0.5])
    models = (ga.attention_model(sigma=sigma[::step], tau=tau[::step], A=A[::step, ::step]) for step in (1, -1))
    here, there = (ga.solve_state_evolution(model, 1.5, rtol=1e-2, stability=False) for model in models)
    assert here.converged
    assert abs(here.overlaps.q[0, 0, 0] / here.overlaps.q[1, 0, 0] - 1) > 0.1
    for name, values in here.overlaps.arrays().items():
        assert there.overlaps.arrays()[name] == pytest.approx(values[::-1], rel=2e-2, abs=1e-3)
    assert there.train_loss == pytest.approx(here.train_loss, rel=1e-3)


def test_a_common_intercept_of_all_classes_is_free_and_zero():
    """The loss does not depend on it, so that it neither moves nor delays the solution."""
    models = [ga.glm_model(ga.MultinomialLoss(), rank=3, lam=0.1, intercept=given) for given in (False, True)]
    without, with_intercept = (ga.solve_state_evolution(model, 2.0, rtol=2e-2) for model in models)
    assert with_intercept.converged
    assert abs(with_intercept.overlaps.m.sum()) < 1e-6
    errors = without.overlaps_error.q + with_intercept.overlaps_error.q
    assert (np.abs(without.overlaps.q - with_intercept.overlaps.q) <= errors).all()


def test_labels_far_from_zero_shift_the_intercept_only():
    """The slope of the loss is the same for all fields within a distance of 9900 from zero, and has rounding errors."""
    centered, shifted = (
        ga.solve_state_evolution(ga.sequence_model(
            lambda u, x, mean=mean: u[0, 0] + 0.5 * x[0] + mean, lambda z: z[0, 0], lambda y, z: abs(y - z),
            n_tokens=1, rank=1, n_noise=1, lam=0.1, convex=True, intercept=True,
        ), 2.0, stability=False)
        for mean in (0.0, 10000.0)
    )  # fmt: skip
    assert shifted.converged
    assert shifted.overlaps.m.item() == pytest.approx(10000, rel=1e-6)
    assert shifted.overlaps.q.item() == pytest.approx(centered.overlaps.q.item(), rel=1e-4)


class FarLabels(ga.LinearLabels):
    """Linear labels with a mean of 10 000, and without known split of noise."""

    def __call__(self, u, noise):
        return 1e4 + super().__call__(u, noise)


def test_squared_errors_of_labels_far_from_zero_shift_the_intercept_only():
    models = [
        ga.glm_model(ga.SquaredLoss(), labels, lam=0.3, intercept=True)
        for labels in (ga.LinearLabels(0.5), FarLabels(0.5))
    ]
    centered, shifted = (ga.solve_state_evolution(model, 2.0, rtol=1e-3, stability=False) for model in models)
    assert shifted.converged
    assert shifted.overlaps.m.item() == pytest.approx(1e4, rel=1e-6)
    assert shifted.overlaps.q.item() == pytest.approx(centered.overlaps.q.item(), rel=1e-3)


def test_an_intercept_that_differences_of_tokens_cancel_is_zero():
    """The response of both columns is coupled, so that the step of the second would move the first."""
    model = ga.sequence_model(
        lambda u, noise: np.where(u[0, 0] + u[1, 0] + noise[0] > -1, 1.0, -1.0),
        lambda z: z[0, 0] - z[1, 0] + z[0, 1] + z[1, 1], lambda y, f: np.logaddexp(0.0, -y * f),
        n_tokens=2, rank=2, teacher_rank=1, n_noise=1, lam=0.5, intercept=True, convex=True,
    )  # fmt: skip
    se = ga.solve_state_evolution(model, 2.0, rtol=2e-2)
    assert se.converged
    assert np.abs(se.overlaps.m[:, 0]).max() < 1e-6
    assert (se.overlaps.m[:, 1] > 0.5).all()


def test_labels_of_small_size_do_not_make_all_weights_vanish():
    """The squared loss has no unit."""
    small, one = (
        ga.solve_state_evolution(
            ga.sequence_model(
                lambda u, noise, s=size: s * (u[0, 0] + 0.5 * noise[0]), lambda z: z[0, 0], None,
                n_tokens=1, rank=1, n_noise=1, lam=0.1, convex=True,
            ), 2.0,
        ) for size in (1e-6, 1.0)
    )  # fmt: skip
    assert small.converged
    np.testing.assert_allclose(1e12 * small.overlaps.q, one.overlaps.q, rtol=1e-3)
    np.testing.assert_allclose(small.overlaps.V, one.overlaps.V, rtol=1e-3)
