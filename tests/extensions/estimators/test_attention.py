"""GampAttention: the fitted layer, its use with scikit-learn, and inference: errors, paths of λ and intervals."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator_cloneable, check_no_attributes_set_in_init

import gamp_attention as ga


@pytest.fixture(scope="module")
def sampled():
    return ga.sample(ga.paper_model(sigma=0.8, omega=0.2), d=60, alpha=4.0, seed=0)


@pytest.fixture(scope="module")
def fitted(sampled):
    return ga.GampAttention(positions=sampled.positions).fit(sampled.tokens, sampled.outputs)


def test_a_fit_equals_a_run_with_several_spectral_starts(sampled, fitted):
    data = ga.Dataset(sampled.tokens, sampled.outputs, sampled.positions)
    run = ga.train(data, "spectral", n_starts=8, survey=False, escape=False)
    assert np.array_equal(fitted.Q_, run.Q)
    assert fitted.result_.converged
    assert len(fitted.result_.starts) == 8
    assert (fitted.n_tokens_in_, fitted.n_features_in_, fitted.n_iter_) == (2, 60, run.n_iter)
    assert np.array_equal(fitted.positions_, sampled.positions)


def test_predictions_attention_and_scores_of_the_layer(sampled, fitted):
    shifted = sampled.tokens + sampled.positions
    S = ga.DotProductAttention()(shifted @ fitted.Q_ / np.sqrt(60))
    predicted = fitted.predict(sampled.tokens)
    assert np.allclose(fitted.attention(sampled.tokens), S)
    assert np.allclose(predicted, S @ shifted)
    squares = np.mean((sampled.outputs - predicted) ** 2, axis=(1, 2))
    mean, error = fitted.test_error(sampled.tokens, sampled.outputs)
    assert mean == pytest.approx(squares.mean())
    assert error == pytest.approx(squares.std(ddof=1) / np.sqrt(240))
    spread = np.mean((sampled.outputs - sampled.outputs.mean(axis=0)) ** 2)
    assert fitted.score(sampled.tokens, sampled.outputs) == pytest.approx(1 - mean / spread)


def test_standardized_layers_do_not_depend_on_units(sampled):
    scale, shift = np.linspace(1, 5, 60), np.linspace(-9, 9, 60)
    arrays = sampled.tokens, sampled.outputs
    plain = ga.GampAttention(standardize=True, positions=sampled.positions).fit(*arrays)
    moved = [part * scale + shift for part in arrays]
    other = ga.GampAttention(standardize=True, positions=sampled.positions * scale).fit(*moved)
    assert np.allclose(other.center_, plain.center_ * scale + shift)
    assert np.allclose(other.scale_, plain.scale_ * scale)
    assert np.allclose(other.predict(moved[0]), plain.predict(arrays[0]) * scale + shift, atol=1e-5)
    assert np.allclose(other.positions_, plain.positions_ * scale)


def test_parameters_clone_and_pickle(sampled, fitted):
    check_estimator_cloneable("GampAttention", ga.GampAttention())
    check_no_attributes_set_in_init("GampAttention", ga.GampAttention())
    student = ga.DotProductAttention(causal=True)
    other = ga.GampAttention(student=student, penalty=ga.ElasticNet(0.1, 0.2), positions=sampled.positions)
    copy = clone(other)
    assert copy.get_params()["student"] == student
    assert copy.get_params()["penalty"] == ga.ElasticNet(0.1, 0.2)
    assert copy.set_params(lam=0.5).lam == 0.5
    restored = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(restored.predict(sampled.tokens), fitted.predict(sampled.tokens))
    with pytest.raises(NotFittedError):
        clone(fitted).predict(sampled.tokens)


def test_estimators_work_in_cross_validation_grid_search_and_pipelines(sampled):
    arrays = sampled.tokens[:160] + sampled.positions, sampled.outputs[:160]
    folds = KFold(2, shuffle=True, random_state=0)
    scores = cross_val_score(ga.GampAttention(n_starts=4), *arrays, cv=folds)
    assert scores.shape == (2,)
    assert np.isfinite(scores).all()
    search = GridSearchCV(ga.GampAttention(n_starts=4), {"lam": [0.01, 100.0]}, cv=folds).fit(*arrays)
    assert search.best_params_ == {"lam": 0.01}
    assert search.cv_results_["split0_test_score"][0] == pytest.approx(scores[0])
    pipeline = make_pipeline(FunctionTransformer(lambda x: 2 * x), ga.GampAttention(n_starts=2))
    assert pipeline.fit(*arrays).predict(arrays[0]).shape == (160, 2, 60)
    assert pipeline.score(*arrays) == pipeline[-1].score(2 * arrays[0], arrays[1])


def test_random_states_determine_random_starts(sampled):
    model = ga.GampAttention(init="random", n_starts=1, tol=1e-3)
    arrays = sampled.tokens, sampled.outputs

    def compute_losses(*states):
        return [model.set_params(random_state=state).fit(*arrays).result_.history.train_loss[0] for state in states]

    one, same, other = compute_losses(0, 0, 1)
    assert one == same != other
    first, second = compute_losses(np.random.RandomState(3), np.random.default_rng(3))
    assert [first, second] == compute_losses(np.random.RandomState(3), np.random.default_rng(3))
    assert len({one, *compute_losses(None, None)}) == 3


def test_a_run_that_does_not_converge_warns(sampled):
    with pytest.warns(ConvergenceWarning, match="GampAttention: Message passing reached its limit of 2 iterations"):
        model = ga.GampAttention(max_iter=2, n_starts=1).fit(sampled.tokens, sampled.outputs)
    assert model.predict(sampled.tokens).shape == sampled.tokens.shape


X = np.random.default_rng(0).standard_normal((6, 2, 4))
WRONG = {
    "rows": (X[:, 0], X[:, 0], {}, r"X: needs shape \(n, L, d\), got shape \(6, 4\)"),
    "other outputs": (X, X[:, :, :3], {}, "^y: needs shape"),
    "text": (X.astype(str), X, {}, r"^X: needs a real array of shape \(n, L, d\), got an array of <U"),
    "text as outputs": (X, X.astype(str), {}, "^y: needs a real array"),
    "no outputs": (X, None, {}, "requires y"),
    "one sample": (X[:1], X[:1], {}, "positions: needs an array"),
    "positions": (X, X, {"positions": np.ones(4)}, "positions: needs shape"),
    "semantic": (X, X, {"init": "semantic"}, "init: 'semantic' needs the teacher"),
    "survey": (X, X, {"survey": -1.0}, "survey: needs"),
    "large values": (
        np.ones((6, 16, 4)), np.ones((6, 16, 16)), {"value_rank": 4, "readout": np.ones((4, 16))},
        "^X, heads, value_rank, readout: needs a small layer",
    ),
    "random_state": (X, X, {"random_state": -1}, "random_state: needs"),
    "no values": (X, X, {"readout": np.eye(2)}, "readout: needs None"),
    "intercept": (X, X, {"fit_intercept": True}, "fit_intercept: needs False"),
    "readout": (X, X, {"value_rank": 1, "readout": np.eye(3)}, "readout"),
    "values": (X, X, {"value_rank": 2}, "^y: needs"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_bad_input_raises_an_error(kind):
    tokens, outputs, options, words = WRONG[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((ValueError, TypeError), match=words):
            ga.GampAttention(**options).fit(tokens, outputs)


@pytest.mark.parametrize("tokens", [X, X[:, :1], X[:, 0], np.full((3, 2, 60), np.nan)])
def test_bad_tokens_raise_an_error(tokens, fitted):
    with pytest.raises(ValueError, match=r"X: needs shape|X contains NaN"):
        fitted.predict(tokens)


def torch_outputs(n=60):
    """Return a layer of torch with two heads in four dimensions, and biases; tokens, outputs and arguments."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    torch.nn.init.normal_(layer.in_proj_bias, std=0.3)
    x = np.random.default_rng(0).normal(size=(n, 2, 4))
    with torch.no_grad():
        outputs, attention = layer(*[torch.tensor(x)] * 3, average_attn_weights=False)
    arguments = {
        "heads": 2, "rank": 4, "value_rank": 2, "readout": layer.out_proj.weight.detach().numpy().T,
        "student": ga.DotProductAttention(2**0.5, tied=False),
    }  # fmt: skip
    return layer, x, outputs.numpy(), attention.numpy(), arguments


