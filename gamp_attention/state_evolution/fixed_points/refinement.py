"""From a fixed point on a coarse rule to one of stated accuracy, with the errors of all that is reported.

Numbers of a fixed point on one rule, and their errors from those on other rules or from replicas.

What `solve_state_evolution` returns.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from gamp_attention._core.display import Rows
from gamp_attention._core.numerics import half_width
from gamp_attention.results import Ended, Overlaps, Status, stacked
from gamp_attention.state_evolution.equations.channel import Hats
from gamp_attention.state_evolution.equations.weights import jump_shift
from gamp_attention.state_evolution.fixed_points.newton import BROYDEN, Root, newton, newton_step
from gamp_attention.state_evolution.fixed_points.observables import (
    by_series,
    predicted_test_error,
    slopes_by_series,
    stationary_loss,
)
from gamp_attention.state_evolution.fixed_points.overlap_map import Image, OverlapMap
from gamp_attention.state_evolution.fixed_points.stability import Stability, replicon, validity
from gamp_attention.state_evolution.rules.lines import WorkExceeded
from gamp_attention.state_evolution.rules.rule import work_of

LOSSES = 2  # numbers between overlaps and V̂


@dataclass(frozen=True)
class ErrorSettings:
    """What errors are believed."""

    shift: float = 1.0  # of what a rule gives, in units of its difference from the coarser one: next ones are .02 to .8
    memory: float = 0.05  # of the difference before that one, as two rules can agree by accident
    floor: float = 0.3  # least error of a number in units of the worst, for the same reason
    floor_loss: tuple[float, float] = (0.4, 0.1)  # the same for a loss, where two rules or more tell of it
    passed_on: float = 0.15  # of what errors of overlaps make of ε_g, which those of q and θ together mostly cancel
    step: float = 0.8  # of the last Newton step, in units of itself: its Jacobian is of the first rule
    unresolved: float = 0.95  # least error of an overlap in units of what the split rule leaves unresolved
    unresolved_loss: float = 0.3  # the same for a loss


ERRORS = ErrorSettings()


@dataclass(frozen=True)
class Point:
    """A fixed point of one map, one Newton step from where the map was last evaluated.

    Attributes
    ----------
    root : the solution before that step.
    image : of its overlaps.
    best : packed overlaps after it.
    numbers : `best`, ε_t, ε_g and V̂, as one vector.
    uncertain : errors of these by the step and by the grids of ε_g.
    test_slopes : derivative of ε_g in the packed overlaps; zero where the rule is random, as replicas tell all.
    replicas : the numbers of each replica (R, n), none where the rule is not random.
    """

    root: Root
    image: Image
    best: np.ndarray
    numbers: np.ndarray
    uncertain: np.ndarray
    test_slopes: np.ndarray
    replicas: np.ndarray

    @property
    def overlaps(self) -> Overlaps:
        """The fixed point."""
        return self.root.packing.unpack(self.best)

    @property
    def residual(self) -> float:
        """Largest change of an overlap in a full step, before the last one."""
        return self.root.residual


def point_of(root: Root, slopes: np.ndarray, rtol: float, test_slopes: np.ndarray | None = None) -> Point:
    """Numbers of a root; `slopes` (2, L, r, r, k) are derivatives of V̂ in both forms, `test_slopes` (k,) of ε_g."""
    F, packing, J, x = root.F, root.packing, root.jacobian, root.overlaps
    assert J is not None
    random = not F.rule.deterministic
    image, samples = F.images(x)
    here, there = packing.pack(x), packing.pack(image.overlaps)
    step = newton_step(J, there - here)
    best = here + step
    overlaps = packing.unpack(best)
    train = stationary_loss(F, x, image)
    shift = slopes[0] @ step
    if random:
        tests = predicted_test_error(F.model, overlaps, F.rule)
        test, test_error, test_slopes = float(tests.mean()), 0.0, np.zeros(len(best))
    else:
        test, test_error = by_series(F.model, overlaps, rtol)
        test_slopes = slopes_by_series(F.model, packing, best) if test_slopes is None else test_slopes
    replicas = []
    for k, sample in enumerate(samples if random else []):
        move = newton_step(J, packing.pack(sample.overlaps) - there)
        own = predicted_test_error(F.model, packing.unpack(best + move), F.rule, k)[0]
        V_hat = sample.hats.V + shift + slopes[0] @ move
        own_loss = train + sample.hats.moreau - image.hats.moreau
        replicas.append(np.concatenate([best + move, [own_loss, own], V_hat.ravel()]))
    moved, first_order = float(np.abs(step).max()), float(F.response != "stein")  # with Stein's form ε_t is stationary
    loose = [train * moved * (moved + first_order), test_error + ERRORS.step * test * moved]
    return Point(
        root, image, best,
        np.concatenate([best, [train, test], (image.hats.V + shift).ravel()]),
        np.concatenate([ERRORS.step * np.abs(step), loose, ERRORS.step * np.abs(shift).ravel()]),
        test_slopes,
        np.array(replicas),
    )  # fmt: skip


def size_of(hats: Hats) -> float:
    """The size of V̂ that errors are relative to, of that of its two forms which is larger.

    Stein's goes through zero where jumps make up for the derivative.
    """
    return max(float(np.abs(each).max(initial=0.0)) for each in (hats.V, hats.V_derivative))


def units_of(point: Point) -> np.ndarray:
    """What errors are relative to: overlaps are packed in units, losses go by themselves, V̂ by its size."""
    k = len(point.best)
    losses, V_hat = np.abs(point.numbers[k : k + LOSSES]), point.numbers[k + LOSSES :]
    return np.concatenate([np.ones(k), losses, np.full(len(V_hat), size_of(point.image.hats))])


def errors_of(points: list[Point]) -> np.ndarray:
    """Errors of the last point's numbers, from its replicas or from the points on coarser rules."""
    last, units = points[-1], units_of(points[-1])
    if len(last.replicas):
        error = half_width(last.replicas - last.numbers)
        unresolved = 0.0
    else:
        away = [np.abs(a.numbers - b.numbers) for a, b in pairwise(points[-3:])]
        error = ERRORS.shift * np.max(
            [ERRORS.memory ** (len(away) - 1 - k) * each for k, each in enumerate(away)], axis=0
        )
        unresolved = last.root.F.rule.tol
    error = error + last.uncertain
    k = len(last.best)
    loss = np.zeros(len(units), dtype=bool)
    loss[k : k + LOSSES] = True
    size = np.minimum(np.abs(last.numbers), units)
    error = np.maximum(error, np.where(loss, ERRORS.unresolved_loss, ERRORS.unresolved) * unresolved * size)
    worst = float((error[:k]).max())
    error = np.maximum(error, np.where(loss, ERRORS.floor_loss[len(points) > 2], ERRORS.floor) * worst * size)
    error[k + 1] = max(error[k + 1], ERRORS.passed_on * float(np.linalg.norm(last.test_slopes * error[:k])))
    return error


