"""The empirical risk R(Q) of equation (3) at given weights: value, derivatives, overlaps, V, test error, symmetries.

Weights are compared up to the changes that no risk depends on: signs, rotations within a head, orders of heads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention._core.numerics import Stream, generator, ignore_float_errors, mean_and_error, one_thread, symmetrize
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.passes import RiskSums, TokenMatrix
from gamp_attention.data.sampling import draw_tokens
from gamp_attention.data.stores import join_parts, read_rows
from gamp_attention.denoisers.input import input_step
from gamp_attention.denoisers.output import Denoised, denoise
from gamp_attention.losses.heads import HeadLayout, layout_of
from gamp_attention.losses.point import sample_derivatives
from gamp_attention.models.sources import apply_by_source
from gamp_attention.penalties.columns import ColumnRidge, column_classes, has_spheres
from gamp_attention.penalties.standard import penalty_total, smallest_subgradient
from gamp_attention.results import Overlaps

T = TypeVar("T", np.ndarray, float)

FEW_FIELDS = 3  # maximum r for which derivatives of samples with one token are computed with their Hessians
MAX_ITER = 500  # maximum number of iterations for V, see `susceptibility`
TOLERANCE = 1e-10  # relative change of V at which the iteration has converged
ANDERSON_DEPTH = 5  # number of differences that an extrapolation of V combines
MAX_LARGE_CHANGES = 12  # iterations until the change of V must be small; if V exists, about 8 reach 1e-10
SMALL_CHANGE = 1e-2  # relative change of V that counts as small
MIN_EIGENVALUE = 0.1  # smallest eigenvalue of an accepted extrapolation, in units of the damped iterate's smallest
TEST_CHUNK = 500  # number of test samples in memory at a time
TOLERANCE_MARGIN = 100.0  # tolerances are proportional to the unit of weights if it is below the inverse
SMALL_UNIT = 0.1  # unit of weights below which thresholds of the gradient norm are multiplied by it
UNIT_SAMPLES = 1000  # maximum number of samples from which the size of tokens is computed, for tolerances


def align_weights(student: Any, penalty: Any, Q: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the weights Q (d, r) changed by the symmetry of the risk that takes them nearest to other weights (d, r).

    Columns are rotated within sets of equal penalties (`column_classes`), which for a set of one column is a change of
    its sign, and heads with equal penalties are exchanged. The best rotation is an orthogonal Procrustes problem, and
    the best order of the heads is a linear assignment, because the overlap is a sum over heads.
    """
    layout = layout_of(student, Q.shape[1])
    if layout is None and not student.rotations:
        return -Q if student.even and penalty.even and np.sum(Q * other) < 0 else Q
    classes = column_classes(penalty, student, Q.shape[1])
    if layout is None:
        return _rotate_columns(penalty, classes, Q, other)
    return _order_heads(layout, penalty, classes, Q, other)


