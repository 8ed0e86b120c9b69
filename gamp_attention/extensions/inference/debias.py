"""Weights without the bias of the penalty, with standard deviations, and tests of the assumptions of the intervals.

Column i of the tokens enters the forces g (minus the gradients of the losses in the fields) of all samples twice: by
the teacher's weight, on which the labels depend, and by the trained weight. If the other weights are trained again for
each value of the trained weight, the forces change by −M x_i per unit. So a direction v that is independent of the
contribution of the other columns to g gives w_i = Q_i + vᵀg / vᵀM x_i without the bias of the penalty: the debiased
lasso for any loss (Zhang and Zhang, 2014; Bellec and Zhang, 2022). Two directions are used:

- independent columns: v = x_i, and x_iᵀM x_i = 1/(H⁻¹)_ii − r''_i by the Schur complement, H being the Hessian of the
  risk. Its limit for d → ∞ is A = γ V̂, and w is the value b/A of the input denoiser.
- correlated columns and more samples than columns: v is the residual of x_i in a linear regression on the other columns
  (van de Geer et al., 2014; Javanmard and Montanari, 2014). For the squared loss this is ordinary least squares.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtr, stdtrit

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, format_to_error
from gamp_attention._tools.numerics import guard_call, one_thread, symmetrize
from gamp_attention.extensions.inference.leave_one_out import leave_one_out, require_trained
from gamp_attention.extensions.inference.refits import has_squared_loss
from gamp_attention.problem.curvature import data_hessian, scaled_blocks
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.losses.kinks import STIFF, has_kinks
from gamp_attention.problem.risk import RiskAtPoint, is_convex, on_kinks
from gamp_attention.problem.sources import sum_over_tokens
from gamp_attention.problem.stores import token_blocks
from gamp_attention.problem.susceptibility import hessian_response, susceptibility
from gamp_attention.results import Result

DEPENDENT = 1e-9  # minimum eigenvalue of the correlation matrix of linearly independent columns
FLAT = 1e-6  # eigenvalue of the response, relative to the largest, of a direction that changes no loss
DENSE = 3000  # maximum number of weights for which matrices of this size are inverted
SIGNIFICANT = 4.0  # standard errors beyond which an assumption counts as violated
COLUMNS = 600  # maximum number of columns, chosen at random, that are tested for correlations
PRODUCTS = 4e9  # maximum number of multiplications in the test of correlations, which limits its samples
UNEQUAL = 0.5  # relative standard deviation of token sizes beyond which losses that are not convex are not trusted
FREE = 5  # minimum excess of samples over columns for a regression on all columns
EFFECTIVE = 12.0  # effective degrees of freedom of the noise below which its size is not known well enough
FEW_DOF = f"training errors need {EFFECTIVE:g} effective degrees of freedom"
FEWEST = 5.0  # effective number of samples of a column below which the noise of its weight is no average
PER_COLUMN = 2.0  # minimum number of samples per column for correlated columns, if the loss is not squared
PER_WEIGHT = 1.5  # minimum number of samples per weight for losses that are not convex, for attention


@dataclass(frozen=True, eq=False)
class DebiasedWeights(Result):
    """Weights with Gaussian errors, of `debias`.

    Attributes
    ----------
    weights : (d, r) κ times the teacher's weights plus noise of mean zero. κ is a number (for r > 1 a matrix that acts
        on the columns): 1 for the squared loss, if labels are linear in the teacher's fields. If they are not, the
        teacher's weights are the coefficients of the best linear prediction.
    std : (d, r) standard deviations of the noise, infinite for columns of tokens that do not vary.
    covariance : (d, r, r), or (1, r, r) if it is equal for all coordinates: the noise of each coordinate.
    trusted : whether training ended in a minimum and no tested assumption of the intervals is violated. Not
        tested is that the size of the noise of labels does not depend on the columns, and that labels of the squared
        loss are linear in the fields.
    message : the form of the estimate, and each assumption that is violated.
    form : "independent", for columns without correlations; "orthogonal", for residuals of each column in a regression
        on the others.
    dof : degrees of freedom of the noise, for quantiles of Student's t; infinite for Gaussian quantiles.
    """

    weights: np.ndarray
    std: np.ndarray
    covariance: np.ndarray
    trusted: bool
    message: str
    form: str
    dof: float

    def interval(self, level: float = 0.9) -> np.ndarray:
        """Return intervals (d, r, 2) each of which contains κ times the teacher's weight with probability `level`.

        Raises
        ------
        TypeError, ValueError : if `level` is not a number above 0 and below 1.
        """
        level = check.real("level", level, low=0, high=1, strict=True)
        if level == 1:
            raise check.fail("level", level, "a probability below 1")
        reach = stdtrit(self.dof, 0.5 + 0.5 * level) * self.std
        return np.stack([self.weights - reach, self.weights + reach], axis=-1)

    @property
    def p_values(self) -> np.ndarray:
        """(d, r) probabilities that noise alone is as large as the weight or larger; uniform for zero weights of Q*."""
        with np.errstate(divide="ignore", invalid="ignore"):  # NaN for weights that are zero without noise
            return 2 * stdtr(self.dof, -np.abs(self.weights) / self.std)

    def _rows(self) -> Rows:
        """The most significant weights."""
        rows: Rows = [f"{type(self).__name__}: {self.weights.shape[0]} × {self.weights.shape[1]}", ["", "weight", "p"]]
        order = np.argsort(self.p_values, axis=None, kind="stable")[:10]
        for i, a in zip(*np.unravel_index(order, self.weights.shape), strict=True):
            shown = format_to_error(float(self.weights[i, a]), float(self.std[i, a]))
            rows.append([f"  {i}, {a}", shown, f"{self.p_values[i, a]:.1e}"])
        return [*rows, f"  {self.message}"]


@guard_call
def debias(data: Dataset, gamp: Any) -> DebiasedWeights:
    """Return trained weights without the bias of the penalty, with Gaussian noise of known size.

    Eq. :eq:`debiased`, :eq:`debiased-noise`, :eq:`debiased-orthogonal`.

    The variance of each column is estimated from the tokens. Correlations between columns are tested: without any, all
    numbers n of samples and d of columns are allowed. With correlations, rows of labels with n > d use the part of each
    column that is orthogonal to the others; for other data the result is not trusted. `message` states the reasons.

    Parameters
    ----------
    data : the samples.
    gamp : the result of `run_gamp` or `minimize_risk` on them, with the exact risk.

    Returns
    -------
    DebiasedWeights

    Raises
    ------
    TypeError : if `data` is not a Dataset or `gamp` not a result of training.
    ValueError : if the weights are not a critical point of the exact risk of these data, or the response of the fields
        is not positive definite.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.5), lam=0.5)
    >>> data = ga.sample(model, d=300, alpha=2.0, seed=0)
    >>> debiased = ga.debias(data, ga.run_gamp(data, "random"))
    >>> low, high = debiased.interval(0.9)[..., 0], debiased.interval(0.9)[..., 1]
    >>> inside = (low < data.Q_star) & (data.Q_star < high)
    >>> bool(0.85 < inside.mean() < 0.95)
    True
    """
    Q, at = require_trained(data, gamp)
    reasons = _unreliable_training(data, gamp)
    law = _column_law(data)
    with one_thread():
        curvature = _curvature(data, at, Q)
        weights, covariance, dof = _independent(data, gamp, at, Q, law, curvature)
        exact = law.correlation > SIGNIFICANT or dof < EFFECTIVE or law.fewest < FEWEST
        inverse = _inverse_products(data, law) if exact and curvature is not None else None
        if inverse is None or curvature is None:
            reasons += _violations(data, law, dof)
        else:
            weights, covariance, most = _orthogonal(data, at, Q, curvature, law, inverse)
            ratio, needed = data.n_samples / int(law.used.sum()), f"{PER_COLUMN:g} samples per column"
            if not has_squared_loss(data):  # its response to a column is known exactly
                reasons += [f"columns are correlated, which needs {needed}, got {ratio:.2g}"] * (ratio < PER_COLUMN)
                reasons += [f"{FEW_DOF}, got {dof:.3g}"] * (dof < EFFECTIVE)
            dof = most if has_squared_loss(data) else min(dof, most)
    form = "independent" if inverse is None else "orthogonal"
    text = {"independent": "columns without correlations", "orthogonal": "each column orthogonal to the others"}
    message = text[form] + ("; not to be trusted: " + "; ".join(reasons) if reasons else "")
    std = np.sqrt(np.einsum("iaa->ia", covariance)) * np.ones(Q.shape)
    return DebiasedWeights(weights, std, covariance, not reasons, message, form, dof)


class _Curvature(NamedTuple):
    """Second derivatives among the weights of a problem with one column of Q."""

    samples: np.ndarray  # (d, d) X̃ᵀ∇²ℓ X̃
    free: np.ndarray  # (d,) True for weights that are not at a kink
    penalty: np.ndarray  # (d,) r''
    inverse: np.ndarray  # inverse Hessian of the free weights


class _ColumnLaw(NamedTuple):
    """Moments of the columns of the tokens, after subtraction of the mean of each source."""

    variances: np.ndarray  # (S, d) mean squares
    sizes: np.ndarray  # (n, L) mean square of each token in units of `variances`
    correlation: float  # excess of squared correlations between columns over chance, in standard errors
    between_tokens: float  # largest correlation between two tokens of a sample, in standard errors
    # smallest effective number of samples of a column, (Σx²)²/Σx⁴ for tokens divided by their sizes, which is 2 for a
    # dummy variable of two samples
    fewest: float

    @property
    def used(self) -> np.ndarray:
        """(d,) True for columns that vary; the weights of the other columns cannot be estimated."""
        return self.variances.min(axis=0) > 1e-90


def _unreliable_training(data: Dataset, gamp: Any) -> list[str]:
    """Return reasons not to trust the end of the training, or that samples are independent.

    A convex problem has a single minimum, so that no sample has to be refitted.
    """
    convex = is_convex(data)
    loo = leave_one_out(data, gamp, refits=0 if convex else None)
    if loo.dependent:
        why = "samples repeat each other or depend on their neighbors (leave_one_out)"
        return [f"{why}, so that intervals are too short"]
    if convex:
        return [] if gamp.converged else ["the training did not converge"]
    return [] if loo.trusted else ["leave_one_out does not trust the end of the training"]


def _column_law(data: Dataset) -> _ColumnLaw:
    """Estimate the moments of the columns in two passes over the tokens."""
    n, L, d, S = data.n_samples, data.n_tokens, data.dim, data.n_sources
    squares, counts = np.zeros((S, d)), np.zeros((S, 1))
    for _, sources, x in token_blocks(data.tokens, data.groups):
        squares[sources] += np.sum((x + data.positions - data.source_means[sources]) ** 2, axis=0)
        counts[sources] += len(x)
    variances = np.maximum(squares / np.maximum(counts, 1), 1e-300)
    used = np.flatnonzero(variances.min(axis=0) > 1e-90)
    d = max(len(used), 1)
    used = np.random.default_rng(0).permutation(used)[:COLUMNS]
    sizes, products, tokens = np.empty((n, L)), np.zeros((len(used), len(used))), np.zeros((L, L))
    fourths, seen = np.zeros(len(used)), 0
    limit = int(max(1000.0, PRODUCTS / max(len(used), 1) ** 2 / L))
    for rows, sources, x in token_blocks(data.tokens, data.groups):
        units = (x + data.positions - data.source_means[sources]) / np.sqrt(variances[sources])
        sizes[rows] = np.sum(units**2, axis=2) / d
        units = (units / np.sqrt(np.maximum(sizes[rows], 1e-300))[:, :, None])[: limit - seen, :, used]
        seen += len(units)
        flat = units.reshape(-1, len(used))
        products += flat.T @ flat
        fourths += np.sum(flat**4, axis=0)
        tokens += np.einsum("nli,nki->lk", units, units)
    diagonal = np.diag(products)
    squared = np.triu(products**2 / np.outer(diagonal, diagonal), 1)
    pairs = max(len(used) * (len(used) - 1) / 2, 1)
    correlation = (seen * L * squared.sum() - pairs) / np.sqrt(2 * pairs)
    between = np.abs(np.triu(tokens, 1)).max() / np.sqrt(seen * max(len(used), 1))
    fewest = float((diagonal**2 / np.maximum(fourths, 1e-300)).min(initial=np.inf))
    return _ColumnLaw(variances, sizes, float(correlation), float(between), fewest)


def _curvature(data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> _Curvature | None:
    """Return the second derivatives, or None if the limit d → ∞ of the response is used instead.

    The limit is used for too many weights, for several columns of Q, and for losses that are not convex: their proximal
    maps bend between the fields with and without a column.
    """
    if Q.size > DENSE or not is_convex(data) or data.rank > 1:
        return None
    _, movable, penalty = on_kinks(data.penalty, Q, at.smooth)
    K, free = data_hessian(data, at.hessians, np.ones(Q.shape, bool)), movable[:, 0] > 0
    return _Curvature(K, free, penalty[:, 0], np.linalg.inv(K[np.ix_(free, free)] + np.diag(penalty[free, 0])))


def _violations(data: Dataset, law: _ColumnLaw, dof: float) -> list[str]:
    """Return the violated assumptions of independent columns, as clauses of the message."""
    reasons = []
    if law.correlation > SIGNIFICANT:
        if data.n_tokens > 1:
            handled = "which is handled for samples of one token only"
        elif data.n_samples < law.used.sum() + FREE:
            handled = f"which needs more samples than columns: {data.n_samples} for {law.used.sum()}"
        else:
            allowed = f"convex losses of one field and up to {DENSE} linearly independent columns"
            handled = f"which is handled for {allowed} only"
        reasons.append(f"columns are correlated ({law.correlation:.0f} standard errors above chance), {handled}")
    if dof < EFFECTIVE:
        reasons.append(f"{FEW_DOF}, got {dof:.3g}")
    if not is_convex(data):
        unequal, ratio = float(law.sizes.std() / law.sizes.mean()), data.n_samples / (data.dim * data.rank)
        if unequal > UNEQUAL:
            reasons.append(f"sizes of tokens vary by {unequal:.2g} of their mean, and the loss is not convex")
        if ratio < PER_WEIGHT:
            reasons.append(f"a loss that is not convex needs {PER_WEIGHT:g} samples per weight, got {ratio:.2g}")
    if data.n_tokens > 1 and law.between_tokens > SIGNIFICANT:
        reasons.append("the tokens of a sample are correlated with each other")
    return reasons


def _inverse_products(data: Dataset, law: _ColumnLaw) -> np.ndarray | None:
    """Return G⁻¹ (d, d), G = X̃ᵀX̃, zero for constant columns; None if columns cannot be regressed on each other."""
    if data.n_tokens > 1 or data.n_samples < law.used.sum() + FREE:
        return None
    G = data_hessian(data, np.ones((data.n_samples, 1, 1)), np.ones((data.dim, 1), bool))
    size = np.sqrt(np.where(law.used, np.diag(G), np.inf))
    units = G[np.ix_(law.used, law.used)] / np.outer(size[law.used], size[law.used])
    if np.linalg.eigvalsh(units)[0] < DEPENDENT:
        return None
    inverse = np.zeros(G.shape)
    inverse[np.ix_(law.used, law.used)] = np.linalg.inv(units)
    return inverse / np.outer(size, size)


def _orthogonal(
    data: Dataset, at: RiskAtPoint, Q: np.ndarray, curvature: _Curvature, law: _ColumnLaw, inverse: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return weights, their covariances and degrees of freedom by the part of each column orthogonal to the others.

    `inverse` is G⁻¹; the residual of column i of the tokens is X̃G⁻¹e_i/(G⁻¹)_ii.
    """
    X = np.concatenate([x[:, 0] for _, x in scaled_blocks(data)])
    g, dof = -at.loss_gradients[:, 0, 0], float(len(X) - law.used.sum())
    step = inverse @ (X.T @ g)
    residuals = g - X @ step  # (n,), orthogonal to all columns
    directions = X @ inverse  # (n, d): column i is the residual of x_i divided by its squared norm
    if has_squared_loss(data):
        noise = np.diag(inverse) * (residuals @ residuals) / dof
    else:  # a separate noise variance for each sample, divided by one minus its leverage (HC2)
        slack = 1 - np.einsum("ni,ni->n", X, directions)
        noise = (directions**2).T @ (residuals**2 / np.maximum(slack, 1e-12))
        K, free, _, H = curvature
        T = inverse @ K
        response_of = np.empty(data.dim)  # vᵀM x_i divided by the squared norm of the residual
        response_of[free] = np.einsum("ij,ji->i", T[np.ix_(free, free)], H) / np.diag(H)
        cross = T[np.ix_(~free, free)] @ H
        response_of[~free] = np.diag(T)[~free] - np.einsum("ij,ji->i", cross, K[np.ix_(free, ~free)])
        factor = 1 / np.where(law.used, response_of, 1.0)
        step, noise = step * factor, noise * factor**2
    return Q + step[:, None], np.where(law.used, noise, np.inf)[:, None, None], dof


