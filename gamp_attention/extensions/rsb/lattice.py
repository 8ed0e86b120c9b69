"""The innermost function φ_k = −M_V of two fields on a square lattice, and the recursion over levels of clusters.

The proximal problem of each node is solved once, at one V (`tabulate`). The table at another V near it follows without
proximal problems (`Table.at`): the Moreau envelope at V + δ is the envelope at V after a further proximal step of
length δ,

    φ_{V+δ}(ω) = max_ω' φ_V(ω') − |ω' − ω|²/2δ,

and with the expansion of φ_V to second order, gradient g and Hessian H,

    φ_{V+δ} = φ_V + ½ δ g'(1 − δH)⁻¹g,   g_{V+δ} = (1 − δH)⁻¹ g.

Near a jump of the proximal map, both minima are stored, and each is moved, so that the jump moves, too.

**Recursion over levels, and the averages of one label.** The integral over the inner field δ = √Δ v is a trapezoidal
sum over the lattice. The Gaussian of v is a product in the coordinates of the lattice, so that the smoothing is a sum
along columns followed by a sum along rows: products with a matrix whose entries are negligible far from the diagonal
(`Bands`). Derivatives of φ_0 follow from moments of δ under the weight exp(y φ_1) (Stein, 1981):

    φ_0' = ⟨δ⟩/(yΔ),   φ_0'' = (⟨δδ'⟩ − ⟨δ⟩⟨δ⟩' − Δ)/(yΔ²),   Δ = q_1 − q_0.
"""

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gamp_attention.extensions.rsb.weights import LabelAverages
from gamp_attention.problem.denoisers.output import Denoised, denoise

STRIDE = 4  # distance of the nodes with a global search, in nodes
STEEP = 2.0  # |∂z/∂ω| above which minimizers are not predicted linearly
# deviation of a minimizer from its linear prediction from a neighbor, in units of the distance of both fields, above
# which both may belong to different minima
APART = 0.1
SMOOTH = 0.5  # smallest eigenvalue of 1 − δH for which the expansion of φ to second order is used
SLOPE = (np.sqrt(5) - 1) / 2  # slope of the lattice relative to the axes; relative to lines of equal fields √5 − 2
DIRECTIONS = np.array([[1.0, SLOPE], [-SLOPE, 1.0]]) / np.hypot(1.0, SLOPE)  # rows: directions of the lattice
SHIFTS = (0.7548776662466927, 0.5698402909980532)  # shifts of successive lattices: powers of the plastic number


class Lattice(NamedTuple):
    """Square lattice of fields."""

    spacing: float  # distance of neighboring nodes of the innermost level
    n: int  # number of nodes on each side of the center
    strides: tuple[int, ...]  # (k,) distances of the nodes of level j − 1 in nodes of level j, for j = 1, …, k


def even_ceil(x: float, factor: int = 1) -> int:
    """Return the smallest even multiple of `factor` that is not below x; 2 n + 1 nodes then fit STRIDE."""
    return 2 * factor * int(np.ceil(x / (2 * factor)))


class Rivals(NamedTuple):
    """Second minima of some nodes of a table."""

    node: np.ndarray  # (N,) indices of the nodes in the flattened lattice
    # phi, slope, curvature: (N,), (2, N) and (3, N) as in `Table`
    phi: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray


class Table(NamedTuple):
    """φ_k on the lattice of a label."""

    V: float  # response of a minimum
    # two arrays (n,), displacements from the center along the directions of the lattice
    axes: tuple[np.ndarray, np.ndarray]
    # phi, slope: (n, n) and (2, n, n) φ_k and its gradient g
    phi: np.ndarray
    slope: np.ndarray
    # (3, n, n) −∂g_1/∂ω_1, −∂g_1/∂ω_2 and −∂g_2/∂ω_2 almost everywhere. Both derivatives are stored in single
    # precision, because tables may fill the memory.
    curvature: np.ndarray
    rivals: list[Rivals]  # higher minima near jumps

    def at(self, V: float) -> "Table":
        """Return the table at another V, without rivals; its `curvature` is not changed, except at new minima."""
        phi, slope = displace(V - self.V, self.phi, self.slope, self.curvature)
        curvature = self.curvature.copy() if self.rivals else self.curvature
        for node, *values in self.rivals:
            trial, steep = displace(V - self.V, *values)
            higher = trial > phi.ravel()[node]
            chosen = node[higher]
            phi.reshape(-1)[chosen] = trial[higher]
            slope.reshape(2, -1)[:, chosen] = steep[:, higher]
            curvature.reshape(3, -1)[:, chosen] = values[2][:, higher]
        return Table(V, self.axes, phi, slope, curvature, [])


