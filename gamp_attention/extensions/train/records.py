"""Records of the starts of `train`, and their summary in words."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from gamp_attention.results import Overlaps, Result, Status

AGREEMENT = 0.9  # minimum overlap with the selected weights at which weights count as (nearly) the same


@dataclass(frozen=True, eq=False)
class StartRecord(Result):
    """Outcome of one of the starts of `train`.

    Attributes
    ----------
    name : "spectral 1" and so on, "random 1" and so on, the name given as `init`, or "given" for an array or a state.
    kept : whether the result of `train` comes from this start.
    status : status at the end of the run from this start; None if it was stopped early.
    n_iter : number of iterations of message passing from this start.
    train_loss, gradient_norm, overlaps, Q : at the end of the run, or when it was stopped.
    excess : training loss divided by the training loss of the selected start, minus 1: at the same iteration if the run
        was stopped early in a comparison with the selected run, otherwise at the end of the selected run.
    agreement : overlap between these weights and the weights of the selected start, in [0, 1]; 1 means equal up to the
        symmetries of the model.
    """

    name: str
    kept: bool
    status: Status | None
    n_iter: int
    train_loss: float
    gradient_norm: float
    excess: float
    agreement: float
    overlaps: Overlaps
    Q: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except Q as plain data."""
        return {name: value for name, value in super().to_dict().items() if name != "Q"}


def summarize_starts(records: tuple[StartRecord, ...]) -> str:
    """Return sentences on the starts: the selected start, how many agree with it, and the losses of the others."""
    name = next(record.name for record in records if record.kept)
    others = [1 + record.excess for record in records if record.agreement < AGREEMENT]
    best, n, n_agree = f"Best of {len(records)} starts: {name!r}.", len(records), len(records) - len(others)
    if not others:
        return f"{best} {'Both' if n == 2 else f'All {n}'} gave (nearly) the same weights."
    same = f"{n_agree} of {n} gave (nearly) the same weights" if n_agree > 1 else "No other start gave the same weights"
    low, high = f"{min(others):.3g}", f"{max(others):.3g}"
    span = low if low == high else f"{low} to {high}"
    return f"{best} {same}; the other {len(others)} had {span} times its training loss when they ended or were stopped."


def order_of(loss: float) -> float:
    """Return a training loss for comparisons; a loss that is not finite counts as infinite."""
    return loss if np.isfinite(loss) else inf
