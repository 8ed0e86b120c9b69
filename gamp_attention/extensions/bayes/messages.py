"""Iteration of Bayes-optimal approximate message passing (AMP), its problem and its starts.

The teacher's weights Q★ (d, t) have known priors, and a sample with fields u_l = x_l·Q★/√d is observed through a
known channel P(y | u). With γ_i^l the variances of the tokens in coordinate i, and α = n/d, one iteration is

    ω_l = x_l·Q/√d − D_l                                     mean of the fields, minus the Onsager term
    g_l = V_l⁻¹(E[u_l | y, ω, V] − ω_l)                      output step, by the posterior of the channel
    A_l = −α ⟨∂g_l/∂ω_l⟩,   A_i = Σ_l γ_i^l A_l              precision of the observation of Q★ in coordinate i
    b_i = Σ_l (x_lᵀ g_l)_i/√d + A_i Q_i                      input step, by the posterior of the prior
    Q_i ← E[q | b_i, A_i],   C_i = Cov[q | b_i, A_i]
    V_l ← (1/d) Σ_i γ_i^l C_i,   D_l ← V_l g_l

With the step β, (Q, V, D) move by the fraction β toward these values. The iteration is generalized AMP (Rangan, 2011)
with the posterior means in place of proximal maps; its fixed points are stationary points of the Bethe free entropy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import raise_spectrum
from gamp_attention.extensions.bayes.channels.channel import Posterior, PosteriorChannel, channel_response
from gamp_attention.extensions.bayes.priors import InputPosterior, MixturePrior
from gamp_attention.extensions.train.spectral import lowest_eigenvectors, posterior_weights
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.passes import TokenMatrix

# ‖Q‖² at the start, as a fraction of the prior's second moment
RANDOM = 0.01
SPECTRAL = 0.1
INFORMED = 0.999  # below 1, so that the variances V stay positive


class AmpState(NamedTuple):
    """State of Bayes-optimal message passing between two iterations."""

    Q: np.ndarray  # (d, t) posterior mean
    V: np.ndarray  # (L, t, t) variances of the fields
    D: np.ndarray  # (n, L, t) Onsager terms


class AmpPosterior(NamedTuple):
    """Posteriors of fields and weights after an iteration, and the quantities from which they are computed."""

    samples: Posterior
    rows: list[InputPosterior]  # posterior of the weights, for each kind of coordinate
    omega: np.ndarray  # (n, L, t)
    V: np.ndarray  # (L, t, t)
    A: np.ndarray  # (L, t, t)
    b: np.ndarray  # (d, t)


@dataclass(frozen=True, eq=False)
class AmpProblem:
    """Data with the channel and the priors of a model."""

    data: Dataset  # the samples; their student, penalty and positions are not used
    y: Any  # observations in the form of the channel
    channel: PosteriorChannel  # distribution of an observation, given the teacher's fields
    gamma: np.ndarray  # (d, L) variances of the tokens
    kind: np.ndarray  # (d,) index of the kind of each coordinate
    priors: list[MixturePrior]  # prior of the teacher's weights, for each kind of coordinate

    @property
    def second_moments(self) -> np.ndarray:
        """Second moments of the prior (d, t, t)."""
        return np.stack([prior.second for prior in self.priors])[self.kind]

    @property
    def norm(self) -> float:
        """Norm ‖Q‖ of weights drawn from the prior."""
        return float(np.sqrt(np.trace(self.second_moments.sum(axis=0))))

    def variances(self, cov: np.ndarray) -> np.ndarray:
        """Return the variances V_l (L, t, t) of the fields, given covariances (d, t, t) of the weights."""
        return np.einsum("il,iab->lab", self.gamma, cov) / len(self.gamma)

    @property
    def matrix(self) -> TokenMatrix:
        """Token matrix without positions, because the teacher's fields do not contain them."""
        return TokenMatrix(self.data.tokens, np.zeros_like(self.data.positions))

    def fields(self, Q: np.ndarray) -> np.ndarray:
        """Return the teacher's fields x_l·Q/√d (n, L, t), which do not contain the positions."""
        return self.matrix.fields(Q)

    @cached_property
    def posterior(self) -> Callable[[np.ndarray, np.ndarray], Posterior]:
        """Posterior of the samples as a function of ω and V, which may reuse its points in several iterations."""
        return self.channel.reuse(self.y, self.variances(self.second_moments))


