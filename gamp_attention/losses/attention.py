"""Per-sample losses ℓ_μ(z) of the multi-source GLM, as NamedTuples dispatched by type.

Compiled code asks a loss for four things here, and for two bounds in `gamp_attention.losses.bounds`; the parameters p
of a sample are one row of an array (n, P):

- `make_work(loss)`, the scratch that the others share;
- `loss_value(loss, p, z, work)`;
- `loss_derivatives(loss, p, z, grad, hess, work)`, which also returns the value;
- `loss_gradient(loss, p, z, grad, hess, work)`, the same without the Hessian, whose array is scratch.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.core.types import float64, int64

from gamp_attention._core.addresses import behind
from gamp_attention._core.compiled import inline_kernel, is_instance, overload
from gamp_attention.losses.attention_kernels import (
    add_blocks,
    attend_row,
    clear_blocks,
    fill_scores,
    fill_slack,
    pull_back,
    pull_back_slope,
    row_derivatives,
    row_slope,
)
from gamp_attention.losses.called import MATRIX, PLACES, VECTOR, loss_kernel
from gamp_attention.losses.dot_product import DotProductAttention
from gamp_attention.losses.two_tokens import is_two_tokens, two_token_derivatives, two_token_value


class AttentionLoss(NamedTuple):
    """ℓ(z) = ½ Tr[S G Sᵀ] − Tr[S M] with S = S[z]: the attention layer as a GLM.

    Eq. :eq:`glm`.

    The parameters of a sample are the entries of G (L, L), then those of M (L, L), both row-major.

    Attributes
    ----------
    attention : the map S.
    n_tokens, rank : L and r.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> loss = ga.AttentionLoss(ga.DotProductAttention(), n_tokens=2, rank=1)
    >>> params = np.array([[1, 0, 0, 1, 0.9, 0.1, 0.1, 0.9]])  # G, the identity, and M
    >>> ga.denoise(loss, params, np.ones((1, 2, 1)), np.ones((2, 1, 1))).loss.round(6).tolist()
    [-0.5]
    """

    attention: Any  # DotProductAttention or a registered map
    n_tokens: int
    rank: int

    @property
    def n_fields(self) -> int:
        """Number of local fields per sample, L r."""
        return self.n_tokens * self.rank

    def torch(self, params: Any, z: Any) -> Any:
        """Losses (n,) of tensors, written apart from the compiled code."""
        L = self.n_tokens
        G, M = params[:, : L * L].reshape(-1, L, L), params[:, L * L :].reshape(-1, L, L)
        S = self.attention(z)
        return (S @ G * (0.5 * S)).sum((1, 2)) - (S * M.transpose(1, 2)).sum((1, 2))


def pack_attention_parameters(G: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Rows of loss parameters (n, 2 L²) from G and M, each broadcastable to (n, L, L)."""
    G, M = np.broadcast_arrays(G, M)
    n = G.shape[0]
    return np.concatenate([G.reshape(n, -1), M.reshape(n, -1)], axis=1)


class AttentionWork(NamedTuple):
    """Scratch of one thread for AttentionLoss."""

    s: np.ndarray  # (L, L) scores, then the attention matrix
    B: np.ndarray  # (L, L) Hessian of one row in its scores
    GJ: np.ndarray  # (L, L)
    u: np.ndarray  # (L,) gradient of one row in its scores
    slack: np.ndarray  # (L,) gradient of one row in its attention weights
    fields: np.ndarray  # (L r,)
    blocks: np.ndarray  # (r (r + 1)/2, L²) Hessian in the fields, for each pair of columns


def is_dot_product_loss(numba_type: Any) -> bool:
    """Whether a numba type is an AttentionLoss of dot products; used to choose an overload."""
    return is_instance(numba_type, AttentionLoss) and is_instance(numba_type.types[0], DotProductAttention)


def make_work(loss):
    """Scratch for the other functions. Compiled code only."""
    raise NotImplementedError("make_work() is dispatched by numba on the type of the loss")


def loss_value(loss, p, z, work):
    """ℓ(z). Compiled code only."""
    raise NotImplementedError("loss_value() is dispatched by numba on the type of the loss")


def loss_derivatives(loss, p, z, grad, hess, work):
    """ℓ(z), filling its gradient and Hessian. Compiled code only."""
    raise NotImplementedError("loss_derivatives() is dispatched by numba on the type of the loss")


