"""Reasons to doubt leave-one-out errors: many minima, and samples that depend on each other.

Many minima (`HysteresisTest`): from a minimum Q of the risk, a descent continues on half of the samples, and from its
end a descent on all samples. In a smooth landscape the second descent returns to Q. If it ends in another minimum of
about equal risk, there are many minima, and Q was selected because its risk is low for the training samples. Refits of
single samples do not repeat this selection, so that their errors are lower than the error of a new sample. Another
minimum of much higher risk is no reason for doubt: half of the samples may be too few for the branch of a global
minimum.

Neighbors in the order of the arrays (`OrderTest`), such as a time series: if a sample resembles its neighbors, weights
that are trained without the sample still depend on similar samples, and its error is too low for a new time or a new
subject. The errors of samples under weights trained without a block of successive samples are therefore compared with
their errors under weights trained without blocks of random samples of equal size. If samples are exchangeable, the
division into blocks of successive samples is one of the random divisions (a permutation test). In samples that are
sorted by classes, only samples of equal class are exchanged, so that each random block has the numbers of samples of
the classes of the block of successive samples. Errors follow from one Newton step without the block, eq.
:eq:`leave-one-out` with all fields of the block in place of the fields of a sample. If they are so much larger that the
Newton step may be wrong, the weights are trained again without each block.

Copies in any order (`CopySearch`): exact copies are found by a hash. Near copies of samples (augmented samples, several
measurements of a subject) are found by their tokens: a sample has a few neighbors, and all other samples are several
times as far away. Independent samples have such a gap with the probability q^(-kD) after the k-th neighbor, for a ratio
q of distances and tokens in D dimensions (the volumes up to the neighbors are a Poisson process).
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention.extensions.inference.hessian import FactoredHessian, TokenRows, is_quadratic
from gamp_attention.extensions.inference.refits import descend_risk, sample_errors
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.risk import RiskAtPoint, risk_at
from gamp_attention.problem.stores import hash_samples, token_blocks


@dataclass(frozen=True)
class HysteresisTest:
    """Test for many minima, and its settings."""

    splits: int = 2  # number of random divisions of the samples into two halves; each half is left out once
    away: float = 3e-2  # gradient norm ‖∇R‖_F/(λ√d) at which the descents on half of the samples end: a rough minimum
    back: float = 3e-3  # gradient norm at which the descents on all samples end
    other: float = 0.02  # mean change of the samples' errors, relative to their mean, of another minimum, at least
    equal: float = 0.05  # excess of the risk, relative to the risk at Q, up to which another minimum counts
    # norm of the weights, relative to Q, below which an end does not count: if the penalty of half of the samples sets
    # all weights to zero, the second descent starts at a saddle
    zero: float = 0.1

    def has_many_minima(self, data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> bool:
        """Return whether descents on all samples, after half of them was left out, end in other minima than Q (d, r).

        `at` is the exact risk at Q. The samples are divided at random into two halves, `splits` times, and each half is
        left out once. Minima are compared by the errors of the samples, which do not change if columns of Q are
        rotated.
        """
        errors = sample_errors(data, at.z)
        rng = np.random.default_rng(0)  # a fixed seed: equal halves for all values of a path
        for _ in range(self.splits):
            for half in np.array_split(rng.permutation(data.n_samples), 2):
                if not len(half):  # there is one sample only
                    continue
                weights = continue_descent(
                    data, continue_descent(data.select_rows(np.sort(half)), Q, self.away), self.back
                )
                end = risk_at(data, weights, "exact")
                change = np.abs(sample_errors(data, end.z) - errors).sum() / max(np.abs(errors).sum(), 1e-300)
                is_low = end.train_loss < (1 + self.equal) * at.train_loss
                if change > self.other and is_low and np.linalg.norm(weights) >= self.zero * np.linalg.norm(Q):
                    return True
        return False


def continue_descent(data: Dataset, Q: np.ndarray, tol: float, max_steps: int = 1000) -> np.ndarray:
    """Return the end of a descent from Q (d, r) on the exact risk of the samples."""
    return descend_risk(data, lambda weights: risk_at(data, weights, "exact"), Q, tol, max_steps)


@dataclass(frozen=True)
class OrderTest:
    """Test whether samples depend on their neighbors in the order of the arrays, and its settings."""

    blocks: int = 10  # number of blocks; a block has a tenth of the samples, or fewer samples if there are many
    fields: int = 1000  # maximum number of fields in all blocks; a division takes a time in proportion to its cube
    # numbers of random divisions of the samples into blocks: at first, and in total if the increase is significant. If
    # few samples have large errors, the standard deviation over the first divisions may be too small
    first_random: int = 20
    random: int = 100
    # relative increase of the mean of the square roots of errors from which samples count as dependent; the mean error
    # increases by about twice as much, but depends more on a few large errors
    minimum: float = 0.015
    maximum: float = 4.0  # the same increase above which the Newton step may be wrong, unless it is exact
    significant: float = 4.5  # the same increase in standard deviations over random divisions; by chance in 1 of 10000
    few_classes: int = 20  # maximum number of different labels that count as classes
    trained: float = 3e-2  # gradient norm ‖∇R‖_F/(λ√d) at which descents without a block end: a rough minimum

    def order_effect(
        self, data: Dataset, at: RiskAtPoint, Q: np.ndarray, tokens: TokenRows, H: FactoredHessian
    ) -> float:
        """Return the relative increase of the errors if neighbors of a sample are left out too; 0 if insignificant.

        `at` is the exact risk at a minimum Q (d, r), and H the factored Hessian in the coordinates of `tokens`.
        """
        k = data.n_tokens * data.rank
        size = min(data.n_samples, self.fields // k) // self.blocks
        classes = self._exchanged(data)
        if size < 2 or H.size == 0 or classes is None:
            return 0.0
        starts = np.linspace(0, data.n_samples - size, self.blocks).round().astype(int)
        blocks = starts[:, None] + np.arange(size)
        samples = np.unique(blocks)
        columns = H.columns(tokens.of_samples(samples))
        # X̃ H⁻¹ X̃ᵀ between the fields of all blocks
        leverages = H.leverages(columns, H.whiten(columns), len(samples) * k)[0].reshape(len(samples), k, -1, k)

        def means_without(parts: np.ndarray) -> tuple[float, float]:
            """Return `_means` of the errors without their block; `parts` (blocks, size) are indices into `samples`."""
            of_blocks = [(samples[rows], leverages[rows][:, :, rows].reshape(size * k, size * k)) for rows in parts]
            return _means([_errors_without(data, at, *of_block) for of_block in of_blocks])

        rng, kinds = np.random.default_rng(0), classes[samples]
        successive, random = np.array(means_without(np.searchsorted(samples, blocks))), list[tuple[float, float]]()
        is_exact = is_quadratic(data)
        for count in (self.first_random, self.random):
            while len(random) < count:
                random.append(means_without(_draw_division(kinds, rng).reshape(blocks.shape)))
            usual, spread = np.mean(random, axis=0), np.std(random, axis=0, ddof=1)
            if not is_exact and successive[1] - usual[1] >= self.maximum * usual[1]:
                successive, is_exact = np.array(_means([self._trained_errors(data, Q, rows) for rows in blocks])), True
            mean, root = successive - usual
            if not (mean > 0 and root > max(self.significant * spread[1], self.minimum * usual[1])):
                return 0.0
        return float(mean / usual[0])

    def _trained_errors(self, data: Dataset, Q: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the errors (m,) of the samples of a block under weights trained, from Q (d, r), without the block."""
        weights = continue_descent(data.select_rows(np.setdiff1d(np.arange(data.n_samples), rows)), Q, self.trained)
        block = data.select_rows(rows)
        return sample_errors(block, block.fields(weights))

    def _exchanged(self, data: Dataset) -> np.ndarray | None:
        """Return the classes (n,) within which samples are exchanged: equal numbers, or sorted labels that are classes.

        None if the samples are sorted by numbers as labels, so that their order is no sign of dependence.
        """
        labels = None if data.labels is None else data.labels.reshape(data.n_samples, -1)
        if labels is None or labels.shape[1] > 1:
            return np.zeros(data.n_samples)
        labels, steps = labels[:, 0], np.diff(labels[:, 0])
        if len(np.unique(labels)) <= self.few_classes:
            is_sorted = np.count_nonzero(steps) < (len(labels) - 1) / 4  # neighbors mostly have the same class
            return labels if is_sorted else np.zeros(data.n_samples)
        return None if (steps >= 0).all() or (steps <= 0).all() else np.zeros(data.n_samples)


