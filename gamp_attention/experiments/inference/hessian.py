"""The Hessian of the exact risk at a critical point, factored, and the leverage of each sample in it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.one_thread import panels, product
from gamp_attention.data.curvature import rotations
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint
from gamp_attention.data.stores import token_blocks
from gamp_attention.penalties.matrix import on_kinks


@dataclass(frozen=True)
class HessianSettings:
    """Sizes of the dense matrices."""

    block: int = 1024  # samples that are whitened at a time
    flat: float = 1e-9  # curvature, relative to the largest, below which a direction of an indefinite Hessian is left


HESSIAN = HessianSettings()


@dataclass(frozen=True, eq=False)
class FactoredHessian:
    """H = X̃ᵀ ∇²ℓ X̃ + ∇²r among the weights that no kink of the penalty holds, as F S Fᵀ.

    Weights are in the order of their columns. Directions in which a common rotation of the columns moves them have no
    curvature: they are raised, and taken out of what is solved for.

    Attributes
    ----------
    whitener : (k, k), lower triangular F where H is positive definite; else the rows of F⁻¹.
    signs : (k,) the diagonal of S, or None where H is positive definite.
    kept : for each column of Q the coordinates that are free to move.
    flat : (f, k) orthonormal directions of rotations.
    level : the curvature that they are raised to.
    """

    whitener: np.ndarray
    signs: np.ndarray | None
    kept: tuple[np.ndarray, ...]
    flat: np.ndarray
    level: float

    @property
    def size(self) -> int:
        """Weights that are free to move."""
        return sum(map(len, self.kept))

    def columns(self, x: np.ndarray) -> np.ndarray:
        """X̃ᵀ of tokens x (m, L, d) over √d, (k, m L r): the derivatives of each field in the free weights."""
        m, L, _ = x.shape
        r = len(self.kept)
        if r == 1:
            return x.reshape(m * L, -1)[:, self.kept[0]].T
        found, first = np.zeros((self.size, m, L, r)), 0
        for a, rows in enumerate(self.kept):
            found[first : first + len(rows), :, :, a] = x[:, :, rows].transpose(2, 0, 1)
            first += len(rows)
        return found.reshape(self.size, -1)

    def whiten(self, columns: np.ndarray) -> np.ndarray:
        """F⁻¹ of vectors (k, c)."""
        if self.signs is not None:
            return product(self.whitener, columns)
        from scipy.linalg import solve_triangular

        out = np.empty(columns.shape)

        def work(part: slice) -> None:
            out[:, part] = solve_triangular(self.whitener, columns[:, part], lower=True, check_finite=False)

        panels(work, columns.shape[1])
        return out

    def leverages(self, columns: np.ndarray, whitened: np.ndarray, k: int) -> np.ndarray:
        """A = X̃ H⁻¹ X̃ᵀ of each sample, (m, k, k), from its k columns and what `whiten` made of them."""
        rows = np.ascontiguousarray(whitened.T).reshape(whitened.shape[1] // k, k, self.size)
        A = rows @ (rows if self.signs is None else self.signs * rows).transpose(0, 2, 1)
        if not len(self.flat):
            return A
        along = (self.flat @ columns).T.reshape(-1, k, len(self.flat))
        return A - along @ along.transpose(0, 2, 1) / self.level


def factored_hessian(data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> FactoredHessian:
    """The Hessian at Q (d, r), the exact risk there being `at`."""
    from scipy.linalg import LinAlgError, cholesky, eigh

    _, free, curvature = on_kinks(data.penalty, Q, at.smooth)
    kept = tuple(np.flatnonzero(column) for column in free.T)
    size = sum(map(len, kept))
    check.fits("data", size, size)
    H = _data_part(data, at.hessians, kept)
    ridge = np.concatenate([curvature[rows, a] for a, rows in enumerate(kept)])
    H[np.diag_indices(size)] += ridge
    turns = rotations(data, Q)
    flat = turns.transpose(0, 2, 1).reshape(len(turns), size) if len(turns) else np.zeros((0, size))
    level = float(np.trace(H) / max(size, 1))
    raised = H + level * flat.T @ flat
    try:
        return FactoredHessian(cholesky(raised, lower=True, check_finite=False), None, kept, flat, level)
    except LinAlgError:
        values, vectors = eigh(raised, check_finite=False)
        size_of = np.abs(values)
        inverse = np.where(size_of > HESSIAN.flat * size_of.max(), 1 / np.maximum(size_of, 1e-300), 0.0)
        return FactoredHessian((vectors * np.sqrt(inverse)).T, np.sign(values), kept, flat, level)


def _data_part(data: Dataset, hessians: np.ndarray, kept: tuple[np.ndarray, ...]) -> np.ndarray:
    """X̃ᵀ ∇²ℓ X̃ among the kept weights."""
    n, L, r = data.n_samples, data.n_tokens, data.rank
    D = hessians.reshape(n, L, r, L, r)
    edges = np.cumsum([0, *map(len, kept)])
    H = np.zeros((edges[-1], edges[-1]))
    for rows, x in scaled_blocks(data):
        flat = x.reshape(-1, data.dim)
        for a in range(r):
            for b in range(a, r):
                turned = (D[rows, :, a, :, b] @ x).reshape(flat.shape)
                part = product(np.ascontiguousarray(flat[:, kept[a]].T), turned[:, kept[b]])
                H[edges[a] : edges[a + 1], edges[b] : edges[b + 1]] += part
                if a != b:
                    H[edges[b] : edges[b + 1], edges[a] : edges[a + 1]] += part.T
    return 0.5 * (H + H.T)


def scaled_blocks(data: Dataset) -> Any:
    """Rows and (x + p)/√d of blocks of samples, in order."""
    for rows, _, tokens in token_blocks(data.tokens):
        for first in range(0, len(tokens), HESSIAN.block):
            part = tokens[first : first + HESSIAN.block]
            begin = rows.start + first
            yield slice(begin, begin + len(part)), (part + data.positions) / np.sqrt(data.dim)
