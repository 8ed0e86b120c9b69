"""Attention maps that users define: a NamedTuple with one small function.

- `attend(self, z, S)`: fill the attention matrix S (L, L) from fields z (L, r), in code that numba compiles;

and, if it likes,

- `torch(self, z)`: attention matrices (n, L, L) of a tensor of fields (n, L, r), for `minimize_risk`;
- `bounded`: rows of S are positive and add to 1, which saves searches; True or False for the class, as it is compiled
  in, not a property;
- `even` (S[−z] = S[z]), `rotations` (S[zO] = S[z]), `parts` (weight matrices that Q holds side by side);
- `smooth`, False for a map that is known to have kinks.

Derivatives are central differences. Its first use in a model or dataset checks it, and warns with a `KinkWarning` where
its slope jumps.
"""

from typing import Any

import numpy as np

from gamp_attention._core.compiled import is_instance, kernel, overload
from gamp_attention._core.user_code import Registry
from gamp_attention.losses.attention import AttentionLoss, loss_derivatives, loss_gradient, loss_value, row_loss
from gamp_attention.losses.bounds import curvature_floor
from gamp_attention.losses.dot_product import DotProductAttention, is_bounded
from gamp_attention.losses.numeric_derivatives import difference_derivatives, difference_gradient

MAPS = Registry(
    "register_attention",
    needed=("attend(self, z, S)",),
    traits={"bounded": False, "even": False, "rotations": False, "smooth": True, "parts": 1},
    compiled_in=("bounded",),
)


def attend(attention, z, S):
    """Fill S (L, L) from fields z (L, r). Compiled code only."""
    raise NotImplementedError("attend() is dispatched by numba on the type of the attention map")


@kernel
def attend_all(attention, z, S):
    """Fill S (n, L, L) from fields z (n, L, r)."""
    for mu in range(len(z)):
        attend(attention, z[mu], S[mu])


def call_map(self: Any, z: Any) -> Any:
    """Attention matrices (..., L, L) of local fields (..., L, r); arrays of numpy or tensors of torch."""
    if not isinstance(z, np.ndarray):
        if not hasattr(self, "torch"):
            raise TypeError(f"data: minimize_risk needs a loss with a method torch(self, z), got {type(self).__name__}")
        return self.torch(z)
    L = z.shape[-2]
    flat = np.ascontiguousarray(z).reshape(-1, L, z.shape[-1])
    S = np.empty((len(flat), L, L))
    attend_all(self, flat, S)
    return S.reshape(*z.shape[:-1], L)


def _is_custom(loss: Any) -> bool:
    return is_instance(loss, AttentionLoss) and not is_instance(loss.types[0], DotProductAttention)


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


@overload(loss_value)
def _loss_value(loss, p, z, work):
    if not _is_custom(loss):
        return None

    def attention_value(loss, p, z, work):
        L = loss.n_tokens
        s, value = work.s, 0.0
        attend(loss.attention, z.reshape((L, loss.rank)), s)
        for i in range(L):
            value += row_loss(p, s, i)
        return value

    return attention_value


@overload(loss_derivatives)
def _loss_derivatives(loss, p, z, grad, hess, work):
    return difference_derivatives if _is_custom(loss) else None


@overload(loss_gradient)
def _loss_gradient(loss, p, z, grad, hess, work):
    return difference_gradient if _is_custom(loss) else None


@overload(curvature_floor)
def _curvature_floor(loss, p, radius):
    return (lambda loss, p, radius: -np.inf) if _is_custom(loss) else None
