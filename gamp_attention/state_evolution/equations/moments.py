"""Averages over the channel: of points, and completed to all of a channel by its symmetries."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from gamp_attention.denoisers.output import Denoised
from gamp_attention.losses.terms import RiskTerms
from gamp_attention.state_evolution.equations.symmetry import exchanged, isotropic, isotropic_pairs, palindrome


@dataclass(frozen=True, eq=False)
class Moments:
    """Averages over the channel."""

    g: np.ndarray  # (L, r) of g_l
    with_noise: np.ndarray  # (L, r, r) of g_l ω̃_lᵀ
    with_teacher: np.ndarray  # (L, r, t) of g_l y_lᵀ
    gg: np.ndarray  # (L, r, r) of g_l g_lᵀ
    response: np.ndarray  # (L, r, r) of −∂g_l/∂ω_l, the a.e. derivative
    square: np.ndarray  # (L, L, r², r²) of (∂g_l/∂ω_k) ⊗ (∂g_l/∂ω_k), again a.e.
    moreau: float  # of the Moreau envelope, with the constant of the risk
    loss: float  # of ℓ(z), with this constant
    steepest: float = np.inf  # largest trace of ∂z/∂ω; inf where a second minimum was found, or none was looked for
    doubled: float = 1.0  # share of points at which a second minimum was found; 1 where none was looked for


def average(y: np.ndarray, noise: np.ndarray, terms: RiskTerms, out: Denoised, V: np.ndarray) -> Moments:
    """Averages over samples of the denoiser's answer at fields ω̃ = noise with teacher fields y.

    Those of products of derivatives are NaN where the denoiser was not asked for its Jacobian.
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
    """Averages at minima next to the fields, corrected by a few points at which lower ones were looked for."""
    averages = [each.name for each in fields(Moments) if each.name not in ("steepest", "doubled")]
    moved: dict[str, Any] = {
        name: getattr(all_near, name) + (getattr(few, name) - getattr(few_near, name)) for name in averages
    }
    return Moments(**moved, steepest=max(all_near.steepest, few.steepest), doubled=few.doubled)


def _steepest(out: Denoised, V: np.ndarray) -> float:
    """The largest trace of ∂z/∂ω, which is large where jumps begin; inf where a second minimum was found."""
    if np.isfinite(out.gap).any():
        return np.inf
    return float(V.shape[0] * V.shape[1] - np.einsum("lab,nlba->n", V, out.response).min(initial=0.0))


def reversed_mean(moments: Moments) -> Moments:
    """Averages over half of a channel that is the same for tokens reversed, completed to all of it."""
    g, square = moments.g, moments.square
    return _completed(moments, palindrome, 0.5 * (g - g[::-1]), 0.5 * (square + square[::-1, ::-1]))


def exchanged_mean(moments: Moments) -> Moments:
    """Averages over a channel that is the same for tokens in any order, with the noise of all of them shared."""
    square, L = moments.square, len(moments.g)
    own, other = np.eye(L)[:, :, None, None], (1 - np.eye(L))[:, :, None, None]
    both = own * (own * square).sum(axis=(0, 1)) / L + other * (other * square).sum(axis=(0, 1)) / (L * (L - 1))
    return _completed(moments, exchanged, exchanged(moments.g), both)


def isotropic_mean(moments: Moments) -> Moments:
    """Averages over a channel that is the same for columns turned together, over all ways to turn them."""
    return _completed(moments, isotropic, moments.g, isotropic_pairs(moments.square))


def _completed(
    moments: Moments, change: Callable[[np.ndarray], np.ndarray], g: np.ndarray, square: np.ndarray
) -> Moments:
    changed: dict[str, Any] = {
        name: change(getattr(moments, name)) for name in ("with_noise", "with_teacher", "gg", "response")
    }
    return replace(moments, g=g, square=square, **changed)
