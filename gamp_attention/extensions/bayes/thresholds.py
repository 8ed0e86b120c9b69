"""Thresholds in α of Bayes-optimal estimation, from the curve α(s) that contains all fixed points.

Iteration at a given α finds only stable fixed points. `AlphaCurve` finds all of them:

1. The conjugates are q̂_l = s S_l, with a given size s and a shape S of size 1 (`AlphaCurve.size`).
2. `Equations.input` gives V(s S), and `Equations.output` gives E[g gᵀ] at that V; its shape replaces S until S no
   longer changes.
3. Then V is a fixed point at the sample complexity α(s) = s/‖E[g gᵀ]‖. It is stable where α(s) increases.

`AlphaCurve.trace` evaluates α(s) from nearly no to nearly full information. Steps in log s are shorter where α(s) is
nearly flat. The curve ends if nothing remains unknown or if noise limits the information of samples.

- Weak recovery: the inverse of the growth of a small overlap, if q = 0 is a fixed point; otherwise 0.
- Full recovery: the maximum of α(s), or its limit for s → ∞; above it only full information is a stable fixed point.
- Hard phase: if α(s) decreases from a local maximum, there is a range of α with two stable fixed points. It is hard
  from the α at which their free entropies are equal up to the local maximum, at which the smaller overlap becomes
  unstable.

The curve is computed if averages over samples are integrals. For teachers that are functions of the fields, only weak
recovery is computed, from the growth of small overlaps over random samples.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gamp_attention._tools.display import Rows, format_to_error
from gamp_attention._tools.numerics import generator, guard_call
from gamp_attention.extensions.bayes.equations import Equations, InputAverages, OutputAverages
from gamp_attention.extensions.bayes.state_evolution import build_equations, check_points, combine
from gamp_attention.results import ConvergenceError, Result
from gamp_attention.theory.models.model import Model

MIN_DROP = 3e-3  # relative decrease of α(s) that counts as a fold
ACCURACY = 1e-6  # relative accuracy of roots and maxima
MIN_SIGMAS = 4.0  # standard errors above which E[u | y] is not zero, and the growth of overlaps is real


@dataclass(frozen=True, eq=False)
class BayesThresholds(Result):
    """Sample complexities at which the Bayes-optimal estimate changes. Errors are half-widths of 95 % intervals.

    Attributes
    ----------
    weak_recovery, weak_recovery_error : α above which message passing without information on the teacher reaches a
        nonzero overlap; 0 if any number of samples suffices.
    full_recovery, full_recovery_error : α above which message passing determines the teacher exactly; NaN if there is
        none, or if averages over samples are not integrals.
    hard, hard_error : hard phase, (from, to) in α, in which the data determine the teacher better than message passing
        can; None if there is none, or if averages over samples are not integrals. The errors are errors of both ends.
    notes : reason in words for each threshold, by name, that is 0, NaN or None.
    """

    weak_recovery: float
    weak_recovery_error: float
    full_recovery: float
    full_recovery_error: float
    hard: tuple[float, float] | None
    hard_error: tuple[float, float] | None
    notes: dict[str, str]

    def _rows(self) -> Rows:
        rows: Rows = [type(self).__name__]
        for name in ("weak_recovery", "full_recovery"):
            shown = format_to_error(getattr(self, name), getattr(self, f"{name}_error"))
            rows.append([f"  {name}", self.notes.get(name, shown)])
        if self.hard is None or self.hard_error is None:
            return [*rows, ["  hard", self.notes.get("hard", "nowhere")]]
        ends = [format_to_error(*pair) for pair in zip(self.hard, self.hard_error, strict=True)]
        return [*rows, ["  hard", " to ".join(ends)]]


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
    BayesThresholds

    Raises
    ------
    TypeError, ValueError : as for `solve_bayes_state_evolution`.
    ConvergenceError : if posteriors of random samples are not finite.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> thresholds = ga.bayes_thresholds(ga.paper_model(), n_points=1024)
    >>> round(thresholds.weak_recovery, 2), round(thresholds.full_recovery, 2), thresholds.hard
    (0.17, 0.5, None)
    """
    n_points, n_replicas = check_points(model, n_points, n_replicas)
    sets = build_equations(model, n_points, n_replicas, generator(seed))
    exact, weak, notes = sets[0].exact, _weak_recovery(sets), dict[str, str]()
    if not weak[0]:
        notes["weak_recovery"] = "0: any number of samples gives some overlap"
    elif not np.isfinite(weak).all():
        notes["weak_recovery"] = "none: small overlaps do not grow"
    values = np.full((len(sets), 3), np.nan)
    if not exact:
        notes |= dict.fromkeys(("full_recovery", "hard"), "not computed for averages over random points")
    else:
        values = np.array([_find_thresholds(AlphaCurve(part), alpha) for part, alpha in zip(sets, weak, strict=True)])
        if not np.isfinite(values[:, 0]).all():
            notes["full_recovery"] = "none: the weights are not known exactly at any α"
    hard = hard_error = None
    if np.isfinite(values[:, 1:]).all():
        ends, errors = combine(values[:, 1:], exact, ACCURACY)
        hard, hard_error = (float(ends[0]), float(ends[1])), (float(errors[0]), float(errors[1]))
    (weak, weak_error), (full, full_error) = (combine(column, exact, ACCURACY) for column in (weak, values[:, 0]))
    return BayesThresholds(float(weak), float(weak_error), float(full), float(full_error), hard, hard_error, notes)


