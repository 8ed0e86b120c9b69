"""Averages over samples by quadrature: for linear labels, for fields known up to a sign, and for two classes.

Linear labels have Gaussian posteriors and need no nodes. Fields known up to a common sign have
g_l = (u_l tanh h − ω_l)/V_l with h = Σ_l u_l ω_l/V_l. Given the fields u_l = √ρ_l r n_l, with n on the unit
sphere, h is Gaussian, with mean and variance κ² = r² Σ_l n_l² q_l/V_l. Classes are given by the sign of the sum
of the fields, or by its logistic odds. The smallest panels of Gauss-Legendre nodes, near zero, have
the width that V requires. Results are computed with the rule `FINE`; its difference from `COARSE` bounds its error.
These are the methods `integrate` of the channels.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit, gammaln, log_ndtr, ndtr

from gamp_attention._tools.quadrature import gaussian_weights, legendre_panels, spaced_grid


@dataclass(frozen=True)
class IntegralRule:
    """Resolution of the quadrature rules."""

    nodes: int = 16  # number of Gauss-Legendre nodes in a panel
    reach: float = 9.0  # integration limit, in standard deviations
    smallest: float = 0.05  # width of the first panel, in units of the smallest width of the integrand
    growth: float = 1.4  # ratio of the widths of neighboring panels
    widest: float = 0.5  # maximum width of a panel, in standard deviations
    spacing: float = 0.1  # spacing of nodes of Gaussian and logistic variables, in units of their scale
    directions: int = 6  # number of nodes for each angle, if the tokens have different variances
    logistic: float = 40.0  # integration limit of a logistic variable; its weight beyond is below 1e-17
    decade_nodes: int = 18  # number of Chebyshev nodes for each decade of c: errors below 1e-11, most below 1e-12


FINE = IntegralRule()
COARSE = IntegralRule(nodes=12, smallest=0.08, growth=1.6, widest=0.6, spacing=0.15, directions=5)


def _panels(scale: float, rule: IntegralRule) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights on [0, reach] in standard deviations, in panels whose width near 0 resolves `scale`."""
    ends, width = [0.0], max(rule.smallest * min(scale, 1.0), 1e-30)
    while ends[-1] < rule.reach:
        ends.append(ends[-1] + width)
        width = min(width * rule.growth, rule.widest)
    x, weight = legendre_panels(np.array(ends), rule.nodes)
    return x.ravel(), weight.ravel()


def _normal_nodes(rule: IntegralRule) -> tuple[np.ndarray, np.ndarray]:
    """Return equally spaced nodes and weights for the standard Gaussian."""
    z = spaced_grid(rule.spacing, 1, rule.reach, False)
    return z[:, 0], gaussian_weights(z)


def _directions(L: int, rule: IntegralRule) -> tuple[np.ndarray, np.ndarray]:
    """Return squares n_l² (K, L) of unit vectors and weights (K,) of the sphere, by Gauss-Jacobi rules."""
    from scipy.special import roots_jacobi

    squares, weights, remaining = np.zeros((1, 0)), np.ones(1), np.ones(1)
    for l in range(L - 1):
        # n_l²/(1 − Σ_{k<l} n_k²) has the distribution Beta(1/2, (L − l − 1)/2)
        x, w = roots_jacobi(rule.directions, 0.5 * (L - l - 1) - 1, -0.5)
        part = 0.5 * (1 + x)
        squares = np.concatenate(
            [np.repeat(squares, len(x), axis=0), (remaining[:, None] * part).reshape(-1, 1)], axis=1
        )
        remaining = (remaining[:, None] * (1 - part)).ravel()
        weights = (weights[:, None] * (w / w.sum())).ravel()
    return np.concatenate([squares, remaining[:, None]], axis=1), weights


