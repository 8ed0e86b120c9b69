"""Fixed points of Bayes-optimal state evolution at a given α, with errors and the test error of a fresh sample.

A fixed point is computed with several sets of points by `bayes.iteration`: a finer and a coarser quadrature rule if
averages over samples are integrals, independent random sets otherwise. The coarser rule starts at the result of the
finer rule. The difference of the two rules, or the spread of the random sets, gives the errors. If sets disagree on the
columns that are found, as may happen at a threshold, the status is INACCURATE.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, format_to_error
from gamp_attention._tools.numerics import generator, guard_call, psd_root
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention._tools.statistics import half_width
from gamp_attention.extensions.bayes.channels.integrals import COARSE, FINE
from gamp_attention.extensions.bayes.channels.labels import channel_of
from gamp_attention.extensions.bayes.equations import Equations
from gamp_attention.extensions.bayes.iteration import Solution, solve_fixed_point
from gamp_attention.extensions.sequence.sequence_labels import is_function
from gamp_attention.results import Ended, Status
from gamp_attention.theory.models.model import Model, require_model

BAYES_STARTS = ("uninformed", "informed")
POINTS = 4096  # default number of points
MIN_POINTS = 64  # minimum number of points
FEW = 4  # ratio of the numbers of samples of the last and the first iterations
N_FRESH = 16384  # number of fresh samples of the test error, if it is an average over random points
FOUND = 1e-3  # overlap above which a column counts as found, if the results of several sets are compared
ACCURACY = 1e-10  # relative accuracy of integrals and of roots
FULL_ACCURACY = 1e-7  # accuracy of the free entropy of full information, a limit of differences of large numbers
POSTERIOR_BIAS = 1e-8  # relative bias of averages over posteriors that are sums over points


@dataclass(frozen=True, eq=False)
class BayesStateEvolution(Ended):
    """A fixed point of Bayes-optimal state evolution. Errors are half-widths of 95 % intervals.

    Attributes
    ----------
    status, converged, n_iter, residual : CONVERGED, or INACCURATE if sets of points disagree, an iteration did not
        converge, or noise is so weak that V is only an upper bound, about 1e-16 of the prior for integrals and 1e-10
        otherwise; n_iter counts steps with all sets; the residual is the change of −log V in the last iteration.
    q, q_error : (t, t) overlap lim Q̂ᵀQ*/d of posterior mean Q̂ and teacher Q*, equal to lim Q̂ᵀQ̂/d.
    V, V_error : (L, t, t) posterior covariances of the fields.
    free_entropy, free_entropy_error : Φ per dimension. Of several fixed points, the data determine the fixed point of
        largest Φ. Infinite at full information without noise.
    test_error, test_error_error : error of the posterior mean of a fresh sample's output: ε_g of attention models, the
        mean square error of labels; NaN for `ClassLabels`.
    full : whether the weights are known exactly.
    """

    status: Status
    n_iter: int
    residual: float
    q: np.ndarray
    q_error: np.ndarray
    V: np.ndarray
    V_error: np.ndarray
    free_entropy: float
    free_entropy_error: float
    test_error: float
    test_error_error: float
    full: bool

    def _rows(self) -> Rows:
        numbers = {
            "q": (np.trace(self.q), np.trace(self.q_error)),
            "Φ": (self.free_entropy, self.free_entropy_error),
            "ε_g": (self.test_error, self.test_error_error),
        }
        rows: Rows = [f"{type(self).__name__}: {self.status.value}"]
        return [*rows, *([f"  {name}", format_to_error(float(x), float(e))] for name, (x, e) in numbers.items())]


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
        unknown; or the posterior of the fields is not available: samples with classes, user-defined labels, attention
        with several columns and no score noise, or a teacher prior that is a mixture in more than one column.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.paper_model()
    >>> points = [ga.solve_bayes_state_evolution(model, alpha, n_points=1024) for alpha in (0.15, 0.4, 0.55)]
    >>> [round(float(point.q[0, 0]), 1) for point in points]
    [0.0, 0.6, 1.0]

    For 1 < α < 1.13 phase retrieval is possible, but message passing does not achieve it:

    >>> phase_retrieval = ga.glm_model(ga.PhaseRetrievalLoss())
    >>> points = [ga.solve_bayes_state_evolution(phase_retrieval, 1.1, init) for init in ("uninformed", "informed")]
    >>> [round(float(point.q[0, 0]), 2) for point in points]
    [0.69, 1.0]
    """
    check.choice("init", init, BAYES_STARTS)
    alpha = check.real("alpha", alpha, low=0, high=1e12, strict=True)
    n_points, n_replicas = check_points(model, n_points, n_replicas)
    rng = generator(seed)
    sets = build_equations(model, n_points, n_replicas, rng)
    runs, exact = list[Solution](), sets[0].exact
    for equations in sets:
        few = equations if exact else Equations(model, max(n_points // FEW, MIN_POINTS) // 2 * 2, rng)
        near = runs[0].root if exact and runs else None
        runs.append(solve_fixed_point(few, equations, alpha, init, near))
    agree = len({(bytes(np.diagonal(run.q) > FOUND), run.full) for run in runs}) == 1
    status = Status.CONVERGED if agree and all(run.converged for run in runs) else Status.INACCURATE
    full = all(run.full for run in runs)
    q, q_error = combine(np.array([run.q for run in runs]), exact, ACCURACY * (not full))
    V, V_error = combine(np.array([run.V for run in runs]), exact, ACCURACY)
    entropy, entropy_error = combine(np.array([run.free_entropy for run in runs]), exact, 0.0)
    if exact:  # the free entropy is a sum of terms of this size
        entropy_error += (FULL_ACCURACY if full else ACCURACY) * (1 + alpha + abs(entropy))
    test_error, test_error_error = _test_errors(model, sets, runs, n_replicas, rng)
    if not full:
        error, prior = max(run.error for run in runs), sets[0].prior_second_moment
        bias = 0.0 if exact else POSTERIOR_BIAS
        q_error = q_error + error * _scale(prior - q) + bias * _scale(prior)
        V_error = V_error + (error + bias) * _scale(V)
        test_error_error = test_error_error + (error + bias) * test_error
    return BayesStateEvolution(
        status=status, n_iter=sum(run.n_iter for run in runs), residual=max(run.residual for run in runs), q=q,
        q_error=q_error, V=V, V_error=V_error, free_entropy=float(entropy), free_entropy_error=float(entropy_error),
        test_error=float(test_error), test_error_error=float(test_error_error), full=full,
    )  # fmt: skip


def build_equations(model: Model, n_points: int, n_replicas: int, rng: np.random.Generator) -> list[Equations]:
    """Return equations for each set of random points, or for a fine and a coarse rule if averages are integrals."""
    first = Equations(model, n_points, rng, FINE)
    if first.exact:
        return [first, Equations(model, n_points, rng, COARSE)]
    return [first] + [Equations(model, n_points, rng) for _ in range(n_replicas - 1)]


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


def combine(values: np.ndarray, exact: bool, accuracy: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the value of results (k, …) of several sets of points, and its error (95 %), NaN if it is not known.

    Independent random sets give the mean and its half-width; `exact` results of a fine and a coarse rule the first and
    their difference, plus a relative `accuracy` of roots and rounding.
    """
    if exact:
        return values[0], np.abs(values[1] - values[0]) + accuracy * np.abs(values[0])
    known = len(values) > 1 and np.isfinite(values).all()
    return values.mean(axis=0), np.asarray(half_width(values) if known else np.full(values.shape[1:], np.nan))


def _scale(cov: np.ndarray) -> np.ndarray:
    """Return products of standard deviations (…, t, t) for covariances (…, t, t)."""
    deviation = np.sqrt(np.maximum(np.diagonal(cov, axis1=-2, axis2=-1), 0.0))
    return np.asarray(deviation[..., :, None] * deviation[..., None, :])


def _test_errors(
    model: Model, sets: list[Equations], runs: list[Solution], n_replicas: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the test error and its error (95 %)."""
    if not (is_function(model.teacher) or model.attention):
        channel: Any = channel_of(model)
        pairs = zip(sets, runs, strict=True)
        values = [channel.label_error(run.V, run.known, equations.rule) for equations, run in pairs]
        return combine(np.array(values), sets[0].exact, ACCURACY)
    values = [compute_test_error(model, runs[k % len(runs)], N_FRESH, rng) for k in range(n_replicas)]
    return combine(np.array(values), False, ACCURACY)


def compute_test_error(model: Model, solution: Solution, n_points: int, rng: np.random.Generator) -> float:
    """Return half of the mean square distance between two outputs drawn from the same posterior.

    Eq. :eq:`bayes-test-error`, averaged over random samples of a model whose outputs are attention or functions.
    """
    teacher, (L, t, _) = model.teacher, solution.V.shape
    count = teacher.count if is_function(teacher) else 0
    points = gaussian_points(n_points, 3 * L * t + 2 * count, rng)
    white = points[:, : 3 * L * t].reshape(-1, 3, L, t)
    omega, root = np.einsum("lab,nlb->nla", psd_root(solution.known), white[:, 0]), psd_root(solution.V)
    first, second = (omega + np.einsum("lab,nlb->nla", root, white[:, k]) for k in (1, 2))
    if is_function(teacher):  # the error of a target, summed over its entries, with its noise
        noise = points[:, 3 * L * t :].reshape(len(omega), 2, count)
        differences = teacher(first, noise[:, 0]) - teacher(second, noise[:, 1])
        return float(0.5 * np.mean(np.sum(differences**2, axis=1)))
    trace = model.coordinates.trace
    squares = (teacher(first) - teacher(second)) ** 2
    noise_error = model.score_noise**2 * float(trace.sum())
    return float(0.5 * np.mean(np.sum(squares, axis=1) @ trace) / len(trace) + noise_error)
