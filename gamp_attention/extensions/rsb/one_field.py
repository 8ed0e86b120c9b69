"""Output channel with replica symmetry breaking for models of one field per sample (L = r = t = 1).

The label of a sample depends on the teacher's field u ~ N(0, ρ) and on noise. Given u, the outermost field is Gaussian,

    ω_0 ~ N(m + θu/ρ, q_0 − θ²/ρ),

and the recursion averages the Moreau envelope of the label's loss over the fields of all levels. `OneField` averages
its results over a product rule for u and the noise; equal labels are averaged only once if θ = 0.

Proximal map of one field. z(ω) minimizes (z − ω)²/2V + ℓ(z). Its global minimum is the vertex of the lower convex hull
of z²/2V + ℓ(z) at which the slope of the hull is ω/V. Hence z(ω) does not decrease, and it jumps where the hull has a
straight segment. `trace_hull` finds the hull of ℓ on a grid of z; Newton steps from its vertices give exact minima, and
Newton steps on the difference of two minima of one objective give the exact fields of the jumps (`find_jumps`).
Where ℓ has a convex kink at a point of the grid, such as z = 0, the hull has a corner, and z(ω) stays at the kink for
an interval of fields (`find_corners`).

**Recursion over levels,** from the innermost level outward. With overlaps q_0 < … < q_k, Δ_j = q_j − q_{j−1}, and
Parisi parameters y_1 < … < y_k, the functions of the field are

    φ_k(ω) = −M_V(ω),   φ_{j−1}(ω) = (1/y_j) log E_u exp(y_j φ_j(ω + √Δ_j u)),   j = k, …, 1.

The transition p_j(ω'|ω) = N(ω' − ω; Δ_j) exp(y_j (φ_j(ω') − φ_{j−1}(ω))) is a probability density in ω'. Averages of
functions of the field at level j are over P_j(ω') = ∫ P_{j−1}(ω) p_j(ω'|ω) dω, where P_0 is Gaussian. Derivatives
follow by the chain rule; ⟨·⟩_j denotes the average over p_j:

    φ_{j−1}' = ⟨φ_j'⟩_j,   φ_{j−1}'' = ⟨φ_j''⟩_j + y_j (⟨φ_j'²⟩_j − ⟨φ_j'⟩_j²).

φ_k has kinks where the proximal map jumps, so that φ_k'' is not a function. For j = k the second derivative is
therefore computed from Stein's identity, φ_{k−1}'' = ⟨φ_k' (ω' − ω)⟩_k/Δ_k − y_k ⟨φ_k'⟩_k² (Stein, 1981).

Discretization. φ_k is given on Gauss-Legendre panels that end at its kinks. The functions φ_j with j < k are analytic;
their integrals are trapezoidal sums on uniform grids, whose errors decrease exponentially with the inverse spacing
(Trefethen and Weideman, 2014). Each sum is a logarithm of a sum of exponentials, with the maximum subtracted.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._kernels.compiled import kernel
from gamp_attention._tools.quadrature import gauss_hermite, legendre_panels, pruned_product
from gamp_attention.extensions.rsb.solve import BrokenProblem
from gamp_attention.extensions.rsb.weights import LabelAverages, LevelHats, Levels, average_labels
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.theory.models.model import Model

TURN = 4.0  # scale of φ_{j−1} near a former kink, at large y_j, in units of 1/(y_j max|φ_j'|)
SAME_MINIMUM = 1e-7  # distance of two minima that count as the same, in units of √V
CORNER = 4.0  # change of the slope of the hull in units of its neighbors, above which a vertex is a kink


@dataclass(frozen=True)
class FieldSettings:
    """Settings of the grids of fields and of the rule for labels; pairs are values at resolution 0, and added."""

    reach: float = 8.0  # half-width of the grids of fields in standard deviations
    spacing: float = 0.5  # spacing of uniform grids at resolution 0, see `average_levels`
    finer: float = 0.8  # factor of the spacing for each resolution
    panel_nodes: tuple[int, int] = (5, 1)  # nodes of a panel of the innermost field
    teacher_nodes: tuple[int, int] = (7, 3)  # nodes of each panel of |u|
    teacher_ends: tuple[float, ...] = (0.0, 0.12, 0.6, 1.6, 3.6, 8.5)  # ends of these panels in standard deviations
    noise_nodes: tuple[int, int] = (5, 2)  # nodes of the Gauss-Hermite rule of the noise


@dataclass(frozen=True)
class HullSettings:
    """Settings of the lower hulls, from which the global minima are found."""

    n_points: int = 2049  # number of grid points of z, an odd number
    # density of the points at z = 0, where labels near zero have jumps: sinh(stretch)/stretch times the mean
    stretch: float = 8.0
    n_doublings: int = 20  # maximum number of doublings of the range of z
    jump_steps: int = 30  # maximum number of Newton steps for the field of a jump


FIELDS, HULLS = FieldSettings(), HullSettings()


class Innermost(NamedTuple):
    """The function φ_k = −M_V at nodes that integrate it with its kinks."""

    # x, weight: (N,) increasing nodes, and quadrature weights of integrals over the field
    x: np.ndarray
    weight: np.ndarray
    # phi, slope: (N,) φ_k and its derivative, the output function g
    phi: np.ndarray
    slope: np.ndarray
    response: np.ndarray  # (N,) −∂g/∂ω, the almost-everywhere derivative


def smooth(
    x: np.ndarray, inner_x: np.ndarray, weight: np.ndarray, variance: float, parisi: float, phi: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (1/y) log E exp(y φ(x + √variance u)) at points x (n,), and its transition matrix (n, N).

    `phi` (N,) is given at nodes inner_x with quadrature weights. Rows of the matrix have sum 1. The Gaussian is
    normalized on the nodes, which corrects the ends of their range.
    """
    logs = (inner_x - x[:, None]) / np.sqrt(2 * variance)
    logs *= -logs
    norm = np.exp(logs) @ weight
    logs += parisi * phi
    top = logs.max(axis=1, keepdims=True)
    logs -= top
    transition = np.exp(logs, out=logs)
    transition *= weight
    total = transition.sum(axis=1, keepdims=True)
    transition /= total
    return (top[:, 0] + np.log(total[:, 0] / norm)) / parisi, transition


