"""Stationary points of the free energy with k steps of replica symmetry breaking, with errors by refinement.

The unknowns are the logarithms of V, q_0, the gaps q_j − q_{j−1} and the Parisi parameters y_j, and m and θ unless they
vanish by symmetry. The equations are the overlap map, output channel followed by weights, and ∂F/∂y_j = 0. Steps:

1. Damped iterations of the map at fixed Parisi parameters lead near a solution (`iterate`).
2. F is maximised over the Parisi parameters by Newton steps (`find_maximum`). Far from the maximum, the overlaps are
   solved at fixed Parisi parameters at each point (`ascend`).
3. Newton steps with finite differences and Broyden's updates (Broyden, 1965) solve all equations (`newton`). A step is
   shortened until the residual decreases.
4. Step 3 on finer and finer grids give the errors: the change of a number from one resolution to the next
   (`refine_levels`).
5. The solution with k steps is the start of k + 1: the outermost and the innermost cluster are split (`split_start`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from gamp_attention.results import Status
from gamp_attention.state_evolution.rsb.weights import BrokenWeights, LevelHats, Levels, WeightsUnbounded

DAMPING = 0.5  # step of an iteration of the map
RETREAT = (-0.5, 0.25)  # changes of log V and log q_0 if the average over the weights diverges
DAMPED_STEPS = 12  # number of damped iterations before Newton steps
ASCENT_STEPS = 20  # maximum number of steps of the maximisation over the Parisi parameters
INNER_TOL = 0.1  # residual of the overlaps in units of the residual of the Parisi parameters
ROUGH = -1  # resolution of damped iterations
ATTEMPTS = 3  # maximum number of searches for the overlaps at given Parisi parameters
NEWTON_STEPS = 40  # maximum number of Newton steps
DIFFERENCE = 1e-4  # step of finite differences in the unknowns, which are logarithms or of order one
SHORTEST_MOVE = 0.01  # smallest change of log y along a path of solutions
MAX_MOVE = 0.5  # largest change of an unknown in a step; first change of log y along a path of solutions
SHORTEST = 1 / 64  # fraction of a step at which the Jacobian is computed again, or the search ends
SLOW = 0.3  # ratio of successive residuals above which the Jacobian is computed again
SAFETY = 1.5  # error in units of the change by the last refinement
MEMORY = 0.05  # weight of the change by the refinement before the last
FLOOR = 1e-10  # smallest relative error of a number, from rounding
FIRST_TOL, TOL = 1e-3, 0.02  # residual on the coarsest grids; residual in units of the requested accuracy
ROUNDING = 1e-11  # smallest residual that Newton steps can reach
MIN_ERROR = 0.1  # smallest error of an unknown in units of the largest, because two resolutions can agree by accident
MAX_RESOLUTION = 6  # number of refinements
SEARCH_TOL = 1e-4  # largest residual after the search on the coarsest grids
WEAK = 0.1  # the same below which a start counts as near a solution, so that Newton steps begin there
TOTAL = 1.6  # y (q_1 − q_0) at these starts in units of the strength times V with replica symmetry
COLLAPSED = 1e-3  # (q_j − q_{j−1})/q_k below which a cluster has collapsed; grids need 1/√ of it nodes
COLLAPSE = "the clusters collapse, so that successive overlaps q are equal: fewer steps describe this branch"


class ClustersCollapsed(FloatingPointError):
    """Error raised if two levels of overlaps become equal, because the grids would need too many nodes."""


class Problem(Protocol):
    """An output channel with its weights."""

    @property
    def weights(self) -> BrokenWeights:
        """Input channel."""

    @property
    def signs(self) -> np.ndarray:
        """Signs (L,) of m of the tokens; all other overlaps are equal for all tokens."""

    @property
    def strengths(self) -> tuple[float, ...]:
        """Strengths (q_1 − q_0)/q_1 of breaking at the starts, in the order in which they are tried."""

    def hats(self, levels: Levels, parisi: np.ndarray, resolution: int) -> LevelHats:
        """Return the averages of the output channel on grids of a resolution, 0 for the coarsest."""


class Indicators(NamedTuple):
    """Numbers that follow from the conjugates, or their errors.

    Attributes
    ----------
    V_hat, V_derivative : V̂ of the first token with and without the jumps of the proximal map.
    complexity : (k,) y_j² ∂F/∂y_j, which is zero at the ground state.
    replicons : (k + 1,) replicon eigenvalues, of which the last omits jumps.
    """

    V_hat: float
    V_derivative: float
    complexity: np.ndarray
    replicons: np.ndarray


class BrokenPoint(NamedTuple):
    """Overlaps, Parisi parameters, conjugates, and indicators."""

    levels: Levels
    parisi: np.ndarray
    hats: LevelHats
    indicators: Indicators


class BrokenSolution(NamedTuple):
    """Solution on the finest grids, its numbers and their errors.

    Attributes
    ----------
    status : CONVERGED, INACCURATE, MAX_ITER or LOST.
    point : overlaps, Parisi parameters, conjugates and indicators.
    energy, energy_error : F, the training loss per coordinate, and its error.
    error : errors of the unknowns (see `Packing`), relative for logarithms.
    indicator_errors : errors of the indicators.
    relative_error : largest of the errors of the unknowns and of the relative error of F.
    residual : largest residual of the equations.
    n_iter : number of evaluations of the output channel.
    resolution : resolution of the finest grids.
    path : points of the search.
    message : explanation if the status is not CONVERGED.
    """

    status: Status
    point: BrokenPoint
    energy: float
    energy_error: float
    error: np.ndarray
    indicator_errors: Indicators
    relative_error: float
    residual: float
    n_iter: int
    resolution: int
    path: list[Levels]
    message: str


@dataclass(frozen=True, eq=False)
class Packing:
    """Conversion between overlaps with Parisi parameters and the vector of unknowns.

    The vector is log V, log q_0, log(q_j − q_{j−1}), m and θ in units of √q_k if they are free, and log y_j if free.

    Attributes
    ----------
    signs : (L,) signs of m of the tokens.
    k : number of steps.
    m, theta : whether m and θ are free; otherwise they are zero.
    parisi : fixed Parisi parameters, or None if they are free.
    """

    signs: np.ndarray
    k: int
    m: bool
    theta: bool
    parisi: np.ndarray | None = None

    def pack(self, levels: Levels, parisi: np.ndarray) -> np.ndarray:
        """Return the unknowns; NaN if an overlap is not positive."""
        unit = np.sqrt(levels.q[-1, 0])
        parts = [np.log([levels.V[0], levels.q[0, 0], *levels.gaps[:, 0]])]
        parts += [levels.m[:1] * self.signs[0] / unit] if self.m else []
        parts += [levels.theta[:1] / unit] if self.theta else []
        return np.concatenate([*parts, np.log(parisi) if self.parisi is None else []])

    def unpack(self, x: np.ndarray) -> tuple[Levels, np.ndarray]:
        """Return overlaps and Parisi parameters of a vector."""
        k, one = self.k, np.ones(len(self.signs))
        q = np.cumsum(np.exp(x[1 : k + 2]))
        rest, unit = list(x[k + 2 :]), np.sqrt(q[-1])
        m = rest.pop(0) * unit if self.m else 0.0
        theta = rest.pop(0) * unit if self.theta else 0.0
        parisi = np.exp(np.array(rest)) if self.parisi is None else self.parisi
        return Levels(q[:, None] * one, m * self.signs, theta * one, np.exp(x[0]) * one), parisi


def evaluate(problem: Problem, packing: Packing, x: np.ndarray, resolution: int) -> tuple[np.ndarray, LevelHats]:
    """Return the residual of all equations at the unknowns x, and the conjugates.

    Residuals of the map are changes of the unknowns. The slope ∂F/∂y_j is in units of ½ Σ_l (q̂_j − q̂_{j−1})(q_j −
    q_{j−1}), of which all its terms are multiples.
    """
    if not np.isfinite(x).all():
        raise FloatingPointError("the overlaps are not finite numbers")
    levels, parisi = packing.unpack(x)
    if packing.k and levels.gaps.min() < COLLAPSED * levels.q[-1].max():
        raise ClustersCollapsed(COLLAPSE)
    hats = problem.hats(levels, parisi, resolution)
    new = problem.weights.step(hats, parisi)
    change = packing.pack(new, parisi) - packing.pack(levels, parisi)
    if packing.parisi is None and packing.k:
        slopes = problem.weights.parisi_slopes(levels, hats, parisi)
        unit = 0.5 * np.sum(np.diff(hats.q, axis=0) * levels.gaps, axis=1)
        change[-packing.k :] = slopes / np.maximum(np.abs(unit), np.finfo(float).tiny)
    if not np.isfinite(change).all():
        raise FloatingPointError("the overlaps or the averages are not finite numbers")
    return change, hats


def iterate(problem: Problem, packing: Packing, x: np.ndarray, n_steps: int) -> np.ndarray:
    """Return the unknowns after damped iterations of the map at fixed Parisi parameters.

    If the average over the weights diverges, V is decreased and q_0 increased: the response −∂g/∂ω of fields that are
    large in units of √V is positive.
    """
    n_free = 0 if packing.parisi is not None else packing.k
    for _ in range(n_steps):
        try:
            change, _ = evaluate(problem, packing, x, ROUGH)
        except WeightsUnbounded:
            x = x + np.concatenate([RETREAT, np.zeros(len(x) - 2)])
            continue
        if n_free:
            change[-n_free:] = 0.0
        x = x + DAMPING * np.clip(change, -2 * MAX_MOVE, 2 * MAX_MOVE)
    return x


def find_maximum(problem: Problem, packing: Packing, x: np.ndarray, near: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the unknowns at the maximum of F over the Parisi parameters on the coarsest grids, and their Jacobian.

    If `near`, the start is near the maximum: the overlaps are solved at its Parisi parameters, and Newton steps follow
    for all equations. Their solution is accepted if F is a maximum there. Otherwise `ascend` searches for it.
    """
    if near:
        try:
            fixed = replace(packing, parisi=np.exp(x[-packing.k :]))
            inner, _, size, _, _ = newton(problem, fixed, x[: -packing.k], SEARCH_TOL, ROUGH)
            if size <= SEARCH_TOL:
                full, _, size, _, J = newton(problem, packing, np.append(inner, x[-packing.k :]), SEARCH_TOL, ROUGH)
                if size <= SEARCH_TOL and is_maximum(J, packing.k):
                    return full, J
        except (WeightsUnbounded, FloatingPointError, np.linalg.LinAlgError):
            pass
    return ascend(problem, packing, x, SEARCH_TOL, ROUGH), None


