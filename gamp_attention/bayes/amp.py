"""Bayes-optimal message passing on data: one iteration, and the loop around it.

Where Bayes-optimal message passing starts.

Data and a model as a problem of Bayes-optimal message passing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention.bayes.priors import InputPosterior, MixturePrior, kinds_of
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.passes import TokenMatrix, token_products
from gamp_attention.data.starts import lowest_eigenvectors
from gamp_attention.denoisers.spectral_weights import posterior_weights
from gamp_attention.models.channels.channel import Channel, Posterior, response
from gamp_attention.models.channels.choice import field_moments
from gamp_attention.models.model import Model, require_model


@dataclass(frozen=True)
class AmpSettings:
    """When a run is over, beside its tolerance."""

    lost: float = 1e-7  # q in units of the prior's second moment, below which nothing is known
    known: float = 1e-11  # variance in the same units, below which nothing is unknown
    settle: int = 15  # iterations before hyperparameters are learnt
    patience: int = 10  # iterations with a change against that before it, after which the step is halved
    long: int = 75  # iterations, after which it is halved if the smallest change is not smaller than in those before
    least: float = 0.05  # step
    largest: float = 1e6  # weights in units of the prior's deviation


AMP = AmpSettings()


class AmpState(NamedTuple):
    """What an iteration needs."""

    Q: np.ndarray  # (d, t) posterior mean
    V: np.ndarray  # (L, t, t) variances of the fields
    D: np.ndarray  # (n, L, t) Onsager terms


class Belief(NamedTuple):
    """The posterior after an iteration."""

    samples: Posterior
    rows: list[InputPosterior]  # of each kind of coordinate
    omega: np.ndarray
    V: np.ndarray
    A: np.ndarray  # (L, t, t)
    b: np.ndarray  # (d, t)


@dataclass(frozen=True, eq=False)
class Problem:
    """Data as message passing sees them."""

    data: Dataset
    y: np.ndarray
    channel: Channel
    gamma: np.ndarray  # (d, L) variances of the tokens
    kind: np.ndarray  # (d,) of each coordinate
    priors: list[MixturePrior]

    @property
    def second(self) -> np.ndarray:
        """Prior second moments (d, t, t)."""
        return np.stack([prior.second for prior in self.priors])[self.kind]

    @property
    def size(self) -> float:
        """‖Q‖ of rows of the prior."""
        return float(np.sqrt(np.trace(self.second.sum(axis=0))))

    def variances(self, cov: np.ndarray) -> np.ndarray:
        """V_l (L, t, t) of covariances (d, t, t) of the rows."""
        return np.einsum("il,iab->lab", self.gamma, cov) / len(self.gamma)

    @property
    def matrix(self) -> TokenMatrix:
        """Token matrix without positions, which teachers do not see."""
        return TokenMatrix(self.data.tokens, np.zeros_like(self.data.positions))

    def fields(self, Q: np.ndarray) -> np.ndarray:
        """x_l·Q/√d (n, L, t): teachers do not see the positions."""
        return self.matrix.fields(Q)

    def learned(self, belief: Belief, what: tuple[str, ...]) -> "Problem":
        """With hyperparameters as the posterior has them."""
        found = self
        if "prior" in what:
            priors = [prior.learned(rows) for prior, rows in zip(self.priors, belief.rows, strict=True)]
            found = replace(found, priors=priors)
        if "noise" in what and belief.samples.misfit is not None:
            noise = float(np.sqrt(belief.samples.misfit.mean() / self.channel.n_seen))
            found = replace(found, channel=self.channel.with_noise(noise))
        return found


def amp_step(problem: Problem, state: AmpState, damping: float) -> tuple[AmpState, Belief]:
    """One iteration; with damping, Onsager terms are the average that damping makes of them.

    Eq. :eq:`bayes-amp`.
    """
    d = len(problem.gamma)
    omega = problem.fields(state.Q) - state.D
    samples = problem.channel.posterior(problem.y, omega, state.V)
    g, slope = response(samples, omega, state.V)
    A = problem.data.alpha * _not_negative(slope)
    b = problem.matrix.back_project(g)
    Q, cov, rows = np.empty_like(state.Q), np.empty((d, *state.V.shape[1:])), []
    for k, prior in enumerate(problem.priors):
        mine = problem.kind == k
        own = np.einsum("l,lab->ab", problem.gamma[mine][0], A) if mine.any() else A.sum(axis=0)
        b[mine] += state.Q[mine] @ own
        found = prior.posterior(b[mine], own)
        Q[mine], cov[mine] = found.mean, found.cov
        rows.append(found)
    W = problem.variances(cov)
    D = np.einsum("lab,nlb->nla", W, g)
    mixed = AmpState(*((1 - damping) * old + damping * new for old, new in zip(state, (Q, W, D), strict=True)))
    return mixed, Belief(samples, rows, omega, state.V, A, b)


def _not_negative(slope: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(slope)
    return (vectors * values.clip(min=0)[:, None]) @ vectors.transpose(0, 2, 1)


def free_entropy(problem: Problem, state: AmpState, belief: Belief) -> float:
    """Bethe free entropy of a fixed point, for one dimension.

    Eq. :eq:`bayes-bethe`.
    """
    d, total = len(problem.gamma), float(belief.samples.log_z.sum())
    away = problem.fields(state.Q) - belief.omega
    total += 0.5 * float(np.einsum("nla,lab,nlb->", away, np.linalg.inv(belief.V), away))
    for k, rows in enumerate(belief.rows):
        mine = problem.kind == k
        if mine.any():
            own = np.einsum("l,lab->ab", problem.gamma[mine][0], belief.A)
            total += float(rows.log_z.sum() - np.sum(belief.b[mine] * rows.mean))
            total += 0.5 * float(np.einsum("ia,ab,ib->", rows.mean, own, rows.mean))
            total += 0.5 * float(np.einsum("iab,ab->", rows.cov, own))
    return total / d


def overlap_with(Q: np.ndarray, Q_star: Any) -> np.ndarray:
    """QᵀQ*/d, NaN where no teacher is known."""
    t = Q.shape[1]
    return np.full((t, t), np.nan) if Q_star is None else Q.T @ Q_star / len(Q)


@dataclass(frozen=True)
class BayesStartSettings:
    """Sizes of starts, as shares of the prior's second moment."""

    random: float = 0.01
    spectral: float = 0.1
    informed: float = 0.999


