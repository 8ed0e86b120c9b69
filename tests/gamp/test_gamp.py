"""Runs of GAMP: statuses, damping, fixed points, and the step as a pure function."""

from inspect import signature

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.gamp.step import averaged_memory, naive_memory
from gamp_attention.problem.starts import initial_weights
from tests.conftest import layer_gradient_norm

CASES = [(branch, risk) for branch in ("semantic", "positional") for risk in ("asymptotic", "exact")]


@pytest.mark.parametrize(("branch", "risk"), CASES)
def test_fixed_points_are_critical_points(model, branch, risk):
    data = ga.sample(model, 400, 1.5, seed=1)
    result = ga.run_gamp(data, branch, risk, damping=0.5 if branch == "semantic" else 0.3)
    assert result.status is ga.Status.CONVERGED
    assert result.fixed_point
    assert result.gradient_norm <= 1e-8
    assert layer_gradient_norm(data, result.Q, risk) <= 1.1e-8
    assert (abs(result.overlaps.m[0, 0]) > 0.15) == (branch == "positional")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("risk", ["asymptotic", "exact"])
def test_descents_from_the_informed_start_agree_on_the_semantic_branch(risk):
    data = ga.sample(ga.paper_model(lam=0.05), 60, 3.0, seed=3)
    gamp = ga.run_gamp(data, "semantic", risk)
    for method, options in (("lbfgs", {}), ("gd", {"lr": 2.0, "tol": 1e-7})):
        descent = ga.minimize_risk(data, "semantic", risk, method, **options)
        assert np.linalg.norm(descent.Q - gamp.Q) / np.sqrt(data.dim) < 1e-6


@pytest.mark.parametrize("kind", ["planted", "own"])
def test_run_gamp_and_gradient_have_the_same_default_risk(data, kind):
    """The default gradient is zero at the end of a default run, for data with and without a teacher."""
    if kind == "own":
        data = ga.Dataset(data.tokens, data.outputs, data.positions)
    result = ga.run_gamp(data, data.Q_star if kind == "planted" else "positional")
    assert result.converged
    norm = np.linalg.norm(ga.gradient(data, result.Q)) / (data.lam * np.sqrt(data.dim))
    assert norm == pytest.approx(result.gradient_norm, rel=1e-6)
    assert norm <= 1e-8
    assert ga.train_loss(data, result.Q) == result.train_loss
    descent = ga.minimize_risk(data, result.Q, method="lbfgs")
    assert descent.n_iter <= 1
    assert descent.train_loss == pytest.approx(result.train_loss, rel=1e-12)


def test_a_run_has_few_parameters():
    """Whatever needs several runs is an argument of `train`."""
    assert len(signature(ga.run_gamp).parameters) <= 10


def test_undamped_iterations_are_reported_without_convergence(model):
    data = ga.sample(model, 500, 1.5, seed=0)
    options = {"damping": 1.0, "max_iter": 300, "iteration": ga.IterationOptions(settling=False)}
    result = ga.run_gamp(data, "semantic", **options)
    assert not result.converged
    assert result.status in (ga.Status.DIVERGED, ga.Status.STALLED)
    assert result.gradient_norm == pytest.approx(result.history.gradient_norm.min(), rel=1e-9)
    with pytest.raises(ga.ConvergenceError, match="run_gamp ended with status") as caught:
        ga.run_gamp(data, "semantic", raise_on_failure=True, **options)
    assert caught.value.result.status is result.status


def test_descent_completes_runs_in_which_message_passing_cycles(model):
    data = ga.sample(model, 300, 1.5, seed=0)
    result = ga.run_gamp(data, "semantic", damping=1.0, max_iter=300)
    assert result.status is ga.Status.SETTLED
    assert result.message_passing in (ga.Status.DIVERGED, ga.Status.STALLED)
    assert result.n_settle > 0
    assert result.fixed_point
    assert f"a descent from the weights of lowest training loss converged after {result.n_settle}" in result.message
    assert layer_gradient_norm(data, result.Q, "exact") < 1.1e-8


@pytest.mark.parametrize("penalty", [None, ga.ElasticNet(0.01, 0.002)])
def test_settling_history_records_the_descent(penalty, model):
    """It begins at the lowest loss of message passing, ends at the returned weights, and never increases."""
    sampled = ga.sample(model, 200, 1.5, seed=0)
    data = ga.Dataset(sampled.tokens, sampled.outputs, sampled.positions, penalty=penalty)
    result = ga.run_gamp(data, sampled.Q_star, damping=1.0, max_iter=300)
    assert result.status is ga.Status.SETTLED
    descent = result.settling_history
    assert len(descent.train_loss) == len(descent.gradient_norm) <= result.n_settle + 1
    assert len(descent.train_loss) >= result.n_settle  # rejected Newton steps count as steps, but have no entry
    assert descent.train_loss[0] == pytest.approx(result.history.train_loss.min(), rel=1e-3)
    assert descent.train_loss[-1] == pytest.approx(result.train_loss, rel=1e-9)
    assert descent.gradient_norm[-1] == pytest.approx(result.gradient_norm, rel=1e-2)
    if penalty is None:
        assert np.diff(descent.train_loss).max() < 1e-12
    assert result.to_dict()["settling_history"]["train_loss"] == descent.train_loss.tolist()
    assert ga.run_gamp(data, result.Q).settling_history is None


def strip_teacher():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 2, 30))
    rows = rng.normal(size=(90, 20))
    return {
        "attention": ga.Dataset(x, 0.7 * x + 0.3 * x[:, ::-1], lam=0.05),
        "keys of their own": ga.Dataset(x, x, student=ga.DotProductAttention(tied=False), rank=2, lam=0.1),
        "labels": ga.LabelledDataset(rows, np.sign(rows[:, 0]), ga.LogisticLoss(), lam=0.1),
        "no outputs": ga.Dataset(x, 0 * x),
    }


