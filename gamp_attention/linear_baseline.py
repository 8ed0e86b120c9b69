"""The purely positional baseline, a linear layer with one trainable L × L matrix: eq. (17)-(20), and its fit to data.

In the limit d → ∞ and, given the teacher, at finite d, all is a smooth Gaussian average over the teacher's fields.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.data import Dataset
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
    if not isinstance(data, Dataset):
        raise check.fail("data", data, "a gamp_attention.Dataset", TypeError)
    lam = check.real("lam", lam, low=0, strict=True)
    rtol, max_points = _accuracy(rtol, max_points)
    rng = check.generator(seed)
    L, d, x, y = data.n_tokens, data.dim, data.tokens, data.outputs
    x_t = x.transpose(0, 2, 1)
    normal = (x @ x_t).sum(axis=0) / d + lam * np.eye(L)
    # not `solve`: the penalty is lost to rounding beside large collinear tokens, and the least W is its limit
    W = np.linalg.lstsq(normal, (x @ y.transpose(0, 2, 1)).sum(axis=0) / d)[0].T
    square = sum(float(np.sum((y[k : k + CHUNK] - W @ x[k : k + CHUNK]) ** 2)) for k in range(0, len(x), CHUNK))
    train_loss = (square / (2 * d) + 0.5 * lam * float(np.sum(W**2))) / d
    if data.model is None or data.Q_star is None:
        return LinearFit(W, train_loss, np.nan, np.nan, Status.CONVERGED)
    integrand = _FreshSentence(data.model.teacher, data.Q_star, data.spectra, W)
    values, errors, status = gaussian_average(integrand, rtol, max_points, rng)
    return LinearFit(W, train_loss, float(values[0]), float(errors[0]), status)


def _accuracy(rtol: Any, max_points: Any) -> tuple[float, int]:
    return check.real("rtol", rtol, low=FINEST, high=0.1), check.integer("max_points", max_points, low=LEAST_POINTS)


class _Fields:
    """Teacher fields y as linear functions of as few white coordinates ξ as have variance."""

    def __init__(self, teacher: Teacher, rho: np.ndarray) -> None:
        """Covariances rho (L, t, t) of the fields of each token."""
        self.teacher, self.shape = teacher, rho.shape[:2]
        spectrum, vectors = np.linalg.eigh(rho)
        kept = spectrum > 1e-14 * spectrum.max()
        self.token = np.nonzero(kept)[0]  # of each coordinate
        self.dim = len(self.token)
        self.variance = spectrum[kept]
        self.direction = vectors.transpose(0, 2, 1)[kept]  # (dim, t)
        self._map = np.zeros((self.dim, *self.shape))
        self._map[np.arange(self.dim), self.token] = np.sqrt(self.variance)[:, None] * self.direction

    def targets(self, white: np.ndarray) -> np.ndarray:
        """T[y] at points (N, dim), of shape (N, L, L)."""
        fields = white @ self._map.reshape(self.dim, self.shape[0] * self.shape[1])
        return self.teacher(fields.reshape(-1, *self.shape))


class _BaselineIntegrand:
    """Ŵ and ε_lin from averages of T and T², both taken about T at zero fields, against cancellation."""

    def __init__(self, model: Model) -> None:
        L = model.n_tokens
        self.trace = model.coordinates.trace
        self.fields = _Fields(model.teacher, model.coordinates.rho)
        self.dim, self.even = self.fields.dim, model.teacher.even
        self.centre = model.teacher(np.zeros((L, model.teacher_rank))).ravel()
        self.blocks: tuple[slice, ...] = (slice(0, L * L), slice(L * L, L * L + 1))
        self._weight = np.tile(self.trace, L) / L

    def __call__(self, white: np.ndarray) -> np.ndarray:
        D = self.fields.targets(white).reshape(len(white), -1) - self.centre
        return np.concatenate([D, (D**2 @ self._weight)[:, None]], axis=1)

    def results(self, means: np.ndarray) -> np.ndarray:
        """Ŵ, flat, and ε_lin."""
        error = means[-1] - self._weight @ means[:-1] ** 2
        return np.append(self.centre + means[:-1], max(error, 0.0))

    def rounding(self, results: np.ndarray) -> np.ndarray:
        """Errors by rounding."""
        largest = np.abs(results[:-1]).max()
        error = np.sqrt(results[-1] * self.trace.max()) * largest + results[-1]
        return ROUNDING * np.append(np.full(len(results) - 1, largest), error)


class _FreshSentence:
    """E‖y − W x‖²/(dL) of an instance: given its fields a sentence is Gaussian, with x xᵀ/d averaging to G below.

    With u_l = Q*ᵀx_l/√d = Σ_a ξ_a s_a v_a, over the coordinates a of token l, E[x_l | ξ] = Σ_a κ_a ξ_a with
    κ_a = Σ_l Q* v_a/(√d s_a). So G_jk = Σ_ab ξ_a ξ_b κ_a·κ_b/d + δ_jk (tr Σ_j/d − Σ_a ‖κ_a‖²/d).
    """

    def __init__(self, teacher: Teacher, Q_star: np.ndarray, spectra: np.ndarray, W: np.ndarray) -> None:
        d = len(Q_star)
        full = np.broadcast_to(spectra, (len(spectra), d))
        self.fields = fields = _Fields(teacher, np.einsum("ld,ds,dt->lst", full, Q_star, Q_star, optimize=True) / d)
        kappa = full[fields.token] * (fields.direction @ Q_star.T) / np.sqrt(d * fields.variance)[:, None]
        self.overlap = kappa @ kappa.T / d
        self.rest = full.mean(axis=1) - np.bincount(fields.token, np.diag(self.overlap), len(full))
        self.dim, self.even = fields.dim, teacher.even
        self.W = W
        self.blocks: tuple[slice, ...] = (slice(0, 1),)

    def __call__(self, white: np.ndarray) -> np.ndarray:
        difference = self.fields.targets(white) - self.W
        along = difference[:, :, self.fields.token] * white[:, None, :]
        value = np.sum((along @ self.overlap) * along, axis=(1, 2)) + (difference**2 @ self.rest).sum(axis=1)
        return value[:, None] / len(self.W)

    def results(self, means: np.ndarray) -> np.ndarray:
        """The test error."""
        return means

    def rounding(self, results: np.ndarray) -> np.ndarray:
        """Error by rounding."""
        scale = max(self.rest.max(), 0.0) * max(1.0, np.abs(self.W).max()) ** 2
        return ROUNDING * (results + np.sqrt(np.maximum(results, 0) * scale))
