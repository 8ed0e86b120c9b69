"""Refinement of a fixed point until all reported numbers are within a requested accuracy.

Steps (`refine`), from a fixed point on a coarse quadrature rule:

1. Estimate the error on this rule and choose a finer rule that is likely to reach the requested accuracy.
2. Solve there by Newton steps from the last point, with its Jacobian, and take one more step without evaluating the
   map again. A point (`Point`) holds all reported numbers after that step. If the last random rule is nearly accurate
   enough, the finer rule averages at the last point only, and few points of a coarser rule give the changes.
3. Estimate the errors (`errors_of`): for a deterministic rule from the differences between successive rules, for a
   random rule from the spread of its replicas. Repeat from 1 until they are small enough or the budget is used up.
4. Compute the indicators of replica symmetry, jump mass and replicon. Averages of squared derivatives are limited by
   the points at which the proximal map begins to jump, which hardly affect the overlaps. Therefore the indicators start
   on the coarsest level of a deterministic rule, or on few points of a random rule, and end when their errors are small
   enough.

The constants are chosen so that stated errors hold in 95 % of cases, which `validation` checks on random models.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows
from gamp_attention._tools.progress import Progress, describe
from gamp_attention._tools.roots import refine_until
from gamp_attention._tools.statistics import half_width
from gamp_attention.results import Ended, Overlaps, Status, stack_overlaps
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.equations.units import is_feasible
from gamp_attention.theory.equations.weights import jump_shift
from gamp_attention.theory.fixed_points.newton import Root, newton
from gamp_attention.theory.fixed_points.observables import (
    GRIDS,
    NEGLIGIBLE_JUMPS,
    NearbyTestError,
    Stability,
    average_over_channel,
    column_sums,
    deterministic_test_error,
    largest_jump_fraction,
    nearby_test_error,
    predicted_test_error,
    replicon,
    stationary_loss,
    validity,
)
from gamp_attention.theory.fixed_points.overlap_map import Image, OverlapMap, WorkLimit
from gamp_attention.theory.rules.rule import WorkExceeded, work_of

LOSSES = 2  # number of entries between overlaps and V̂ in a vector of numbers: ε_t and ε_g


@dataclass(frozen=True)
class RefinementSettings:
    """Settings of the refinement; errors are relative."""

    # solutions on successive rules
    residual: float = 0.5  # residual before the last Newton step, in units of the requested accuracy
    step_error: float = 0.1  # the same in units of the error on the last rule
    first_error: float = 1e-2  # relative error expected of the first rule
    # largest relative error squared, in units of the requested error, with which a last point on random rules gives
    # changes of finer averages: their relative noise is some times this error
    anchor: float = 0.04
    total_work: float = 5.0  # limit of the work of all averages on random rules, in units of `max_work`
    min_excess: float = 1.01  # smallest factor by which a refinement reduces the error
    squares_level: int = 1  # level at which averages for the overlaps already include squared derivatives
    min_noise_part: float = 0.7  # part of the requested error that at least is allowed for the noise of the points
    further_steps: int = 2  # maximum number of further steps on a random rule if only the last step limits the accuracy
    step_part: float = 1.05  # largest accurate error in units of the error without the part of the last step
    # largest relative error that is stated if replica symmetry is broken; beyond, overlaps of minima may differ by more
    max_broken_error: float = 0.1
    # errors of a point
    earlier_change: float = 0.05  # weight of the refinement before the last: two rules can agree by accident
    min_error: float = 0.3  # smallest error of an overlap or V̂ in units of the largest error, for the same reason
    min_loss_error: tuple[float, ...] = (0.4, 0.1)  # the same for a loss, after one refinement and after several
    test_slope: float = 0.15  # error of ε_g in units of the summed effects of all overlaps: q and θ mostly cancel
    unresolved: float = 0.95  # smallest error of an overlap or V̂, in units of the rule's unresolved error
    unresolved_loss: float = 0.3  # the same for a loss
    # error left by the last Newton step in units of this step, because its Jacobian is the first rule's; on random
    # rules the largest remainder of a step so far, times `left_factor` because other steps have other directions
    next_step: float = 0.8
    left_factor: float = 2.0
    min_left: float = 0.25
    # indicators: averages of squared derivatives, which diverge where jumps begin, converge like a square root: the
    # requested errors of jump mass and replicon are these multiples of √rtol, but at most `indicator_limit`
    indicator_errors: tuple[float, ...] = (1.0, 10.0)
    indicator_limit: float = 0.1
    shift: float = 1.5  # error of an indicator in units of its change from the coarser level
    drift: float = 5.0  # relative change of the replicon in units of the relative change of the overlaps
    indicator_level: int = 4  # highest level of the panel rule for indicators, if the overlaps need no higher level
    jump_sensitivity: float = 10.0  # relative change of the jump mass in units of the largest change of an overlap
    negligible: float = 1e-6  # V̂, in units of the strength of the penalty, whose relative accuracy has no effect
    unseen: float = 20.0  # unseen jump mass between random points, relative to V̂, times the number of points


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
    overlaps_error, train_loss_error, test_error_error : their errors; infinite near perfect recovery, and if `rtol` was
        not reached, replica symmetry is broken, and the relative error is above 10 % or the jump mass is at least V̂.
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
    response, rule : form of V̂ that was used, and quadrature rule ("panels", "lattice" or "sobol").
    state : map of which the result is a fixed point; None for broken replica symmetry.
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
    state: Any = None

    def average(self, f: Callable[..., Any], n_points: int = 16384, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the average of a function over samples of the training set, for d → ∞, and its error.

        Parameters
        ----------
        f : function f(target, u, omega, z) of N samples that returns an array (N, ...): targets, which are labels
            (N, P) or attention matrices of the teacher (N, L, L); fields of the teacher u (N, L, t); fields ω (N, L, r)
            of the weights that are trained without the sample, as for a new sample; and fields z (N, L, r) of the
            weights that are trained with it.
        n_points : even number of points of each of 8 sets of random points.
        seed : seed of the points.

        Raises
        ------
        TypeError : if `f` is not a function, or replica symmetry is broken.
        ValueError : if `f` returns an array without the samples in front, or the result has no errors because no
            solution was found, or none with finite errors.

        Examples
        --------
        The fraction of new samples whose sign is predicted:

        >>> import numpy as np
        >>> import gamp_attention as ga
        >>> model = ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(), lam=0.1)
        >>> mean, error = ga.solve_state_evolution(model, 2.0).average(
        ...     lambda target, u, omega, z: target[:, 0] * omega[:, 0, 0] > 0
        ... )
        >>> mean.round(2).item(), bool(error < 1e-2)
        (0.58, True)
        """
        check.function("f", f)
        if not np.isfinite(self.relative_error):
            raise check.fail_words("average", f"status {self.status.value!r}", "a solution with errors")
        if self.state is None:
            raise TypeError("average: needs a replica-symmetric solution")
        return average_over_channel(self.state.model, self.overlaps, self.overlaps_error, f, n_points, seed)

    @property
    def n_steps(self) -> int:
        """Number of steps of replica symmetry breaking: none."""
        return 0

    def _rows(self) -> Rows:
        rows = super()._rows()
        if self.stability is not None:
            rows.append(f"  {self.stability.summary()}")
        return [*rows, f"  replica symmetry: {self.validity}"]


