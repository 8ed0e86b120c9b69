"""Leave-one-out errors against refits, hat matrices and scikit-learn, and messages of failures."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict

import gamp_attention as ga
from gamp_attention.extensions.inference.refits import Refitter, sample_errors
from tests.conftest import CLASSES, MEANS


def ridge_rows(n=60, d=25, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    return x, x @ rng.normal(size=d) / 5 + rng.normal(size=n)


def test_ridge_errors_equal_the_hat_matrix_and_scikit_learn():
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
    assert not loo.refitted.any()  # the formula is exact
    assert np.allclose(ga.leave_one_out(data, ga.run_gamp(data, "random"), refits=60).errors, loo.errors, rtol=1e-6)


KINKED = ga.ElasticNet(0.0, 0.2)
PROBLEMS = {
    "attention": (ga.paper_model(), 2.0, "semantic"),
    "rank 2": (ga.attention_model(2, 2, 2, omega=0.2, sigma=0.7, lam=0.1), 4.0, "semantic"),
    "mixture": (ga.mixture_model(CLASSES, MEANS, lam=0.1), 2.0, "semantic"),
    "elastic net": (ga.paper_model(penalty=ga.ElasticNet(0.02, 0.01)), 2.0, "semantic"),
    "lasso": (ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(0.3), penalty=KINKED), 1.5, "random"),
    "logistic": (ga.glm_model(ga.LogisticLoss(), lam=0.1), 2.0, "random"),
    "multinomial": (ga.glm_model(ga.MultinomialLoss(), rank=3, lam=0.1), 2.0, "random"),
}


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("name", PROBLEMS)
def test_errors_agree_with_refits(name):
    model, alpha, init = PROBLEMS[name]
    data = ga.sample(model, d=100, alpha=alpha, seed=1)
    gamp = ga.run_gamp(data, init)
    formula, rough = (ga.leave_one_out(data, gamp, form=form, refits=0) for form in ("hessian", "cavity"))
    loo = ga.leave_one_out(data, gamp, refits=64)
    fields, samples = loo.fields.copy(), np.arange(12)
    for sample in samples:
        Q, done = Refitter(converged=1e-6).refit(data, gamp.Q, sample)
        assert done
        fields[sample] = data.fields(Q)[sample]
    exact = sample_errors(data, fields)[samples]
    kinks = 0.03 if data.penalty.smooth else 0.1  # without a sample a kink holds other weights
    assert np.median(np.abs(formula.errors[samples] / exact - 1)) < kinks
    assert np.corrcoef(formula.errors[samples], exact)[0, 1] > 0.99
    assert np.corrcoef(rough.errors[samples], exact)[0, 1] > 0.9
    again = loo.refitted[samples]
    assert again.any()
    assert np.allclose(loo.errors[samples][again], exact[again], rtol=0.01, atol=1e-3 * exact.mean())
    assert formula.in_training < formula.test_error
    assert abs(rough.test_error / formula.test_error - 1) < 0.15
    assert abs(loo.test_error / ga.leave_one_out(data, gamp, refits=data.n_samples).test_error - 1) < 0.01


def correlated_rows(kind, n, d, seed):
    """Rows whose coordinates are not independent, and a signal in them of variance 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    if kind == "neighbors":
        for i in range(1, d):
            x[:, i] = 0.9 * x[:, i - 1] + np.sqrt(1 - 0.81) * x[:, i]
    elif kind == "norms":
        x *= np.exp(rng.normal(size=(n, 1)))
    elif kind == "factor":
        x += 1.5 * rng.normal(size=(n, 1))
    return x, x @ rng.normal(size=d) / np.sqrt(d) / x.std(), rng


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("form", ["hessian", "cavity"])
@pytest.mark.parametrize("kind", ["neighbors", "norms", "factor"])
def test_errors_agree_with_refits_for_any_distribution_of_features(kind, form):
    """Ridge regression and classification against refits of all samples by scikit-learn."""
    n, d = 100, 25
    x, signal, rng = correlated_rows(kind, n, d, seed=n)
    y, lam = signal + 0.5 * rng.normal(size=n), 0.05
    ridge = ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=lam)
    exact = cross_val_predict(Ridge(alpha=lam * d, fit_intercept=False), x, y, cv=LeaveOneOut())
    loo = ga.leave_one_out(ridge, ga.run_gamp(ridge, "random"), form=form)
    assert loo.trusted
    assert abs(loo.test_error / np.mean((y - exact) ** 2 / 2) - 1) < 0.01
    labels = np.sign(y)
    logistic = ga.LabelledDataset(x, labels, ga.LogisticLoss(), lam=lam)
    model = LogisticRegression(
        C=1 / (lam * d), fit_intercept=False, solver="newton-cholesky", tol=1e-10, max_iter=10000
    )
    z = cross_val_predict(model, x, labels, cv=LeaveOneOut(), method="decision_function")
    exact = np.logaddexp(0, -labels * z).mean()
    loo = ga.leave_one_out(logistic, ga.run_gamp(logistic, "random"), form=form)
    assert loo.trusted
    assert abs(loo.test_error / exact - 1) < 0.02


