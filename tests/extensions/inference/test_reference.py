"""Errors of zero, the mean output and linear predictions: leave-one-out compared with refits, units, and verdicts."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge, RidgeCV

import gamp_attention as ga
from gamp_attention.extensions.inference import reference
from gamp_attention.extensions.train.standard_units import build_dataset


def draw_arrays(n=23, L=3, d=7, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(n, L, d)) * rng.uniform(0.5, 3, size=(n, 1, 1)) + 0.7
    return tokens, rng.normal(size=(n, L, d)) + 0.4 * tokens[:, ::-1] - 1.0


def fit_layer(data, lam=1e-4):
    """Return W (L, L) that minimizes Σ‖y − W x‖²/(2d) + (λ/2)‖W‖²."""
    gram = np.einsum("nid,njd->ij", data.tokens, data.tokens) / data.dim + lam * np.eye(data.n_tokens)
    return np.linalg.solve(gram, np.einsum("nid,njd->ij", data.tokens, data.outputs) / data.dim).T


def fit_without(tokens, outputs, sample):
    """Fit the linear layer and the mean output to all other samples, by numpy."""
    others = np.arange(len(tokens)) != sample
    data = ga.Dataset(tokens[others], outputs[others], np.zeros(tokens.shape[1:]))
    return fit_layer(data), outputs[others].mean(axis=0)


@pytest.mark.parametrize("shape", [(23, 3, 7), (6, 4, 2), (2, 2, 5), (12, 2, 1)])
def test_leave_one_out_equals_refits(shape):
    tokens, outputs = draw_arrays(*shape)
    references = ga.reference_errors(ga.Dataset(tokens, outputs))
    expected = []
    for k, (x, y) in enumerate(zip(tokens, outputs, strict=True)):
        W, mean = fit_without(tokens, outputs, k)
        expected.append([np.mean((y - f) ** 2) for f in (W @ x, mean, 0 * y)])
    assert references.names == ("linear", "mean", "zero", "ridge")
    assert references.left_out
    assert pytest.approx(np.array(expected), rel=1e-6) == references.errors.T[:, :3]
    assert references.test_error[:3] == pytest.approx(np.mean(expected, axis=0), rel=1e-6)
    assert references.test_error_error[:3] == pytest.approx(
        np.std(expected, axis=0, ddof=1) / np.sqrt(len(tokens)), rel=1e-6
    )


@pytest.mark.parametrize("shape", [(23, 3, 7), (60, 3, 7), (2, 2, 5), (40, 2, 1)])
def test_the_ridge_is_scikit_learns(shape):
    """The choice of λ, and the errors by leave-one-out and on new samples, for n below and above L d."""
    tokens, outputs = draw_arrays(*shape)
    n, size = len(tokens), tokens[0].size
    data, new = ga.Dataset(tokens, outputs, np.zeros(shape[1:])), draw_arrays(*shape, seed=1)
    X, Y = tokens.reshape(n, size), outputs.reshape(n, size)
    alphas = reference.LAMS * np.sum((X - X.mean(axis=0)) ** 2) / min(n, size)
    known = RidgeCV(alphas=alphas, store_cv_results=True).fit(X, Y)
    of_values = known.cv_results_.reshape(n, size, -1).mean(axis=1)
    best = of_values[:, of_values.mean(axis=0).argmin()]
    assert ga.reference_errors(data).errors[3] == pytest.approx(best, rel=1e-6)
    fit = Ridge(alpha=known.alpha_).fit(X, Y)
    off = new[1].reshape(n, size) - fit.predict(new[0].reshape(n, size)).reshape(n, size)
    assert ga.reference_errors(data, *new).errors[3] == pytest.approx(np.mean(off**2, axis=1), rel=1e-6)


def test_the_verdict_uses_the_best_reference():
    """Outputs that are linear in all numbers of the tokens: a layer below y = Wx is still worse than the ridge."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(300, 2, 10))
    y = (x.reshape(300, 20) @ rng.normal(size=(20, 20)) / 4).reshape(x.shape) + 0.1 * rng.normal(size=x.shape)
    references = ga.reference_errors(ga.Dataset(x, y, np.zeros((2, 10))))
    assert references.test_error[3] < 0.05 < 0.5 < references.test_error[0]
    verdict = references.verdict(0.5 * references.errors[0])
    assert (verdict.better, verdict.worse_than) == (False, ("ridge",))
    assert verdict.message == "The layer predicts worse than ridge regression on all tokens."


def test_the_stated_error_of_the_ridge_contains_pairs_of_samples():
    """With n near L d, most of the variance of the mean over data sets is due to pairs of samples."""
    found = []
    for seed in range(60):
        rng = np.random.default_rng([seed, 4])
        x, B = rng.normal(size=(530, 20)), rng.normal(size=(20, 20)) / np.sqrt(20)
        y = (x @ B + 0.3 * rng.normal(size=x.shape)).reshape(530, 2, 10)
        x = x.reshape(y.shape)
        data = ga.Dataset(x[:30], y[:30], np.zeros((2, 10)))
        new = ga.reference_errors(data, x[30:], y[30:])
        references = ga.reference_errors(data)
        found.append([
            references.test_error[3] - new.test_error[3], references.test_error_error[3],
            references.errors[3].std(ddof=1) / np.sqrt(30),
        ])  # fmt: skip
    apart, stated, independent = np.sqrt(np.mean(np.square(found), axis=0))
    assert 0.75 < stated / apart < 1.5  # 0.92 to 1.04 for four sets of seeds
    assert independent < 0.85 * stated


