"""Gradient descent for d → ∞: sampled paths of the fields and forces.

The field of a sample at step t depends on the forces f = −∇ℓ(z) of all earlier steps,

    z^t = m^t + ω̃^t + Σ_{s<t} R(t, s) f^s,

with Gaussian ω̃ and the response R of the weights to earlier forces: dynamical mean-field theory (Mignacco, Krzakala,
Urbani and Zdeborová, 2020; Celentano, Cheng and Montanari, 2021). `DescentPaths` samples these paths,
`weight_paths` has the weights, and `gradient_descent` the loop over steps.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention.extensions.dynamics.field_paths import FieldPaths, PathResponses, PathValues, component_paths
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import select_sources
from gamp_attention.theory.models.model import Component, Model


@dataclass(frozen=True)
class RareResponses:
    """Thresholds of the correction of averages that few paths carry, by Stein's lemma.

    If samples choose between two wells, the derivatives grow exponentially in time on a fraction of the paths, and this
    fraction decreases as fast. If only a few sampled paths remain in it, the average over samples is wrong.
    """

    min_carriers: float = 8.0  # effective number of paths (Σ|F|)²/Σ|F|² of an average below which it is corrected
    min_fraction: float = 0.25  # the same as a fraction of the paths in minibatches at both times, if that is smaller
    max_times: int = 12  # maximum number of corrected initial times; at later times sample averages are less noisy


RARE = RareResponses()


@dataclass(frozen=True, eq=False)
class DescentForces:
    """Averages over the fields at time t that drive the weights; for mixtures by source, sum_field over components."""

    m: np.ndarray  # (S, r) m̂^t = α E[f^t]
    theta: np.ndarray  # (S, r, t) θ̂^t
    q: np.ndarray  # (t + 1, S, r, r) q̂^{s,t} = α E[f^s f^tᵀ] for every s ≤ t
    response: np.ndarray  # (t + 1, S, r, r) Γ(t, s) = α E[∂f^t/∂ω^s]
    loss: float  # α E[ℓ(z^t) + constant]
    test_error: float  # test error of the weights at time t


class DescentPaths:
    """Sampled paths of fields and forces in one component of a mixture. Eq. :eq:`descent-fields`.

    Parameters
    ----------
    component : the component, with its probability and sources.
    n_paths : number of paths of all components.
    n_iter : number of steps.
    batch : fraction of the data in a minibatch; 1 for full-batch descent.
    rng : generator of the paths and minibatches.
    even : the argument of `FieldPaths`; if it is true, m̂ = 0.
    """

    def __init__(
        self, component: Component, n_paths: int, n_iter: int, batch: float, rng: np.random.Generator,
        even: bool = False,
    ) -> None:  # fmt: skip
        self.probability, self.sources, self.model = component
        self._batch, self._rng, self._even = batch, rng, even
        self._paths = FieldPaths(self.model, component_paths(component, n_paths, n_iter), rng, even)
        self._n = self._paths.n
        L, r = self.model.n_tokens, self.model.rank
        self._responses = PathResponses(self._n, n_iter + 1, L, r)
        self._forces = PathValues(n_iter + 1, self._n, L, r)
        self._theta: list[np.ndarray] = []
        self._rare = 0  # number of initial times whose responses are corrected

    def advance(self, alpha: float, overlaps: Overlaps, covariances: np.ndarray, memory: np.ndarray) -> DescentForces:
        """Return the forces at the next time t.

        Parameters
        ----------
        alpha : sample complexity.
        overlaps : overlaps of all sources at time t.
        covariances : (t + 1, S, r, r) q^{s,t} of all sources for every s ≤ t.
        memory : (t, S, r, r) response R(t, s) for every s < t.
        """
        n, model = self._n, self.model
        now, memory = select_sources(overlaps, self.sources), memory[:, self.sources]
        fields = self._paths.draw(now, covariances[:, self.sources]) + now.m
        z = fields + self._forces.combine(memory)
        value, slope, hess = sample_derivatives(model.loss, self._paths.terms.params, z)
        force, slopes = -slope, -hess
        if self._batch < 1:
            copies = self._paths.copies  # minibatches are equal for mirror images
            drawn = np.tile(self._rng.random(n * copies // 2) < self._batch, 2 // copies) / self._batch
            force, slopes = drawn[:, None, None] * force, drawn[:, None, None] * slopes
        self._forces.append(force)
        self._theta.append(now.theta)
        response = alpha * self._responses.advance(memory, slopes)
        theta = alpha * np.einsum("nla,nlb->lab", force, self._paths.y) / n
        theta -= np.einsum("slab,slbt->lat", response, np.array(self._theta))
        theta = theta @ np.linalg.pinv(model.coordinates.rho, hermitian=True)
        theta, response = self._correct_rare(alpha * force, theta, response)
        y, terms = self._paths.y, self._paths.terms
        return DescentForces(
            m=alpha * (np.zeros_like(now.m) if self._even else force.mean(axis=0)),
            theta=theta,
            q=alpha / n * self._forces.products(),
            response=response,
            loss=alpha * float(np.mean(value + terms.constant)),
            test_error=float(np.mean(model.task.errors(fields, y, terms))),
        )

    def _correct_rare(
        self, force: np.ndarray, theta: np.ndarray, response: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return θ̂ and Γ, corrected by Stein's lemma for the initial times at which few paths carry Γ.

        An initial time that was corrected once is corrected at all later steps.
        """
        limits = RARE
        enough = min(limits.min_carriers / self._paths.copies, limits.min_fraction * self._batch**2 * self._n)
        while self._rare < min(limits.max_times, len(response)) and self._responses.carriers[self._rare] < enough:
            self._rare += 1
        if not self._rare:
            return theta, response
        times, r, t = len(response), self.model.rank, self.model.teacher_rank
        theta, response = theta.copy(), response.copy()
        for l, path in enumerate(self._paths.of_token):
            sampled = np.concatenate([theta[l], response[:, l].swapaxes(0, 1).reshape(r, times * r)], axis=1)
            corrected = path.responses(force[:, l], sampled, t + r * self._rare)
            theta[l], response[:, l] = corrected[:, :t], corrected[:, t:].reshape(r, times, r).swapaxes(0, 1)
        return theta, response


def sum_forces(model: Model, paths: Iterable[Any], forces: list[DescentForces]) -> DescentForces:
    """Return the forces of all components as sums over the sources, weighted by the components' probabilities.

    `paths` have the probability and the sources of each component.
    """
    if len(forces) == 1:
        return forces[0]

    def sum_field(name: str, axis: int) -> np.ndarray:
        first = getattr(forces[0], name)
        total = np.zeros((*first.shape[:axis], model.n_sources, *first.shape[axis + 1 :]))
        for path, force in zip(paths, forces, strict=True):
            total[(slice(None),) * axis + (path.sources,)] += path.probability * getattr(force, name)
        return total

    sums = {name: sum_field(name, axis) for name, axis in (("m", 0), ("theta", 0), ("q", 1), ("response", 1))}
    loss = sum(path.probability * force.loss for path, force in zip(paths, forces, strict=True))
    error = sum(path.probability * force.test_error for path, force in zip(paths, forces, strict=True))
    return DescentForces(**sums, loss=loss, test_error=error)
