"""Trajectories of damped survey propagation for d → ∞, at a fixed Parisi parameter y.

The iteration (`gamp_attention.gamp.survey`) is message passing with other denoisers, so it has the state evolution of
`message_paths` with these replacements. The averages ḡ, R̄ and Δ over the inner field take the place of g and its
response. The weights step with the response A = Σ_l γ_l (V̂_l − y Δ_l) of ḡ, in which V̂_l = α E[R̄_l] and Δ_l = α E[Δ_l].
For the ridge the new variances are, with c = 1/(λ + Σ_l γ_l V̂_l) and C = 1/(λ + A),

    W_l = E[γ_l c],   W'_l = E[γ_l (C − c)]/y,   V ← (1−β) V + β W,   U ← (1−β) U + β W'

The response is the a.e. derivative, as in the iteration on data, and the local minima at the nodes of the inner field
are continued from one iteration to the next, as there. If minima jump, the derivative misses a part of the response
(`Trajectory.jump_mass`), and the prediction is approximate; the average over the inner field smooths most jumps.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from gamp_attention.damping import Damping
from gamp_attention.denoisers.survey import average_fields, first_variances, symmetrised
from gamp_attention.models.model import Component, Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.dynamics.message_paths import MeanLosses, MessagePaths, mean_losses
from gamp_attention.state_evolution.dynamics.start_law import StartLaw
from gamp_attention.state_evolution.dynamics.weight_paths import build_weights
from gamp_attention.state_evolution.equations.channel import Hats, Moments, conjugates, sum_over_components


SurveyRun = tuple[list[Overlaps], list[np.ndarray], list[Hats], list[MeanLosses]]


def follow_survey(
    model: Model, alpha: float, start: StartLaw, U: np.ndarray | None, damping: Any, parisi: float, n_iter: int,
    n_paths: int, rng: np.random.Generator,
) -> SurveyRun:  # fmt: skip
    """Return overlaps, U and losses at every iteration, and conjugates of ḡ at all but the last.

    Parameters
    ----------
    model : the model.
    alpha : sample complexity.
    start : second moments of the initial weights, and V if U is given.
    U : (S, r, r) initial covariances of the inner fields; None for V and U as `initial_survey` computes them, from the
        labels of the paths.
    damping : step β, or a sequence of steps, see `Damping`.
    parisi : Parisi parameter y >= 0.
    n_iter : number of iterations.
    n_paths : number of sampled paths, even.
    rng : generator of the paths.
    """
    step = Damping(damping)
    paths = [SurveyPaths(component, n_paths, n_iter, rng) for component in model.components]
    if U is None:
        law, samples = model.coordinates, [path.samples(alpha) for path in paths]
        V, U, _ = first_variances(model.penalty, law.gamma.T, samples, model.rank, law.weight)
        start = replace(start, V=V)
    weights = build_weights(model, start, n_iter, n_paths, rng)
    states, all_U, all_hats, losses = [weights.overlaps()], [U], list[Hats](), list[MeanLosses]()
    for t in range(n_iter):
        now, q = states[-1], weights.covariances()
        moments = sum_over_components(
            model.components, [path.advance_survey(now, q, all_U[-1], parisi) for path in paths]
        )
        spread, q_hats = np.zeros_like(now.q), [np.zeros_like(now.q) for _ in range(t + 1)]
        for path in paths:
            spread[path.sources] += alpha * path.share * path.spread
            for q_hat, block in zip(q_hats, path.q_hats(alpha), strict=True):
                q_hat[path.sources] += path.share * block
        spread = symmetrised(spread)
        hats = conjugates(model, alpha, now, moments, jumps=False)
        losses.append(mean_losses(alpha, weights, paths))
        weights.survey(replace(hats, V=hats.V + parisi * spread), q_hats, step(t), spread, parisi)
        for path in paths:
            path.update_memory(weights.W + parisi * weights.W_inner, step(t))
        states.append(weights.overlaps())
        all_U.append((1 - step(t)) * all_U[-1] + step(t) * weights.W_inner)
        all_hats.append(conjugates(model, alpha, now, moments))
    for path in paths:
        path.draw(states[-1], weights.covariances(), deepcopy(rng))
    losses.append(mean_losses(alpha, weights, paths))
    return states, all_U, all_hats, losses


class SurveyPaths(MessagePaths):
    """Sampled paths of the fields in one component of a mixture, and averages over inner fields around them.

    Attributes
    ----------
    spread : (L, r, r) covariance of g under the inner field, averaged over the paths; set by `advance_survey`.
    """

    spread: np.ndarray

    def samples(self, alpha: float) -> tuple[Any, np.ndarray, np.ndarray, float]:
        """Return the samples for `first_variances`."""
        return self._model.loss, self._paths.terms.params, self.sources, self._n / (alpha * self.share)

    def advance_survey(
        self, overlaps: Overlaps, covariances: list[np.ndarray], U: np.ndarray, parisi: float
    ) -> Moments:
        """Return the moments of ḡ at the next time, given overlaps, q^{s,t} and U of all sources."""
        now, terms = self.draw(overlaps, covariances), self._paths.terms
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
