"""Fixed points of the user's equations: values, errors, statuses, messages."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import ndtr

import gamp_attention as ga
from docs.examples import own_equations as papers

START = {"m": 0.1, "q": 0.5, "V": 1.0}


def ridge(x, average, alpha, lam, noise):
    g = average(lambda u, z: (u - x.m * u - np.sqrt(x.q - x.m**2) * z) ** 2, 2) + noise**2
    along = alpha / (1 + x.V)
    q = (along**2 + alpha * g / (1 + x.V) ** 2) / (lam + along) ** 2
    return {"m": along / (lam + along), "q": q, "V": 1 / (lam + along)}


def magnet(x, average, beta, field=0.0):
    return {"m": np.tanh(beta * x.m + field)}


@pytest.mark.parametrize(("alpha", "lam"), [(2.0, 0.1), (0.5, 0.01), (1.0, 1e-6)])
def test_stated_errors_hold_for_ridge_regression(alpha, lam):
    """At α = 1 and λ = 1e-6, the stability is .998, and V is far from the start."""
    solution = ga.solve_equations(ridge, START, alpha=alpha, lam=lam, noise=0.5)
    b = lam + alpha - 1
    V = 2 / (b + np.sqrt(b**2 + 4 * lam))
    m = alpha * V / (1 + V)
    q = (m**2 + m**2 / alpha * (1 - 2 * m + 0.25)) / (1 - m**2 / alpha)
    assert solution.converged
    for name, exact in (("m", m), ("q", q), ("V", V)):
        error = getattr(solution, f"{name}_error")
        assert abs(getattr(solution, name) - exact) <= error <= 1e-4 * exact
    assert len(solution.history["m"]) == solution.n_iter + 1


def test_averages_locate_kinks_and_jumps():
    """E max(ξ, .3)², E 1(ξ > .3) and E |ξ₁ + ξ₂ − .5| to the accuracy that the stated error needs."""

    def equations(x, average):
        return {"a": average(lambda z: np.maximum(z, 0.3) ** 2), "b": average(lambda z: np.array([z > 0.3, z < 0.3]).T),
                "c": average(lambda z, y: abs(z + y - 0.5), 2), "d": average(lambda z: 2.0)}  # fmt: skip

    solution = ga.solve_equations(equations, {"a": 1.0, "b": [0.5, 0.5], "c": 1.0, "d": 1.0}, rtol=1e-5)

    def exact(f, spread=1.0):
        density = lambda z: f(spread * z) * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)  # noqa: E731
        return quad(density, -12, 12, points=[0.3, 0.5 / np.sqrt(2)], epsabs=1e-12, limit=200)[0]

    tail = exact(lambda z: float(z > 0.3))
    assert abs(solution.a - exact(lambda z: max(z, 0.3) ** 2)) <= solution.a_error <= 1e-5
    assert (np.abs(solution.b - [tail, 1 - tail]) <= solution.b_error).all()
    assert abs(solution.c - exact(lambda z: abs(z - 0.5), np.sqrt(2))) <= solution.c_error <= 1e-5
    assert solution.d == pytest.approx(2, abs=1e-8)


@pytest.mark.parametrize("width", [0.3, 0.03, 0.01])
def test_averages_see_short_intervals(width):
    def equations(x, average):
        return {"p": average(lambda u: 1.0 * (np.abs(u - 1.234) < width))}

    exact = np.diff(ndtr([1.234 - width, 1.234 + width]))[0]
    solution = ga.solve_equations(equations, {"p": 0.1})
    assert solution.converged
    assert abs(solution.p - exact) <= max(solution.p_error, 1e-4 * exact)


def product(f):
    return lambda *fields: np.prod([f(field) for field in fields], axis=0)


@pytest.mark.parametrize(("f", "n", "exact"), [
    (np.abs, 3, (2 / np.pi) ** 1.5), (np.square, 3, 1.0), (lambda x: np.maximum(x, 0), 3, (2 * np.pi) ** -1.5),
    (lambda x: 1.0 * (x > 0), 3, 0.125), (lambda x: np.maximum(x - 0.3, 0), 2, 0.2667613 ** 2),
])  # fmt: skip
def test_averages_see_functions_that_vanish_on_coordinate_planes(f, n, exact):
    solution = ga.solve_equations(lambda x, average: {"p": average(product(f), n)}, {"p": 0.0})
    assert solution.converged
    assert abs(solution.p - exact) <= solution.p_error + 1e-7 * exact


@pytest.mark.parametrize(("n", "width"), [(1, 0.003), (1, 0.01), (2, 0.02), (2, 0.05), (3, 0.1), (3, 0.5)])
@pytest.mark.parametrize("center", [-1.3137, 0.6317])
def test_averages_see_narrow_peaks(n, width, center):
    """Of Gaussian peaks, and of the slope of a sigmoid, whose average differs by a relative O(width²)."""
    scale = np.sqrt(1 + width**2)
    exact = (width / scale * np.exp(-0.5 * (center / scale) ** 2)) ** n

    def equations(x, average):
        slope = average(lambda u: 1 / np.cosh((u - center) / width) ** 2 / width)
        return {"p": average(product(lambda u: np.exp(-0.5 * ((u - center) / width) ** 2)), n), "s": slope}

    solution = ga.solve_equations(equations, {"p": 0.0, "s": 0.0})
    assert solution.converged
    assert abs(solution.p - exact) <= solution.p_error <= 1e-4 * exact
    density = np.sqrt(2 / np.pi) * np.exp(-0.5 * center**2)
    assert abs(solution.s - density) <= width**2


def test_errors_hold_for_peaks_on_a_smooth_function():
    """The peak is narrower than the spacing of the first nodes; `kinks` resolve a peak that no nodes see."""

    def average_of(width, **options):
        def f(u, v):
            return 1 + 10 * np.exp(-0.5 * ((u - 1.234) ** 2 + (v + 0.678) ** 2) / width**2)

        solution = ga.solve_equations(lambda x, average: {"p": average(f, 2, **options)}, {"p": 1.0})
        scale = 1 + width**2
        return solution, 1 + 10 * width**2 / scale * np.exp(-0.5 * (1.234**2 + 0.678**2) / scale)

    for width, options in ((0.03, {}), (0.003, {"kinks": [(1.234, -0.678)]})):
        solution, exact = average_of(width, **options)
        assert abs(solution.p - exact) <= solution.p_error
    assert solution.converged


def test_the_work_for_jumps_on_oblique_planes_is_bounded():
    starts, numbers = [], []

    def equations(x, average):
        starts.append(len(numbers))

        def f(u, v, w):
            numbers.append(len(u))
            return (u + 0.5 * v - 0.3 * w > 0.2) * np.tanh(w) ** 2 + 0.0

        return {"p": average(f, 3)}

    solution = ga.solve_equations(equations, {"p": 0.5})
    u = np.linspace(-9, 9, 100_001)
    integrand = np.exp(-0.5 * u**2) * np.tanh(u) ** 2 * ndtr(-(0.2 + 0.3 * u) / np.sqrt(1.25))
    exact = integrand.sum() / np.exp(-0.5 * u**2).sum()
    assert solution.status.value == "inaccurate"
    assert "an average needs too many nodes" in solution.message
    assert abs(solution.p - exact) <= solution.p_error <= 0.1
    assert max(numbers) <= 100_000
    assert np.add.reduceat(numbers, starts).max() < 5e6


def test_changes_in_a_cycle_are_in_units_of_the_cycle():
    """The last point has a ≈ 0, relative to which the change would be 2e4."""

    def rotates(x, average):
        growth = 1 - x.a**2 - x.b**2
        return {"a": x.a + growth * x.a - 2 * x.b, "b": x.b + growth * x.b + 2 * x.a}

    solution = ga.solve_equations(rotates, {"a": 0.1, "b": 0.0})
    assert solution.status.value == "max_iter"
    assert solution.residual < 10


def test_the_flow_leaves_fixed_points_that_repel():
    """A magnetization of 1e-9 grows; zero stays zero, and its stability is β."""
    exact = brentq(lambda m: np.tanh(1.5 * m) - m, 0.5, 1)
    grown, zero = (ga.solve_equations(magnet, {"m": m}, beta=1.5) for m in (1e-9, 0.0))
    assert abs(grown.m - exact) <= grown.m_error < 1e-4
    assert grown.stability < 1
    assert zero.m == 0
    assert zero.stability == pytest.approx(1.5, rel=1e-5)


def test_order_parameters_that_go_to_zero_are_zero():
    """Rounding moves m from its start at zero."""
    vanishing = ga.solve_equations(
        lambda x, average: {"m": 0.5 * x.m - x.m**3, "q": 0.5 * x.q + x.m**2}, {"m": 0.0, "q": 0.3}
    )
    assert vanishing.converged
    assert abs(vanishing.m) <= vanishing.m_error < 1e-5
    assert abs(vanishing.q) <= vanishing.q_error < 1e-5


def test_statuses_say_why_there_is_no_solution():
    def grows(x, average):
        return {"a": 2 * x.a + 1}

    def shifts(x, average):
        return {"a": x.a + 1, "b": 0.5 * x.b}

    def breaks(x, average):
        return {"a": np.sqrt(x.a - 1.5) - 3}

    def raises(x, average):
        return {"a": float(ga.prox(abs, np.sqrt(x.a - 1.5), 1.0)[0]) - 3}

    for equations, start, status, words in (
        (raises, {"a": 2.0}, "nonfinite", "the equations raise “omega: needs finite numbers"),
        (grows, {"a": 1.0}, "diverged", "a grows"), (shifts, {"a": 1.0, "b": 1.0}, "max_iter", "a still changes"),
        (breaks, {"a": 2.0}, "nonfinite", "the equation of a returns nan at a = 1."),
        (lambda x, average: vars(x), {"a": 1.0}, "max_iter", "fixed point may not be isolated"),
    ):  # fmt: skip
        solution = ga.solve_equations(equations, start, max_iter=150)
        assert solution.status.value == status
        assert words in solution.message
        assert not solution.converged
    with pytest.raises(ga.ConvergenceError, match="a grows"):
        ga.solve_equations(grows, {"a": 1.0}, raise_on_failure=True)
    critical = ga.solve_equations(magnet, {"m": 0.5}, beta=1.0)
    assert not critical.converged


@pytest.mark.parametrize(("result", "words"), [
    ({"b": 1.0}, r"names of the start, \['a'\]"), ({"a": np.ones(2)}, r"of the start's shape \(\)"), (3, "a dict"),
    ({"a": np.nan}, "the equation of a returns nan"), ({"a": 0.5 + 0j}, "a with real numbers, .* of type complex"),
    ({"a": "1"}, "a with real numbers, .* of type <U1"),
])  # fmt: skip
def test_wrong_results_are_named(result, words):
    with pytest.raises((TypeError, ValueError), match=words):
        ga.solve_equations(lambda x, average: result, {"a": 1.0})


def test_wrong_uses_of_arguments_are_named():
    with pytest.raises(AttributeError, match="order parameters are a, not 'b'"):
        ga.solve_equations(lambda x, average: {"a": x.b}, {"a": 1.0})
    with pytest.raises(ValueError, match=r"shape of f.* points first, got .2, "):
        ga.solve_equations(lambda x, average: {"a": average(lambda u: np.stack([u, u])).sum()}, {"a": 1.0})
    with pytest.raises(ValueError, match="or a value that does not depend on them"):
        ga.solve_equations(lambda x, average: {"a": average(lambda u: np.tanh(x.a + u[0]))}, {"a": 1.0})
    with pytest.raises(ValueError, match=r"average: f.* needs real values"):
        ga.solve_equations(lambda x, average: {"a": average(lambda u: np.exp(1j * u + x.a)).real}, {"a": 1.0})
    constant = ga.solve_equations(lambda x, average: {"a": average(lambda u: 0.5 * x.a + 1)}, {"a": 1.0})
    assert abs(constant.a - 2) <= constant.a_error


def test_equations_may_change_their_arguments():
    def equations(x, average):
        x.a *= 0.5
        return {"a": x.a + 1}

    solution = ga.solve_equations(equations, {"a": np.ones(2)})
    assert (np.abs(solution.a - 2) <= solution.a_error).all()


def test_an_order_parameter_is_accurate_at_its_size_at_the_start():
    """An order parameter far below its start counts as zero."""

    def equations(x, average):
        return {"a": 0.5 * x.a + 1e-12}

    large, small = (ga.solve_equations(equations, {"a": start}) for start in (1.0, 1e-8))
    assert large.converged
    assert small.converged
    assert abs(large.a - 2e-12) <= large.a_error <= 1e-4 * 1e-6
    assert abs(small.a - 2e-12) <= small.a_error <= 1e-4 * 2e-12


def test_names_of_attributes_are_no_order_parameters():
    with pytest.raises(ValueError, match=r"start: needs names other than .* got \['stability'\]"):
        ga.solve_equations(lambda x, average: {"stability": 0.5}, {"stability": 1.0})


def test_logistic_regression_agrees_with_the_package():
    solution = ga.solve_equations(papers.logistic, START, alpha=2.0, lam=0.1)
    model = ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(), lam=0.1)
    o = ga.solve_state_evolution(model, 2.0, rtol=1e-6).overlaps
    for name, exact in (("m", o.theta.item()), ("q", o.q.item()), ("V", o.V.item())):
        assert abs(getattr(solution, name) - exact) <= getattr(solution, f"{name}_error")


def test_two_bootstrap_samples_have_the_predicted_overlap():
    predicted, found = ga.solve_equations(papers.bootstrap, START | {"r": 0.1}, alpha=2.0, lam=0.1, noise=0.5), []
    for seed in range(12):
        rng, d, n = np.random.default_rng(seed), 300, 600
        x, teacher = rng.standard_normal((n, d)) / np.sqrt(d), rng.standard_normal(d)
        y = x @ teacher + 0.5 * rng.standard_normal(n)
        w = []
        for _ in range(2):
            counts = rng.poisson(1.0, n)
            w.append(np.linalg.solve(x.T @ (counts[:, None] * x) + 0.1 * np.eye(d), x.T @ (counts * y)))
        found.append([w[0] @ teacher / d, w[0] @ w[0] / d, w[0] @ w[1] / d])
    mean, error = np.mean(found, axis=0), np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(mean - [predicted.m, predicted.q, predicted.r]) < 4 * error + 0.01).all()
