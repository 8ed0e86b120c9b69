"""Pseudo-arclength continuation: points of the curve F(x; p) = x around folds of the parameter p, and its ends.

The method is from Keller (1977). The unknowns are u = (x, p), and the unit tangent of the curve is the null vector of
the Jacobian of F(x; p) − x in u. A step (`walk`) has three parts:

1. Predict: move by an arclength along the tangent.
2. Correct: Newton steps in the plane through the prediction that is normal to the tangent (`_correct`). In this plane
   the system is regular at a fold as well. Broyden's updates (Broyden, 1965) replace new Jacobians. A correction that
   fails or takes long steps is abandoned, because a shorter arclength is cheaper than the line search of `newton`.
3. Accept the point if the tangent turned by a small angle, and otherwise halve the arclength.

The ends of a branch are located from points next to them (`locate_fold`, `locate_meeting`, `locate_vanishing`), and
shifted by the change of the parameter on the next finer rule.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from gamp_attention._tools.roots import NonlinearSystem, RootSettings, differences, find_root
from gamp_attention.results import ConvergenceError, Overlaps
from gamp_attention.theory.equations.units import Packing, is_feasible
from gamp_attention.theory.fixed_points.newton import BREAKDOWNS, family_size, newton
from gamp_attention.theory.fixed_points.observables import family_growth
from gamp_attention.theory.fixed_points.overlap_map import Choices, OverlapMap
from gamp_attention.theory.models.model import Model, with_parameter
from gamp_attention.theory.rules.rule import Rule


@dataclass(frozen=True)
class WalkSettings:
    """Settings of the continuation; arclengths are in units of the overlaps and the parameter."""

    first_arc: float = 0.05  # arclength of the first step
    min_arc: float = 1e-4  # arclength of a step below which the continuation gives up
    max_arc: float = 0.3  # largest arclength of a step, and largest Newton step
    min_cosine: float = 0.9  # smallest cosine between a step and the tangents at its ends, so that no fold is skipped
    # cosine between a step and the tangent below which the Jacobian is computed again, and smallest cosine between a
    # step and the tangents at its ends on curves that cross others, so that no step ends on another curve
    straight: float = 0.98
    singular: float = 0.2  # ratio of determinants from which a point on such a curve is too close to a crossing
    residual: float = 1e-5  # residual of a point at which Newton steps end
    noisy_residual: float = 5e-5  # largest residual of a point, because jumps of the proximal map leave noise
    max_corrections: int = 6  # maximum number of Newton steps to a point; if more are needed, the arclength is halved
    few_corrections: int = 3  # number of Newton steps up to which the next step is longer and the Jacobian is reused
    longer: float = 1.5  # factor of the next arclength in this case
    difference: float = 5e-3  # step of finite differences of the residual
    flat: float = 1e-12  # singular value that counts as zero, for Jacobians where branches cross
    shift_error: float = 0.5  # error of a fold, in units of its shift by the next finer rule
    zero: float = 1e-2  # size below which m or θ, in units of √q, or q, in units of its first value, counts as zero
    meeting_step: float = 0.01  # relative change of the parameter for the first slope where branches meet
    min_secant: float = 1e-3  # relative change of the parameter below which the growth is too inaccurate for a slope
    meeting_residual: float = 1e-4  # residual of the branch without the family there, or of points near vanishing
    max_meeting: int = 20  # maximum number of Newton steps to them
    small: float = 0.1  # q, in units of its first value, below which units are smaller from there
    end_size: float = 1e-3  # q, in units of its first value, above which residuals of points are negligible
    max_parabolas: int = 5  # maximum number of parabolas fitted to an end, and of polynomials to a crossing
    parabola_arc: float = 0.04  # smallest half-width of a fit, for which the noise of the averages is negligible
    closed: float = 1e-3  # distance from its first point at which a curve is closed: above the errors of points
    closer: float = 0.25  # half-width of the next polynomial of a crossing, in units of the interval that contains it


WALK = WalkSettings()
CORRECTIONS = RootSettings(max_steps=WALK.max_corrections, max_move=WALK.max_arc)


@dataclass(frozen=True)
class Curve:
    """Equations G(u) = 0 of a curve in the unknowns u = (x, p), base class."""

    unit: float  # the parameter is unit · sinh(p): steps are linear up to the unit and logarithmic beyond
    limits: dict[float, float]  # p of some values of the parameter, at which it has exactly these values
    crosses = False  # whether the curve is followed straight across others, which takes more evaluations

    def value(self, p: float) -> float:
        """Return the parameter value at p."""
        return self.limits.get(p, float(self.unit * np.sinh(p)))

    @property
    def tol(self) -> float:
        """Residual of a point at which Newton steps end."""
        return WALK.residual

    def residual(self, u: np.ndarray) -> np.ndarray:
        """Return G(u) (n,) at u (n + 1,); FloatingPointError where it is undefined."""
        raise NotImplementedError

    def derivative(self, u: np.ndarray) -> np.ndarray:
        """Return the derivative (n, n + 1) of the residual in u, by differences.

        Close to a crossing it is small, and the error of one-sided differences is not.
        """
        here, steps = self.residual(u), np.full(len(u), WALK.difference)
        sides = (1, -1) if self.crosses else (1,)
        return np.asarray(np.mean([differences(self.residual, u, here, side * steps) for side in sides], axis=0))

    def finer(self) -> "Curve | None":
        """Return the curve with more accurate equations; None if there is none."""
        raise NotImplementedError


@dataclass(frozen=True)
class BranchCurve(Curve):
    """Fixed-point equations F(x; p) − x = 0 along a curve, in the scaled unknowns u = (x, p)."""

    model: Model
    alpha: float  # sample complexity, if it is not the parameter
    parameter: str
    rule: Rule
    packing: Packing  # conversion between overlaps and x

    def map(self, u: np.ndarray) -> OverlapMap:
        """Return the overlap map at the parameter value of u."""
        value = self.value(float(u[-1]))
        alpha = value if self.parameter == "alpha" else self.alpha
        F = OverlapMap(with_parameter(self.model, self.parameter, value).reduced, alpha, self.rule)
        # Stein's form of V̂ is continuous on random points; at kinks, average derivatives jump by more than the residual
        return replace(F, choices=Choices(counts_jumps=True, rare_minima=False)) if F.has_paths else F

    def finer(self) -> "BranchCurve | None":
        """Return the curve on the next finer rule; None if there is none."""
        rule = self.rule.finer()
        return None if rule is None else replace(self, rule=rule)

    def overlaps(self, u: np.ndarray) -> Overlaps:
        """Return the overlaps at u."""
        return self.packing.unpack(u[:-1])

    def residual(self, u: np.ndarray) -> np.ndarray:
        """Return F(x; p) − x (n,) at u (n + 1,); FloatingPointError if x is infeasible or the map breaks down."""
        with suppress(*BREAKDOWNS, ValueError):
            F, x = self.map(u), self.overlaps(u)
            if F.alpha > 0 and is_feasible(F.model, x):
                return self.packing.pack(F(x)) - u[:-1]
        raise FloatingPointError("the overlaps are infeasible, or the map breaks down")

    def derivative(self, u: np.ndarray) -> np.ndarray:
        """Return the derivative (n, n + 1) of the residual in u, as of Newton steps in the overlaps."""
        J, _ = self.map(u).linearize(self.packing, self.overlaps(u))
        ahead = self.residual(u + WALK.difference * np.eye(len(u))[-1])
        return np.column_stack([J - np.eye(len(J)), (ahead - self.residual(u)) / WALK.difference])


def derivative(curve: Curve, u: np.ndarray) -> np.ndarray:
    """Return the derivative (n, n + 1) of the residual in u; NaN where it is undefined."""
    with suppress(*BREAKDOWNS):
        return curve.derivative(u)
    return np.full((len(u) - 1, len(u)), np.nan)


def walk(curve: Curve, guess: np.ndarray, goal: float, other: float = np.nan) -> Iterator[np.ndarray]:
    """Yield points of the curve from the point next to `guess` toward p = `goal`, continuing around folds.

    There is a point at each passage of p = `goal` and of p = `other`. If the curve crosses others, the determinant of J
    with the tangent as last row is zero at a crossing. Then corrections begin with J at the prediction, because J at
    the last point leads away from the curve beyond a crossing, and points close to a crossing are not accepted.

    Raises
    ------
    ConvergenceError : if there is no point next to `guess` with the same parameter.
    """
    fixed = np.append(np.zeros(len(guess) - 1), 1.0)  # normal of the planes of constant parameter
    J = derivative(curve, guess)
    corrected = _correct(curve, guess, fixed, J)
    if corrected is None:
        raise ConvergenceError("the curve: found no fixed point at which it could start", None)
    u, J, _ = corrected
    yield u
    tangent = _tangent(J, np.sign(goal - u[-1]) * fixed)
    step = WALK.first_arc
    while step >= WALK.min_arc:
        ahead, towards, near = u + step * tangent, tangent, None if curve.crosses else J
        passed = [p for p in (goal, other) if (ahead[-1] - p) * (u[-1] - p) <= 0 and u[-1] != p]
        corrected = None if passed else _correct(curve, ahead, tangent, near)
        if corrected is not None:
            towards = corrected[0] - u
            passed = [p for p in (goal, other) if (corrected[0][-1] - p) * (u[-1] - p) < 0]
        if passed:  # solve there instead
            ahead = u + (passed[0] - u[-1]) / towards[-1] * towards
            ahead[-1] = passed[0]
            corrected = _correct(curve, ahead, fixed, near)
        if corrected is not None:
            there, J_there, corrections = corrected
            chord = there - u
            direction = chord / np.linalg.norm(chord)
            if curve.crosses or corrections > WALK.few_corrections or direction @ tangent < WALK.straight:
                J_there = derivative(curve, there)
            turned, min_cosine = _tangent(J_there, direction), WALK.min_cosine
            if curve.crosses:
                before, after = (abs(np.linalg.det(np.vstack(rows))) for rows in ((J, tangent), (J_there, turned)))
                min_cosine = np.inf if after < WALK.singular * before and not passed else WALK.straight
            if min(direction @ tangent, direction @ turned) >= min_cosine:
                u, J, tangent = there, J_there, turned
                yield u
                longer = WALK.longer if corrections <= WALK.few_corrections else 1.0
                step = min(step * longer, WALK.max_arc)
                continue
        step *= 0.5
        J = derivative(curve, u)  # Broyden's updates may have made J inaccurate
        tangent = _tangent(J, tangent)


def _tangent(J: np.ndarray, towards: np.ndarray) -> np.ndarray:
    """Return the unit null vector of J (n, n + 1) on the side of `towards`; `towards` if J is not finite."""
    tangent = np.linalg.svd(J)[2][-1] if np.isfinite(J).all() else towards
    return tangent if tangent @ towards >= 0 else -tangent


class _Plane(NonlinearSystem):
    """Equations of a curve in the plane through u with a given normal."""

    difference, flat = WALK.difference, WALK.flat

    def __init__(self, curve: Curve, u: np.ndarray, normal: np.ndarray) -> None:
        self.curve, self.u, self.normal = curve, u, normal

    def residual(self, u: np.ndarray) -> np.ndarray:
        """Return the residual of the curve and the distance from the plane (n + 1,)."""
        return np.append(self.curve.residual(u), self.normal @ (u - self.u))


def _correct(
    curve: Curve, u: np.ndarray, normal: np.ndarray, J: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Solve in the plane through u with a given normal; return the point, J and the number of Newton steps, or None.

    They begin with the Jacobian J (n, n + 1), or if it is None, with the Jacobian at u.
    """
    with suppress(FloatingPointError, np.linalg.LinAlgError):
        rows = None if J is None else np.vstack([J, normal])
        root = find_root(_Plane(curve, u, normal), u, curve.tol, CORRECTIONS, rows)
        solved, near = root.arrived or root.size <= WALK.noisy_residual, np.linalg.norm(root.x - u) <= WALK.max_arc
        if solved and near:
            there = np.where(normal == 1, u, root.x)  # a given parameter is kept exactly
            J = derivative(curve, there) if root.jacobian is None else root.jacobian[:-1]
            return there, J, len(root.path) - 1
    return None


