"""What a penalty r(Q) = Σ_ia ρ(Q_ia), ρ convex, answers; `Ridge` in `gamp_attention.penalties.standard` is an example.

It is a NamedTuple with three methods that numba compiles:

- `value(self, x)`: ρ(x);
- `slopes(self, x)`: the left and the right end of the subdifferential ∂ρ(x);
- `prox(self, b, a)`: x = argmin ρ(x) + a x²/2 − b x for a > 0, and dx/db;

a number `strength` > 0 in whose units gradients and variances are measured, λ for the ridge; and, if it likes, these
traits, as fields, properties or attributes of the class:

- `lam`: λ; a field of this name is what sweeps change. The strength if not given;
- `convexity`: a μ >= 0 such that ρ(x) − μx²/2 is convex: the prox is then asked for all a > −μ. 0 if not given;
- `even`: whether ρ(−x) = ρ(x), so that weights may change sign; seen from a few values if not given;
- `smooth`: whether ρ has no kinks, so that the risk has a gradient; False if not given;
- `quadratic`: whether ρ(x) = λx²/2, which makes weights linear in b, and averages over them closed forms. Of all sums
  over entries it alone is the same for all rotations of the columns of Q. False if not given.

Compiled code calls `penalty_value`, `penalty_slopes` and `penalty_prox`, which numba dispatches on the penalty's type.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from gamp_attention._core.compiled import kernel, overload
from gamp_attention._core.user_code import Registry

POINTS = np.array([-3.1, -1.0, -0.4, -1e-2, 0.0, 1e-2, 0.4, 1.0, 3.1])  # at which penalties are tried


@lru_cache(typed=True)  # NamedTuples of equal numbers are equal whatever their type
def _looks_even(penalty: Any) -> bool:
    rho = np.empty(POINTS.shape)
    values(penalty, POINTS, rho)
    return bool(np.allclose(rho, rho[::-1], rtol=1e-12, atol=0))


PENALTIES = Registry(
    "register_penalty",
    needed=("value(self, x)", "slopes(self, x)", "prox(self, b, a)"),
    traits={
        "lam": property(lambda self: self.strength),
        "convexity": 0.0,
        "even": property(_looks_even),
        "smooth": False,
        "quadratic": False,
    },
)


def register_penalty(cls: type) -> type:
    """Make a NamedTuple with methods `value`, `slopes` and `prox` and a number `strength` a penalty.

    Usable as a decorator. The first use of an instance of it in a model or dataset checks it. What else a penalty may
    say of itself is told in `gamp_attention.penalties.base`.

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
    PENALTIES.add(cls)
    return cls


def penalty_value(penalty, x):
    """ρ(x). Compiled code only."""
    raise NotImplementedError("penalty_value() is dispatched by numba on the type of the penalty")


def penalty_slopes(penalty, x):
    """Left and right end of ∂ρ(x). Compiled code only."""
    raise NotImplementedError("penalty_slopes() is dispatched by numba on the type of the penalty")


def penalty_prox(penalty, b, a):
    """x = argmin ρ(x) + a x²/2 − b x and dx/db. Compiled code only."""
    raise NotImplementedError("penalty_prox() is dispatched by numba on the type of the penalty")


@overload(penalty_value)
def _penalty_value(penalty, x):
    value = PENALTIES.method(penalty, "value")
    return value and (lambda penalty, x: value(penalty, x))


@overload(penalty_slopes)
def _penalty_slopes(penalty, x):
    slopes = PENALTIES.method(penalty, "slopes")
    return slopes and (lambda penalty, x: slopes(penalty, x))


@overload(penalty_prox)
def _penalty_prox(penalty, b, a):
    prox = PENALTIES.method(penalty, "prox")
    return prox and (lambda penalty, b, a: prox(penalty, b, a))


@kernel
def values(penalty, x, out):
    """Fill out (n,) with ρ(x)."""
    for i in range(x.shape[0]):
        out[i] = penalty_value(penalty, x[i])


@kernel
def slopes(penalty, x, left, right):
    """Fill the ends of ∂ρ(x), each (n,)."""
    for i in range(x.shape[0]):
        left[i], right[i] = penalty_slopes(penalty, x[i])


@kernel
def proxes(penalty, b, a, x, dx):
    """Fill x (n,) and dx/db for b (n,) and one a > 0."""
    for i in range(b.shape[0]):
        x[i], dx[i] = penalty_prox(penalty, b[i], a)


@kernel
def proxes_of_each(penalty, b, a, x, dx):
    """Fill x (n,) and dx/db for b (n,) and a > 0 (n,)."""
    for i in range(b.shape[0]):
        x[i], dx[i] = penalty_prox(penalty, b[i], a[i])
