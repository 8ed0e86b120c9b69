"""Sign tests of two methods on the same instances: Holm's correction, and sequential tests."""

from collections.abc import Sequence

import numpy as np
from scipy.special import betaln
from scipy.stats import binomtest

LEVEL = 0.05  # of sign tests


def sign_test(lower: int, higher: int) -> float:
    """Return the two-sided p-value of the exact sign test; 1 if all losses are equal."""
    return float(binomtest(higher, lower + higher).pvalue) if lower + higher else 1.0


def adjust(ps: np.ndarray) -> np.ndarray:
    """Return p-values after the correction of Holm (1979) for several tests."""
    order, adjusted = np.argsort(ps), np.empty(len(ps))
    adjusted[order] = np.minimum(np.maximum.accumulate(np.sort(ps) * np.arange(len(ps), 0, -1)), 1.0)
    return adjusted


def test_at_looks(signs: Sequence[int], looks: Sequence[int], n_tests: int) -> tuple[int, bool]:
    """Return the number of instances after which a sign test at several looks ends, and whether it is significant.

    Each look has the level LEVEL/(n_tests · number of looks), so that all looks of all tests together have at most
    LEVEL. If no look is significant, the test ends at the last look for which there are enough instances.

    Parameters
    ----------
    signs : for each instance, in order, −1 for a lower, 0 for an equal and 1 for a higher loss.
    looks : numbers of instances.
    n_tests : number of tests with these looks.
    """
    n, counts = 0, np.array(signs)
    for look in looks:
        if len(counts) < look:
            break
        n, seen = look, counts[:look]
        if sign_test(int(np.sum(seen < 0)), int(np.sum(seen > 0))) <= LEVEL / (n_tests * len(looks)):
            return n, True
    return n, False


def sequential_p_values(signs: Sequence[int]) -> np.ndarray:
    """Return, after each instance, a p-value that is valid at any number of instances, chosen in any way.

    If lower and higher losses were equally probable, the ratio M of the probability of the signs under a mixture of
    other probabilities (Beta(1/2, 1/2)) and of 2^(−k), for k signs that are not zero, would be a martingale with mean
    1. By Ville's inequality it would ever reach 1/level with a probability of at most `level`. The p-value is the
    inverse of the largest M so far, at most 1. A test may therefore end as soon as it is decided, and also without a
    decision, for example if the computing time ends.

    Parameters
    ----------
    signs : for each instance, in order, −1 for a lower, 0 for an equal and 1 for a higher loss.
    """
    lower, higher = (np.cumsum(np.asarray(signs) == sign) for sign in (-1, 1))
    logs = betaln(higher + 0.5, lower + 0.5) - betaln(0.5, 0.5) + (higher + lower) * np.log(2)
    return np.exp(-np.maximum(np.maximum.accumulate(logs), 0.0))


def find_decision(signs: Sequence[int], level: float) -> int | None:
    """Return the number of instances after which the sequential p-value is at most `level`; None if it never is."""
    decided = np.flatnonzero(sequential_p_values(signs) <= level)
    return int(decided[0]) + 1 if len(decided) else None
