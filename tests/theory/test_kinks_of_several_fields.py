"""Losses of several fields with kinks: proximal maps and message passing."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import ndtri

import gamp_attention as ga
from tests.theory.test_kinks import Hinge
from validation.speed.several_fields import ClassHinge, Errors, HingeOfSum, LargestError, LargestField

ABSOLUTE = Errors(1.0, 1.0)  # |p_1 − z_1| + … for any number of fields, compiled once


@dataclass(frozen=True)
class NoisyFields:
    noise: float
    unit: float = 1.0

    def n_noise(self, n_tokens, rank):
        return rank

    def __call__(self, u, noise):
        return self.unit * (u[:, 0] + self.noise * noise)


def draw(loss, r, n=300, seed=0):
    """Return the sample loss and, for n samples, labels of classes or numbers, centers ω and a matrix V."""
    rng = np.random.default_rng(seed)
    p = rng.integers(0, r, (n, 1)).astype(float) if isinstance(loss, ClassHinge) else rng.standard_normal((n, r))
    root, omega = rng.standard_normal((r, r)), 2 * rng.standard_normal((n, 1, r))
    sample_loss = ga.LabelledDataset(rng.standard_normal((n, 1, 3)), p, loss, rank=r).loss
    return sample_loss, p, omega, (root @ root.T + 0.3 * np.eye(r))[None]


@ga.register_loss
class SquaredErrors(NamedTuple):
    convex = True

    def value(self, p, z):
        return (p[0] - z[0, 0]) ** 2 + (p[1] - z[0, 1]) ** 2


def test_losses_without_parameters_are_distinguished_by_their_classes():
    """Such losses are equal as tuples, but only one of these has kinks."""
    smooth, y, omega, V = draw(SquaredErrors(), 2)
    kinked = draw(LargestError(), 2)[0]
    ga.denoise(smooth, y, omega, V)
    out = ga.denoise(kinked, y, omega, V, hold=True)
    assert out.solved.all()
    assert (np.abs(np.diff(np.abs(y - out.z[:, 0]))) < 1e-6).any()


def test_objectives_of_fields_that_interpolate_their_labels_are_accurate():
    """With a large V, z is at the kinks, far from which steps along a single piece of the loss end."""
    loss, y, omega, _ = draw(ABSOLUTE, 2)
    out = ga.denoise(loss, y, omega, 1e4 * np.eye(2)[None])
    assert out.moreau == pytest.approx(((y - omega[:, 0]) ** 2).sum(axis=1) / 2e4, rel=1e-5)


def test_training_loss_of_weights_that_interpolate_labels_is_their_penalty():
    model = ga.glm_model(ABSOLUTE, ga.LinearLabels(0.1), rank=2, lam=1e-4)
    se = ga.solve_state_evolution(model, 0.3, rtol=1e-3)
    assert se.converged
    expected = 0.5 * model.lam * np.trace(se.overlaps.q[0])
    assert abs(se.train_loss - expected) <= se.train_loss_error + 0.5 * model.lam * se.overlaps_error.q[0].max()


def test_forces_of_absolute_errors_are_subgradients():
    """V couples the fields; g is the sign of y − z, or between both signs at a kink, which then determines z."""
    loss, y, omega, V = draw(ABSOLUTE, 2)
    for scale in (0.03, 1.0, 30.0):
        out = ga.denoise(loss, y, omega, scale * V, jacobian=True)
        assert out.solved.all()
        residual, g = y - out.z[:, 0], out.g[:, 0]
        at_kink = np.abs(residual) < 1e-6
        assert at_kink.any()
        np.testing.assert_allclose(g[~at_kink], np.sign(residual)[~at_kink], atol=1e-6)
        assert np.abs(g).max() <= 1 + 1e-6
        assert np.abs(out.jacobian[at_kink]).max() < 1e-5


def test_forces_of_maxima_are_subgradients():
    """e_y − g is a weight on the largest terms of the maximum."""
    loss, y, omega, V = draw(ClassHinge(), 3)
    out = ga.denoise(loss, y, omega, V)
    assert out.solved.all()
    own = np.eye(3)[y[:, 0].astype(int)]
    weights, terms = own - out.g[:, 0], out.z[:, 0] + 1 - own
    assert weights.min() >= -1e-6
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)
    assert np.abs(weights * (terms.max(axis=1, keepdims=True) - terms)).max() < 1e-6
    assert ((weights > 1e-3).sum(axis=1) > 1).any()


def test_local_minimizations_of_maxima_end():
    """A single start suffices: rounding errors of second differences do not count as curvature."""
    for r in (3, 5):
        loss, y, omega, V = draw(ClassHinge(), r, n=3000)
        assert ga.denoise(loss, y, omega, 5 * V, hold=True).solved.all()


def test_responses_at_kinks_are_the_derivatives():
    for loss, r in ((ABSOLUTE, 2), (ClassHinge(), 3)):
        sample_loss, p, omega, V = draw(loss, r)
        out = ga.denoise(sample_loss, p, omega, V, jacobian=True)
        for i, offset in enumerate(1e-3 * np.eye(r)):
            high, low = (ga.denoise(sample_loss, p, omega + side * offset, V).z[:, 0] for side in (1, -1))
            error = np.abs((high - low) / 2e-3 - out.jacobian[:, :, i]).max(axis=1)
            assert np.quantile(error, 0.9) < 1e-4  # at the others, z reaches or leaves a kink within the difference


@ga.register_loss
class QuadraticAndAbsolute(NamedTuple):
    """½(z₁ − p₁)² + .3 z₁ z₂ + z₂² + |z₁ + z₂ − p₂|."""

    convex = True

    def value(self, p, z):
        smooth = 0.5 * (z[0, 0] - p[0]) ** 2 + 0.3 * z[0, 0] * z[0, 1] + z[0, 1] ** 2
        return smooth + abs(z[0, 0] + z[0, 1] - p[1])


@ga.register_loss
class Distance(NamedTuple):
    """‖z − p‖, whose kink is a point."""

    convex = True

    def value(self, p, z):
        return ((z[0, 0] - p[0]) ** 2 + (z[0, 1] - p[1]) ** 2) ** 0.5


def minimize_along_kink(p, omega, V):
    """Return the minima of the first loss, from the multiplier of its kink, which is clipped to [−1, 1]."""
    inverse = np.linalg.inv(np.array([[1.0, 0.3], [0.3, 2.0]]) + np.linalg.inv(V))
    free = (np.linalg.solve(V, omega.T).T + p[:, :1] * [1.0, 0.0]) @ inverse
    across = inverse.sum(axis=0)
    return free - np.clip((free.sum(axis=1) - p[:, 1]) / across.sum(), -1, 1)[:, None] * across


@pytest.mark.parametrize("V", [0.3, 1.0, 30.0])
def test_minima_at_kinks_between_curved_pieces_and_at_points(V):
    loss, p, omega, _ = draw(QuadraticAndAbsolute(), 2, n=3000)
    out = ga.denoise(loss, p, omega, V * np.eye(2)[None])
    assert out.solved.all()
    np.testing.assert_allclose(out.z[:, 0], minimize_along_kink(p, omega[:, 0], V * np.eye(2)), atol=1e-6)
    loss, p, omega, _ = draw(Distance(), 2, n=3000)
    out = ga.denoise(loss, p, omega, V * np.eye(2)[None])
    assert out.solved.all()
    omega, found = omega[:, 0], out.z[:, 0]
    exact = p + np.maximum(1 - V / np.linalg.norm(omega - p, axis=1, keepdims=True), 0) * (omega - p)
    objectives = [np.linalg.norm(z - p, axis=1) + np.sum((z - omega) ** 2, axis=1) / (2 * V) for z in (found, exact)]
    np.testing.assert_allclose(*objectives, rtol=0, atol=1e-5)
    far = np.abs(np.linalg.norm(omega - p, axis=1) / V - 1) > 0.05  # else z hardly changes the objective
    np.testing.assert_allclose(found[far], exact[far], atol=1e-5)


SAMPLES = [  # ω, b and a
    [-0.1, 1.7, -0.3, -1.2, -0.4, 0.1, -0.1, 1, 0.2, 2.2, -0.4, -1.4, 0.9, -0.5, -0.1, -0, 0.5, 0, 0.4],
    [2.4, 1.6, -3.5, -0.9, -1.4, -0.9, -1.7, -1.2, 0.3, 0.5, -2.3, 0.1, 1.4, 0.8, -0.3, 0.4, -1.6, 0.6, 0.3],
    [0.4, 1.9, 0, 1.6, 0.9, -0.4, -0.6, -1.4, 0.9, -0.4, -1.6, -1.1, -0.1, -0.7, -1.5, 0.8, 1.3, -0.7, 0.7],
]


@ga.register_loss
class MaximumAndSquare(NamedTuple):
    """max_j(a_j·z + b_j) + 5 max(0, Σ z)² of three fields, for labels (b_1, …, b_4, a_1, …, a_4)."""

    convex = True

    def value(self, p, z):
        largest, total = -np.inf, z[0, 0] + z[0, 1] + z[0, 2]
        for j in range(4):
            first = 4 + 3 * j
            largest = max(largest, p[j] + p[first] * z[0, 0] + p[first + 1] * z[0, 1] + p[first + 2] * z[0, 2])
        return largest + 5 * max(0.0, total) ** 2


def test_minima_are_reached_past_pieces_with_a_curvature():
    """A curved piece that was examined far from z is below the loss, but not its minimum."""
    samples = np.array(SAMPLES)
    omega, p, V = samples[:, None, :3], samples[:, 3:], 1e4 * np.array([[2, 0.5, -0.5], [0.5, 1, 0.3], [-0.5, 0.3, 1]])
    out = ga.denoise(ga.LabelledDataset(np.ones((3, 1, 3)), p, MaximumAndSquare(), rank=3).loss, p, omega, V[None])
    for n in range(3):
        b, A = p[n, :4], p[n, 4:].reshape(4, 3)

        def objective(x, n=n):  # of z and a bound of the maximum
            off = x[:3] - omega[n, 0]
            return 0.5 * off @ np.linalg.solve(V, off) + x[3] + 5 * max(0.0, x[:3].sum()) ** 2

        bounds = {"type": "ineq", "fun": lambda x, A=A, b=b: x[3] - A @ x[:3] - b}
        start = np.append(out.z[n, 0], (A @ out.z[n, 0] + b).max())
        found = minimize(objective, start, constraints=bounds, method="SLSQP", options={"maxiter": 500})
        assert out.moreau[n] <= found.fun + 1e-4 * abs(found.fun)


@ga.register_loss
class FusedErrors(NamedTuple):
    """½‖z − p‖² + .03 |z₁ − z₂|."""

    convex = True

    def value(self, p, z):
        return 0.5 * ((z[0, 0] - p[0]) ** 2 + (z[0, 1] - p[1]) ** 2) + 0.03 * abs(z[0, 0] - z[0, 1])


def test_runs_converge_at_kinks_that_are_weak_compared_with_curvatures():
    data = ga.sample(ga.glm_model(FusedErrors(), ga.LinearLabels(0.5), rank=2, lam=0.1), d=100, alpha=2.0, seed=0)
    gamp = ga.run_gamp(data)
    assert gamp.converged
    assert gamp.is_minimum


def test_message_passing_reaches_the_minimum_of_distances():
    """The dual problem, max s·y − ‖X̃ᵀs‖²/2λ for ‖s_μ‖ ≤ 1, has the same value at s = g."""
    data = ga.sample(ga.glm_model(Distance(), ga.LinearLabels(0.5), rank=2, lam=0.5), 50, 2.0, 0)
    gamp = ga.run_gamp(data, max_iter=100)
    s, x = (gamp.state.D @ np.linalg.inv(gamp.state.V))[:, 0], data.tokens[:, 0] / np.sqrt(data.dim)
    assert np.linalg.norm(s, axis=1).max() <= 1 + 1e-5
    primal = np.linalg.norm(data.labels - x @ gamp.Q, axis=1).sum() + 0.25 * np.sum(gamp.Q**2)
    dual = np.sum(s * data.labels) - np.sum((x.T @ s) ** 2)
    assert abs(primal - dual) <= 1e-5 * primal


def test_descents_do_not_replace_message_passing_at_kinks_of_many_fields():
    """Descents are faster for smooth losses of more than two fields only."""
    data = ga.sample(ga.glm_model(ABSOLUTE, ga.LinearLabels(0.5), rank=3, lam=0.3), d=50, alpha=3.0, seed=0)
    for result in (ga.run_gamp(data), ga.train(data, n_starts=1)):
        assert result.converged
        assert result.n_iter > 100


def test_message_passing_reaches_the_minimum_of_absolute_errors():
    """The dual problem, max s·y − ‖X̃ᵀs‖²/2λ for |s| ≤ 1, has the same value at s = g = V⁻¹ D."""
    model = ga.glm_model(ABSOLUTE, NoisyFields(0.5), rank=2, lam=0.3)
    data = ga.sample(model, d=50, alpha=2.0, seed=0)
    gamp = ga.run_gamp(data, max_iter=2000)
    assert gamp.converged
    assert gamp.is_minimum
    assert gamp.fixed_point
    assert gamp.gradient_norm < 1e-6
    s, x = (gamp.state.D @ np.linalg.inv(gamp.state.V))[:, 0], data.tokens[:, 0] / np.sqrt(data.dim)
    assert np.abs(s).max() <= 1 + 1e-6
    primal = np.abs(data.labels - x @ gamp.Q).sum() + 0.15 * np.sum(gamp.Q**2)
    dual = np.sum(s * data.labels) - np.sum((x.T @ s) ** 2) / 0.6
    assert abs(primal - dual) <= 1e-6 * primal
    loo = ga.leave_one_out(data, gamp)
    assert loo.test_error > loo.in_training
    assert not loo.trusted  # nothing has checked the formula


def test_absolute_errors_of_two_columns_are_two_problems_of_one():
    """The sum of absolute errors of independent columns has the overlaps of each column, which panels average."""
    both = ga.glm_model(ABSOLUTE, ga.LinearLabels(0.5), rank=2, lam=0.3)
    of_both = ga.solve_state_evolution(both, 2.0, rtol=1e-3)
    of_one = ga.solve_state_evolution(ga.glm_model(ABSOLUTE, ga.LinearLabels(0.5), lam=0.3), 2.0)
    assert of_both.converged
    assert of_one.converged
    for name, error in of_both.overlaps_error.arrays().items():
        value, expected = of_both.overlaps.arrays()[name], getattr(of_one.overlaps, name)[0, 0]
        expected = expected * np.eye(2) if value.ndim == 3 else np.full(2, expected)
        assert (np.abs(value[0] - expected) <= error[0] + 1e-4).all(), name
    assert abs(of_both.train_loss - 2 * of_one.train_loss) <= of_both.train_loss_error
    assert abs(of_both.replicon - of_one.replicon) <= of_both.replicon_error + of_one.replicon_error
    # q_12 of both columns grows by α E[g_1'] E[g_2'] / (λ + V̂)² in a step
    expected = max(
        of_one.stability.growth["symmetric"], float(of_one.V_hat[0, 0, 0] ** 2 / 2 / of_one.overlaps.V[0, 0, 0] ** -2)
    )
    assert abs(of_both.stability.growth["symmetric"] - expected) < 0.02


def test_errors_hold_in_any_unit_of_labels():
    """Labels of order 1e3 of two columns: both columns are independent, and have the overlaps of one column."""
    one = ga.solve_state_evolution(ga.glm_model(ABSOLUTE, ga.LinearLabels(0.5), lam=0.1), 0.5)
    model = ga.glm_model(ABSOLUTE, NoisyFields(0.5, 1e3), rank=2, lam=1e-4)
    two = ga.solve_state_evolution(model, 0.5, stability=False)
    assert two.converged
    differences = two.overlaps.V[0] - 1e3 * one.overlaps.V.item() * np.eye(2)
    assert (np.abs(differences) <= 2 * (two.overlaps_error.V[0] + 1e3 * one.overlaps_error.V.item() * np.eye(2))).all()


def test_quantiles_of_two_columns_are_quantiles_of_each():
    """The loss is not even."""
    two, one = (
        ga.solve_state_evolution(ga.glm_model(Errors(0.9, 0.1), ga.LinearLabels(1.0), rank=r, lam=0.3), 2.0, rtol=rtol)
        for r, rtol in ((2, 1e-3), (1, 1e-4))
    )
    assert two.converged
    for name in ("q", "theta", "V"):
        value, error = (getattr(overlaps, name) for overlaps in (two.overlaps, two.overlaps_error))
        assert (np.abs(value - getattr(one.overlaps, name)) <= error + 1e-4)[0, range(2), range(2)].all(), name
    assert abs(two.train_loss - 2 * one.train_loss) <= two.train_loss_error + 1e-4
    assert two.overlaps.q[0, 0, 1] > 0.2  # all labels are above the fields on average, and there is no intercept


def test_perfect_recovery_of_two_columns_ends():
    model = ga.glm_model(ABSOLUTE, ga.LinearLabels(0.0), rank=2, lam=0.001)
    se = ga.solve_state_evolution(model, 3.0, rtol=5e-3, max_iter=40)
    assert se.status is ga.Status.INACCURATE
    assert "closer to perfect recovery" in se.message


def assert_equal_overlaps(first, second):
    """Assert that overlaps differ by at most 1.5 times the sum of their errors."""
    for name, error in first.overlaps_error.arrays().items():
        width = error + second.overlaps_error.arrays()[name]
        assert (np.abs(first.overlaps.arrays()[name] - second.overlaps.arrays()[name]) <= 1.5 * width).all(), name


class DrawnClasses(ga.ClassLabels):
    """Classes whose probabilities the theory does not know."""

    def outcomes(self, u):
        return None


def test_probabilities_of_classes_given_the_fields_agree_with_drawn_classes():
    """The loss does not depend on the sum of its fields, in which q is zero."""
    for loss, *rtols in ((ga.MultinomialLoss(), 3e-3, 1e-2), (ClassHinge(), 2e-2, 2e-2)):
        known, drawn = (
            ga.solve_state_evolution(ga.glm_model(loss, labels, rank=3, lam=0.5), 3.0, rtol=rtol, seed=2)
            for labels, rtol in zip((ga.ClassLabels(), DrawnClasses()), rtols, strict=True)
        )
        assert known.converged
        assert drawn.converged
        assert_equal_overlaps(known, drawn)
        assert abs(known.test_error - drawn.test_error) <= 1.5 * (known.test_error_error + drawn.test_error_error)
        assert abs(known.replicon - drawn.replicon) <= known.replicon_error + drawn.replicon_error
        assert np.abs(known.overlaps.q.sum(axis=1)).max() < 1e-3


class DrawnLargestField(LargestField):
    def outcomes(self, u):
        return None


def test_probabilities_of_steps_agree_with_drawn_classes():
    known, drawn = (
        ga.solve_state_evolution(ga.glm_model(ga.MultinomialLoss(), labels, rank=3, lam=0.5), 3.0, rtol=rtol, seed=1)
        for labels, rtol in ((LargestField(), 3e-3), (DrawnLargestField(), 1e-2))
    )
    assert known.converged
    assert drawn.converged
    assert_equal_overlaps(known, drawn)


class BothPositive:
    """1 if both fields u_1 and u_2 + u_1/2 are above −.3, and −1 otherwise."""

    even = False

    def n_noise(self, n_tokens, rank):
        return 0

    def outcomes(self, u):
        inside = (u[:, 0, :1] > -0.3) & (u[:, 0, 1:] + 0.5 * u[:, 0, :1] > -0.3)
        return np.array([[-1.0], [1.0]]), np.where(inside, [[0.0, 1.0]], [[1.0, 0.0]])

    def __call__(self, u, noise):
        return self.outcomes(u)[1] @ self.outcomes(u)[0]


def test_probabilities_between_planes_agree_with_averages_over_the_teacher():
    """Panels average over the teacher's fields themselves."""
    model = ga.glm_model(Hinge(), BothPositive(), rank=1, teacher_rank=2, lam=0.2)
    known, panels = (ga.solve_state_evolution(model, 2.0, rtol=1e-3, rule=rule) for rule in ("sobol", "panels"))
    assert known.converged
    assert panels.converged
    assert_equal_overlaps(known, panels)
    assert abs(known.test_error - panels.test_error) <= 1.5 * (known.test_error_error + panels.test_error_error)


