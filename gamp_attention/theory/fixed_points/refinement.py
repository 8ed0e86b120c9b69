"""Refinement of a fixed point until all reported numbers are within a requested accuracy.

Steps (`refine`), from a fixed point on a coarse quadrature rule:

1. Estimate the error on this rule and choose a finer rule that is likely to reach the requested accuracy.
2. Solve there by Newton steps from the last point, with its Jacobian, and take one more step without evaluating the
   map again. A point (`Point`) holds all reported numbers after that step. Points on random rules of successive sizes
   are averaged (`_average_solutions`). A finer rule may also have more replicas of the same points; then the averages
   of the other replicas are kept, and one Newton step from the overlaps of these averages is taken.
3. Estimate the errors (`errors_of`): for a deterministic rule from the differences between successive rules, for a
   random rule from the spread of its replicas. Repeat from 1 until they are small enough or the budget is used up.
4. Compute the indicators of replica symmetry, jump mass and replicon (`indicators.py`), and build the result.

The constants are chosen so that stated errors hold in 95 % of cases, which `validation` checks on random models.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._tools.display import Rows
from gamp_attention._tools.progress import Progress
from gamp_attention.results import Ended, Overlaps, Status, stack_overlaps
from gamp_attention.theory.equations.symmetry import free_columns
from gamp_attention.theory.equations.units import is_feasible
from gamp_attention.theory.equations.weights import jump_shift
from gamp_attention.theory.fixed_points.indicators import Indicators, measure_indicators
from gamp_attention.theory.fixed_points.newton import Root, newton, newton_step
from gamp_attention.theory.fixed_points.observables import Stability, column_sums, largest_jump_fraction, validity
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap, WorkLimit
from gamp_attention.theory.fixed_points.points import (
    LOSSES,
    POINT,
    Point,
    errors_of,
    point_of,
    response_slopes,
    units_of,
)
from gamp_attention.theory.fixed_points.search import remove_columns
from gamp_attention.theory.rules.rule import WorkExceeded, work_of


@dataclass(frozen=True)
class RefinementSettings:
    """Settings of the refinement; errors are relative."""

    residual: float = 0.5  # residual before the last Newton step, in units of the requested accuracy
    min_amplification: float = 5.0  # ratio of the errors of a loss and of overlaps, above which steps are more accurate
    # the panel rule for labels, whose levels take little time, then continues to this error in units of the requested
    # accuracy, but not below `amplified_limit`: rounding errors are amplified, too
    amplified_error: float = 0.1
    amplified_limit: float = 1e-5
    step_error: float = 0.1  # the same in units of the error on the last rule
    first_error: float = 1e-2  # relative error expected of the first rule
    total_work: float = 5.0  # limit of the work of all averages on random rules, in units of `max_work`
    min_excess: float = 1.01  # smallest factor by which a refinement reduces the error
    zero_errors: float = 2.0  # overlap of a column in units of its error, below which it is set to zero if possible
    squares_level: int = 1  # level at which averages for the overlaps already include squared derivatives
    near_size: float = 8.0  # largest ratio of the numbers of points of random rules whose solutions are averaged
    step_part: float = 1.05  # largest accurate error in units of the error without the part of the last step
    # largest relative error that is stated if replica symmetry is broken; beyond, overlaps of minima may differ by more
    max_broken_error: float = 0.1
    # error left by the last Newton step on random rules, in units of this step, after steps whose remainders are known:
    # the largest remainder in units of its step, times `left_factor` because other steps have other directions
    left_factor: float = 2.0
    min_left: float = 0.25
    min_noise_part: float = 0.7  # part of the requested error that at least is allowed for the noise of the points
    further_steps: int = 2  # maximum number of further steps on a random rule if only the last step limits the accuracy


REFINEMENT = RefinementSettings()


@dataclass(frozen=True, eq=False)
class StateEvolutionHistory(Overlaps):
    """Overlaps along the iteration; entry 0 is the start."""


@dataclass(frozen=True, eq=False)
class StateEvolutionResult(Ended):
    """Fixed point of state evolution. Errors are half-widths of intervals that hold in at least 95 % of cases.

    Attributes
    ----------
    status, converged, n_iter, residual, history : as for every solver; the residual is the largest relative change of
        an overlap in a full step.
    overlaps, train_loss, test_error : overlaps, ε_t and ε_g of equations (7), (14) and (10).
    overlaps_error, train_loss_error, test_error_error : their errors; infinite if `rtol` was not reached, replica
        symmetry is broken, and the relative error is above 10 % or the jump mass is at least V̂.
    relative_error : largest relative error of an overlap, of V̂ and of the losses; for m and θ in units of √q.
    jump_mass, jump_mass_error : (L, r, r) contribution of jumps of the proximal map to V̂, V̂_Stein − V̂_derivative, and
        its error. It is negative, because g jumps along the direction in which ω moves, and V̂ is −α E[∂g/∂ω].
    V_hat, V_hat_error : (L, r, r) V̂ in Stein's form, and its error.
    replicon, replicon_error : replicon eigenvalue and its error. Replica symmetry is stable if it is below 1 and the
        proximal map does not jump. If the requested branch has no fixed point, the replicon at its last overlaps.
    message : explanation if the status is not converged; empty otherwise.
    stability : eigenvalues of the overlap map by sector; None if not requested.
    consistent, validity : whether the replica-symmetric prediction is consistent, and the reason in words; if the
        proximal map jumps, also how much lower V of minima is expected to be.
    response, rule : form of V̂ that was used, and quadrature rule ("panels" or "sobol").
    """

    status: Status
    n_iter: int
    residual: float
    history: StateEvolutionHistory
    overlaps: Overlaps
    overlaps_error: Overlaps
    relative_error: float
    train_loss: float
    train_loss_error: float
    test_error: float
    test_error_error: float
    jump_mass: np.ndarray
    jump_mass_error: np.ndarray
    V_hat: np.ndarray
    V_hat_error: np.ndarray
    replicon: float
    replicon_error: float
    stability: Stability | None
    consistent: bool
    validity: str
    response: str
    rule: str
    message: str = ""

    @property
    def n_steps(self) -> int:
        """Number of steps of replica symmetry breaking: none."""
        return 0

    def _rows(self) -> Rows:
        rows = super()._rows()
        if self.stability is not None:
            rows.append(f"  {self.stability.summary()}")
        return [*rows, f"  replica symmetry: {self.validity}"]


def refine(root: Root, rtol: float, max_work: float) -> tuple[StateEvolutionResult, Root]:
    """Solve on finer and finer rules until all errors are within `rtol`; return the result and the last root.

    The errors are computed as in eq. :eq:`errors`. `max_work` limits the proximal problems of one average, and on
    random rules `total_work` times this number limits all averages. If a limit ends the refinement early, the result
    has status INACCURATE.
    """
    refinement = _Refinement(root, rtol, max_work)
    with Progress(shown=False) as task:  # shown only inside of a task that is shown
        refinement.run(task)
        task.describe("jump mass and replicon")
        return refinement.measure()


class _Refinement:
    """State of `refine`.

    Attributes
    ----------
    points : solutions on successive rules; on random rules averaged over rules of similar sizes.
    estimates : these solutions before they are averaged.
    last : root of the last solution, and `jacobian` its Jacobian.
    slopes : slopes of both forms of V̂ in the overlaps.
    errors, error : errors of all numbers of the last point, and the largest of them relative to its number; infinite
        and `first_error` before the second point of a deterministic rule.
    amplification : ratio of the errors of a loss and of the overlaps, see `_amplify`.
    remainders : residuals after Newton steps on random rules, in units of the steps.
    tol : residual at which the last solution ended.
    n_iter : number of iterations on all rules.
    """

    def __init__(self, root: Root, rtol: float, max_work: float) -> None:
        self.rtol, self.max_work, self.random, self.path = rtol, max_work, not root.F.rule.deterministic, root.path
        self.tol, self.n_iter, self.slopes = root.F.rule.initial_tolerance, len(root.path) - 1, response_slopes(root)
        self.points = [point_of(root, self.slopes, rtol)]
        self.jacobian, self.error, self.amplification = root.jacobian, REFINEMENT.first_error, 1.0
        self.errors = np.full(len(units_of(self.points[0])), np.inf)
        if self.random:  # a deterministic rule needs a second point for an error
            self._estimate_errors()
        self.estimates = list(self.points)
        self.last = self.points[0].root
        self.remainders: list[float] = []

    def run(self, task: Progress) -> None:
        """Solve on finer and finer rules; `task` shows the accuracy so far."""
        finer = self._next_map()
        while finer is not None and (len(self.points) == 1 or work_of(finer.rule, finer.model) <= self.max_work):
            accuracy = f"relative error {self.error:.1g}, rtol = {self.rtol:g} (a larger rtol takes less time)"
            task.describe(accuracy)
            try:
                self._solve(finer)
            except WorkExceeded:
                if len(self.points) == 1 and not self.random:
                    raise
                break
            self._step_again()
            self.amplification = self._amplify()
            if self._is_complete():
                break
            finer = self._next_map()

    def measure(self) -> tuple[StateEvolutionResult, Root]:
        """Return the result at the last point, with the indicators of replica symmetry, and its root."""
        point = self.points[-1]
        self.points[-1] = point = replace(point, root=replace(point.root, F=replace(point.root.F, limit=None)))
        indicators = measure_indicators(self.points, self.slopes, self.errors, self.rtol, self.max_work)
        return self._build_result(point, indicators), point.root

    def _next_map(self) -> OverlapMap | None:
        """Return the map on the rule that is likely to reach the requested accuracy; None if there is none."""
        F, ratio = self.last.F, self.error / self.rtol
        if len(self.points) == 1:
            finer = F.refined_for(ratio)
            if finer is None or not self.random:
                return finer
            return replace(finer, limit=WorkLimit(REFINEMENT.total_work * self.max_work))
        if self.random:  # the part of the step remains
            noise = _error_without_step(self.points)
            ratio = noise / max(self.rtol - (self.error - noise), REFINEMENT.min_noise_part * self.rtol)
        return F.refined_for(max(ratio, REFINEMENT.min_excess))

    def _solve(self, finer: OverlapMap) -> None:
        """Add the solution on a finer rule."""
        x, J, packing = self.points[-1].overlaps, self.jacobian, self.points[-1].root.packing
        if not is_feasible(finer.model, x):  # the Jacobian has an eigenvalue near 1, so that the last step is noise
            x, J = self.last.overlaps, None
        tol = max(REFINEMENT.residual * self.rtol, 0.0 if self.random else REFINEMENT.step_error * self.error)
        self.tol = tol = max(tol / self.amplification, 1e-12)
        if finer.choices is not None:  # more replicas: the others were evaluated at the last root
            self.last = newton(finer, self.last.overlaps, tol, 0, jacobian=J, packing=self.last.packing)
        else:
            self.last = newton(_with_choices_at(finer, x), x, tol, jacobian=J, packing=packing)
            counting = self.last.F.count_jumps(self.last.overlaps)
            if counting is not self.last.F:  # the averages at x, from which the choices follow, showed no jumps
                self.last = newton(counting, self.last.overlaps, tol, jacobian=J, packing=packing)
        self.estimates.append(self._point_of_last())
        self.points.append(_average_solutions(self.estimates))
        self.n_iter += len(self.last.path) - 1
        if self._estimate_errors():
            self.estimates = [self.points[-1]]
        self.last = self.points[-1].root
        self.jacobian = self.last.jacobian

    def _point_of_last(self) -> Point:
        """Return the point after the last root; on random rules the remainder of its last step is recorded."""
        if self.random:
            self.remainders.extend(_remainders_of(self.last))
        # the error that the step leaves, in units of the step, as expected from the remainders of earlier steps
        left = max(REFINEMENT.left_factor * max(self.remainders, default=np.inf), REFINEMENT.min_left)
        left = min(left, POINT.next_step)
        return point_of(self.last, self.slopes, self.rtol, self.points[0].test_slopes, left, self.estimates[-1])

    def _estimate_errors(self) -> bool:
        """Compute the errors of the last point; return whether columns of it were set to zero."""
        self.slopes, self.errors, count = _drop_zero_columns(self.points, self.slopes, self.tol, self.rtol)
        self.jacobian, self.n_iter = self.points[-1].root.jacobian, self.n_iter + count
        self.error = _largest_error(self.points, self.errors)
        return count > 0

    def _step_again(self) -> None:
        """Take further steps on the same rule while only the last step limits the accuracy."""
        for _ in range(REFINEMENT.further_steps if self.random else 1):
            if not self._is_limited_by_step():
                return
            last, there = self.last, self.points[-1].overlaps
            try:
                if self.random:
                    self.last = _take_step(last, there)
                else:
                    self.last = newton(last.F, there, self.tol, jacobian=self.jacobian, packing=last.packing)
                self.estimates[-1] = self._point_of_last()
            except WorkExceeded:
                return
            self.n_iter += 1
            self.points[-1] = _average_solutions(self.estimates)
            self.errors = errors_of(self.points)
            self.error = _largest_error(self.points, self.errors)

    def _is_complete(self) -> bool:
        """Return whether the last point is accurate, and a loss would not profit from a further level."""
        if not _is_accurate(self.points[-1], self.error, self.rtol):
            return False
        # a loss that amplifies errors of the overlaps is computed more accurately if levels take little time
        goal = max(REFINEMENT.amplified_error * self.rtol, min(REFINEMENT.amplified_limit, self.rtol))
        return not (self.last.F.rule.expands and self.amplification > 1 and self.error > goal)

    def _amplify(self) -> float:
        """Return the ratio of the largest relative error to the largest error of an overlap; 1 if it is small.

        Near perfect recovery ε_g is a small difference of large terms, so that it needs overlaps of higher accuracy.
        The ratio is 1 for random rules, whose residuals are limited by single points.
        """
        ratio = self.error / max(float(self.errors[: len(self.points[-1].best)].max()), 1e-12)
        return 1.0 if self.random or ratio <= REFINEMENT.min_amplification else ratio

    def _is_limited_by_step(self) -> bool:
        """Return whether the last Newton step leaves so much of the error that another step is taken.

        Another step is taken if the error exceeds `rtol` only by this part, because a step takes less time than a finer
        rule. On a deterministic rule it is also taken if it would reduce an accurate error by more than a factor
        `step_part`. (For random rules, the change along the step on a coarser rule was tried instead of another
        average. Points at which the proximal map begins to jump gave it a larger error than a step leaves.)
        """
        last, limit = self.points[-1], self.rtol
        if _is_accurate(last, self.error, self.rtol):
            if self.random:
                return False
            limit = self.error / REFINEMENT.step_part
        if last.residual > self.rtol or not is_feasible(last.root.F.model, last.overlaps):
            return False
        return _error_without_step(self.points) <= limit

    def _build_result(self, point: Point, indicators: Indicators) -> StateEvolutionResult:
        """Return the result at the last point."""
        errors, error, rtol = self.errors, self.error, self.rtol
        F, packing, k = point.root.F, point.root.packing, len(point.best)
        V_hat = point.numbers[k + LOSSES :].reshape(point.image.hats.V.shape)
        hats = replace(point.image.hats, V=V_hat, V_derivative=V_hat - indicators.jump_mass)
        has_shift = F.response == "stein" and np.isfinite(indicators.jump_mass).all()
        shift = jump_shift(F.model, hats) if has_shift else np.nan
        jumps = largest_jump_fraction(indicators.jump_mass, column_sums(V_hat))
        consistent, explanation = validity(indicators.replicon, jumps, shift, F.response)
        accurate = _is_accurate(point, error, rtol)
        solved = accurate and indicators.are_accurate(rtol, hats, not F.rule.deterministic)
        total = "" if F.rule.deterministic else f" and {REFINEMENT.total_work * self.max_work:g} in total"
        budget = f"within {self.max_work:g} proximal problems an average (max_work){total}"
        message = "" if solved else f"the relative error is {error:.3g}, not rtol = {rtol:g}, {budget}"
        if accurate and not solved:
            message = f"jump mass or replicon are not as accurate as rtol = {rtol:g} needs {budget}"
        if not accurate and not consistent and (error > REFINEMENT.max_broken_error or abs(jumps) >= 1):
            message = (
                "no errors are stated: replica symmetry, which these equations assume, does not hold here "
                f"({explanation}), and their solution is known only to about {error:.1g} {budget}: "
                "run_gamp and minimize_risk find minima"
            )
            error, errors = np.inf, np.full_like(errors, np.inf)
        return StateEvolutionResult(
            status=Status.CONVERGED if solved else Status.INACCURATE, n_iter=self.n_iter, residual=point.residual,
            history=StateEvolutionHistory(**stack_overlaps([*self.path, point.overlaps])), overlaps=point.overlaps,
            overlaps_error=Overlaps(**{name: np.abs(v) for name, v in packing.unpack(errors[:k]).arrays().items()}),
            relative_error=error, train_loss=float(point.numbers[k]), train_loss_error=float(errors[k]),
            test_error=float(point.numbers[k + 1]), test_error_error=float(errors[k + 1]), V_hat=V_hat,
            V_hat_error=errors[k + LOSSES :].reshape(V_hat.shape), **vars(indicators), stability=None,
            consistent=consistent, validity=explanation, response=F.response, rule=F.rule.name, message=message,
        )  # fmt: skip


def _take_step(root: Root, there: Overlaps) -> Root:
    """Return the root after a Newton step to given overlaps.

    The Jacobian stays the same, because differences over so small a step are noise of points that begin to jump.
    """
    residual = root.packing.pack(root.F(there)) - root.packing.pack(there)
    return replace(root, path=[root.overlaps, there], residual=float(np.abs(residual).max()))


def _remainders_of(root: Root) -> list[float]:
    """Return the Newton step that follows the last step on a path, in units of the last step; empty without steps.

    The ratio is the relative error of the last step, because both steps use averages over the same points.
    """
    if len(root.path) < 2:
        return []
    F, packing, x = root.F, root.packing, root.overlaps
    assert root.jacobian is not None
    following = newton_step(root.jacobian, packing.pack(F(x)) - packing.pack(x))
    return [float(np.abs(following).max() / np.abs(packing.pack(x) - packing.pack(root.path[-2])).max())]


def _average_solutions(points: list[Point]) -> Point:
    """Return the last point with numbers that are averaged over points on random rules of similar sizes.

    Rules of different sizes have independent points, so that the average, with weights proportional to the numbers of
    points, has a smaller error than the last point alone. The averages of the replicas give this error.
    """
    last = points[-1]
    F = last.root.F
    if F.rule.deterministic:
        return last

    def fits(point: Point) -> bool:
        other = point.root.F
        same = point.root.packing is last.root.packing and len(point.replicas) == len(last.replicas)
        counting = other.choices is not None and F.choices is not None
        near = REFINEMENT.near_size * other.rule.work(1) >= F.rule.work(1)
        return bool(same and near and counting and other.choices.counts_jumps == F.choices.counts_jumps)  # type: ignore[union-attr]

    used = [point for point in points if fits(point)]
    sizes = np.array([point.root.F.rule.work(1) for point in used])
    weights = sizes / sizes.sum()

    def average(name: str) -> Any:
        return np.einsum("p,p...->...", weights, np.array([getattr(point, name) for point in used]))

    means = {name: average(name) for name in ("best", "numbers", "uncertain", "replicas")}
    return replace(last, **means) if len(used) > 1 else last


def _drop_zero_columns(
    points: list[Point], slopes: np.ndarray, tol: float, rtol: float
) -> tuple[np.ndarray, np.ndarray, int]:
    """Replace the last point if columns have only overlaps that are zero within their errors, and if zero attracts.

    Only for random rules, on which Newton steps would follow the noise of these overlaps, and columns that may change
    sign alone. Return the slopes of V̂ at the last point, its errors, and the number of overlaps on the path to it.
    """
    errors, last = errors_of(points), points[-1]
    root, theta = last.root, last.overlaps.theta
    if root.F.rule.deterministic:
        return slopes, errors, 0
    error = np.abs(root.packing.unpack(errors[: len(last.best)]).theta)
    candidates = set(free_columns(root.F.model)) - set(root.packing.absent)
    columns = [a for a in candidates if np.all(np.abs(theta[:, a]) <= REFINEMENT.zero_errors * error[:, a])]
    found = remove_columns(replace(root, path=[last.overlaps]), columns, tol) if columns else None
    if found is None:
        return slopes, errors, 0
    reduced, slopes = found[0], slopes @ found[1]
    points[-1] = point_of(reduced, slopes, rtol)
    return slopes, errors_of(points), len(reduced.path)


def _with_choices_at(F: OverlapMap, overlaps: Overlaps) -> OverlapMap:
    """Return the map with choices from the averages at given overlaps.

    At level `REFINEMENT.squares_level` these averages include squared derivatives, so that the indicators need no
    others.
    """
    if F.rule.deterministic and F.rule.level == REFINEMENT.squares_level:
        with suppress(WorkExceeded):  # averages without squares cost less and may be within the budget
            return F.with_choices_at(overlaps, squares=True)
    return F.with_choices_at(overlaps)


def _largest_error(points: list[Point], errors: np.ndarray) -> float:
    """Return the largest relative error of the last point."""
    return float((errors / (units_of(points[-1]) + 1e-300)).max())


def _error_without_step(points: list[Point]) -> float:
    """Return the largest relative error of the last point without the error that its last Newton step leaves."""
    exact = [*points[:-1], replace(points[-1], uncertain=0 * points[-1].uncertain)]
    return _largest_error(exact, errors_of(exact))


def _is_accurate(point: Point, error: float, rtol: float) -> bool:
    """Return whether the residual and the largest relative error are within `rtol`."""
    return point.residual <= rtol and error <= rtol * (1 + 1e-9)