def _rotate_columns(penalty: Any, classes: list[np.ndarray], Q: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return Q (d, r) with the best rotation of each set of columns."""
    if not penalty.even:
        return Q
    rotated = Q.copy()
    for columns in classes:
        u, _, v = np.linalg.svd(sum(Q[:, part].T @ other[:, part] for part in columns))
        for part in columns:
            rotated[:, part] = Q[:, part] @ (u @ v)
    return rotated


def _order_heads(
    layout: HeadLayout, penalty: Any, classes: list[np.ndarray], Q: np.ndarray, other: np.ndarray
) -> np.ndarray:
    """Return Q (d, r) with the best order of the heads, and the best rotation of each set of columns of a head."""
    from scipy.optimize import linear_sum_assignment

    heads = range(layout.heads)
    columns = [np.concatenate([layout.scores(h).ravel(), layout.value_columns(h)]) for h in heads]
    blocks = [[block for block in classes if np.isin(block, columns[h]).all()] for h in heads]
    impossible = -float(np.linalg.norm(Q) * np.linalg.norm(other) * (1 + layout.heads)) - 1.0
    gains, moved = np.full((layout.heads, layout.heads), impossible), {}
    for h in heads:
        for k in heads:
            if _have_equal_roles(layout, penalty, columns[h], columns[k], h, k):
                there = np.zeros_like(Q)
                there[:, columns[k]] = Q[:, columns[h]]
                moved[h, k] = _rotate_columns(penalty, blocks[k], there, other)[:, columns[k]]
                gains[h, k] = np.sum(moved[h, k] * other[:, columns[k]])
    ordered = np.empty_like(Q)
    for h, k in zip(*linear_sum_assignment(gains, maximize=True), strict=True):
        ordered[:, columns[k]] = moved[h, k]
    return ordered


def _have_equal_roles(layout: HeadLayout, penalty: Any, first: np.ndarray, second: np.ndarray, h: int, k: int) -> bool:
    """Return whether heads h and k, with given columns, may be exchanged without a change of the risk."""
    if isinstance(penalty, ColumnRidge) and [penalty.lams[a] for a in first] != [penalty.lams[a] for a in second]:
        return False
    return layout.kinds[h] == layout.kinds[k]


@dataclass(frozen=True, eq=False)
class RiskAtPoint:
    """Risk and its derivatives at weights Q."""

    train_loss: float  # ε_t = R/d
    gradient: np.ndarray  # (d, r) ∇R, or the subgradient of smallest norm
    gradient_norm: float  # ‖∇R‖_F/(λ√d)
    smooth: np.ndarray  # (d, r) the gradient without the penalty, X̃ᵀ∇ℓ
    loss: Any  # the per-sample loss
    params: np.ndarray  # its rows of parameters
    fields: Callable[[], np.ndarray]  # returns z
    known: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None  # losses, gradients and Hessians of the samples

    @cached_property  # descents evaluate the risk at many points, but need the fields at few of them
    def z(self) -> np.ndarray:
        """Local fields X̃Q (n, L, r)."""
        return self.fields()

    @property
    def losses(self) -> np.ndarray:
        """Losses ℓ_μ (n,) at z."""
        return self._derivatives[0]

    @property
    def loss_gradients(self) -> np.ndarray:
        """Gradients ∇ℓ_μ (n, L, r) at z."""
        return self._derivatives[1]

    @property
    def hessians(self) -> np.ndarray:
        """Hessians ∇²ℓ_μ (n, L r, L r) at z."""
        return self._derivatives[2]

    @cached_property
    def _derivatives(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return sample_derivatives(self.loss, self.params, self.z) if self.known is None else self.known


def is_convex(data: Dataset) -> bool:
    """Return whether the risk is convex, as the loss declares; all penalties are convex."""
    return bool(getattr(data.student, "convex", False))


def normalized_risk(data: Dataset, Q: np.ndarray, loss: float) -> float:
    """Return ε_t = R/d from the sum of all ℓ_μ and their constants."""
    return float((loss + penalty_total(data.penalty, Q)) / data.dim)


def gradient_norm(data: Dataset, gradient: np.ndarray) -> float:
    """Return ‖∇R‖_F / (λ√d), with the strength of the penalty for λ. Eq. :eq:`critical`."""
    return float(np.linalg.norm(gradient) / (data.penalty.strength * np.sqrt(data.dim)))


def scale_tolerance(data: Dataset, tol: float, margin: float = TOLERANCE_MARGIN) -> float:
    """Return the tolerance of the gradient norm: `tol`, or if this is smaller, tol × margin × the unit of weights.

    The gradient norm has the unit of the weights. If these are small because tokens are large, or labels small, a fixed
    tolerance would be inaccurate.
    """
    return tol * min(1.0, margin * weight_unit(data))


def small_unit(data: Dataset) -> float:
    """Return the unit of weights if it is small, otherwise 1."""
    unit = weight_unit(data)
    return unit if unit < SMALL_UNIT else 1.0


def weight_unit(data: Dataset) -> float:
    """Return the size of weights for which fields have the size of the labels, or are of order one without labels."""
    positions = data.positions
    if isinstance(data.tokens, np.ndarray):
        tokens = data.tokens[:: -(-data.n_samples // UNIT_SAMPLES)]
    elif data.rows_here:
        tokens = read_rows(data.tokens, slice(0, min(data.n_samples, UNIT_SAMPLES)))
    else:
        return _field_size(data) / _typical_size(data.spectra.mean(axis=0) + np.mean(positions**2))
    return _field_size(data) / _typical_size(np.mean((tokens + positions) ** 2, axis=(0, 1), dtype=float))


def _field_size(data: Dataset) -> float:
    """Return the size of fields that fit the labels of a dataset, or 1 without labels."""
    if data.labels is None:
        return 1.0
    return float(data.student.field_size(_typical_size(np.mean(data.labels**2, axis=0))))


def _typical_size(squares: np.ndarray) -> float:
    """Return the root of the median of the positive squares (k,), or 1 if there are none."""
    positive = squares[squares > 0]
    return float(np.sqrt(np.median(positive))) if len(positive) else 1.0


def risk_at(data: Dataset, Q: np.ndarray, risk: str) -> RiskAtPoint:
    """Evaluate a risk and its derivatives at Q (d, r), in one pass over the tokens.

    For samples with few fields in one token, two products with tokens in the cache and the derivatives of the losses,
    Hessians included, take less time than this pass.
    """
    terms, known, root = data.terms(risk), None, np.sqrt(data.dim)
    rows = data.matrix.small_rows() if data.rank <= FEW_FIELDS and data.rows_here else None
    if rows is not None:
        with one_thread():
            z = (rows @ (Q / root))[:, None]
            known = losses, slopes, _ = sample_derivatives(data.loss, terms.params, z)
            sums = RiskSums(float(np.sum(losses + terms.constant)), rows.T @ slopes[:, 0] / root, lambda: z)
    else:
        sums = data.sum_risk(risk, Q)
    grad, value = smallest_subgradient(data.penalty, Q, sums.smooth), normalized_risk(data, Q, sums.loss)
    norm = gradient_norm(data, grad)
    return RiskAtPoint(value, grad, norm, sums.smooth, data.loss, terms.params, sums.fields, known)


def denoise_at(
    data: Dataset, at: RiskAtPoint, V: np.ndarray, *, samples: np.ndarray | None = None,
    start: np.ndarray | None = None, **options: Any,
) -> Denoised:  # fmt: skip
    """Evaluate the output denoiser at ω = z − V g with g = −∇ℓ(z), starting from z, a stationary point, or `start`.

    V (S, r, r) has one matrix for the tokens of each source. `samples` are the indices of the samples to denoise, in
    ascending order, by default all; `options` are keyword arguments of `denoise`.
    """
    omega = at.z + apply_by_source(data.groups, V, at.loss_gradients)
    chosen, start = np.arange(data.n_samples) if samples is None else samples, at.z if start is None else start
    parts = [(chosen[(chosen >= rows.start) & (chosen < rows.stop)], sources) for rows, sources in data.groups]
    return join_parts([
        denoise(at.loss, at.params[rows], omega[rows], V[sources], start[rows], **options)
        for rows, sources in parts if len(rows)
    ])  # fmt: skip


def hessian_product(data: Dataset, at: RiskAtPoint, P: np.ndarray, curvature: Any) -> np.ndarray:
    """Return ∇²R P (d, r) at the point `at`; `curvature` of the penalty is a number or an array (d, r)."""
    return curvature * P + data.matrix.hessian_product(at.hessians, P)


@ignore_float_errors
def gradient(data: Dataset, Q: ArrayLike, risk: str = "exact") -> np.ndarray:
    """Compute the gradient of the risk R of equation (3), or of its asymptotic form, equation (41), without 1/d.

    Eq. :eq:`risk`.

    Parameters
    ----------
    data : the samples.
    Q : (d, r) weights.
    risk : "exact" or "asymptotic".

    Returns
    -------
    (d, r) array ∇R(Q) = X̃ᵀ∇ℓ(X̃Q) + ∇r(Q), with ∇r(Q) = λQ for the ridge. If the penalty has kinks at Q, the
        subgradient of smallest norm, which is zero at critical points.

    Raises
    ------
    TypeError : if `data` is not a Dataset, or `Q` is not an array of real numbers.
    ValueError : if `Q` has another shape, `risk` is unknown or not available, or the gradient overflows.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> Q = ga.run_gamp(data).Q
    >>> bool(abs(ga.gradient(data, Q)).max() < 1e-8 < abs(ga.gradient(data, data.Q_star)).max())
    True
    """
    require_dataset(data).terms(risk)
    return _require_finite(Q, risk_at(data, check.array("Q", Q, (data.dim, data.rank)), risk).gradient)


@ignore_float_errors
def train_loss(data: Dataset, Q: ArrayLike, risk: str = "exact") -> float:
    """Compute the training loss ε_t = R/d of equation (3), or of its asymptotic form, equation (41).

    Eq. :eq:`risk`.

    Parameters
    ----------
    data, Q, risk : as for `gradient`.

    Returns
    -------
    A number.

    Raises
    ------
    TypeError, ValueError : as for `gradient`.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> informed, without = ga.train_loss(data, data.Q_star), ga.train_loss(data, 0 * data.Q_star)
    >>> 0 < informed < without
    True
    """
    require_dataset(data).terms(risk)
    return _require_finite(Q, risk_at(data, check.array("Q", Q, (data.dim, data.rank)), risk).train_loss)


def _require_finite(Q: Any, value: T) -> T:
    """Return a value computed at weights Q; raise ValueError if it is not finite."""
    if not np.isfinite(value).all():
        raise check.fail("Q", np.asarray(Q), "weights at which the risk is within the range of doubles")
    return value


def overlaps(data: Dataset, Q: np.ndarray, V: np.ndarray) -> Overlaps:
    """Return the overlaps of weights Q (d, r) with covariances, means and teacher, for each source of a dataset.

    Eq. :eq:`overlaps`.
    """
    d, S = data.dim, data.n_sources
    SQ = data.spectra[:, :, None] * Q[None]  # (S, d, r)
    star = np.empty((d, 0)) if data.Q_star is None else data.Q_star
    q = np.einsum("lia,ib->lab", SQ, Q) / d
    theta = np.einsum("lia,ib->lab", SQ, star) / d if star.shape[1] else np.empty((S, Q.shape[1], 0))
    return Overlaps(q, data.source_means @ Q / np.sqrt(d), theta, V)


def susceptibility(
    data: Dataset, at: RiskAtPoint, Q: np.ndarray, *, quick: bool = False, start: np.ndarray | None = None
) -> np.ndarray:
    """Return V_s (S, r, r) of each source at a minimum Q of the risk, from the Hessians of the samples.

    V solves V = W(A), where W(A) is the response of the weights (`input_step`) and A = −(1/d) Σ ∂g/∂ω with
    ∂g/∂ω = −V⁻¹(1 − (V⁻¹ + H)⁻¹V⁻¹). For a smooth penalty V is the limit of (1/d) Σ_i γ_i (∇²R)⁻¹_ii for large d. All
    entries are NaN if no positive definite solution is found. Up to two fields are solved by damped iterations, unless
    `quick` is True. For more fields an iteration costs as much as several gradients, so it is accelerated (Anderson,
    1965), and stopped early if its changes stay large. `start` is an approximation of V from which it starts.
    """
    S, r = data.n_sources, data.rank
    V = np.tile(np.eye(r), (S, 1, 1)) * (data.spectra.mean(axis=1) / (1.0 + data.penalty.strength))[:, None, None]
    if at.hessians.shape[1] == 1:  # a start from V̂ at V = 0, which saves iterations
        trace = float(data.spectra.mean())
        V = np.full((1, 1, 1), trace / (data.penalty.strength + trace * max(float(at.hessians.sum()), 0.0) / data.dim))
    if start is not None:
        V = start
    unsolved = np.full((S, r, r), np.nan)
    quick = quick or data.n_tokens * r > 2
    points, moves = list[np.ndarray](), list[np.ndarray]()
    for number in range(MAX_ITER):
        try:
            V_hat = response(data, at.hessians, V)
        except np.linalg.LinAlgError:
            return unsolved
        W = _variances(data, V_hat, at, Q)
        if not np.isfinite(W).all() or np.linalg.eigvalsh(W).min() <= 0:
            return unsolved
        change = np.abs(W - V).max() / np.abs(W).max()
        if quick:
            points, moves = [*points[-ANDERSON_DEPTH:], V], [*moves[-ANDERSON_DEPTH:], W - V]
        V = 0.5 * (V + W)
        if change < TOLERANCE:
            return V
        if quick:
            if number >= MAX_LARGE_CHANGES and change > SMALL_CHANGE:
                return unsolved
            V = _extrapolate(points, moves, V)
    return unsolved


def _variances(data: Dataset, V_hat: np.ndarray, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray:
    """Return W (S, r, r) of the input denoiser at a minimum, where the multipliers of spherical columns are known."""
    penalty = data.penalty
    if has_spheres(penalty):
        penalty = ColumnRidge(tuple(penalty.multipliers(Q, at.smooth).tolist()))
    return input_step(penalty, data.spectra, V_hat, -at.smooth, Q)[1]


def _extrapolate(points: list[np.ndarray], moves: list[np.ndarray], damped: np.ndarray) -> np.ndarray:
    """Return the Anderson extrapolation of iterates and their moves (S, r, r), or the damped iterate if it fails."""
    if len(points) < 2:
        return damped
    last = moves[-1].ravel()
    changes = np.diff([move.ravel() for move in moves], axis=0).T
    ends = np.diff([(point + move).ravel() for point, move in zip(points, moves, strict=True)], axis=0).T
    weights = np.linalg.lstsq(changes, last, rcond=1e-10)[0]
    V = (points[-1].ravel() + last - ends @ weights).reshape(damped.shape)
    V = symmetrize(V)
    if not np.isfinite(V).all():
        return damped
    low = np.linalg.eigvalsh(damped).min()
    return V if np.linalg.eigvalsh(V).min() > MIN_EIGENVALUE * low > 0 else damped


def response(data: Dataset, hessians: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return V̂_s (S, r, r) = −(1/d) Σ ∂g/∂ω of each source, from V and the Hessians (n, L r, L r) of the samples."""
    from scipy.linalg import block_diag

    r, V_hat = data.rank, np.zeros(V.shape)
    inverse = np.linalg.inv(V)
    if hessians.shape[1] == 1:  # one field: numbers in place of matrices take a tenth of the time
        for rows, (source,) in data.groups:
            h = hessians[rows]
            V_hat[source] += (inverse[source] * (h / (inverse[source] + h))).sum(axis=0) / data.dim
        return V_hat
    for rows, sources in data.groups:
        big = block_diag(*inverse[sources])
        resolvents = np.linalg.inv(big + hessians[rows])
        full = (len(resolvents) * big - big @ resolvents.sum(axis=0) @ big) / data.dim
        for l, s in enumerate(sources):
            V_hat[s] += full[l * r : (l + 1) * r, l * r : (l + 1) * r]
    return V_hat


@ignore_float_errors
def sampled_test_error(
    data: Dataset, Q: ArrayLike, *, n_samples: int = 1000, seed: int | np.random.Generator = 1
) -> tuple[float, float]:
    """Estimate the test error ε_g = E‖y − f_Q(x)‖_F²/(dL) from new samples of the same teacher.

    Eq. :eq:`test-error`. For a generalized linear model, the test error is the mean loss of a new sample.

    Parameters
    ----------
    data : samples drawn from a model.
    Q : (d, r) weights.
    n_samples : number of new samples, at least 2.
    seed : an integer or a numpy Generator.

    Returns
    -------
    float, float : the mean over the new samples, and its standard error.

    Raises
    ------
    TypeError : if an argument has the wrong type.
    ValueError : if the data were not drawn from a model, `Q` has another shape, the error overflows, or `n_samples` is
        below 2 or too large for the memory.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=200, alpha=1.5, seed=0)
    >>> error, standard_error = ga.sampled_test_error(data, ga.run_gamp(data).Q, n_samples=500)
    >>> 0 < standard_error < error < ga.sampled_test_error(data, 0 * data.Q_star)[0]
    True
    """
    mean, error = mean_and_error(sample_test_errors(data, Q, n_samples, seed))
    return _require_finite(Q, mean), error


def sample_test_errors(data: Dataset, Q: ArrayLike, n_samples: int, seed: int | np.random.Generator) -> np.ndarray:
    """Return the errors (n,) of weights Q (d, r) on fresh samples of the same teacher, see `sampled_test_error`."""
    require_dataset(data)
    if data.model is None or data.Q_star is None:
        raise ValueError("data: needs samples drawn from a model, got your arrays, whose distribution is unknown")
    n = check.integer("n_samples", n_samples, low=2)
    check.require_memory("n_samples", n)
    Q = check.array("Q", Q, (data.dim, data.rank))
    rng = generator(seed, Stream.TEST_SAMPLES)
    law = data.dim, data.positions, data.source_means, data.spectra, data.model.classes.draw
    errors = []
    for first in range(0, n, TEST_CHUNK):
        count = min(TEST_CHUNK, n - first)
        drawn, sources = draw_tokens(rng, count, *law)
        tokens = np.asarray(drawn)
        y = tokens @ data.Q_star / np.sqrt(data.dim)
        z = TokenMatrix(tokens, data.positions).fields(Q)
        for rows, token_sources in sources.groups:
            task = data.model.task_of(token_sources)
            errors.append(task.errors_at(tokens[rows], data.positions, z[rows], y[rows], rng))
    return np.concatenate(errors)


def agreement_of(data: Dataset, Q: np.ndarray, other: np.ndarray) -> float:
    """Return the overlap of two weights (d, r), in [0, 1], maximal over all changes that no risk depends on."""
    norms = np.linalg.norm(Q) * np.linalg.norm(other)
    if not (norms > 0 and np.isfinite(norms)):
        return float(np.array_equal(Q, other))
    cosine = float(np.sum(align_weights(data.student, data.penalty, Q, other) * other) / norms)
    return max(cosine, 0.0)
