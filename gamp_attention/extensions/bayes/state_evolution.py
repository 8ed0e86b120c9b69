"""Fixed points of Bayes-optimal state evolution at a given α, with errors.

`bayes_fixed_points` finds them in three steps:

1. The curve α(s) of the first set of points, see `bayes.equations`, is traced from no to full information. Each of its
   crossings with α is a fixed point. Two ends of the curve can be fixed points without a crossing: no information, if
   q = 0 is a fixed point, and full information, if samples have no noise and α(s) stays below α for s → ∞.
2. Each fixed point is solved again with every set of points: a finer and a coarser quadrature rule if averages over
   samples are integrals, independent random sets otherwise. `_find_bracket` searches other sets near the log s of the
   first set only, in growing intervals, so that they converge to the same fixed point.
3. The difference of the two rules, or the spread of the random sets, gives the errors. If a set does not have the fixed
   point, as may happen at a threshold, the status is INACCURATE.

For teachers that are functions of the fields, fixed points are found by iteration from both starts (`bayes.stages`),
which does not find unstable fixed points.
"""

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import generator, guard_call
from gamp_attention._tools.statistics import half_width
from gamp_attention.extensions.bayes.channels.integrals import COARSE, FINE
from gamp_attention.extensions.bayes.equations import AlphaCurve, BayesPoint, Equations
from gamp_attention.extensions.bayes.results import BayesStateEvolution, FreshSamples
from gamp_attention.extensions.bayes.stages import IterationSettings, Solution, iterate_stage
from gamp_attention.extensions.sequence.sequence_labels import is_function
from gamp_attention.results import ConvergenceError, Status
from gamp_attention.theory.models.model import Model, require_model

BAYES_STARTS = ("uninformed", "informed")
POINTS = 4096  # default number of points
MIN_POINTS = 64  # minimum number of points
SAME_OVERLAP = 0.01  # difference of overlaps, in addition to errors, up to which fixed points from two starts are equal
ACCURACY = 1e-10  # relative accuracy of integrals and of roots


class Branch(NamedTuple):
    """A fixed point found on the curve of the first set of points."""

    kind: Literal["zero", "crossing", "full"]  # no overlap, a crossing of α(s) with α, or full information
    low: float  # interval of log s that contains a crossing; NaN for the other kinds
    high: float
    stable: bool


@guard_call
def solve_bayes_state_evolution(
    model: Model,
    alpha: float,
    init: str = "uninformed",
    *,
    n_points: int | None = None,
    n_replicas: int = 4,
    seed: int | np.random.Generator = 0,
) -> BayesStateEvolution:
    """Compute the fixed point that Bayes-optimal message passing reaches for d → ∞.

    The equations are in `gamp_attention.extensions.bayes.equations`; for generalized linear models see Barbier et al.
    (2019).

    Parameters
    ----------
    model : problem whose teacher is estimated; its student and penalty have no effect.
    alpha : sample complexity α = n/d.
    init : "uninformed" for the stable fixed point of smallest overlap, which a run without information on the teacher
        reaches; "informed" for the stable fixed point of largest overlap, which a run from the teacher reaches.
    n_points : number of random points of averages over samples, even; without effect if the averages are integrals.
        If not given, 4096.
    n_replicas : number of independent sets of points, whose spread gives the errors.
    seed : seed or generator of the points.

    Returns
    -------
    BayesStateEvolution

    Raises
    ------
    TypeError : if `model` is not a Model, or an argument has the wrong type.
    ValueError : if `alpha` is not in (0, 1e12]; `n_points` is odd or below 64, or `n_replicas` is below 2; `init` is
        unknown; or the posterior of the fields is not available: samples with classes, fixed columns, user-defined
        labels, attention without score noise that does not determine the fields up to a rotation, or a teacher prior
        that is a mixture in more than one column.
    ConvergenceError : if no fixed point was found.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.paper_model()
    >>> points = [ga.solve_bayes_state_evolution(model, alpha, n_points=1024) for alpha in (0.15, 0.4, 0.55)]
    >>> [round(float(point.q[0, 0]), 1) for point in points]
    [0.0, 0.6, 1.0]
    """
    check.choice("init", init, BAYES_STARTS)
    if is_function(require_model(model).teacher):
        alpha = check.real("alpha", alpha, low=0, high=1e12, strict=True)
        return _iterate_replicas(model, alpha, init, *check_points(model, n_points, n_replicas), generator(seed))
    fixed_points = bayes_fixed_points(model, alpha, n_points=n_points, n_replicas=n_replicas, seed=seed)
    stable = [point for point in fixed_points if point.stable] or fixed_points
    return stable[0] if init == "uninformed" else stable[-1]


