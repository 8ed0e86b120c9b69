"""Equations of the overlap Q_Aᵀ Σ_l Q_B/d of two estimators A and B that share κd training samples.

Each estimator alone has a known solution of state evolution. On a shared sample, the teacher's fields y and the fields
ω_A, ω_B are jointly Gaussian, with the unknown covariance q_AB of ω_A and ω_B. Forces of shared samples correlate the
noise of b_A and b_B, from which the weights x_A, x_B follow (Loureiro et al., 2022; Clarté et al., 2024):

    q̂_AB,l = κ E[g_A,l g_B,lᵀ],   cov(b_A, b_B | τ, π) = Σ_l γ_l q̂_AB,l,   q_AB,l = ∫dν γ_l E[x_A x_Bᵀ].

The derivative of a Gaussian average in the covariance of two fields is the average of the derivatives in both fields
(Price, 1958), so that the Jacobian of this map is of the form of the replicon: κ E[∂g_A ⊗ ∂g_B] times E[C_A ⊗ C_B].
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools.display import DisplayMixin
from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention._tools.roots import NonlinearSystem
from gamp_attention.problem.denoisers.input import denoise_weights, precisions
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Channel, Hats, field_slopes
from gamp_attention.theory.equations.units import MIN_UNEXPLAINED, subtract_explained
from gamp_attention.theory.equations.weights import drift_and_noise, linear_response, weights_law
from gamp_attention.theory.fixed_points.observables import joint_response, random_points
from gamp_attention.theory.models.model import Component, Model
from gamp_attention.theory.rules.sobol import SobolRule


class Estimator(NamedTuple):
    """Solution of the state evolution of one estimator."""

    model: Model
    alpha: float
    overlaps: Overlaps
    hats: Hats  # conjugate overlaps; `hats.V` is V̂ in the form of the solution
    error: Overlaps  # errors of the overlaps
    relative_error: float  # of all numbers

    def shifted(self) -> Iterator["Estimator"]:
        """Yield the estimator with one family of overlaps, or of conjugate overlaps, changed by its error."""
        for name, values in self.overlaps.arrays().items():
            there = replace(self.overlaps, **{name: values + np.abs(getattr(self.error, name))})
            yield self._replace(overlaps=there)
        hats, factor = self.hats, 1 + self.relative_error
        yield self._replace(hats=replace(hats, m=factor * hats.m, theta=factor * hats.theta))
        yield self._replace(hats=replace(hats, q=factor * hats.q))
        yield self._replace(hats=replace(hats, V=factor * hats.V))


class JointModel:
    """Two models of the same teacher and tokens, as a model whose fields are those of the first, then of the second.

    It has the attributes that a `Channel` and averages at random points need.
    """

    def __init__(self, first: Model, second: Model) -> None:
        self.first, self.second, self.rank = first, second, first.rank + second.rank
        for name in ("n_tokens", "teacher_rank", "coordinates", "task", "attention", "teacher", "loss"):
            setattr(self, name, getattr(first, name))

    @property
    def components(self) -> tuple[Component, ...]:
        """Components of a mixture, see `Model.components`."""
        pairs = zip(self.first.components, self.second.components, strict=True)
        return tuple(Component(a.probability, a.sources, JointModel(a.model, b.model)) for a, b in pairs)  # type: ignore


def join_overlaps(a: Overlaps, b: Overlaps, cross: np.ndarray) -> Overlaps:
    """Return the overlaps of all fields of a `JointModel`, for the overlap `cross` (S, r_A, r_B) of both estimators."""

    def blocks(x: np.ndarray, y: np.ndarray, between: np.ndarray) -> np.ndarray:
        return np.block([[x, between], [np.swapaxes(between, 1, 2), y]])

    families = {name: np.concatenate([getattr(a, name), getattr(b, name)], axis=1) for name in ("m", "theta")}
    return Overlaps(q=blocks(a.q, b.q, cross), V=blocks(a.V, b.V, 0 * cross), **families)


def weights_overlap(a: Estimator, b: Estimator, q_hat: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return q_AB (S, r_A, r_B) and E[C_A ⊗ C_B] (K, r_A r_B, r_A r_B), given the conjugate q̂_AB (S, r_A, r_B).

    `points` (N, r_A + r_B) are standard Gaussian points for penalties other than the ridge.
    """
    law, r = a.model.coordinates, a.model.rank
    noise = np.einsum("kl,lab->kab", law.gamma, q_hat)
    (H, own), (H_b, own_b) = (drift_and_noise(part.model, part.hats) for part in (a, b))
    K = len(noise)
    if a.model.penalty.quadratic and b.model.penalty.quadratic:
        C, C_b = (linear_response(part.model, part.hats.V)[1] for part in (a, b))
        second = C @ (H @ law.moments @ np.swapaxes(H_b, 1, 2) + noise) @ C_b
        products = np.einsum("kac,kbd->kabcd", C, C_b)
    else:
        A, A_b = (_precisions(part.model, part.hats.V) for part in (a, b))
        mean = np.concatenate([weights_law(part.model, part.hats)[0] for part in (a, b)], axis=1)
        H = np.concatenate([H, H_b], axis=1)
        covariance = H @ law.covariance @ np.swapaxes(H, 1, 2)
        covariance = covariance + np.block([[own, noise], [np.swapaxes(noise, 1, 2), own_b]])
        second, products = np.empty(noise.shape), np.empty((K, *noise.shape[1:], *noise.shape[1:]))
        for k in range(K):
            fields = mean[k] + points @ psd_root(covariance[k])
            x, C = denoise_weights(a.model.penalty, fields[:, :r], A[k : k + 1])
            x_b, C_b = denoise_weights(b.model.penalty, fields[:, r:], A_b[k : k + 1])
            second[k] = x.T @ x_b / len(x)
            products[k] = np.einsum("nac,nbd->abcd", C, C_b, optimize=True) / len(x)
    overlap = np.einsum("k,kl,kab->lab", law.weight, law.gamma, second)
    return overlap, products.reshape(K, noise[0].size, noise[0].size)


