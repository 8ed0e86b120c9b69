"""Output channel with k steps of replica symmetry breaking for attention with two tokens (L = 2, r = t = 1).

Given the teacher's fields u, the outer field is Gaussian with mean m + θu/ρ and covariance q_0 − θ²/ρ, equal for both
tokens, and with the Moreau envelope M of the sample's loss

    φ_0(ω) = (1/y) log E_v exp(y φ_1(ω + √(q_1 − q_0) v)),   φ_1 = −M_V,   v ~ N(0, 1) in two dimensions.

Discretisation. φ_1 is computed at the nodes of a square lattice in the plane of fields. The integral over v is a
trapezoidal sum over the lattice, and so are the averages over the outer field. For smooth functions their errors
decrease exponentially with the inverse spacing (Trefethen and Weideman, 2014). φ_1 has kinks on lines where the
proximal map jumps. If the slope of such a line relative to the lattice were rational, the error would be of second
order in the spacing. It is far smaller if the distances of the nodes from the line are equidistributed (Kuipers and
Niederreiter, 1974). Jumps of attention lie near lines of equal fields and near the axes; the slope of the lattice
relative to both is a quadratic irrational number. In addition the lattice is shifted from one label to the next.

The Gaussian of v is a product in the coordinates of the lattice, so that the smoothing is a one-dimensional sum along
rows followed by a sum along columns (`smooth_rows`). Each sum is a logarithm of a sum of exponentials, with the maximum
subtracted. Derivatives of φ_0 follow from moments of the displacement δ = √(q_1 − q_0) v under the weight
exp(y φ_1) (Stein, 1981):

    φ_0' = ⟨δ⟩/(yΔ),   φ_0'' = (⟨δδ'⟩ − ⟨δ⟩⟨δ⟩' − Δ)/(yΔ²),   Δ = q_1 − q_0.

Averages over labels are a product rule for the teacher's fields, Gauss-Hermite in their sum and Gauss-Legendre in their
difference, on which the labels depend strongly. It is restricted to a fundamental domain of the symmetries: reversal of
the tokens together with a change of sign of all fields, and, if m = 0 or θ = 0, the change of sign of the teacher's
fields.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.quadrature import gauss_hermite, legendre_panels
from gamp_attention.denoisers.output import Denoised, denoise
from gamp_attention.models.model import Model
from gamp_attention.state_evolution.rsb.solve import Problem
from gamp_attention.state_evolution.rsb.weights import BrokenWeights, LevelHats, Levels

SPACING, FINER = 0.9, 0.95  # spacing of the lattice in units of √Δ at resolution 0; factor for each resolution
COARSER = 1.15  # spacing of a fixed lattice in units of the wanted spacing, above which another lattice is chosen
SYMMETRIC_SPACING = 0.12  # the same in units of √q_0 without breaking, where the sums smooth nothing
DIFFERENCE_NODES = (20, 6)  # Legendre nodes of the positive difference of teacher fields: at resolution 0, and added
SUM_NODES = (6, 2)  # the same for the Gauss-Hermite rule of their sum, on which the averages depend weakly
DIFFERENCE_END = 5.5  # largest difference of teacher fields, in standard deviations
REACH = (4.25, 0.25)  # standard deviations of the fields on each side of their most likely values that are in the
# lattice: at resolution 0, and added for each resolution
PROBES = 7  # nodes in each direction of the grid that determines the largest |φ_1'|
STRIDE = 4  # distance of the nodes with a global search, in nodes
STEEP = 2.0  # |∂z/∂ω| above which minimisers are not predicted linearly
APART = 0.1  # deviation of a minimiser from its linear prediction from a neighbour, in units of the distance of
# both fields, above which both may belong to different minima
MAX_STORED = 5e6  # largest number of nodes of all labels whose tables are stored, 100 bytes each
MAX_NODES = 4000  # largest number of lattice nodes in each direction
SMALLEST = 1e-8  # smallest variance of the outer field given the teacher's fields, in units of q_1
SLOPE = (np.sqrt(5) - 1) / 2  # slope of the lattice relative to the axes; relative to lines of equal fields √5 − 2
DIRECTIONS = np.array([[1.0, SLOPE], [-SLOPE, 1.0]]) / np.hypot(1.0, SLOPE)  # rows: directions of the lattice
SHIFTS = (0.7548776662466927, 0.5698402909980532)  # shifts of successive lattices: powers of the plastic number
STRENGTHS = (0.02, 0.05, 0.2)  # (q_1 − q_0)/q_1 at the starts of the search
DIFFERENCE = 1e-2  # step of finite differences in the unknowns
RANGE = 1300.0  # largest range of the logarithm of the weights of the inner fields


class Transition(NamedTuple):
    """The transition p_j from nodes of a lattice (m, m) to nodes of a finer lattice (n, n).

    Attributes
    ----------
    log_mean, first, second : (m, m), (m, m, 2) and (m, m, 2, 2) log E exp(ψ), and mean ⟨δ⟩ and covariance of the
        displacement δ minus their values for ψ = 0, along the directions of the lattice.
    gaussian : (m, n) probabilities of the Gaussian in one direction.
    density, norm : (n, n) exp(ψ − c) and (m, m) its Gaussian average, with a constant c.
    """

    log_mean: np.ndarray
    first: np.ndarray
    second: np.ndarray
    gaussian: np.ndarray
    density: np.ndarray
    norm: np.ndarray

    def spread(self, law: np.ndarray) -> np.ndarray:
        """Return the probabilities (n, n) of nodes after the transition, from probabilities (m, m) before it."""
        return self.density * (self.gaussian.T @ (law / self.norm) @ self.gaussian)


def transition(psi: np.ndarray, spacing: float, stride: int, variance: float) -> Transition:
    """Return the transition of ψ (n, n) on a lattice, from each `stride`-th node.

    The Gaussian is normalised on the nodes in the lattice. The mean and variance of this truncated Gaussian are
    subtracted, because they are large at the ends of rows, and ψ changes them only little for small y.
    FloatingPointError if ψ varies by more than a floating-point exponential.
    """
    top, bottom = psi.max(), psi.min()
    if not top - bottom < RANGE:
        raise FloatingPointError("the logarithm of the weights of the inner fields varies by more than 1300")
    density = np.exp(psi - 0.5 * (top + bottom))
    x = spacing * np.arange(len(psi))
    delta = x - x[::stride, None]
    gaussian = np.exp(-0.5 * delta**2 / variance)
    gaussian /= gaussian.sum(axis=1, keepdims=True)
    centred = delta - (gaussian * delta).sum(axis=1, keepdims=True)
    moments = [gaussian, gaussian * centred]
    moments.append(gaussian * (centred**2 - (moments[1] * centred).sum(axis=1, keepdims=True)))
    rows = [moment @ density for moment in moments]
    norm, a, b, aa, ab, bb = (rows[i] @ moments[j].T for i, j in ((0, 0), (1, 0), (0, 1), (2, 0), (1, 1), (0, 2)))
    first = np.stack([a, b], axis=-1) / norm[..., None]
    second = np.stack([aa, ab, ab, bb], axis=-1).reshape(*norm.shape, 2, 2) / norm[..., None, None]
    second -= first[..., :, None] * first[..., None, :]
    return Transition(np.log(norm) + 0.5 * (top + bottom), first, second, gaussian, density, norm)


class Lattice(NamedTuple):
    """Square lattice of fields.

    Attributes
    ----------
    spacing : distance of neighbouring nodes of the innermost level.
    n : number of nodes on each side of the centre.
    strides : (k,) distances of the nodes of level j − 1 in nodes of level j, for j = 1, …, k.
    """

    spacing: float
    n: int
    strides: tuple[int, ...]


class LabelAverages(NamedTuple):
    """Averages for one label; tokens in the order of the fields.

    Attributes
    ----------
    phi : (k + 1,) averages of φ_j over P_j.
    slopes : (k + 1, 2) averages of (φ_j')².
    first : (2,) average of φ_0'.
    bend : (2,) average of −φ_0'', by Stein's identity for the outer field.
    response : (2,) average of the a.e. derivative −∂g/∂ω over P_k.
    squares : (k + 1, 2, 2) averages of (∂²φ_j)², the last without jumps.
    """

    phi: np.ndarray
    slopes: np.ndarray
    first: np.ndarray
    bend: np.ndarray
    response: np.ndarray
    squares: np.ndarray


class Table(NamedTuple):
    """φ_k on the lattice of a label.

    Attributes
    ----------
    a, b : (n, n) displacements from the centre along both directions of the lattice.
    phi, slope, curvature : (n, n), (n, n, 2) and (n, n, 2, 2) φ_k, its gradient g, and −∂g_l/∂ω_l' almost everywhere.
    """

    a: np.ndarray
    b: np.ndarray
    phi: np.ndarray
    slope: np.ndarray
    curvature: np.ndarray


class Grids(NamedTuple):
    """Lattice and its centres (n, 2) for n labels, and the tables at the last V if they fit into memory."""

    lattice: Lattice
    centres: np.ndarray
    tables: dict[float, list[Table]]


@dataclass(frozen=True, eq=False)
class TwoFields(Problem):
    """Problem of k-step replica symmetry breaking for attention with two tokens and one column.

    Attributes
    ----------
    model : an attention model with L = 2, r = t = 1 that is even and reversible.
    alpha : sample complexity.
    grids : fixed grids; by default they follow the overlaps. On fixed grids the averages are smooth functions of all
        numbers except V, at which the jumps pass nodes of the lattice.
    """

    model: Model
    alpha: float
    grids: Grids | None = None

    @cached_property
    def weights(self) -> BrokenWeights:
        """Input channel."""
        return BrokenWeights(self.model.coordinates, self.model.lam)

    @property
    def signs(self) -> np.ndarray:
        """Signs of m of the tokens."""
        return np.array([1.0, -1.0])

    @property
    def strengths(self) -> tuple[float, ...]:
        """Strengths of breaking at the starts: breaking is weak on the positional branch."""
        return STRENGTHS

    @property
    def difference(self) -> float:
        """Step of finite differences: at smaller steps few nodes of the lattice pass a jump."""
        return DIFFERENCE

    def teacher(self, even: bool, resolution: int) -> tuple[np.ndarray, np.ndarray]:
        """Return teacher fields (n, 2) in the fundamental domain, and probabilities (n,).

        Reversal maps the sum of both fields to its negative. If `even`, a change of sign of all teacher fields has no
        effect either, so that their difference may be restricted to positive values, too.
        """
        x, w = gauss_hermite(SUM_NODES[0] + SUM_NODES[1] * resolution)  # an even number of nodes
        total, total_weight = x[x > 0], w[x > 0]
        n = DIFFERENCE_NODES[0] + DIFFERENCE_NODES[1] * resolution
        x, w = (v.ravel() for v in legendre_panels(np.array([0.0, DIFFERENCE_END]), n))
        w = w * np.exp(-0.5 * x**2)
        if not even:
            x, w = np.concatenate([-x[::-1], x]), np.concatenate([w[::-1], w])
        e, f = (v.ravel() for v in np.meshgrid(total, x, indexing="ij"))
        probability = np.outer(total_weight, w).ravel()
        size = float(np.sqrt(self.model.coordinates.rho[0, 0, 0]))
        return size * np.stack([e + f, e - f], axis=1) / np.sqrt(2), probability / probability.sum()

    def with_fixed_grids(self, levels: Levels, parisi: np.ndarray, resolution: int) -> "TwoFields":
        """Return the problem with the grids for these overlaps, or itself if its grids are fixed already."""
        if self.grids is not None:
            return self
        params, _, centres, _ = self._labels(levels, resolution)
        lattice = self._lattice(params, centres, self._variances(levels), float(levels.V[0]), parisi, resolution)
        return replace(self, grids=Grids(lattice, centres, {}))

    def _variances(self, levels: Levels) -> np.ndarray:
        """Return the variance of the outer field given the teacher's fields, then Δ_1, …, Δ_k."""
        rho, theta = float(self.model.coordinates.rho[0, 0, 0]), float(levels.theta[0])
        outer = max(float(levels.q[0, 0]) - theta**2 / rho, SMALLEST * float(levels.q[-1, 0]))
        return np.array([outer, *levels.gaps[:, 0]])

    def _labels(self, levels: Levels, resolution: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[Any, Any]]:
        """Return parameters and constants of the losses, means of the outer fields, and (teacher fields, weights)."""
        rho, theta, m = float(self.model.coordinates.rho[0, 0, 0]), float(levels.theta[0]), float(levels.m[0])
        u, probability = self.teacher(theta == 0 or m == 0, resolution)
        terms = self.model.task.terms(u[:, :, None], np.zeros((len(u), self.model.task.n_noise)))
        return terms.params, terms.constant, m * self.signs + theta / rho * u, (u, probability)

    def hats(self, levels: Levels, parisi: np.ndarray, resolution: int) -> LevelHats:
        """Return the averages of the output channel, multiplied by α, for k = len(parisi)."""
        params, constants, centres, (u, probability) = self._labels(levels, resolution)
        variances, V = self._variances(levels), float(levels.V[0])
        grids = self.grids
        if grids is None or (len(parisi) and grids.lattice.spacing > COARSER * spacings(variances, resolution).min()):
            grids = replace(self, grids=None).with_fixed_grids(levels, parisi, resolution).grids
        assert grids is not None
        tables: Any = grids.tables.get(V)
        if tables is None:
            tables = (
                tabulate(self.model.loss, p, constant, centre, V, grids.lattice, number)
                for number, (p, constant, centre) in enumerate(zip(params, constants, grids.centres, strict=True))
            )
            if grids is self.grids and len(u) * (2 * grids.lattice.n + 1) ** 2 <= MAX_STORED:
                grids.tables.clear()
                tables = grids.tables[V] = list(tables)
        averages = [
            average_table(table, centre - origin, variances, parisi, grids.lattice)
            for table, centre, origin in zip(tables, centres, grids.centres, strict=True)
        ]
        return self._assemble(averages, u, probability, levels, parisi)

    def _lattice(
        self, params: np.ndarray, centres: np.ndarray, variances: np.ndarray, V: float, parisi: np.ndarray,
        resolution: int,
    ) -> Lattice:  # fmt: skip
        """Return the lattice for given variances of the outer field and of the inner fields.

        The field of level j with weight exp(y_j φ_j) is most likely at a distance of up to y_j Δ_j max|φ_k'| from the
        field of level j − 1.
        """
        sds, fine = np.sqrt(variances), FINER**resolution
        width = REACH[0] + REACH[1] * resolution
        reach = width * sds[0]
        if len(parisi) == 0:
            h = SYMMETRIC_SPACING * fine * sds[0]
            return Lattice(h, even_ceil(reach / h), ())
        grid = np.stack(np.meshgrid(*[np.linspace(-reach, reach, PROBES)] * 2), axis=-1).reshape(-1, 2)
        fields = (centres[:, None] + grid).reshape(-1, 2, 1)
        out = denoise(self.model.loss, np.repeat(params, len(grid), axis=0), fields, np.full((2, 1, 1), V))
        drifts = parisi * variances[1:] * float(np.sqrt((out.g**2).sum(axis=(1, 2)).max()))
        wanted = spacings(variances, resolution)
        h = spacing = float(wanted.min())
        strides = []
        for largest in wanted[::-1]:  # from the innermost level outward
            strides.append(max(int(largest / spacing), 1))
            spacing *= strides[-1]
        n = even_ceil((reach + drifts.sum() + width * np.sqrt(variances[1:].sum())) / h, int(np.prod(strides)))
        if 2 * n + 1 > MAX_NODES:
            raise FloatingPointError(f"the lattice would need {2 * n + 1} nodes in each direction")
        return Lattice(h, n, tuple(strides[::-1]))

    def _assemble(
        self, averages: list[LabelAverages], u: np.ndarray, probability: np.ndarray, levels: Levels, parisi: np.ndarray
    ) -> LevelHats:
        """Return the conjugates, averaged over both tokens, from the averages for each label."""
        share, signs = self.alpha * probability, self.signs
        phi, slopes, first, bend, response, squares = (
            np.einsum("n,n...->...", share, [getattr(a, name) for a in averages]) for name in LabelAverages._fields
        )
        both = np.ones(2)
        slopes, bend, response = slopes.mean(axis=1), float(bend.mean()), float(response.mean())
        squares = 0.5 * (squares + squares[:, ::-1, ::-1])
        m_hat = 0.5 * float(first @ signs) if levels.m[0] else 0.0
        theta, theta_hat = float(levels.theta[0]), 0.0
        if theta:  # Stein's identity E[φ_0' u] = ρ ∂φ_0'/∂u-average, with φ_0'' from the centre's dependence on u
            rho = float(self.model.coordinates.rho[0, 0, 0])
            along = float(np.einsum("n,nl,nl->", share, [a.first for a in averages], u)) / 2
            theta_hat = (along + bend * theta) / rho
        return LevelHats(
            q=np.outer(slopes, both),
            m=m_hat * signs,
            theta=theta_hat * both,
            V=(bend + float(parisi @ np.diff(slopes))) * both,
            V_derivative=response * both,
            phi=phi,
            squares=squares,
        )


def spacings(variances: np.ndarray, resolution: int) -> np.ndarray:
    """Return the spacings (k,) of the lattices of levels 1 to k.

    φ_{j−1} varies on the scale √Δ_j, and is integrated with a Gaussian of variance Δ_{j−1}.
    """
    sds = np.sqrt(variances[1:])
    return SPACING * FINER**resolution * np.minimum(sds, np.append(np.inf, sds[:-1]))


def even_ceil(x: float, factor: int = 1) -> int:
    """Return the smallest even multiple of `factor` that is not below x; 2 n + 1 nodes then fit `STRIDE`."""
    return 2 * factor * int(np.ceil(x / (2 * factor)))


def minima_on_lattice(loss: Any, params: np.ndarray, fields: np.ndarray, V: float, stride: int) -> Denoised:
    """Return the denoiser at the global minimum for fields (n, n, 2, 1) on a lattice.

    n − 1 is a multiple of `stride`. The global search is done at every `stride`-th node in both directions. At each
    other node the lowest of the local minima next to the minimisers at the four surrounding searched nodes is taken.
    Only those minimisers are tried that deviate from the linear prediction from the nearest searched node.

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
    move = (fields - searched[here])[..., 0]
    change = (slopes[here] @ move[..., None])[..., 0]
    change[np.abs(change).max(axis=-1) > STEEP * np.abs(move).max(axis=-1)] = 0.0  # near the end of a minimum
    out = denoise(loss, rows, centres, block, (minimisers[here] + change).reshape(-1, 2, 1), hold=True, jacobian=True)
    corners = list(product((slice(None, -1), slice(1, None)), repeat=2))
    apart = APART * float(np.linalg.norm(searched[1, 1] - searched[0, 0]))
    deviates = np.empty((4, 4, n - 1, n - 1), dtype=bool)  # by nearest and other corner, for each cell
    for a, first in enumerate(corners):
        for b, second in enumerate(corners):
            apart_by = (slopes[first] @ (searched[second] - searched[first]))[..., 0]
            deviates[a, b] = np.linalg.norm(minimisers[second] - minimisers[first] - apart_by, axis=-1) > apart
    nearest, cell = 2 * side[:, None] + side, (below[:, None], below)
    for b, (i, j) in enumerate(product((0, 1), repeat=2)):
        different = np.flatnonzero(deviates[nearest, b, *cell])
        if len(different) == 0:
            continue
        other = minimisers[(below + i)[:, None], below + j].reshape(-1, 2, 1)[different]
        trial = denoise(loss, rows[different], centres[different], block, other, hold=True, jacobian=True)
        lower = trial.moreau < out.moreau[different]
        for values, lower_values in zip(out, trial, strict=True):
            values[different[lower]] = lower_values[lower]
    if not out.solved.all():
        raise FloatingPointError("a proximal problem of the output channel was not solved")
    return out


def tabulate(
    loss: Any, params: np.ndarray, constant: float, centre: np.ndarray, V: float, lattice: Lattice, number: int
) -> Table:
    """Return φ_k on the lattice of a label.

    Parameters
    ----------
    loss, params, constant : loss of a sample, its parameters (P,), and the constant of its risk.
    centre : (2,) centre of the lattice.
    V : response of a minimum.
    lattice : lattice of the innermost level.
    number : index of the label, which determines the shift of the lattice.
    """
    h, n = lattice.spacing, lattice.n
    size = 2 * n + 1
    line = h * np.arange(-n, n + 1)
    shift = h * ((np.array(SHIFTS) * (number + 1)) % 1 - 0.5)
    a, b = np.meshgrid(line + shift[0], line + shift[1], indexing="ij")
    out = minima_on_lattice(loss, params, (centre + np.stack([a, b], axis=-1) @ DIRECTIONS)[..., None], V, STRIDE)
    curvature = (np.eye(2) - out.jacobian.reshape(size, size, 2, 2)) / V
    return Table(a, b, -(out.moreau + constant).reshape(size, size), out.g.reshape(size, size, 2), curvature)


def average_table(
    table: Table, move: np.ndarray, variances: np.ndarray, parisi: np.ndarray, lattice: Lattice
) -> LabelAverages:
    """Return the averages for one label.

    Parameters
    ----------
    table : φ_k on the lattice.
    move : (2,) difference between the mean of the outer field and the centre of the lattice.
    variances : (k + 1,) variance of the outer field, then Δ_1, …, Δ_k.
    parisi : (k,) y_1, …, y_k.
    lattice : lattice of the innermost level, and the coarser lattices of the other levels.
    """
    h, (a, b, phi, *_) = lattice.spacing, table
    levels = [(phi, table.slope, table.curvature)]
    transitions: list[Transition] = []
    for j in range(len(parisi) - 1, -1, -1):
        delta, y, stride = float(variances[j + 1]), float(parisi[j]), lattice.strides[j]
        moved = transition(y * phi, h, stride, delta)
        phi, a, b, h = moved.log_mean / y, a[::stride, ::stride], b[::stride, ::stride], h * stride
        first, second = moved.first @ DIRECTIONS, DIRECTIONS.T @ moved.second @ DIRECTIONS
        levels.insert(0, (phi, first / (y * delta), second / (y * delta**2)))
        transitions.insert(0, moved)
    offsets = np.stack([a, b], axis=-1) @ DIRECTIONS - move
    law = np.exp(-0.5 * (offsets**2).sum(axis=-1) / variances[0])
    law /= law.sum()
    slope = levels[0][1]
    first, bend = (np.einsum("ij,ijl->l", law, values) for values in (slope, -slope * offsets / variances[0]))
    means = []
    for j, (value, gradient, bends) in enumerate(levels):
        law = transitions[j - 1].spread(law) if j else law
        means.append((np.sum(law * value), *(np.einsum("ij,ij...->...", law, v**2) for v in (gradient, bends))))
    phis, slopes, squares = (np.array(values) for values in zip(*means, strict=True))
    response = np.einsum("ij,ijll->l", law, table.curvature)
    return LabelAverages(phis, slopes, first, bend, response, squares)