def test_weights_that_become_free_without_a_sample_are_found():
    """The lasso against refits of all samples by scikit-learn, more weights than samples among them."""
    for n, d, l1 in ((60, 20, 0.8), (40, 80, 0.8)):
        x, signal, rng = correlated_rows("neighbors", n, d, seed=d)
        y = 3 * signal + 0.5 * rng.normal(size=n)
        data = ga.LabelledDataset(x, y, ga.SquaredLoss(), penalty=ga.ElasticNet(0.0, l1))
        loo = ga.leave_one_out(data, ga.run_gamp(data, "random", tol=1e-10))
        model = Lasso(alpha=l1 * np.sqrt(d) / (n - 1), fit_intercept=False, tol=1e-12, max_iter=100000)
        exact = cross_val_predict(model, x, y, cv=LeaveOneOut())
        assert loo.refitted.all()
        assert np.allclose(loo.fields[:, 0, 0], exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("form", ["cavity", "hessian"])
def test_weights_that_are_all_zero_stay_zero_without_a_sample(form):
    """The l1 penalty is so strong that no weight is free, with and without each sample."""
    x, signal, _ = correlated_rows("neighbors", 40, 10, seed=2)
    data = ga.LabelledDataset(x, signal, ga.SquaredLoss(), penalty=ga.ElasticNet(0.1, 50.0))
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random"), form=form)
    assert loo.trusted
    assert not loo.fields.any()
    assert np.allclose(loo.errors, signal**2 / 2)


def test_an_estimate_that_refits_contradict_is_not_trusted():
    """Few samples decide: by the mean field, and too few refits to correct it."""
    x, signal, rng = correlated_rows("factor", 200, 190, seed=1)
    data = ga.LabelledDataset(x, signal + 0.1 * rng.normal(size=200), ga.SquaredLoss(), lam=1e-3)
    gamp = ga.run_gamp(data, "random")
    loo, exact = ga.leave_one_out(data, gamp, form="cavity", refits=6), ga.leave_one_out(data, gamp)
    assert exact.trusted
    assert not loo.trusted
    assert "refits" in loo.message


@pytest.mark.parametrize("form", ["cavity", "hessian"])
def test_many_minima_are_not_trusted(form):
    few, many = {"score_noise": 0.1, "lam": 0.1}, {"score_noise": 0.3, "lam": 0.01}
    for noise, expected, init in ((few, True, "spectral"), (many, False, "spectral"), (many, False, "random")):
        data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8, **noise), d=100, alpha=2.0, seed=0)
        loo = ga.leave_one_out(data, ga.run_gamp(data, init), form=form)
        assert loo.trusted == expected
        assert ("many minima" in loo.message) == (not expected)