@pytest.mark.parametrize("standardize", [False, True])
def test_outputs_of_a_layer_of_torch_are_learnt(standardize):
    _, x, y, attention, arguments = torch_outputs()
    x = x * 2 + 1 if standardize else x  # the same tokens in other units
    layer = ga.GampAttention(1e-6, fit_intercept=True, n_starts=2, standardize=standardize, **arguments).fit(x, y)
    assert layer.result_.converged
    assert layer.score(x, y) > 1 - 1e-5
    error, _ = layer.test_error(x, y)
    assert error == pytest.approx(np.mean((layer.predict(x) - y) ** 2))
    heads = layer.head_attention(x)
    assert heads.shape == attention.shape
    np.testing.assert_allclose(layer.attention(x), heads.mean(axis=1))
    off = min(np.abs(heads - attention).max(), np.abs(heads[:, ::-1] - attention).max())
    assert off < 0.05
    assert layer.intercept_.shape == (12,)
    copy = pickle.loads(pickle.dumps(layer))
    np.testing.assert_array_equal(copy.predict(x), layer.predict(x))


def test_leave_one_out_of_a_layer_with_values_has_the_units_of_its_errors():
    model = ga.value_model(values=1, tau=[0, 0], score_noise=0.3, lam=0.3)
    data = ga.sample(model, d=20, alpha=6.0, seed=0)
    layer = ga.GampAttention(0.3, value_rank=1, n_starts=2).fit(data.tokens, data.targets)
    loo = layer.leave_one_out(refits=0)
    assert loo.in_training == pytest.approx(layer.test_error(data.tokens, data.targets)[0])
    assert loo.test_error > loo.in_training


