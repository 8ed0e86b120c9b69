"""Public functions with random valid problems: finite results of the right shapes, or a status with the reason."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, strategies as st

import gamp_attention as ga
from tests.conftest import examples

KINDS = ("attention", "law", "mixture", "labels")


@st.composite
def models(draw, kinds=KINDS):
    """Draw a model of any kind, with parameters far beyond the usual range."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lam, omega, sigma = 10 ** draw(st.floats(-8, 3)), draw(st.floats(0, 1)), 10 ** draw(st.floats(-3, 1))
    penalty = ga.ElasticNet(lam, 10 ** draw(st.floats(-4, 0))) if draw(st.booleans()) else None
    kind = draw(st.sampled_from(kinds))
    if kind == "labels":
        return ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(draw(st.floats(0, 2))), lam=lam, penalty=penalty)
    if kind == "mixture":
        classes = rng.dirichlet(np.ones(4)).reshape(2, 2)
        return ga.mixture_model(classes, rng.normal(size=(2, 2)), omega=omega, sigma=sigma, lam=lam, penalty=penalty)
    if kind == "law":
        law = ga.coordinate_law(ga.power_law_spectrum(draw(st.floats(0, 3)), 3, variance=sigma**2))
        return ga.attention_model(omega=omega, coordinates=law, lam=lam, penalty=penalty)
    student = ga.DotProductAttention(10 ** draw(st.floats(-1, 1)), causal=draw(st.booleans()))
    return ga.attention_model(
        2, 1, 1, omega=omega, sigma=sigma, lam=lam, A=rng.normal(size=(2, 2)), student=student, penalty=penalty
    )


@st.composite
def datasets(draw):
    model, d = draw(models()), draw(st.integers(1, 30))
    return ga.sample(model, d, draw(st.integers(1, 60)) / d, draw(st.integers(0, 2**32)))


def is_finite(*values):
    return all(np.isfinite(value).all() for value in values)


@examples(15)
@given(datasets(), st.sampled_from(["semantic", "random"]), st.booleans())
def test_message_passing_ends_finite_with_a_status(data, init, accelerate):
    result = ga.run_gamp(data, init, max_iter=40, iteration=ga.IterationOptions(accelerate=accelerate))
    assert result.Q.shape == (data.dim, data.rank)
    assert is_finite(result.Q, result.train_loss, result.gradient_norm, *result.overlaps.arrays().values())
    norm = np.linalg.norm(ga.gradient(data, result.Q)) / (data.penalty.strength * np.sqrt(data.dim))
    assert norm == pytest.approx(result.gradient_norm, rel=1e-6, abs=1e-12)
    assert ga.train_loss(data, result.Q) == pytest.approx(result.train_loss, rel=1e-9, abs=1e-300)
    assert result.converged == (norm <= 1e-8)
    assert result.converged or "continues from these weights" in result.message
    with pytest.raises(ga.ConvergenceError, match="continues from") if not result.converged else nullcontext():
        ga.run_gamp(
            data, init, max_iter=40, raise_on_failure=True, iteration=ga.IterationOptions(accelerate=accelerate)
        )


@examples(10)
@given(datasets())
def test_descent_ends_finite_with_a_status(data):
    result = ga.minimize_risk(data, "random", max_iter=20)
    assert result.status in (ga.Status.CONVERGED, ga.Status.MAX_ITER, ga.Status.NONFINITE)
    assert is_finite(result.Q, result.train_loss, result.gradient_norm)
    assert result.converged == (result.gradient_norm <= 1e-8)


@examples(6)
@given(models(("law", "labels")), st.floats(-2, 2), st.sampled_from(["semantic", "random"]))
def test_state_evolution_is_finite_or_has_a_failure_status(model, exponent, init):
    budget = {"rtol": 0.1, "max_iter": 3, "max_work": 1e4, "stability": False}
    result = ga.solve_state_evolution(model, 10**exponent, init, **budget)
    values = result.train_loss, result.test_error, *result.overlaps.arrays().values()
    assert is_finite(*values) or result.status in (
        ga.Status.MAX_ITER, ga.Status.NONFINITE, ga.Status.LOST, ga.Status.STALLED, ga.Status.DIVERGED,
    )  # fmt: skip
    assert result.converged <= is_finite(*values, result.residual)


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_weights_that_overflow_have_a_status(branch):
    model = ga.paper_model(penalty=ga.Ridge(lam=1e300))
    se = ga.solve_state_evolution(model, 1.5, branch, rtol=0.1, max_work=1e4, max_iter=5, stability=False)
    assert se.status in (ga.Status.NONFINITE, ga.Status.MAX_ITER)
    assert se.message


@pytest.mark.extensions
def test_trajectories_that_overflow_raise():
    with pytest.raises(ValueError, match=r"^model, alpha, damping: needs .* got"):
        ga.trajectory(ga.paper_model(penalty=ga.Ridge(lam=1e300)), 1.5, n_iter=3, n_paths=128, n_replicas=2)
    with pytest.raises(ValueError, match=r"^model, alpha, lr: needs .* such as a smaller lr, .* got"):
        ga.trajectory(ga.paper_model(), 1.5, method=ga.GradientDescent(lr=1e60), n_iter=4, n_paths=128, n_replicas=2)