def displace(delta: float, phi: np.ndarray, slope: np.ndarray, curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return φ and its gradient after a change δ of V.

    Where an eigenvalue of 1 − δH is below SMOOTH, near the end of a jump, H is omitted.
    """
    a, b, c = np.float32(delta) * curvature
    a += 1
    c += 1
    steep = ((a - SMOOTH) * (c - SMOOTH) < b * b) | (a < SMOOTH)
    a[steep] = c[steep] = 1.0
    b[steep] = 0.0
    moved = np.stack([c * slope[0] - b * slope[1], a * slope[1] - b * slope[0]]) / (a * c - b * b)
    return phi + 0.5 * delta * (slope * moved).sum(axis=0), moved.astype(float)


def minima_on_lattice(
    loss: Any, params: np.ndarray, fields: np.ndarray, V: float, stride: int
) -> tuple[Denoised, list[tuple[np.ndarray, Denoised]]]:
    """Return the denoiser at the global minimum for fields (n, n, 2, 1) on a lattice, and higher minima of some nodes.

    n − 1 is a multiple of `stride`. The global search is done at every `stride`-th node in both directions. At each
    other node the lowest of the local minima next to the minimizers at the four surrounding searched nodes is taken.
    Only those minimizers are tried that deviate from the linear prediction from the nearest searched node. Higher
    minima are returned with the indices of their nodes.

    Raises FloatingPointError if a minimization fails.
    """
    size = len(fields)
    block = np.full((2, 1, 1), V)
    searched = fields[::stride, ::stride]
    n = len(searched)
    best = denoise(loss, np.tile(params, (n**2, 1)), searched.reshape(-1, 2, 1), block, jacobian=True)
    minimizers, slopes = best.z.reshape(n, n, 2), best.jacobian.reshape(n, n, 2, 2)
    index = np.arange(size)
    below = np.minimum(index // stride, n - 2)  # cell of searched nodes
    side = (2 * (index - stride * below) > stride).astype(int)  # which end of the cell is the nearest
    here = (below + side)[:, None], below + side
    centers, rows = fields.reshape(-1, 2, 1), np.tile(params, (size**2, 1))
    distance = (fields - searched[here])[..., 0]
    change = np.einsum("ijab,ijb->ija", slopes[here], distance)
    change[np.abs(change).max(axis=-1) > STEEP * np.abs(distance).max(axis=-1)] = 0.0  # near the end of a minimum
    out = denoise(loss, rows, centers, block, (minimizers[here] + change).reshape(-1, 2, 1), hold=True, jacobian=True)
    corners = list(product((slice(None, -1), slice(1, None)), repeat=2))
    apart = APART * float(np.linalg.norm(searched[1, 1] - searched[0, 0]))
    deviates = np.empty((4, 4, n - 1, n - 1), dtype=bool)  # by nearest and other corner, for each cell
    for a, first in enumerate(corners):
        for b, second in enumerate(corners):
            apart_by = (slopes[first] @ (searched[second] - searched[first]))[..., 0]
            deviates[a, b] = np.linalg.norm(minimizers[second] - minimizers[first] - apart_by, axis=-1) > apart
    nearest, cell = 2 * side[:, None] + side, (below[:, None], below)
    rivals = []
    for b, (i, j) in enumerate(product((0, 1), repeat=2)):
        different = np.flatnonzero(deviates[nearest, b, *cell])
        if len(different) == 0:
            continue
        other = minimizers[(below + i)[:, None], below + j].reshape(-1, 2, 1)[different]
        trial = denoise(loss, rows[different], centers[different], block, other, hold=True, jacobian=True)
        lower = trial.moreau < out.moreau[different]
        for values, trial_values in zip(out, trial, strict=True):
            both = values[different[lower]], trial_values[lower]
            trial_values[lower], values[different[lower]] = both
        rivals.append((different, trial))
    if not out.solved.all():
        raise FloatingPointError("a proximal problem of the output channel was not solved")
    return out, rivals


def tabulate(
    loss: Any, params: np.ndarray, constant: float, center: np.ndarray, V: float, lattice: Lattice, number: int,
    radius: float = 0.0,
) -> Table:  # fmt: skip
    """Return φ_k on the lattice of a label.

    Parameters
    ----------
    loss, params, constant : loss of a sample, its parameters (P,), and the constant of its risk.
    center : (2,) center of the lattice.
    V : response of a minimum.
    lattice : lattice of the innermost level.
    number : index of the label, which determines the shift of the lattice.
    radius : largest change of V of tables that follow from this table, relative to V. Rivals that can become the
        highest within this distance are stored.
    """
    h, n = lattice.spacing, lattice.n
    line = h * np.arange(-n, n + 1)
    shift = h * ((np.array(SHIFTS) * (number + 1)) % 1 - 0.5)
    axes = line + shift[0], line + shift[1]
    a, b = np.meshgrid(*axes, indexing="ij")
    fields = (center + np.stack([a, b], axis=-1) @ DIRECTIONS)[..., None]
    out, others = minima_on_lattice(loss, params, fields, V, STRIDE)
    phi, *derivatives = _values(out, constant, V)
    rivals = []
    for node, trial in others:
        # changes of φ are at most radius V times the larger of both squares of the slopes
        squares = np.maximum((trial.g**2).sum(axis=(1, 2)), (out.g[node] ** 2).sum(axis=(1, 2)))
        near = trial.solved & (trial.moreau - out.moreau[node] < radius * V * squares)
        near &= np.abs(trial.z - out.z[node]).max(axis=(1, 2)) > APART * h
        rivals.append(Rivals(node[near], *(values[..., near] for values in _values(trial, constant, V))))
    sizes = (2 * n + 1,) * 2
    slope, curvature = (values.reshape(-1, *sizes) for values in derivatives)
    return Table(V, axes, phi.reshape(sizes), slope, curvature, rivals)


def _values(out: Denoised, constant: float, V: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return φ (N,), its gradient (2, N) and −∂g/∂ω (3, N), see `Table`."""
    J = out.jacobian
    curvature = np.stack([1 - J[:, 0, 0], -0.5 * (J[:, 0, 1] + J[:, 1, 0]), 1 - J[:, 1, 1]]) / V
    return -(out.moreau + constant), out.g[:, :, 0].T.astype(np.float32), curvature.astype(np.float32)


RANGE = 1300.0  # largest range of the logarithm of the weights of the inner fields
CUT = 8.5  # standard deviations of the inner field from its most likely value, beyond which it is neglected
ROTATION = np.array([  # of entries 11, 12 and 22 of a symmetric matrix, from the directions of the lattice to tokens
    [DIRECTIONS[0, l] * DIRECTIONS[0, k], DIRECTIONS[0, l] * DIRECTIONS[1, k] + DIRECTIONS[1, l] * DIRECTIONS[0, k],
     DIRECTIONS[1, l] * DIRECTIONS[1, k]] for l, k in ((0, 0), (0, 1), (1, 1))
])  # fmt: skip
BLOCK = 32  # number of rows of a block of a matrix with entries near its diagonal


class Bands(NamedTuple):
    """Three matrices (m, n) with entries near a diagonal: a Gaussian, and it times its displacement and the square."""

    matrices: np.ndarray  # (3, m, n)
    blocks: list[tuple[slice, slice]]  # rows and columns of the blocks with entries that are not negligible

    def along_first(self, values: np.ndarray, count: int) -> np.ndarray:
        """Return the products (count, m, …) of the first `count` matrices with values (n, …)."""
        out = np.empty((count, self.matrices.shape[1], values.shape[1]))
        for rows, columns in self.blocks:
            out[:, rows] = self.matrices[:count, rows, columns] @ values[columns]
        return out

    def along_second(self, values: np.ndarray, count: int) -> np.ndarray:
        """Return the products (count, …, m) of values (…, n) with the transposes of the first `count` matrices."""
        return self.along_first(values.T, count).swapaxes(1, 2)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """Return Gᵀ values G (n, n) of the Gaussian G, for values (m, m)."""
        for _ in range(2):  # (Gᵀ values)ᵀ, then the same for the other direction
            along = np.zeros((self.matrices.shape[2], values.shape[1]))
            for rows, columns in self.blocks:
                along[columns] += self.matrices[0, rows, columns].T @ values[rows]
            values = along.T
        return values


def gaussian_bands(n: int, spacing: float, stride: int, variance: float, drift: float) -> Bands:
    """Return the Gaussian of the displacements from each `stride`-th of n nodes to all nodes.

    The Gaussian is normalized on the nodes. The mean and variance of this truncated Gaussian are subtracted from the
    displacement and its square, because they are large at the ends of rows, and ψ changes them only little for small y.
    `drift` is the largest distance of the most likely displacement from zero.
    """
    reach = int(np.ceil((CUT * np.sqrt(variance) + drift) / spacing))
    delta = spacing * (np.arange(n) - np.arange(0, n, stride)[:, None])
    gaussian = np.exp(-0.5 * delta**2 / variance)
    gaussian /= gaussian.sum(axis=1, keepdims=True)
    centered = delta - (gaussian * delta).sum(axis=1, keepdims=True)
    squares = centered**2 - (gaussian * centered**2).sum(axis=1, keepdims=True)
    blocks = []
    for first in range(0, len(delta), BLOCK):
        last = min(first + BLOCK, len(delta))
        columns = slice(max(first * stride - reach, 0), min((last - 1) * stride + reach + 1, n))
        blocks.append((slice(first, last), columns))
    return Bands(np.stack([gaussian, gaussian * centered, gaussian * squares]), blocks)


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


def average_table(
    table: Table, move: np.ndarray, variances: np.ndarray, parisi: np.ndarray, lattice: Lattice, squares: bool = True
) -> LabelAverages:
    """Return the averages for one label.

    Parameters
    ----------
    table : φ_k on the lattice.
    move : (2,) difference between the mean of the outer field and the center of the lattice.
    variances : (k + 1,) variance of the outer field, then Δ_1, …, Δ_k.
    parisi : (k,) y_1, …, y_k.
    lattice : lattice of the innermost level, and the coarser lattices of the other levels.
    squares : whether the squares of second derivatives are needed.
    """
    h, phi, axes = lattice.spacing, table.phi, table.axes
    # φ_j, its gradient and −1 times its second derivatives, from the outermost level inward
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
