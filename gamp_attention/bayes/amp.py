"""Bayes-optimal message passing on data: one iteration, and the loop around it."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gamp_attention.bayes.priors import InputPosterior, MixturePrior
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.fields import back_project, local_fields
from gamp_attention.models.channels.channel import Channel, Posterior, response


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

    def fields(self, Q: np.ndarray) -> np.ndarray:
        """x_l·Q/√d (n, L, t): teachers do not see the positions."""
        return local_fields(self.data.tokens, np.zeros_like(self.data.positions), Q)

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
    tokens, nowhere = problem.data.tokens, np.zeros_like(problem.data.positions)
    b = back_project(tokens, nowhere, g)
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
