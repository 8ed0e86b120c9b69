"""Stability, continuation and lists of branches, compared with iteration, scans and independent averages."""

from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.phases import arclength
from gamp_attention.theory.fixed_points.observables import replicon
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.panels import PanelRule
from gamp_attention.theory.rules.sobol import SobolRule


@pytest.fixture(scope="module")
def semantic(model):
    return ga.solve_state_evolution(model, 1.5, "semantic", rtol=1e-3)


def test_the_semantic_branch_is_stable_above_an_alpha(model, semantic):
    """The semantic branch is unstable in m below α = 0.83 and stable above; it exists from 0.72 on."""
    assert semantic.stability.stable
    assert np.isnan(semantic.stability.growth["theta"])
    low = ga.solve_state_evolution(model, 0.78, "semantic", rtol=1e-2)
    assert low.converged
    assert low.stability.growth["m"] > 1
    assert low.stability.growth["symmetric"] < 1
    assert not low.stability.stable


def test_growth_equals_the_growth_by_iteration(model):
    """A small m on the semantic branch grows, in one full step, by the eigenvalue of its sector."""
    se = ga.solve_state_evolution(model, 0.78, "semantic", rtol=1e-3)
    F = OverlapMap(model, 0.78, PanelRule(level=1))
    tiny = 1e-3 * np.sqrt(se.overlaps.q[0, 0, 0]) * np.array([[1.0], [-1.0]])
    start = ga.Overlaps(se.overlaps.q, tiny, se.overlaps.theta, se.overlaps.V)
    assert F(start).m[0, 0] / tiny[0, 0] == pytest.approx(se.stability.growth["m"], rel=0.02)


def test_replicon_agrees_with_random_points(model, semantic):
    """The part without jumps, by random points and the formula of the paper model."""
    F = OverlapMap(model, 1.5, SobolRule(16384, 8, seed=(5,)))
    image, samples = F.images(semantic.overlaps, squares=True)
    values = [replicon(model, sample.hats, "stein") for sample in samples]
    assert semantic.replicon == pytest.approx(np.mean(values), abs=4 * np.std(values) + 0.02)
    C, gamma = 1 / (model.lam + 0.25 * image.hats.V.sum()), 0.25
    K = gamma * C**2 * gamma * image.hats.square[:, :, 0, 0].sum(axis=0)
    assert replicon(model, image.hats, "stein") == pytest.approx(K.sum(), rel=1e-9)


@pytest.mark.slow
def test_the_semantic_branch_is_followed_to_its_end(model):
    """Past its loss of stability in m to the pitchfork; just above it the branch exists, and just below it does not."""
    path = ga.continue_branch(model, 0.85, "semantic", "alpha", 0.5)
    assert path.end == "vanished"
    assert path.end_error < 1e-3
    assert path.end_value == pytest.approx(0.7191, abs=1e-3)
    for side in (-1, 1):
        near = ga.solve_state_evolution(model, 0.8265 + side * 0.01, "semantic", rtol=1e-2)
        assert near.stability.stable is (side > 0)
    assert np.all(np.diff(path.values) < 0)
    above = ga.solve_state_evolution(model, path.end_value + 0.03, "semantic", rtol=1e-2, stability=False)
    below = ga.solve_state_evolution(model, path.end_value - 0.03, "semantic", rtol=1e-2, stability=False)
    assert above.converged
    assert below.status is ga.Status.LOST


def test_a_branch_that_fades_slowly_is_lost(model):
    """Just below the end of the semantic branch θ shrinks by 1 % per step; this is neither convergence nor failure."""
    se = ga.solve_state_evolution(model, 0.71, "semantic", rtol=1e-3, stability=False)
    assert se.status is ga.Status.LOST
    assert not se.overlaps.theta.any()
    assert se.n_iter < 100


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("parameter", "to"), [("omega", 0.35), ("lam", 0.015), ("sigma", 0.51)])
def test_continuation_ends_where_solving_does(model, parameter, to):
    path = ga.continue_branch(model, 1.5, "positional", parameter, to)
    assert path.end == "reached"
    assert path.values[-1] == to
    there = ga.paper_model(**({"omega": 0.3} | {parameter: to}))
    se = ga.solve_state_evolution(there, 1.5, "positional", rtol=1e-3, stability=False)
    assert path.overlaps.q[-1] == pytest.approx(se.overlaps.q, rel=2e-3)
    assert path.train_loss[-1] == pytest.approx(se.train_loss, rel=2e-3)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("omega", "parameter", "to"), [(0.1, "lam", 0.5), (0.3, "lam", 0.2), (0.3, "sigma", 0.2)])
