"""The factored Hessian of the exact risk at a critical point, and the leverage of each sample.

The Hessian is H = X̃ᵀ ∇²ℓ X̃ + ∇²r, with X̃ = (x + p)/√d the scaled tokens, ℓ the losses of the samples and r the
penalty. Weights at a kink of the penalty are fixed, so H is restricted to the free weights. H is factored once; after
that the Hessian without a sample costs only a matrix of the size of the sample's fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import over_panels
from gamp_attention.problem.curvature import BLOCK, data_hessian, rotations, scaled_blocks
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.penalties.standard import on_kinks
from gamp_attention.problem.risk import RiskAtPoint

FLAT = 1e-9  # curvature, relative to the largest, that is added to a Hessian that is not positive definite


@dataclass(frozen=True, eq=False)
class TokenRows:
    """The tokens (x + p)/√d of all samples, block by block, in p coordinates."""

    data: Dataset  # the samples
    # (n, L, p) the tokens in an orthonormal basis of their span, or None for the original coordinates
    coordinates: np.ndarray | None = None
    max_scaled: float = 2e7  # maximum number of entries of which a scaled copy stays in memory for repeated passes

    @property
    def dim(self) -> int:
        """Number of coordinates p."""
        return self.data.dim if self.coordinates is None else self.coordinates.shape[2]

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Return rows and tokens (m, L, p) of blocks of samples, in order."""
        if self.coordinates is None:
            yield from scaled_blocks(self.data) if self._scaled is None else self._scaled
            return
        for first in range(0, len(self.coordinates), BLOCK):
            rows = slice(first, min(first + BLOCK, len(self.coordinates)))
            yield rows, self.coordinates[rows]

    @cached_property
    def _scaled(self) -> list[tuple[slice, np.ndarray]] | None:
        """Blocks in the original coordinates, stored for repeated passes; None if they are too large."""
        data = self.data
        small = data.n_samples * data.n_tokens * data.dim <= self.max_scaled
        return list(scaled_blocks(data)) if small else None

    def of_samples(self, samples: np.ndarray) -> np.ndarray:
        """Return the tokens (m, L, p) of samples (m,)."""
        if self.coordinates is not None:
            return self.coordinates[samples]
        tokens = self.data.tokens
        if isinstance(tokens, np.ndarray):
            rows = tokens[samples]
        else:
            rows = np.concatenate([tokens.read(slice(k, k + 1)) for k in samples.tolist()])
        return (rows + self.data.positions) / np.sqrt(self.data.dim)


def token_rows(data: Dataset, reduced: float = 0.8, max_entries: float = 2e8) -> TokenRows:
    """Return the tokens in min(d, n L) coordinates if the penalty allows it: the kernel form of the Hessian.

    With the penalty λ‖Q‖²/2, or with positive strengths λ_a of the columns, the columns of a minimum lie in the span of
    the n L tokens, and the risk depends on their coordinates in an orthonormal basis of this span only: the triangular
    factor of a QR decomposition of the tokens. The basis is used up to the ratio `reduced` of n L to d, above which it
    saves no time, and for at most `max_entries` numbers, which must fit into memory.
    """
    n, L, d = data.n_samples, data.n_tokens, data.dim
    allowed = data.penalty.quadratic and np.all(data.penalty.curvature > 0)
    if not allowed or n * L > reduced * d or n * L * d > max_entries:
        return TokenRows(data)
    from scipy.linalg import qr

    flat = np.concatenate([x.reshape(-1, d) for _, x in scaled_blocks(data)])
    triangle = qr(flat.T, mode="r", check_finite=False, overwrite_a=True)[0][: n * L]
    return TokenRows(data, np.ascontiguousarray(triangle.T).reshape(n, L, n * L))


def is_quadratic(data: Dataset) -> bool:
    """Return whether the exact risk is quadratic in the weights, so that a Newton step ends at the minimum."""
    return has_squared_loss(data) and data.penalty.quadratic


def has_squared_loss(data: Dataset) -> bool:
    """Return whether the loss is quadratic in the fields, as the loss declares."""
    return bool(getattr(data.student, "quadratic", False))


