"""Steps β_t of message passing, and of the state evolution that tracks it."""

from typing import Any, NamedTuple

from gamp_attention._core import check

DAMPING = {"semantic": 0.5, "positional": 0.3}  # default steps β, with which runs on these branches converge


class AdaptiveSettings(NamedTuple):
    """Settings of damping="adaptive"."""

    start: float = 0.3  # first step β
    factor: float = 0.6  # factor by which the step shrinks after divergence or a stall
    max_shrinks: int = 2  # number of times the step may shrink before divergence or a stall ends the run
    long: float = 0.7  # step β near the end of runs whose step may grow
    grow_below: float = 0.1  # gradient norm below which the step `long` is taken
    fall_back: float = 0.3  # gradient norm above which the step `long` is abandoned for the rest of the run


ADAPTIVE = AdaptiveSettings()


class Damping:
    """Sequence of steps β_t: constant, given (the last entry is repeated), or adaptive; it may grow near the end."""

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
        """Return β_t for iteration t."""
        step = ADAPTIVE.long if self._grown else self._steps[min(t, len(self._steps) - 1)]
        return self._scale * step

    def follow(self, norm: float) -> bool:
        """Switch between normal and long steps according to the gradient norm; return whether the step has changed."""
        before = self._grown
        if self._grown and norm > ADAPTIVE.fall_back:
            self._may_grow = self._grown = False
        elif self._may_grow and norm < ADAPTIVE.grow_below:
            self._grown = True
        return self._grown is not before

    def shrink(self) -> bool:
        """Shrink all later steps; return False if the step may not shrink (any more)."""
        if self._shrinks_left == 0:
            return False
        self._shrinks_left -= 1
        self._may_grow = self._grown = False
        self._scale *= ADAPTIVE.factor
        return True

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the step rule, from which `restore` continues."""
        growth = {"may_grow": self._may_grow, "grown": self._grown}
        return {"scale": self._scale, "shrinks_left": self._shrinks_left} | growth

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        self._scale, self._shrinks_left = float(snapshot["scale"]), int(snapshot["shrinks_left"])
        self._may_grow, self._grown = bool(snapshot["may_grow"]), bool(snapshot["grown"])