SHARES = BayesStartSettings()


def bayes_start(problem: Problem, init: Any, random: np.random.Generator) -> AmpState:
    """Weights, and variances that go with their size."""
    d, L = problem.gamma.shape
    second = problem.second
    t = second.shape[1]
    first = np.stack([prior.first for prior in problem.priors])[problem.kind]
    deviation = np.sqrt(np.diagonal(second, axis1=1, axis2=2))
    share = 0.0
    if not isinstance(init, str):
        Q = check.array("init", init, (d, t)).copy()
        share = min(float(np.sum(Q**2)) / problem.size**2, SHARES.informed)
    elif init == "informed":
        Q_star = problem.data.Q_star
        if Q_star is None or Q_star.shape != (d, t):
            raise check.fail("init", init, "data with a teacher, with as many columns as the model's")
        Q, share = Q_star.copy(), SHARES.informed
    elif not problem.channel.even or first.any():
        Q = first + np.sqrt(SHARES.random) * deviation * random.standard_normal((d, t)) * (init == "random")
        share = float(np.sum(Q**2)) / problem.size**2
    else:
        directions = _spectral(problem, random) if init == "spectral" else None
        share = SHARES.random if directions is None else SHARES.spectral
        white = random.standard_normal((d, t)) if directions is None else directions
        Q = np.sqrt(share) * deviation * white
    V = problem.variances((1 - min(share, SHARES.informed)) * second)
    return AmpState(Q, V, np.zeros((problem.data.n_samples, L, t)))


def _spectral(problem: Problem, random: np.random.Generator) -> np.ndarray | None:
    """The directions (d, t), of entries of order one, of posterior weights, which know most where nothing is known."""
    d, t = problem.data.dim, problem.second.shape[1]
    rho = problem.variances(problem.second)
    K = field_moments(problem.channel, problem.y, rho)
    h = posterior_weights(K, rho, problem.data.n_samples / d)
    if d <= t or not h.any():
        return None
    _, vectors = lowest_eigenvectors(_Unshifted(problem), h, 1, t, random)  # type: ignore[arg-type]
    if len(vectors) < t:
        return None
    return np.sqrt(d) * vectors[:t, :, 0].T


class _Unshifted:
    """Tokens without the positions, which teachers do not see."""

    def __init__(self, problem: Problem) -> None:
        self.tokens, self.dim = problem.data.tokens, problem.data.dim
        self.positions = np.zeros_like(problem.data.positions)


def posed(data: Dataset, model: Any, channel_of: Callable[[Model], Channel]) -> Problem:
    """What message passing works on; for one's own arrays the targets are y xᵀ(x xᵀ)⁻¹.

    Raises
    ------
    ValueError : where no model is known, or it does not fit the data.
    """
    if model is None and data.model is None:
        raise ValueError("model: needs the law of teacher and noise for one's own arrays, got none")
    model = data.model if model is None else require_model(model)
    if (model.n_tokens, model.attention) != (data.n_tokens, not data.is_labelled):
        what = "a model of labels" if data.is_labelled else "an attention model"
        raise check.fail("model", type(model).__name__, f"{what} of {data.n_tokens} tokens, as the data are")
    channel = channel_of(model)
    kinds = kinds_of(model.coordinates)
    gamma = np.broadcast_to(data.spectra, (len(data.spectra), data.dim)).T
    tau = np.sqrt(data.dim) * data.source_means.T
    kind = np.zeros(data.dim, dtype=int)
    if len(kinds) > 1:
        size = np.array([np.abs(each.gamma).max() for each in kinds]).max(), max(np.abs(tau).max(), 1e-300)
        far = [
            np.sum((gamma - each.gamma) ** 2, axis=1) / size[0] ** 2
            + np.sum((tau - each.tau) ** 2, axis=1) / size[1] ** 2
            for each in kinds
        ]
        kind = np.argmin(far, axis=0)
        gamma = np.stack([each.gamma for each in kinds])[kind]  # as alike as their prior is
    return Problem(
        data, channel.seen(_observed(data)), channel, np.asarray(gamma), kind, [each.prior for each in kinds]
    )


def _observed(data: Dataset) -> np.ndarray:
    """Labels, or targets: those of one's own arrays are y xᵀ(x xᵀ)⁻¹, for d ≥ L."""
    known = data.labels if data.labels is not None else data.targets
    if known is not None:
        return known
    if data.dim < data.n_tokens:
        raise check.fail("data", f"d = {data.dim}", f"at least as many dimensions as tokens, {data.n_tokens}")
    x = np.asarray(data.tokens, dtype=float)
    gram, cross = token_products(x, x), token_products(np.asarray(data.outputs, dtype=float), x)
    return np.linalg.solve(gram, cross.transpose(0, 2, 1)).transpose(0, 2, 1)
