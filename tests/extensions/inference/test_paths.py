"""Paths of λ and of other hyperparameters: errors, the best value, resuming, and the predictions of theory."""

from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.model_selection import GroupKFold

import gamp_attention as ga
from gamp_attention._tools.numerics import Stream
from gamp_attention.extensions.inference.path_training import PathPlan, fold_errors
from tests.extensions.inference.test_leave_one_out import correlated_rows, ridge_rows

LAMS = [3.0, 0.1, 0.3, 1.0]


@pytest.fixture(scope="module")
def rows():
    x, y = ridge_rows(n=80, d=25)
    return ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=0.5)


@pytest.fixture(scope="module")
def sentences():
    return ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)


def test_the_choice_for_the_ridge_is_scikit_learns(rows):
    path = ga.regularization_path(rows, LAMS, form="hessian", n_starts=1, tol=1e-10)
    known = RidgeCV(alphas=25 * np.array(LAMS), fit_intercept=False, store_cv_results=True)
    known.fit(rows.tokens[:, 0], rows.labels[:, 0])
    assert np.allclose(path.test_error, known.cv_results_.mean(axis=0) / 2, rtol=1e-9)
    assert 25 * path.lam[path.best] == known.alpha_
    assert path.lam.tolist() == LAMS
    assert [result.Q.shape for result in path.results] == [(25, 1)] * 4


def test_each_value_equals_a_separate_run(sentences):
    path = ga.regularization_path(sentences, LAMS, tol=1e-8, n_starts=2)
    for lam, result, error in zip(LAMS, path.results, path.test_error, strict=True):
        there = ga.Dataset(sentences.tokens, sentences.outputs, sentences.positions, lam=lam, spectra=sentences.spectra)
        assert result.converged
        assert np.linalg.norm(ga.gradient(there, result.Q)) < 1e-8 * lam * 10 * 1.001
        assert np.isclose(result.train_loss, ga.train_loss(there, result.Q), rtol=1e-10)
        assert np.isclose(ga.leave_one_out(there, result).test_error, error, rtol=1e-6)


def test_the_largest_value_within_one_standard_error_is_reported(rows):
    path = ga.regularization_path(rows, np.geomspace(0.05, 20, 12), form="hessian", n_starts=1)
    beyond = (path.test_error - path.test_error[path.best]) / path.test_error_error[path.best]
    assert ((beyond > 1) & (beyond < 2)).any()  # otherwise two standard errors would give the same value
    assert path.lam[path.best_1se] == path.lam[beyond <= 1].max() > path.lam[path.best]


def test_differences_are_over_the_same_samples(rows):
    path = ga.regularization_path(rows, LAMS, n_starts=1)
    best, other = path.best, (path.best + 1) % 4
    apart = path.errors[other] - path.errors[best]
    assert np.isclose(path.difference[other], apart.mean())
    independent, covariance = apart.std(ddof=1) / np.sqrt(80), path.covariance
    of_pairs = covariance[best, best] + covariance[other, other] - 2 * covariance[best, other]
    assert np.isclose(path.difference_error[other], np.sqrt(independent**2 + of_pairs))
    assert path.difference_error[other] < path.test_error_error[other]
    assert path.plausible[best]
    low, high = path.lam[path.plausible].min(), path.lam[path.plausible].max()
    assert low < high
    assert path.message.endswith(f"Within 2 standard errors, values from {low:g} to {high:g} may be the best.")


def test_interrupted_paths_are_resumed_with_equal_options_and_data_only(rows, tmp_path, monkeypatch):
    """Random starts and folds depend on the seed, runs on their start."""
    from gamp_attention.extensions.inference import path_training as module

    calls, file, options = [], tmp_path / "path.npz", {"n_starts": 1, "folds": 0, "tol": 1e-9}
    whole = ga.regularization_path(rows, LAMS, **options)

    def interrupted(run, *args, **others):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(*args, **others)

    with monkeypatch.context() as patch:
        for name in ("train", "run_gamp"):  # of the first value, and of the others
            patch.setattr(module, name, partial(interrupted, getattr(module, name)))
        with pytest.raises(KeyboardInterrupt):
            ga.regularization_path(rows, LAMS, **options, checkpoint=file)
    again = ga.regularization_path(rows, LAMS, **options, checkpoint=file)
    assert [r.n_iter for lam, r in zip(LAMS, again.results, strict=True) if lam in (0.1, 0.3)] == [0, 0]
    assert np.allclose(again.test_error, whole.test_error, rtol=1e-7)
    for different in ({"lams": LAMS[:2]}, {"seed": 2}, {"max_iter": 9}, {"init": "random"}, {"folds": 3}):
        with pytest.raises(ValueError, match=r"checkpoint: .* same data and options"):
            ga.regularization_path(rows, **({"lams": LAMS} | options | different), checkpoint=file)
    with pytest.raises(ValueError, match="seed: needs an integer if a checkpoint is given"):
        ga.regularization_path(rows, LAMS, seed=np.random.default_rng(1), checkpoint=tmp_path / "new.npz")


