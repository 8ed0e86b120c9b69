"""Weights without the bias of the penalty, with standard deviations, and tests of the assumptions of the intervals.

Column i of the tokens enters the forces g (minus the gradients of the losses in the fields) of all samples twice: by
the teacher's weight, on which the labels depend, and by the trained weight. If the other weights are trained again for
each value of the trained weight, the forces change by −M x_i per unit. So a direction v that is independent of the
contribution of the other columns to g gives

    w_i = Q_i + vᵀg / vᵀM x_i

without the bias of the penalty: the debiased lasso for any loss (Zhang and Zhang, 2014; Bellec and Zhang, 2022). Two
directions are used:

- independent columns: v = x_i, and x_iᵀM x_i = 1/(H⁻¹)_ii − r''_i by the Schur complement, H being the Hessian of the
  risk. Its limit for d → ∞ is A = γ V̂, and w is the value b/A of the input denoiser.
- correlated columns and more samples than columns: v is the residual of x_i in a linear regression on the other columns
  (van de Geer et al., 2014; Javanmard and Montanari, 2014). For the squared loss this is ordinary least squares.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows, format_to_error
from gamp_attention._tools.numerics import guard_call, one_thread, symmetrize
from gamp_attention.extensions.inference.hessian import has_squared_loss
from gamp_attention.extensions.inference.leave_one_out import leave_one_out, require_trained
from gamp_attention.problem.curvature import data_hessian, scaled_blocks
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.penalties.standard import on_kinks
from gamp_attention.problem.risk import RiskAtPoint, is_convex
from gamp_attention.problem.sources import by_group, sum_over_tokens
from gamp_attention.problem.stores import token_blocks
from gamp_attention.problem.susceptibility import hessian_response, susceptibility
from gamp_attention.results import Result

DEPENDENT = 1e-9  # minimum eigenvalue of the correlation matrix of linearly independent columns
FLAT = 1e-6  # eigenvalue of the response, relative to the largest, of a direction that changes no loss


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
    trusted : whether training ended in a minimum and no assumption of the intervals is violated.
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
        from scipy.special import stdtrit

        level = check.real("level", level, low=0, high=1, strict=True)
        if level == 1:
            raise check.fail("level", level, "a probability below 1")
        reach = stdtrit(self.dof, 0.5 + 0.5 * level) * self.std
        return np.stack([self.weights - reach, self.weights + reach], axis=-1)

    @property
    def p_values(self) -> np.ndarray:
        """(d, r) probabilities that noise alone is as large as the weight or larger; uniform for zero weights of Q*."""
        from scipy.special import stdtr

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
    method = DebiasMethod()
    law = method.column_law(data)
    unreliable = _unreliable_training(data, gamp)
    with one_thread():
        curvature = method.curvature(data, at, Q)
        estimate = _independent(data, gamp, at, Q, law, curvature)
        reasons = method.refusals(data, law, estimate.dof)
        exact = law.correlation > method.significant or estimate.dof < method.effective or law.fewest < method.fewest
        if curvature is not None and exact:
            inverse = method.inverse_products(data, law)
            if inverse is not None:
                estimate, reasons = method.orthogonal(data, at, Q, curvature[0], law, inverse)
        reasons = unreliable + reasons
        if has_squared_loss(data) and curvature is not None:
            reasons += method.nonlinearity(data, at, curvature)
        if estimate.form == "independent" and _is_regression(data) and curvature is not None:
            X = np.concatenate([x[:, 0] for _, x in scaled_blocks(data)])
            size = np.sqrt(np.maximum(law.sizes, 1e-300))  # (n, 1)
            # rows of large norm have smaller residuals, and sizes depend on columns that are not Gaussian: the noise
            # depends on a column only if both tests show it
            if dependence := method.noise_along_columns(X / size, size * at.loss_gradients[:, 0]):
                reasons += method.noise_along_columns(X, at.loss_gradients[:, 0]) and dependence
    weights, covariance, dof, form = estimate
    text = {"independent": "columns without correlations", "orthogonal": "each column orthogonal to the others"}
    message = text[form] + ("; not to be trusted: " + "; ".join(reasons) if reasons else "")
    std = np.sqrt(np.einsum("iaa->ia", covariance)) * np.ones(Q.shape)
    return DebiasedWeights(weights, std, covariance, not reasons, message, form, dof)


class _NoisyWeights(NamedTuple):
    """Weights (d, r), the covariances (d, r, r) of their noise, its degrees of freedom, and the form."""

    weights: np.ndarray
    covariance: np.ndarray
    dof: float
    form: str


class _Curvature(NamedTuple):
    """Second derivatives among the weights of one column of Q."""

    samples: np.ndarray  # (d, d) X̃ᵀ∇²ℓ X̃
    free: np.ndarray  # (d,) True for weights that are not at a kink
    penalty: np.ndarray  # (d,) r''
    inverse: np.ndarray  # inverse Hessian of the free weights


def _is_regression(data: Dataset) -> bool:
    """Return whether the loss is squared and samples are single rows."""
    return has_squared_loss(data) and data.n_tokens == 1


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


@dataclass(frozen=True, eq=False)
class _ColumnLaw:
    """Moments of the columns of the tokens, after subtraction of the mean of each source.

    `variances` (S, d) are mean squares; `sizes` (n, L) the mean square of each token in units of these; `correlation`
    the excess of squared correlations between columns over chance, in standard errors; `between_tokens` the largest
    correlation between two tokens of a sample, in standard errors; `fewest` the smallest effective number of samples
    of a column, (Σx²)²/Σx⁴ for tokens divided by their sizes, which is 2 for a dummy variable of two samples.
    """

    variances: np.ndarray
    sizes: np.ndarray
    correlation: float
    between_tokens: float
    fewest: float

    @property
    def used(self) -> np.ndarray:
        """(d,) True for columns that vary; the weights of the other columns cannot be estimated."""
        return self.variances.min(axis=0) > 1e-90


@dataclass(frozen=True)
class DebiasMethod:
    """Settings of `debias`: limits of the sizes of matrices, and of the tests of the assumptions."""

    dense: int = 3000  # maximum number of weights for which matrices of this size are inverted
    significant: float = 4.0  # standard errors beyond which an assumption counts as violated
    columns: int = 600  # maximum number of columns, chosen at random, that are tested for correlations
    products: float = 4e9  # maximum number of multiplications in the test of correlations, which limits its samples
    unequal: float = 0.5  # relative standard deviation of token sizes beyond which non-convex losses are not trusted
    free: int = 5  # minimum excess of samples over columns for a regression on all columns
    nonlinear: float = 3.5  # standard errors beyond which labels count as nonlinear in the fields
    chance: float = 1e-3  # probability that independent noise counts as dependent on a column
    large: float = 3.0  # size, in units of the mean, at which entries and noise are cut off in this test
    effective: float = 12.0  # effective degrees of freedom of the noise below which its size is not known well enough
    fewest: float = 5.0  # effective number of samples of a column below which the noise of its weight is no average
    per_column: float = 2.0  # minimum number of samples per column for correlated columns, if the loss is not squared
    per_weight: float = 1.5  # minimum number of samples per weight for losses that are not convex, for attention

    def column_law(self, data: Dataset) -> _ColumnLaw:
        """Estimate the moments of the columns in two passes over the tokens."""
        n, L, d, S = data.n_samples, data.n_tokens, data.dim, data.n_sources
        owners = by_group(data.groups, lambda rows, s: np.broadcast_to(s, (rows.stop - rows.start, L)))
        squares = np.zeros((S, d))
        for rows, _, x in token_blocks(data.tokens):
            centered = x + data.positions - data.source_means[owners[rows]]
            for l in range(L):
                np.add.at(squares, owners[rows, l], centered[:, l] ** 2)
        counts = np.bincount(owners.ravel(), minlength=S)[:, None]
        variances = np.maximum(squares / np.maximum(counts, 1), 1e-300)
        deviations = np.sqrt(variances)
        used = np.flatnonzero(variances.min(axis=0) > 1e-90)
        d = max(len(used), 1)
        used = np.random.default_rng(0).permutation(used)[: self.columns]
        sizes, products, tokens = np.empty((n, L)), np.zeros((len(used), len(used))), np.zeros((L, L))
        fourths = np.zeros(len(used))
        limit, seen = int(max(1000.0, self.products / max(len(used), 1) ** 2 / L)), 0
        for rows, _, x in token_blocks(data.tokens):
            units = (x + data.positions - data.source_means[owners[rows]]) / deviations[owners[rows]]
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

    def curvature(self, data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> list[_Curvature] | None:
        """Return the second derivatives of each column, or None if the limit d → ∞ of the response is used instead.

        The limit is used for too many weights, for losses that are not convex (their proximal maps bend between the
        fields with and without a column), and if the columns of Q are coupled, which they are not for the squared loss.
        """
        if Q.size > self.dense or not is_convex(data) or (data.rank > 1 and not _is_regression(data)):
            return None
        d, columns = data.dim, []
        _, movable, penalty = on_kinks(data.penalty, Q, at.smooth)
        whole = data_hessian(scaled_blocks(data), at.hessians, (np.arange(d),) * data.rank)
        for a in range(data.rank):
            K, free = whole[a * d : (a + 1) * d, a * d : (a + 1) * d], movable[:, a] > 0
            inverse = np.linalg.inv(K[np.ix_(free, free)] + np.diag(penalty[free, a]))
            columns.append(_Curvature(K, free, penalty[:, a], inverse))
        return columns

    def refusals(self, data: Dataset, law: _ColumnLaw, dof: float) -> list[str]:
        """Return the violated assumptions of independent columns, as clauses of the message."""
        reasons = []
        if law.correlation > self.significant:
            if data.n_tokens > 1:
                handled = "which is handled for samples of one token only"
            elif data.n_samples < law.used.sum() + self.free:
                handled = f"which needs more samples than columns: {data.n_samples} for {law.used.sum()}"
            else:
                allowed = f"convex losses of one field and up to {self.dense} linearly independent columns"
                handled = f"which is handled for {allowed} only"
            reasons.append(f"columns are correlated ({law.correlation:.0f} standard errors above chance), {handled}")
        if dof < self.effective:
            needed = f"{self.effective:g} are needed"
            reasons.append(f"training errors have {dof:.3g} effective degrees of freedom, {needed}")
        if not is_convex(data):
            unequal, ratio = float(law.sizes.std() / law.sizes.mean()), data.n_samples / (data.dim * data.rank)
            if unequal > self.unequal:
                reasons.append(f"sizes of tokens vary by {unequal:.2g} of their mean, and the loss is not convex")
            if ratio < self.per_weight:
                needed = f"{self.per_weight:g} samples per weight"
                reasons.append(f"a loss that is not convex needs {needed}, got {ratio:.2g}")
        if data.n_tokens > 1 and law.between_tokens > self.significant:
            reasons.append("the tokens of a sample are correlated with each other")
        return reasons

    def inverse_products(self, data: Dataset, law: _ColumnLaw) -> np.ndarray | None:
        """Return G⁻¹ (d, d), G = X̃ᵀX̃, or None if columns cannot be regressed on each other.

        Columns that do not vary have rows of zeros.
        """
        if data.n_tokens > 1 or data.n_samples < law.used.sum() + self.free:
            return None
        G = np.zeros((data.dim, data.dim))
        for _, x in scaled_blocks(data):
            G += x[:, 0].T @ x[:, 0]
        size = np.sqrt(np.where(law.used, np.diag(G), np.inf))
        units = G[np.ix_(law.used, law.used)] / np.outer(size[law.used], size[law.used])
        if np.linalg.eigvalsh(units)[0] < DEPENDENT:
            return None
        inverse = np.zeros(G.shape)
        inverse[np.ix_(law.used, law.used)] = np.linalg.inv(units)
        return inverse / np.outer(size, size)

    def orthogonal(
        self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, first: _Curvature, law: _ColumnLaw, inverse: np.ndarray
    ) -> tuple[_NoisyWeights, list[str]]:
        """Return weights by the part of each column that is orthogonal to the other columns, and violated assumptions.

        `first` is the curvature of the first column of Q, and `inverse` is G⁻¹; the residual of column i of the tokens
        is X̃G⁻¹e_i/(G⁻¹)_ii.
        """
        n, d, r = data.n_samples, int(law.used.sum()), data.rank
        X = np.concatenate([x[:, 0] for _, x in scaled_blocks(data)])
        g = -at.loss_gradients[:, 0]  # (n, r)
        step = inverse @ (X.T @ g)
        residuals = g - X @ step  # (n, r), orthogonal to all columns
        directions = X @ inverse  # (n, d): column i is the residual of x_i divided by its squared norm
        if _is_regression(data):
            noise = np.diag(inverse)[:, None, None] * (residuals.T @ residuals) / (n - d)
        else:  # a separate noise variance for each sample, divided by one minus its leverage (HC2)
            slack = 1 - np.einsum("ni,ni->n", X, directions)
            scaled = residuals / np.maximum(slack, 1e-12)[:, None]
            noise = np.einsum("ni,na,nb->iab", directions**2, scaled, residuals, optimize=True)
        factor, reasons = np.ones((data.dim, r)), []
        if not _is_regression(data):
            K, free, _, H = first
            T = inverse @ K
            response_of = np.empty(data.dim)  # vᵀM x_i divided by the squared norm of the residual
            response_of[free] = np.einsum("ij,ji->i", T[np.ix_(free, free)], H) / np.diag(H)
            cross = T[np.ix_(~free, free)] @ H
            response_of[~free] = np.diag(T)[~free] - np.einsum("ij,ji->i", cross, K[np.ix_(free, ~free)])
            factor = 1 / np.where(law.used, response_of, 1.0)[:, None]
            if n < self.per_column * d:
                needed = f"{self.per_column:g} samples per column"
                reasons.append(f"columns are correlated, which needs {needed}, got {n / d:.2g}")
        else:
            reasons += self._unequal_noise(X, directions, residuals, X @ (Q + step))
        covariance = np.where(law.used[:, None, None], noise * factor[:, :, None] * factor[:, None, :], np.inf)
        return _NoisyWeights(Q + step * factor, covariance, float(n - d), "orthogonal"), reasons

    def _unequal_noise(
        self, X: np.ndarray, directions: np.ndarray, residuals: np.ndarray, fields: np.ndarray
    ) -> list[str]:
        """Return the reason, if any, that residuals of least squares depend on a column, the fields or row sizes."""
        slack = 1 - np.einsum("ni,ni->n", X, directions)
        noise = residuals / np.sqrt(np.maximum(slack, 1e-12))[:, None]
        reasons = self.noise_along_columns(X, noise)
        if reasons:
            return reasons
        squares = noise**2
        for a in range(residuals.shape[1]):
            for other in (fields[:, a], fields[:, a] ** 2, slack):
                if _association(squares[:, a] - squares[:, a].mean(), other - other.mean()) > self.significant:
                    return ["the noise of the labels depends on the sample"]
        return []

    def noise_along_columns(self, X: np.ndarray, noise: np.ndarray) -> list[str]:
        """Return the reason, if any, that the size of the noise (n, r) depends on a column of rows X (n, d).

        If it grows with the absolute value of an entry, or changes with its sign, intervals of the weight of this
        column are too short. The largest correlation is compared with its quantile for independent noise, and if it is
        larger, with correlations after random permutations of the noise. Outliers are cut off.
        """
        from scipy.special import ndtri

        limits = self.large * np.abs(X).mean(axis=0)
        entries = np.clip(X, -limits, limits)
        of_entries = np.concatenate([_center(np.abs(entries)), _center(entries)], axis=1)
        sizes = np.abs(noise)
        sizes = _center(np.minimum(sizes, self.large * sizes.mean(axis=0))).T
        correlations = np.abs(sizes @ of_entries)
        # for independent noise, a correlation is a standard normal number over √n, unless few samples determine a
        # column
        if correlations.max(initial=0.0) <= -ndtri(self.chance / max(3 * correlations.size / 2, 1)) / np.sqrt(len(X)):
            return []
        rng = np.random.default_rng(0)
        count = int(np.clip(self.products / max(correlations.size * len(X), 1), 0.1 / self.chance, 1 / self.chance))
        for _ in range(count):
            if np.abs(rng.permuted(sizes, axis=1) @ of_entries).max() >= correlations.max():
                return []
        return [f"the noise of the labels depends on column {int(correlations.max(axis=0).argmax()) % X.shape[1]}"]

    def nonlinearity(self, data: Dataset, at: RiskAtPoint, curvature: list[_Curvature]) -> list[str]:
        """Return the reason, if any, that left-out errors depend on powers of their predictions.

        The RESET test of Ramsey (1969), applied to leave-one-out errors and predictions.
        """
        X = np.concatenate([x.reshape(len(x), -1) for _, x in scaled_blocks(data)])
        for a in range(data.rank if data.n_tokens == 1 else 0):
            _, free, _, inverse = curvature[a]
            leverage = np.einsum("ni,ij,nj->n", X[:, free], inverse, X[:, free], optimize=True)
            error = -at.loss_gradients[:, 0, a] / np.maximum(1 - leverage, 1e-12)
            z = at.z[:, 0, a] - leverage * error
            regressors = np.stack([np.ones(len(z)), z / np.maximum(np.abs(z).max(), 1e-300)], axis=1)
            error = error - regressors @ np.linalg.lstsq(regressors, error, rcond=None)[0]
            for power in (2, 3):
                part = regressors[:, 1] ** power
                part = part - regressors @ np.linalg.lstsq(regressors, part, rcond=None)[0]
                if _association(error, part) > self.nonlinear:
                    effect = "weights are coefficients of the best linear prediction"
                    return [f"labels are not linear in the fields: {effect}"]
        return []


def _independent(
    data: Dataset, gamp: Any, at: RiskAtPoint, Q: np.ndarray, law: _ColumnLaw, curvature: list[_Curvature] | None
) -> _NoisyWeights:
    """Return w = Q + A⁻¹(X̃ᵀg − means) with the effective precisions A_i of independent columns."""
    g, d = -at.loss_gradients, data.dim
    forces = sum_over_tokens(data.groups, data.n_sources, g)
    pull = -at.smooth - data.source_means.T @ forces / np.sqrt(d)
    squares = np.einsum("nl,nla,nlb->nlab", law.sizes, g, g)
    N = np.einsum("si,sab->iab", law.variances, sum_over_tokens(data.groups, data.n_sources, squares)) / d
    dof = np.inf
    if curvature is None:
        V = gamp.overlaps.V
        V = V if np.isfinite(V).all() else susceptibility(data, at, Q)
        A = np.einsum("si,sab->iab", law.variances, hessian_response(data, at.hessians, V))
    else:
        A = np.zeros((d, data.rank, data.rank))
        for a, (K, free, penalty, H) in enumerate(curvature):  # curvature after minimizing over the other free weights
            A[free, a, a] = 1 / np.diag(H) - penalty[free]  # the Schur complement
            cross = K[np.ix_(~free, free)]
            A[~free, a, a] = np.diag(K)[~free] - np.einsum("ij,jk,ik->i", cross, H, cross, optimize=True)
        dof = _noise_dof(data, at, law, curvature)
    A = symmetrize(A)
    A[~law.used] = np.eye(data.rank)
    inverse = _inverse_response(A)
    N[~law.used] = np.inf
    weights = Q + np.einsum("iab,ib->ia", inverse, pull)
    covariance = inverse @ np.where(np.isinf(N), 0.0, N) @ inverse
    return _NoisyWeights(weights, np.where(np.isinf(N), N, covariance), dof, "independent")


def _inverse_response(A: np.ndarray) -> np.ndarray:
    """Return the inverses of A (d, r, r), zero along columns' common shifts that do not change a multinomial loss."""
    if np.isfinite(A).all():
        values, vectors = np.linalg.eigh(A)
        small = FLAT * values[:, -1:]
        if (values >= -small).all() and (values[:, -1] > 0).all():
            inverse = np.where(values > small, 1 / np.where(values > small, values, 1.0), 0.0)
            return np.einsum("iab,ib,icb->iac", vectors, inverse, vectors)
    needs = "weights at which the response of the fields is positive definite"
    raise ValueError(f"gamp: needs {needs}, got negative values")


