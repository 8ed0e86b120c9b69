"""Pseudo-arclength: points of the curve F(x; p) = x, past turns of the parameter p, and where it turns."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.models.parameters import with_parameter
from gamp_attention.results import ConvergenceError, Overlaps
from gamp_attention.state_evolution.equations.units import Packing, is_feasible
from gamp_attention.state_evolution.fixed_points.newton import BREAKDOWNS
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap
from gamp_attention.state_evolution.rules.rule import Rule

DIFFERENCE = 5e-3
CONVERGED = 1e-5  # residual of a point, in units of the overlaps
CORRECTIONS = 6
PARABOLAS = 5  # through a turn, at most
LEAST_ARC = 0.04  # of a parabola through a turn, above the noise of the averages
FADED = 1e-2  # of an overlap that has all but vanished
SAFETY = 0.5  # error of a turning point, in units of its shift from the coarser rule
TURN = 0.9  # least cosine between successive tangents
FIRST_STEP, LEAST_STEP, LARGEST_STEP = 0.05, 1e-4, 0.3  # of arclength in units


@dataclass(frozen=True)
class Curve:
    """The equations F(x; p) − x = 0 in u = (x, p), both in units."""

    model: Model
    alpha: float
    parameter: str
    rule: Rule
    variance: str
    packing: Packing
    unit: float

    def map(self, u: np.ndarray) -> OverlapMap:
        """The overlap map at the parameter of u."""
        p = u[-1] * self.unit
        model = with_parameter(self.model, self.parameter, p)
        alpha = p if self.parameter == "alpha" else self.alpha
        return OverlapMap(model, alpha, self.rule, self.variance)

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
        """Of the residual in u, (n, n + 1)."""
        steps = DIFFERENCE * np.eye(len(u))
        return np.stack([(self.residual(u + step) - base) / DIFFERENCE for step in steps], axis=1)


def walk(curve: Curve, overlaps: Overlaps, first: float, to: float) -> Iterator[np.ndarray]:
    """Points of the curve from its start towards a value of the parameter, and beyond any turn."""
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
    step = FIRST_STEP
    while step >= LEAST_STEP:
        ahead = u + step * tangent
        if (ahead[-1] - goal) * (u[-1] - goal) <= 0:  # the goal lies on the way: solve there
            ahead = u + tangent * (goal - u[-1]) / tangent[-1]
            ahead[-1] = goal
            found = _correct(curve, ahead, fixed, J)
        else:
            found = _correct(curve, ahead, tangent, J)
        if found is not None:
            there, J_there, corrections = found
            moved = there - u
            along = moved / np.linalg.norm(moved)
            if along @ tangent >= TURN:
                u, J = there, J_there
                if corrections > 3:
                    J = curve.derivative(u, curve.residual(u))
                tangent = _tangent(J, along)
                yield u
                step = min(step * (1.5 if corrections <= 3 else 1.0), LARGEST_STEP)
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
    """Newton steps in the plane through u across `normal`, with Broyden updates: the point, J and their number."""
    rest = curve.residual(u)
    for number in range(CORRECTIONS):
        if not (np.isfinite(rest).all() and np.isfinite(J).all()):
            return None
        if np.abs(rest).max() <= CONVERGED:
            return u, J, number
        step = np.linalg.lstsq(np.vstack([J, normal]), np.append(-rest, 0.0), rcond=None)[0]
        if normal[-1] == 1:  # at a given parameter, to the last bit
            step[-1] = 0.0
        if np.linalg.norm(step) > LARGEST_STEP:
            return None
        after = curve.residual(u + step)
        J = J + np.outer(after - rest - J @ step, step) / (step @ step)
        u, rest = u + step, after
    return (u, J, CORRECTIONS) if np.abs(rest).max() <= CONVERGED else None


def turned(points: list[np.ndarray]) -> bool:
    """Whether the parameter turned back in the last step."""
    a, b, c = (u[-1] for u in points[-3:])
    return (b - a) * (c - b) < 0


def fading_family(curve: Curve, points: list[np.ndarray]) -> str | None:
    """The family, m or θ, that goes through zero at the end of the points, where another branch crosses, or None."""
    before, after = (curve.packing.unpack(u[:-1]) for u in (points[-3], points[-1]))
    for name in ("m", "theta"):
        old, new = before.arrays()[name], after.arrays()[name]
        if name in curve.packing.names and (
            np.sum(old * new) < 0 or np.abs(new).max() < FADED * np.sqrt(np.abs(after.q).max())
        ):
            return name
    return None


def q_vanishes(curve: Curve, points: list[np.ndarray]) -> bool:
    """Whether the weights themselves go to zero at the end of the points."""
    first, after = (curve.packing.unpack(u[:-1]) for u in (points[0], points[-1]))
    return bool(np.abs(after.q).max() < FADED * np.abs(first.q).max())


def where_q_vanishes(curve: Curve, points: list[np.ndarray]) -> tuple[float, float]:
    """The parameter at which q, of which it is a smooth function, is zero, and its error."""
    size = np.array([np.linalg.norm(curve.packing.unpack(u[:-1]).q) for u in points])
    p = np.array([u[-1] for u in points]) * curve.unit
    used = np.argsort(size)[:3]
    lines = [np.polyfit(size[used[:count]], p[used[:count]], count - 1)[-1] for count in (2, 3)]
    return float(lines[1]), float(abs(lines[1] - lines[0])) + abs(_rule_shift(curve, points[used[0]]))


def extremum(curve: Curve, points: list[np.ndarray]) -> tuple[float, float, list[np.ndarray]]:
    """The turning value of the parameter by parabolas in arclength, and the points before it."""
    a, b, c = points[-3:]
    values = []
    for _ in range(PARABOLAS):
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
        step = max(0.5 * min(-s[0], s[2]), LEAST_ARC)
        tangent = _tangent(found[1], tangent)
        sides = [_correct(curve, found[0] + side * step * tangent, tangent, found[1]) for side in (-1, 1)]
        if sides[0] is None or sides[1] is None:
            break
        a, b, c = sides[0][0], found[0], sides[1][0]
        if len(values) > 1 and abs(values[-1] - values[-2]) < 1e-6 * abs(values[-1]):
            break
    spread = abs(values[-1] - values[-2]) if len(values) > 1 else abs(a[-1] - c[-1]) * curve.unit
    shift = _rule_shift(curve, b)
    return values[-1] + shift, spread + SAFETY * abs(shift), points[:-1]


def _rule_shift(curve: Curve, u: np.ndarray) -> float:
    """What the next finer rule shifts a turning point by: −wᵀ δF / wᵀ ∂F/∂p, with w the left null vector."""
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