@guard_call
def bayes_fixed_points(
    model: Model, alpha: float, *, n_points: int | None = None, n_replicas: int = 4, seed: int | np.random.Generator = 0
) -> list[BayesStateEvolution]:
    """Compute all fixed points of Bayes-optimal state evolution, see Barbier et al. (2019).

    Parameters
    ----------
    model, alpha, n_points, n_replicas, seed : as for `solve_bayes_state_evolution`.

    Returns
    -------
    list of BayesStateEvolution, in the order of their overlap tr q. The data determine the stable fixed point of
    largest free entropy; message passing without information on the teacher reaches the stable fixed point of smallest
    overlap.

    Raises
    ------
    TypeError, ValueError : as for `solve_bayes_state_evolution`.
    ConvergenceError : if no fixed point was found.

    Examples
    --------
    For 1 < α < 1.13 phase retrieval is possible, but message passing does not achieve it:

    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.PhaseRetrievalLoss())
    >>> [(round(float(point.q[0, 0]), 2), point.stable) for point in ga.bayes_fixed_points(model, 1.1)]
    [(0.0, False), (0.69, True), (0.95, False), (1.0, True)]
    """
    alpha = check.real("alpha", alpha, low=0, high=1e12, strict=True)
    n_points, n_replicas = check_points(model, n_points, n_replicas)
    rng = generator(seed)
    if is_function(model.teacher):
        return _distinct([_iterate_replicas(model, alpha, init, n_points, n_replicas, rng) for init in BAYES_STARTS])
    curves = build_curves(model, n_points, n_replicas, rng)
    fresh = [FreshSamples(model, n_points, rng) for _ in range(n_replicas if model.attention else 1)]
    if curves[0].equations.exact and not model.attention:
        fresh.append(FreshSamples(model, n_points, rng, COARSE))
    if not curves[0].unknown_fraction(curves[0].without_data.V):  # a prior that is certain of all weights
        return [_solve_branch(Branch("full", np.nan, np.nan, True), alpha, curves, fresh, [])]
    points = curves[0].trace(alpha)
    branches = _find_branches(curves[0], points, alpha)
    if not branches:
        raise ConvergenceError(_describe_failure(points, alpha), None)
    fixed_points = [_solve_branch(branch, alpha, curves, fresh, points) for branch in branches]
    return sorted(fixed_points, key=lambda point: float(np.trace(point.q)))