def _independent(
    data: Dataset, gamp: Any, at: RiskAtPoint, Q: np.ndarray, law: _ColumnLaw, curvature: _Curvature | None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return w = Q + A⁻¹(X̃ᵀg − means) with the precisions A_i of independent columns, see `_orthogonal`."""
    g, d = -at.loss_gradients, data.dim
    pull = -at.smooth - data.source_means.T @ sum_over_tokens(data.groups, data.n_sources, g) / np.sqrt(d)
    squares = np.einsum("nl,nla,nlb->nlab", law.sizes, g, g)
    N = np.einsum("si,sab->iab", law.variances, sum_over_tokens(data.groups, data.n_sources, squares)) / d
    dof = np.inf
    if curvature is None:
        V = gamp.overlaps.V
        V = V if np.isfinite(V).all() else susceptibility(data, at, Q)
        A = symmetrize(np.einsum("si,sab->iab", law.variances, hessian_response(data, at.hessians, V)))
        if has_kinks(at.loss, at.params):  # number of directions of a column that no kink holds
            held = np.einsum("nii->", at.hessians) / (STIFF * data.penalty.strength)
            dof = max(1.0, float(on_kinks(data.penalty, Q, at.smooth)[1].sum() - held) / data.rank)
    else:
        K, free, penalty, H = curvature
        A, cross = np.zeros((d, 1, 1)), K[np.ix_(~free, free)]
        A[free, 0, 0] = 1 / np.diag(H) - penalty[free]  # the Schur complement
        A[~free, 0, 0] = np.diag(K)[~free] - np.einsum("ij,jk,ik->i", cross, H, cross, optimize=True)
        dof = _noise_dof(data, at, law, curvature)
    A[~law.used] = np.eye(data.rank)
    values = np.linalg.eigvalsh(A) if np.isfinite(A).all() else np.full((1, 1), -1.0)
    if (values < -FLAT * values[:, -1:]).any() or (values[:, -1] <= 0).any():
        needs = "weights at which the response of the fields is positive definite"
        raise ValueError(f"gamp: needs {needs}, got negative values")
    # zero along common shifts of the columns, which do not change a multinomial loss
    inverse = np.linalg.pinv(A, rcond=FLAT, hermitian=True)
    weights = Q + np.einsum("iab,ib->ia", inverse, pull)
    return weights, np.where(law.used[:, None, None], inverse @ N @ inverse, np.inf), dof


def _noise_dof(data: Dataset, at: RiskAtPoint, law: _ColumnLaw, curvature: _Curvature) -> float:
    """Return (tr M)²/tr M², the number of directions in which independent noise of the forces has its variance.

    M = S(D − D X̃ H⁻¹X̃ᵀD)S for rows of sizes S². It is small if the fit almost interpolates the labels. The block of
    rows at kinks, where D is very large, is S(D⁻¹ + X̃ B⁻¹X̃ᵀ)⁻¹S with the Hessian B without these rows.
    """
    if data.n_tokens > 1:
        return np.inf
    x = np.concatenate([x[:, 0] for _, x in scaled_blocks(data)])[:, curvature.free]
    D, size, inverse = at.hessians[:, 0, 0].copy(), law.sizes[:, 0], curvature.inverse
    stiffness = STIFF * data.penalty.strength
    kink = np.flatnonzero((stiffness <= D) & has_kinks(at.loss, at.params))
    D[kink] = 0.0
    leverage, products = np.einsum("ni,ni->n", x @ inverse, x), x.T @ ((size * D**2)[:, None] * x)
    second = inverse @ products
    trace = np.sum(size * D * (1 - leverage * D))
    square = np.sum(size**2 * D**2 * (1 - 2 * leverage * D)) + np.einsum("ij,ji->", second, second)
    B = x.T @ (D[:, None] * x) + np.diag(curvature.penalty[curvature.free] + data.penalty.strength / STIFF)
    spread, S = np.linalg.solve(B, x[kink].T), np.sqrt(size[kink])
    block = S[:, None] * np.linalg.inv(x[kink] @ spread + np.eye(len(kink)) / stiffness)
    trace += np.sum(np.diag(block) * S)
    square += np.sum((block * S) ** 2) + 2 * np.sum((block @ (spread.T @ products @ spread)) * block)
    return float(trace**2 / max(square, 1e-300))
