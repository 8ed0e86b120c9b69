"""Predicted gradient descent against brute force and a closed form."""

import numpy as np
import pytest

import gamp_attention as ga

RIDGE = {  # λ, step size and options
    "few steps": (0.3, 0.5, {"n_iter": 8, "n_paths": 4096}),
    "many steps": (0.003, 0.15, {"n_iter": 300, "n_paths": 1024, "n_replicas": 2}),
}


@pytest.mark.parametrize("name", RIDGE)
def test_ridge_regression_follows_the_marchenko_pastur_law(name):
    """Squared loss, one token: each step multiplies a component by a factor that depends on its eigenvalue."""
    lam, lr, options = RIDGE[name]
    alpha, sigma, noise = 1.7, 0.8, 0.4
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=noise), sigma=sigma, lam=lam)
    rho, q0 = sigma**2, 0.1
    one = np.ones((1, 1, 1))
    start = ga.Overlaps(q=q0 * one, m=np.zeros((1, 1)), theta=0 * one, V=one)
    path = ga.trajectory(model, alpha, start, ga.GradientDescent(lr=lr), **options)
    ratio = 1 / alpha  # the eigenvalues of X̃ᵀX̃ follow a Marchenko-Pastur distribution of this ratio, times σ²α
    rounding = 1e-6  # relative size of fields that stored times may always leave out
    low, high = (1 - np.sqrt(ratio)) ** 2, (1 + np.sqrt(ratio)) ** 2
    angle, weight = np.polynomial.legendre.leggauss(400)
    x = low + (high - low) * np.sin(np.pi / 4 * (angle + 1)) ** 2
    weight = weight * np.sqrt((high - x) * (x - low)) / (2 * np.pi * ratio * x) * np.pi / 4
    weight *= (high - low) * np.sin(np.pi / 2 * (angle + 1))
    assert weight.sum() == pytest.approx(1, abs=1e-9)
    h = sigma**2 * alpha * x

    def bound(errors, t):
        """Return four times the largest error from t/2 to 2t, as errors of the compression change their sign."""
        return 4 * errors.ravel()[t // 2 : 2 * t + 1].max()

    for t in range(options["n_iter"] + 1):
        remaining = (1 - lr * (h + lam)) ** t
        learnt = (1 - remaining) / (h + lam)
        q = weight @ (remaining**2 * q0 + sigma**2 * ((h * learnt) ** 2 + noise**2 * h * learnt**2))
        theta = sigma**2 * weight @ (h * learnt)
        assert abs(path.q[t, 0, 0, 0] - q) <= bound(path.error.q, t) + rounding * q
        assert abs(path.theta[t, 0, 0, 0] - theta) <= bound(path.error.theta, t) + rounding
        error = 0.5 * (rho - 2 * theta + q + noise**2)
        assert abs(path.test_error[t] - error) <= 5 / 4 * bound(path.test_error_error, t) + rounding * error


def test_plain_descent_is_a_special_case_of_other_methods(model):
    def q(**options):
        method = ga.GradientDescent(**options)
        return ga.trajectory(model, 1.5, method=method, n_iter=4, n_paths=128, n_replicas=2).q

    plain = q(lr=1.0)
    assert np.allclose(plain, q(batch=1), rtol=1e-3)
    assert np.array_equal(plain, q(lr=[1.0, 1.0]))
    assert not np.array_equal(plain, q(lr=[1.0, 0.5]))


def test_descents_have_no_variances(model):
    path = ga.trajectory(model, 1.5, method=ga.GradientDescent(lr=0.15), n_iter=2, n_paths=64, n_replicas=2)
    assert np.isnan(path.V).all()
    assert path.V_hat.shape == path.U.shape == path.U_error.shape == (0, 2, 1, 1)
    assert path.method == ga.GradientDescent(lr=0.15)
    assert "nan" not in str(path)


DESCENT = ga.GradientDescent
BAD_METHODS = [
    (DESCENT, {"lr": 0}, "lr"),
    (DESCENT, {"lr": []}, "lr: needs a number > 0, or a sequence"),
    (DESCENT, {"lr": [1.0, 0.0]}, r"lr\[1\]"),
    (DESCENT, {"momentum": 1}, "momentum"),
    (DESCENT, {"nesterov": True}, "nesterov.*momentum"),
    (DESCENT, {"batch": 0}, "batch"),
    (DESCENT, {"batch": 0.1, "momentum": 0.9}, "batch.*momentum"),
    (ga.SinglePass, {"lr": 0}, "^lr"),
    (ga.SinglePass, {"batch": 0}, "^batch"),
    (ga.MessagePassing, {"hold_after": -1}, "hold_after"),
    (ga.Survey, {"parisi": None}, "parisi: needs"),
    (ga.Survey, {"parisi": 0.0}, "parisi: needs"),
    (ga.Survey, {"parisi": 1.0, "damping": 2.0}, "damping: needs"),
]
ELASTIC = ga.paper_model(penalty=ga.ElasticNet(0.01, 0.01))
INTERCEPT = ga.glm_model(ga.LogisticLoss(), intercept=True)
REFUSED = [
    (ga.paper_model(), {"method": "gd"}, r"method: needs a MessagePassing\(.*Survey\(\.\.\.\), got 'gd'"),
    (ga.paper_model(), {"method": DESCENT}, "method"),
    (ga.paper_model(), {"method": DESCENT(batch=0.5), "n_paths": 64, "n_iter": 20}, "n_paths.*at least"),
    (ga.paper_model(), {"method": ga.MessagePassing(hold_after=5), "n_paths": 64, "n_iter": 30}, "n_paths"),
    (ga.paper_model(), {"method": DESCENT(3.0), "n_paths": 64, "n_iter": 40}, "n_paths.*step"),
    (ga.paper_model(), {"method": DESCENT(), "progress": 5}, "progress"),
    (ELASTIC, {"method": DESCENT()}, "method.*MessagePassing without hold_after for ElasticNet"),
    (ELASTIC, {"method": ga.Survey(1.0)}, "method.*ElasticNet"),
    (ELASTIC, {"method": ga.MessagePassing(hold_after=5)}, "hold_after.*ElasticNet"),
    (ELASTIC, {"method": ga.SinglePass()}, "SinglePass needs a ridge"),
    (INTERCEPT, {"method": ga.Survey(1.0)}, "method.*intercept"),
    (INTERCEPT, {"method": ga.MessagePassing(hold_after=5)}, "hold_after.*intercept"),
]


@pytest.mark.parametrize(("method", "options", "pattern"), BAD_METHODS)
def test_bad_methods_raise_named_errors(method, options, pattern, named_error):
    named_error(lambda: method(**options), pattern)


@pytest.mark.parametrize(("refused", "options", "pattern"), REFUSED)
def test_bad_options_and_models_without_equations_raise_named_errors(refused, options, pattern):
    with pytest.raises((ValueError, TypeError), match=pattern):
        ga.trajectory(refused, 1.5, "random", **options)
