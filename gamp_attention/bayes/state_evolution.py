"""Fixed points of Bayes-optimal state evolution."""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.numerics import half_width, ignore_float_errors
from gamp_attention._core.seeds import generator
from gamp_attention.bayes.averages import COARSE, FINE
from gamp_attention.bayes.equations import CURVE, Curve, Equations, Point, ends_level, is_noiseless
from gamp_attention.bayes.results import BayesStateEvolution, FreshSamples
from gamp_attention.models.model import Model, require_model
from gamp_attention.results import ConvergenceError, Status

BAYES_STARTS = ("uninformed", "informed")


ACCURACY = 1e-10  # relative accuracy of quantities that are integrals; roots are found to 1e-12 of α
NEAR = 0.1  # half-width in log s around a crossing that is searched first with another set of points


class Branch(NamedTuple):
    """A fixed point on the curve of the first set of points: an interval of log s, or an end of the curve."""

    where: str  # "nothing", "between" or "everything"
    low: float
    high: float
    stable: bool


class Solution(NamedTuple):
    """A fixed point computed with one set of points."""

    q: np.ndarray
    V: np.ndarray
    known: np.ndarray
    free_entropy: float
    residual: float
    rounding: tuple[Any, Any, float]  # errors of q, V and the free entropy from rounding and from the root


@ignore_float_errors
def solve_bayes_state_evolution(
    model: Model, alpha: float, init: str = "uninformed", *, n_points: int = 4096, n_replicas: int = 4, seed: Any = 0
) -> BayesStateEvolution:
    """Where Bayes-optimal message passing ends for d → ∞, without a hint or from the teacher.

    Parameters
    ----------
    model : the problem: what is learnt is the teacher, whatever the student.
    alpha : sample complexity α.
    init : "uninformed", the stable fixed point of smallest overlap; or "informed", that of largest.
    n_points, n_replicas : randomised points of averages over samples, even, and independent sets of them.
    seed : of the points.

    Returns
    -------
    BayesStateEvolution

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs; for models without a known channel, too.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.paper_model()
    >>> found = [ga.solve_bayes_state_evolution(model, alpha, n_points=1024) for alpha in (0.15, 0.4, 0.55)]
    >>> [round(float(each.q[0, 0]), 1) for each in found]
    [0.0, 0.6, 1.0]
    """
    check.choice("init", init, BAYES_STARTS)
    found = bayes_fixed_points(model, alpha, n_points=n_points, n_replicas=n_replicas, seed=seed)
    stable = [each for each in found if each.stable] or found
    return stable[0] if init == "uninformed" else stable[-1]


@ignore_float_errors
def bayes_fixed_points(
    model: Model, alpha: float, *, n_points: int = 4096, n_replicas: int = 4, seed: Any = 0
) -> list[BayesStateEvolution]:
    """All fixed points of Bayes-optimal state evolution, in the order of their overlap.

    Parameters
    ----------
    model : the problem: what is learnt is the teacher, whatever the student.
    alpha : sample complexity α.
    n_points, n_replicas : randomised points of averages over samples, even, and independent sets of them.
    seed : of the points.

    Returns
    -------
    list of BayesStateEvolution

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs; for models without a known channel, too.

    Examples
    --------
    Phase retrieval between 1 and 1.13 samples for a dimension is possible, but message passing does not find it:

    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.PhaseRetrievalLoss())
    >>> [(round(float(each.q[0, 0]), 2), each.stable) for each in ga.bayes_fixed_points(model, 1.1)]
    [(0.0, False), (0.69, True), (0.95, False), (1.0, True)]
    """
    alpha = check.real("alpha", alpha, low=0, high=1e12, strict=True)
    n_points, n_replicas = checked_points(model, n_points, n_replicas)
    rng = generator(seed)
    curves = curves_of(model, n_points, n_replicas, rng)
    fresh = [FreshSamples(model, n_points, rng) for _ in range(n_replicas if model.attention else 1)]
    if curves[0].equations.exact and not model.attention:
        fresh.append(FreshSamples(model, n_points, rng, COARSE))
    if not curves[0].unknown(curves[0].at_nothing.V):
        return [_solved(Branch("everything", np.nan, np.nan, True), alpha, curves, fresh, [])]
    points = curves[0].points(alpha)
    branches = _branches(curves[0], points, alpha)
    if not branches:
        raise ConvergenceError(_no_fixed_point(points, alpha), None)
    found = [_solved(branch, alpha, curves, fresh, points) for branch in branches]
    return sorted(found, key=lambda each: float(np.trace(each.q)))


