"""Distribution of the weights at all times of message passing with global minima, and the overlaps that follow from it.

At every step the fields drive the weights of a coordinate by a Gaussian b_t = m̂ τ + θ̂ π + ζ_t, where ζ_t has known
covariances Σ_l γ_l q̂_l^{s,t} with all earlier ζ_s. Two classes represent the iterates x^0, x^1, …:

- `LinearWeights`, for the ridge: x^t is a linear combination of the Gaussians (x⁰, τ, π, ζ_0, …, ζ_{t−1}). The
  coefficients and the covariance of these Gaussians determine all averages exactly;
- `SampledWeights`, for other penalties: samples of x^t, with ζ_t drawn conditionally on all earlier ζ_s.
"""

from copy import deepcopy
from dataclasses import replace

import numpy as np

from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import shuffled_half, whiten_and_mirror
from gamp_attention.descent.steps import PlainSteps
from gamp_attention.extensions.dynamics.field_paths import GaussianPath
from gamp_attention.problem.denoisers.input import denoise_weights, field_variances, precisions
from gamp_attention.problem.penalties.standard import penalty_total
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.equations.weights import (
    drift,
    intercept_step,
    linear_response,
    mean_ridge,
    overlaps_of_moments,
    penalized_weights,
)
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.start_law import StartLaw


class InterceptPath:
    """Unpenalized intercept b (r,) of the fields at every iteration; zero in models without an intercept.

    Message passing adds a damped Newton step (Σ_l V̂_l)⁻¹ Σ_l m̂_l, and gradient descent η Σ_l m̂_l.
    """

    def __init__(self, model: Model, start: StartLaw) -> None:
        self._present = model.intercept
        self.value = np.zeros(model.rank) if start.intercept is None else start.intercept
        self._velocity = np.zeros(model.rank)

    def step(self, hats: Hats, damping: float) -> None:
        """Take one damped iteration of message passing."""
        if self._present:
            self.value = self.value + damping * intercept_step(hats, hats.V)

    def descend(self, m_hat: np.ndarray, method: PlainSteps, t: int) -> None:
        """Take step t of gradient descent, for conjugates m̂ (S, r)."""
        if self._present:
            self.value, self._velocity = method.step(self.value, self._velocity, -m_hat.sum(axis=0), t)

    def add_to(self, overlaps: Overlaps) -> Overlaps:
        """Return the overlaps with the intercept added to the means of the fields."""
        return replace(overlaps, m=overlaps.m + self.value) if self._present else overlaps


class LinearWeights:
    """Weights with the ridge penalty, as coefficients of the Gaussians (x⁰, τ, π, ζ_0, ζ_1, …). Eq. :eq:`iterates`.

    Arrays have one entry for each of the K classes of coordinates. `start` has the second moments of (x⁰, τ, π), and
    `n_iter` is the maximum number of steps; `step` sets W (S, r, r), the variances after an undamped step.
    """

    def __init__(self, model: Model, start: StartLaw, n_iter: int) -> None:
        self.model = model
        K, first, _ = start.moments.shape
        r = model.rank
        self._gram = np.zeros((K, first + r * n_iter, first + r * n_iter))  # second moments of all Gaussians
        self._gram[:, :first, :first] = start.moments
        self._first = first  # number of entries of (x⁰, τ, π)
        x = np.zeros((K, r, self._gram.shape[1]))
        x[:, :, :r] = np.eye(r)
        self._x = [x]  # coefficients of x^0, x^1, …
        self._V, self._intercept = start.V, InterceptPath(model, start)

    def overlaps(self) -> Overlaps:
        """Return the overlaps of the latest iterate."""
        x = self._x[-1]
        first = (x @ self._gram[:, :, : self._first])[:, :, self.model.rank :]
        sums = overlaps_of_moments(self.model, x @ (self._gram @ np.swapaxes(x, 1, 2)), first, self._V)
        return self._intercept.add_to(sums)

    def covariances(self) -> np.ndarray:
        """Return q_l^{s,t} = E[γ_l x^s x^tᵀ] (t + 1, S, r, r) for the latest t and every s ≤ t."""
        law = self.model.coordinates
        latest = self._gram @ np.swapaxes(self._x[-1], 1, 2)
        return np.einsum("k,kl,skab->slab", law.weight, law.gamma, np.array(self._x) @ latest)

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
        b[:, :, r : self._first] = drift(law.gamma, hats.m, hats.theta)
        b[:, :, latest] = np.eye(r)
        C = linear_response(self.model, hats.V)[1]
        self.W = field_variances(self.model.penalty, law.gamma.T, C, law.weight)
        self._x.append((1 - damping) * self._x[-1] + damping * C @ b)
        self._V = (1 - damping) * self._V + damping * self.W
        self._intercept.step(hats, damping)

    def penalty(self) -> float:
        """Return E[r(x)] per coordinate."""
        x = self._x[-1]
        return mean_ridge(self.model, x @ self._gram @ np.swapaxes(x, 1, 2))


