"""Trajectories of gradient descent for d → ∞ at all times.

The equations are exact without assumptions on the landscape, because no proximal map jumps (Celentano, Cheng and
Montanari, arXiv:2112.07572). The fields depend on the forces of earlier steps and the weights on the weights of earlier
steps, through responses that are averages of derivatives along the sampled paths (`descent_paths`, `path_responses`,
`weight_paths`). In message passing the Onsager terms cancel these memory terms, so its paths need no derivatives; its
loop, `message_paths`, is T times cheaper.
"""

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.dynamics.descent_paths import DescentPaths, gathered
from gamp_attention.state_evolution.dynamics.message_paths import MeanLosses
from gamp_attention.state_evolution.dynamics.methods import DescentMethod
from gamp_attention.state_evolution.dynamics.start_law import StartLaw
from gamp_attention.state_evolution.dynamics.weight_paths import weights_of


def follow_descent(
    model: Model, alpha: float, start: StartLaw, method: DescentMethod, n_iter: int, n_paths: int,
    rng: np.random.Generator,
) -> tuple[list[Overlaps], list[MeanLosses]]:  # fmt: skip
    """Return overlaps and losses at every step, from one set of sampled paths. Eq. :eq:`descent-fields`."""
    weights = weights_of(model, start, n_iter, n_paths, rng)
    paths = [DescentPaths(component, n_paths, n_iter, method.batch, rng) for component in model.components]
    states, losses = [], []
    for t in range(n_iter + 1):
        now, q, memory = weights.overlaps(), weights.covariances(), weights.memory()
        forces = gathered(model, paths, [path.advance(alpha, now, q, memory) for path in paths])
        states.append(now)
        losses.append(MeanLosses(forces.loss + weights.penalty(), forces.test_error))
        if t < n_iter:
            weights.descend(forces, method)
    return states, losses
