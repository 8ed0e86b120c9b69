"""The training loss by three routes, and the free energy whose stationarity conditions state evolution is.

With the Moreau envelope M,

    f = α E[M] + ∫dν E[min_x r(x) + ½ xᵀA x − bᵀx] + Σ_l (m̂_l·m_l + θ̂_l·θ_l + ½ q̂_l·V_l − ½ V̂_l·q_l),

where the second term is −½ ∫dν E[bᵀ (λ + A)⁻¹ b] for the ridge. Its derivatives in the hats are the weights' side of
eq. (7), those in the overlaps the channel's side, and at a fixed point f = ε_t.
"""

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Hats
from gamp_attention.state_evolution.equations.weights import weights_envelope
from gamp_attention.state_evolution.fixed_points.overlap_map import Image, OverlapMap


def moreau_loss(overlaps: Overlaps, hats: Hats, penalty: float) -> float:
    """ε_t of eq. (14) from the Moreau envelope, with the penalty E[r(x)], λ‖Q‖²/2d for the ridge.

    Eq. :eq:`training-loss`.
    """
    return hats.moreau - 0.5 * float(np.sum(hats.q * overlaps.V)) + penalty


def stationary_loss(F: OverlapMap, overlaps: Overlaps, image: Image) -> float:
    """ε_t at overlaps near a fixed point, from the map's image of them: to second order in the distance from it.

    Where A is not Stein's, f is not stationary, and the Moreau form will do.
    """
    if F.variance != "stein":
        return moreau_loss(overlaps, image.hats, image.penalty)
    return free_energy(F.model, overlaps, image.hats)


def direct_loss(hats: Hats, penalty: float) -> float:
    """ε_t as the mean loss at the proximal minimum plus the penalty."""
    return hats.loss + penalty


def free_energy(model: Model, overlaps: Overlaps, hats: Hats, moreau: float | None = None) -> float:
    """The free energy of overlaps and hats; `moreau` is α E[M] at the overlaps, from the hats if not given.

    Eq. :eq:`free-energy`.

    Overlaps and hats need not belong together: the derivatives in each, the others fixed, are the equations.
    """
    coupling = np.sum(hats.m * overlaps.m) + np.sum(hats.theta * overlaps.theta)
    coupling += 0.5 * np.sum(hats.q * overlaps.V) - 0.5 * np.sum(hats.V * overlaps.q)
    return float((hats.moreau if moreau is None else moreau) + weights_envelope(model, hats) + coupling)