def _weak_recovery(sets: list[Equations]) -> np.ndarray:
    """Return the weak-recovery threshold (k,) of each set of points, infinite if small overlaps do not grow.

    The inverse of the mean growth of random sets is expanded to first order in their differences from the mean.
    """
    first = sets[0]
    if not (first.has_zero_fixed_point() or first.channel.is_function):
        return np.zeros(len(sets))
    if first.exact:
        return np.array([1 / equations.growth() for equations in sets])
    if not first.signless_columns().all():  # products of two independent estimates have no bias
        squares = np.concatenate([equations.squared_means() for equations in sets])
        error = squares.std(axis=0, ddof=1) / np.sqrt(len(squares))
        if (~first.signless_columns() & (squares.mean(axis=0) > MIN_SIGMAS * error)).any():
            return np.zeros(len(sets))
    unknown = np.arange(first.rho.shape[1])
    maps = np.array([equations.growth_map(np.zeros_like(first.rho), unknown) for equations in sets])
    if not np.isfinite(maps).all():
        message = "bayes_thresholds: the posteriors of some samples are not finite, so that no threshold is known"
        raise ConvergenceError(message, None)
    values, vectors = np.linalg.eig(maps.mean(axis=0))
    k = int(np.argmax(np.real(values)))
    value, left = float(np.real(values[k])), np.linalg.pinv(vectors)[k]
    rates = np.real(np.einsum("i,kij,j->k", left, maps, vectors[:, k]))
    if not value > MIN_SIGMAS * rates.std(ddof=1) / np.sqrt(len(rates)):
        return np.full(len(sets), np.inf)
    return 1 / value - (rates - value) / value**2


@dataclass(frozen=True)
class CurveSettings:
    """Range and resolution of the curve."""

    first_s: float = 1e-7  # s of the first point
    finest_step: float = 0.08  # shortest distance of points in log s, near maxima and minima of α
    shape_change: float = 1e-11  # relative change of the shape S at which a fixed point has converged
    nothing_unknown: float = 1e-12  # unknown fraction of the fields' variance that counts as zero
    crossing_step: float = 1e-13  # accuracy of log s at a crossing
    max_s: float = 1e30  # largest s
    log_step: float = 0.6  # distance of points in log s
    flat: float = 0.35  # slope of log α in log s below which points are inserted
    max_steps: int = 300  # number of iterations of the shape
    noise_limited: float = 0.9  # ‖E[g gᵀ]‖ over its limit for V → 0 above which the curve ends
    slope_points: int = 4  # number of intervals over which the slope at the end of the curve is computed
    level: float = 0.02  # slope of log α in log s at the end below which α has a limit for s → ∞
    divergence: float = 0.05  # maximum distance of d log q̂/d log V from −1 at which conjugates grow like 1/V
    limit_step: float = 3.0  # distance in log s of the points from which α is extrapolated to s → ∞


class BayesPoint(NamedTuple):
    """A point of the curve: a fixed point of state evolution at its α."""

    x: float  # log s
    alpha: float  # sample complexity, infinite if samples give no information at this V
    output: OutputAverages
    input: InputAverages


