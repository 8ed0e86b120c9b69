"""Pseudo-arclength: points of the curve F(x; p) = x around turns of the parameter p, and where it turns or ends."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.models.parameters import with_parameter
from gamp_attention.results import ConvergenceError, Overlaps
from gamp_attention.state_evolution.equations.units import Packing, is_feasible
from gamp_attention.state_evolution.fixed_points.newton import BREAKDOWNS, BROYDEN
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.fixed_points.refinement import REFINEMENT
from gamp_attention.state_evolution.rules.rule import Rule


@dataclass(frozen=True)
class ArclengthSettings:
    """Settings of the steps along a curve, of arclength in units of the overlaps and the parameter."""

    first_step: float = 0.05
    min_step: float = 1e-4  # below, no further point is found
    max_step: float = 0.3
    min_cosine: float = 0.9  # between successive tangents, so that turns are seen
    residual: float = 1e-5  # of a point
    max_corrections: int = 6  # Newton steps to a point; beyond, the step along the curve was too long
    few_corrections: int = 3  # up to which steps along the curve grow, and Broyden's Jacobian is kept
    faded: float = 1e-2  # size of a family in units of √q, or of q in units of its first, that is as good as zero
    max_parabolas: int = 5  # through a turn
    min_arc: float = 0.04  # of a parabola, above the noise of the averages


ARCLENGTH = ArclengthSettings()


@dataclass(frozen=True)
class Curve:
    """The equations F(x; p) − x = 0 in u = (x, p), both in units."""

    model: Model
    alpha: float
    parameter: str
    rule: Rule
    response: str
    packing: Packing
    unit: float

    def map(self, u: np.ndarray) -> OverlapMap:
        """The overlap map at the parameter of u."""
        p = u[-1] * self.unit
        model = with_parameter(self.model, self.parameter, p)
        alpha = p if self.parameter == "alpha" else self.alpha
        return OverlapMap(model, alpha, self.rule, self.response)

    def residual(self, u: np.ndarray) -> np.ndarray:
        """F(x; p) − x."""
        x = self.packing.unpack(u[:-1])
        nowhere = np.full(len(u) - 1, np.nan)
        try:
            F = self.map(u)
            if F.alpha <= 0 or not is_feasible(F.model, x):
                return nowhere
            return self.packing.pack(F(x)) - u[:-1]
        except (*BREAKDOWNS, ValueError):
            return nowhere

    def derivative(self, u: np.ndarray, base: np.ndarray) -> np.ndarray:
        """Derivative of the residual in u, (n, n + 1)."""
        steps = BROYDEN.difference * np.eye(len(u))
        return np.stack([(self.residual(u + step) - base) / BROYDEN.difference for step in steps], axis=1)


def walk(curve: Curve, overlaps: Overlaps, first: float, to: float) -> Iterator[np.ndarray]:
    """Points of the curve from its start towards a value of the parameter, and around any turn."""
    goal = to / curve.unit
    guess = np.append(curve.packing.pack(overlaps), first / curve.unit)
    fixed = np.append(np.zeros(len(guess) - 1), 1.0)
    J = curve.derivative(guess, curve.residual(guess))
    found = _correct(curve, guess, fixed, J)
    if found is None:
        raise ConvergenceError("continue_branch found no point to start from", None)
    u, J, _ = found
    yield u
    tangent = _tangent(J, np.sign(goal - u[-1]) * fixed)
    step = ARCLENGTH.first_step
    while step >= ARCLENGTH.min_step:
        ahead = u + step * tangent
        if (ahead[-1] - goal) * (u[-1] - goal) <= 0:  # the goal lies on the way: solve there
            ahead = u + tangent * (goal - u[-1]) / tangent[-1]
            ahead[-1] = goal
            found = _correct(curve, ahead, fixed, J)
        else:
            found = _correct(curve, ahead, tangent, J)
            if found is not None and (found[0][-1] - goal) * (u[-1] - goal) < 0:  # the correction went past it
                ahead = u + (goal - u[-1]) / (found[0][-1] - u[-1]) * (found[0] - u)
                ahead[-1] = goal
                found = _correct(curve, ahead, fixed, J)
        if found is not None:
            there, J_there, corrections = found
            moved = there - u
            along = moved / np.linalg.norm(moved)
            if along @ tangent >= ARCLENGTH.min_cosine:
                u, J = there, J_there
                if corrections > ARCLENGTH.few_corrections:
                    J = curve.derivative(u, curve.residual(u))
                tangent = _tangent(J, along)
                yield u
                longer = 1.5 if corrections <= ARCLENGTH.few_corrections else 1.0
                step = min(step * longer, ARCLENGTH.max_step)
                continue
        step *= 0.5
        J = curve.derivative(u, curve.residual(u))  # Broyden's may have drifted
        tangent = _tangent(J, tangent)


def _tangent(J: np.ndarray, towards: np.ndarray) -> np.ndarray:
    """Unit null vector of the derivative (n, n + 1), on the side of `towards`; `towards` where there is none."""
    if not np.isfinite(J).all():
        return towards
    tangent = np.linalg.svd(J)[2][-1]
    return tangent if tangent @ towards >= 0 else -tangent


def _correct(
    curve: Curve, u: np.ndarray, normal: np.ndarray, J: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Newton steps in the plane through u with a normal, with Broyden updates: the point, J and their number."""
    rest = curve.residual(u)
    for number in range(ARCLENGTH.max_corrections):
        if not (np.isfinite(rest).all() and np.isfinite(J).all()):
            return None
        if np.abs(rest).max() <= ARCLENGTH.residual:
            return u, J, number
        step = np.linalg.lstsq(np.vstack([J, normal]), np.append(-rest, 0.0), rcond=None)[0]
        if normal[-1] == 1:  # at a given parameter, to the last bit
            step[-1] = 0.0
        if np.linalg.norm(step) > ARCLENGTH.max_step:
            return None
        after = curve.residual(u + step)
        J = J + np.outer(after - rest - J @ step, step) / (step @ step)
        u, rest = u + step, after
    return (u, J, ARCLENGTH.max_corrections) if np.abs(rest).max() <= ARCLENGTH.residual else None


