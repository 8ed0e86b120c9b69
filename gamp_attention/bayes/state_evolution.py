"""Fixed points of Bayes-optimal state evolution."""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention._core.seeds import generator
from gamp_attention._core.spread import half_width
from gamp_attention.bayes.curve import Curve, ends_level, is_noiseless
from gamp_attention.bayes.equations import Equations
from gamp_attention.bayes.predictions import FreshSamples
from gamp_attention.bayes.result import BayesStateEvolution
from gamp_attention.models.model import Model, require_model
from gamp_attention.results import Status

BAYES_STARTS = ("uninformed", "informed")


class Branch:
    """A fixed point as the curve of the first set of points has it: an interval of v, or an end."""

    def __init__(self, where: str, high: float, low: float, stable: bool) -> None:
        self.where, self.high, self.low, self.stable = where, high, low, stable


@quiet
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


@quiet
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
    first = Equations(model, n_points, rng)
    curves = [Curve(first)]
    curves += [curves[0] if first.exact else Curve(Equations(model, n_points, rng)) for _ in range(n_replicas - 1)]
    fresh = [FreshSamples(model, n_points, rng) for _ in range(n_replicas)]
    points = curves[0].points()
    return [_solved(branch, alpha, curves, fresh, points) for branch in _branches(curves[0], points, alpha)]


def checked_points(model: Any, n_points: Any, n_replicas: Any) -> tuple[int, int]:
    """The sizes of averages over samples of a model, checked."""
    require_model(model)
    n_points = check.integer("n_points", n_points, low=64)
    if n_points % 2:
        raise check.fail("n_points", n_points, "an even number")
    n_replicas = check.integer("n_replicas", n_replicas, low=2)
    size = model.n_tokens * (3 * model.teacher_rank + model.n_tokens)
    check.fits("n_points, n_replicas", n_points, n_replicas, size)
    return n_points, n_replicas


def _branches(curve: Curve, points: list[Any], alpha: float) -> list[Branch]:
    found = []
    above = np.array([point.alpha > alpha for point in points])
    if curve.equations.says_nothing_alone():
        found.append(Branch("nothing", np.nan, np.nan, bool(above[0])))
    elif above[0]:
        found.append(Branch("nothing", np.nan, np.nan, True))
    for k in np.nonzero(above[1:] != above[:-1])[0]:
        found.append(Branch("between", points[k].v, points[k + 1].v, bool(above[k + 1])))
    if not above[-1] and ends_level(points):
        where = "everything, without noise" if is_noiseless(points) else "everything"
        found.append(Branch(where, np.nan, points[-1].v, True))
    return found


def _solved(branch: Branch, alpha: float, curves: list[Curve], fresh: list[Any], points: list[Any]) -> Any:
    rows, missing, known = [], 0, None
    for curve, samples in zip(curves, fresh, strict=True):
        rho = curve.equations.rho
        if known is not None and curve.equations.exact:
            rows.append((*known[:3], samples.test_error(known[1]), known[3]))
            continue
        if branch.where == "nothing":
            nothing = curve.equations.input(np.zeros_like(rho))
            V, q, log_z = nothing.V, nothing.q, curve.equations.output(nothing.V).log_z
            entropy, residual = alpha * log_z, 0.0
        elif branch.where == "between":
            low, high = _bracket(curve, alpha, branch)
            if low is None:
                missing += 1
                continue
            point = curve.crossing(alpha, low, high)
            again = curve.equations.input(alpha * curve.equations.output(point.V).hats)
            V, q, residual = point.V, again.q, float(np.abs(again.V / point.V - 1)[point.V > 0].max())
            entropy = curve.free_entropy(alpha, point)
        else:
            last = curve.at(branch.low)
            V, residual = np.zeros_like(rho), 0.0
            q = np.sum([kind.share * kind.prior.second for kind in curve.equations.kinds], axis=0)
            entropy = np.inf if "noise" in branch.where else curve.free_entropy(alpha, last)
        known = q, V, entropy, residual
        rows.append((q, V, entropy, samples.test_error(V), residual))
    status = Status.INACCURATE if missing else Status.CONVERGED
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    means, errors = [column.mean(axis=0) for column in columns], [_error(column) for column in columns]
    return BayesStateEvolution(
        status=status, n_iter=len(points) * len(curves), residual=float(columns[4].max()), q=means[0],
        q_error=errors[0], V=means[1], V_error=errors[1], free_entropy=float(means[2]),
        free_entropy_error=float(errors[2]), test_error=float(means[3]), test_error_error=float(errors[3]),
        stable=branch.stable, full=branch.where.startswith("everything"),
    )  # fmt: skip


def _error(column: np.ndarray) -> np.ndarray:
    """Half-widths from replicas, and what integrals and roots are computed to."""
    if len(column) < 2 or not np.isfinite(column).all():
        return np.full(column.shape[1:], np.nan)
    rounding = 1e-8
    return np.maximum(half_width(column), rounding * np.abs(column).mean(axis=0))


def _bracket(curve: Curve, alpha: float, branch: Branch) -> tuple[Any, Any]:
    """Two v around the crossing, which other points may have somewhat beside the interval, or None."""
    low, high = branch.low, branch.high
    for _ in range(6):
        ends = [curve.at(v).alpha > alpha for v in (low, high)]
        if ends == [branch.stable, not branch.stable]:
            return low, high
        wider = high / low
        low, high = low / wider**0.5, min(high * wider**0.5, curve.largest * (1 - 1e-6))
        if branch.high > 0.5 * curve.largest:  # there 1 − v is what changes
            high = curve.largest - (curve.largest - branch.high) * 0.5
            low = curve.largest - min((curve.largest - low) * 2, 0.9 * curve.largest)
    return None, None
