"""scikit-learn's own checks of estimators."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

import gamp_attention as ga


class Lifted(ga.GampAttention):
    """The estimator on rows (n, p), made into sentences of the row and its reverse."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = tags.regressor_tags.poor_score = True
        tags.target_tags.single_output, tags.target_tags.multi_output = True, False
        return tags

    @staticmethod
    def lifted(X):
        return np.stack([X, X[:, ::-1]], axis=1)

    def fit(self, X, y, sample_weight=None):
        X, y = validate_data(self, X, y, y_numeric=True)
        sentences = self.lifted(X)
        return super().fit(sentences, sentences[:, ::-1] + y[:, None, None], sample_weight)

    def predict(self, X):
        check_is_fitted(self)
        return super().predict(self.lifted(validate_data(self, X, reset=False))).mean(axis=(1, 2))

    score = ga.GampRegressor.score


@parametrize_with_checks([ga.GampRegressor(), ga.GampClassifier(), Lifted(n_starts=2)])
def test_rows(estimator, check):
    check(estimator)


def test_rows_are_refused_by_the_layer():
    """scikit-learn generates no checks for input of three axes; `Lifted` is checked instead."""
    rows = np.random.default_rng(0).standard_normal((20, 5))
    with pytest.raises(ValueError, match=r"tokens: needs shape \(n, L, d\), got 'shape \(20, 5\)'"):
        ga.GampAttention().fit(rows, rows)
    assert not ga.GampAttention().__sklearn_tags__().input_tags.two_d_array
