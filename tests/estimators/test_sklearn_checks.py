"""The checks that scikit-learn provides for estimators."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import gamp_attention as ga


@parametrize_with_checks([ga.GampRegressor(), ga.GampClassifier()])
def test_estimators_of_rows_pass_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_two_dimensional_input_raises_a_named_error_for_the_layer():
    """scikit-learn provides no checks for input with three axes."""
    rows, tokens = np.random.default_rng(0).standard_normal((20, 5)), np.ones((20, 2, 5))
    with pytest.raises(ValueError, match=r"tokens: needs shape \(n, L, d\), got shape \(20, 5\)"):
        ga.GampAttention().fit(rows, rows)
    with pytest.raises(ValueError, match=r"outputs: needs shape \(n, L, d\), got shape \(20, 5\)"):
        ga.GampAttention().fit(tokens, rows)
    assert not ga.GampAttention().__sklearn_tags__().input_tags.two_d_array