def test_checkpoints_know_the_weights_of_their_start_and_all_datasets(rows, tmp_path):
    options, file = {"n_starts": 1, "folds": 0}, tmp_path / "Q.npz"
    Q = ga.run_gamp(rows, "random", seed=1).Q
    for start in (Q, Q.tolist(), Q * (1 + 1e-9)):  # a resumed run ends at weights with other rounding errors
        assert ga.regularization_path(rows, [0.3], start, **options, checkpoint=file).best == 0
    with pytest.raises(ValueError, match=r"checkpoint: .* same data and options"):
        ga.regularization_path(rows, [0.3], 1.1 * Q, **options, checkpoint=file)
    other = ga.LabelledDataset(rows.tokens, 2 * rows.labels, rows.student, lam=0.5)
    ga.regularization_path({1: rows, 2: rows}, **options, checkpoint=tmp_path / "two.npz")
    with pytest.raises(ValueError, match=r"checkpoint: .* same data and options"):
        ga.regularization_path({1: rows, 2: other}, **options, checkpoint=tmp_path / "two.npz")


def test_other_hyperparameters_are_a_dictionary_of_datasets(sentences):
    x, y, p = sentences.tokens, sentences.outputs, sentences.positions
    ranks = {rank: ga.Dataset(x, y, p, lam=0.03, rank=rank) for rank in (1, 2)}
    path = ga.regularization_path(ranks, n_starts=2, parameter="rank", tol=1e-6)
    assert path.parameter == "rank"
    assert path.lam.tolist() == [1, 2]
    assert [result.Q.shape[1] for result in path.results] == [1, 2]
    heat = {t: ga.Dataset(x, y, p, lam=0.03, student=ga.DotProductAttention(t)) for t in (0.5, 1.0, 2.0)}
    found = ga.regularization_path(heat, n_starts=2, parameter="temperature")
    assert found.lam[found.best] == 1.0


def test_predictions_of_state_evolution_are_added_on_request(sentences):
    path = ga.regularization_path(sentences, [0.01, 0.1], n_starts=4, predict=True)
    assert np.allclose(path.predicted, path.test_error, rtol=0.3)
    plain = ga.Dataset(sentences.tokens, sentences.outputs, sentences.positions)
    with pytest.raises(ValueError, match="predict: needs data sampled from a model"):
        ga.regularization_path(plain, [0.01, 0.1], predict=True)


NOISY = ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.6)


@pytest.mark.slow
def test_paths_with_many_minima_use_folds():
    data, lams = ga.sample(NOISY, d=100, alpha=2.0, seed=0), np.logspace(-3, 0.5, 6)
    path = ga.regularization_path(data, lams, n_starts=4, folds=3)
    assert path.form == "folds"
    assert path.trusted.dtype == bool
    assert path.trusted.tolist() == [True] * 6
    assert path.lam[path.best] >= 0.1
    assert "cross-validation" in path.message
    fresh = ga.sampled_test_error(data, path.results[0].Q, n_samples=4000, seed=0)[0]
    alone = ga.regularization_path(data, lams, n_starts=4, folds=0)
    assert alone.form == "hessian"
    assert not alone.trusted.all()
    assert alone.lam[alone.best] >= 0.1
    assert alone.test_error[0] < 0.9 * fresh < path.test_error[0]


def test_estimates_that_are_not_trusted_are_increased_before_they_are_compared():
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.2), d=40, alpha=2.0, seed=1)
    path = ga.regularization_path(data, [0.03, 0.1, 0.3], "random", n_starts=1, folds=0)
    assert path.trusted.tolist() == [False, True, True]
    assert path.test_error[0] < path.test_error[1] < 1.25 * path.test_error[0]
    assert path.best == 1
    assert "1 other values have lower errors by estimates that are not reliable" in path.message


