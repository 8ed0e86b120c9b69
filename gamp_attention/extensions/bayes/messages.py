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
from gamp_attention.extensions.bayes.priors import Kind
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


@dataclass(frozen=True, eq=False)
class AmpProblem:
    """Data with the channel and the priors of a model."""

    data: Dataset  # the samples; their student, penalty and positions are not used
    y: Any  # observations in the form of the channel
    channel: PosteriorChannel  # distribution of an observation, given the teacher's fields
    kinds: list[Kind]  # kinds of coordinates, with their variances of the tokens and their priors
    kind: np.ndarray  # (d,) index of the kind of each coordinate

    @property
    def second_moments(self) -> np.ndarray:
        """Second moments of the prior (d, t, t)."""
        return np.stack([kind.prior.second for kind in self.kinds])[self.kind]

    @property
    def norm(self) -> float:
        """Norm ‖Q‖ of weights drawn from the prior."""
        return float(np.sqrt(np.trace(self.second_moments.sum(axis=0))))

    @property
    def signless_columns(self) -> np.ndarray:
        """Columns (t,) whose sign neither the samples nor the prior determine."""
        return self.channel.signless_columns & ~np.any([kind.prior.first for kind in self.kinds], axis=0)

    @cached_property
    def gamma(self) -> np.ndarray:
        """Variances of the tokens (d, L)."""
        return np.stack([kind.gamma for kind in self.kinds])[self.kind]

    def variances(self, cov: np.ndarray) -> np.ndarray:
        """Return the variances V_l (L, t, t) of the fields, given covariances (d, t, t) of the weights."""
        return np.einsum("il,iab->lab", self.gamma, cov) / len(self.gamma)

    @property
    def matrix(self) -> TokenMatrix:
        """Token matrix without positions, because the teacher's fields do not contain them."""
        return TokenMatrix(self.data.tokens, np.zeros_like(self.data.positions))

    @cached_property
    def posterior(self) -> Callable[[np.ndarray, np.ndarray], Posterior]:
        """Posterior of the samples as a function of ω and V, which may reuse its points in several iterations."""
        return self.channel.reuse(self.y, self.variances(self.second_moments))


def amp_step(problem: AmpProblem, state: AmpState, damping: float) -> tuple[AmpState, np.ndarray, float]:
    """Return the state after one iteration with the step `damping`, posterior variances (d, t) and free entropy.

    Eq. :eq:`bayes-amp`, :eq:`bayes-bethe`. With damping, the Onsager terms are averaged like Q and V. The variances of
    the weights and the Bethe free entropy per dimension belong to the given state.
    """
    omega = problem.matrix.fields(state.Q) - state.D
    samples = problem.posterior(omega, state.V)
    entropy = samples.log_z.sum() + 0.5 * np.einsum("nla,lab,nlb->", state.D, np.linalg.inv(state.V), state.D)
    g, slope = channel_response(samples, omega, state.V)
    A = problem.data.alpha * raise_spectrum(slope)  # in small samples, eigenvalues may be negative by chance
    b = problem.matrix.back_project(g)
    Q, cov = np.empty_like(state.Q), np.empty((len(state.Q), *state.V.shape[1:]))
    for k, kind in enumerate(problem.kinds):
        members, precision = problem.kind == k, np.einsum("l,lab->ab", kind.gamma, A)
        b[members] += state.Q[members] @ precision
        mean, spread, log_z = kind.prior.posterior(b[members], precision)
        Q[members], cov[members] = mean, spread
        second = mean.T @ mean + spread.sum(axis=0)
        entropy += log_z.sum() - np.sum(b[members] * mean) + 0.5 * np.sum(second * precision)
    W = problem.variances(cov)
    D = np.einsum("lab,nlb->nla", W, g)
    after = AmpState(*((1 - damping) * old + damping * new for old, new in zip(state, (Q, W, D), strict=True)))
    return after, np.diagonal(cov, axis1=1, axis2=2), float(entropy) / len(Q)


def build_start(problem: AmpProblem, init: Any, random: np.random.Generator) -> AmpState:
    """Return the state before the first iteration: weights, variances that belong to their norm, and no memory.

    Columns whose sign the channel or the prior mean determines start at the prior mean, plus noise for "random". The
    other columns would remain at zero: they start from eigenvectors or noise.
    """
    d, L = problem.data.dim, problem.data.n_tokens
    second_moments = problem.second_moments
    t = second_moments.shape[1]
    deviation = np.sqrt(np.diagonal(second_moments, axis1=1, axis2=2))
    if not isinstance(init, str):
        Q = check.array("init", init, (d, t)).copy()
        fraction = min(float(np.sum(Q**2)) / problem.norm**2, INFORMED)
    elif init == "informed":
        Q_star = problem.data.Q_star
        if Q_star is None or Q_star.shape != (d, t):
            raise check.fail("init", init, f"data with a teacher of {t} columns")
        Q, fraction = Q_star.copy(), INFORMED
    else:
        signless = problem.signless_columns
        directions = _spectral_directions(problem, random) if init == "spectral" and signless.any() else None
        white = random.standard_normal((d, t)) if directions is None else directions
        size = np.sqrt(RANDOM if directions is None else SPECTRAL)
        mean = np.stack([kind.prior.first for kind in problem.kinds])[problem.kind]
        Q = mean + size * deviation * white * (signless | (init == "random"))
        fraction = float(np.sum(Q**2)) / problem.norm**2
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
