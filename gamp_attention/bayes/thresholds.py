"""Thresholds in α of Bayes-optimal estimation: weak recovery, full recovery and the hard phase."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.overflow import quiet
from gamp_attention._core.seeds import generator
from gamp_attention._core.spread import half_width
from gamp_attention.bayes.curve import Curve, Point, ends_level, is_noiseless
from gamp_attention.bayes.equations import Equations
from gamp_attention.bayes.result import BayesThresholds
from gamp_attention.bayes.state_evolution import checked_points
from gamp_attention.models.model import Model


@dataclass(frozen=True)
class FoldSettings:
    """What counts as a fold of the curve α(v)."""

    drop: float = 3e-3  # share of itself by which α falls
    apart: int = 4  # points of the curve, for the limit of vanishing v
    nothing: float = 1e-4  # overlaps from which α is extrapolated to zero
    accuracy: float = 1e-6  # of roots and maxima, relative


FOLD = FoldSettings()


class _Found(NamedTuple):
    """Thresholds of one set of points; NaN where there is none."""

    weak: float
    full: float
    hard_from: float
    hard_to: float


@quiet
def bayes_thresholds(model: Model, *, n_points: int = 4096, n_replicas: int = 8, seed: Any = 0) -> BayesThresholds:
    """Where in α Bayes-optimal estimation begins to work, is complete, and is harder than the data allow.

    Eq. :eq:`bayes-weak`.

    Parameters
    ----------
    model : the problem: what is learnt is the teacher, whatever the student.
    n_points, n_replicas : randomised points of averages over samples, even, and independent sets of them.
    seed : of the points.

    Returns
    -------
    BayesThresholds

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs; for models without a known channel, too.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> found = ga.bayes_thresholds(ga.paper_model(), n_points=1024)
    >>> round(found.weak_recovery, 2), round(found.full_recovery, 2), found.hard
    (0.17, 0.5, None)
    """
    n_points, n_replicas = checked_points(model, n_points, n_replicas)
    rng = generator(seed)
    first = Equations(model, n_points, rng)
    others = [] if first.exact else [Equations(model, n_points, rng) for _ in range(n_replicas - 1)]
    found = [_thresholds(Curve(equations)) for equations in (first, *others)]
    values = np.array(found)
    notes = {}
    if not values[0, 0]:
        notes["weak_recovery"] = "0: any number of samples gives some overlap"
    if not np.isfinite(values[:, 1]).all():
        notes["full_recovery"] = "none: something remains unknown at every α"
    folded = np.isfinite(values[:, 2:]).all(axis=1)
    hard = hard_error = None
    if folded.all():
        (a, b), (da, db) = values[:, 2:].mean(axis=0), _error(values[:, 2:])
        hard, hard_error = (float(a), float(b)), (float(da), float(db))
    elif folded.any():
        notes["hard"] = f"not found by all sets of points, by {folded.sum()} of {len(found)}"
    weak, full = values[:, 0], values[:, 1]
    return BayesThresholds(
        weak_recovery=float(weak.mean()), weak_recovery_error=float(_error(weak)),
        full_recovery=float(full.mean()), full_recovery_error=float(_error(full)),
        hard=hard, hard_error=hard_error, notes=notes,
    )  # fmt: skip


def _error(values: np.ndarray) -> np.ndarray:
    """Half-widths from replicas; where averages are integrals, what roots and maxima are found to."""
    return half_width(values) if len(values) > 1 else FOLD.accuracy * np.abs(values[0])


def _thresholds(curve: Curve) -> _Found:
    equations = curve.equations
    points = curve.points()
    weak = 0.0
    if equations.says_nothing_alone():
        weak = _from_nothing(curve) if equations.exact else 1 / equations.linear_growth()
    alphas = np.array([point.alpha for point in points])
    top = int(np.argmax(alphas))
    full = np.nan
    if ends_level(points):
        inside = 0 < top < len(points) - 1
        full = max(_peak(curve, points, top) if inside else _limit(alphas) if top else weak, weak)
    fold = _fold(alphas)
    if fold is None:
        return _Found(weak, float(full), np.nan, np.nan)
    first, last = fold
    to = _peak(curve, points, first) if first > 0 else max(weak, alphas[0])
    return _Found(weak, float(full), _first_order(curve, points, first, last, to), to)


def _from_nothing(curve: Curve) -> float:
    """The limit of α for vanishing overlap."""
    one, two = (curve.at(curve.largest * (1 - k * FOLD.nothing)).alpha for k in (1, 2))
    return 2 * one - two


def _limit(alphas: np.ndarray) -> float:
    """The limit of α for v → 0, from three points whose v have the same ratio."""
    a, b, c = alphas[-1 - 2 * FOLD.apart], alphas[-1 - FOLD.apart], alphas[-1]
    steps = c - b, b - a
    return float(c + steps[0] ** 2 / (steps[1] - steps[0]) if abs(steps[0]) < abs(steps[1]) else c)


def _fold(alphas: np.ndarray) -> tuple[int, int] | None:
    """Of α along growing overlap the first local maximum that it falls from, and the minimum after that."""
    highest = np.maximum.accumulate(alphas)
    fallen = np.nonzero(alphas < (1 - FOLD.drop) * highest)[0]
    if not len(fallen):
        return None
    first = int(np.argmax(alphas[: fallen[0]]))
    back = np.nonzero(alphas[fallen[0] :] > alphas[first])[0]
    end = fallen[0] + back[0] if len(back) else len(alphas)
    return first, int(fallen[0] + np.argmin(alphas[fallen[0] : end]))


def _peak(curve: Curve, points: list[Point], k: int) -> float:
    """The maximum of α near a point of the grid."""
    from scipy.optimize import minimize_scalar

    a, b, c = (points[min(max(j, 0), len(points) - 1)].v for j in (k - 1, k, k + 1))
    logit = [np.log(v / (curve.largest - v)) for v in (c, b, a)]
    found = minimize_scalar(
        lambda x: -curve.at(curve.largest / (1 + np.exp(-x))).alpha, bounds=(logit[0], logit[2]), method="bounded",
        options={"xatol": 1e-4},
    )  # fmt: skip
    return float(max(-found.fun, points[k].alpha))


def _first_order(curve: Curve, points: list[Point], first: int, last: int, to: float) -> float:
    """α at which the fixed points beyond the fold and before it have the same free entropy."""
    from scipy.optimize import brentq

    alphas = np.array([point.alpha for point in points])
    low = alphas[last]
    if is_noiseless(points) and alphas[-1] < (1 + FOLD.drop) * low:
        return _limit(alphas)  # from there on the free entropy of knowing all is infinite
    nothing = curve.equations.input(np.zeros_like(curve.equations.rho)).V
    at_nothing = curve.equations.output(nothing).log_z

    def gain(alpha: float) -> float:
        before = alpha * at_nothing
        if first > 0 and alpha > alphas[0]:
            before = curve.free_entropy(alpha, curve.crossing(alpha, points[first].v, points[0].v))
        beyond = np.nonzero(alphas[last:] > alpha)[0]
        if len(beyond):
            k = last + int(beyond[0])
            return curve.free_entropy(alpha, curve.crossing(alpha, points[k].v, points[k - 1].v)) - before
        return curve.free_entropy(alpha, points[-1]) - before

    margin = 1e-3 * (to - low)
    ends = low + margin, min(to, alphas[first]) - margin
    values = [gain(alpha) for alpha in ends]
    if values[0] >= 0:
        return float(low)
    return float(brentq(gain, *ends, xtol=1e-6)) if values[1] > 0 else float(to)