def uniform_grid(center: float, sd: float, spacing: float, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of the trapezoidal rule on center ± reach·sd."""
    n = int(np.ceil(reach * sd / spacing))
    step = reach * sd / n
    return center + step * np.arange(-n, n + 1), np.full(2 * n + 1, step)


def average_levels(
    innermost: Innermost, center: float, variances: np.ndarray, parisi: np.ndarray, spacing: float,
    reach: float,
) -> LabelAverages:  # fmt: skip
    """Return the averages of the recursion for one label.

    Parameters
    ----------
    innermost : φ_k and its derivatives.
    center : mean of P_0.
    variances : (k + 1,) variance of P_0, then Δ_1, …, Δ_k.
    parisi : (k,) y_1, …, y_k.
    spacing : spacing of the uniform grids in units of the smallest scale of a level: the standard deviation of the
        Gaussian that is integrated there, or of the next, which smooths the function, or the width of its rounded kinks
        at large Parisi parameters.
    reach : half-width of the grids in standard deviations.
    """
    k = len(parisi)
    sds = np.sqrt(variances)
    phi, slope, bend = innermost.phi, innermost.slope, np.zeros(0)
    x, weight = innermost.x, innermost.weight
    rows: list[tuple[np.ndarray, ...]] = [(phi, slope, innermost.response**2)]
    transitions: list[np.ndarray] = []
    for j in range(k, 0, -1):
        total = float(np.sqrt(np.sum(sds[:j] ** 2)))
        steepest = float(np.abs(slope).max())
        scale = min(sds[j - 1], sds[j], TURN / max(parisi[j - 1] * steepest, 1e-300))
        grid, grid_weight = uniform_grid(center, total, spacing * scale, reach)
        new, transition = smooth(grid, x, weight, float(variances[j]), float(parisi[j - 1]), phi)
        new_slope = transition @ slope
        if j == k:
            moment = transition @ (slope * x) - grid * new_slope
            bend = moment / variances[j] - parisi[j - 1] * new_slope**2
        else:
            bend = transition @ bend + parisi[j - 1] * (transition @ slope**2 - new_slope**2)
        phi, slope, x, weight = new, new_slope, grid, grid_weight
        rows.insert(0, (phi, slope, bend**2))
        transitions.insert(0, transition)
    outer = weight * np.exp(-0.5 * ((x - center) / sds[0]) ** 2)
    outer /= outer.sum()
    if k == 0:  # Stein's identity on P_0
        bend = slope * (x - center) / variances[0]
    first, minus_bend = float(outer @ slope), -float(outer @ bend)
    means, laws = [], [outer]
    for transition in transitions:
        laws.append(laws[-1] @ transition)
    for law, (value, gradient, squared) in zip(laws, rows, strict=True):
        means.append((law @ value, law @ gradient**2, law @ squared))
    table, response = np.array(means), laws[-1] @ innermost.response
    return LabelAverages(
        phi=table[:, 0], slopes=table[:, 1:2], first=np.array([first]), bend=np.array([minus_bend]),
        response=np.array([response]), squares=table[:, 2, None, None],
    )  # fmt: skip


class Hull(NamedTuple):
    """Lower convex hull of z²/2V + ℓ(z) on a grid of z."""

    # points, values: (N,) its vertices
    points: np.ndarray
    values: np.ndarray
    # (N - 1,) whether a segment joins neighbors on the grid; other segments are jumps of the minimum
    narrow: np.ndarray


@kernel
def trace_hull(z, values, vertex):
    """Fill `vertex` with the indices of the lower convex hull of points (z, values), and return their number."""
    count = 0
    for i in range(z.shape[0]):
        while count > 1:
            a, b = vertex[count - 2], vertex[count - 1]
            if (values[b] - values[a]) * (z[i] - z[a]) < (values[i] - values[a]) * (z[b] - z[a]):
                break
            count -= 1
        vertex[count] = i
        count += 1
    return count


@dataclass(frozen=True, eq=False)
class OneField(BrokenProblem):
    """Problem of k-step replica symmetry breaking for a model with one field."""

    model: Model  # a model of labels with L = r = t = 1
    alpha: float  # sample complexity
    settings: FieldSettings = FIELDS

    def labels(self, folded: bool, unaware: bool, resolution: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return labels (n, P), teacher fields (n,) and probabilities (n,).

        If `folded`, samples and their mirror images give the same averages, so that u > 0. If `unaware`, the averages
        do not depend on u, and equal labels are merged; their teacher fields are zero.
        """
        n = self.settings.teacher_nodes[0] + self.settings.teacher_nodes[1] * resolution
        size = float(np.sqrt(self.rho))
        u, weight = (v.ravel() for v in legendre_panels(np.array(self.settings.teacher_ends), n))
        weight = weight * np.exp(-0.5 * u**2)
        if not folded:
            u, weight = np.concatenate([-u[::-1], u]), np.concatenate([weight[::-1], weight])
        n_noise = self.model.task.n_noise
        x, w = gauss_hermite(self.settings.noise_nodes[0] + self.settings.noise_nodes[1] * resolution)
        noise, noise_weight = pruned_product(x, w, n_noise, 0.0)
        fields, each = np.repeat(size * u, len(noise)), np.tile(noise, (len(u), 1))
        probability = np.outer(weight / weight.sum(), noise_weight).ravel()
        labels = self.model.task.terms(fields[:, None, None], each).params
        if not unaware:
            return labels, fields, probability
        distinct, index = np.unique(labels, axis=0, return_inverse=True)
        return distinct, np.zeros(len(distinct)), np.bincount(index.ravel(), probability)

    def hats(self, levels: Levels, parisi: np.ndarray, resolution: int, replicons: bool = True) -> LevelHats:
        """Return the averages of the output channel, multiplied by α."""
        theta, m = float(levels.theta[0]), float(levels.m[0])
        variances, settings = self.variances(levels), self.settings
        labels, u, probability = self.labels(self.model.even and m == 0, theta == 0, resolution)
        centers = m + theta / self.rho * u
        n_nodes = settings.panel_nodes[0] + settings.panel_nodes[1] * resolution
        V, reach = float(levels.V[0]), settings.reach
        tables = innermost_tables(self.model, labels, centers, variances, V, n_nodes, reach)
        spacing = settings.spacing * settings.finer**resolution
        pairs = zip(tables, centers, strict=True)
        averages = [average_levels(table, center, variances, parisi, spacing, reach) for table, center in pairs]
        return average_labels(averages, self.alpha * probability, u[:, None], self.signs, levels, parisi, self.rho)


def innermost_tables(
    model: Model, labels: np.ndarray, centers: np.ndarray, variances: np.ndarray, V: float, n: int, reach: float
) -> list[Innermost]:
    """Return φ_k = −M_V on panels of n nodes that end at its kinks, for each label and center of its fields.

    The panels cover `reach` standard deviations on each side of the center.
    """
    half = reach * float(np.sqrt(variances.sum()))
    width = float(np.sqrt(min(variances[-1], V)))
    hulls = hulls_of_labels(model, labels, np.abs(centers).max() + half, V)
    jumps = find_jumps(model, labels, hulls, V)
    corners = [find_corners(hull, V) for hull in hulls]
    xs, ws, starts = [], [], []
    for hull, (at, below, above), (_, entry, leave), center in zip(hulls, jumps, corners, centers, strict=True):
        inside = np.abs(at - center) < half
        at, below, above = at[inside], np.append(below[inside], np.inf), np.append(-np.inf, above[inside])
        kinks = np.concatenate([at, entry, leave])
        kinks = np.sort(kinks[np.abs(kinks - center) < half])
        ends = [np.array([center - half])]
        for start, end in pairwise([center - half, *kinks, center + half]):
            ends.append(np.linspace(start, end, max(int(np.ceil((end - start) / width)), 1) + 1)[1:])
        x, w = (v.ravel() for v in legendre_panels(np.concatenate(ends), n))
        piece = np.searchsorted(at, x)
        slopes = np.diff(hull.values) / np.diff(hull.points)
        start = hull.points[np.searchsorted(slopes, x / V)]
        xs.append(x)
        ws.append(w)
        starts.append(np.clip(start, above[piece], below[piece]))  # on the correct side of a jump
    sizes = [len(x) for x in xs]
    rows = np.repeat(labels, sizes, axis=0)
    out = local_minima(model, rows, np.concatenate(xs), np.concatenate(starts), V)
    cuts = np.cumsum(sizes)[:-1]
    parts = [np.split(v.ravel(), cuts) for v in (-out.moreau, out.g, out.response)]
    tables = [Innermost(*fields) for fields in zip(xs, ws, *parts, strict=True)]
    for table, hull, (index, entry, leave) in zip(tables, hulls, corners, strict=True):
        for i, a, b in zip(index, entry, leave, strict=True):
            stays, at = (table.x > a) & (table.x < b), hull.points[i]
            g = (at - table.x[stays]) / V
            table.phi[stays] = 0.5 * at**2 / V - hull.values[i] - 0.5 * V * g**2
            table.slope[stays], table.response[stays] = g, 1 / V
    return tables


def local_minima(model: Model, labels: np.ndarray, omega: np.ndarray, start: np.ndarray, V: float) -> Any:
    """Return the result of the denoiser at the local minima next to given starts (n,)."""
    shape = (len(omega), 1, 1)
    return denoise(model.loss, labels, omega.reshape(shape), np.full((1, 1, 1), V), start.reshape(shape), hold=True)


def hulls_of_labels(model: Model, labels: np.ndarray, reach: float, V: float) -> list[Hull]:
    """Return the lower hull of z²/2V + ℓ(z) for each label.

    The range of z is doubled until the slopes of all hulls cover fields up to ±`reach`.
    """
    bound, n, stretch = 1.25 * reach, HULLS.n_points, HULLS.stretch
    for _ in range(HULLS.n_doublings):
        z = bound * np.sinh(stretch * np.linspace(-1, 1, n)) / np.sinh(stretch)
        z[n // 2] = 0.0
        rows = np.repeat(labels, n, axis=0)
        terms = RiskTerms(rows, np.zeros(len(rows)))
        loss = model.task.errors(np.tile(z, len(labels))[:, None, None], z, terms).reshape(len(labels), n)
        hulls, vertex = [], np.empty(n, dtype=np.int64)
        for values in 0.5 * z**2 / V + loss:
            chosen = vertex[: trace_hull(z, values, vertex)].copy()
            hulls.append(Hull(z[chosen], values[chosen], np.diff(chosen) == 1))
        steep = [np.diff(values) / np.diff(points) for points, values, _ in hulls]
        if all(slopes[0] * V < -reach and slopes[-1] * V > reach for slopes in steep):
            return hulls
        bound *= 2
    raise FloatingPointError("the proximal map has no bounded minimum at some field")


def find_corners(hull: Hull, V: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the vertices at which ℓ has a convex kink, and the fields between which the minimum stays there.

    At a kink the change of the slope of the hull does not vanish with the spacing of the grid. One-sided slopes are
    extrapolated from the two segments on a side.
    """
    narrow, width = hull.narrow, np.diff(hull.points)
    slopes = np.diff(hull.values) / width
    change = np.diff(slopes)  # at vertex i + 1
    inner = np.arange(2, len(change) - 2)
    sharp = change[2:-2] > CORNER * np.maximum(change[1:-3], change[3:-1])
    straight = narrow[1:-4] & narrow[2:-3] & narrow[3:-2] & narrow[4:-1]
    i = inner[sharp & straight]
    entry = slopes[i] + (slopes[i] - slopes[i - 1]) * width[i] / (width[i] + width[i - 1])
    leave = slopes[i + 1] - (slopes[i + 2] - slopes[i + 1]) * width[i + 1] / (width[i + 1] + width[i + 2])
    return i + 1, V * entry, V * leave


def find_jumps(
    model: Model, labels: np.ndarray, hulls: list[Hull], V: float
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return for each label the fields of the jumps in increasing order, and z below and above each of them."""
    wide = [np.flatnonzero(~hull.narrow) for hull in hulls]
    index = np.repeat(np.arange(len(hulls)), [len(segments) for segments in wide])
    if not len(index):
        return [(np.zeros(0),) * 3 for _ in hulls]
    below, above = (np.concatenate([hull.points[i + k] for hull, i in zip(hulls, wide, strict=True)]) for k in (0, 1))
    heights = np.concatenate([np.diff(hull.values)[i] for hull, i in zip(hulls, wide, strict=True)])
    omega = V * heights / (above - below)
    for _ in range(HULLS.jump_steps):
        left, right = (local_minima(model, labels[index], omega, ends, V) for ends in (below, above))
        below, above = left.z[:, 0, 0], right.z[:, 0, 0]
        apart = above - below > SAME_MINIMUM * np.sqrt(V)
        step = np.where(apart, V * (left.moreau - right.moreau) / np.where(apart, above - below, 1.0), 0.0)
        omega = omega - step
        if np.abs(step).max() <= 1e-14 * (1 + np.abs(omega).max()):
            break
    order = np.argsort(omega)
    chosen = [order[(apart & (index == number))[order]] for number in range(len(hulls))]
    return [(omega[rows], below[rows], above[rows]) for rows in chosen]