@dataclass(frozen=True)
class Point:
    """A fixed point of one map, one Newton step from the overlaps at which the map was last evaluated."""

    root: Root  # the solution before that step
    image: Image  # full step from the overlaps of the root
    best: np.ndarray  # packed overlaps after the Newton step
    numbers: np.ndarray  # `best`, ε_t, ε_g and V̂, as one vector
    uncertain: np.ndarray  # errors of the numbers that are due to the last Newton step and to the grids for ε_g
    test_slopes: np.ndarray  # derivative of ε_g in the packed overlaps; zero for random rules
    replicas: np.ndarray  # the numbers of each replica (R, n); empty if the rule is deterministic

    @property
    def overlaps(self) -> Overlaps:
        """Overlaps of the fixed point."""
        return self.root.packing.unpack(self.best)

    @property
    def units(self) -> np.ndarray:
        """Unit of each number: 1 for overlaps, packed in their units; the value of a loss; the size of V̂.

        V̂ is added to the strength of the penalty, which limits its unit below.
        """
        k, smallest = len(self.best), REFINEMENT.negligible * self.root.F.model.penalty.strength
        losses, V_hat = np.abs(self.numbers[k : k + LOSSES]), self.numbers[k + LOSSES :]
        return np.concatenate([np.ones(k), losses, np.full(len(V_hat), max(size_of_hats(self.image.hats), smallest))])


