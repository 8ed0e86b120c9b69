"""The training loss from the Moreau envelope, and the free energy, which state evolution makes stationary.

With the Moreau envelope M,

    f = α E[M] + ∫dν E[min_x r(x) + ½ xᵀA x − bᵀx] + Σ_l (m̂_l·m_l + θ̂_l·θ_l + ½ q̂_l·V_l − ½ V̂_l·q_l),

where the second term is −½ ∫dν E[bᵀ (λ + A)⁻¹ b] for the ridge. Its derivatives in the hats give the equations for the
overlaps, those in the overlaps the equations for the hats, and at a fixed point f = ε_t.
"""

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Hats
from gamp_attention.state_evolution.equations.weights import weights_envelope
from gamp_attention.state_evolution.fixed_points.overlap_map import Image, OverlapMap


def moreau_loss(overlaps: Overlaps, hats: Hats, penalty: float) -> float:
    """Training loss ε_t from the Moreau envelope, and from the penalty E[r(x)], λ‖Q‖²/2d for the ridge.

    Eq. :eq:`training-loss`.
    """
    return hats.moreau - 0.5 * float(np.sum(hats.q * overlaps.V)) + penalty


def stationary_loss(F: OverlapMap, overlaps: Overlaps, image: Image) -> float:
    """Training loss near a fixed point, with an error of second order in the distance from it.

    That is the free energy. With the derivative's V̂ this is not stationary, and the Moreau form serves.
    """
    if F.response != "stein":
        return moreau_loss(overlaps, image.hats, image.penalty)
    return free_energy(F.model, overlaps, image.hats)


def free_energy(model: Model, overlaps: Overlaps, hats: Hats, moreau: float | None = None) -> float:
    """The free energy of overlaps and hats; `moreau` is α E[M] at the overlaps, from the hats if not given.

    Eq. :eq:`free-energy`.

    Overlaps and hats need not belong together: derivatives in either, with the other fixed, give the equations.
    """
    coupling = np.sum(hats.m * overlaps.m) + np.sum(hats.theta * overlaps.theta)
    coupling += 0.5 * np.sum(hats.q * overlaps.V) - 0.5 * np.sum(hats.V * overlaps.q)
    return float((hats.moreau if moreau is None else moreau) + weights_envelope(model, hats) + coupling)
