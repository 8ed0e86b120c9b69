"""Attention layer as an estimator of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted

from gamp_attention._tools import check
from gamp_attention._tools.display import count_noun
from gamp_attention._tools.statistics import mean_and_error
from gamp_attention.extensions.inference.debias import DebiasedWeights, debias
from gamp_attention.extensions.inference.leave_one_out import LeaveOneOut, leave_one_out
from gamp_attention.extensions.inference.paths import RegularizationPath, regularization_path
from gamp_attention.extensions.sequence.sequence import TracedLayer, value_model
from gamp_attention.extensions.train.train import TrainResult, train
from gamp_attention.extensions.train.user_arrays import build_dataset, standard_units
from gamp_attention.problem.dataset import Dataset, LabelledDataset
from gamp_attention.problem.layer import Units, layer_of, require_tokens
from gamp_attention.problem.losses.heads import require_heads, with_heads
from gamp_attention.problem.penalties.base import Penalty

NEEDS_DATA = "data_: needs the training data, which a %(name)s has after `fit` unless they were deleted, got none"


@dataclass(eq=False, repr=False)
class GampAttention(RegressorMixin, BaseEstimator):
    """Dot-product attention layer with low-rank weights, trained by message passing.

    By default, the layer is f(x) = S[z](x + p) with fields z = (x + p) Q/√d and outputs (n, L, d), where S is the mean
    of the attention of its heads. With `value_rank`, heads have value matrices, f(x) = Σ_h S_h[z] z_h R_h with the
    fields z_h of the values and a fixed read-out R, and outputs are (n, L, p).

    Parameters
    ----------
    lam : ridge λ > 0 of the risk R(Q) = Σ_μ ‖y − f_Q(x)‖²/(2d) + (λ/2)‖Q‖², or with `value_rank` of
        Σ_μ ‖y − f_Q(x)‖²/2 + (λ/2)‖Q‖²; 0.01 if None, which is necessary with `penalty`.
    rank : number of columns of the queries of each head (of queries and keys together if they are separate).
    positions : (L, d) positional encodings that the layer adds to the tokens. If None, nothing is added, because the
        tokens are assumed to include their positions; message passing estimates them by the mean token at each of the
        L indices.
    student : the attention map; DotProductAttention() if None.
    penalty : a penalty other than Ridge(lam), for example ElasticNet(lam, l1).
    standardize : whether to shift each of the d coordinates of tokens and outputs by its mean over all tokens, and to
        divide it by its standard deviation. λ and the minimized errors then have these units; predictions have the
        units of the outputs.
    init, n_starts : the first start, "spectral", "random", "positional" or weights (d, r), and the number of starts;
        see `train`. The result with the lowest training loss is selected; `result_.starts` lists all starts.
    survey : survey propagation, see `train`: "auto" continues from the lowest minimum with a survey where this is
        likely to help; True, or a Parisi parameter, begins with surveys from each start, which takes
        longer and often finds a lower training loss; False makes no surveys.
    tol, max_iter : tolerance of the gradient norm and maximum number of iterations, see `train`.
    random_state : seed of the random starts: an integer, a numpy generator, or None for a new seed at each fit.
    heads : number of heads H.
    value_rank : number of columns v of the value matrix of each head; None for layers without value matrices. Only
        small layers can be compiled: with one head and v = 4, for example, 4 tokens and p = 20 outputs.
    readout : (H v, p) read-out R; if None, the values of the heads are added, so that p = v.
    fit_intercept : with `value_rank`, whether to train biases of queries, keys and values, without a penalty.

    Attributes
    ----------
    Q_ : (d, r) weights; for standardized tokens if `standardize` is True. The columns are the queries of all heads,
        their keys if these are separate, and their values.
    intercept_ : (r,) biases of the columns; zeros if `fit_intercept` is False.
    positions_ : (L, d) the given positions, or the mean token at each index, minus `center_`.
    center_, scale_ : (d,) offset and scale of standardized coordinates; 0 and 1 if `standardize` is False.
    result_ : the `TrainResult`.
    data_ : the `Dataset` of the training, which `leave_one_out`, `regularization_path` and `debias` use. It refers to
        the arrays given to `fit`, or to their standardized copies, and is part of a pickled estimator; predictions
        still work after `del model.data_`.
    n_features_in_, n_tokens_in_, n_iter_ : d, L, and the number of iterations of message passing.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> tokens = np.random.default_rng(0).normal(size=(300, 2, 50))
    >>> mixed = 0.8 * tokens + 0.2 * tokens[:, ::-1]  # each token, plus a fraction of the other token
    >>> layer = ga.GampAttention(lam=0.01).fit(tokens[:200], mixed[:200])
    >>> layer.predict(tokens[200:]).shape, layer.score(tokens[200:], mixed[200:]) > 0.5
    ((100, 2, 50), True)
    """

    lam: float | None = None
    rank: int = 1
    positions: ArrayLike | None = None
    _: KW_ONLY
    student: Any = None
    penalty: Penalty | None = None
    standardize: bool = False
    init: str | ArrayLike = "spectral"
    n_starts: int = 8
    survey: bool | str | float = "auto"
    tol: float = 1e-8
    max_iter: int = 10000
    random_state: Any = 0
    heads: int = 1
    value_rank: int | None = None
    readout: ArrayLike | None = None
    fit_intercept: bool = False

    def fit(self, X: ArrayLike, y: ArrayLike) -> GampAttention:
        """Train on tokens X (n, L, d) and outputs y (n, L, d), or (n, L, p) with `value_rank`.

        If the run does not converge, there is a `ConvergenceWarning`, and the best weights of the run are used.

        Raises
        ------
        TypeError : if an argument or a parameter has the wrong type.
        ValueError : if shapes do not match, numbers are not finite, or a parameter is out of range.
        """
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None: outputs (n, L, d)")
        with check.rename(tokens="X", n_tokens="X", outputs="y", labels="y", values="value_rank", seed="random_state"):
            return self._fit_arrays(self._check_array("X", X), self._check_array("y", y))

    def _fit_arrays(self, tokens: Any, outputs: Any) -> GampAttention:
        """Train on tokens and outputs with three axes."""
        check.flag("standardize", self.standardize)
        heads = require_heads(None if self.heads == 1 else self.heads, self.student)
        rank, biased = check.integer("rank", self.rank, low=1), check.flag("fit_intercept", self.fit_intercept)
        if self.value_rank is not None:
            return self._fit_values(tokens, outputs, heads, rank)
        if biased:
            raise check.fail("fit_intercept", biased, "False unless `value_rank` is given")
        if self.readout is not None:
            raise check.fail("readout", self.readout, "None unless `value_rank` is given")
        data, units = build_dataset(
            tokens, outputs, self.positions, self.standardize, lam=self.lam, rank=heads * rank,
            student=with_heads(self.student, heads), penalty=self.penalty,
        )  # fmt: skip
        trained = self._train(data, units)
        self.Q_ = trained.Q
        self.positions_ = data.source_means * units.scale
        self.intercept_ = np.zeros(data.rank)
        self.result_ = replace(trained, layer=layer_of(data, self.Q_, units))  # predicts in the units of the outputs
        return self

    def _train(self, data: Dataset, units: Units) -> TrainResult:
        """Run message passing on data in the given units, set attributes of the result, and return it."""
        self.data_, self._start = data, (self.init, self.n_starts)
        trained = train(
            data, self.init, "exact", tol=self.tol, max_iter=self.max_iter, seed=choose_seed(self.random_state),
            n_starts=self.n_starts, survey=self.survey,
        )  # fmt: skip
        if not trained.converged:
            warnings.warn(f"{type(self).__name__}: {trained.message}", ConvergenceWarning, stacklevel=4)
        self.n_iter_, self.center_, self.scale_ = trained.n_iter, units.center, units.scale
        self.n_tokens_in_, self.n_features_in_ = data.n_tokens, len(units.scale)
        return trained

    def _fit_values(self, tokens: Any, outputs: np.ndarray, heads: int, rank: int) -> GampAttention:
        """Train a layer with value matrices on outputs (n, L, p)."""
        n, L, d = tokens.shape
        assert self.value_rank is not None
        model = value_model(
            L, rank, rank, student=self.student, heads=heads, values=self.value_rank, readout=self.readout,
            tau=np.zeros(L),
        )  # fmt: skip
        outputs = check.array("outputs", outputs, (n, *model.target_shape))
        units = standard_units(tokens) if self.standardize else Units.raw(d)
        positions = np.zeros((L, d)) if self.positions is None else check.array("positions", self.positions, (L, d))
        data = LabelledDataset(
            units.standardize(tokens), outputs, model.student, self.lam, rank=model.rank, penalty=self.penalty,
            positions=positions / units.scale, intercept=self.fit_intercept,
        )  # fmt: skip
        trained = self._train(data, units)
        self.intercept_, self.positions_ = data.intercepts(trained.Q), positions
        self.Q_ = trained.Q[:d] * np.sqrt(d / data.dim)  # an intercept is one more coordinate of the data
        layer = TracedLayer(model, self.Q_, positions, units, self.intercept_)
        self.result_ = replace(trained, layer=layer)
        return self

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the outputs (n, L, d), or (n, L, p) with `value_rank`, of the layer for tokens X (n, L, d)."""
        return np.asarray(self._fitted.outputs(self._tokens(X)))

    def attention(self, X: ArrayLike) -> np.ndarray:
        """Return the attention matrices (n, L, L) of the layer, the mean of its heads, for tokens X (n, L, d)."""
        return self._fitted.attention(self._tokens(X))

    def head_attention(self, X: ArrayLike) -> np.ndarray:
        """Return the attention matrices (n, H, L, L) of the heads for tokens X (n, L, d)."""
        return self._fitted.head_attention(self._tokens(X))

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return R² = 1 − Σ‖y − f(x)‖²/Σ‖y − ȳ‖², with the mean ȳ (L, d) of the outputs y; 1 is best.

        `test_error` returns the same error in the units of ε_g.
        """
        predicted = self.predict(X)
        outputs = self._outputs(y)
        if len(outputs) != len(predicted):
            needs = f"the same number of samples as X, {len(predicted)}"
            raise check.fail_words("y", count_noun(len(outputs), "sample"), needs)
        flat = outputs.reshape(len(outputs), -1), predicted.reshape(len(predicted), -1)
        return float(r2_score(*flat, multioutput="variance_weighted"))

    def test_error(self, X: ArrayLike, y: ArrayLike) -> tuple[float, float]:
        """Return the mean of ‖y − f(x)‖²/(dL) over samples, and its standard error; unseen samples estimate ε_g.

        With `value_rank`, outputs have p numbers in place of d.
        """
        return mean_and_error(self._fitted.errors(self._tokens(X), self._outputs(y)))

    def leave_one_out(self, **options: Any) -> LeaveOneOut:
        """Estimate the test error from the training data: each sample is predicted by a fit without it.

        Parameters
        ----------
        options : keyword arguments of `gamp_attention.leave_one_out`, which is applied to `data_` and `result_`.

        Returns
        -------
        LeaveOneOut. `errors` are ‖y − f(x)‖²/(dL) in the units of the outputs, as in `test_error`.

        Raises
        ------
        NotFittedError : before `fit`.
        """
        check_is_fitted(self, "data_", msg=NEEDS_DATA)
        loo = leave_one_out(self.data_, self.result_, **options)
        if self.value_rank is not None:  # losses are ‖y − f(x)‖²/2
            unit = 2 / (self.n_tokens_in_ * self._fitted.width)
            errors, in_training = unit * loo.errors, unit * loo.in_training
        elif (self.scale_ == 1).all():
            return loo
        else:
            arrays = [part * self.scale_ + self.center_ for part in (self.data_.tokens, self.data_.outputs)]
            errors = self._fitted.errors(*arrays, self.data_.student(loo.fields))
            in_training = float(self._fitted.errors(*arrays).mean())
            # as the ratios of errors differ between the units, so does their spread
            unit = float(errors.std() / loo.errors.std()) if loo.errors.std() > 0 else 1.0
        return replace(
            loo, errors=errors, in_training=in_training, test_error=float(errors.mean()),
            test_error_error=unit * loo.test_error_error, covariance=unit**2 * loo.covariance,
            selection=unit * loo.selection,
        )  # fmt: skip

    def debias(self) -> DebiasedWeights:
        """Compute weights without the bias of the penalty, with standard deviations and intervals.

        Returns
        -------
        DebiasedWeights in the units of `Q_`, see `gamp_attention.debias`.

        Raises
        ------
        NotFittedError : before `fit`.
        """
        check_is_fitted(self, "data_", msg=NEEDS_DATA)
        return debias(self.data_, self.result_)

    def regularization_path(self, lams: Sequence[float] | np.ndarray, **options: Any) -> RegularizationPath:
        """Train at each value of λ on the data of the fit, and estimate each test error by leave-one-out.

        Parameters
        ----------
        lams : (k,) values of `lam`, or of the λ of the penalty if there is one.
        options : keyword arguments of `gamp_attention.regularization_path`.

        Returns
        -------
        RegularizationPath with the errors of `leave_one_out`, except that the errors of a standardized layer are in the
        standard units of the fit, in which all coordinates count equally. The estimator does not change: train it with
        the chosen value by `set_params(lam=...)` and `fit`.

        Raises
        ------
        NotFittedError : before `fit`.
        """
        check_is_fitted(self, "data_", msg=NEEDS_DATA)
        init, n_starts = self._start
        options = {"n_starts": n_starts, "seed": choose_seed(self.random_state), **options}
        return regularization_path(self.data_, lams, init, **options)

    @property
    def _fitted(self) -> Any:
        check_is_fitted(self)
        return self.result_.layer

    def _check_array(self, name: str, value: Any) -> Any:
        """Return an array with three axes; errors have the messages of scikit-learn."""
        if check.ndim(name, value) != 3 and not hasattr(value, "toarray"):  # scikit-learn refuses sparse arrays
            raise check.fail_words(name, f"shape {np.shape(value)}", "shape (n, L, d)")
        value = check.read_array(value)
        check.require_unmasked(name, value)
        if value.dtype.kind in "US":  # scikit-learn converts text that looks like numbers
            raise check.fail_words(name, f"an array of {value.dtype}", "a real array of shape (n, L, d)", TypeError)
        options = {"ensure_2d": False, "allow_nd": True, "input_name": name, "estimator": self}
        return check_array(value, dtype=(float, np.float32), **options)

    def _tokens(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return np.asarray(require_tokens("X", self._check_array("X", X), self.n_tokens_in_, self.n_features_in_))

    def _outputs(self, value: Any) -> np.ndarray:
        """Return outputs (n, L, d), or (n, L, p) with value matrices."""
        width = self._fitted.width if self.value_rank is not None else self.n_features_in_
        return np.asarray(require_tokens("y", self._check_array("y", value), self.n_tokens_in_, width))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.target_tags.multi_output, tags.target_tags.single_output = True, False
        return tags


def choose_seed(random_state: Any) -> int:
    """Return the seed of a run: an integer as it is, or a random integer from a generator, or from numpy for None."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return int(check_random_state(random_state).randint(2**31 - 1))
    return random_state
