"""Fields of gradient descent, which remember what they did: z^t = m^t + ω̃^t + Σ_{s<t} R(t, s) f^s, f = −∇ℓ(z)."""

from dataclasses import dataclass

import numpy as np

from gamp_attention.losses.derivatives import sample_derivatives
from gamp_attention.models.model import Component, Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.dynamics.field_paths import FieldPaths, component_paths
from gamp_attention.state_evolution.dynamics.path_responses import PathResponses
from gamp_attention.state_evolution.equations.components import restricted


@dataclass(frozen=True)
class RareSettings:
    """When derivatives of the paths are too rare and too large to be sampled.

    Where samples choose between two wells, derivatives grow exponentially, on a share of the paths that shrinks as
    fast, and averages over samples miss what these carry once it is few paths. Then Stein's lemma tells it.
    """

    few: float = 8.0  # paths that carry an average (Σ|F|)²/Σ|F|²; as many or more are enough
    share: float = 0.25  # of the paths that minibatches drew at both times; as large a one is not rare
    most: int = 12  # first times that are corrected for; at later ones samples are the less noisy ones


RARE = RareSettings()


@dataclass(frozen=True, eq=False)
class DescentForces:
    """What the fields at time t do to the weights; sums over the components of a mixture, by source.

    Attributes
    ----------
    m : (S, r) m̂^t = α E[f^t].
    theta : (S, r, t) θ̂^t.
    q : (t + 1, S, r, r) q̂^{s,t} = α E[f^s f^tᵀ] of every s <= t.
    response : (t + 1, S, r, r) Γ(t, s) = α E[∂f^t/∂ω^s].
    loss, test_error : α E[ℓ(z^t) + constant], and the test error of the weights at time t.
    """

    m: np.ndarray
    theta: np.ndarray
    q: np.ndarray
    response: np.ndarray
    loss: float
    test_error: float


class DescentPaths:
    """Paths of the fields in one component of a mixture, and of the forces on them. Eq. :eq:`descent-fields`."""

    def __init__(self, component: Component, n_paths: int, n_iter: int, batch: float, rng: np.random.Generator) -> None:
        self.share, self.sources, self.model = component
        self._n, self._batch, self._rng = component_paths(component, n_paths, n_iter), batch, rng
        self._paths = FieldPaths(self.model, self._n, rng)
        L, r = self.model.n_tokens, self.model.rank
        self._responses = PathResponses(self._n, n_iter + 1, L, r)
        self._forces = np.empty((n_iter + 1, self._n, L, r))
        self._theta: list[np.ndarray] = []
        self._rare = 0  # leading times with responses that samples miss

    def advance(
        self, alpha: float, overlaps: Overlaps, covariances: list[np.ndarray], memory: np.ndarray
    ) -> DescentForces:
        """The forces at the next time t, given overlaps and q^{s,t} of all sources, and R(t, s) (t, S, r, r), s < t."""
        t, n, model = len(self._theta), self._n, self.model
        now, memory = restricted(overlaps, self.sources), memory[:, self.sources]
        fields = self._paths.draw(now, [each[self.sources] for each in covariances]) + now.m
        z = fields + np.einsum("slab,snlb->nla", memory, self._forces[:t], optimize=True)
        value, slope, hess = sample_derivatives(model.loss, self._paths.terms.params, z)
        force, slopes = -slope, -hess
        if self._batch < 1:
            drawn = np.tile(self._rng.random(n // 2) < self._batch, 2) / self._batch  # alike in mirror images
            force, slopes = drawn[:, None, None] * force, drawn[:, None, None] * slopes
        self._forces[t] = force
        self._theta.append(now.theta)
        response = alpha * self._responses.advance(memory, slopes)
        theta = alpha * np.einsum("nla,nlb->lab", force, self._paths.y) / n
        theta -= np.einsum("slab,slbt->lat", response, np.array(self._theta))
        theta = theta @ np.linalg.pinv(model.coordinates.rho, hermitian=True)
        theta, response = self._counted(alpha * force, theta, response)
        y, terms = self._paths.y, self._paths.terms
        return DescentForces(
            m=alpha * force.mean(axis=0),
            theta=theta,
            q=alpha * np.einsum("snla,nlb->slab", self._forces[: t + 1], force, optimize=True) / n,
            response=response,
            loss=alpha * float(np.mean(value + terms.constant)),
            test_error=float(np.mean(model.task.errors(fields, y, terms))),
        )

    def _counted(self, force: np.ndarray, theta: np.ndarray, response: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """θ̂ and Γ, corrected by Stein's lemma where too few paths carry what samples have of Γ, or did before."""
        enough, most = min(RARE.few, RARE.share * self._batch**2 * self._n), min(RARE.most, len(response))
        while self._rare < most and self._responses.carriers[self._rare] < enough:
            self._rare += 1
        if not self._rare:
            return theta, response
        times, r, known = len(response), self.model.rank, self.model.teacher_rank
        theta, response = theta.copy(), response.copy()
        for l, path in enumerate(self._paths.of_token):
            told = np.concatenate([theta[l], response[:, l].swapaxes(0, 1).reshape(r, times * r)], axis=1)
            told = path.responses(force[:, l], told, known + r * self._rare)
            theta[l], response[:, l] = told[:, :known], told[:, known:].reshape(r, times, r).swapaxes(0, 1)
        return theta, response


def gathered(model: Model, paths: list[DescentPaths], forces: list[DescentForces]) -> DescentForces:
    """The forces of all components as sums over the sources, weighted by the components' shares."""
    if len(forces) == 1:
        return forces[0]

    def summed(name: str, axis: int) -> np.ndarray:
        first = getattr(forces[0], name)
        total = np.zeros((*first.shape[:axis], model.n_sources, *first.shape[axis + 1 :]))
        for path, each in zip(paths, forces, strict=True):
            total[(slice(None),) * axis + (path.sources,)] += path.share * getattr(each, name)
        return total

    shares = [path.share for path in paths]
    loss = sum(share * each.loss for share, each in zip(shares, forces, strict=True))
    error = sum(share * each.test_error for share, each in zip(shares, forces, strict=True))
    return DescentForces(summed("m", 0), summed("theta", 0), summed("q", 1), summed("response", 1), loss, error)
