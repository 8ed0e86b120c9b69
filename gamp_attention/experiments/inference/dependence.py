"""Detection of samples that depend on their neighbors in the order of the arrays, such as time series.

Leave-one-out assumes that samples are exchangeable. If a sample resembles its neighbors (successive times, or several
measurements of one subject), weights that are trained without the sample still depend on similar samples, and its
error is too low for a new time or a new subject. The errors of samples under weights trained without a block of
successive samples are therefore compared with their errors under weights trained without blocks of random samples of
equal size. If samples are exchangeable, the division into blocks of successive samples is one of the random divisions
(a permutation test). Errors follow from one Newton step without the block, eq. :eq:`leave-one-out` with all fields of
the block in place of the fields of a sample.
"""

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint
from gamp_attention.experiments.inference.hessian import FactoredHessian, TokenRows
from gamp_attention.experiments.inference.refits import sample_errors

BLOCKS = 10  # number of blocks; a block has a tenth of the samples, or fewer samples if there are many
FIELDS = 1000  # maximum number of fields in all blocks; a division takes a time in proportion to its cube
RANDOM = 20  # number of random divisions of the samples into blocks
# relative increase of the mean of the square roots of errors from which samples count as dependent; the mean error
# increases by about twice as much, but depends more on a few large errors
MINIMUM = 0.015
MAXIMUM = 4.0  # the same increase above which the Newton step without a block is not a valid approximation
SIGNIFICANT = 4.5  # the same increase in standard deviations over random divisions: a probability of 0.0001 by chance
FEW_CLASSES = 20  # maximum number of different labels that count as classes


def order_effect(data: Dataset, at: RiskAtPoint, tokens: TokenRows, H: FactoredHessian) -> float:
    """Return the relative increase of the errors if neighbors of a sample are left out too; 0 if it is insignificant.

    Parameters
    ----------
    data, at : the samples, and their exact risk at a minimum.
    tokens, H : the tokens, and the factored Hessian in their coordinates.
    """
    k = data.n_tokens * data.rank
    size = min(data.n_samples, FIELDS // k) // BLOCKS
    if size < 2 or H.size == 0 or _is_sorted_by_label(data):
        return 0.0
    starts = np.linspace(0, data.n_samples - size, BLOCKS).round().astype(int)
    blocks = starts[:, None] + np.arange(size)
    samples = np.unique(blocks)
    columns = H.columns(tokens.of_samples(samples)).reshape(H.size, len(samples), k)
    whitened = H.whiten(np.ascontiguousarray(columns.reshape(H.size, -1))).reshape(columns.shape)

    def means_without(parts: np.ndarray) -> tuple[float, float]:
        """Return the means of errors without their block, and of their square roots.

        `parts` (BLOCKS, size) are indices into `samples`.
        """
        errors = np.array(
            [_errors_without(data, at, samples[rows], columns[:, rows], whitened[:, rows], H) for rows in parts]
        )
        return float(errors.mean()), float(np.sqrt(np.maximum(errors, 0.0)).mean())

    rng = np.random.default_rng(0)
    divisions = [rng.permutation(len(samples))[: blocks.size].reshape(blocks.shape) for _ in range(RANDOM)]
    successive = np.array(means_without(np.searchsorted(samples, blocks)))
    random = np.array([means_without(division) for division in divisions])
    usual, spread = random.mean(axis=0), random.std(axis=0, ddof=1)
    mean, root = successive - usual
    is_large = max(SIGNIFICANT * spread[1], MINIMUM * usual[1]) < root < MAXIMUM * usual[1]
    return float(mean / usual[0]) if is_large and mean > 0 else 0.0


def _errors_without(
    data: Dataset, at: RiskAtPoint, rows: np.ndarray, columns: np.ndarray, whitened: np.ndarray, H: FactoredHessian
) -> np.ndarray:
    """Return the errors (m,) of the samples of a block after a Newton step without the block."""
    m, k = len(rows), columns.shape[2]
    A = H.leverages(columns.reshape(H.size, -1), whitened.reshape(H.size, -1), m * k)[0]
    D = np.zeros((m, k, m, k))
    D[np.arange(m), :, np.arange(m), :] = at.hessians[rows]
    g = -at.loss_gradients[rows].ravel()
    try:
        shifts = np.linalg.solve(np.eye(m * k) - A @ D.reshape(m * k, m * k), A @ g)
    except np.linalg.LinAlgError:  # only this block determines some weights
        return np.full(m, np.nan)
    return sample_errors(data, at.z[rows] - shifts.reshape(at.z[rows].shape), rows)


def _is_sorted_by_label(data: Dataset) -> bool:
    """Return whether the samples are sorted by their labels, so that their order is no sign of dependence."""
    if data.labels is None:
        return False
    labels = data.labels.reshape(data.n_samples, -1)
    if labels.shape[1] > 1:
        return False
    steps = np.diff(labels[:, 0])
    if len(np.unique(labels)) <= FEW_CLASSES:
        return bool(np.count_nonzero(steps) < len(steps) / 4)
    return bool((steps >= 0).all() or (steps <= 0).all())
