"""Boundaries of the phases of one model.

`Scan` solves a branch of state evolution on a grid of α, and at further values on request. From scans of the two
branches the functions below compute the values of α at which a branch appears, ends, and gains or loses stability, at
which the two branches have equal training loss (α_c), and from which attention is better than the linear baseline
(α_l).

**One step of replica symmetry breaking.** Breaking raises the training losses of both branches by small amounts δ_s and
δ_p. At α_c of replica symmetry both branches have equal training loss, so that with breaking

    α_c changes by approximately (δ_p − δ_s)/(E_s' − E_p'),

where E_s' and E_p' are the slopes of the training losses of the semantic and the positional branch in α. F is
stationary in the overlaps and in the Parisi parameter, so that δ is computed at overlaps from coarse grids, with grids
that are refined until its error is small.

The semantic branch appears at the α from which the state without overlaps, θ = m = 0, is unstable: a small θ becomes
larger by one evaluation of the equations. A branch that is stable against breaking (replicon eigenvalue below 1, and no
jumps of the proximal map) does not change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.progress import Progress
from gamp_attention.baselines.linear import LinearBaseline
from gamp_attention.models.model import Model
from gamp_attention.results import ConvergenceError, Overlaps, Status, add_display
from gamp_attention.state_evolution.continuation.branches import continue_branch, curve_of
from gamp_attention.state_evolution.continuation.crossings import BranchTrack, Growth, TrackPoint, crossing, root_along
from gamp_attention.state_evolution.fixed_points.broken import NEGLIGIBLE_JUMP, require_problem
from gamp_attention.state_evolution.fixed_points.newton import Root, weights_are_tiny
from gamp_attention.state_evolution.fixed_points.observables import family_growth, sector_growth
from gamp_attention.state_evolution.fixed_points.refinement import StateEvolutionResult
from gamp_attention.state_evolution.fixed_points.solve import FAMILY_OF, first_root, is_off, solve_state_evolution
from gamp_attention.state_evolution.rsb.weights import Levels

ROUGH = 1e-2  # tolerance of the overlaps and of α during a scan, enough to identify the branch
MAX_ITER = 104  # iterations of a solution; near an end, where more are needed, the branch is continued instead
POINTS_PER_E = 2.2  # number of α of the grid for each factor e


@dataclass(eq=False)
class Scan:
    """Fixed points on one branch of one model, with the coarsest quadrature rule."""

    model: Model
    branch: str
    points: dict[float, TrackPoint] = field(default_factory=dict)  # points of the branch by α
    lost: dict[float, Root] = field(default_factory=dict)  # other solutions, by α at which the branch was not found
    track: BranchTrack = field(init=False)  # interpolates all of `points`; exists after the first point

    def at(self, alpha: float) -> TrackPoint | None:
        """Return the fixed point at α, continued from known points or started by name; None if there is none."""
        if alpha not in self.points:
            nearest = min([*self.points, *self.lost], key=lambda a: abs(np.log(a / alpha)), default=None)
            if not (nearest in self.points and self._follow(alpha)):
                self.solve(alpha, self.branch)
        return self.points.get(alpha)

    def solve(self, alpha: float, init: Any) -> bool:
        """Solve from a named start or overlaps; return whether the branch exists at α."""
        root = first_root(self.model, alpha, init, MAX_ITER)
        if root.status.converged and self._follow(alpha, root.overlaps):
            self.lost.pop(alpha, None)
            return True
        self.lost[alpha] = root
        return False

    def approach(self, end: float, alpha: float) -> None:
        """Solve at α near an end of the branch.

        The overlap family that the branch is named after vanishes there in proportion to √|α − end|: the start of the
        solution is scaled accordingly.
        """
        inside = [a for a in self.points if (a - end) * (alpha - end) > 0]
        if alpha in self.points or not inside:
            return
        family, guess = FAMILY_OF[self.branch], self.track.guess(alpha).arrays()
        nearest = min(inside, key=lambda a: abs(a - alpha))
        overlap = self.points[nearest].overlaps.arrays()[family]
        guess[family] = overlap * np.sqrt((alpha - end) / (nearest - end))
        if not self._follow(alpha, Overlaps(**guess)):
            self.at(alpha)

    def trim(self, low: float, high: float) -> None:
        """Remove points outside of the range in which the branch exists on finer rules; NaN for no limit."""
        for alpha in [alpha for alpha in self.points if alpha < low or alpha > high]:
            del self.points[alpha]
            self.track.known.pop(alpha, None)

    def spans(self, alpha: float) -> bool:
        """Return whether α lies between values at which the branch was found."""
        return min(self.points, default=np.inf) <= alpha <= max(self.points, default=-np.inf)

    def _follow(self, alpha: float, overlaps: Overlaps | None = None) -> bool:
        """Return whether the branch exists at α, by a step from known points or from overlaps given at α."""
        if overlaps is not None:
            if not hasattr(self, "track"):
                curve = curve_of(self.model, alpha, "alpha", overlaps)
                self.track = BranchTrack(replace(curve, rule=curve.rule.at_level(0)), {}, ROUGH)
            self.track.known[alpha] = overlaps
        point = self.track(alpha, halvings=0)  # smaller steps do not find the branch beyond its end either
        if point is None or is_off(self.branch, point.overlaps):
            self.track.known.pop(alpha, None)
            return False
        self.points[alpha] = point
        return True

    def solve_grid(self, low: float, high: float) -> None:
        """Solve on a grid of α: the semantic branch from high to low α, other branches from low to high.

        If no α of the grid is on the branch, the branch may exist between two of them: then also solve between them.
        """
        grid = np.geomspace(low, high, max(2, int(np.ceil(POINTS_PER_E * np.log(high / low)))))
        for alphas in (grid, np.sqrt(grid[1:] * grid[:-1])):
            with Progress(total=len(alphas)) as task:
                for alpha in alphas[::-1] if self.branch == "semantic" else alphas:
                    task.describe(f"{self.branch} branch at α = {alpha:.3g}")
                    self.at(float(alpha))
                    task.update()
            if self.points:
                return


@add_display
class Boundary(NamedTuple):
    """Value of α at a phase boundary with its error, or NaN and the reason why there is none.

    Attributes
    ----------
    value, error : α and its half-width, or NaN.
    note : the reason if there is no value, otherwise how the branch ends there; may be empty.
    """

    value: float
    error: float
    note: str

    @classmethod
    def none(cls, note: str) -> "Boundary":
        """Return a boundary without a value, with the reason."""
        return cls(np.nan, np.nan, note)

    @classmethod
    def found(cls, value: float, error: float, tol: float, note: str = "") -> "Boundary":
        """Return a root with its error; a boundary without a value if either is not finite."""
        if not np.isfinite(value + error):
            return cls.none("not found: secants did not converge")
        return cls(float(value), float(error), note if error <= tol else "error above the tolerance")


ZERO = {"semantic": "m", "positional": "theta"}  # the overlap family that is zero on each branch


# Settings of the search for the ends of a branch; distances in α are relative
INSIDE = 0.04  # distance from an end at which the branch is solved in addition, as it changes fast there
SLACK = 0.05  # distance outside of an interval of α at which the meeting point computed from it is still accepted
MAX_HALVINGS = 3  # bisections toward an α at which q is tiny, since q changes by orders of magnitude in between
SAME_GROWTH = 0.05  # relative difference below which two growth rates are considered equal


def find_ends(scan: Scan, low: float, high: float, tol: float) -> tuple[Boundary, Boundary]:
    """Return the two ends of the branch within a range of α; the branch is continued if named starts do not find it."""
    if not scan.points:
        none = Boundary.none(f"the {scan.branch} branch does not exist in [{low:g}, {high:g}]")
        return none, none
    ends = _end(scan, high, low, tol), _end(scan, low, high, tol)
    scan.trim(ends[0].value, ends[1].value)
    for end, inward in zip(ends, (1 + INSIDE, 1 - INSIDE), strict=True):
        if np.isfinite(end.value):
            scan.approach(end.value, end.value * inward)
    return ends


def _end(scan: Scan, first: float, last: float, tol: float) -> Boundary:
    """Return the end of the branch toward `last`."""
    downwards, halvings = last < first, 0
    while True:
        here = min(scan.points) if downwards else max(scan.points)
        beyond = [a for a in scan.lost if (a < here if downwards else a > here)]
        if not beyond:
            return Boundary.none(f"none: the branch continues to α = {last:g}")
        gone = max(beyond) if downwards else min(beyond)
        meeting = _meeting(scan, here, gone, tol)
        if meeting is not None:
            return meeting
        if halvings < MAX_HALVINGS and weights_are_tiny(scan.model, scan.lost[gone].overlaps):
            halvings += 1
            scan.at(float(np.sqrt(here * gone)))
            continue
        try:
            path = continue_branch(scan.model, here, scan.points[here].overlaps, to=gone, stability=False)
        except ConvergenceError:
            return Boundary.none(f"not found: between α = {gone:.4g} and {here:.4g}")
        if path.end in ("fold", "vanished"):
            return Boundary.found(path.end_value, path.end_error, tol, path.end)
        if path.end != "reached" or not scan.solve(gone, path.at(-1)):
            return Boundary.none(f"not found: following the branch {path.end} between α = {gone:.4g} and {here:.4g}")


def _meeting(scan: Scan, here: float, gone: float, tol: float) -> Boundary | None:
    """Return the α at which the branch splits off from the branch without its overlap family.

    Return None if this α is not between `here`, at which the branch exists, and `gone`, at which it does not.
    """
    other, family = scan.lost[gone], FAMILY_OF[scan.branch]
    if other.status is not Status.LOST:
        return None
    bare = scan.points[here].overlaps.without(family)
    curve = curve_of(scan.model, here, "alpha", bare)
    meeting = crossing(curve, (gone, here), (other.overlaps.without(family), bare), family, family_growth, tol)
    inside = min(gone, here) * (1 - SLACK) <= meeting.value <= max(gone, here) * (1 + SLACK)
    usable = inside and np.isfinite(meeting.error)
    return Boundary.found(meeting.value, meeting.error, tol, "vanished") if usable else None


def find_stability_changes(scan: Scan, tol: float) -> tuple[list[tuple[Boundary, bool]], bool]:
    """Return the α at which stability changes, and whether the branch is stable at its lowest α.

    The stability is against the overlap family that is zero on the branch. Each change has a flag: whether the branch
    is stable above it.
    """
    sector, alphas = ZERO[scan.branch], sorted(scan.points)

    def growths(measure: Growth, at: list[float]) -> list[float]:
        return [measure(scan.points[alpha].F, scan.points[alpha].overlaps, sector) for alpha in at]

    # `family_growth` takes half the time and is mostly equal to `sector_growth`: it is used if both agree at the ends
    by_family, by_sector = (growths(growth, [alphas[0], alphas[-1]]) for growth in (family_growth, sector_growth))
    measure = family_growth if np.allclose(by_family, by_sector, rtol=SAME_GROWTH) else sector_growth
    rates = growths(measure, alphas)
    changes = []
    for (below, a), (above, b) in pairwise(zip(alphas, rates, strict=True)):
        if (a - 1) * (b - 1) < 0:
            ends = scan.points[below].overlaps, scan.points[above].overlaps
            curve = curve_of(scan.model, above, "alpha", ends[1])
            change = crossing(curve, (below, above), ends, sector, measure, tol)
            changes.append((Boundary.found(change.value, change.error, tol, f"in {sector}"), bool(b < 1)))
    return changes, rates[0] < 1


def find_equal_loss(semantic: Scan, positional: Scan, tol: float) -> Boundary:
    """Return α_c, at which the training losses of the two branches are equal, with an error of at most tol if possible.

    Eq. :eq:`boundaries`.
    """

    def gap(a: TrackPoint, b: TrackPoint) -> float:
        return b.train_loss - a.train_loss

    values = _differences((semantic, positional), gap)
    if not values:
        return Boundary.none("none: there is no α with both branches")
    brackets = _sign_changes(values)
    if not brackets:
        lower = "semantic" if values[-1][1] > 0 else "positional"
        return _none(f"the {lower} branch has the lower training loss wherever both exist", values)
    size = semantic.points[brackets[0][0]].train_loss
    value, error, _ = root_along((semantic.track, positional.track), gap, brackets[0], tol, size)
    boundary = Boundary.found(value, error, tol)
    others = f"; {len(brackets) - 1} more at larger α" if len(brackets) > 1 else ""
    return boundary._replace(note=boundary.note + others)


def find_equal_test_error(semantic: Scan, baseline: LinearBaseline, tol: float) -> Boundary:
    """Return α_l, above which the semantic branch has a lower test error than the baseline.

    Eq. :eq:`boundaries`.
    """
    values = _differences((semantic,), lambda se: baseline.test_error - se.test_error)
    if not values:
        return Boundary.none("none: there is no semantic branch")
    brackets = _sign_changes(values)
    if not brackets:
        word = "beats" if values[-1][1] > 0 else "does not beat"
        return _none(f"attention {word} the linear baseline wherever the semantic branch exists", values)
    size = baseline.test_error
    value, error, slope = root_along((semantic.track,), lambda se: size - se.test_error, brackets[-1], tol, size)
    return Boundary.found(value, error + baseline.test_error_error / abs(slope), tol)


def _none(why: str, values: list[tuple[float, float]]) -> Boundary:
    """Return a boundary without a value, with the reason and the range of α."""
    return Boundary.none(f"none: {why}, from α = {values[0][0]:.4g} to {values[-1][0]:.4g}")


def _sign_changes(values: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return neighboring α between which a function, given as pairs (α, f), changes its sign."""
    return [(a[0], b[0]) for a, b in pairwise(values) if a[1] * b[1] < 0]


