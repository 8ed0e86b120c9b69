"""Generalized linear models of rows as estimators of scikit-learn: regression with any loss, and classification."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from gamp_attention._core import check
from gamp_attention._core.display import count_noun
from gamp_attention.data.dataset import ZERO_VARIANCE, LabelledDataset
from gamp_attention.data.tolerances import scale_tolerance
from gamp_attention.estimators.training import InferenceMixin, require_sample_weight, train, without_zeros
from gamp_attention.experiments.inference.debias import DebiasedWeights
from gamp_attention.experiments.inference.leave_one_out import LeaveOneOut
from gamp_attention.gamp.convex_start import can_start, newton_start
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import report_minimum
from gamp_attention.losses.attention import softmax_rows
from gamp_attention.losses.glm import LogisticLoss, MultinomialLoss, PhaseRetrievalLoss, SquaredLoss
from gamp_attention.models.glm import require_loss
from gamp_attention.penalties.base import Penalty
from gamp_attention.penalties.standard import Ridge, ScaledPenalty, require_penalty

LINKS = {PhaseRetrievalLoss: np.square}  # predictions of labels from fields; by default the fields
ROUNDING = 1e-12  # root mean square of a centered column, relative to its mean, below which the column is constant
BLOCK = 1 << 16  # number of entries of rows that stay in the cache while they are scaled
MAX_UNIT = 1e100  # size of numbers above which, or below the inverse of which, rows are divided by it
WEAK = 1e-3  # smallest unit of gradients and variances, relative to the largest: the curvature along a column
TIE = 1e-9  # curvature, in the same unit, along the common shift of all classes, along which the risk is flat


class LinearRows(InferenceMixin, BaseEstimator):
    """Linear model z = x·Q/√d + b of rows x that minimizes Σ_μ w_μ ℓ(z^μ; y^μ) + r(Q); b has no penalty.

    The problem is solved in columns that are centered, if there is an intercept, and divided by their root mean square,
    next to a column of ones for b. A penalty with a factor for each row (`ScaledPenalty`) makes this the problem of the
    original columns.
    """

    penalty: Penalty | None
    lam: float
    fit_intercept: bool
    tol: float
    max_iter: int
    result_: GampResult
    n_iter_: int

    def _fit_rows(
        self, X: np.ndarray, labels: np.ndarray, loss: Any, rank: int, init: Any, n_starts: int,
        weights: np.ndarray | None,
    ) -> None:  # fmt: skip
        """Train on rows X (n, d) with labels (n, P); set result_, data_, Q_, coef_ (rank, d) and intercept_ (rank,).

        `weights` (n,) are positive, or None if samples have equal weights.
        """
        intercept = check.flag("fit_intercept", self.fit_intercept)
        penalty = Ridge(check.real("lam", self.lam, low=0)) if self.penalty is None else require_penalty(self.penalty)
        columns, offset, scale = _scale_columns(X, intercept, weights)
        (n, wide), d = columns.shape, X.shape[1]
        self._mean, size = np.zeros(rank), 1.0
        if isinstance(loss, SquaredLoss):
            if intercept:
                self._mean = np.average(labels, axis=0, weights=weights)
                labels = labels - self._mean
            size = max(size, float(np.linalg.norm(labels) / np.sqrt(labels.size)))
        unit = np.sqrt(wide) * scale  # coef_ = Q/unit for the weights Q (wide, rank) of the columns
        factors = np.append(np.sqrt(d) / unit, np.zeros(wide - d))
        curvature = (n if weights is None else weights.sum()) / wide  # curvature along a column of a loss with ℓ'' = 1
        bare = type(penalty) is Ridge and penalty.lam == 0
        if bare:
            _require_determined(columns, labels, loss, intercept)
        flat = isinstance(loss, MultinomialLoss) & ((factors == 0) | bare)  # a common shift changes no probability
        data = LabelledDataset(
            columns, labels, loss, rank=rank, spectra=np.maximum(_sum_squares(columns, None) / n, ZERO_VARIANCE)[None],
            penalty=ScaledPenalty(penalty, factors, (WEAK * curvature, curvature), TIE * curvature * flat),
            sample_weight=weights,
        )  # fmt: skip
        check.integer("n_starts", n_starts, low=1)
        if loss.convex:
            init, n_starts = np.zeros((wide, rank)), 1
        elif not isinstance(init, str):
            init = check.array("init", init, (d, rank)) * (unit / np.sqrt(d))[:, None]
            init = np.concatenate([init, np.zeros((wide - d, rank))])
        self.data_, self._start, self._unit = data, (init, n_starts), unit
        self.result_, self.n_iter_ = train_rows(self, data, init, n_starts, size)
        self.coef_ = (self.result_.Q[:d] / unit[:, None]).T
        self.Q_ = np.sqrt(d) * self.coef_.T
        self.intercept_ = self._mean - self.coef_ @ offset
        if intercept:
            self.intercept_ = self.intercept_ + self.result_.Q[d] / np.sqrt(wide)

    def _convert_errors(self, loo: LeaveOneOut) -> LeaveOneOut:
        """Add the mean that was subtracted from the labels to the fields."""
        return replace(loo, fields=loo.fields + self._mean)

    def _convert_weights(self, weights: DebiasedWeights) -> DebiasedWeights:
        """Convert weights of the scaled columns to coefficients of the original columns."""
        d, unit = len(self._unit), self._unit[:, None]
        covariance = np.broadcast_to(weights.covariance, (self.data_.dim, *weights.covariance.shape[1:]))[:d]
        values, std = weights.weights[:d] / unit, weights.std[:d] / unit
        return replace(weights, weights=values, std=std, covariance=covariance / unit[:, None] ** 2)

    def _fields(self, X: Any) -> np.ndarray:
        """Return the fields z (n, rank)."""
        check_is_fitted(self)
        require_complete(X)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return X @ np.atleast_2d(self.coef_).T + self.intercept_


def require_complete(X: Any, y: Any = None) -> None:
    """Raise TypeError if rows or labels have masked entries, which scikit-learn would use."""
    check.require_unmasked("X", X)
    check.require_unmasked("y", y)


def _scale_columns(
    X: np.ndarray, intercept: bool, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return columns of mean square 1, and the offset (d,) and scale (d,) of the columns of X (n, d).

    With an intercept, columns are centered, and a column with entries 1 is appended. Constant columns become zero.
    """
    n, d = X.shape
    offset = np.average(X, axis=0, weights=weights) if intercept else np.zeros(d)
    columns = np.empty((n, d + intercept))
    columns[:, d:] = 1.0
    size = max(float(X.max()), -float(X.min()))
    size = 1.0 if 1 / MAX_UNIT < size < MAX_UNIT or size == 0 else size
    # blocks of rows that stay in the cache: each pass over all rows takes as long as a product with the rows
    step = max(1, BLOCK // d)
    blocks = [slice(first, first + step) for first in range(0, n, step)]
    squares = np.zeros(d)
    for block in blocks:
        centered = X[block] - offset
        if size != 1:
            centered /= size  # squares are within the range of doubles
        squares += _sum_squares(centered, None if weights is None else weights[block])
    relative = np.sqrt(squares / (n if weights is None else weights.sum()))
    constant = relative * size <= ROUNDING * np.abs(offset)  # only rounding errors remain of the column
    empty = constant | (relative == 0)
    scale = np.where(empty, 1.0, relative * size)
    factors = np.where(empty, 0.0, 1 / np.where(empty, 1.0, relative))
    for block in blocks:
        centered = X[block] - offset
        if size != 1:
            centered /= size
        np.multiply(centered, factors, out=columns[block, :d])
    return columns, offset, scale


def _sum_squares(columns: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the sum of squares (D,) of each column (n, D) over the rows, which may have weights (n,)."""
    if weights is None:
        return np.einsum("ni,ni->i", columns, columns)
    return np.einsum("n,ni,ni->i", weights, columns, columns)


def train_rows(
    model: LinearRows, data: LabelledDataset, init: Any, n_starts: int, size: float
) -> tuple[GampResult, int]:
    """Return the result of training, and the number of Newton steps and iterations of message passing.

    The tolerance is multiplied by `size`, because gradients of the squared loss, and their rounding errors, are
    proportional to the labels. For small labels, Newton's method has the tolerance that `run_gamp` derives from it. If
    Newton's method is faster, its minimum is verified to be a fixed point of message passing. If rounding errors end it
    before, message passing begins there.
    """
    tol, max_iter = size * check.real("tol", model.tol, low=0), check.integer("max_iter", model.max_iter, low=1)
    if not (tol > 0 and can_start(data)):
        result = train(model, data, init, n_starts, tol=tol)
        return result, result.n_iter
    newton_tol = scale_tolerance(data, tol)
    state, at, n_steps = newton_start(data, newton_tol, max_iter)
    if state is not None and at.gradient_norm <= newton_tol:
        result = report_minimum(data, state, at, newton_tol, max_iter)
    else:
        result = train(model, data, init if state is None else state, n_starts, tol=tol)
    message = f"Newton's method ended after {count_noun(n_steps, 'step')}. {result.message}"
    return replace(result, message=message), n_steps + result.n_iter


def _require_determined(columns: np.ndarray, labels: np.ndarray, loss: Any, intercept: bool) -> None:
    """Raise ValueError if data do not determine the weights of columns (n, D) without a penalty."""
    n, wide = columns.shape
    if n <= wide:
        needs = f"a value above 0 unless there are more samples than columns{' and an intercept' * intercept}, {wide}"
        raise check.fail_words("lam", f"0 for {count_noun(n, 'sample')}", needs)
    rank = int(np.linalg.matrix_rank(columns))
    if rank < wide:
        needs = f"a value above 0 unless columns{' and an intercept' * intercept} are linearly independent"
        raise check.fail_words("lam", f"0 for columns of rank {rank} of {wide}", needs)
    if isinstance(loss, (LogisticLoss, MultinomialLoss)) and _is_separable(columns, labels[:, 0], loss):
        needs = "a value above 0 for classes that a plane separates: without a penalty weights grow without bound"
        raise check.fail("lam", 0, needs)


def _is_separable(columns: np.ndarray, labels: np.ndarray, loss: Any) -> bool:
    """Return whether weights give margins >= 0, some of them > 0, by a linear program (Albert and Anderson, 1984)."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, vstack

    n, wide = columns.shape
    if isinstance(loss, LogisticLoss):
        margins: Any = labels[:, None] * columns
    else:
        k, parts = int(labels.max()) + 1, []
        for label in range(k):
            rows = columns[labels == label]
            for other in set(range(k)) - {label}:
                block = np.zeros((len(rows), k, wide))
                block[:, label], block[:, other] = rows, -rows
                parts.append(csr_array(block.reshape(len(rows), -1)))
        margins = vstack(parts)
    total = np.asarray(margins.sum(axis=0)).ravel()
    solution = linprog(-total, A_ub=-margins, b_ub=np.zeros(margins.shape[0]), bounds=(-1, 1), method="highs")
    return bool(-solution.fun > 1e-7 * n)


@dataclass(eq=False, repr=False)
class GampRegressor(RegressorMixin, LinearRows):
    """Linear regression of rows with any loss, convex or not, by message passing.

    Parameters
    ----------
    lam : ridge λ >= 0 of Σ_μ ℓ(z^μ; y^μ) + (λ/2)‖Q‖² with z = x·Q/√d + b; not used if a penalty is given. For the
        squared loss this is scikit-learn's Ridge(alpha=lam * d). 0 needs more samples than columns.
    loss : SquaredLoss() if None, PhaseRetrievalLoss() or a loss registered by `register_loss`.
    penalty : a penalty of Q other than Ridge(lam), for example ElasticNet(lam, l1).
    fit_intercept : whether there is an intercept b, which has no penalty. Intensities y = (x·w)² have none.
    init, n_starts : the first start, "spectral", "random" or weights (d, r), and the number of starts; see `run_gamp`.
        Not used for convex losses, because these have one minimum.
    tol, max_iter : tolerance of the gradient norm and maximum number of iterations, see `run_gamp`. For the squared
        loss the tolerance is in units of the root mean square of the labels (centered if there is an intercept) if this
        is above 1.
    random_state : seed of the random starts: an integer, a numpy generator, or None for a new seed at each fit.

    Attributes
    ----------
    coef_, intercept_ : Q/√d, (d,) or for several labels a row (k, d), and b.
    Q_ : (d, k) weights in the package's normalization.
    result_ : the `GampResult`, in columns that are centered and divided by their root mean square, the intercept last.
    data_ : the `LabelledDataset` of these columns, which `leave_one_out`, `regularization_path` and `debias` use. It is
        part of a pickled estimator; predictions still work after `del model.data_`.
    n_features_in_, n_iter_ : d, and the number of Newton steps plus iterations of message passing.

    Examples
    --------
    Phase retrieval, for which scikit-learn has no model:

    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> rng = np.random.default_rng(0)
    >>> X, w = rng.normal(size=(300, 50)), rng.normal(size=50) / 50**0.5
    >>> model = ga.GampRegressor(lam=1e-3, loss=ga.PhaseRetrievalLoss(), fit_intercept=False)
    >>> model.fit(X[:200], (X[:200] @ w) ** 2).score(X[200:], (X[200:] @ w) ** 2) > 0.99
    True
    """

    lam: float = 0.01
    _: KW_ONLY
    loss: Any = None
    penalty: Penalty | None = None
    fit_intercept: bool = True
    init: Any = "spectral"
    n_starts: int = 8
    tol: float = 1e-8
    max_iter: int = 10000
    random_state: Any = 0

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "GampRegressor":
        """Train on rows X (n, d) and labels y (n,), or (n, k) for the squared loss and losses of several labels.

        `sample_weight` (n,) multiplies the losses: a weight of 2 counts a sample twice, a weight of 0 leaves it out.

        Raises
        ------
        TypeError : if a parameter has the wrong type.
        ValueError : if shapes do not match, numbers are not finite, a parameter is out of range, or `lam` is 0 and the
            data do not determine the weights.
        """
        loss = SquaredLoss() if self.loss is None else require_loss(self.loss)  # type: ignore[call-arg]
        require_complete(X, y)
        rows, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True, multi_output=True)
        squared = isinstance(loss, SquaredLoss)
        if not squared and targets.ndim == 2 and targets.shape[1] == 1:
            targets = column_or_1d(targets, warn=True)
        labels = np.asarray(targets, dtype=float).reshape(len(targets), -1)
        rank = labels.shape[1] if squared else 1
        weights, rows, labels = without_zeros(require_sample_weight(sample_weight, rows), rows, labels)
        self._fit_rows(rows, labels, loss, rank, self.init, self.n_starts, weights)
        self._single = targets.ndim == 1 or not squared
        if self._single:
            self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return fields z, (n,) or (n, k); for phase retrieval intensities z²."""
        z = self._fields(X)
        z = z[:, 0] if self._single else z
        return LINKS[type(self.loss)](z) if type(self.loss) in LINKS else z

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = self.loss is None or isinstance(self.loss, SquaredLoss)
        return tags


@dataclass(eq=False, repr=False)
class GampClassifier(ClassifierMixin, LinearRows):
    """Logistic regression, multinomial for more than two classes, by message passing.

    Parameters
    ----------
    lam : ridge λ >= 0 of Σ_μ ℓ(z^μ; y^μ) + (λ/2)‖Q‖² with z = x·Q/√d + b; not used if a penalty is given. This is
        scikit-learn's LogisticRegression(C=1 / (lam * d)). 0 needs more samples than columns, and classes that no plane
        separates.
    penalty : a penalty of Q other than Ridge(lam), for example ElasticNet(lam, l1).
    fit_intercept : whether there is an intercept b, which has no penalty.
    tol, max_iter : tolerance of the gradient norm and maximum number of iterations, see `run_gamp`.
    random_state : not used, because the loss is convex; accepted because programs may set it.

    Attributes
    ----------
    classes_ : the labels, in order.
    coef_, intercept_ : Q/√d and b, one row (1, d) for two classes, else a row for each class.
    Q_ : (d, 1) or (d, classes) weights in the package's normalization.
    result_, data_, n_features_in_, n_iter_ : as for `GampRegressor`.

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

    lam: float = 0.01
    _: KW_ONLY
    penalty: Penalty | None = None
    fit_intercept: bool = True
    tol: float = 1e-8
    max_iter: int = 10000
    random_state: Any = 0

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "GampClassifier":
        """Train on rows X (n, d) and classes y (n,), numbers or words.

        `sample_weight` (n,) multiplies the losses: a weight of 2 counts a sample twice, a weight of 0 leaves it out.

        Raises
        ------
        TypeError : if a parameter has the wrong type.
        ValueError : if shapes do not match, numbers are not finite, there is one class only, a parameter is out of
            range, or `lam` is 0 and the data do not determine the weights, as for classes that a plane separates.
        """
        require_complete(X, y)
        rows, classes = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(classes)
        weights, rows, classes = without_zeros(require_sample_weight(sample_weight, rows), rows, classes)
        self.classes_, number = np.unique(classes, return_inverse=True)
        k = len(self.classes_)
        if k < 2:
            raise ValueError(f"y: needs at least two classes, got one class: {self.classes_.tolist()}")
        logistic: tuple[Any, int, Any] = LogisticLoss(), 1, 2 * number - 1  # type: ignore[call-arg]
        loss, rank, labels = logistic if k == 2 else (MultinomialLoss(), k, number)  # type: ignore[call-arg]
        self._fit_rows(rows, labels.astype(float)[:, None], loss, rank, None, 1, weights)
        return self

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Return fields z: (n,) for the second of two classes, or (n, classes)."""
        z = self._fields(X)
        return z[:, 0] if len(self.classes_) == 2 else z

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probabilities (n, classes) of all classes."""
        z = self._fields(X)
        return softmax_rows(np.column_stack([np.zeros(len(z)), z]) if len(self.classes_) == 2 else z)

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the logarithms (n, classes) of the probabilities of all classes, also of very small ones."""
        z = self._fields(X)
        return log_softmax(np.column_stack([np.zeros(len(z)), z]) if len(self.classes_) == 2 else z, axis=1)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the most probable class of each row, (n,)."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]
