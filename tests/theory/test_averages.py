"""Averages of functions of targets and fields at a solution of state evolution."""

from dataclasses import replace
from math import erfc

import numpy as np
import pytest

import gamp_attention as ga
from validation.speed.several_fields import Errors


def test_losses_and_moments_of_labels():
    """Logistic losses of new samples and of training samples, second moments, and the accuracy of trained weights."""
    model = ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(), lam=0.1)
    se = ga.solve_state_evolution(model, 2.0, rtol=1e-5)

    def loss(fields, y):
        return np.logaddexp(0, -y * fields)

    def values(target, u, omega, z):
        y, u, omega, z = target[:, 0], u[:, 0, 0], omega[:, 0, 0], z[:, 0, 0]
        return np.array([loss(omega, y), loss(z, y), omega**2, omega * u, y * omega > 0, y * z > 0]).T

    mean, error = se.average(values)
    q, theta = se.overlaps.q.item(), se.overlaps.theta.item()
    train = (se.train_loss - 0.05 * q) / 2.0  # the ridge is λq/2 a weight, and there are two samples a weight
    for found, width, exact in zip(mean, error, (se.test_error, train, q, theta), strict=False):
        assert abs(found - exact) <= width + se.test_error_error < 0.01
    sampled = []
    for seed in range(8):
        data = ga.sample(model, 400, 2.0, seed)
        run = ga.run_gamp(data)
        sampled.append(data.average(values, run.Q, ga.leave_one_out(data, run, refits=0).fields)[0])
    assert (np.abs(mean - np.mean(sampled, axis=0)) < 4 * np.std(sampled, axis=0, ddof=1) / np.sqrt(8) + 0.01).all()
    assert mean[5] > mean[4] + 0.1


def test_samples_without_a_teacher_or_of_another_law():
    """The standard error follows from the variance over the samples; u is known with a teacher, without positions."""
    data = ga.sample(ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(), lam=0.1), 50, 4.0, 1)
    Q = np.linspace(-1, 1, 50)[:, None]
    mean, error = data.average(lambda y, u, omega, z: np.hstack([omega[:, 0] - z[:, 0], z[:, 0]]), Q)
    z = data.tokens[:, 0] @ Q[:, 0] / np.sqrt(50)
    np.testing.assert_allclose([mean, error], [[0, z.mean()], [0, z.std(ddof=1) / np.sqrt(200)]], rtol=1e-12)
    plain = ga.LabelledDataset(data.tokens[:, 0], data.labels, ga.LogisticLoss(), lam=0.1)
    assert np.isnan(plain.average(lambda y, u, omega, z: u[:, 0], Q)[0]).all()
    layer = ga.sample(ga.paper_model(), 20, 1.0, 0)
    u = layer.average(lambda y, u, omega, z: u[:, :, 0], np.ones((20, 1)))[0]
    np.testing.assert_allclose(u, (layer.tokens @ layer.Q_star).mean(axis=0)[:, 0] / np.sqrt(20), rtol=1e-12)
    pairs = data.tokens.reshape(100, 2, 50)
    found = ga.Dataset(pairs, pairs, lam=0.1).average(lambda y, u, omega, z: y[:, 0, 0], Q)[0]
    assert found == pytest.approx(pairs[:, 0, 0].mean())
    with pytest.raises(ValueError, match="omega: needs shape"):
        data.average(lambda y, u, omega, z: z, Q, z)


def test_attention_and_mixtures():
    se = ga.solve_state_evolution(ga.paper_model(0.3), 1.5, "semantic", rtol=1e-3, stability=False)

    def values(target, u, omega, z):
        assert target.shape == (len(u), 2, 2)
        return np.hstack([target.sum(axis=2), omega[:, :, 0], u[:, :, 0] * omega[:, :, 0]])

    mean, error = se.average(values, n_points=1024)
    exact = [1, 1, *se.overlaps.m[:, 0], *se.overlaps.theta[:, 0, 0]]
    assert (np.abs(mean - exact) <= error + 1e-9).all()
    shifted = ga.sequence_model(
        lambda u, noise, c: u[0, 0] + 1.0 * c, lambda z: z[0, 0], n_tokens=1, rank=1, lam=0.1, classes=[0.3, 0.7]
    )
    se = ga.solve_state_evolution(shifted, 2.0, rtol=1e-3, stability=False)
    mean, error = se.average(lambda y, u, omega, z: np.array([y[:, 0], z[:, 0, 0] ** 2]).T, n_points=1024)
    assert abs(mean[0] - 0.7) <= error[0] + 1e-9
    assert error[1] < 0.05 * mean[1]


