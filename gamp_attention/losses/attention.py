"""Per-sample losses ℓ_μ(z) of the multi-source GLM, as NamedTuples dispatched by type.

Compiled code asks a loss for four things here, and for two bounds in `gamp_attention.losses.bounds`; the parameters p
of a sample are one row of an array (n, P):

- `make_work(loss)`, the scratch that the others share;
- `loss_value(loss, p, z, work)`;
- `loss_derivatives(loss, p, z, grad, hess, work)`, which also returns the value;
- `loss_gradient(loss, p, z, grad, hess, work)`, the same without the Hessian, whose array is scratch.

Attention map S of the student, from local fields z (L, r) to attention matrices (L, L).

A map is a NamedTuple. Compiled code calls `is_bounded` on it, dispatched on its type. The kernels are in
`gamp_attention.losses.attention_kernels` for dot products, and in `gamp_attention.losses.registration` for
user-defined maps.

Both risks written as a GLM: rows of loss parameters, and the part that does not depend on the weights.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numba.core.types import float64, int64

from gamp_attention._core import check
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
from gamp_attention.losses.indirect import MATRIX, VECTOR, TableSlots, load_from, loss_kernel
from gamp_attention.losses.two_tokens import is_two_tokens, two_token_derivatives, two_token_value


class DotProductAttention(NamedTuple):
    """Dot-product attention S[z], with scores z_i·z_j / temperature, or q_i·k_j / temperature for separate keys.

    Eq. :eq:`student`.

    Attributes
    ----------
    temperature : positive number by which the scores are divided.
    tied : whether queries and keys have the same weights, eq. (2), (15). If not, the first half of the columns of Q are
        queries and the second half are keys, eq. (124).
    causal : whether token i attends only to tokens up to i.
    softmax : whether rows are normalised by a softmax; if not, attention is linear: the scores are the weights.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> ga.DotProductAttention(causal=True)(np.ones((2, 1))).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """

    temperature: float = 1.0
    tied: bool = True
    causal: bool = False
    softmax: bool = True

    @property
    def even(self) -> bool:
        """True: S[−z] = S[z]."""
        return True

    @property
    def rotations(self) -> bool:
        """True: S[z O] = S[z] for every rotation O of the columns, applied to both queries and keys."""
        return True

    @property
    def parts(self) -> int:
        """Number of weight matrices in the columns of Q: 1, or 2 for queries and keys."""
        return 1 if self.tied else 2

    def __call__(self, z: Any) -> Any:
        """Return attention matrices (..., L, L) for local fields (..., L, r), numpy arrays or torch tensors."""
        half = z.shape[-1] // 2
        queries, keys = (z, z) if self.tied else (z[..., :half], z[..., half:])
        weights = queries @ keys.swapaxes(-1, -2) / self.temperature
        plain = isinstance(z, np.ndarray)
        if self.causal:
            later, nothing = ~np.tri(z.shape[-2], dtype=bool), -np.inf if self.softmax else 0.0
            if plain:
                weights[..., later] = nothing
            else:
                weights = weights.masked_fill(weights.new_tensor(later) > 0, nothing)
        if not self.softmax:
            return weights
        return softmax_rows(weights) if plain else weights.softmax(dim=-1)


def checked_attention(name: str, attention: Any) -> Any:
    """Return a map after checks: a DotProductAttention needs a positive temperature and three flags."""
    if not isinstance(attention, DotProductAttention):
        return attention
    temperature = check.real(f"{name}.temperature", attention.temperature, low=0, strict=True)
    flags = {flag: check.flag(f"{name}.{flag}", getattr(attention, flag)) for flag in ("tied", "causal", "softmax")}
    return DotProductAttention(temperature, **flags)


def softmax_rows(scores: np.ndarray) -> np.ndarray:
    """Return the softmax along the last axis, without overflow for large scores."""
    columns = [scores[..., j] for j in range(scores.shape[-1])]  # numpy reduces short axes slowly
    top = reduce(np.maximum, columns)
    weights = [np.exp(column - top) for column in columns]
    total = reduce(np.add, weights)
    return np.stack([weight / total for weight in weights], axis=-1)


def is_bounded(attention):
    """Return whether attention weights are positive and add to 1. Compiled code only."""
    raise NotImplementedError("is_bounded() is dispatched by numba on the type of the attention map")


@overload(is_bounded)
def _is_bounded(attention):
    if is_instance(attention, DotProductAttention):
        return lambda attention: attention.softmax
    return None


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


@loss_kernel(TableSlots.DIFFERENTIATE, float64, VECTOR, VECTOR, VECTOR, MATRIX, int64)
def differentiate(loss, p, z, grad, hess, work):
    """ℓ(z), filling its gradient and Hessian: `loss_derivatives`, compiled once for all kernels that call it."""
    return loss_derivatives(load_from(loss), p, z, grad, hess, work)


def loss_gradient(loss, p, z, grad, hess, work):
    """ℓ(z), filling its gradient; hess is scratch. Compiled code only."""
    raise NotImplementedError("loss_gradient() is dispatched by numba on the type of the loss")


@loss_kernel(TableSlots.GRADIENT, float64, VECTOR, VECTOR, VECTOR, MATRIX, int64)
def evaluate_gradient(loss, p, z, grad, hess, work):
    """ℓ(z), filling its gradient, with hess as scratch: `loss_gradient`, compiled once for all kernels that call it."""
    return loss_gradient(load_from(loss), p, z, grad, hess, work)


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


@dataclass(frozen=True, eq=False)
class RiskTerms:
    """Risk as a GLM: ℓ_μ(z) + constant_μ summed over samples, with rows of loss parameters."""

    params: np.ndarray  # (n, P) loss parameters of each sample; for attention G and M, P = 2 L², see `AttentionLoss`
    constant: np.ndarray  # (n,) the part of each sample's loss that does not depend on Q


def asymptotic_terms(T: np.ndarray, rho: np.ndarray) -> RiskTerms:
    """Return the loss parameters of the asymptotic risk of equation (41): G = ρ, M = ρ Tᵀ, constant ½ Tr T ρ Tᵀ.

    Eq. :eq:`asymptotic-risk`.

    T has shape (n, L, L); rho, the traces tr Σ_l/d of each sample's tokens, has shape (n, L), or (1, L) if they are
    equal for all samples.
    """
    M = rho[:, :, None] * T.transpose(0, 2, 1)
    G = rho[:, :, None] * np.eye(rho.shape[1])
    norms = np.einsum("nij,j->n", T**2, rho[0]) if len(rho) == 1 else np.einsum("nij,nj->n", T**2, rho)
    return RiskTerms(pack_attention_parameters(G, M), 0.5 * norms)
