"""Trajectories of damped survey propagation for d → ∞, at a fixed Parisi parameter y.

The iteration (`gamp_attention.extensions.train.survey`) is message passing with other denoisers: the averages ḡ, R̄ and
Δ over the inner field take the place of g and its response. With V̂_l = α E[R̄_l], Δ_l = α E[Δ_l] and the denoiser of
the weights `average_weights`, which returns η, C̄ and Δx,

    ω_l^t = m_l + ω̃_l^t + Σ_{s<t} (R_l(t, s) − D_l(t, s)) ḡ_l^s
    force = m̂ τ + θ̂ π + ζ_t + Σ_{s≤t} Σ_l γ_l F_l(t, s) x^s,   cov(ζ_s, ζ_t) = α Σ_l γ_l E[ḡ_l^s ḡ_l^tᵀ]
    x^{t+1} = (1−β) x^t + β η,   V ← (1−β) V + β W,   U ← (1−β) U + β W'
    D(t+1, s) = (1−β) D(t, s) + β (W + y W') δ_{st},   W_l = E[γ_l C̄],   W'_l = E[γ_l Δx]

Here D(t, s) are the coefficients of the Onsager memory of the iteration, R(t, s) = E[γ ∂x^t/∂ζ^s] and
F(t, s) = α E[∂ḡ^t/∂ω̃^s] the responses. If ḡ is a continuous function of ω^t, then F(t, s) = −(V̂ − yΔ) δ_{st}, which
cancels in b = force + (A − yΔ) x^t, and R = D. But the local minima at the nodes of the inner field are continued from
one iteration to the next, and they jump: then ḡ^t has a response to earlier fields, and a response beyond its a.e.
derivative, neither of which the iteration takes into account. Therefore, unless the loss is convex, F follows from
Stein's identity (Stein, 1981), as the coefficients of a linear regression of ḡ^t on the sampled teacher's fields and
ω̃^0, …, ω̃^t. The noise of these coefficients adds a fraction of about α L (t + r (T + 1))/n to the variance of ζ for n
paths.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import symmetrize
from gamp_attention.extensions.dynamics.message_paths import MeanLosses, MessagePaths, mean_losses, sum_by_source
from gamp_attention.extensions.dynamics.replicas import (
    Trajectory,
    TrajectoryTask,
    average_jumps,
    damping_steps,
    has_jumps,
    mean_over_replicas,
    no_responses,
    stack_replicas,
    state_mass,
)
from gamp_attention.extensions.dynamics.weight_paths import build_weights
from gamp_attention.extensions.spectra.sample_starts import require_spectral
from gamp_attention.extensions.train.survey_averages import average_fields, first_variances
from gamp_attention.gamp.damping import Damping, Steps
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Hats, Moments, conjugates, sum_over_components
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.models.model import Component, Model
from gamp_attention.theory.start_law import SampleForces, StartLaw

SurveyRun = tuple[list[Overlaps], list[np.ndarray], list[Hats], list[MeanLosses]]  # see `follow_survey`


@dataclass(frozen=True)
class Survey:
    """Survey propagation with a fixed Parisi parameter, the iteration of `survey_step`.

    Parameters
    ----------
    parisi : Parisi parameter y > 0, which multiplies losses of single samples.
    damping : step β in (0, 1], or a sequence of steps, as for `MessagePassing`. By default 0.4, as in
        `train(survey=True)`.

    Raises
    ------
    TypeError, ValueError : if an argument has a wrong type or is out of its range.
    """

    parisi: float
    damping: Steps = 0.4

    def __post_init__(self) -> None:
        object.__setattr__(self, "parisi", check.real("parisi", self.parisi, low=0, strict=True))
        object.__setattr__(self, "damping", damping_steps(self.damping))

    def follow(self, task: TrajectoryTask) -> Trajectory:
        """Return the prediction of all iterations."""
        if task.is_spectral:
            require_spectral(task.model)
        n_paths = task.count_paths(4096, task.n_iter)
        # unless overlaps determine V, it is computed from the labels of the paths
        starts = [s if s.V_is_given else replace(s, V=np.full_like(s.V, np.nan)) for s in task.starts()]
        settings = self.damping, self.parisi, task.n_iter, n_paths, task.rng
        with task.finite("damping"):
            runs = [follow_survey(task.model, task.alpha, start, *settings) for start in starts]
        states, all_U, all_hats, losses = map(list, zip(*runs, strict=True))
        U = np.array(all_U)
        numbers = no_responses(starts[0].V.shape) | mean_over_replicas(stack_replicas(zip(states, losses, strict=True)))
        numbers |= {"U": U.mean(axis=0), "U_error": U.std(axis=0, ddof=1) / np.sqrt(len(runs))}
        if starts[0].forces is not None:  # no separate jump mass
            numbers["V_hat"] = np.mean([[hats.V_derivative for hats in run] for run in all_hats], axis=0)
            words = "consistent: the memory of the start and the response of jumps are part of the equations"
        else:
            jumps, share, unsure = average_jumps(all_hats)
            words = "consistent: the response of jumps is part of the equations"
            words += f" ({state_mass(share)})" if has_jumps(share, unsure) else ""
            numbers |= jumps
        return Trajectory(**numbers, method=self, validity=words)


def follow_survey(
    model: Model, alpha: float, start: StartLaw, damping: Any, parisi: float, n_iter: int, n_paths: int,
    rng: np.random.Generator,
) -> SurveyRun:  # fmt: skip
    """Return overlaps, U and losses at every iteration, and conjugates of ḡ at all but the last.

    Parameters
    ----------
    model : the model.
    alpha : sample complexity.
    start : second moments of the initial weights, and V; if V is NaN, it is computed as by `initial_survey`, from the
        labels of the paths. U is always the U of `initial_survey`.
    damping : step β, or a sequence of steps, see `Damping`.
    parisi : Parisi parameter y >= 0.
    n_iter : number of iterations.
    n_paths : number of sampled paths, even.
    rng : generator of the paths.
    """
    step, law = Damping(damping), model.coordinates
    paths = [SurveyPaths(component, n_paths, n_iter, rng, start.forces) for component in model.components]
    if np.isnan(start.V).all():
        samples = [path.samples(alpha) for path in paths]
        start = replace(start, V=first_variances(model.penalty, law.gamma.T, samples, model.rank, law.weight)[0])
    weights, U = build_weights(model, start, n_iter, n_paths, rng), law.trace[:, None, None] * np.eye(model.rank)
    states, all_U, all_hats, losses = [weights.overlaps()], [U], list[Hats](), list[MeanLosses]()
    onsager = np.zeros((len(weights.memory()), *U.shape))  # D(t, s) of the latest t, with D(t, −1) = 0
    for t in range(n_iter):
        now, q, memory = states[-1], weights.covariances(), weights.memory() - onsager
        moments = sum_over_components(
            model.components, [path.advance_survey(now, q, memory, all_U[-1], parisi) for path in paths]
        )
        spread, q_hats = np.zeros_like(now.q), sum_by_source(model, paths, alpha)
        for path in paths:
            spread[path.sources] += alpha * path.probability * path.spread
        spread, hats = symmetrize(spread), conjugates(model, alpha, now, moments)
        theta_hat, F = _responses(model, alpha, now, hats, paths, start.forces is not None)
        losses.append(mean_losses(alpha, weights, paths))
        inner = replace(hats, theta=theta_hat, V=hats.V_derivative + parisi * spread)
        weights.survey(inner, q_hats, step(t), spread, parisi, F)
        W = weights.W + parisi * weights.W_inner
        for path in paths:
            path.update_memory(W, step(t))
        onsager = np.concatenate([(1 - step(t)) * onsager, step(t) * W[None]])
        all_hats.append(hats)
        states.append(weights.overlaps())
        all_U.append((1 - step(t)) * all_U[-1] + step(t) * weights.W_inner)
    for path in paths:
        path.draw_centers(states[-1], weights.covariances(), weights.memory() - onsager, deepcopy(rng))
    losses.append(mean_losses(alpha, weights, paths))
    return states, all_U, all_hats, losses


def _responses(
    model: Model, alpha: float, now: Overlaps, hats: Hats, paths: Sequence["SurveyPaths"], memory: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return θ̂ (S, r, t) and F(t, s) (t + 1, S, r, r) for the latest t and every s ≤ t.

    Without jumps, and without a `memory` of the start, the derivative is exact and has a lower variance than a
    regression.
    """
    F = np.zeros((paths[0].n_times, *now.q.shape))
    if not (model.task.jumps or memory):
        F[-1] = -hats.V_derivative
        return hats.theta, F
    theta_hat = np.zeros_like(now.theta)
    for path in paths:
        on_teacher, on_fields = path.responses()
        theta_hat[path.sources] += alpha * path.probability * on_teacher
        F[:, path.sources] += alpha * path.probability * on_fields
    return np.zeros_like(theta_hat) if Symmetry.of(model, now).theta_zero else theta_hat, F