class SampledWeights:
    """Weights with any penalty, as samples of x⁰, π and ζ_0, ζ_1, … in mirror pairs. Eq. :eq:`iterates`.

    The start is assumed to be Gaussian given (τ, π), as it is for the named starts. Overlaps of iterates are averages
    over the samples. The response E[∂x/∂b] depends only on the distribution of b at one time and is computed without
    sampling. Arguments and W as for `LinearWeights`; `n` is the approximate number of samples of all classes together.
    """

    def __init__(self, model: Model, start: StartLaw, n_iter: int, n: int, rng: np.random.Generator) -> None:
        # derived from a copy: rng is not advanced, so the fields have equal random numbers for all penalties
        self.model, self._rng = model, np.random.default_rng(deepcopy(rng).integers(2**63, size=4))
        law, r, S, t = model.coordinates, model.rank, model.n_sources, model.teacher_rank
        columns = t + r * (n_iter + 1)
        # number of samples in each class: at least four mirror pairs for every Gaussian that a coordinate depends on
        sizes = [2 * max(4 * columns, int(np.ceil(0.5 * n * weight))) for weight in law.weight]
        self._classes = np.repeat(np.arange(len(sizes)), sizes)  # class of each sample
        self._weight = (law.weight / sizes)[self._classes]  # weight of each sample, with sum 1
        self._parts = [np.flatnonzero(self._classes == k) for k in range(len(sizes))]  # samples of each class
        self._white, self._paths, coordinates, x = [], [], [], []
        for k, size in enumerate(sizes):
            white = whiten_and_mirror(shuffled_half(size, t + r, self._rng))
            teacher = law.teacher_mean[k] + white[:, :t] @ psd_root(law.teacher_cov[k])
            means = np.broadcast_to(law.means_of(teacher, k), (size, S))
            coordinates.append(np.concatenate([means, teacher], axis=1))
            moments = start.moments[k]
            slope = moments[:r, r:] @ np.linalg.pinv(moments[r:, r:], hermitian=True)
            root = psd_root(moments[:r, :r] - slope @ moments[r:, :r])
            x.append(coordinates[-1] @ slope.T + white[:, t:] @ root)
            self._white.append(white)
            self._paths.append(GaussianPath(np.zeros((size, 0)), np.zeros((0, 0))))
        self._coordinates = np.concatenate(coordinates)  # (τ, π) of every sample
        self._x = [np.concatenate(x)]
        self._V, self._intercept = start.V, InterceptPath(model, start)
        self._symmetry = replace(Symmetry.of(model, start.overlaps(model)), reversal=False)

    def overlaps(self) -> Overlaps:
        """Return the overlaps of the latest iterate; entries that vanish by symmetry are exactly zero."""
        S, gamma = self.model.n_sources, self.model.coordinates.gamma[self._classes]
        x = self._weight[:, None] * self._x[-1]
        sampled = Overlaps(
            q=self.covariances()[-1],
            m=self._coordinates[:, :S].T @ x,
            theta=np.einsum("nl,na,nt->lat", gamma, x, self._coordinates[:, S:], optimize=True),
            V=self._V,
        )
        return self._symmetry.impose(self._intercept.add_to(sampled))

    def covariances(self) -> np.ndarray:
        """Return q_l^{s,t} = E[γ_l x^s x^tᵀ] (t + 1, S, r, r) for the latest t and every s ≤ t."""
        weight = self.model.coordinates.gamma[self._classes] * self._weight[:, None]
        latest = weight[:, :, None] * self._x[-1][:, None]
        return np.array([np.einsum("na,nlb->lab", x, latest) for x in self._x])

    def step(self, hats: Hats, q_hats: np.ndarray, damping: float) -> None:
        """Take one damped iteration of message passing; see `LinearWeights.step`."""
        law, penalty, x = self.model.coordinates, self.model.penalty, self._x[-1]
        A, after = precisions(penalty, law.gamma.T, hats.V), np.empty_like(x)
        for k, part in enumerate(self._parts):
            after[part], _ = denoise_weights(penalty, self._drift(k, hats, q_hats), A[k : k + 1])
        self._x.append((1 - damping) * x + damping * after)
        response = penalized_weights(self.model, hats, hats.V).response
        self.W = field_variances(penalty, law.gamma.T, response, law.weight)
        self._V = (1 - damping) * self._V + damping * self.W
        self._intercept.step(hats, damping)

    def _drift(self, k: int, hats: Hats, q_hats: np.ndarray) -> np.ndarray:
        """Return samples of b_t = m̂ τ + θ̂ π + ζ_t in class k, where ζ_t has covariances q̂^{s,t} with every ζ_s."""
        law, r = self.model.coordinates, self.model.rank
        blocks = np.einsum("l,slab->sab", law.gamma[k], q_hats)
        fresh = whiten_and_mirror(shuffled_half(len(self._parts[k]), r, self._rng), self._white[k])
        self._white[k] = np.concatenate([self._white[k], fresh], axis=1)
        with_past = blocks[:-1].transpose(2, 0, 1).reshape(r, -1)
        noise = self._paths[k].draw(fresh, with_past, blocks[-1])
        H = drift(law.gamma[[k]], hats.m, hats.theta)[0]
        return self._coordinates[self._parts[k]] @ H.T + noise

    def penalty(self) -> float:
        """Return E[r(x)] per coordinate."""
        values = [penalty_total(self.model.penalty, self._x[-1][part]) / len(part) for part in self._parts]
        return float(self.model.coordinates.weight @ values)


Weights = LinearWeights | SampledWeights


def build_weights(model: Model, start: StartLaw, n_iter: int, n_paths: int, rng: np.random.Generator) -> Weights:
    """Return the weights at the start of a trajectory, for the penalty of the model.

    Sampled weights have four samples for each path of the fields, because they are cheap.
    """
    if model.penalty.quadratic:
        return LinearWeights(model, start, n_iter)
    return SampledWeights(model, start, n_iter, 4 * n_paths, rng)
