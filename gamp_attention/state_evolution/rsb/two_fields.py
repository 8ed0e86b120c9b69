"""Output channel with one step of replica symmetry breaking for attention with two tokens (L = 2, r = t = 1).

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

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.compiled import kernel
from gamp_attention._core.quadrature import gauss_hermite, legendre_panels
from gamp_attention.denoisers.output import Denoised, denoise
from gamp_attention.models.model import Model
from gamp_attention.state_evolution.rsb.weights import BrokenWeights, LevelHats, Levels

SPACING, FINER = 0.8, 0.88  # spacing of the lattice in units of √Δ at resolution 0; factor for each resolution
SYMMETRIC_SPACING = 0.12  # the same in units of √q_0 without breaking, where the sums smooth nothing
DIFFERENCE_NODES = (16, 4)  # Legendre nodes of the positive difference of teacher fields: at resolution 0, and added
SUM_NODES = (4, 2)  # the same for the Gauss-Hermite rule of their sum, on which the averages depend weakly
DIFFERENCE_END = 5.5  # largest difference of teacher fields, in standard deviations
REACH = 6.0  # half-width of the lattice in standard deviations of the outer field
TAIL = 5.5  # standard deviations of the inner field around its most likely value
PROBES = 7  # nodes in each direction of the grid that determines the largest |φ_1'|
STRIDE = 4  # distance of the nodes with a global search, in nodes
APART = 0.1  # deviation of a minimiser from its linear prediction from a neighbour, in units of the distance of
# both fields, above which both may belong to different minima
MAX_NODES = 4000  # largest number of lattice nodes in each direction
SMALLEST = 1e-8  # smallest variance of the outer field given the teacher's fields, in units of q_1
SLOPE = (np.sqrt(5) - 1) / 2  # slope of the lattice relative to the axes; relative to lines of equal fields √5 − 2
SHIFTS = (0.7548776662466927, 0.5698402909980532)  # shifts of successive lattices: powers of the plastic number
NEGLIGIBLE = -40.0  # logarithm of weights that count as zero


@kernel
def smooth_rows(psi, weight, out, transition):
    """Fill `out` (R, n) with log Σ_w weight[w] exp(psi[i, j + w − c]) for rows psi (R, n), c = len(weight) // 2.

    Row (i, j) of `transition` (R, n, W) are the normalised terms of the sum. The weights (W,) are normalised on the
    nodes in the lattice, which corrects the ends of rows.
    """
    n_rows, n = psi.shape
    width = weight.shape[0]
    centre = width // 2
    for i in range(n_rows):
        for j in range(n):
            first, last = max(0, centre - j), min(width, n - j + centre)
            top, norm = -np.inf, 0.0
            for w in range(first, last):
                top = max(top, psi[i, j - centre + w])
                norm += weight[w]
            total = 0.0
            for w in range(first, last):
                size = psi[i, j - centre + w] - top
                transition[i, j, w] = weight[w] * np.exp(size) if size > -700.0 else 0.0
                total += transition[i, j, w]
            for w in range(width):
                transition[i, j, w] = transition[i, j, w] / total if first <= w < last else 0.0
            out[i, j] = top + np.log(total / norm)


@kernel
def average_rows(transition, values, out):
    """Fill `out` (R, n) with Σ_w transition[i, j, w] values[i, j + w − c]."""
    n_rows, n, width = transition.shape
    centre = width // 2
    for i in range(n_rows):
        for j in range(n):
            total = 0.0
            for w in range(max(0, centre - j), min(width, n - j + centre)):
                total += transition[i, j, w] * values[i, j - centre + w]
            out[i, j] = total


@kernel
def scatter_rows(transition, law, out):
    """Add Σ_j law[i, j] transition[i, j, k − j + c] to `out` (R, n), the adjoint of `average_rows`."""
    n_rows, n, width = transition.shape
    centre = width // 2
    for i in range(n_rows):
        for j in range(n):
            for w in range(max(0, centre - j), min(width, n - j + centre)):
                out[i, j - centre + w] += law[i, j] * transition[i, j, w]


class Smoothed(NamedTuple):
    """The transition of the inner field on a lattice: rows first, then columns.

    Attributes
    ----------
    log_mean : (n, n) log E exp(ψ) at each node.
    along_rows, along_columns : (n, n, W) normalised terms of the sums.
    """

    log_mean: np.ndarray
    along_rows: np.ndarray
    along_columns: np.ndarray

    def mean(self, values: np.ndarray) -> np.ndarray:
        """Return the mean (n, n) of values (n, n) under the transition from each node."""
        rows, columns = np.empty_like(values), np.empty_like(values)
        average_rows(self.along_rows, values, rows)
        average_rows(self.along_columns, np.ascontiguousarray(rows.T), columns)
        return columns.T

    def spread(self, law: np.ndarray) -> np.ndarray:
        """Return the probabilities (n, n) of nodes after the transition, from probabilities before it."""
        columns, rows = np.zeros_like(law), np.zeros_like(law)
        scatter_rows(self.along_columns, np.ascontiguousarray(law.T), columns)
        scatter_rows(self.along_rows, np.ascontiguousarray(columns.T), rows)
        return rows


def smooth_plane(psi: np.ndarray, weight: np.ndarray) -> Smoothed:
    """Return the transition of ψ (n, n) with the product of Gaussian weights (W,) in both directions."""
    n, width = len(psi), len(weight)
    rows, columns = np.empty((n, n)), np.empty((n, n))
    along_rows, along_columns = np.empty((n, n, width)), np.empty((n, n, width))
    smooth_rows(psi, weight, rows, along_rows)
    smooth_rows(np.ascontiguousarray(rows.T), weight, columns, along_columns)
    return Smoothed(columns.T, along_rows, along_columns)


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


@dataclass(frozen=True, eq=False)
class TwoFields:
    """Problem of one-step replica symmetry breaking for attention with two tokens and one column.

    Attributes
    ----------
    model : an attention model with L = 2, r = t = 1 that is even and reversible.
    alpha : sample complexity.
    """

    model: Model
    alpha: float

    @cached_property
    def weights(self) -> BrokenWeights:
        """Input channel."""
        return BrokenWeights(self.model.coordinates, self.model.lam)

    @property
    def signs(self) -> np.ndarray:
        """Signs of m of the tokens."""
        return np.array([1.0, -1.0])

    def teacher(self, even: bool, resolution: int) -> tuple[np.ndarray, np.ndarray]:
        """Return teacher fields (n, 2) in the fundamental domain, and probabilities (n,).

        Reversal maps the sum of both fields to its negative. If `even`, a change of sign of all teacher fields has no
        effect either, so that their difference may be restricted to positive values, too.
        """
        x, w = gauss_hermite(SUM_NODES[0] + SUM_NODES[1] * resolution)  # an even number
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

    def hats(self, levels: Levels, parisi: np.ndarray, resolution: int) -> LevelHats:
        """Return the averages of the output channel, multiplied by α, for k = len(parisi) ≤ 1."""
        rho = float(self.model.coordinates.rho[0, 0, 0])
        theta, m = float(levels.theta[0]), float(levels.m[0])
        outer = max(float(levels.q[0, 0]) - theta**2 / rho, SMALLEST * float(levels.q[-1, 0]))
        u, probability = self.teacher(theta == 0 or m == 0, resolution)
        terms = self.model.task.terms(u[:, :, None], np.zeros((len(u), self.model.task.n_noise)))
        centres = m * self.signs + theta / rho * u
        variances = np.array([outer, *levels.gaps[:, 0]])
        V, y = float(levels.V[0]), float(parisi[0]) if len(parisi) else 0.0
        lattice = self._lattice(terms.params, centres, variances, V, y, resolution)
        averages = [
            average_label(self.model.loss, params, constant, centre, V, variances, y, lattice, number)
            for number, (params, constant, centre) in enumerate(zip(terms.params, terms.constant, centres, strict=True))
        ]
        return self._assemble(averages, u, probability, levels, parisi)

    def _lattice(
        self, params: np.ndarray, centres: np.ndarray, variances: np.ndarray, V: float, y: float, resolution: int
    ) -> tuple[float, int, int]:
        """Return the spacing of the lattice, the number of nodes on each side of its centre, and of the inner sums.

        The inner field with weight exp(y φ_1) is most likely at a distance of up to yΔ max|φ_1'| from the outer field.
        """
        sds = np.sqrt(variances)
        reach = REACH * sds[0]
        if len(variances) == 1:
            h = SYMMETRIC_SPACING * FINER**resolution * sds[0]
            return h, even_ceil(reach / h), 0
        grid = np.stack(np.meshgrid(*[np.linspace(-reach, reach, PROBES)] * 2), axis=-1).reshape(-1, 2)
        fields = (centres[:, None] + grid).reshape(-1, 2, 1)
        out = denoise(self.model.loss, np.repeat(params, len(grid), axis=0), fields, np.full((2, 1, 1), V))
        cut = TAIL + y * sds[1] * float(np.sqrt((out.g**2).sum(axis=(1, 2)).max()))
        h = SPACING * FINER**resolution * sds[1]
        n = even_ceil((reach + cut * sds[1]) / h)
        if 2 * n + 1 > MAX_NODES:
            raise FloatingPointError(f"the lattice would need {2 * n + 1} nodes in each direction")
        return h, n, int(np.ceil(cut * sds[1] / h))

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


def even_ceil(x: float) -> int:
    """Return the smallest even integer that is not below x, so that a lattice with 2 n + 1 nodes fits `STRIDE`."""
    return 2 * int(np.ceil(x / 2))


def minima_on_lattice(loss: Any, params: np.ndarray, fields: np.ndarray, V: float) -> Denoised:
    """Return the denoiser at the global minimum for fields (n, n, 2, 1) on a lattice.

    n − 1 is a multiple of `STRIDE`. The global search is done at every `STRIDE`-th node in both directions. At each
    other node the lowest of the local minima next to the minimisers at the four surrounding searched nodes is taken.
    Only those minimisers are tried that deviate from the linear prediction from the nearest searched node.

    Raises FloatingPointError if a minimisation fails.
    """
    size = len(fields)
    block = np.full((2, 1, 1), V)
    searched = fields[::STRIDE, ::STRIDE]
    n = len(searched)
    best = denoise(loss, np.tile(params, (n**2, 1)), searched.reshape(-1, 2, 1), block, jacobian=True)
    minimisers, slopes = best.z.reshape(n, n, 2), best.jacobian.reshape(n, n, 2, 2)
    index = np.arange(size)
    nearest, below = np.rint(index / STRIDE).astype(int), np.minimum(index // STRIDE, n - 2)
    here = nearest[:, None], nearest
    start = minimisers[here].reshape(-1, 2, 1)
    centres, rows = fields.reshape(-1, 2, 1), np.tile(params, (size**2, 1))
    out = denoise(loss, rows, centres, block, start, hold=True, jacobian=True)
    apart = APART * float(np.linalg.norm(searched[1, 1] - searched[0, 0]))
    for i, j in product((0, 1), repeat=2):
        there = (below + i)[:, None], below + j
        move = (searched[there] - searched[here])[..., 0]
        deviation = minimisers[there] - minimisers[here] - np.einsum("ijab,ijb->ija", slopes[here], move)
        different = np.flatnonzero(np.linalg.norm(deviation, axis=-1) > apart)
        other = minimisers[there].reshape(-1, 2, 1)
        if len(different) == 0:
            continue
        trial = denoise(loss, rows[different], centres[different], block, other[different], hold=True, jacobian=True)
        lower = trial.moreau < out.moreau[different]
        for values, lower_values in zip(out, trial, strict=True):
            values[different[lower]] = lower_values[lower]
    if not out.solved.all():
        raise FloatingPointError("a proximal problem of the output channel was not solved")
    return out


def average_label(
    loss: Any, params: np.ndarray, constant: float, centre: np.ndarray, V: float, variances: np.ndarray, y: float,
    lattice: tuple[float, int, int], number: int,
) -> LabelAverages:  # fmt: skip
    """Return the averages for one label.

    Parameters
    ----------
    loss, params, constant : loss of a sample, its parameters (P,), and the constant of its risk.
    centre : (2,) mean of the outer field.
    V : response of a minimum.
    variances : (k + 1,) variance of the outer field, then Δ if k = 1.
    y : Parisi parameter; not used for k = 0.
    lattice : spacing, nodes on each side, and nodes on each side of the inner sums.
    number : index of the label, which determines the shift of the lattice.
    """
    h, n, width = lattice
    size = 2 * n + 1
    line = h * np.arange(-n, n + 1)
    shift = h * ((np.array(SHIFTS) * (number + 1)) % 1 - 0.5)
    a, b = np.meshgrid(line + shift[0], line + shift[1], indexing="ij")  # displacements along both lattice directions
    across = np.array([[1.0, SLOPE], [-SLOPE, 1.0]]) / np.hypot(1.0, SLOPE)  # rows are the directions
    offsets = np.stack([a.ravel(), b.ravel()], axis=1) @ across
    fields = centre + offsets
    out = minima_on_lattice(loss, params, fields.reshape(size, size, 2, 1), V)
    phi = -(out.moreau + constant).reshape(size, size)
    g = out.g.reshape(-1, 2)
    curvature = ((np.eye(2) - out.jacobian) / V) ** 2  # squares of −∂g_l/∂ω_l'
    outer = np.exp(-0.5 * (a**2 + b**2) / variances[0])
    outer /= outer.sum()
    if len(variances) == 1:
        inner, first = outer.ravel(), g
        means, log_means, bends = g, phi, np.zeros((0, 2, 2))
    else:
        delta = float(variances[1])
        weight = np.exp(-0.5 * (h * np.arange(-width, width + 1)) ** 2 / delta)
        moved = smooth_plane(y * phi, weight)
        inner, log_means = moved.spread(outer).ravel(), moved.log_mean / y
        da, db = moved.mean(a) - a, moved.mean(b) - b
        first = np.stack([da.ravel(), db.ravel()], axis=1) @ across / (y * delta)
        second = np.empty((size, size, 2, 2))
        # moments about the node, from means of products of coordinates
        second[..., 0, 0] = moved.mean(a**2) - (a + da) ** 2
        second[..., 1, 1] = moved.mean(b**2) - (b + db) ** 2
        second[..., 0, 1] = second[..., 1, 0] = moved.mean(a * b) - (a + da) * (b + db)
        bends = across.T @ (second.reshape(-1, 2, 2) - delta * np.eye(2)) @ across / (y * delta**2)
        means = first
    law = outer.ravel()
    levels = [(law, log_means.ravel(), means)]
    squares = []
    if len(variances) > 1:
        squares.append(np.tensordot(law, bends**2, 1))
        levels.append((inner, phi.ravel(), g))
    squares.append(np.tensordot(inner, curvature, 1))
    return LabelAverages(
        phi=np.array([p @ value for p, value, _ in levels]),
        slopes=np.array([p @ gradient**2 for p, _, gradient in levels]),
        first=law @ first,
        bend=-np.einsum("n,nl,nl->l", law, first, offsets) / variances[0],
        response=inner @ np.einsum("nll->nl", out.response.reshape(-1, 2, 1, 1)[:, :, 0, :] * np.eye(2)),
        squares=np.array(squares),
    )