def test_a_minimum_of_the_informed_start_is_trusted_and_a_random_minimum_is_not():
    """After random starts, leave-one-out errors of phase retrieval are less than 60 % of the error on new data."""
    model = ga.glm_model(ga.PhaseRetrievalLoss(), ga.IntensityLabels(0.2), lam=0.01)
    data = ga.sample(model, d=200, alpha=3.0, seed=0)
    for init, expected in (("random", False), ("semantic", True)):
        gamp = ga.run_gamp(data, init, seed=0)
        loo = ga.leave_one_out(data, gamp)
        new = ga.sampled_test_error(data, gamp.Q, n_samples=4000)[0]
        assert loo.trusted == expected
        assert (abs(loo.test_error - new) <= 3 * loo.test_error_error) == expected


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("penalty", "form"), [("ridge", None), ("ridge", "cavity"), ("lasso", None)])
def test_the_standard_error_is_the_spread_about_the_error_on_new_data(penalty, form):
    """Independent data sets: errors of different samples are correlated, which almost doubles the standard error."""
    d, n, found = 60, 90, []
    for seed in range(30):
        rng = np.random.default_rng([seed, 1])
        x, teacher = rng.normal(size=(n, d)), rng.normal(size=d)
        y = x @ teacher / np.sqrt(d) + 0.5 * rng.normal(size=n)
        options = {"lam": 0.1} if penalty == "ridge" else {"penalty": KINKED}
        data = ga.LabelledDataset(x, y, ga.SquaredLoss(), **options)
        gamp = ga.run_gamp(data, "random")
        loo = ga.leave_one_out(data, gamp, form=form)
        new = (np.sum((gamp.Q[:, 0] - teacher) ** 2) / d + 0.25) / 2
        found.append([loo.test_error - new, loo.test_error_error, loo.errors.std(ddof=1) / np.sqrt(n)])
    apart, stated, independent = np.sqrt(np.mean(np.square(found), axis=0))
    assert 0.7 < stated / apart < 1.4
    assert independent < 0.75 * apart


def test_results_that_no_estimate_can_use_are_refused_or_not_trusted():
    data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    with pytest.raises(ValueError, match=r"gamp: needs weights trained on the exact risk.*run_gamp\(data, risk="):
        ga.leave_one_out(data, ga.run_gamp(data, risk="asymptotic"))
    with pytest.raises(TypeError, match=r"gamp: needs a result of run_gamp or minimize_risk"):
        ga.leave_one_out(data, data.Q_star)
    gamp = ga.run_gamp(data)
    for options, words in (
        ({"form": "newton"}, r"form: needs one of 'hessian', 'cavity'"),
        ({"refits": 151}, r"refits: needs an integer >= 0 and <= 150"),
    ):
        with pytest.raises(ValueError, match=words):
            ga.leave_one_out(data, gamp, **options)
    cut = ga.run_gamp(data, max_iter=5, iteration=ga.IterationOptions(settling=False))
    saddle = ga.run_gamp(data, np.zeros((100, 1)))
    rng = np.random.default_rng(0)  # without a penalty, few samples have a flat minimum
    flat = ga.LabelledDataset(rng.normal(size=(40, 60)), rng.normal(size=40), ga.SquaredLoss(), [0.0])
    for samples, result, words in (
        (data, cut, "did not converge"), (data, saddle, "saddle"), (flat, ga.run_gamp(flat), "not determined")
    ):  # fmt: skip
        loo = ga.leave_one_out(samples, result)
        assert not loo.trusted
        assert words in loo.message


@pytest.mark.parametrize(("n", "d", "form"), [(6, 3, "hessian"), (30, 3, "hessian"), (40, 2500, "cavity")])
def test_few_samples_have_wide_intervals_and_are_not_trusted(n, d, form):
    """The quantile of Student's t with 5 degrees of freedom is 2.57; errors of 6 samples are skewed, too."""
    x, y = ridge_rows(n=n, d=d)
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=0.7)
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random"))
    assert loo.form == form
    assert loo.trusted == (n >= 30)
    assert (f"standard errors need at least 30 samples, got {n}" in loo.message) != loo.trusted
    assert loo.interval()[1] > loo.test_error + stats.t.ppf(0.975, n - 1) * loo.test_error_error
    rank = int(np.ceil(0.8 * (n + 1)))
    assert loo.bound(0.8) == (np.sort(loo.errors)[rank - 1] if rank <= n else np.inf)
    for method in (loo.bound, loo.interval):
        with pytest.raises(ValueError, match=r"level: needs a finite number > 0 and <= 1"):
            method(0.0)