def is_maximum(J: np.ndarray | None, k: int) -> bool:
    """Return whether F decreases in all directions of the Parisi parameters, the last k unknowns, from its Jacobian.

    The Jacobian of the k slopes with the overlaps solved at each point is the Schur complement; in units that are
    positive it is the Hessian of F.
    """
    if J is None:
        return False
    reduced = J[-k:, -k:] - J[-k:, :-k] @ np.linalg.solve(J[:-k, :-k], J[:-k, -k:])
    return bool(np.linalg.eigvals(reduced).real.max() < 0)


def ascend(problem: Problem, packing: Packing, x: np.ndarray, tol: float, resolution: int) -> np.ndarray:
    """Return the unknowns near the maximum of F over the Parisi parameters, where residuals of ∂F/∂y_j are below `tol`.

    Each step solves all linearised equations; then the overlaps are solved at the new Parisi parameters. The step is
    shortened until F increases. If Newton's direction is not uphill, the step follows the gradient instead.
    """
    k = packing.k

    def residual(at: np.ndarray) -> np.ndarray:
        return evaluate(problem, packing, at, resolution)[0]

    def solve_overlaps(at: np.ndarray, J: np.ndarray | None) -> tuple[np.ndarray, float]:
        fixed = replace(packing, parisi=np.exp(at[-k:]))
        inner, size = at[:-k], np.inf
        for attempt in range(ATTEMPTS):
            if attempt:  # damped iterations return to the branch from which Newton steps went astray
                inner, J = iterate(problem, fixed, at[:-k], attempt * DAMPED_STEPS), None
            inner, _, size, _, _ = newton(problem, fixed, inner, INNER_TOL * tol, resolution, J)
            if size <= tol:
                break
        levels, parisi = fixed.unpack(inner)
        if not size <= tol:
            raise FloatingPointError("no overlaps at these Parisi parameters")
        value = problem.weights.free_energy(levels, problem.hats(levels, parisi, resolution), parisi)
        return np.append(inner, at[-k:]), value

    x, value = solve_overlaps(x, None)
    for _ in range(ASCENT_STEPS):
        here = residual(x)
        if np.abs(here).max() <= tol:
            break
        J = jacobian(residual, x, here)
        step = -np.linalg.solve(J, here)
        if not here[-k:] @ step[-k:] > 0:  # not uphill: residuals of ∂F/∂y_j have the sign of the gradient
            step = np.append(np.zeros(len(x) - k), here[-k:])
        step *= min(1.0, MAX_MOVE / np.abs(step).max())
        t = 1.0
        while t >= SHORTEST:
            try:
                new, higher = solve_overlaps(x + t * step, J[:-k, :-k])
                if higher > value:
                    break
            except (WeightsUnbounded, FloatingPointError, np.linalg.LinAlgError):
                pass
            t *= 0.5
        if t < SHORTEST:
            break
        x, value = new, higher
    return x