def amp_step(problem: AmpProblem, state: AmpState, damping: float) -> tuple[AmpState, AmpPosterior]:
    """Return the state after one iteration with the step `damping`, and the posteriors that it has computed.

    Eq. :eq:`bayes-amp`. With damping, the Onsager terms are averaged like Q and V.
    """
    omega = problem.fields(state.Q) - state.D
    samples = problem.posterior(omega, state.V)
    g, slope = channel_response(samples, omega, state.V)
    A = problem.data.alpha * raise_spectrum(slope)  # in small samples, eigenvalues may be negative by chance
    b = problem.matrix.back_project(g)
    Q, cov, rows = np.empty_like(state.Q), np.empty((len(problem.gamma), *state.V.shape[1:])), []
    for k, prior in enumerate(problem.priors):
        members = problem.kind == k
        gamma = problem.gamma[members][0] if members.any() else np.ones(len(A))
        precision = np.einsum("l,lab->ab", gamma, A)
        b[members] += state.Q[members] @ precision
        posterior = prior.posterior(b[members], precision)
        Q[members], cov[members] = posterior.mean, posterior.cov
        rows.append(posterior)
    W = problem.variances(cov)
    D = np.einsum("lab,nlb->nla", W, g)
    after = AmpState(*((1 - damping) * old + damping * new for old, new in zip(state, (Q, W, D), strict=True)))
    return after, AmpPosterior(samples, rows, omega, state.V, A, b)


def free_entropy(problem: AmpProblem, state: AmpState, posterior: AmpPosterior) -> float:
    """Return the Bethe free entropy per dimension, given the state before an iteration and the posteriors of it.

    Eq. :eq:`bayes-bethe`.
    """
    total = float(posterior.samples.log_z.sum())
    shift = problem.fields(state.Q) - posterior.omega
    total += 0.5 * float(np.einsum("nla,lab,nlb->", shift, np.linalg.inv(posterior.V), shift))
    for k, rows in enumerate(posterior.rows):
        members = problem.kind == k
        if members.any():
            precision = np.einsum("l,lab->ab", problem.gamma[members][0], posterior.A)
            total += float(rows.log_z.sum() - np.sum(posterior.b[members] * rows.mean))
            total += 0.5 * float(np.einsum("ia,ab,ib->", rows.mean, precision, rows.mean))
            total += 0.5 * float(np.einsum("iab,ab->", rows.cov, precision))
    return total / len(problem.gamma)


def overlap_with(Q: np.ndarray, Q_star: np.ndarray | None) -> np.ndarray:
    """Return QᵀQ★/d (t, t), NaN if no teacher is known."""
    t = Q.shape[1]
    return np.full((t, t), np.nan) if Q_star is None else Q.T @ Q_star / len(Q)


def build_start(problem: AmpProblem, init: Any, random: np.random.Generator) -> AmpState:
    """Return the state before the first iteration: weights, variances that belong to their norm, and no memory.

    If the channel or the prior mean determines the sign of Q, the start is the prior mean, plus noise for "random".
    """
    d, L = problem.data.dim, problem.data.n_tokens
    second_moments = problem.second_moments
    t = second_moments.shape[1]
    mean = np.stack([prior.first for prior in problem.priors])[problem.kind]
    deviation = np.sqrt(np.diagonal(second_moments, axis1=1, axis2=2))
    if not isinstance(init, str):
        Q = check.array("init", init, (d, t)).copy()
        fraction = min(float(np.sum(Q**2)) / problem.norm**2, INFORMED)
    elif init == "informed":
        Q_star = problem.data.Q_star
        if Q_star is None or Q_star.shape != (d, t):
            raise check.fail("init", init, f"data with a teacher of {t} columns")
        Q, fraction = Q_star.copy(), INFORMED
    elif not problem.channel.even or mean.any():
        Q = mean + np.sqrt(RANDOM) * deviation * random.standard_normal((d, t)) * (init == "random")
        fraction = float(np.sum(Q**2)) / problem.norm**2
    else:
        directions = _spectral_directions(problem, random) if init == "spectral" else None
        fraction = RANDOM if directions is None else SPECTRAL
        white = random.standard_normal((d, t)) if directions is None else directions
        Q = np.sqrt(fraction) * deviation * white
    V = problem.variances((1 - min(fraction, INFORMED)) * second_moments)
    return AmpState(Q, V, np.zeros((problem.data.n_samples, L, t)))


def _spectral_directions(problem: AmpProblem, random: np.random.Generator) -> np.ndarray | None:
    """Return the lowest eigenvectors (d, t) of `posterior_weights`, with entries of order one; None without a signal.

    Eq. :eq:`posterior-moments`.

    Of all spectral methods these weights have the largest overlap with the teacher, if nothing is known in advance. One
    eigenvector has all columns, and only columns that are found first have large entries. Small random entries are
    added to several columns; the other columns grow once the first columns are found.
    """
    (d, t), n, L = (problem.data.dim, problem.second_moments.shape[1]), problem.data.n_samples, problem.data.n_tokens
    rho = problem.variances(problem.second_moments)
    moments = np.mean(problem.channel.posterior(problem.y, np.zeros((n, L, t)), rho).second_moments(), axis=0)
    h = posterior_weights(moments, rho, problem.data.alpha)
    vectors: Any = lowest_eigenvectors(problem.matrix, h, t, 1, random)[1] if d > t and h.any() else []
    if not len(vectors):
        return None
    noise = np.sqrt(RANDOM / SPECTRAL) * random.standard_normal((d, t)) if t > 1 else 0.0
    return np.sqrt(d) * vectors[0] + noise
