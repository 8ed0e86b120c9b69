"""Leave-one-out errors against refits, hat matrices and scikit-learn; what they say where they fail."""

import numba
import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from threadpoolctl import threadpool_limits

import gamp_attention as ga
from gamp_attention.experiments.inference.leave_one_out import data_fields, sample_errors
from gamp_attention.experiments.inference.refits import refit, without


def ridge_rows(n=60, d=25, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, x @ rng.normal(size=d) / 5 + rng.normal(size=n)


def test_for_the_ridge_it_is_that_of_the_hat_matrix_and_of_scikit_learn():
    (x, y), lam = ridge_rows(), 0.7
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=lam)
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random", tol=1e-13))
    X = x / 5
    hat = X @ np.linalg.solve(X.T @ X + lam * np.eye(25), X.T)
    residuals = (y - hat @ y) / (1 - np.diag(hat))
    assert np.allclose(loo.errors, residuals**2 / 2, rtol=1e-11, atol=1e-12)
    left_out = cross_val_predict(Ridge(alpha=lam * 25, fit_intercept=False), x, y, cv=LeaveOneOut())
    assert np.allclose(loo.fields[:, 0, 0], left_out, rtol=0, atol=1e-10)
    assert loo.trusted
    assert not loo.doubtful.any()
    assert loo.remainder.max() < 1e-6


CLASSES = ga.mixture_model([[0.4, 0.15], [0.1, 0.35]], [[0.5, -0.7], [0.3, -0.2]], lam=0.1)
SPECTRUM = ga.coordinate_law(ga.power_law_spectrum(1.0, 3))
UNTIED = ga.DotProductAttention(tied=False)
KINKED = ga.ElasticNet(0.0, 0.2)
PROBLEMS = {
    "attention": (ga.paper_model(), 1.5, "semantic"),
    "rank 2": (ga.attention_model(2, 2, 2, omega=0.2, sigma=0.7, lam=0.1), 3.0, "semantic"),
    "untied": (ga.attention_model(2, 2, 1, omega=0.2, sigma=0.7, lam=0.1, student=UNTIED), 3.0, "random"),
    "mixture": (CLASSES, 2.0, "semantic"),
    "spectrum": (ga.attention_model(coordinates=SPECTRUM, lam=0.05), 2.0, "semantic"),
    "elastic net": (ga.paper_model(penalty=ga.ElasticNet(0.02, 0.001)), 2.0, "semantic"),
    "lasso": (ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.3), penalty=KINKED), 1.5, "random"),
    "logistic": (ga.glm_model(ga.LogisticLoss(), lam=0.1), 2.0, "random"),
    "multinomial": (ga.glm_model(ga.MultinomialLoss(), rank=3, lam=0.1), 2.0, "random"),
    "phase retrieval": (ga.glm_model(ga.PhaseRetrievalLoss(), lam=0.1), 3.0, "semantic"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_is_that_of_refits(name):
    model, alpha, init = PROBLEMS[name]
    data = ga.sample(model, d=100, alpha=alpha, seed=1)
    gamp = ga.run_gamp(data, init)
    loo, rough = (ga.leave_one_out(data, gamp, form=form) for form in ("hessian", "cavity"))
    fields, samples = loo.fields.copy(), np.flatnonzero(~loo.doubtful)[:12]
    assert len(samples) == 12
    for sample in samples:
        Q, done = refit(data, gamp.Q, sample)
        assert done
        fields[sample] = data_fields(data, Q, sample)
    exact = sample_errors(data, fields)[samples]
    kinks = 0.03 if data.penalty.smooth else 0.1  # without a sample a kink holds other weights
    assert np.median(np.abs(loo.errors[samples] / exact - 1)) < kinks
    assert np.corrcoef(loo.errors[samples], exact)[0, 1] > 0.99
    assert np.corrcoef(rough.errors[samples], exact)[0, 1] > 0.9
    assert loo.in_training < loo.test_error
    assert abs(rough.test_error / loo.test_error - 1) < 0.15
    assert np.isclose(loo.in_training, np.mean(sample_errors(data, data.fields(gamp.Q))), rtol=1e-12)


def test_where_a_penalty_kills_all_weights_nothing_changes():
    data = ga.sample(ga.glm_model(ga.SquaredLoss(), penalty=ga.ElasticNet(0.0, 50.0)), d=50, alpha=2.0, seed=0)
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random"))
    assert np.array_equal(loo.errors, data.labels[:, 0] ** 2 / 2)
    assert loo.test_error == loo.in_training


def test_errors_are_in_the_units_of_the_test_error():
    data = ga.sample(ga.paper_model(), d=60, alpha=1.0, seed=0)
    z = data.fields(data.Q_star)
    expected = np.mean((data.outputs - data.student(z) @ (data.tokens + data.positions)) ** 2, axis=(1, 2))
    assert np.allclose(sample_errors(data, z), expected, rtol=1e-9)


def test_the_risk_without_a_sample():
    data = ga.sample(ga.paper_model(), d=40, alpha=1.5, seed=0)
    Q, rows = 0.3 * data.Q_star, np.arange(60) != 7
    other = ga.Dataset(data.tokens[rows], data.outputs[rows], data.positions, lam=0.01)
    found = without(data, Q, 7)
    assert np.isclose(found.train_loss, ga.train_loss(other, Q), rtol=1e-12)
    assert np.allclose(found.gradient, ga.gradient(other, Q), rtol=0, atol=1e-12)


def test_a_rotation_of_the_weights_changes_nothing():
    data = ga.sample(ga.attention_model(2, 2, 2, omega=0.2, sigma=0.7, lam=0.1), d=60, alpha=3.0, seed=0)
    gamp = ga.run_gamp(data)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(2, 2)))[0]
    turned = ga.minimize_risk(data, gamp.Q @ turn, "exact", "lbfgs", tol=1e-6)
    assert np.allclose(ga.leave_one_out(data, gamp).errors, ga.leave_one_out(data, turned).errors, rtol=1e-3, atol=1e-6)


