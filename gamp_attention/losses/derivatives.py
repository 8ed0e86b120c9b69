"""Losses of many samples with their derivatives in the fields."""

from typing import Any

import numpy as np

from gamp_attention._core.compiled import kernel, over_blocks
from gamp_attention.losses.attention import differentiate, make_work
from gamp_attention.losses.point import for_kernels


@kernel
def _derivatives(first, last, loss, params, z, value, grad, hess):
    work = make_work(loss)
    for mu in range(first, last):
        value[mu] = differentiate(loss, params[mu], z[mu], grad[mu], hess[mu], work)


def sample_derivatives(loss: Any, params: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ℓ (n,), ∇ℓ (n, L, r) and ∇²ℓ (n, L r, L r) at fields z (n, L, r)."""
    n, L, r = z.shape
    loss, params = for_kernels(loss), np.ascontiguousarray(params, dtype=float)
    flat = np.ascontiguousarray(z).reshape(n, L * r)
    value, grad, hess = np.empty(n), np.empty((n, L * r)), np.empty((n, L * r, L * r))
    over_blocks(lambda first, last: _derivatives(first, last, loss, params, flat, value, grad, hess), n, 1024)
    return value, grad.reshape(n, L, r), hess
