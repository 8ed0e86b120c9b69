"""Errors of zero, the mean output and a linear layer: leave-one-out against refits, units, verdicts on layers."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.data.layer import build_dataset


def arrays(n=23, L=3, d=7, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(n, L, d)) * rng.uniform(0.5, 3, size=(n, 1, 1)) + 0.7
    return tokens, rng.normal(size=(n, L, d)) + 0.4 * tokens[:, ::-1] - 1.0


def without(tokens, outputs, sample):
    """The linear layer and the mean output of all other samples, fitted by `fit_linear_baseline` and numpy."""
    kept = np.arange(len(tokens)) != sample
    data = ga.Dataset(tokens[kept], outputs[kept], np.zeros(tokens.shape[1:]))
    return ga.fit_linear_baseline(data).weights, outputs[kept].mean(axis=0)


@pytest.mark.parametrize("shape", [(23, 3, 7), (6, 4, 2), (2, 2, 5), (12, 1, 4)])
def test_leave_one_out_equals_refits(shape):
    tokens, outputs = arrays(*shape)
    found = ga.reference_errors(ga.Dataset(tokens, outputs))
    expected = []
    for k, (x, y) in enumerate(zip(tokens, outputs, strict=True)):
        W, mean = without(tokens, outputs, k)
        expected.append([np.mean((y - f) ** 2) for f in (W @ x, mean, 0 * y)])
    assert found.names == ("linear", "mean", "zero")
    assert found.left_out
    assert pytest.approx(np.array(expected), rel=1e-6) == found.errors.T
    assert found.test_error == pytest.approx(np.mean(expected, axis=0), rel=1e-6)
    assert found.test_error_error == pytest.approx(np.std(expected, axis=0, ddof=1) / np.sqrt(len(tokens)), rel=1e-6)


def test_new_samples_are_predicted_by_the_fit_to_the_data():
    tokens, outputs = arrays()
    new, targets = arrays(seed=1)
    data = ga.Dataset(tokens, outputs)
    found = ga.reference_errors(data, new, targets)
    predicted = ga.fit_linear_baseline(data).weights @ new, outputs.mean(axis=0), 0.0
    assert not found.left_out
    for errors, f in zip(found.errors, predicted, strict=True):
        assert errors == pytest.approx(np.mean((targets - f) ** 2, axis=(1, 2)), rel=1e-9)


@pytest.mark.parametrize("fresh", [False, True])
def test_errors_of_standardised_data_are_in_the_units_of_the_file(fresh):
    """Mean and zero do not depend on units; the linear layer is fitted to standardised arrays."""
    tokens, outputs = arrays()
    scale, shift = np.linspace(1, 5, 7), np.linspace(-2, 2, 7)
    x, y = tokens * scale + shift, outputs * scale + shift
    data, units = build_dataset(x, y, None, True)
    new = (x, y) if fresh else ()
    found, plain = ga.reference_errors(data, *new, units=units), ga.reference_errors(ga.Dataset(x, y), *new)
    assert found.errors[1:] == pytest.approx(plain.errors[1:])
    assert found.errors[2] == pytest.approx(np.mean(y**2, axis=(1, 2)))
    if fresh:
        W = ga.fit_linear_baseline(data).weights
        residual = units.scale * (units.standardised(y) - W @ units.standardised(x))
        assert found.errors[0] == pytest.approx(np.mean(residual**2, axis=(1, 2)))


def test_files_and_teachers_give_the_errors_of_arrays(tmp_path):
    tokens, outputs = arrays(n=1100)  # more than a block of samples
    np.save(tmp_path / "x.npy", tokens)
    np.save(tmp_path / "y.npy", outputs)
    mapped = [np.load(tmp_path / name, mmap_mode="r") for name in ("x.npy", "y.npy")]
    expected = ga.reference_errors(ga.Dataset(tokens, outputs)).errors
    assert ga.reference_errors(ga.Dataset(*mapped)).errors == pytest.approx(expected)
    assert ga.reference_errors(ga.Dataset(tokens, outputs), *mapped).errors[2] == pytest.approx(expected[2])
    taught = ga.sample(ga.paper_model(score_noise=0.3), 30, 2.0)
    own = ga.Dataset(taught.tokens, taught.outputs, taught.positions)
    assert ga.reference_errors(taught).errors == pytest.approx(ga.reference_errors(own).errors)


@pytest.mark.parametrize("size", [1e-6, 1e8])
def test_collinear_tokens_of_any_size_have_finite_errors(size):
    x = np.random.default_rng(0).normal(size=(40, 1, 5)) * np.array([1.0, 1.0, -2.0])[:, None] * size
    found = ga.reference_errors(ga.Dataset(x, x, np.zeros((3, 5))))
    assert np.isfinite(found.errors).all()
    if size > 1:  # the penalty is negligible, and the layer W = 1 has no error
        assert found.test_error[0] < 1e-8 * found.test_error[2]


def test_one_sample_has_references_and_no_verdict():
    x, y = arrays(n=1)
    found = ga.reference_errors(ga.Dataset(x, y, np.zeros((3, 7))))
    assert found.errors[:, 0] == pytest.approx(np.mean(y**2))  # nothing is left to fit
    verdict = found.verdict([0.0])
    assert not verdict.better
    assert verdict.worse_than == ()


def test_the_verdict_goes_by_paired_differences():
    """Errors vary from sample to sample a hundred times as much as their differences, which decide."""
    found = ga.reference_errors(ga.Dataset(*arrays(400)))
    rng = np.random.default_rng(2)
    linear = found.errors[0]
    noise = 0.01 * linear.std() * rng.normal(size=400)
    low = ga.reference_errors(ga.Dataset(*arrays(400))).verdict(0.5 * found.errors.min(axis=0))
    assert low.better
    assert low.message.startswith("The layer predicts better than the linear layer y = Wx, the mean output and")
    same = found.verdict(linear + noise - noise.mean())
    assert (same.better, "linear" in same.not_better_than) == (False, True)
    assert "not clearly better than the linear layer" in same.message
    worse = found.verdict(linear + noise - noise.mean() + 0.005 * linear.std())
    assert "linear" in worse.worse_than
    assert worse.difference[0] < -2 * worse.difference_error[0]
    high = found.verdict(found.errors.max(axis=0) + 1.0)
    assert high.worse_than == found.names
    assert high.message == (
        "The layer predicts worse than the linear layer y = Wx, the mean output and the output y = 0."
    )
