"""Detection of many minima by hysteresis: is a minimum found again after samples were left out for a while?

From a minimum Q of the risk, a descent continues on half of the samples, and from its end a descent on all samples. In
a smooth landscape the second descent returns to Q. If it ends in another minimum of about equal risk, there are many
minima, and the choice among them depends on the samples: Q was selected because its risk is low for the training
samples. Refits of single samples do not repeat this selection, so that their errors are lower than the error of a new
sample. Another minimum of much higher risk is no reason for doubt: half of the samples may be too few for the branch of
a global minimum.
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention.extensions.inference.refits import sample_errors
from gamp_attention.gamp.descent import proximal_gradient, quasi_newton
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.risk import RiskAtPoint, risk_at
from gamp_attention.problem.tolerances import small_unit


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
                weights = descend(data, descend(data.select_rows(np.sort(half)), Q, self.away), self.back)
                end = risk_at(data, weights, "exact")
                change = np.abs(sample_errors(data, end.z) - errors).sum() / max(np.abs(errors).sum(), 1e-300)
                is_low = end.train_loss < (1 + self.equal) * at.train_loss
                if change > self.other and is_low and np.linalg.norm(weights) >= self.zero * np.linalg.norm(Q):
                    return True
        return False


def descend(data: Dataset, Q: np.ndarray, tol: float, max_steps: int = 1000) -> np.ndarray:
    """Return the end of a descent from Q (d, r) on the exact risk of the samples.

    The tolerance `tol` of the gradient norm is multiplied by the unit of the weights if that is small.
    """
    method, unit = quasi_newton if data.penalty.smooth else proximal_gradient, small_unit(data)
    return method(data, lambda weights: risk_at(data, weights, "exact"), Q, tol * unit, max_steps, None, unit)[0]
