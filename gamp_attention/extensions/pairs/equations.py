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
from gamp_attention.theory.equations.channel import Channel, Hats, field_slopes, fields_and_terms
from gamp_attention.theory.equations.units import MIN_UNEXPLAINED, subtract_explained
from gamp_attention.theory.equations.weights import linear_response, weights_law
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
        for names in (("m", "theta"), ("q",), ("V",)):
            changed = {name: (1 + self.relative_error) * getattr(self.hats, name) for name in names}
            yield self._replace(hats=replace(self.hats, **changed))


class JointModel:
    """Two models of the same teacher and tokens, as a model with the fields of the first, then of the second.

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


def join(a: Overlaps | Hats, b: Overlaps | Hats, cross: np.ndarray) -> Overlaps:
    """Return the overlaps of a `JointModel`, given overlaps, or conjugates, of both and their `cross` (S, r_A, r_B)."""

    def blocks(x: np.ndarray, y: np.ndarray, between: np.ndarray) -> np.ndarray:
        return np.block([[x, between], [np.swapaxes(between, 1, 2), y]])

    families = {name: np.concatenate([getattr(a, name), getattr(b, name)], axis=1) for name in ("m", "theta")}
    return Overlaps(q=blocks(a.q, b.q, cross), V=blocks(a.V, b.V, 0 * cross), **families)


@dataclass(frozen=True, eq=False)
class PairEquations(DisplayMixin, NonlinearSystem):
    """Equations F(q_AB) − q_AB = 0 of the entries of q_AB, averaged over random points.

    Attributes
    ----------
    pair : both estimators.
    shared : number κ of shared samples in units of d.
    rule : number and replicas of the random points.
    """

    pair: tuple[Estimator, Estimator]
    shared: float
    rule: SobolRule
    slack: float = 0.02  # negative eigenvalue of correlations of the fields that noise of the averages explains
    _memory: dict[bytes, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, init=False, repr=False)
    expands = True

    @cached_property
    def model(self) -> Any:
        """The model of the fields of both."""
        return JointModel(*(part.model for part in self.pair))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(S, r_A, r_B)."""
        return self.model.coordinates.gamma.shape[1], self.model.first.rank, self.model.second.rank

    @property
    def unit(self) -> float:
        """√(q_A q_B) of the largest entries, the unit of q_AB."""
        return float(np.sqrt(np.prod([part.overlaps.q.max() for part in self.pair])))

    def units(self, x: np.ndarray) -> np.ndarray:
        """Return the unit of each entry."""
        return np.full(len(x), self.unit)

    def overlaps(self, x: np.ndarray) -> Overlaps:
        """Return the overlaps of all fields for entries x of q_AB."""
        return join(self.pair[0].overlaps, self.pair[1].overlaps, x.reshape(self.shape))

    def shifted(self) -> Iterator["PairEquations"]:
        """Yield the equations with a part of one of both solutions changed by its error."""
        a, b = self.pair
        for pair in [*((there, b) for there in a.shifted()), *((a, there) for there in b.shifted())]:
            yield replace(self, pair=pair)

    def residual(self, x: np.ndarray) -> np.ndarray:
        """Return F(x) − x; FloatingPointError if the covariance of the fields is not positive semi-definite."""
        overlaps = self.overlaps(x)
        remaining = subtract_explained(self.model, overlaps)
        unit, q = (np.diagonal(values, axis1=1, axis2=2) for values in (remaining, overlaps.q))
        size = np.sqrt(unit.clip(min=0) + MIN_UNEXPLAINED * q)
        if np.linalg.eigvalsh(remaining / (size[:, :, None] * size[:, None])).min() < -self.slack:
            raise FloatingPointError("the overlap of both estimators exceeds the overlaps of each with itself")
        return self.image(x)[0].mean(axis=0) - x

    def jacobian(self, x: np.ndarray, here: np.ndarray) -> np.ndarray:
        """Return the derivative of the residual, almost everywhere: without the jumps of proximal maps."""
        return self.image(x)[1] - np.eye(len(x))

    def image(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return F(x) of all replicas (R, k), and the derivative (k, k) of their mean, almost everywhere."""
        if x.tobytes() not in self._memory:
            new, jacobians = zip(*(self.step(x, replica) for replica in range(self.rule.n_replicas)), strict=True)
            self._memory.clear()  # only the last point is needed again
            self._memory[x.tobytes()] = np.array(new), np.mean(jacobians, axis=0)
        return self._memory[x.tobytes()]

    def step(self, x: np.ndarray, replica: int) -> tuple[np.ndarray, np.ndarray]:
        """Return F(x) of one replica, and its derivative."""
        (S, r, r_b), n, (a, b) = self.shape, len(x) // self.shape[0], self.pair
        gg, square = np.zeros((S, r + r_b, r + r_b)), np.zeros((S, S, n, n))
        seed = [*self.rule.seed, self.rule.n_points, replica]
        points = random_points(self.rule, self.model, self.overlaps(x), seed)
        for (probability, channel, white), (_, sources, _) in zip(points, self.model.components, strict=True):
            products, slopes = _products(channel, white, a.overlaps.V[sources], b.overlaps.V[sources])
            gg[sources] += probability * products
            square[np.ix_(sources, sources)] += self.shared * probability * slopes
        scale, scale_b = _scale(a, gg[:, :r, :r]), _scale(b, gg[:, r:, r:])
        q_hat = self.shared * scale @ gg[:, :r, r:] @ np.swapaxes(scale_b, 1, 2)
        new, responses = self.weights(q_hat, replica)
        return new, joint_response(self.model.coordinates, responses, square)

    def weights(self, q_hat: np.ndarray, replica: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries of q_AB, and E[C_A ⊗ C_B] (K, r_A r_B, r_A r_B), given q̂_AB (S, r_A, r_B)."""
        (a, b), law, r = self.pair, self.model.coordinates, self.model.first.rank
        hats: Any = join(a.hats, b.hats, q_hat)
        mean, covariance = weights_law(a.model, hats)
        if a.model.penalty.quadratic and b.model.penalty.quadratic:
            C, C_b = (linear_response(part.model, part.hats.V)[1] for part in self.pair)
            second = C @ (mean[:, :r, None] * mean[:, None, r:] + covariance[:, :r, r:]) @ C_b
            products = np.einsum("kac,kbd->kabcd", C, C_b)
        else:
            n, (A, A_b) = self.rule.n_points, (_precisions(part.model, part.hats.V) for part in self.pair)
            rng = np.random.default_rng([*self.rule.seed, n, replica, 1])  # other points than of the fields
            points, parts = gaussian_points(n, self.model.rank, rng), []
            for k in range(len(mean)):
                fields = mean[k] + points @ psd_root(covariance[k])
                x, C = denoise_weights(a.model.penalty, fields[:, :r], A[k : k + 1])
                x_b, C_b = denoise_weights(b.model.penalty, fields[:, r:], A_b[k : k + 1])
                parts.append((x.T @ x_b / n, np.einsum("nac,nbd->abcd", C, C_b, optimize=True) / n))
            second, products = (np.array(values) for values in zip(*parts, strict=True))
        overlap = np.einsum("k,kl,kab->lab", law.weight, law.gamma, second)
        return overlap.ravel(), products.reshape(len(second), second[0].size, second[0].size)


def _precisions(model: Model, V_hat: np.ndarray) -> np.ndarray:
    """Return A (K, r, r) in each class of coordinates, for any penalty."""
    if model.penalty.quadratic:
        return linear_response(model, V_hat)[0]
    return precisions(model.penalty, model.coordinates.gamma.T, V_hat)


def _scale(estimator: Estimator, gg: np.ndarray) -> np.ndarray:
    """Return matrices (S, r, r) that give the forces of one estimator their known second moments E[g_l g_lᵀ].

    With forces scaled in this way, random points have less noise, and none for two identical estimators.
    """
    return psd_root(estimator.hats.q / estimator.alpha) @ np.linalg.pinv(psd_root(gg), hermitian=True)


def _products(channel: Channel, white: np.ndarray, V: np.ndarray, V_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return E[g_l g_lᵀ] (L, r, r) of the forces of both, and E[∂g_A,l/∂ω_k ⊗ ∂g_B,l/∂ω_k] (L, L, n, n), n = r_A r_B.

    The r + r_B columns of g belong to the first estimator, then to the second.
    """
    pair: Any = channel.model
    r = V.shape[1]
    _, params, _, omega = channel.sample(white)
    params_b = fields_and_terms(pair.second, white[:, : channel.n_teacher])[1].params
    out = denoise(pair.first.loss, params, omega[:, :, :r], V, jacobian=True)
    other = denoise(pair.second.loss, params_b, omega[:, :, r:], V_b, jacobian=True)
    g, slopes = np.concatenate([out.g, other.g], axis=2), (field_slopes(out, V), field_slopes(other, V_b))
    square = np.einsum("nlakc,nlbkd->lkabcd", *slopes, optimize=True) / len(g)
    n = r * V_b.shape[1]
    return np.einsum("nla,nlb->lab", g, g) / len(g), square.reshape(len(V), len(V), n, n)
