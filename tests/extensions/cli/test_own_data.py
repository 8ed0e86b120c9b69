"""Datasets of given arrays: estimated positions, tokens in files, units, and the layer in the units of the data."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.cli.fit_data import split_held_out
from gamp_attention.extensions.train.standard_units import standard_units
from gamp_attention.problem.layer import Layer


@pytest.mark.parametrize("student", [ga.DotProductAttention(), ga.DotProductAttention(causal=True, temperature=0.5)])
def test_a_layer_in_other_units_equals_the_layer_in_standard_units(student):
    rng = np.random.default_rng(0)
    tokens = 3 + 2 * rng.standard_normal((30, 3, 5)) * np.arange(5)  # one coordinate is constant
    outputs, positions = tokens[:, ::-1], rng.standard_normal((3, 5))
    units, Q = standard_units(tokens), rng.standard_normal((5, 2))
    x = units.standardize(tokens)
    assert np.allclose(x.mean(axis=(0, 1)), 0)
    assert np.allclose(x.std(axis=(0, 1)), np.arange(5) > 0)
    assert (units.constant, units.scale[0]) == (1, 1.0)
    layer = Layer(student, Q, positions, units)
    shifted = x + positions / units.scale
    S = student(shifted @ Q / np.sqrt(5))
    assert np.allclose(layer.attention(tokens), S)
    predicted = layer.outputs(tokens)
    assert np.allclose(units.standardize(predicted), S @ shifted)
    assert np.allclose(layer.errors(tokens, outputs), np.mean((outputs - predicted) ** 2, axis=(1, 2)))


def test_a_fraction_of_the_samples_is_held_out_at_random():
    train, test = split_held_out("share", 0.3, 10, seed=0)
    assert sorted([*train, *test]) == list(range(10))
    assert len(test) == 3
    assert [len(rows) for rows in split_held_out("share", 0, 10, seed=0)] == [10, 0]


@pytest.mark.parametrize("fraction", [0.01, 0.96, 1, -0.1, np.nan, "half"])
def test_fractions_that_leave_no_samples_raise_named_errors(fraction, named_error):
    named_error(lambda: split_held_out("share", fraction, 10, 0), "share: needs")


def test_results_predict_outputs_of_new_tokens(model):
    data = ga.sample(model, 40, 2.0, seed=0)
    result, new = ga.run_gamp(data, "semantic"), np.random.default_rng(1).normal(size=(5, 2, 40))
    predicted = data.student((new + data.positions) @ result.Q / np.sqrt(40)) @ (new + data.positions)
    np.testing.assert_allclose(result.predict(new), predicted, atol=1e-12)
    np.testing.assert_array_equal(result.predict(new.tolist()), result.predict(new))
    np.testing.assert_allclose(result.predict(new.astype(np.float32)), predicted, atol=1e-5)
    bad = [(new[:, :1], r"tokens: needs shape \(n, 2, 40\), as in training"), (new[0], "tokens: needs shape"),
           (np.full((1, 2, 40), np.nan), "tokens: needs finite"), (None, "tokens: needs a real array")]  # fmt: skip
    for tokens, match in bad:
        with pytest.raises((TypeError, ValueError), match=match):
            result.predict(tokens)
    rows = ga.LabelledDataset(data.tokens[:, 0], data.tokens[:, 0, 0], ga.SquaredLoss(), lam=0.1)
    with pytest.raises(ValueError, match=r"predict: needs a result for outputs .* got a result for labels"):
        ga.run_gamp(rows, "random", max_iter=1).predict(new)
