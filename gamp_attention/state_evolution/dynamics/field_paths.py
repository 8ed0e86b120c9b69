"""Sampled paths of Gaussians whose covariances become known as time goes on; of the fields in particular."""

import numpy as np
from scipy.special import ndtri

from gamp_attention._core.gaussian import psd_root, sobol, symmetrise
from gamp_attention.models.model import Component, Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import fields_and_terms, teacher_size
from gamp_attention.state_evolution.rules.sobol import points_of


def half_normals(n: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Half a point set (n/2, dim): scrambled Sobol points in an order of their own, anew at each call."""
    cube = sobol(n // 2, dim, rng)
    return ndtri(rng.permutation(cube).clip(1e-12, 1 - 1e-12))


class GaussianPath:
    """Centred Gaussians drawn one after the other, each given all before, as mixtures of white columns."""

    def __init__(self, white: np.ndarray, factor: np.ndarray) -> None:
        self._white, self._factor = white, factor  # those drawn so far are white · factorᵀ

    def draw(self, fresh: np.ndarray, with_past: np.ndarray, own: np.ndarray) -> np.ndarray:
        """The next ones (n, r), from white columns `fresh` (n, r) orthogonal to those before.

        with_past (r, k) are the covariances with the k before, own (r, r) their own.
        """
        if not (np.isfinite(with_past).all() and np.isfinite(own).all()):
            raise FloatingPointError("the covariances of the fields are not finite numbers")
        # directions of smaller size, relative to the largest, count as already spanned
        slope = np.linalg.lstsq(self._factor, with_past.T, rcond=1e-7)[0].T
        row = np.concatenate([slope, psd_root(own - slope @ slope.T)], axis=1)
        before = np.zeros((len(self._factor), len(own)))
        self._factor = np.block([[self._factor, before], [row]])
        self._white = np.concatenate([self._white, fresh], axis=1)
        return self._white @ row.T

    def responses(self, values: np.ndarray, sampled: np.ndarray, leading: int) -> np.ndarray:
        """Mean derivatives (a, k) of values (n, a) in the Gaussians, corrected for what samples of them have missed.

        With (g_0, g_1, …) = F w and white w, E[values w_j] = Σ_k E[∂values/∂g_k] F_kj (Stein's lemma). The sampled ones
        are changed such that this holds for the leading w, those of that many Gaussians. Eq. :eq:`rare-responses`.
        """
        gap = values.T @ self._white[:, :leading] / len(values) - sampled @ self._factor[:, :leading]
        change = np.linalg.lstsq(self._factor[:leading, :leading].T, gap.T, rcond=1e-7)[0].T
        return sampled + np.pad(change, ((0, 0), (0, sampled.shape[1] - leading)))


class FieldPaths:
    """Paths of the fields: y, then ω̃^0, ω̃^1, … drawn given all before. Eq. :eq:`path-law`."""

    def __init__(self, model: Model, n_paths: int, rng: np.random.Generator) -> None:
        self.model, self.n, self._rng = model, n_paths, rng
        L, t = model.n_tokens, model.teacher_rank
        white = symmetrise(half_normals(n_paths, teacher_size(model), rng))
        self._white = white  # every column drawn so far, orthonormal over the paths
        roots = psd_root(model.coordinates.rho)
        self.of_token = [GaussianPath(white[:, l * t : (l + 1) * t], roots[l]) for l in range(L)]
        self.y, self.terms = fields_and_terms(model, white)

    def draw(
        self, overlaps: Overlaps, covariances: list[np.ndarray], rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """ω̃^t (n, L, r) with the given covariances with earlier ones, its own being the last."""
        L, r = self.model.n_tokens, self.model.rank
        fresh = symmetrise(half_normals(self.n, L * r, rng or self._rng), self._white)
        self._white = np.concatenate([self._white, fresh], axis=1)
        fields = np.empty((self.n, L, r))
        for l, path in enumerate(self.of_token):
            with_past = np.concatenate([overlaps.theta[l], *[c[l].T for c in covariances[:-1]]], axis=1)
            fields[:, l] = path.draw(fresh[:, l * r : (l + 1) * r], with_past, covariances[-1][l])
        return fields


def min_paths(model: Model, n_iter: int) -> int:
    """Paths that the covariances between all times can be told with."""
    return 4 * model.n_tokens * (model.teacher_rank + model.rank * (n_iter + 1))


def component_paths(component: Component, n_paths: int, n_iter: int) -> int:
    """The paths of a component: its share of all, where that is enough."""
    few = min_paths(component.model, n_iter)
    return points_of(n_paths, component.share, few) if component.share < 1 else n_paths