def _differences(scans: Sequence[Scan], difference: Callable[..., float]) -> list[tuple[float, float]]:
    """Return (α, difference) for every α of any scan at which all branches exist."""
    for alpha in sorted({alpha for scan in scans for alpha in scan.points}):
        if all(scan.spans(alpha) for scan in scans):
            for scan in scans:
                scan.at(alpha)
    alphas = sorted(set.intersection(*(set(scan.points) for scan in scans)))
    return [(alpha, difference(*(scan.points[alpha] for scan in scans))) for alpha in alphas]


BROKEN_LINES = ("alpha_c_change", "semantic_from_change")
RTOL = 0.1  # relative accuracy of the overlaps with breaking
SYMMETRIC_RTOL = 1e-6  # the same of replica symmetry, because δ is a difference
SLOPE_STEP = 0.02  # relative step in α of the slopes of the training losses
NEAR = 0.01  # relative distance from the α at which the semantic branch appears, at which its stability is computed
SHARE = 0.03  # requested error of δ in units of δ
RESOLUTIONS = (1, 2, 3)  # of the grids on which F is computed, until its error is small enough
SAFETY = 1.5  # error in units of the change by the last refinement
SMALL = 1e-3  # θ in units of √q at which its growth is computed
FIRST_STEP = 0.8  # factor of α in the first step of the search for the end of the branch
END_STEPS, END_RTOL = 10, 1e-3  # maximum number of steps of this search, and relative change of α at which it ends
FINE = (0.03, 1)  # relative accuracy of the overlaps, and resolution, of the last step


