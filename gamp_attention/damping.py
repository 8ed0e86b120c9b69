"""The step β_t of message passing, and of state evolution that follows it."""

from typing import Any, NamedTuple

from gamp_attention._core import check

DAMPING = {"semantic": 0.5, "positional": 0.3}  # steps with which runs end on these branches


class AdaptiveSettings(NamedTuple):
    """Settings of damping="adaptive"."""

    start: float = 0.3  # the first step
    factor: float = 0.6  # by which it shrinks on divergence or a stall
    max_shrinks: int = 2  # after which trouble ends the run
    long: float = 0.7  # the step of runs that may grow it
    grow_below: float = 0.1  # gradient norm from which on it is taken
    fall_back: float = 0.3  # gradient norm at which it is given up, for good


ADAPTIVE = AdaptiveSettings()


class Damping:
    """The step β_t: fixed, a sequence (its last entry repeated), or adaptive; the last may grow near the end."""

    def __init__(self, damping: Any, grows: bool = False) -> None:
        self._scale, self._shrinks_left = 1.0, 0
        self._may_grow, self._grown = grows, False
        if isinstance(damping, str):
            check.choice("damping", damping, ("adaptive",))
            self._steps, self._shrinks_left = [ADAPTIVE.start], ADAPTIVE.max_shrinks
        elif check.ndim("damping", damping) == 1 and len(damping) > 0:
            self._steps = [
                check.real(f"damping[{t}]", step, low=0, high=1, strict=True) for t, step in enumerate(damping)
            ]
        else:
            self._steps = [check.real("damping", damping, low=0, high=1, strict=True)]

    def __call__(self, t: int) -> float:
        """β_t."""
        step = ADAPTIVE.long if self._grown else self._steps[min(t, len(self._steps) - 1)]
        return self._scale * step

    def follow(self, norm: float) -> bool:
        """Choose the step by the gradient norm, where it may grow; whether it has changed."""
        before = self._grown
        if self._grown and norm > ADAPTIVE.fall_back:
            self._may_grow = self._grown = False
        elif self._may_grow and norm < ADAPTIVE.grow_below:
            self._grown = True
        return self._grown is not before

    def shrink(self) -> bool:
        """Take a smaller step from now on, if the rule allows it."""
        if self._shrinks_left == 0:
            return False
        self._shrinks_left -= 1
        self._may_grow = self._grown = False
        self._scale *= ADAPTIVE.factor
        return True

    def snapshot(self) -> dict[str, Any]:
        """What has changed since the start."""
        growth = {"may_grow": self._may_grow, "grown": self._grown}
        return {"scale": self._scale, "shrinks_left": self._shrinks_left} | growth

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Go on from a snapshot."""
        self._scale, self._shrinks_left = float(snapshot["scale"]), int(snapshot["shrinks_left"])
        self._may_grow, self._grown = bool(snapshot["may_grow"]), bool(snapshot["grown"])
