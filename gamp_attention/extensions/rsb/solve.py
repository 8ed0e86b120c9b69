"""Stationary points of the free energy with k steps of replica symmetry breaking, with errors by refinement.

The unknowns are the logarithms of V, q_0, the gaps q_j − q_{j−1} and the Parisi parameters y_j, and m and θ unless they
vanish by symmetry. The equations are the overlap map, output channel followed by weights, and ∂F/∂y_j = 0. Steps:

1. The flow of the map at fixed Parisi parameters leads near a solution (`follow_levels`).
2. Newton steps with finite differences and Broyden's updates (Broyden, 1965) solve the equations of the overlaps
   (`solve_levels`) and, around them, of the Parisi parameters (`maximize`), on grids that stay the same as long as they
   fit: slopes of F on different grids differ by more than the accuracy of their zeros.
3. Step 2 on finer and finer grids gives the errors: the change of a number from one resolution to the next
   (`refine_levels`).
4. The solution with k steps is the start of k + 1: the outermost and the innermost cluster are split (`split_start`).
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gamp_attention._tools.roots import NonlinearSystem, RootSettings, find_root, follow_flow, refine_until
from gamp_attention.extensions.rsb.weights import SMALLEST, BrokenWeights, LevelHats, Levels, WeightsUnbounded
from gamp_attention.results import Status
from gamp_attention.theory.models.model import Model

ROUGH = -1  # resolution of the search from a start
FLOOR = 1e-10  # smallest relative error of a number, from rounding
ROUNDING = 1e-11  # smallest residual that Newton steps can reach
CONVEX = "the loss is convex, so that replica symmetry holds: solve_state_evolution has the solution"
COLLAPSE = "the clusters collapse, so that successive overlaps q are equal: fewer steps describe this branch"


class ClustersCollapsed(FloatingPointError):
    """Error raised if two levels of overlaps become equal, because the grids would need too many nodes."""


UNSOLVED = (FloatingPointError, np.linalg.LinAlgError)  # errors far from solutions


@dataclass(frozen=True)
class BrokenSearch:
    """Settings of the search for solutions; steps and changes are of the unknowns (see `LevelPacking`)."""

    strengths: tuple[float, ...] = (0.65, 0.2, 0.05)  # (q_1 − q_0)/q_1 at the starts, in the order of the trials
    weak: float = 0.1  # strength below which a start counts as near a solution, so that Newton steps begin there
    total: float = 1.6  # y (q_1 − q_0) at the starts in units of the strength times V with replica symmetry
    tol: float = 1e-4  # largest residual after the search on the coarsest grids
    # (q_j − q_{j−1})/q_k below which a cluster has collapsed; grids need 1/√ of it nodes
    collapsed: float = 1e-3
    # θ or m that goes to zero, in units of √q_k
    faded: float = 1e-4  # θ or m below which it counts as zero
    seed: float = 1e-3  # θ or m at which its growth is computed
    restored: float = 0.3  # θ or m at which a search begins again
    # Flow of the map
    flow_tol: float = 1e-3  # residual at its end
    flow_steps: int = 60  # maximum number of steps, and of changes of the start
    retreat: tuple[float, float] = (-0.5, 0.25)  # changes of log V and log q_0 if the average over the weights diverges
    difference: float = 1e-4  # step of finite differences; larger if the equations are not smooth functions
    # Maximization over the Parisi parameters
    inner_tol: float = 0.1  # residual of the overlaps in units of the residual of the Parisi parameters
    overlap_tol: float = 2e-4  # the same in units of the shortest step in log y: ∂F/∂y_j depends strongly on overlaps
    parisi_step: float = 0.1  # change of log y_j in finite differences of ∂F/∂y_j, which is flat but not linear
    rough_step: float = 0.02  # step in log y_j at which the search on the coarsest grids ends
    # step in units of the shortest below which changes of ∂F/∂y_j are mostly errors of the overlaps and of the grids
    min_update: float = 4.0
    shortest_ascent: float = 1 / 8  # fraction of a step in log y_j at which the derivatives are computed again
    # Refinement of the grids and errors
    max_resolution: int = 6  # number of refinements
    first_residual: float = 1e-3  # residual on the coarsest grids in units of the root of the requested accuracy
    residual: float = 0.02  # residual on finer grids in units of the requested accuracy
    step_tol: float = 0.1  # shortest step in log y in units of the requested accuracy
    safety: float = 1.5  # error in units of the change by the last refinement
    memory: float = 0.05  # weight of the change by the refinement before the last
    # smallest error of an unknown in units of the largest, because two resolutions can agree by accident
    min_error: float = 0.1


class BrokenProblem:
    """An output channel with its weights, for a model with r = t = 1 and one sample complexity.

    Attributes
    ----------
    signs : (L,) signs of m of the tokens; all other overlaps are equal for all tokens.
    search : settings of the search.
    """

    model: Model
    alpha: float
    signs: np.ndarray = np.ones(1)
    search = BrokenSearch()

    @property
    def is_convex(self) -> bool:
        """True if the loss is convex, so that replica symmetry holds."""
        return not self.model.task.jumps

    @cached_property
    def weights(self) -> BrokenWeights:
        """Input channel."""
        return BrokenWeights(self.model.coordinates, self.model.lam)

    @cached_property
    def rho(self) -> float:
        """Variance of the teacher's fields."""
        return float(self.model.coordinates.rho[0, 0, 0])

    def variances(self, levels: Levels) -> np.ndarray:
        """Return the variance of the outer field given the teacher's fields, then Δ_1, …, Δ_k."""
        explained = float(levels.theta[0]) ** 2 / self.rho
        outer = max(float(levels.q[0, 0]) - explained, SMALLEST * float(levels.q[-1, 0]))
        return np.array([outer, *levels.gaps[:, 0]])

    def hats(self, levels: Levels, parisi: np.ndarray, resolution: int, replicons: bool = True) -> LevelHats:
        """Return the averages of the output channel on grids of a resolution, 0 for the coarsest.

        They are multiplied by α. Without `replicons`, `squares` of the result may be NaN.
        """
        raise NotImplementedError

    def with_fixed_grids(self, levels: Levels, parisi: np.ndarray, resolution: int) -> "BrokenProblem":
        """Return the problem with the grids for these overlaps; itself if changes of the grids have small effects."""
        return self

    def fits(self, levels: Levels) -> bool:
        """Return whether fixed grids may be used for these overlaps."""
        return True


