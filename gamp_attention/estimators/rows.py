"""Generalised linear models of rows as estimators: regression with any registered loss, and classification."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from gamp_attention._core import check
from gamp_attention.data.labelled import LabelledDataset
from gamp_attention.estimators.training import train
from gamp_attention.losses.dot_product import softmax_rows
from gamp_attention.losses.glm import LogisticLoss, MultinomialLoss, PhaseRetrievalLoss, SquaredLoss
from gamp_attention.models.glm import require_loss

LINKS = {
    PhaseRetrievalLoss: np.square
}  # from fields to what labels are compared with; the fields themselves for others


class LinearRows(BaseEstimator):
    """Fields z = x·w + b of rows x, with w = Q/√d, under Σ_μ ℓ(z^μ; y^μ) + r(Q).

    Rows are taken less their mean where there is an intercept. Labels of the squared loss are too, and then b has no
    penalty. For other losses b is the weight of a column of √d, with the penalty of the other weights, r(b).
    """

    penalty: Any
    lam: float
    fit_intercept: bool

    def _fit_rows(self, X: np.ndarray, labels: np.ndarray, loss: Any, rank: int, init: Any, n_starts: int) -> None:
        """Train on rows X (n, d) with labels (n, P), leaving result_, Q_, coef_ (rank, d) and intercept_ (rank,)."""
        centred = check.flag("fit_intercept", self.fit_intercept)
        d, offset, mean = X.shape[1], np.zeros(X.shape[1]), np.zeros(rank)
        column = centred and not isinstance(loss, SquaredLoss)
        if centred:
            offset = X.mean(axis=0)
            X = X - offset
            if not column:
                mean = labels.mean(axis=0)
                labels = labels - mean
        if column:  # fields are divided by the root of the number of columns
            X = np.column_stack([X * np.sqrt((d + 1) / d), np.full(len(X), np.sqrt(d + 1))])
        spectra = np.maximum(np.mean(X**2, axis=0), 1e-100)[None]  # columns may have any size
        data = LabelledDataset(X, labels, loss, self.lam, rank=rank, spectra=spectra, penalty=self.penalty)
        if loss.convex:
            init, n_starts = np.zeros((data.dim, rank)), 1
        elif column and not isinstance(init, str):
            init = np.concatenate([check.array("init", init, (d, rank)), np.zeros((1, rank))])
        self.result_ = train(self, data, init, n_starts)
        self.Q_, self.n_iter_ = self.result_.Q[:d], self.result_.n_iter
        self.coef_ = self.Q_.T / np.sqrt(d)
        self.intercept_ = mean - self.coef_ @ offset + (self.result_.Q[d] if column else 0.0)

    def _fields(self, X: Any) -> np.ndarray:
        """Fields z (n, rank)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return X @ np.atleast_2d(self.coef_).T + self.intercept_


