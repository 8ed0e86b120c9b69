"""Registration of user-defined losses and attention maps.

A loss is a NamedTuple as described in `gamp_attention.losses.point`. An attention map is a NamedTuple with the method

- `attend(self, z, S)`: fill the attention matrix S (L, L) from fields z (L, r), in code that numba compiles.

A map may also define

- `torch(self, z)`: return attention matrices (n, L, L) for a tensor of fields (n, L, r); required by `minimize_risk`;
- `bounded`: True if rows of S are positive and add up to 1, which saves searches; it is compiled in, so it must be True
  or False for the class and cannot be a property;
- `even` (S[−z] = S[z]), `rotations` (S[zO] = S[z]) and `parts` (number of weight matrices in the columns of Q);
- `smooth`: False for a map that is known to have kinks.

Derivatives are computed by central differences. The first use of a map in a model or dataset checks it, and emits a
`KinkWarning` if its slope jumps.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core.compiled import dispatch_on_type, is_instance, kernel, overload, sample_kernel
from gamp_attention._core.user_code import Registry
from gamp_attention.losses.attention import (
    AttentionLoss,
    DotProductAttention,
    attend_row,
    fill_scores,
    is_bounded,
    is_by_differences,
    row_loss,
)
from gamp_attention.losses.bounds import attention_floor
from gamp_attention.losses.point import LOSSES, PointLoss, difference_derivatives
from gamp_attention.losses.protocol import loss_curvature, loss_derivatives, loss_floor, loss_value

MAPS = Registry(
    "register_attention",
    needed=("attend(self, z, S)",),
    traits={"bounded": False, "even": False, "rotations": False, "smooth": True, "parts": 1},
    compiled_in=("bounded",),
)


@dispatch_on_type
def attend(attention, z, S):
    """Fill S (L, L) from fields z (L, r). Compiled code only."""


@kernel
def attend_all(attention, z, S):
    """Fill S (n, L, L) from fields z (n, L, r)."""
    for mu in range(len(z)):
        attend(attention, z[mu], S[mu])


def call_map(self: Any, z: Any) -> Any:
    """Return attention matrices (..., L, L) for local fields (..., L, r), as numpy arrays or torch tensors."""
    if not isinstance(z, np.ndarray):
        if not hasattr(self, "torch"):
            raise TypeError(f"data: minimize_risk needs a loss with a method torch(self, z), got {type(self).__name__}")
        return self.torch(z)
    L = z.shape[-2]
    flat = np.ascontiguousarray(z).reshape(-1, L, z.shape[-1])
    S = np.empty((len(flat), L, L))
    attend_all(self, flat, S)
    return S.reshape(*z.shape[:-1], L)


@overload(attend)
def _attend(attention, z, S):
    fill = MAPS.method(attention, "attend")
    return fill and (lambda attention, z, S: fill(attention, z, S))


@overload(is_bounded)
def _is_bounded(attention):
    if MAPS.method(attention, "attend") is None:
        return None
    bounded = attention.instance_class.bounded
    return lambda attention: bounded


class MapWithScratch(NamedTuple):
    """An AttentionLoss of a registered map, with the array that the values of one difference have in common."""

    loss: Any
    s: np.ndarray  # (L, L) attention matrix


@overload(loss_value, counted=True)
def _loss_value(loss, p, z, work):
    if not is_by_differences(loss):
        return None
    return lambda loss, p, z, work: map_value(loss, p, z, np.empty((loss.n_tokens, loss.n_tokens)))


@overload(loss_value)
def _loss_value_with_scratch(loss, p, z, work):
    return (lambda loss, p, z, work: map_value(loss.loss, p, z, loss.s)) if is_instance(loss, MapWithScratch) else None


@overload(loss_derivatives, counted=True)
def _loss_derivatives(loss, p, z, grad, hess, work, second):
    if not is_by_differences(loss):
        return None

    def map_derivatives(loss, p, z, grad, hess, work, second):
        scratch = np.empty((loss.n_tokens, loss.n_tokens))
        return difference_derivatives(MapWithScratch(loss, scratch), p, z, grad, hess, work, second)

    return map_derivatives


@sample_kernel  # not inlined: central differences would compile it a dozen times
def map_value(loss, p, z, s):
    """Return the loss of a registered map, with scratch s (L, L)."""
    value = 0.0
    attend(loss.attention, z.reshape((loss.n_tokens, loss.rank)), s)
    for i in range(loss.n_tokens):
        value += row_loss(p, s, i)
    return value


@overload(loss_floor, counted=True)
def _loss_floor(loss, p, work):
    if not is_by_differences(loss):
        return None

    def floor(loss, p, work):
        L = loss.n_tokens
        scratch = np.empty((L + 2, L))
        return attention_floor(L, p, is_bounded(loss.attention), scratch[2:], scratch[0], scratch[1])

    return floor


@overload(loss_curvature)
def _loss_curvature(loss, p, center, reach):
    return (lambda loss, p, center, reach: -np.inf) if is_by_differences(loss) else None


def register_loss(cls: type) -> type:
    """Register a NamedTuple with a method `value` as a per-sample loss; see `gamp_attention.losses.point`.

    Usable as a decorator. The first use of an instance in a model or dataset checks its methods on the labels there.

    The method ``value(self, p, z)`` returns the loss of a sample with labels p (P,) at fields z (L, r). A method
    ``derivatives(self, p, z, grad, hess)`` returns the loss and fills ``grad`` of shape (L r,) and ``hess`` of shape
    (L r, L r): both are flat over the fields in row-major order, so that the field of token l and column a has index
    l r + a.

    Returns
    -------
    cls itself.

    Raises
    ------
    TypeError : if `cls` is not derived from NamedTuple, if it has no method `value`, if it does not set `convex` to
        True and has no method `floor`, or if `convex` is not True or False.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> import gamp_attention as ga
    >>> @ga.register_loss
    ... class Quartic(NamedTuple):
    ...     convex = True
    ...     def value(self, p, z):
    ...         return (z[0, 0] - p[0]) ** 4
    >>> model = ga.glm_model(Quartic(), ga.LinearLabels(), lam=0.1)
    >>> model.loss.n_fields
    1
    """
    LOSSES.complete(cls)
    if not cls.convex and "floor" not in vars(cls):  # type: ignore[attr-defined]
        raise TypeError(
            f"register_loss: {cls.__name__} needs convex = True, or a method floor(self, p) that returns a lower bound "
            "of the loss, which the search for the global proximal minimum requires"
        )
    LOSSES.add(cls)
    return cls


def register_attention(cls: type) -> type:
    """Register a NamedTuple with a method `attend` as an attention map; see `gamp_attention.losses.registration`.

    Usable as a decorator. The first use of an instance in a model or dataset checks it.

    Returns
    -------
    cls itself.

    Raises
    ------
    TypeError : if `cls` is not derived from NamedTuple, if it has no method `attend`, or if `bounded` is not True or
        False.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> @ga.register_attention
    ... class Uniform(NamedTuple):
    ...     even = bounded = True
    ...     def attend(self, z, S):
    ...         S[:] = 1 / len(z)
    >>> Uniform()(np.ones((2, 1))).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    MAPS.add(cls)
    if "__call__" not in vars(cls):
        cls.__call__ = call_map  # type: ignore[method-assign]
    return cls


