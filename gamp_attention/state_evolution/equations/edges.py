"""Solutions of the equations of a spectrum: edges of the bulk, eigenvalues outside it, and the density.

1. Lower edge. The resolvent's variances V and the position x are followed from −∞ up to the edge (`lowest_edge`). x and
   V grow together up to the edge, where x turns back. At a given x there is no solution beyond the edge, but at a given
   size of V there is. Therefore the size of V is the parameter, and plain Newton steps pass the edge. The upper edge is
   the lower edge of the negative matrices.
2. Eigenvalues outside. At each size, a linear map gives the new overlaps of a direction after a step of message
   passing. x is an eigenvalue if this map has the eigenvalue 1, and the second moments of this eigenvector give its
   projections (`eigenvalues_below`).
3. Density. At x + iη, η > 0, there is one solution with positive imaginary part. Newton steps start from the solution
   nearby, and from the solution at larger η if they fail (`densities`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention.models.coordinates import CoordinateLaw
from gamp_attention.state_evolution.equations.spectrum import Ensemble, Resolvent

# Solutions below the spectrum
MAX_NEWTON = 30  # maximum number of Newton steps
CONVERGED = 1e-11  # relative change of V and x at which Newton steps end
GROWTH = 1.3  # ratio of the sizes of V of successive solutions
MAX_BISECTIONS = 40  # maximum number of bisections of the interval of sizes that contains the edge
EDGE_RTOL = 1e-6  # relative error of the size at the edge; the error of x, which is maximal there, is of second order
MAX_SIZE = 1e12  # size of V relative to the first, above which the edge counts as zero: some eigenvalues are zero

# Eigenvalues outside the bulk
SIZE_RTOL = 1e-8  # relative error of the sizes of V at which eigenvalues lie
OUTSIDE = 1e-3  # smallest excess over 1 of an eigenvalue of the map of overlaps at the edge, for an eigenvalue below it

# Density
LOWERED = 0.5  # ratio of successive distances η from the real axis
NEAREST = 1e-7  # distance η in units of the largest eigenvalue, below which the next distance is the requested one
DAMPED_STEPS = 100  # maximum number of damped iterations far from the real axis


def size_of(V: np.ndarray) -> float:
    """Return the size of V (S, c, c): the sum of the traces."""
    return float(np.trace(V, axis1=1, axis2=2).sum())


def solve_at_size(ensemble: Ensemble, size: float, near: Resolvent) -> Resolvent | None:
    """Return the solution with a given size of V, by Newton steps from a scaled solution; None if they diverge."""
    V, x = near.V * (size / size_of(near.V)), near.x
    identity = np.tile(np.eye(V.shape[1]), (len(V), 1, 1)).ravel()
    unit = ensemble.law.trace.sum() / size  # typical distance of x from the spectrum
    for _ in range(MAX_NEWTON):
        here = Resolvent(ensemble, x, V)
        if not here.inside:
            return None
        residual = np.append((here.W - V).ravel(), size - size_of(V))
        # a change V' of V lowers V_hat by R V' R, so that the derivative is the transpose of the map of squares
        system = np.block([[np.eye(V.size) - here.squares, -here.slope.reshape(-1, 1)], [identity, np.zeros(1)]])
        step = np.linalg.lstsq(system, residual, rcond=None)[0]
        change = step[:-1].reshape(V.shape)
        V, x = V + 0.5 * (change + np.swapaxes(change, 1, 2)), x + float(step[-1])
        if np.abs(change).max() <= CONVERGED * np.abs(V).max() and abs(step[-1]) <= CONVERGED * max(abs(x), unit):
            here = Resolvent(ensemble, x, V)
            return here if here.inside else None
    return None


def lowest_edge(ensemble: Ensemble, limit: np.ndarray | None = None) -> list[Resolvent]:
    """Return solutions from far below the spectrum upwards; the last solution is at the lower edge.

    If `limit` (S, c, c) is given, the spectrum begins at the latest where V is no longer below this matrix: samples of
    the ensemble come arbitrarily close to matrices h for which 1 + `limit` h is singular.

    ValueError if the spectrum is zero or not finite.
    """
    c, law = ensemble.shape[1], ensemble.law
    # an upper bound of ‖X̃‖²; positions increase it but do not change the bulk
    L = ensemble.h.shape[1]
    scale = float(np.abs(ensemble.h).max() * L * c * law.gamma.max() * (1 + np.sqrt(ensemble.alpha * L)) ** 2)
    scale += float(np.abs(ensemble.ridge).max())
    if not (np.isfinite(scale) and scale > 0):
        raise check.fail("model", scale, "a spectrum within the range of doubles that is not all zero")
    x = -4 * scale
    V = np.einsum("l,ab->lab", law.trace / -x, np.eye(c))

    def is_below(solution: Resolvent | None) -> bool:
        """Return whether a solution is below the edge, so that x still grows with the size of V."""
        if solution is None or (limit is not None and np.linalg.eigvalsh(limit - solution.V).min() <= 0):
            return False
        return float(np.abs(np.linalg.eigvals(solution.squares)).max()) < 1

    first = solve_at_size(ensemble, size_of(V), Resolvent(ensemble, x, V))
    if first is None:
        raise check.fail("model", scale, "a spectrum within the range of doubles")
    path, low = [first], size_of(first.V)
    high = low
    while high < MAX_SIZE * size_of(first.V):
        high = GROWTH * low
        solution = solve_at_size(ensemble, high, path[-1])
        if solution is None or not is_below(solution):
            break
        path.append(solution)
        low = high
    for _ in range(MAX_BISECTIONS):
        if high - low <= EDGE_RTOL * low:
            break
        middle = 0.5 * (low + high)
        solution = solve_at_size(ensemble, middle, path[-1])
        if solution is None or not is_below(solution):
            high = middle
        else:
            path.append(solution)
            low = middle
    return path


class OutsideEigenvalue(NamedTuple):
    """An eigenvalue x outside the bulk, and moments of its eigenvector v."""

    x: float  # the eigenvalue
    second: np.ndarray  # (c, c) E[v vᵀ]
    first: np.ndarray  # (c, S + t) E[v (τ, π)ᵀ]

    def projection(self, law: CoordinateLaw, part: slice) -> float:
        """Return the norm, from 0 to 1, of the projection of the normalised eigenvector on a part of (τ, π)."""
        moments = np.einsum("k,kij->ij", law.weight, law.moments)[part, part]
        first = self.first[:, part]
        inside = np.trace(first @ np.linalg.pinv(moments, rcond=1e-10, hermitian=True) @ first.T)
        return float(np.sqrt(max(inside, 0.0) / np.trace(self.second)))


def eigenvalues_below(ensemble: Ensemble, path: list[Resolvent]) -> list[OutsideEigenvalue]:
    """Return the eigenvalues below the bulk in ascending order, given the solutions of `lowest_edge`."""
    n_outside = int(np.count_nonzero(growths(path[-1]) > 1 + OUTSIDE))
    outside = []
    for j in range(n_outside):
        solution = _solve_eigenvalue(ensemble, path, j)
        values, vectors = np.linalg.eig(solution.directions)
        vector = vectors[:, np.argsort(-values.real)[j]].real
        S, c, _ = ensemble.shape
        outside.append(OutsideEigenvalue(solution.x.real, *solution.weights_of(vector.reshape(S, c, -1))))
    return sorted(outside, key=lambda value: value.x)


def growths(at: Resolvent) -> np.ndarray:
    """Return the real parts of the eigenvalues of the map of overlaps in descending order."""
    return np.sort(np.linalg.eigvals(at.directions).real)[::-1]


def _solve_eigenvalue(ensemble: Ensemble, path: list[Resolvent], j: int) -> Resolvent:
    """Return the solution at which the j-th eigenvalue of the map of overlaps is 1."""
    from scipy.optimize import brentq

    solutions = {size_of(solution.V): solution for solution in path}

    def excess(size: float) -> float:
        if size not in solutions:
            nearest = solutions[min(solutions, key=lambda other: abs(other - size))]
            solutions[size] = solve_at_size(ensemble, size, nearest) or nearest
        return float(growths(solutions[size])[j] - 1)

    first_above = next(k for k, solution in enumerate(path) if excess(size_of(solution.V)) > 0)
    if first_above == 0:
        return path[0]
    size = brentq(excess, *(size_of(path[k].V) for k in (first_above - 1, first_above)), rtol=SIZE_RTOL)
    excess(size)
    return solutions[size]


def densities(ensemble: Ensemble, x: np.ndarray, width: float) -> np.ndarray:
    """Return the density of the spectrum at increasing x (k,), with the resolution `width`; NaN if not found.

    The density is convolved with the Cauchy distribution of scale `width`.
    """
    values, near = np.full(len(x), np.nan), None
    for k, position in enumerate(x):
        near = None if near is None else _newton(ensemble, complex(position, width), near.V)
        near = solve_near_axis(ensemble, position, width) if near is None else near
        values[k] = np.nan if near is None else near.density
    return values


def solve_near_axis(ensemble: Ensemble, x: float, width: float) -> Resolvent | None:
    """Return the solution at x + i `width`, from solutions farther from the real axis; None if Newton steps fail."""
    here = None
    for height in _heights(ensemble, x, width):
        V = _far_solution(ensemble, complex(x, height)) if here is None else here.V
        here = _newton(ensemble, complex(x, height), V)
        if here is None:
            return None
    return here


def _heights(ensemble: Ensemble, x: float, width: float) -> Iterator[float]:
    """Yield decreasing distances from the real axis, of which the last is `width`."""
    L, c = ensemble.h.shape[1:3]
    scale = np.abs(ensemble.h).max() * ensemble.law.gamma.max() * L * c * (1 + np.sqrt(ensemble.alpha * L)) ** 2
    height = float(max(scale, abs(x), width))
    while height > max(width, NEAREST * scale):
        yield height
        height *= LOWERED
    yield width


def _far_solution(ensemble: Ensemble, x: complex) -> np.ndarray:
    """Return V after damped iterations at x far from the real axis."""
    V = np.einsum("l,ab->lab", ensemble.law.trace / -x, np.eye(ensemble.shape[1]))
    for _ in range(DAMPED_STEPS):
        W = Resolvent(ensemble, x, V).W
        change = float(np.abs(W - V).max())
        V = 0.5 * (V + W)
        if change < 1e-3 * np.abs(V).max():
            break
    return V


def _newton(ensemble: Ensemble, x: complex, V: np.ndarray) -> Resolvent | None:
    """Return the solution at complex x by Newton steps from V; None if they fail."""
    for _ in range(MAX_NEWTON):
        try:
            here = Resolvent(ensemble, x, V)
            if not here.inside:
                return None
            step = np.linalg.solve(np.eye(V.size) - here.squares, (here.W - V).ravel()).reshape(V.shape)
        except np.linalg.LinAlgError:
            return None
        V = V + 0.5 * (step + np.swapaxes(step, 1, 2))
        if np.abs(step).max() <= CONVERGED**0.5 * np.abs(V).max():
            here = Resolvent(ensemble, x, V)
            return here if here.inside else None
    return None
