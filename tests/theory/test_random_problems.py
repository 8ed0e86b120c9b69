"""Stated errors of state evolution on random problems with one field: with kinks, for λ → 0, at any α.

The reference solves the equations again, from the solution, with closed-form proximal maps and Gauss-Legendre panels
between their kinks.
"""

import numpy as np
import pytest
from scipy.optimize import root
from scipy.special import expit, ndtr

import gamp_attention as ga
from gamp_attention._tools.quadrature import legendre_panels
from tests.theory.test_kinks import Hinge, Quantile, QuantileLabels
from validation._tools.robust import Huber

REACH, PANELS, NODES = 9.0, 60, 20  # integration limit in standard deviations, number of panels and of their nodes
LOSSES, MARGINS = ("squares", "logistic", "hinge", "quantile", "huber", "insensitive"), ("logistic", "hinge")


def force(loss, numbers, r, V):
    """Return g at residuals r = y − ω, or 1 − yω, and the residuals of its kinks."""
    if loss == "squares":
        return r / (1 + V), []
    if loss == "huber":
        return np.clip(r / (1 + V), -numbers[0], numbers[0]), [numbers[0] * (1 + V), -numbers[0] * (1 + V)]
    if loss == "logistic":  # bisection
        low, high = np.zeros_like(r), np.ones_like(r)
        for _ in range(60):
            g = 0.5 * (low + high)
            below = g < expit(r - 1 - V * g)
            low, high = np.where(below, g, low), np.where(below, high, g)
        return g, []
    up, down, e = numbers
    return np.clip((r - e) / V, 0, up) + np.clip((r + e) / V, down, 0), [e, -e, e + up * V, -e + down * V]


def step(x, loss, alpha, lam, noise, numbers):
    """Return θ, q and V after one step from x."""
    theta, q, V = x
    is_margin = loss in MARGINS
    size = np.sqrt(q if is_margin else 1 + noise**2 - 2 * theta + q)
    kinks = np.array(force(loss, numbers, np.zeros(1), V)[1])
    cuts = np.clip((1 - kinks if is_margin else kinks) / size, -REACH, REACH)
    ends = np.unique([*np.linspace(-REACH, REACH, PANELS + 1), *cuts])
    t, weight = (part.ravel() for part in legendre_panels(ends, NODES))
    weight = weight * np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)
    g = force(loss, numbers, 1 - size * t if is_margin else size * t, V)[0]
    if is_margin:  # t = yω/√q has the density 2 φ(t) Φ(a), and y u = |u|
        c, s = theta / np.sqrt(q), np.sqrt(1 - theta**2 / q)
        a = c * t / s
        teacher = 2 * (c * t * ndtr(a) + s * np.exp(-0.5 * a**2) / np.sqrt(2 * np.pi)) * weight
        weight = 2 * ndtr(a) * weight
        slope, hat = np.linalg.solve([[q, theta], [theta, 1.0]], [weight @ (size * t * g), teacher @ g])
    else:  # Stein's identity
        hat = weight @ (t * g) / size
        slope = -hat
    precision, hat = lam - alpha * slope, alpha * hat
    return np.array([hat / precision, (hat**2 + alpha * (weight @ g**2)) / precision**2, 1 / precision])


@pytest.mark.slow(keep=2)  # further losses take time to compile
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", range(17))
def test_stated_errors_hold_on_random_problems(loss, seed):
    rng = np.random.default_rng([LOSSES.index(loss), seed])
    alpha, lam = (float(np.exp(rng.uniform(*np.log(ends)))) for ends in ((0.1, 30.0), (1e-6, 10.0)))
    noise, tau, e = (float(rng.uniform(*ends)) for ends in ((0.05, 1.5), (0.1, 0.9), (0.1, 1.0)))
    numbers = {"hinge": (1.0, 0.0, 0.0), "quantile": (tau, tau - 1, 0.0), "insensitive": (0.5, -0.5, e),
               "huber": (2 * tau,)}.get(loss)  # fmt: skip
    kind, labels = {
        "squares": (ga.SquaredLoss(), ga.LinearLabels(noise)), "logistic": (ga.LogisticLoss(), ga.LogisticLabels(0.0)),
        "hinge": (Hinge(), ga.LogisticLabels(0.0)), "quantile": (Quantile(), QuantileLabels(noise, tau)),
        "insensitive": (Quantile(), QuantileLabels(noise, 0.5, e)), "huber": (Huber(2 * tau), ga.LinearLabels(noise)),
    }[loss]  # fmt: skip
    se = ga.solve_state_evolution(ga.glm_model(kind, labels, lam=lam), alpha, stability=False)
    assert se.converged
    names = ("theta", "q", "V")
    x, error = (np.array([getattr(of, n).item() for n in names]) for of in (se.overlaps, se.overlaps_error))
    found = root(lambda u: step(u * x, loss, alpha, lam, noise, numbers) / x - u, np.ones(3), tol=1e-12)
    assert np.abs(found.fun).max() < 1e-8
    assert (np.abs(found.x - 1) * x <= error + 1e-8 * x).all()
