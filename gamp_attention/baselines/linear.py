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


@quiet
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
    model = require_attention(model)
    integrand = _BaselineIntegrand(model)
    values, errors, status = gaussian_average(integrand, *checked_accuracy(rtol, max_points), generator(seed))
    shape = (model.n_tokens, model.n_tokens)
    return LinearBaseline(
        values[:-1].reshape(shape), errors[:-1].reshape(shape), float(values[-1]), float(errors[-1]), status
    )


def checked_accuracy(rtol: Any, max_points: Any) -> tuple[float, int]:
    """The accuracy asked of an average and the bound on its points, both checked."""
    min_points = AVERAGES.replicas * AVERAGES.first_points
    rtol = check.real("rtol", rtol, low=AVERAGES.min_rtol, high=0.1)
    return rtol, check.integer("max_points", max_points, low=min_points)


class WhitenedTeacher:
    """A teacher's target T[y] as a function of independent standard Gaussian coordinates ξ, as few as have variance."""

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

    def targets(self, white: np.ndarray) -> np.ndarray:
        """T[y] at points (N, dim), of shape (N, L, L)."""
        fields = white[:, : self.dim] @ self._map.reshape(self.dim, self.shape[0] * self.shape[1])
        return self.teacher(fields.reshape(-1, *self.shape) + self.shift)


class _BaselineIntegrand(Integrand):
    """Ŵ and ε_lin from averages of T and T², both taken about T at zero fields, against cancellation.

    In mixtures Ŵ is that of all patterns of classes together: its column l weights each by its share and its tr Σ_l.
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
        """Ŵ, flat, and ε_lin."""
        error = means[-1] - self._weight @ means[:-1] ** 2
        return np.append(self.centre + means[:-1], max(error, 0.0) + self._noise)

    def rounding(self, results: np.ndarray) -> np.ndarray:
        largest = np.abs(results[:-1]).max()
        error = np.sqrt(results[-1] * self.trace.max()) * largest + results[-1]
        return AVERAGES.rounding * np.append(np.full(len(results) - 1, largest), error)