class AlphaCurve:
    """The curve α(s) that contains all fixed points of `equations`; see the description of the module.

    The shape of the conjugates at the last evaluated point starts the next evaluation.
    """

    def __init__(self, equations: Equations) -> None:
        self.equations, self.settings = equations, CurveSettings()
        self._shape = np.linalg.inv(equations.rho)

    def size(self, hats: np.ndarray) -> float:
        """Return the size ‖q̂‖ = Σ_l Tr(q̂_l ρ_l)/(L t) of conjugates; it is 1 for q̂ = ρ⁻¹."""
        rho = self.equations.rho
        return float(np.einsum("lab,lba->", hats, rho)) / (rho.shape[0] * rho.shape[1])

    def solve_at(self, x: float) -> BayesPoint:
        """Return the fixed point whose conjugates have size s = exp(x).

        The shape is iterated until it has converged, at most `max_steps` times. α is infinite if E[g gᵀ] is zero or not
        finite.
        """
        for _ in range(self.settings.max_steps):
            averages, before = self.equations.input(np.exp(x) * self._shape), self._shape
            output = self.equations.output(averages.V, averages.known)
            size = self.size(output.hats)
            if not size > 0 or not np.isfinite(size):
                return BayesPoint(x, np.inf, output, averages)
            self._shape = output.hats / size
            if np.abs(self._shape - before).max() < self.settings.shape_change * np.abs(before).max():
                break
        return BayesPoint(x, float(np.exp(x) / size), output, averages)

    def trace(self) -> list[BayesPoint]:
        """Return points of the curve in the order of s, with log s at most `log_step` apart."""
        settings, V = self.settings, np.zeros_like(self.equations.rho)
        limit = np.inf  # ‖E[g gᵀ]‖ for V → 0
        if not self.equations.noiseless:
            limit = self.size(self.equations.output(V, self.equations.rho).hats)
        points = [self.solve_at(float(np.log(settings.first_s)))]
        while points[-1].x < np.log(settings.max_s) and not self._is_complete(points, limit):
            points.append(self.solve_at(points[-1].x + settings.log_step))
        return self._refine(points)

    def _is_complete(self, points: list[BayesPoint], limit: float) -> bool:
        """Return whether the curve, continued beyond these points, contains no further maximum or minimum of α."""
        last, settings, rho = points[-1], self.settings, self.equations.rho
        if not np.isfinite(last.alpha):
            return True
        unknown = float(np.trace(last.input.V, axis1=1, axis2=2).sum() / np.trace(rho, axis1=1, axis2=2).sum())
        if unknown < settings.nothing_unknown:
            return self.ends_level(points) or unknown < 1e-3 * settings.nothing_unknown
        # with noise ‖E[g gᵀ]‖ has a limit for V → 0, and from there on α increases in proportion to s
        return bool(last.x > 0 and self.size(last.output.hats) > settings.noise_limited * limit)

    def _refine(self, points: list[BayesPoint]) -> list[BayesPoint]:
        """Return the points with further points inserted where α(s) is nearly flat, at its maxima and minima.

        An interval is halved if the slope of log α in it or next to it is below `flat` and not constant, until it is as
        short as `finest_step`, or longer in proportion to the slope.
        """
        finest, k = self.settings.finest_step, 0
        while k < len(points) - 1:
            a, b = points[k], points[k + 1]
            before, after = points[max(k - 1, 0) : k + 2], points[max(k - 1, 0) + 1 : k + 3]
            slopes = [np.log(p.alpha / o.alpha) / (p.x - o.x) for o, p in zip(before, after, strict=False)]
            is_flat = min(slopes) < self.settings.flat and np.ptp(slopes) > 1e-3
            if is_flat and b.x - a.x > 2 * finest * (1 + 2 * min(np.abs(slopes))):
                points.insert(k + 1, self.solve_at(0.5 * (a.x + b.x)))
            else:
                k += 1
        return points

    def find_crossing(self, alpha: float, low: float, high: float) -> BayesPoint:
        """Return the fixed point at α between two values of log s at which α(s) is on different sides of α."""
        from scipy.optimize import brentq  # takes long to import

        def excess(x: float) -> float:
            return min(float(np.log(self.solve_at(x).alpha / alpha)), 600.0)  # finite for an infinite α

        return self.solve_at(float(brentq(excess, low, high, xtol=self.settings.crossing_step, rtol=1e-14)))

    def ends_level(self, points: list[BayesPoint]) -> bool:
        """Return whether α(s) decreases or has a limit for s → ∞, so that weights are known exactly above some α."""
        a, b = points[-1 - min(self.settings.slope_points, len(points) - 1)], points[-1]
        return bool(np.log(b.alpha / a.alpha) < self.settings.level * (b.x - a.x))

    def conjugates_diverge(self, points: list[BayesPoint]) -> bool:
        """Return whether conjugates grow like 1/V for V → 0, so that the free entropy of full knowledge is infinite."""
        hats = [np.log(np.abs(point.output.hats).max()) for point in points[-2:]]
        variances = [np.log(np.trace(point.input.V, axis1=1, axis2=2).sum()) for point in points[-2:]]
        return bool(abs(np.diff(hats) / np.diff(variances) + 1) < self.settings.divergence)


