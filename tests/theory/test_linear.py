"""The linear layer: its limit compared with independent averages and with fits at finite d, and its stated errors."""

import numpy as np
import pytest
from scipy.integrate import dblquad

import gamp_attention as ga
from gamp_attention.theory import linear as engine


def average_on_hermite_grid(model, n):
    """Return Ŵ and ε_lin by products of Gauss-Hermite rules, for fields with the same variance in all columns."""
    L, t = model.n_tokens, model.teacher_rank
    x, w = np.polynomial.hermite_e.hermegauss(n)
    points = np.stack(np.meshgrid(*[x] * (L * t), indexing="ij"), axis=-1).reshape(-1, L, t)
    weights = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * (L * t), indexing="ij"), axis=-1), axis=-1).ravel()
    T = model.teacher(points * np.sqrt(model.coordinates.rho[:, :1, 0]))
    mean = np.tensordot(weights, T, 1)
    return mean, float(weights @ (((T - mean) ** 2) @ model.coordinates.trace).sum(axis=1)) / L


@pytest.mark.parametrize("omega", [0.0, 0.3, 0.9])
def test_the_paper_model_agrees_with_adaptive_quadrature(omega):
    model = ga.paper_model(omega)
    base = ga.linear_baseline(model, rtol=1e-8)

    def average(f):
        def integrand(b, a):
            return f(model.teacher(0.5 * np.array([[a], [b]]))) * np.exp(-(a * a + b * b) / 2) / (2 * np.pi)

        return dblquad(integrand, -8, 8, -8, 8, epsabs=1e-10)[0]

    first, square = average(lambda T: T[0, 0]), average(lambda T: T[0, 0] ** 2)
    assert base.converged
    assert base.weights[0, 0] == pytest.approx(first, abs=base.weights_error[0, 0] + 1e-9)
    # T is stochastic, and both rows have the same distribution
    assert base.weights == pytest.approx(np.array([[first, 1 - first], [1 - first, first]]), abs=1e-7)
    assert base.test_error == pytest.approx(0.5 * (square - first**2), abs=base.test_error_error + 1e-9)


@pytest.mark.parametrize(("L", "t", "n"), [(3, 1, 40), (2, 2, 24), (2, 1, 60)])
def test_grids_and_replicas_agree_with_a_gauss_hermite_product(L, t, n, monkeypatch):
    model = ga.attention_model(L, 1, t, omega=0.2, sigma=np.linspace(0.3, 0.5, L))
    weights, test_error = average_on_hermite_grid(model, n)
    for rtol in (1e-6, 1e-3):
        if rtol == 1e-3:
            monkeypatch.setattr(engine, "SPACING", 1e-9)  # no grid is within the budget
        base = ga.linear_baseline(model, rtol=rtol, seed=3)
        assert base.converged
        assert (np.abs(base.weights - weights) <= base.weights_error + 1e-10).all()
        assert abs(base.test_error - test_error) <= base.test_error_error + 1e-6 * test_error


@pytest.mark.slow
def test_errors_cover_the_difference_to_finer_averages():
    """Require coverage in 95 % of the numbers of random models, at all accuracies and for insufficient budgets."""
    rng, hits = np.random.default_rng(11), []
    for seed in range(25):
        L, t = [(2, 1), (3, 1), (2, 2)][rng.integers(3)]
        sigma = np.exp(rng.uniform(np.log(0.05), np.log(3), L))
        model = ga.attention_model(L, 1, t, omega=rng.uniform(0, 1), sigma=sigma, A=rng.random((L, L)))
        rtol, budget = 10.0 ** rng.integers(-7, -1), int(2 ** rng.uniform(13, 15))
        rough = ga.linear_baseline(model, rtol=rtol, max_points=budget, seed=seed)
        fine = ga.linear_baseline(model, rtol=1e-9, max_points=1 << 19)
        hits += list((np.abs(rough.weights - fine.weights) <= rough.weights_error + fine.weights_error).ravel())
        hits += 4 * [abs(rough.test_error - fine.test_error) <= rough.test_error_error + fine.test_error_error]
    assert np.mean(hits) >= 0.95


def test_many_fields_end_within_the_budget():
    base = ga.linear_baseline(ga.attention_model(6, 1, 2), max_points=1 << 14)
    assert base.status is ga.Status.INACCURATE
    finer = ga.linear_baseline(ga.attention_model(6, 1, 2), rtol=5e-3, seed=1)
    assert finer.converged
    assert abs(base.test_error - finer.test_error) <= base.test_error_error + finer.test_error_error


def test_a_constant_target_is_learnt_without_error():
    base = ga.linear_baseline(ga.paper_model(1.0))
    assert np.array_equal(base.weights, [[0.6, 0.4], [0.4, 0.6]])
    assert base.test_error == base.test_error_error == 0
    near = ga.linear_baseline(ga.paper_model(1 - 1e-6))
    assert near.converged
    assert near.test_error == pytest.approx(ga.linear_baseline(ga.paper_model(0.0)).test_error * 1e-12, rel=1e-6)


def test_fields_without_variance_are_left_out():
    """A teacher of rank two whose second column is zero has the baseline of rank one."""
    law = ga.coordinate_law(teacher=np.diag([1.0, 0.0]), teacher_rank=2)
    wide, narrow = ga.attention_model(2, 1, 2, coordinates=law), ga.attention_model(2, 1, 1)
    assert ga.linear_baseline(wide).test_error == pytest.approx(ga.linear_baseline(narrow).test_error, rel=1e-12)


def fit_layer(data, lam=1e-4):
    """Return the minimizer W and the value, over d, of the risk Σ‖y − W x‖²/(2d) + (λ/2)‖W‖² of equation (18)."""
    gram = np.einsum("nid,njd->ij", data.tokens, data.tokens) / data.dim + lam * np.eye(data.n_tokens)
    W = np.linalg.solve(gram, np.einsum("nid,njd->ij", data.tokens, data.outputs) / data.dim).T
    square = np.sum((data.outputs - W @ data.tokens) ** 2) / (2 * data.dim)
    return W, (square + 0.5 * lam * np.sum(W**2)) / data.dim


def test_fits_approach_the_asymptotic_baseline(model):
    """Single instances deviate by O(1/√d): measured standard deviations times √d are 0.07 and, of the loss, 2.7."""
    base, count, d = ga.linear_baseline(model), 24, 300
    fits = [fit_layer(ga.sample(model, d, 1.5, 100 + seed)) for seed in range(count)]
    for values, limit, size in (
        (np.array([fit[0] for fit in fits]), base.weights, 0.07),
        (np.array([fit[1] for fit in fits]), 1.5 * base.test_error, 2.7 * 1.5 * base.test_error),
    ):
        spread = values.std(axis=0, ddof=1)
        assert (np.abs(values.mean(axis=0) - limit) < 3 * spread / np.sqrt(count) + 2 * size / d).all()
        assert (spread < 1.5 * size / np.sqrt(d)).all()


@pytest.mark.parametrize(
    ("options", "pattern"),
    [({"rtol": 1e-14}, "rtol.*1e-10"), ({"max_points": 10}, "max_points.*8192"), ({"seed": -1}, "seed")],
)
def test_bad_arguments_raise_named_errors(options, pattern, model):
    with pytest.raises(ValueError, match=pattern):
        ga.linear_baseline(model, **options)
