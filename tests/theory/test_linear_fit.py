"""The linear layer fitted to data of finite d: the minimum of its risk, and its error on new samples."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.linear import fit_linear_baseline, linear_baseline


def compute_risk(data, W, lam):
    """Compute the risk of eq. (18)."""
    residual = data.outputs - np.einsum("ij,njd->nid", W, data.tokens)
    return np.sum(residual**2) / (2 * data.dim) + lam / 2 * np.sum(W**2)


@pytest.mark.parametrize("lam", [1e-4, 3.0])
@pytest.mark.parametrize("from_arrays", [False, True])
def test_fit_is_the_minimum_of_its_risk(lam, from_arrays, data):
    """The risk is quadratic: central differences give its gradient up to rounding."""
    if from_arrays:
        rng = np.random.default_rng(5)
        data = ga.Dataset(rng.normal(size=(7, 3, 11)), rng.normal(size=(7, 3, 11)), np.zeros((3, 11)))
    fit = fit_linear_baseline(data, lam)
    minimum, step, gradient = compute_risk(data, fit.weights, lam), 1e-3, np.zeros_like(fit.weights)
    for i, j in np.ndindex(gradient.shape):
        move = np.zeros_like(gradient)
        move[i, j] = step
        up, down = compute_risk(data, fit.weights + move, lam), compute_risk(data, fit.weights - move, lam)
        gradient[i, j] = (up - down) / (2 * step)
        assert min(up, down) > minimum
    assert np.abs(gradient).max() < 1e-9
    assert fit.train_loss == pytest.approx(minimum / data.dim, rel=1e-12)
    assert np.isnan(fit.test_error) == from_arrays


def test_sums_of_single_precision_tokens_are_in_double_precision(model):
    data = ga.sample(model, 300, 2.0, seed=1, dtype="float32")
    exact = ga.Dataset(data.tokens.astype(float), np.asarray(data.outputs, dtype=float), data.positions)
    assert fit_linear_baseline(data).weights == pytest.approx(fit_linear_baseline(exact).weights, abs=1e-8)


def test_labels_cannot_be_fitted_by_a_linear_layer_of_tokens():
    data = ga.sample(ga.glm_model(ga.LogisticLoss(), lam=0.1), 30, 2.0)
    with pytest.raises(TypeError, match=r"data: needs samples with outputs, not labels, got .*LabelledDataset"):
        fit_linear_baseline(data)


def test_fit_recovers_a_linear_target():
    rng = np.random.default_rng(6)
    W, x = rng.normal(size=(3, 3)), rng.normal(size=(5, 3, 20))
    fit = fit_linear_baseline(ga.Dataset(x, W @ x, np.ones((3, 20))), 1e-12)
    assert fit.weights == pytest.approx(W, abs=1e-10)
    assert fit.train_loss < 1e-12
    twice = (
        np.repeat(rng.normal(size=(5, 1, 20)), 2, axis=1) * 1e12
    )  # collinear tokens, so large that the penalty is below rounding errors
    assert fit_linear_baseline(ga.Dataset(twice, twice, np.ones((2, 20)))).weights == pytest.approx(
        np.full((2, 2), 0.5)
    )


@pytest.mark.parametrize(("L", "t"), [(2, 1), (2, 2), (3, 1)])
def test_test_error_of_a_fit_is_the_mean_over_new_samples(L, t):
    """Compare at a small d, because samples with given fields differ from independent samples by 1/d."""
    model = ga.attention_model(L, 1, t, omega=0.2, sigma=np.linspace(0.5, 1.5, L))
    data = ga.sample(model, 6, 3.0, seed=4)
    fit = fit_linear_baseline(data, 0.5)
    fresh = np.random.default_rng(8).normal(size=(100_000, L, 6)) * np.sqrt(data.spectra)
    T = model.teacher(fresh @ data.Q_star / np.sqrt(6))
    values = (((T - fit.weights) @ fresh) ** 2).sum(axis=(1, 2)) / (6 * L)
    spread = values.std() / np.sqrt(len(values))
    assert fit.converged
    assert abs(fit.test_error - values.mean()) < 4 * spread + fit.test_error_error
    rho = np.einsum("ld,ds,dt->lst", np.broadcast_to(data.spectra, (L, 6)), data.Q_star, data.Q_star) / 6
    assert rho == pytest.approx(data.instance_model().coordinates.rho)
    assert spread < 0.03 * values.mean()


def test_a_fit_with_few_points_reports_its_error():
    data = ga.sample(ga.attention_model(3, 1, 2, omega=0.2), 20, 3.0, seed=4)
    rough = fit_linear_baseline(data, 0.5, rtol=1e-9, max_points=8192)
    fine = fit_linear_baseline(data, 0.5, rtol=1e-3)
    assert rough.status is ga.Status.INACCURATE
    assert fine.converged
    assert rough.test_error_error > fine.test_error_error
    assert 0 < abs(rough.test_error - fine.test_error) < rough.test_error_error + fine.test_error_error
    assert (rough.weights == fine.weights).all()


def test_fits_approach_the_asymptotic_baseline(model):
    """Single instances deviate by O(1/√d), because ‖Q*‖²/d and, for the training loss, the n samples are random.

    Measured standard deviations times √d: 0.07 in an entry of W; relative to the value, 2.0 to 2.3 in ε and 2.7 in the
    loss. Means agree within three standard errors plus 2/d times these numbers. If the baseline has the ‖Q*‖²/d of the
    instance, the deviation is O(1/d).
    """
    base, count = linear_baseline(model), 24
    for d in (150, 600):
        draws = [ga.sample(model, d, 1.5, 100 + seed) for seed in range(count)]
        fits = [fit_linear_baseline(data) for data in draws]
        limits = [linear_baseline(data.instance_model()) for data in draws]
        for values, limit, size in (
            (np.array([fit.weights for fit in fits]), base.weights, 0.07),
            (np.array([fit.test_error for fit in fits]), base.test_error, 2.2 * base.test_error),
            (np.array([fit.train_loss for fit in fits]), 1.5 * base.test_error, 2.7 * 1.5 * base.test_error),
        ):
            spread = values.std(axis=0, ddof=1)
            assert (np.abs(values.mean(axis=0) - limit) < 3 * spread / np.sqrt(count) + 2 * size / d).all()
            assert (spread < 1.5 * size / np.sqrt(d)).all()
        near = np.array([fit.test_error / limit.test_error - 1 for fit, limit in zip(fits, limits, strict=True)])
        assert (np.abs(near) < 12 / d).all()


BAD = {
    "data": (lambda data, model: fit_linear_baseline(model), "data.*Dataset"),
    "lam": (lambda data, model: fit_linear_baseline(data, 0.0), "lam.*> 0"),
    "rtol": (lambda data, model: fit_linear_baseline(data, rtol=1), "rtol"),
    "seed": (lambda data, model: fit_linear_baseline(data, seed=0.5), "seed"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_raise_named_errors(case, data, model):
    call, pattern = BAD[case]
    with pytest.raises((TypeError, ValueError), match=pattern):
        call(data, model)
