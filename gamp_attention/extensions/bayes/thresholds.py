"""Thresholds in α of Bayes-optimal estimation, from the curve α(s) of fixed points (see `bayes.equations`).

- Weak recovery: the limit of α(s) for s → 0, if q = 0 is a fixed point; otherwise 0.
- Full recovery: the maximum of α(s), or its limit for s → ∞; above it only full information is a stable fixed point.
- Hard phase: if α(s) decreases from a local maximum, there is a range of α with two stable fixed points. It is hard
  from the α at which their free entropies are equal up to the local maximum, at which the smaller overlap becomes
  unstable.
"""

import numpy as np

from gamp_attention._tools.numerics import generator, guard_call
from gamp_attention._tools.statistics import half_width
from gamp_attention.extensions.bayes.equations import AlphaCurve, BayesPoint, Equations
from gamp_attention.extensions.bayes.results import BayesThresholds, StagedThresholds
from gamp_attention.extensions.bayes.stages import StageSearch
from gamp_attention.extensions.bayes.state_evolution import build_curves, check_points, combine
from gamp_attention.extensions.sequence.sequence_labels import is_function
from gamp_attention.theory.models.model import Model

MIN_DROP = 3e-3  # relative decrease of α(s) that counts as a fold
ACCURACY = 1e-6  # relative accuracy of roots and maxima


@guard_call
def bayes_thresholds(
    model: Model, *, n_points: int | None = None, n_replicas: int = 8, seed: int | np.random.Generator = 0
) -> BayesThresholds:
    """Compute the sample complexities of weak recovery, full recovery and the hard phase.

    Eq. :eq:`bayes-weak`; see Barbier et al. (2019) for the hard phase of generalized linear models.

    Parameters
    ----------
    model : problem whose teacher is estimated; its student and penalty have no effect.
    n_points, n_replicas, seed : as for `solve_bayes_state_evolution`.

    Returns
    -------
    BayesThresholds; for teachers of `sequence_model` a `StagedThresholds`, with the α at which each column is found.

    Raises
    ------
    TypeError, ValueError : as for `solve_bayes_state_evolution`.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> thresholds = ga.bayes_thresholds(ga.paper_model(), n_points=1024)
    >>> round(thresholds.weak_recovery, 2), round(thresholds.full_recovery, 2), thresholds.hard
    (0.17, 0.5, None)
    """
    n_points, n_replicas = check_points(model, n_points, n_replicas)
    if is_function(model.teacher):
        rng = generator(seed)
        return _find_staged_thresholds([Equations(model, n_points, rng) for _ in range(n_replicas)])
    curves = build_curves(model, n_points, n_replicas, generator(seed))
    exact = curves[0].equations.exact
    points = [curves[0].trace()]
    xs = [point.x for point in points[0]]
    points += [[curve.solve_at(x) for x in xs] for curve in curves[1:]]
    has_fold = _find_fold(_average_alpha(points, exact)) is not None
    pairs = zip(curves, points, strict=True)
    values = np.array([_find_thresholds(curve, curve_points, has_fold) for curve, curve_points in pairs])
    notes = {}
    if not values[0, 0]:
        notes["weak_recovery"] = "0: any number of samples gives some overlap"
    if not np.isfinite(values[:, 1]).all():
        notes["full_recovery"] = "none: the weights are not known exactly at any α"
    folded = np.isfinite(values[:, 2:]).all(axis=1)
    hard = hard_error = None
    if folded.all():
        ends, errors = combine(values[:, 2:], exact, ACCURACY)
        hard, hard_error = (float(ends[0]), float(ends[1])), (float(errors[0]), float(errors[1]))
    elif folded.any():
        notes["hard"] = f"found with {folded.sum()} of {len(values)} sets of points only"
    (weak, weak_error), (full, full_error) = (map(float, combine(values[:, k], exact, ACCURACY)) for k in (0, 1))
    return BayesThresholds(weak, weak_error, full, full_error, hard, hard_error, notes)


def _find_staged_thresholds(replicas: list[Equations]) -> StagedThresholds:
    """Return the thresholds of a teacher that is a function of the fields."""
    stages = StageSearch(replicas).find()
    notes = dict.fromkeys(("full_recovery", "hard"), "not computed for teachers that are functions of the fields")
    if not stages[0].alpha:
        notes["weak_recovery"] = "0: any number of samples gives some overlap"
    return StagedThresholds(
        weak_recovery=stages[0].alpha, weak_recovery_error=stages[0].alpha_error, full_recovery=float("nan"),
        full_recovery_error=float("nan"), hard=None, hard_error=None, notes=notes, stages=tuple(stages),
    )  # fmt: skip


def _average_alpha(points: list[list[BayesPoint]], exact: bool) -> np.ndarray:
    """Return α at the common values of s, averaged over the sets of points.

    A decrease below the largest α so far is removed if it is within two half-widths of its mean over the sets.
    """
    alphas = np.array([[point.alpha for point in curve_points] for curve_points in points])
    if exact:
        return np.asarray(alphas[0])
    logs = np.log(alphas)
    mean, highest = logs.mean(axis=0), logs[:, 0]
    corrected = mean.copy()
    for k in range(1, logs.shape[1]):
        drop = highest - logs[:, k]
        if drop.mean() > 0 and drop.mean() < 2 * half_width(drop):
            corrected[k] = max(corrected[k], corrected[k - 1])
        highest = logs[:, k] if mean[k] >= highest.mean() else highest
    return np.asarray(np.exp(corrected))


