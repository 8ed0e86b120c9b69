"""How far the curvature of others changes where a sample is left out, in the mean field: whether a landscape is rough.

A sample that is left out changes the cavity fields of all others by Gaussian numbers, whose variances follow from the
responses of message passing. What a Newton step without the sample misses is then an average over the others, and needs
no Hessian of the weights.
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint, response
from gamp_attention.denoisers.input import denoise_weights, precisions, prior_response
from gamp_attention.losses.derivatives import sample_derivatives
from gamp_attention.models.sources import by_group


@dataclass(frozen=True)
class RoughnessSettings:
    """Which samples stand for all, and when a landscape is rough."""

    removed: int = 8  # samples that are left out, from the smallest force to the largest
    others: int = 512  # samples whose curvature is followed
    steepest: float = 0.005  # share of samples that is not counted, those that answer the most
    bent: float = 1.15  # remainder, in units of 1/√d, beyond which the curvature of others has changed
    rough: float = 0.15  # share of such samples from which on a landscape is rough
    lopsided: float = 2.5  # response of all samples over that of the others, from which on a few of them make V
    seed: int = 0  # of the Gaussian numbers


ROUGHNESS = RoughnessSettings()


@dataclass(frozen=True, eq=False)
class Responses:
    """How fields and weights respond at a minimum.

    Attributes
    ----------
    V : (S, r, r) variances of the fields.
    V_hat : (S, r, r) the response of the samples.
    C : (d, r, r) ∂η_i/∂b_i, or (1, r, r) where all are alike.
    """

    V: np.ndarray
    V_hat: np.ndarray
    C: np.ndarray


def responses_at(data: Dataset, at: RiskAtPoint, Q: np.ndarray, V: np.ndarray) -> Responses:
    """Those at a minimum Q (d, r) with variances V (S, r, r)."""
    V_hat = response(data, at.hessians, V)
    if data.penalty.quadratic:
        return Responses(V, V_hat, prior_response(data.spectra, data.penalty.lam, V_hat)[1])
    A = precisions(data.penalty, data.spectra, V_hat)
    b = np.einsum("iab,ib->ia", np.broadcast_to(A, (data.dim, *A.shape[1:])), Q) - at.smooth
    return Responses(V, V_hat, denoise_weights(data.penalty, b, A)[1])


def is_rough(data: Dataset, at: RiskAtPoint, known: Responses) -> bool:
    """Whether most samples chose among minima: for more than 15 % of them the remainder is above 1.15/√d."""
    remainders = typical_remainders(data, at, known)
    return bool(np.mean(remainders > ROUGHNESS.bent / np.sqrt(data.dim)) > ROUGHNESS.rough)


def typical_remainders(data: Dataset, at: RiskAtPoint, known: Responses) -> np.ndarray:
    """What a Newton step misses without each of some samples (k,), relative to the step.

    Eq. :eq:`typical-remainder`. Infinite where the mean field does not hold: beyond stability, or where a few samples
    make most of the response.
    """
    (n, _, r), S, owners = at.z.shape, data.n_sources, _owners(data)
    others, spread = _Others(data, at, known.V, owners), _spread(data, known.C)
    if (np.trace(known.V_hat, axis1=1, axis2=2) > ROUGHNESS.lopsided * others.response()).any():
        return np.full(1, np.inf)
    K = spread @ others.answers()
    if not np.isfinite(K).all() or np.abs(np.linalg.eigvals(K)).max() >= 1:
        return np.full(1, np.inf)
    g = -at.loss_gradients
    chosen = np.argsort(np.einsum("nla,nla->n", g, g), kind="stable")[_spaced(n, ROUGHNESS.removed)]
    g, own = g[chosen], owners[chosen]
    forces = np.zeros((len(g), S, r, r))
    np.add.at(forces, (np.arange(len(g))[:, None], own), g[..., :, None] * g[..., None, :] / data.dim)
    v = forces.reshape(len(g), -1) @ (np.linalg.inv(np.eye(len(K)) - K) @ spread).T
    power = np.einsum("mla,mlab,mlb->m", g, known.V[own], g)
    missed = others.missed(v.reshape(-1, S, r, r), np.random.default_rng(ROUGHNESS.seed))
    return np.sqrt(np.maximum(missed, 0.0) / np.maximum(power, 1e-300))


class _Others:
    """How samples answer changes ω of their cavity fields: dz/dω = (1 + V D)⁻¹ and −dg/dω = D (1 + V D)⁻¹."""

    def __init__(self, data: Dataset, at: RiskAtPoint, V: np.ndarray, owners: np.ndarray) -> None:
        n, L, r = at.z.shape
        rows = _spaced(n, ROUGHNESS.others)
        self.data, self.loss, self.share = data, at.loss, len(rows) / n
        self.own, self.params = owners[rows], np.ascontiguousarray(at.params[rows])
        self.z, self.slope, self.D = at.z[rows], at.loss_gradients[rows], at.hessians[rows]
        big = np.zeros((len(rows), L, r, L, r))
        for l in range(L):
            big[:, l, :, l, :] = V[self.own[:, l]]
        big = big.reshape(self.D.shape)
        self.moves = np.linalg.inv(np.eye(L * r) + big @ self.D)
        self.stiff = self.moves @ big  # the leverage with the sample's own curvature
        steep = self.D @ self.moves
        size = np.einsum("nkl,nkl->n", steep, steep)
        self.counted = size <= np.quantile(size, 1 - ROUGHNESS.steepest)
        self.steep = steep.reshape(-1, L, r, L, r)[self.counted]

    def response(self) -> np.ndarray:
        """tr V̂ (S,) of each source."""
        own, found = self.own[self.counted], np.zeros(self.data.n_sources)
        for l in range(own.shape[1]):
            np.add.at(found, own[:, l], np.trace(self.steep[:, l, :, l], axis1=1, axis2=2))
        return np.maximum(found, 0.0) / (self.share * self.data.dim)

    def answers(self) -> np.ndarray:
        """Covariances of forces (S r²) for covariances of cavity fields (S r²), as a matrix: of eq. `replicon`."""
        S, r, own = self.data.n_sources, self.data.rank, self.own[self.counted]
        square = np.zeros((S, S, r, r, r, r))
        for l in range(own.shape[1]):
            for k in range(own.shape[1]):
                G = self.steep[:, l, :, k, :]
                np.add.at(square, (own[:, l], own[:, k]), np.einsum("nac,nbd->nabcd", G, G))
        return square.transpose(0, 2, 3, 1, 4, 5).reshape(S * r * r, -1) / (self.share * self.data.dim)

    def missed(self, v: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Gᵀ H⁻¹ G (k,) after Gaussian changes of the cavity fields with covariances v (k, S, r, r)."""
        values, vectors = np.linalg.eigh(v)
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
        k, (m, L, r) = len(v), self.z.shape
        normal = rng.standard_normal((k, m, L, r, 1))
        change = (roots[:, self.own] @ normal).reshape(k, m, L * r, 1)
        moved = self.moves @ change
        there = (self.z + moved.reshape(k, m, L, r)).reshape(k * m, L, r)
        slope = sample_derivatives(self.loss, np.tile(self.params, (k, 1)), there)[1].reshape(k, m, L, r)
        rest = (slope - self.slope).reshape(k, m, L * r, 1) - self.D @ moved
        each = (rest * (self.stiff @ rest)).sum(axis=(2, 3))
        return each[:, self.counted].sum(axis=1) / self.share


def _owners(data: Dataset) -> np.ndarray:
    """(n, L) the source of each token."""
    return by_group(data.groups, lambda rows, sources: np.broadcast_to(sources, (rows.stop - rows.start, len(sources))))


def _spaced(n: int, most: int) -> np.ndarray:
    """At most so many of n indices, evenly spaced."""
    count = min(n, most)
    return ((np.arange(count) + 0.5) / count * n).astype(int)


def _spread(data: Dataset, C: np.ndarray) -> np.ndarray:
    """Covariances of fields (S r²) for covariances of forces on the weights (S r²), as a matrix."""
    S, r, size = data.n_sources, C.shape[1], max(data.spectra.shape[1], len(C))
    gamma = np.broadcast_to(data.spectra, (S, size))
    pairs = (C[:, :, None, :, None] * C[:, None, :, None, :]).reshape(len(C), -1)
    each = (gamma[:, None] * gamma).reshape(S * S, size) @ np.broadcast_to(pairs, (size, r**4)) / size
    return each.reshape(S, S, r * r, r * r).transpose(0, 2, 1, 3).reshape(S * r * r, -1)
