"""Penalties r(Q) = Σ_ia ρ(Q_ia), ρ convex, as NamedTuples dispatched by type.

A penalty gives compiled code three functions of one entry:

- `penalty_value(penalty, x)`, ρ(x);
- `penalty_slopes(penalty, x)`, the left and the right end of the subdifferential ∂ρ(x);
- `penalty_prox(penalty, b, a)`, x = argmin ρ(x) + a x²/2 − b x for a > 0, and dx/db.

Besides, it has a number `strength` > 0 in whose units gradients and variances are measured: λ for the ridge; and, if
known, a number `convexity` μ >= 0 such that ρ(x) − μx²/2 is convex: then its prox is asked for all a > −μ. A new
penalty registers its functions with `implement`; see the page "Adding a penalty" of the documentation.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from gamp_attention import _validation as check
from gamp_attention._numba import overload
from gamp_attention.attention import is_instance


class Ridge(NamedTuple):
    """ρ(x) = λ x²/2.

    Attributes
    ----------
    lam : λ > 0.
    """

    lam: float

    @property
    def strength(self) -> float:
        """λ."""
        return self.lam


class ElasticNet(NamedTuple):
    """ρ(x) = λ x²/2 + l₁ abs(x); the lasso is λ = 0.

    Attributes
    ----------
    lam, l1 : λ >= 0 and l₁ >= 0, not both zero.
    """

    lam: float
    l1: float

    @property
    def strength(self) -> float:
        """λ + l₁."""
        return self.lam + self.l1

    @property
    def convexity(self) -> float:
        """λ."""
        return self.lam


BUILT_IN = (Ridge, ElasticNet)


def penalty_value(penalty, x):
    """ρ(x). Compiled code only."""
    raise NotImplementedError("penalty_value() is dispatched by numba on the type of the penalty")


def penalty_slopes(penalty, x):
    """Left and right end of ∂ρ(x). Compiled code only."""
    raise NotImplementedError("penalty_slopes() is dispatched by numba on the type of the penalty")


def penalty_prox(penalty, b, a):
    """x = argmin ρ(x) + a x²/2 − b x and dx/db. Compiled code only."""
    raise NotImplementedError("penalty_prox() is dispatched by numba on the type of the penalty")


INTERFACE = (penalty_value, penalty_slopes, penalty_prox)
_implemented: set[tuple[str, type]] = set()


def implement(function: Callable[..., Any], cls: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: the decorated function is what `function` of the interface does for penalties of type `cls`.

    It must be code that numba compiles, with the arguments of `function`. Register each once.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    """
    names = tuple(f.__name__ for f in INTERFACE)
    if function not in INTERFACE:
        raise check.fail("function", function, "one of " + ", ".join(names))
    if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
        raise check.fail("cls", cls, "a NamedTuple class", TypeError)
    # numba compares argument names, so each function of the interface has its own shape of overload
    if function is penalty_prox:

        def register(body: Callable[..., Any]) -> Callable[..., Any]:
            @overload(function)
            def _prox(penalty, b, a):
                return body if is_instance(penalty, cls) else None

            _implemented.add((function.__name__, cls))
            return body
    else:

        def register(body: Callable[..., Any]) -> Callable[..., Any]:
            @overload(function)
            def _of_entry(penalty, x):
                return body if is_instance(penalty, cls) else None

            _implemented.add((function.__name__, cls))
            return body

    return register


def missing(cls: type) -> list[str]:
    """Functions of the interface that a type of penalty lacks."""
    return [f.__name__ for f in INTERFACE if (f.__name__, cls) not in _implemented]


@implement(penalty_value, Ridge)
def _ridge_value(penalty, x):
    return 0.5 * penalty.lam * x * x


@implement(penalty_slopes, Ridge)
def _ridge_slopes(penalty, x):
    return penalty.lam * x, penalty.lam * x


@implement(penalty_prox, Ridge)
def _ridge_prox(penalty, b, a):
    response = 1.0 / (penalty.lam + a)
    return response * b, response


@implement(penalty_value, ElasticNet)
def _elastic_net_value(penalty, x):
    return 0.5 * penalty.lam * x * x + penalty.l1 * abs(x)


@implement(penalty_slopes, ElasticNet)
def _elastic_net_slopes(penalty, x):
    smooth = penalty.lam * x
    if x > 0.0:
        return smooth + penalty.l1, smooth + penalty.l1
    if x < 0.0:
        return smooth - penalty.l1, smooth - penalty.l1
    return -penalty.l1, penalty.l1


@implement(penalty_prox, ElasticNet)
def _elastic_net_prox(penalty, b, a):
    if abs(b) < penalty.l1:
        return 0.0, 0.0
    response = 1.0 / (penalty.lam + a)
    return response * (b - math.copysign(penalty.l1, b)), response


def require_penalty(penalty: Any, lam: Any = None) -> Any:
    """A penalty that can be used, Ridge(lam) if none is given.

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.
    """
    if penalty is None:
        penalty = Ridge(lam)
    if type(penalty) is Ridge:
        return Ridge(check.real("lam", penalty.lam, low=0, strict=True))
    if type(penalty) is ElasticNet:
        checked = ElasticNet(check.real("lam", penalty.lam, low=0), check.real("l1", penalty.l1, low=0))
        if checked.strength == 0:
            raise check.fail("penalty", penalty, "λ or l₁ above 0")
        return checked
    if not (isinstance(penalty, tuple) and hasattr(penalty, "_fields")):
        needs = "a penalty: Ridge(lam), ElasticNet(lam, l1) or a NamedTuple of one's own"
        raise check.fail("penalty", penalty, needs, TypeError)
    _check_own(penalty)
    return penalty


def with_lam(penalty: Any, lam: Any) -> Any:
    """The penalty with another λ.

    Raises
    ------
    TypeError, ValueError : where it has no field `lam`, or that λ is not allowed.
    """
    if "lam" not in penalty._fields:
        raise check.fail("penalty", penalty, "a field 'lam' to change λ")
    return require_penalty(penalty._replace(lam=check.real("lam", lam, low=0)))


def lam_of(penalty: Any) -> float:
    """λ: the penalty's field `lam`, its strength where there is none."""
    return float(getattr(penalty, "lam", penalty.strength))


def convexity_of(penalty: Any) -> float:
    """The μ >= 0 of which it is known that ρ(x) − μx²/2 is convex."""
    return float(getattr(penalty, "convexity", 0.0))


@lru_cache(typed=True)  # NamedTuples of equal numbers are equal whatever their type
def is_even(penalty: Any) -> bool:
    """ρ(−x) = ρ(x), so that weights may change sign."""
    if isinstance(penalty, BUILT_IN):
        return True
    from gamp_attention.penalty_checks import looks_even

    return looks_even(penalty)


@lru_cache(typed=True)
def _check_own(penalty: Any) -> None:
    """Check a penalty of the user's, once for each value."""
    from gamp_attention.penalty_checks import check_penalty

    check_penalty(penalty, missing(type(penalty)))
