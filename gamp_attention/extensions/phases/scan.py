"""Boundaries of the phases of one model.

`Scan` solves a branch of state evolution on a grid of α with the coarsest rule. From scans of the two branches the
functions below compute where a branch appears, ends, and gains or loses stability, where both have equal training loss
(α_c), and from where on attention is better than the linear baseline (α_l), with accurate solutions near each root.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools.display import count_noun
from gamp_attention._tools.progress import Progress
from gamp_attention.extensions.phases.branches import continue_branch
from gamp_attention.results import ConvergenceError, Overlaps, Status, add_display
from gamp_attention.theory.fixed_points.newton import BREAKDOWNS, Root, newton
from gamp_attention.theory.fixed_points.observables import predicted_test_error, sector_jacobian, stationary_loss
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.fixed_points.refinement import StateEvolutionResult
from gamp_attention.theory.fixed_points.search import find_fixed_point
from gamp_attention.theory.fixed_points.solve import find_near_teacher, is_off, refine_on_branch
from gamp_attention.theory.linear import LinearBaseline
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.choice import first_rule
from gamp_attention.theory.start_law import start_law

ZERO = {"semantic": "m", "positional": "theta"}  # the overlap family that is zero on each branch
Measure = Callable[..., tuple[float, float]]  # value and error of a function of α, for an accuracy `rtol`


@dataclass(frozen=True, eq=False)
class ScanPoint:
    """Fixed point on the coarsest rule, with the numbers that boundaries compare."""

    root: Root

    @cached_property
    def train_loss(self) -> float:
        """Training loss ε_t."""
        return stationary_loss(self.root.F, self.root.overlaps, self.root.F.images(self.root.overlaps)[0])

    @cached_property
    def test_error(self) -> float:
        """Test error ε_g."""
        return float(predicted_test_error(self.root.F.model, self.root.overlaps, self.root.F.rule).mean())


@dataclass(eq=False)
class Scan:
    """Fixed points on one branch of one model, with the coarsest quadrature rule."""

    model: Model
    branch: str
    points: dict[float, ScanPoint] = field(default_factory=dict)  # points of the branch by α
    lost: set[float] = field(default_factory=set)  # values of α at which the branch was not found
    max_iter: int = 104  # maximum number of iterations; near an end, the branch is continued instead
    points_per_e: float = 2.2  # number of α of the grid for each factor e
    inside: float = 0.04  # relative distance in α from an end at which the branch, which changes fast, is solved too

    def at(self, alpha: float) -> ScanPoint | None:
        """Return the fixed point at α, from known points or from its name; None if there is none."""
        if alpha not in self.points and not self._interpolate(alpha):
            nearest = min([*self.points, *self.lost], key=lambda a: abs(np.log(a / alpha)), default=None)
            if not (nearest in self.points and self.solve(alpha, self.points[nearest].root.overlaps)):
                self.solve(alpha, self.branch)
        return self.points.get(alpha)

    def solve(self, alpha: float, init: Any) -> bool:
        """Solve from the name of the branch or from overlaps; return whether the branch exists at α."""
        F = self.map_at(alpha)
        if not isinstance(init, str):
            return self._add(alpha, find_fixed_point(F, init, self.max_iter))
        root = find_fixed_point(F, start_law(F.model, init).overlaps(F.model), self.max_iter)
        lost = root.status.converged and is_off(init, root.overlaps)
        near = find_near_teacher(F, init, Status.LOST if lost else root.status, self.max_iter)
        return self._add(alpha, near or root)

    def _interpolate(self, alpha: float) -> bool:
        """Solve by Newton steps from overlaps between two known points; return whether the branch was found."""
        below, above = ([a for a in self.points if (a - alpha) * side > 0] for side in (-1, 1))
        if not (below and above):
            return False
        low, high = max(below), min(above)
        weight, ends = (alpha - low) / (high - low), [self.points[low].root, self.points[high].root]
        pairs = zip(*(root.overlaps.arrays().items() for root in ends), strict=True)
        start = Overlaps(**{name: (1 - weight) * a + weight * b for (name, a), (_, b) in pairs})
        return self.step_to(alpha, start, ends[weight > 0.5])

    def map_at(self, alpha: float) -> OverlapMap:
        """Return the map on the coarsest rule."""
        model = self.model.reduced
        return OverlapMap(model, alpha, first_rule("auto", model, (0,)))

    def step_to(self, alpha: float, start: Overlaps, near: Root) -> bool:
        """Solve by Newton steps, with the Jacobian of a nearby root; return whether the branch was found."""
        F = self.map_at(alpha)
        try:
            root = newton(F, start, F.rule.initial_tolerance, jacobian=near.jacobian, packing=near.packing)
        except BREAKDOWNS:
            return False
        return root.status.converged and self._add(alpha, root)

    def _add(self, alpha: float, root: Root) -> bool:
        """Store the root at α; return whether it is on the branch."""
        exists = root.status.converged and not is_off(self.branch, root.overlaps)
        if exists:
            self.points[alpha] = ScanPoint(root)
        (self.lost.discard if exists else self.lost.add)(alpha)
        return exists

    def refine(self, alpha: float, rtol: float) -> StateEvolutionResult:
        """Return the accurate solution at α; raise ConvergenceError if the branch is not found."""
        point = self.at(alpha)
        result = None if point is None else refine_on_branch(point.root, self.branch, rtol)[0]
        if result is None or not np.isfinite(result.relative_error):
            raise ConvergenceError(f"the {self.branch} branch was lost at α = {alpha:.4g}", result)
        return result

    def solve_grid(self, low: float, high: float) -> None:
        """Solve on a grid of α: the semantic branch from high to low α, other branches from low to high.

        If no α of the grid is on the branch, the branch may exist between two of them: then also solve between them.
        """
        grid = np.geomspace(low, high, max(2, int(np.ceil(self.points_per_e * np.log(high / low)))))
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
            return cls.none("not found: the branch was lost on the way, or no root is near")
        return cls(float(value), float(error), note if error <= tol else "error above the tolerance")


def find_ends(scan: Scan, low: float, high: float, tol: float) -> tuple[Boundary, Boundary]:
    """Return the two ends of the branch within a range of α; the branch is continued if named starts do not find it."""
    if not scan.points:
        none = Boundary.none(f"the {scan.branch} branch does not exist in [{low:g}, {high:g}]")
        return none, none
    ends = _end(scan, low, min, tol), _end(scan, high, max, tol)
    for alpha in [alpha for alpha in scan.points if alpha < ends[0].value or alpha > ends[1].value]:
        del scan.points[alpha]  # the branch does not exist there on finer rules
    for end, inward in zip(ends, (1 + scan.inside, 1 - scan.inside), strict=True):
        if np.isfinite(end.value) and scan.points:
            scan.at(end.value * inward)
    return ends


def _end(scan: Scan, last: float, outermost: Callable[..., float], tol: float) -> Boundary:
    """Return the end of the branch toward the smallest (`outermost` is min) or the largest (max) α, `last`."""
    while True:
        here = outermost(scan.points)
        beyond = [alpha for alpha in scan.lost if outermost(alpha, here) == alpha]
        if not beyond:
            return Boundary.none(f"none: the branch continues to α = {last:g}")
        gone = min(beyond, key=lambda alpha: abs(alpha - here))
        between = f"between α = {gone:.4g} and {here:.4g}"
        try:
            path = continue_branch(scan.model, here, scan.points[here].root.overlaps, to=gone)
        except ConvergenceError:
            return Boundary.none(f"not found: {between}")
        last = here
        for index, alpha in enumerate(path.values.tolist()):  # a branch changes fast near its end
            if abs(alpha - last) > scan.inside * last and scan.step_to(alpha, path.at(index), scan.points[last].root):
                last = alpha
        if path.end in ("fold", "vanished"):
            return Boundary.found(path.end_value, path.end_error, tol, path.end)
        if path.end != "reached" or not scan.solve(gone, path.at(-1)):
            return Boundary.none(f"not found: the continuation is {path.end} {between}")


def find_stable_range(scan: Scan, tol: float) -> tuple[Boundary, Boundary]:
    """Return the ends of the range of α in which the branch is stable; if there are several, the last of each kind.

    The stability is against the overlap family that is zero on the branch.
    """
    if not scan.points:
        none = Boundary.none(f"none: there is no {scan.branch} branch")
        return none, none
    family = ZERO[scan.branch]

    def coarse(alpha: float) -> float:
        point = scan.at(alpha)
        return np.nan if point is None else sector_growth(point.root.F, point.root.overlaps, family) - 1

    def accurate(alpha: float, rtol: float) -> tuple[float, float]:
        """Return the growth minus 1 and its error, from successive rules."""
        at, F = scan.refine(alpha, rtol).overlaps, scan.map_at(alpha)
        levels = [F.rule.at_level(1 + int(rtol < 1e-3) + k) for k in (0, 1)]
        growths = [sector_growth(F.on(rule), at, family) for rule in levels]
        return growths[1] - 1, abs(growths[1] - growths[0]) + rtol

    values = [(alpha, coarse(alpha)) for alpha in sorted(scan.points)]
    brackets = _brackets(values)
    if not brackets:
        none = Boundary.none(f"none: the {scan.branch} branch is {'' if values[0][1] < 0 else 'un'}stable throughout")
        return none, none
    start, end = Boundary.none("none: stable from its lower end on"), Boundary.none("none: stable up to its upper end")
    for bracket in brackets:
        boundary = Boundary.found(*locate_root(coarse, accurate, bracket, tol), tol, f"in {family}")
        start, end = (boundary, end) if dict(values)[bracket[1]] < 0 else (start, boundary)
    return start, end


def find_equal_loss(semantic: Scan, positional: Scan, tol: float) -> Boundary:
    """Return α_c, at which the training losses of the two branches are equal, with an error of at most tol if possible.

    Eq. :eq:`boundaries`.
    """
    scans = semantic, positional

    def gap(alpha: float, rtol: float) -> tuple[float, float]:
        a, b = (scan.refine(alpha, rtol) for scan in scans)
        return b.train_loss - a.train_loss, a.train_loss_error + b.train_loss_error

    def coarse(alpha: float) -> float:
        a, b = (scan.at(alpha) for scan in scans)
        return np.nan if a is None or b is None else b.train_loss - a.train_loss

    low, high = (pick(other(scan.points, default=np.nan) for scan in scans) for pick, other in ((max, min), (min, max)))
    alphas = sorted({alpha for scan in scans for alpha in scan.points if low <= alpha <= high})
    values = [(alpha, value) for alpha in alphas if np.isfinite(value := coarse(alpha))]
    brackets = _brackets(values)
    if not brackets:
        lower = "semantic" if values and values[-1][1] > 0 else "positional"
        return _none(f"the {lower} branch has the lower training loss wherever both exist", values)
    boundary = Boundary.found(*locate_root(coarse, gap, brackets[0], tol), tol)
    others = f"{count_noun(len(brackets) - 1, 'further crossing')} at larger α" if len(brackets) > 1 else ""
    return boundary._replace(note="; ".join(filter(None, (boundary.note, others))))


def find_equal_test_error(semantic: Scan, baseline: LinearBaseline, tol: float) -> Boundary:
    """Return α_l, above which the semantic branch has a lower test error than the baseline.

    Eq. :eq:`boundaries`.
    """

    def gap(alpha: float, rtol: float) -> tuple[float, float]:
        se = semantic.refine(alpha, rtol)
        return baseline.test_error - se.test_error, baseline.test_error_error + se.test_error_error

    def coarse(alpha: float) -> float:
        point = semantic.at(alpha)
        return np.nan if point is None else baseline.test_error - point.test_error

    values = [(alpha, coarse(alpha)) for alpha in sorted(semantic.points)]
    brackets = _brackets(values)
    if not brackets:
        word = "beats" if values and values[-1][1] > 0 else "does not beat"
        return _none(f"attention {word} the linear baseline wherever the semantic branch exists", values)
    return Boundary.found(*locate_root(coarse, gap, brackets[-1], tol), tol)


def _none(why: str, values: list[tuple[float, float]]) -> Boundary:
    """Return a boundary without a value, with the reason and the range of α."""
    if not values:
        return Boundary.none("none: there is no α with the branches that it compares")
    return Boundary.none(f"none: {why}, from α = {values[0][0]:.4g} to {values[-1][0]:.4g}")


def _brackets(values: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return neighboring α between which a function, given as pairs (α, f), changes its sign."""
    return [(a[0], b[0]) for a, b in pairwise(values) if a[1] * b[1] < 0]


