"""Branches of fixed points followed in a parameter, through loss of stability, up to their ends."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.models import PARAMETERS, Model, parameter_value, require_model
from gamp_attention.results import Overlaps, stacked
from gamp_attention.state_evolution.arclength import Curve, extremum, fades, turned, vanishing_point, walk
from gamp_attention.state_evolution.energy import moreau_loss
from gamp_attention.state_evolution.overlap_map import VARIANCES, Rule
from gamp_attention.state_evolution.packing import Packing
from gamp_attention.state_evolution.sobol_rule import SobolRule
from gamp_attention.state_evolution.solve import solve_state_evolution
from gamp_attention.state_evolution.split_rule import SplitRule
from gamp_attention.state_evolution.stability import SECTORS, stability

LEVEL = 1  # of the split rule that branches are followed with


@dataclass(frozen=True, eq=False)
class BranchPath:
    """Fixed points along a branch, in the order they were met.

    Attributes
    ----------
    parameter, values : what was varied, and its values (P,).
    overlaps : with an axis of points in front.
    train_loss : (P,) ε_t.
    growth : for each sector, the largest real part of the eigenvalues (P,); a damped iteration leaves above 1.
    end : "reached" the goal; "fold", the branch turns back; "vanished", q or the overlap that tells it from a more
        symmetric one goes to zero; "stalled", no further point was found.
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
    curve = Curve(model, alpha, parameter, rule, variance, Packing.of(model, start.overlaps), max(first, 0.05))
    points, end = [], "stalled"
    for u in walk(curve, start.overlaps, first, to):
        points.append(u)
        if len(points) > 2 and turned(points):
            end = "vanished" if fades(curve, points) else "fold"
            break
        if points[-1][-1] == to / curve.unit:
            end = "reached"
            break
        if len(points) >= max_points:
            break
    if end == "stalled" and 2 < len(points) < max_points and fades(curve, points):
        end = "vanished"
    value, error = np.nan, np.nan
    if end == "fold":
        value, error, points = extremum(curve, points)
    elif end == "vanished":
        value, error = vanishing_point(curve, points)
        points = points[:-1]
    return _path(curve, points, end, to, value, error, stable)


def _path(
    curve: Curve, points: list[np.ndarray], end: str, to: float, value: float, error: float, stable: bool
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
        Overlaps(**stacked(overlaps)),
        np.array(losses),
        {name: np.array(series) for name, series in growth.items()},
        end,
        value,
        error,
        sorted(changes),
    )
