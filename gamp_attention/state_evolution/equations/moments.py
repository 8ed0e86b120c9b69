"""Averages over the channel, from points in a fundamental domain and completed by the channel's symmetries."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from gamp_attention.denoisers.output import Denoised
from gamp_attention.losses.terms import RiskTerms
from gamp_attention.state_evolution.equations.symmetry import exchanged, isotropic, isotropic_pairs, palindrome


@dataclass(frozen=True, eq=False)
class Moments:
    """Averages over the output channel; g is the output function of the denoiser."""

    g: np.ndarray  # (L, r), E[g_l]
    with_noise: np.ndarray  # (L, r, r), E[g_l ω̃_lᵀ]
    with_teacher: np.ndarray  # (L, r, t), E[g_l y_lᵀ]
    gg: np.ndarray  # (L, r, r), E[g_l g_lᵀ]
    response: np.ndarray  # (L, r, r), E[−∂g_l/∂ω_l] with the almost-everywhere derivative
    square: np.ndarray  # (L, L, r², r²), E[(∂g_l/∂ω_k) ⊗ (∂g_l/∂ω_k)], also almost everywhere
    moreau: float  # average Moreau envelope, with the constant of the risk
    loss: float  # average of ℓ(z), with this constant
    steepest: float = np.inf  # largest trace of ∂z/∂ω; inf if a point has a second minimum, or none was searched
    doubled: float = 1.0  # fraction of points with a second minimum; 1 if none was searched


def average(y: np.ndarray, noise: np.ndarray, terms: RiskTerms, out: Denoised, V: np.ndarray) -> Moments:
    """Return averages over samples of the denoiser's result at fields ω̃ = noise with teacher fields y.

    Averages of products of derivatives are NaN if the denoiser did not compute its Jacobian.
    """
    n, L, r = noise.shape
    g, square = out.g, np.full((L, L, r * r, r * r), np.nan)
    if len(out.jacobian):
        slope = (np.eye(L * r) - out.jacobian).reshape(n, L, r, L * r)
        slope = (np.linalg.inv(V)[None] @ slope).reshape(n, L, r, L, r)
        square = np.einsum("nlakc,nlbkd->lkabcd", slope, slope, optimize=True).reshape(square.shape) / n
    return Moments(
        g=g.mean(axis=0),
        with_noise=np.einsum("nla,nlb->lab", g, noise) / n,
        with_teacher=np.einsum("nla,nlb->lab", g, y) / n,
        gg=np.einsum("nla,nlb->lab", g, g) / n,
        response=out.response.mean(axis=0),
        square=square,
        moreau=float(np.mean(out.moreau + terms.constant)),
        loss=float(np.mean(out.loss + terms.constant)),
        steepest=_steepest(out, V),
        doubled=float(np.isfinite(out.gap).mean()),
    )


def corrected(all_near: Moments, few: Moments, few_near: Moments) -> Moments:
    """Return averages at local minima, corrected at the points searched for the global minimum (control variate)."""
    averages = [field.name for field in fields(Moments) if field.name not in ("steepest", "doubled")]
    moved: dict[str, Any] = {
        name: getattr(all_near, name) + (getattr(few, name) - getattr(few_near, name)) for name in averages
    }
    return Moments(**moved, steepest=max(all_near.steepest, few.steepest), doubled=few.doubled)


def _steepest(out: Denoised, V: np.ndarray) -> float:
    """Return the largest trace of ∂z/∂ω, which is large next to jumps; inf if a second minimum was found."""
    if np.isfinite(out.gap).any():
        return np.inf
    return float(V.shape[0] * V.shape[1] - np.einsum("lab,nlba->n", V, out.response).min(initial=0.0))


def reversed_mean(moments: Moments) -> Moments:
    """Return averages over a channel that is symmetric under reversal of the tokens, given averages over half of it."""
    g, square = moments.g, moments.square
    return _completed(moments, palindrome, 0.5 * (g - g[::-1]), 0.5 * (square + square[::-1, ::-1]))


def exchanged_mean(moments: Moments) -> Moments:
    """Return averages over a channel that is symmetric under permutations of the tokens; sampling noise is averaged."""
    square, L = moments.square, len(moments.g)
    same, other = np.eye(L)[:, :, None, None], (1 - np.eye(L))[:, :, None, None]
    both = same * (same * square).sum(axis=(0, 1)) / L + other * (other * square).sum(axis=(0, 1)) / (L * (L - 1))
    return _completed(moments, exchanged, exchanged(moments.g), both)


def isotropic_mean(moments: Moments) -> Moments:
    """Return averages over a channel that is symmetric under common rotations of the columns, over all rotations."""
    return _completed(moments, isotropic, moments.g, isotropic_pairs(moments.square))


def _completed(
    moments: Moments, change: Callable[[np.ndarray], np.ndarray], g: np.ndarray, square: np.ndarray
) -> Moments:
    changed: dict[str, Any] = {
        name: change(getattr(moments, name)) for name in ("with_noise", "with_teacher", "gg", "response")
    }
    return replace(moments, g=g, square=square, **changed)
