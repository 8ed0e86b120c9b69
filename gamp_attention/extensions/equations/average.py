"""Averages over up to three standard normals, with errors that hold for functions with kinks, jumps and narrow peaks.

1. Two grids of different spacings: the error of the trapezoidal rule decreases exponentially with the inverse spacing
   for smooth functions. If both averages agree, the average on the finer grid is the result.
2. Otherwise adaptive quadrature: the region is divided into cells, and the cells with the largest errors are bisected,
   in the direction of the largest error, until the sum of all errors is small or the number of nodes too large.

Sizes and errors are computed from the same nodes, so that a peak far from all nodes is approached step by step if f is
small but not zero there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.progress import describe
from gamp_attention._tools.quadrature import gaussian_weights, spaced_grid, tensor_grid

MAX_NORMALS = 3  # number of standard normals of an average: the number of nodes increases exponentially with it


@dataclass(frozen=True)
class AverageSettings:
    """Settings of averages; entries of tuples are for 1, 2 and 3 normals."""

    # spacings of the first grids, in standard deviations; none for one normal, for which cells need no more nodes
    spacings: tuple[tuple[float, ...], ...] = ((), (0.4, 0.2), (0.6, 0.3))
    second: float = 0.8  # spacing of the second grid in units of the first: both grids are symmetric and avoid 0
    agreement: float = 1e-6  # largest difference of both grids: with kinks, larger differences may be small by chance
    cells: tuple[int, ...] = (512, 16, 8)  # number of cells in each direction, even, so that cells end at 0
    nodes: int = 8  # number of nodes of a cell in each direction; more nodes save cells for smooth f, but not at jumps
    inset: float = 1e-12  # distance of the first node from the end of a cell, in half-widths: f may jump at the end
    # smallest error of half a cell in units of the error of the cell: a jump that cuts a corner may be between nodes
    inherited: tuple[float, ...] = (0.0, 0.01, 0.01)
    kept: float = 0.1  # sum of the errors of cells that are not bisected, in units of the sum of all errors
    one_normal: float = 1e-3  # tolerance for one normal, in units of the tolerance, as accurate averages take no time
    rounding: float = 1e-13  # smallest tolerance, above rounding errors
    margin: float = 3.0  # standard deviations beyond the point at which the density equals the tolerance
    max_points: tuple[int, ...] = (200_000, 1_000_000, 2_000_000)  # nodes at which bisections end: 1 s with `prox`
    batch: int = 100_000  # number of points in a call of f, which limits memory


AVERAGE = AverageSettings()
# for an independent average with closer nodes that extend further
CHECK = AverageSettings(spacings=((), (0.1,), (0.3,)), cells=(2048, 32, 14), margin=5.0)


@lru_cache
def _cell_rule(n: int, nodes: int, inset: float) -> tuple[np.ndarray, np.ndarray]:
    """Return points (N, n) in [−1, 1]ⁿ and a matrix (1 + 4n, N), which maps values to their mean and to coefficients.

    These are the last four coefficients of the Legendre series in each direction, averaged over the others. The rule is
    Gauss-Lobatto, with nodes at the ends: a jump between the last node and the end would have no effect on the values.
    """
    inner = np.polynomial.Legendre.basis(nodes - 1).deriv().roots()
    x = np.concatenate([[-1.0], inner, [1.0]])
    series = np.linalg.inv(np.polynomial.legendre.legvander(x, nodes - 1))
    rows = []
    for direction in range(-1, n):
        row: Any = np.ones((1, 1))
        for axis in range(n):
            row = np.kron(row, series[-4:] if axis == direction else series[:1])
        rows.append(row)
    return tensor_grid(x * (1 - inset), n), np.concatenate(rows)


@lru_cache(maxsize=8)
def _grid(h: float, n: int, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Return points (N, n) of spacing h, and their weights (N,)."""
    points = spaced_grid(h, n, reach, even=False)
    return points, gaussian_weights(points)


