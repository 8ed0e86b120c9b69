"""Fields of gradient descent with memory of earlier forces: z^t = m^t + ω̃^t + Σ_{s<t} R(t, s) f^s, f = −∇ℓ(z).

First-order methods that a trajectory can follow: gradient descent, with momentum, on all of the data or a share.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.losses.point import sample_derivatives
from gamp_attention.models.model import Component, Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.dynamics.field_paths import FieldPaths, PathResponses, component_paths
from gamp_attention.state_evolution.equations.channel import select_sources


@dataclass(frozen=True)
class RareSettings:
    """Settings for derivatives along the paths that are too rare and too large to be averaged over samples.

    If samples choose between two wells, derivatives grow exponentially in time on a fraction of the paths that
    decreases as fast. Averages over samples are wrong when this fraction is a few paths; they are then corrected by
    Stein's lemma.
    """

    few: float = 8.0  # effective number of paths (Σ|F|)²/Σ|F|² of an average below which it is corrected
    share: float = 0.25  # the same as a fraction of the paths drawn by minibatches at both times, if that is smaller
    most: int = 12  # maximum number of corrected initial times; at later times sample averages are less noisy


RARE = RareSettings()


@dataclass(frozen=True, eq=False)
class DescentForces:
    """Effect of the fields at time t on the weights; for mixtures summed over the components, by source.

    Attributes
    ----------
    m : (S, r) m̂^t = α E[f^t].
    theta : (S, r, t) θ̂^t.
    q : (t + 1, S, r, r) q̂^{s,t} = α E[f^s f^tᵀ] for every s ≤ t.
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
    """Sampled paths of fields and forces in one component of a mixture. Eq. :eq:`descent-fields`."""

    def __init__(self, component: Component, n_paths: int, n_iter: int, batch: float, rng: np.random.Generator) -> None:
        self.share, self.sources, self.model = component
        self._n, self._batch, self._rng = component_paths(component, n_paths, n_iter), batch, rng
        self._paths = FieldPaths(self.model, self._n, rng)
        L, r = self.model.n_tokens, self.model.rank
        self._responses = PathResponses(self._n, n_iter + 1, L, r)
        self._forces = np.empty((n_iter + 1, self._n, L, r))
        self._theta: list[np.ndarray] = []
        self._rare = 0  # number of initial times whose responses are corrected

    def advance(
        self, alpha: float, overlaps: Overlaps, covariances: list[np.ndarray], memory: np.ndarray
    ) -> DescentForces:
        """Return the forces at the next time t, given overlaps and q^{s,t} of all sources.

        The memory is R(t, s) for every s < t, of shape (t, S, r, r).
        """
        t, n, model = len(self._theta), self._n, self.model
        now, memory = select_sources(overlaps, self.sources), memory[:, self.sources]
        fields = self._paths.draw(now, [each[self.sources] for each in covariances]) + now.m
        z = fields + np.einsum("slab,snlb->nla", memory, self._forces[:t], optimize=True)
        value, slope, hess = sample_derivatives(model.loss, self._paths.terms.params, z)
        force, slopes = -slope, -hess
        if self._batch < 1:
            drawn = np.tile(self._rng.random(n // 2) < self._batch, 2) / self._batch  # equal for mirror images
            force, slopes = drawn[:, None, None] * force, drawn[:, None, None] * slopes
        self._forces[t] = force
        self._theta.append(now.theta)
        response = alpha * self._responses.advance(memory, slopes)
        theta = alpha * np.einsum("nla,nlb->lab", force, self._paths.y) / n
        theta -= np.einsum("slab,slbt->lat", response, np.array(self._theta))
        theta = theta @ np.linalg.pinv(model.coordinates.rho, hermitian=True)
        theta, response = self._correct_rare(alpha * force, theta, response)
        y, terms = self._paths.y, self._paths.terms
        return DescentForces(
            m=alpha * force.mean(axis=0),
            theta=theta,
            q=alpha * np.einsum("snla,nlb->slab", self._forces[: t + 1], force, optimize=True) / n,
            response=response,
            loss=alpha * float(np.mean(value + terms.constant)),
            test_error=float(np.mean(model.task.errors(fields, y, terms))),
        )

    def _correct_rare(
        self, force: np.ndarray, theta: np.ndarray, response: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return θ̂ and Γ, corrected by Stein's lemma for times at which too few paths carry Γ, now or before."""
        enough, most = min(RARE.few, RARE.share * self._batch**2 * self._n), min(RARE.most, len(response))
        while self._rare < most and self._responses.carriers[self._rare] < enough:
            self._rare += 1
        if not self._rare:
            return theta, response
        times, r, known = len(response), self.model.rank, self.model.teacher_rank
        theta, response = theta.copy(), response.copy()
        for l, path in enumerate(self._paths.of_token):
            both = np.concatenate([theta[l], response[:, l].swapaxes(0, 1).reshape(r, times * r)], axis=1)
            both = path.responses(force[:, l], both, known + r * self._rare)
            theta[l], response[:, l] = both[:, :known], both[:, known:].reshape(r, times, r).swapaxes(0, 1)
        return theta, response


def gathered(model: Model, paths: list[DescentPaths], forces: list[DescentForces]) -> DescentForces:
    """Return the forces of all components as sums over the sources, weighted by the components' probabilities."""
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


DESCENTS = ("gd", "momentum", "nesterov", "sgd")
MOMENTUM, BATCH = 0.9, 0.1  # defaults of the settings


@dataclass(frozen=True)
class DescentMethod:
    """Steps v ← μ v + ∇R, Q ← Q − η_t v, with Nesterov's Q ← Q − η_t (∇R + μ v), as torch's SGD takes them.

    Attributes
    ----------
    steps : η_0, η_1, …, the last being repeated.
    momentum : μ, in [0, 1).
    nesterov : whether steps look ahead.
    batch : share of the data, drawn anew at every step, that ∇R is estimated from.
    """

    steps: tuple[float, ...]
    momentum: float = 0.0
    nesterov: bool = False
    batch: float = 1.0

    def lr(self, t: int) -> float:
        """η_t."""
        return self.steps[min(t, len(self.steps) - 1)]


def descent_method(method: str, lr: Any, momentum: Any = None, batch: Any = None) -> DescentMethod:
    """Return the method of a name with checked settings; None stands for the default of a setting.

    Raises
    ------
    TypeError, ValueError : if a setting is out of its range, or is given though the method has no such setting.
    """
    if check.ndim("lr", lr) == 1:
        if len(lr) == 0:
            raise check.fail("lr", lr, "a number > 0, or a sequence of at least one such number")
        steps = tuple(check.real(f"lr[{t}]", step, low=0, strict=True) for t, step in enumerate(lr))
    else:
        steps = (check.real("lr", lr, low=0, strict=True),)
    require_unused(method, {"momentum": momentum}, ("momentum", "nesterov"))
    require_unused(method, {"batch": batch}, ("sgd",))
    if method in ("momentum", "nesterov"):
        momentum = check.real("momentum", MOMENTUM if momentum is None else momentum, low=0, high=1)
        if momentum == 1:
            raise check.fail("momentum", momentum, "a number in [0, 1)")
        return DescentMethod(steps, momentum, method == "nesterov")
    fraction = check.real("batch", BATCH if batch is None else batch, low=0, high=1, strict=True)
    return DescentMethod(steps, batch=fraction if method == "sgd" else 1.0)


def require_unused(method: str, settings: dict[str, Any], methods: tuple[str, ...]) -> None:
    """Raise ValueError if a setting of some methods is given, not None, with a method that does not use it."""
    if method in methods:
        return
    for name, value in settings.items():
        if value is not None:
            needs = f"method {' or '.join(map(repr, methods))}, as {method!r} does not use it"
            raise ValueError(f"{name}: needs {needs}, got {value!r}; leave {name} out")
