"""Sample weights: integers repeat samples, zeros exclude samples, and fits agree with scikit-learn."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import gamp_attention as ga

RNG = np.random.default_rng(1)
N, D = 90, 15
X = RNG.standard_normal((N, D)) * np.linspace(0.5, 3, D) + 1.0
Y = X @ RNG.standard_normal(D) / np.sqrt(D) + 0.5 * RNG.standard_normal(N)
COUNTS = RNG.integers(0, 4, N)
REAL = RNG.uniform(0.1, 3, N)
ROWS = np.repeat(np.arange(N), COUNTS)
CLASSES = (Y > 0.5).astype(int)


@pytest.mark.parametrize("penalty", [ga.Ridge(0.3), ga.ElasticNet(0.1, 0.5)])
@pytest.mark.parametrize(("labels", "loss"), [(Y, ga.SquaredLoss()), (2.0 * CLASSES - 1, ga.LogisticLoss())])
def test_integer_weights_repeat_rows(penalty, labels, loss):
    used, options = COUNTS > 0, {"penalty": penalty, "intercept": True}
    weighted = ga.LabelledDataset(X[used], labels[used], loss, sample_weight=COUNTS[used], **options)
    runs = [
        ga.run_gamp(data, "random") for data in (weighted, ga.LabelledDataset(X[ROWS], labels[ROWS], loss, **options))
    ]
    assert all(run.converged for run in runs)
    assert np.allclose(runs[0].Q, runs[1].Q, rtol=0, atol=1e-6)


@pytest.mark.parametrize("intercept", [True, False])
def test_real_weights_agree_with_scikit_learn(intercept):
    data = ga.LabelledDataset(X, Y, ga.SquaredLoss(), 0.3, sample_weight=REAL, intercept=intercept)
    Q, alpha = ga.run_gamp(data, "random").Q[:D, 0] / np.sqrt(data.dim), 0.3 * data.dim
    expected = Ridge(alpha=alpha, fit_intercept=intercept).fit(X, Y, sample_weight=REAL)
    assert np.allclose(Q, expected.coef_, rtol=0, atol=1e-7)
    data = ga.LabelledDataset(X, 2.0 * CLASSES - 1, ga.LogisticLoss(), 0.3, sample_weight=REAL, intercept=intercept)
    expected = LogisticRegression(C=1 / alpha, fit_intercept=intercept, solver="newton-cholesky", tol=1e-12)
    Q = ga.run_gamp(data, "random").Q[:D, 0] / np.sqrt(data.dim)
    assert np.allclose(Q, expected.fit(X, CLASSES, sample_weight=REAL).coef_[0], rtol=0, atol=1e-6)


def test_integer_weights_repeat_samples_of_a_layer():
    data = ga.sample(ga.paper_model(sigma=0.8, omega=0.2), d=40, alpha=4.0, seed=0)
    tokens, outputs, counts = data.tokens, data.outputs, RNG.integers(0, 3, data.n_samples)
    rows = np.repeat(np.arange(data.n_samples), counts)
    for standardize in (False, True):
        layer = ga.GampAttention(positions=data.positions, standardize=standardize, init=data.Q_star, n_starts=1)
        weighted = layer.fit(tokens, outputs, counts)
        Q, scores = weighted.Q_, weighted.score(tokens, outputs, counts)
        repeated = layer.fit(tokens[rows], outputs[rows])
        assert np.allclose(Q, repeated.Q_, rtol=0, atol=1e-6)
        assert scores == pytest.approx(repeated.score(tokens[rows], outputs[rows]), rel=1e-6)


@pytest.mark.parametrize("weights", [np.ones(N - 1), -np.ones(N), np.zeros(N), np.full(N, np.nan), np.ones((N, 2))])
def test_bad_weights_raise_named_errors(weights):
    tokens = X.reshape(N, 3, 5)
    with pytest.raises(ValueError, match=r"[Ss]ample.?weight"):
        ga.GampAttention().fit(tokens, tokens, weights)
    with pytest.raises(ValueError, match="sample_weight"):
        ga.LabelledDataset(X, Y, ga.SquaredLoss(), sample_weight=weights)
