"""Runs of Bayes-optimal message passing from data: the problem of the data, and results.

`gamp_attention.extensions.bayes.messages` has the iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import count_noun
from gamp_attention._tools.numerics import Stream, generator, guard_call
from gamp_attention._tools.snapshots import Run
from gamp_attention.extensions.bayes.channels.labels import channel_of
from gamp_attention.extensions.bayes.messages import AmpProblem, AmpState, amp_step, build_start
from gamp_attention.extensions.bayes.priors import kinds_of
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.passes import token_products
from gamp_attention.results import Columns, Ended, Result, Status, finish
from gamp_attention.theory.models.model import Model, require_model


def build_problem(data: Dataset, model: Model | None = None) -> AmpProblem:
    """Return the problem of data and a model, by default the model from which the data were sampled.

    If the data have neither labels nor targets, the targets are T = y xᵀ(x xᵀ)⁻¹, the solution of y = T x.
    """
    model = data.model if model is None else require_model(model)
    if model is None:
        raise ValueError("model: needs a model of teacher and noise for data that were not sampled, got none")
    if (model.n_tokens, model.attention) != (data.n_tokens, not data.is_labelled):
        needs = "a model of labels" if data.is_labelled else "an attention model"
        raise check.fail_words("model", type(model).__name__, f"{needs} of {data.n_tokens} tokens, as the data are")
    channel = channel_of(model)
    kinds = kinds_of(model.coordinates)
    gamma = np.broadcast_to(data.spectra, (len(data.spectra), data.dim)).T
    kind = np.zeros(data.dim, dtype=int)
    if len(kinds) == 1:
        kinds = [kinds[0]._replace(gamma=gamma.mean(axis=0))]
    else:
        tau = np.sqrt(data.dim) * data.source_means.T
        scales = max(np.abs(law.gamma).max() for law in kinds), max(np.abs(tau).max(), 1e-300)
        rows = np.concatenate([gamma / scales[0], tau / scales[1]], axis=1)
        known = np.array([np.concatenate([law.gamma / scales[0], law.tau / scales[1]]) for law in kinds])
        kind = np.argmin(np.sum((rows[:, None] - known) ** 2, axis=2), axis=1)
    y = channel.convert_targets(_labels_or_targets(data))
    return AmpProblem(data, y, channel, kinds, kind)


def _labels_or_targets(data: Dataset) -> np.ndarray:
    """Return labels (n, P) or targets (n, L, L) of a dataset."""
    given = data.targets if data.labels is None else data.labels
    if given is not None:
        return given
    if data.dim < data.n_tokens:
        raise check.fail_words("data", f"d = {data.dim}", f"at least as many dimensions as tokens, {data.n_tokens}")
    x = np.asarray(data.tokens, dtype=float)
    gram, cross = token_products(x, x), token_products(np.asarray(data.outputs, dtype=float), x)
    return np.linalg.solve(gram, cross.transpose(0, 2, 1)).transpose(0, 2, 1)


BAYES_AMP_STARTS = ("spectral", "random", "informed")
ENDINGS = {
    Status.CONVERGED: "converged",
    Status.MAX_ITER: "stopped",
    Status.NONFINITE: "numbers overflowed",
    Status.DIVERGED: "weights grew without bound: try a smaller damping",
    Status.LOST: "the estimate went to zero: no signal below weak recovery; above, other starts may find it; stopped",
}


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run of message passing."""

    lost: float = 1e-7  # ‖Q‖², in units of the prior's, below which a run without prior mean has lost its signal
    known: float = 1e-11  # variance of the fields, in units of the prior's, below which the teacher is known exactly
    patience: int = 10  # excess of iterations that reverse the previous change, after which the step is halved
    window: int = 75  # number of iterations without a change below 0.9 of all before, after which the step is halved
    min_step: float = 0.05  # smallest step β that halving leads to
    max_norm: float = 1e6  # ‖Q‖, in units of the prior's, above which a run diverges