def find_changes(model: Model, crossing: Boundary, appearance: Boundary) -> dict[str, Boundary]:
    """Return the changes of α_c and of the α at which the semantic branch appears by one step, from both boundaries."""
    changes = _change_of_crossing(model, crossing), _change_of_end(model, appearance)
    return dict(zip(BROKEN_LINES, changes, strict=True))


def _change_of_crossing(model: Model, crossing: Boundary) -> Boundary:
    """Return the change x of α_c by one step of breaking on the positional branch.

    With the difference g of the training losses with replica symmetry, x is the root of
    g(α_c + x) − g(α_c) − δ(α_c + x), found by two chord steps with the slope of g. The second step times the ratio of
    both is an estimate of the error that remains.
    """
    alpha = crossing.value
    if not np.isfinite(alpha):
        return Boundary.none(f"none: {crossing.note.removeprefix('none: ')}")
    rise = _gap(model, alpha * (1 + SLOPE_STEP))[0] - _gap(model, alpha * (1 - SLOPE_STEP))[0]
    slope = rise / (2 * SLOPE_STEP * alpha)
    start, *symmetric = _gap(model, alpha)
    try:
        first = _difference_of_gains(model, alpha, *symmetric)[0] / slope
        there, *symmetric = _gap(model, alpha + first)
        gain, error = _difference_of_gains(model, alpha + first, *symmetric)
    except ConvergenceError as failure:
        return Boundary.none(f"not found: one step near α_c: {failure}")
    second = (gain - (there - start)) / slope
    return Boundary(first + second, abs(error / slope) + second**2 / abs(first), "")


