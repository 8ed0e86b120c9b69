"""Losses of many samples with their derivatives in the fields."""

from typing import Any

import numpy as np

from gamp_attention._core.compiled import kernel, over_blocks
from gamp_attention.losses.attention import differentiate, make_work
from gamp_attention.losses.point import for_kernels

BLOCK = 1e8  # operations on a block of samples, between which a run can be interrupted


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
    block = max(1, min(1024, int(BLOCK / (L**3 * (r * r + 2)))))
    over_blocks(lambda first, last: _derivatives(first, last, loss, params, flat, value, grad, hess), n, block)
    return value, grad.reshape(n, L, r), hess