def sample_loss(student: Any, n_tokens: int, rank: int) -> Any:
    """Return the per-sample loss of a student, which is an attention map or a registered loss."""
    return (PointLoss if is_registered_loss(student) else AttentionLoss)(student, n_tokens, rank)


def is_registered_loss(student: Any) -> bool:
    """Return whether a student is a loss registered by `register_loss`."""
    return type(student) in LOSSES


def is_registered_attention(student: Any) -> bool:
    """Return whether a student is an attention map registered by `register_attention`."""
    return type(student) in MAPS


@register_attention
class DecorrelatedAttention(NamedTuple):
    """Attention map S[H z] H of decorrelated tokens u, for correlated tokens x = H u.

    The norm of (T − S) x is the norm of (T H − S H) u, so to learn T from x is to learn T[H ·] H from u.
    """

    attention: DotProductAttention  # attention map S of the correlated tokens
    mixing: tuple[float, ...]  # the L² entries of H, row by row

    @property
    def even(self) -> bool:
        """True if S[−z] = S[z]."""
        return self.attention.even

    @property
    def rotations(self) -> bool:
        """True if S[z O] = S[z] for every rotation O of the columns."""
        return self.attention.rotations

    @property
    def parts(self) -> int:
        """Number of weight matrices in the columns of Q."""
        return self.attention.parts

    def attend(self, z, S):
        """Fill S (L, L) from fields z (L, r). Compiled code."""
        L, r = z.shape
        mixed, row = np.zeros(L * r), np.empty(L)
        for i in range(L):
            for k in range(L):
                for a in range(r):
                    mixed[i * r + a] += self.mixing[i * L + k] * z[k, a]
        fill_scores(self.attention, mixed, L, r, S)
        for i in range(L):
            attend_row(self.attention, S, i)
            for j in range(L):
                row[j] = S[i, j]
                S[i, j] = 0.0
            for k in range(L):
                for j in range(L):
                    S[i, j] += row[k] * self.mixing[k * L + j]

    def torch(self, z):
        """Return attention matrices (n, L, L) for a tensor of fields (n, L, r)."""
        H = z.new_tensor(self.mixing).reshape(z.shape[-2], z.shape[-2])
        return self.attention(H @ z) @ H