class FlippedSigns(ga.LogisticLabels):
    """Signs of u − .5, a tenth of which are flipped."""

    def outcomes(self, u):
        return np.array([[-1.0], [1.0]]), np.where(u[:, 0, :1] > 0.5, [[0.1, 0.9]], [[0.9, 0.1]])

    def __call__(self, u, noise):
        return np.where(noise < ndtri(self.outcomes(u)[1][:, 1:]), 1.0, -1.0)


@cache
def solve_hinge_of_sum(labels, rtol=1e-4):
    model = ga.glm_model(HingeOfSum(), labels, rank=2, teacher_rank=1, lam=0.5)
    return ga.solve_state_evolution(model, 2.0, rtol=rtol)


@pytest.mark.parametrize("labels", [ga.LogisticLabels(0.0), ga.LogisticLabels(0.5), FlippedSigns()])
def test_a_sum_of_columns_is_one_column(labels):
    """The penalty of w = q_1 + q_2 is smallest for q_1 = q_2: half the penalty of w."""
    two = solve_hinge_of_sum(labels)
    one = ga.solve_state_evolution(ga.glm_model(Hinge(), labels, lam=0.25), 2.0)
    assert two.converged
    assert two.rule == "lattice"
    assert np.abs(4 * two.overlaps.q - one.overlaps.q).max() < 4e-4 * one.overlaps.q.item()
    assert np.abs(2 * two.overlaps.theta - one.overlaps.theta).max() < 4e-4 * one.overlaps.theta.item()
    assert abs(two.train_loss - one.train_loss) < 4e-4 * one.train_loss


