"""An attention layer as an estimator."""

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_array, check_is_fitted

from gamp_attention._core import check
from gamp_attention._core.numerics import mean_and_error
from gamp_attention.data.layer import Layer, build_dataset, checked_tokens
from gamp_attention.data.risk import risk_at
from gamp_attention.data.stores import token_blocks
from gamp_attention.estimators.training import PathMixin, checked_sample_weight, train, unweighted
from gamp_attention.experiments.inference.debias import DebiasedWeights, debias
from gamp_attention.experiments.inference.leave_one_out import LeaveOneOut, leave_one_out


class GampAttention(PathMixin, RegressorMixin, BaseEstimator):
    """A dot-product attention layer with low-rank weights, trained by message passing on sentences.

    Parameters
    ----------
    lam : ridge λ > 0 of the risk R(Q) = Σ_μ ‖y − f_Q(x)‖²/(2d) + (λ/2)‖Q‖²; not used where a penalty is given.
    rank : columns r of the weights Q.
    positions : (L, d) positional encodings that the layer adds to the tokens. If None, the tokens hold them already:
        none are added, and the means of the tokens at each place are taken for them where message passing needs them.
    student : the attention map, DotProductAttention() if None.
    penalty : another penalty than Ridge(lam), e.g. ElasticNet(lam, l1).
    standardise : take from each of the d coordinates of tokens and outputs the mean over all tokens, and divide by
        their standard deviation. λ and the errors that are minimised are then in these units; predictions are in
        those of the outputs. By default arrays are used as they are.
    init, n_starts : the first start, "spectral", "random", "positional" or weights (d, r), and how many starts there
        are; see `run_gamp`. The one of lowest training loss is kept, `result_.starts` tells of all.
    tol, max_iter : bounds on the gradient norm and on iterations, see `run_gamp`.
    random_state : seed of the random starts: an integer, a generator of numpy, or None for another one at each fit.

    Attributes
    ----------
    Q_ : (d, r) weights, of standardised tokens where these are.
    positions_ : (L, d) those given, or the means of the tokens at each place, less `center_` where standardised.
    center_, scale_ : (d,) what standardising subtracts and divides by; 0 and 1 where there is none.
    result_ : the `GampResult`.
    data_ : the `Dataset` that the layer was trained on, which `leave_one_out`, `regularization_path` and `debias` use:
        a reference to the arrays given to `fit`, or to their standardised copies. It is part of a pickled estimator;
        `del model.data_` before pickling leaves predictions as they are.
    n_features_in_, n_tokens_in_, n_iter_ : d, L, and iterations of message passing.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> tokens = np.random.default_rng(0).normal(size=(300, 2, 50))
    >>> alike = 0.8 * tokens + 0.2 * tokens[:, ::-1]  # each token, with some of the other one
    >>> layer = ga.GampAttention(lam=0.01).fit(tokens[:200], alike[:200])
    >>> layer.predict(tokens[200:]).shape, layer.score(tokens[200:], alike[200:]) > 0.5
    ((100, 2, 50), True)
    """

    def __init__(
        self,
        lam: float = 0.01,
        rank: int = 1,
        positions: Any = None,
        *,
        student: Any = None,
        penalty: Any = None,
        standardise: bool = False,
        init: Any = "spectral",
        n_starts: int = 8,
        tol: float = 1e-8,
        max_iter: int = 10000,
        random_state: Any = 0,
    ) -> None:
        self.lam = lam
        self.rank = rank
        self.positions = positions
        self.student = student
        self.penalty = penalty
        self.standardise = standardise
        self.init = init
        self.n_starts = n_starts
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "GampAttention":
        """Train on tokens X (n, L, d) and outputs y (n, L, d).

        `sample_weight` (n,) multiplies the losses: a weight of 2 counts a sample twice, a weight of 0 leaves it out.

        Raises TypeError or ValueError that name the argument, what it got and what it needs. A run that does not
        converge is told by a `ConvergenceWarning`, and its best weights are kept.
        """
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None: outputs (n, L, d)")
        check.flag("standardise", self.standardise)
        tokens, outputs = self._checked("tokens", X), self._checked("outputs", y)
        weights = checked_sample_weight(sample_weight, tokens)
        if weights is not None and outputs.shape == tokens.shape:
            tokens, outputs, weights = tokens[weights > 0], outputs[weights > 0], weights[weights > 0]
        data, units = build_dataset(
            tokens, outputs, self.positions, self.standardise,
            lam=self.lam, rank=self.rank, student=self.student, penalty=self.penalty, sample_weight=weights,
        )  # fmt: skip
        self.data_, self._start = data, (self.init, self.n_starts)
        self.result_ = train(self, data, *self._start)
        self.Q_, self.n_iter_ = self.result_.Q, self.result_.n_iter
        self.center_, self.scale_ = units.centre, units.scale
        self.n_tokens_in_, self.n_features_in_ = data.n_tokens, data.dim
        self.positions_ = data.source_means * units.scale
        self._layer = Layer(data.student, self.Q_, data.positions * units.scale, units)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Outputs (n, L, d) of the layer for tokens X (n, L, d)."""
        return self._fitted.outputs(self._tokens("X", X))

    def attention(self, X: Any) -> np.ndarray:
        """Attention matrices (n, L, L) of the layer for tokens X (n, L, d)."""
        return self._fitted.attention(self._tokens("X", X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² = 1 − Σ‖y − f(x)‖²/Σ‖y − ȳ‖², with the mean ȳ (L, d) of the outputs y; 1 is best.

        `test_error` is the same error in the units of ε_g.
        """
        outputs, found = self._tokens("y", y), self.predict(X)
        if len(outputs) != len(found):
            raise check.fail("y", f"{len(outputs)} samples", f"as many samples as X, {len(found)}")
        flat = outputs.reshape(len(outputs), -1), found.reshape(len(found), -1)
        return float(r2_score(*flat, sample_weight=sample_weight, multioutput="variance_weighted"))

    def test_error(self, X: Any, y: Any) -> tuple[float, float]:
        """Mean of ‖y − f(x)‖²/(dL) over samples, and its standard error; estimates ε_g, eq. (4), on unseen samples."""
        return mean_and_error(self._fitted.errors(self._tokens("X", X), self._tokens("y", y)))

    def leave_one_out(self, **options: Any) -> LeaveOneOut:
        """Estimate the test error from the training data, each sample being left out.

        Parameters
        ----------
        options : keyword arguments of `gamp_attention.leave_one_out`, which is applied to `data_` and `result_`.

        Returns
        -------
        LeaveOneOut with errors ‖y − f(x)‖²/(dL) in the units of the outputs, as of `test_error`. If samples have
        weights, its `test_error` is the weighted mean of the errors; a sample is left out with all of its weight.

        Raises
        ------
        NotFittedError : before `fit`.
        """
        check_is_fitted(self)
        data, weights = self.data_, self.data_.sample_weight
        loo = unweighted(leave_one_out(data, self.result_, **options), weights)
        if (self.scale_ == 1).all():
            return loo
        errors = self._errors_at(loo.fields)
        each = errors if weights is None else errors * weights / weights.mean()
        mean, error = mean_and_error(each)
        seen = np.average(self._errors_at(risk_at(data, self.result_.Q, "exact").z), weights=weights)
        return replace(
            loo, errors=errors, test_error=mean, test_error_error=error, in_training=float(seen), with_choice=np.nan
        )

    def debias(self) -> DebiasedWeights:
        """Return weights without the bias of the penalty, with standard deviations and intervals.

        Returns
        -------
        DebiasedWeights in the units of `Q_`: `gamp_attention.debias` of `data_` and `result_`.

        Raises
        ------
        NotFittedError : before `fit`.
        """
        check_is_fitted(self)
        return debias(self.data_, self.result_)

    def _errors_at(self, fields: np.ndarray) -> np.ndarray:
        """‖y − f(x)‖²/(dL) of the training samples (n,) with other fields (n, L, r), in the units of the outputs."""
        attention, outputs, errors = self.data_.student(fields), self.data_.outputs, []
        for rows, _, x in token_blocks(self.data_.tokens):
            off = (outputs[rows] - attention[rows] @ (x + self.data_.positions)) * self.scale_
            errors.append(np.mean(off**2, axis=(1, 2)))
        return np.concatenate(errors)

    @property
    def _fitted(self) -> Layer:
        check_is_fitted(self)
        return self._layer

    def _checked(self, name: str, value: Any) -> Any:
        """An array of three axes, refused in the words that scikit-learn has for other input."""
        value = check.plain(value)
        found = check_array(
            value, dtype=(float, np.float32), ensure_2d=False, allow_nd=True, input_name=name, estimator=self
        )
        if found.ndim != 3:
            raise check.fail(name, f"shape {found.shape}", "shape (n, L, d)")
        return found

    def _tokens(self, name: str, value: Any) -> np.ndarray:
        check_is_fitted(self)
        return np.asarray(checked_tokens(name, self._checked(name, value), self.n_tokens_in_, self.n_features_in_))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        return tags