def test_intervals_extend_to_the_side_of_large_errors():
    """Squares of Gaussian numbers: 5.3 % of symmetric 95 % intervals end below the expected value 1, ideally 2.5 %."""
    x, y = ridge_rows(n=120)
    data = ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=0.7)
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random"))
    rng, below, above, symmetric = np.random.default_rng(0), 0, 0, 0
    for _ in range(4000):
        errors = rng.normal(size=120) ** 2
        error = errors.std(ddof=1) / np.sqrt(120)
        low, high = replace(loo, errors=errors, test_error_error=error).interval(0.95)
        below, above = below + (high < 1), above + (low > 1)
        symmetric += errors.mean() + 1.96 * error < 1
    assert 0.02 < below / 4000 < 0.042 < symmetric / 4000
    assert above / 4000 < 0.025
    assert replace(loo, test_error_error=loo.test_error).interval()[0] == 0  # errors are not negative


def test_errors_have_the_same_bits_for_any_number_of_threads(by_threads):
    data = ga.sample(ga.paper_model(), d=300, alpha=1.0, seed=0)
    gamp = ga.run_gamp(data)
    one, two = by_threads(lambda: ga.leave_one_out(data, gamp, form="hessian"))
    assert np.array_equal(one.errors, two.errors)
    assert one.test_error_error == two.test_error_error


@pytest.mark.parametrize(
    ("loss", "lam", "spread"),
    [(ga.SquaredLoss(), 0.01, 1e-3), (ga.LogisticLoss(), 0.01, 0.03), (ga.LogisticLoss(), 0.1, 0.3),
     (ga.LogisticLoss(), 0.001, 0.1)],
)  # fmt: skip
def test_nearly_equal_samples_of_a_subject_are_named(loss, lam, spread):
    """Errors of new subjects are up to 100 000 times larger.

    Classes of subjects are the same in successive samples, as if samples were sorted by class. In the last case few
    samples have large errors, so that twenty random divisions do not show how much the mean error varies.
    """
    rng = np.random.default_rng(0)
    subjects = rng.normal(size=(20, 20))
    x = np.repeat(subjects, 9, axis=0) + spread * rng.normal(size=(180, 20))
    y = np.repeat(rng.normal(size=20), 9)
    labels = y + spread * rng.normal(size=180) if isinstance(loss, ga.SquaredLoss) else np.sign(y)
    order = rng.permutation(180)
    for rows in (np.arange(180), order):
        data = ga.LabelledDataset(x[rows], labels[rows], loss, lam=lam)
        loo = ga.leave_one_out(data, ga.run_gamp(data, "random"))
        assert loo.dependent == (rows is not order)
        assert loo.trusted == (rows is order)
        assert ("neighbors of a sample in the order of the arrays" in loo.message) == loo.dependent
        if isinstance(loss, ga.SquaredLoss):
            path = ga.regularization_path(data, [lam, 10 * lam], "random", n_starts=1)
            assert path.form != "folds"
            assert ("depend on their neighbors" in path.message) == loo.dependent


