"""The purely positional baseline, a linear layer with one trainable L × L matrix: eq. (17)-(20), and its fit to data.

In the limit d → ∞ and, given the teacher, at finite d, all is a smooth Gaussian average over the teacher's fields.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.data import Dataset, require_dataset
from gamp_attention.gaussian_average import FINEST, LEAST_POINTS, ROUNDING, gaussian_average
from gamp_attention.models import Model, require_attention
from gamp_attention.results import Status
from gamp_attention.teachers import Teacher

CHUNK = 1000  # sentences held at a time


@dataclass(frozen=True, eq=False)
class LinearBaseline:
    """The learnt matrix and its test error in the limit d → ∞, at any sample complexity.

    Errors are half-widths that hold in 95 % of cases at least.

    Attributes
    ----------
    weights, weights_error : (L, L) Ŵ = E T[y] of eq. (19), and the error of each entry.
    test_error, test_error_error : ε_lin = (1/L) E Tr[(T − Ŵ) ρ (T − Ŵ)ᵀ] of eq. (20), and its error.
    status : CONVERGED, or INACCURATE where the budget did not allow the accuracy asked for.
    """

    weights: np.ndarray
    weights_error: np.ndarray
    test_error: float
    test_error_error: float
    status: Status

    @property
    def converged(self) -> bool:
        """Whether the accuracy asked for was reached."""
        return self.status.converged


@dataclass(frozen=True, eq=False)
class LinearFit:
    """A linear layer fitted to data of finite d.

    Attributes
    ----------
    weights : (L, L) minimiser W of the risk of eq. (18).
    train_loss : that risk over d; tends to α L ε_lin / 2.
    test_error, test_error_error : E‖y − W x‖_F²/(dL) over fresh sentences of the same teacher at this d, and the
        half-width, holding in 95 % of cases at least, of its numerical error. There is no sampling error: given Q*,
        the average is one over the teacher's fields. NaN for own arrays, which have no law to draw from.
    status : CONVERGED, or INACCURATE where the budget did not allow the accuracy asked of the test error.
    """

    weights: np.ndarray
    train_loss: float
    test_error: float
    test_error_error: float
    status: Status

    @property
    def converged(self) -> bool:
        """Whether the accuracy asked for was reached."""
        return self.status.converged


def linear_baseline(model: Model, *, rtol: float = 1e-6, max_points: int = 1 << 21, seed: Any = 0) -> LinearBaseline:
    """Asymptotic weights and test error of the linear layer y = W x trained on the same task.

    Eq. :eq:`baseline`.

    Parameters
    ----------
    model : the problem.
    rtol : error asked for of Ŵ, relative to its largest entry, and of ε_lin, relative to itself; at least 1e-10.
        Reached for up to about five fields, L times the teacher's rank; 1e-4 or so for many, in some seconds.
    max_points : bound on the points of one average.
    seed : an integer or a numpy Generator; used only where fields are many.

    Returns
    -------
    LinearBaseline

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> base = ga.linear_baseline(ga.paper_model(omega=0.3))
    >>> base.status.value, round(base.test_error, 7), base.weights.round(4).tolist()
    ('converged', 0.0019714, [[0.5699, 0.4301], [0.4301, 0.5699]])
    """
    require_attention(model)
    integrand = _BaselineIntegrand(model)
    values, errors, status = gaussian_average(integrand, *_accuracy(rtol, max_points), check.generator(seed))
    shape = (model.n_tokens, model.n_tokens)
    return LinearBaseline(
        values[:-1].reshape(shape), errors[:-1].reshape(shape), float(values[-1]), float(errors[-1]), status
    )


def fit_linear_baseline(
    data: Dataset, lam: float = 1e-4, *, rtol: float = 1e-6, max_points: int = 1 << 21, seed: Any = 0
) -> LinearFit:
    """The linear layer fitted to data by ridge regression, eq. (17), (18).

    The layer is f_W(x) = W x and sees the tokens without their positions. W minimises

        R(W) = Σ_μ ‖y^μ − W x^μ‖_F²/(2d) + (λ/2)‖W‖_F²,

    normalised as eq. (3): a sum over samples, so of order d, against which the penalty, of order one, vanishes
    as 1/d. This is the loss of the authors' published program, where λ = 1e-4. A layer that saw x + p would differ
    by O(1/d), as ‖p‖ is of order one.

    Parameters
    ----------
    data : samples, or own arrays.
    lam : ridge λ > 0, apart from that of the attention layer.
    rtol, max_points, seed : of the test error, see `linear_baseline`.

    Returns
    -------
    LinearFit

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> from gamp_attention.linear_baseline import fit_linear_baseline
    >>> fit = fit_linear_baseline(ga.sample(ga.paper_model(), d=400, alpha=1.5, seed=0))
    >>> fit.weights.shape, 0.0017 < fit.test_error < 0.0023
    ((2, 2), True)
    """
    require_dataset(data)
    lam = check.real("lam", lam, low=0, strict=True)
    rtol, max_points = _accuracy(rtol, max_points)
    rng = check.generator(seed)
    L, d, x, y = data.n_tokens, data.dim, np.asarray(data.tokens), data.outputs
    x_t = x.transpose(0, 2, 1)
    normal = (x @ x_t).sum(axis=0) / d + lam * np.eye(L)
    # not `solve`: the penalty is lost to rounding beside large collinear tokens, and the least W is its limit
    W = np.linalg.lstsq(normal, (x @ y.transpose(0, 2, 1)).sum(axis=0) / d)[0].T
    square = sum(float(np.sum((y[k : k + CHUNK] - W @ x[k : k + CHUNK]) ** 2)) for k in range(0, len(x), CHUNK))
    train_loss = (square / (2 * d) + 0.5 * lam * float(np.sum(W**2))) / d
    if data.model is None or data.Q_star is None:
        return LinearFit(W, train_loss, np.nan, np.nan, Status.CONVERGED)
    integrand = _FreshSentences(data, W)
    values, errors, status = gaussian_average(integrand, rtol, max_points, rng)
    return LinearFit(W, train_loss, float(values[0]), float(errors[0]), status)


def _accuracy(rtol: Any, max_points: Any) -> tuple[float, int]:
    return check.real("rtol", rtol, low=FINEST, high=0.1), check.integer("max_points", max_points, low=LEAST_POINTS)


class _Fields:
    """Teacher fields y as affine functions of as few white coordinates ξ as have variance."""

    def __init__(self, teacher: Teacher, rho: np.ndarray, shift: np.ndarray) -> None:
        """Covariances rho (L, t, t) and means (L, t) of the fields of each token."""
        self.teacher, self.shape, self.shift = teacher, rho.shape[:2], shift
        self.even = teacher.even and not shift.any()
        spectrum, vectors = np.linalg.eigh(rho)
        kept = spectrum > 1e-14 * spectrum.max()
        self.token = np.nonzero(kept)[0]  # of each coordinate
        self.dim = len(self.token)
        self.variance = spectrum[kept]
        self.direction = vectors.transpose(0, 2, 1)[kept]  # (dim, t)
        self._map = np.zeros((self.dim, *self.shape))
        self._map[np.arange(self.dim), self.token] = np.sqrt(self.variance)[:, None] * self.direction

    @classmethod
    def of(cls, model: Model) -> "_Fields":
        """The fields of samples of a kind."""
        zero = np.zeros((model.n_tokens, model.teacher_rank))
        return cls(model.teacher, model.coordinates.rho, getattr(model, "shift", zero))

    def targets(self, white: np.ndarray) -> np.ndarray:
        """T[y] at points (N, dim), of shape (N, L, L)."""
        fields = white[:, : self.dim] @ self._map.reshape(self.dim, self.shape[0] * self.shape[1])
        return self.teacher(fields.reshape(-1, *self.shape) + self.shift)


class _BaselineIntegrand:
    """Ŵ and ε_lin from averages of T and T², both taken about T at zero fields, against cancellation.

    In mixtures Ŵ is that of all patterns of classes together: its column l weights each by its share and its tr Σ_l.
    """

    def __init__(self, model: Model) -> None:
        L = model.n_tokens
        self.parts = [
            (channel.share * channel.model.coordinates.trace, _Fields.of(channel.model)) for channel in model.channels
        ]
        self.trace = sum((trace for trace, _ in self.parts), np.zeros(L))
        self.dim = max(fields.dim for _, fields in self.parts)
        self.even = all(fields.even for _, fields in self.parts)
        self.centre = model.teacher(np.zeros((L, model.teacher_rank))).ravel()
        self.blocks: tuple[slice, ...] = (slice(0, L * L), slice(L * L, L * L + 1))
        self._weight = np.tile(self.trace, L) / L

    def __call__(self, white: np.ndarray) -> np.ndarray:
        L, total = len(self.trace), np.zeros((len(white), len(self.centre) + 1))
        for trace, fields in self.parts:
            D = fields.targets(white).reshape(len(white), -1) - self.centre
            total[:, :-1] += np.tile(trace / self.trace, L) * D
            total[:, -1] += D**2 @ np.tile(trace, L) / L
        return total

    def results(self, means: np.ndarray) -> np.ndarray:
        """Ŵ, flat, and ε_lin."""
        error = means[-1] - self._weight @ means[:-1] ** 2
        return np.append(self.centre + means[:-1], max(error, 0.0))

    def rounding(self, results: np.ndarray) -> np.ndarray:
        """Errors by rounding."""
        largest = np.abs(results[:-1]).max()
        error = np.sqrt(results[-1] * self.trace.max()) * largest + results[-1]
        return ROUNDING * np.append(np.full(len(results) - 1, largest), error)


class _FreshSentences:
    """E‖y − W x‖²/(dL) of an instance, in mixtures the mean over patterns of classes."""

    def __init__(self, data: Dataset, W: np.ndarray) -> None:
        assert data.model is not None
        self.parts = [(share, _FreshSentence(data, sources, W)) for share, sources, _ in data.model.channels]
        self.dim = max(part.dim for _, part in self.parts)
        self.even = all(part.fields.even for _, part in self.parts)
        self.blocks: tuple[slice, ...] = (slice(0, 1),)

    def __call__(self, white: np.ndarray) -> np.ndarray:
        return sum((share * part(white) for share, part in self.parts), np.zeros((len(white), 1)))

    def results(self, means: np.ndarray) -> np.ndarray:
        """The test error."""
        return means

    def rounding(self, results: np.ndarray) -> np.ndarray:
        """Error by rounding."""
        return np.max([part.rounding(results) for _, part in self.parts], axis=0)


class _FreshSentence:
    """E‖y − W x‖²/(dL) given the sources of the tokens: a sentence with given fields is Gaussian.

    With u_l = Q*ᵀ(x_l − μ_l)/√d = Σ_a ξ_a s_a v_a, over the coordinates a of token l, E[x_l | ξ] = μ_l + Σ_a κ_a ξ_a
    with κ_a = Σ_l Q* v_a/(√d s_a). So G_jk = Σ_ab ξ_a ξ_b κ_a·κ_b/d + δ_jk (tr Σ_j/d − Σ_a ‖κ_a‖²/d) is the mean of
    x xᵀ/d, where μ counts as a κ with ξ = 1.
    """

    def __init__(self, data: Dataset, sources: np.ndarray, W: np.ndarray) -> None:
        assert data.model is not None
        assert data.Q_star is not None
        teacher, Q_star, spectra = data.model.teacher, data.Q_star, data.spectra[sources]
        mu = data.source_means[sources] - data.positions
        d = len(Q_star)
        full = np.broadcast_to(spectra, (len(spectra), d))
        rho = np.einsum("ld,ds,dt->lst", full, Q_star, Q_star, optimize=True) / d
        self.fields = fields = _Fields(teacher, rho, mu @ Q_star / np.sqrt(d))
        kappa = full[fields.token] * (fields.direction @ Q_star.T) / np.sqrt(d * fields.variance)[:, None]
        self.rest = full.mean(axis=1) - np.bincount(fields.token, np.sum(kappa**2, axis=1) / d, len(full))
        self.dim, self.W, self.token = fields.dim, W, fields.token
        if mu.any():
            kappa, self.token = np.concatenate([kappa, mu]), np.append(fields.token, np.arange(len(mu)))
        self.overlap = kappa @ kappa.T / d

    def __call__(self, white: np.ndarray) -> np.ndarray:
        difference = self.fields.targets(white) - self.W
        white = np.concatenate([white[:, : self.dim], np.ones((len(white), len(self.token) - self.dim))], axis=1)
        along = difference[:, :, self.token] * white[:, None, :]
        value = np.sum((along @ self.overlap) * along, axis=(1, 2)) + (difference**2 @ self.rest).sum(axis=1)
        return value[:, None] / len(self.W)

    def rounding(self, results: np.ndarray) -> np.ndarray:
        """Error by rounding."""
        scale = max(self.rest.max(), 0.0) * max(1.0, np.abs(self.W).max()) ** 2
        return ROUNDING * (results + np.sqrt(np.maximum(results, 0) * scale))