def curves_of(model: Model, n_points: int, n_replicas: int, rng: np.random.Generator) -> list[Curve]:
    """Return the curves of independent sets of points, or of a fine and a coarse rule if averages are integrals."""
    first = Curve(Equations(model, n_points, rng, FINE))
    if first.equations.exact:
        return [first, Curve(Equations(model, n_points, rng, COARSE))]
    return [first] + [Curve(Equations(model, n_points, rng)) for _ in range(n_replicas - 1)]


def checked_points(model: Any, n_points: Any, n_replicas: Any) -> tuple[int, int]:
    """The sizes of averages over samples of a model, checked."""
    require_model(model)
    n_points = check.integer("n_points", n_points, low=64)
    if n_points % 2:
        raise check.fail("n_points", n_points, "an even number")
    n_replicas = check.integer("n_replicas", n_replicas, low=2)
    size = model.n_tokens * (3 * model.teacher_rank + model.n_tokens)
    check.require_memory("n_points, n_replicas", n_points, n_replicas, size)
    return n_points, n_replicas


def _no_fixed_point(points: list[Point], alpha: float) -> str:
    alphas = [point.alpha for point in points]
    unknown = float(np.trace(points[-1].V, axis1=1, axis2=2).sum())
    return (
        f"bayes_fixed_points: no fixed point found at alpha = {alpha:g}: for conjugates of size "
        f"{np.exp(points[0].x):.1e} to {np.exp(points[-1].x):.1e} "
        f"fixed points are at alpha = {min(alphas):g} to {max(alphas):g}, "
        f"and a variance of {unknown:.1e} is still unknown there; try more points"
    )


def _branches(curve: Curve, points: list[Point], alpha: float) -> list[Branch]:
    found = []
    above = np.array([point.alpha > alpha for point in points])
    if curve.equations.says_nothing_alone():
        found.append(Branch("nothing", np.nan, np.nan, bool(above[0])))
    for k in np.nonzero(above[1:] != above[:-1])[0]:
        found.append(Branch("between", points[k].x, points[k + 1].x, bool(above[k + 1])))
    if curve.equations.reveals and not above[-1] and ends_level(points):
        found.append(Branch("everything", np.nan, np.nan, True))
    return found


def _solved(branch: Branch, alpha: float, curves: list[Curve], fresh: list[FreshSamples], points: list[Point]) -> Any:
    """Return the fixed point of a branch, computed with all sets of points, with errors."""
    exact, found, missing = curves[0].equations.exact, list[Solution](), 0
    for curve in curves:
        if branch.where == "everything":
            found.append(_everything(curve, alpha, points))
            continue
        bracket, as_first = _bracket(curve, alpha, branch, first=curve is curves[0])
        missing += not as_first
        if bracket is not None:
            found.append(_crossing(curve, alpha, *bracket))
        elif curve.equations.says_nothing_alone():
            found.append(_nothing(curve, alpha))
    if exact and len(fresh) == 2 and not fresh[0].model.attention:
        errors = [each.test_error(one.V, one.known) for each, one in zip(fresh, found, strict=True)]
    elif exact:
        errors = [each.test_error(found[0].V, found[0].known) for each in fresh]
    else:
        errors = [(fresh * len(found))[k].test_error(one.V, one.known) for k, one in enumerate(found)]
    columns = [np.array([each[k] for each in found]) for k in (0, 1, 3)]  # q, V and the free entropy
    if exact:
        means = [column[0] for column in columns]
        halves = [np.abs(column[1] - column[0]) for column in columns]
    else:
        means, halves = [column.mean(axis=0) for column in columns], [_half(column) for column in columns]
    halves = [half + rounding for half, rounding in zip(halves, found[0].rounding, strict=True)]
    integrated = exact and not fresh[0].model.attention
    test_error = errors[0] if integrated else float(np.mean(errors))
    test_half = abs(errors[1] - errors[0]) if integrated else float(_half(np.array(errors)))
    if exact:  # add the effect of the error of V
        moved = fresh[0].test_error(found[0].V + halves[1], found[0].known)
        test_half += abs(moved - fresh[0].test_error(found[0].V, found[0].known)) + ACCURACY * abs(test_error)
    return BayesStateEvolution(
        status=Status.INACCURATE if missing else Status.CONVERGED, n_iter=sum(curve.evaluations for curve in curves),
        residual=max(each.residual for each in found), q=means[0], q_error=halves[0], V=means[1], V_error=halves[1],
        free_entropy=float(means[2]), free_entropy_error=float(halves[2]) if np.isfinite(means[2]) else np.nan,
        test_error=test_error, test_error_error=test_half, stable=branch.stable, full=branch.where == "everything",
    )  # fmt: skip