class LevelIndicators(NamedTuple):
    """Numbers that follow from the conjugates, or their errors."""

    # V_hat, V_derivative: V̂ of the first token with and without the jumps of the proximal map
    V_hat: float
    V_derivative: float
    complexity: np.ndarray  # (k,) y_j² ∂F/∂y_j, which is zero at the ground state
    replicons: np.ndarray  # (k + 1,) replicon eigenvalues, of which the last omits jumps


class BrokenSolution(NamedTuple):
    """Solution on the finest grids, its numbers and their errors."""

    status: Status  # CONVERGED, INACCURATE, MAX_ITER or LOST
    # levels, parisi, hats: overlaps, Parisi parameters and conjugates; no conjugates if no start led to a solution
    levels: Levels
    parisi: np.ndarray
    hats: LevelHats | None
    indicators: LevelIndicators
    # energy, energy_error: F, the training loss per coordinate, and its error
    energy: float
    energy_error: float
    error: np.ndarray  # errors of the unknowns (see `LevelPacking`), relative for logarithms
    indicator_errors: LevelIndicators  # errors of the indicators
    relative_error: float  # largest of the errors of the unknowns and of the relative error of F
    residual: float  # largest residual of the equations
    n_iter: int  # number of evaluations of the output channel
    path: list[Levels]  # points of the search
    message: str  # explanation if the status is not CONVERGED