@dataclass(frozen=True)
class BareSigns:
    """Signs of u, or 3 between .5 and .5 + width, without probabilities."""

    width: float = 0.0
    even = False

    def n_noise(self, n_tokens, rank):
        return 0

    def __call__(self, u, noise):
        return np.where((u > 0.5) & (u < 0.5 + self.width), 3.0, np.sign(u))[:, 0]


def test_labels_without_noise_have_known_probabilities():
    """Values of labels are found at random points, and need not be known."""
    known, found, several = map(solve_hinge_of_sum, (ga.LogisticLabels(0.0), BareSigns(), BareSigns(0.4)))
    assert found.converged
    assert several.converged
    assert (
        np.abs(found.overlaps.q - known.overlaps.q).max() <= found.overlaps_error.q.max() + known.overlaps_error.q.max()
    )


def test_rare_labels_are_seen():
    """The effect of a layer in which labels differ is proportional to its width; panels see the wider layer."""
    solutions = solve_hinge_of_sum(BareSigns()), *(solve_hinge_of_sum(BareSigns(width), 1e-3) for width in (0.01, 0.1))
    losses = [se.train_loss for se in solutions]
    panels = ga.solve_state_evolution(ga.glm_model(Hinge(), BareSigns(0.1), lam=0.25), 2.0)
    assert panels.rule == "panels"
    assert abs(losses[2] - panels.train_loss) < 1e-4
    assert 0.07 < (losses[0] - losses[1]) / (losses[0] - losses[2]) < 0.15


