"""Distribution of the gap between the two lowest minima of the proximal problem.

At a field ω, the gap is the difference between the two lowest local minima of |z − ω|²/2V + ℓ(z), in units of the loss
of a sample. It vanishes on the lines where the proximal map jumps. Its density at zero determines the jump mass: on a
line, φ_k is continuous and its gradient g jumps by Δg, so that the gap grows as |Δg| times the distance from the line,
and

    V̂ − V̂_derivative = −α lim_{ε→0} E[1(gap < ε) (Δg)²]/(2ε),

averaged over the fields P_k of minima. With each step of breaking fewer samples have a small gap, because such samples
make minima sensitive to the other samples.

For two fields, second minima are searched at the nodes of the lattice. For one field, both minima of each jump are
continued to the fields at which the gap is ε or the second minimum ends, and the density of P_k is integrated between
these fields.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools.quadrature import legendre_panels
from gamp_attention.extensions.rsb.lattice import APART, DIRECTIONS, Table, smooth_levels, tabulate
from gamp_attention.extensions.rsb.one_field import CUT, Averages, OneField, find_jumps, hulls_of_labels, local_minima
from gamp_attention.extensions.rsb.weights import Levels
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.theory.models.model import Model

REACH = 4  # distance in nodes at which minimizers of other nodes are tried as second minima
NEGLIGIBLE = 1e-7  # probability of a node, relative to the most likely node, below which it is left out
ENDED = 1e-6  # distance between two minima in units of their distance at the jump, below which one of them has ended
NEIGHBORS = [(i, j) for i in (-REACH, 0, REACH) for j in (-REACH, 0, REACH) if i or j]


class GapDistribution(NamedTuple):
    """Distribution of gaps.

    Attributes
    ----------
    gaps : (n,) gaps ε.
    probability : (n,) probability that the gap of a sample is below ε.
    squares : (n, L) average of 1(gap < ε) (Δg)² for each token, Δg the difference of g between both minima.
    """

    gaps: np.ndarray
    probability: np.ndarray
    squares: np.ndarray


def gap_distribution(
    problem: Any, levels: Levels, parisi: np.ndarray, gaps: np.ndarray, resolution: int = 0
) -> GapDistribution:
    """Return the distribution of gaps over the fields P_k of minima.

    For two fields, second minima are searched from the minimizers at fields in a distance of `REACH` nodes of the
    lattice, so that the distribution is complete for gaps that are small compared with the changes of φ_k in this
    distance. For one field, gaps must be smaller than the change of φ_k between two jumps of a label.

    Parameters
    ----------
    problem : output channel, `OneField` or `TwoFields`.
    levels, parisi : overlaps and Parisi parameters (k,), for example of a solution.
    gaps : (n,) gaps ε at which the distribution is computed.
    resolution : resolution of the grids.
    """
    if len(problem.signs) == 1:
        return _one_field_gaps(problem, levels, parisi, np.asarray(gaps, dtype=float), resolution)
    params, constants, centers, (_, probability) = problem.labels(levels, resolution)
    variances, V, gaps = problem.variances(levels), float(levels.V[0]), np.asarray(gaps, dtype=float)
    grids = problem.with_fixed_grids(levels, parisi, resolution).grids
    assert grids is not None
    lattice, loss = grids.lattice, problem.model.loss
    below, squares = np.zeros(len(gaps)), np.zeros((len(gaps), 2))
    for number, (p, constant, center) in enumerate(zip(params, constants, centers, strict=True)):
        table = tabulate(loss, p, constant, center, V, lattice, number)
        smoothed = smooth_levels(table, variances, parisi, lattice, squares=False)
        law = smoothed.outer_law(np.zeros(2), float(variances[0]))[0]
        for transition in smoothed.transitions:
            law = transition.spread(law)
        likely = law > NEGLIGIBLE * law.max()
        likely[:REACH], likely[-REACH:], likely[:, :REACH], likely[:, -REACH:] = False, False, False, False
        nodes = np.argwhere(likely)
        gap, jump = find_second_minima(loss, p, constant, center, table, nodes, lattice.spacing)
        weight, small = probability[number] * law[likely], gap < gaps[:, None]
        below += small @ weight
        squares += small @ (weight[:, None] * jump**2)
    return GapDistribution(gaps, below, squares)


def find_second_minima(
    loss: Any, params: np.ndarray, constant: float, center: np.ndarray, table: Table, nodes: np.ndarray, spacing: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gap (N,) of each of N nodes (N, 2) of a table, infinite without a second minimum, and Δg (N, 2).

    The minimization starts at the minimizers of nodes at distance `REACH` that deviate from the linear prediction.
    """
    i, j = nodes.T
    fields = center + np.stack([table.axes[0][i], table.axes[1][j]], axis=1) @ DIRECTIONS
    slope, curvature = table.slope[:, i, j].T, table.curvature[:, i, j][[0, 1, 1, 2]].T.reshape(-1, 2, 2)
    gap, jump = np.full(len(nodes), np.inf), np.zeros((len(nodes), 2))
    for a, b in NEIGHBORS:
        step, there = spacing * np.array([a, b]) @ DIRECTIONS, table.slope[:, i + a, j + b].T
        moved = table.V * (there - slope + curvature @ step)  # deviation of the minimizer from its linear prediction
        different = np.flatnonzero(np.abs(moved).max(axis=1) > APART * np.abs(step).max())
        start = fields[different] + step + table.V * there[different]
        rows, block = np.tile(params, (len(different), 1)), np.full((2, 1, 1), table.V)
        out = denoise(loss, rows, fields[different, :, None], block, start[:, :, None], hold=True)
        excess = out.moreau + constant + table.phi[i, j][different]
        change = out.g[:, :, 0] - slope[different]
        lower = out.solved & (excess < gap[different]) & (table.V * np.abs(change).max(axis=1) > APART * spacing)
        gap[different[lower]], jump[different[lower]] = excess[lower], change[lower]
    return gap, jump