class LevelRoot(NamedTuple):
    """Result of Newton steps."""

    # x, residual: unknowns and residuals there
    x: np.ndarray
    residual: np.ndarray
    size: float  # largest residual; for Parisi parameters the length of Newton's step instead, see `maximize`
    n_iter: int  # number of evaluations of the output channel
    J: np.ndarray | None  # Jacobian, or None if it has to be computed again
    hats: LevelHats  # conjugates at x
    problem: BrokenProblem  # the problem with the grids at x


class Slopes(NamedTuple):
    """Derivatives at a maximum of F over the Parisi parameters."""

    J: np.ndarray | None  # Jacobian of the equations of the overlaps, or None if it has to be computed again
    moves: np.ndarray  # (n, k) derivatives of the unknown overlaps, solved at each point, in log y_j
    # (k, k) derivatives of the residuals of ∂F/∂y_j in log y_j, with the overlaps solved at each point
    bends: np.ndarray

    @property
    def concave(self) -> bool:
        """True if F is a maximum where its derivatives vanish."""
        return bool(np.linalg.eigvals(self.bends).real.max() < 0)


@dataclass(frozen=True, eq=False)
class LevelPacking:
    """Conversion between overlaps with Parisi parameters and the vector of unknowns.

    The vector is log V, log q_0, log(q_j − q_{j−1}), m and θ in units of √q_k if they are free, and log y_j if free.
    """

    signs: np.ndarray  # (L,) signs of m of the tokens
    k: int  # number of steps
    # m, theta: whether m and θ are free; otherwise they are zero
    m: bool
    theta: bool
    parisi: np.ndarray | None = None  # fixed Parisi parameters, or None if they are free

    @property
    def n_free(self) -> int:
        """Number of free Parisi parameters."""
        return self.k if self.parisi is None else 0

    def pack(self, levels: Levels, parisi: np.ndarray) -> np.ndarray:
        """Return the unknowns; NaN if an overlap is not positive."""
        unit = np.sqrt(levels.q[-1, 0])
        parts = [np.log([levels.V[0], levels.q[0, 0], *levels.gaps[:, 0]])]
        parts += [levels.m[:1] * self.signs[0] / unit] if self.m else []
        parts += [levels.theta[:1] / unit] if self.theta else []
        return np.concatenate([*parts, np.log(parisi) if self.parisi is None else []])

    def units(self, x: np.ndarray) -> np.ndarray:
        """Return changes of V in units of V, and of other overlaps in units of q_k or √q_k, by the unknown overlaps."""
        parts = np.exp(x[1 : self.k + 2])
        return np.concatenate([[1.0], parts / parts.sum(), np.ones(self.m + self.theta)])

    def unpack(self, x: np.ndarray) -> tuple[Levels, np.ndarray]:
        """Return overlaps and Parisi parameters of a vector."""
        k, one = self.k, np.ones(len(self.signs))
        q = np.cumsum(np.exp(x[1 : k + 2]))
        rest, unit = list(x[k + 2 :]), np.sqrt(q[-1])
        m = rest.pop(0) * unit if self.m else 0.0
        theta = rest.pop(0) * unit if self.theta else 0.0
        parisi = np.exp(np.array(rest)) if self.parisi is None else self.parisi
        return Levels(q[:, None] * one, m * self.signs, theta * one, np.exp(x[0]) * one), parisi


def evaluate(
    problem: BrokenProblem, packing: LevelPacking, x: np.ndarray, resolution: int
) -> tuple[np.ndarray, LevelHats]:
    """Return the residual of the map at fixed Parisi parameters, the changes of the unknowns x, and the conjugates."""
    if not np.isfinite(x).all():
        raise FloatingPointError("the overlaps are not finite numbers")
    levels, parisi = packing.unpack(x)
    if packing.k and levels.gaps.min() < problem.search.collapsed * levels.q[-1].max():
        raise ClustersCollapsed(COLLAPSE)
    hats = problem.hats(levels, parisi, resolution, replicons=False)
    new = problem.weights.step(hats, parisi)
    change = packing.pack(new, parisi) - packing.pack(levels, parisi)
    if not np.isfinite(change).all():
        raise FloatingPointError("the overlaps or the averages are not finite numbers")
    return change, hats


