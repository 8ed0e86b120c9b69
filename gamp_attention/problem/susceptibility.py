"""V and V̂ at a minimum of the risk, from the Hessians of the samples: the fixed point of V in message passing."""

from collections.abc import Sequence

import numpy as np

from gamp_attention._tools.numerics import symmetrize
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.denoisers.input import input_step
from gamp_attention.problem.risk import RiskAtPoint

MAX_ITER = 500  # maximum number of iterations for V, see `susceptibility`
TOLERANCE = 1e-10  # relative change of V at which the iteration has converged
ANDERSON_DEPTH = 5  # number of differences that an extrapolation of V combines
# (number of iterations, relative change of V that must be reached then); if V exists, about 8 iterations reach 1e-10
CHANGES = ((5, 0.2), (12, 1e-2))
MIN_EIGENVALUE = 0.1  # smallest eigenvalue of an accepted extrapolation, in units of the damped iterate's smallest


def susceptibility(data: Dataset, at: RiskAtPoint, Q: np.ndarray, *, quick: bool = False) -> np.ndarray:
    """Return V_s (S, r, r) of each source at a minimum Q of the risk, from the Hessians of the samples.

    V solves V = W(A), where W(A) is the response of the weights (`input_step`) and A = −(1/d) Σ ∂g/∂ω with
    ∂g/∂ω = −V⁻¹(1 − (V⁻¹ + H)⁻¹V⁻¹). For a smooth penalty V is the limit of (1/d) Σ_i γ_i (∇²R)⁻¹_ii for large d. All
    entries are NaN if no positive definite solution is found. Up to two fields are solved by damped iterations, unless
    `quick` is True. For more fields an iteration costs as much as several gradients, so it is accelerated (Anderson,
    1965), and stopped early if its changes stay large.
    """
    S, r = data.n_sources, data.rank
    V = np.tile(np.eye(r), (S, 1, 1)) * (data.spectra.mean(axis=1) / (1.0 + data.penalty.strength))[:, None, None]
    quick = quick or data.n_tokens * r > 2
    points, moves = list[np.ndarray](), list[np.ndarray]()
    for number in range(MAX_ITER):
        try:
            V_hat = hessian_response(data, at.hessians, V)
        except np.linalg.LinAlgError:
            break
        W = input_step(data.penalty, data.spectra, V_hat, -at.smooth, Q)[2]
        if not np.isfinite(W).all() or np.linalg.eigvalsh(W).min() <= 0:
            break
        change = np.abs(W - V).max() / np.abs(W).max()
        points, moves = [*points[-ANDERSON_DEPTH:], V], [*moves[-ANDERSON_DEPTH:], W - V]
        V = 0.5 * (V + W)
        if change < TOLERANCE:
            return V
        if quick and any(number >= n and change > largest for n, largest in CHANGES):
            break
        if quick:
            V = _extrapolate(points, moves, V)
    return np.full((S, r, r), np.nan)


def _extrapolate(points: list[np.ndarray], moves: list[np.ndarray], damped: np.ndarray) -> np.ndarray:
    """Return the Anderson extrapolation of iterates and their moves (S, r, r), or the damped iterate if it fails."""
    if len(points) < 2:
        return damped
    V = symmetrize(points[-1] + _anderson_step(points, moves, rcond=1e-10))
    low = np.linalg.eigvalsh(damped).min()
    return V if np.isfinite(V).all() and np.linalg.eigvalsh(V).min() > MIN_EIGENVALUE * low > 0 else damped


def hessian_response(data: Dataset, hessians: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return V̂_s (S, r, r) = −(1/d) Σ ∂g/∂ω of each source, from V and the Hessians (n, L r, L r) of the samples."""
    from scipy.linalg import block_diag

    r, V_hat, inverse = data.rank, np.zeros(V.shape), np.linalg.inv(V)
    for rows, sources in data.groups:
        if hessians.shape[1] == 1:  # one field: numbers in place of matrices take a tenth of the time
            h, v = hessians[rows], inverse[sources[0]]
            V_hat[sources[0]] += (v * (h / (v + h))).sum(axis=0) / data.dim
            continue
        big = block_diag(*inverse[sources])
        shifted = big + hessians[rows]
        full = (len(shifted) * big - big @ np.linalg.inv(shifted).sum(axis=0) @ big) / data.dim
        for l, s in enumerate(sources):
            V_hat[s] += full[l * r : (l + 1) * r, l * r : (l + 1) * r]
    return V_hat


def _anderson_step(points: Sequence[np.ndarray], moves: Sequence[np.ndarray], rcond: float) -> np.ndarray:
    """Return the step from the last of some points to the fixed point, for the moves of iterations (Anderson, 1965)."""
    x, f = (np.reshape(parts, (len(parts), -1)) for parts in (points, moves))
    shifts, changes = np.diff(x, axis=0).T, np.diff(f, axis=0).T  # without columns for one point
    weights = np.linalg.lstsq(changes, f[-1], rcond=rcond)[0]
    return np.asarray(f[-1] - (shifts + changes) @ weights).reshape(moves[-1].shape)