@dataclass(frozen=True, eq=False)
class BayesHistory(Result):
    """History of a run; entry 0 is the start."""

    overlap: np.ndarray  # (T + 1, t, t) QᵀQ★/d, NaN if no teacher is known
    # (T + 1, t, t) QᵀQ/d. For d → ∞ it equals the overlap up to a sign or rotation that data do not determine.
    norm: np.ndarray
    V: np.ndarray  # (T + 1, L, t, t) posterior variances of the fields


@dataclass(frozen=True, eq=False)
class BayesAmpResult(Ended):
    """Outcome of `run_bayes_amp`.

    Attributes
    ----------
    status, converged, n_iter, residual, history : as for every solver; the residual is the last change of Q divided by
        the step and by the norm of the prior. The status is LOST if the run ended at a posterior mean of zero, because
        the data contain no signal or the run lost it.
    Q, variance : (d, t) posterior mean and variance of the teacher's weights.
    overlap : (t, t) QᵀQ★/d, NaN if no teacher is known. It is defined up to a sign, or a rotation of the columns, if
        the data do not determine these.
    V : (L, t, t) posterior variances of the fields.
    free_entropy : Bethe free entropy per dimension; of several runs, the largest value belongs to the best estimate.
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
    message: str

    _columns: ClassVar[Columns] = {
        "‖QᵀQ*‖/d": lambda result: f"{norm:.4f}" if np.isfinite(norm := np.linalg.norm(result.overlap)) else "",
        "‖Q‖²/d": lambda result: f"{np.trace(result.history.norm[-1]):.4f}",
        "variance": lambda result: f"{np.mean(result.variance):.4f}",
        "Φ": lambda result: f"{result.free_entropy:.4f}",
    }

    def _heading(self) -> str:
        return f"{type(self).__name__}: {self.status.value} after {count_noun(self.n_iter, 'iteration')}"


@guard_call
def run_bayes_amp(
    data: Dataset,
    init: str | ArrayLike = "spectral",
    *,
    model: Model | None = None,
    damping: float = 0.7,
    tol: float = 1e-5,
    max_iter: int = 500,
    seed: int | np.random.Generator = 0,
    raise_on_failure: bool = False,
) -> BayesAmpResult:
    """Compute posterior mean and variance of the teacher's weights by Bayes-optimal message passing.

    Eq. :eq:`bayes-amp`. `gamp_attention.extensions.bayes.messages` has the iteration.

    Parameters
    ----------
    data : the samples; their student, penalty and positions are not used.
    init : "spectral", from the lowest eigenvectors of posterior weights, see `spectral_directions`; "random";
        "informed", the teacher; or weights (d, t).
    model : model of teacher, tokens and noise; None for the model from which the data were sampled.
    damping : first step in (0, 1]; unless tol = 0, it is halved when the iterates oscillate.
    tol : maximum change of Q in an iteration at convergence, divided by the step and by the norm of the prior; 0 runs
        exactly `max_iter` iterations.
    max_iter : maximum number of iterations.
    seed : seed of random starts.
    raise_on_failure : raise ConvergenceError if the run does not converge.

    Returns
    -------
    BayesAmpResult

    Raises
    ------
    TypeError : if an argument does not have the documented type.
    ValueError : if a name is unknown, a number is out of its range, `init` does not have the shape (d, t), no model is
        known or it does not fit the data, or the posterior of its channel is not available.
    ConvergenceError : if the run does not converge and `raise_on_failure` is True.

    Examples
    --------
    With 0.6 samples per dimension the teacher is recovered, whereas a trained attention layer learns nothing:

    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=500, alpha=0.6, seed=0)
    >>> result = ga.run_bayes_amp(data)
    >>> result.status.value, bool(abs(result.overlap[0, 0]) > 0.9)
    ('converged', True)
    """
    require_dataset(data)
    if isinstance(init, str):
        check.choice("init", init, BAYES_AMP_STARTS)
    damping = check.real("damping", damping, low=0, high=1, strict=True)
    tol, max_iter = check.real("tol", tol, low=0), check.integer("max_iter", max_iter, low=1)
    problem = build_problem(data, model)
    run = AmpRun(problem, build_start(problem, init, generator(seed, Stream.STARTS)), damping, tol, max_iter)
    status = run.run()
    assert status is not None
    return finish(run.result(status), raise_on_failure, "run_bayes_amp")


class AmpRun(Run[Status]):
    """A run of Bayes-optimal message passing from a start; the parameters are as for `run_bayes_amp`.

    Attributes
    ----------
    problem : the problem.
    state : the state.
    variance, entropy : posterior variances (d, t) and free entropy of the last iteration.
    residual : last change of Q, divided by the step and by the norm of the prior.
    """

    settings = RunSettings()

    def __init__(self, problem: AmpProblem, start: AmpState, damping: float, tol: float, max_iter: int) -> None:
        super().__init__()
        self.problem, self.state, self.residual = problem, start, np.inf
        self.variance, self.entropy = np.full(start.Q.shape, np.nan), -np.inf
        self._damping, self._tol, self._max_iter = damping, tol, max_iter
        self._change, self._n_reversals, self._residuals = np.zeros_like(start.Q), 0, list[float]()
        Q_star = problem.data.Q_star
        is_known = Q_star is not None and Q_star.shape == start.Q.shape
        self._Q_star = Q_star if is_known else np.full(start.Q.shape, np.nan)
        self._norm = problem.norm
        self._prior_V = np.trace(problem.variances(problem.second_moments), axis1=1, axis2=2)
        self._history = list[tuple[np.ndarray, np.ndarray, np.ndarray]]()
        self._record()

    def _record(self) -> None:
        Q = self.state.Q
        self._history.append((Q.T @ self._Q_star / len(Q), Q.T @ Q / len(Q), self.state.V))

    def advance(self) -> Status | None:
        """Do one iteration; return the status of the run if it has ended, or None if it continues."""
        try:
            after, self.variance, self.entropy = amp_step(self.problem, self.state, self._damping)
        except np.linalg.LinAlgError:
            return Status.NONFINITE
        if not all(np.isfinite(array).all() for array in after):
            return Status.NONFINITE
        change = after.Q - self.state.Q
        self.residual = float(np.linalg.norm(change)) / (self._damping * self._norm)
        self._adapt_damping(change)
        self.state = after
        self._record()
        settings = self.settings
        self.t += 1
        if np.linalg.norm(after.Q) > settings.max_norm * self._norm:
            return Status.DIVERGED
        if not self.problem.determines_sign and np.sum(after.Q**2) < settings.lost * self._norm**2:
            return Status.LOST
        is_certain = (np.trace(after.V, axis1=1, axis2=2) < settings.known * self._prior_V).all()
        if self._tol > 0 and (self.residual <= self._tol or is_certain):
            return Status.CONVERGED
        return Status.MAX_ITER if self.t == self._max_iter else None

    def _adapt_damping(self, change: np.ndarray) -> None:
        """Halve the step if the iterates oscillate, or if the changes have not become smaller for long."""
        self._n_reversals = max(self._n_reversals + (1 if np.sum(change * self._change) < 0 else -1), 0)
        self._change = change
        self._residuals.append(self.residual)
        settings, changes, window = self.settings, self._residuals, self.settings.window
        stalled = len(changes) >= 2 * window and min(changes[-window:]) > 0.9 * min(changes[:-window])
        if self._tol > 0 and (self._n_reversals == settings.patience or stalled):
            self._damping, self._n_reversals = max(0.5 * self._damping, min(settings.min_step, self._damping)), 0
            self._residuals = changes[-window:] if stalled else changes

    def result(self, status: Status) -> BayesAmpResult:
        """Return the result of a run that ended with `status`."""
        overlaps, norms, variances = (np.array(column) for column in zip(*self._history, strict=True))
        return BayesAmpResult(
            status=status, n_iter=self.t, residual=self.residual, history=BayesHistory(overlaps, norms, variances),
            Q=self.state.Q, variance=self.variance, overlap=overlaps[-1], V=self.state.V, free_entropy=self.entropy,
            message=f"{ENDINGS[status]} after {count_noun(self.t, 'iteration')}",
        )  # fmt: skip