def test_folds_are_trained_without_their_samples(rows):
    along = PathPlan(
        np.array([0.1, 1.0]), [rows.replace(lam=lam) for lam in (0.1, 1.0)], [0, 1], "random", 1, 1e-10, 1000, 0
    )
    known = {}
    errors, converged, changes = fold_errors(along, 4, known, lambda is_new: None)
    assert converged.all()
    assert all(np.abs(of_value).max(axis=1).min() > 0 for of_value in changes)  # of the samples of all folds
    out = np.sort(np.array_split(np.random.default_rng([0, int(Stream.FOLDS)]).permutation(80), 4)[1])
    rest = np.setdiff1d(np.arange(80), out)
    x, y = rows.tokens[:, 0], rows.labels[:, 0]
    for k, lam in enumerate((0.1, 1.0)):
        model = Ridge(alpha=lam * 25, fit_intercept=False).fit(x[rest], y[rest])
        assert np.allclose(errors[k, out], (y[out] - model.predict(x[out])) ** 2 / 2, rtol=1e-6)
    calls = []
    again, *_ = fold_errors(along, 4, known, lambda is_new: calls.append(1))
    assert len(calls) == 8
    assert np.allclose(again, errors, rtol=1e-7)


def test_a_best_value_at_an_edge_is_named(rows):
    inside = ga.regularization_path(rows, [0.01, 1.0, 100.0], n_starts=1)
    assert "value tried" not in inside.message
    assert inside.trusted.dtype == bool
    assert inside.trusted.shape == (3,)
    assert inside.trusted.all()
    small, large = (ga.regularization_path(rows, lams, n_starts=1) for lams in ([10.0, 100.0], [1e-3, 1e-2]))
    assert "the smallest value tried, and smaller values may be better" in small.message
    assert "the largest value tried, and larger values may be better" in large.message


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("kind", "loss"),
    [
        ("neighbors", ga.SquaredLoss()),
        ("norms", ga.SquaredLoss()),
        ("independent", ga.LogisticLoss()),
        ("factor", ga.LogisticLoss()),
    ],
)
def test_interpolated_errors_agree_with_complete_estimates(kind, loss):
    """Estimates of most values are interpolated: each is within 3 % of the complete estimate at its value."""
    x, signal, rng = correlated_rows(kind, 420, 100, seed=5)
    y = signal + 0.6 * rng.normal(size=420)
    y = y if isinstance(loss, ga.SquaredLoss) else np.where(y > 0, 1.0, -1.0)
    data, lams = ga.LabelledDataset(x, y, loss), np.geomspace(1e-3, 30, 16)
    path = ga.regularization_path(data, lams, init="random", n_starts=1)
    complete = [ga.leave_one_out(data.replace(lam=lam), end) for lam, end in zip(lams, path.results, strict=True)]
    errors = np.array([estimate.test_error for estimate in complete])
    assert np.allclose(path.test_error[path.trusted], errors[path.trusted], rtol=0.03)
    assert path.trusted.sum() >= 14
    if kind == "independent":
        assert np.count_nonzero(path.test_error != errors) >= 4
    assert np.isclose(path.test_error[path.best], errors[path.best], rtol=1e-6)
    assert errors[path.best] <= 1.005 * errors.min()


def test_groups_are_left_out_together_in_the_folds_of_scikit_learn(rows):
    groups = np.array([f"subject {k}" for k in np.random.default_rng(0).integers(0, 9, 80)])
    path = ga.regularization_path(rows, LAMS, n_starts=1, tol=1e-8, folds=4, groups=groups)
    x, y = rows.tokens[:, 0], rows.labels[:, 0]
    errors = np.empty((4, 80))
    for train, test in GroupKFold(4).split(x, y, groups):
        for k, lam in enumerate(LAMS):
            model = Ridge(alpha=lam * 25, fit_intercept=False).fit(x[train], y[train])
            errors[k, test] = (y[test] - model.predict(x[test])) ** 2 / 2
    assert np.allclose(path.errors, errors, rtol=1e-5)
    assert path.form == "folds"
    assert path.trusted.all()
    assert "leaves out whole groups" in path.message
    assert np.allclose(path.in_training, [np.mean((y - x @ r.Q[:, 0] / 5) ** 2) / 2 for r in path.results])


def test_standard_errors_count_a_group_as_one_observation(rows):
    """If all samples occur three times, standard errors of folds are equal to the errors of the distinct samples."""
    copies = rows.select_rows(np.repeat(np.arange(80), 3))
    thrice = ga.regularization_path(copies, [0.3, 3.0], n_starts=1, tol=1e-8, groups=np.repeat(np.arange(80), 3))
    once = ga.regularization_path(rows, [0.1, 1.0], n_starts=1, tol=1e-8, groups=np.arange(80))
    assert np.allclose(thrice.test_error, once.test_error, rtol=1e-5)
    independent = thrice.test_error_error**2 - np.diag(thrice.covariance)
    assert np.allclose(independent, once.errors.var(axis=1, ddof=1) / 80, rtol=1e-5)
    alone = ga.regularization_path(copies, [0.3, 3.0], n_starts=1, tol=1e-8)
    assert (alone.test_error < 0.9 * once.test_error).all()