@pytest.mark.extensions
@pytest.mark.parametrize("kind", strip_teacher())
def test_data_without_a_teacher_start_from_spectral_weights(kind):
    data = strip_teacher()[kind]
    default, named = ga.run_gamp(data), ga.run_gamp(data, "spectral")
    assert default.converged
    assert np.array_equal(default.Q, named.Q)
    pytest.importorskip("torch")
    descents = [ga.minimize_risk(data, *init, max_iter=3) for init in ((), ("spectral",))]
    assert np.array_equal(descents[0].Q, descents[1].Q)


def test_overflow_ends_the_run_with_a_status(data):
    """The initial weights are so large that scores overflow."""
    with np.errstate(all="ignore"):
        result = ga.run_gamp(data, np.full((data.dim, 1), 1e160), "exact", max_iter=20)
    assert not result.converged
    assert result.status in (ga.Status.NONFINITE, ga.Status.DIVERGED)


def test_errors_of_a_memory_rule_are_not_reported_as_divergence(data):
    with pytest.raises(ValueError, match="memory: needs to return shape"):
        ga.run_gamp(data, iteration=ga.IterationOptions(memory=lambda D, Vg, Wg, beta: np.ones(3)))


def test_zero_tolerance_runs_max_iter_iterations_and_returns_the_last_iterate(data):
    result = ga.run_gamp(data, "semantic", damping=0.5, tol=0, max_iter=7)
    assert result.n_iter == 7
    assert result.history.q.shape == (8, 2, 1, 1)
    assert result.history.V[0, 0, 0, 0] == pytest.approx(data.spectra[0, 0] / (2 * data.lam))
    assert np.allclose(result.history.q[-1], result.overlaps.q)
    assert np.allclose(result.history.gradient_norm[-1], result.gradient_norm)


def test_a_run_repeats_the_step(data):
    """Undisturbed iterations of run_gamp equal repeated calls of gamp_step, which does not change its arguments."""
    state = ga.initial_state(data, data.Q_star)
    for _ in range(6):
        before = [a.copy() for a in (state.Q, state.V, state.D)]
        after, _ = ga.gamp_step(data, "exact", state, 0.4)
        assert all(np.array_equal(a, b) for a, b in zip(before, (state.Q, state.V, state.D), strict=True))
        state = after
    result = ga.run_gamp(data, "semantic", "exact", damping=0.4, tol=0, max_iter=6)
    assert np.array_equal(result.Q, state.Q)


def test_naive_memory_does_not_converge(model):
    """With D = V g the gradient stalls where the averaged memory converges, on the positional branch at any size."""
    data = ga.sample(model, 500, 1.5, seed=0)
    rules = [ga.IterationOptions(memory=rule, settling=False) for rule in (naive_memory, averaged_memory)]
    options = {"risk": "asymptotic", "damping": 0.3, "max_iter": 400}
    naive, averaged = (ga.run_gamp(data, "positional", iteration=rule, **options) for rule in rules)
    assert averaged.converged
    assert not naive.converged
    assert naive.gradient_norm > 1e-2


def test_the_result_does_not_depend_on_the_number_of_threads(data, by_threads):
    options = {"damping": 0.3, "tol": 0, "max_iter": 15}
    one, two, three = by_threads(lambda: ga.run_gamp(data, "positional", "exact", **options).Q, (1, 2, 3))
    assert np.array_equal(one, two)
    assert np.array_equal(one, three)


def test_a_run_continues_from_a_state_with_its_memory():
    data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    whole = ga.run_gamp(data, damping=0.5, tol=0, max_iter=12)
    first = ga.run_gamp(data, damping=0.5, tol=0, max_iter=7)
    second = ga.run_gamp(data, first.state, damping=0.5, tol=0, max_iter=5)
    assert np.array_equal(second.Q, whole.Q)
    assert np.array_equal(second.state.D, whole.state.D)
    end = ga.run_gamp(data, iteration=ga.IterationOptions(hold_after=0))
    assert ga.run_gamp(data, end.state, iteration=ga.IterationOptions(hold_after=0)).n_iter == 0
    with pytest.raises(ValueError, match=r"state.D: needs shape"):
        ga.run_gamp(data, ga.GampState(end.Q, end.state.V, end.state.D[:-1]))


def test_positional_weights_point_along_the_first_position():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 20, 2, 30))
    for _ in range(6):  # singular vectors have random signs
        positions = rng.normal(size=(2, 30))
        Q = initial_weights(ga.Dataset(x, y, positions), "positional")
        assert Q[:, 0] @ positions[0] > 0
        assert np.linalg.norm(Q) == pytest.approx(0.25 * np.sqrt(30))


def test_a_run_continues_from_the_result_of_nearly_identical_data():
    data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    end = ga.run_gamp(data)
    assert ga.run_gamp(data, end, iteration=ga.IterationOptions(hold_after=0)).n_iter == 0
    other = ga.Dataset(data.tokens, data.outputs, data.positions, lam=1.1 * data.lam)
    near, far = ga.run_gamp(other, end, iteration=ga.IterationOptions(hold_after=0)), ga.run_gamp(other, data.Q_star)
    assert near.converged
    assert near.n_iter < far.n_iter
    assert np.allclose(near.Q, far.Q, atol=1e-5)
    assert np.isclose(near.lowest_eigenvalue, far.lowest_eigenvalue, rtol=2e-2)
    assert np.isclose(abs((near.direction * end.direction).sum()), 1, atol=0.2)
    with pytest.raises(ValueError, match=r"init.Q: needs shape \(100, 1\)"):
        ga.run_gamp(ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0), end)