@dataclass(frozen=True)
class CopySearch:
    """Search for samples that repeat other samples, and its settings."""

    repeated: float = 0.05  # fraction of copies of other samples above which samples count as dependent
    examples: int = 50  # maximum number of repeated samples whose entries are compared with the entries of all others
    copies: int = 10  # maximum number of near copies of a sample; more similar samples count as a class
    gap: float = 3.0  # ratio of the distances of the next sample and of the farthest near copy, at least
    many_copies: float = 0.2  # fraction of samples with near copies above which samples count as dependent
    compared: int = 200  # maximum number of samples for which near copies are searched
    rows: int = 1024  # number of samples that are read at the same time in this search

    def repeated_fraction(self, data: Dataset) -> float:
        """Return the fraction of samples that repeat another sample, if it is large; otherwise 0.

        Samples of a layer repeat another sample if their tokens are identical. Rows of categories with labels also
        repeat themselves in new data. They count if tokens and labels are identical, and either the labels, or two
        entries of the tokens, occur in no other sample.
        """
        hashes = hash_samples(data.tokens)
        if data.labels is None:
            repeated = 1 - len(np.unique(hashes)) / data.n_samples
            return repeated if repeated > self.repeated else 0.0
        labels = np.reshape(data.labels, (data.n_samples, 1, -1))
        both = np.stack([hashes, hash_samples(labels)])
        _, first, group, sizes = np.unique(both, axis=1, return_index=True, return_inverse=True, return_counts=True)
        repeated = 1 - len(sizes) / data.n_samples
        if not repeated > self.repeated:
            return 0.0
        examples = first[np.random.default_rng(0).permutation(np.flatnonzero(sizes > 1))[: self.examples]]
        queries = np.concatenate([data.tokens[k : k + 1] for k in examples])
        equal = np.zeros(queries.shape)  # number of samples with an equal entry
        for _, _, x in token_blocks(data.tokens):
            for k, query in enumerate(queries):
                equal[k] += (x == query).sum(axis=0)
        counts = sizes[group[examples]]
        unique_labels = ((labels == labels[examples, 0][:, None, None]).all(axis=(2, 3)).sum(axis=1)) == counts
        unique = (equal.reshape(len(queries), -1) == counts[:, None]).sum(axis=1) >= 2
        copies = float(np.average(unique | unique_labels, weights=counts - 1))
        return repeated * copies if repeated * copies > self.repeated else 0.0

    def nearly_repeated(self, data: Dataset) -> float:
        """Return the fraction of samples of a layer that have near copies, if it is large; otherwise 0.

        A sample has near copies if the distances of its tokens to at most `copies` samples are `gap` times smaller than
        the distances to all others. As for equal samples, rows with labels are not examined. In one or two dimensions,
        independent samples often have such distances.
        """
        n, dimensions = data.n_samples, data.n_tokens * data.dim
        if data.labels is not None or n < self.copies + 2 or dimensions <= 2:
            return 0.0
        chosen = np.unique(np.linspace(0, n - 1, min(n, self.compared)).round().astype(int))
        queries = np.concatenate([data.tokens[k : k + 1] for k in chosen]).reshape(len(chosen), -1)
        queries = queries.astype(float)
        mean = queries.mean(axis=0)
        queries -= mean
        nearest = np.empty((len(chosen), 0))
        for start in range(0, n, self.rows):
            others = data.tokens[start : start + self.rows]
            others = others.reshape(len(others), -1) - mean
            squares = np.sum(queries**2, axis=1)[:, None] + np.sum(others**2, axis=1) - 2 * queries @ others.T
            squares[chosen[:, None] == start + np.arange(len(others))] = np.inf  # the sample itself
            nearest = np.sort(np.concatenate([nearest, np.maximum(squares, 0.0)], axis=1), axis=1)[:, : self.copies + 1]
        fraction = float(np.mean((nearest[:, 1:] > self.gap**2 * nearest[:, :-1]).any(axis=1)))
        return fraction if fraction > self.many_copies else 0.0