def _gap(model: Model, alpha: float) -> tuple[float, StateEvolutionResult, StateEvolutionResult]:
    """Return the loss of the semantic branch minus the loss of the positional branch, and both solutions."""
    semantic, positional = (
        solve_state_evolution(model, alpha, branch, rtol=SYMMETRIC_RTOL, stability=False)
        for branch in ("semantic", "positional")
    )
    return semantic.train_loss - positional.train_loss, semantic, positional


def _difference_of_gains(
    model: Model, alpha: float, semantic: StateEvolutionResult, positional: StateEvolutionResult
) -> tuple[float, float]:
    """Return δ_p − δ_s and its error."""
    (below, error), (above, other) = (_gain(model, alpha, branch) for branch in (semantic, positional))
    return above - below, error + other


def _is_stable(symmetric: StateEvolutionResult) -> bool:
    """Return whether replica symmetry is stable: the replicon is below 1, and jumps are negligible."""
    jump, size = float(np.abs(symmetric.jump_mass).max()), float(np.abs(symmetric.V_hat).max())
    return symmetric.replicon < 1 and jump <= NEGLIGIBLE_JUMP * size


def _gain(model: Model, alpha: float, symmetric: StateEvolutionResult) -> tuple[float, float]:
    """Return the difference between the training losses with one step and with replica symmetry, and its error.

    F of one step is computed at its overlaps on grids that are refined until the error is within SHARE. The difference
    counts as zero if the clusters collapse: it decreases as the third power of the gap between both overlaps.
    """
    if _is_stable(symmetric):
        return 0.0, 0.0
    step: Any = solve_state_evolution(model, alpha, symmetric.overlaps, rsb=1, rtol=RTOL)
    if step.status is Status.LOST:
        return 0.0, 0.0
    if not step.converged:
        raise ConvergenceError(step.message, step)
    problem, one = require_problem(model, alpha), np.ones(model.n_tokens)
    m, theta, V = step.overlaps.m[:, 0], step.overlaps.theta[:, 0, 0], step.overlaps.V[:, 0, 0]
    levels, energies = Levels(np.outer(step.levels[:, 0, 0, 0], one), m, theta, V), []
    gain = error = np.nan
    for resolution in RESOLUTIONS:
        hats = problem.hats(levels, step.parisi, resolution)
        energies.append(problem.weights.free_energy(levels, hats, step.parisi))
        if len(energies) > 1:
            gain = energies[-1] - symmetric.train_loss
            error = SAFETY * abs(energies[-1] - energies[-2]) + symmetric.train_loss_error
            if error <= SHARE * abs(gain):
                break
    return gain, error