def turned(points: list[np.ndarray]) -> bool:
    """Whether the parameter turned back in the last step."""
    a, b, c = (u[-1] for u in points[-3:])
    return (b - a) * (c - b) < 0


def fading_family(curve: Curve, points: list[np.ndarray]) -> str | None:
    """The family, m or θ, that goes to zero at the end of the points, where another branch crosses, or None."""
    before, after = (curve.packing.unpack(u[:-1]) for u in (points[-3], points[-1]))
    for name in ("m", "theta"):
        old, new = before.arrays()[name], after.arrays()[name]
        if name in curve.packing.names and (
            np.sum(old * new) < 0 or np.abs(new).max() < ARCLENGTH.faded * np.sqrt(np.abs(after.q).max())
        ):
            return name
    return None


def weights_vanish(curve: Curve, points: list[np.ndarray]) -> bool:
    """Whether all weights go to zero at the end of the points."""
    first, after = (curve.packing.unpack(u[:-1]) for u in (points[0], points[-1]))
    return bool(np.abs(after.q).max() < ARCLENGTH.faded * np.abs(first.q).max())


def where_weights_vanish(curve: Curve, points: list[np.ndarray]) -> tuple[float, float]:
    """The parameter where q is zero, as a smooth function of q, and its error."""
    size = np.array([np.linalg.norm(curve.packing.unpack(u[:-1]).q) for u in points])
    p = np.array([u[-1] for u in points]) * curve.unit
    used = np.argsort(size)[:3]
    lines = [np.polyfit(size[used[:count]], p[used[:count]], count - 1)[-1] for count in (2, 3)]
    return float(lines[1]), float(abs(lines[1] - lines[0])) + abs(_rule_shift(curve, points[used[0]]))


def extremum(curve: Curve, points: list[np.ndarray]) -> tuple[float, float, list[np.ndarray]]:
    """The turning value of the parameter by parabolas in arclength, its error, and the points before it."""
    a, b, c = points[-3:]
    values = []
    for _ in range(ARCLENGTH.max_parabolas):
        s = np.array([-np.linalg.norm(b - a), 0.0, np.linalg.norm(c - b)])
        fit = np.polyfit(s, [a[-1], b[-1], c[-1]], 2)
        at = float(np.clip(-fit[1] / (2 * fit[0]), s[0], s[2]))
        values.append(float(np.polyval(fit, at)) * curve.unit)
        tangent = (c - a) / np.linalg.norm(c - a)
        middle = b + at * tangent
        J = curve.derivative(middle, curve.residual(middle))
        found = _correct(curve, middle, tangent, J)
        if found is None:
            break
        step = max(0.5 * min(-s[0], s[2]), ARCLENGTH.min_arc)
        tangent = _tangent(found[1], tangent)
        sides = [_correct(curve, found[0] + side * step * tangent, tangent, found[1]) for side in (-1, 1)]
        if sides[0] is None or sides[1] is None:
            break
        a, b, c = sides[0][0], found[0], sides[1][0]
        if len(values) > 1 and abs(values[-1] - values[-2]) < 1e-6 * abs(values[-1]):
            break
    spread = abs(values[-1] - values[-2]) if len(values) > 1 else abs(a[-1] - c[-1]) * curve.unit
    shift = _rule_shift(curve, b)
    return values[-1] + shift, spread + REFINEMENT.shift_error * abs(shift), points[:-1]


def _rule_shift(curve: Curve, u: np.ndarray) -> float:
    """How far the next finer rule shifts a turn: −wᵀ δF / wᵀ ∂F/∂p, with the left null vector w of 1 − ∂F/∂x."""
    F = curve.map(u)
    finer = F.finer()
    base = curve.residual(u)
    if finer is None or not np.isfinite(base).all():
        return np.nan
    x = curve.packing.unpack(u[:-1])
    shift = curve.packing.pack(finer(x)) - u[:-1] - base
    J = curve.derivative(u, base)
    if not np.isfinite(J).all():
        return np.nan
    w = np.linalg.svd(J[:, :-1])[0][:, -1]
    return -float(w @ shift / (w @ J[:, -1])) * curve.unit
