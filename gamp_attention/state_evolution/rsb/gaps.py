"""Distribution of the gap between the two lowest minima of the proximal problem, for attention with two tokens.

At a field ω, the gap is the difference between the two lowest local minima of |z − ω|²/2V + ℓ(z), in units of the loss
of a sample. It vanishes on the lines where the proximal map jumps. Its density at zero determines the jump mass: on a
line, φ_k is continuous and its gradient g jumps by Δg, so that the gap grows as |Δg| times the distance from the line,
and

    V̂ − V̂_derivative = −α lim_{ε→0} E[1(gap < ε) (Δg)²]/(2ε),

averaged over the fields P_k of minima. With each step of breaking fewer samples have a small gap, because such samples
make minima sensitive to the other samples.
"""

from typing import NamedTuple

import numpy as np

from gamp_attention.denoisers.output import denoise
from gamp_attention.state_evolution.rsb.lattice import APART, DIRECTIONS, smooth_levels, tabulate
from gamp_attention.state_evolution.rsb.two_fields import TwoFields
from gamp_attention.state_evolution.rsb.weights import Levels

REACH = 4  # distance in nodes at which minimisers of other nodes are tried as second minima
NEGLIGIBLE = 1e-7  # probability of a node, relative to the most likely node, below which it is left out
NEIGHBOURS = [(i, j) for i in (-REACH, 0, REACH) for j in (-REACH, 0, REACH) if i or j]


class GapDistribution(NamedTuple):
    """Distribution of gaps.

    Attributes
    ----------
    gaps : (n,) gaps ε.
    probability : (n,) probability that the gap of a sample is below ε.
    squares : (n, 2) average of 1(gap < ε) (Δg)² for both tokens, Δg the difference of g between both minima.
    """

    gaps: np.ndarray
    probability: np.ndarray
    squares: np.ndarray


def gap_distribution(
    problem: TwoFields, levels: Levels, parisi: np.ndarray, gaps: np.ndarray, resolution: int = 0
) -> GapDistribution:
    """Return the distribution of gaps over the fields P_k of minima.

    Second minima are searched from the minimisers at fields in a distance of `REACH` nodes of the lattice, so that the
    distribution is complete for gaps that are small compared with the changes of φ_k in this distance.

    Parameters
    ----------
    problem : output channel.
    levels, parisi : overlaps and Parisi parameters (k,), for example of a solution.
    gaps : (n,) gaps ε at which the distribution is computed.
    resolution : resolution of the grids.
    """
    params, constants, centres, (_, probability) = problem.labels(levels, resolution)
    variances, V, block = problem.variances(levels), float(levels.V[0]), np.full((2, 1, 1), levels.V[0])
    grids = problem.with_fixed_grids(levels, parisi, resolution).grids
    assert grids is not None
    lattice, loss = grids.lattice, problem.model.loss
    below, squares = np.zeros(len(gaps)), np.zeros((len(gaps), 2))
    for number, (p, constant, centre) in enumerate(zip(params, constants, centres, strict=True)):
        table = tabulate(loss, p, constant, centre, V, lattice, number)
        smoothed = smooth_levels(table, variances, parisi, lattice, squares=False)
        law = smoothed.outer_law(np.zeros(2), float(variances[0]))[0]
        for transition in smoothed.transitions:
            law = transition.spread(law)
        inner = np.zeros(law.shape, dtype=bool)
        inner[REACH:-REACH, REACH:-REACH] = True
        nodes = np.argwhere(inner & (law > NEGLIGIBLE * law.max()))
        here = tuple(nodes.T)
        fields = centre + np.stack([axis[index] for axis, index in zip(table.axes, here, strict=True)], 1) @ DIRECTIONS
        slope, curvature = table.slope[:, here[0], here[1]].T, table.curvature[:, here[0], here[1]]
        curvature = curvature[[0, 1, 1, 2]].T.reshape(-1, 2, 2)
        gap, jump = np.full(len(nodes), np.inf), np.zeros((len(nodes), 2))
        for shift in NEIGHBOURS:
            step = lattice.spacing * np.array(shift) @ DIRECTIONS
            there = table.slope[:, here[0] + shift[0], here[1] + shift[1]].T
            moved = V * (there - slope + curvature @ step)  # deviation of the minimiser from its linear prediction
            different = np.flatnonzero(np.abs(moved).max(axis=1) > APART * np.abs(step).max())
            start = fields[different] + step + V * there[different]
            rows = np.tile(p, (len(different), 1))
            out = denoise(loss, rows, fields[different, :, None], block, start[:, :, None], hold=True)
            excess = out.moreau + constant + table.phi[here][different]
            change = out.g[:, :, 0] - slope[different]
            lower = out.solved & (excess < gap[different]) & (V * np.abs(change).max(axis=1) > APART * lattice.spacing)
            gap[different[lower]], jump[different[lower]] = excess[lower], change[lower]
        weight = probability[number] * law[here]
        small = gap < np.asarray(gaps)[:, None]
        below += small @ weight
        squares += small @ (weight[:, None] * jump**2)
    return GapDistribution(np.asarray(gaps, dtype=float), below, squares)