@dataclass(frozen=True)
class Average:
    """The argument `average` of equations: E f(ξ₁, …, ξ_n) over independent standard normals.

    Attributes
    ----------
    tol : error of an average, in units of E|f|.
    settings : spacings and numbers of nodes.
    errors : estimated errors of the averages so far, which are larger if a function needs too many nodes.
    """

    tol: float
    settings: AverageSettings = AVERAGE
    errors: list[float] = field(default_factory=list)

    def __call__(self, f: Callable[..., ArrayLike], n: int = 1, kinks: Sequence[ArrayLike] = ()) -> Any:
        """Return the average of a function of n arrays (N,), which returns an array (N,) or (N, …).

        Kinks, jumps and narrow peaks are located by adaptive quadrature, with an error estimate that enters the errors
        of the solution. If f jumps along an oblique line or plane, the maximum number of nodes may be reached, and the
        solution is INACCURATE: use Stein's identity instead of a derivative that jumps, or fewer normals.

        A feature between all nodes is missed. `solve_equations` compares its solution with an average whose nodes are
        at most 0.003, 0.15 and 0.4 standard deviations apart for n = 1, 2 and 3. Narrower intervals, and Gaussian peaks
        on another function with a standard deviation below an eighth of these distances, need `kinks`: numbers or
        points (n,) at which cells end from the start, and nodes lie.
        """
        n, settings = check.integer("average: n", n, low=1), self.settings
        if n > MAX_NORMALS:
            raise check.fail("average: n", n, f"at most {MAX_NORMALS} standard normals")
        tol = max(self.tol * (settings.one_normal if n == 1 else 1.0), settings.rounding)
        reach = np.sqrt(-2 * np.log(tol)) + settings.margin

        def evaluate(points: np.ndarray) -> np.ndarray:
            values = np.asarray(f(*points.T.copy()))  # f may change its arguments
            if values.dtype.kind == "c":
                raise check.fail_words("average: f(ξ)", "complex values", "real values: real or imaginary parts")
            values = values.astype(float)
            has_points = values.shape[:1] == (len(points),)
            if not has_points and len(points) in values.shape:
                raise check.fail("average: shape of f(ξ)", values.shape, f"the N = {len(points)} points first")
            if not has_points and not np.array_equal(values, f(*points[::-1].T.copy()), equal_nan=True):
                needs = "the shape (N, …) for arguments (N,), or a value that does not depend on them"
                raise check.fail("average: shape of f(ξ)", values.shape, needs)
            return values if has_points else np.broadcast_to(values, (len(points), *values.shape))

        for h in () if len(kinks) else settings.spacings[n - 1]:
            first, mean = (self._sum(evaluate, *_grid(h * ratio, n, reach)) for ratio in (1.0, settings.second))
            change = np.abs(mean[0] - first[0])
            if not np.isfinite(change).all() or (change <= min(tol, settings.agreement) * mean[1]).all():
                break
        else:
            mean, change = self._adapt(evaluate, n, kinks, tol, reach)
        self.errors.append(float(np.max(change / np.where(mean[1] > 0, mean[1], 1.0))))
        return np.where(np.isfinite(change), mean[0], np.nan)[()]

    def _sum(self, f: Callable[[np.ndarray], np.ndarray], points: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the averages (2, …) of f and |f| with given weights."""
        total: Any = 0.0
        for k in range(0, len(points), self.settings.batch):
            part, values = weights[k : k + self.settings.batch], f(points[k : k + self.settings.batch])
            total = total + np.stack([np.tensordot(part, v, axes=1) for v in (values, np.abs(values))])
        return total

    def _adapt(
        self, f: Callable[[np.ndarray], np.ndarray], n: int, kinks: Sequence[ArrayLike], tol: float, reach: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the averages (2, …) of f and |f|, and the error of the first, by adaptive quadrature."""
        settings = self.settings
        points = np.array([np.broadcast_to(np.asarray(point, dtype=float), n) for point in kinks]).reshape(-1, n)
        ends = np.linspace(-reach, reach, settings.cells[n - 1] + 1)
        edges = [np.union1d(ends, column[np.abs(column) < reach]) for column in points.T]
        low, high = (
            np.stack(np.meshgrid(*(edge[side] for edge in edges), indexing="ij"), axis=-1).reshape(-1, n)
            for side in (slice(-1), slice(1, None))
        )
        near = np.sum(np.maximum(np.maximum(low, -high), 0.0) ** 2, axis=1) <= reach**2
        low, high = low[near], high[near]
        parts, errors = self._measure(f, low, high)
        n_nodes = settings.nodes**n
        used = len(low) * n_nodes
        while True:
            mean, error = parts.sum(axis=0), errors.sum(axis=(0, 1))
            left = (settings.max_points[n - 1] - used) // (2 * n_nodes)
            if not np.isfinite(mean).all() or (error <= tol * mean[1]).all() or left <= 0:
                return mean, error
            relative = (errors / np.where(mean[1] > 0, mean[1], 1.0)).reshape(len(low), n, -1)
            size = relative.sum(axis=1).max(axis=1)
            describe(f"average for n = {n}: error {size.sum():.1g} with {used} points")
            order = np.argsort(size)
            n_kept = np.searchsorted(np.cumsum(size[order]), max(0.5 * tol, settings.kept * size.sum()))
            kept, split = np.split(order, [max(n_kept, len(order) - left)])
            middle = 0.5 * (low[split] + high[split])
            halved = np.eye(n, dtype=bool)[relative[split].max(axis=2).argmax(axis=1)]
            new_low = np.concatenate([low[split], np.where(halved, middle, low[split])])
            new_high = np.concatenate([np.where(halved, middle, high[split]), high[split]])
            new_parts, new_errors = self._measure(f, new_low, new_high)
            inherited = settings.inherited[n - 1] * np.concatenate([errors[split]] * 2)
            low, high = np.concatenate([low[kept], new_low]), np.concatenate([high[kept], new_high])
            parts = np.concatenate([parts[kept], new_parts])
            errors = np.concatenate([errors[kept], np.maximum(new_errors, inherited)])
            used += len(new_low) * n_nodes

    def _measure(
        self, f: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the parts of cells (C, n) in the averages (C, 2, …) of f and |f|, and errors (C, n, …) by direction.

        An error is the larger of the last two coefficients, multiplied by their decrease from the two before.
        """
        n, settings = low.shape[1], self.settings
        nodes, matrix = _cell_rule(n, settings.nodes, settings.inset)
        at_once = max(1, settings.batch // len(nodes))
        parts, errors = [], []
        for k in range(0, len(low), at_once):
            center, half = 0.5 * (low + high)[k : k + at_once], 0.5 * (high - low)[k : k + at_once]
            points = center[:, None] + half[:, None] * nodes
            density = np.exp(-0.5 * np.sum(points**2, axis=2)) * np.prod(half * np.sqrt(2 / np.pi), axis=1)[:, None]
            values = f(points.reshape(-1, n))
            shape = values.shape[1:]
            values = values.reshape(*density.shape, -1) * density[..., None]  # (C, N, P)
            parts.append(np.stack([matrix[0] @ values, matrix[0] @ np.abs(values)], axis=1).reshape(-1, 2, *shape))
            series = np.abs(matrix[1:] @ values).reshape(len(half), n, 2, 2, -1).max(axis=3)
            before, last = series[:, :, 0], series[:, :, 1]
            decrease = np.divide(last, before, out=np.ones_like(last), where=before > last)
            errors.append((last * decrease).reshape(-1, n, *shape))
        return np.concatenate(parts), np.concatenate(errors)
