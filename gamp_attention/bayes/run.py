"""`run_bayes_amp`: starts, iterations, hyperparameters, and how a run ended."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.display import Rows
from gamp_attention._core.numerics import ignore_float_errors
from gamp_attention._core.seeds import Stream, generator
from gamp_attention.bayes.amp import (
    AMP,
    AmpState,
    Belief,
    Problem,
    amp_step,
    bayes_start,
    free_entropy,
    overlap_with,
    posed,
)
from gamp_attention.bayes.priors import MixturePrior
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.models.channels.choice import channel_of
from gamp_attention.models.model import Model
from gamp_attention.results import Ended, Result, Status, finish

BAYES_AMP_STARTS = ("spectral", "random", "informed")
LEARNT = ("prior", "noise")


@dataclass(frozen=True, eq=False)
class BayesHistory(Result):
    """Every iteration, entry 0 being the start.

    Attributes
    ----------
    overlap : (T + 1, t, t) QᵀQ*/d, NaN where no teacher is known.
    norm : (T + 1, t, t) QᵀQ/d, which is the same for d → ∞ but for a rotation or sign that data do not tell.
    V : (T + 1, L, t, t) what is unknown of the fields.
    """

    overlap: np.ndarray
    norm: np.ndarray
    V: np.ndarray


@dataclass(frozen=True, eq=False)
class BayesAmpResult(Ended):
    """Outcome of `run_bayes_amp`.

    Attributes
    ----------
    status, converged, n_iter, residual, history : as for every solver; the residual is the last change of Q in units of
        the prior's norm. LOST where the run ended at a posterior mean of zero: it had no signal, or lost it.
    Q, variance : (d, t) posterior mean and variance of the teacher's weights.
    overlap : (t, t) QᵀQ*/d, NaN where no teacher is known. Where data do not tell a sign, or a rotation of the columns,
        neither does this.
    V : (L, t, t) what is unknown of the fields.
    free_entropy : Bethe free entropy for one dimension, largest for the start that was kept.
    priors : of each kind of coordinate, as given or as learnt: `weight` (K,), `mean` (K, t) and `cov` (K, t, t) of a
        mixture of Gaussians.
    noise : standard deviation of the noise, as given or as learnt.
    starts : name, status and free entropy of every start.
    message : the outcome in words.
    """

    status: Status
    n_iter: int
    residual: float
    history: BayesHistory
    Q: np.ndarray
    variance: np.ndarray
    overlap: np.ndarray
    V: np.ndarray
    free_entropy: float
    priors: tuple[MixturePrior, ...]
    noise: float
    starts: tuple[tuple[str, Status, float], ...]
    message: str

    def _rows(self) -> Rows:
        """How the run ended, and the overlap and the size of what was found."""
        size = np.trace(self.history.norm[-1])
        rows: Rows = [f"{type(self).__name__}: {self.status.value} after {self.n_iter} iterations"]
        if np.isfinite(self.overlap).all():
            rows.append(["  ‖QᵀQ*‖/d", f"{np.linalg.norm(self.overlap):.4f}"])
        rows += [["  ‖Q‖²/d", f"{size:.4f}"], ["  variance", f"{np.mean(self.variance):.4f}"]]
        return [*rows, ["  Φ", f"{self.free_entropy:.4f}"], f"  {self.message}"]


@ignore_float_errors
def run_bayes_amp(
    data: Dataset,
    init: Any = "spectral",
    *,
    model: Model | None = None,
    learn: Any = (),
    damping: float = 0.7,
    tol: float = 1e-5,
    max_iter: int = 500,
    n_starts: int = 1,
    seed: Any = 0,
    raise_on_failure: bool = False,
) -> BayesAmpResult:
    """Bayes-optimal message passing: posterior mean and variance of the teacher's weights.

    Eq. :eq:`bayes-amp`.

    Parameters
    ----------
    data : samples; the student, its penalty and the positions play no part.
    init : "spectral", from the lowest eigenvectors of posterior weights, see `spectral_directions`; "random";
        "informed", the teacher; or weights (d, t). Several starts go on with random ones.
    model : the law of teacher, tokens and noise, for one's own arrays or in place of the model of the data.
    learn : what to learn by expectation maximisation in place of what the model says: any of "prior" (shares and
        covariances of its components) and "noise".
    damping : first step in (0, 1]; it is halved when weights go to and fro, but for tol = 0.
    tol : on the change of Q in an iteration, in units of the prior's norm; 0 runs exactly max_iter iterations.
    max_iter : iterations at most.
    n_starts : the one with the largest free entropy is kept.
    seed : of random starts.
    raise_on_failure : raise ConvergenceError where the run does not converge.

    Returns
    -------
    BayesAmpResult

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs; for models without a known channel, too.
    ConvergenceError : where asked for.

    Examples
    --------
    With .6 samples for a dimension the teacher is found, where a trained attention layer learns nothing of it:

    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=500, alpha=0.6, seed=0)
    >>> found = ga.run_bayes_amp(data)
    >>> found.status.value, bool(abs(found.overlap[0, 0]) > 0.9)
    ('converged', True)
    """
    require_dataset(data)
    if not isinstance(init, str):
        init = check.array("init", init, (data.dim, "t"))
    else:
        check.choice("init", init, BAYES_AMP_STARTS)
    learn = (learn,) if isinstance(learn, str) else tuple(learn)
    for each in learn:
        check.choice("learn", each, LEARNT)
    damping = check.real("damping", damping, low=0, high=1, strict=True)
    tol, max_iter = check.real("tol", tol, low=0), check.integer("max_iter", max_iter, low=1)
    n_starts = check.integer("n_starts", n_starts, low=1, high=10_000)
    problem = posed(data, model, channel_of)
    if "noise" in learn:
        problem.channel.with_noise(problem.channel.noise)
    random = generator(seed, Stream.STARTS)
    found, told = None, []
    for k in range(n_starts):
        name = "random" if k else init if isinstance(init, str) else "given"
        start = bayes_start(problem, init if not k else "random", random)
        result = _run(problem, start, learn, damping, tol, max_iter)
        told.append((name if not k else f"random {k}", result.status, result.free_entropy))
        best = found is None or (not found.free_entropy >= result.free_entropy and np.isfinite(result.Q).all())
        found = result if best else found
    assert found is not None
    return finish(replace(found, starts=tuple(told)), raise_on_failure, "run_bayes_amp")


def _run(
    problem: Problem, state: AmpState, learn: tuple[str, ...], damping: float, tol: float, max_iter: int
) -> BayesAmpResult:
    Q_star, d, scale = problem.data.Q_star, len(problem.gamma), problem.size
    Q_star = Q_star if Q_star is not None and Q_star.shape == state.Q.shape else None
    history, last, change, against, changes = [], None, np.zeros_like(state.Q), 0, list[float]()
    status, residual, belief = Status.MAX_ITER, np.inf, None
    may_be_lost = problem.channel.even and not any(prior.first.any() for prior in problem.priors)

    def record(state: AmpState) -> None:
        history.append((overlap_with(state.Q, Q_star), state.Q.T @ state.Q / d, state.V))

    record(state)
    prior_V = np.trace(problem.variances(problem.second), axis1=1, axis2=2)
    for t in range(max_iter):
        try:
            new, belief = amp_step(problem, state, damping)
        except np.linalg.LinAlgError:
            status = Status.NONFINITE
            break
        if not all(np.isfinite(each).all() for each in new):
            status = Status.NONFINITE
            break
        residual = float(np.linalg.norm(new.Q - state.Q)) / (damping * scale)
        change, back = new.Q - state.Q, change
        against = max(against + (1 if np.sum(change * back) < 0 else -1), 0)
        changes.append(residual)
        stalled = len(changes) >= 2 * AMP.long and min(changes[-AMP.long :]) > 0.9 * min(changes[: -AMP.long])
        if tol > 0 and (against == AMP.patience or stalled):
            damping, against = max(0.5 * damping, min(AMP.least, damping)), 0
            changes = changes[-AMP.long :] if stalled else changes
        last, state = state, new
        record(state)
        if np.linalg.norm(state.Q) > AMP.largest * scale:
            status = Status.DIVERGED
            break
        if may_be_lost and np.sum(state.Q**2) < AMP.lost * scale**2:
            status = Status.LOST
            break
        left = np.trace(state.V, axis1=1, axis2=2)
        if tol > 0 and ((residual <= tol and (t >= AMP.settle or not learn)) or (left < AMP.known * prior_V).all()):
            status = Status.CONVERGED
            break
        if learn and t >= AMP.settle:
            problem = problem.learned(belief, learn)
    return _concluded(problem, last or state, state, belief, status, residual, history, Q_star)


def _concluded(
    problem: Problem, before: AmpState, state: AmpState, belief: Belief | None, status: Status, residual: float,
    history: list[Any], Q_star: Any,
) -> BayesAmpResult:  # fmt: skip
    d, t = state.Q.shape
    variance, entropy = np.full((d, t), np.nan), -np.inf
    if belief is not None:
        for k, rows in enumerate(belief.rows):
            variance[problem.kind == k] = np.diagonal(rows.cov, axis1=1, axis2=2)
        entropy = free_entropy(problem, before, belief)
    words = {
        Status.CONVERGED: "converged", Status.MAX_ITER: "stopped", Status.NONFINITE: "numbers overflowed",
        Status.DIVERGED: "weights grew without bound: try a smaller damping",
        Status.LOST: "no signal is left, as below weak recovery; above it, other starts may keep one: stopped",
    }  # fmt: skip
    overlaps, norms, variances = (np.array(column) for column in zip(*history, strict=True))
    return BayesAmpResult(
        status=status, n_iter=len(history) - 1, residual=residual, history=BayesHistory(overlaps, norms, variances),
        Q=state.Q, variance=variance, overlap=overlap_with(state.Q, Q_star), V=state.V, free_entropy=entropy,
        priors=tuple(problem.priors), noise=problem.channel.noise, starts=(),
        message=f"{words[status]} after {len(history) - 1} iterations",
    )  # fmt: skip