def test_without_scikit_learn_the_error_names_the_package_to_install():
    code = """
import sys
sys.modules["sklearn"] = None
import gamp_attention as ga
from gamp_attention import *
assert "GampAttention" in dir(ga) and "GampAttention" not in globals()
try:
    ga.GampAttention
except ImportError as error:
    print(error)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "estimators need scikit-learn 1.6 or later: pip install 'gamp-attention[sklearn]'\n"


def test_a_layer_equals_inference_from_its_data_and_result(sampled, fitted):
    data, model = sampled, fitted
    given = ga.Dataset(data.tokens, data.outputs, data.positions)
    assert np.array_equal(model.leave_one_out().errors, ga.leave_one_out(given, model.result_).errors)
    assert np.array_equal(model.debias().weights, ga.debias(given, model.result_).weights)
    lams = [0.003, 0.03, 0.3]
    path, other = model.regularization_path(lams), ga.regularization_path(given, lams)
    assert np.allclose(path.test_error, other.test_error)


def test_errors_of_standardized_layers_are_in_the_units_of_the_outputs(sampled):
    data = sampled
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


def test_inference_after_pickling_and_errors_without_data(fitted):
    model, restored = fitted, pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(restored.leave_one_out().errors, model.leave_one_out().errors)
    tokens = restored.data_.tokens
    del restored.data_
    assert restored.predict(tokens).shape == tokens.shape
    for estimator in (ga.GampAttention(), restored, clone(restored)):
        for call in (estimator.leave_one_out, estimator.debias, lambda: estimator.regularization_path([1.0])):  # noqa: B023
            with pytest.raises(NotFittedError, match="data_: needs the training data"):
                call()
