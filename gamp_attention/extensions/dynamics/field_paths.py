"""Sampled paths of the fields: Gaussian processes whose covariances become known step by step.

`GaussianPath` draws each vector of a process conditionally on all vectors before, `FieldPaths` combines such processes
for all tokens of a channel, and `PathResponses` computes derivatives along paths with memory.

Along a path with memory, J(t, s) = ∂z^t/∂ω^s and F(t, s) = ∂f^t/∂ω^s are k × k matrices,

    J(t, s) = c δ_{ts} + Σ_{s≤u<t} R(t, u) F(u, s),   F(t, s) = S^t J(t, s),

in which S^t depends on the path and R(t, u), block diagonal, does not. Only averages of F are needed, but the recursion
requires all of F to be stored: T² k²/2 numbers per path, in single precision.
"""

import numpy as np

from gamp_attention._tools.numerics import one_thread, psd_root
from gamp_attention._tools.quadrature import shuffled_half, whiten, whiten_and_mirror
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import fields_and_terms, teacher_size
from gamp_attention.theory.models.model import Component, Model
from gamp_attention.theory.rules.sobol import component_points

ROUNDING = 1e-7  # size relative to the fields below which a part that earlier vectors do not explain is rounding errors


class GrowingRows:
    """Rows (…, k, n) of values of n paths, to which rows of later times are appended without a copy at each time.

    The array has memory for `capacity` rows, and twice as much whenever it is full.
    """

    def __init__(self, first_axes: tuple[int, ...], n: int, capacity: int) -> None:
        self._k, self._stored = 0, np.empty((*first_axes, capacity, n))

    @property
    def array(self) -> np.ndarray:
        """The rows appended so far."""
        return self._stored[..., : self._k, :]

    def append(self, rows: np.ndarray) -> None:
        """Append rows (…, j, n)."""
        k, capacity = self._k + rows.shape[-2], self._stored.shape[-2]
        if k > capacity:
            shape = *self._stored.shape[:-2], max(capacity, k - capacity), self._stored.shape[-1]
            self._stored = np.concatenate([self._stored, np.empty(shape)], axis=-2)
        self._stored[..., self._k : k, :] = rows
        self._k = k


class PathValues:
    """Values (n, L, r) at every time so far, in one array for each token; sums over times are then matrix products."""

    def __init__(self, n_times: int, n: int, n_tokens: int, rank: int) -> None:
        self._rows, self._rank, self.n_times = GrowingRows((n_tokens,), n, n_times * rank), rank, 0

    @property
    def array(self) -> np.ndarray:
        """The values of all times, (t, n, L, r)."""
        rows = self._rows.array
        return rows.reshape(len(rows), self.n_times, self._rank, rows.shape[2]).transpose(1, 3, 0, 2)

    def append(self, values: np.ndarray) -> None:
        """Append values at the next time."""
        self.n_times += 1
        self._rows.append(values.transpose(1, 2, 0))

    def products(self) -> np.ndarray:
        """Return Σ v^s v^tᵀ over the samples, (t + 1, L, r, r), for the latest t and every s ≤ t."""
        values = self._rows.array
        sums = values @ values[:, -self._rank :].transpose(0, 2, 1)
        return sums.reshape(len(sums), self.n_times, self._rank, self._rank).transpose(1, 0, 2, 3)

    def combine(self, coefficients: np.ndarray) -> np.ndarray:
        """Return Σ_s R(s) v^s, (n, L, r), for coefficients R (t, L, r, r)."""
        values = self._rows.array
        rows = coefficients.transpose(1, 2, 0, 3).reshape(len(values), self._rank, -1)
        return (rows @ values).transpose(2, 0, 1)


