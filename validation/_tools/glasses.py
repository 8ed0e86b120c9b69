"""Models with known broken replica symmetry: a magnet, a perceptron and phase retrieval, for tests and validation."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

import gamp_attention as ga
from gamp_attention._tools.quadrature import legendre_panels
from gamp_attention.extensions.rsb.one_field import Innermost, average_levels
from gamp_attention.extensions.rsb.solve import (
    BrokenProblem,
    LevelPacking,
    first_starts,
    follow_levels,
    refine_levels,
    solve_steps,
    split_start,
)
from gamp_attention.extensions.rsb.weights import BrokenWeights, average_labels

ONE = np.ones(1)


def panels(ends, width, n):
    pieces = [np.linspace(a, b, int(np.ceil((b - a) / width)) + 1)[1:] for a, b in pairwise(ends)]
    return (values.ravel() for values in legendre_panels(np.concatenate([[ends[0]], *pieces]), n))


def magnet_energy(q, parisi, spacing=0.5):
    """Return minus the energy per spin of the Sherrington-Kirkpatrick model: the recursion with |ω| innermost."""
    q = np.append(q, 1.0)
    x, weight = panels([-9.0, 0.0, 9.0], spacing * np.sqrt(q[-1] - q[-2]), 8)
    innermost = Innermost(x, weight, np.abs(x), np.sign(x), np.zeros(len(x)))
    averages = average_levels(innermost, 0.0, np.append(q[0], np.diff(q)), np.asarray(parisi), spacing, 9.0)
    return averages.phi[0] - 0.25 * float(np.sum(parisi * np.diff(q**2)))


class SphericalWeights(BrokenWeights):
    """Weights with ‖Q‖² = d in place of a ridge: λ is the multiplier for which q_k = 1."""

    def with_multiplier(self, hats, parisi):
        """Return weights with a ridge of this λ."""
        gaps = parisi[:, None] * np.diff(hats.q, axis=0) @ self.law.gamma.T
        lowest = float(np.max(gaps.sum(axis=0) - self.law.gamma @ hats.V))

        def excess(log_shift):
            chosen = BrokenWeights(self.law, lowest + np.exp(log_shift))
            return float(np.log(np.mean(chosen.step(hats, parisi).q[-1])))

        size = float(np.abs(hats.V).max() + gaps.sum())
        root = brentq(excess, np.log(1e-8 * size), np.log(2.0**60 * size), xtol=1e-14, rtol=1e-14)
        return BrokenWeights(self.law, lowest + float(np.exp(root)))

    def step(self, hats, parisi):
        return self.with_multiplier(hats, parisi).step(hats, parisi)

    def free_energy(self, levels, hats, parisi):
        weights = self.with_multiplier(hats, parisi)
        return weights.free_energy(levels, hats, parisi) - 0.5 * weights.lam

    def parisi_slopes(self, levels, hats, parisi):
        return self.with_multiplier(hats, parisi).parisi_slopes(levels, hats, parisi)

    def replicons(self, hats, parisi):
        return self.with_multiplier(hats, parisi).replicons(hats, parisi)


class Perceptron(BrokenProblem):
    """Spherical perceptron that counts errors of random labels: ℓ(z) is 1 for z < 0, otherwise 0."""

    weights = SphericalWeights(ga.coordinate_law(1.0, [0.0], n_tokens=1), 0.0)
    is_convex = False

    def __init__(self, alpha):
        self.alpha = alpha

    def hats(self, levels, parisi, resolution, replicons=True):
        V, sd = levels.V[0], np.sqrt(levels.q[-1, 0])
        variances = np.array([levels.q[0, 0], *levels.gaps[:, 0]])
        ends = [-9 * sd, *([-np.sqrt(2 * V)] if 81 * sd**2 > 2 * V else []), 0.0, 9 * sd]
        x, weight = panels(ends, np.sqrt(min(variances[-1], V)), 6 + resolution)
        inside = (x < 0) & (x > -np.sqrt(2 * V))  # the proximal map moves these fields to zero
        phi = -np.where(x >= 0, 0.0, np.where(inside, x**2 / (2 * V), 1.0))
        innermost = Innermost(x, weight, phi, np.where(inside, -x / V, 0.0), np.where(inside, 1 / V, 0.0))
        averages = average_levels(innermost, 0.0, variances, parisi, 0.5 * 0.8**resolution, 8.0)
        return average_labels([averages], np.full(1, self.alpha), np.zeros((1, 1)), ONE, levels, parisi, 1.0)


def solve_perceptron(alpha, k, parisi=None):
    """Return the solution with k steps at the ground state, or with one step at a fixed Parisi parameter."""
    problem, packing = Perceptron(alpha), LevelPacking(ONE, 0, False, False)
    x = follow_levels(problem, packing, np.log([0.5, 1.0]))
    solution = refine_levels(problem, packing, x, 1e-6)
    starts = first_starts(solution.levels, None, problem.search)
    for step in range(1, k + 1):
        solution = solve_steps(problem, LevelPacking(ONE, step, False, False), starts, 1e-4)
        starts = [split_start(solution.levels, solution.parisi)]
    if parisi is not None:  # follow the solution to other Parisi parameters; y (q_1 − q_0) is nearly constant
        first = solution.parisi[0]
        for y in np.geomspace(first, parisi, 2 + int(2 * abs(np.log(parisi / first))))[1:]:
            gap = solution.levels.gaps[0] * min(solution.parisi[0] / y, 1.0)
            levels = solution.levels._replace(q=np.stack([solution.levels.q[1] - gap, solution.levels.q[1]]))
            packing = LevelPacking(ONE, 1, False, False, np.array([y]))
            solution = solve_steps(problem, packing, [(levels, packing.parisi)], 1e-4)
    return solution


def perceptron_capacity(k, alpha, tol=1e-7):
    """Return the α at which the smallest number of errors per weight is 1 with k steps, from a guess.

    Newton steps: F is stationary in everything but α, so that its slope is −E φ_0.
    """
    for _ in range(8):
        solution = solve_perceptron(alpha, k)
        step = (1 - solution.energy) * alpha / -solution.hats.phi[0]
        alpha += step
        if abs(step) < tol:
            return alpha, abs(step) + solution.energy_error * alpha / -solution.hats.phi[0]
    raise RuntimeError("the number of errors per weight did not reach 1")


@ga.register_loss
class AmplitudeLoss(NamedTuple):
    """ℓ(z) = (|z| − p)²."""

    even = True

    def value(self, p, z):
        """Return the loss."""
        return (abs(z[0, 0]) - p[0]) ** 2

    def derivatives(self, p, z, grad, hess):
        """Return the loss, and fill its derivatives."""
        excess = abs(z[0, 0]) - p[0]
        grad[0], hess[0, 0] = 2 * excess * (1.0 if z[0, 0] >= 0 else -1.0), 2.0
        return excess**2

    def floor(self, p):
        """Return a lower bound of the loss."""
        return 0.0


class Amplitudes:
    """Labels |u| with noise."""

    even = False

    def __init__(self, noise):
        self.noise = noise

    def n_noise(self, n_tokens, rank):
        return 1 if self.noise else 0

    def __call__(self, u, noise):
        return np.abs(u[:, 0]) + self.noise * noise if self.noise else np.abs(u[:, 0])


def amplitude_model(noise=0.0, lam=1e-7):
    return ga.glm_model(AmplitudeLoss(), Amplitudes(noise), lam=lam)
