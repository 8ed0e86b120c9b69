"""Indirect calls of losses: identical to the last bit with losses that are compiled in, and compiled only once."""

from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from docs.examples.huber_loss import PseudoHuber
from docs.examples.sigmoid_attention import SigmoidAttention
from gamp_attention.problem import passes
from gamp_attention.problem.denoisers import output, prox
from gamp_attention.problem.losses.point import PointLoss, sample_derivatives, sample_loss
from gamp_attention.problem.losses.protocol import IndirectLoss, for_kernels


@ga.register_loss
class DoubleWell(NamedTuple):
    """Loss with two minima, so that the denoiser searches for the global minimum."""

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
    """Double well with an array instead of a number, so that the loss is compiled into its callers."""

    depth: np.ndarray

    even = True

    def value(self, p, z):
        s = z.sum()
        return self.depth[0] * (s * s - 2.0 * p[0]) ** 2 / 1

    def floor(self, p):
        return 0.0


def compute_results(student, n_params=1):
    """Return results of the denoiser, of one pass over tokens, and of the derivatives."""
    rng, n, L = np.random.default_rng(0), 40, 2
    loss, params = sample_loss(student, L, 1), rng.uniform(0.1, 2.0, (n, n_params))
    omega, V = rng.standard_normal((n, L, 1)), np.full((L, 1, 1), 1.5)
    tokens, Q = rng.standard_normal((n, L, 10)), rng.standard_normal((10, 1))
    best = ga.denoise(loss, params, omega, V, jacobian=True)
    local = ga.denoise(loss, params, omega, V, best.z, hold=True)
    result = passes.data_pass(passes.TokenMatrix(tokens, np.zeros((L, 10))), Q, np.zeros((n, L, 1)), V, loss, params)
    return [*best, *local, result.force, result.smooth, result.losses, *sample_derivatives(loss, params, omega)]


def test_indirect_and_compiled_in_losses_are_identical_to_the_last_bit():
    assert isinstance(for_kernels(sample_loss(DoubleWell(0.3), 2, 1)), IndirectLoss)
    compiled_in = sample_loss(DoubleWellOfArray(np.array([0.3])), 2, 1)
    assert for_kernels(compiled_in) is compiled_in
    indirect = compute_results(DoubleWell(0.3))
    assert np.isfinite(indirect[6]).any()  # gaps: several minima are found
    for a, b in zip(indirect, compute_results(DoubleWellOfArray(np.array([0.3]))), strict=True):
        assert np.array_equal(a, b)


def test_losses_with_different_numbers_have_different_tables():
    """Numbers are compared by value and by type: 1 and 1.0 are different."""
    tables = [
        for_kernels(sample_loss(student, L, 1)).table
        for student, L in ((DoubleWell(0.3), 2), (DoubleWell(0.4), 2), (DoubleWell(0.3), 3), (DoubleWell(1), 2),
                           (DoubleWell(1.0), 2), (DoubleWell(0.3, (2, 2.0)), 2), (DoubleWell(0.3, (1, 3.0)), 2))
    ]  # fmt: skip
    assert len(set(tables)) == len(tables)
    assert for_kernels(sample_loss(DoubleWell(0.3), 2, 1)).table == tables[0]
    shallow, deep = (compute_results(DoubleWell(depth))[5] for depth in (0.3, 0.4))
    assert not np.array_equal(shallow, deep)


def test_callers_of_the_minimization_are_compiled_once_for_all_losses():
    compute_results(DoubleWell(0.3))
    kernels = [output._denoise_block, output.denoise_sample.kernel, prox.minimize_globally.kernel, passes._pass]
    before = [set(kernel.overloads) for kernel in kernels]
    compute_results(PseudoHuber(0.37))
    compute_results(ga.PhaseRetrievalLoss())
    compute_results(SigmoidAttention(), 8)
    assert [set(kernel.overloads) for kernel in kernels] == before


def test_an_exception_in_an_indirect_loss_is_raised():
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


def test_losses_of_single_fields_equal_compiled_losses():
    """Many samples are computed in numpy, by formulas that are compiled for one sample elsewhere."""
    rng = np.random.default_rng(5)
    z, p = 3 * rng.standard_normal((50, 1, 1)), np.sign(rng.standard_normal((50, 1)))
    for loss in (ga.SquaredLoss(), ga.LogisticLoss()):
        value, slope, curvature = (part.ravel() for part in sample_derivatives(PointLoss(loss, 1, 1), p, z))
        expected = [loss.value(label, field) for label, field in zip(p, z, strict=True)]
        assert np.allclose(value, expected, rtol=1e-14)
        grad, hess = np.empty(1), np.empty((1, 1))
        for mu in range(50):
            assert np.isclose(loss.derivatives(p[mu], z[mu], grad, hess), value[mu], rtol=1e-14)
            assert np.allclose([grad[0], hess[0, 0]], [slope[mu], curvature[mu]], rtol=1e-13)