def locate_root(
    coarse: Callable[[float], float], measure: Measure, ends: tuple[float, float], tol: float, rtol: float = 2e-3,
    max_rounds: int = 6,
) -> tuple[float, float]:  # fmt: skip
    """Return the root of a function of α between two ends, and its error, which is infinite if it is not found.

    Brent's method finds the root and the slope of the function on the coarsest rule (`coarse`). Secant steps with
    measured values follow, whose accuracy is raised from `rtol` on, until the error of the root is within `tol`: the
    error of the value divided by the slope, and a part of the last step for the error of the slope.
    """
    from scipy.optimize import brentq

    values, (low, high) = dict[float, float](), ends

    def evaluate(alpha: float) -> float:
        values[alpha] = coarse(alpha)
        if np.isnan(values[alpha]):
            raise ConvergenceError(f"the branch was lost at α = {alpha:.4g}", None)
        return values[alpha]

    try:
        root = float(brentq(evaluate, low, high, xtol=0.02 * (high - low)))  # evaluated, as is a point next to it
        near = min((alpha for alpha in values if alpha != root), key=lambda alpha: abs(alpha - root))
        slope, slope_error, last = (values[near] - values[root]) / (near - root), 0.5, (root, np.nan)
        for _ in range(max_rounds):
            value, uncertain = measure(root, rtol=rtol)
            if abs(root - last[0]) > tol:
                slope, slope_error = (value - last[1]) / (root - last[0]), 0.3
            step, noise, last = -value / slope, uncertain / abs(slope), (root, value)
            root, error = root + step, noise + slope_error * abs(step)
            if error <= tol or not 2 * low - high < root < 2 * high - low:
                break
            rtol *= np.clip(0.5 * tol / noise, 1e-2, 1.0)
    except (ConvergenceError, ValueError):  # the second if the coarse function has no root
        return np.nan, np.inf
    return root, error


def sector_growth(F: OverlapMap, at: Overlaps, sector: str) -> float:
    """Return the largest real part of the eigenvalues of one sector; NaN if the sector does not exist."""
    values = np.linalg.eigvals(sector_jacobian(F, at, sector))
    return float(values.real.max()) if len(values) else np.nan
