"""History of a solver while it runs, which is stored in checkpoints."""

from typing import Any

import numpy as np

from gamp_attention._tools.snapshots import Resumable
from gamp_attention.results import History, Overlaps, stack_overlaps


class Recorder(Resumable):
    """States and steps of a solver so far, from which a History is made."""

    def __init__(self) -> None:
        self._rows: list[tuple[Overlaps, float, float]] = []
        self._damping: list[float] = []

    def add(self, overlaps: Overlaps, gradient_norm: float, train_loss: float) -> None:
        """Record the state before an iteration."""
        self._rows.append((overlaps, gradient_norm, train_loss))

    @property
    def last(self) -> tuple[Overlaps, float, float]:
        """Overlaps, gradient norm and training loss of the last recorded state."""
        return self._rows[-1]

    def loss_before(self, until: int) -> float:
        """Return the training loss before iteration `until`, or of the last recorded state if there are fewer."""
        return self._rows[min(until, len(self._rows)) - 1][2]

    def step(self, damping: float) -> None:
        """Record the step (damping or learning rate) taken from the last recorded state."""
        self._damping.append(damping)

    def history(self) -> History:
        """Return all recorded states as a History."""
        overlaps, norms, losses = zip(*self._rows, strict=True)
        return History(**stack_overlaps(overlaps), gradient_norm=np.array(norms), train_loss=np.array(losses),
                       damping=np.array(self._damping))  # fmt: skip

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the arrays of the history by name; columns, because an entry for each iteration would be slow."""
        return vars(self.history()).copy() if self._rows else {}

    def restore(self, tree: Any) -> None:
        """Continue from a snapshot."""
        if tree:
            values = [tree[name] for name in ("q", "m", "theta", "V", "gradient_norm", "train_loss")]
            self._rows = [(Overlaps(*row[:4]), float(row[4]), float(row[5])) for row in zip(*values, strict=True)]
            self._damping = tree["damping"].tolist()
