"""The purely positional baseline: a linear layer y = W x with one trainable L × L matrix W.

`linear_baseline` computes W and the test error in the limit d → ∞; `fit_linear_baseline` fits W to data by ridge
regression, and computes the test error at the dimension of the data. Test errors are smooth Gaussian averages over the
teacher's fields.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.numerics import ignore_float_errors
from gamp_attention._core.seeds import generator
from gamp_attention.baselines.gaussian_average import (
    FIRST_POINTS,
    MIN_RTOL,
    N_REPLICAS,
    ROUNDING,
    Integrand,
    gaussian_average,
)
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.models.model import Model, require_attention
from gamp_attention.models.teachers import Teacher
from gamp_attention.results import Ended, Status


@dataclass(frozen=True, eq=False)
class LinearBaseline(Ended):
    """Weights and test error of the linear layer in the limit d → ∞, at any sample complexity.

    Errors are half-widths of confidence intervals with a coverage of at least 95 %.

    Attributes
    ----------
    weights, weights_error : (L, L) Ŵ = E T[y] of eq. (19), and the error of each entry.
    test_error, test_error_error : ε_lin = (1/L) E Tr[(T − Ŵ) ρ (T − Ŵ)ᵀ] of eq. (20), and its error.
    status : CONVERGED, or INACCURATE if the requested accuracy was not reached within `max_points`.
    """

    weights: np.ndarray
    weights_error: np.ndarray
    test_error: float
    test_error_error: float
    status: Status


@ignore_float_errors
def linear_baseline(
    model: Model, *, rtol: float = 1e-6, max_points: int = 1 << 21, seed: int | np.random.Generator = 0
) -> LinearBaseline:
    """Compute asymptotic weights and test error of the linear layer y = W x trained on the same task.

    Eq. :eq:`baseline`.

    Parameters
    ----------
    model : model with an attention layer as student.
    rtol : requested error of Ŵ, relative to its largest entry, and of ε_lin, relative to itself; in [1e-10, 0.1]. It is
        reached for up to about five fields (L times the teacher's rank); for many fields about 1e-4, in some seconds.
    max_points : maximum number of points of one average, at least 8192.
    seed : an integer or a numpy Generator; used only if there are many fields.

    Returns
    -------
    LinearBaseline

    Raises
    ------
    TypeError : if `model` is not a model of attention, or an argument has the wrong type.
    ValueError : if `rtol` is outside [1e-10, 0.1], `max_points` is below 8192, or `seed` is negative.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> base = ga.linear_baseline(ga.paper_model(omega=0.3))
    >>> base.status.value, round(base.test_error, 7), base.weights.round(4).tolist()
    ('converged', 0.0019714, [[0.5699, 0.4301], [0.4301, 0.5699]])
    """
    model = require_attention(model)
    integrand = _BaselineIntegrand(model)
    values, errors, status = gaussian_average(integrand, *require_accuracy(rtol, max_points), generator(seed))
    shape = (model.n_tokens, model.n_tokens)
    return LinearBaseline(
        values[:-1].reshape(shape), errors[:-1].reshape(shape), float(values[-1]), float(errors[-1]), status
    )


def require_accuracy(rtol: Any, max_points: Any) -> tuple[float, int]:
    """Return the requested accuracy of an average and the bound on its points, after checking both."""
    min_points = N_REPLICAS * FIRST_POINTS
    rtol = check.real("rtol", rtol, low=MIN_RTOL, high=0.1)
    return rtol, check.integer("max_points", max_points, low=min_points)


class WhitenedTeacher:
    """Teacher's target T[y] as a function of independent standard Gaussian coordinates ξ, one per nonzero variance."""

    def __init__(self, teacher: Teacher, rho: np.ndarray, shift: np.ndarray) -> None:
        """Covariances rho (L, t, t) and means (L, t) of the fields of each token."""
        self.teacher, self.shape, self.shift = teacher, rho.shape[:2], shift
        self.even = teacher.even and not shift.any()
        spectrum, vectors = np.linalg.eigh(rho)
        is_nonzero = spectrum > 1e-14 * spectrum.max()
        self.token = np.nonzero(is_nonzero)[0]  # token of each coordinate
        self.dim = len(self.token)
        self.variance = spectrum[is_nonzero]
        self.direction = vectors.transpose(0, 2, 1)[is_nonzero]  # (dim, t)
        self._map = np.zeros((self.dim, *self.shape))
        self._map[np.arange(self.dim), self.token] = np.sqrt(self.variance)[:, None] * self.direction

    def targets(self, white: np.ndarray) -> np.ndarray:
        """Return T[y] (N, L, L) at points (N, dim)."""
        fields = white[:, : self.dim] @ self._map.reshape(self.dim, self.shape[0] * self.shape[1])
        return self.teacher(fields.reshape(-1, *self.shape) + self.shift)


class _BaselineIntegrand(Integrand):
    """Integrand for Ŵ and ε_lin: averages of T and T², minus T at zero fields to avoid cancellation.

    In mixtures Ŵ averages over all patterns of classes: column l weights each pattern by its probability times tr Σ_l.
    """

    def __init__(self, model: Model) -> None:
        L = model.n_tokens
        self.parts = [
            (p * part.coordinates.trace, WhitenedTeacher(part.teacher, part.coordinates.rho, part.teacher_shift))
            for p, _, part in model.components
        ]
        self.trace = sum((trace for trace, _ in self.parts), np.zeros(L))
        self.dim = max(fields.dim for _, fields in self.parts)
        self.even = all(fields.even for _, fields in self.parts)
        self.centre = model.teacher(np.zeros((L, model.teacher_rank))).ravel()
        self.blocks = (slice(0, L * L), slice(L * L, L * L + 1))
        self._weight = np.tile(self.trace, L) / L
        self._noise = model.score_noise**2 * float(self.trace.sum())

    def __call__(self, white: np.ndarray) -> np.ndarray:
        L, total = len(self.trace), np.zeros((len(white), len(self.centre) + 1))
        for trace, fields in self.parts:
            D = fields.targets(white).reshape(len(white), -1) - self.centre
            total[:, :-1] += np.tile(trace / self.trace, L) * D
            total[:, -1] += D**2 @ np.tile(trace, L) / L
        return total

    def results(self, means: np.ndarray) -> np.ndarray:
        """Return Ŵ, flattened, and ε_lin."""
        error = means[-1] - self._weight @ means[:-1] ** 2
        return np.append(self.centre + means[:-1], max(error, 0.0) + self._noise)

    def rounding(self, results: np.ndarray) -> np.ndarray:
        largest = np.abs(results[:-1]).max()
        error = np.sqrt(results[-1] * self.trace.max()) * largest + results[-1]
        return ROUNDING * np.append(np.full(len(results) - 1, largest), error)


@dataclass(frozen=True, eq=False)
class LinearFit(Ended):
    """Linear layer fitted to data of finite d.

    Attributes
    ----------
    weights : (L, L) minimiser W of the risk of eq. (18).
    train_loss : that risk divided by d; tends to α L ε_lin / 2.
    test_error, test_error_error : E‖y − W x‖_F²/(dL) over new samples of the same teacher at this d, and its numerical
        error, a half-width with a coverage of at least 95 %. There is no sampling error: given Q*, the expectation is
        an average over the teacher's fields. NaN for your arrays, whose distribution is unknown.
    status : CONVERGED, or INACCURATE if the requested accuracy of the test error was not reached within `max_points`.
    """

    weights: np.ndarray
    train_loss: float
    test_error: float
    test_error_error: float
    status: Status


@ignore_float_errors
def fit_linear_baseline(
    data: Dataset,
    lam: float = 1e-4,
    *,
    rtol: float = 1e-6,
    max_points: int = 1 << 21,
    seed: int | np.random.Generator = 0,
) -> LinearFit:
    """Fit the linear layer of equations (17) and (18) to data by ridge regression.

    The layer is f_W(x) = W x and sees the tokens without their positions. W minimises

        R(W) = Σ_μ ‖y^μ − W x^μ‖_F²/(2d) + (λ/2)‖W‖_F².

    This risk is normalised as in eq. (3): the sum over samples is of order d, so the penalty, of order one, vanishes
    as 1/d. It is the loss of the authors' published program, which uses λ = 1e-4. A layer acting on x + p would differ
    by O(1/d), because ‖p‖ is of order one.

    Parameters
    ----------
    data : samples with outputs, drawn from a model or built from your arrays.
    lam : ridge λ > 0 of the linear layer, independent of the penalty of the attention layer.
    rtol, max_points, seed : accuracy of the test error, see `linear_baseline`.

    Returns
    -------
    LinearFit

    Raises
    ------
    TypeError : if `data` is not a Dataset or has labels instead of outputs, or an argument has the wrong type.
    ValueError : if `lam` is not positive, `rtol` is outside [1e-10, 0.1], `max_points` is below 8192, or `seed` is
        negative.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> fit = ga.fit_linear_baseline(ga.sample(ga.paper_model(), d=400, alpha=1.5, seed=0))
    >>> fit.weights.shape, 0.0017 < fit.test_error < 0.0023
    ((2, 2), True)
    """
    if require_dataset(data).is_labelled:
        raise check.fail("data", data, "samples with outputs, not labels", TypeError)
    lam = check.real("lam", lam, low=0, strict=True)
    rtol, max_points = require_accuracy(rtol, max_points)
    rng = generator(seed)
    L, d, tokens, outputs = data.n_tokens, data.dim, np.asarray(data.tokens), data.outputs

    def chunks(size: int = 1000) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for k in range(0, len(tokens), size):
            yield tokens[k : k + size].astype(float), outputs[k : k + size]

    normal, cross = lam * np.eye(L), np.zeros((L, L))
    for x, y in chunks():
        x_t = x.transpose(0, 2, 1)
        normal += (x @ x_t).sum(axis=0) / d
        cross += (y @ x_t).sum(axis=0) / d
    # `solve` fails here: next to large collinear tokens λ is lost to rounding. The least-squares solution of minimum
    # norm is the limit λ → 0
    W = np.linalg.lstsq(normal, cross.T)[0].T
    square = sum(float(np.sum((y - W @ x) ** 2)) for x, y in chunks())
    train_loss = (square / (2 * d) + 0.5 * lam * float(np.sum(W**2))) / d
    if data.model is None or data.Q_star is None:
        return LinearFit(W, train_loss, np.nan, np.nan, Status.CONVERGED)
    integrand = _TestErrorIntegrand(data, W)
    values, errors, status = gaussian_average(integrand, rtol, max_points, rng)
    return LinearFit(W, train_loss, float(values[0]), float(errors[0]), status)


class _TestErrorIntegrand(Integrand):
    """Test error E‖y − W x‖²/(dL) of an instance; in mixtures averaged over the patterns of classes."""

    def __init__(self, data: Dataset, W: np.ndarray) -> None:
        assert data.model is not None
        self.parts = [
            (probability, _PatternTestError(data, sources, W)) for probability, sources, _ in data.model.components
        ]
        self.dim = max(part.dim for _, part in self.parts)
        self.even = all(part.fields.even for _, part in self.parts)

    def __call__(self, white: np.ndarray) -> np.ndarray:
        return sum((probability * part(white) for probability, part in self.parts), np.zeros((len(white), 1)))

    def rounding(self, results: np.ndarray) -> np.ndarray:
        return np.max([part.rounding(results) for _, part in self.parts], axis=0)


class _PatternTestError:
    """Test error E‖y − W x‖²/(dL) for fixed sources of the tokens, as a function of the teacher's fields.

    Given the fields, the tokens are Gaussian. With u_l = Q*ᵀ(x_l − μ_l)/√d = Σ_a ξ_a s_a v_a, summed over the
    coordinates a of token l, E[x_l | ξ] = μ_l + Σ_a κ_a ξ_a with κ_a = Σ_l Q* v_a/(√d s_a). So
    G_jk = Σ_ab ξ_a ξ_b κ_a·κ_b/d + δ_jk (tr Σ_j/d − Σ_a ‖κ_a‖²/d) is the mean of x xᵀ/d, in which μ counts as a κ with
    ξ = 1.
    """

    def __init__(self, data: Dataset, sources: np.ndarray, W: np.ndarray) -> None:
        assert data.model is not None
        assert data.Q_star is not None
        teacher, Q_star, spectra = data.model.teacher, data.Q_star, data.spectra[sources]
        mu = data.source_means[sources] - data.positions
        d = len(Q_star)
        full = np.broadcast_to(spectra, (len(spectra), d))
        rho = np.einsum("ld,ds,dt->lst", full, Q_star, Q_star, optimize=True) / d
        self.fields = fields = WhitenedTeacher(teacher, rho, mu @ Q_star / np.sqrt(d))
        kappa = full[fields.token] * (fields.direction @ Q_star.T) / np.sqrt(d * fields.variance)[:, None]
        self.unexplained = full.mean(axis=1) - np.bincount(fields.token, np.sum(kappa**2, axis=1) / d, len(full))
        self.dim, self.W, self.token = fields.dim, W, fields.token
        if mu.any():
            kappa, self.token = np.concatenate([kappa, mu]), np.append(fields.token, np.arange(len(mu)))
        self.overlap = kappa @ kappa.T / d
        self._noise = data.model.score_noise**2 * float(full.mean(axis=1).sum() + np.sum(mu**2) / d)

    def __call__(self, white: np.ndarray) -> np.ndarray:
        difference = self.fields.targets(white) - self.W
        white = np.concatenate([white[:, : self.dim], np.ones((len(white), len(self.token) - self.dim))], axis=1)
        along = difference[:, :, self.token] * white[:, None, :]
        value = np.sum((along @ self.overlap) * along, axis=(1, 2)) + (difference**2 @ self.unexplained).sum(axis=1)
        return value[:, None] / len(self.W) + self._noise

    def rounding(self, results: np.ndarray) -> np.ndarray:
        scale = max(self.unexplained.max(), 0.0) * max(1.0, np.abs(self.W).max()) ** 2
        return ROUNDING * (results + np.sqrt(np.maximum(results, 0) * scale))