@loss_kernel(PLACES.differentiate, float64, VECTOR, VECTOR, VECTOR, MATRIX, int64)
def differentiate(loss, p, z, grad, hess, work):
    """ℓ(z), filling its gradient and Hessian: `loss_derivatives`, compiled once for all kernels that call it."""
    return loss_derivatives(behind(loss), p, z, grad, hess, work)


def loss_gradient(loss, p, z, grad, hess, work):
    """ℓ(z), filling its gradient; hess is scratch. Compiled code only."""
    raise NotImplementedError("loss_gradient() is dispatched by numba on the type of the loss")


@loss_kernel(PLACES.gradient, float64, VECTOR, VECTOR, VECTOR, MATRIX, int64)
def evaluate_gradient(loss, p, z, grad, hess, work):
    """ℓ(z), filling its gradient, with hess as scratch: `loss_gradient`, compiled once for all kernels that call it."""
    return loss_gradient(behind(loss), p, z, grad, hess, work)


@inline_kernel
def row_loss(p, S, i):
    """φ_i = ½ (S G Sᵀ)_ii − (S M)_ii for the attention weights in row i of S (L, L)."""
    L, value = S.shape[0], 0.0
    for j in range(L):
        gs = 0.0
        for k in range(L):
            gs += p[j * L + k] * S[i, k]
        value += S[i, j] * (0.5 * gs - p[L * L + j * L + i])
    return value


@overload(make_work, counted=True)
def _make_work(loss):
    if not is_instance(loss, AttentionLoss):
        return None

    def attention_work(loss):
        L = loss.n_tokens
        return AttentionWork(
            np.empty((L, L)), np.empty((L, L)), np.empty((L, L)), np.empty(L), np.empty(L), np.empty(L * loss.rank),
            np.empty((loss.rank * (loss.rank + 1) // 2, L * L)),
        )  # fmt: skip

    return attention_work


@overload(loss_value)
def _loss_value(loss, p, z, work):
    if not is_dot_product_loss(loss):
        return None

    def attention_value(loss, p, z, work):
        if is_two_tokens(loss):
            return two_token_value(loss, p, z)
        L, r = loss.n_tokens, loss.rank
        s = work.s
        fill_scores(loss.attention, z, L, r, s)
        value = 0.0
        for i in range(L):
            attend_row(loss.attention, s, i)
            value += row_loss(p, s, i)
        return value

    return attention_value


@overload(loss_derivatives)
def _loss_derivatives(loss, p, z, grad, hess, work):
    if not is_dot_product_loss(loss):
        return None

    def attention_derivatives(loss, p, z, grad, hess, work):
        if is_two_tokens(loss):
            return two_token_derivatives(loss, p, z, grad, hess)
        L, r = loss.n_tokens, loss.rank
        s, B, GJ, u, slack = work.s, work.B, work.GJ, work.u, work.slack
        for k in range(L * r):
            grad[k] = 0.0
            for m in range(L * r):
                hess[k, m] = 0.0
        fill_scores(loss.attention, z, L, r, s)
        clear_blocks(L, r, work.blocks)
        value = 0.0
        for i in range(L):
            attend_row(loss.attention, s, i)
            value += fill_slack(p, s, i, slack)
            row_derivatives(loss.attention, p, s, i, slack, u, B, GJ)
            pull_back(loss.attention, z, L, r, i, u, B, grad, hess, work.fields, work.blocks)
        add_blocks(L, r, work.blocks, hess)
        return value

    return attention_derivatives


@overload(loss_gradient)
def _loss_gradient(loss, p, z, grad, hess, work):
    if not is_dot_product_loss(loss):
        return None

    def attention_gradient(loss, p, z, grad, hess, work):
        if is_two_tokens(loss):
            return two_token_derivatives(loss, p, z, grad, hess)
        L, r = loss.n_tokens, loss.rank
        s, u, slack = work.s, work.u, work.slack
        for k in range(L * r):
            grad[k] = 0.0
        fill_scores(loss.attention, z, L, r, s)
        value = 0.0
        for i in range(L):
            attend_row(loss.attention, s, i)
            value += fill_slack(p, s, i, slack)
            row_slope(loss.attention, s, i, slack, u)
            pull_back_slope(loss.attention, z, L, r, i, u, grad)
        return value

    return attention_gradient