class NoSum(BareSigns):
    def outcomes(self, u):
        return np.array([[-1.0], [1.0]]), np.full((len(u), 2), 0.45)


def test_probabilities_have_sum_one():
    with pytest.raises(ValueError, match="outcomes of the labels: needs probabilities with sum 1"):
        ga.solve_state_evolution(ga.glm_model(HingeOfSum(), NoSum(), rank=2, teacher_rank=1, lam=0.5), 2.0)


@dataclass(frozen=True)
class SteppedNoise:
    """Labels u + 1.8 for a tenth of the samples, and u − .2 for others: small changes of the noise have no effect."""

    def n_noise(self, n_tokens, rank):
        return rank

    def __call__(self, u, noise):
        return u[:, 0] + 2.0 * (noise > 1.2815515655446004) - 0.2


def test_losses_of_differences_see_steps_of_the_noise():
    """The weights of squared errors depend on the variance of the noise only, which is .36."""
    models = [
        ga.glm_model(SquaredErrors(), labels, rank=2, lam=1.0) for labels in (SteppedNoise(), ga.LinearLabels(0.6))
    ]
    stepped, linear = (ga.solve_state_evolution(model, 2.0, rtol=1e-3, seed=1) for model in models)
    assert stepped.converged
    for name, error in stepped.overlaps_error.arrays().items():
        width = error + linear.overlaps_error.arrays()[name]
        assert (np.abs(stepped.overlaps.arrays()[name] - linear.overlaps.arrays()[name]) <= width + 1e-5).all(), name
    assert abs(stepped.test_error - linear.test_error) <= stepped.test_error_error + linear.test_error_error