def average_up_to_sign(known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[np.ndarray, float]:
    """Return E g_l² (L,) and E log Z for fields that are known up to a common sign, with variances known + V (L,)."""
    L, rho, ratio = len(V), known + V, known / V
    if np.ptp(ratio) <= 1e-12 * ratio.max():
        squares, weights = np.full((1, L), 1 / L), np.ones(1)
    else:
        squares, weights = _directions(L, rule)
    strength = squares @ ratio  # κ²/r²
    parts = _interpolate_averages(L, strength, rule)
    certain, uncertain = ((weights * part) @ squares for part in parts[:2])
    # E tanh² h = E tanh h over the distribution of h, so that E g_l² = (ρ_l E[r² n_l² tanh²] − q_l)/V_l²
    total = np.where(known < V, (rho * certain - known) / V**2, 1 / V - rho * uncertain / V**2)
    log_z = float(weights @ parts[2]) - 0.5 * L - np.log(2) - 0.5 * float(np.log(2 * np.pi * V).sum())
    return total, log_z


def _sign_averages(L: int, strength: float, rule: IntegralRule) -> tuple[float, float, float]:
    """Return E[r² tanh² h], E[r² (1 − tanh² h)] and E log(1 + e^(−2h)).

    r² has a chi-square distribution with L degrees of freedom, h ~ N(κ², κ²), and κ² is r² times the strength c.
    """
    r, weight = _panels(float(1 / np.sqrt(max(strength, 1e-300))), rule)
    weight = weight * np.exp((L - 1) * np.log(r) - 0.5 * r**2 - (L / 2 - 1) * np.log(2) - gammaln(L / 2))
    z, normal = _normal_nodes(rule)
    kappa = r * np.sqrt(strength)
    h = kappa[:, None] ** 2 + kappa[:, None] * z
    small = np.exp(-2 * np.abs(h))
    tanh = (1 - small) / (1 + small)
    near = np.abs(h) < 1e-3
    tanh[near] = np.abs(np.tanh(h[near]))
    certain = float((weight * r**2) @ tanh**2 @ normal)
    uncertain = float((weight * r**2) @ (4 * small / (1 + small) ** 2) @ normal)
    log_term = float(weight @ (np.log1p(small) + np.maximum(-2 * h, 0)) @ normal)
    return certain, uncertain, log_term


def _interpolate_averages(L: int, strength: np.ndarray, rule: IntegralRule) -> np.ndarray:
    """Return averages (3, K) of `_sign_averages` at strengths (K,), by polynomials of log c for every decade."""
    logs = np.log10(np.maximum(strength, 1e-300))
    decades = np.floor(logs).astype(int)
    averages = np.empty((3, len(strength)))
    for decade in np.unique(decades):
        members = decades == decade
        at = 2 * (logs[members] - decade) - 1
        averages[:, members] = np.exp(np.polynomial.chebyshev.chebval(at, _decade(L, int(decade), rule)))
    return averages


@lru_cache(maxsize=1024)
def _decade(L: int, decade: int, rule: IntegralRule) -> np.ndarray:
    """Return Chebyshev coefficients (nodes, 3) of the logarithms of `_sign_averages` over a decade of c."""
    x = np.polynomial.chebyshev.chebpts1(rule.decade_nodes)
    values = [_sign_averages(L, float(10 ** (decade + 0.5 * (1 + node))), rule) for node in x]
    logs = np.log(np.maximum(np.array(values), np.finfo(float).tiny))
    return np.polynomial.chebyshev.chebfit(x, logs, rule.decade_nodes - 1)


def average_sign(known: float, V: float, rule: IntegralRule) -> tuple[float, float]:
    """Return E g² and E log Z for a sum whose sign is observed."""
    at, weight = _panels(np.sqrt(V / max(known, V)), rule)
    weight = 2 * weight * np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi)
    at = at * np.sqrt(known / V)
    logs = np.stack([log_ndtr(at), log_ndtr(-at)])
    squares = np.exp(-(at**2) - np.log(2 * np.pi) - logs).sum(axis=0)
    return float(weight @ squares) / V, float(weight @ np.sum(np.exp(logs) * logs, axis=0))


def average_odds(known: float, V: float, temperature: float, rule: IntegralRule) -> tuple[float, float]:
    """Return E g² and E log Z for a sum whose class has logistic odds."""
    weight, likely, unlikely, slope = class_probabilities(known, V, temperature, rule)
    tiny = np.finfo(float).tiny
    logs = likely * np.log(likely) + unlikely * np.log(np.maximum(unlikely, tiny))
    return float(weight @ (slope**2 / np.maximum(likely * unlikely, tiny))), float(weight @ logs)


def class_probabilities(
    known: float, V: float, temperature: float, rule: IntegralRule
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return weights of nodes ω ≥ 0, the probabilities of both classes given ω, and the derivative of the larger.

    The class is the sign with probability 1/(1 + exp(−S/T)) of S ~ N(ω, V), and ω ~ N(0, known), T > 0.
    """
    deviation = np.sqrt(V)
    z, weight = _panels(max(deviation, temperature) / np.sqrt(max(known, 1e-300)), rule)
    weight = 2 * weight * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    omega = np.sqrt(known) * z[:, None]
    if temperature >= deviation:
        x, normal = _normal_nodes(rule)
        odds = (omega + deviation * x) / temperature
        up, down = expit(odds), expit(-odds)
        return weight, up @ normal, down @ normal, (up * down) @ normal / temperature
    # T < √V: the noise of the class is narrower than V, so the nodes resolve a logistic variable
    tau = np.arange(-rule.logistic, rule.logistic + rule.spacing, 4 * rule.spacing)
    logistic = expit(tau) * expit(-tau)
    logistic /= logistic.sum()
    at = (omega - temperature * tau) / deviation
    density = np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi) / deviation
    return weight, ndtr(at) @ logistic, ndtr(-at) @ logistic, density @ logistic
