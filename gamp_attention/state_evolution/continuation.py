"""Branches of fixed points followed in a parameter, through loss of stability, up to their ends."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.models import PARAMETERS, Model, parameter_value, require_model, with_parameter
from gamp_attention.results import ConvergenceError, Overlaps
from gamp_attention.state_evolution.energy import moreau_loss
from gamp_attention.state_evolution.overlap_map import VARIANCES, OverlapMap, Rule
from gamp_attention.state_evolution.packing import Packing, is_feasible
from gamp_attention.state_evolution.root import BREAKDOWNS
from gamp_attention.state_evolution.sobol_rule import SobolRule
from gamp_attention.state_evolution.solve import solve_state_evolution
from gamp_attention.state_evolution.split_rule import SplitRule
from gamp_attention.state_evolution.stability import SECTORS, stability

LEVEL = 1  # of the split rule that branches are followed with
DIFFERENCE = 5e-3
CONVERGED = 1e-5  # residual of a point, in units of the overlaps
CORRECTIONS = 6
TURN = 0.9  # least cosine between successive tangents
FIRST_STEP, LEAST_STEP, LARGEST_STEP = 0.05, 1e-4, 0.3  # of arclength in units


@dataclass(frozen=True, eq=False)
class BranchPath:
    """Fixed points along a branch, in the order they were met.

    Attributes
    ----------
    parameter, values : what was varied, and its values (P,).
    overlaps : with an axis of points in front.
    train_loss : (P,) ε_t.
    growth : for each sector, the largest real part of the eigenvalues (P,); a damped iteration leaves above 1.
    end : "reached" the goal; "fold", the branch turns back; "vanished", the overlap that tells it from a more
        symmetric one goes through zero; "stalled", no further point was found.
    end_value, end_error : where a fold or vanishing point lies, with an error; NaN for other ends.
    changes : (value, sector) wherever a sector's growth crosses 1, interpolated between points.
    """

    parameter: str
    values: np.ndarray
    overlaps: Overlaps
    train_loss: np.ndarray
    growth: dict[str, np.ndarray]
    end: str
    end_value: float
    end_error: float
    changes: list[tuple[float, str]]


@dataclass
class _Curve:
    """The equations F(x; p) − x = 0 in u = (x, p), both in units."""

    model: Model
    alpha: float
    parameter: str
    rule: Rule
    variance: str
    packing: Packing
    unit: float
    evaluations: int = field(default=0)

    def map(self, u: np.ndarray) -> OverlapMap:
        """The overlap map at the parameter of u."""
        p = u[-1] * self.unit
        model = with_parameter(self.model, self.parameter, p)
        alpha = p if self.parameter == "alpha" else self.alpha
        rule = SplitRule(model, self.rule.level) if isinstance(self.rule, SplitRule) else _with_model(self.rule, model)
        return OverlapMap(model, alpha, rule, self.variance)

    def residual(self, u: np.ndarray) -> np.ndarray:
        """F(x; p) − x."""
        self.evaluations += 1
        x = self.packing.unpack(u[:-1])
        if u[-1] <= 0 or not is_feasible(self.model, x):
            return np.full(len(u) - 1, np.nan)
        try:
            return self.packing.pack(self.map(u)(x)) - u[:-1]
        except (*BREAKDOWNS, ValueError):
            return np.full(len(u) - 1, np.nan)

    def derivative(self, u: np.ndarray, base: np.ndarray) -> np.ndarray:
        """Of the residual in u, (n, n + 1)."""
        steps = DIFFERENCE * np.eye(len(u))
        return np.stack([(self.residual(u + step) - base) / DIFFERENCE for step in steps], axis=1)


def _with_model(rule: SobolRule, model: Model) -> SobolRule:
    return SobolRule(model, rule.n_points, rule.n_replicas, rule.lines, rule.seed)


def continue_branch(
    model: Model,
    alpha: float,
    init: Any,
    parameter: str = "alpha",
    to: float = 0.1,
    *,
    variance: str = "stein",
    stable: bool = True,
    max_points: int = 200,
) -> BranchPath:
    """Follow a branch of fixed points in a parameter, by pseudo-arclength with step control.

    Parameters
    ----------
    model, alpha : the problem to start at.
    init : "semantic", "positional", "random" or Overlaps, as for `solve_state_evolution`.
    parameter : "alpha", "omega", "lam" or "sigma".
    to : the value to go to.
    variance : "stein" or "derivative".
    stable : find the stability of every point.
    max_points : bound on the points.

    Returns
    -------
    BranchPath

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    ConvergenceError : if there is no such branch to start on.
    """
    require_model(model)
    check.choice("parameter", parameter, PARAMETERS)
    check.choice("variance", variance, VARIANCES)
    to = check.real("to", to, low=0, strict=parameter != "omega", high=1 if parameter == "omega" else np.inf)
    max_points = check.integer("max_points", max_points, low=3)
    start = solve_state_evolution(model, alpha, init, rtol=1e-3, variance=variance, stable=False, raise_on_failure=True)
    first = parameter_value(model, alpha, parameter)
    rule: Rule = SplitRule(model, LEVEL) if start.rule == "split" else SobolRule(model, 1024, lines=True)
    curve = _Curve(model, alpha, parameter, rule, variance, Packing.of(model, start.overlaps), max(first, 0.05))
    points, end = [], "stalled"
    for u in _walk(curve, start.overlaps, first, to):
        points.append(u)
        if len(points) > 2 and _turned(points):
            end = "vanished" if _crossed(curve, points) else "fold"
            break
        if points[-1][-1] == to / curve.unit:
            end = "reached"
            break
        if len(points) >= max_points:
            break
    value, error = np.nan, np.nan
    if end in ("fold", "vanished"):
        value, error, points = _extremum(curve, points)
    return _path(curve, points, end, to, value, error, stable)


def _walk(curve: _Curve, overlaps: Overlaps, first: float, to: float) -> Iterator[np.ndarray]:
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
        if found is None:
            J = curve.derivative(u, curve.residual(u))
            tangent = _tangent(J, tangent)


def _tangent(J: np.ndarray, towards: np.ndarray) -> np.ndarray:
    """Unit null vector of the derivative (n, n + 1), on the side of `towards`."""
    tangent = np.linalg.svd(J)[2][-1]
    return tangent if tangent @ towards >= 0 else -tangent


def _correct(
    curve: _Curve, u: np.ndarray, normal: np.ndarray, J: np.ndarray
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Newton steps in the plane through u across `normal`, with Broyden updates: the point, J and their number."""
    rest = curve.residual(u)
    for number in range(CORRECTIONS):
        if not np.isfinite(rest).all():
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