@pytest.mark.parametrize(
    ("loss", "d", "lam", "sign"), [(ga.SquaredLoss(), 100, 1.0, -1), (ga.LogisticLoss(), 60, 0.5, 1)]
)
def test_sorted_labels_are_no_sign_of_dependence(loss, d, lam, sign):
    """Without a block of sorted labels the intercept is wrong for the block, as if its samples were dependent."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, d))
    y = sign * np.sort(rng.normal(size=100))
    labels = y if isinstance(loss, ga.SquaredLoss) else np.sign(y)
    data = ga.LabelledDataset(x, labels, loss, lam=lam, intercept=True)
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random"))
    assert loo.trusted
    assert not loo.dependent


def test_the_choice_among_minima_extends_the_interval_upwards():
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.3, lam=0.01), d=80, alpha=2.0, seed=0)
    loo = ga.leave_one_out(data, ga.run_gamp(data, "random", seed=0))
    assert np.isclose(loo.selection, 0.4 * (loo.test_error - loo.in_training))
    rest = loo.test_error_error**2 - loo.selection**2
    assert np.isclose(rest, loo.errors.var(ddof=1) / len(loo.errors) + loo.covariance)
    low, high = loo.interval()
    assert high - loo.test_error > 1.2 * (loo.test_error - low)
    assert np.isclose(loo.test_error - low, stats.t.ppf(0.975, len(loo.errors) - 1) * np.sqrt(rest), rtol=1e-3)
    smooth = data.replace(lam=5.0)
    assert ga.leave_one_out(smooth, ga.run_gamp(smooth, "random", seed=0)).selection == 0


@pytest.mark.parametrize("spread", [0.0, 0.2, None])
def test_near_copies_in_a_random_order_are_not_trusted(spread):
    """Augmented samples, or measurements of a subject, are scattered over the file."""
    rng = np.random.default_rng(0)
    copies = 1 if spread is None else 5
    x = rng.normal(size=(100 // copies, 2, 30))
    if spread is None:  # tokens in a plane have near neighbors, too, at all distances
        x = rng.normal(size=(100, 2, 2)) @ rng.normal(size=(2, 30))
    y = ga.SoftmaxTeacher(0.0, np.eye(2))(x @ rng.normal(size=(30, 1)) / np.sqrt(30)) @ x
    y += 0.3 * rng.normal(size=x.shape)
    order = rng.permutation(np.arange(100) % len(x))
    jitter = (spread or 0.0) * rng.normal(size=(2, 100, 2, 30))
    data = ga.Dataset(x[order] + jitter[0], y[order] + jitter[1], lam=0.03)
    loo = ga.leave_one_out(data, ga.run_gamp(data))
    assert loo.dependent == (spread is not None)
    assert loo.trusted == (spread is None)
    assert ("of the samples are nearly equal to a few other samples" in loo.message) == bool(spread)


def test_copies_of_rows_with_their_labels_are_not_trusted():
    """Rows of categories repeat themselves in new data, too, unless their labels are copied with them."""
    rng = np.random.default_rng(0)
    x, y = ridge_rows(n=50, d=30)
    order = rng.permutation(150)
    numbers, dummies = x[order % 50], np.eye(5)[rng.choice(5, 150)]
    classes, sparse = np.sign(y[order % 50]), np.where(np.abs(numbers) > 1, numbers, 0.0)
    cases = (
        (numbers, y[order % 50], ga.SquaredLoss(), True), (numbers, classes, ga.LogisticLoss(), True),
        (sparse, classes, ga.LogisticLoss(), True), (dummies[order % 50], y[order % 50], ga.SquaredLoss(), True),
        (dummies, rng.normal(size=150), ga.SquaredLoss(), False), (dummies, classes, ga.LogisticLoss(), False),
    )  # fmt: skip
    for rows, labels, loss, copied in cases:
        data = ga.LabelledDataset(rows, labels, loss, lam=0.1)
        loo = ga.leave_one_out(data, ga.run_gamp(data, "random"))
        assert (loo.dependent, loo.trusted) == (copied, not copied)
        assert ("of the samples repeat another sample" in loo.message) == copied


@pytest.mark.parametrize("penalty", [ga.Ridge(0.1), ga.ElasticNet(0.1, 0.1)], ids=["ridge", "lasso"])
def test_without_the_only_member_of_a_class_there_is_no_fit(penalty):
    """Its intercept grows without bound; with a second member, or without an intercept, the minimum exists."""
    x, alone = ridge_rows(n=60, d=5)[0], np.where(np.arange(60) == 1, 1.0, -1.0)
    for labels, intercept in ((alone, True), (np.where(np.arange(60) < 2, 1.0, -1.0), True), (alone, False)):
        data = ga.LabelledDataset(x, labels, ga.LogisticLoss(), penalty=penalty, intercept=intercept)
        exists = not (intercept and labels is alone)
        for form in ("hessian", "cavity"):
            loo = ga.leave_one_out(data, ga.run_gamp(data, "random"), form=form)
            assert (loo.trusted, loo.refitted[1]) == (exists, exists)
            assert ("without sample 1, weights that have no penalty grow without bound" in loo.message) != exists


@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_errors_of_few_large_samples_are_not_trusted(spread):
    """If the norms of tokens have a long tail, the error on new data depends on tokens that are larger than all."""
    for seed in (1, 2, 5):
        rng = np.random.default_rng(seed)
        w, x = rng.normal(size=12), rng.normal(size=(60, 2, 12)) * np.exp(spread * rng.normal(size=(60, 1, 1)))
        data = ga.Dataset(x, ga.DotProductAttention()(x @ w[:, None] / np.sqrt(12)) @ x, np.zeros((2, 12)), lam=0.03)
        loo = ga.leave_one_out(data, ga.train(data, n_starts=2, survey=False))
        assert loo.trusted == (spread == 0.0)
        assert ("few samples with large tokens" in loo.message) == (spread > 0)
