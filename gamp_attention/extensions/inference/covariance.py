"""Covariance of the errors of different samples, which is a part of the standard error of their mean.

The errors of two samples, each under weights trained without it, are correlated, because each sample was in the
training set of the other. With Δ_μν the change of the error of sample μ if sample ν is left out too, their covariance
about the error of the weights on new data is the mean of Δ_μν Δ_νμ (Bayle et al. (2020)), eq. :eq:`loo-variance`.

Δ is computed for all pairs of some random samples (`select_paired`). The sum over all samples is estimated as a ratio:
Δ_μν Δ_νμ is roughly proportional to s_μ s_ν, with sizes s of the samples that are known for all of them, so that the
ratio of the two sums varies less from pair to pair than their difference.
"""

import numpy as np

from gamp_attention.extensions.inference.hessian import FactoredHessian, TokenRows, factored_hessian
from gamp_attention.extensions.inference.refits import Refitter
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.risk import RiskAtPoint, risk_at


def select_paired(n: int, count: int = 64) -> np.ndarray:
    """Return the `count` random samples whose pairs are computed: the same samples for all values of a path."""
    return np.random.default_rng(0).permutation(n)[:count]


def error_unit(data: Dataset) -> float:
    """Return the error of a sample in units of its loss."""
    return 1.0 if data.is_labelled else 2 / data.n_tokens


def scale_changes(
    changes: np.ndarray, sizes: np.ndarray, samples: np.ndarray, groups: np.ndarray | None = None
) -> np.ndarray:
    """Return changes (m, m) of the errors of some samples (m,), scaled so that `sum_products` is the variance.

    `changes` are the changes of the error of sample i if sample j is left out too, `sizes` (n,) the sizes of all
    samples, and `groups` (n,) numbers of groups that are left out together, whose pairs do not count.
    """
    n = len(sizes)
    groups = np.arange(n) if groups is None else groups
    others = groups[samples][:, None] != groups[samples]
    squares = np.bincount(groups, weights=sizes) ** 2
    computed = float(np.sum(np.outer(sizes[samples], sizes[samples])[others]))  # Σ s_μ s_ν over the pairs of `changes`
    total = float(sizes.sum() ** 2 - squares.sum())  # the same sum over all pairs
    factor = np.sqrt(total / computed) / n if computed > 0 and total > 0 else 0.0
    return np.where(others, factor * changes, 0.0)


def sum_products(first: np.ndarray, second: np.ndarray) -> float:
    """Return Σ_ij Δ_ij Δ'_ji of two matrices of scaled changes: a covariance of two mean errors.

    If the matrices differ in size, they have the first samples in common.
    """
    m = min(len(first), len(second))
    return float(np.sum(first[:m, :m] * second[:m, :m].T))


def leave_one_out_changes(
    data: Dataset, at: RiskAtPoint, Q: np.ndarray, fields: np.ndarray, tokens: TokenRows, H: FactoredHessian | None
) -> np.ndarray:
    """Return the scaled changes (m, m) of errors at a minimum Q, given the fields (n, L, r) without each sample.

    The changes are f_iᵀ (H_∖i)⁻¹ f_j with the forces f = X̃ᵀ∇ℓ, and the sizes of the samples are
    s_μ = |∇ℓ_μ·(z_∖μ − z_μ)|, which is Δ_μμ to first order.
    """
    samples = select_paired(data.n_samples)
    slopes = sample_derivatives(at.loss, at.params, fields)[1]
    sizes = np.abs(np.einsum("nla,nla->n", slopes, fields - at.z))
    responses = Refitter().responses_without(data, at, Q, samples, fields[samples], tokens, H)
    changes = np.einsum("pai,mlp,mla->im", responses, tokens.of_samples(samples), slopes[samples], optimize=True)
    return scale_changes(error_unit(data) * changes, sizes, samples)


def fold_changes(
    data: Dataset, rows: np.ndarray, Q: np.ndarray, samples: np.ndarray, max_factored: int = 2000
) -> np.ndarray:
    """Return the changes (m, m) of errors of cross-validation: of sample i if sample j is left out too.

    Only the entries of samples i that are left out and of samples j that train the weights are not zero: to first
    order, ∇ℓ_iᵀ X̃_i (H_∖j)⁻¹ X̃_jᵀ ∇ℓ_j. The samples `rows` (k,), in ascending order, train the weights Q (d, r); the
    Hessian of at most `max_factored` weights is factored.
    """
    part = data.select_rows(rows)
    at, tokens = risk_at(part, Q, "exact"), TokenRows(part)
    trained = np.isin(samples, rows)
    local, x = np.searchsorted(rows, samples[trained]), TokenRows(data).of_samples(samples)
    H = factored_hessian(part, at, Q, tokens) if Q.size <= max_factored else None
    responses = Refitter().responses_without(part, at, Q, local, at.z[local], tokens, H)  # the changes of the weights
    new = x[~trained]
    slopes = sample_derivatives(at.loss, data.terms("exact").params[samples[~trained]], new @ Q)[1]
    changes = np.zeros((len(samples), len(samples)))
    changes[np.ix_(~trained, trained)] = np.einsum("paj,mlp,mla->mj", responses, new, slopes, optimize=True)
    return error_unit(data) * changes
