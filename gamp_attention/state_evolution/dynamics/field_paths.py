"""Sampled paths of Gaussian processes, in particular of the fields, whose covariances are computed step by step."""

import numpy as np
from scipy.special import ndtri

from gamp_attention._core.gaussian import psd_root, sobol, symmetrise
from gamp_attention.models.model import Component, Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import fields_and_terms, teacher_size
from gamp_attention.state_evolution.rules.sobol import points_of


def half_normals(n: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Return half of a Gaussian point set (n/2, dim): scrambled Sobol points in random order, new at each call."""
    cube = sobol(n // 2, dim, rng)
    return ndtri(rng.permutation(cube).clip(1e-12, 1 - 1e-12))


class GaussianPath:
    """Sequence of centred Gaussian vectors, each drawn conditionally on all before, as mixtures of white columns."""

    def __init__(self, white: np.ndarray, factor: np.ndarray) -> None:
        self._white, self._factor = white, factor  # all vectors drawn so far are white · factorᵀ

    def draw(self, fresh: np.ndarray, with_past: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return n samples (n, r) of the next vector, from new white columns (n, r) orthogonal to all before.

        with_past (r, k) are its covariances with all k earlier components, `own` (r, r) is its covariance matrix.
        """
        if not (np.isfinite(with_past).all() and np.isfinite(own).all()):
            raise FloatingPointError("the covariances of the fields are not finite numbers")
        # directions of relative size below 1e-7 count as already spanned
        slope = np.linalg.lstsq(self._factor, with_past.T, rcond=1e-7)[0].T
        row = np.concatenate([slope, psd_root(own - slope @ slope.T)], axis=1)
        before = np.zeros((len(self._factor), len(own)))
        self._factor = np.block([[self._factor, before], [row]])
        self._white = np.concatenate([self._white, fresh], axis=1)
        return self._white @ row.T

    def responses(self, values: np.ndarray, sampled: np.ndarray, leading: int) -> np.ndarray:
        """Return mean derivatives (a, k) of values (n, a) by the Gaussians, corrected for rare large derivatives.

        With (g_0, g_1, …) = F w and white w, E[values w_j] = Σ_k E[∂values/∂g_k] F_kj (Stein's lemma). The averages
        `sampled` (a, k) of derivatives are changed so that this holds for the first `leading` columns of w.
        Eq. :eq:`rare-responses`.
        """
        gap = values.T @ self._white[:, :leading] / len(values) - sampled @ self._factor[:, :leading]
        change = np.linalg.lstsq(self._factor[:leading, :leading].T, gap.T, rcond=1e-7)[0].T
        return sampled + np.pad(change, ((0, 0), (0, sampled.shape[1] - leading)))


class FieldPaths:
    """Paths of the fields: y, then ω̃^0, ω̃^1, …, each drawn conditionally on all before. Eq. :eq:`path-law`."""

    def __init__(self, model: Model, n_paths: int, rng: np.random.Generator) -> None:
        self.model, self.n, self._rng = model, n_paths, rng
        L, t = model.n_tokens, model.teacher_rank
        white = symmetrise(half_normals(n_paths, teacher_size(model), rng))
        self._white = white  # all columns drawn so far, orthonormal over the paths
        roots = psd_root(model.coordinates.rho)
        self.of_token = [GaussianPath(white[:, l * t : (l + 1) * t], roots[l]) for l in range(L)]
        self.y, self.terms = fields_and_terms(model, white)

    def draw(
        self, overlaps: Overlaps, covariances: list[np.ndarray], rng: np.random.Generator | None = None
    ) -> np.ndarray:
        """Return ω̃^t (n, L, r) with given covariances with all earlier times, the last entry being its covariance."""
        L, r = self.model.n_tokens, self.model.rank
        fresh = symmetrise(half_normals(self.n, L * r, rng or self._rng), self._white)
        self._white = np.concatenate([self._white, fresh], axis=1)
        fields = np.empty((self.n, L, r))
        for l, path in enumerate(self.of_token):
            with_past = np.concatenate([overlaps.theta[l], *[c[l].T for c in covariances[:-1]]], axis=1)
            fields[:, l] = path.draw(fresh[:, l * r : (l + 1) * r], with_past, covariances[-1][l])
        return fields


def min_paths(model: Model, n_iter: int) -> int:
    """Return the number of paths needed to represent the covariances between all times."""
    return 4 * model.n_tokens * (model.teacher_rank + model.rank * (n_iter + 1))


def component_paths(component: Component, n_paths: int, n_iter: int) -> int:
    """Return the number of paths of a component: its fraction of all paths, but at least `min_paths`."""
    few = min_paths(component.model, n_iter)
    return points_of(n_paths, component.share, few) if component.share < 1 else n_paths