def _find_thresholds(curve: AlphaCurve, points: list[BayesPoint], has_fold: bool) -> tuple[float, float, float, float]:
    """Return weak and full recovery, and both ends of the hard phase, for one set of points; NaN if there is none.

    The hard phase is searched only if the average over sets has a fold.
    """
    equations = curve.equations
    weak = 0.0
    if equations.has_zero_fixed_point() and equations.exact:  # the limit for s → 0, extrapolated from two points
        one, two = (curve.solve_at(float(np.log(k * curve.settings.weak_s))).alpha for k in (1, 2))
        weak = 2 * one - two
    elif equations.has_zero_fixed_point():
        weak = 1 / equations.linear_growth()
    alphas = np.array([point.alpha for point in points])
    top = int(np.argmax(alphas))
    full = np.nan
    if equations.noiseless and curve.ends_level(points):
        inside = 0 < top < len(points) - 1
        full = max(_maximize_alpha(curve, points, top) if inside else _limit(curve, points) if top else weak, weak)
    fold = _find_fold(alphas) if has_fold else None
    if fold is None:
        return weak, full, np.nan, np.nan
    first, last = fold
    hard_to = _maximize_alpha(curve, points, first) if first > 0 else max(weak, alphas[0])
    return weak, full, _first_order_transition(curve, points, first, last, hard_to), hard_to


def _limit(curve: AlphaCurve, points: list[BayesPoint]) -> float:
    """Return the limit of α for s → ∞, from three points whose s have a constant ratio."""
    a, b, c = (curve.solve_at(points[-1].x - k * curve.settings.limit_step).alpha for k in (2, 1, 0))
    steps = c - b, b - a
    return float(c + steps[0] ** 2 / (steps[1] - steps[0]) if abs(steps[0]) < abs(steps[1]) else c)


def _find_fold(alphas: np.ndarray) -> tuple[int, int] | None:
    """Return the indices of the first local maximum of α as a function of s and of the minimum that follows.

    The minimum is taken up to the point at which α exceeds the maximum again. None if α does not decrease.
    """
    highest = np.maximum.accumulate(alphas)
    below = np.nonzero(alphas < (1 - MIN_DROP) * highest)[0]
    if not len(below):
        return None
    first = int(np.argmax(alphas[: below[0]]))
    higher = np.nonzero(alphas[below[0] :] > alphas[first])[0]
    end = below[0] + higher[0] if len(higher) else len(alphas)
    return first, int(below[0] + np.argmin(alphas[below[0] : end]))


def _maximize_alpha(curve: AlphaCurve, points: list[BayesPoint], k: int) -> float:
    """Return the maximum of α(s) between the neighbors of point k."""
    from scipy.optimize import minimize_scalar

    low, high = (points[min(max(j, 0), len(points) - 1)].x for j in (k - 1, k + 1))
    options = {"xatol": 1e-4}
    maximum = minimize_scalar(lambda x: -curve.solve_at(x).alpha, bounds=(low, high), method="bounded", options=options)
    return float(max(-maximum.fun, points[k].alpha))


def _first_order_transition(curve: AlphaCurve, points: list[BayesPoint], first: int, last: int, to: float) -> float:
    """Return the α at which the stable fixed points before and beyond the fold have equal free entropies.

    Parameters
    ----------
    first, last : indices of the local maximum and minimum of α, between which fixed points are unstable.
    to : α of the local maximum, above which the fixed point before the fold does not exist.
    """
    from scipy.optimize import brentq

    alphas = np.array([point.alpha for point in points])
    low = alphas[last]
    if curve.conjugates_diverge(points) and alphas[-1] < (1 + MIN_DROP) * low:
        return _limit(curve, points)  # above this α the free entropy of full knowledge is infinite
    log_z_prior = curve.equations.output(curve.without_data.V, curve.without_data.known).log_z

    def gain(alpha: float) -> float:
        """Return how much larger the free entropy beyond the fold is."""
        before = alpha * log_z_prior
        if first > 0 and alpha > alphas[0]:
            before = curve.free_entropy(alpha, curve.find_crossing(alpha, points[0].x, points[first].x))
        beyond = np.nonzero(alphas[last:] > alpha)[0]
        if len(beyond):
            k = last + int(beyond[0])
            return curve.free_entropy(alpha, curve.find_crossing(alpha, points[k - 1].x, points[k].x)) - before
        return curve.free_entropy(alpha, points[-1]) - before

    margin = 1e-3 * (to - low)
    ends = low + margin, min(to, alphas[first]) - margin
    values = [gain(alpha) for alpha in ends]
    if values[0] >= 0:
        return float(low)
    return float(brentq(gain, *ends, xtol=1e-6)) if values[1] > 0 else float(to)