def _turned(points: list[np.ndarray]) -> bool:
    """Whether the parameter turned back in the last step."""
    a, b, c = (u[-1] for u in points[-3:])
    return (b - a) * (c - b) < 0


def _crossed(curve: _Curve, points: list[np.ndarray]) -> bool:
    """Whether m or θ went through zero at the turn."""
    before, after = (curve.packing.unpack(points[i][:-1]) for i in (-3, -1))
    return bool(np.sum(before.theta * after.theta) < 0 or np.sum(before.m * after.m) < 0)


def _extremum(curve: _Curve, points: list[np.ndarray]) -> tuple[float, float, list[np.ndarray]]:
    """The turning value of the parameter by parabolas in arclength, and the points before it."""
    a, b, c = points[-3:]
    values = []
    for _ in range(4):
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
        step = 0.25 * min(-s[0], s[2])
        tangent = _tangent(found[1], tangent)
        sides = [_correct(curve, found[0] + side * step * tangent, tangent, found[1]) for side in (-1, 1)]
        if sides[0] is None or sides[1] is None:
            break
        a, b, c = sides[0][0], found[0], sides[1][0]
        if len(values) > 1 and abs(values[-1] - values[-2]) < 1e-6 * abs(values[-1]):
            break
    spread = abs(values[-1] - values[-2]) if len(values) > 1 else abs(a[-1] - c[-1]) * curve.unit
    return values[-1], spread + _rule_error(curve, b), points[:-1]


def _rule_error(curve: _Curve, u: np.ndarray) -> float:
    """What the next finer rule would shift a turning point by: wᵀ δF / wᵀ ∂F/∂p, with w the left null vector."""
    F = curve.map(u)
    finer = F.finer()
    base = curve.residual(u)
    if finer is None or not np.isfinite(base).all():
        return np.nan
    x = curve.packing.unpack(u[:-1])
    shift = curve.packing.pack(finer(x)) - u[:-1] - base
    J = curve.derivative(u, base)
    w = np.linalg.svd(J[:, :-1])[0][:, -1]
    return float(abs(w @ shift) / abs(w @ J[:, -1])) * curve.unit


def _path(
    curve: _Curve, points: list[np.ndarray], end: str, to: float, value: float, error: float, stable: bool
) -> BranchPath:
    overlaps, losses = [curve.packing.unpack(u[:-1]) for u in points], []
    growth: dict[str, list[float]] = {name: [] for name in SECTORS}
    for u, x in zip(points, overlaps, strict=True):
        F = curve.map(u)
        image, _ = F.images(x)
        losses.append(moreau_loss(F.model, x, image.hats, image.norm))
        found = stability(F, x).growth if stable else dict.fromkeys(SECTORS, np.nan)
        for name in SECTORS:
            growth[name].append(found[name])
    values = np.array([u[-1] for u in points]) * curve.unit
    if end == "reached":
        values[-1] = to
    changes = []
    for name, series in growth.items():
        for i in range(len(series) - 1):
            before, after = series[i] - 1, series[i + 1] - 1
            if before * after < 0:
                share = before / (before - after)
                changes.append((float(values[i] + (values[i + 1] - values[i]) * share), name))
    return BranchPath(
        curve.parameter,
        values,
        Overlaps(**{name: np.stack([o.arrays()[name] for o in overlaps]) for name in overlaps[0].arrays()}),
        np.array(losses),
        {name: np.array(series) for name, series in growth.items()},
        end,
        value,
        error,
        sorted(changes),
    )
