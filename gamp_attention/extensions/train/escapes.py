"""Steps away from critical points: flips of single samples at a minimum, and escapes from saddles.

At a minimum of the risk, with weights Q and variances V of message passing, each sample has the fields z and the center
ω = z − V g of its proximal objective. Many samples have a second local minimum z' there. To lowest order, the risk
changes by the gap between the values of the proximal objective at z' and z if the sample moves to z' and all weights
respond (the cavity argument behind message passing), up to corrections of the order of one sample's loss. So a run of
message passing is made for each of the samples of smallest gap. Minima that survey propagation finds at finite d often
differ from a lower minimum in few samples. If the loss is even, as in attention with tied weights, z' is close to −z.
"""

import numpy as np

from gamp_attention.gamp.step import GampState, gamp_step, near_fixed_point
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.risk import denoise_at, is_convex, risk_at
from gamp_attention.problem.sources import apply_by_source

N_FLIPS = 6  # maximum number of samples that are flipped at a minimum
FLIP_STEP = 0.3  # step β of the first iteration after a flip
MIN_DISTANCE = 1e-2  # smallest distance of z' and z as two minima, in units of the root mean square of the fields
ESCAPE_STEP = 1e-2  # root mean square of the first change of the weights, in units of a teacher's weights
ESCAPE_GROWTH = 2.0  # factor of the step while the risk falls; while no step lowers it, divided by its square
MAX_TRIALS = 40  # maximum number of steps that are tried in each of the directions v and −v


def flipped_starts(data: Dataset, risk: str, Q: np.ndarray, V: np.ndarray) -> list[tuple[str, GampState]]:
    """Return names and states of the starts next to a minimum, at most `N_FLIPS`, in the order of their gaps.

    The search for z' begins at the mirror image 2ω − z, at which the quadratic part of the proximal objective is equal.
    The states are states after one iteration, because the gradient at the minimum itself is zero. There are none if the
    loss is convex or V is not positive definite.

    Parameters
    ----------
    data, risk : the samples, and "exact" or "asymptotic".
    Q : (d, r) weights of a minimum.
    V : (S, r, r) variances of message passing there.
    """
    if is_convex(data) or not (np.isfinite(V).all() and np.linalg.eigvalsh(V).min() > 0):
        return []
    at, state = risk_at(data, Q, risk), near_fixed_point(data, risk, Q, V)
    here = denoise_at(data, at, V, hold=True)
    there = denoise_at(data, at, V, hold=True, start=at.z + 2 * apply_by_source(data.groups, V, at.loss_gradients))
    distance = np.sqrt(np.mean((there.z - here.z) ** 2, axis=(1, 2)) / np.mean(here.z**2))
    gap = np.where(distance > MIN_DISTANCE, there.moreau - here.moreau, np.inf)
    starts = []
    for mu in np.argsort(gap, kind="stable")[:N_FLIPS]:
        if np.isfinite(gap[mu]):
            z = here.z.copy()
            z[mu] = there.z[mu]
            after, _ = gamp_step(data, risk, GampState(state.Q, state.V, state.D, z), FLIP_STEP, hold=True)
            starts.append((f"flip of sample {mu}", after))
    return starts


def leave_saddle(data: Dataset, risk: str, Q: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the lowest of several points Q ± s v along a line, and its training loss; Q itself if none is lower.

    v is the direction of lowest curvature (d, r); s is doubled while the risk falls.
    """
    best, lowest = Q, risk_at(data, Q, risk).train_loss
    start = lowest
    for side in (1.0, -1.0):
        size, falling, last = ESCAPE_STEP * np.sqrt(Q.size), False, start
        for _ in range(MAX_TRIALS):
            trial = Q + side * size * direction
            loss = risk_at(data, trial, risk).train_loss
            if loss < last:
                falling, last = True, loss
                if loss < lowest:
                    best, lowest = trial, loss
                size *= ESCAPE_GROWTH
            elif falling:
                break
            else:
                size /= ESCAPE_GROWTH**2
    return best, lowest