def minimum_in(tokens: TokenRows, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray:
    """Return the weights (p, r) of a minimum Q (d, r) in the coordinates of the tokens.

    At a minimum with ridge penalty λ Q = −X̃ᵀ∇ℓ, so the coordinates of Q follow from the coordinates of the tokens.
    """
    if tokens.coordinates is None:
        return Q
    slopes = at.loss_gradients.reshape(-1, Q.shape[1])
    return -tokens.coordinates.reshape(len(slopes), -1).T @ slopes / tokens.data.penalty.curvature


@dataclass(frozen=True, eq=False)
class FactoredHessian:
    """Cholesky factor F of the Hessian H = X̃ᵀ ∇²ℓ X̃ + ∇²r = F Fᵀ of the k free weights.

    The weights are ordered column after column of Q. Common rotations of the columns do not change the risk, so H has
    no curvature along them. To make H invertible, these directions get the curvature `level`; `leverages` removes their
    contribution. At a saddle, H is increased by a multiple of the unit matrix until it is positive definite.
    """

    whitener: np.ndarray  # (k, k) lower triangular F
    is_minimum: bool  # False if H had to be increased
    free_indices: tuple[np.ndarray, ...]  # indices of the free weights in each column of Q
    flat: np.ndarray  # (f, k) orthonormal directions of the rotations
    level: float  # curvature that is added along these directions

    @property
    def size(self) -> int:
        """Number k of free weights."""
        return sum(map(len, self.free_indices))

    def columns(self, x: np.ndarray) -> np.ndarray:
        """Return the derivatives (k, m L r) of the fields in the free weights, for scaled tokens x (m, L, d)."""
        m, L, _ = x.shape
        derivatives, first = np.zeros((self.size, m, L, len(self.free_indices))), 0
        for a, rows in enumerate(self.free_indices):
            derivatives[first : first + len(rows), :, :, a] = x[:, :, rows].transpose(2, 0, 1)
            first += len(rows)
        return derivatives.reshape(self.size, m * L * len(self.free_indices))

    def whiten(self, columns: np.ndarray, transposed: bool = False) -> np.ndarray:
        """Return F⁻¹, or F⁻ᵀ, times vectors (k, c), identical for any number of threads."""
        from scipy.linalg import solve_triangular

        F, out = self.whitener, np.empty(columns.shape)

        def work(part: slice) -> None:
            out[:, part] = solve_triangular(F, columns[:, part], lower=True, trans=int(transposed), check_finite=False)

        over_panels(work, columns.shape[1])
        return out

    def solve(self, columns: np.ndarray) -> np.ndarray:
        """Return the inverse of H, with curvature `level` along rotations, times vectors (k, c)."""
        return self.whiten(self.whiten(columns), transposed=True)

    def leverages(self, columns: np.ndarray, whitened: np.ndarray, k: int) -> np.ndarray:
        """Return A = X̃ H⁻¹ X̃ᵀ (m, k, k) of each sample, without the contribution of rotations.

        `columns` (size, m k) are derivatives of the fields, see `columns`; `whitened` is the result of `whiten` for
        them, and k the number L r of fields of a sample.
        """
        rows = np.ascontiguousarray(whitened.T).reshape(whitened.shape[1] // k, k, self.size)
        A = rows @ rows.transpose(0, 2, 1)
        if not len(self.flat):
            return A
        along = (self.flat @ columns).T.reshape(-1, k, len(self.flat))
        return A - along @ along.transpose(0, 2, 1) / self.level

    def pack(self, G: np.ndarray) -> np.ndarray:
        """Return the entries (k, c) of vectors (p, r, c) at the free weights."""
        return np.concatenate([G[rows, a] for a, rows in enumerate(self.free_indices)])

    def unpack(self, flat: np.ndarray, p: int) -> np.ndarray:
        """Return vectors (p, r, c) with the entries (k, c) of the free weights, zero at the others."""
        out, first = np.zeros((p, len(self.free_indices), flat.shape[1])), 0
        for a, rows in enumerate(self.free_indices):
            out[rows, a] = flat[first : first + len(rows)]
            first += len(rows)
        return out


def factored_hessian(data: Dataset, at: RiskAtPoint, Q: np.ndarray, tokens: TokenRows | None = None) -> FactoredHessian:
    """Return the factored Hessian at Q (d, r), with the exact risk `at` Q, in the coordinates of `tokens`."""
    from scipy.linalg import LinAlgError, cholesky, eigvalsh

    tokens = TokenRows(data) if tokens is None else tokens
    Q = minimum_in(tokens, at, Q)
    smooth = at.smooth if tokens.coordinates is None else -data.penalty.curvature * Q
    _, free, curvature = on_kinks(data.penalty, Q, smooth)
    free_indices = tuple(np.flatnonzero(column) for column in free.T)
    size = sum(map(len, free_indices))
    check.require_memory("data", size, size)
    H = data_hessian(tokens.blocks(), at.hessians, free_indices)
    H[np.diag_indices(size)] += np.concatenate([curvature[rows, a] for a, rows in enumerate(free_indices)])
    directions = rotations(data, Q)
    flat = directions.transpose(0, 2, 1).reshape(len(directions), size) if len(directions) else np.zeros((0, size))
    level = float(np.trace(H) / max(size, 1))
    raised = H + level * flat.T @ flat
    try:
        return FactoredHessian(cholesky(raised, lower=True, check_finite=False), True, free_indices, flat, level)
    except LinAlgError:
        lowest, *_, highest = eigvalsh(raised, check_finite=False)
        raised[np.diag_indices(size)] += 2 * max(-lowest, 0.0) + FLAT * max(highest, -lowest)
        return FactoredHessian(cholesky(raised, lower=True, check_finite=False), False, free_indices, flat, level)