def test_bad_groups_are_named(rows):
    for options, text in [
        ({"groups": np.zeros(79)}, r"groups: needs a label for each sample, shape \(80,\)"),
        ({"groups": np.arange(80) % 4, "folds": 5}, "groups: needs at least 5 groups, one for each fold, got 4 groups"),
        ({"groups": np.full(80, np.nan)}, "groups: needs labels that are not NaN"),
        ({"groups": np.arange(80), "folds": 0}, "folds: needs at least 2 if `groups` are given"),
    ]:
        with pytest.raises(ValueError, match=text):
            ga.regularization_path(rows, [0.1], **options)
    with pytest.raises(TypeError, match="groups: needs labels of one type"):
        ga.regularization_path(rows, [0.1], groups=np.array([None, 1] * 40, object))


def test_a_path_returns_from_a_jump_to_lower_minima():
    """The weights jump to another minimum at the last value, which is lower at the value before too."""
    data = ga.sample(ga.paper_model(omega=0.3, sigma=0.5, lam=0.01), d=60, alpha=1.0, seed=0)
    lams = [0.01, 0.02, 0.04]
    along = PathPlan(np.array(lams), [data.replace(lam=lam) for lam in lams], [0, 1, 2], "positional", 1, 1e-6, 1000, 0)
    runs = list(along.runs(known := {}))
    assert [k for k, *_ in runs] == [0, 1, 2, 1]
    first, jumped, again = (run[2] for run in runs[1:])
    assert again.train_loss < 0.999 * first.train_loss
    assert again.is_minimum
    assert np.array_equal(known["1"]["Q"], again.Q)
    cosines = [abs(np.sum(r.Q * jumped.Q)) / np.linalg.norm(r.Q) / np.linalg.norm(jumped.Q) for r in (first, again)]
    assert cosines[0] < 0.9 < cosines[1]
    path = ga.regularization_path(data, lams, "positional", n_starts=1, tol=1e-6, folds=0)
    assert np.isclose(path.results[1].train_loss, again.train_loss)


def test_bad_paths_are_named(rows):
    for options, error, text in [
        ({"lams": None}, TypeError, "lams: needs values of λ"),
        ({"lams": [0.1, 0.1]}, ValueError, "lams: needs distinct values of λ"),
        ({"lams": [-1.0]}, ValueError, "lams: needs distinct values of λ that are not negative"),
        ({"lams": [0.1], "form": "newton"}, ValueError, "form"),
        ({"lams": [0.1], "predict": 1}, TypeError, "predict"),
        ({"lams": [0.1], "folds": 1}, ValueError, "folds: needs 0 or at least 2"),
        ({"lams": [0.1], "folds": 81}, ValueError, "folds"),
        ({"lams": [0.1], "max_iter": 0}, ValueError, "max_iter"),
        ({"lams": [0.1], "tol": 0}, ValueError, "tol: needs a finite number > 0"),
    ]:
        with pytest.raises(error, match=text):
            ga.regularization_path(rows, **options)
    with pytest.raises(ga.ConvergenceError, match="no run has converged") as stopped:
        ga.regularization_path(rows, [0.1, 0.3], n_starts=1, tol=1e-12, max_iter=3)
    assert [each.n_iter for each in stopped.value.result] == [3, 3]
    with pytest.raises(ValueError, match="lams: needs None, because"):
        ga.regularization_path({0.1: rows}, [0.1])
    with pytest.raises(ValueError, match="data: needs at least one dataset"):
        ga.regularization_path({})


def count_pairs(x, y, lams):
    """Return (1/n²) Σ Δ_ij Δ'_ji of all pairs of values of λ, from ridge regressions without one or two samples."""
    n, d = x.shape
    grams = [x.T @ x + lam * d * np.eye(d) for lam in lams]

    def errors(k, left_out):
        kept = np.setdiff1d(np.arange(n), left_out)
        w = np.linalg.solve(grams[k] - x[left_out].T @ x[left_out], x[kept].T @ y[kept])
        return 0.5 * (y[left_out] - x[left_out] @ w) ** 2

    changes = np.zeros((len(lams), n, n))
    for k in range(len(lams)):
        alone = np.array([errors(k, [i])[0] for i in range(n)])
        for i in range(n):
            for j in range(i):
                changes[k, [i, j], [j, i]] = errors(k, [i, j]) - alone[[i, j]]
    return np.einsum("kij,lji->kl", changes, changes) / n**2


