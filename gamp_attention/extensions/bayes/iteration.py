"""Fixed points of Bayes-optimal state evolution at a given α, by iteration from little or complete information.

An iteration applies q̂ = αE[g gᵀ] and V = V(q̂), see `bayes.equations`. If averages are over random points, it begins
with few samples and ends with all. A run uses the same samples, and the same points of their posteriors as long as V
changes little, so that the map is smooth near the end, and independent runs give the errors. Extrapolated steps
(`Iteration`) reach the fixed point to an error far below the errors from the samples. V = 0 is approached
exponentially; it is reached if V decreases below e^(−`full`) ρ.

Near q = 0 of columns whose sign is free, an iteration multiplies q by a constant factor, and shows slowly whether the
columns vanish if the factor is near one. This is therefore decided by the factor, computed with all samples
(`Equations.growth`): below one, the columns are zero. It is computed for all columns before a run without information,
and after the iterations with few samples for columns whose overlap is below `small`, in units of the prior.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gamp_attention._tools.numerics import anderson_step, compose, psd_root
from gamp_attention.extensions.bayes.equations import Equations


@dataclass(frozen=True)
class IterationSettings:
    """Settings of iterations at a given α, with x = −log V in units of the prior."""

    rough: float = 3e-3  # error of x at which iterations with few samples end
    fine: float = 1e-7  # error of x at which iterations with all samples end
    max_rough: int = 150  # maximum number of iterations with few samples
    max_fine: int = 300  # maximum number of iterations with all samples
    max_stalled: int = 12  # number of iterations without a smaller error after which an accepted error is final
    accepted: float = 1e-3  # error of x up to which iterations count as converged
    uninformed: float = 0.02  # overlap of the start, in units of the prior
    small: float = 0.05  # overlap in units of the prior, below which the growth of a column is computed
    full: float = 23.0  # x at which nothing is unknown: V is 1e-10 of the prior
    nearly_full: float = 7.0  # x from which a steady change of x is extrapolated, and the informed start with noise
    steady: float = 0.2  # relative difference of two changes of x up to which the change is steady
    memory: int = 3  # number of earlier iterations from which the next x is extrapolated


OF_RANDOM_POINTS = IterationSettings()
OF_INTEGRALS = IterationSettings(fine=1e-12, full=36.0)


class Solution(NamedTuple):
    """A fixed point for one set of samples or one quadrature rule."""

    q: np.ndarray  # (t, t)
    V: np.ndarray  # (L, t, t)
    known: np.ndarray  # (L, t, t) ρ − V
    free_entropy: float
    residual: float = 0.0  # change of x in the last iteration
    error: float = 0.0  # estimated distance of x from the fixed point
    n_iter: int = 0
    full: bool = False  # whether nothing is unknown
    converged: bool = True  # whether the estimated error is small


def solve_fixed_point(few: Equations, equations: Equations, alpha: float, init: str) -> Solution:
    """Return the fixed point that iterations from a start "uninformed" or "informed" reach.

    Parameters
    ----------
    few, equations : equations with few and with all samples; the same object if averages are integrals.
    alpha : sample complexity.
    init : start.
    """
    rho, prior = equations.rho, equations.input(np.zeros_like(equations.rho))
    settings = OF_INTEGRALS if equations.exact else OF_RANDOM_POINTS
    zero = np.zeros(rho.shape[1], dtype=bool)
    if not prior.V.any():
        return _known_exactly(equations, 0.0)
    known = prior.known
    if equations.has_zero_fixed_point():
        known = settings.uninformed * rho
        if init == "uninformed" and alpha * equations.growth() < 1:
            return Solution(prior.q, prior.V, prior.known, alpha * equations.output(prior.V, prior.known).log_z)
    first = last = Iteration(few, alpha, zero, settings)
    x = first.information(rho - known, known)
    if init == "informed":  # with noise, targets say little about fields that are known far better than the noise
        x = (settings.full if few.noiseless else settings.nearly_full) * np.eye(len(zero)) + np.zeros_like(rho)
    if few is not equations:
        x = first.run(x, settings.rough, settings.max_rough)
        if init == "uninformed":
            known = first.variances(x)[1]
            zero = _vanishing_columns(equations, alpha, known, settings.small)
            known = known * np.outer(~zero, ~zero)
            x = first.information(rho - known, known) if zero.any() else x
        last = Iteration(equations, alpha, zero, settings)
    n_rough = first.n_iter
    x = last.run(x, settings.fine, settings.max_fine)
    V, known = last.variances(x)
    output = equations.output(V, known)
    averages, values = equations.input(alpha * output.hats), np.linalg.eigvalsh(x)
    # where V decreases to zero, all V keep their ratios
    low = settings.full - settings.nearly_full
    if equations.noiseless and values.max() >= settings.full and values.min() >= low:
        diverges = alpha * float(np.abs(output.hats @ V).max()) > settings.accepted
        solution = _known_exactly(equations, np.inf if diverges else equations.free_entropy(alpha, V, output))
    else:
        kept = np.outer(~zero, ~zero)
        entropy = equations.free_entropy(alpha, V, output)
        if equations.exact:  # one more iteration, for V below e^(−`full`)
            V, known = averages.V, averages.known
        solution = Solution(averages.q * kept, V, known, entropy)
    return solution._replace(
        residual=last.residual, error=last.error, converged=last.error < settings.accepted, n_iter=n_rough + last.n_iter
    )


def _known_exactly(equations: Equations, free_entropy: float) -> Solution:
    """Return the fixed point at which the weights are known exactly."""
    rho = equations.rho
    return Solution(equations.prior_second_moment, np.zeros_like(rho), rho, free_entropy, full=True)


def _vanishing_columns(equations: Equations, alpha: float, known: np.ndarray, limit: float) -> np.ndarray:
    """Return the columns (t,) whose overlap vanishes, for covariances `known` (L, t, t) of ω.

    Overlaps below `limit`, in units of the prior, are decided, unless all are below it.
    """
    fractions = np.diagonal(known, axis1=1, axis2=2) / np.diagonal(equations.rho, axis1=1, axis2=2)
    small = (fractions.max(axis=0) < limit) & equations.signless_columns()
    if not small.any() or small.all():
        return np.zeros_like(small)
    growth = equations.growth(known * np.outer(~small, ~small), np.nonzero(small)[0])
    return small & (alpha * growth < 1)


class Iteration:
    """Iteration of the information x = −log(ρ^(−½) V ρ^(−½)) (L, t, t), with extrapolation.

    A change of x is a relative change of V if V is small, and a change of ρ − V in units of ρ if that is small.

    Attributes
    ----------
    residual, error : change of x in the last iteration, and its estimated distance from the fixed point.
    n_iter : number of iterations.
    """

    def __init__(self, equations: Equations, alpha: float, zero: np.ndarray, settings: IterationSettings) -> None:
        self._equations, self._alpha, self._settings = equations, alpha, settings
        self._kept = np.outer(~zero, ~zero)  # pairs of columns that may have an overlap
        self._root = psd_root(equations.rho)
        self._inverse = np.linalg.inv(self._root)
        self.residual, self.error, self.n_iter = np.inf, np.inf, 0

    def variances(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return V and ρ − V (L, t, t), each without cancellation."""
        values, vectors = np.linalg.eigh(x)
        whitened = (compose(part, vectors) for part in (np.exp(-values), -np.expm1(-values)))
        V, known = (self._root @ part @ self._root for part in whitened)
        return V, known

    def information(self, V: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return x (L, t, t), at most `full`, for V and ρ − V."""
        V, known = (self._inverse @ part @ self._inverse for part in (V, known))
        values, vectors = np.linalg.eigh(known)
        unknown = np.einsum("lab,lac,lcb->lb", vectors, V, vectors)
        small, large = np.minimum(values, 0.5), np.maximum(unknown, np.exp(-self._settings.full))
        x = np.where(values < 0.5, -np.log1p(-small), -np.log(large))
        return compose(x, vectors)

    def run(self, x: np.ndarray, tol: float, limit: int) -> np.ndarray:
        """Return x after at most `limit` iterations, which end when its estimated error is below `tol`."""
        settings, path, best, stalled = self._settings, list[tuple[np.ndarray, np.ndarray]](), np.inf, 0
        for self.n_iter in range(1, limit + 1):
            V, known = self.variances(x)
            averages = self._equations.input(self._alpha * self._equations.output(V, known).hats)
            kept = np.where(self._kept, averages.V, self._equations.rho), averages.known * self._kept
            path = [*path[-settings.memory :], (x, self.information(*kept) - x)]
            points, moves = zip(*path, strict=True)
            step = anderson_step(points, moves, rcond=1e-8)
            self.residual = float(np.abs(path[-1][1]).max())
            self.error = max(self.residual, float(np.abs(step).max()) if len(path) > 1 else self.residual / tol)
            stalled = 0 if self.error < 0.5 * best else stalled + 1
            best = min(best, self.error)
            if self.error < tol or (best < settings.accepted and stalled > settings.max_stalled):
                break
            x = self._limit_step(path, step)
        return x

    def _limit_step(self, path: list[tuple[np.ndarray, np.ndarray]], step: np.ndarray) -> np.ndarray:
        """Return the next x, from an extrapolated step whose length and direction are limited.

        A step against the change f of the iteration would lead to an unstable fixed point. Longer steps than f could
        skip a stable fixed point. If f stays the same while V becomes small, V converges to zero, or grows,
        exponentially.
        """
        (x, f), settings = path[-1], self._settings
        step = step if np.sum(step * f) > 0 else f
        values, vectors = np.linalg.eigh(x)
        change, before, wanted = (
            np.einsum("lab,lac,lcb->lb", vectors, part, vectors) for part in (f, path[max(len(path) - 2, 0)][1], step)
        )
        longest = np.abs(change) + np.maximum(0.5 * np.clip(values, 1e-3, 1.0), 0.125 * values)
        is_steady = np.abs(change - before) < settings.steady * np.abs(change)
        steady = (values > settings.nearly_full) & is_steady & (len(path) > 1)
        part = np.where(steady, 1.0, longest / np.maximum(np.abs(wanted), 1e-300)).min(initial=1.0)
        more = np.where(steady, np.sign(change) * longest - part * wanted, 0.0)
        after, vectors = np.linalg.eigh(x + part * step + compose(more, vectors))
        return compose(np.clip(after, 0.0, settings.full), vectors)
