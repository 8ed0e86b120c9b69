"""The bounded search of default runs: few further starts, at few iterations, within a budget of arithmetic.

State evolution describes proximal steps to global minima. A search for them costs up to 400 minimisations per sample,
which for two tokens and one column is little, but for long samples more than a hundred times the products X̃Q and X̃ᵀg
that it serves. A run to a tolerance need not follow state evolution: it needs a good minimum of the risk. So it
searches each sample at every second iteration, from its mirror image and its centre, and otherwise keeps the local
minimum next to the last one. Descent, which evaluates gradients only, finishes the work if message passing has spent
its budget. If descent takes long, message passing is resumed, with a larger budget, and the lower of both minima is the
result.

The unit is one evaluation of the gradient of the risk. The costs are counted, not timed, so that runs are reproducible.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.denoisers.prox import SEARCH
from gamp_attention.gamp.monitor import StepReport
from gamp_attention.losses.attention import AttentionLoss
from gamp_attention.losses.dot_product import DotProductAttention


class BudgetSettings(NamedTuple):
    """Settings of bounded searches, and the costs of operations in seconds."""

    exact_fields: int = 2  # L r up to which default runs search for global minima
    every: int = 2  # iterations from one search of the samples to the next; the first iteration makes none
    starts: int = 2  # further starts of each search: the mirror image of the last minimum, and the centre ω
    patience: int = 12  # iterations after the last search that may pass without progress, before descent takes over
    gradients: float = 250.0  # budget of message passing, in evaluations of the gradient
    descents: float = 10.0  # further budget, in what the descent after message passing has cost
    worthwhile: float = 0.4  # least further budget for which message passing is resumed, in units of the first
    least: int = 8  # iterations; if the budget does not suffice for so many, the run is a descent
    verification: float = 60.0  # gradients that each of the checks of the result may cost
    held: float = 3.0  # Hessians per sample of a proximal step that begins at its end
    typical: float = 5.0  # Hessians per sample and iteration
    searches: float = 45.0  # Hessians per sample of a search from `starts` further starts
    product: float = 0.25e-9  # seconds of a multiplication and addition of X̃Q or X̃ᵀg
    exponential: float = 8e-9  # seconds of an attention weight
    dense: float = 0.25e-9  # seconds of an operation in a long loop over matrices (L, L)
    scattered: float = 3e-9  # seconds of an entry of the Hessian (L r, L r)
    factor: float = 0.09e-9  # seconds of the factor of the Hessian, over (L r)³
    call: float = 0.5e-6  # seconds of a call per sample


BUDGET = BudgetSettings()


class Costs(NamedTuple):
    """Seconds per sample of one gradient of the risk, and of one Hessian of the proximal objective."""

    gradient: float
    hessian: float

    @classmethod
    def of(cls, data: Dataset) -> "Costs":
        """Return the costs for the shapes of a dataset."""
        L, r, d, loss = data.n_tokens, data.rank, data.dim, data.loss
        k, value = L * r, BUDGET.call + BUDGET.exponential * L * L
        if isinstance(loss, AttentionLoss) and isinstance(loss.attention, DotProductAttention):
            slope = value + 2 * BUDGET.dense * (L**3 + 4 * L * k)
            hessian = value + BUDGET.dense * L**3 * (2 + r * (r + 1) / 2)
        else:  # central differences
            slope, hessian = 4 * k * value, 4 * k * (k + 1) * value
        hessian += BUDGET.scattered * k**2 + BUDGET.factor * k**3
        return cls(slope + 4 * L * d * r * BUDGET.product, hessian)


def samples_to_verify(data: Dataset, bounded: bool, n_hessians: float) -> np.ndarray | None:
    """Return the samples that a bounded run checks at its end, evenly spaced; None for all.

    A check costs so many Hessians per sample. Where not even one sample's is worth it, there are none.
    """
    gradient, hessian = Costs.of(data)
    n, fraction = data.n_samples, BUDGET.verification * gradient / (n_hessians * hessian)
    return None if not bounded or fraction >= 1 else np.linspace(0, n - 1, int(fraction * n)).astype(int)


def can_solve_for_variances(data: Dataset, bounded: bool) -> bool:
    """Return whether the iteration for V at a critical point costs little, next to the rest of a bounded run."""
    gradient, hessian = Costs.of(data)
    return not bounded or 10 * hessian <= 3 * BUDGET.verification * gradient


class Budget:
    """The work of message passing from one start, in evaluations of the gradient.

    Parameters
    ----------
    data : the samples.
    bounded : whether there is a bound.

    Attributes
    ----------
    spent : evaluations of the gradient that the iterations so far have cost as much as.
    limit : evaluations after which descent takes over.
    """

    def __init__(self, data: Dataset, bounded: bool) -> None:
        self._costs, self.spent, self.limit = Costs.of(data), 0.0, BUDGET.gradients if bounded else np.inf

    def iteration(self, n_hessians: float) -> float:
        """Return the cost of an iteration of message passing with so many Hessians per sample."""
        gradient, hessian = self._costs
        return 1.5 + (n_hessians + 1) * hessian / gradient

    @property
    def is_spent(self) -> bool:
        """Whether descent is to take over."""
        return self.spent + self.iteration(BUDGET.typical) > self.limit

    @property
    def suffices(self) -> bool:
        """Whether message passing can make enough iterations to be worth beginning."""
        return BUDGET.least * self.iteration(BUDGET.typical) <= self.limit

    def extend(self, n_descent: int) -> bool:
        """Extend the budget, once, in proportion to the iterations of a descent; return whether this is worthwhile.

        Where a descent takes long, minima are many, and the search for a lower one may take longer, too.
        """
        limit = BUDGET.descents * n_descent
        if self.limit != BUDGET.gradients or limit - self.spent < BUDGET.worthwhile * BUDGET.gradients:
            return False
        self.limit = limit
        return True

    def add(self, report: StepReport) -> None:
        """Count an iteration."""
        seen = report.denoised
        self.spent += self.iteration(BUDGET.typical if seen is None else float(np.mean(seen.n_hessians)))

    def snapshot(self) -> dict[str, Any]:
        """Return all that changes."""
        return {"spent": self.spent, "limit": self.limit}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self.spent, self.limit = float(snapshot["spent"]), float(snapshot["limit"])


def starts_of_searches(t: int, hold_after: int, bounded: bool) -> int:
    """Return the bound on the further starts of each sample's search at iteration t."""
    if bounded:
        return BUDGET.starts if 0 < t < hold_after and t % BUDGET.every == 1 else 0
    return SEARCH.max_starts if t < hold_after else 0