def test_the_asymptotic_risk_is_refused():
    data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    with pytest.raises(ValueError, match=r"gamp: needs weights that the exact risk.*run_gamp\(data, risk='exact'\)"):
        ga.leave_one_out(data, ga.run_gamp(data, risk="asymptotic"))
    with pytest.raises(TypeError, match=r"gamp: needs a result of run_gamp or minimize_risk"):
        ga.leave_one_out(data, data.Q_star)
    gamp = ga.run_gamp(data)
    with pytest.raises(ValueError, match=r"form: needs one of 'hessian', 'cavity'"):
        ga.leave_one_out(data, gamp, form="newton")
    with pytest.raises(ValueError, match=r"examine: needs form='hessian'"):
        ga.leave_one_out(data, gamp, form="cavity", examine=True)


def test_saddles_and_unfinished_runs_are_not_trusted():
    data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    cut = ga.leave_one_out(data, ga.run_gamp(data, max_iter=5, settling=False))
    assert not cut.trusted
    assert "did not converge" in cut.message
    saddle = ga.run_gamp(data, np.zeros((100, 1)))
    assert saddle.converged
    assert not saddle.is_minimum
    found = ga.leave_one_out(data, saddle)
    assert not found.trusted
    assert "saddle" in found.message


def test_a_rough_landscape_says_so_and_refits_replace_doubtful_samples():
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.6), d=150, alpha=1.0, seed=0)
    gamp = ga.run_gamp(data)
    loo = ga.leave_one_out(data, gamp)
    assert not loo.trusted
    assert "rough" in loo.message
    again = ga.leave_one_out(data, gamp, refits=3)
    worst = np.argsort(-loo.remainder)[:3]
    assert set(np.flatnonzero(again.refitted)) <= set(worst)
    assert again.refitted.any()
    for sample in np.flatnonzero(again.refitted):
        Q, _ = refit(data, gamp.Q, int(sample))
        assert np.allclose(again.fields[sample], data_fields(data, Q, int(sample)))
    assert np.array_equal(again.errors[~again.refitted], loo.errors[~again.refitted])


@pytest.mark.parametrize("form", ["hessian", "cavity"])
def test_with_several_finished_starts_the_choice_is_made_without_each_sample(form):
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.6), d=60, alpha=1.0, seed=0)
    several = ga.run_gamp(data, "spectral", n_starts=4, n_finish=4)
    one = ga.run_gamp(data, "spectral")
    assert np.isnan(ga.leave_one_out(data, one, form=form).with_choice)
    loo = ga.leave_one_out(data, several, form=form)
    assert np.isfinite(loo.with_choice)
    assert 0.5 < loo.with_choice / loo.test_error < 2


def test_bounds_are_quantiles_of_the_errors():
    x, y = ridge_rows(n=99)
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=0.7)
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random"))
    assert loo.bound(0.9) == np.sort(loo.errors)[89]
    assert loo.bound(0.995) == np.inf
    with pytest.raises(ValueError, match=r"level: needs a finite number > 0 and <= 1"):
        loo.bound(0.0)


def test_the_same_bits_for_any_number_of_threads(monkeypatch):
    data = ga.sample(ga.paper_model(), d=300, alpha=1.0, seed=0)
    gamp, found = ga.run_gamp(data), []
    for threads in (1, 2):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", threads)
        with threadpool_limits(threads):
            found.append(ga.leave_one_out(data, gamp, form="hessian"))
    assert np.array_equal(found[0].errors, found[1].errors)
    assert np.array_equal(found[0].remainder, found[1].remainder)


def test_tokens_on_the_disk(tmp_path):
    data = ga.sample(ga.paper_model(), 60, 2.0, seed=0)
    np.save(tmp_path / "tokens.npy", data.tokens)
    stored = ga.Dataset(np.load(tmp_path / "tokens.npy", mmap_mode="r"), data.outputs, data.positions)
    gamp = ga.run_gamp(data)
    here, there = ga.leave_one_out(data, gamp), ga.leave_one_out(stored, gamp)
    assert np.allclose(here.errors, there.errors, rtol=1e-8)
    assert np.isnan(there.remainder).all()