def test_the_covariance_agrees_with_regressions_without_two_samples():
    x, y = ridge_rows(n=60, d=40)
    path = ga.regularization_path(ga.LabelledDataset(x, y, ga.SquaredLoss()), LAMS, n_starts=1, tol=1e-9)
    exact = count_pairs(x, y, LAMS)
    assert np.allclose(path.covariance, exact, rtol=0.15)
    assert np.allclose(path.test_error_error**2, path.errors.var(axis=1, ddof=1) / 60 + np.diag(path.covariance))


def draw_regression(seed):
    """Return a ridge regression (n = 90, d = 60), and the exact error of weights on new data."""
    rng = np.random.default_rng([seed, 1])
    x, teacher = rng.normal(size=(90, 60)), rng.normal(size=60)
    y = x @ teacher / np.sqrt(60) + 0.5 * rng.normal(size=90)
    return ga.LabelledDataset(x, y, ga.SquaredLoss()), lambda Q: (np.sum((Q[:, 0] - teacher) ** 2) / 60 + 0.25) / 2


@pytest.mark.slow
def test_standard_errors_are_the_spread_about_the_errors_on_new_data():
    """The errors of different samples are correlated, also differences between two values of λ."""
    apart, stated, between, stated_between = [], [], [], []
    for seed in range(40):
        data, error = draw_regression(seed)
        path = ga.regularization_path(data, [0.02, 0.1, 0.5], "random", n_starts=1, folds=0)
        apart.append(path.test_error - [error(result.Q) for result in path.results])
        other = [k for k in range(3) if k != path.best]
        between.append((apart[-1] - apart[-1][path.best])[other])
        stated.append(path.test_error_error)
        stated_between.append(path.difference_error[other])
    for errors, spread in ((apart, stated), (between, stated_between)):
        ratio = np.sqrt(np.mean(np.square(spread)) / np.mean(np.square(errors)))
        assert 0.75 < ratio < 1.35


def test_fewer_samples_than_the_default_number_of_folds_are_accepted():
    data = ga.sample(ga.paper_model(omega=0.3, sigma=0.8), d=4, alpha=0.75, seed=0)
    assert data.n_samples == 3
    assert ga.regularization_path(data, [0.05, 0.5]).test_error.shape == (2,)


def test_values_with_equal_errors_are_plausible():
    """The penalty makes both weights nearly zero, and the remaining difference is the error of training."""
    data = ga.sample(ga.paper_model(omega=0.2, sigma=0.8), d=30, alpha=3.0, seed=0)
    path = ga.regularization_path(data, [50.0, 100.0], init="semantic")
    assert path.test_error[0] == pytest.approx(path.test_error[1], rel=1e-7)
    assert path.plausible.all()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["neighbors", "norms", "factor"])
def test_the_choice_is_scikit_learns_for_correlated_features(kind):
    x, signal, rng = correlated_rows(kind, 150, 60, seed=3)
    y = signal + 0.7 * rng.normal(size=150)
    lams = np.geomspace(1e-3, 30, 9)
    path = ga.regularization_path(ga.LabelledDataset(x, y, ga.SquaredLoss()), lams, init="random", n_starts=1)
    known = RidgeCV(alphas=60 * lams, fit_intercept=False, store_cv_results=True).fit(x, y)
    assert np.allclose(path.test_error, known.cv_results_.mean(axis=0) / 2, rtol=5e-3)
    assert np.isclose(60 * path.lam[path.best], known.alpha_)
    assert path.trusted.all()


def test_values_next_to_rough_estimates_are_not_trusted():
    """With noise, estimates at weak penalties are rough: neither they nor estimates at the next values are trusted."""
    data, lams = ga.sample(NOISY, d=100, alpha=2.0, seed=0), np.logspace(-3, 1, 12)
    path = ga.regularization_path(data, lams, n_starts=4, folds=0)
    assert not path.trusted[:3].any()
    assert path.trusted[-1]
    for k in np.flatnonzero(path.trusted):
        own = ga.leave_one_out(data.replace(lam=lams[k]), path.results[k])
        assert abs(path.test_error[k] - own.test_error) <= max(0.05 * own.test_error, 3 * own.test_error_error)