def _half(column: np.ndarray) -> np.ndarray:
    """Return half-widths from replicas, NaN for fewer than two."""
    if len(column) < 2 or not np.isfinite(column).all():
        return np.full(column.shape[1:], np.nan)
    return half_width(column)


def _nothing(curve: Curve, alpha: float) -> Solution:
    """Return the fixed point without overlap, of problems whose samples do not determine the sign."""
    nothing = curve.at_nothing
    output = curve.equations.output(nothing.V, nothing.known)
    entropy = alpha * output.log_z
    rounding = np.zeros_like(nothing.q), np.zeros_like(nothing.V), ACCURACY * abs(entropy)
    return Solution(nothing.q, nothing.V, nothing.known, entropy, 0.0, rounding)


def _everything(curve: Curve, alpha: float, points: list[Point]) -> Solution:
    """Return the fixed point at which the weights are known exactly."""
    q = np.sum([kind.share * kind.prior.second for kind in curve.equations.kinds], axis=0)
    entropy = np.nan
    if points:
        entropy = np.inf if is_noiseless(points) else curve.free_entropy(alpha, curve.at(points[-1].x))
    V = np.zeros_like(curve.equations.rho)
    rounding = np.zeros_like(q), np.zeros_like(V), ACCURACY * abs(entropy) if np.isfinite(entropy) else 0.0
    return Solution(q, V, curve.equations.rho, entropy, 0.0, rounding)


def _crossing(curve: Curve, alpha: float, low: float, high: float) -> Solution:
    """Return the fixed point between two log s."""
    point = curve.crossing(alpha, low, high)
    again = curve.equations.input(alpha * curve.equations.output(point.V, point.input.known).hats)
    residual = np.abs(again.V - point.V).max() / np.abs(point.V).max() if point.V.any() else np.abs(again.V).max()
    entropy = curve.free_entropy(alpha, point)
    if not curve.equations.exact:
        zeros = np.zeros_like(point.input.q), np.zeros_like(point.V), 0.0
        return Solution(point.input.q, point.V, point.input.known, entropy, float(residual), zeros)
    step = 1e-4
    ends = [curve.at(point.x + sign * step) for sign in (-1, 1)]
    slope = abs(np.log(ends[1].alpha / ends[0].alpha)) / (2 * step)
    away = 1e-2 * ACCURACY / max(slope, 1e-9) / (2 * step)  # the error of log s, in steps
    moved_q, moved_V = np.abs(ends[1].input.q - ends[0].input.q), np.abs(ends[1].V - ends[0].V)
    rounding = (
        away * moved_q + ACCURACY * np.abs(point.input.q),
        away * moved_V + ACCURACY * np.abs(point.V),
        ACCURACY * (1 + abs(entropy) + abs(alpha * point.output.log_z)),
    )
    return Solution(point.input.q, point.V, point.input.known, entropy, float(residual), rounding)


def _bracket(curve: Curve, alpha: float, branch: Branch, first: bool) -> tuple[tuple[float, float] | None, bool]:
    """Return two log s around the fixed point (None without overlap), and whether the first points have it, too."""
    if first:
        return (None if branch.where == "nothing" else (branch.low, branch.high)), True
    lowest, even = curve.lowest, curve.equations.says_nothing_alone()
    if branch.where == "nothing":
        if not branch.stable or curve.at(lowest).alpha > alpha:
            return None, True
        low, high = lowest, lowest  # with this set of points, overlap grows from zero
        while high < np.log(CURVE.farthest):
            low, high = high, high + CURVE.step
            if curve.at(high).alpha > alpha:
                return (low, high), False
        return None, False
    middle = 0.5 * (branch.low + branch.high)
    reach = 0.5 * (branch.high - branch.low) if curve.equations.exact else NEAR
    for _ in range(9):
        low, high = middle - reach, middle + reach
        low = max(low, lowest) if even else low
        if (curve.at(low).alpha > alpha, curve.at(high).alpha > alpha) == (not branch.stable, branch.stable):
            return (low, high), True
        reach *= 2
    return None, False