def test_large_problems_skip_the_ridge():
    references = ga.reference_errors(ga.Dataset(*draw_arrays(2001, 3, 667)))
    assert references.names == ("linear", "mean", "zero")
    assert "ridge regression on all tokens is skipped: it needs n or L d ≤ 2000, got 2001 and 2001" in str(references)
    assert references.verdict(references.errors[0]).difference.shape == (3,)


def test_new_samples_are_predicted_by_the_fit_to_the_data():
    tokens, outputs = draw_arrays()
    new, targets = draw_arrays(seed=1)
    data = ga.Dataset(tokens, outputs)
    references = ga.reference_errors(data, new, targets)
    predicted = fit_layer(data) @ new, outputs.mean(axis=0), 0.0
    assert not references.left_out
    for errors, f in zip(references.errors[:3], predicted, strict=True):
        assert errors == pytest.approx(np.mean((targets - f) ** 2, axis=(1, 2)), rel=1e-9)


@pytest.mark.parametrize("fresh", [False, True])
def test_errors_of_standardized_data_are_in_the_units_of_the_file(fresh):
    """The errors of mean and zero do not depend on units; the linear layer is fitted to standardized arrays."""
    tokens, outputs = draw_arrays()
    scale, shift = np.linspace(1, 5, 7), np.linspace(-2, 2, 7)
    x, y = tokens * scale + shift, outputs * scale + shift
    data, units = build_dataset(x, y, None, True)
    new = (x, y) if fresh else ()
    references, plain = ga.reference_errors(data, *new, units=units), ga.reference_errors(ga.Dataset(x, y), *new)
    assert references.errors[1:3] == pytest.approx(plain.errors[1:3])
    assert references.errors[2] == pytest.approx(np.mean(y**2, axis=(1, 2)))
    if fresh:
        W = fit_layer(data)
        residual = units.scale * (units.standardize(y) - W @ units.standardize(x))
        assert references.errors[0] == pytest.approx(np.mean(residual**2, axis=(1, 2)))


def test_files_and_teachers_give_the_errors_of_arrays(tmp_path):
    tokens, outputs = draw_arrays(n=1100)  # more than a block of samples
    np.save(tmp_path / "x.npy", tokens)
    np.save(tmp_path / "y.npy", outputs)
    mapped = [np.load(tmp_path / name, mmap_mode="r") for name in ("x.npy", "y.npy")]
    expected = ga.reference_errors(ga.Dataset(tokens, outputs)).errors
    assert ga.reference_errors(ga.Dataset(*mapped)).errors == pytest.approx(expected)
    assert ga.reference_errors(ga.Dataset(tokens, outputs), *mapped).errors[2] == pytest.approx(expected[2])
    sampled = ga.sample(ga.paper_model(score_noise=0.3), 30, 2.0)
    given = ga.Dataset(sampled.tokens, sampled.outputs, sampled.positions)
    assert ga.reference_errors(sampled).errors == pytest.approx(ga.reference_errors(given).errors)


@pytest.mark.parametrize("size", [1e-6, 1e8])
def test_errors_are_finite_for_collinear_tokens_of_any_size(size):
    x = np.random.default_rng(0).normal(size=(40, 1, 5)) * np.array([1.0, 1.0, -2.0])[:, None] * size
    references = ga.reference_errors(ga.Dataset(x, x, np.zeros((3, 5))))
    assert np.isfinite(references.errors).all()
    if size > 1:  # the penalty is negligible, and the layer W = 1 has no error
        assert references.test_error[0] < 1e-8 * references.test_error[2]


def test_a_single_sample_has_references_but_no_verdict():
    x, y = draw_arrays(n=1)
    references = ga.reference_errors(ga.Dataset(x, y, np.zeros((3, 7))))
    assert references.errors[:, 0] == pytest.approx(np.mean(y**2))  # no other sample is left for a fit
    verdict = references.verdict([0.0])
    assert not verdict.better
    assert verdict.worse_than == ()


def test_the_verdict_depends_on_paired_differences():
    """Differences of errors decide; they vary a hundred times less between samples than the errors."""
    references = ga.reference_errors(ga.Dataset(*draw_arrays(400)))
    linear, rng = references.errors[0], np.random.default_rng(2)
    noise = 0.01 * linear.std() * rng.normal(size=400)
    equal = linear + noise - noise.mean()
    same = references.verdict(equal)
    assert (same.better, "linear" in same.not_better_than) == (False, True)
    assert "not clearly better than the linear layer" in same.message
    for distance in (1.9, 2.1):  # in standard errors of the paired differences
        away = references.verdict(equal + distance * same.difference_error[0])
        assert ("linear" in away.worse_than) == (distance > 2)
    # errors of the layer that depend on each other have a mean of larger error
    error = same.difference_error[0]
    dependent = references.verdict(equal + 2.1 * error, covariance=error**2)
    assert dependent.difference_error[0] == pytest.approx(np.sqrt(2) * error)
    assert "linear" in dependent.not_better_than
    low, high = (references.verdict(errors) for errors in (0.5 * references.errors.min(axis=0), 10 + equal))
    names = "the linear layer y = Wx, the mean output, the output y = 0 and ridge regression on all tokens."
    assert (low.better, low.message) == (True, f"The layer predicts better than {names}")
    assert (high.worse_than, high.message) == (references.names, f"The layer predicts worse than {names}")
