"""The proximal denoiser compared with brute force and finite differences."""

import numpy as np
from hypothesis import given
from scipy.optimize import minimize

import gamp_attention as ga
from tests.conftest import examples
from tests.properties.strategies import proximal_problems


def compute_objective(loss, p, omega, V):
    """Return the proximal objective of one sample at points (N, L r), by its definition in numpy."""
    L = loss.n_tokens
    G, M = p[: L * L].reshape(L, L), p[L * L :].reshape(L, L)
    inverse = np.linalg.inv(V)

    def values(points):
        z = points.reshape(len(points), L, -1)
        S = loss.attention(z)
        quadratic = np.einsum("nla,lab,nlb->n", z - omega, inverse, z - omega)
        return 0.5 * quadratic + np.einsum("nij,nij->n", S, 0.5 * S @ G - M.T)

    return values


def minimize_by_brute_force(values, omega, V, n_scan=2000, n_polish=8):
    """Return the best of many random points and sign patterns, refined by scipy with central differences."""
    rng = np.random.default_rng(5)
    spread = np.minimum(np.sqrt(np.linalg.eigvalsh(V).max()), 3.0)
    scales = rng.choice([0.1, 0.3, 1.0, 2.0], size=n_scan)
    points = omega.ravel() + scales[:, None] * spread * rng.normal(size=(n_scan, omega.size))
    points[::3] -= omega.ravel()  # a third around the origin
    points = np.concatenate([points, omega.ravel()[None], -omega.ravel()[None], np.zeros((1, omega.size))])
    best = points[np.argsort(values(points))[:n_polish]]
    step = 1e-6
    steps = step * np.concatenate([np.eye(omega.size), -np.eye(omega.size)])

    def with_slope(x):
        objectives = values(np.concatenate([x[None], x + steps]))
        return objectives[0], (objectives[1 : omega.size + 1] - objectives[omega.size + 1 :]) / (2 * step)

    return min(minimize(with_slope, point, jac=True, method="BFGS", options={"gtol": 1e-8}).fun for point in best)


@examples(10)
@given(proximal_problems(n=2))
def test_brute_force_finds_no_lower_minimum(problem):
    loss, params, omega, V = problem
    out = ga.denoise(loss, params, omega, V)
    assert out.solved.all()
    for mu in range(len(omega)):
        values = compute_objective(loss, params[mu], omega[mu], V)
        assert np.isclose(values(out.z[mu].reshape(1, -1))[0], out.moreau[mu], rtol=1e-11, atol=1e-13)
        assert out.moreau[mu] <= minimize_by_brute_force(values, omega[mu], V) + 1e-9


@examples(20)
@given(proximal_problems())
def test_envelope_gradient_is_minus_g_and_z_is_stationary(problem):
    """∇_ω of the Moreau envelope is −g = V⁻¹(ω − z), by central differences away from jumps."""
    loss, params, omega, V = problem
    out = ga.denoise(loss, params, omega, V)
    step = 1e-5
    far = out.gap > 1e-2
    for l in range(omega.shape[1]):
        for a in range(omega.shape[2]):
            shift = np.zeros_like(omega)
            shift[:, l, a] = step
            up = ga.denoise(loss, params, omega + shift, V, out.z).moreau
            down = ga.denoise(loss, params, omega - shift, V, out.z).moreau
            slope = (up - down) / (2 * step)
            scale = 1 + np.abs(out.g[:, l, a])
            assert np.all(np.abs(slope + out.g[:, l, a])[far] <= 1e-6 * scale[far])
    assert np.allclose(out.g, np.einsum("lab,nlb->nla", np.linalg.inv(V), out.z - omega), rtol=1e-9, atol=1e-11)


@examples(40)
@given(proximal_problems())
def test_jacobian_agrees_with_finite_differences(problem):
    """Compare ∂z/∂ω with central differences of the local minimum, unless its curvature is tiny."""
    loss, params, omega, V = problem
    out = ga.denoise(loss, params, omega, V, jacobian=True)
    n, L, r = omega.shape
    step = 1e-5
    tame = np.abs(out.jacobian).max(axis=(1, 2)) < 20
    for k in range(L * r):
        shift = np.zeros((n, L * r))
        shift[:, k] = step
        up = ga.denoise(loss, params, omega + shift.reshape(omega.shape), V, out.z, hold=True).z
        down = ga.denoise(loss, params, omega - shift.reshape(omega.shape), V, out.z, hold=True).z
        column = (up - down).reshape(n, L * r) / (2 * step)
        assert np.allclose(column[tame], out.jacobian[tame, :, k], atol=2e-5, rtol=1e-4)
    inverse = np.linalg.inv(V)
    for l in range(L):
        block = out.jacobian[:, l * r : (l + 1) * r, l * r : (l + 1) * r]
        assert np.allclose(out.response[:, l], inverse[l] - inverse[l] @ block, rtol=1e-7, atol=1e-8 * inverse[l].max())
