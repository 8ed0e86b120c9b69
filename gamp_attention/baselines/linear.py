"""The purely positional baseline in the limit d → ∞: a linear layer with one trainable L × L matrix W.

Its weights and its test error are smooth Gaussian averages over the teacher's fields.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention._core.overflow import quiet
from gamp_attention._core.seeds import generator
from gamp_attention.baselines.gaussian_average import AVERAGES, Integrand, gaussian_average
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


@quiet
def linear_baseline(model: Model, *, rtol: float = 1e-6, max_points: int = 1 << 21, seed: Any = 0) -> LinearBaseline:
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
    values, errors, status = gaussian_average(integrand, *checked_accuracy(rtol, max_points), generator(seed))
    shape = (model.n_tokens, model.n_tokens)
    return LinearBaseline(
        values[:-1].reshape(shape), errors[:-1].reshape(shape), float(values[-1]), float(errors[-1]), status
    )


def checked_accuracy(rtol: Any, max_points: Any) -> tuple[float, int]:
    """Return the requested accuracy of an average and the bound on its points, after checking both."""
    min_points = AVERAGES.replicas * AVERAGES.first_points
    rtol = check.real("rtol", rtol, low=AVERAGES.min_rtol, high=0.1)
    return rtol, check.integer("max_points", max_points, low=min_points)


class WhitenedTeacher:
    """Teacher's target T[y] as a function of independent standard Gaussian coordinates ξ, one per nonzero variance."""

    def __init__(self, teacher: Teacher, rho: np.ndarray, shift: np.ndarray) -> None:
        """Covariances rho (L, t, t) and means (L, t) of the fields of each token."""
        self.teacher, self.shape, self.shift = teacher, rho.shape[:2], shift
        self.even = teacher.even and not shift.any()
        spectrum, vectors = np.linalg.eigh(rho)
        kept = spectrum > 1e-14 * spectrum.max()
        self.token = np.nonzero(kept)[0]  # token of each coordinate
        self.dim = len(self.token)
        self.variance = spectrum[kept]
        self.direction = vectors.transpose(0, 2, 1)[kept]  # (dim, t)
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
            (share * part.coordinates.trace, WhitenedTeacher(part.teacher, part.coordinates.rho, part.teacher_shift))
            for share, _, part in model.components
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
        return AVERAGES.rounding * np.append(np.full(len(results) - 1, largest), error)
