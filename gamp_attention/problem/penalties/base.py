"""Interface of penalties r(Q) = Σ_ia ρ(Q_ia) with a convex ρ, and checks of user-defined penalties.

A penalty is a NamedTuple with three methods that numba compiles; see `Ridge` in
`gamp_attention.problem.penalties.standard`:

- `value(self, x)`: ρ(x);
- `slopes(self, x)`: the left and the right end of the subdifferential ∂ρ(x);
- `prox(self, b, a)`: x = argmin ρ(x) + a x²/2 − b x for a > 0, and dx/db;

It also has a number `strength` > 0, the unit of gradients and variances, which is λ for the ridge. Optional traits are
fields, properties or attributes of the class:

- `lam`: λ; sweeps change a field of this name. By default the strength;
- `convexity`: μ >= 0 such that ρ(x) − μx²/2 is convex: the prox is then evaluated for all a > −μ. By default 0;
- `even`: whether ρ(−x) = ρ(x), so that weights may change sign. By default determined from a few values;
- `smooth`: whether ρ has no kinks, so that the risk has a gradient. By default False;
- `quadratic`: whether ρ(x) = λx²/2, so that weights are linear in b, and averages over them have closed forms. This is
  the only sum over entries that is invariant under rotations of the columns of Q. By default False.

Compiled code calls `penalty_value`, `penalty_slopes` and `penalty_prox`, which numba dispatches on the penalty's type.
"""

from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from gamp_attention._kernels.compiled import dispatch_on_type, kernel, overload
from gamp_attention._kernels.user_code import Registry, attempt
from gamp_attention._tools import check

POINTS = np.array([-3.1, -1.0, -0.4, -1e-2, 0.0, 1e-2, 0.4, 1.0, 3.1])  # points at which penalties are checked


@lru_cache(typed=True)  # NamedTuples of equal numbers are equal whatever their type
def _looks_even(penalty: Any) -> bool:
    rho = np.empty(POINTS.shape)
    values(penalty, POINTS, rho)
    return bool(np.allclose(rho, rho[::-1], rtol=1e-12, atol=0))


@lru_cache(typed=True)
def _checked_once(penalty: Any, owner: str) -> Any:
    """Return a user-defined penalty after `check_penalty`."""
    check_penalty(penalty)
    return penalty


PENALTIES = Registry(
    "register_penalty",
    needed=("value(self, x)", "slopes(self, x)", "prox(self, b, a)"),
    traits={
        "lam": property(lambda self: self.strength),
        "convexity": 0.0,
        "even": property(_looks_even),
        "smooth": False,
        "quadratic": False,
        # of penalties whose strengths differ: see `gamp_attention.problem.penalties.columns` and `standard`
        "curvature": property(lambda self: self.lam),
        "by_column": False,
        "intercept": False,
        "checked": _checked_once,
    },
)


class Penalty(Protocol):
    """A penalty of this package, or an instance of a class that is registered by `register_penalty`."""

    @property
    def strength(self) -> float:
        """Size of the penalty, > 0; the ridge's λ."""


