"""scikit-learn's own checks of estimators."""

import re
from pathlib import Path

import numpy as np
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data

import gamp_attention as ga

ROWS = "hands in rows (n, p), and sentences are (n, L, d)"
# docs/own_data.md has this list
NEED_ROWS = [
    "check_fit_score_takes_y", "check_estimators_overwrite_params", "check_dont_overwrite_parameters",
    "check_estimators_fit_returns_self", "check_readonly_memmap_input", "check_n_features_in_after_fitting",
    "check_positive_only_tag_during_fit", "check_estimators_dtypes", "check_dtype_object",
    "check_pipeline_consistency", "check_estimators_nan_inf", "check_estimators_pickle",
    "check_f_contiguous_array_estimator", "check_regressors_train", "check_regressor_data_not_an_array",
    "check_regressor_multioutput", "check_regressors_no_decision_function", "check_regressors_int",
    "check_non_transformer_estimators_n_iter", "check_methods_sample_order_invariance",
    "check_methods_subset_invariance", "check_fit2d_1sample", "check_fit2d_1feature", "check_dict_unchanged",
    "check_fit_idempotent", "check_fit_check_is_fitted", "check_n_features_in", "check_fit2d_predict1d",
    "check_array_api_input",
]  # fmt: skip


class Sentences(ga.GampAttention):
    """The estimator itself, which says that it takes rows: scikit-learn generates no checks for what does not."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


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

    def fit(self, X, y):
        X, y = validate_data(self, X, y, y_numeric=True)
        sentences = self.lifted(X)
        return super().fit(sentences, sentences[:, ::-1] + y[:, None, None])

    def predict(self, X):
        check_is_fitted(self)
        return super().predict(self.lifted(validate_data(self, X, reset=False))).mean(axis=(1, 2))

    score = ga.GampRegressor.score


@parametrize_with_checks([ga.GampRegressor(), ga.GampClassifier(), Lifted(n_starts=2)])
def test_rows(estimator, check):
    check(estimator)


@parametrize_with_checks(
    [Sentences()], expected_failed_checks=lambda _: dict.fromkeys(NEED_ROWS, ROWS), xfail_strict=True
)
def test_sentences(estimator, check):
    check(estimator)


def test_the_list_has_only_checks_that_there_are():
    known = {getattr(check, "func", check).__name__ for _, check in estimator_checks_generator(Sentences())}
    assert set(NEED_ROWS) < known
    page = (Path(__file__).parents[2] / "docs" / "own_data.md").read_text()
    assert re.findall(r"`(check_\w+)`", page) == NEED_ROWS
