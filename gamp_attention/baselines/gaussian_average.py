"""Averages of smooth functions of independent standard Gaussian coordinates, refined to a stated accuracy.

In few coordinates, on grids of equal spacing h: their error is like exp(−c/h), c being set by singularities off the
real axis (Trefethen and Weideman, SIAM Review 56, 2014), and for the linear baseline they need fewer nodes than
products of Gauss-Hermite rules. In many, over replicas of scrambled Sobol points in mirror pairs.
"""

from dataclasses import dataclass
from math import exp, lgamma, log, pi
from typing import Protocol

import numpy as np
from scipy.special import chdtri

from gamp_attention._core.gaussian import gaussian_points, spaced_grid
from gamp_attention._core.spread import half_width
from gamp_attention.results import Status


@dataclass(frozen=True)
class AverageSettings:
    """Settings of Gaussian averages; errors are relative."""

    min_rtol: float = 1e-10  # that rounding allows
    rounding: float = 1e-15  # error of one value
    spacing: float = 1.4  # of the first grid
    finer: float = 0.75  # ratio of the spacings of two successive grids
    left_out: float = 1e-4  # probability outside of the grids, in units of rtol
    safety: float = 25  # of a grid's error, see `by_grids`; 10 covered 94 to 97 % of random problems, 20 more than 98 %
    replicas: int = 8  # sets of Sobol points
    first_points: int = 1024  # of each of the first replicas
    more: int = 4  # growth of that number
    min_random: float = 3e-5  # error that replicas do not get below
    min_error: float = 0.1  # believed of a result, in units of rtol and of the worst error of those beside it
    chunk: int = 1 << 14  # points held at a time


AVERAGES = AverageSettings()


class Integrand(Protocol):
    """What is averaged over white Gaussian coordinates, and what is made of the averages."""

    dim: int  # number of white coordinates
    even: bool  # whether values at opposite points are the same
    blocks: tuple[slice, ...] = (slice(None),)  # parts of the results; errors are relative to the largest of the part

    def __call__(self, white: np.ndarray) -> np.ndarray:
        """Values (N, K) at points (N, dim)."""

    def results(self, means: np.ndarray) -> np.ndarray:
        """Results (M,) from the K averages; these themselves where a class says nothing else."""
        return means

    def rounding(self, results: np.ndarray) -> np.ndarray:
        """Errors (M,) of the results by rounding."""


@dataclass(frozen=True, eq=False)
class Average:
    """Results of an integrand averaged over white coordinates."""

    values: np.ndarray
    errors: np.ndarray  # half-widths
    worst: float  # largest error but for rounding, relative to the largest result of its block

    @classmethod
    def complete(cls, integrand: Integrand, values: np.ndarray, errors: np.ndarray, rtol: float) -> "Average":
        """The average with errors as small as one may believe them, and rounding added."""
        size = _largest(integrand, values)
        worst = float(np.divide(errors, size, out=np.where(errors > 0, np.inf, 0.0), where=size > 0).max())
        # results can agree by accident, and all grids leave out the same tail
        errors = np.maximum(errors, AVERAGES.min_error * max(rtol, min(worst, 1.0)) * size)
        return cls(values, errors + integrand.rounding(values), worst)


def gaussian_average(
    integrand: Integrand, rtol: float, max_points: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, Status]:
    """Results, errors and status, by grids or, where these end too soon, by replicas if they are more accurate.

    CONVERGED where the errors are within rtol, relative to the largest of each block, or due to rounding.
    """
    if integrand.dim == 0:
        values = _results(integrand, np.zeros((1, 0)), np.ones(1))
        return values, integrand.rounding(values), Status.CONVERGED
    best = by_grids(integrand, rtol, max_points)
    if best is None or best.worst > max(rtol, AVERAGES.min_random):
        other = by_replicas(integrand, rtol, max_points, rng)
        best = other if best is None or other.worst < best.worst else best
    return best.values, best.errors, Status.CONVERGED if best.worst <= rtol else Status.INACCURATE


def by_grids(integrand: Integrand, rtol: float, max_points: int) -> Average | None:
    """By grids, each finer than the last, until errors are within rtol; None where the budget is below two grids."""
    dim, even, h = integrand.dim, integrand.even, AVERAGES.spacing
    radius = float(np.sqrt(chdtri(dim, AVERAGES.left_out * rtol)))
    found, before, last_share = None, None, 0.0
    while (found is None or found.worst > rtol) and _grid_size(h, dim, radius, even) <= max_points:
        here = _results(integrand, *_grid(h, dim, radius, even))
        if before is not None:
            size = _largest(integrand, here)
            away = np.maximum(np.abs(here - before) - integrand.rounding(here), 0)
            share = np.divide(_largest(integrand, away), size, out=np.zeros_like(here), where=size > 0)
            # a relative error like exp(−c/h) is its own power 1/finer on the next grid; the last but one guards
            # against two grids that agree by accident
            finer = AVERAGES.finer
            error = AVERAGES.safety * np.maximum(share ** (1 / finer), last_share ** (1 / finer**2))
            found = Average.complete(integrand, here, error * size, rtol)
            last_share = share
        before, h = here, AVERAGES.finer * h
    return found


def by_replicas(integrand: Integrand, rtol: float, max_points: int, rng: np.random.Generator) -> Average:
    """By independent replicas of ever more points, until errors are within rtol or the budget ends."""
    n = AVERAGES.first_points
    while True:
        half = n // 2 if integrand.even else n
        sets = (gaussian_points(n, integrand.dim, rng)[:half] for _ in range(AVERAGES.replicas))
        values = np.array([_results(integrand, points, np.full(half, 1 / half)) for points in sets])
        found = Average.complete(integrand, values.mean(axis=0), half_width(values), rtol)
        n *= AVERAGES.more
        if found.worst <= rtol or n * AVERAGES.replicas > max_points:
            return found


def _results(integrand: Integrand, points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    parts = [slice(k, k + AVERAGES.chunk) for k in range(0, len(points), AVERAGES.chunk)]
    return integrand.results(np.sum([weights[p] @ integrand(points[p]) for p in parts], axis=0))


def _largest(integrand: Integrand, values: np.ndarray) -> np.ndarray:
    """The largest absolute value in the block of each."""
    return np.concatenate([np.full_like(values[b], np.abs(values[b]).max()) for b in integrand.blocks])


def _grid_size(h: float, dim: int, radius: float, even: bool) -> float:
    """About how many points a grid has: the volume of a ball."""
    return exp(min(dim * log(radius / h * pi**0.5) - lgamma(dim / 2 + 1), 500.0)) / (2 if even else 1)


def _grid(h: float, dim: int, radius: float, even: bool) -> tuple[np.ndarray, np.ndarray]:
    """Points (N, dim) of spacing h in a ball and Gaussian weights (N,); one of every mirror pair where `even`."""
    points = spaced_grid(h, dim, radius, even)
    weights = np.exp(-0.5 * np.sum(points**2, axis=1))
    return points, weights / weights.sum()