def _iterate_replicas(
    model: Model, alpha: float, init: str, n_points: int, n_replicas: int, rng: np.random.Generator
) -> BayesStateEvolution:
    """Return the fixed point that iterations from a start reach, for teachers that are functions; with errors."""
    runs, settings = [], IterationSettings()
    for _ in range(n_replicas):
        few = Equations(model, max(n_points // settings.few, MIN_POINTS) // 2 * 2, rng)
        runs.append(iterate_stage(few, Equations(model, n_points, rng), alpha, init, settings))
    errors = [FreshSamples(model, settings.n_fresh, rng).test_error(run.V, run.known) for run in runs]
    agree = len({(bytes(np.diagonal(run.q) > settings.found), run.full) for run in runs}) == 1
    status = Status.CONVERGED if agree and all(run.converged for run in runs) else Status.INACCURATE
    full, prior = all(run.full for run in runs), few.prior_second_moment
    left, least = (0.0, 0.0) if full else (max(run.error for run in runs), float(np.exp(-settings.full)))
    point = _average(runs, errors, status=status, n_iter=sum(run.n_iter for run in runs), stable=True, full=full)
    return replace(
        point, q_error=point.q_error + left * _scale(prior - point.q) + least * _scale(prior),
        V_error=point.V_error + (left + least) * _scale(point.V),
        test_error_error=point.test_error_error + left * point.test_error,
    )  # fmt: skip


def _scale(cov: np.ndarray) -> np.ndarray:
    """Return products of standard deviations (…, t, t) for covariances (…, t, t)."""
    deviation = np.sqrt(np.maximum(np.diagonal(cov, axis1=-2, axis2=-1), 0.0))
    return np.asarray(deviation[..., :, None] * deviation[..., None, :])


def _distinct(points: list[BayesStateEvolution]) -> list[BayesStateEvolution]:
    """Return both fixed points, or the first of them if they agree within their errors."""
    first, second = points
    if (np.abs(first.q - second.q) <= first.q_error + second.q_error + SAME_OVERLAP).all():
        return [first]
    return sorted(points, key=lambda point: float(np.trace(point.q)))


def build_curves(model: Model, n_points: int, n_replicas: int, rng: np.random.Generator) -> list[AlphaCurve]:
    """Return one curve for each set of random points, or for a fine and a coarse rule if averages are integrals."""
    first = AlphaCurve(Equations(model, n_points, rng, FINE))
    if first.equations.exact:
        return [first, AlphaCurve(Equations(model, n_points, rng, COARSE))]
    return [first] + [AlphaCurve(Equations(model, n_points, rng)) for _ in range(n_replicas - 1)]


def check_points(model: Model, n_points: int | None, n_replicas: int) -> tuple[int, int]:
    """Return the sizes of averages over samples as integers, if they and the model are valid."""
    require_model(model)
    n_points = check.integer("n_points", POINTS if n_points is None else n_points, low=MIN_POINTS)
    if n_points % 2:
        raise check.fail("n_points", n_points, "an even number")
    n_replicas = check.integer("n_replicas", n_replicas, low=2)
    size = model.n_tokens * (3 * model.teacher_rank + model.n_tokens)
    check.require_memory("n_points, n_replicas", n_points, n_replicas, size)
    return n_points, n_replicas


def _describe_failure(points: list[BayesPoint], alpha: float) -> str:
    alphas = [point.alpha for point in points]
    unknown = float(np.trace(points[-1].V, axis1=1, axis2=2).sum())
    return (
        f"bayes_fixed_points: no fixed point found at alpha = {alpha:g}. Fixed points exist for alpha between "
        f"{min(alphas):g} and {max(alphas):g}: conjugates of size {np.exp(points[0].x):.1e} to "
        f"{np.exp(points[-1].x):.1e} were searched, and at the largest of them the fields' posterior variance is still "
        f"{unknown:.1e}; increase n_points"
    )


def _find_branches(curve: AlphaCurve, points: list[BayesPoint], alpha: float) -> list[Branch]:
    """Return the fixed points at α between the traced points of the first curve and at its ends, in the order of s."""
    branches = []
    above = np.array([point.alpha > alpha for point in points])
    if curve.equations.has_zero_fixed_point():
        branches.append(Branch("zero", np.nan, np.nan, bool(above[0])))
    for k in np.nonzero(above[1:] != above[:-1])[0]:
        branches.append(Branch("crossing", points[k].x, points[k + 1].x, bool(above[k + 1])))
    if curve.equations.noiseless and not above[-1] and curve.ends_level(points):
        branches.append(Branch("full", np.nan, np.nan, True))
    return branches


def _solve_branch(
    branch: Branch, alpha: float, curves: list[AlphaCurve], fresh: list[FreshSamples], points: list[BayesPoint]
) -> BayesStateEvolution:
    """Return the fixed point of a branch, computed with all sets of points, with errors."""
    exact = curves[0].equations.exact
    solutions, n_missing = list[Solution](), 0
    for curve in curves:
        if branch.kind == "full":
            solutions.append(_solve_full(curve, alpha, points))
            continue
        bracket, as_first = _find_bracket(curve, alpha, branch, is_first=curve is curves[0])
        n_missing += not as_first
        if bracket is not None:
            solutions.append(_solve_crossing(curve, alpha, *bracket))
        elif curve.equations.has_zero_fixed_point():
            solutions.append(_solve_zero(curve, alpha))
    # random points or fewer rules than sets: sets and solutions are used in turn
    pairs = [(fresh[k % len(fresh)], solutions[k % len(solutions)]) for k in range(max(len(fresh), len(solutions)))]
    errors = [samples.test_error(point.V, point.known) for samples, point in pairs]
    exact_errors, accuracy = exact and not fresh[0].model.attention, ACCURACY if branch.kind == "crossing" else 0.0
    point = _average(
        solutions, errors, exact, exact_errors, accuracy,
        status=Status.INACCURATE if n_missing else Status.CONVERGED, n_iter=sum(curve.evaluations for curve in curves),
        stable=branch.stable, full=branch.kind == "full",
    )  # fmt: skip
    # the free entropy is a sum of terms of this size
    rounding = ACCURACY * (1 + alpha + abs(point.free_entropy)) if exact else 0.0
    return replace(point, free_entropy_error=point.free_entropy_error + rounding)


def _average(
    solutions: list[Solution], test_errors: list[float], exact: bool = False, exact_errors: bool = False,
    accuracy: float = 0.0, **other: Any
) -> BayesStateEvolution:  # fmt: skip
    """Return the result of fixed points of several sets of points; the arguments are those of `combine`."""
    values = {name: np.array([getattr(each, name) for each in solutions]) for name in ("q", "V", "free_entropy")}
    fields = {"residual": max(each.residual for each in solutions)} | other
    for name, column in values.items():
        fields[name], fields[f"{name}_error"] = combine(column, exact, accuracy)
    fields["test_error"], fields["test_error_error"] = combine(np.array(test_errors), exact_errors, ACCURACY)
    for name in ("free_entropy", "free_entropy_error", "test_error", "test_error_error"):
        fields[name] = float(fields[name])
    return BayesStateEvolution(**fields)


def combine(values: np.ndarray, exact: bool, accuracy: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the value of results (k, …) of several sets of points, and its error (95 %), NaN if it is not known.

    Independent random sets give the mean and its half-width; `exact` results of a fine and a coarse rule the first and
    their difference, plus a relative `accuracy` of roots and rounding.
    """
    if not exact:
        return values.mean(axis=0), _half_width(values)
    return values[0], np.abs(values[1] - values[0]) + accuracy * np.abs(values[0])


def _half_width(column: np.ndarray) -> np.ndarray:
    """Return half-widths (95 %) over replicas (k, …); NaN for fewer than two, or if a value is not finite."""
    known = len(column) > 1 and np.isfinite(column).all()
    return np.asarray(half_width(column) if known else np.full(column.shape[1:], np.nan))


def _solve_zero(curve: AlphaCurve, alpha: float) -> Solution:
    """Return the fixed point without overlap, of problems whose samples do not determine the sign."""
    prior = curve.without_data
    entropy = alpha * curve.equations.output(prior.V, prior.known).log_z
    return Solution(prior.q, prior.V, prior.known, entropy, 0.0)


def _solve_full(curve: AlphaCurve, alpha: float, points: list[BayesPoint]) -> Solution:
    """Return the fixed point at which the weights are known exactly."""
    entropy = np.nan
    if points:
        infinite = curve.conjugates_diverge(points)
        entropy = np.inf if infinite else curve.free_entropy(alpha, curve.solve_at(points[-1].x))
    rho = curve.equations.rho
    return Solution(curve.equations.prior_second_moment, np.zeros_like(rho), rho, entropy, 0.0)


def _solve_crossing(curve: AlphaCurve, alpha: float, low: float, high: float) -> Solution:
    """Return the fixed point between two values of log s on different sides of α.

    The residual is the relative change of V in one more iteration.
    """
    point = curve.find_crossing(alpha, low, high)
    next_V = curve.equations.input(alpha * curve.equations.output(point.V, point.input.known).hats).V
    residual = np.abs(next_V - point.V).max() / np.abs(point.V).max() if point.V.any() else np.abs(next_V).max()
    return Solution(point.input.q, point.V, point.input.known, curve.free_entropy(alpha, point), float(residual))


def _find_bracket(
    curve: AlphaCurve, alpha: float, branch: Branch, is_first: bool
) -> tuple[tuple[float, float] | None, bool]:
    """Return an interval of log s with the fixed point of a branch on the curve of one set of points.

    Returns
    -------
    bracket : two values of log s on different sides of α; None if the fixed point is q = 0 or was not found.
    as_first : whether this set of points has the fixed point of the first set.
    """
    if is_first:
        return (None if branch.kind == "zero" else (branch.low, branch.high)), True
    lowest, settings, bounded = curve.lowest, curve.settings, curve.equations.has_zero_fixed_point()
    if branch.kind == "zero":
        if not branch.stable or curve.solve_at(lowest).alpha > alpha:
            return None, True
        # q = 0 is unstable with this set of points: search for the stable fixed point of smallest overlap
        for low in np.arange(lowest, np.log(settings.max_s), settings.log_step):
            if curve.solve_at(low + settings.log_step).alpha > alpha:
                return (low, low + settings.log_step), False
        return None, False
    middle = 0.5 * (branch.low + branch.high)
    reach = 0.5 * (branch.high - branch.low) if curve.equations.exact else settings.first_reach
    for _ in range(settings.n_reaches):
        low, high = middle - reach, middle + reach
        low = max(low, lowest) if bounded else low
        above = curve.solve_at(low).alpha > alpha, curve.solve_at(high).alpha > alpha
        if above == (not branch.stable, branch.stable):
            return (low, high), True
        reach *= 2
    return None, False
