"""Inference by a fitted layer: leave-one-out errors, paths of λ and intervals of weights."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import gamp_attention as ga


@pytest.fixture(scope="module")
def layer():
    data = ga.sample(ga.paper_model(sigma=0.8, omega=0.2), d=60, alpha=4.0, seed=0)
    return data, ga.GampAttention(positions=data.positions, n_starts=4).fit(data.tokens, data.outputs)


def test_a_layer_equals_inference_from_its_data_and_result(layer):
    data, model = layer
    given = ga.Dataset(data.tokens, data.outputs, data.positions)
    assert np.array_equal(model.leave_one_out().errors, ga.leave_one_out(given, model.result_).errors)
    assert np.array_equal(model.debias().weights, ga.debias(given, model.result_).weights)
    lams = [0.003, 0.03, 0.3]
    path, other = model.regularization_path(lams), ga.regularization_path(given, lams, n_starts=4)
    assert np.allclose(path.test_error, other.test_error)


def test_errors_of_standardized_layers_are_in_the_units_of_the_outputs(layer):
    data, _ = layer
    scale, shift = np.linspace(1, 5, 60), np.linspace(-9, 9, 60)
    moved = data.tokens * scale + shift, data.outputs * scale + shift
    model = ga.GampAttention(standardize=True, positions=data.positions * scale, n_starts=2).fit(*moved)
    loo = model.leave_one_out()
    assert loo.in_training == pytest.approx(model.test_error(*moved)[0], rel=1e-6)
    others = np.arange(240) != 7
    refit = ga.GampAttention(standardize=True, positions=data.positions * scale, init=model.Q_, n_starts=1)
    refit.fit(moved[0][others], moved[1][others])
    error = refit.test_error(moved[0][7:8], moved[1][7:8])[0]
    assert loo.errors[7] == pytest.approx(error, rel=0.05)
    assert loo.test_error > loo.in_training


def test_inference_after_pickling_and_errors_without_data(layer):
    _, model = layer
    restored = pickle.loads(pickle.dumps(model))
    assert np.array_equal(restored.leave_one_out().errors, model.leave_one_out().errors)
    tokens = restored.data_.tokens
    del restored.data_
    assert restored.predict(tokens).shape == tokens.shape
    for estimator in (ga.GampAttention(), clone(restored)):
        for call in (estimator.leave_one_out, estimator.debias, lambda: estimator.regularization_path([1.0])):  # noqa: B023
            with pytest.raises(NotFittedError):
                call()
