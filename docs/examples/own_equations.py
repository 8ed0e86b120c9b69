"""Saddle-point equations of six papers, with at most 15 lines each, for `ga.solve_equations`.

Weights w minimize Σ_μ ℓ(y_μ, z_μ) + λ‖w‖²/2 over n = αd samples with fields z = x·w/√d; u = x·w*/√d is the teacher's
field. The order parameters are m = w·w*/d, q = ‖w‖²/d and V, the response of z.
"""

import numpy as np
from scipy.special import expit, ndtr
from scipy.stats import poisson

import gamp_attention as ga

COUNTS = np.arange(25)  # how often a sample may occur in a bootstrap sample


def logistic_loss(z, y):
    """Return log(1 + exp(−y z))."""
    return np.logaddexp(0, -y * z)


def hinge_loss(z, y):
    """Return the loss of a support vector machine."""
    return max(0, 1 - y * z)


def force(loss, omega, V, *parameters):
    """Return g = (z − ω)/V and its derivative in ω."""
    z, dz = ga.prox(loss, omega, V, *parameters, convex=True)
    return (z - omega) / V, (dz - 1) / V


def logistic(x, average, alpha, lam):
    """Logistic regression with labels ±1 of probability σ(y u) (Salehi, Abbasi and Hassibi, 2019)."""

    def averages(u, xi):
        total = 0
        for y in (-1, 1):
            g, dg = force(logistic_loss, x.m * u + np.sqrt(x.q - x.m**2) * xi, x.V, y)
            total += expit(y * u) * np.array([u * g, g**2, dg])
        return total.T

    ug, gg, dg = alpha * average(averages, 2)
    along, precision = ug - x.m * dg, lam - dg
    return {"m": along / precision, "q": (along**2 + gg) / precision**2, "V": 1 / precision}


def sign_labels(x, xi):
    """Return y, ω, the probability of y = sign(u) given ω, and its derivative in E[u | ω]."""
    omega, spread = np.sqrt(x.q) * xi, np.sqrt(1 - x.m**2 / x.q)
    mean = x.m / x.q * omega / spread
    return [(y, omega, ndtr(y * mean), y * np.exp(-0.5 * mean**2) / np.sqrt(2 * np.pi) / spread) for y in (-1, 1)]


def support_vectors(x, average, alpha, lam, flipped=0.0):
    """Support vector machine with labels sign(u), of which a fraction is flipped (Montanari et al., 2019)."""

    def averages(xi):
        total = 0
        for y, omega, p, slope in sign_labels(x, xi):
            g, dg = force(hinge_loss, omega, x.V, y)
            p, slope = flipped + (1 - 2 * flipped) * p, (1 - 2 * flipped) * slope
            total += np.array([slope * g, p * g**2, p * dg])
        return total.T

    along, gg, dg = alpha * average(averages)
    precision = lam - dg
    return {"m": along / precision, "q": (along**2 + gg) / precision**2, "V": 1 / precision}


def random_features(x, average, alpha, lam, omega, s):
    """Gaussian covariates (Loureiro et al., 2021): eigenvalues ω_i of Ω, and Φᵀθ in its basis, s_i; sign labels."""

    def averages(xi):
        forces = [(*force(logistic_loss, w, x.V, y), p, slope) for y, w, p, slope in sign_labels(x, xi)]
        return sum(np.array([slope * g, p * g**2, p * dg]) for g, dg, p, slope in forces).T

    along, gg, dg = alpha * average(averages)
    precision = lam - dg * omega
    q = np.mean(omega * (along**2 * s**2 + gg * omega) / precision**2)
    return {"m": along * np.mean(s**2 / precision), "q": q, "V": np.mean(omega / precision)}


def margin_loss(z, y, margin):
    """Return the logistic loss of y z − margin."""
    return np.logaddexp(0, margin - y * z)


def adversarial(x, average, alpha, lam, strength):
    """Logistic regression with labels sign(u) whose y z an adversary lowers by strength ‖w‖/√d (Tanner, 2024)."""

    def averages(xi):
        total = 0
        for y, omega, p, slope in sign_labels(x, xi):
            g, dg = force(margin_loss, omega, x.V, y, strength * np.sqrt(x.q))
            total += np.array([slope * g, p * g**2, p * dg, p * y * g])
        return total.T

    along, gg, dg, yg = alpha * average(averages)
    precision = lam - dg + strength * yg / np.sqrt(x.q)
    return {"m": along / precision, "q": (along**2 + gg) / precision**2, "V": 1 / precision}


def mixture(x, average, alpha, lam, distance, positive):
    """Logistic classification of N(±distance e, 1) with a fraction of positive labels and a bias b (Mignacco, 2020)."""

    def averages(xi):
        total = 0
        for y, p in ((1, positive), (-1, 1 - positive)):
            g, dg = force(logistic_loss, y * distance * x.m + np.sqrt(x.q) * xi + x.b, x.V, y)
            total += p * np.array([y * g, g**2, dg, g])
        return total.T

    yg, gg, dg, g = alpha * average(averages)
    along, precision = distance * yg, lam - dg
    return {"m": along / precision, "q": (along**2 + gg) / precision**2, "V": 1 / precision, "b": x.b - g / dg}


def bootstrap(x, average, alpha, lam, noise):
    """Overlap r of two ridge regressions on bootstrap samples (Clarté et al., 2024)."""
    p, weight = poisson.pmf(COUNTS, 1.0), COUNTS / (1 + COUNTS * x.V)  # of y − ω
    first, second = p @ weight, p @ weight**2
    precision = lam + alpha * first
    along = alpha * first
    q = (along**2 + alpha * second * (1 - 2 * x.m + x.q + noise**2)) / precision**2
    r = (along**2 + alpha * first**2 * (1 - 2 * x.m + x.r + noise**2)) / precision**2
    return {"m": along / precision, "q": q, "r": r, "V": 1 / precision}


def main() -> None:
    """Solve logistic regression, and follow it over α."""
    solution = ga.solve_equations(logistic, {"m": 0.1, "q": 0.5, "V": 1.0}, alpha=2.0, lam=0.1)
    print(solution)
    print(ga.follow_equations(logistic, solution, alpha=(1.0, 4.0), rtol=1e-3))


if __name__ == "__main__":
    main()
