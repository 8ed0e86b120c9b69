"""Pseudo-arclength continuation: points of the curve F(x; p) = x around folds of the parameter p, and its ends.

The method is from Keller (1977). The unknowns are u = (x, p), and the unit tangent of the curve is the null vector of
the Jacobian of F(x; p) − x in u. A step (`walk`) has three parts:

1. Predict: move by an arclength along the tangent.
2. Correct: Newton steps in the plane through the prediction that is normal to the tangent (`_correct`). In this plane
   the system is regular at a fold as well. Broyden's updates (Broyden, 1965) replace new Jacobians. A correction that
   fails or takes long steps is abandoned, because a shorter arclength is cheaper than the line search of `newton`.
3. Accept the point if the tangent turned by a small angle, and otherwise halve the arclength.

A fold is located from parabolas of p in the arclength, on which three points close to the fold are solved (`extremum`).
The next finer rule then shifts it to first order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gamp_attention.results import ConvergenceError, Overlaps
from gamp_attention.theory.equations.units import Packing, is_feasible
from gamp_attention.theory.fixed_points.newton import BREAKDOWNS, broyden_update
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.models.model import Model, with_parameter
from gamp_attention.theory.rules.rule import Rule


@dataclass(frozen=True)
class WalkSettings:
    """Settings of the continuation; arclengths are in units of the overlaps and the parameter."""

    first_arc: float = 0.05  # arclength of the first step
    min_arc: float = 1e-4  # arclength of a step below which the continuation gives up
    max_arc: float = 0.3  # largest arclength of a step, and largest Newton step
    min_cosine: float = 0.9  # smallest cosine between successive tangents, so that no fold is skipped
    residual: float = 1e-5  # largest residual of a point
    max_corrections: int = 6  # maximum number of Newton steps to a point; if more are needed, the arclength is halved
    few_corrections: int = 3  # number of Newton steps up to which the next step is longer and the Jacobian is reused
    longer: float = 1.5  # factor of the next arclength in this case
    difference: float = 5e-3  # step of finite differences of the residual
    shift_error: float = 0.5  # error of a fold, in units of its shift by the next finer rule
    zero: float = 1e-2  # size below which m or θ, in units of √q, or q, in units of its first value, counts as zero
    max_parabolas: int = 5  # maximum number of parabolas fitted to a fold
    parabola_arc: float = 0.04  # smallest half-width of a parabola, for which the noise of the averages is negligible


WALK = WalkSettings()


@dataclass(frozen=True)
class BranchCurve:
    """Fixed-point equations F(x; p) − x = 0 along a curve, in the scaled unknowns u = (x, p)."""

    model: Model
    alpha: float  # sample complexity, if it is not the parameter
    parameter: str
    rule: Rule
    packing: Packing  # conversion between overlaps and x
    unit: float  # parameter value at p = 1

    def map(self, u: np.ndarray) -> OverlapMap:
        """Return the overlap map at the parameter value of u."""
        p = u[-1] * self.unit
        alpha = p if self.parameter == "alpha" else self.alpha
        return OverlapMap(with_parameter(self.model, self.parameter, p), alpha, self.rule)

    def overlaps(self, u: np.ndarray) -> Overlaps:
        """Return the overlaps at u."""
        return self.packing.unpack(u[:-1])

    def residual(self, u: np.ndarray) -> np.ndarray:
        """Return F(x; p) − x (n,) at u (n + 1,); NaN if the overlaps are infeasible or the map breaks down."""
        try:
            F, x = self.map(u), self.overlaps(u)
            if F.alpha > 0 and is_feasible(F.model, x):
                return self.packing.pack(F(x)) - u[:-1]
        except (*BREAKDOWNS, ValueError):
            pass
        return np.full(len(u) - 1, np.nan)

    def derivative(self, u: np.ndarray) -> np.ndarray:
        """Return the derivative (n, n + 1) of the residual with respect to u, by forward differences."""
        base, steps = self.residual(u), WALK.difference * np.eye(len(u))
        return np.stack([(self.residual(u + step) - base) / WALK.difference for step in steps], axis=1)


def walk(curve: BranchCurve, overlaps: Overlaps, first: float, to: float) -> Iterator[np.ndarray]:
    """Yield points of the curve from its start toward parameter value `to`, continuing around folds."""
    goal = to / curve.unit
    guess = np.append(curve.packing.pack(overlaps), first / curve.unit)
    fixed = np.append(np.zeros(len(guess) - 1), 1.0)  # normal of the planes of constant parameter
    J = curve.derivative(guess)
    corrected = _correct(curve, guess, fixed, J)
    if corrected is None:
        raise ConvergenceError("continue_branch: found no fixed point at which the branch could start", None)
    u, J, _ = corrected
    yield u
    tangent = _tangent(J, np.sign(goal - u[-1]) * fixed)
    step = WALK.first_arc
    while step >= WALK.min_arc:
        ahead, towards = u + step * tangent, tangent
        passed = (ahead[-1] - goal) * (u[-1] - goal) <= 0
        if not passed:
            corrected = _correct(curve, ahead, tangent, J)
            if corrected is not None:
                passed, towards = (corrected[0][-1] - goal) * (u[-1] - goal) < 0, corrected[0] - u
        if passed:  # solve at the goal instead
            ahead = u + (goal - u[-1]) / towards[-1] * towards
            ahead[-1] = goal
            corrected = _correct(curve, ahead, fixed, J)
        if corrected is not None:
            there, J_there, corrections = corrected
            chord = there - u
            direction = chord / np.linalg.norm(chord)
            if direction @ tangent >= WALK.min_cosine:
                u, J = there, J_there
                if corrections > WALK.few_corrections:
                    J = curve.derivative(u)
                tangent = _tangent(J, direction)
                yield u
                longer = WALK.longer if corrections <= WALK.few_corrections else 1.0
                step = min(step * longer, WALK.max_arc)
                continue
        step *= 0.5
        J = curve.derivative(u)  # Broyden's updates may have made J inaccurate
        tangent = _tangent(J, tangent)


def _tangent(J: np.ndarray, towards: np.ndarray) -> np.ndarray:
    """Return the unit null vector of J (n, n + 1) on the side of `towards`; `towards` if J is not finite."""
    tangent = np.linalg.svd(J)[2][-1] if np.isfinite(J).all() else towards
    return tangent if tangent @ towards >= 0 else -tangent


def _correct(
    curve: BranchCurve, u: np.ndarray, normal: np.ndarray, J: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Solve in the plane through u with a given normal; return the point, J and the number of Newton steps, or None."""
    residual = curve.residual(u)
    for number in range(WALK.max_corrections):
        if not (np.isfinite(residual).all() and np.isfinite(J).all()):
            return None
        if np.abs(residual).max() <= WALK.residual:
            return u, J, number
        step = np.linalg.lstsq(np.vstack([J, normal]), np.append(-residual, 0.0), rcond=None)[0]
        if normal[-1] == 1:  # the parameter is given: keep it exactly
            step[-1] = 0.0
        if np.linalg.norm(step) > WALK.max_arc:
            return None
        after = curve.residual(u + step)
        J = broyden_update(J, step, after - residual - J @ step)
        u, residual = u + step, after
    return (u, J, WALK.max_corrections) if np.abs(residual).max() <= WALK.residual else None


