"""Losses of one field with kinks: proximal maps, message passing, state evolution and leave-one-out."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize, root
from scipy.stats import norm

import gamp_attention as ga


@ga.register_loss
class Hinge(NamedTuple):
    convex = True

    def value(self, p, z):
        return max(0.0, 1 - p[0] * z[0, 0])


@ga.register_loss
class Quantile(NamedTuple):
    """max(τ r, (τ − 1) r) beyond a distance ε of the residual r = y − z from zero, for parameters y, τ and ε."""

    convex = True

    def value(self, p, z):
        r = p[0] - z[0, 0]
        return max(p[1] * (r - p[2]), (p[1] - 1) * (r + p[2]), 0.0)


@ga.register_loss
class AbsoluteError(NamedTuple):
    convex = True

    def value(self, p, z):
        return abs(p[0] - z[0, 0])


@ga.register_loss
class ReluSquares(NamedTuple):
    def value(self, p, z):
        return 0.5 * (p[0] - max(0.0, z[0, 0])) ** 2

    def floor(self, p):
        return 0.0


@dataclass(frozen=True)
class QuantileLabels:
    """The parameters of `Quantile` with y = mean + u + noise ξ: one loss, compiled once, for every τ and ε."""

    noise: float
    tau: float = 0.5
    insensitive: float = 0.0
    mean: float = 0.0

    def n_noise(self, n_tokens, rank):
        return 1

    def __call__(self, u, noise):
        y = self.mean + u.reshape(len(u), -1)[:, :1] + self.noise * noise
        return np.hstack([y, np.full_like(y, self.tau), np.full_like(y, self.insensitive)])


def slopes_of(loss, p, z, step=1e-7):
    """Return the slopes of a loss on both sides of z (n,), for labels p (n, P)."""
    pairs = zip(p, z, strict=True)
    values = np.array([[loss.value(label, np.array([[x + s * step]])) for s in (-1, 0, 1)] for label, x in pairs])
    return (values[:, 1] - values[:, 0]) / step, (values[:, 2] - values[:, 1]) / step


@pytest.mark.parametrize("loss", [Hinge(), Quantile(), ReluSquares()])
def test_proximal_maps_are_the_minima_on_a_dense_grid(loss):
    """From any start; at a kink, the response is 1/V, and g lies between the slopes on both sides."""
    rng, n = np.random.default_rng(0), 90
    y, omega = rng.standard_normal(n), 2 * rng.standard_normal((n, 1, 1))
    p = np.column_stack([np.sign(y) if isinstance(loss, Hinge) else y, np.full((n // 3, 3), [0.5, 0.9, 0.5]).ravel(),
                         np.full((n // 3, 3), [0.0, 0.0, 0.3]).ravel()])  # fmt: skip
    sample_loss = ga.LabelledDataset(rng.standard_normal((n, 3)), p, loss).loss
    grid = np.linspace(-12, 12, 601)
    for V in (0.1, 3.0):
        out = ga.denoise(sample_loss, p, omega, np.full((1, 1, 1), V), rng.standard_normal((n, 1, 1)))
        assert out.solved.all()
        for mu in range(0, n, 7):
            points = np.append(grid, out.z[mu, 0, 0])
            values = np.array([loss.value(p[mu], np.array([[z]])) for z in points])
            objective = (points - omega[mu, 0, 0]) ** 2 / (2 * V) + values
            assert abs(out.moreau[mu] - objective[-1]) <= 1e-10
            assert objective[-1] <= objective.min() + 1e-10
        left, right = slopes_of(loss, p, out.z[:, 0, 0])
        at_kink = np.abs(out.response[:, 0, 0, 0] * V - 1) < 1e-9
        assert (at_kink == (right - left > 1e-3)).all()
        assert (np.abs(out.g[:, 0, 0] + np.clip(-out.g[:, 0, 0], left, right)) < 1e-5).all()


@pytest.mark.parametrize("V", [1e3, 4e5, 1e9])
def test_steps_that_V_does_not_measure_do_not_leave_a_kink(V):
    """For λ → 0, z is at the kink for nearly all fields, and steps of size 1e-3 have tiny changes of (z − ω)²/V."""
    rng, n = np.random.default_rng(0), 2000
    y, omega = np.sign(rng.standard_normal((n, 1))), 1 + 0.05 * rng.standard_normal(n)
    omega *= y[:, 0]
    exact = omega + y[:, 0] * np.clip(1 - y[:, 0] * omega, 0, V)
    loss = ga.LabelledDataset(rng.standard_normal((n, 3)), y, Hinge()).loss
    for start in (omega, exact, exact * (1 + 1e-9), exact + 1e-3):
        metric, z = np.full((1, 1, 1), V), start[:, None, None]
        out = ga.denoise(loss, y, omega[:, None, None], metric, z, hold=True, last_step=1e-14)
        np.testing.assert_allclose(out.z[:, 0, 0], exact, atol=1e-8)
        near = np.abs(y[:, 0] * omega - 1) < 1e-6
        np.testing.assert_allclose(V * out.response[~near, 0, 0, 0], (y[:, 0] * omega < 1)[~near], atol=1e-6)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("alpha", "lam"), [(0.2, 2e-6), (0.9, 2e-5)])
def test_samples_interpolated_at_kinks_have_an_accurate_theory(alpha, lam):
    """The training loss is nearly zero: its averages are rounding errors, and are not resolved."""
    expected = solve_regression(0.5, 0.0, alpha, lam, 0.5, start=1 / lam)
    model = ga.glm_model(Quantile(), QuantileLabels(0.5), lam=lam)
    se = ga.solve_state_evolution(model, alpha, stability=False)
    assert se.converged
    for name, exact in zip(("theta", "q", "V"), expected, strict=True):
        assert abs(getattr(se.overlaps, name).item() - exact) <= getattr(se.overlaps_error, name).item() + 1e-6 * exact


LINE = np.linspace(-12, 12, 20001)


def solve_regression(tau, insensitive, alpha, lam, noise, start=None):
    """Return θ, q and V from a closed form: the residual y − ω is Gaussian, and the proximal map piecewise linear."""

    def equations(x):
        m, q, V = x
        s, up, low = np.sqrt(max(1 + noise**2 - 2 * m + q, 1e-9)), tau * V, (tau - 1) * V
        ends = np.array([low - insensitive, -insensitive, insensitive, up + insensitive]) / s
        inside = norm.cdf(ends[1]) - norm.cdf(ends[0]) + norm.cdf(ends[3]) - norm.cdf(ends[2])

        moved = np.clip(np.abs(s * LINE) - insensitive, 0, np.where(LINE > 0, up, -low)) / V
        squares = np.trapezoid(moved**2 * norm.pdf(LINE), LINE)
        response = inside / V
        precision = lam + alpha * response
        new = alpha * response / precision, ((alpha * response) ** 2 + alpha * squares) / precision**2, 1 / precision
        return (np.array(new) - x) / [1, 1, V]

    found = root(equations, [0.5, 0.7, start or 0.5 / lam], tol=1e-10)
    assert found.success
    return found.x


CASES = {
    "insensitive quantile": (0.9, 0.2, 2.0, 0.3, 1.0),
    "quantile": (0.9, 0.0, 2.0, 0.3, 1.0),
    "insensitive": (0.5, 0.3, 2.0, 0.2, 0.7),
    "half the absolute error": (0.5, 0.0, 3.0, 0.5, np.sqrt(0.5)),
}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", CASES)
def test_state_evolution_of_kinked_losses_agrees_with_closed_forms(name):
    tau, insensitive, alpha, lam, noise = CASES[name]
    expected = solve_regression(*CASES[name])
    model = ga.glm_model(Quantile(), QuantileLabels(noise, tau, insensitive), lam=lam)
    se = ga.solve_state_evolution(model, alpha, rtol=1e-4, stability=False)
    assert se.converged
    found = np.array([values.item() for values in (se.overlaps.theta, se.overlaps.q, se.overlaps.V)])
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_the_hinge_loss_of_signs_has_the_known_overlaps():
    """Values of an iteration on a dense grid, with the closed form of the proximal map."""
    se = ga.solve_state_evolution(ga.glm_model(Hinge(), ga.LogisticLabels(0.0), lam=0.1), 2.0, rtol=1e-4)
    assert se.converged
    found = np.array([values.item() for values in (se.overlaps.theta, se.overlaps.q, se.overlaps.V)])
    np.testing.assert_allclose(found, [1.5993, 3.6697, 2.0131], rtol=2e-4)


def test_message_passing_trains_a_support_vector_machine():
    """The dual quadratic program has the same weights, and leave-one-out the error of refits."""
    data = ga.sample(ga.glm_model(Hinge(), ga.LogisticLabels(0.0), lam=0.1), d=100, alpha=2.0, seed=0)
    gamp = ga.run_gamp(data, max_iter=2000)
    assert gamp.converged
    assert gamp.is_minimum
    assert gamp.gradient_norm < 1e-6

    def train(rows):
        """Return the weights Σ_μ a_μ y_μ x_μ/λ that maximize the dual, with 0 ≤ a ≤ 1."""
        x = data.labels[rows] * data.tokens[rows, 0] / np.sqrt(data.dim)

        def dual(a):
            w = x.T @ a / 0.1
            return 0.05 * w @ w - a.sum(), x @ w - 1

        options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 20000, "maxfun": 40000}
        a = minimize(
            dual, np.full(len(x), 0.5), jac=True, bounds=[(0, 1)] * len(x), method="L-BFGS-B", options=options
        ).x
        return x.T @ a / 0.1

    every = np.arange(data.n_samples)
    np.testing.assert_allclose(gamp.Q[:, 0], train(every), atol=1e-3)
    loo = ga.leave_one_out(data, gamp)
    left_out = every[::10]
    fields = [data.tokens[mu, 0] @ train(np.delete(every, mu)) / np.sqrt(data.dim) for mu in left_out]
    errors = np.maximum(0, 1 - data.labels[left_out, 0] * fields)
    assert abs(loo.errors[left_out].mean() - errors.mean()) <= 0.1 * errors.mean()
    assert loo.test_error > 1.5 * loo.in_training
    assert not loo.trusted  # nothing has checked the formula


@pytest.mark.parametrize("loss", [Quantile(), ReluSquares()])
@pytest.mark.parametrize("labels", [QuantileLabels(0.7, 0.9), QuantileLabels(0.7, 0.5, 0.3)])
def test_fixed_points_satisfy_the_optimality_condition(loss, labels):
    """λQ = X̃ᵀg with −g between the slopes of the loss on both sides of each field."""
    lam = 0.2
    data = ga.sample(ga.glm_model(loss, labels, lam=lam), d=100, alpha=2.0, seed=1)
    gamp = ga.run_gamp(data, max_iter=3000)
    assert gamp.converged
    x = data.tokens[:, 0] / np.sqrt(data.dim)
    left, right = slopes_of(loss, data.labels, x @ gamp.Q[:, 0], 1e-5)
    low, high = np.minimum(left, right) - 1e-4, np.maximum(left, right) + 1e-4
    free = minimize(
        lambda s: (0.5 * np.sum((lam * gamp.Q[:, 0] + x.T @ s) ** 2), x @ (lam * gamp.Q[:, 0] + x.T @ s)),
        0.5 * (low + high), jac=True, bounds=list(zip(low, high, strict=True)), method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 10000},
    )  # fmt: skip
    assert np.sqrt(2 * free.fun) <= 2e-3 * np.linalg.norm(lam * gamp.Q)


def test_thin_layers_next_to_kinks_of_labels_are_resolved():
    """Labels max(u, 0) are zero for half of the samples; with a strong ridge, fields are 0.006 (slow iteration)."""
    model = ga.sequence_model(
        lambda u, n: np.maximum(u[0, 0], 0), lambda z: z[0, 0],
        lambda y, z: np.maximum(0.01 * (y - z), -0.99 * (y - z)), n_tokens=1, rank=1, lam=1.0, convex=True,
    )  # fmt: skip
    se = ga.solve_state_evolution(model, 1.0)
    assert se.converged
    for found, expected in ((se.overlaps.q.item(), 3.69724717e-05), (se.overlaps.V.item(), 0.61591393)):
        assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("lam", "alpha"), [(0.05, 1.1), (5e-6, 1.02)])
def test_slow_recovery_is_not_reported_as_a_solution(lam, alpha):
    """The part of q that the teacher does not explain decreases by 4 or 2 % in a step, toward zero."""
    se = ga.solve_state_evolution(ga.glm_model(Quantile(), QuantileLabels(0.0), lam=lam), alpha)
    assert se.status is ga.Status.INACCURATE
    assert "closer to perfect recovery" in se.message
    assert se.test_error_error == np.inf


def test_weights_that_are_hardly_not_recovered_have_their_test_error():
    """Errors have a size s and are absorbed up to v s: 1 = 2 λ v s + α P(|x| < v) = (2 λ v)² + α E[min(|x|, v)²]."""
    lam, alpha = 0.05, 1.05
    se = ga.solve_state_evolution(ga.glm_model(Quantile(), QuantileLabels(0.0), lam=lam), alpha)

    def equations(x):
        (s, v), inside = np.exp(x), 1 - 2 * norm.sf(np.exp(x[1]))
        squares = inside - 2 * v * norm.pdf(v) + 2 * v**2 * norm.sf(v)
        return 2 * lam * v * s + alpha * inside - 1, (2 * lam * v) ** 2 + alpha * squares - 1

    s = np.exp(root(equations, np.log([0.005, 2.0]), tol=1e-13).x[0])
    assert se.converged
    assert abs(se.test_error - s / np.sqrt(2 * np.pi)) <= 2 * se.test_error_error


@pytest.mark.parametrize(("alpha", "lam", "noise"), [(0.05, 20.0, 2.0), (3.0, 100.0, 5.0), (0.7, 100.0, 0.5)])
def test_kinks_of_a_narrow_interval_are_resolved(alpha, lam, noise):
    """Few residuals are within V of the kink; test errors average |residual|, whose kink is as narrow as the fields."""
    model = ga.glm_model(AbsoluteError(), ga.LinearLabels(noise), lam=lam)
    se = ga.solve_state_evolution(model, alpha, stability=False)
    assert se.converged
    theta, q, V = (values.item() for values in (se.overlaps.theta, se.overlaps.q, se.overlaps.V))
    size = np.sqrt(1 + noise**2 - 2 * theta + q)
    assert abs(se.V_hat.item() - alpha * (1 - 2 * norm.sf(V / size)) / V) <= se.V_hat_error.item()
    assert abs(se.test_error - size * np.sqrt(2 / np.pi)) <= se.test_error_error


def test_perfect_recovery_is_not_reported_as_a_solution_with_errors():
    """Absolute errors without noise recover the teacher: V and the test error go to zero, by a factor in each step."""
    model = ga.glm_model(Quantile(), QuantileLabels(0.0), lam=0.2)
    se = ga.solve_state_evolution(model, 2.0)
    assert se.status.value == "inaccurate"
    assert "closer to perfect recovery" in se.message
    assert not np.isfinite(se.overlaps_error.q).any()
    assert se.relative_error == se.test_error_error == np.inf
    with pytest.raises(ValueError, match="needs a solution with errors, got status 'inaccurate'"):
        se.average(lambda target, u, omega, z: z[:, 0, 0])
    data = ga.sample(model, 100, 2.0, 0)
    assert np.abs(ga.run_gamp(data).Q - data.Q_star).max() < 1e-6
    noisy = ga.solve_state_evolution(ga.glm_model(Quantile(), QuantileLabels(1e-2), lam=0.2), 2.0)
    assert noisy.converged


@pytest.mark.parametrize("penalty", [ga.Ridge(0.1), ga.ElasticNet(0.05, 0.1)])
def test_message_passing_reaches_minima_near_the_loss_of_replica_symmetry(penalty):
    """The dual problem has the same value, also with weights at the kink of the penalty."""
    model = ga.glm_model(Quantile(), QuantileLabels(0.5), penalty=penalty)
    data = ga.sample(model, d=100, alpha=2.0, seed=0)
    gamp = ga.run_gamp(data)
    assert gamp.converged
    s, x = (gamp.state.D / gamp.state.V[0, 0])[:, 0, 0], data.tokens[:, 0] / 10.0
    pull, l1 = x.T @ s, getattr(penalty, "l1", 0.0)
    primal = gamp.train_loss * 100
    dual = s @ data.labels[:, 0] - np.sum(np.maximum(np.abs(pull) - l1, 0) ** 2) / (2 * penalty.lam)
    assert abs(primal - dual) <= 1e-6 * primal
    assert gamp.gradient_norm < 1e-7
    assert np.abs(gamp.Q - gamp.state.Q).max() < 1e-7


@pytest.mark.parametrize("unit", [1e-3, 1e-6])
def test_labels_and_their_unit_give_the_same_weights(unit):
    student = ga.sequence_model(
        lambda u, noise: u[0, 0], lambda z: z[0, 0], lambda y, z: abs(y - z), n_tokens=1, rank=1, convex=True
    ).student
    data = ga.sample(ga.glm_model(Quantile(), QuantileLabels(0.5)), d=30, alpha=2.0, seed=0)
    runs = [
        ga.run_gamp(ga.LabelledDataset(data.tokens, scale * data.labels[:, 0], student, lam=0.1 / scale))
        for scale in (1.0, unit)
    ]
    assert all(run.converged and run.gradient_norm < 1e-7 for run in runs)
    assert np.abs(runs[1].Q / unit - runs[0].Q).max() < 1e-5


def test_a_response_far_below_the_penalty_needs_no_accuracy():
    """Without samples on the margin, the hinge loss has no response: weights are the mean of y x over λ."""
    se = ga.solve_state_evolution(ga.glm_model(Hinge(), ga.LogisticLabels(0.0), lam=10.0), 0.1)
    assert se.converged
    assert se.overlaps.theta.item() == pytest.approx(0.01 * np.sqrt(2 / np.pi), rel=1e-4)


@pytest.mark.parametrize(("label", "width"), [(0.0, 0.003), (0.0, 0.3), (30.0, 0.3), (30.0, 0.02)])
def test_differences_resolve_kinks_on_both_sides(label, width):
    """|y − z| beyond a distance: z = ω inside, the nearest edge next to it, and ω ∓ V/2 farther out."""
    omega = label + width * np.linspace(-3, 3, 600)
    z, dz = ga.prox(Quantile(), omega, 1.0, label, 0.5, width)
    offset = np.abs(omega - label)
    exact = label + np.sign(omega - label) * np.where(offset > width + 0.5, offset - 0.5, np.minimum(offset, width))
    np.testing.assert_allclose(z, exact, rtol=0, atol=1e-3 * width)
    np.testing.assert_allclose(dz, (offset < width) | (offset > width + 0.5), atol=1e-3)


def test_far_labels_shift_the_intercept_only():
    """Slopes of losses of 3 000 by differences have rounding errors, which no division of a panel makes smaller."""
    centered, far = (
        ga.solve_state_evolution(
            ga.glm_model(Quantile(), QuantileLabels(0.5, 0.2, mean=mean), lam=0.3, intercept=True),
            2.0, rtol=1e-3, stability=False,
        )
        for mean in (0.0, 3000.0)
    )  # fmt: skip
    assert far.converged
    assert far.overlaps.m.item() - 3000 == pytest.approx(centered.overlaps.m.item(), abs=1e-3)
    assert far.overlaps.q.item() == pytest.approx(centered.overlaps.q.item(), rel=1e-3)


@pytest.mark.parametrize("seed", [4, 5])
def test_minima_at_which_samples_hold_nearly_all_weights_are_reached(seed):
    """The dual problem, max s·y − ‖X̃ᵀs‖²/2λ for |s| ≤ ½, has the same value."""
    lam, d = 0.05, 60
    data = ga.sample(ga.glm_model(Quantile(), QuantileLabels(0.5), lam=lam), d=d, alpha=5.0, seed=seed)
    gamp, y, x = ga.run_gamp(data), data.labels[:, 0], data.tokens[:, 0] / np.sqrt(d)
    assert gamp.converged
    assert gamp.is_minimum

    def dual(s):
        return np.sum((x.T @ s) ** 2) / (2 * lam) - s @ y, x @ (x.T @ s) / lam - y

    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 0.0, "gtol": 1e-9}
    best = minimize(dual, 0 * y, jac=True, method="L-BFGS-B", bounds=[(-0.5, 0.5)] * len(y), options=options)
    assert gamp.train_loss * d == pytest.approx(-best.fun, rel=1e-8)