def test_weights_vanish_where_solving_finds_no_semantic_branch(omega, parameter, to):
    """Near λ = 0.078, λ = 0.070 and σ = 0.340, where q is at most 4e-4 of its first value."""
    path = ga.continue_branch(ga.paper_model(omega), 1.5, "semantic", parameter, to)
    assert path.end == "vanished"
    assert path.end_error < 0.01 * path.end_value
    inside = np.sign(path.values[0] - path.end_value)
    assert (inside * (path.values - path.end_value) > 0).all()
    for side in (inside, -inside):
        value = path.end_value + side * (2e-3 * path.end_value + path.end_error)
        model = ga.paper_model(omega, **{parameter: value})
        se = ga.solve_state_evolution(model, 1.5, "semantic", rtol=1e-4, stability=False)
        assert (se.converged and se.overlaps.theta.any()) == (side == inside)


CONVEX = {
    "logistic": lambda sigma: ga.glm_model(ga.LogisticLoss(), sigma=sigma, lam=0.1, intercept=True),
    "ridge": lambda sigma: ga.glm_model(
        ga.SquaredLoss(), ga.LinearLabels(noise=0.3), n_tokens=2, sigma=sigma, tau=[1.0, 0.2], lam=0.1, intercept=True
    ),
}


@pytest.mark.parametrize(("parameter", "to"), [("alpha", 2.3), ("sigma", 1.2)])
@pytest.mark.parametrize("name", CONVEX)
def test_means_that_are_zero_do_not_end_a_branch(name, parameter, to):
    """Convex problems with λ > 0 have a fixed point at every parameter value, here with m = 0 up to rounding errors."""
    path = ga.continue_branch(CONVEX[name](1.0), 2.0, "random", parameter, to)
    assert path.end == "reached"
    alpha, sigma = (to, 1.0) if parameter == "alpha" else (2.0, to)
    se = ga.solve_state_evolution(CONVEX[name](sigma), alpha, "random", rtol=1e-3, stability=False)
    assert path.overlaps.q[-1] == pytest.approx(se.overlaps.q, rel=2e-3)


def test_an_intercept_that_changes_its_sign_does_not_end_a_branch():
    """For y = u + u² − 1 the intercept is σ² − 1."""
    model = ga.sequence_model(
        lambda u, noise: u[0, 0] + u[0, 0] ** 2 - 1, lambda z: z[0, 0],
        n_tokens=1, rank=1, sigma=0.8, lam=0.1, intercept=True,
    )  # fmt: skip
    path = ga.continue_branch(model, 2.0, "random", "sigma", 1.2)
    assert path.end == "reached"
    assert path.overlaps.m[:, 0, 0] == pytest.approx(path.values**2 - 1, abs=1e-3)


def test_continuation_reaches_omega_zero():
    path = ga.continue_branch(ga.paper_model(0.02), 1.5, "semantic", "omega", 0.0)
    assert path.end == "reached"
    assert path.values[-1] == 0


@ga.register_loss
class AbsoluteErrors(NamedTuple):
    convex = True

    def value(self, p, z):
        return abs(p[0] - z[0, 0]) + abs(p[1] - z[0, 1])


def test_a_branch_of_a_loss_with_kinks_in_two_fields_is_followed():
    """Averages of derivatives of such a loss jump between points, on the lattice by more than the required residual."""
    model = ga.glm_model(AbsoluteErrors(), ga.LinearLabels(0.5), rank=2, lam=0.1)
    path = ga.continue_branch(model, 2.0, "semantic", to=1.9)
    assert path.end == "reached"
    se = ga.solve_state_evolution(model, 1.9, rtol=1e-3, stability=False)
    assert path.overlaps.q[-1] == pytest.approx(se.overlaps.q, rel=1e-3, abs=1e-3)