def response_slopes(root: Root) -> np.ndarray:
    """Derivatives of V̂ in both forms in the packed overlaps of a root, (2, L, r, r, k)."""
    return root.F.response_slopes(root.packing, root.overlaps, BROYDEN.difference)


@dataclass(frozen=True, eq=False)
class StateEvolutionHistory(Overlaps):
    """Overlaps along the iteration, entry 0 being the start."""


@dataclass(frozen=True, eq=False)
class StateEvolutionResult(Ended):
    """A fixed point of state evolution. Errors are half-widths that hold in at least 95 % of cases.

    Attributes
    ----------
    status, converged, n_iter, residual, history : as for every solver; the residual is the largest relative
        change of an overlap in a full step.
    overlaps, train_loss, test_error : of equations (7), (14) and (10).
    overlaps_error, train_loss_error, test_error_error : their errors.
    relative_error : the largest relative error of an overlap, of V̂ and of the losses; for m and θ in units of √q.
    jump_mass, jump_mass_error : (L, r, r) what jumps of the proximal map add to V̂: V̂_Stein − V̂_derivative. Negative:
        g jumps along the direction in which ω moves, and V̂ is −α E[∂g/∂ω].
    V_hat, V_hat_error : (L, r, r) V̂ in Stein's form, and its error.
    replicon, replicon_error : replica symmetry is stable where this is below 1 and the proximal map does not jump.
        Where there is no fixed point on the branch asked for, the replicon at the last overlaps.
    message : what became of the branch asked for, where it is lost.
    stability : eigenvalues of the overlap map by sector, or None where not asked for.
    consistent, validity : whether the replica-symmetric prediction is consistent, and why, in words; where the proximal
        map jumps, with how much lower V of minima is to be expected.
    response, rule : the form of V̂ that was solved with, and the rule that averaged ("split", "lines" or "sobol").
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

    def _rows(self) -> Rows:
        rows = super()._rows()
        if self.stability is not None:
            rows.append(f"  {self.stability.summary()}")
        return [*rows, f"  replica symmetry: {self.validity}"]


@dataclass(frozen=True)
class RefinementSettings:
    """How far fixed points are solved, and how well they are judged."""

    residual: float = 0.5  # before one last Newton step, in units of the accuracy asked for
    step_error: float = 0.1  # the same in units of the error on the last rule
    first_error: float = 1e-2  # to expect of the first rule
    shift_error: float = 0.5  # of what a rule gives, in units of its difference from the coarser one
    # jump mass and replicon judge a prediction and are no part of it; squares of a derivative that diverges where jumps
    # begin converge like square roots, and so does what is asked of them: so many √rtol, but at most `judged_worst`
    judged: tuple[float, float] = (1.0, 10.0)
    judged_worst: float = 0.1
    with_squares: int = 1  # level of the split rule at which the overlaps are solved with squares at once
    judged_drift: float = 5.0  # change of the replicon with that of the overlaps, both relative
    judged_levels: int = 4  # of the split rule that they may take where that is not reached on fewer
    plain: float = 1e-2  # jump mass, relative to V̂, under which there are as good as no jumps
    judged_shift: float = 1.5  # their error in units of the difference from the coarser rule
    # jump mass that may be there where no point is near a jump, relative to V̂, times the points of all replicas
    unseen: float = 20.0
    least_excess: float = 1.01  # error, in units of that asked for, by which a rule is refined at least


REFINEMENT = RefinementSettings()


@dataclass(frozen=True)
class Judgement:
    """Jump mass and replicon with their errors."""

    jump_mass: np.ndarray
    jump_mass_error: np.ndarray
    replicon: float
    replicon_error: float

    def within(self, rtol: float, hats: Hats) -> bool:
        """Whether they are as accurate as is asked for."""
        asked = np.minimum(np.array(REFINEMENT.judged) * np.sqrt(rtol), REFINEMENT.judged_worst)
        return bool(self.jump_mass_error.max() <= asked[0] * size_of(hats) and self.replicon_error <= asked[1])


def refine(root: Root, rtol: float, max_work: float) -> tuple[StateEvolutionResult, Root]:
    """The fixed point on ever finer rules, until all errors are within rtol or the budget ends; and the last root.

    Eq. :eq:`errors`.
    """
    F, J, n_iter, slopes = root.F, root.jacobian, len(root.path) - 1, response_slopes(root)
    points = [point_of(root, slopes, rtol)]
    random, error = not F.rule.deterministic, REFINEMENT.first_error  # errors of others are differences of points
    if random:
        error = _worst(points, errors_of(points))
    x, finer = points[0].overlaps, F.aimed(error / rtol)
    while finer is not None and (len(points) == 1 or work_of(finer.rule, F.model) <= max_work):
        enough = max(REFINEMENT.residual * rtol, 0.0 if random else REFINEMENT.step_error * error, 1e-12)
        try:
            if finer.rule.deterministic and finer.rule.level == REFINEMENT.with_squares:
                with suppress(WorkExceeded):  # without squares there may be enough
                    finer.images(x, squares=True)  # kept, for Newton's method and for the judgement
            last = newton(finer, x, enough, jacobian=J, packing=root.packing)
            if finer.overlooks_jumps(last.overlaps):
                last = newton(finer, last.overlaps, enough, jacobian=J, packing=root.packing)
            points.append(point_of(last, slopes, rtol, points[0].test_slopes))
        except WorkExceeded:
            if len(points) == 1:
                raise
            break
        J, n_iter = last.jacobian, n_iter + len(last.path) - 1
        errors = errors_of(points)
        error = _worst(points, errors)
        if points[-1].residual <= rtol and error <= rtol * (1 + 1e-9):
            break
        x, finer = points[-1].overlaps, finer.aimed(max(error / rtol, REFINEMENT.least_excess))
    judged = _judged(points, slopes, errors, rtol, max_work)
    return _result(points[-1], errors, error, judged, root.path, n_iter, rtol, max_work), points[-1].root


def _worst(points: list[Point], errors: np.ndarray) -> float:
    """The largest error of the last point, relative."""
    return float((errors / (units_of(points[-1]) + 1e-300)).max())


def _judged(points: list[Point], slopes: np.ndarray, errors: np.ndarray, rtol: float, max_work: float) -> Judgement:
    """Jump mass and replicon at the last point, on rules as fine as they need.

    They have levels of their own: what decides on their accuracy, places where jumps begin, leaves overlaps unmoved.
    """
    last = points[-1]
    F, best = last.root.F, last.overlaps
    moved = np.abs(slopes[0] - slopes[1]) @ errors[: len(last.best)]
    if not F.rule.deterministic:
        return _judged_by_replicas(last, slopes, moved, rtol)
    found, before, level = None, None, 0
    done = {each.root.F.rule.level: each for each in points if each.root.F.has_squares(each.root.overlaps)}

    def judgement(jump: np.ndarray, rs: float, other: tuple[np.ndarray, float], tol: float) -> Judgement:
        away = REFINEMENT.judged_shift * np.abs(jump - other[0]) + moved
        unsure = REFINEMENT.judged_shift * abs(rs - other[1])
        return Judgement(jump, np.maximum(away, tol * np.abs(jump)), rs, max(unsure, tol))

    def told(point: Point) -> tuple[np.ndarray, float]:
        """From a point that has them, at overlaps next to the best ones."""
        step = last.best - last.root.packing.pack(point.root.overlaps)
        jump, rs = _pair(F, point.image)
        return jump + (slopes[0] - slopes[1]) @ step, rs

    while level <= max(last.root.F.rule.level, REFINEMENT.judged_levels):
        finer = F.on(F.rule.at_level(level))
        if found is not None and work_of(finer.rule, F.model) > max_work:
            break
        try:
            jump, rs = told(done[level]) if level in done else _pair(F, finer.images(best, squares=True)[0])
        except WorkExceeded:
            break
        if before is not None:
            found = judgement(jump, rs, before, finer.rule.tol)
        elif np.abs(jump).max() < REFINEMENT.plain * np.abs(last.image.hats.V).max():
            # without jumps the last point's panels resolve squares as well
            found = judgement(*told(last), (jump, rs), F.rule.tol)
        if found is not None and level in done:
            step = np.abs(last.best - last.root.packing.pack(done[level].root.overlaps)).max()
            found = replace(found, replicon_error=found.replicon_error + REFINEMENT.judged_drift * step * rs)
        if found is not None and found.within(rtol, last.image.hats):
            break
        before, level = (jump, rs), level + 1
    if found is None:
        unknown = np.full(last.image.hats.V.shape, np.nan)
        return Judgement(
            *((unknown, unknown, np.nan, np.nan) if before is None else (before[0], unknown, before[1], np.nan))
        )
    return found


def _judged_by_replicas(last: Point, slopes: np.ndarray, moved: np.ndarray, rtol: float) -> Judgement:
    """Jump mass and replicon with errors from replicas, the replicon on as few points as will do."""
    F, at = last.root.F, last.root.overlaps
    jumps = np.array([each.hats.jump_mass for each in F.images(at)[1]])
    step = last.best - last.root.packing.pack(at)
    none = jumps.any() or F.contracts(at)  # that could be between the points
    unseen = 0.0 if none else REFINEMENT.unseen / F.rule.work(1) * np.abs(last.image.hats.V)
    jump = last.image.hats.jump_mass + (slopes[0] - slopes[1]) @ step
    G: OverlapMap | None = F.on(F.rule.for_stability())
    while True:
        if G is None or G.rule.work(1) >= F.rule.work(1):
            G = F
        image, samples = G.images(at, squares=True)
        unsure = half_width(np.array([_pair(F, each)[1] for each in samples]))
        found = Judgement(jump, half_width(jumps) + moved + unseen, _pair(F, image)[1], float(unsure))
        if G is F or found.within(rtol, last.image.hats):
            return found
        G = G.finer()


def _pair(F: OverlapMap, image: Image) -> tuple[np.ndarray, float]:
    return image.hats.jump_mass, replicon(F.model, image.hats, F.response)


def _result(
    point: Point, errors: np.ndarray, error: float, judged: Judgement, path: list[Overlaps], n_iter: int, rtol: float,
    max_work: float,
) -> StateEvolutionResult:  # fmt: skip
    """The solution; the path leads to the first rule's, n_iter counts all iterations."""
    F, packing, k = point.root.F, point.root.packing, len(point.best)
    V_hat = point.numbers[k + LOSSES :].reshape(point.image.hats.V.shape)
    hats = replace(point.image.hats, V=V_hat, V_derivative=V_hat - judged.jump_mass)
    known = F.response == "stein" and np.isfinite(judged.jump_mass).all()
    shift = jump_shift(F.model, hats) if known else np.nan
    consistent, words = validity(judged.replicon, float(judged.jump_mass.sum() / V_hat.sum()), shift, F.response)
    accurate = point.residual <= rtol and error <= rtol * (1 + 1e-9)
    solved = accurate and judged.within(rtol, hats)
    budget = f"within {max_work:g} proximal problems an average (max_work)"
    message = "" if solved else f"the relative error is {error:.1g}, not rtol = {rtol:g}, {budget}"
    if accurate and not solved:
        message = f"jump mass or replicon are not as accurate as rtol = {rtol:g} needs {budget}"
    return StateEvolutionResult(
        status=Status.CONVERGED if solved else Status.INACCURATE,
        n_iter=n_iter,
        residual=point.residual,
        history=StateEvolutionHistory(**stacked([*path, point.overlaps])),
        overlaps=point.overlaps,
        overlaps_error=Overlaps(**{name: np.abs(v) for name, v in packing.unpack(errors[:k]).arrays().items()}),
        relative_error=error,
        train_loss=float(point.numbers[k]),
        train_loss_error=float(errors[k]),
        test_error=float(point.numbers[k + 1]),
        test_error_error=float(errors[k + 1]),
        jump_mass=judged.jump_mass,
        jump_mass_error=judged.jump_mass_error,
        V_hat=V_hat,
        V_hat_error=errors[k + LOSSES :].reshape(V_hat.shape),
        replicon=judged.replicon,
        replicon_error=judged.replicon_error,
        stability=None,
        consistent=consistent,
        validity=words,
        response=F.response,
        rule=F.rule.name,
        message=message,
    )
