"""Jump masses of trajectories, and statements about them: whether runs at finite d follow a prediction."""

from typing import Any

import numpy as np

from gamp_attention._tools.display import format_to_error
from gamp_attention._tools.statistics import half_width
from gamp_attention.theory.equations.channel import Hats


def average_jumps(replicas: list[list[Hats]]) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Return V̂ and the jump mass as fields of `Trajectory`, and the relative jump mass (T,) with an interval of it."""
    jumps = np.array([[hats.jump_mass for hats in all_hats] for all_hats in replicas])
    shares = np.array([[jump_share(hats) for hats in all_hats] for all_hats in replicas])
    share, scale = shares.mean(axis=0), 1 / np.sqrt(len(replicas))
    arrays: dict[str, Any] = {
        "V_hat": np.array([[hats.V for hats in all_hats] for all_hats in replicas]).mean(axis=0),
        "jump_mass": jumps.mean(axis=0),
        "jump_mass_error": jumps.std(axis=0, ddof=1) * scale,
        "jump_share": share,
        "jump_share_error": shares.std(axis=0, ddof=1) * scale,
    }
    return arrays, share, 2 * half_width(shares - share)


def jump_share(hats: Hats) -> float:
    """Return the trace of the jump mass, relative to the trace of V̂ in the larger of its two forms."""
    stein, derivative = (np.trace(v.sum(axis=0)) for v in (hats.V, hats.V_derivative))
    return float((stein - derivative) / max(abs(stein), abs(derivative), 1e-300))


def state_validity(
    share: np.ndarray, error: np.ndarray, unsure: np.ndarray, shift: np.ndarray, harmful: float = 0.1
) -> str:
    """Return a statement whether message passing on data follows the prediction.

    Parameters
    ----------
    share : (T,) relative jump mass, never positive except for noise.
    error : (T,) standard error of `share`.
    unsure : (T,) size up to which `share` is not significant.
    shift : (T,) relative change of V without jumps.
    harmful : jump mass that three standard errors must exclude before a prediction is called consistent.
    """
    if not has_jumps(share, unsure):
        lowest = int(np.argmin(share - 3 * error))
        if share[lowest] - 3 * error[lowest] > -harmful:
            return f"consistent within its errors ({state_mass(share)})"
        mass = format_to_error(100 * share[lowest], 100 * error[lowest])
        return f"unknown: too few paths show whether the proximal map jumps (jump mass {mass} % of V̂); raise n_paths"
    words = f"runs deviate, because the proximal map jumps ({state_mass(share)}, at iteration {int(np.argmin(share))})"
    if shift.min() < 0:
        words += f"; expect V of runs about {float(f'{-100 * shift.min():.2g}'):g} % lower"
    follows = "with IterationOptions(V_hat=trajectory.V_hat) runs follow this prediction"
    return f"{words}; with the ridge, hold_after=20 predicts the runs, and {follows}"


def has_jumps(share: np.ndarray, unsure: np.ndarray, negligible: float = 1e-2) -> bool:
    """Return whether the relative jump mass is not negligible at some iteration."""
    return bool((share < -np.maximum(negligible, unsure)).any())


def state_mass(share: np.ndarray) -> str:
    """Return a statement about the largest relative jump mass."""
    return f"jump mass up to {float(f'{100 * min(share.min(), 0):.2g}'):g} % of V̂"
