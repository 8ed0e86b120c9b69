"""Trajectories of damped GAMP for d → ∞: the distribution of every iterate, not only of fixed points.

The weights depend on the start, the positions, the teacher and the Gaussian noises ζ_s of the iterations,

    x^{t+1} = (1−β) x^t + β η(h_t + ζ_t, A_t),   cov(ζ_s, ζ_t) = Σ_l γ_l q̂_l^{s,t},

(`weight_paths`), which gives the overlaps q^{s,t} between any two times. The fields ω̃^0, ω̃^1, … and y are sampled
as paths with those covariances (`field_paths`). This is the state evolution of Bayati and Montanari (2011) and
Javanmard and Montanari (2013), extended to damping by the covariances between times.
"""

from copy import deepcopy
from typing import Any

import numpy as np

from gamp_attention._tools.progress import refresh
from gamp_attention.extensions.dynamics.field_paths import FieldPaths, component_paths
from gamp_attention.extensions.dynamics.weight_paths import LinearWeights, SampledWeights, WeightPath
from gamp_attention.gamp.damping import Damping
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations import channel
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.models.model import Component, Model
from gamp_attention.theory.start_law import StartLaw

Row = dict[str, Any]  # overlaps, "train_loss" and "test_error" at one time, by name


def follow(
    model: Model, alpha: float, start: StartLaw, damping: Any, n_iter: int, n_paths: int, rng: np.random.Generator
) -> tuple[list[Row], list[channel.Hats]]:  # fmt: skip
    """Return overlaps and losses at every iteration, and conjugates at all but the last, from one set of paths.

    `start` has the second moments of the initial weights; `damping` is a step β, or a sequence of steps (`Damping`).
    """
    step = Damping(damping)
    if model.penalty.quadratic:
        weights: LinearWeights | SampledWeights = LinearWeights(model, start, n_iter)
    else:  # four samples for each path of the fields, because they are cheap
        weights = SampledWeights(model, start, n_iter, 4 * n_paths, rng)
    even = Symmetry.of(model, start.overlaps(model)).m_zero
    paths = [MessagePaths(component, n_paths, n_iter, rng, even) for component in model.components]
    rows, all_hats = list[Row](), list[channel.Hats]()
    for t in range(n_iter):
        refresh()
        now, q = weights.evaluate()
        moments = channel.sum_over_components(model.components, [path.advance(now, q) for path in paths])
        hats = channel.conjugates(model, alpha, now, moments, stein=model.task.jumps)
        rows.append(now.arrays() | _mean_losses(alpha, weights, paths))
        q_hats = np.zeros((t + 1, *now.q.shape))  # q̂^{s,t} for every s ≤ t, summed over the components
        for path in paths:
            q_hats[:, path.sources] += path.probability * path.q_hats(alpha)
        weights.step(hats, q_hats, step(t))
        for path in paths:
            path.update_memory(weights.W, step(t))
        all_hats.append(hats)
    now, q = weights.evaluate()
    for path in paths:
        path.draw(now, q, deepcopy(rng))  # a copy, so that rng is not advanced
    rows.append(now.arrays() | _mean_losses(alpha, weights, paths))
    return rows, all_hats


class MessagePaths:
    """Sampled paths of the fields in one component of a mixture, and the results of the denoiser on them.

    `even` is the argument of `FieldPaths`; if it is true, averages of odd functions are not used.
    """

    def __init__(self, component: Component, n_paths: int, n_iter: int, rng: np.random.Generator, even: bool) -> None:
        self.probability, self.sources, self._model = component
        self._paths = FieldPaths(self._model, component_paths(component, n_paths, n_iter), rng, even)
        n, L, r = self._paths.n, self._model.n_tokens, self._model.rank
        self._g = np.empty((L, 0, n))  # g of all times, r rows for each
        self._z: np.ndarray | None = None
        self._D = np.zeros((n, L, r))

    def draw(self, overlaps: Overlaps, covariances: np.ndarray, rng: np.random.Generator | None = None) -> Overlaps:
        """Draw ω̃ at the next time, given q^{s,t} of all sources for every s ≤ t; return the overlaps of the tokens."""
        now = channel.select_sources(overlaps, self.sources)
        self._noise = self._paths.draw(now, covariances[:, self.sources], rng)
        self._fields = self._noise + now.m
        return now

    def advance(self, overlaps: Overlaps, covariances: np.ndarray) -> channel.Moments:
        """Return the moments at the next time, given the overlaps and q^{s,t} of all sources for every s ≤ t."""
        now, paths = self.draw(overlaps, covariances), self._paths
        out = denoise(self._model.loss, paths.terms.params, self._fields, now.V, self._z)
        self._z, self._latest = out.z, out.g
        self._g = np.concatenate([self._g, out.g.transpose(1, 2, 0)], axis=1)
        return channel.average(paths.y, self._noise, paths.terms, out, now)

    def q_hats(self, alpha: float) -> np.ndarray:
        """Return α E[g^s g^tᵀ] (t + 1, L, r, r) for the latest t and every s ≤ t."""
        r = self._model.rank
        sums = self._g @ self._g[:, -r:].transpose(0, 2, 1)
        return alpha / self._paths.n * sums.reshape(len(sums), -1, r, r).transpose(1, 0, 2, 3)

    def update_memory(self, W: np.ndarray, damping: float) -> None:
        """Update the damped memory D, the difference between the fields of the training data and ω."""
        self._D = (1 - damping) * self._D + damping * np.einsum("lab,nlb->nla", W[self.sources], self._latest)

    def losses(self) -> tuple[float, float]:
        """Return E[ℓ + constant] at the fields ω + D of the data, and the test error at the fields of new samples."""
        model, terms = self._model, self._paths.terms
        value, _, _ = sample_derivatives(model.loss, terms.params, self._fields + self._D)
        errors = model.task.errors(self._fields, self._paths.y, terms)
        return float(np.mean(value + terms.constant)), float(np.mean(errors))


def _mean_losses(alpha: float, weights: WeightPath, paths: list[MessagePaths]) -> Row:
    """Return the losses of all components together, with the penalty."""
    train, test = np.transpose([path.losses() for path in paths]) @ [path.probability for path in paths]
    return {"train_loss": alpha * train + weights.penalty(), "test_error": test}