def find_end(curve: BranchCurve, points: list[np.ndarray]) -> str | None:
    """Return the reason for which a branch ends at the last points, or None.

    It is "fold" if the parameter changed its direction, or "m" or "theta" if this family goes to zero, either as a
    branch without it crosses, or together with all weights. A family does not end the branch if it is zero at its first
    point, or if the overlaps without it are no solution, as of an intercept that changes its sign.
    """
    if len(points) < 3:
        return None
    first, old, new = (curve.overlaps(points[k]) for k in (0, -3, -1))
    for name in sorted({"m", "theta"}.intersection(curve.packing.names)):
        changes_sign = np.sum(getattr(old, name) * getattr(new, name)) < 0
        is_small = changes_sign or family_size(new, name) < WALK.zero
        if is_small and family_size(first, name) > WALK.zero and _stays_zero(curve, points[-1], name):
            return name
    a, b, c = (u[-1] for u in points[-3:])
    return "fold" if (b - a) * (c - b) < 0 else None


def _stays_zero(curve: BranchCurve, u: np.ndarray, family: str) -> bool:
    """Return whether the map leaves a family at zero, up to noise of the averages, or breaks down."""
    bare = curve.overlaps(u).without(family)
    with suppress(*BREAKDOWNS):
        image = np.abs(curve.map(u)(bare).arrays()[family]).max()
        return bool(image <= WALK.meeting_residual * np.sqrt(np.abs(bare.q).max()))
    return True


