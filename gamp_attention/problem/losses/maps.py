"""Registered attention maps in compiled code: S[z], and the loss of their layers with derivatives by differences.

`gamp_attention.problem.losses.registration` describes the methods of a map.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._kernels.compiled import dispatch_on_type, is_instance, kernel, overload, sample_kernel
from gamp_attention._kernels.user_code import Registry
from gamp_attention.problem.losses.attention import AttentionLoss, is_bounded, is_by_differences, row_loss
from gamp_attention.problem.losses.bounds import attention_floor
from gamp_attention.problem.losses.point import difference_derivatives
from gamp_attention.problem.losses.protocol import loss_curvature, loss_derivatives, loss_floor, loss_value

MAPS = Registry(
    "register_attention",
    needed=("attend(self, z, S)",),
    traits={
        "bounded": False,
        "even": False,
        "rotations": False,
        "smooth": True,
        "parts": 1,
        "loss_class": AttentionLoss,
    },
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