def jacobian(residual: Callable[[np.ndarray], np.ndarray], x: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Return forward differences of the residual."""
    return np.stack([(residual(x + shift) - base) / DIFFERENCE for shift in DIFFERENCE * np.eye(len(x))], axis=1)


def newton(
    problem: Problem, packing: Packing, x: np.ndarray, tol: float, resolution: int, J: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, float, int, np.ndarray | None]:
    """Return the unknowns, the residuals there, their largest entry, the number of evaluations and the Jacobian.

    The search ends below `tol`, after NEWTON_STEPS steps, or if no step along Newton's direction of a fresh Jacobian
    decreases the residual.
    """
    count = 0

    def residual(at: np.ndarray) -> np.ndarray:
        nonlocal count
        count += 1
        return evaluate(problem, packing, at, resolution)[0]

    here, fresh = residual(x), False
    for _ in range(NEWTON_STEPS):
        size = np.abs(here).max()
        if size <= tol:
            break
        if J is None:
            J, fresh = jacobian(residual, x, here), True
        step = -np.linalg.solve(J, here)
        step *= min(1.0, MAX_MOVE / np.abs(step).max())
        t, there = 1.0, None
        while t >= SHORTEST:
            try:
                there = residual(x + t * step)
                if np.linalg.norm(there) < (1 - 0.1 * t) * np.linalg.norm(here):
                    break
            except (WeightsUnbounded, FloatingPointError):
                pass
            there, t = None, 0.5 * t
        if there is None:
            if fresh:
                break
            J = None
            continue
        move = t * step
        slow = np.linalg.norm(there) > SLOW * np.linalg.norm(here)
        J = J + np.outer(there - here - J @ move, move) / (move @ move)
        x, here, fresh = x + move, there, False
        if slow:
            J = None
    return x, here, float(np.abs(here).max()), count, J


def numbers_at(problem: Problem, packing: Packing, x: np.ndarray, resolution: int) -> tuple[BrokenPoint, np.ndarray]:
    """Return the point at the unknowns x, and its numbers as one vector: x, F and the entries of `Indicators`."""
    levels, parisi = packing.unpack(x)
    hats = problem.hats(levels, parisi, resolution)
    indicators = Indicators(
        V_hat=hats.V[0],
        V_derivative=hats.V_derivative[0],
        complexity=parisi**2 * problem.weights.parisi_slopes(levels, hats, parisi),
        replicons=problem.weights.replicons(hats, parisi),
    )
    energy = problem.weights.free_energy(levels, hats, parisi)
    return BrokenPoint(levels, parisi, hats, indicators), np.concatenate([x, np.append(energy, np.hstack(indicators))])


def refine_levels(
    problem: Problem, packing: Packing, start: np.ndarray, rtol: float, max_resolution: int = MAX_RESOLUTION,
    J: np.ndarray | None = None,
) -> BrokenSolution:  # fmt: skip
    """Return the solution from a start near it, on grids that are refined until all errors are within `rtol`.

    The errors of V̂, complexity and replicons are reported, but not required to be within `rtol`. `J` is the Jacobian at
    the start if it is known.
    """
    n, x, count, path = len(start), start, 0, [packing.unpack(start)[0]]
    numbers: list[np.ndarray] = []
    error, relative = np.full(0, np.inf), np.inf
    status, message = Status.INACCURATE, f"{max_resolution} refinements of the grids do not reach rtol"
    for resolution in range(max_resolution + 1):
        tol = max(FIRST_TOL * rtol**0.5 if resolution == 0 else TOL * rtol, ROUNDING)
        x, here, size, evaluations, J = newton(problem, packing, x, tol, resolution, J)
        count += evaluations
        point, values = numbers_at(problem, packing, x, resolution)
        path.append(point.levels)
        if not size <= (tol if resolution == 0 else rtol):
            status, message = Status.MAX_ITER, f"the equations have a residual of {size:.1g}; try another start"
            error, relative = np.full(len(values), np.nan), np.inf
            break
        numbers.append(values)
        if resolution == 0:
            error = np.full(len(values), np.inf)
            continue
        changes = [np.abs(b - a) for a, b in pairwise(numbers[-3:])]
        weights = [MEMORY ** (len(changes) - 1 - i) for i in range(len(changes))]
        error = SAFETY * np.max([w * change for w, change in zip(weights, changes, strict=True)], axis=0)
        left = np.abs(here if J is None else np.linalg.solve(J, here))
        error[:n] = np.maximum(error[:n] + left + FLOOR, MIN_ERROR * error[:n].max())
        error[n] += np.abs(values[n]) * (left.max() ** 2 + FLOOR)
        relative = float(max(error[:n].max(), error[n] / np.abs(values[n])))
        if relative <= rtol:
            status, message = Status.CONVERGED, ""
            break
    indicators = Indicators(error[n + 1], error[n + 2], *np.split(error[n + 3 :], [packing.k]))
    return BrokenSolution(
        status, point, float(values[n]), float(error[n]), error[:n], indicators, relative, size, count, resolution,
        path, message,
    )  # fmt: skip


def solve_steps(
    problem: Problem, packing: Packing, starts: list[tuple[Levels, np.ndarray]], rtol: float
) -> BrokenSolution:
    """Return the solution from the first of several starts that leads to one with distinct levels; else the last.

    The status is LOST if clusters collapse from the last start: two successive levels of q become equal.
    """
    solution, failure, status = None, "no start", Status.NONFINITE
    for levels, parisi in starts:
        x = packing.pack(levels, parisi)
        try:
            weak = bool(packing.k) and levels.gaps[0].max() < WEAK * levels.q[-1].max()
            near = weak or (packing.k > 1 and packing.parisi is None)
            if not near:
                x = iterate(problem, packing, x, DAMPED_STEPS)
            for attempt in range(0 if packing.parisi is None else ATTEMPTS):
                near, _, size, _, _ = newton(problem, packing, x, SEARCH_TOL, ROUGH)
                if size <= SEARCH_TOL:
                    x = near
                    break
                x = iterate(problem, packing, x, (2 + attempt) * DAMPED_STEPS)
            J = None
            if packing.k and packing.parisi is None:
                x, J = find_maximum(problem, packing, x, near)
            solution = refine_levels(problem, packing, x, rtol, J=J)
        except (WeightsUnbounded, FloatingPointError, np.linalg.LinAlgError) as error:
            failure, status = str(error), Status.LOST if isinstance(error, ClustersCollapsed) else Status.NONFINITE
            continue
        if solution.status is not Status.MAX_ITER:
            return solution
    return _failed(packing, levels, parisi, status, failure) if solution is None else solution


def follow_parisi(
    problem: Problem, packing: Packing, origins: list[tuple[Levels, np.ndarray]], rtol: float
) -> BrokenSolution | None:
    """Return the solution at fixed Parisi parameters, followed from a solution at other Parisi parameters.

    The logarithms of the Parisi parameters change in steps. Each solution is the start of the next, extrapolated
    linearly; y_j (q_j − q_{j−1}) is nearly constant in the first step. A step that fails is divided by two.

    Parameters
    ----------
    problem, packing : the equations, at the Parisi parameters `packing.parisi`.
    origins : overlaps and Parisi parameters from which a first solution is searched in turn.
    rtol : requested relative error.

    Returns
    -------
    BrokenSolution, or None if no origin has a solution from which steps of at least `SHORTEST_MOVE` lead to the end.
    """
    assert packing.parisi is not None
    target, tol = np.log(packing.parisi), SEARCH_TOL
    for levels, parisi in origins:
        origin = np.log(parisi)
        distance = float(np.abs(target - origin).max())

        def at(fraction: float, origin: np.ndarray = origin) -> Packing:
            return replace(packing, parisi=np.exp(origin + fraction * (target - origin)))

        try:
            x = iterate(problem, at(0.0), at(0.0).pack(levels, parisi), DAMPED_STEPS)
            x, _, size, _, _ = newton(problem, at(0.0), x, tol, ROUGH)
        except (WeightsUnbounded, FloatingPointError, np.linalg.LinAlgError):
            continue
        slope = np.zeros_like(x)
        slope[2 : packing.k + 2] = origin - target
        here, step = 0.0, min(1.0, MAX_MOVE / max(distance, MAX_MOVE))
        while size <= tol and here < 1 and step * distance >= SHORTEST_MOVE:
            there = min(here + step, 1.0)
            try:
                new, _, left, _, _ = newton(problem, at(there), x + (there - here) * slope, tol, ROUGH)
            except (WeightsUnbounded, FloatingPointError, np.linalg.LinAlgError):
                left = np.inf
            if not left <= tol:
                step *= 0.5
                continue
            slope, x, here, step = (new - x) / (there - here), new, there, 1.5 * step
        if here == 1:
            return refine_levels(problem, packing, x, rtol)
    return None


def _failed(packing: Packing, levels: Levels, parisi: np.ndarray, status: Status, message: str) -> BrokenSolution:
    """Return a solution without numbers except the overlaps of the last start."""
    k, L = packing.k, len(packing.signs)
    unknown = Indicators(np.nan, np.nan, np.full(k, np.nan), np.full(k + 1, np.nan))
    nothing = np.full(L, np.nan)
    hats = LevelHats(
        np.full((k + 1, L), np.nan),
        nothing,
        nothing,
        nothing,
        nothing,
        np.full(k + 1, np.nan),
        np.full((k + 1, L, L), np.nan),
    )
    point = BrokenPoint(levels, parisi, hats, unknown)
    error = np.full(len(packing.pack(levels, parisi)), np.nan)
    return BrokenSolution(
        status, point, np.nan, np.nan, error, unknown, np.inf, np.inf, 0, 0, [levels], message
    )  # fmt: skip


def first_starts(
    symmetric: Levels, parisi: np.ndarray | None, strengths: tuple[float, ...]
) -> list[tuple[Levels, np.ndarray]]:
    """Return starts with one step and given strengths (q_1 − q_0)/q_1 from replica-symmetric overlaps (q (1, L)).

    The response V + y (q_1 − q_0) of all clusters together is somewhat larger than V with replica symmetry. This
    determines y, or the largest gap if the Parisi parameter (1,) is given.
    """
    q, V = symmetric.q, symmetric.V
    starts = []
    for strength in strengths:
        y = TOTAL * V[:1] / q[0, :1] if parisi is None else parisi
        gap = np.minimum(strength * q, TOTAL * strength * V / y)
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
    return levels._replace(q=top * new[:, None] * np.ones(len(levels.V))), np.exp(
        np.concatenate([[ends[0]], inner, [ends[1]]])
    )
