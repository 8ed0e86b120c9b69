"""The linear baseline: eqs. (19) and (20) compared with independent averages, and their stated errors."""

import numpy as np
import pytest
from scipy.integrate import dblquad

import gamp_attention as ga
from gamp_attention._tools.display import to_json
from gamp_attention.theory import linear as engine
from gamp_attention.theory.linear import fit_linear_baseline, linear_baseline


def average_on_hermite_grid(model, n):
    """Return Ŵ and ε_lin by products of Gauss-Hermite rules, for fields with the same variance in all columns."""
    L, t = model.n_tokens, model.teacher_rank
    x, w = np.polynomial.hermite_e.hermegauss(n)
    points = np.stack(np.meshgrid(*[x] * (L * t), indexing="ij"), axis=-1).reshape(-1, L, t)
    weights = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * (L * t), indexing="ij"), axis=-1), axis=-1).ravel()
    T = model.teacher(points * np.sqrt(model.coordinates.rho[:, :1, 0]))
    mean = np.tensordot(weights, T, 1)
    return mean, float(weights @ (((T - mean) ** 2) @ model.coordinates.trace).sum(axis=1)) / L


def draw_model(rng, shapes):
    L, t = shapes[rng.integers(len(shapes))]
    sigma = np.exp(rng.uniform(np.log(0.05), np.log(3), L))
    return ga.attention_model(L, 1, t, omega=rng.uniform(0, 1), sigma=sigma, A=rng.random((L, L)))


@pytest.fixture
def only_replicas(monkeypatch):
    monkeypatch.setattr(engine.Averaging, "by_grids", lambda *arguments: None)


@pytest.mark.parametrize("omega", [0.0, 0.3, 0.9])
def test_the_paper_model_agrees_with_adaptive_quadrature(omega):
    model = ga.paper_model(omega)
    base = linear_baseline(model, rtol=1e-8)

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
def test_grids_agree_with_a_gauss_hermite_product(L, t, n):
    sigma = np.linspace(0.3, 0.5, L)
    model = ga.attention_model(L, 1, t, omega=0.2, sigma=sigma)
    base, (weights, test_error) = linear_baseline(model), average_on_hermite_grid(model, n)
    assert base.converged
    assert (np.abs(base.weights - weights) <= base.weights_error + 1e-10).all()
    assert abs(base.test_error - test_error) <= base.test_error_error + 1e-6 * test_error


@pytest.mark.parametrize(("L", "t"), [(2, 1), (3, 1), (2, 2)])
def test_replicas_agree_with_grids(L, t, only_replicas, monkeypatch):
    model = ga.attention_model(L, 1, t, omega=0.2)
    random = linear_baseline(model, rtol=1e-3, seed=3)
    monkeypatch.undo()
    grid = linear_baseline(model, rtol=1e-3)
    assert random.converged
    assert grid.converged
    assert 0 < random.test_error_error <= 1e-3 * random.test_error
    assert (np.abs(random.weights - grid.weights) <= random.weights_error + grid.weights_error).all()
    assert abs(random.test_error - grid.test_error) <= random.test_error_error + grid.test_error_error


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [False, True])
def test_errors_cover_the_difference_to_finer_averages(replicas, request):
    """Require coverage in 95 % of the numbers of random models, at all accuracies and for insufficient budgets."""
    rng = np.random.default_rng(11)
    grids, hits = engine.Averaging.by_grids, []
    for seed in range(25):
        model = draw_model(rng, [(2, 1), (3, 1)] if replicas else [(2, 1), (3, 1), (2, 2)])
        rtol, budget = 10.0 ** rng.integers(-7, -1), int(2 ** rng.uniform(13, 15))
        with pytest.MonkeyPatch.context() as patch:
            if replicas:
                patch.setattr(engine.Averaging, "by_grids", lambda *arguments: None)
            rough = linear_baseline(model, rtol=rtol, max_points=budget, seed=seed)
        assert engine.Averaging.by_grids is grids
        fine = linear_baseline(model, rtol=1e-9, max_points=1 << 19)
        hits += list((np.abs(rough.weights - fine.weights) <= rough.weights_error + fine.weights_error).ravel())
        hits += 4 * [abs(rough.test_error - fine.test_error) <= rough.test_error_error + fine.test_error_error]
        relative = max(
            rough.test_error_error / rough.test_error, rough.weights_error.max() / np.abs(rough.weights).max()
        )
        assert rough.converged == (relative <= rtol * (1 + 1e-6))
    assert np.mean(hits) >= 0.95


