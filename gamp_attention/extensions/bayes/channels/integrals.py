"""Averages over samples by quadrature: for fields known up to a sign, and for two classes.

Fields known up to a common sign have g_l = (u_l tanh h − ω_l)/V_l with h = Σ_l u_l ω_l/V_l. Given the fields
u_l = √ρ_l r n_l, with n on the unit sphere, h is Gaussian, with mean and variance κ² = r² Σ_l n_l² q_l/V_l; this is
r² c if all q_l/V_l are equal to c. Classes are given by the sign of the sum of the fields, or by its logistic odds. The
smallest panels of Gauss-Legendre nodes, near zero, have the width that V requires. Results are computed with the rule
`FINE`; its difference from `COARSE` bounds its error. These are the methods `integrate` of the channels.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, gammaln, ndtr

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
    logistic: float = 40.0  # integration limit of a logistic variable; its weight beyond is below 1e-17


FINE = IntegralRule()
SURE = 14.0  # κ above which tanh h is 1 up to 1e-17 at all nodes
COARSE = IntegralRule(nodes=12, smallest=0.08, growth=1.6, widest=0.6, spacing=0.15)


def _panels(scale: float, rule: IntegralRule) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights on [0, reach] in standard deviations, in panels whose width near 0 resolves `scale`."""
    ends, width = [0.0], max(rule.smallest * min(scale, 1.0), 1e-30)
    while ends[-1] < rule.reach:
        ends.append(ends[-1] + width)
        width = min(width * rule.growth, rule.widest)
    x, weight = legendre_panels(np.array(ends), rule.nodes)
    return x.ravel(), weight.ravel()


def normal_nodes(rule: IntegralRule) -> tuple[np.ndarray, np.ndarray]:
    """Return equally spaced nodes and weights for the standard Gaussian."""
    z = spaced_grid(rule.spacing, 1, rule.reach, False)
    return z[:, 0], gaussian_weights(z)


def logistic_nodes(temperature: float, rule: IntegralRule) -> tuple[np.ndarray, np.ndarray]:
    """Return equally spaced nodes and weights of T τ with the standard logistic distribution of τ, one for T = 0."""
    tau = np.arange(-rule.logistic, rule.logistic + rule.spacing, 4 * rule.spacing) if temperature else np.zeros(1)
    weight = expit(tau) * expit(-tau)
    return temperature * tau, weight / weight.sum()


def average_up_to_sign(known: np.ndarray, V: np.ndarray, rule: IntegralRule) -> tuple[np.ndarray, float]:
    """Return E g_l² (L, 1, 1) and E log Z for fields known up to a common sign, of variances known + V (L, 1, 1).

    The ratio known/V is the same for all tokens.
    """
    L, rho = len(V), known + V
    certain, uncertain, log_term = _sign_averages(L, float((known / V).mean()), rule)
    # E tanh² h = E tanh h over the distribution of h, so that E g_l² = (ρ_l E[r² n_l² tanh²] − q_l)/V_l²
    total = np.where(known < V, (rho * certain / L - known) / V**2, 1 / V - rho * uncertain / L / V**2)
    return total, log_term - 0.5 * L - np.log(2) - 0.5 * float(np.log(2 * np.pi * V).sum())


def _sign_averages(L: int, strength: float, rule: IntegralRule) -> tuple[float, float, float]:
    """Return E[r² tanh² h], E[r² (1 − tanh² h)] and E log(1 + e^(−2h)).

    r² has a chi-square distribution with L degrees of freedom, h ~ N(κ², κ²), and κ² is r² times the strength c.
    """
    r, weight = _panels(float(1 / np.sqrt(max(strength, 1e-300))), rule)
    weight = weight * np.exp((L - 1) * np.log(r) - 0.5 * r**2 - (L / 2 - 1) * np.log(2) - gammaln(L / 2))
    z, normal = normal_nodes(rule)
    kappa = r * np.sqrt(strength)
    sure, weight, r2 = weight[kappa > SURE] @ r[kappa > SURE] ** 2, weight[kappa <= SURE], r[kappa <= SURE] ** 2
    kappa = kappa[kappa <= SURE, None]
    h = kappa**2 + kappa * z
    small = np.exp(-2 * np.abs(h))
    certain = sure + float((weight * r2) @ np.tanh(h) ** 2 @ normal)
    uncertain = float((weight * r2) @ (4 * small / (1 + small) ** 2) @ normal)
    log_term = float(weight @ (np.log1p(small) + np.maximum(-2 * h, 0)) @ normal)
    return certain, uncertain, log_term


def average_odds(known: float, V: float, temperature: float, rule: IntegralRule) -> tuple[float, float]:
    """Return E g² and E log Z for a sum whose class has logistic odds, or whose sign is observed (T = 0)."""
    weight, likely, unlikely, slope = class_probabilities(known, V, temperature, rule)
    tiny = np.finfo(float).tiny
    logs = likely * np.log1p(-unlikely) + unlikely * np.log(np.maximum(unlikely, tiny))
    return float(weight @ (slope**2 / np.maximum(likely * unlikely, tiny))), float(weight @ logs)


def class_probabilities(
    known: float, V: float, temperature: float, rule: IntegralRule
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return weights of nodes ω ≥ 0, the probabilities of both classes given ω, and the derivative of the larger.

    The class is the sign with probability 1/(1 + exp(−S/T)) of S ~ N(ω, V), and ω ~ N(0, known).
    """
    deviation = np.sqrt(V)
    z, weight = _panels(max(deviation, temperature) / np.sqrt(max(known, 1e-300)), rule)
    weight = 2 * weight * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    omega = np.sqrt(known) * z[:, None]
    if temperature >= deviation:
        x, normal = normal_nodes(rule)
        odds = (omega + deviation * x) / temperature
        up, down = expit(odds), expit(-odds)
        return weight, up @ normal, down @ normal, (up * down) @ normal / temperature
    # T < √V: the noise of the class is narrower than V, so the nodes resolve a logistic variable
    shift, logistic = logistic_nodes(temperature, rule)
    at = (omega - shift) / deviation
    density = np.exp(-0.5 * at**2) / np.sqrt(2 * np.pi) / deviation
    return weight, ndtr(at) @ logistic, ndtr(-at) @ logistic, density @ logistic
