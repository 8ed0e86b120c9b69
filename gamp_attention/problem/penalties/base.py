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


PENALTIES = Registry(
    "register_penalty",
    needed=("value(self, x)", "slopes(self, x)", "prox(self, b, a)"),
    traits={
        "lam": property(lambda self: self.strength),
        "convexity": 0.0,
        "even": property(_looks_even),
        "smooth": False,
        "quadratic": False,
        # of penalties whose strengths differ: see `gamp_attention.problem.penalties.standard`
        "curvature": property(lambda self: self.lam),
        "by_column": False,
        "intercept": False,
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


def _implement(stub: Any, name: str) -> None:
    """Let compiled code call the method `name` of a registered penalty by a stub."""

    @overload(stub, strict=False)
    def choose(penalty, *arguments):
        method = PENALTIES.method(penalty, name)
        return method and (lambda penalty, *arguments: method(penalty, *arguments))


_implement(penalty_value, "value")
_implement(penalty_slopes, "slopes")
_implement(penalty_prox, "prox")


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


STEP, TOLERANCE = 1e-6, 1e-4  # step of finite differences, and their largest deviation in units of the strength


@lru_cache(typed=True)
def check_penalty(penalty: Any, owner: str) -> Any:
    """Return a user-defined penalty; raise if its compiled methods contradict each other or the declared properties."""
    if not hasattr(penalty, "strength"):
        needs = f"a property 'strength' of {type(penalty).__name__}, the unit of its slopes"
        raise check.fail("penalty", penalty, needs, TypeError)
    strength = check.real("penalty.strength", penalty.strength, low=0, strict=True)
    convexity = check.real("penalty.convexity", penalty.convexity, low=0)
    (rho,), (left, right) = call_kernel(penalty, values, POINTS), call_kernel(penalty, slopes, POINTS)
    x = POINTS[np.isfinite(rho)]
    _demand(penalty, "value", len(x) and not np.isnan(rho).any(), "some finite numbers and no NaN", POINTS, rho)
    (rho_x,), (low, high) = call_kernel(penalty, values, x), call_kernel(penalty, slopes, x)
    increasing = (low <= high).all() and (high[:-1] <= low[1:] + TOLERANCE * strength).all()
    _demand(penalty, "slopes", increasing, "slopes that increase with x, because ρ is convex", x, low)
    for side, slope in ((1, high), (-1, low)):
        difference = side * (call_kernel(penalty, values, x + side * STEP)[0] - rho_x) / STEP
        near = np.isclose(difference, slope, rtol=1e-3, atol=1e-3 * strength)
        equal = near | (~np.isfinite(difference) & ~np.isfinite(slope))
        _demand(penalty, "slopes", equal.all(), "the one-sided derivatives of value", x, slope)
    for a in (0.05, 1.0, 20.0):  # curvatures of the prox, in units of the strength
        total, a = a * strength + 0.5 * convexity, a * strength - 0.5 * convexity
        b = np.concatenate([3 * strength * POINTS, total * POINTS])
        minimum, response = call_kernel(penalty, proxes, b, a)
        # test an interval as wide as rounding: at a kink, the minimum may miss the kink by that much
        ends, below, above = (call_kernel(penalty, slopes, minimum + shift) for shift in (0.0, -1e-9, 1e-9))
        slack = TOLERANCE * (strength + np.abs(b))
        lowest = np.fmin(ends[0], below[0]) + a * minimum - b - slack
        highest = np.fmax(ends[1], above[1]) + a * minimum - b + slack
        needs = f"0 in ∂ρ(x) + a x − b at its x (a = {a:g})"
        _demand(penalty, "prox", ((lowest <= 0) & (highest >= 0)).all(), needs, b, minimum)
        step = STEP * (strength + np.abs(b))
        before, after = (
            (call_kernel(penalty, proxes, b + side * step, a)[0] - minimum) / (side * step) for side in (-1, 1)
        )
        smooth = np.abs(before - after) < TOLERANCE / total  # no kink within the step
        near = np.abs(response - 0.5 * (before + after)) < 10 * TOLERANCE / total
        _demand(penalty, "prox", (near | ~smooth).all(), f"the derivative of x in b (a = {a:g})", b, response)
    for trait, needs, holds in (
        ("even", "ρ(−x) = ρ(x)", np.allclose(rho, rho[::-1], rtol=1e-12, atol=0)),
        ("smooth", "slopes without kinks", np.array_equal(left, right)),
        ("quadratic", "ρ(x) = λx²/2", np.allclose(rho, 0.5 * penalty.lam * POINTS**2)),
    ):
        holds = holds or not getattr(penalty, trait)
        _demand(penalty, "value", holds, f"{needs}, because {trait} is True,", POINTS, rho)
    return penalty


PENALTIES.traits["checked"] = check_penalty


KERNELS = {values: ("value", 1), slopes: ("slopes", 2), proxes: ("prox", 2)}  # method and number of outputs


def call_kernel(penalty: Any, kernel: Any, x: np.ndarray, *arguments: float) -> list[np.ndarray]:
    """Return the outputs of a kernel at all entries of x, shaped as x."""
    method, n_out = KERNELS[kernel]
    flat = np.ascontiguousarray(x, dtype=float).ravel()
    out = [np.full(flat.shape, np.nan) for _ in range(n_out)]
    returns = "one number" if n_out == 1 else "two numbers"
    attempt(f"{type(penalty).__name__}.{method}", kernel, penalty, flat, *arguments, *out, returns=returns)
    return [numbers.reshape(x.shape) for numbers in out]


def _demand(penalty: Any, method: str, holds: Any, needs: str, x: np.ndarray, got: np.ndarray) -> None:
    if not holds:
        shown = f"{np.array2string(got, precision=4)} at {np.array2string(x, precision=4)}"
        raise ValueError(f"penalty: needs {needs} from {type(penalty).__name__}.{method}, got {shown}")