class SurveyPaths(MessagePaths):
    """Sampled paths of the fields in one component of a mixture, and averages over inner fields around them."""

    # (L, r, r) covariance of g under the inner field, averaged over the paths; set by `advance_survey`
    spread: np.ndarray

    def __init__(
        self, component: Component, n_paths: int, n_iter: int, rng: np.random.Generator,
        forces: SampleForces | None = None,
    ) -> None:  # fmt: skip
        super().__init__(component, n_paths, n_iter + (forces is not None), rng)
        self._forces = forces

    @property
    def n_times(self) -> int:
        """Number of iterations at which ḡ is known."""
        return self._g.n_times - (self._forces is not None)

    def samples(self, alpha: float) -> tuple[Any, np.ndarray, np.ndarray, float]:
        """Return the samples for `first_variances`."""
        return self._model.loss, self._paths.terms.params, self.sources, self._n / (alpha * self.probability)

    def draw_centers(
        self, overlaps: Overlaps, covariances: np.ndarray, memory: np.ndarray,
        rng: np.random.Generator | None = None,
    ) -> Overlaps:  # fmt: skip
        """Draw ω at the next time t, given R(t, s) − D(t, s) (t, S, r, r); return the overlaps of the tokens.

        If the initial weights depend on the samples, s = −1 comes first, and the first fields determine g⁻¹.
        """
        now = self.draw(overlaps, covariances, rng)
        if self._forces is not None and not self._g.n_times:
            self._g.append(self._forces.evaluate(self._paths.terms.params, self._fields))
        self._fields = self._fields + self._g.combine(memory[:, self.sources])
        return now

    def advance_survey(
        self, overlaps: Overlaps, covariances: np.ndarray, memory: np.ndarray, U: np.ndarray, parisi: float
    ) -> Moments:
        """Return the moments of ḡ at the next time, given overlaps, q^{s,t}, R − D and U of all sources."""
        now, terms = self.draw_centers(overlaps, covariances, memory), self._paths.terms
        averages, self._z = average_fields(
            self._model.loss, terms.params, self._fields, now.V, U[self.sources], parisi, self._z
        )
        g, n = averages.g, self._n
        self._g.append(g)
        self.spread = averages.spread.mean(axis=0)
        L, r = g.shape[1:]
        return Moments(
            g=g.mean(axis=0),
            with_noise=np.einsum("nla,nlb->lab", g, self._noise) / n,
            with_teacher=np.einsum("nla,nlb->lab", g, self._paths.y) / n,
            gg=np.einsum("nla,nlb->lab", g, g) / n,
            response=averages.response.mean(axis=0) - parisi * self.spread,
            square=np.full((L, L, r * r, r * r), np.nan),
            moreau=float(np.mean(averages.envelope + terms.constant)),
            loss=np.nan,
        )

    def responses(self) -> tuple[np.ndarray, np.ndarray]:
        """Return E[∂ḡ^t/∂y] (L, r, t) and E[∂ḡ^t/∂ω̃^s] (t + 1, L, r, r) for the latest t and every s ≤ t."""
        n_times, r, g = self.n_times, self._model.rank, self._g.array[-1]
        slopes = np.array([path.slopes(g[:, l]) for l, path in enumerate(self._paths.of_token)])
        split = slopes.shape[2] - n_times * r
        on_fields = slopes[:, :, split:].reshape(-1, r, n_times, r)
        return slopes[:, :, :split], on_fields.transpose(2, 0, 1, 3)
