"""First-order methods that a trajectory can follow: gradient descent, with momentum, on all of the data or a share."""

from dataclasses import dataclass
from typing import Any

from gamp_attention._core import check

DESCENTS = ("gd", "momentum", "nesterov", "sgd")


@dataclass(frozen=True)
class DescentMethod:
    """Steps v ← μ v + ∇R, Q ← Q − η_t v, with Nesterov's Q ← Q − η_t (∇R + μ v), as torch's SGD takes them.

    Attributes
    ----------
    steps : η_0, η_1, …, the last being repeated.
    momentum : μ, in [0, 1).
    nesterov : whether steps look ahead.
    batch : share of the data, drawn anew at every step, that ∇R is estimated from.
    """

    steps: tuple[float, ...]
    momentum: float = 0.0
    nesterov: bool = False
    batch: float = 1.0

    def lr(self, t: int) -> float:
        """η_t."""
        return self.steps[min(t, len(self.steps) - 1)]


def descent_method(method: str, lr: Any, momentum: Any, batch: Any) -> DescentMethod:
    """The method of a name, with checked settings; those that the name has no use for are not looked at."""
    if check.ndim("lr", lr) == 1 and len(lr) > 0:
        steps = tuple(check.real(f"lr[{t}]", step, low=0, strict=True) for t, step in enumerate(lr))
    else:
        steps = (check.real("lr", lr, low=0, strict=True),)
    if method in ("momentum", "nesterov"):
        momentum = check.real("momentum", momentum, low=0, high=1)
        if momentum == 1:
            raise check.fail("momentum", momentum, "a number in [0, 1)")
        return DescentMethod(steps, momentum, method == "nesterov")
    share = check.real("batch", batch, low=0, high=1, strict=True) if method == "sgd" else 1.0
    return DescentMethod(steps, batch=share)
