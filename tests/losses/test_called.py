"""Losses that kernels call at addresses: the same bits as compiled in, and kernels compiled once for all of them."""

from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from docs.examples.huber_loss import PseudoHuber
from gamp_attention.data import passes
from gamp_attention.denoisers import output, prox
from gamp_attention.losses.indirect import IndirectLoss
from gamp_attention.losses.point import for_kernels, sample_derivatives
from gamp_attention.losses.registration import sample_loss


@ga.register_loss
class DoubleWell(NamedTuple):
    """With two minima, so that searches are made."""

    depth: float
    sizes: tuple[int, float] = (1, 2.0)

    even = True

    def value(self, p, z):
        s = z.sum()
        return self.depth * (s * s - self.sizes[1] * p[0]) ** 2 / self.sizes[0]

    def floor(self, p):
        return 0.0


@ga.register_loss
class DoubleWellOfArray(NamedTuple):
    """The same, with an array in place of a number, so that kernels have to know its class."""

    depth: np.ndarray

    even = True

    def value(self, p, z):
        s = z.sum()
        return self.depth[0] * (s * s - 2.0 * p[0]) ** 2 / 1

    def floor(self, p):
        return 0.0


def answers(student):
    """Of the denoiser, one pass over tokens, and the derivatives."""
    rng, n, L = np.random.default_rng(0), 40, 2
    loss, params = sample_loss(student, L, 1), rng.uniform(0.1, 2.0, (n, 1))
    omega, V = rng.standard_normal((n, L, 1)), np.full((L, 1, 1), 1.5)
    tokens, Q = rng.standard_normal((n, L, 10)), rng.standard_normal((10, 1))
    found = ga.denoise(loss, params, omega, V, jacobian=True)
    held = ga.denoise(loss, params, omega, V, found.z, hold=True)
    seen = passes.data_pass(passes.TokenMatrix(tokens, np.zeros((L, 10))), Q, np.zeros((n, L, 1)), V, loss, params)
    return [*found, *held, seen.force, seen.smooth, seen.losses, *sample_derivatives(loss, params, omega)]


def test_a_called_loss_has_the_bits_of_one_that_is_compiled_in():
    assert isinstance(for_kernels(sample_loss(DoubleWell(0.3), 2, 1)), IndirectLoss)
    compiled_in = sample_loss(DoubleWellOfArray(np.array([0.3])), 2, 1)
    assert for_kernels(compiled_in) is compiled_in
    called = answers(DoubleWell(0.3))
    assert np.isfinite(called[6]).any()  # gaps: several minima are found
    for a, b in zip(called, answers(DoubleWellOfArray(np.array([0.3]))), strict=True):
        assert np.array_equal(a, b)


def test_what_a_loss_holds_is_told_apart():
    """By value and by type: losses that Python calls equal are not."""
    tables = [
        for_kernels(sample_loss(student, L, 1)).table
        for student, L in ((DoubleWell(0.3), 2), (DoubleWell(0.4), 2), (DoubleWell(0.3), 3), (DoubleWell(1), 2),
                           (DoubleWell(1.0), 2), (DoubleWell(0.3, (2, 2.0)), 2), (DoubleWell(0.3, (1, 3.0)), 2))
    ]  # fmt: skip
    assert len(set(tables)) == len(tables)
    assert for_kernels(sample_loss(DoubleWell(0.3), 2, 1)).table == tables[0]
    few, many = (answers(DoubleWell(depth))[5] for depth in (0.3, 0.4))
    assert not np.array_equal(few, many)


def test_what_is_above_the_minimisation_is_compiled_once_for_all_losses():
    answers(DoubleWell(0.3))
    kernels = [
        output._denoise_block,
        output.denoise_sample,
        prox.minimise_globally,
        prox.next_start,
        passes._pass,
    ]
    before = [set(each.overloads) for each in kernels]
    answers(PseudoHuber(0.37))
    answers(ga.PhaseRetrievalLoss())
    assert [set(each.overloads) for each in kernels] == before


def test_an_error_of_a_called_loss_is_raised():
    @ga.register_loss
    class Refuses(NamedTuple):
        convex = True

        def value(self, p, z):
            if z[0, 0] > 1e3:
                raise ValueError("too far")
            return (z[0, 0] - p[0]) ** 2

    loss, params = sample_loss(Refuses(), 1, 1), np.zeros((3, 1))
    assert ga.denoise(loss, params, np.ones((3, 1, 1)), np.ones((1, 1, 1))).solved.all()
    with pytest.raises(ValueError, match="too far"):
        ga.denoise(loss, params, np.full((3, 1, 1), 1e4), np.ones((1, 1, 1)))