def _precisions(model: Model, V_hat: np.ndarray) -> np.ndarray:
    """Return A (K, r, r) in each class of coordinates, for any penalty."""
    if model.penalty.quadratic:
        return linear_response(model, V_hat)[0]
    return precisions(model.penalty, model.coordinates.gamma.T, V_hat)


class PairImage(NamedTuple):
    """One step of the map of q_AB."""

    replicas: np.ndarray  # (R, k) new entries of q_AB, from each replica of the averages
    jacobian: np.ndarray  # (k, k) derivative of their mean, almost everywhere


@dataclass(frozen=True)
class PairEquations(DisplayMixin, NonlinearSystem):
    """Equations F(q_AB) − q_AB = 0 of the entries of q_AB, averaged over random points.

    Attributes
    ----------
    first, second : both estimators.
    shared : number κ of shared samples in units of d.
    rule : number and replicas of the random points.
    """

    first: Estimator
    second: Estimator
    shared: float
    rule: SobolRule
    slack: float = 0.02  # negative eigenvalue of correlations of the fields that noise of the averages explains
    _memory: dict[bytes, PairImage] = field(default_factory=dict, repr=False, compare=False)
    expands = True

    @cached_property
    def model(self) -> Any:
        """The model of the fields of both."""
        return JointModel(self.first.model, self.second.model)

    @property
    def pair(self) -> tuple[Estimator, Estimator]:
        """Both estimators."""
        return self.first, self.second

    @property
    def shape(self) -> tuple[int, int, int]:
        """(S, r_A, r_B)."""
        return len(self.first.overlaps.q), self.first.model.rank, self.second.model.rank

    @property
    def unit(self) -> float:
        """√(q_A q_B) of the largest entries, the unit of q_AB."""
        return float(np.sqrt(np.prod([part.overlaps.q.max() for part in self.pair])))

    def units(self, x: np.ndarray) -> np.ndarray:
        """Return the unit of each entry."""
        return np.full(len(x), self.unit)

    def overlaps(self, x: np.ndarray) -> Overlaps:
        """Return the overlaps of all fields for entries x of q_AB."""
        return join_overlaps(self.first.overlaps, self.second.overlaps, x.reshape(self.shape))

    def independent(self) -> np.ndarray:
        """Return the entries of q_AB without shared samples."""
        return weights_overlap(self.first, self.second, np.zeros(self.shape), self._points(0))[0].ravel()

    def shifted(self) -> Iterator["PairEquations"]:
        """Yield the equations with a part of one of both solutions changed by its error."""
        for name in ("first", "second"):
            for there in getattr(self, name).shifted():
                yield replace(self, **{name: there}, _memory={})

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Return F(x) − x; FloatingPointError if the covariance of the fields is not positive semi-definite."""
        overlaps = self.overlaps(x)
        remaining = subtract_explained(self.model, overlaps)
        unit, q = (np.diagonal(values, axis1=1, axis2=2) for values in (remaining, overlaps.q))
        size = np.sqrt(unit.clip(min=0) + MIN_UNEXPLAINED * q)
        if np.linalg.eigvalsh(remaining / (size[:, :, None] * size[:, None])).min() < -self.slack:
            raise FloatingPointError("the overlap of both estimators exceeds the overlaps of each with itself")
        return self.image(x).replicas.mean(axis=0) - x

    def jacobian(self, x: np.ndarray, here: np.ndarray) -> np.ndarray:
        """Return the derivative of the residual, almost everywhere: without the jumps of proximal maps."""
        return self.image(x).jacobian - np.eye(len(x))

    def image(self, x: np.ndarray) -> PairImage:
        """Return F(x) of all replicas, and its derivative."""
        if x.tobytes() not in self._memory:
            steps = [self.step(x, replica) for replica in range(self.rule.n_replicas)]
            self._memory.clear()  # only the last point is needed again
            new, jacobians = zip(*steps, strict=True)
            self._memory[x.tobytes()] = PairImage(np.array(new), np.mean(jacobians, axis=0))
        return self._memory[x.tobytes()]

    def step(self, x: np.ndarray, replica: int) -> tuple[np.ndarray, np.ndarray]:
        """Return F(x) of one replica, and its derivative."""
        (S, r, r_b), n = self.shape, len(x) // self.shape[0]
        gg, square = np.zeros((S, r + r_b, r + r_b)), np.zeros((S, S, n, n))
        seed = [*self.rule.seed, self.rule.n_points, replica]
        points = random_points(self.rule, self.model, self.overlaps(x), seed)
        for (probability, channel, white), (_, sources, _) in zip(points, self.model.components, strict=True):
            products, slopes = _products(channel, white, *(part.overlaps.V[sources] for part in self.pair))
            gg[sources] += probability * products
            square[np.ix_(sources, sources)] += self.shared * probability * slopes
        scale, scale_b = _scale(self.first, gg[:, :r, :r]), _scale(self.second, gg[:, r:, r:])
        q_hat = self.shared * scale @ gg[:, :r, r:] @ np.swapaxes(scale_b, 1, 2)
        new, responses = weights_overlap(self.first, self.second, q_hat, self._points(replica))
        return new.ravel(), joint_response(self.first.model.coordinates, responses, square)

    def _points(self, replica: int) -> np.ndarray:
        """Return Gaussian points for the weights; none for ridges."""
        n = 0 if all(part.model.penalty.quadratic for part in self.pair) else self.rule.n_points
        rng = np.random.default_rng([*self.rule.seed, n, replica, 1])  # other points than of the fields
        return gaussian_points(n, sum(self.shape[1:]), rng) if n else np.empty((0, sum(self.shape[1:])))


def _scale(estimator: Estimator, gg: np.ndarray) -> np.ndarray:
    """Return matrices (S, r, r) that give the forces of one estimator their known second moments E[g_l g_lᵀ].

    With forces scaled in this way, random points have less noise, and none for two identical estimators.
    """
    return psd_root(estimator.hats.q / estimator.alpha) @ np.linalg.pinv(psd_root(gg), hermitian=True)


def _products(channel: Channel, white: np.ndarray, V: np.ndarray, V_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return E[g_l g_lᵀ] (L, r, r) of the forces of both, and E[∂g_A,l/∂ω_k ⊗ ∂g_B,l/∂ω_k] (L, L, n, n), n = r_A r_B.

    The columns r of g are those of the first estimator, then of the second.
    """
    pair: Any = channel.model
    r = V.shape[1]
    _, params, _, omega = channel.sample(white)
    out = denoise(pair.first.loss, params, omega[:, :, :r], V, jacobian=True)
    other = denoise(pair.second.loss, params, omega[:, :, r:], V_b, jacobian=True)
    g, slopes = np.concatenate([out.g, other.g], axis=2), (field_slopes(out, V), field_slopes(other, V_b))
    square = np.einsum("nlakc,nlbkd->lkabcd", *slopes, optimize=True) / len(g)
    n = r * V_b.shape[1]
    return np.einsum("nla,nlb->lab", g, g) / len(g), square.reshape(len(V), len(V), n, n)
