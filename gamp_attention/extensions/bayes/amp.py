"""Runs of Bayes-optimal message passing from data: the problem of the data, and results.

`gamp_attention.extensions.bayes.messages` has the iteration.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import count_noun
from gamp_attention._tools.numerics import Stream, generator, guard_call
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

    lost: float = 1e-7  # ‖q‖² of a column without a known sign, in units of the prior's, below which it went to zero
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
    message : the outcome in words, with the columns of Q, if any, that went to zero.
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
    start = build_start(problem, init, generator(seed, Stream.STARTS))
    return finish(_iterate(problem, start, damping, tol, max_iter), raise_on_failure, "run_bayes_amp")


def _iterate(problem: AmpProblem, state: AmpState, damping: float, tol: float, max_iter: int) -> BayesAmpResult:
    """Return the outcome of iterations from a start; the parameters are as for `run_bayes_amp`.

    The step is halved if the iterates oscillate, or if the changes have not become smaller for long.
    """
    settings, window, norm, Q_star = RunSettings(), RunSettings.window, problem.norm, problem.data.Q_star
    if Q_star is None or Q_star.shape != state.Q.shape:
        Q_star = np.full(state.Q.shape, np.nan)
    prior_V = np.trace(problem.variances(problem.second_moments), axis1=1, axis2=2)
    history = [(state.Q.T @ Q_star / len(Q_star), state.Q.T @ state.Q / len(Q_star), state.V)]
    variance, entropy, residual, status = np.full(state.Q.shape, np.nan), -np.inf, np.inf, None
    change, n_reversals, residuals = np.zeros_like(state.Q), 0, list[float]()
    small = settings.lost * problem.signless_columns * np.diagonal(problem.second_moments.mean(axis=0))
    while status is None:
        after = None
        with suppress(np.linalg.LinAlgError):
            after, variance, entropy = amp_step(problem, state, damping)
        if after is None or not all(np.isfinite(array).all() for array in after):
            status = Status.NONFINITE
            break
        last, change, state = change, after.Q - state.Q, after
        history.append((state.Q.T @ Q_star / len(Q_star), state.Q.T @ state.Q / len(Q_star), state.V))
        residual = float(np.linalg.norm(change)) / (damping * norm)
        residuals.append(residual)
        n_reversals = max(n_reversals + (1 if np.sum(change * last) < 0 else -1), 0)
        stalled = len(residuals) >= 2 * window and min(residuals[-window:]) > 0.9 * min(residuals[:-window])
        if tol > 0 and (n_reversals == settings.patience or stalled):
            damping, n_reversals = max(0.5 * damping, min(settings.min_step, damping)), 0
            residuals = residuals[-window:] if stalled else residuals
        is_certain = (np.trace(state.V, axis1=1, axis2=2) < settings.known * prior_V).all()
        if np.linalg.norm(state.Q) > settings.max_norm * norm:
            status = Status.DIVERGED
        elif (np.diagonal(history[-1][1]) < small).all():
            status = Status.LOST
        elif tol > 0 and (residual <= tol or is_certain):
            status = Status.CONVERGED
        elif len(history) > max_iter:
            status = Status.MAX_ITER
    n_iter, (overlaps, norms, variances) = len(history) - 1, map(np.array, zip(*history, strict=True))
    lost = np.flatnonzero(np.diagonal(norms[-1]) < small)
    zero = f"; columns {lost} of Q went to zero" if 0 < len(lost) < len(small) else ""
    return BayesAmpResult(
        status=status, n_iter=n_iter, residual=residual, history=BayesHistory(overlaps, norms, variances), Q=state.Q,
        variance=variance, overlap=overlaps[-1], V=state.V, free_entropy=entropy,
        message=f"{ENDINGS[status]} after {count_noun(n_iter, 'iteration')}{zero}",
    )  # fmt: skip