def test_many_fields_end_within_the_budget():
    base = linear_baseline(ga.attention_model(6, 1, 2), max_points=1 << 14)
    assert base.status is ga.Status.INACCURATE
    assert not base.converged
    finer = linear_baseline(ga.attention_model(6, 1, 2), rtol=5e-3, seed=1)
    assert finer.converged
    assert abs(base.test_error - finer.test_error) <= base.test_error_error + finer.test_error_error


def test_a_constant_target_is_learnt_without_error():
    base = linear_baseline(ga.paper_model(1.0))
    assert np.array_equal(base.weights, [[0.6, 0.4], [0.4, 0.6]])
    assert base.test_error == base.test_error_error == 0
    fit = fit_linear_baseline(
        ga.sample(ga.paper_model(1.0), 50, 2.0), 1e-9
    )  # the loss vanishes, and only the penalty is left
    assert fit.converged
    assert 0 < fit.test_error + fit.test_error_error < 1e-20
    near = linear_baseline(ga.paper_model(1 - 1e-6))
    assert near.converged
    assert near.test_error == pytest.approx(linear_baseline(ga.paper_model(0.0)).test_error * 1e-12, rel=1e-6)


def test_fields_without_variance_are_left_out():
    """A teacher of rank two whose second column is zero has the baseline of rank one."""
    wide, narrow = ga.attention_model(2, 1, 2), ga.attention_model(2, 1, 1)
    law = wide.coordinates
    flat = type(law)(law.weight, law.gamma, law.tau, law.teacher_mean, np.diag([1.0, 0.0])[None])
    wide = type(wide)(wide.teacher, flat, wide.lam, wide.rank)
    assert linear_baseline(wide).test_error == pytest.approx(linear_baseline(narrow).test_error, rel=1e-12)
    none = type(law)(law.weight, law.gamma, law.tau, law.teacher_mean, np.zeros((1, 2, 2)))
    wide = type(wide)(wide.teacher, none, wide.lam, wide.rank)
    assert linear_baseline(wide).test_error == 0
    data = ga.sample(wide, 20, 2.0)
    fit = fit_linear_baseline(data, 1e-9)
    assert fit.converged
    assert fit.weights == pytest.approx(linear_baseline(wide).weights)
    assert fit.test_error < 1e-15


def test_grids_have_the_predicted_size_and_unit_covariance():
    points, weights = engine.build_grid(1.0, 4, 7.0, even=False)
    half, _ = engine.build_grid(1.0, 4, 7.0, even=True)
    assert len(points) == 2 * len(half) == pytest.approx(engine.estimate_grid_size(1.0, 4, 7.0, False), rel=0.05)
    assert np.einsum("n,ni,nj->ij", weights, points, points) == pytest.approx(np.eye(4), abs=1e-6)
    assert engine.estimate_grid_size(1.4, 2000, 50.0, True) > 1e100


@pytest.mark.extensions
def test_reports_contain_status_and_error(model):
    base = linear_baseline(model)
    settings = {"d": 1, "n": 1, "alpha": 1.0, "omega": 0.3, "lam": 0.01, "seed": 0, "risk": "exact", "damping": {}}
    text = str(ga.Comparison(settings, [], base, 0.0))
    assert "linear baseline, d → ∞: ε_g = 0.001971(1), converged" in text
    stored = ga.Comparison(settings, [], base, 0.0).to_dict()["linear_baseline"]
    assert stored["status"] == "converged"
    assert stored == to_json(stored)


BAD = {
    "model": (lambda data, model: linear_baseline(3), "model.*Model"),
    "rtol too fine": (lambda data, model: linear_baseline(model, rtol=1e-14), "rtol.*1e-10"),
    "rtol of wrong type": (lambda data, model: linear_baseline(model, rtol="fine"), "rtol"),
    "max_points": (lambda data, model: linear_baseline(model, max_points=10), "max_points.*8192"),
    "seed": (lambda data, model: linear_baseline(model, seed=-1), "seed"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_raise_named_errors(case, data, model):
    call, pattern = BAD[case]
    with pytest.raises((TypeError, ValueError), match=pattern):
        call(data, model)