class GaussianPath:
    """Sequence of n samples of centered Gaussian vectors, each drawn conditionally on all earlier vectors.

    All components drawn so far are linear combinations of white columns, white · factorᵀ, with a block triangular
    factor: a Cholesky factorization that grows with each vector.

    Parameters
    ----------
    white : (n, k) white columns of the first components: orthogonal, with mean square 1.
    factor : (k, k) coefficients of the first components.
    """

    def __init__(self, white: np.ndarray, factor: np.ndarray) -> None:
        self._columns, self._factor = _white_columns(white), factor

    @property
    def _white(self) -> np.ndarray:
        return self._columns.array.T

    def regress(self, with_past: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients (r, k) of the next vector in the white columns, and the covariance of the rest.

        Parameters
        ----------
        with_past : (r, k) covariances of the vector with all k earlier components.
        covariance : (r, r) covariance matrix of the vector.
        """
        if not (np.isfinite(with_past).all() and np.isfinite(covariance).all()):
            raise FloatingPointError("the covariances of the fields are not finite numbers")
        # past directions that are rounding errors must not be amplified
        slope = np.linalg.lstsq(self._factor, with_past.T, rcond=ROUNDING)[0].T
        return slope, covariance - slope @ slope.T

    def combine(self, slope: np.ndarray) -> np.ndarray:
        """Return the n samples (n, r) of a vector with coefficients (r, k) in the white columns."""
        return self._white @ slope.T

    def draw(self, fresh: np.ndarray, with_past: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        """Return n samples (n, r) of the next vector.

        Parameters
        ----------
        fresh : (n, r) new white columns, orthogonal to all columns used before.
        with_past : (r, k) covariances of the vector with all k earlier components.
        covariance : (r, r) covariance matrix of the vector.
        """
        slope, rest = self.regress(with_past, covariance)
        row = np.concatenate([slope, psd_root(rest)], axis=1)
        zeros = np.zeros((len(self._factor), len(covariance)))
        self._factor = np.block([[self._factor, zeros], [row]])
        self._columns.append(fresh.T)
        return self._white @ row.T

    def responses(self, values: np.ndarray, sampled: np.ndarray, leading: int) -> np.ndarray:
        """Return mean derivatives of values with respect to the Gaussians, corrected for rare large derivatives.

        With (g_0, g_1, …) = F w and white w, E[values w_j] = Σ_k E[∂values/∂g_k] F_kj (Stein, 1981). The averages of
        sampled derivatives are changed so that this holds for the first columns of w. Eq. :eq:`rare-responses`.

        Parameters
        ----------
        values : (n, a) functions of the path.
        sampled : (a, k) averages of their derivatives over the samples.
        leading : number of columns of w for which the identity is imposed.
        """
        gap = values.T @ self._white[:, :leading] / len(values) - sampled @ self._factor[:, :leading]
        change = np.linalg.lstsq(self._factor[:leading, :leading].T, gap.T, rcond=ROUNDING)[0].T
        return sampled + np.pad(change, ((0, 0), (0, sampled.shape[1] - leading)))

    def slopes(self, values: np.ndarray) -> np.ndarray:
        """Return the coefficients (a, k) of the linear regression of values (n, a) on all components drawn so far.

        By Stein's identity they are the mean derivatives of the values, including the contributions of jumps.
        """
        return self.responses(values, np.zeros((values.shape[1], len(self._factor))), len(self._factor))


def _white_columns(white: np.ndarray) -> GrowingRows:
    """Return white columns (n, k) as rows (k, n) to which columns can be appended."""
    columns = GrowingRows((), len(white), max(2 * white.shape[1], 8))
    columns.append(white.T)
    return columns


class FieldPaths:
    """Paths of the fields: y, then ω̃^0, ω̃^1, …, each drawn conditionally on all earlier fields. Eq. :eq:`path-law`.

    The paths are mirror pairs. If the loss and its parameters are equal for both paths of a pair and m = 0 at all
    times, the second path has the values of the first, up to signs, and is left out: averages of even functions are
    the same without it.

    Parameters
    ----------
    model : the model, or a component of it.
    n_paths : number of paths, even.
    rng : generator of the paths.
    even : whether m = 0 at all times and the loss is even, so that one path of each pair may be enough.

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
        self._columns = _white_columns(white)  # all columns drawn so far, orthonormal over the paths
        roots = psd_root(model.coordinates.rho)
        self.of_token = [GaussianPath(white[:, l * t : (l + 1) * t], roots[l]) for l in range(L)]

    def draw(
        self, overlaps: Overlaps, covariances: np.ndarray, rng: np.random.Generator | None = None,
        like: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Return ω̃^t (n, L, r) at the next time t.

        Parameters
        ----------
        overlaps : overlaps at time t; θ is the covariance with the teacher's fields.
        covariances : (t + 1, L, r, r) q^{s,t} for every s ≤ t; the last is the covariance matrix of ω̃^t.
        rng : generator to draw from instead of the paths' generator.
        like : (n, L, r) fields of other paths with nearly the same distribution. If given, the new fields are nearly
            equal to them.
        """
        L, r = self.model.n_tokens, self.model.rank
        half = shuffled_half(self._n_paths, L * r, rng or self._rng)
        if like is not None:
            half = self._new_part(like) + 1e-3 * half  # few independent numbers, for columns without a new part
        fresh = (whiten if self.copies == 2 else whiten_and_mirror)(half, self._columns.array.T)
        self._columns.append(fresh.T)
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
        white = self._columns.array.T
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


def bytes_per_path(n_times: int, k: int) -> int:
    """Return the memory in bytes of one path of `PathResponses`."""
    return 2 * n_times * (n_times + 1) * k * k


class PathResponses:
    """Derivatives of n paths at up to `n_times` times, in single precision; averages are in double precision.

    Eq. :eq:`path-responses`.

    Parameters
    ----------
    n : number of paths.
    n_times : maximum number of calls of `advance`.
    blocks, size : k = blocks · size; the memory R is block diagonal, with blocks of this size.

    Attributes
    ----------
    carriers : (t + 1,) effective number of paths of the means at the latest time, (Σ|F|)²/Σ|F|²: n if all are equal.
    """

    def __init__(self, n: int, n_times: int, blocks: int, size: int) -> None:
        self._n, self._n_times, self._shape = n, n_times, (blocks, size)
        self._of_time: list[np.ndarray] = []  # F(t, s) for every s, (blocks, size · times, k n) with the times t >= s
        self.carriers = np.zeros(0)

    def advance(self, memory: np.ndarray, slopes: np.ndarray, seed: float = 1.0) -> np.ndarray:
        """Return the means over paths of the diagonal blocks of F(t, s), (t + 1, blocks, size, size), at time t.

        memory : (t, blocks, size, size), R(t, u) for every u < t.
        slopes : (n, k, k), S^t of each path.
        seed : the factor c of δ_{ts}.
        """
        t, n, (blocks, size) = len(self._of_time), self._n, self._shape
        k, by_path = blocks * size, np.ascontiguousarray(slopes.transpose(1, 2, 0), dtype=np.float32)
        means, self.carriers = np.empty((t + 1, blocks, size, size)), np.empty(t + 1)
        self._of_time.append(np.empty((blocks, size * (self._n_times - t), k * n), np.float32))
        with one_thread(), np.errstate(over="ignore", invalid="ignore"):
            for s, stored in enumerate(self._of_time):
                F, rows = np.float32(seed) * by_path, size * (t - s)
                if s < t:
                    R = memory[s:].transpose(1, 2, 0, 3).reshape(blocks, size, rows).astype(np.float32)
                    J = (R @ stored[:, :rows]).reshape(k, k, n)
                    F = sum(by_path[:, m, None] * J[m] for m in range(k))
                stored[:, rows : rows + size] = F.reshape(blocks, size, k * n)
                means[s] = [F[l : l + size, l : l + size].mean(axis=2, dtype=float) for l in range(0, k, size)]
                squares = np.einsum("ijn,ijn->n", F, F)
                total = squares.sum(dtype=float)
                self.carriers[s] = np.sqrt(squares).sum(dtype=float) ** 2 / total if total > 0 else n
        return means