def _one_field_gaps(
    problem: OneField, levels: Levels, parisi: np.ndarray, gaps: np.ndarray, resolution: int, n_nodes: int = 12
) -> GapDistribution:
    """Return the distribution of gaps for one field, from n-point rules on intervals of fields around each jump."""
    labels, _, probability, centers, variances, averages = problem.average_labels(levels, parisi, resolution)
    V, model = float(levels.V[0]), problem.model
    reach = max(float(np.abs(each.before[0]).max()) for each in averages) + CUT * np.sqrt(levels.q[-1, 0])
    jumps = find_jumps(model, labels, hulls_of_labels(model, labels, reach, V), V)
    owner = np.repeat(np.arange(len(labels)), [len(at) for at, _, _ in jumps])
    at, low, high = (np.concatenate(parts) for parts in zip(*jumps, strict=True))
    # distances to the next jumps of the label, at which another minimum becomes the global one
    apart = [np.diff(np.concatenate([[-np.inf], fields, [np.inf]])) for fields, _, _ in jumps]
    room = {-1: np.concatenate([each[:-1] for each in apart]), 1: np.concatenate([each[1:] for each in apart])}
    below, squares = np.zeros(len(gaps)), np.zeros((len(gaps), 1))
    unit, weight = legendre_panels(np.array([0.0, 1.0]), n_nodes)
    for number, gap in enumerate(gaps):
        for side in (-1, 1):
            pair = JumpPair(model, labels[owner], at, low, high, V)
            length = find_length(pair, side, float(gap), room[side])
            for x, w in zip(unit.ravel(), weight.ravel(), strict=True):
                _, jump, phi = pair.at(side * x * length)
                fields = zip(owner, at + side * x * length, phi, strict=True)
                density = [density_at(averages[i], centers[i], variances, parisi, *field) for i, *field in fields]
                measure = w * length * probability[owner] * np.array(density)
                below[number] += measure.sum()
                squares[number] += measure @ jump**2
    return GapDistribution(gaps, below, squares)


class JumpPair(NamedTuple):
    """The two minima of each of N jumps, which are continued to other fields."""

    model: Model
    labels: np.ndarray  # (N, P)
    # field, low, high: (N,) fields of the jumps, and the minima below and above
    field: np.ndarray
    low: np.ndarray
    high: np.ndarray
    V: float

    def at(self, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the gaps (N,) at shifted fields, the differences of g, and φ of the lower minimum.

        The gap is infinite where one of the minima has ended.
        """
        omega = self.field + shift
        left, right = (local_minima(self.model, self.labels, omega, z, self.V) for z in (self.low, self.high))
        jump = (right.z - left.z)[:, 0, 0] / self.V
        alive = jump > ENDED * (self.high - self.low) / self.V
        gap = np.where(alive, np.abs(right.moreau - left.moreau), np.inf)
        return gap, jump, -np.minimum(left.moreau, right.moreau)


def find_length(
    pair: JumpPair, side: int, gap: float, room: np.ndarray, doublings: int = 30, bisections: int = 40
) -> np.ndarray:
    """Return the distances (N,) from the jumps, to one side, up to which the gap is smaller than `gap`.

    The search ends at distances `room` (N,), and takes at most the given numbers of doublings and bisections.
    """
    inside = np.zeros(len(room))
    outside = np.minimum(gap * pair.V / (pair.high - pair.low), room)
    for _ in range(doublings):
        small = (pair.at(side * outside)[0] < gap) & (outside < room)
        if not small.any():
            break
        inside = np.where(small, outside, inside)
        outside = np.where(small, np.minimum(2 * outside, room), outside)
    for _ in range(bisections):
        middle = 0.5 * (inside + outside)
        small = pair.at(side * middle)[0] < gap
        inside, outside = np.where(small, middle, inside), np.where(small, outside, middle)
    return inside


def density_at(
    averages: Averages, center: float, variances: np.ndarray, parisi: np.ndarray, field: float, phi: float
) -> float:
    """Return the density of P_k of a label at a field, with φ_k = `phi` there."""
    x, probability, before = averages.before
    variance = variances[-1]
    if len(parisi):
        exponent = -0.5 * (field - x) ** 2 / variance + parisi[-1] * (phi - before)
        return float(probability @ np.exp(exponent)) / float(np.sqrt(2 * np.pi * variance))
    return float(np.exp(-0.5 * (field - center) ** 2 / variance) / np.sqrt(2 * np.pi * variance))