def point_of(
    root: Root, slopes: np.ndarray, rtol: float, nearby: NearbyTestError | None = None,
    left: float = REFINEMENT.next_step,
) -> Point:  # fmt: skip
    """Return the point of a root, with the numbers after one more Newton step.

    `slopes` (2, L, r, r, k) are the derivatives of V̂ in both forms in the packed overlaps. ε_g is computed to the
    relative error `rtol`, or from the expansion of `nearby` if it has one. The Newton step leaves an error of `left`
    times this step.
    """
    F, packing, x = root.F, root.packing, root.overlaps
    image, samples = F.images(x)
    here, there = packing.pack(x), packing.pack(image.overlaps)
    step = root.step(there - here)
    best = here + step
    train, shift, replicas = stationary_loss(F, x, image), slopes[0] @ step, []
    if F.rule.deterministic:
        nearby = nearby or nearby_test_error(F.model, packing, best)._replace(value=None)
        test_slopes = nearby.slopes
        if nearby.value is None:
            test, test_error = deterministic_test_error(F.model, packing.unpack(best), rtol)
        else:  # the error that will be allowed for the last point
            test = nearby.value(packing.unpack(best))
            test_error = GRIDS.good_labels * rtol * abs(test)
    else:
        moves = np.array([root.step(packing.pack(sample.overlaps) - there) for sample in samples])
        solutions = [packing.unpack(best + move) for move in moves]
        sample_tests = [predicted_test_error(F.model, at, F.rule, k)[0] for k, at in enumerate(solutions)]
        test = float(np.mean(sample_tests))  # the moves have no mean, so that ε_g at `best` differs in second order
        test_error, test_slopes = 0.0, np.zeros(len(best))
        for sample, move, sample_test in zip(samples, moves, sample_tests, strict=True):
            losses = [train + sample.hats.moreau - image.hats.moreau, sample_test]
            replicas.append(np.concatenate([best + move, losses, (sample.hats.V + shift + slopes[0] @ move).ravel()]))
    # ε_t is stationary for Stein's form, so that its error is of second order in the step
    largest, first_order = float(np.abs(step).max()), float(F.response != "stein")
    loss_errors = [train * largest * (largest + first_order), test_error + left * test * largest]
    numbers = np.concatenate([best, [train, test], (image.hats.V + shift).ravel()])
    uncertain = np.concatenate([left * np.abs(step), loss_errors, left * np.abs(shift).ravel()])
    return Point(root, image, best, numbers, uncertain, test_slopes, np.array(replicas))


def size_of_hats(hats: Hats) -> float:
    """Return the unit of errors of V̂: the largest entry of its two forms.

    Stein's form can be zero if jumps compensate the derivative.
    """
    return max(float(np.abs(V).max(initial=0.0)) for V in (hats.V, hats.V_derivative))


def errors_of(points: list[Point]) -> np.ndarray:
    """Return the errors of the last point's numbers, from its replicas or from the points on coarser rules."""
    last, units, k = points[-1], points[-1].units, len(points[-1].best)
    if len(last.replicas):
        error = half_width(last.replicas - last.numbers)
    else:
        changes = [np.abs(a.numbers - b.numbers) for a, b in pairwise(points[-3:])]
        error = changes[-1] if len(changes) == 1 else np.maximum(changes[-1], REFINEMENT.earlier_change * changes[-2])
    error, unresolved = error + last.uncertain, last.root.F.rule.unresolved
    is_loss = (np.arange(len(units)) >= k) & (np.arange(len(units)) < k + LOSSES)
    size = np.minimum(np.abs(last.numbers), units)
    part = np.where(is_loss, REFINEMENT.unresolved_loss, REFINEMENT.unresolved)
    error = np.maximum(error, unresolved * part * size)
    part = np.where(is_loss, REFINEMENT.min_loss_error[len(points) > 2], REFINEMENT.min_error)
    error = np.maximum(error, part * float(error[:k].max()) * size)
    error[k + 1] = max(error[k + 1], REFINEMENT.test_slope * float(np.linalg.norm(last.test_slopes * error[:k])))
    return error


