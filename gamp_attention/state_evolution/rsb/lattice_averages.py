"""The recursion over levels of clusters for two fields on a lattice, and the averages of one label.

The integral over the inner field δ = √Δ v is a trapezoidal sum over the lattice. The Gaussian of v is a product in the
coordinates of the lattice, so that the smoothing is a sum along columns followed by a sum along rows: products with a
matrix whose entries are negligible far from the diagonal (`Bands`). Derivatives of φ_0 follow from moments of δ under
the weight exp(y φ_1) (Stein, 1981):

    φ_0' = ⟨δ⟩/(yΔ),   φ_0'' = (⟨δδ'⟩ − ⟨δ⟩⟨δ⟩' − Δ)/(yΔ²),   Δ = q_1 − q_0.
"""

from typing import NamedTuple

import numpy as np

from gamp_attention.state_evolution.rsb.lattice_tables import DIRECTIONS, Lattice, Table

RANGE = 1300.0  # largest range of the logarithm of the weights of the inner fields
CUT = 8.5  # standard deviations of the inner field from its most likely value, beyond which it is neglected
ROTATION = np.array([  # of entries 11, 12 and 22 of a symmetric matrix, from the directions of the lattice to tokens
    [DIRECTIONS[0, l] * DIRECTIONS[0, k], DIRECTIONS[0, l] * DIRECTIONS[1, k] + DIRECTIONS[1, l] * DIRECTIONS[0, k],
     DIRECTIONS[1, l] * DIRECTIONS[1, k]] for l, k in ((0, 0), (0, 1), (1, 1))
])  # fmt: skip
BLOCK = 32  # number of rows of a block of a matrix with entries near its diagonal


