"""Options of the iteration of `run_gamp`, and their defaults for data and a tolerance."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.display import DisplayMixin
from gamp_attention.gamp.damping import Steps
from gamp_attention.gamp.descent import has_lagrangian
from gamp_attention.gamp.step import GampState, StepReport, averaged_memory
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.losses.kinks import has_kinks_of_fields
from gamp_attention.problem.passes import Memory

Callback = Callable[[int, GampState, StepReport], None]
LATE = "late"  # value of `IterationOptions.accelerate`
SEARCHED = 20  # number of iterations with searches for global proximal minima, in runs to a tolerance
FULL_SEARCH_FIELDS = 2  # maximum L r for which runs to a tolerance search without bound


@dataclass(frozen=True, eq=False)
class IterationOptions(DisplayMixin):
    """Options of the iteration of `run_gamp` that few runs change; pass them as `run_gamp(iteration=...)`.

    Parameters
    ----------
    V_hat : (T, S, r, r) responses V̂_t, the last of which is repeated; for example `trajectory(...).V_hat` for the same
        start and damping. S = L, or the number of sources of a mixture. If None, the response is computed from the
        samples.
    empirical_after : iteration from which the empirical response is used, whatever `V_hat` is; None for never. If
        proximal maps jump, state evolution describes only runs with the predicted response, whereas the gradient
        goes to zero only with the empirical response.
    memory : rule for the Onsager memory D, called with D, V g, W g and the step β; see `gamp_attention.gamp.step`.
    V : (S, r, r) variances of the fields at the start; tr Σ_l/(2dλ) if None.
    hold_after : iteration from which each sample keeps its local proximal minimum; before, the global minimum is
        searched for. If None, 20, or never if tol = 0, because state evolution describes global minima.
    search : "full": until iteration `hold_after`, the global minimum of each sample's proximal objective is searched
        for, as state evolution assumes. "bounded": samples are searched at every second iteration only, from two
        further starts, and minima are computed roughly (see `gamp_attention.gamp.loop`). "auto": for runs to a
        tolerance, "bounded" if L r > 2; if L r <= 2, searches become bounded after an iteration in which a search takes
        more than 100 minimizations per sample. "full" if `tol` is 0 or if `hold_after`, `V_hat` or `memory` is given.
    accelerate : extrapolate by Anderson acceleration, with damped iterations whenever that raises the gradient norm.
        The fixed points stay the same and take fewer iterations, but state evolution no longer describes the iterates.
        "late": take a longer step once the gradient norm is below 0.1, and extrapolate below 0.03 once local minima are
        kept, or below 1 if the loss is convex; such runs mostly reach the same fixed points as others. If None, "late"
        for runs to a tolerance with adaptive damping, without `V_hat` and `memory`; otherwise False.
    settling : whether a descent completes message passing that cycles (see `gamp_attention.gamp.descent`). There is
        none for losses of several fields with kinks that are not convex, or with a penalty that has kinks.
    callback : called with (iteration, state, report) at every iteration, with read-only arrays. If `train` begins with
        descents, it is also called at the end of each of them, with iteration 0 and the risk there as report.

    Examples
    --------
    Use the response that state evolution predicts, so that a run follows the prediction even if proximal maps jump:

    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=100, alpha=1.5, seed=0)
    >>> method = ga.MessagePassing(damping=0.3)
    >>> path = ga.trajectory(data.instance_model(), data.alpha, "positional", method, n_iter=5, n_paths=256)
    >>> options = ga.IterationOptions(path.V_hat)
    >>> ga.run_gamp(data, "positional", damping=0.3, tol=0, max_iter=5, iteration=options).n_iter
    5
    """

    V_hat: ArrayLike | None = None
    empirical_after: int | None = None
    memory: Memory = averaged_memory
    V: ArrayLike | None = None
    hold_after: int | None = None
    search: str = "auto"
    accelerate: bool | str | None = None
    settling: bool = True
    callback: Callback | None = None

    @property
    def predictable(self) -> bool:
        """True if response and memory are the defaults, so that acceleration and bounded searches may be used."""
        return self.V_hat is None and self.memory is averaged_memory

    @property
    def last_search(self) -> int:
        """Iteration from which each sample keeps its local proximal minimum."""
        return sys.maxsize if self.hold_after is None else self.hold_after

    def response(self, t: int) -> np.ndarray | None:
        """Return the response V̂_t that is used at iteration t; None for the response of the samples."""
        if self.V_hat is None or (self.empirical_after is not None and t >= self.empirical_after):
            return None
        table = np.asarray(self.V_hat)
        return table[min(t, len(table) - 1)]

    def resolve(self, data: Dataset, damping: Steps, tol: float) -> IterationOptions:
        """Return a copy with checked arrays and numbers, and with the defaults for data and tolerance in place of None.

        Raises
        ------
        TypeError, ValueError : if a field does not have the type, shape or range that the class documents.
        """
        check.choice("search", self.search, ("auto", "full", "bounded"))
        check.function("memory", self.memory)
        check.flag("settling", self.settling)
        for name in ("hold_after", "empirical_after"):
            if getattr(self, name) is not None:
                check.integer(name, getattr(self, name), low=0)
        if isinstance(self.accelerate, str) and self.accelerate != LATE:
            raise check.fail("accelerate", self.accelerate, f"True or False, or {LATE!r}")
        if not isinstance(self.accelerate, str | None):
            check.flag("accelerate", self.accelerate)
        if self.callback is not None:
            check.function("callback", self.callback)
        changes: dict[str, Any] = {}
        if self.V is not None:
            changes["V"] = check.array("V", self.V, (data.n_sources, data.rank, data.rank))
            symmetric = np.allclose(changes["V"], changes["V"].transpose(0, 2, 1), rtol=1e-12, atol=0)
            if not (symmetric and np.linalg.eigvalsh(changes["V"]).min() > 0):
                raise check.fail("V", self.V, "symmetric positive definite matrices")
        if self.V_hat is not None:
            needs = "an array (T, S, r, r), for example V_hat of a trajectory with the same start and damping"
            if isinstance(self.V_hat, str):
                raise check.fail("V_hat", self.V_hat, needs, TypeError)
            changes["V_hat"] = check.array("V_hat", self.V_hat, ("T", data.n_sources, data.rank, data.rank))
        if has_kinks_of_fields(data.loss, data.terms("exact").params) and not has_lagrangian(data):
            changes["settling"] = False
        to_tolerance = tol > 0 and self.predictable
        if self.accelerate is None:
            late = isinstance(damping, str) and to_tolerance
            changes["accelerate"] = LATE if late else False
        if self.search == "auto":
            free = to_tolerance and self.hold_after is None
            many_fields = data.n_tokens * data.rank > FULL_SEARCH_FIELDS
            changes["search"] = "full" if not free else "bounded" if many_fields else "auto"
        if self.hold_after is None and (tol > 0 or self.search == "bounded"):
            changes["hold_after"] = SEARCHED
        return replace(self, **changes)
