"""Weak recovery in stages, for teachers that are functions of the fields: some columns are found before others.

If the signs of all columns can be changed at unchanged targets, q = 0 is a fixed point, which becomes unstable at the α
of the first stage. The eigenmatrix of the unstable direction shows which columns appear. The others stay at zero
overlap, since their signs are still unknown, until the fixed point with only the first columns becomes unstable: this
is the second stage, and so on. At a fixed point in which columns U vanish, their small overlap δq becomes

    δq̂_l = α Σ_m E[G_lm δq_m G_lmᵀ],   G_lm = ρ_l⁻¹ E[u_l u_mᵀ | y, ω] ρ_m⁻¹ − δ_lm ρ_l⁻¹   (columns U only)

in one iteration, with ω_l = 0 and V_l = ρ_l for the columns U. The fixed points are parametrized by the size of the
conjugates q̂ of the found columns, as in `bayes.equations`, so that no iteration in α is needed.

**Iteration at a given α.** `iterate_stage` applies q̂ = αE[g gᵀ] and V = V(q̂), from little or complete information:
first with few samples, then with all. A run uses the same samples, and the same points of their posteriors as long as
V changes little, so that the map is smooth near the end, and independent runs give the errors. Extrapolated steps
(`Iteration`) reach the fixed point to an error far below the errors from the samples. V = 0 is approached
exponentially; it is reached if V decreases down to e^(−`full`) ρ.

Near q = 0 of a column whose sign is free, an iteration multiplies q by a constant factor, and decides slowly whether
the column vanishes if the factor is near one. Overlaps that are below `small`, in units of the prior, after the
iterations with few samples are therefore decided by this factor, computed with all samples (`Equations.growth_map`):
below one, the columns are set to zero; otherwise they continue from the overlap `small`.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.progress import Progress
from gamp_attention._tools.statistics import half_width
from gamp_attention.extensions.bayes.equations import Equations
from gamp_attention.extensions.bayes.results import RecoveryStage
from gamp_attention.results import ConvergenceError


@dataclass(frozen=True)
class StageSearch:
    """Search for the stages in which columns are found, with its settings."""

    replicas: list[Equations]  # independent sets of samples
    first: float = 1e-3  # smallest size of the conjugates of found columns
    last: float = 1e6  # largest size: the other columns are never found if they are not found below it
    log_step: float = 1.0  # step of the logarithm of the size
    accuracy: float = 1e-3  # accuracy of the logarithm of the size at which a stage begins
    shape_steps: int = 20  # maximum number of iterations of the shape of the conjugates
    shape_change: float = 1e-3  # change of the shape at which these end
    part: float = 0.1  # weight in the unstable direction, relative to the largest, above which a column is in a stage
    min_sigmas: float = 4.0  # standard errors above which E[u | y] is not zero, and an instability is real

    def find(self) -> list[RecoveryStage]:
        """Return the stages in which columns are found, in the order of α, from the independent sets of samples.

        Each stage has at least one column, so that there are at most t.

        Raises
        ------
        ConvergenceError : if the growth of overlaps is not finite, because posteriors of the samples are not.
        """
        t = self.replicas[0].rho.shape[1]
        with Progress("columns ", total=t) as bar:
            known = self._with_mean(np.zeros(t, dtype=bool))
            stages = [RecoveryStage(tuple(np.nonzero(known)[0].tolist()), 0.0, 0.0)] if known.any() else []
            bar.update(int(known.sum()))
            while not known.all():
                alphas, columns = self._next_stage(known)
                if not np.isfinite(alphas).all():
                    rest = tuple(np.nonzero(~known)[0].tolist())
                    return [*stages, RecoveryStage(rest, np.inf, np.nan)]
                after = self._with_mean(known | np.isin(np.arange(t), columns))
                columns = tuple(np.nonzero(after & ~known)[0].tolist())
                stages.append(RecoveryStage(columns, float(alphas.mean()), float(half_width(alphas))))
                bar.update(len(columns))
                known = after
        return stages

    def _with_mean(self, known: np.ndarray) -> np.ndarray:
        """Return `known` (t,) with the columns of which E[u | y] is not zero once columns `known` have some overlap.

        Such columns are found together with the known columns. The expectation is tested by products of two independent
        estimates, with half of the variance of the known columns explained, unless the column's sign is a symmetry.
        """
        while not known.all():
            products = []
            for equations in self.replicas:
                explained = 0.5 * equations.rho * np.outer(known, known)
                products.append(equations.squared_means(explained))
            values = np.concatenate(products)
            error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
            more = known | (values.mean(axis=0) > self.min_sigmas * error)
            more &= known | ~self.replicas[0].signs_are_free(known)
            if (more == known).all():
                break
            known = more
        return known

    def _next_stage(self, known: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
        """Return the α (replicas,) at which a further column is found, infinite if there is none, and these columns."""
        unknown = np.nonzero(~known)[0]
        if not known.any():
            maps = [equations.growth_map(np.zeros_like(equations.rho), unknown) for equations in self.replicas]
            value, left, right = leading_direction(np.mean(maps, axis=0))
            rates = np.array(
                [float(np.real(left @ m @ right)) for m in maps]
            )  # to first order in the noise of the maps
            spread = rates.std(ddof=1) / np.sqrt(len(rates))
            if not value > self.min_sigmas * spread:
                return np.full(len(self.replicas), np.inf), ()
            return 1 / value - (rates - value) / value**2, self._columns_of(right, self.replicas[0], unknown)
        alphas, columns = list[float](), tuple[int, ...]()
        for equations in self.replicas:
            alpha, direction = self._find_instability(equations, known, unknown)
            alphas.append(alpha)
            if direction is not None:
                columns = self._columns_of(direction, equations, unknown)
        return np.array(alphas), columns

    def _columns_of(self, direction: np.ndarray, equations: Equations, unknown: np.ndarray) -> tuple[int, ...]:
        """Return the columns of a stage: at least one, also if a noisy direction has no diagonal entries."""
        L, k = len(equations.rho), len(unknown)
        total = np.abs(np.real(direction).reshape(L, k, k).sum(axis=0))
        weight = np.diagonal(total)
        if not weight.max() > self.part * total.max():
            weight = total.max(axis=1)
        return tuple(unknown[weight >= self.part * weight.max()].tolist())

    def _find_instability(
        self, equations: Equations, known: np.ndarray, unknown: np.ndarray
    ) -> tuple[float, np.ndarray | None]:
        """Return the α at which the fixed point with columns `known` becomes unstable, and the unstable direction."""
        from scipy.optimize import brentq

        shape = np.linalg.inv(equations.rho) * np.outer(known, known)

        @cache
        def evaluate(x: float) -> tuple[float, float, np.ndarray]:
            """Return log(α · growth), α and the direction at conjugates of size exp(x)."""
            nonlocal shape
            size = np.inf
            for _ in range(self.shape_steps):
                averages = equations.input(np.exp(x) * shape)
                hats = equations.output(averages.V, averages.known).hats * np.outer(known, known)
                size = float(np.einsum("lab,lba->", hats, equations.rho)) / (len(hats) * int(known.sum()))
                if not size > 0:
                    return -np.inf, np.inf, np.empty(0)
                change = float(np.abs(hats / size - shape).max())
                shape = hats / size
                if change < self.shape_change:
                    break
            value, _, right = leading_direction(equations.growth_map(averages.known, unknown))
            alpha = float(np.exp(x)) / size
            return float(np.log(max(alpha * value, 1e-300))), alpha, right

        x, found = float(np.log(self.first)), evaluate(float(np.log(self.first)))
        if found[0] > 0:
            return found[1:]
        while not found[0] > 0:
            x += self.log_step
            if x > np.log(self.last):
                return np.inf, None
            found = evaluate(x)
        x = brentq(lambda x: max(evaluate(x)[0], -1e3), x - self.log_step, x, xtol=self.accuracy)
        return evaluate(x)[1:]


def leading_direction(growth: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the largest eigenvalue of a map, and its left and right eigenvectors, of product 1."""
    if not np.isfinite(growth).all():
        message = "bayes_thresholds: the posteriors of some samples are not finite, so that no threshold is known"
        raise ConvergenceError(message, None)
    values, vectors = np.linalg.eig(growth)
    k = int(np.argmax(np.real(values)))
    left = np.linalg.pinv(vectors)[k]
    return float(np.real(values[k])), left, vectors[:, k]


