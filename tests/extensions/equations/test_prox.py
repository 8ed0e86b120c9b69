"""The proximal map for arrays."""

from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga


def quantile(z, y, tau):
    return np.maximum(tau * (y - z), (tau - 1) * (y - z))


def double_well(z):
    return (z**2 - 1) ** 2


def test_closed_forms_and_broadcasting():
    rng = np.random.default_rng(0)
    omega, y, V = 2 * rng.standard_normal((40, 3)), rng.standard_normal((40, 1)), np.array([0.1, 0.7, 3.0])
    z, dz = ga.prox(quantile, omega, V, y, 0.9)
    np.testing.assert_allclose(z, omega + np.clip(y - omega, -0.1 * V, 0.9 * V), atol=1e-9)
    inside = (y - omega > -0.1 * V) & (y - omega < 0.9 * V)
    np.testing.assert_allclose(dz, ~inside, atol=1e-9)


def test_a_registered_loss_and_a_function_agree():
    omega, y = np.linspace(-3, 3, 50), np.repeat([-1.0, 1.0], 25)
    first = ga.prox(ga.LogisticLoss(), omega, 2.0, y)
    second = ga.prox(lambda z, y: np.logaddexp(0, -y * z), omega, 2.0, y, convex=True)
    np.testing.assert_allclose(first, second, atol=1e-10)
    ahead, behind = (ga.prox(ga.LogisticLoss(), omega + side * 1e-5, 2.0, y)[0] for side in (1, -1))
    np.testing.assert_allclose((ahead - behind) / 2e-5, first[1], atol=1e-6)


def test_a_function_is_tried_at_the_labels_of_the_call():
    """The logarithm of counts y is not finite at other labels."""
    y, omega = np.array([1.0, 2.0, 5.0]), np.array([0.3, -1.0, 2.0])
    z, _ = ga.prox(lambda z, y: np.exp(z) - y * z + y * np.log(y) - y, omega, 0.5, y)
    np.testing.assert_allclose((z - omega) / 0.5, y - np.exp(z), atol=1e-8)


@ga.register_loss
class Absolute(NamedTuple):
    convex = True

    def value(self, p, z):
        return abs(p[0] - z[0, 0])


@ga.register_loss
class Quadratic(NamedTuple):
    convex = True

    def value(self, p, z):
        return 0.5 * (p[0] - z[0, 0]) ** 2


def test_losses_without_fields_are_distinguished_by_their_classes():
    """Instances of both classes are equal as tuples."""
    of_square, of_absolute = (ga.prox(loss, 3.0, 1.0, 0.0) for loss in (Quadratic(), Absolute()))
    np.testing.assert_allclose(of_square, (1.5, 0.5), atol=1e-6)
    np.testing.assert_allclose(of_absolute, (2.0, 1.0), atol=1e-6)


def test_the_lowest_of_two_minima_is_found():
    omega = np.linspace(-2, 2, 41)
    z, _ = ga.prox(double_well, omega, 1.0)
    grid = np.linspace(-3, 3, 60001)
    lowest = np.array([np.min((grid - w) ** 2 / 2 + double_well(grid)) for w in omega])
    np.testing.assert_allclose((z - omega) ** 2 / 2 + double_well(z), lowest, atol=1e-7)


@pytest.mark.parametrize("V", [1e3, 1e6])
def test_minima_far_from_the_field_are_found(V):
    """A ramp is flat beyond the margin: for large V its minimum at z = y is lower than at ω."""
    omega = np.linspace(-9.05, 0.95, 51)
    z, _ = ga.prox(lambda z: np.minimum(1.0, np.maximum(0.0, 1.0 - z)), omega, V)
    assert np.abs(z - 1.0).max() < 1e-6


@pytest.mark.parametrize(("arguments", "words"), [
    ((quantile, [0.0], -1.0, 0.0, 0.5), "V: needs numbers > 0"), ((quantile, [np.nan], 1.0, 0.0, 0.5), "omega"),
    ((quantile, [0.0, 1.0], [1.0, 1.0, 1.0], 0.0, 0.5), "can be broadcast"), ((3, [0.0], 1.0), "loss"),
    ((lambda z: np.ones(2), [0.0], 1.0), "to return one number"),
])  # fmt: skip
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises((TypeError, ValueError), match=words):
        ga.prox(*arguments)