def _noise_dof(data: Dataset, at: RiskAtPoint, law: _ColumnLaw, curvature: list[_Curvature]) -> float:
    """Return (tr M)²/tr M², the number of directions in which independent noise of the forces has its variance.

    M = S(D − D X̃ H⁻¹X̃ᵀD)S for rows of sizes S². It is small if the fit almost interpolates the labels.
    """
    minimum = np.inf
    if data.n_tokens > 1:
        return minimum
    X = np.concatenate([x[:, 0] for _, x in scaled_blocks(data)])
    for a, (_, free, _, inverse) in enumerate(curvature):
        D, size = at.hessians[:, a, a], law.sizes[:, 0]
        x = X[:, free]
        leverage = np.einsum("ni,ni->n", x @ inverse, x)
        second = inverse @ (x.T @ ((size * D**2)[:, None] * x))
        trace = np.sum(size * D * (1 - leverage * D))
        square = np.sum(size**2 * D**2 * (1 - 2 * leverage * D)) + np.einsum("ij,ji->", second, second)
        minimum = min(minimum, float(trace**2 / max(square, 1e-300)))
    return minimum


def _center(values: np.ndarray) -> np.ndarray:
    """Return columns (n, k) minus their means, divided by their norms; zeros for constant columns."""
    centered = values - values.mean(axis=0)
    norm = np.linalg.norm(centered, axis=0)
    floor = 1e-9 * np.linalg.norm(values, axis=0)
    return np.divide(centered, norm, out=np.zeros(values.shape), where=norm > floor)


def _association(a: np.ndarray, b: np.ndarray) -> float:
    """Return |Σ a b| in standard errors, of samples with any variances."""
    return float(abs(a @ b) / np.maximum(np.sqrt((a**2) @ (b**2)), 1e-300))
