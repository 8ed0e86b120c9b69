"""Distribution of the weights at all times of message passing with global minima, and the overlaps that follow from it.

At every step the fields drive the weights of a coordinate by a Gaussian b_t = m̂ τ + θ̂ π + ζ_t, where ζ_t has known
covariances Σ_l γ_l q̂_l^{s,t} with all earlier ζ_s. Two classes represent the iterates x^0, x^1, …: `LinearWeights`,
exactly, for the ridge, and `SampledWeights` for other penalties.
"""

from copy import deepcopy
from dataclasses import replace

import numpy as np

from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import whiten_and_mirror
from gamp_attention.extensions.dynamics.field_paths import GaussianPath, shuffled_half
from gamp_attention.problem.denoisers.input import denoise_weights, field_variances, precisions
from gamp_attention.problem.risk import penalty_total
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations import weights
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.start_law import StartLaw


class WeightPath:
    """Base of the weights at all times, in each of K classes of coordinates, with their V and their intercept.

    The intercept b (r,) of the fields has no penalty, and is zero in models without one. Message passing adds a damped
    Newton step (Σ_l V̂_l)⁻¹ Σ_l m̂_l, and gradient descent η Σ_l m̂_l.
    """

    def __init__(self, model: Model, start: StartLaw) -> None:
        self.model, self.V = model, start.V
        self.intercept = np.zeros(model.rank) if start.intercept is None else start.intercept
        self._second = start.moments[:, : model.rank, : model.rank]

    def overlaps(self, second: np.ndarray, first: np.ndarray) -> tuple[Overlaps, np.ndarray]:
        """Return the overlaps at the latest time t, and q_l^{s,t} = E[γ_l x^s x^tᵀ] (t + 1, S, r, r) for every s ≤ t.

        `second` (t + 1, K, r, r) are E[x^s x^tᵀ], and `first` (K, r, S + t) is E[x^t (τ, π)ᵀ].
        """
        law, self._second = self.model.coordinates, second[-1]
        now = weights.overlaps_of_moments(self.model, second[-1], first, self.V)
        return replace(now, m=now.m + self.intercept), np.einsum("k,kl,skab->slab", law.weight, law.gamma, second)

    def penalty(self) -> float:
        """Return E[r(x)] per coordinate, for a quadratic penalty."""
        return weights.mean_ridge(self.model, self._second)

    def finish_step(self, hats: Hats, C: np.ndarray, damping: float) -> None:
        """Update V and the intercept in a damped iteration of message passing with mean responses C (K, r, r)."""
        law = self.model.coordinates
        self.W = field_variances(self.model.penalty, law.gamma.T, C, law.weight)  # (S, r, r) V of an undamped step
        self.V = (1 - damping) * self.V + damping * self.W
        if self.model.intercept:
            self.intercept = self.intercept + damping * weights.intercept_step(hats, hats.V)


class LinearWeights(WeightPath):
    """Weights with the ridge penalty, as coefficients of the Gaussians (x⁰, τ, π, ζ_0, ζ_1, …). Eq. :eq:`iterates`.

    The coefficients and the covariance of these Gaussians determine all averages. Arrays have one entry for each of the
    K classes of coordinates. `start` has the second moments of (x⁰, τ, π); `n_iter` is the maximum number of steps.
    """

    def __init__(self, model: Model, start: StartLaw, n_iter: int) -> None:
        super().__init__(model, start)
        K, first, _ = start.moments.shape
        r = model.rank
        self._gram = np.zeros((K, first + r * n_iter, first + r * n_iter))  # second moments of all Gaussians
        self._gram[:, :first, :first] = start.moments
        self._first = first  # number of entries of (x⁰, τ, π)
        x = np.zeros((K, r, self._gram.shape[1]))
        x[:, :, :r] = np.eye(r)
        self._x = [x]  # coefficients of x^0, x^1, …

    def evaluate(self) -> tuple[Overlaps, np.ndarray]:
        """Return the overlaps of the latest iterate, and its covariances with all iterates."""
        latest = self._gram @ np.swapaxes(self._x[-1], 1, 2)
        first = np.swapaxes(latest[:, self.model.rank : self._first], 1, 2)
        return self.overlaps(np.array(self._x) @ latest, first)

    def step(self, hats: Hats, q_hats: np.ndarray, damping: float) -> None:
        """Take one iteration of message passing with a step β (`damping`), given the conjugates at the latest time t.

        `q_hats` (t + 1, S, r, r) are q̂^{s,t} for every s ≤ t.
        """
        law, r, t = self.model.coordinates, self.model.rank, len(self._x) - 1
        latest = slice(self._first + r * t, self._first + r * (t + 1))  # indices of ζ_t among the Gaussians
        column = np.einsum("kl,slab->ksab", law.gamma, q_hats).reshape(len(law.weight), -1, r)
        self._gram[:, self._first : latest.stop, latest] = column
        self._gram[:, latest, self._first : latest.stop] = np.swapaxes(column, 1, 2)
        b = np.zeros_like(self._x[-1])
        b[:, :, r : self._first] = weights.drift(law.gamma, hats.m, hats.theta)
        b[:, :, latest] = np.eye(r)
        C = weights.linear_response(self.model, hats.V)[1]
        self._x.append((1 - damping) * self._x[-1] + damping * C @ b)
        self.finish_step(hats, C, damping)