def _find_thresholds(curve: AlphaCurve, weak: float) -> tuple[float, float, float]:
    """Return full recovery and both ends of the hard phase; NaN if there is none. `weak` is the α of weak recovery."""
    points = curve.trace()
    alphas = np.array([point.alpha for point in points])
    top, full = int(np.argmax(alphas)), np.nan
    if curve.equations.noiseless and curve.ends_level(points):
        inside = 0 < top < len(points) - 1
        full = max(_maximize_alpha(curve, points, top) if inside else _limit(curve, points) if top else weak, weak)
    fold = _find_fold(alphas)
    if fold is None:
        return full, np.nan, np.nan
    first, last = fold
    hard_to = _maximize_alpha(curve, points, first) if first > 0 else max(weak, alphas[0])
    return full, _first_order_transition(curve, points, first, last, hard_to), hard_to


def _limit(curve: AlphaCurve, points: list[BayesPoint]) -> float:
    """Return the limit of α for s → ∞, from the last point and two beyond it whose s have a constant ratio."""
    a, b, c = (curve.solve_at(points[-1].x + k * curve.settings.limit_step).alpha for k in (0, 1, 2))
    steps = c - b, b - a
    return float(c + steps[0] ** 2 / (steps[1] - steps[0]) if abs(steps[0]) < abs(steps[1]) else c)


def _find_fold(alphas: np.ndarray) -> tuple[int, int] | None:
    """Return the indices of the first local maximum of α as a function of s and of the minimum that follows.

    The minimum is taken up to the point at which α exceeds the maximum again. None if α does not decrease.
    """
    highest = np.maximum.accumulate(alphas)
    is_below = alphas < (1 - MIN_DROP) * highest
    if not is_below.any():
        return None
    below = int(np.argmax(is_below))
    first = int(np.argmax(alphas[:below]))
    return first, below + int(np.argmin(np.where(highest[below:] > alphas[first], np.inf, alphas[below:])))


def _maximize_alpha(curve: AlphaCurve, points: list[BayesPoint], k: int) -> float:
    """Return the maximum of α(s) between the neighbors of point k."""
    from scipy.optimize import minimize_scalar

    bounds, options = (points[k - 1].x, points[k + 1].x), {"xatol": 1e-4}
    maximum = minimize_scalar(lambda x: -curve.solve_at(x).alpha, bounds=bounds, method="bounded", options=options)
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

    def gain(alpha: float) -> float:
        """Return how much larger the free entropy beyond the fold is."""
        before, after = points[0], points[-1]
        if first > 0 and alpha > alphas[0]:
            before = curve.find_crossing(alpha, points[0].x, points[first].x)
        beyond = np.nonzero(alphas[last:] > alpha)[0]
        if len(beyond):
            k = last + int(beyond[0])
            after = curve.find_crossing(alpha, points[k - 1].x, points[k].x)
        free_entropy = curve.equations.free_entropy
        higher = free_entropy(alpha, after.input.V, after.output)
        return higher - free_entropy(alpha, before.input.V, before.output)

    margin = 1e-3 * (to - low)
    ends = low + margin, min(to, alphas[first]) - margin
    if gain(ends[0]) >= 0:
        return float(low)
    return float(brentq(gain, *ends, xtol=1e-6)) if gain(ends[1]) > 0 else float(to)