def register_penalty(cls: type) -> type:
    """Make a NamedTuple with methods `value`, `slopes` and `prox` and a number `strength` a penalty.

    This function can be used as a decorator. Penalties are checked when a model or dataset first uses them. The module
    `gamp_attention.problem.penalties.base` describes optional traits of penalties.

    Returns
    -------
    cls.

    Raises
    ------
    TypeError : if the class is not a NamedTuple or lacks one of the three methods.

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


@dispatch_on_type
def penalty_value(penalty, x):
    """Return ρ(x); for compiled code only."""


@dispatch_on_type
def penalty_slopes(penalty, x):
    """Return the left and right end of ∂ρ(x); for compiled code only."""


@dispatch_on_type
def penalty_prox(penalty, b, a):
    """Return x = argmin ρ(x) + a x²/2 − b x, and dx/db; for compiled code only."""


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
    """Fill left and right (n,) with the ends of ∂ρ(x)."""
    for i in range(x.shape[0]):
        left[i], right[i] = penalty_slopes(penalty, x[i])


@kernel
def proxes(penalty, b, a, x, dx):
    """Fill x (n,) and dx/db for b (n,) and a number a > 0."""
    for i in range(b.shape[0]):
        x[i], dx[i] = penalty_prox(penalty, b[i], a)


DIFFERENCE_STEP = 1e-6  # step of finite differences
DIFFERENCE_TOL = 1e-4  # largest deviation of finite differences, in units of the strength


def check_penalty(penalty: Any) -> None:
    """Compile the three methods of a penalty; raise if they contradict each other or the declared properties."""
    name = type(penalty).__name__
    if not hasattr(penalty, "strength"):
        raise check.fail("penalty", penalty, f"a property 'strength' of {name}, the unit of its slopes", TypeError)
    strength = check.real("penalty.strength", penalty.strength, low=0, strict=True)
    convexity = check.real("penalty.convexity", penalty.convexity, low=0)
    rho = _evaluate_kernel(penalty, values, "value", POINTS, 1)[0]
    left, right = _evaluate_kernel(penalty, slopes, "slopes", POINTS, 2)
    _demand(penalty, "value", not np.isnan(rho).any(), "no NaN", POINTS, rho)
    inside = np.isfinite(rho)
    _demand(penalty, "value", inside.any(), "finite values somewhere", POINTS, rho)
    _check_slopes(penalty, strength, inside, left, right)
    for a in (0.05, 1.0, 20.0):  # curvatures of the prox, in units of the strength
        _check_prox(penalty, strength, a * strength - 0.5 * convexity, convexity)
    traits = {
        "even": ("ρ(−x) = ρ(x)", np.allclose(rho, rho[::-1], rtol=1e-12, atol=0)),
        "smooth": ("slopes without kinks", np.array_equal(left, right)),
        "quadratic": ("ρ(x) = λx²/2", np.allclose(rho, 0.5 * penalty.lam * POINTS**2)),
    }
    for trait, (needs, holds) in traits.items():
        needs = f"{needs}, because {trait} is True,"
        _demand(penalty, "value", holds or not getattr(penalty, trait), needs, POINTS, rho)


def _check_slopes(penalty: Any, strength: float, inside: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    x, left, right = POINTS[inside], left[inside], right[inside]
    _demand(penalty, "slopes", (left <= right).all(), "left <= right, neither NaN", x, left - right)
    increasing = right[:-1] <= left[1:] + DIFFERENCE_TOL * strength
    _demand(penalty, "slopes", increasing.all(), "slopes that increase with x, because ρ is convex", x, left)
    rho = _evaluate_kernel(penalty, values, "value", x, 1)[0]
    for side, slope in ((1, right), (-1, left)):
        moved = _evaluate_kernel(penalty, values, "value", x + side * DIFFERENCE_STEP, 1)[0]
        difference = side * (moved - rho) / DIFFERENCE_STEP
        near = np.isclose(difference, slope, rtol=1e-3, atol=1e-3 * strength)
        equal = near | (~np.isfinite(difference) & ~np.isfinite(slope))
        _demand(penalty, "slopes", equal.all(), "the one-sided derivatives of value", x, slope)


def _check_prox(penalty: Any, strength: float, a: float, convexity: float) -> None:
    total = a + convexity
    b = np.concatenate([3 * strength * POINTS, total * POINTS])
    x, dx = _evaluate_kernel(penalty, proxes, "prox", b, 2, a)
    _demand(penalty, "prox", np.isfinite(x).all() and np.isfinite(dx).all(), "finite numbers", b, x)
    left, right = _evaluate_kernel(penalty, slopes, "slopes", x, 2)
    # test an interval around x as wide as rounding: at a kink, x may miss the kink by that much
    around = [_evaluate_kernel(penalty, slopes, "slopes", x + s * 1e-9, 2) for s in (-1, 1)]
    slack = DIFFERENCE_TOL * (strength + np.abs(b))
    low = np.fmin(left, around[0][0]) + a * x - b - slack
    high = np.fmax(right, around[1][1]) + a * x - b + slack
    needs = f"0 in ∂ρ(x) + a x − b at its x (a = {a:g})"
    _demand(penalty, "prox", ((low <= 0) & (high >= 0)).all(), needs, b, x)
    inside = (dx >= -1e-9) & (dx <= (1 + 1e-9) / total)
    _demand(penalty, "prox", inside.all(), f"0 <= dx/db <= {1 / total:g} (a = {a:g})", b, dx)
    step = DIFFERENCE_STEP * (strength + np.abs(b))
    ends = [_evaluate_kernel(penalty, proxes, "prox", b + s * step, 2, a)[0] for s in (-1, 0, 1)]
    sides = [(ends[k + 1] - ends[k]) / step for k in (0, 1)]
    smooth = np.abs(sides[0] - sides[1]) < DIFFERENCE_TOL / total  # no kink within the step
    near = np.abs(dx - 0.5 * (sides[0] + sides[1])) < 10 * DIFFERENCE_TOL / total
    _demand(penalty, "prox", (near | ~smooth).all(), f"the derivative of x in b (a = {a:g})", b, dx)


def _evaluate_kernel(penalty: Any, kernel: Any, name: str, x: np.ndarray, n_out: int, *args: float) -> list[np.ndarray]:
    """Return the values of a compiled function at several points."""
    out = [np.full(x.shape, np.nan) for _ in range(n_out)]
    returns = "one number" if n_out == 1 else "two numbers"
    attempt(f"{type(penalty).__name__}.{name}", kernel, penalty, x, *args, *out, returns=returns)
    return out


def _demand(penalty: Any, function: str, holds: Any, needs: str, x: np.ndarray, got: np.ndarray) -> None:
    if not holds:
        shown = f"{np.array2string(got, precision=4)} at {np.array2string(x, precision=4)}"
        raise ValueError(f"penalty: needs {needs} from {type(penalty).__name__}.{function}, got {shown}")
