"""The purely positional baseline: a linear layer y = W x with one trainable L × L matrix W.

`linear_baseline` computes W and the test error in the limit d → ∞, from averages over the teacher's fields. Averages
over few coordinates are sums over grids of equal spacing h, whose error is proportional to exp(−c/h) (Trefethen and
Weideman, 2014); averages over many coordinates are means over replicas of scrambled Sobol points.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, lgamma, log, pi
from operator import itemgetter
from typing import Any

import numpy as np
from scipy.special import chdtri

from gamp_attention._tools import check
from gamp_attention._tools.numerics import generator, guard_call, psd_root
from gamp_attention._tools.quadrature import gaussian_points, gaussian_weights, spaced_grid
from gamp_attention._tools.statistics import half_width
from gamp_attention.results import Ended, Status
from gamp_attention.theory.models.model import Model, require_model

SPACING, FINER = 1.4, 0.75  # spacing of the first grid in standard deviations, and ratio of successive spacings
SAFETY = 25  # factor of a grid's error; 10 covered 94 to 97 % of random problems, 20 over 98
REPLICAS, FIRST_POINTS = 8, 1024  # number of independent sets of Sobol points, and number of points in the first sets
MIN_ERROR = 0.1  # smallest error that is stated, in units of rtol and of the largest error of the results


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


@guard_call
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
    rtol = check.real("rtol", rtol, low=1e-10, high=0.1)  # rounding limits the accuracy
    max_points = check.integer("max_points", max_points, low=REPLICAS * FIRST_POINTS)
    L, t, parts = model.n_tokens, model.teacher_rank, model.components
    roots = [psd_root(part.coordinates.rho) for _, _, part in parts]
    # column l of Ŵ weights each pattern of classes by its probability times tr Σ_l
    traces = np.array([probability * part.coordinates.trace for probability, _, part in parts])
    trace, center = traces.sum(axis=0), model.teacher(np.zeros((L, t)))  # differences from it avoid cancellation
    used = np.any([np.abs(root).max(axis=1) > 0 for root in roots], axis=0).ravel()  # other coordinates have no effect

    def values(white: np.ndarray) -> np.ndarray:
        fields, total = np.zeros((len(white), L * t)), np.zeros((len(white), L * L + 1))
        fields[:, used] = white
        for root, weight, (_, _, part) in zip(roots, traces, parts, strict=True):
            y = np.einsum("lst,nlt->nls", root, fields.reshape(-1, L, t))
            D = (part.teacher(y + part.teacher_shift) - center).reshape(len(white), -1)
            total[:, :-1] += np.tile(weight / trace, L) * D
            total[:, -1] += D**2 @ np.tile(weight, L) / L
        return total

    def mean(points: np.ndarray, weights: np.ndarray, size: int = 1 << 14) -> np.ndarray:
        chunks = [slice(k, k + size) for k in range(0, len(points), size)]
        means = np.sum([weights[chunk] @ values(points[chunk]) for chunk in chunks], axis=0)
        error = means[-1] - np.tile(trace, L) @ means[:-1] ** 2 / L
        return np.append(center.ravel() + means[:-1], max(error, 0.0) + model.score_noise**2 * trace.sum())

    even = all(part.teacher.even and not part.teacher_shift.any() for _, _, part in parts)
    numbers, errors, worst = _average(mean, int(used.sum()), even, rtol, max_points, generator(seed))
    weights, weights_error = (values[:-1].reshape(L, L) for values in (numbers, errors))
    status = Status.CONVERGED if worst <= rtol else Status.INACCURATE
    return LinearBaseline(weights, weights_error, float(numbers[-1]), float(errors[-1]), status)


def _average(
    mean: Callable[[np.ndarray, np.ndarray], np.ndarray], dim: int, even: bool, rtol: float, max_points: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, float]:  # fmt: skip
    """Return averages over `dim` standard Gaussians, their errors, and the largest relative error.

    They are from grids or, if these are not accurate enough, from replicas. `mean` returns the numbers for points and
    weights; if `even`, values at opposite points are equal.
    """
    if dim == 0:
        numbers = mean(np.zeros((1, 0)), np.ones(1))
        return numbers, np.zeros(len(numbers)), 0.0
    best, before = (np.zeros(0), np.inf), None
    h, radius, last = SPACING, float(np.sqrt(chdtri(dim, 1e-4 * rtol))), 0.0

    def size(h: float) -> float:  # number of points in a ball
        return exp(min(dim * log(radius / h * pi**0.5) - lgamma(dim / 2 + 1), 500.0)) / (2 if even else 1)

    while best[1] > rtol and size(h) <= max_points:
        points = spaced_grid(h, dim, radius, even)
        here = mean(points, gaussian_weights(points))
        if before is not None:
            # if the relative error is exp(−c/h), a ratio of spacings FINER raises it to the power 1/FINER; the
            # difference before the last guards against two grids that agree by accident
            ratio = _worst(np.abs(here - before), here)
            best, last = (here, SAFETY * max(ratio ** (1 / FINER), last ** (1 / FINER**2))), ratio
        before, h = here, FINER * h
    n = FIRST_POINTS
    while best[1] > max(rtol, 3e-5) and n * REPLICAS <= max_points:  # replicas are less accurate
        half = n // 2 if even else n
        sets = (gaussian_points(n, dim, rng)[:half] for _ in range(REPLICAS))
        samples = np.array([mean(points, np.full(half, 1 / half)) for points in sets])
        numbers = samples.mean(axis=0)
        best, n = min((numbers, _worst(half_width(samples), numbers)), best, key=itemgetter(1)), 4 * n
    numbers, worst = best
    # small differences may agree by accident
    return numbers, max(worst, MIN_ERROR * max(rtol, min(worst, 1.0))) * _unit(numbers), worst


def _unit(numbers: np.ndarray) -> np.ndarray:
    """Return for each number the largest of its kind, of the weights or the test error."""
    return np.append(np.full(len(numbers) - 1, np.abs(numbers[:-1]).max()), numbers[-1])


def _worst(errors: np.ndarray, numbers: np.ndarray) -> float:
    """Return the largest error in units of `_unit`."""
    return float((errors / np.maximum(_unit(numbers), 1e-300)).max())


def require_attention(model: Any) -> Model:
    """Return the argument if it is a Model of an attention layer; raise TypeError if not."""
    model = require_model(model)
    if not model.attention:
        raise check.fail_words("model", type(model).__name__, "an attention model", TypeError)
    return model