class GampRegressor(RegressorMixin, LinearRows):
    """Linear regression of rows with any loss, convex or not, by message passing.

    Parameters
    ----------
    lam : ridge λ > 0 of Σ_μ ℓ(z^μ; y^μ) + (λ/2)‖Q‖² with z = x·Q/√d + b; not used where a penalty is given. For the
        squared loss this is scikit-learn's Ridge(alpha=lam * d).
    loss : SquaredLoss() if None, PhaseRetrievalLoss() or one registered by `register_loss`.
    penalty : another penalty than Ridge(lam), e.g. ElasticNet(lam, l1), of Q.
    fit_intercept : whether there is a b, by default. Columns are then centred. With the squared loss b has no penalty,
        with others that of a weight, which is small beside the sum of n losses. Intensities y = (x·w)² have none.
    init, n_starts : the first start, "spectral", "random" or weights (d, r), and how many starts there are; see
        `run_gamp`. Not used where the loss is convex, which has one minimum.
    tol, max_iter : bounds on the gradient norm and on iterations, see `run_gamp`.
    random_state : seed of the random starts: an integer, a generator of numpy, or None for another one at each fit.

    Attributes
    ----------
    coef_, intercept_ : Q/√d, (d,) or for several labels a row (k, d), and b.
    Q_ : (d, k) weights in the package's normalisation.
    result_ : the `GampResult`.
    n_features_in_, n_iter_ : d, and iterations of message passing.

    Examples
    --------
    Phase retrieval, which scikit-learn has no model for:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> rng = np.random.default_rng(0)
    >>> X, w = rng.normal(size=(300, 50)), rng.normal(size=50) / 50**0.5
    >>> model = ga.GampRegressor(lam=1e-3, loss=ga.PhaseRetrievalLoss(), fit_intercept=False)
    >>> model.fit(X[:200], (X[:200] @ w) ** 2).score(X[200:], (X[200:] @ w) ** 2) > 0.99
    True
    """

    def __init__(
        self,
        lam: float = 0.01,
        *,
        loss: Any = None,
        penalty: Any = None,
        fit_intercept: bool = True,
        init: Any = "spectral",
        n_starts: int = 8,
        tol: float = 1e-8,
        max_iter: int = 10000,
        random_state: Any = 0,
    ) -> None:
        self.lam = lam
        self.loss = loss
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.init = init
        self.n_starts = n_starts
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "GampRegressor":
        """Train on rows X (n, d) and labels y (n,), or (n, k) for the squared loss and losses of several labels."""
        loss = SquaredLoss() if self.loss is None else require_loss(self.loss)  # type: ignore[call-arg]
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, multi_output=True)
        squared = isinstance(loss, SquaredLoss)
        if not squared and y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        labels = np.asarray(y, dtype=float).reshape(len(y), -1)
        rank = labels.shape[1] if squared else 1
        self._fit_rows(X, labels, loss, rank, self.init, self.n_starts)
        self._single = y.ndim == 1 or not squared
        if self._single:
            self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Fields z, (n,) or (n, k); for phase retrieval intensities z²."""
        z = self._fields(X)
        z = z[:, 0] if self._single else z
        return LINKS[type(self.loss)](z) if type(self.loss) in LINKS else z

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self.loss is None or isinstance(self.loss, SquaredLoss)
        return tags


class GampClassifier(ClassifierMixin, LinearRows):
    """Logistic regression, multinomial for more than two classes, by message passing.

    Parameters
    ----------
    lam : ridge λ > 0 of Σ_μ ℓ(z^μ; y^μ) + (λ/2)‖Q‖² with z = x·Q/√d + b; not used where a penalty is given. This is
        scikit-learn's LogisticRegression(C=1 / (lam * d)) but for a penalty on b.
    penalty : another penalty than Ridge(lam), e.g. ElasticNet(lam, l1), of Q and b.
    fit_intercept : whether there is a b, with the penalty of a weight, which is small beside the sum of n losses.
        Columns are then centred.
    tol, max_iter : bounds on the gradient norm and on iterations, see `run_gamp`.
    random_state : not used, as the loss is convex; for the sake of programs that set it.

    Attributes
    ----------
    classes_ : the labels, in order.
    coef_, intercept_ : Q/√d and b, one row (1, d) for two classes, else a row for each class.
    Q_ : (d, 1) or (d, classes) weights in the package's normalisation.
    result_ : the `GampResult`.
    n_features_in_, n_iter_ : d, and iterations of message passing.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 20))
    >>> y = np.where(X[:, 0] + 0.5 * rng.normal(size=300) > 0, "yes", "no")
    >>> ga.GampClassifier(lam=0.1).fit(X[:200], y[:200]).score(X[200:], y[200:]) > 0.8
    True
    """

    def __init__(
        self,
        lam: float = 0.01,
        *,
        penalty: Any = None,
        fit_intercept: bool = True,
        tol: float = 1e-8,
        max_iter: int = 10000,
        random_state: Any = 0,
    ) -> None:
        self.lam = lam
        self.penalty = penalty
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "GampClassifier":
        """Train on rows X (n, d) and classes y (n,), numbers or words."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, number = np.unique(y, return_inverse=True)
        k = len(self.classes_)
        if k < 2:
            raise ValueError(f"y: needs at least two classes, got one class: {self.classes_.tolist()}")
        logistic: tuple[Any, int, Any] = LogisticLoss(), 1, 2 * number - 1  # type: ignore[call-arg]
        loss, rank, labels = logistic if k == 2 else (MultinomialLoss(), k, number)  # type: ignore[call-arg]
        self._fit_rows(X, labels.astype(float)[:, None], loss, rank, None, 1)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Fields z: (n,) of the second of two classes, or (n, classes)."""
        z = self._fields(X)
        return z[:, 0] if len(self.classes_) == 2 else z

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities (n, classes) that the fields stand for."""
        z = self._fields(X)
        return softmax_rows(np.column_stack([np.zeros(len(z)), z]) if len(self.classes_) == 2 else z)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, (n,)."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]
