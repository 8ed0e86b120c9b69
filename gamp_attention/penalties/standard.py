"""The penalties of the package, `Ridge` and `ElasticNet`, and the choice of one, checked."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from gamp_attention._core import check
from gamp_attention.penalties.base import PENALTIES, register_penalty
from gamp_attention.penalties.checks import check_penalty
from gamp_attention.penalties.scaled import ScaledPenalty


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
    even = smooth = quadratic = True  # type: ignore[misc]

    @property
    def strength(self) -> float:
        """λ."""
        return self.lam

    @property
    def convexity(self) -> float:
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

    @property
    def even(self) -> bool:
        """ρ(−x) = ρ(x)."""
        return True

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


def require_penalty(penalty: Any, lam: Any = None) -> Any:
    """A penalty that can be used, Ridge(lam) if none is given."""
    if penalty is None:
        penalty = Ridge(lam)
    if isinstance(penalty, ScaledPenalty):
        inner = penalty.penalty
        return penalty if type(inner) is Ridge and inner.lam == 0 else replace(penalty, penalty=require_penalty(inner))
    if type(penalty) is Ridge:
        return Ridge(check.real("lam", penalty.lam, low=0, strict=True))
    if type(penalty) is ElasticNet:
        penalty = ElasticNet(check.real("lam", penalty.lam, low=0), check.real("l1", penalty.l1, low=0))
        if penalty.strength == 0:
            raise check.fail("penalty", penalty, "λ or l₁ above 0")
        return penalty
    if type(penalty) not in PENALTIES:
        needs = "a penalty: Ridge(lam), ElasticNet(lam, l1) or a NamedTuple registered by register_penalty"
        raise check.fail("penalty", penalty, needs, TypeError)
    _check_once(penalty)
    return penalty


_check_once = lru_cache(typed=True)(check_penalty)  # typed: NamedTuples of equal numbers are equal whatever their type


def with_lam(penalty: Any, lam: Any) -> Any:
    """The penalty with another λ."""
    if isinstance(penalty, ScaledPenalty):
        if type(penalty.penalty) is Ridge:  # λ = 0 is allowed
            return replace(penalty, penalty=Ridge(check.real("lam", lam, low=0)))
        return replace(penalty, penalty=with_lam(penalty.penalty, lam))
    if "lam" not in penalty._fields:
        raise check.fail("penalty", penalty, "a field 'lam' to change λ")
    return require_penalty(penalty._replace(lam=check.real("lam", lam, low=0)))