class SampledWeights(WeightPath):
    """Weights with any penalty, as samples of x⁰, π and ζ_0, ζ_1, … in mirror pairs. Eq. :eq:`iterates`.

    The start is assumed to be Gaussian given (τ, π), as it is for the named starts. Overlaps of iterates are averages
    over the samples. The response E[∂x/∂b] depends only on the distribution of b at one time and is computed without
    sampling. Arguments as for `LinearWeights`; `n` is the approximate number of samples of all classes together.
    """

    def __init__(self, model: Model, start: StartLaw, n_iter: int, n: int, rng: np.random.Generator) -> None:
        # derived from a copy: rng is not advanced, so the fields have equal random numbers for all penalties
        self._rng = np.random.default_rng(deepcopy(rng).integers(2**63, size=4))
        super().__init__(model, start)
        law, r, S, t = model.coordinates, model.rank, model.n_sources, model.teacher_rank
        columns = t + r * (n_iter + 1)
        # number of samples in each class: at least four mirror pairs for every Gaussian that a coordinate depends on
        sizes = [2 * max(4 * columns, int(np.ceil(0.5 * n * weight))) for weight in law.weight]
        # for each class, (τ, π) of its samples (n_k, S + t), and x^0 (n_k, r), the first of all iterates
        self._coordinates, x = list[np.ndarray](), list[np.ndarray]()
        self._white, self._paths = [], []
        for k, size in enumerate(sizes):
            white = whiten_and_mirror(shuffled_half(size, t + r, self._rng))
            teacher = law.teacher_mean[k] + white[:, :t] @ psd_root(law.teacher_cov[k])
            means = np.broadcast_to(law.means_of(teacher, k), (size, S))
            self._coordinates.append(np.concatenate([means, teacher], axis=1))
            moments = start.moments[k]
            slope = moments[:r, r:] @ np.linalg.pinv(moments[r:, r:], hermitian=True)
            root = psd_root(moments[:r, :r] - slope @ moments[r:, :r])
            x.append(self._coordinates[-1] @ slope.T + white[:, t:] @ root)
            self._white.append(white)
            self._paths.append(GaussianPath(np.zeros((size, 0)), np.zeros((0, 0))))
        self._x = [x]
        self._symmetry = replace(Symmetry.of(model, start.overlaps(model)), reversal=False)

    def evaluate(self) -> tuple[Overlaps, np.ndarray]:
        """Return what `LinearWeights.evaluate` does; entries of overlaps that vanish by symmetry are exactly zero."""
        latest = [x / len(x) for x in self._x[-1]]
        second = np.array([[x.T @ last for x, last in zip(past, latest, strict=True)] for past in self._x])
        first = [last.T @ coordinates for last, coordinates in zip(latest, self._coordinates, strict=True)]
        now, covariances = self.overlaps(second, np.array(first))
        return self._symmetry.impose(now), covariances

    def step(self, hats: Hats, q_hats: np.ndarray, damping: float) -> None:
        """Take one damped iteration of message passing; see `LinearWeights.step`."""
        A, after = precisions(self.model.penalty, self.model.coordinates.gamma.T, hats.V), list[np.ndarray]()
        for k, x in enumerate(self._x[-1]):
            eta, _ = denoise_weights(self.model.penalty, self._drift(k, hats, q_hats), A[k : k + 1])
            after.append((1 - damping) * x + damping * eta)
        self._x.append(after)
        self.finish_step(hats, weights.penalized_weights(self.model, hats, hats.V).response, damping)

    def _drift(self, k: int, hats: Hats, q_hats: np.ndarray) -> np.ndarray:
        """Return samples of b_t = m̂ τ + θ̂ π + ζ_t in class k, where ζ_t has covariances q̂^{s,t} with every ζ_s."""
        law, r = self.model.coordinates, self.model.rank
        blocks = np.einsum("l,slab->sab", law.gamma[k], q_hats)
        fresh = whiten_and_mirror(shuffled_half(len(self._coordinates[k]), r, self._rng), self._white[k])
        self._white[k] = np.concatenate([self._white[k], fresh], axis=1)
        with_past = blocks[:-1].transpose(2, 0, 1).reshape(r, -1)
        noise = self._paths[k].draw(fresh, with_past, blocks[-1])
        return self._coordinates[k] @ weights.drift(law.gamma[[k]], hats.m, hats.theta)[0].T + noise

    def penalty(self) -> float:
        """Return E[r(x)] per coordinate."""
        values = [penalty_total(self.model.penalty, x) / len(x) for x in self._x[-1]]
        return float(self.model.coordinates.weight @ values)
