"""Reasons to doubt leave-one-out errors: many minima, few large samples, and samples that depend on each other.

Many minima (`has_many_minima`): from a minimum Q of the risk, a descent continues on half of the samples, and from its
end a descent on all samples, which returns to Q in a smooth landscape. If it ends in another minimum of about equal
risk, Q was selected among many because its risk is low for the training samples. Refits of single samples do not repeat
this selection, so that their errors are lower than the error of a new sample.

Few large samples (`has_few_large`): if errors increase with the norm of the tokens, and norms have a long tail, samples
that are larger than all of these contribute much to the error on new data.

Neighbors in the order of the arrays (`OrderTest`), such as a time series: if a sample resembles its neighbors, its
error is too low for a new time or a new subject. The errors of samples without a block of successive samples are
therefore compared with their errors without blocks of random samples: if samples are exchangeable, successive samples
are one of the random divisions (a permutation test). In samples that are sorted by classes, only samples of equal class
are exchanged. Errors follow from one Newton step without the block, as in eq. :eq:`leave-one-out`.

Copies in any order: exact copies are found by a hash (`repeated_fraction`), near copies by a gap in the distances to
other samples (`nearly_repeated`). Independent samples have such a gap with the probability q^(-kD) after the k-th
neighbor, for a ratio q of distances and tokens in D dimensions.
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention.extensions.inference.hessian import FactoredHessian, fields_without
from gamp_attention.extensions.inference.refits import sample_errors
from gamp_attention.gamp.descent import settle
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.risk import RiskAtPoint, risk_at, small_unit
from gamp_attention.problem.stores import hash_samples, token_blocks

# settings of `has_many_minima`: number of random divisions into two halves, each of which is left out once; gradient
# norms ‖∇R‖_F/(λ√d) at which the descents on half of the samples and on all samples end (rough minima)
DIVISIONS, AWAY, BACK = 2, 3e-2, 3e-3
OTHER = 0.02  # mean change of the samples' errors, relative to their mean, of another minimum, at least
EQUAL = 0.05  # excess of the risk, relative to the risk at Q, up to which another minimum counts
# norm of the weights, relative to Q, below which an end does not count: if the penalty of half of the samples sets all
# weights to zero, the second descent starts at a saddle
ZERO = 0.1


def has_many_minima(data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> bool:
    """Return whether descents on all samples, after half of them was left out, end in other minima than Q (d, r).

    `at` is the exact risk at Q. Minima are compared by the errors of the samples, which do not change if columns of Q
    are rotated.
    """
    unit = small_unit(data)
    errors, rng = sample_errors(data, at.z), np.random.default_rng(0)  # a fixed seed: equal halves along a path
    for _ in range(DIVISIONS):
        for half in np.array_split(rng.permutation(data.n_samples), 2):
            if not len(half):  # there is one sample only
                continue
            away = settle(data.select_rows(np.sort(half)), "exact", Q, AWAY * unit, max_steps=1000).Q
            weights = settle(data, "exact", away, BACK * unit, max_steps=1000).Q
            end = risk_at(data, weights, "exact")
            change = np.abs(sample_errors(data, end.z) - errors).sum() / max(np.abs(errors).sum(), 1e-300)
            is_low = end.train_loss < (1 + EQUAL) * at.train_loss
            if change > OTHER and is_low and np.linalg.norm(weights) >= ZERO * np.linalg.norm(Q):
                return True
    return False


def has_few_large(data: Dataset, errors: np.ndarray, of_errors: float = 0.15, of_tokens: float = 0.4) -> bool:
    """Return whether few samples have most of the error (n,), and few have most of the squared norm of the tokens.

    The effective number of samples, (Σv)²/Σv² for values v, is compared with these fractions of n.
    """
    squares = np.concatenate([np.einsum("nld,nld->n", x, x, dtype=float) for *_, x in token_blocks(data.tokens)])
    pairs = (errors, of_errors), (squares, of_tokens)
    return all(values.sum() ** 2 < fraction * len(values) * (values**2).sum() for values, fraction in pairs)


@dataclass(frozen=True)
class OrderTest:
    """Test whether samples depend on their neighbors in the order of the arrays, and its settings."""

    blocks: int = 10  # number of blocks; a block has a tenth of the samples, or fewer samples if there are many
    fields: int = 1000  # maximum number of fields in all blocks; a division takes a time in proportion to its cube
    # numbers of random divisions of the samples into blocks: at first, and in total if the increase is significant. If
    # few samples have large errors, the standard deviation over the first divisions may be too small
    random: tuple[int, int] = (20, 100)
    # relative increase of the mean of the square roots of errors from which samples count as dependent; the mean error
    # increases by about twice as much, but depends more on a few large errors
    minimum: float = 0.015
    significant: float = 4.5  # the same increase in standard deviations over random divisions; by chance in 1 of 10000
    few_classes: int = 20  # maximum number of different labels that count as classes

    def order_effect(self, data: Dataset, at: RiskAtPoint, H: FactoredHessian) -> float:
        """Return the relative increase of the errors if neighbors of a sample are left out too; 0 if insignificant."""
        k = data.n_tokens * data.rank
        size = min(data.n_samples, self.fields // k) // self.blocks
        classes = self._exchanged(data)
        if size < 2 or len(H.whitener) == 0 or classes is None:
            return 0.0
        blocks = np.linspace(0, data.n_samples - size, self.blocks).round().astype(int)[:, None] + np.arange(size)
        samples = np.unique(blocks)
        # X̃ H⁻¹ X̃ᵀ between the fields of all blocks
        leverages = H.leverages(data.matrix.rows_of(samples), len(samples) * k)[0].reshape(len(samples), k, -1, k)

        def means_without(parts: np.ndarray) -> np.ndarray:
            """Return the means of errors without their block, and of their roots; `parts` are indices of `samples`."""
            A = np.array([leverages[rows][:, :, rows].reshape(size * k, size * k) for rows in parts])
            rows = samples[parts]
            errors = sample_errors(data, fields_without(at, rows, A), rows.ravel())
            return np.array([errors.mean(), np.sqrt(np.maximum(errors, 0.0)).mean()])

        def draw_division() -> np.ndarray:
            """Return blocks in which each sample is replaced by a random sample of its class."""
            order = np.arange(len(samples))
            for kind in np.unique(kinds):
                of_kind = np.flatnonzero(kinds == kind)
                order[of_kind] = rng.permutation(of_kind)
            return order.reshape(blocks.shape)

        rng, kinds = np.random.default_rng(0), classes[samples]
        successive, random = means_without(np.searchsorted(samples, blocks)), list[np.ndarray]()
        for count in self.random:
            while len(random) < count:
                random.append(means_without(draw_division()))
            usual, spread = np.mean(random, axis=0), np.std(random, axis=0, ddof=1)
            mean, root = successive - usual
            if not (mean > 0 and root > max(self.significant * spread[1], self.minimum * usual[1])):
                return 0.0
        return float(mean / usual[0])

    def _exchanged(self, data: Dataset) -> np.ndarray | None:
        """Return the classes (n,) within which samples are exchanged: equal numbers, or sorted labels that are classes.

        None if the samples are sorted by numbers as labels, so that their order is no sign of dependence.
        """
        equal = np.zeros(data.n_samples)
        if data.labels is None or data.labels.size > data.n_samples:
            return equal
        labels = data.labels.ravel()
        steps = np.diff(labels)
        if len(np.unique(labels)) <= self.few_classes:  # neighbors mostly have the same class if samples are sorted
            return labels if np.count_nonzero(steps) < (len(labels) - 1) / 4 else equal
        return None if (steps >= 0).all() or (steps <= 0).all() else equal


def repeated_fraction(data: Dataset, minimum: float = 0.05, examples: int = 50) -> float:
    """Return the fraction of samples that repeat another sample, if it is above `minimum`; otherwise 0.

    Samples of a layer repeat another sample if their tokens are identical. Rows of categories with labels also repeat
    themselves in new data. They count if tokens and labels are identical, and either the labels, or two entries of the
    tokens, occur in no other sample; this is tested for at most `examples` repeated samples.
    """
    n = data.n_samples
    hashes = hash_samples(data.tokens)
    labels = np.zeros((n, 1, 1)) if data.labels is None else np.reshape(data.labels, (n, 1, -1))
    both = np.stack([hashes, hash_samples(labels)])
    _, first, group, sizes = np.unique(both, axis=1, return_index=True, return_inverse=True, return_counts=True)
    repeated = 1 - len(sizes) / n
    if data.labels is not None and repeated > minimum:
        chosen = first[np.random.default_rng(0).permutation(np.flatnonzero(sizes > 1))[:examples]]
        counts, tokens, unique = sizes[group[chosen]], np.asarray(data.tokens), []
        for sample, count in zip(chosen, counts, strict=True):
            entries = np.count_nonzero((tokens == tokens[sample]).sum(axis=0) == count)
            unique.append(entries >= 2 or np.count_nonzero((labels == labels[sample]).all(axis=2)) == count)
        repeated *= float(np.average(unique, weights=counts - 1))
    return repeated if repeated > minimum else 0.0


def nearly_repeated(
    data: Dataset, minimum: float = 0.2, copies: int = 10, gap: float = 3.0, compared: int = 200
) -> float:
    """Return the fraction of samples of a layer that have near copies, if it is above `minimum`; otherwise 0.

    A sample has near copies if the distances of its tokens to at most `copies` samples are `gap` times smaller than the
    distances to all others; at most `compared` samples are examined. As for equal samples, rows with labels are not
    examined. In one or two dimensions, independent samples often have such distances.
    """
    n, dimensions = data.n_samples, data.n_tokens * data.dim
    if data.labels is not None or n < copies + 2 or dimensions <= 2:
        return 0.0
    chosen = np.unique(np.linspace(0, n - 1, min(n, compared)).round().astype(int))
    queries = np.asarray(data.tokens)[chosen].reshape(len(chosen), -1).astype(float)
    mean = queries.mean(axis=0)
    queries -= mean
    nearest = np.empty((len(chosen), 0))
    for rows, _, block in token_blocks(data.tokens):
        for first in range(0, len(block), 1024):
            others = block[first : first + 1024].reshape(-1, dimensions) - mean
            squares = np.sum(queries**2, axis=1)[:, None] + np.sum(others**2, axis=1) - 2 * queries @ others.T
            squares[chosen[:, None] == rows.start + first + np.arange(len(others))] = np.inf  # the sample itself
            nearest = np.sort(np.concatenate([nearest, np.maximum(squares, 0.0)], axis=1), axis=1)[:, : copies + 1]
    fraction = float(np.mean((nearest[:, 1:] > gap**2 * nearest[:, :-1]).any(axis=1)))
    return fraction if fraction > minimum else 0.0