def relative_slopes(problem: BrokenProblem, levels: Levels, hats: LevelHats, parisi: np.ndarray) -> np.ndarray:
    """Return ∂F/∂y_j (k,) in units of ½ Σ_l (q̂_j − q̂_{j−1})(q_j − q_{j−1}), of which all its terms are multiples."""
    unit = 0.5 * np.sum(np.diff(hats.q, axis=0) * levels.gaps, axis=1)
    return problem.weights.parisi_slopes(levels, hats, parisi) / np.maximum(np.abs(unit), np.finfo(float).tiny)


def follow_levels(problem: BrokenProblem, packing: LevelPacking, x: np.ndarray) -> np.ndarray:
    """Return the unknowns at the end of the flow of the map from a start, at fixed Parisi parameters.

    If the average over the weights diverges, V of the start is decreased and its q_0 increased: the response
    −∂g/∂ω of fields that are large in units of √V is positive.
    """
    search, n = problem.search, len(x) - packing.n_free
    fixed = replace(packing, parisi=packing.unpack(x)[1])
    start = x[:n]
    for _ in range(search.flow_steps):
        equations = _LevelEquations(problem, fixed, start, ROUGH, {})
        found = follow_flow(equations, start, search.flow_tol, search.flow_steps)
        try:
            if found.failure is None:
                return np.append(found.x, x[n:])
            raise found.failure
        except WeightsUnbounded:
            start = start + np.pad(search.retreat, (0, n - 2))
    raise WeightsUnbounded("the average over the weights diverges near the start")


def maximize(
    problem: BrokenProblem, packing: LevelPacking, x: np.ndarray, tol: float, shortest: float, resolution: int,
    known: Slopes | None = None,
) -> tuple[LevelRoot, Slopes]:  # fmt: skip
    """Return the solution of all equations by nested Newton steps, and the derivatives in free Parisi parameters there.

    Newton steps in log y solve ∂F/∂y_j = 0; at each point the overlaps are solved. F is so flat as a function of the
    Parisi parameters that in joint Newton steps the effect of errors of the overlaps is larger than its slope. The
    search ends at a step shorter than `shortest`, with a size of at most `tol`, or if no step is accepted or F is not a
    maximum there, with a larger size.
    """
    search, k = problem.search, packing.n_free
    if k == 0:
        root = solve_levels(problem, packing, x, tol, resolution, known.J if known else None)
        return root, Slopes(root.J, np.zeros((len(x), 0)), np.zeros((0, 0)))
    inner_tol = max(min(search.inner_tol * tol, search.overlap_tol * shortest), ROUNDING)
    equations = _ParisiEquations(problem, packing, x, (inner_tol, tol), resolution, known)
    settings = RootSettings(shortest=search.shortest_ascent, min_update=search.min_update * shortest, last=shortest)
    found = find_root(equations, x[-k:], np.inf, settings, known.bends if known else None)
    root = next(root for at, root in equations.solved[::-1] if np.array_equal(at, found.x))
    n_iter = sum(root.n_iter for _, root in equations.solved)
    bends = np.full((k, k), np.inf) if found.jacobian is None else found.jacobian
    slopes = Slopes(root.J, equations.predict(found.x)[1], bends)
    size = root.size
    if not (found.arrived and slopes.concave):
        step = np.inf if found.jacobian is None else float(np.abs(np.linalg.solve(bends, found.residual)).max())
        size = max(tol, step) * (1 + ROUNDING)
    x, residual = np.append(root.x, found.x), np.append(root.residual, found.residual)
    return LevelRoot(x, residual, size, n_iter, None, root.hats, root.problem), slopes


