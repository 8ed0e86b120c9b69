"""What state evolution of Bayes-optimal message passing returns."""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core.text import Rows, to_error
from gamp_attention.results import Ended, Result, Status


@dataclass(frozen=True, eq=False)
class BayesStateEvolution(Ended):
    """A fixed point of Bayes-optimal state evolution. Errors are half-widths that hold in 95 % of cases.

    Attributes
    ----------
    status, converged, n_iter, residual : CONVERGED, or INACCURATE where not all sets of points have the fixed point;
        n_iter counts averages over samples, the residual is the relative change of V in another iteration.
    q, q_error : (t, t) lim Q̂ᵀQ*/d, which is lim Q̂ᵀQ̂/d as well.
    V, V_error : (L, t, t) covariances of what remains unknown of the fields.
    free_entropy, free_entropy_error : Φ; of several stable fixed points the one where it is largest is what the data
        tell. Infinite where everything is known without noise.
    test_error, test_error_error : of the posterior mean of a fresh sample's output: ε_g of attention models, the mean
        square error of labels. NaN for classes of more than two.
    stable : whether an iteration near the fixed point leads to it.
    full : whether nothing remains unknown.
    """

    status: Status
    n_iter: int
    residual: float
    q: np.ndarray
    q_error: np.ndarray
    V: np.ndarray
    V_error: np.ndarray
    free_entropy: float
    free_entropy_error: float
    test_error: float
    test_error_error: float
    stable: bool
    full: bool

    def _rows(self) -> Rows:
        head = f"{type(self).__name__}: {self.status.value}, {'stable' if self.stable else 'unstable'}"
        numbers = {
            "q": (np.trace(self.q), np.trace(self.q_error)),
            "Φ": (self.free_entropy, self.free_entropy_error),
            "ε_g": (self.test_error, self.test_error_error),
        }
        return [head, *([f"  {name}", to_error(float(x), float(error))] for name, (x, error) in numbers.items())]


@dataclass(frozen=True, eq=False)
class BayesThresholds(Result):
    """Sample complexities at which the Bayes-optimal estimate changes. Errors are half-widths, 95 %.

    Attributes
    ----------
    weak_recovery, weak_recovery_error : from here on message passing has overlap with the teacher without a hint; 0
        where any number of samples gives some.
    full_recovery, full_recovery_error : from here on it knows the teacher completely, NaN where it never does.
    hard, hard_error : (from, to), between which the data tell the teacher but message passing does not find it, or
        None, and the errors of both ends.
    notes : by name, in words, why there is no number.
    """

    weak_recovery: float
    weak_recovery_error: float
    full_recovery: float
    full_recovery_error: float
    hard: tuple[float, float] | None
    hard_error: tuple[float, float] | None
    notes: dict[str, str]

    def _rows(self) -> Rows:
        rows: Rows = [type(self).__name__]
        for name in ("weak_recovery", "full_recovery"):
            shown = to_error(getattr(self, name), getattr(self, f"{name}_error"))
            rows.append([f"  {name}", self.notes.get(name, shown)])
        if self.hard is None or self.hard_error is None:
            return [*rows, ["  hard", self.notes.get("hard", "nowhere")]]
        ends = [to_error(*pair) for pair in zip(self.hard, self.hard_error, strict=True)]
        return [*rows, ["  hard", " to ".join(ends)]]
