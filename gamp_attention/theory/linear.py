"""The purely positional baseline: a linear layer y = W x with one trainable L × L matrix W.

`linear_baseline` computes W and the test error in the limit d → ∞; `fit_linear_baseline` fits W to data by ridge
regression, and computes the test error at the dimension of the data. Test errors are smooth Gaussian averages over the
teacher's fields.

The averages over independent standard Gaussian coordinates are refined to a stated accuracy by one of two methods:

- few coordinates: grids of equal spacing h, whose error is proportional to exp(−c/h), with c set by the singularities
  of the function off the real axis (Trefethen and Weideman, 2014). For the linear baseline they need
  fewer nodes than products of Gauss-Hermite rules;
- many coordinates: replicas of scrambled Sobol points in mirror pairs (randomized quasi-Monte Carlo).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, lgamma, log, pi
from typing import Protocol

import numpy as np
from scipy.special import chdtri

from gamp_attention._tools import check
from gamp_attention._tools.numerics import generator, guard_call
from gamp_attention._tools.quadrature import gaussian_points, gaussian_weights, spaced_grid
from gamp_attention._tools.statistics import half_width
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.results import Ended, Status
from gamp_attention.theory.models.model import Model, require_attention
from gamp_attention.theory.models.teachers import Teacher

ROUNDING = 1e-15  # relative rounding error of one value


class Integrand(Protocol):
    """Function of white Gaussian coordinates to be averaged, and the results computed from its averages."""

    dim: int  # number of white coordinates
    even: bool  # True if values at opposite points are equal
    blocks: tuple[slice, ...] = (slice(None),)  # blocks of the results; errors are relative to the largest of a block

    def __call__(self, white: np.ndarray) -> np.ndarray:
        """Return values (N, K) at points (N, dim)."""

    def results(self, means: np.ndarray) -> np.ndarray:
        """Return results (M,) computed from the K averages; by default the averages."""
        return means

    def rounding(self, results: np.ndarray) -> np.ndarray:
        """Return the rounding errors (M,) of the results."""


@dataclass(frozen=True, eq=False)
class Average:
    """Results of an integrand averaged over white coordinates."""

    values: np.ndarray
    errors: np.ndarray  # half-widths
    worst: float  # largest error without rounding, relative to the largest result of its block


@dataclass(frozen=True)
class Averaging:
    """Accuracy of an average, and settings of the refinement of its points."""

    rtol: float  # requested error, relative to the largest result of each block
    max_points: int  # maximum number of points
    first_spacing: float = 1.4  # spacing h of the first grid, in standard deviations
    spacing_ratio: float = 0.75  # ratio of the spacings of two successive grids
    tail: float = 1e-4  # probability outside of the grids, in units of rtol
    safety: float = 25  # factor of a grid's error; 10 covered 94 to 97 % of random problems, 20 over 98
    n_replicas: int = 8  # number of independent sets of Sobol points
    first_points: int = 1024  # number of points in each of the first sets
    growth: int = 4  # factor by which that number grows in each refinement
    min_random: float = 3e-5  # replicas, being less accurate, are tried only if the error on grids exceeds this
    min_error: float = 0.1  # smallest error that is stated, in units of rtol and of the largest error of the results
    chunk: int = 1 << 14  # number of points evaluated at a time, which bounds the memory

    def __post_init__(self) -> None:
        check.real("rtol", self.rtol, low=1e-10, high=0.1)  # rounding limits the accuracy
        check.integer("max_points", self.max_points, low=self.n_replicas * self.first_points)

    def average(self, integrand: Integrand, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, Status]:
        """Return results, errors and status, computed on grids or, if their budget is too small, from replicas.

        The more accurate of the two is returned. CONVERGED means that the errors are within rtol, relative to the
        largest result of each block, or due to rounding.
        """
        if integrand.dim == 0:
            values = self._results(integrand, np.zeros((1, 0)), np.ones(1))
            return values, integrand.rounding(values), Status.CONVERGED
        best = self.by_grids(integrand)
        if best is None or best.worst > max(self.rtol, self.min_random):
            other = self.by_replicas(integrand, rng)
            best = other if best is None or other.worst < best.worst else best
        return best.values, best.errors, Status.CONVERGED if best.worst <= self.rtol else Status.INACCURATE

    def by_grids(self, integrand: Integrand) -> Average | None:
        """Average on finer and finer grids until errors are within rtol; return None if two grids exceed the budget."""
        dim, even, h = integrand.dim, integrand.even, self.first_spacing
        radius = float(np.sqrt(chdtri(dim, self.tail * self.rtol)))
        best, before, last_ratio = None, None, 0.0
        while (best is None or best.worst > self.rtol) and (
            estimate_grid_size(h, dim, radius, even) <= self.max_points
        ):
            here = self._results(integrand, *build_grid(h, dim, radius, even))
            if before is not None:
                size = _largest(integrand, here)
                difference = np.maximum(np.abs(here - before) - integrand.rounding(here), 0)
                ratio = np.divide(_largest(integrand, difference), size, out=np.zeros_like(here), where=size > 0)
                # if the relative error is exp(−c/h), refining h by the factor `finer` raises it to the power 1/finer;
                # the difference before the last guards against two grids that agree by accident
                finer = self.spacing_ratio
                error = self.safety * np.maximum(ratio ** (1 / finer), last_ratio ** (1 / finer**2))
                best = self._complete(integrand, here, error * size)
                last_ratio = ratio
            before, h = here, self.spacing_ratio * h
        return best

    def by_replicas(self, integrand: Integrand, rng: np.random.Generator) -> Average:
        """Average over replicas of more and more points, until errors are within rtol or the budget ends."""
        n = self.first_points
        while True:
            half = n // 2 if integrand.even else n
            sets = (gaussian_points(n, integrand.dim, rng)[:half] for _ in range(self.n_replicas))
            values = np.array([self._results(integrand, points, np.full(half, 1 / half)) for points in sets])
            average = self._complete(integrand, values.mean(axis=0), half_width(values))
            n *= self.growth
            if average.worst <= self.rtol or n * self.n_replicas > self.max_points:
                return average

    def _complete(self, integrand: Integrand, values: np.ndarray, errors: np.ndarray) -> Average:
        """Return the average, with errors bounded from below and rounding added."""
        size = _largest(integrand, values)
        worst = float(np.divide(errors, size, out=np.where(errors > 0, np.inf, 0.0), where=size > 0).max())
        # a smaller difference between grids may be accidental, and all grids leave out the same tail
        errors = np.maximum(errors, self.min_error * max(self.rtol, min(worst, 1.0)) * size)
        return Average(values, errors + integrand.rounding(values), worst)

    def _results(self, integrand: Integrand, points: np.ndarray, weights: np.ndarray) -> np.ndarray:
        parts = [slice(k, k + self.chunk) for k in range(0, len(points), self.chunk)]
        return integrand.results(np.sum([weights[p] @ integrand(points[p]) for p in parts], axis=0))


def _largest(integrand: Integrand, values: np.ndarray) -> np.ndarray:
    """Return, for each value, the largest absolute value in its block."""
    return np.concatenate([np.full_like(values[b], np.abs(values[b]).max()) for b in integrand.blocks])


def estimate_grid_size(h: float, dim: int, radius: float, even: bool) -> float:
    """Return the approximate number of points of a grid, from the volume of a ball."""
    return exp(min(dim * log(radius / h * pi**0.5) - lgamma(dim / 2 + 1), 500.0)) / (2 if even else 1)


def build_grid(h: float, dim: int, radius: float, even: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return points (N, dim) of spacing h in a ball and Gaussian weights (N,); if `even`, half of each mirror pair."""
    points = spaced_grid(h, dim, radius, even)
    return points, gaussian_weights(points)


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
    integrand = _BaselineIntegrand(model)
    values, errors, status = Averaging(rtol, max_points).average(integrand, generator(seed))
    shape = (model.n_tokens, model.n_tokens)
    return LinearBaseline(
        values[:-1].reshape(shape), errors[:-1].reshape(shape), float(values[-1]), float(errors[-1]), status
    )


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
        self.center = model.teacher(np.zeros((L, model.teacher_rank))).ravel()
        self.blocks = (slice(0, L * L), slice(L * L, L * L + 1))
        self._weight = np.tile(self.trace, L) / L
        self._noise = model.score_noise**2 * float(self.trace.sum())

    def __call__(self, white: np.ndarray) -> np.ndarray:
        L, total = len(self.trace), np.zeros((len(white), len(self.center) + 1))
        for trace, fields in self.parts:
            D = fields.targets(white).reshape(len(white), -1) - self.center
            total[:, :-1] += np.tile(trace / self.trace, L) * D
            total[:, -1] += D**2 @ np.tile(trace, L) / L
        return total

    def results(self, means: np.ndarray) -> np.ndarray:
        """Return Ŵ, flattened, and ε_lin."""
        error = means[-1] - self._weight @ means[:-1] ** 2
        return np.append(self.center + means[:-1], max(error, 0.0) + self._noise)

    def rounding(self, results: np.ndarray) -> np.ndarray:
        largest = np.abs(results[:-1]).max()
        error = np.sqrt(results[-1] * self.trace.max()) * largest + results[-1]
        return ROUNDING * np.append(np.full(len(results) - 1, largest), error)


@dataclass(frozen=True, eq=False)
class LinearFit(Ended):
    """Linear layer fitted to data of finite d.

    Attributes
    ----------
    weights : (L, L) minimizer W of the risk of eq. (18).
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


@guard_call
def fit_linear_baseline(
    data: Dataset,
    lam: float = 1e-4,
    *,
    rtol: float = 1e-6,
    max_points: int = 1 << 21,
    seed: int | np.random.Generator = 0,
) -> LinearFit:
    """Fit the linear layer of equations (17) and (18) to data by ridge regression.

    The layer is f_W(x) = W x and sees the tokens without their positions. W minimizes

        R(W) = Σ_μ ‖y^μ − W x^μ‖_F²/(2d) + (λ/2)‖W‖_F².

    This risk is normalized as in eq. (3): the sum over samples is of order d, so the penalty, of order one, vanishes
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
    averaging, rng = Averaging(rtol, max_points), generator(seed)
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
    values, errors, status = averaging.average(integrand, rng)
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