def has_folded(points: list[np.ndarray]) -> bool:
    """Return whether the parameter changed its direction at the last step, so that the branch passed a fold."""
    a, b, c = (u[-1] for u in points[-3:])
    return (b - a) * (c - b) < 0


def fading_family(curve: BranchCurve, points: list[np.ndarray]) -> str | None:
    """Return "m" or "theta" if it goes to zero at the last points, where another branch crosses; otherwise None."""
    before, after = curve.overlaps(points[-3]), curve.overlaps(points[-1])
    for name in ("m", "theta"):
        old, new = before.arrays()[name], after.arrays()[name]
        if name in curve.packing.names and (
            np.sum(old * new) < 0 or np.abs(new).max() < WALK.zero * np.sqrt(np.abs(after.q).max())
        ):
            return name
    return None


def weights_vanish(curve: BranchCurve, points: list[np.ndarray]) -> bool:
    """Return whether all weights go to zero at the last points."""
    first, last = curve.overlaps(points[0]), curve.overlaps(points[-1])
    return bool(np.abs(last.q).max() < WALK.zero * np.abs(first.q).max())


def extremum(curve: BranchCurve, points: list[np.ndarray]) -> tuple[float, float, list[np.ndarray]]:
    """Return the parameter at a fold from parabolas in arclength, its error, and the points before the fold."""
    a, b, c = points[-3:]
    values = []
    for _ in range(WALK.max_parabolas):
        s = np.array([-np.linalg.norm(b - a), 0.0, np.linalg.norm(c - b)])
        fit = np.polyfit(s, [a[-1], b[-1], c[-1]], 2)
        at = float(np.clip(-fit[1] / (2 * fit[0]), s[0], s[2]))
        values.append(float(np.polyval(fit, at)) * curve.unit)
        tangent = (c - a) / np.linalg.norm(c - a)
        middle = b + at * tangent
        J = curve.derivative(middle)
        corrected = _correct(curve, middle, tangent, J)
        if corrected is None:
            break
        step = max(0.5 * min(-s[0], s[2]), WALK.parabola_arc)
        tangent = _tangent(corrected[1], tangent)
        sides = [_correct(curve, corrected[0] + side * step * tangent, tangent, corrected[1]) for side in (-1, 1)]
        if sides[0] is None or sides[1] is None:
            break
        a, b, c = sides[0][0], corrected[0], sides[1][0]
        if len(values) > 1 and abs(values[-1] - values[-2]) < 1e-6 * abs(values[-1]):
            break
    spread = abs(values[-1] - values[-2]) if len(values) > 1 else abs(a[-1] - c[-1]) * curve.unit
    shift = _rule_shift(curve, b)
    return values[-1] + shift, spread + WALK.shift_error * abs(shift), points[:-1]


def _rule_shift(curve: BranchCurve, u: np.ndarray) -> float:
    """Return the shift of a fold by the next finer rule; NaN if there is none.

    It is −wᵀ δF / wᵀ ∂F/∂p, with the left null vector w of 1 − ∂F/∂x.
    """
    finer = curve.map(u).finer()
    base, J = curve.residual(u), curve.derivative(u)
    if finer is None or not np.isfinite(J).all():
        return np.nan
    shift = curve.packing.pack(finer(curve.overlaps(u))) - u[:-1] - base
    w = np.linalg.svd(J[:, :-1])[0][:, -1]
    return -float(w @ shift / (w @ J[:, -1])) * curve.unit