@dataclass(frozen=True)
class IterationSettings:
    """Settings of iterations at a given α, with x = −log V in units of the prior."""

    few: int = 4  # ratio of the numbers of samples of the last and the first iterations
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
    found: float = 1e-3  # overlap below which a column counts as not found, if the results of replicas are compared
    n_fresh: int = 16384  # number of fresh samples of the test error


class Solution(NamedTuple):
    """A fixed point for one set of samples."""

    q: np.ndarray  # (t, t)
    V: np.ndarray  # (L, t, t)
    known: np.ndarray  # (L, t, t)
    free_entropy: float
    residual: float  # change in one more iteration: of x for iterations, the relative change of V otherwise
    n_iter: int = 0
    error: float = 0.0  # estimated distance of x from the fixed point
    full: bool = False  # whether nothing is unknown
    converged: bool = True  # whether the estimated error is small


def iterate_stage(
    few: Equations, all_samples: Equations, alpha: float, init: str, settings: IterationSettings
) -> Solution:
    """Return the fixed point that iterations from a start "uninformed" or "informed" reach.

    Parameters
    ----------
    few, all_samples : equations with different numbers of samples.
    alpha : sample complexity.
    init : start.
    settings : settings of the iterations.
    """
    rho = all_samples.rho
    zero = np.zeros(rho.shape[1], dtype=bool)
    known = (
        settings.uninformed * rho if all_samples.has_zero_fixed_point() else all_samples.input(np.zeros_like(rho)).known
    )
    first = Iteration(few, alpha, zero, settings)
    x = first.information(rho - known, known)
    if init == "informed":  # with noise, targets say little about fields that are known far better than the noise
        x = (settings.full if few.noiseless else settings.nearly_full) * np.eye(len(zero)) + np.zeros_like(rho)
    x = first.run(x, settings.rough, settings.max_rough)
    if init == "uninformed":
        zero, known = _decide_small_columns(all_samples, alpha, first.variances(x)[1], settings.small)
        x = first.information(rho - known, known) if zero.any() else x
    last = Iteration(all_samples, alpha, zero, settings)
    x = last.run(x, settings.fine, settings.max_fine)
    V, known = last.variances(x)
    output = all_samples.output(V, known)
    q = all_samples.input(alpha * output.hats).q * np.outer(~zero, ~zero)
    entropy = all_samples.free_entropy(alpha, V, output)
    values = np.linalg.eigvalsh(x)  # where V decreases to zero, all V keep their ratios
    full = (
        all_samples.noiseless and values.max() >= settings.full and values.min() >= settings.full - settings.nearly_full
    )
    if full:
        entropy = np.inf if alpha * float(np.abs(output.hats @ V).max()) > settings.accepted else entropy
        V, known = np.zeros_like(rho), rho
        q = all_samples.prior_second_moment
    n_iter, converged = first.n_iter + last.n_iter, last.error < settings.accepted
    return Solution(q, V, known, entropy, last.residual, n_iter, last.error, full, converged)


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
        whitened = (vectors * part[:, None] @ vectors.swapaxes(1, 2) for part in (np.exp(-values), -np.expm1(-values)))
        V, known = (self._root @ part @ self._root for part in whitened)
        return V, known

    def information(self, V: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Return x (L, t, t), at most `full`, for V and ρ − V."""
        V, known = (self._inverse @ part @ self._inverse for part in (V, known))
        values, vectors = np.linalg.eigh(known)
        unknown = np.einsum("lab,lac,lcb->lb", vectors, V, vectors)
        x = np.where(
            values < 0.5,
            -np.log1p(-np.minimum(values, 0.5)),
            -np.log(np.maximum(unknown, np.exp(-self._settings.full))),
        )
        return np.asarray(vectors * x[:, None] @ vectors.swapaxes(1, 2))

    def run(self, x: np.ndarray, tol: float, limit: int) -> np.ndarray:
        """Return x after at most `limit` iterations, which end when its estimated error is below `tol`."""
        settings, path, best, stalled = self._settings, list[tuple[np.ndarray, np.ndarray]](), np.inf, 0
        for self.n_iter in range(1, limit + 1):
            V, known = self.variances(x)
            averages = self._equations.input(self._alpha * self._equations.output(V, known).hats)
            kept = np.where(self._kept, averages.V, self._equations.rho), averages.known * self._kept
            path = [*path[-settings.memory :], (x, self.information(*kept) - x)]
            step = extrapolate_stage(path)
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
        if np.sum(step * f) <= 0:
            step = f
        values, vectors = np.linalg.eigh(x)
        change, before, wanted = (
            np.einsum("lab,lac,lcb->lb", vectors, part, vectors) for part in (f, path[max(len(path) - 2, 0)][1], step)
        )
        longest = np.abs(change) + np.maximum(0.5 * np.clip(values, 1e-3, 1.0), 0.125 * values)
        steady = (
            (values > settings.nearly_full)
            & (np.abs(change - before) < settings.steady * np.abs(change))
            & (len(path) > 1)
        )
        part = np.where(steady, 1.0, longest / np.maximum(np.abs(wanted), 1e-300)).min(initial=1.0)
        more = np.where(steady, np.sign(change) * longest - part * wanted, 0.0)
        after, vectors = np.linalg.eigh(x + part * step + vectors * more[:, None] @ vectors.swapaxes(1, 2))
        return np.asarray(vectors * np.clip(after, 0.0, settings.full)[:, None] @ vectors.swapaxes(1, 2))


def extrapolate_stage(path: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the step from the last x to the fixed point, for points x and changes f of iterations (Anderson, 1965)."""
    x, f = (np.array([point[k].ravel() for point in path]) for k in (0, 1))
    if len(path) == 1:
        return path[0][1]
    moves, changes = np.diff(x, axis=0).T, np.diff(f, axis=0).T
    weights = np.linalg.lstsq(changes, f[-1], rcond=1e-8)[0]
    return np.asarray(f[-1] - (moves + changes) @ weights).reshape(path[0][0].shape)


def _decide_small_columns(
    equations: Equations, alpha: float, known: np.ndarray, limit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns (t,) whose overlap vanishes, and covariances of ω (L, t, t) for the next iterations.

    Overlaps below `limit`, in units of the prior, are decided.
    """
    rho = equations.rho
    fractions = np.diagonal(known, axis1=1, axis2=2) / np.diagonal(rho, axis1=1, axis2=2)
    small = (fractions.max(axis=0) < limit) & equations.signless_columns()
    if not small.any():
        return small, known
    without, columns = known * np.outer(~small, ~small), np.nonzero(small)[0]
    if alpha * leading_direction(equations.growth_map(without, columns))[0] < 1:
        return small, without
    without[:, columns, columns] = limit * rho[:, columns, columns]
    return np.zeros_like(small), without