def _change_of_end(model: Model, appearance: Boundary) -> Boundary:
    """Return the change of the α at which the semantic branch appears; zero if it is stable against breaking there.

    The end with one step is the root of log(growth of θ) in log α, found by secants.
    """
    if not np.isfinite(appearance.value):
        return Boundary.none(f"none: {appearance.note.removeprefix('none: ')}")
    near = solve_state_evolution(model, appearance.value * (1 + NEAR), "semantic", rtol=1e-4, stability=False)
    if not near.converged:
        return Boundary.none(f"not found: the semantic branch where it appears: {near.message}")
    if _is_stable(near):
        return Boundary(0.0, 0.0, f"replicon {near.replicon:.3g}")
    a, b = np.log(appearance.value), np.log(FIRST_STEP * appearance.value)
    try:
        here, there = (_log_growth(model, np.exp(x), RTOL, 0) for x in (a, b))
        for _ in range(END_STEPS):
            slope = (there - here) / (b - a)
            a, b, here = b, b - there / slope, there
            if abs(b - a) < END_RTOL:
                break
            there = _log_growth(model, np.exp(b), RTOL, 0)
        else:
            return Boundary.none(f"not found: the search ended at α = {np.exp(b):.3g}")
        fine = _log_growth(model, np.exp(a), *FINE)
    except ConvergenceError as failure:
        return Boundary.none(f"not found: one step without overlaps: {failure}")
    value = np.exp(a - fine / slope)
    error = SAFETY * abs((fine - here) / slope) * value + END_RTOL * value + appearance.error
    return Boundary(float(value - appearance.value), float(error), "")


def _log_growth(model: Model, alpha: float, rtol: float, resolution: int) -> float:
    """Return the logarithm of the growth of a small θ by one evaluation of the equations with one step."""
    step: Any = solve_state_evolution(model, alpha, "random", rsb=1, rtol=rtol)
    if not step.converged:
        raise ConvergenceError(step.message, step)
    problem, one = require_problem(model, alpha), np.ones(model.n_tokens)
    theta = SMALL * np.sqrt(step.overlaps.q[:, 0, 0])
    levels = Levels(np.outer(step.levels[:, 0, 0, 0], one), 0 * one, theta, step.overlaps.V[:, 0, 0])
    hats = problem.hats(levels, step.parisi, resolution, replicons=False)
    return float(np.log(problem.weights.step(hats, step.parisi).theta[0] / theta[0]))
