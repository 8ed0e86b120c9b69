"""Sampled paths of the fields: Gaussian processes whose covariances become known step by step."""

import numpy as np
from scipy.special import ndtri

from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import inside_cube, whiten, whiten_and_mirror
from gamp_attention._tools.sobol import sobol_points
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import fields_and_terms, teacher_size
from gamp_attention.theory.models.model import Component, Model
from gamp_attention.theory.rules.sobol import component_points

ROUNDING = 1e-7  # size relative to the fields below which a part that earlier vectors do not explain is rounding errors


class GaussianPath:
    """Sequence of n samples of centered Gaussian vectors, each drawn conditionally on all earlier vectors.

    All components drawn so far are linear combinations of white columns, white · factorᵀ, with a block triangular
    factor: a Cholesky factorization that grows with each vector. The first components have white columns (n, k), which
    are orthogonal with mean square 1, and coefficients `factor` (k, k).
    """

    def __init__(self, white: np.ndarray, factor: np.ndarray) -> None:
        self._rows, self._factor = white.T, factor  # the columns as rows (k, n)

    def regress(self, with_past: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients (r, k) of the next vector in the white columns, and the covariance of the rest.

        `with_past` (r, k): covariances with all k earlier components; `covariance` (r, r): covariance of the vector.
        """
        if not (np.isfinite(with_past).all() and np.isfinite(covariance).all()):
            raise FloatingPointError("the covariances of the fields are not finite numbers")
        # past directions that are rounding errors must not be amplified
        slope = np.linalg.lstsq(self._factor, with_past.T, rcond=ROUNDING)[0].T
        return slope, covariance - slope @ slope.T

    def combine(self, slope: np.ndarray) -> np.ndarray:
        """Return the n samples (n, r) of a vector with coefficients (r, k) in the white columns."""
        return self._rows.T @ slope.T

    def draw(self, fresh: np.ndarray, with_past: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Return n samples (n, r) of the next vector, see `regress`.

        `fresh` (n, r) are new white columns, orthogonal to all columns used before.
        """
        slope, rest = self.regress(with_past, covariance)
        row = np.concatenate([slope, psd_root(rest)], axis=1)
        self._factor = np.block([[self._factor, np.zeros((len(self._factor), len(covariance)))], [row]])
        self._rows = np.concatenate([self._rows, fresh.T])
        return self.combine(row)

    def slopes(self, values: np.ndarray) -> np.ndarray:
        """Return the coefficients (a, k) of the linear regression of values (n, a) on all components drawn so far.

        With (g_0, g_1, …) = F w and white w, E[values w_j] = Σ_k E[∂values/∂g_k] F_kj (Stein, 1981): the coefficients
        are the mean derivatives of the values, including the contributions of jumps. Eq. :eq:`stored-times`.
        """
        products = values.T @ self._rows.T / len(values)
        return np.linalg.lstsq(self._factor.T, products.T, rcond=ROUNDING)[0].T


class FieldPaths:
    """Paths of the fields: y, then ω̃^0, ω̃^1, …, each drawn conditionally on all earlier fields. Eq. :eq:`path-law`.

    The paths are mirror pairs. If the loss and its parameters are equal for both paths of a pair and m = 0 at all
    times, the second path has the values of the first, up to signs, and is left out: averages of even functions are
    the same without it. The argument `even` states that the loss is even and m = 0 at all times.

    Attributes
    ----------
    n : number of paths that are sampled, `n_paths` or half of it.
    copies : number of paths that each sampled path stands for, 1 or 2.
    """

    def __init__(self, model: Model, n_paths: int, rng: np.random.Generator, even: bool = False) -> None:
        self.model, self._n_paths, self._rng = model, n_paths, rng
        L, t, half = model.n_tokens, model.teacher_rank, n_paths // 2
        white = whiten_and_mirror(shuffled_half(n_paths, teacher_size(model), rng))
        self.y, self.terms = fields_and_terms(model, white)
        arrays = self.terms.params, self.terms.constant
        # labels, and targets with noise, change with the signs of the fields; differences below 1e-12 are rounding
        mirrored = even and all(np.allclose(v[:half], v[half:], rtol=1e-12, atol=1e-12) for v in arrays)
        self.copies = 2 if mirrored else 1
        self.n = n_paths // self.copies
        if mirrored:
            white, self.y = white[:half], self.y[:half]
            self.terms = RiskTerms(*(v[:half] for v in arrays))
        self._rows = white.T  # all white columns drawn so far, as rows (k, n) that are orthogonal
        roots = psd_root(model.coordinates.rho)
        self.of_token = [GaussianPath(white[:, l * t : (l + 1) * t], roots[l]) for l in range(L)]

    def draw(
        self, overlaps: Overlaps, covariances: np.ndarray, rng: np.random.Generator | None = None,
        like: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return ω̃^t (n, L, r) at the next time t; θ of the `overlaps` is the covariance with the teacher's fields.

        `covariances` (t + 1, L, r, r) are q^{s,t} for every s ≤ t; the last is the covariance matrix of ω̃^t. `rng`
        replaces the paths' generator. With fields `like` (n, L, r) of other paths of nearly the same distribution, the
        new fields are nearly equal to them.
        """
        L, r = self.model.n_tokens, self.model.rank
        half = shuffled_half(self._n_paths, L * r, rng or self._rng)
        if like is not None:
            half = self._new_part(like) + 1e-3 * half  # few independent numbers, for columns without a new part
        fresh = (whiten if self.copies == 2 else whiten_and_mirror)(half, self._rows.T)
        self._rows = np.concatenate([self._rows, fresh.T])
        fields = np.empty((self.n, L, r))
        for l, path in enumerate(self.of_token):
            with_past = self._with_past(l, overlaps, covariances)
            fields[:, l] = path.draw(fresh[:, l * r : (l + 1) * r], with_past, covariances[-1][l])
        return fields

    def project(self, overlaps: Overlaps, covariances: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the part (n, L, r) of ω̃ at another time that the fields drawn so far determine.

        The second value is the relative size of the rest: the root of its largest variance over the largest variance of
        the field, maximum over tokens. Arguments as for `draw`.
        """
        fields, unexplained = np.empty((self.n, *covariances.shape[1:3])), 0.0
        for l, path in enumerate(self.of_token):
            slope, rest = path.regress(self._with_past(l, overlaps, covariances), covariances[-1][l])
            fields[:, l] = path.combine(slope)
            largest = np.linalg.eigvalsh(covariances[-1][l])[-1]
            unexplained = max(unexplained, float(np.linalg.eigvalsh(rest)[-1] / max(largest, 1e-300)))
        return fields, np.sqrt(unexplained)

    def _new_part(self, fields: np.ndarray) -> np.ndarray:
        """Return the part (n/2, L r) of fields (n, L, r) that no earlier column explains, in units of its largest.

        It is zero for tokens whose fields the earlier columns determine up to rounding errors.
        """
        n, L, _ = fields.shape
        white = self._rows.T
        flat = fields.reshape(n, -1)
        new = (flat - white @ (white.T @ flat) / n)[: self._n_paths // 2].reshape(-1, L, fields.shape[2])
        size, whole = (np.sqrt((values**2).mean(axis=0).max(axis=1)) for values in (new, fields))
        units = np.where(size > ROUNDING * whole, size, np.inf)
        return (new / units[:, None]).reshape(len(new), -1)

    def _with_past(self, l: int, overlaps: Overlaps, covariances: np.ndarray) -> np.ndarray:
        """Return the covariances (r, k) of ω̃_l at a time with y_l and with its values at the times drawn so far."""
        past = covariances[:-1, l].transpose(2, 0, 1).reshape(self.model.rank, -1)
        return np.concatenate([overlaps.theta[l], past], axis=1)


def min_paths(model: Model, n_iter: int) -> int:
    """Return the number of paths needed to represent the covariances between all times."""
    return 4 * model.n_tokens * (model.teacher_rank + model.rank * (n_iter + 1))


def component_paths(component: Component, n_paths: int, n_iter: int) -> int:
    """Return the number of paths of a component: its fraction of all paths, but at least `min_paths`."""
    at_least = min_paths(component.model, n_iter)
    return component_points(n_paths, component.probability, at_least) if component.probability < 1 else n_paths


def shuffled_half(n_points: int, dim: int, rng: np.random.Generator) -> np.ndarray:
    """Return half of a Gaussian point set (n_points/2, dim) in random order, independent of all sets drawn before.

    In random order, sets that were drawn one after the other can be combined as columns of one larger set.
    """
    return ndtri(inside_cube(rng.permutation(sobol_points(n_points // 2, dim, rng))))
