"""First-order methods that a trajectory can follow: gradient descent, with momentum, on all of the data or a share."""

from dataclasses import dataclass
from typing import Any

from gamp_attention._core import check

DESCENTS = ("gd", "momentum", "nesterov", "sgd")
MOMENTUM, BATCH = 0.9, 0.1  # defaults of the settings


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


def descent_method(method: str, lr: Any, momentum: Any = None, batch: Any = None) -> DescentMethod:
    """Return the method of a name with checked settings; None stands for the default of a setting.

    Raises
    ------
    TypeError, ValueError : if a setting is out of its range, or is given though the method has no such setting.
    """
    if check.ndim("lr", lr) == 1:
        if len(lr) == 0:
            raise check.fail("lr", lr, "a number > 0, or a sequence of at least one such number")
        steps = tuple(check.real(f"lr[{t}]", step, low=0, strict=True) for t, step in enumerate(lr))
    else:
        steps = (check.real("lr", lr, low=0, strict=True),)
    require_unused(method, {"momentum": momentum}, ("momentum", "nesterov"))
    require_unused(method, {"batch": batch}, ("sgd",))
    if method in ("momentum", "nesterov"):
        momentum = check.real("momentum", MOMENTUM if momentum is None else momentum, low=0, high=1)
        if momentum == 1:
            raise check.fail("momentum", momentum, "a number in [0, 1)")
        return DescentMethod(steps, momentum, method == "nesterov")
    fraction = check.real("batch", BATCH if batch is None else batch, low=0, high=1, strict=True)
    return DescentMethod(steps, batch=fraction if method == "sgd" else 1.0)


def require_unused(method: str, settings: dict[str, Any], methods: tuple[str, ...]) -> None:
    """Raise ValueError if a setting of some methods is given, not None, with a method that does not use it."""
    if method in methods:
        return
    for name, value in settings.items():
        if value is not None:
            needs = f"method {' or '.join(map(repr, methods))}, as {method!r} does not use it"
            raise ValueError(f"{name}: needs {needs}, got {value!r}; leave {name} out")
