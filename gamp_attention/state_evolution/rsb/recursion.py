"""Recursion of replica symmetry breaking over functions of one field, from the innermost level outward.

With overlaps q_0 < … < q_k, Δ_j = q_j − q_{j−1}, and Parisi parameters y_1 < … < y_k, the functions of the field are

    φ_k(ω) = −M_V(ω),   φ_{j−1}(ω) = (1/y_j) log E_u exp(y_j φ_j(ω + √Δ_j u)),   j = k, …, 1.

The transition p_j(ω'|ω) = N(ω' − ω; Δ_j) exp(y_j (φ_j(ω') − φ_{j−1}(ω))) is a probability density in ω'. Averages of
functions of the field at level j are over P_j(ω') = ∫ P_{j−1}(ω) p_j(ω'|ω) dω, where P_0 is Gaussian. Derivatives
follow by the chain rule; ⟨·⟩_j denotes the average over p_j:

    φ_{j−1}' = ⟨φ_j'⟩_j,   φ_{j−1}'' = ⟨φ_j''⟩_j + y_j (⟨φ_j'²⟩_j − ⟨φ_j'⟩_j²).

φ_k has kinks where the proximal map jumps, so that φ_k'' is not a function. For j = k the second derivative is
therefore computed from Stein's identity, φ_{k−1}'' = ⟨φ_k' (ω' − ω)⟩_k/Δ_k − y_k ⟨φ_k'⟩_k² (Stein, 1981).

Discretisation. φ_k is given on Gauss-Legendre panels that end at its kinks. The functions φ_j with j < k are analytic;
their integrals are trapezoidal sums on uniform grids, whose errors decrease exponentially with the inverse spacing
(Trefethen and Weideman, 2014). Each sum is a logarithm of a sum of exponentials, with the maximum subtracted.
"""

from typing import NamedTuple

import numpy as np

from gamp_attention._core.compiled import kernel

TURN = 4.0  # scale of φ_{j−1} near a former kink, at large y_j, in units of 1/(y_j max|φ_j'|)
CUT = 9.0  # distance in standard deviations from its most likely field beyond which a transition is neglected


class Innermost(NamedTuple):
    """The function φ_k = −M_V at nodes that integrate it with its kinks."""

    # x, weight: (N,) increasing nodes, and quadrature weights of integrals over the field
    x: np.ndarray
    weight: np.ndarray
    # phi, slope: (N,) φ_k and its derivative, the output function g
    phi: np.ndarray
    slope: np.ndarray
    response: np.ndarray  # (N,) −∂g/∂ω, the almost-everywhere derivative


class Averages(NamedTuple):
    """Averages of functions of the field at each level, over the k + 1 distributions P_j."""

    # phi, slopes, curvatures: (k + 1,) averages of φ_j, (φ_j')² and (φ_j'')², the last of the a.e. derivative for j =
    # k.
    phi: np.ndarray
    slopes: np.ndarray
    curvatures: np.ndarray
    first: float  # average of φ_0', for the position
    bend: float  # average of −φ_0''
    response: float  # average of −φ_k'' over P_k without the jumps


@kernel
def smooth(x, inner_x, weight, variance, parisi, phi, reach, out, transition):
    """Fill `out` (n,) with (1/y) log E exp(y φ(x + √variance u)) at points x (n,), and its transition matrix (n, N).

    `phi` (N,) is given at increasing nodes inner_x with quadrature weights. Rows of `transition` have sum 1. The
    Gaussian is normalised on the nodes, which corrects the ends of their range. Nodes farther than `reach` are
    neglected.
    """
    sd = np.sqrt(variance)
    n_inner = inner_x.shape[0]
    for i in range(x.shape[0]):
        first = np.searchsorted(inner_x, x[i] - reach)
        last = np.searchsorted(inner_x, x[i] + reach)
        top = -np.inf
        norm = 0.0
        for j in range(first, last):
            u = (inner_x[j] - x[i]) / sd
            transition[i, j] = -0.5 * u * u
            norm += weight[j] * np.exp(transition[i, j])
            top = max(top, transition[i, j] + parisi * phi[j])
        total = 0.0
        for j in range(first, last):
            transition[i, j] = weight[j] * np.exp(transition[i, j] + parisi * phi[j] - top)
            total += transition[i, j]
        out[i] = (top + np.log(total / norm)) / parisi
        for j in range(first):
            transition[i, j] = 0.0
        for j in range(first, last):
            transition[i, j] /= total
        for j in range(last, n_inner):
            transition[i, j] = 0.0


def uniform_grid(centre: float, sd: float, spacing: float, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of the trapezoidal rule on centre ± reach·sd; one node of weight 1 if sd is 0."""
    n = int(np.ceil(reach * sd / spacing)) if sd > 0 else 0
    x = centre + (reach * sd / max(n, 1)) * np.arange(-n, n + 1)
    return x, np.full(len(x), reach * sd / n if n else 1.0)


def average_levels(
    innermost: Innermost, centre: float, variances: np.ndarray, parisi: np.ndarray, spacing: float,
    reach: float,
) -> Averages:  # fmt: skip
    """Return the averages of the recursion for one label.

    Parameters
    ----------
    innermost : φ_k and its derivatives.
    centre : mean of P_0.
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
        scale = min(sds[j - 1] if sds[j - 1] > 0 else np.inf, sds[j], TURN / max(parisi[j - 1] * steepest, 1e-300))
        grid, grid_weight = uniform_grid(centre, total if j > 1 else float(sds[0]), spacing * scale, reach)
        new, transition = np.empty(len(grid)), np.empty((len(grid), len(x)))
        drift = float(parisi[j - 1] * variances[j]) * steepest  # largest distance of the most likely field
        smooth(grid, x, weight, float(variances[j]), float(parisi[j - 1]), phi, CUT * sds[j] + drift, new, transition)
        new_slope = transition @ slope
        if j == k:
            moment = transition @ (slope * x) - grid * new_slope
            bend = moment / variances[j] - parisi[j - 1] * new_slope**2
        else:
            bend = transition @ bend + parisi[j - 1] * (transition @ slope**2 - new_slope**2)
        phi, slope, x, weight = new, new_slope, grid, grid_weight
        rows.insert(0, (phi, slope, bend**2))
        transitions.insert(0, transition)
    outer = _gaussian(x, weight, centre, float(sds[0]))
    if k == 0:  # Stein's identity on P_0
        bend = slope * (x - centre) / variances[0]
    first, minus_bend = float(outer @ slope), -float(outer @ bend)
    means, law = [], outer
    for j, (value, gradient, squared) in enumerate(rows):
        means.append((law @ value, law @ gradient**2, law @ squared))
        if j < k:
            law = law @ transitions[j]
    table = np.array(means)
    return Averages(table[:, 0], table[:, 1], table[:, 2], first, minus_bend, float(law @ innermost.response))


def _gaussian(x: np.ndarray, weight: np.ndarray, centre: float, sd: float) -> np.ndarray:
    """Return the probabilities of nodes under a Gaussian, with sum 1."""
    if sd == 0:
        return np.ones(len(x))
    density = weight * np.exp(-0.5 * ((x - centre) / sd) ** 2)
    return density / density.sum()