def test_weights_that_become_small_do_not_vanish():
    """Ridge regression without noise for λ up to 1e4: V, and then q, are in closed form."""
    path, alpha = ga.continue_branch(ga.glm_model(ga.SquaredLoss(), lam=0.3), 2.0, "random", "lam", 1e4), 2.0
    lam = path.values
    V = (np.sqrt((lam + alpha - 1) ** 2 + 4 * lam) - (lam + alpha - 1)) / (2 * lam)
    response = alpha / (1 + V)
    along, noise = response / (lam + response), alpha / (1 + V) ** 2 / (lam + response) ** 2
    assert path.end == "reached"
    assert lam[-1] == 1e4
    assert path.overlaps.q.ravel() == pytest.approx((along**2 + noise * (1 - 2 * along)) / (1 - noise), rel=1e-3)


def test_a_branch_of_classes_is_followed():
    """The mean of the columns is zero, so that steps of single overlaps leave the feasible overlaps."""
    path = ga.continue_branch(ga.glm_model(ga.MultinomialLoss(), rank=3, lam=0.3), 2.0, "random", "lam", 0.7)
    at_end = ga.solve_state_evolution(ga.glm_model(ga.MultinomialLoss(), rank=3, lam=0.7), 2.0, "random", rtol=1e-3)
    assert path.end == "reached"
    assert path.at(-1).q == pytest.approx(at_end.overlaps.q, abs=2e-3 * at_end.overlaps.q.max())


def test_a_branch_is_followed_at_overlaps_that_the_teacher_explains_almost_completely():
    """There a difference of 0.005 in θ leads to infeasible overlaps."""
    path = ga.continue_branch(ga.paper_model(lam=0.001), 4.0, "semantic", to=5.0)
    assert path.end == "reached"
    q, theta = path.overlaps.q[:, 0, 0, 0], path.overlaps.theta[:, 0, 0, 0]
    explained = theta**2 / (q * ga.paper_model().coordinates.rho[0, 0, 0])
    assert (explained > 0.98).all()
    assert (explained < 1).all()


def test_a_path_that_ends_at_the_limit_of_points_is_reported(monkeypatch):
    monkeypatch.setattr("gamp_attention.extensions.phases.branches.MAX_POINTS", 2)
    path = ga.continue_branch(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.5), lam=0.1), 2.0, "semantic", to=8.0)
    assert path.end == "long"
    assert len(path.values) == 2


def test_a_model_without_positions_has_no_positional_start():
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.5), lam=0.1)
    solutions = ga.branches(model, 2.0, stability=False)
    assert solutions.names == ["semantic"]
    assert list(solutions.missing) == ["random"]


@pytest.mark.slow
def test_all_branches_are_listed(model):
    solutions = ga.branches(model, 0.78, ("semantic", "positional"), rtol=1e-2)
    assert solutions.names[0] == "positional"
    assert solutions.global_minimum is solutions.solutions[0]
    assert "semantic" in solutions.names
    losses = [se.train_loss for se in solutions.solutions]
    assert losses == sorted(losses)
    assert "no" in str(solutions)
    lost = ga.branches(model, 0.6, ("random", "semantic"), rtol=1e-2, stability=False)
    assert lost.missing == {"semantic": "the solution found from random"}


class Parabola(arclength.Curve):
    """Curve p = 1 + (x − 0.5)² instead of the equations; its fold is at p = 1."""

    def overlaps(self, u):
        return self.packing.unpack(u[:-1])

    def residual(self, u):
        return np.array([(u[0] - 0.5) ** 2 + 1 - u[1]])

    def finer(self):
        return self

    class packing:
        names = ("q",)

        @staticmethod
        def unpack(x):
            return ga.Overlaps(np.full((1, 1, 1), x[0]), np.ones((1, 1)), np.ones((1, 1, 1)), np.ones((1, 1, 1)))


def test_a_fold_is_passed_and_located():
    curve, points = Parabola(1.0, {}), []
    for u in arclength.walk(curve, np.array([0.9, 1.16]), 0.5):
        points.append(u)
        if arclength.find_end(curve, points):
            break
    assert arclength.find_end(curve, points) == "fold"
    assert points[-1][0] < 0.5 < points[0][0]
    value, error = arclength.locate_fold(curve, points)
    assert value == pytest.approx(1.0, abs=1e-6)
    assert error < 3e-5
