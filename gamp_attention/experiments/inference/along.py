"""Training along values of a hyperparameter, each run from where the one before has led."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamp_attention.data.dataset import Dataset
from gamp_attention.experiments.inference.neighbours import at_rows
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import run_gamp
from gamp_attention.gamp.step import near_fixed_point


@dataclass(frozen=True, eq=False)
class Along:
    """What is trained along a path: a problem (n samples) for each value, in an order, and how.

    The first run begins at `init` with `n_starts`; so do those that have no weights before them, or only zeros.
    """

    values: np.ndarray
    problems: list[Dataset]
    order: list[int]
    init: Any
    n_starts: int
    tol: float
    max_iter: int
    seed: Any

    def runs(self, known: dict[str, Any], rows: np.ndarray | None = None) -> Iterator[tuple[int, Dataset, GampResult]]:
        """Index, data and result of each value in turn, on some of the rows; `known` has weights of earlier calls."""
        ends: dict[int, GampResult] = {}
        before: GampResult | None = None
        for k in self.order:
            data = self.problems[k] if rows is None else at_rows(self.problems[k], rows)
            before = ends[k] = self._trained(data, known.get(str(k)), before, self._extrapolated(k, ends))
            known[str(k)] = {"Q": before.Q, "V": before.overlaps.V}
            yield k, data, before

    def _trained(self, data: Dataset, known: Any, before: GampResult | None, ahead: Any) -> GampResult:
        """The run at one value: confirmed where its weights are known, from those before where there are any."""
        shape, options = (data.dim, data.rank), dict[str, Any](tol=self.tol, max_iter=self.max_iter)
        if known is not None and known["Q"].shape == shape:
            return run_gamp(data, near_fixed_point(data, "exact", known["Q"], known["V"]), hold_after=0, **options)
        usable = (
            before is not None and before.converged and before.Q.shape == shape and np.isfinite(before.overlaps.V).all()
        )
        if not usable or before is None or not np.abs(before.Q).max() > 0:
            return run_gamp(data, self.init, n_starts=self.n_starts, seed=self.seed, **options)
        Q = before.Q if ahead is None or ahead.shape != shape else ahead
        return run_gamp(data, replace(before, Q=Q), hold_after=0, **options)

    def _extrapolated(self, k: int, ends: dict[int, GampResult]) -> np.ndarray | None:
        """Weights on the line through those of the last two positive values, in their logarithm."""
        done = self.order[: len(ends)][-2:]
        points = self.values[[*done, k]]
        if len(done) < 2 or not (points > 0).all() or points[0] == points[1]:
            return None
        first, second = (ends[each] for each in done)
        share = np.log(points[2] / points[1]) / np.log(points[1] / points[0])
        alike = first.Q.shape == second.Q.shape and first.converged and second.converged
        return second.Q + np.clip(share, 0, 2) * (second.Q - first.Q) if alike else None
