"""Averages over samples that are integrals over two numbers: of fields known up to a sign, or by the sign of their sum.

Signs: g_l = (u_l tanh h − ω_l)/V, h = u·ω/V. Given the fields h is Gaussian, with mean and variance κ² = |u|² q/(ρV).
Cuts: the sum of the fields is above zero or below. Panels of Gauss-Legendre nodes are as fine near zero as V is.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, log_ndtr

from gamp_attention._core.gaussian import spaced_grid
from gamp_attention.models.channels.channel import Channel
from gamp_attention.models.channels.labels import SumChannel
from gamp_attention.models.channels.rotations import SignChannel
from gamp_attention.models.labels import IntensityLabels


@dataclass(frozen=True)
class IntegralSettings:
    """Nodes of these integrals, whose errors are below 1e-9."""

    nodes: int = 16  # of a panel
    reach: float = 9.0  # in units of the deviation
    smallest: float = 0.05  # of the first panel, in units of √V
    growth: float = 1.4  # from panel to panel
    widest: float = 0.5  # panel
    spacing: float = 0.2  # of h about its mean, in units of its deviation


INTEGRALS = IntegralSettings()


def output_averages(channel: Channel, rho: np.ndarray, V: np.ndarray, alike: bool) -> tuple[np.ndarray, float] | None:
    """E[g gᵀ] (L, t, t) and E[log Z], or None where there is no such integral."""
    L, t, _ = V.shape
    if t > 1:
        return None
    if isinstance(channel, SignChannel) and alike:
        total, log_z = _known_to_a_sign(L, float(rho[0, 0, 0]), float(V[0, 0, 0]))
        return np.full((L, 1, 1), total / L), log_z
    if isinstance(channel, SumChannel):
        size, unknown = float(rho.sum()), float(V.sum())
        if isinstance(channel.labels, IntensityLabels) and not channel.noise:
            total, log_z = _known_to_a_sign(1, size, unknown)
            return np.full((L, 1, 1), total), log_z
        if channel.jumps:
            total, log_z = _cut(size, unknown)
            return np.full((L, 1, 1), total), log_z
    return None


def _panels(scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights from 0 on, in units of the deviation, that are fine near zero on a given scale."""
    ends, width = [0.0], max(INTEGRALS.smallest * scale, 1e-9)
    while ends[-1] < INTEGRALS.reach:
        ends.append(ends[-1] + width)
        width = min(width * INTEGRALS.growth, INTEGRALS.widest)
    x, weight = np.polynomial.legendre.leggauss(INTEGRALS.nodes)
    low, half = np.array(ends[:-1]), 0.5 * np.diff(ends)
    return ((low + half)[:, None] + half[:, None] * x).ravel(), (half[:, None] * weight).ravel()


def _known_to_a_sign(L: int, rho: float, V: float) -> tuple[float, float]:
    """Σ_l E g_l² and E log Z for L fields of variance ρ that are known up to a common sign."""
    q = max(rho - V, 0.0)
    r, weight = _panels(np.sqrt(V / rho))
    weight = weight * np.exp((L - 1) * np.log(r) - 0.5 * r**2 - (L / 2 - 1) * np.log(2) - gammaln(L / 2))
    z = spaced_grid(INTEGRALS.spacing, 1, INTEGRALS.reach, False)[:, 0]
    normal = np.exp(-0.5 * z**2)
    normal /= normal.sum()
    kappa = r * np.sqrt(q / V)
    h = np.abs(kappa[:, None] ** 2 + kappa[:, None] * z)
    small = np.exp(-2 * h)
    unsure = 4 * small / (1 + small) ** 2  # 1 − tanh²
    log_cosh = h + np.log1p(small) - np.log(2)
    # E tanh² h = E tanh h over the law of h, so that E g² = (ρ E[r² tanh²] − Lq)/V²
    sure = rho * float((weight * r**2) @ (1 - unsure) @ normal)
    unknown = rho * float((weight * r**2) @ unsure @ normal)
    total = (sure - L * q) / V**2 if q < 0.5 * rho else L / V - unknown / V**2
    log_z = float(weight @ log_cosh @ normal) - 0.5 * L * (rho + q) / V - 0.5 * L * np.log(2 * np.pi * V)
    return total, log_z


def _cut(rho: float, V: float) -> tuple[float, float]:
    """E g² and E log Z for a sum of variance ρ whose sign is known."""
    q = max(rho - V, 0.0)
    at, weight = _panels(np.sqrt(V / max(q, V)))
    weight = 2 * weight * np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi)
    at = at * np.sqrt(q / V)
    logs = np.stack([log_ndtr(at), log_ndtr(-at)])
    squares = np.exp(-(at**2) - np.log(2 * np.pi) - logs).sum(axis=0)
    return float(weight @ squares) / V, float(weight @ np.sum(np.exp(logs) * logs, axis=0))