def test_a_mixture_with_more_patterns_of_classes_than_sources():
    model = ga.mixture_model(np.full((3, 3), 1 / 9), [[0.5, 0.0, -0.5], [0.5, 0.0, -0.5]])
    assert len(model.components) > model.n_sources
    se = ga.solve_state_evolution(ga.paper_model(), 2.0, rtol=0.1, stability=False)
    one = np.full((model.n_sources, 1, 1), 0.1)
    point, exact = ga.Overlaps(one, one[:, 0], 0 * one, one), ga.Overlaps(0 * one, 0 * one[:, 0], 0 * one, 0 * one)
    se = replace(se, state=replace(se.state, model=model), overlaps=point, overlaps_error=exact)
    assert se.average(lambda target, u, omega, z: np.ones(len(u)), n_points=512)[0] == pytest.approx(1)


def test_wrong_functions_are_named():
    se = ga.solve_state_evolution(ga.glm_model(ga.SquaredLoss(), lam=0.1), 2.0, rtol=1e-2)
    with pytest.raises(ValueError, match="f: needs to return real numbers, samples in front"):
        se.average(lambda target, u, omega, z: 1.0)
    with pytest.raises(ValueError, match="f: needs to return real numbers, samples in front"):
        ga.sample(ga.paper_model(), 20, 1.0, 0).average(lambda target, u, omega, z: 1.0, np.ones((20, 1)))
    with pytest.raises(ValueError, match=r"f: needs to return real numbers.*complex128"):
        se.average(lambda target, u, omega, z: 1j * omega[:, 0, 0])
    with pytest.raises(TypeError, match="f: needs a function"):
        se.average(3)


def test_the_error_of_a_probability_includes_events_that_no_point_hits():
    se = ga.solve_state_evolution(ga.glm_model(ga.SquaredLoss(), lam=0.1), 2.0, rtol=1e-2)
    scale = np.sqrt(se.overlaps.q.item())
    for size in (3.5, 4.0, 4.5):
        mean, error = se.average(lambda y, u, omega, z, size=size: np.abs(omega[:, 0, 0]) > size * scale, n_points=512)
        assert abs(mean - erfc(size / np.sqrt(2))) <= error < 0.01


class NoisyLabels:
    """Linear labels whose noise the theory does not know to add to the fields."""

    even = False

    def n_noise(self, n_tokens, rank):
        return 1

    def __call__(self, u, noise):
        return u[:, 0] + 0.5 * noise


def test_noise_of_linear_labels_is_a_part_of_the_teacher_that_the_student_does_not_see():
    """An average over this noise agrees, with kinks too; averages of u are over the fields without noise."""
    for loss in (ga.SquaredLoss(), Errors(1.0, 1.0)):
        models = [ga.glm_model(loss, labels, lam=0.3) for labels in (ga.LinearLabels(0.5), NoisyLabels())]
        for alpha in (0.5, 3.0):
            one, other = (ga.solve_state_evolution(model, alpha, "semantic", rtol=1e-5) for model in models)
            for name in ("q", "theta", "V"):
                values = [getattr(se.overlaps, name).item() for se in (one, other)]
                assert values[0] == pytest.approx(values[1], rel=3e-5), name
            assert one.test_error == pytest.approx(other.test_error, rel=3e-5)
            assert one.train_loss == pytest.approx(other.train_loss, rel=3e-5)
            leading = [np.abs(se.stability.eigenvalues["symmetric"][0]) for se in (one, other)]
            assert leading[0] == pytest.approx(leading[1], rel=1e-2)
            mean, error = one.average(lambda y, u, omega, z: np.array([u[:, 0, 0] ** 2, y[:, 0] ** 2]).T, n_points=512)
            assert (np.abs(mean - [1.0, 1.25]) <= error + 1e-3).all()


def test_labels_derived_from_linear_labels_keep_their_noise():
    class Cubes(ga.LinearLabels):
        def __call__(self, u, noise):
            return u[:, 0] ** 3 + self.noise * noise

    se = ga.solve_state_evolution(ga.glm_model(ga.SquaredLoss(), Cubes(0.5), lam=0.3), 2.0)
    # ridge regression sees the linear part 3u of u³, and the rest, of variance 15 − 9, as noise
    linear = ga.solve_state_evolution(ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(np.sqrt(6.25) / 3), lam=0.3), 2.0)
    assert se.test_error == pytest.approx(9 * linear.test_error, rel=1e-3)


def test_averages_of_a_lost_branch_name_its_status():
    lost = ga.solve_state_evolution(ga.paper_model(), 0.1, rtol=1e-2, stability=False)
    with pytest.raises(ValueError, match="average: needs a solution with errors, got status 'lost'"):
        lost.average(lambda target, u, omega, z: z[:, 0, 0])
