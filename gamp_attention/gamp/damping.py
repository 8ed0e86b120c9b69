"""Steps β_t of message passing, and of the state evolution that predicts it.

A step β < 1 damps the iteration: Q ← (1 − β) Q + β η, with η the weights of the undamped iteration (see
`gamp_attention.gamp.step`). Damping is needed because undamped iterations often oscillate or diverge.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.checkpoints import Resumable

DAMPING = {"semantic": 0.5, "positional": 0.3}  # default steps β, with which runs on these branches converge
Steps = float | Sequence[float] | np.ndarray | str  # a step, a step for each iteration, or "adaptive"

FIRST_STEP = 0.3  # first step β of damping="adaptive"
SHRINK_FACTOR = 0.6  # factor by which the step shrinks after divergence or a stall
MAX_SHRINKS = 2  # number of times that an adaptive step may shrink before divergence or a stall ends the run
LONG_STEP = 0.7  # step β near the end of runs whose step may grow
GROW_BELOW = 0.1  # gradient norm below which LONG_STEP is taken
FALL_BACK_ABOVE = 0.3  # gradient norm above which LONG_STEP is abandoned for the rest of the run


class Damping(Resumable):
    """Sequence of steps β_t in (0, 1]: constant, given (the last entry is repeated), or "adaptive".

    If `grows` is True, the step becomes `LONG_STEP` once the gradient norm is small.
    """

    scale: float
    shrinks_left: int
    may_grow: bool
    grown: bool

    def __init__(self, damping: Steps, grows: bool = False) -> None:
        self.scale, self.shrinks_left = 1.0, 0
        self.may_grow, self.grown = grows, False
        given: Any = damping
        if isinstance(given, str):
            if given != "adaptive":
                raise check.fail("damping", given, "steps > 0 and <= 1, or 'adaptive'")
            self._steps, self.shrinks_left = [FIRST_STEP], MAX_SHRINKS
        elif check.ndim("damping", given) == 1 and len(given) > 0:
            self._steps = [
                check.real(f"damping[{t}]", step, low=0, high=1, strict=True) for t, step in enumerate(given)
            ]
        else:
            self._steps = [check.real("damping", given, low=0, high=1, strict=True)]

    def __call__(self, t: int) -> float:
        """Return β_t for iteration t."""
        step = LONG_STEP if self.grown else self._steps[min(t, len(self._steps) - 1)]
        return self.scale * step

    def follow(self, norm: float) -> bool:
        """Switch between normal and long steps according to the gradient norm; return whether the step has changed."""
        before = self.grown
        if self.grown and norm > FALL_BACK_ABOVE:
            self.may_grow = self.grown = False
        elif self.may_grow and norm < GROW_BELOW:
            self.grown = True
        return self.grown is not before

    def shrink(self) -> bool:
        """Shrink all later steps; return False if the step may not shrink (any more)."""
        if self.shrinks_left == 0:
            return False
        self.shrinks_left -= 1
        self.may_grow = self.grown = False
        self.scale *= SHRINK_FACTOR
        return True
