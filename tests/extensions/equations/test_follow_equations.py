"""Curves of solutions over a parameter."""

import numpy as np
import pytest

import gamp_attention as ga
from tests.extensions.equations.test_solve_equations import magnet, ridge


def test_both_sides_of_the_folds_of_a_magnet_are_on_one_curve():
    """Where tanh'(β m + h) β = 1: m = ±√(1 − 1/β)."""
    start = ga.solve_equations(magnet, {"m": 1.0}, beta=2.0, field=0.5)
    curve = ga.follow_equations(magnet, start, field=(-0.6, 0.6))
    m = np.sqrt(0.5)
    exact = np.arctanh(m) - 2 * m
    assert (np.abs(np.sort(curve.folds) - [exact, -exact]) <= curve.folds_error.max()).all()
    assert curve.folds_error.max() < 1e-4
    assert curve.ends == ("reached", "reached")
    assert np.diff(np.sign(np.diff(curve.field))).astype(bool).sum() == 2
    np.testing.assert_allclose(np.tanh(2 * curve.m + curve.field), curve.m, atol=1e-4)
    middle = np.abs(curve.m) < 0.6
    assert (curve.stability[middle] > 1).all()
    assert (curve.stability[np.abs(curve.m) > 0.8] < 1).all()
    assert len(curve.crossings) == 0


@pytest.mark.parametrize(("rtol", "largest"), [(1e-3, 2e-3), (1e-6, 2e-5)])
def test_the_end_of_a_branch_at_another_branch_is_more_accurate_for_smaller_rtol(rtol, largest):
    """The magnetization m(β) of a ferromagnet vanishes at β = 1; at m = 0 the equation holds for all β."""

    def magnet(x, average, beta):
        return dict(m=np.tanh(beta * x.m))

    start = ga.solve_equations(magnet, dict(m=1.0), beta=2.0, rtol=rtol)
    curve = ga.follow_equations(magnet, start, beta=(0.5, 3.0), rtol=rtol)
    assert abs(curve.folds.item() - 1) <= curve.folds_error.item() <= largest


def test_crossings_are_located():
    """At β = 1 the branches with m ≠ 0 leave m = 0."""
    start = ga.solve_equations(magnet, {"m": 0.0}, beta=0.5)
    curve = ga.follow_equations(magnet, start, beta=(0.2, 2.0))
    assert curve.crossings == pytest.approx([1.0], abs=1e-4)
    assert (curve.m == 0).all()
    assert curve.converged


@pytest.mark.parametrize(("slope", "at", "size"), [(1.0, 0.0, 0.3), (1.0, 0.0, 0.8), (-1.5, 0.4, 0.1), (0.3, 0.4, 0.1)])
@pytest.mark.parametrize("parabola", [False, True])
def test_a_branch_is_followed_straight_through_a_crossing(slope, at, size, parabola):
    """The branch m = a (p − b) crosses m = 0, or a parabola, at p = b, with m = 0 there."""

    def equations(x, average, p):
        other = p - at - x.m**2 if parabola else -x.m
        return dict(m=x.m + size * (x.m - slope * (p - at)) * other)

    for here in (-1.0, 2.0):
        start = ga.solve_equations(equations, dict(m=slope * (here - at)), p=here)
        curve = ga.follow_equations(equations, start, p=(-1.0, 2.0))
        assert curve.ends == ("reached", "reached")
        np.testing.assert_allclose(curve.m, slope * (curve.p - at), atol=1e-3)
        assert curve.crossings[np.abs(curve.crossings - at).argmin()] == pytest.approx(at, abs=1e-3)


@pytest.mark.parametrize("limits", [(0.5, 2.0), (-0.5, 2.0)])
@pytest.mark.parametrize("rtol", [1e-3, 1e-5])
def test_errors_of_crossings_and_folds_hold_and_the_curve_returns_to_the_other_limit(limits, rtol):
    """For m = λ m (1 + m − m²) the fold is at λ = 0.8 and m = 0.5, and the branch m = 0 crosses at λ = 1."""

    def equations(x, average, lam):
        return dict(m=lam * x.m * (1 + x.m - x.m**2))

    start = ga.solve_equations(equations, dict(m=0.9), lam=0.95)
    curve = ga.follow_equations(equations, start, lam=limits, rtol=rtol)
    assert abs(curve.crossings.item() - 1) <= curve.crossings_error.item() <= 2 * rtol
    assert abs(curve.folds.item() - 0.8) <= curve.folds_error.item()
    assert curve.ends == ("returned", "reached")
    assert curve.lam[[0, -1]].tolist() == [2.0, 2.0]
    assert curve.m[0] == pytest.approx(0.5 - np.sqrt(0.75), abs=1e-3)


@pytest.mark.parametrize("p", [5.0, 5.99, 4.001])
def test_a_closed_curve_is_followed_once(p):
    """The circle (m − 2)² + (p − 5)² = 1 has folds at p = 4 and p = 6; two of the starts are next to them."""

    def circle(x, average, p):
        return dict(m=x.m + 0.5 * (1 - (x.m - 2) ** 2 - (p - 5) ** 2))

    start = ga.solve_equations(circle, dict(m=2 + np.sqrt(1 - (p - 5) ** 2)), p=p)
    curve = ga.follow_equations(circle, start, p=(0.1, 20.0))
    assert (np.abs(np.sort(curve.folds) - [4, 6]) <= curve.folds_error.max()).all()
    assert curve.ends == ("returned", "returned")
    assert (curve.p[[0, -1]] == p).all()
    assert curve.m[[0, -1]] == pytest.approx(start.m, abs=1e-3)
    assert len(curve.crossings) == 0


def test_a_range_of_several_orders_of_magnitude_is_covered():
    def inverse(x, average, lam):
        return dict(m=1 / lam + 0 * x.m)

    start = ga.solve_equations(inverse, dict(m=1.0), lam=1.0)
    curve = ga.follow_equations(inverse, start, lam=(1e-5, 1e6))
    assert curve.ends == ("reached", "reached")
    assert curve.lam[[0, -1]].tolist() == [1e-5, 1e6]
    assert (np.abs(curve.m - 1 / curve.lam) <= curve.m_error).all()


def test_errors_along_a_curve_hold():
    start = ga.solve_equations(ridge, {"m": 0.1, "q": 0.5, "V": 1.0}, alpha=2.0, lam=0.1, noise=0.5)
    curve = ga.follow_equations(ridge, start, alpha=(0.9, 3.0))
    b = 0.1 + curve.alpha - 1
    V = 2 / (b + np.sqrt(b**2 + 0.4))
    assert (np.abs(curve.V - V) <= curve.V_error).all()
    assert (np.diff(curve.alpha) > 0).all()
    assert curve.alpha[[0, -1]].tolist() == [0.9, 3.0]


def test_wrong_parameters_are_named():
    start = ga.solve_equations(magnet, {"m": 1.0}, beta=2.0)
    with pytest.raises(TypeError, match="one of the solution's parameters"):
        ga.follow_equations(magnet, start, field=(0, 1))
    for limits in ((0.0, 1.0), (2.0, 2.0)):
        with pytest.raises(ValueError, match="beta: needs a range that contains"):
            ga.follow_equations(magnet, start, beta=limits)
    for limits in (3.0, (1.0, 2.0, 3.0)):
        with pytest.raises(ValueError, match="beta: needs"):
            ga.follow_equations(magnet, start, beta=limits)
    with pytest.raises(ga.ConvergenceError, match="no fixed point at which it could start"):
        ga.follow_equations(lambda x, average, beta: {"m": x.m + 1.0}, start, beta=(1.0, 3.0))
