"""Thresholds in α of Bayes-optimal estimation: weak recovery, full recovery and the hard phase."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.numerics import half_width, ignore_float_errors
from gamp_attention._core.seeds import generator
from gamp_attention.bayes.equations import Curve, Point, ends_level, is_noiseless
from gamp_attention.bayes.results import BayesThresholds
from gamp_attention.bayes.state_evolution import checked_points, curves_of
from gamp_attention.models.model import Model


@dataclass(frozen=True)
class FoldSettings:
    """Settings for folds and limits of the curve α(s)."""

    drop: float = 3e-3  # relative decrease of α that counts as a fold
    apart: float = 3.0  # distance in log s of the points from which α is extrapolated to s → ∞
    nothing: float = 1e-5  # s from which α is extrapolated to zero
    accuracy: float = 1e-6  # of roots and maxima, relative


FOLD = FoldSettings()


class _Found(NamedTuple):
    """Thresholds of one set of points; NaN where there is none."""

    weak: float
    full: float
    hard_from: float
    hard_to: float


@ignore_float_errors
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
    curves = curves_of(model, n_points, n_replicas, generator(seed))
    exact = curves[0].equations.exact
    points = [curves[0].points()]
    xs = [point.x for point in points[0]]
    points += [[curve.at(x) for x in xs] for curve in curves[1:]]
    folded = _fold(_mean_curve(points, exact)) is not None
    values = np.array([_thresholds(curve, each, folded) for curve, each in zip(curves, points, strict=True)])
    notes = {}
    if not values[0, 0]:
        notes["weak_recovery"] = "0: any number of samples gives some overlap"
    if not np.isfinite(values[:, 1]).all():
        notes["full_recovery"] = "none: something remains unknown at every α"
    folded = np.isfinite(values[:, 2:]).all(axis=1)
    hard = hard_error = None
    if folded.all():
        (a, b), (da, db) = _value(values[:, 2:], exact), _error(values[:, 2:], exact)
        hard, hard_error = (float(a), float(b)), (float(da), float(db))
    elif folded.any():
        notes["hard"] = f"not found by all sets of points, by {folded.sum()} of {len(values)}"
    weak, full = values[:, 0], values[:, 1]
    return BayesThresholds(
        weak_recovery=float(_value(weak, exact)), weak_recovery_error=float(_error(weak, exact)),
        full_recovery=float(_value(full, exact)), full_recovery_error=float(_error(full, exact)),
        hard=hard, hard_error=hard_error, notes=notes,
    )  # fmt: skip


def _value(values: np.ndarray, exact: bool) -> np.ndarray:
    """Return the mean of replicas, or the value of the fine rule."""
    return np.asarray(values[0] if exact else values.mean(axis=0))


def _error(values: np.ndarray, exact: bool) -> np.ndarray:
    """Return half-widths from replicas; for integrals, the difference of two rules plus the accuracy of roots."""
    if exact:
        return np.asarray(np.abs(values[1] - values[0]) + FOLD.accuracy * np.abs(values[0]))
    return np.asarray(half_width(values))


def _mean_curve(points: list[list[Point]], exact: bool) -> np.ndarray:
    """Return α along increasing overlap, without decreases that are within the spread of the sets of points."""
    alphas = np.array([[point.alpha for point in each] for each in points])
    if exact:
        return np.asarray(alphas[0])
    logs = np.log(alphas)
    mean, highest = logs.mean(axis=0), logs[:, 0]
    found = mean.copy()
    for k in range(1, logs.shape[1]):
        fallen = highest - logs[:, k]
        if fallen.mean() > 0 and fallen.mean() < 2 * half_width(fallen):
            found[k] = max(found[k], found[k - 1])
        highest = logs[:, k] if mean[k] >= highest.mean() else highest
    return np.asarray(np.exp(found))


def _thresholds(curve: Curve, points: list[Point], folded: bool) -> _Found:
    equations = curve.equations
    weak = 0.0
    if equations.says_nothing_alone():
        weak = _from_nothing(curve) if equations.exact else 1 / equations.linear_growth()
    alphas = np.array([point.alpha for point in points])
    top = int(np.argmax(alphas))
    full = np.nan
    if equations.reveals and ends_level(points):
        inside = 0 < top < len(points) - 1
        full = max(_peak(curve, points, top) if inside else _limit(curve, points) if top else weak, weak)
    fold = _fold(alphas) if folded else None
    if fold is None:
        return _Found(weak, float(full), np.nan, np.nan)
    first, last = fold
    to = _peak(curve, points, first) if first > 0 else max(weak, alphas[0])
    return _Found(weak, float(full), _first_order(curve, points, first, last, to), to)


def _from_nothing(curve: Curve) -> float:
    """The limit of α for vanishing overlap."""
    one, two = (curve.at(float(np.log(k * FOLD.nothing))).alpha for k in (1, 2))
    return 2 * one - two


def _limit(curve: Curve, points: list[Point]) -> float:
    """Return the limit of α for s → ∞, from three points whose s have a constant ratio."""
    a, b, c = (curve.at(points[-1].x - k * FOLD.apart).alpha for k in (2, 1, 0))
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

    low, high = (points[min(max(j, 0), len(points) - 1)].x for j in (k - 1, k + 1))
    found = minimize_scalar(lambda x: -curve.at(x).alpha, bounds=(low, high), method="bounded", options={"xatol": 1e-4})
    return float(max(-found.fun, points[k].alpha))


def _first_order(curve: Curve, points: list[Point], first: int, last: int, to: float) -> float:
    """α at which the fixed points beyond the fold and before it have the same free entropy."""
    from scipy.optimize import brentq

    alphas = np.array([point.alpha for point in points])
    low = alphas[last]
    if is_noiseless(points) and alphas[-1] < (1 + FOLD.drop) * low:
        return _limit(curve, points)  # above this α the free entropy of exact knowledge is infinite
    at_nothing = curve.equations.output(curve.at_nothing.V, curve.at_nothing.known).log_z

    def gain(alpha: float) -> float:
        before = alpha * at_nothing
        if first > 0 and alpha > alphas[0]:
            before = curve.free_entropy(alpha, curve.crossing(alpha, points[0].x, points[first].x))
        beyond = np.nonzero(alphas[last:] > alpha)[0]
        if len(beyond):
            k = last + int(beyond[0])
            return curve.free_entropy(alpha, curve.crossing(alpha, points[k - 1].x, points[k].x)) - before
        return curve.free_entropy(alpha, points[-1]) - before

    margin = 1e-3 * (to - low)
    ends = low + margin, min(to, alphas[first]) - margin
    values = [gain(alpha) for alpha in ends]
    if values[0] >= 0:
        return float(low)
    return float(brentq(gain, *ends, xtol=1e-6)) if values[1] > 0 else float(to)