def weight_sizes(curve: BranchCurve, points: list[np.ndarray]) -> np.ndarray:
    """Return q (P,) at points, in units of the first."""
    q = np.array([np.abs(curve.overlaps(u).q).max() for u in points])
    return q / q[0]


def has_shrunk(curve: BranchCurve, points: list[np.ndarray]) -> bool:
    """Return whether q is so small at the last point that steps need smaller units, and does not vanish nearby."""
    far = abs(points[-1][-1] - points[0][-1]) > WALK.max_arc
    return bool(far and weight_sizes(curve, points)[-1] < WALK.small)


def is_closed(curve: Curve, first: np.ndarray, before: np.ndarray, after: np.ndarray) -> bool:
    """Return whether a curve passes its first point between two neighboring points of it."""
    chord = after - before
    fraction = (first - before) @ chord / (chord @ chord)
    foot = before + fraction * chord
    if not 0 < fraction <= 1 or np.linalg.norm(first - foot) > np.linalg.norm(chord):
        return False
    there = _correct(curve, foot, chord / np.linalg.norm(chord), derivative(curve, foot))
    return there is not None and float(np.linalg.norm(there[0] - first)) <= WALK.closed


def locate_fold(curve: Curve, points: list[np.ndarray]) -> tuple[float, float]:
    """Return p at a fold from parabolas along the curve, and its error.

    Parabolas do not use the point next to the fold: if a branch ends at a branch that crosses, any parameter solves the
    equations there.
    """
    near, b, values = points[-3:], points[-2], []
    for _ in range(WALK.max_parabolas):
        tangent = _chord(near)
        s = (np.array(near) - b) @ tangent
        fit = np.polyfit(s, [u[-1] for u in near], 2)
        at = float(np.clip(-fit[1] / (2 * fit[0]), s[0], s[-1]))
        values.append(float(np.polyval(fit, at)))
        middle = b + at * tangent
        middle[-1] = np.polyval(fit, at)
        corrected = _correct(curve, middle, tangent, derivative(curve, middle))
        if corrected is None:
            break
        b, J, _ = corrected
        step = max(0.5 * min(-s[0], s[-1]), WALK.parabola_arc)
        sides = [b + part * step * tangent for part in (-1.0, -0.5, 0.5, 1.0)]
        solved = [_correct(curve, u, tangent, J) or _correct(curve, u, tangent, derivative(curve, u)) for u in sides]
        if None in solved:
            break
        near = [each[0] for each in solved if each]
        if len(values) > 1 and abs(values[-1] - values[-2]) < 1e-6 * abs(values[-1]):
            break
    spread = abs(values[-1] - values[-2]) if len(values) > 1 else abs(near[0][-1] - near[-1][-1])
    normal = _chord(near)
    solved = [_correct(each, b, normal, derivative(each, b)) for each in (curve, curve.finer() or curve)]
    there, here = (np.nan if each is None else float(each[0][-1]) for each in solved[::-1])
    shift = there - here
    spread += abs(values[-1] - b[-1])
    residual = max(curve.tol, *(float(np.abs(curve.residual(u)).max()) for u in near))
    J = derivative(curve, near[-1])
    left = np.linalg.svd(J[:, :-1])[0][:, -1]  # null vector at the fold, where residuals shift the parameter
    spread += 2 * residual * float(np.abs(left).sum() / np.abs(left @ J[:, -1]))
    return values[-1] + shift, spread + WALK.shift_error * abs(shift)


