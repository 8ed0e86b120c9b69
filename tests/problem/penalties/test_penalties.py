"""Penalties at finite d: proximal maps, the input denoiser, GAMP, descents, and errors of bad penalties."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import minimize, minimize_scalar

import gamp_attention as ga
from docs.examples.huber_penalty import Huber, main
from gamp_attention.gamp.descent import settle
from gamp_attention.problem.denoisers.input import denoise_weights
from gamp_attention.problem.risk import risk_at
from gamp_attention.problem.susceptibility import susceptibility
from gamp_attention.sampling.draw import teacher_dataset
from tests.conftest import examples, layer_gradient

PENALTIES = {
    "ridge": ga.Ridge(0.3),
    "elastic net": ga.ElasticNet(0.1, 0.4),
    "lasso": ga.ElasticNet(0.0, 0.4),
    "no l1": ga.ElasticNet(0.3, 0.0),
    "huber": Huber(0.3, 0.5),
}
ELASTIC = ga.ElasticNet(0.008, 0.004)


def compute_penalty(penalty, x):
    """Compute ρ(x) from its definition."""
    if isinstance(penalty, Huber):
        near = 0.5 * penalty.lam * x**2
        return np.where(np.abs(x) < penalty.knee, near, penalty.lam * penalty.knee * (np.abs(x) - penalty.knee / 2))
    return 0.5 * penalty.lam * x**2 + getattr(penalty, "l1", 0.0) * np.abs(x)


@pytest.mark.parametrize("name", PENALTIES)
@examples(10)
@given(b=st.floats(-5, 5), a=st.floats(0.05, 20))
def test_scalar_prox_is_the_minimum_that_scipy_finds(name, b, a):
    penalty = PENALTIES[name]

    def objective(x):
        return compute_penalty(penalty, x) + 0.5 * a * x**2 - b * x

    x = denoise_weights(penalty, np.array([[b]]), np.array([[[a]]]))[0][0, 0]
    minimum = minimize_scalar(
        objective, bounds=(-abs(b) / a - 1, abs(b) / a + 1), method="bounded", options={"xatol": 1e-9}
    )
    assert objective(x) <= minimum.fun + 1e-13
    assert abs(x - minimum.x) < 1e-4 * (1 + abs(b) / a)


def draw_problems(rank, n=12):
    rng = np.random.default_rng(rank)
    root = rng.normal(size=(n, rank, rank))
    return rng.normal(size=(n, rank)), root @ root.transpose(0, 2, 1) + 0.05 * np.eye(rank)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("name", PENALTIES)
def test_denoiser_of_more_columns_is_the_minimum_that_scipy_finds(name, rank):
    penalty, (b, A) = PENALTIES[name], draw_problems(rank)
    eta, _ = denoise_weights(penalty, b, A)
    for x, bi, Ai in zip(eta, b, A, strict=True):

        def objective(x, bi=bi, Ai=Ai):
            return compute_penalty(penalty, x).sum() + 0.5 * x @ Ai @ x - bi @ x

        minimum = minimize(
            objective, x + 0.1, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14, "maxiter": 9999}
        )
        assert objective(x) <= minimum.fun + 1e-12


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", PENALTIES)
def test_response_is_the_derivative_by_finite_differences(name, rank):
    penalty, (b, A) = PENALTIES[name], draw_problems(rank)
    _, C = denoise_weights(penalty, b, A)
    for a in range(rank):
        ends = [denoise_weights(penalty, b + s * 1e-6 * np.eye(rank)[a], A)[0] for s in (1, -1)]
        assert np.allclose(C[:, :, a], (ends[0] - ends[1]) / 2e-6, atol=1e-7)
    assert np.allclose(C, C.transpose(0, 2, 1), atol=1e-13)


def compute_subgradient_distance(data, Q, l1):
    """Compute ‖dist(0, ∂R)‖/(strength √d), with the gradient of the smooth part of R by torch autograd."""
    smooth = layer_gradient(data, Q, "exact")  # includes λQ
    subgradient = np.where(Q != 0, smooth + l1 * np.sign(Q), np.sign(smooth) * np.maximum(np.abs(smooth) - l1, 0))
    return np.linalg.norm(subgradient) / (data.penalty.strength * np.sqrt(data.dim))


@pytest.mark.parametrize(
    ("penalty", "rank", "branch", "low", "high"),
    [
        (ELASTIC, 1, "semantic", 0.1, 0.6),
        (ELASTIC, 1, "positional", 0.1, 0.6),
        (ga.ElasticNet(0.02, 0.01), 2, "semantic", 0.1, 1.0),
        (ga.ElasticNet(0.0, 0.3), 1, "semantic", 1.0, 1.0),  # a strong lasso sets all weights to zero
    ],
)
def test_fixed_points_with_kinks_are_critical_points(penalty, rank, branch, low, high):
    data = ga.sample(ga.attention_model(2, rank, rank, penalty=penalty), 100, 2.0, seed=1)
    result = ga.run_gamp(data, branch, "exact", damping=0.5 if branch == "semantic" else 0.3, max_iter=2000)
    assert result.converged
    assert result.fixed_point
    assert compute_subgradient_distance(data, result.Q, penalty.l1) < 1.1e-8
    norm = np.linalg.norm(ga.gradient(data, result.Q)) / (penalty.strength * np.sqrt(100))
    assert norm == pytest.approx(result.gradient_norm, rel=1e-6)
    assert low <= np.mean(result.Q == 0) <= high


def test_without_l1_the_elastic_net_is_the_ridge(model):
    ridge = ga.sample(model, 100, 1.5, seed=2)
    net = teacher_dataset(
        ga.paper_model(penalty=ga.ElasticNet(0.01, 0.0)), ridge.tokens, ridge.positions, ridge.Q_star, ridge.spectra
    )
    runs = [ga.run_gamp(data, "semantic", damping=0.5, tol=0, max_iter=20) for data in (ridge, net)]
    assert np.allclose(runs[0].history.q, runs[1].history.q, rtol=1e-10)
    assert np.allclose(runs[0].history.V, runs[1].history.V, rtol=1e-10)
    assert runs[0].gradient_norm == pytest.approx(runs[1].gradient_norm, rel=1e-6)
    assert ga.train_loss(ridge, ridge.Q_star) == pytest.approx(ga.train_loss(net, ridge.Q_star), rel=1e-13)
    assert np.allclose(ga.gradient(ridge, ridge.Q_star), ga.gradient(net, ridge.Q_star), rtol=1e-12)


def test_descents_and_message_passing_end_at_one_lasso_solution():
    data = ga.sample(ga.paper_model(penalty=ga.ElasticNet(0.02, 0.004)), 60, 3.0, seed=3)
    gamp = ga.run_gamp(data, "semantic", "exact", damping=0.5)
    descent = ga.minimize_risk(data, "semantic", "exact", "gd", lr=5.0, tol=1e-6)
    settled = settle(data, "exact", gamp.Q + 1e-3, 1e-8)
    assert gamp.converged
    assert descent.converged
    assert settled.gradient_norm <= 1e-8
    assert np.abs(descent.Q - gamp.Q).max() < 1e-5
    assert np.abs(settled.Q - gamp.Q).max() < 1e-6
    assert np.array_equal(settled.Q == 0, gamp.Q == 0)
    V = susceptibility(data, risk_at(data, gamp.Q, "exact"), gamp.Q)
    assert np.allclose(V, gamp.overlaps.V, rtol=1e-4)


def test_a_user_defined_penalty_has_zero_gradient_by_torch():
    data = ga.sample(ga.paper_model(penalty=Huber(0.02, 0.2)), 100, 1.5, seed=0)
    result = ga.run_gamp(data, "semantic", "exact", max_iter=2000)
    assert result.converged
    Q, penalty = result.Q, data.penalty
    smooth = layer_gradient(data, Q, "exact") - penalty.lam * Q
    gradient = smooth + penalty.lam * np.clip(Q, -penalty.knee, penalty.knee)
    assert np.linalg.norm(gradient) / (penalty.lam * np.sqrt(data.dim)) < 1.1e-8
    assert (np.abs(Q) > penalty.knee).any()
    with pytest.raises(ValueError, match="method: needs 'gd' or 'sgd' for Huber"):
        ga.minimize_risk(data, "semantic", method="lbfgs")
    descent = ga.minimize_risk(data, Q, "exact", tol=1e-7)
    assert descent.n_iter <= 1


SmoothHuber = ga.register_penalty(
    type("SmoothHuber", (Huber,), {name: vars(Huber)[name] for name in ("value", "slopes", "prox")} | {"smooth": True})
)


def test_a_penalty_without_kinks_has_the_same_minimum_without_proximal_steps():
    start = ga.sample(ga.paper_model(penalty=Huber(0.02, 0.2)), 100, 1.5, seed=0)
    smooth = ga.sample(ga.paper_model(penalty=SmoothHuber(0.02, 0.2)), 100, 1.5, seed=0)
    ends = [ga.run_gamp(data, "semantic", "exact", max_iter=2000) for data in (start, smooth)]
    assert all(end.converged for end in ends)
    assert np.abs(ends[0].Q - ends[1].Q).max() < 1e-6
    settled = settle(smooth, "exact", ends[0].Q + 1e-3, 1e-8)
    assert settled.gradient_norm <= 1e-8
    assert np.abs(settled.Q - ends[0].Q).max() < 1e-6


def test_the_documented_example_runs(capsys):
    main()
    assert "theory converged" in capsys.readouterr().out


class UnregisteredPenalty(NamedTuple):
    lam: float


@ga.register_penalty
class WrongPenalty(NamedTuple):
    """Penalty with an error that its flag selects."""

    flag: float
    strength: float = 1.0
    quadratic = property(lambda self: self.flag == 6.0)

    def value(self, x):
        if self.flag == 1.0:
            return np.nan
        if self.flag == 2.0:
            return -0.5 * x * x
        return 0.5 * x * x

    def slopes(self, x):
        if self.flag == 2.0:
            return -x, -x
        slope = 2.0 * x if self.flag == 3.0 else x
        return slope, slope

    def prox(self, b, a):
        x, slope = b / (1.0 + a), 1.0 / (1.0 + a)
        if self.flag == 4.0:
            x = b / (2.0 + a)
        if self.flag == 5.0:
            slope *= 0.5
        return x, slope


METHODS = {name: vars(WrongPenalty)[name] for name in ("value", "slopes", "prox")}
SingleSlope = ga.register_penalty(type("SingleSlope", (WrongPenalty,), METHODS | {"slopes": lambda self, x: x}))


BAD = {
    "not a penalty": (lambda: ga.paper_model(penalty="lasso"), TypeError, "penalty.*NamedTuple.*'lasso'"),
    "nothing registered": (lambda: ga.paper_model(penalty=UnregisteredPenalty(0.1)), TypeError, "register_penalty"),
    "NaN": (lambda: ga.paper_model(penalty=WrongPenalty(1.0)), ValueError, "no NaN from Wrong"),
    "concave": (lambda: ga.paper_model(penalty=WrongPenalty(2.0)), ValueError, "slopes that increase"),
    "slopes of another": (lambda: ga.paper_model(penalty=WrongPenalty(3.0)), ValueError, "one-sided derivatives"),
    "prox of another": (lambda: ga.paper_model(penalty=WrongPenalty(4.0)), ValueError, "0 in ∂ρ"),
    "wrong derivative": (lambda: ga.paper_model(penalty=WrongPenalty(5.0)), ValueError, "the derivative of x in b"),
    "another quadratic": (lambda: ga.paper_model(penalty=WrongPenalty(6.0, 2.0)), ValueError, "λx²/2, because quad"),
    "no strength": (lambda: ga.paper_model(penalty=WrongPenalty(0.0, 0.0)), ValueError, "strength.*> 0"),
    "one number for two": (lambda: ga.paper_model(penalty=SingleSlope(0.0)), TypeError, "slopes.*two numbers"),
    "negative l1": (lambda: ga.paper_model(penalty=ga.ElasticNet(0.1, -1.0)), ValueError, "l1.*>= 0.*-1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_penalties_raise_named_errors(case):
    call, error, pattern = BAD[case]
    with pytest.raises(error, match=f"(?s){pattern}"):
        call()