def test_a_sum_of_tokens_is_one_token():
    """The loss of y − z₁ − z₂ varies in one direction of all fields and the noise of labels together."""
    sums = ga.sequence_model(
        lambda u, n: u[0, 0] + u[1, 0] + 0.5 * n[0], lambda z: z[0, 0] + z[1, 0], loss=lambda y, p: abs(y - p),
        n_tokens=2, rank=1, n_noise=1, lam=0.2, convex=True,
    )  # fmt: skip
    two = ga.solve_state_evolution(sums, 1.5, "random", rtol=1e-3)
    one = ga.solve_state_evolution(ga.glm_model(ABSOLUTE, ga.LinearLabels(0.5), sigma=2**0.5, lam=0.2), 1.5)
    assert two.converged
    for name in ("q", "theta", "V"):
        value, error = (getattr(overlaps, name) for overlaps in (two.overlaps, two.overlaps_error))
        assert (np.abs(value - getattr(one.overlaps, name) / 2) <= error + 1e-4).all(), name
    assert abs(two.train_loss - one.train_loss) <= two.train_loss_error + one.train_loss_error


class Signs:
    def n_noise(self, n_tokens, rank):
        return 0

    def __call__(self, u, noise):
        return np.sign(u[:, 0])


def test_signs_of_sums_of_tokens_are_signs_of_one_token():
    """The values of the targets are found, so that their probabilities given the student's fields are averaged."""
    sums = ga.sequence_model(
        lambda u, n: np.where(u[0, 0] + u[1, 0] > 0, 1.0, -1.0), lambda z: z[0, 0] + z[1, 0],
        loss=lambda y, p: np.maximum(0, 1 - y * p), n_tokens=2, rank=1, lam=0.2, convex=True,
    )  # fmt: skip
    two = ga.solve_state_evolution(sums, 1.5, "random", rtol=3e-3)
    one = ga.solve_state_evolution(ga.glm_model(Hinge(), Signs(), sigma=2**0.5, lam=0.2), 1.5)
    assert two.converged
    for name in ("q", "theta", "V"):
        value, error = (getattr(overlaps, name) for overlaps in (two.overlaps, two.overlaps_error))
        assert (np.abs(value - getattr(one.overlaps, name) / 2) <= error + 1e-4).all(), name


def test_a_field_that_the_loss_does_not_read_changes_nothing():
    """Its weights are zero, and the overlaps of the other are the overlaps of the model with one column."""

    def model(rank, teacher_rank):
        return ga.sequence_model(
            lambda u, n: u[0, 0] + 0.5 * n[0], lambda z: z[0, 0], n_tokens=1, rank=rank, teacher_rank=teacher_rank,
            n_noise=1, lam=0.2, convex=True,
        )  # fmt: skip

    one = ga.solve_state_evolution(model(1, 1), 1.5)
    for teacher_rank, init in ((1, "semantic"), (2, "random")):
        two = ga.solve_state_evolution(model(2, teacher_rank), 1.5, init, rtol=5e-3)
        assert two.converged
        q, error = two.overlaps.q[0], two.overlaps_error.q[0]
        assert abs(np.trace(q) - one.overlaps.q.item()) <= error.sum() + 1e-4
        assert abs(np.linalg.det(q)) < 1e-8