def _chord(points: list[np.ndarray]) -> np.ndarray:
    """Return the unit vector from the first to the last point."""
    chord = points[-1] - points[0]
    return chord / np.linalg.norm(chord)


def locate_meeting(curve: BranchCurve, points: list[np.ndarray], family: str) -> tuple[float, float]:
    """Return p where the branch meets the branch without a vanishing family, and its error.

    There the family becomes unstable on the branch without it. The parameter and the other overlaps are even functions
    of the family: they are extrapolated to zero from the last two points before it vanished. Secant steps on the rule
    of the curve and a step on each of two finer rules then solve for a growth of 1. The result is NaN if all weights of
    the branch without the family vanish.
    """
    first, last = points[-2:]
    more, less = (float(np.sum(curve.overlaps(u).arrays()[family] ** 2)) for u in (first, last))
    meeting = last + min(less / abs(more - less), 1.0) * (last - first)
    bare, p, finer = curve.overlaps(meeting).without(family), float(meeting[-1]), curve.rule.finer()
    rules = [curve.rule] * 3 + [rule for rule in (finer, finer and finer.deterministic and finer.finer()) if rule]

    def growth(rule: Rule, p: float) -> float:
        root = newton(replace(curve, rule=rule).map(np.array([p])), bare, WALK.meeting_residual, WALK.max_meeting)
        if not root.status.converged or np.abs(root.overlaps.q).max() < WALK.zero * np.abs(bare.q).max():
            raise FloatingPointError("there is no branch without the family")
        return family_growth(root.F, root.overlaps, family) - 1

    with suppress(*BREAKDOWNS, ZeroDivisionError, ValueError):
        slope, step, value = np.nan, WALK.meeting_step * p, growth(curve.rule, (1 - WALK.meeting_step) * p)
        for rule in rules:
            before, value = value, growth(rule, p)
            slope = (value - before) / step if abs(step) > WALK.min_secant * p else slope
            step = -value / slope
            p += step
        return p, abs(step)
    return np.nan, np.inf