class _ParisiEquations(NonlinearSystem):
    """Equations ∂F/∂y_j = 0 in log y_j (k,), at the overlaps solved there, on the grids of the first solution.

    `tols` are the residual of the overlaps at which their search ends, and the largest that is accepted; `solved` are
    the points and their overlaps.
    """

    def __init__(
        self, problem: BrokenProblem, packing: LevelPacking, x: np.ndarray, tols: tuple[float, float], resolution: int,
        known: Slopes | None,
    ) -> None:  # fmt: skip
        self.problem, self.packing, self.start, self.tols, self.resolution = problem, packing, x, tols, resolution
        self.fixed, self.solved = problem, list[tuple[np.ndarray, LevelRoot]]()
        self.J = known.J if known else None
        self.moves = known.moves if known else np.zeros((len(x) - packing.k, packing.k))
        self.difference = problem.search.parisi_step

    def predict(self, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the overlaps at log y_j (n,), predicted from the nearest point, and their derivatives (n, k)."""
        split = len(self.start) - len(logs)
        points = [(at, root.x) for at, root in self.solved] or [(self.start[split:], self.start[:split])]
        origin, nearest = min(points, key=lambda point: np.abs(point[0] - logs).max())
        shifts, changes = np.array([at - origin for at, _ in points]), np.array([x - nearest for _, x in points])
        moves = self.moves + np.linalg.lstsq(shifts, changes - shifts @ self.moves.T, rcond=0.1)[0].T
        return nearest + moves @ (logs - origin), moves

    def solve(self, logs: np.ndarray) -> LevelRoot:
        """Return the overlaps at given log y_j."""
        for at, root in self.solved:
            if root.problem is self.fixed and np.array_equal(at, logs):
                return root
        chosen, (tol, accepted) = replace(self.packing, parisi=np.exp(logs)), self.tols
        root = solve_levels(self.fixed, chosen, self.predict(logs)[0], tol, self.resolution, self.J)
        if root.size > accepted:
            raise FloatingPointError("no overlaps at these Parisi parameters")
        self.fixed, self.J = root.problem, root.J
        self.solved.append((logs, root))
        return root

    def residual(self, logs: np.ndarray) -> np.ndarray:
        """Return the slopes of F (k,), see `relative_slopes`."""
        try:
            root = self.solve(logs)
        except np.linalg.LinAlgError as error:
            raise FloatingPointError(str(error)) from error
        levels, parisi = replace(self.packing, parisi=np.exp(logs)).unpack(root.x)
        return relative_slopes(self.fixed, levels, root.hats, parisi)

    def near(self, logs: np.ndarray) -> NonlinearSystem:
        """Return the equations on grids that are chosen at a point, if the present grids do not fit its overlaps."""
        root = self.solve(logs)
        if self.fixed.fits(replace(self.packing, parisi=np.exp(logs)).unpack(root.x)[0]):
            return self
        other = copy(self)
        other.fixed = self.problem
        return other


def solve_levels(
    problem: BrokenProblem, packing: LevelPacking, x: np.ndarray, tol: float, resolution: int,
    J: np.ndarray | None = None,
) -> LevelRoot:  # fmt: skip
    """Return the end of Newton steps for the equations from a start, on grids that are chosen again on a long way."""
    equations = _LevelEquations(problem, packing, x, resolution, {})
    root = find_root(equations, x, tol, jacobian=J)
    hats, used = equations.hats[root.x.tobytes()]
    return LevelRoot(root.x, root.residual, root.size, len(equations.hats), root.jacobian, hats, used)


class _LevelEquations(NonlinearSystem):
    """Equations of the levels, on grids fixed at a point; `hats` keeps the conjugates and grids by point."""

    def __init__(
        self, problem: BrokenProblem, packing: LevelPacking, origin: np.ndarray, resolution: int,
        hats: dict[bytes, tuple[LevelHats, BrokenProblem]],
    ) -> None:  # fmt: skip
        self.problem, self.packing, self.resolution, self.hats = problem, packing, resolution, hats
        self.fixed = problem.with_fixed_grids(*packing.unpack(origin), resolution)
        self.difference = problem.search.difference

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Return the residual of all equations."""
        change, hats = evaluate(self.fixed, self.packing, x, self.resolution)
        self.hats[x.tobytes()] = hats, self.fixed
        return change

    def near(self, x: np.ndarray) -> NonlinearSystem:
        """Return the equations on grids that are chosen at x, if the present grids are not given and do not fit."""
        if self.fixed is self.problem or self.fixed.fits(self.packing.unpack(x)[0]):
            return self
        return _LevelEquations(self.problem, self.packing, x, self.resolution, self.hats)


def refine_levels(
    problem: BrokenProblem, packing: LevelPacking, x: np.ndarray, rtol: float, max_resolution: int | None = None,
    slopes: Slopes | None = None,
) -> BrokenSolution:  # fmt: skip
    """Return the solution from a start near it, on grids that are refined until all errors are within `rtol`.

    The errors of V̂, complexity and replicons are reported, but not required to be within `rtol`. `slopes` are the
    derivatives at the start if they are known.
    """
    finest = problem.search.max_resolution if max_resolution is None else max_resolution
    solution = refine_until(_solutions(problem, packing, x, rtol, finest, slopes), rtol)
    if solution.relative_error <= rtol:
        return solution._replace(status=Status.CONVERGED, message="")
    return solution


def _solutions(
    problem: BrokenProblem,
    packing: LevelPacking,
    x: np.ndarray,
    rtol: float,
    max_resolution: int,
    slopes: Slopes | None,
) -> Iterator[BrokenSolution]:
    """Yield the solutions on finer and finer grids, until the equations are not solved."""
    search, n, inner = problem.search, len(x), len(x) - packing.n_free
    count, path, numbers = 0, [packing.unpack(x)[0]], list[np.ndarray]()
    status, message = Status.INACCURATE, f"{max_resolution} refinements of the grids do not reach rtol"
    for resolution in range(max_resolution + 1):
        tol = max(search.first_residual * rtol**0.5 if resolution == 0 else search.residual * rtol, ROUNDING)
        root, slopes = maximize(problem, packing, x, tol, search.step_tol * rtol, resolution, slopes)
        x, count, (levels, parisi) = root.x, count + root.n_iter, packing.unpack(root.x)
        path.append(levels)
        hats = problem.hats(levels, parisi, resolution)
        energy = problem.weights.free_energy(levels, hats, parisi)
        complexity = parisi**2 * problem.weights.parisi_slopes(levels, hats, parisi)
        replicons = problem.weights.replicons(hats, parisi)
        indicators = LevelIndicators(hats.V[0], hats.V_derivative[0], complexity, replicons)
        values = np.concatenate([x, np.append(energy, np.hstack(indicators))])
        numbers.append(values)
        error, relative, solved = np.full(len(values), np.inf), np.inf, bool(root.size <= max(tol, rtol))
        if not solved:
            status, message = Status.MAX_ITER, f"the equations have a residual of {root.size:.1g}; try another start"
            error = np.full(len(values), np.nan)
        elif resolution > 0:
            changes = np.abs(np.diff(numbers[-3:], axis=0)) * ([[search.memory], [1.0]] if resolution > 1 else 1.0)
            error = search.safety * changes.max(axis=0)
            error[:n] += FLOOR
            here, left = root.residual[:inner], np.abs(np.linalg.solve(slopes.bends, root.residual[inner:]))
            next_change = np.abs(here if slopes.J is None else np.linalg.solve(slopes.J, here))
            error[:inner] += next_change
            error[inner:n] = np.maximum(error[inner:n] + left, search.min_error * error[inner:n].max(initial=0.0))
            error[:inner] = np.maximum(error[:inner], np.abs(slopes.moves) @ error[inner:n])
            units = packing.units(x)
            error[:inner] = np.maximum(error[:inner], search.min_error * (error[:inner] * units).max() / units)
            error[n] += np.abs(energy) * (next_change.max() ** 2 + left.max(initial=0.0) ** 2 + FLOOR)
            in_units = np.append(error[:inner] * units, error[inner:n])  # q_0 may be zero
            relative = float(max(in_units.max(), error[n] / np.abs(energy)))
        indicator_errors = LevelIndicators(error[n + 1], error[n + 2], *np.split(error[n + 3 :], [packing.k]))
        yield BrokenSolution(
            status, levels, parisi, hats, indicators, float(energy), float(error[n]), error[:n], indicator_errors,
            relative, root.size, count, list(path), message,
        )  # fmt: skip
        if not solved:
            return


def solve_steps(
    problem: BrokenProblem, packing: LevelPacking, starts: list[tuple[Levels, np.ndarray]], rtol: float,
    max_resolution: int | None = None,
) -> BrokenSolution:  # fmt: skip
    """Return the solution from the first of several starts that leads to one with distinct levels; else the last.

    `max_resolution` is the finest resolution, at which the status is INACCURATE if errors are not within `rtol`.
    The status is LOST if no start leads to a solution, and clusters collapse from one of them: two successive levels of
    q become equal. No start is tried after such a start with weak breaking, near which a solution would be.
    """
    search = problem.search
    solution, failure, status = None, "no start", Status.NONFINITE
    for levels, parisi in starts:
        x = packing.pack(levels, parisi)
        weak = bool(packing.k) and levels.gaps[0].max() < search.weak * levels.q[-1].max()
        try:
            if problem.is_convex:
                raise ClustersCollapsed(CONVEX)
            if not (weak or (packing.k > 1 and packing.n_free)):
                x = follow_levels(problem, packing, x)
            root, slopes = maximize(problem, packing, x, search.tol, search.rough_step, ROUGH)
            solution = refine_levels(problem, packing, root.x, rtol, max_resolution, slopes)
        except UNSOLVED as exception:
            collapsed = isinstance(exception, ClustersCollapsed)
            if collapsed or status is not Status.LOST:
                failure, status = str(exception), Status.LOST if collapsed else Status.NONFINITE
            if collapsed and weak:
                break
        else:
            if solution.status is not Status.MAX_ITER:
                break
    if solution is not None:
        return solution
    unknown = LevelIndicators(np.nan, np.nan, np.full(packing.k, np.nan), np.full(packing.k + 1, np.nan))
    error = np.full(len(x), np.nan)
    return BrokenSolution(
        status, levels, parisi, None, unknown, np.nan, np.nan, error, unknown, np.inf, np.inf, 0, [levels], failure
    )


def first_starts(symmetric: Levels, parisi: np.ndarray | None, search: BrokenSearch) -> list[tuple[Levels, np.ndarray]]:
    """Return starts with one step and several strengths (q_1 − q_0)/q_1 from replica-symmetric overlaps (q (1, L)).

    The response V + y (q_1 − q_0) of all clusters together is somewhat larger than V with replica symmetry. This
    determines y, or the largest gap if the Parisi parameter (1,) is given.
    """
    q, V, starts = symmetric.q, symmetric.V, []
    y = search.total * V[:1] / q[0, :1] if parisi is None else parisi
    for strength in search.strengths:
        gap = np.minimum(strength * q, search.total * strength * V / y)
        starts.append((symmetric._replace(q=np.concatenate([q - gap, q]), V=(1 - strength) * V), y))
    return starts


def split_start(levels: Levels, parisi: np.ndarray) -> tuple[Levels, np.ndarray]:
    """Return a start with one more step from a solution with k ≥ 1 steps.

    The function q(y) of the solution is a staircase; the new levels sample a smoother staircase with k + 1 steps.
    """
    k, top = len(parisi), levels.q[-1, 0]
    fraction = np.append(levels.q[:, 0] / top, 1.0)
    old = np.linspace(0, 1, k + 1)
    new = np.interp(np.linspace(0, 1, k + 2), old, fraction[: k + 1])
    new[0] = fraction[0] - 0.2 * min(fraction[0], 1 - fraction[0])
    new[-2] = 1 - 0.6 * (1 - new[-2])
    ends = np.log(parisi[0]) - 0.35, np.log(parisi[-1]) + 0.6
    inner = np.interp(np.linspace(0, 1, k + 1)[1:-1], np.linspace(0, 1, k) if k > 1 else [0.5], np.log(parisi))
    parisi = np.exp(np.concatenate([[ends[0]], inner, [ends[1]]]))
    return levels._replace(q=top * new[:, None] * np.ones(len(levels.V))), parisi
