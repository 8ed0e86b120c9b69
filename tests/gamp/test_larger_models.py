"""Many tokens and columns: the proximal map in 16 dimensions, and whole runs with r = t = 3."""

import numpy as np
import pytest
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention.problem.losses.attention import pack_attention_parameters


def make_asymptotic_objective(model, T, rho, omega, V):
    """Return the proximal objective of a sample and its gradient, ½ Tr (S − T) ρ (S − T)ᵀ + quadratic term."""
    L, r = omega.shape
    inverse = np.linalg.inv(V)

    def value(flat):
        z = flat.reshape(L, r)
        scores = z @ z.T
        S = np.exp(scores - scores.max(axis=1, keepdims=True))
        S /= S.sum(axis=1, keepdims=True)
        slack = (S - T) * rho
        u = S * (slack - (S * slack).sum(axis=1, keepdims=True))
        pull = np.einsum("lab,lb->la", inverse, z - omega)
        total = 0.5 * ((S - T) ** 2 * rho).sum() + 0.5 * np.sum(pull * (z - omega))
        return total, ((u + u.T) @ z + pull).ravel()

    return value


@pytest.mark.slow
def test_proximal_minima_in_16_dimensions_are_as_low_as_many_descents_of_scipy():
    """18 samples, from one minimum to many, 21 starts of BFGS each: at ω, −ω, 0 and around them."""
    L, r, rng = 8, 2, np.random.default_rng(0)
    model = ga.attention_model(L, r, 1)
    n, beaten, several = 6, [], 0
    for variance, size, sharp in ((0.25, 16.0, 0.5), (1.0, 30.0, 1.0), (4.0, 16.0, 1.0)):
        rho = np.full(L, variance)
        T = model.teacher(sharp * rng.normal(size=(n, L, 1)))
        params = pack_attention_parameters(np.diag(rho)[None], rho[:, None] * T.transpose(0, 2, 1))
        omega = 0.4 * rng.normal(size=(n, L, r))
        root = 0.2 * rng.normal(size=(L, r, r)) + np.eye(r)
        V = size * root @ root.transpose(0, 2, 1)
        out = ga.denoise(model.loss, params, omega, V)
        assert out.solved.all()
        several += np.isfinite(out.gap).sum()
        for mu in range(n):
            objective = make_asymptotic_objective(model, T[mu], rho, omega[mu], V)
            constant = 0.5 * (T[mu] ** 2 * rho).sum()
            assert np.isclose(objective(out.z[mu].ravel())[0] - constant, out.moreau[mu], rtol=1e-9, atol=1e-11)
            center = omega[mu].ravel()
            starts = [center, -center, 0 * center]
            starts += [
                s * center + w * rng.normal(size=L * r) for s in (-1, 0, 1) for w in (0.3, 1, 2) for _ in range(2)
            ]
            best = min(minimize(objective, start, jac=True, method="BFGS").fun for start in starts) - constant
            beaten.append(out.moreau[mu] - best)
    assert several > n  # some samples have several minima, so that the search matters
    assert max(beaten) <= 1e-9