def locate_vanishing(curve: BranchCurve, points: list[np.ndarray]) -> tuple[float, float]:
    """Return p at which all weights vanish, and its error.

    There the parameter and the overlaps are functions of √q. Parabolas through the last three points extrapolate them
    to √q = 0, and to half of the last √q, from where Newton steps lead to the next point. The error is the change by
    the last point and by the next finer rule, and the difference from a linear extrapolation.
    """
    values, linear = [np.inf], np.inf
    for each in (curve, curve.finer() or curve):
        near, values = points, [values[-1]]
        with suppress(*BREAKDOWNS, ValueError):
            for _ in range(WALK.max_parabolas):
                roots = np.sqrt(weight_sizes(curve, near)[-3:])
                fit = np.polyfit(roots, near[-3:], len(roots) - 1)
                values.append(float(fit[-1, -1]))
                linear = float(np.polyfit(roots[-2:], near[-2:], 1)[-1, -1])
                guess = np.polyval(fit, 0.5 * roots[-1])
                found = newton(each.map(guess), curve.overlaps(guess), WALK.meeting_residual, WALK.max_meeting)
                near = [*near, np.append(curve.packing.pack(found.overlaps), guess[-1])]
                q = weight_sizes(curve, near)
                if not (found.status.converged and WALK.zero**2 < q[-1] / q[-2] < 0.5):
                    break
    return values[-1], sum(abs(values[-1] - other) for other in (values[0], values[-2], linear))
