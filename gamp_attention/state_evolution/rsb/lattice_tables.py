"""The innermost function φ_k = −M_V of two fields and its derivatives at the nodes of a square lattice.

The proximal problem of each node is solved once, at one V (`tabulate`). The table at another V near it follows without
proximal problems (`Table.at`): the Moreau envelope at V + δ is the envelope at V after a further proximal step of
length δ,

    φ_{V+δ}(ω) = max_ω' φ_V(ω') − |ω' − ω|²/2δ,

and with the expansion of φ_V to second order, gradient g and Hessian H,

    φ_{V+δ} = φ_V + ½ δ g'(1 − δH)⁻¹g,   g_{V+δ} = (1 − δH)⁻¹ g.

Near a jump of the proximal map, both minima are stored, and each is moved, so that the jump moves, too.
"""

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gamp_attention.denoisers.output import Denoised, denoise

STRIDE = 4  # distance of the nodes with a global search, in nodes
STEEP = 2.0  # |∂z/∂ω| above which minimisers are not predicted linearly
APART = 0.1  # deviation of a minimiser from its linear prediction from a neighbour, in units of the distance of
# both fields, above which both may belong to different minima
SMOOTH = 0.5  # smallest eigenvalue of 1 − δH for which the expansion of φ to second order is used
SLOPE = (np.sqrt(5) - 1) / 2  # slope of the lattice relative to the axes; relative to lines of equal fields √5 − 2
DIRECTIONS = np.array([[1.0, SLOPE], [-SLOPE, 1.0]]) / np.hypot(1.0, SLOPE)  # rows: directions of the lattice
SHIFTS = (0.7548776662466927, 0.5698402909980532)  # shifts of successive lattices: powers of the plastic number


class Lattice(NamedTuple):
    """Square lattice of fields."""

    spacing: float  # distance of neighbouring nodes of the innermost level
    n: int  # number of nodes on each side of the centre
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
    # two arrays (n,), displacements from the centre along the directions of the lattice
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
    other node the lowest of the local minima next to the minimisers at the four surrounding searched nodes is taken.
    Only those minimisers are tried that deviate from the linear prediction from the nearest searched node. Higher
    minima are returned with the indices of their nodes.

    Raises FloatingPointError if a minimisation fails.
    """
    size = len(fields)
    block = np.full((2, 1, 1), V)
    searched = fields[::stride, ::stride]
    n = len(searched)
    best = denoise(loss, np.tile(params, (n**2, 1)), searched.reshape(-1, 2, 1), block, jacobian=True)
    minimisers, slopes = best.z.reshape(n, n, 2), best.jacobian.reshape(n, n, 2, 2)
    index = np.arange(size)
    below = np.minimum(index // stride, n - 2)  # cell of searched nodes
    side = (2 * (index - stride * below) > stride).astype(int)  # which end of the cell is the nearest
    here = (below + side)[:, None], below + side
    centres, rows = fields.reshape(-1, 2, 1), np.tile(params, (size**2, 1))
    distance = (fields - searched[here])[..., 0]
    change = np.einsum("ijab,ijb->ija", slopes[here], distance)
    change[np.abs(change).max(axis=-1) > STEEP * np.abs(distance).max(axis=-1)] = 0.0  # near the end of a minimum
    out = denoise(loss, rows, centres, block, (minimisers[here] + change).reshape(-1, 2, 1), hold=True, jacobian=True)
    corners = list(product((slice(None, -1), slice(1, None)), repeat=2))
    apart = APART * float(np.linalg.norm(searched[1, 1] - searched[0, 0]))
    deviates = np.empty((4, 4, n - 1, n - 1), dtype=bool)  # by nearest and other corner, for each cell
    for a, first in enumerate(corners):
        for b, second in enumerate(corners):
            apart_by = (slopes[first] @ (searched[second] - searched[first]))[..., 0]
            deviates[a, b] = np.linalg.norm(minimisers[second] - minimisers[first] - apart_by, axis=-1) > apart
    nearest, cell = 2 * side[:, None] + side, (below[:, None], below)
    rivals = []
    for b, (i, j) in enumerate(product((0, 1), repeat=2)):
        different = np.flatnonzero(deviates[nearest, b, *cell])
        if len(different) == 0:
            continue
        other = minimisers[(below + i)[:, None], below + j].reshape(-1, 2, 1)[different]
        trial = denoise(loss, rows[different], centres[different], block, other, hold=True, jacobian=True)
        lower = trial.moreau < out.moreau[different]
        for values, trial_values in zip(out, trial, strict=True):
            both = values[different[lower]], trial_values[lower]
            trial_values[lower], values[different[lower]] = both
        rivals.append((different, trial))
    if not out.solved.all():
        raise FloatingPointError("a proximal problem of the output channel was not solved")
    return out, rivals


def tabulate(
    loss: Any, params: np.ndarray, constant: float, centre: np.ndarray, V: float, lattice: Lattice, number: int,
    radius: float = 0.0,
) -> Table:  # fmt: skip
    """Return φ_k on the lattice of a label.

    Parameters
    ----------
    loss, params, constant : loss of a sample, its parameters (P,), and the constant of its risk.
    centre : (2,) centre of the lattice.
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
    fields = (centre + np.stack([a, b], axis=-1) @ DIRECTIONS)[..., None]
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
