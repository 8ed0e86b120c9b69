"""The loop that all iterative runs share; it can be interrupted between two iterations, and resumed."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from gamp_attention._tools.snapshots import Resumable

Outcome = TypeVar("Outcome")


class Run(Resumable, Generic[Outcome]):
    """A run of an iterative solver, from its start until `advance` returns how it ended.

    Parameters
    ----------
    save : called between two iterations, to write a checkpoint; None for no checkpoints.
    """

    t: int  # number of iterations so far

    def __init__(self, save: Callable[[], None] | None = None) -> None:
        self.t, self._save = 0, save
        self.ended: Outcome | None = None

    @abstractmethod
    def advance(self) -> Outcome | None:
        """Do one iteration; return how the run ended, or None if it continues."""

    def run(self, until: float = math.inf, pause: Callable[[], bool] | None = None) -> Outcome | None:
        """Iterate until the run ends; return how it ended.

        None if it reaches iteration `until` first, or if `pause` returns True after an iteration.
        """
        first = self.t
        while self.ended is None and self.t < until:
            if self._save is not None and self.t > first:
                self._save()
            self.ended = self.advance()
            if pause is not None and self.ended is None and pause():
                break
        return self.ended