def _means(errors: list[np.ndarray]) -> tuple[float, float]:
    """Return the means of the errors of the samples of all blocks, and of their square roots."""
    of_blocks = np.array(errors)
    return float(of_blocks.mean()), float(np.sqrt(np.maximum(of_blocks, 0.0)).mean())


def _errors_without(data: Dataset, at: RiskAtPoint, rows: np.ndarray, A: np.ndarray) -> np.ndarray:
    """Return the errors (m,) of the samples of a block after a Newton step without it, given their leverages A."""
    m, k = len(rows), at.hessians.shape[1]
    D = np.zeros((m, k, m, k))
    D[np.arange(m), :, np.arange(m), :] = at.hessians[rows]
    g = -at.loss_gradients[rows].ravel()
    try:
        shifts = np.linalg.solve(np.eye(m * k) - A @ D.reshape(m * k, m * k), A @ g)
    except np.linalg.LinAlgError:  # only this block determines some weights
        return np.full(m, np.nan)
    return sample_errors(data, at.z[rows] - shifts.reshape(at.z[rows].shape), rows)


def _draw_division(classes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return indices of the samples (m,) in a random order in which each sample is replaced by a sample of its class.

    `classes` (m,) are the numbers of the classes, equal if all samples may be exchanged.
    """
    order = np.arange(len(classes))
    for kind in np.unique(classes):
        of_kind = np.flatnonzero(classes == kind)
        order[of_kind] = rng.permutation(of_kind)
    return order
