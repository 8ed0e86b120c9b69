"""Penalties r(Q) = Σ_ia ρ(Q_ia), ρ convex, as NamedTuples with three methods that numba compiles:

- `value(self, x)`, ρ(x);
- `slopes(self, x)`, the left and the right end of the subdifferential ∂ρ(x);
- `prox(self, b, a)`, x = argmin ρ(x) + a x²/2 − b x for a > 0, and dx/db.

Besides, they have a number `strength` > 0 in whose units gradients and variances are measured: λ for the ridge; and, if
known, a number `convexity` μ >= 0 such that ρ(x) − μx²/2 is convex: then the prox is asked for all a > −μ.
`register_penalty` makes a new one known; see the page "Adding a penalty" of the documentation.
"""

import math
from functools import lru_cache
from typing import Any, NamedTuple

from gamp_attention._core import check
from gamp_attention._core.compiled import overload, user_kernel

METHODS = ("value", "slopes", "prox")
REGISTERED: dict[type, dict[str, Any]] = {}  # compiled methods of each class, by name


def register_penalty(cls: type) -> type:
    """Make a NamedTuple with methods `value`, `slopes` and `prox` and a number `strength` a penalty.

    Usable as a decorator. The first use of an instance of it in a model or dataset checks it.

    Returns
    -------
    cls itself.

    Raises
    ------
    TypeError : naming what the class lacks.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> import gamp_attention as ga
    >>> @ga.register_penalty
    ... class Halved(NamedTuple):
    ...     lam: float
    ...     strength = property(lambda self: self.lam)
    ...     def value(self, x):
    ...         return self.lam * x * x / 4
    ...     def slopes(self, x):
    ...         return self.lam * x / 2, self.lam * x / 2
    ...     def prox(self, b, a):
    ...         return b / (a + self.lam / 2), 1 / (a + self.lam / 2)
    >>> ga.paper_model(penalty=Halved(0.02)).lam
    0.02
    """
    check.namedtuple_class("register_penalty", cls, METHODS)
    REGISTERED[cls] = {name: user_kernel(vars(cls)[name]) for name in METHODS}
    return cls


@register_penalty
class Ridge(NamedTuple):
    """ρ(x) = λ x²/2.

    Attributes
    ----------
    lam : λ > 0.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> penalty = ga.Ridge(lam=0.5)
    >>> penalty.value(2.0), ga.paper_model(penalty=penalty).lam
    (1.0, 0.5)
    """

    lam: float

    @property
    def strength(self) -> float:
        """λ."""
        return self.lam

    def value(self, x):
        """ρ(x)."""
        return 0.5 * self.lam * x * x

    def slopes(self, x):
        """Both ends of ∂ρ(x)."""
        return self.lam * x, self.lam * x

    def prox(self, b, a):
        """The minimiser, and its derivative in b."""
        response = 1.0 / (self.lam + a)
        return response * b, response


@register_penalty
class ElasticNet(NamedTuple):
    """ρ(x) = λ x²/2 + l₁ abs(x); the lasso is λ = 0.

    Attributes
    ----------
    lam, l1 : λ >= 0 and l₁ >= 0, not both zero.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> penalty = ga.ElasticNet(lam=0.5, l1=1.0)
    >>> penalty.value(2.0), ga.paper_model(penalty=penalty).lam
    (3.0, 0.5)
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

    def value(self, x):
        """ρ(x)."""
        return 0.5 * self.lam * x * x + self.l1 * abs(x)

    def slopes(self, x):
        """Both ends of ∂ρ(x)."""
        smooth = self.lam * x
        if x > 0.0:
            return smooth + self.l1, smooth + self.l1
        if x < 0.0:
            return smooth - self.l1, smooth - self.l1
        return -self.l1, self.l1

    def prox(self, b, a):
        """The minimiser, and its derivative in b."""
        if abs(b) < self.l1:
            return 0.0, 0.0
        response = 1.0 / (self.lam + a)
        return response * (b - math.copysign(self.l1, b)), response


def penalty_value(penalty, x):
    """ρ(x). Compiled code only."""
    raise NotImplementedError("penalty_value() is dispatched by numba on the type of the penalty")


def penalty_slopes(penalty, x):
    """Left and right end of ∂ρ(x). Compiled code only."""
    raise NotImplementedError("penalty_slopes() is dispatched by numba on the type of the penalty")


def penalty_prox(penalty, b, a):
    """x = argmin ρ(x) + a x²/2 − b x and dx/db. Compiled code only."""
    raise NotImplementedError("penalty_prox() is dispatched by numba on the type of the penalty")


def _method(penalty: Any, name: str) -> Any:
    return REGISTERED.get(getattr(penalty, "instance_class", None), {}).get(name)  # type: ignore[arg-type]


@overload(penalty_value)
def _penalty_value(penalty, x):
    method = _method(penalty, "value")
    return None if method is None else lambda penalty, x: method(penalty, x)


@overload(penalty_slopes)
def _penalty_slopes(penalty, x):
    method = _method(penalty, "slopes")
    return None if method is None else lambda penalty, x: method(penalty, x)


@overload(penalty_prox)
def _penalty_prox(penalty, b, a):
    method = _method(penalty, "prox")
    return None if method is None else lambda penalty, b, a: method(penalty, b, a)


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
    if type(penalty) not in REGISTERED:
        needs = "a penalty: Ridge(lam), ElasticNet(lam, l1) or a NamedTuple that register_penalty was told of"
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
    if isinstance(penalty, (Ridge, ElasticNet)):
        return True
    from gamp_attention.penalties.checks import looks_even

    return looks_even(penalty)


@lru_cache(typed=True)
def _check_own(penalty: Any) -> None:
    """Check a penalty of the user's, once for each value."""
    from gamp_attention.penalties.checks import check_penalty

    check_penalty(penalty)