def refine(root: Root, rtol: float, max_work: float) -> tuple[StateEvolutionResult, Root]:
    """Solve on finer and finer rules until all errors are within `rtol`; return the result and the last root.

    The errors are computed as in eq. :eq:`errors`. `max_work` limits the proximal problems of one average, and on
    random rules `total_work` times this number limits all averages. If a limit ends the refinement early, the result
    has status INACCURATE.
    """
    refinement = _Refinement(root, rtol, max_work)
    with Progress(shown=False):  # shown only inside of a task that is shown
        refine_until(refinement.solutions(), rtol)
        describe("jump mass and replicon")
        return refinement.measure()


class _Refinement:
    """State of `refine`.

    Attributes
    ----------
    points : solutions on successive rules.
    slopes : slopes of both forms of V̂ in the overlaps.
    nearby : changes of the test error; None for random rules.
    errors, error : errors of all numbers of the last point, and the largest of them relative to its number; infinite
        and `first_error` before the second point of a deterministic rule.
    remainder : largest residual after Newton steps on random rules, in units of the steps.
    tol : residual at which the last solution ended.
    n_iter : number of iterations on all rules.
    """

    def __init__(self, root: Root, rtol: float, max_work: float) -> None:
        self.rtol, self.max_work, self.random, self.path = rtol, max_work, not root.F.rule.deterministic, root.path
        self.tol, self.n_iter, self.remainder = root.F.rule.initial_tolerance, len(root.path) - 1, 0.0
        if root.F.has_paths:  # the choices of the search were made at its start
            again = replace(root.F, choices=None, expected=root.F.choices)
            root = replace(root, F=again.with_choices_at(root.overlaps))
        known = root.response_slopes
        self.slopes: np.ndarray = root.F.linearize(root.packing, root.overlaps)[1] if known is None else known
        at = root.packing.pack(root.overlaps)
        self.nearby = None if self.random else nearby_test_error(root.F.model, root.packing, at)
        self.points = [point_of(root, self.slopes, rtol, self.nearby)]
        self.error, self.errors = REFINEMENT.first_error, np.full(len(self.points[0].numbers), np.inf)
        if self.random:  # a deterministic rule needs a second point for an error
            self._estimate_errors()

    @property
    def last(self) -> Root:
        """Root of the last solution."""
        return self.points[-1].root

    def _estimate_errors(self) -> None:
        """Compute the errors of the last point."""
        self.errors = errors_of(self.points)
        self.error = _largest_error(self.points[-1], self.errors)

    @property
    def relative_error(self) -> float:
        """Largest relative error or residual; infinite before the first refinement, as the error is a guess then."""
        return np.inf if len(self.points) == 1 else max(self.error, self.last.residual)

    def solutions(self) -> Iterator["_Refinement"]:
        """Solve on finer and finer rules, and yield itself after each."""
        yield self
        finer = self._next_map()
        while finer is not None and (len(self.points) == 1 or work_of(finer.rule, finer.model) <= self.max_work):
            try:
                self._solve(finer)
            except WorkExceeded:
                if len(self.points) == 1 and not self.random:
                    raise
                return
            self._step_again()
            yield self
            finer = self._next_map()

    def _next_map(self) -> OverlapMap | None:
        """Return the map on the rule that is likely to reach the requested accuracy; None if there is none."""
        F, ratio = self.last.F, (self._error_without_step() if self.random else self.error) / self.rtol
        if len(self.points) == 1:
            finer = F.refined_for(ratio)
            if finer is None or not self.random:
                return finer
            return replace(finer, limit=WorkLimit(REFINEMENT.total_work * self.max_work))
        if self.random:  # the part of the step remains
            noise = self._error_without_step()
            ratio = noise / max(self.rtol - (self.error - noise), REFINEMENT.min_noise_part * self.rtol)
        return F.refined_for(max(ratio, REFINEMENT.min_excess))

    def _solve(self, finer: OverlapMap) -> None:
        """Add the solution on a finer rule."""
        last, x = self.last, self.points[-1].overlaps
        J, packing = last.jacobian, last.packing
        if not is_feasible(finer.model, x):  # the Jacobian has an eigenvalue near 1, so that the last step is noise
            x, J = last.overlaps, None
        tol = max(REFINEMENT.residual * self.rtol, 0.0 if self.random else REFINEMENT.step_error * self.error)
        self.tol = tol = max(tol, 1e-12)
        # averages without squares cost less and may be within the budget
        with suppress(WorkExceeded):
            squares = finer.rule.deterministic and finer.rule.level == REFINEMENT.squares_level
            finer = finer.with_choices_at(x, squares=squares)
        if self.random and self.error**2 <= REFINEMENT.anchor * self.rtol:
            rule: Any = last.F.rule
            few = rule.for_stability()
            growth = (rule.n_points / few.n_points) ** rule.rate
            accurate = growth * self.error**2 <= REFINEMENT.anchor * self.rtol
            finer = finer.anchored_at(x, few if accurate else rule, last.F.choices)
        root = newton(finer, x, tol, jacobian=J, packing=packing)
        counting = root.F.count_jumps(root.overlaps)
        if counting is not root.F:  # the averages at x, from which the choices follow, showed no jumps
            root = newton(counting, root.overlaps, tol, jacobian=J, packing=packing)
        self.n_iter += len(root.path) - 1
        self.points.append(self._point_of(root))
        self._estimate_errors()

    def _point_of(self, root: Root) -> Point:
        """Return the point of a root; on random rules the remainder of its last step is recorded.

        The remainder is the Newton step that follows, in units of the last step: its relative error, because both steps
        use averages over the same points.
        """
        F, packing, x = root.F, root.packing, root.overlaps
        if self.random and len(root.path) > 1:
            following = root.step(packing.pack(F(x)) - packing.pack(x))
            length = np.abs(packing.pack(x) - packing.pack(root.path[-2])).max()
            self.remainder = max(self.remainder, float(np.abs(following).max() / length))
        known = max(REFINEMENT.left_factor * self.remainder, REFINEMENT.min_left) if self.remainder else np.inf
        return point_of(root, self.slopes, self.rtol, self.nearby, min(known, REFINEMENT.next_step))

    def _step_again(self) -> None:
        """Take further steps on the same rule while only the last step limits the accuracy.

        A step takes less time than a finer rule. On a deterministic rule a step is also taken if it would reduce an
        accurate error by more than a factor `step_part`. On a random rule the Jacobian stays the same, because
        differences over so small a step are noise of points that begin to jump.
        """
        for _ in range(REFINEMENT.further_steps if self.random else 1):
            last, point = self.last, self.points[-1]
            accurate, there = self.relative_error <= self.rtol, point.overlaps
            if (accurate and self.random) or last.residual > self.rtol or not is_feasible(last.F.model, there):
                return
            if self._error_without_step() > (self.error / REFINEMENT.step_part if accurate else self.rtol):
                return
            try:
                if self.random:
                    residual = last.packing.pack(last.F(there)) - last.packing.pack(there)
                    root = replace(last, path=[last.overlaps, there], residual=float(np.abs(residual).max()))
                else:
                    root = newton(last.F, there, self.tol, jacobian=last.jacobian, packing=last.packing)
                self.points[-1] = self._point_of(root)
            except WorkExceeded:
                return
            self.n_iter += 1
            self._estimate_errors()

    def _error_without_step(self) -> float:
        """Return the largest relative error of the last point without the error that its last Newton step leaves."""
        exact = replace(self.points[-1], uncertain=0 * self.points[-1].uncertain)
        return _largest_error(exact, errors_of([*self.points[:-1], exact]))

    def measure(self) -> tuple[StateEvolutionResult, Root]:
        """Return the result at the last point, with the indicators of replica symmetry, and its root."""
        root = replace(self.last, F=replace(self.last.F, limit=None))
        self._add_test_error()
        self.points[-1] = point = replace(self.points[-1], root=root)
        indicators = (self._measure_by_replicas if self.random else self._measure_on_levels)()
        errors, error, rtol = self.errors, self.relative_error, self.rtol
        F, packing, k = root.F, root.packing, len(point.best)
        V_hat = point.numbers[k + LOSSES :].reshape(point.image.hats.V.shape)
        hats = replace(point.image.hats, V=V_hat, V_derivative=V_hat - indicators.jump_mass)
        has_shift = F.response == "stein" and np.isfinite(indicators.jump_mass).all()
        jumps = largest_jump_fraction(indicators.jump_mass, column_sums(V_hat))
        shift = jump_shift(F.model, hats) if has_shift else np.nan
        consistent, explanation = validity(indicators.replicon, jumps, shift, F.response)
        accurate = self.relative_error <= self.rtol
        solved = accurate and indicators.are_accurate(rtol, hats, self.random)
        total = f" and {REFINEMENT.total_work * self.max_work:g} in total" if self.random else ""
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
            status=Status.CONVERGED if solved else Status.INACCURATE, n_iter=self.n_iter, residual=root.residual,
            history=StateEvolutionHistory(**stack_overlaps([*self.path, point.overlaps])), overlaps=point.overlaps,
            overlaps_error=Overlaps(**{name: np.abs(v) for name, v in packing.unpack(errors[:k]).arrays().items()}),
            relative_error=error, train_loss=float(point.numbers[k]), train_loss_error=float(errors[k]),
            test_error=float(point.numbers[k + 1]), test_error_error=float(errors[k + 1]), V_hat=V_hat,
            V_hat_error=errors[k + LOSSES :].reshape(V_hat.shape), **vars(indicators), stability=None,
            consistent=consistent, validity=explanation, response=F.response, rule=F.rule.name, message=message,
            state=OverlapMap(F.model, F.alpha, F.rule, F.response),
        ), root  # fmt: skip

    def _add_test_error(self) -> None:
        """Replace ε_g to first order in the overlaps, which the points have if it has an expansion, by its value."""
        last = self.points[-1]
        if self.nearby is None or self.nearby.value is None:
            return
        value, error = deterministic_test_error(last.root.F.model, last.overlaps, self.rtol)
        number = len(last.best) + 1
        last.uncertain[number] += error - GRIDS.good_labels * self.rtol * abs(last.numbers[number])
        shift = value - last.numbers[number]
        for point in self.points:
            point.numbers[number] += shift
        self._estimate_errors()

    def _jump_mass(self, point: Point) -> np.ndarray:
        """Return the jump mass of a point, to first order at the overlaps of the last point."""
        slopes = 0.0 * self.slopes if self.last.F.is_noisy else self.slopes  # a difference of noisy numbers is noise
        step = self.points[-1].best - self.last.packing.pack(point.root.overlaps)
        return point.image.hats.jump_mass + (slopes[0] - slopes[1]) @ step

    def _measure_on_levels(self) -> "Indicators":
        """Return the indicators from successive levels of a deterministic rule, until they are accurate."""
        last, F, k = self.points[-1], self.last.F, len(self.points[-1].best)
        # error of the jump mass, which is the difference of both forms of V̂, due to the errors of the overlaps
        propagated = np.abs((self.slopes[0] - self.slopes[1]) @ self.last.basis) @ self.errors[:k]
        solved = {
            point.root.F.rule.level: point for point in self.points if point.root.F.has_squares(point.root.overlaps)
        }
        unknown = np.full(last.image.hats.V.shape, np.nan)
        indicators, coarser = Indicators(unknown, unknown, np.nan, np.nan), None
        for level in range(max(F.rule.level, REFINEMENT.indicator_level) + 1):
            G, drift = F.on(F.rule.at_level(level)), 0.0
            if np.isfinite(indicators.replicon_error) and work_of(G.rule, G.model) > self.max_work:
                break
            if level in solved:  # the averages at a nearby point are used and corrected for the distance
                point = solved[level]
                mass, value = self._jump_mass(point), replicon(F.model, point.image.hats, F.response)
                drift = REFINEMENT.drift * value * np.abs(last.best - last.root.packing.pack(point.root.overlaps)).max()
            else:
                try:
                    image = G.images(last.overlaps, squares=True)[0]
                except WorkExceeded:
                    break
                mass, value = image.hats.jump_mass, replicon(F.model, image.hats, F.response)
            tol, measured = G.rule.tol, (mass, value)
            if coarser is None and np.abs(mass).max() < NEGLIGIBLE_JUMPS * np.abs(last.image.hats.V).max():
                # without jumps, the averages of the last point resolve squares as well
                coarser, tol = measured, F.rule.tol
                mass, value = self._jump_mass(last), replicon(F.model, last.image.hats, F.response)
            if coarser is None:
                indicators = Indicators(mass, unknown, value, np.nan)
            else:
                mass_error = REFINEMENT.shift * np.abs(mass - coarser[0]) + propagated
                value_error = max(REFINEMENT.shift * abs(value - coarser[1]), tol) + drift
                indicators = Indicators(mass, np.maximum(mass_error, tol * np.abs(mass)), value, value_error)
                if indicators.are_accurate(self.rtol, last.image.hats):
                    break
            coarser = measured
        return indicators

    def _measure_by_replicas(self) -> "Indicators":
        """Return the indicators with errors from replicas; the replicon on as few points as its accuracy allows."""
        last, F, at, k = self.points[-1], self.last.F, self.last.overlaps, len(self.points[-1].best)
        propagated = np.abs(self.slopes[0] - self.slopes[1]) @ self.errors[:k]
        if F.is_noisy:
            propagated = REFINEMENT.jump_sensitivity * self.errors[:k].max() * np.abs(last.image.hats.jump_mass)
        jumps = np.array([image.hats.jump_mass for image in F.images(at)[1]])
        # if no point is near a jump, jumps may still lie between the points
        all_seen = jumps.any() or F.contracts(at)
        unseen = 0.0 if all_seen else REFINEMENT.unseen / F.rule.work(1) * np.abs(last.image.hats.V)
        mass, mass_error = self._jump_mass(last), half_width(jumps) + propagated + unseen
        coarse: OverlapMap | None = F.on(F.rule.for_stability())
        while True:
            if coarse is None or coarse.rule.work(1) >= F.rule.work(1):
                coarse = F
            coarse = coarse.with_choices_at(at, squares=True)
            image, samples = coarse.images(at, squares=True)
            values = np.array([replicon(F.model, sample.hats, F.response) for sample in samples])
            value = replicon(F.model, image.hats, F.response)
            indicators = Indicators(mass, mass_error, value, float(half_width(values)))
            if coarse is F or indicators.are_accurate(self.rtol, last.image.hats, random=True):
                return indicators
            coarse = coarse.finer()


