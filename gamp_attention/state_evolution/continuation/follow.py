"""Continuation of branches of fixed points in a parameter, also where they are unstable, up to their ends."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention._core.renamed import renamed
from gamp_attention._core.text import Rows, with_error
from gamp_attention.models.model import Model, require_model
from gamp_attention.models.parameters import PARAMETERS, parameter_value
from gamp_attention.results import SIGNS, Overlaps, Result, cells, spread, stacked
from gamp_attention.state_evolution.continuation import arclength
from gamp_attention.state_evolution.continuation.arclength import Curve
from gamp_attention.state_evolution.continuation.crossings import Crossing, crossing
from gamp_attention.state_evolution.equations.units import Packing
from gamp_attention.state_evolution.fixed_points.free_energy import stationary_loss
from gamp_attention.state_evolution.fixed_points.overlap_map import RESPONSES
from gamp_attention.state_evolution.fixed_points.solve import solve_state_evolution
from gamp_attention.state_evolution.fixed_points.stability import SECTORS, family_growth, stability
from gamp_attention.state_evolution.rules.choice import prefers_split
from gamp_attention.state_evolution.rules.sobol import SobolRule
from gamp_attention.state_evolution.rules.split import SplitRule


@dataclass(frozen=True, eq=False)
class BranchPath(Result):
    """Fixed points along a branch, in the order in which they were computed.

    Attributes
    ----------
    parameter, values : name of the parameter that was varied, and its values (P,).
    overlaps : overlaps of the P points, with the points as first axis.
    train_loss : (P,) training loss ε_t.
    growth : for each sector, the largest real part of the eigenvalues of the map's Jacobian (P,); above 1, the point is
        unstable under damped iteration. NaN without `stability`.
    end : "reached" (the goal), "fold" (the branch turns back), "vanished" (all weights go to zero, or the overlap that
        distinguishes the branch from a more symmetric branch does), or "stalled" (no further point was found).
    end_value, end_error : parameter value at which the branch turns back or vanishes, with its error; NaN for other
        ends.
    changes : crossings of 1 by the growth in a sector, each with value, error and sector.
    """

    parameter: str
    values: np.ndarray
    overlaps: Overlaps
    train_loss: np.ndarray
    growth: dict[str, np.ndarray]
    end: str
    end_value: float
    end_error: float
    changes: list[Crossing]

    def at(self, index: int) -> Overlaps:
        """Return the overlaps of one point."""
        return Overlaps(**{name: values[index] for name, values in self.overlaps.arrays().items()})

    def _rows(self) -> Rows:
        """Return rows for at most 12 points, the end of the branch and the changes of its stability."""
        columns = self.overlaps.scalars() | {"train_loss": self.train_loss}
        points = [[f"{self.values[k]:.6g}", *cells(columns, k)] for k in spread(len(self.values))]
        events = [(self.end, self.end_value, self.end_error)]
        events += [(f"stability to {c.sector} changes", c.value, c.error) for c in self.changes]
        notes = [
            event + (f" at {self.parameter} = {with_error(value, error, 4)}" if np.isfinite(value) else "")
            for event, value, error in events
        ]
        return [[self.parameter, *(SIGNS[name][0] for name in columns)], *points, *notes]


@renamed(stable="stability", variance="response")
@quiet
def continue_branch(
    model: Model,
    alpha: float,
    init: Any,
    parameter: str = "alpha",
    to: float = 0.1,
    *,
    response: str = "stein",
    stability: bool = True,
    max_points: int = 200,
) -> BranchPath:
    """Follow a branch of fixed points in a parameter, by pseudo-arclength continuation with step control.

    Eq. :eq:`conjugates`, :eq:`weights`, :eq:`growth`. The method is Keller's (1977); it continues around folds.

    Parameters
    ----------
    model, alpha : the model and the sample complexity α > 0 at which to start.
    init : "semantic", "positional", "random" or Overlaps, as for `solve_state_evolution`.
    parameter : "alpha", "omega", "lam" or "sigma".
    to : parameter value at which to end.
    response : form of V̂, "stein" or "derivative".
    stability : whether to compute the stability of every point.
    max_points : maximum number of points, at least 3.

    Returns
    -------
    BranchPath

    Raises
    ------
    TypeError : if `model` is not a Model, or an argument has the wrong type.
    ValueError : if `parameter`, `response` or `init` is an unknown name, `to` is outside the range of the parameter,
        `max_points` is below 3, or the model does not have the parameter.
    ConvergenceError : if there is no such branch at the start.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> path = ga.continue_branch(ga.paper_model(), 1.5, "semantic", to=1.45, stability=False)
    >>> path.end, path.values[-1].round(6).item()
    ('reached', 1.45)
    """
    model = require_model(model)
    check.choice("parameter", parameter, PARAMETERS)
    check.choice("response", response, RESPONSES)
    to = check.real("to", to, low=0, strict=parameter != "omega", high=1 if parameter == "omega" else np.inf)
    max_points = check.integer("max_points", max_points, low=3)
    check.flag("stability", stability)
    start = solve_state_evolution(
        model, alpha, init, rtol=1e-3, response=response, stability=False, raise_on_failure=True
    )
    first = parameter_value(model, alpha, parameter)
    curve = curve_of(model, alpha, parameter, start.overlaps, response)
    points, end, family = _walk_branch(curve, start.overlaps, first, to, max_points)
    value, error = np.nan, np.nan
    if end == "fold":
        value, error, points = arclength.extremum(curve, points)
    elif end == "vanished":
        limit = _meeting_point(curve, points, family) if family else arclength.where_weights_vanish(curve, points)
        (value, error), points = limit, points[:-1]
    return _build_path(curve, points, end, to, value, error, stability)


def curve_of(model: Model, alpha: float, parameter: str, like: Overlaps, response: str = "stein") -> Curve:
    """Return the equations of branches with the symmetries of given overlaps, on a rule of moderate cost."""
    rule = SplitRule(level=1) if prefers_split(model) else SobolRule(1024, lines=True)
    unit = max(parameter_value(model, alpha, parameter), 0.05)
    return Curve(model, alpha, parameter, rule, response, Packing.of(model, like), unit)


def _walk_branch(
    curve: Curve, start: Overlaps, first: float, to: float, max_points: int
) -> tuple[list[np.ndarray], str, str | None]:
    """Return the points of the branch, its end as in `BranchPath`, and the family that vanishes there, if any."""
    points: list[np.ndarray] = []
    end = "stalled"
    for u in arclength.walk(curve, start, first, to):
        points.append(u)
        family = arclength.fading_family(curve, points) if len(points) > 2 else None
        if family:
            return points, "vanished", family
        if len(points) > 2 and arclength.turned(points):
            end = "fold"
            break
        if u[-1] == to / curve.unit:
            return points, "reached", None
        if len(points) >= max_points:
            break
    if len(points) < max_points and arclength.weights_vanish(curve, points):
        end = "vanished"
    return points, end, None


def _meeting_point(curve: Curve, points: list[np.ndarray], family: str) -> tuple[float, float]:
    """Return the parameter where the branch meets the branch without the vanishing family, and its error.

    There the vanishing family becomes unstable on the branch without it.
    """
    bare = curve.packing.unpack(points[-1][:-1]).without(family)
    p = points[-1][-1] * curve.unit
    ends = p * (1 - 0.02), p * (1 + 0.02)  # two values for a first slope
    meeting = crossing(curve, ends, (bare, bare), family, family_growth)
    return meeting.value, meeting.error


def _build_path(
    curve: Curve, points: list[np.ndarray], end: str, to: float, value: float, error: float, stable: bool
) -> BranchPath:
    overlaps = [curve.packing.unpack(u[:-1]) for u in points]
    losses, growths = [], []
    for u, x in zip(points, overlaps, strict=True):
        F = curve.map(u)
        losses.append(stationary_loss(F, x, F.images(x)[0]))
        growths.append(stability(F, x).growth if stable else dict.fromkeys(SECTORS, np.nan))
    growth = {name: np.array([point[name] for point in growths]) for name in SECTORS}
    values = np.array([u[-1] for u in points]) * curve.unit
    if end == "reached":
        values[-1] = to
    changes = [
        crossing(curve, (values[i], values[i + 1]), (overlaps[i], overlaps[i + 1]), name)
        for name, series in growth.items()
        for i in range(len(series) - 1)
        if (series[i] - 1) * (series[i + 1] - 1) < 0
    ]
    path, changes = Overlaps(**stacked(overlaps)), sorted(changes)
    return BranchPath(curve.parameter, values, path, np.array(losses), growth, end, value, error, changes)
