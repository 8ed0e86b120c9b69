"""Results of Bayes-optimal state evolution, and the test error of the posterior mean on fresh samples."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools.display import Rows, format_to_error
from gamp_attention._tools.numerics import psd_root
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.extensions.bayes.channels.choice import channel_of
from gamp_attention.extensions.bayes.channels.integrals import FINE, IntegralRule
from gamp_attention.extensions.sequence.sequence_labels import is_function
from gamp_attention.results import Ended, Result, Status
from gamp_attention.theory.models.model import Model


@dataclass(frozen=True, eq=False)
class BayesStateEvolution(Ended):
    """A fixed point of Bayes-optimal state evolution. Errors are half-widths of 95 % intervals.

    Attributes
    ----------
    status, converged, n_iter, residual : CONVERGED, or INACCURATE if some sets of points lack the fixed point; n_iter
        counts averages over samples; the residual is the relative change of V in one more iteration.
    q, q_error : (t, t) overlap lim Q̂ᵀQ*/d of posterior mean Q̂ and teacher Q*, equal to lim Q̂ᵀQ̂/d.
    V, V_error : (L, t, t) posterior covariances of the fields.
    free_entropy, free_entropy_error : Φ per dimension. Of several stable fixed points, the data determine the fixed
        point of largest Φ. Infinite at full information without noise.
    test_error, test_error_error : error of the posterior mean of a fresh sample's output: ε_g of attention models, the
        mean square error of labels; NaN for `ClassLabels`.
    stable : whether iterations that start near the fixed point converge to it.
    full : whether the weights are known exactly.
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
        return [head, *([f"  {name}", format_to_error(float(x), float(error))] for name, (x, error) in numbers.items())]


@dataclass(frozen=True, eq=False)
class BayesThresholds(Result):
    """Sample complexities at which the Bayes-optimal estimate changes. Errors are half-widths of 95 % intervals.

    Attributes
    ----------
    weak_recovery, weak_recovery_error : α above which message passing without information on the teacher reaches a
        nonzero overlap; 0 if any number of samples suffices.
    full_recovery, full_recovery_error : α above which message passing determines the teacher exactly; NaN if there is
        none.
    hard, hard_error : hard phase, (from, to) in α, in which the data determine the teacher better than message passing
        can; None if there is none. The errors are errors of both ends.
    notes : reason in words for each threshold, by name, that is 0, NaN or None.
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
            shown = format_to_error(getattr(self, name), getattr(self, f"{name}_error"))
            rows.append([f"  {name}", self.notes.get(name, shown)])
        if self.hard is None or self.hard_error is None:
            return [*rows, ["  hard", self.notes.get("hard", "nowhere")]]
        ends = [format_to_error(*pair) for pair in zip(self.hard, self.hard_error, strict=True)]
        return [*rows, ["  hard", " to ".join(ends)]]


@dataclass(frozen=True, eq=False)
class RecoveryStage(Result):
    """Columns of the teacher that Bayes-optimal message passing finds from the same α on.

    Attributes
    ----------
    columns : numbers of the columns, from 0.
    alpha, alpha_error : α above which their overlaps are not zero, and its error (95 %); 0 if targets determine their
        signs, and infinite if they are never found.
    """

    columns: tuple[int, ...]
    alpha: float
    alpha_error: float


@dataclass(frozen=True, eq=False)
class StagedThresholds(BayesThresholds):
    """Thresholds of a teacher that is a function of the fields.

    Attributes
    ----------
    stages : groups of columns that are found together, in the order of α, each with `columns`, `alpha` and
        `alpha_error`; see `RecoveryStage`.
    Others : as for `BayesThresholds`. Weak recovery is the first stage. Full recovery and hard phases are not computed.
    """

    stages: tuple[RecoveryStage, ...]

    def _rows(self) -> Rows:
        rows: Rows = [type(self).__name__]
        for stage in self.stages:
            columns = ", ".join(str(column) for column in stage.columns)
            shown = format_to_error(stage.alpha, stage.alpha_error) if np.isfinite(stage.alpha) else "never"
            rows.append([f"  column {columns} found from α =", shown])
        return rows


class FreshSamples:
    """Fields of pairs of fresh samples from one posterior, from which the test error of its mean is computed.

    Parameters
    ----------
    model : model of the samples.
    n_points, rng : number of random points of averages over attention outputs, and their generator.
    rule : quadrature rule for the error of labels.
    """

    def __init__(self, model: Model, n_points: int, rng: np.random.Generator, rule: IntegralRule = FINE) -> None:
        self.model, self.rho, self.rule = model, model.coordinates.rho, rule
        if is_function(model.teacher) or model.attention:
            count = model.teacher.count if is_function(model.teacher) else 0
            self._white = gaussian_points(n_points, 3 * self.rho[:, :, 0].size + 2 * count, rng)

    def test_error(self, V: np.ndarray, known: np.ndarray) -> float:
        """Return the test error: half of the mean square distance between two outputs drawn from the same posterior.

        For labels it has a closed form or is an integral; for attention it is an average over samples.
        Eq. :eq:`bayes-test-error`.

        Parameters
        ----------
        V, known : (L, t, t) posterior covariances of the fields, and covariances of their posterior means.
        """
        teacher, (L, t, _) = self.model.teacher, V.shape
        with_noise = is_function(teacher)
        if not (with_noise or self.model.attention):
            channel: Any = channel_of(self.model)
            return float(channel.label_error(V, known, self.rule))
        white = self._white[:, : 3 * L * t].reshape(-1, 3, L, t)
        omega, root = np.einsum("lab,nlb->nla", psd_root(known), white[:, 0]), psd_root(V)
        first, second = (omega + np.einsum("lab,nlb->nla", root, white[:, k]) for k in (1, 2))
        if with_noise:  # the error of a target, summed over its entries, with its noise
            noise = self._white[:, 3 * L * t :].reshape(len(omega), 2, teacher.count)
            differences = teacher(first, noise[:, 0]) - teacher(second, noise[:, 1])
            return float(0.5 * np.mean(np.sum(differences**2, axis=1)))
        trace = self.model.coordinates.trace
        squares = (teacher(first) - teacher(second)) ** 2
        noise_error = self.model.score_noise**2 * float(trace.sum())
        return float(0.5 * np.mean(np.sum(squares, axis=1) @ trace) / len(trace) + noise_error)