class Bands(NamedTuple):
    """Three matrices (m, n) with entries near a diagonal: a Gaussian, and it times its displacement and the square."""

    # rows, columns: slices of each block
    rows: list[slice]
    columns: list[slice]
    blocks: list[np.ndarray]  # (3, rows, columns) entries of each block
    shape: tuple[int, int]  # m and n

    def along_first(self, values: np.ndarray, count: int) -> np.ndarray:
        """Return the products (count, m, …) of the first `count` matrices with values (n, …)."""
        out = np.empty((count, self.shape[0], values.shape[1]))
        for rows, columns, block in zip(self.rows, self.columns, self.blocks, strict=True):
            height, width = block.shape[1:]
            product = block[:count].reshape(-1, width) @ values[columns]
            out[:, rows] = product.reshape(count, height, -1)
        return out

    def along_second(self, values: np.ndarray, count: int) -> np.ndarray:
        """Return the products (count, …, m) of values (…, n) with the transposes of the first `count` matrices."""
        out = np.empty((count, len(values), self.shape[0]))
        for rows, columns, block in zip(self.rows, self.columns, self.blocks, strict=True):
            for matrix, product in zip(block, out, strict=False):
                product[:, rows] = values[:, columns] @ matrix.T
        return out

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Return Gᵀ values G (n, n) of the Gaussian G, for values (m, m)."""
        m, n = self.shape
        half, out = np.zeros((n, m)), np.zeros((n, n))
        for rows, columns, (gaussian, *_) in zip(self.rows, self.columns, self.blocks, strict=True):
            half[columns] += gaussian.T @ values[rows]
        for rows, columns, (gaussian, *_) in zip(self.rows, self.columns, self.blocks, strict=True):
            out[:, columns] += half[:, rows] @ gaussian
        return out


def gaussian_bands(n: int, spacing: float, stride: int, variance: float, drift: float) -> Bands:
    """Return the Gaussian of the displacements from each `stride`-th of n nodes to all nodes.

    The Gaussian is normalised on the nodes. The mean and variance of this truncated Gaussian are subtracted from the
    displacement and its square, because they are large at the ends of rows, and ψ changes them only little for small y.
    `drift` is the largest distance of the most likely displacement from zero.
    """
    reach = int(np.ceil((CUT * np.sqrt(variance) + drift) / spacing))
    m = (n - 1) // stride + 1
    rows, columns, blocks = [], [], []
    for first in range(0, m, BLOCK):
        last = min(first + BLOCK, m)
        start, stop = max(first * stride - reach, 0), min((last - 1) * stride + reach + 1, n)
        delta = spacing * (np.arange(start, stop) - stride * np.arange(first, last)[:, None])
        gaussian = np.exp(-0.5 * delta**2 / variance)
        gaussian /= gaussian.sum(axis=1, keepdims=True)
        centred = delta - (gaussian * delta).sum(axis=1, keepdims=True)
        squares = centred**2 - (gaussian * centred**2).sum(axis=1, keepdims=True)
        rows.append(slice(first, last))
        columns.append(slice(start, stop))
        blocks.append(np.stack([gaussian, gaussian * centred, gaussian * squares]))
    return Bands(rows, columns, blocks, (m, n))


class Transition(NamedTuple):
    """The transition p_j from nodes of a lattice (m, m) to nodes of a finer lattice (n, n)."""

    # log_mean, first, second: (m, m), (2, m, m) and (3, m, m) log E exp(ψ), and mean ⟨δ⟩ and covariance (entries 11, 12
    # and 22) of the displacement δ minus their values for ψ = 0, along the directions of the lattice
    log_mean: np.ndarray
    first: np.ndarray
    second: np.ndarray
    bands: Bands  # probabilities of the Gaussian in one direction
    # density, norm: (n, n) exp(ψ − c) and (m, m) its Gaussian average, with a constant c
    density: np.ndarray
    norm: np.ndarray

    def spread(self, law: np.ndarray) -> np.ndarray:
        """Return the probabilities (n, n) of nodes after the transition, from probabilities (m, m) before it."""
        return self.density * self.bands.spread(law / self.norm)


def transition(psi: np.ndarray, bands: Bands, second: bool = True) -> Transition:
    """Return the transition of ψ (n, n) on a lattice; without `second` moments they are NaN.

    FloatingPointError if ψ varies by more than a floating-point exponential.
    """
    top, bottom = psi.max(), psi.min()
    if not top - bottom < RANGE:
        raise FloatingPointError("the logarithm of the weights of the inner fields varies by more than 1300")
    density = np.exp(psi - 0.5 * (top + bottom))
    sums = bands.along_first(density, 3 if second else 2)
    norm, *b = bands.along_second(sums[0], 3 if second else 2)
    a, *ab = bands.along_second(sums[1], 2 if second else 1)
    first = np.stack([a, b[0]]) / norm
    covariance = np.full((3, 1, 1), np.nan)
    if second:
        (aa,) = bands.along_second(sums[2], 1)
        covariance = np.stack([aa, ab[0], b[1]]) / norm
        covariance -= first[[0, 0, 1]] * first[[0, 1, 1]]
    return Transition(np.log(norm) + 0.5 * (top + bottom), first, covariance, bands, density, norm)


class LabelAverages(NamedTuple):
    """Averages for one label; tokens in the order of the fields."""

    phi: np.ndarray  # (k + 1,) averages of φ_j over P_j
    slopes: np.ndarray  # (k + 1, 2) averages of (φ_j')²
    first: np.ndarray  # (2,) average of φ_0'
    bend: np.ndarray  # (2,) average of −φ_0'', by Stein's identity for the outer field
    response: np.ndarray  # (2,) average of the a.e. derivative −∂g/∂ω over P_k.
    # (k + 1, 2, 2) averages of (∂²φ_j)², the last without jumps; NaN for j < k if they were not requested
    squares: np.ndarray


def average_table(
    table: Table, move: np.ndarray, variances: np.ndarray, parisi: np.ndarray, lattice: Lattice, squares: bool = True
) -> LabelAverages:
    """Return the averages for one label.

    Parameters
    ----------
    table : φ_k on the lattice.
    move : (2,) difference between the mean of the outer field and the centre of the lattice.
    variances : (k + 1,) variance of the outer field, then Δ_1, …, Δ_k.
    parisi : (k,) y_1, …, y_k.
    lattice : lattice of the innermost level, and the coarser lattices of the other levels.
    squares : whether the squares of second derivatives are needed.
    """
    h, phi, axes = lattice.spacing, table.phi, table.axes
    levels = [(phi, table.slope, table.curvature)]
    steepest = float(np.sqrt((table.slope**2).sum(axis=0).max()))
    transitions: list[Transition] = []
    for j in range(len(parisi) - 1, -1, -1):
        delta, y, stride = float(variances[j + 1]), float(parisi[j]), lattice.strides[j]
        moved = transition(y * phi, gaussian_bands(len(phi), h, stride, delta, y * delta * steepest), squares)
        phi, axes, h = moved.log_mean / y, (axes[0][::stride], axes[1][::stride]), h * stride
        first, second = np.tensordot(DIRECTIONS.T, moved.first, 1), np.tensordot(ROTATION, moved.second, 1)
        levels.insert(0, (phi, first / (y * delta), second / (y * delta**2)))
        transitions.insert(0, moved)
    offsets = [axis - step for axis, step in zip(axes, DIRECTIONS @ move, strict=True)]
    parts = [np.exp(-0.5 * offset**2 / variances[0]) for offset in offsets]
    law = np.outer(*(part / part.sum() for part in parts))
    along, across = ((law * levels[0][1]).sum(axis=axis) for axis in (2, 1))
    rates = np.stack([along @ offsets[0], across @ offsets[1]], axis=1) @ DIRECTIONS
    means = []
    for j, (value, gradient, bends) in enumerate(levels):
        law = transitions[j - 1].spread(law) if j else law
        means.append((np.vdot(law, value), *(np.einsum("ij,kij,kij->k", law, v, v) for v in (gradient, bends))))
    phis, slopes, bends = (np.array(values) for values in zip(*means, strict=True))
    response = np.einsum("ij,kij->k", law, table.curvature)[[0, 2]]
    matrices = bends[:, [0, 1, 1, 2]].reshape(-1, 2, 2)
    return LabelAverages(phis, slopes, along.sum(axis=1), -np.diag(rates) / variances[0], response, matrices)
