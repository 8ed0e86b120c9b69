"""Weights of state evolution at all times: linear functions of Gaussians for the ridge, samples for other penalties."""

from copy import deepcopy
from dataclasses import replace

import numpy as np

from gamp_attention._core.numerics import psd_root
from gamp_attention._core.quadrature import shuffled_half, whiten_and_mirror
from gamp_attention.denoisers.input import denoise_weights, field_variances, precisions, prior_response
from gamp_attention.models.model import Model
from gamp_attention.penalties.matrix import penalty_total, proximal_map
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.dynamics.descent_paths import DescentForces, DescentMethod
from gamp_attention.state_evolution.dynamics.field_paths import GaussianPath, PathResponses
from gamp_attention.state_evolution.dynamics.start_law import StartLaw
from gamp_attention.state_evolution.equations.channel import Hats
from gamp_attention.state_evolution.equations.symmetry import Symmetry
from gamp_attention.state_evolution.equations.weights import overlaps_of_moments, penalised_weights


class LinearWeights:
    """Weights with the ridge penalty: coefficients of (x⁰, τ, π, ζ_0, ζ_1, …) and the covariance of these, by class.

    Eq. :eq:`iterates`.
    """

    def __init__(self, model: Model, start: StartLaw, n_iter: int) -> None:
        self.model = model
        K, first, _ = start.moments.shape
        r = model.rank
        self._gram = np.zeros((K, first + r * n_iter, first + r * n_iter))
        self._gram[:, :first, :first] = start.moments
        self._first = first
        x = np.zeros((K, r, self._gram.shape[1]))
        x[:, :, :r] = np.eye(r)
        self._x, self._velocity = [x], np.zeros_like(x)
        self._V = start.V

    def overlaps(self) -> Overlaps:
        """Return the overlaps of the latest iterate."""
        x = self._x[-1]
        first = (x @ self._gram[:, :, : self._first])[:, :, self.model.rank :]
        return overlaps_of_moments(self.model, x @ (self._gram @ np.swapaxes(x, 1, 2)), first, self._V)

    def covariances(self) -> list[np.ndarray]:
        """Return q_l^{s,t} = E[γ_l x^s x^tᵀ] for the latest t and every s ≤ t; entries (S, r, r)."""
        law = self.model.coordinates
        latest = self._gram @ np.swapaxes(self._x[-1], 1, 2)
        return [np.einsum("k,kl,kab->lab", law.weight, law.gamma, x @ latest) for x in self._x]

    def step(self, hats: Hats, q_hats: list[np.ndarray], damping: float) -> None:
        """Take one damped iteration, given the conjugates and q̂^{s,t} for every earlier time s ≤ t."""
        law = self.model.coordinates
        b = self._drift(hats.m, hats.theta, q_hats)
        _, C, W = prior_response(law.gamma.T, self.model.lam, hats.V, law.weight)
        self._x.append((1 - damping) * self._x[-1] + damping * C @ b)
        self.W, self._V = W, (1 - damping) * self._V + damping * W

    def descend(self, forces: DescentForces, method: DescentMethod) -> None:
        """Take one step of gradient descent, −∇R = drift + Σ_s A(t, s) x^s − λ x^t. Eq. :eq:`descent-weights`."""
        t = len(self._x) - 1
        slope = self.model.lam * self._x[-1] - self._drift(forces.m, forces.theta, list(forces.q))
        for s, A in enumerate(np.einsum("kl,slab->skab", self.model.coordinates.gamma, forces.response)):
            slope -= A @ self._x[s]
        self._velocity = method.momentum * self._velocity + slope
        move = slope + method.momentum * self._velocity if method.nesterov else self._velocity
        self._x.append(self._x[-1] - method.lr(t) * move)

    def _drift(self, m_hat: np.ndarray, theta_hat: np.ndarray, q_hats: list[np.ndarray]) -> np.ndarray:
        """Return coefficients of b = m̂ τ + θ̂ π + ζ_t; store the covariances of ζ_t with earlier ζ_s."""
        law, r, S = self.model.coordinates, self.model.rank, self.model.n_sources
        here = self._noise(len(q_hats) - 1)
        for s, q_hat in enumerate(q_hats):
            block = np.einsum("kl,lab->kab", law.gamma, q_hat)
            self._gram[:, self._noise(s), here] = block
            self._gram[:, here, self._noise(s)] = np.swapaxes(block, 1, 2)
        b = np.zeros_like(self._x[-1])
        b[:, :, r : r + S] = m_hat.T
        b[:, :, r + S : self._first] = np.einsum("kl,lrt->krt", law.gamma, theta_hat)
        b[:, :, here] = np.eye(r)
        return b

    def _noise(self, t: int) -> slice:
        """Return the columns of ζ_t."""
        return slice(self._first + self.model.rank * t, self._first + self.model.rank * (t + 1))

    def memory(self) -> np.ndarray:
        """Return R(t, s) = E[γ_l ∂x^t/∂ζ^s] for the latest t and every s < t, shape (t, S, r, r)."""
        law, r, t = self.model.coordinates, self.model.rank, len(self._x) - 1
        on_noise = self._x[-1][:, :, self._first : self._first + r * t].reshape(len(law.weight), r, t, r)
        return np.einsum("k,kl,katb->tlab", law.weight, law.gamma, on_noise)

    def penalty(self) -> float:
        """Return E[r(x)] per coordinate."""
        x = self._x[-1]
        second = np.einsum("kac,kcd,kad->k", x, self._gram, x, optimize=True)
        return 0.5 * self.model.lam * float(self.model.coordinates.weight @ second)