def _largest_error(point: Point, errors: np.ndarray) -> float:
    """Return the largest relative error of a point."""
    return float((errors / (point.units + 1e-300)).max())


@dataclass(frozen=True)
class Indicators:
    """Indicators of replica symmetry: jump mass (L, r, r) and replicon eigenvalue, with errors; NaN if unknown."""

    jump_mass: np.ndarray
    jump_mass_error: np.ndarray
    replicon: float
    replicon_error: float

    def are_accurate(self, rtol: float, hats: Hats, random: bool = False) -> bool:
        """Return whether both errors are as small as `rtol` requires.

        On a random rule, no accuracy is required of the replicon if the jump mass of a column shows already, beyond its
        error, that replica symmetry is broken: squared derivatives then have no finite variance.
        """
        allowed = np.minimum(np.array(REFINEMENT.indicator_errors) * np.sqrt(rtol), REFINEMENT.indicator_limit)
        certain = np.minimum(column_sums(self.jump_mass) + column_sums(self.jump_mass_error), 0.0)
        decided = random and (-certain > NEGLIGIBLE_JUMPS * np.abs(column_sums(hats.V))).any()
        known = bool(self.jump_mass_error.max() <= allowed[0] * size_of_hats(hats))
        return known and bool(decided or self.replicon_error <= allowed[1])
