"""Flips of single samples: starts of message passing next to a minimum, from which a lower minimum may follow.

At a minimum of the risk, with weights Q and variances V of message passing, each sample has the fields z and the center
ω = z − V g of its proximal objective. Many samples have a second local minimum z' there. To lowest order, the risk
changes by the gap between the values of the proximal objective at z' and z if the sample moves from z to z' and all
weights respond: this is the cavity argument behind message passing. The corrections are of the order of one sample's
loss, so that the gap does not decide. For each of the samples of smallest gap a run of message passing is made. It
begins at the state of the minimum, in which one sample has the fields z', and keeps the local minima of all samples.

Minima that survey propagation finds at finite d often differ from a lower minimum in few samples. For losses that do
not change if the signs of all fields change, as in attention with tied weights, z' is close to −z.
"""

import numpy as np

from gamp_attention.gamp.step import GampState, gamp_step, near_fixed_point
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.risk import denoise_at, is_convex, risk_at
from gamp_attention.problem.sources import apply_by_source

N_FLIPS = 6  # maximum number of samples that are flipped at a minimum
FLIP_STEP = 0.3  # step β of the first iteration after a flip
MIN_DISTANCE = 1e-2  # smallest distance of z' and z as two minima, in units of the root mean square of the fields


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
