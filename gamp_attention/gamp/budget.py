"""Bounded searches of default runs: few further starts, in few iterations, within a budget of operations.

State evolution describes proximal steps to global minima. A search for a global minimum costs up to 400 minimisations
per sample. For two tokens and one column this is cheap; for long samples it takes more than a hundred times as long as
the products X̃Q and X̃ᵀg of an iteration. A run to a tolerance need not follow state evolution: it needs a good minimum
of the risk. So it searches each sample at every second iteration, from the mirror image of the last minimum and from
the centre, and otherwise keeps the local minimum next to the last minimum, which need not be accurate. Near a critical
point, and if message passing has spent its budget, a descent, which evaluates only gradients, completes the run. If the
descent takes long, message passing is resumed, in the second case with a larger budget, and the lower of both minima is
the result.

The unit of the budget is one evaluation of the gradient of the risk. Costs are computed from the numbers of operations,
not from measured times, so that runs are reproducible.
"""

from typing import NamedTuple

import numpy as np

from gamp_attention._core.runs import Resumable
from gamp_attention.data.dataset import Dataset
from gamp_attention.denoisers.prox import MAX_STARTS
from gamp_attention.gamp.step import StepReport
from gamp_attention.losses.attention import AttentionLoss, DotProductAttention

FULL_SEARCH_FIELDS = 2  # maximum L r for which default runs search for global minima
SEARCH_INTERVAL = 2  # number of iterations between searches; the first iteration makes no search
FURTHER_STARTS = 2  # number of further starts: mirror image of the last minimum, and centre ω
HAND_OVER_BELOW = 0.3  # gradient norm below which descent takes over
SHORT_DESCENT = 40  # maximum number of steps of a descent after which message passing is not resumed in this case
PATIENCE = 12  # iterations without progress after the last search, after which descent takes over
FIRST_LIMIT = 250.0  # budget of message passing, in evaluations of the gradient
GRADIENTS_PER_DESCENT_STEP = 10.0  # budget after a descent, in gradients per step of it
MIN_EXTENSION = 0.4  # minimum added budget for which message passing is resumed, in units of FIRST_LIMIT
MIN_ITERATIONS = 8  # if the budget suffices for fewer iterations, the run is only a descent
VERIFICATION_LIMIT = 60.0  # maximum cost of each check of the result, in evaluations of the gradient
HESSIANS_TO_HOLD = 3.0  # Hessians per sample of a proximal step that starts at its minimum
HESSIANS_PER_ITERATION = 5.0  # typical number of Hessians per sample and iteration
HESSIANS_TO_SEARCH = 45.0  # Hessians per sample of a search with FURTHER_STARTS starts
# costs of operations, of which only the ratios matter
PRODUCT = 0.25e-9  # seconds of a multiplication and addition of X̃Q or X̃ᵀg
EXPONENTIAL = 8e-9  # seconds of an attention weight
DENSE = 0.25e-9  # seconds of an operation in a long loop over matrices (L, L)
SCATTERED = 3e-9  # seconds of an entry of the Hessian (L r, L r)
FACTOR = 0.09e-9  # seconds of the factor of the Hessian, over (L r)³
CALL = 0.5e-6  # seconds of a call per sample


class Costs(NamedTuple):
    """Seconds per sample for a gradient of the risk and for a Hessian of the proximal objective."""

    gradient: float
    hessian: float

    @classmethod
    def of(cls, data: Dataset) -> "Costs":
        """Return the costs for the shapes of a dataset."""
        L, r, d, loss = data.n_tokens, data.rank, data.dim, data.loss
        k, value = L * r, CALL + EXPONENTIAL * L * L
        if isinstance(loss, AttentionLoss) and isinstance(loss.attention, DotProductAttention):
            slope = value + 2 * DENSE * (L**3 + 4 * L * k)
            hessian = value + DENSE * L**3 * (2 + r * (r + 1) / 2)
        else:  # derivatives by central differences of values
            slope, hessian = 4 * k * value, 4 * k * (k + 1) * value
        hessian += SCATTERED * k**2 + FACTOR * k**3
        return cls(slope + 4 * L * d * r * PRODUCT, hessian)


def samples_to_verify(data: Dataset, bounded: bool, n_hessians: float) -> np.ndarray | None:
    """Return indices of the samples that a bounded run checks at its end, evenly spaced; None for all samples.

    A check costs `n_hessians` Hessians per sample. If one sample exceeds the limit, the array is empty.
    """
    gradient, hessian = Costs.of(data)
    n, fraction = data.n_samples, VERIFICATION_LIMIT * gradient / (n_hessians * hessian)
    return None if not bounded or fraction >= 1 else np.linspace(0, n - 1, int(fraction * n)).astype(int)


def can_solve_for_variances(data: Dataset, bounded: bool) -> bool:
    """Return whether solving for V at a critical point costs little compared with the rest of a bounded run."""
    gradient, hessian = Costs.of(data)
    return not bounded or 10 * hessian <= 3 * VERIFICATION_LIMIT * gradient


class Budget(Resumable):
    """Work of message passing from one start, in evaluations of the gradient.

    Parameters
    ----------
    data : the samples.
    bounded : whether the work is bounded.

    Attributes
    ----------
    spent : cost of the iterations so far, in evaluations of the gradient.
    limit : cost, in evaluations of the gradient, from which on descent takes over.
    """

    spent: float
    limit: float

    def __init__(self, data: Dataset, bounded: bool) -> None:
        self._costs, self.spent, self.limit = Costs.of(data), 0.0, FIRST_LIMIT if bounded else np.inf

    def iteration(self, n_hessians: float) -> float:
        """Return the cost of an iteration of message passing with `n_hessians` Hessians per sample."""
        gradient, hessian = self._costs
        return 1.5 + (n_hessians + 1) * hessian / gradient

    @property
    def is_spent(self) -> bool:
        """Return whether the budget does not suffice for another iteration, so that descent takes over."""
        return self.spent + self.iteration(HESSIANS_PER_ITERATION) > self.limit

    @property
    def suffices(self) -> bool:
        """Return whether the budget suffices for the minimum number of iterations of message passing."""
        return MIN_ITERATIONS * self.iteration(HESSIANS_PER_ITERATION) <= self.limit

    def extend(self, n_descent: int) -> bool:
        """Extend the budget once, in proportion to the steps of a descent; return whether it was extended.

        If a descent takes long, the risk usually has many minima, so that a longer search for a lower minimum pays.
        """
        limit = GRADIENTS_PER_DESCENT_STEP * n_descent
        if self.limit != FIRST_LIMIT or limit - self.spent < MIN_EXTENSION * FIRST_LIMIT:
            return False
        self.limit = limit
        return True

    def add(self, report: StepReport) -> None:
        """Add the cost of an iteration."""
        seen = report.denoised
        self.spent += self.iteration(HESSIANS_PER_ITERATION if seen is None else float(np.mean(seen.n_hessians)))


def starts_of_searches(t: int, hold_after: int, bounded: bool) -> int:
    """Return the maximum number of further starts of each sample's search at iteration t."""
    if bounded:
        return FURTHER_STARTS if 0 < t < hold_after and t % SEARCH_INTERVAL == 1 else 0
    return MAX_STARTS if t < hold_after else 0
