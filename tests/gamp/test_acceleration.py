"""Accelerated message passing: the same fixed points in fewer iterations; bad extrapolations are undone."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.gamp.acceleration import MAX_RISE, WARM_UP, Acceleration
from gamp_attention.gamp.damping import FIRST_STEP, LONG_STEP, SHRINK_FACTOR, Damping
from gamp_attention.gamp.step import GampState
from gamp_attention.problem.risk import risk_at


@pytest.mark.parametrize("risk", ["asymptotic", "exact"])
def test_same_fixed_point_in_fewer_iterations(model, risk):
    data = ga.sample(model, 300, 1.5, seed=0)
    for damping in (0.3, 0.5):
        damped = ga.run_gamp(data, "semantic", risk, damping=damping, tol=1e-10)
        faster = ga.run_gamp(
            data, "semantic", risk, damping=damping, tol=1e-10, iteration=ga.IterationOptions(accelerate=True)
        )
        assert damped.status is faster.status is ga.Status.CONVERGED
        assert faster.fixed_point
        assert faster.n_iter < 0.7 * damped.n_iter
        assert np.linalg.norm(faster.Q - damped.Q) / np.sqrt(data.dim) < 1e-8
        assert np.allclose(faster.state.D, np.einsum("lab,nlb->nla", faster.state.V, compute_g(data, faster, risk)))


@pytest.mark.parametrize(("branch", "d"), [("semantic", 300), ("positional", 1000)])
def test_default_acceleration_reaches_the_minimum_in_half_the_iterations(model, branch, d):
    data = ga.sample(model, d, 1.5, seed=1)
    damped, accelerated = (
        ga.run_gamp(data, branch, "asymptotic", iteration=ga.IterationOptions(accelerate=each))
        for each in (False, None)
    )
    assert accelerated.converged
    assert accelerated.fixed_point
    assert accelerated.n_iter < 0.6 * damped.n_iter
    assert np.linalg.norm(accelerated.Q - damped.Q) / np.sqrt(data.dim) < 1e-6
    assert accelerated.history.damping[0] == FIRST_STEP
    assert LONG_STEP in accelerated.history.damping


def test_cycling_runs_are_not_extrapolated():
    """Extrapolation of a cycle would end in a higher minimum."""
    model = ga.attention_model(student=ga.DotProductAttention(softmax=False))
    data = ga.sample(model, 120, 1.5, seed=0)
    damped, accelerated = (
        ga.run_gamp(data, "semantic", iteration=ga.IterationOptions(accelerate=each)) for each in (False, None)
    )
    assert damped.status is ga.Status.SETTLED
    assert accelerated.train_loss <= damped.train_loss * (1 + 1e-9)


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(
    "options",
    [
        {"damping": 0.3, "max_iter": 40},
        {"tol": 0, "max_iter": 30},
        {"iteration": ga.IterationOptions(np.full((1, 2, 1, 1), 0.04)), "max_iter": 30},
    ],
)
def test_runs_that_follow_state_evolution_are_only_damped(data, options):
    iteration = options.get("iteration", ga.IterationOptions())
    default, damped = (
        ga.run_gamp(data, "semantic", **(options | {"iteration": replace(iteration, accelerate=each)}))
        for each in (None, False)
    )
    assert np.array_equal(default.Q, damped.Q)
    assert np.array_equal(default.history.gradient_norm, damped.history.gradient_norm)


def test_an_abandoned_long_step_is_not_tried_again():
    step = Damping("adaptive", grows=True)
    seen = [(step.follow(norm), step(0)) for norm in (1.0, 0.05, 0.2, 0.4, 0.05)]
    assert [changed for changed, _ in seen] == [False, True, False, True, False]
    assert [beta for _, beta in seen] == [FIRST_STEP, LONG_STEP, LONG_STEP, FIRST_STEP, FIRST_STEP]
    fixed = Damping("adaptive")
    assert not fixed.follow(0.0)
    assert fixed(0) == FIRST_STEP


def test_a_step_that_has_shrunk_does_not_become_long_again():
    step = Damping("adaptive", grows=True)
    assert step.follow(0.05)
    assert step.shrink()
    assert step(0) == pytest.approx(SHRINK_FACTOR * FIRST_STEP)
    assert not step.follow(0.05)
    assert step(0) == pytest.approx(SHRINK_FACTOR * FIRST_STEP)


def compute_g(data, result, risk):
    """Return g = −∇ℓ at the fields of the weights."""
    return -risk_at(data, result.Q, risk).loss_gradients


def make_linear_problem():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(6, 6))
    A = 0.9 * (A + A.T) / np.abs(np.linalg.eigvalsh(A + A.T)).max()
    b = rng.normal(size=(6, 1))

    def step(state):
        return GampState(A @ state.Q + b, 0.5 * state.V + 0.5, 0.5 * state.D + 1.0)

    return step, np.linalg.solve(np.eye(6) - A, b)


def test_linear_problem_is_solved_in_a_number_of_iterations_near_its_dimension():
    step, answer = make_linear_problem()
    state, accelerate = GampState(np.zeros((6, 1)), np.ones((1, 1, 1)), np.zeros((3, 1, 1))), Acceleration()
    for _ in range(WARM_UP + 10):
        after = step(state)
        state = accelerate(state, after, float(np.linalg.norm(after.Q - state.Q)))
    assert np.abs(state.Q - answer).max() < 1e-8
    assert np.allclose(state.D, 2.0)


def test_a_bad_extrapolation_is_undone():
    step, _ = make_linear_problem()
    state, accelerate = GampState(np.ones((6, 1)), np.ones((1, 1, 1)), np.zeros((3, 1, 1))), Acceleration()
    for norm in (8.0, 4.0, 2.0, 1.0):
        before, after = state, step(state)
        state = accelerate(before, after, norm)
    best = after
    refused = accelerate(GampState(1e3 * state.Q, state.V, state.D), step(state), MAX_RISE * 1.1)
    assert refused is best
    assert accelerate.n_refused == 1
    after = step(refused)
    assert accelerate(refused, after, 50.0) is after  # damped iterations follow, whatever the gradient norm