class SampledWeights:
    """Weights with other penalties: sampled x⁰, π and ζ_0, ζ_1, … of coordinates of each class, in mirror pairs.

    Eq. :eq:`iterates`.

    The start is assumed to be Gaussian given (τ, π), as it is for the named starts. Overlaps of iterates are averages
    over the samples; the response E[∂x/∂b] at one time depends only on the distribution of b at that time and is
    computed without sampling.
    """

    def __init__(self, model: Model, start: StartLaw, n_iter: int, n: int, rng: np.random.Generator) -> None:
        # a separate generator, so that the fields use the same random numbers for all penalties
        self.model, self._rng = model, np.random.default_rng(deepcopy(rng).integers(2**63, size=4))
        law, r, S, t = model.coordinates, model.rank, model.n_sources, model.teacher_rank
        columns = t + r * (n_iter + 1)
        # at least four mirror pairs in each class for every Gaussian that a coordinate depends on
        sizes = [2 * max(4 * columns, int(np.ceil(0.5 * n * share))) for share in law.weight]
        self._classes = np.repeat(np.arange(len(sizes)), sizes)
        self._share = (law.weight / sizes)[self._classes]
        self._parts = [np.flatnonzero(self._classes == k) for k in range(len(sizes))]
        self._white, self._paths, known, x = [], [], [], []
        for k, size in enumerate(sizes):
            white = whiten_and_mirror(shuffled_half(size, t + r, self._rng))
            teacher = law.teacher_mean[k] + white[:, :t] @ psd_root(law.teacher_cov[k])
            known.append(np.concatenate([np.broadcast_to(law.tau[k], (size, S)), teacher], axis=1))
            moments = start.moments[k]
            slope = moments[:r, r:] @ np.linalg.pinv(moments[r:, r:], hermitian=True)
            root = psd_root(moments[:r, :r] - slope @ moments[r:, :r])
            x.append(known[-1] @ slope.T + white[:, t:] @ root)
            self._white.append(white)
            self._paths.append(GaussianPath(np.zeros((size, 0)), np.zeros((0, 0))))
        self._known = np.concatenate(known)  # (τ, π) of every sample
        self._x = [np.concatenate(x)]
        self._V = start.V
        self._symmetry = replace(Symmetry.of(model, start.overlaps(model)), reversal=False)
        self._n_iter, self._responses = n_iter, list[PathResponses]()
        self._memory = np.zeros((0, len(sizes), r, r))

    def overlaps(self) -> Overlaps:
        """Return the overlaps of the latest iterate; entries that vanish by symmetry are exactly zero."""
        S, gamma = self.model.n_sources, self.model.coordinates.gamma[self._classes]
        x = self._share[:, None] * self._x[-1]
        sampled = Overlaps(
            q=self.covariances()[-1],
            m=self._known[:, :S].T @ x,
            theta=np.einsum("nl,na,nt->lat", gamma, x, self._known[:, S:], optimize=True),
            V=self._V,
        )
        return self._symmetry.impose(sampled)

    def covariances(self) -> list[np.ndarray]:
        """Return q_l^{s,t} = E[γ_l x^s x^tᵀ] for the latest t and every s ≤ t; entries (S, r, r)."""
        latest = (self.model.coordinates.gamma[self._classes] * self._share[:, None])[:, :, None] * self._x[-1][:, None]
        return [np.einsum("na,nlb->lab", x, latest) for x in self._x]

    def step(self, hats: Hats, q_hats: list[np.ndarray], damping: float) -> None:
        """Take one damped iteration, given the conjugates and q̂^{s,t} for every earlier time s ≤ t."""
        law, penalty, x = self.model.coordinates, self.model.penalty, self._x[-1]
        A = precisions(penalty, law.gamma.T, hats.V)
        after = np.empty_like(x)
        for k, part in enumerate(self._parts):
            b = self._drift(k, hats.m, hats.theta, q_hats)
            after[part], _ = denoise_weights(penalty, b, A[k : k + 1])
        self._x.append((1 - damping) * x + damping * after)
        response = penalised_weights(self.model, hats, hats.V).response
        self.W = field_variances(penalty, law.gamma.T, response, law.weight)
        self._V = (1 - damping) * self._V + damping * self.W

    def descend(self, forces: DescentForces, method: DescentMethod) -> None:
        """Take one proximal step x ← prox(x + η (b + Σ_s A(t, s) x^s)). Eq. :eq:`descent-weights`."""
        t, x, r = len(self._x) - 1, self._x[-1], self.model.rank
        lr, after = method.lr(t), np.empty_like(x)
        if not self._responses:
            self._responses = [PathResponses(len(part), self._n_iter, 1, r) for part in self._parts]
        memory = np.zeros((t + 1, len(self._parts), r, r))
        for k, part in enumerate(self._parts):
            A = np.einsum("l,slab->sab", self.model.coordinates.gamma[k], forces.response)
            force = self._drift(k, forces.m, forces.theta, list(forces.q))
            force += np.einsum("sab,snb->na", A, np.array([each[part] for each in self._x]))
            after[part], slope = proximal_map(self.model.penalty, x[part] / lr + force, 1 / lr)
            # coefficients of x^1, …, x^t in the argument of the proximal map: η A(t, s), plus 1 for s = t
            carried = lr * A[1:] + np.concatenate([np.zeros((max(t - 1, 0), r, r)), np.eye(r)[None]])[:t]
            means = self._responses[k].advance(carried[:, None], slope[:, :, None] / lr * np.eye(r), lr)
            memory[:, k] = means[:, 0]
        self._memory = memory
        self._x.append(after)

    def _drift(self, k: int, m_hat: np.ndarray, theta_hat: np.ndarray, q_hats: list[np.ndarray]) -> np.ndarray:
        """Return samples of b = m̂ τ + θ̂ π + ζ_t in class k; ζ_t has given covariances with all earlier ζ_s."""
        law, r = self.model.coordinates, self.model.rank
        blocks = [np.einsum("l,lab->ab", law.gamma[k], q_hat) for q_hat in q_hats]
        fresh = whiten_and_mirror(shuffled_half(len(self._parts[k]), r, self._rng), self._white[k])
        self._white[k] = np.concatenate([self._white[k], fresh], axis=1)
        with_past = np.concatenate([np.zeros((r, 0)), *[block.T for block in blocks[:-1]]], axis=1)
        noise = self._paths[k].draw(fresh, with_past, blocks[-1])
        H = np.concatenate([m_hat.T, np.einsum("l,lrt->rt", law.gamma[k], theta_hat)], axis=1)
        return self._known[self._parts[k]] @ H.T + noise

    def memory(self) -> np.ndarray:
        """Return R(t, s) = E[γ_l ∂x^t/∂ζ^s] for the latest t and every s < t, shape (t, S, r, r)."""
        law = self.model.coordinates
        return np.einsum("k,kl,skab->slab", law.weight, law.gamma, self._memory)

    def penalty(self) -> float:
        """Return E[r(x)] per coordinate."""
        values = [penalty_total(self.model.penalty, self._x[-1][part]) / len(part) for part in self._parts]
        return float(self.model.coordinates.weight @ values)


Weights = LinearWeights | SampledWeights


def weights_of(model: Model, start: StartLaw, n_iter: int, n_paths: int, rng: np.random.Generator) -> Weights:
    """Return the weights of a model; sampled weights, being cheap, use 4 times more samples than the fields."""
    if model.penalty.quadratic:
        return LinearWeights(model, start, n_iter)
    return SampledWeights(model, start, n_iter, 4 * n_paths, rng)
