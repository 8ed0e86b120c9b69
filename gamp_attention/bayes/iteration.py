"""Bayes-optimal state evolution at a given α by iteration, for teachers that are functions of the fields.

The curve of all fixed points (`bayes.equations`) is not used for these models. `iterate` applies q̂ = αE[g gᵀ] and
V = V(q̂) until V no longer changes, from little or nearly complete information: first with few samples, then with all.
All iterations of a run use the same samples, and the same points of their posteriors as long as V changes little, so
that the map is a smooth function of V near the end, and independent runs give the errors.

Columns without overlap need a separate rule. If the sign of a column can be changed at unchanged targets, its overlap
q = 0 is preserved, and near it an iteration multiplies q by a constant factor. The iteration decides slowly whether a
column vanishes if this factor is near one. Therefore, once overlaps are below `SMALL` (in units of the prior) at the
end of the iterations with few samples, the factor is computed with all samples from the response to a small overlap
(`bayes.stages.growth_map`), which has less noise than the overlap itself. If it is below one, these columns are set to
zero; otherwise they continue from the overlap `SMALL`.
"""

from typing import NamedTuple

import numpy as np

from gamp_attention.bayes.equations import Equations
from gamp_attention.bayes.stages import growth_map, leading_direction

FEW = 4  # ratio of the numbers of samples of the last and the first iterations
ROUGH, FINE = 3e-3, 3e-4  # change of V in units of the prior's ρ at which iterations with few and with all samples end
MAX_ROUGH, MAX_FINE = 150, 300  # maximum numbers of iterations
UNINFORMED, INFORMED = 0.02, 0.999  # overlaps of the start, in units of the prior
SMALL = 0.05  # overlap in units of the prior, below which the growth of a column is computed


class Iterated(NamedTuple):
    """Fixed point of a run."""

    q: np.ndarray  # (t, t)
    V: np.ndarray  # (L, t, t)
    known: np.ndarray  # (L, t, t)
    free_entropy: float
    residual: float  # change of V in the last iteration, in units of ρ
    n_iter: int
    converged: bool


def iterate(few: Equations, all_samples: Equations, alpha: float, init: str) -> Iterated:
    """Return the fixed point that iterations from a start "uninformed" or "informed" reach.

    Parameters
    ----------
    few, all_samples : equations with different numbers of samples.
    alpha : sample complexity.
    init : start.
    """
    rho = all_samples.rho
    without_data = all_samples.input(np.zeros_like(rho))
    known = UNINFORMED * rho if init == "uninformed" else INFORMED * rho
    zero = np.zeros(rho.shape[1], dtype=bool)
    if not all_samples.has_zero_fixed_point() and init == "uninformed":
        known = without_data.known
    n_iter, residual = 0, np.inf
    for equations, tol, limit in ((few, ROUGH, MAX_ROUGH), (all_samples, FINE, MAX_FINE)):
        last = 0.0
        for _ in range(limit):
            new = _step(equations, alpha, rho - known, known, zero)
            change = float(np.abs(new - known).max() / np.abs(rho).max())
            # changes that shrink by a factor κ add up to κ/(1 − κ) times the last one
            ratio = min(change / last, 0.95) if last else 0.5
            known, residual, last, n_iter = new, change, change, n_iter + 1
            if change * max(1.0, ratio / (1 - ratio)) < tol:
                break
        if equations is few and init == "uninformed":
            zero, known = _decide_small_columns(all_samples, alpha, known)
    V = rho - known
    output = all_samples.output(V, known)
    averages = all_samples.input(alpha * output.hats)
    entropy = all_samples.free_entropy(alpha, V, output)
    return Iterated(averages.q * np.outer(~zero, ~zero), V, known, entropy, residual, n_iter, residual < 10 * FINE)


def _step(equations: Equations, alpha: float, V: np.ndarray, known: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Return the covariances of ω after one iteration; columns `zero` have no overlap."""
    return _without(equations.input(alpha * equations.output(V, known).hats).known, zero)


def _without(known: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return known * np.outer(~zero, ~zero)


def _decide_small_columns(equations: Equations, alpha: float, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns (t,) whose overlap vanishes, and covariances of ω (L, t, t) for the next iterations."""
    rho = equations.rho
    fractions = np.diagonal(known, axis1=1, axis2=2) / np.diagonal(rho, axis1=1, axis2=2)
    small = (fractions.max(axis=0) < SMALL) & equations.signless_columns()
    if not small.any():
        return small, known
    without, places = _without(known, small), np.nonzero(small)[0]
    if alpha * leading_direction(growth_map(equations, without, places))[0] < 1:
        return small, without
    without[:, places, places] = SMALL * rho[:, places, places]
    return np.zeros_like(small), without
