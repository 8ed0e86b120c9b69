"""Dot-product attention maps S[z] and the per-sample loss ℓ(z) of an attention layer, as NamedTuples.

A map turns the local fields z (L, r) of a sample into attention weights (L, L). With it, both risks are generalized
linear models: sums over samples of ℓ_μ(z) + constant_μ, where the parameters p of the sample are one row of an array
(n, P). The functions of a loss are described in `gamp_attention.problem.losses.protocol`.

**Compiled code of `DotProductAttention`.** Fields are flattened as z[l * r + a]. φ_i(S) = ½ S G S − S M_i is the loss
of row i; p contains G and M. Derivatives are computed in three steps: of φ_i in the attention weights (`slack`), in the
scores (u, B), and in the fields.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numba.core.types import float64

from gamp_attention._kernels.compiled import dispatch_on_type, inline_kernel, is_instance, overload
from gamp_attention._kernels.deferred import deferred_kernel
from gamp_attention._kernels.pointers import load_from
from gamp_attention._tools import check
from gamp_attention.problem.losses.bounds import attention_floor, dot_product_curvature
from gamp_attention.problem.losses.protocol import (
    loss_curvature,
    loss_derivatives,
    loss_floor,
    loss_value,
    make_work,
    outer_radius,
)
from gamp_attention.problem.losses.two_tokens import (
    is_two_tokens,
    two_token_derivatives,
    two_token_floor,
    two_token_value,
)

FEW_TOKENS = 5  # maximum number of tokens for which loops over matrices take longer than sums of few terms


@inline_kernel
def fill_scores(attention, z, L, r, s):
    """Fill s (L, L) with the scores of the fields."""
    if attention.tied:
        for i in range(L):
            for j in range(i + 1):
                dot = 0.0
                for a in range(r):
                    dot += z[i * r + a] * z[j * r + a]
                dot /= attention.temperature
                s[i, j] = dot
                s[j, i] = dot
    else:
        half = r // 2
        for i in range(L):
            for j in range(L):
                dot = 0.0
                for a in range(half):
                    dot += z[i * r + a] * z[j * r + half + a]
                s[i, j] = dot / attention.temperature


@inline_kernel
def attend_row(attention, s, i):
    """Replace row i of the scores s (L, L) by attention weights."""
    count = i + 1 if attention.causal else s.shape[1]
    if attention.softmax:
        _softmax_row(s, i, count)
    else:
        for j in range(count, s.shape[1]):
            s[i, j] = 0.0


@inline_kernel
def _softmax_row(s, i, count):
    # softmax of the first `count` entries; the other entries are set to 0
    top = s[i, 0]
    for j in range(1, count):
        top = max(top, s[i, j])
    total = 0.0
    for j in range(count):
        s[i, j] = np.exp(s[i, j] - top)
        total += s[i, j]
    for j in range(count):
        s[i, j] /= total
    for j in range(count, s.shape[1]):
        s[i, j] = 0.0


@inline_kernel
def row_derivatives(attention, p, s, i, slack, u, B, GS):
    """Fill u = ∂φ_i/∂s_i and B = ∂²φ_i/∂s_i², with the weights in row i of s and slack = ∂φ_i/∂S_i."""
    if attention.softmax:
        _softmax_derivatives(p, s, i, slack, u, B, GS)
    else:
        L = s.shape[1]
        count = i + 1 if attention.causal else L
        for j in range(L):
            u[j] = slack[j] if j < count else 0.0
            for k in range(L):
                B[j, k] = p[j * L + k] if j < count and k < count else 0.0


@inline_kernel
def _softmax_derivatives(p, s, i, slack, u, B, GS):
    # ∂S/∂s = diag(S) − S Sᵀ; with GS = G S, whose mean under the weights S is c, and for symmetric G,
    # B_jk = S_j S_k (G_jk − GS_j − GS_k + c) − S_j u_k − S_k u_j + δ_jk u_k
    L = s.shape[1]
    softmax_slope(s, i, slack, u)
    total = 0.0
    for j in range(L):
        GS[j] = slack[j] + p[L * L + j * L + i]
        total += s[i, j] * GS[j]
    for j in range(L):
        weight, slope, product = s[i, j], u[j], GS[j] - total
        for k in range(L):
            B[j, k] = s[i, k] * (weight * (p[j * L + k] - product - GS[k]) - slope) - weight * u[k]
        B[j, j] += slope


@inline_kernel
def softmax_slope(s, i, slack, u):
    """Fill u = ∂φ_i/∂s_i with the weights in row i of s and slack = ∂φ_i/∂S_i."""
    L, mean = s.shape[1], 0.0
    for j in range(L):
        mean += s[i, j] * slack[j]
    for j in range(L):
        u[j] = s[i, j] * (slack[j] - mean)


@inline_kernel
def fill_slack(p, s, i, slack):
    """Fill slack = ∂φ_i/∂S_i = (G S_i) − M_i for the weights in row i of s (L, L), and return φ_i."""
    L = s.shape[1]
    for j in range(L):
        slack[j] = 0.0
    for k in range(L):  # G is symmetric, and its rows are contiguous
        weight = s[i, k]
        for j in range(L):
            slack[j] += weight * p[k * L + j]
    value = 0.0
    for j in range(L):
        m = p[L * L + j * L + i]
        value += s[i, j] * (0.5 * slack[j] - m)
        slack[j] -= m
    return value


@inline_kernel
def row_slope(attention, s, i, slack, u):
    """Fill u = ∂φ_i/∂s_i, like `row_derivatives` without second derivatives."""
    if attention.softmax:
        softmax_slope(s, i, slack, u)
    else:
        L = s.shape[1]
        count = i + 1 if attention.causal else L
        for j in range(L):
            u[j] = slack[j] if j < count else 0.0


@inline_kernel
def pull_back_slope(attention, z, L, r, i, u, grad):
    """Add the gradient of φ_i in z to grad, where u = ∂φ_i/∂s_i; like `pull_back` without the Hessian."""
    b1 = 1.0 / attention.temperature
    half = r if attention.tied else r // 2
    first = 0 if attention.tied else half  # column of the keys
    for j in range(L):
        c = b1 * u[j]
        for a in range(half):
            q, k = i * r + a, j * r + first + a
            along, across = c * z[k], c * z[q]
            grad[q] += along
            grad[k] += across


@inline_kernel
def pull_back(attention, z, L, r, i, u, B, grad, hess, scratch, blocks):
    """Add the gradient and Hessian of φ_i in z to grad and hess, where u = ∂φ_i/∂s_i and B = ∂²φ_i/∂s_i².

    For tied weights, most of the Hessian is added to `blocks`, and `add_blocks` adds it to hess after the last row.
    """
    b1 = 1.0 / attention.temperature
    if attention.tied:
        _pull_tied(z, L, r, i, u, B, b1, grad, hess, scratch, blocks)
    else:
        _pull_untied(z, L, r, i, u, B, b1, grad, hess)


@inline_kernel
def clear_blocks(L, r, blocks):
    """Set `blocks` (r (r + 1)/2, L²) to zero: one L × L matrix for each pair of columns."""
    for pair in range(r * (r + 1) // 2):
        for e in range(L * L):
            blocks[pair, e] = 0.0


@inline_kernel
def add_blocks(L, r, blocks, hess):
    """Add the matrix of columns a ≥ b, blocks[a (a + 1)/2 + b], to the entries (k a, m b) and (k b, m a) of hess."""
    for a in range(r):
        for b in range(a + 1):
            pair = a * (a + 1) // 2 + b
            for k in range(L):
                for m in range(L):
                    hess[k * r + a, m * r + b] += blocks[pair, k * L + m]
                    if a > b:
                        hess[k * r + b, m * r + a] += blocks[pair, k * L + m]


@inline_kernel
def _add_tied_slope(z, L, r, i, u, b1, grad, hess):
    """Add the gradient of φ_i for tied weights, and the part of its Hessian from second derivatives of scores."""
    for j in range(L):
        c = b1 * u[j]
        for a in range(r):
            grad[i * r + a] += c * z[j * r + a]
            grad[j * r + a] += c * z[i * r + a]
            hess[i * r + a, j * r + a] += c
            hess[j * r + a, i * r + a] += c


@inline_kernel
def _pull_tied(z, L, r, i, u, B, b1, grad, hess, scratch, blocks):
    # ∂s_ij/∂z_k = δ_ik z_j + δ_jk z_i, all over the temperature
    b2 = b1 * b1
    _add_tied_slope(z, L, r, i, u, b1, grad, hess)
    Bz = scratch.reshape((r, L))
    for a in range(r):
        for m in range(L):
            Bz[a, m] = 0.0
    for j in range(L):  # Bz[a, m] = b2 Σ_j B[j, m] z[j, a]: rows of B are contiguous
        for a in range(r):
            weight = b2 * z[j * r + a]
            for m in range(L):
                Bz[a, m] += weight * B[j, m]
    for a in range(r):
        for b in range(r):
            acc = 0.0
            for j in range(L):
                acc += z[j * r + a] * Bz[b, j]
            hess[i * r + a, i * r + b] += acc
            for m in range(L):
                cross = Bz[a, m] * z[i * r + b]
                hess[i * r + a, m * r + b] += cross
                hess[m * r + b, i * r + a] += cross
    flat = B.reshape(L * L)
    for a in range(r):
        for b in range(a + 1):  # Σ_i z_ia z_ib B_i: long loops over matrices are faster than short loops over columns
            zz, pair = b2 * z[i * r + a] * z[i * r + b], a * (a + 1) // 2 + b
            for e in range(L * L):
                blocks[pair, e] += zz * flat[e]


@inline_kernel
def _pull_untied(z, L, r, i, u, B, b1, grad, hess):
    # s_ij = q_i·k_j: derivative k_j in q_i and q_i in k_j, all over the temperature
    half, b2 = r // 2, b1 * b1
    for j in range(L):
        c = b1 * u[j]
        for a in range(half):
            q, k = i * r + a, j * r + half + a
            grad[q] += c * z[k]
            grad[k] += c * z[q]
            hess[q, k] += c
            hess[k, q] += c
    for j in range(L):
        for m in range(L):
            w = b2 * B[j, m]
            for a in range(half):
                for b in range(half):
                    qa, qb = i * r + a, i * r + b
                    ka, kb = j * r + half + a, m * r + half + b
                    hess[qa, qb] += w * z[ka] * z[kb]
                    hess[qa, kb] += w * z[ka] * z[qb]
                    hess[kb, qa] += w * z[ka] * z[qb]
                    hess[ka, kb] += w * z[qa] * z[qb]


class DotProductAttention(NamedTuple):
    """Dot-product attention S[z] (Vaswani et al., 2017): a softmax of the scores in each row.

    The scores are z_i·z_j / temperature, or q_i·k_j / temperature for separate queries and keys. Eq. :eq:`student`.

    Attributes
    ----------
    temperature : positive number by which the scores are divided.
    tied : if True, queries and keys have the same weights, eq. (2), (15) of Cui et al. (2024). If False, the first half
        of the columns of Q are weights of queries, and the second half are weights of keys, eq. (124).
    causal : if True, token i attends to tokens 1 to i only.
    softmax : if True, each row is normalized by a softmax; if False, attention is linear: the scores are the weights.

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
    def exact_derivatives(self) -> bool:
        """True: compiled code has formulas for the derivatives of the loss."""
        return True

    @property
    def equal_columns(self) -> bool:
        """True: the Hessian of the loss at zero is equal for all columns of a part, and zero between columns."""
        return True

    @property
    def parts(self) -> int:
        """Number of weight matrices in the columns of Q: 1, or 2 for queries and keys."""
        return 1 if self.tied else 2

    @property
    def bounded(self) -> bool:
        """True if the weights of each row are positive and add up to 1."""
        return self.softmax

    @property
    def single(self) -> "DotProductAttention":
        """Attention map of a single head: this map."""
        return self

    def validated(self, name: str, rank: int = 0) -> "DotProductAttention":
        """Return this map; raise unless it has a positive temperature and three booleans."""
        temperature = check.real(f"{name}.temperature", self.temperature, low=0, strict=True)
        flags = {flag: check.flag(f"{name}.{flag}", getattr(self, flag)) for flag in ("tied", "causal", "softmax")}
        return DotProductAttention(temperature, **flags)

    def __call__(self, z: Any) -> Any:
        """Return attention matrices (..., L, L) for local fields (..., L, r), as numpy arrays or torch tensors."""
        half = z.shape[-1] // 2
        queries, keys = (z, z) if self.tied else (z[..., :half], z[..., half:])
        weights = queries @ keys.swapaxes(-1, -2) / self.temperature
        is_numpy = isinstance(z, np.ndarray)
        if self.causal:
            later, masked = ~np.tri(z.shape[-2], dtype=bool), -np.inf if self.softmax else 0.0
            if is_numpy:
                weights[..., later] = masked
            else:
                weights = weights.masked_fill(weights.new_tensor(later) > 0, masked)
        if not self.softmax:
            return weights
        return softmax_rows(weights) if is_numpy else weights.softmax(dim=-1)


def require_valid_attention(name: str, attention: Any, rank: int = 0) -> Any:
    """Return an attention map; raise if it has numbers that are not valid, for a number of columns if it is given."""
    validate = getattr(type(attention), "validated", None)  # registered maps are checked at their first use
    return attention if validate is None else validate(attention, name, rank)


def softmax_rows(scores: np.ndarray) -> np.ndarray:
    """Return the softmax along the last axis, without overflow for large scores."""
    columns = [scores[..., j] for j in range(scores.shape[-1])]  # numpy reduces short axes slowly
    top = reduce(np.maximum, columns)
    weights = [np.exp(column - top) for column in columns]
    total = reduce(np.add, weights)
    return np.stack([weight / total for weight in weights], axis=-1)


@dispatch_on_type
def is_bounded(attention):
    """Return whether the attention weights of each row are positive and add up to 1. Compiled code only."""


@overload(is_bounded)
def _is_bounded(attention):
    if is_instance(attention, DotProductAttention):
        return lambda attention: attention.softmax
    return None


class AttentionLoss(NamedTuple):
    """Loss ℓ(z) = ½ Tr[S G Sᵀ] − Tr[S M] of an attention layer with attention matrix S = S[z].

    Eq. :eq:`glm`. The parameters of a sample are the entries of G (L, L), followed by the entries of M (L, L), both row
    by row.

    Attributes
    ----------
    attention : the map S.
    n_tokens, rank : number of tokens L and number of columns r of the weights.

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

    @property
    def n_params(self) -> int:
        """Number of parameters of a sample, 2 L²."""
        return 2 * self.n_tokens**2

    @property
    def by_differences(self) -> bool:
        """True if derivatives are computed by differences of values, as for user-defined maps."""
        return not hasattr(self.attention, "exact_derivatives")

    @property
    def is_indirect(self) -> bool:
        """True for user-defined maps: kernels are not compiled again for each of them."""
        return self.by_differences

    def torch(self, params: Any, z: Any) -> Any:
        """Return losses (n,) for tensors; independent of the compiled code, so that tests can compare both."""
        L = self.n_tokens
        G, M = params[:, : L * L].reshape(-1, L, L), params[:, L * L :].reshape(-1, L, L)
        S = self.attention(z)
        return (S @ G * (0.5 * S)).sum((1, 2)) - (S * M.transpose(1, 2)).sum((1, 2))


DotProductAttention.loss_class = AttentionLoss  # type: ignore[attr-defined]


def pack_attention_parameters(G: np.ndarray, M: np.ndarray) -> np.ndarray:
    """Return rows of loss parameters (n, 2 L²) from G and M, each broadcastable to (n, L, L)."""
    G, M = np.broadcast_arrays(G, M)
    n = G.shape[0]
    return np.concatenate([G.reshape(n, -1), M.reshape(n, -1)], axis=1)


class AttentionWork(NamedTuple):
    """Scratch arrays of one thread for AttentionLoss."""

    s: np.ndarray  # (L, L) scores, then the attention matrix
    B: np.ndarray  # (L, L) Hessian of one row in its scores
    GS: np.ndarray  # (L,) product of G and the attention weights of one row
    u: np.ndarray  # (L,) gradient of one row in its scores
    slack: np.ndarray  # (L,) gradient of one row in its attention weights
    fields: np.ndarray  # (L r,)
    blocks: np.ndarray  # (r (r + 1)/2, L²) Hessian in the fields, for each pair of columns


def is_dot_product_loss(numba_type: Any) -> bool:
    """Return whether a numba type is an AttentionLoss of dot products; used to select an overload."""
    return is_instance(numba_type, AttentionLoss) and is_instance(numba_type.types[0], DotProductAttention)


def is_by_differences(numba_type: Any) -> bool:
    """Return whether a numba type is an AttentionLoss whose derivatives are computed by differences of values."""
    if not is_instance(numba_type, AttentionLoss):
        return False
    return not hasattr(numba_type.types[0].instance_class, "exact_derivatives")


@inline_kernel
def row_loss(p, S, i):
    """Return φ_i = ½ (S G Sᵀ)_ii − (S M)_ii for the attention weights in row i of S (L, L)."""
    L, value = S.shape[0], 0.0
    for j in range(L):
        gs = 0.0
        for k in range(L):
            gs += p[j * L + k] * S[i, k]
        value += S[i, j] * (0.5 * gs - p[L * L + j * L + i])
    return value


@overload(make_work, counted=True)
def _make_work(loss):
    if not is_dot_product_loss(loss):
        return None

    def attention_work(loss):
        L = loss.n_tokens
        return AttentionWork(
            np.empty((L, L)), np.empty((L, L)), np.empty(L), np.empty(L), np.empty(L), np.empty(L * loss.rank),
            np.empty((loss.rank * (loss.rank + 1) // 2, L * L)),
        )  # fmt: skip

    return attention_work


@overload(loss_value)
def _loss_value(loss, p, z, work):
    if not is_dot_product_loss(loss):
        return None

    def attention_value(loss, p, z, work):
        return two_token_value(loss, p, z) if is_two_tokens(loss) else _value_of_scores(loss, p, z, work)

    return attention_value


# The forms for any number of tokens are deferred: two tokens do not need them.


@deferred_kernel(float64)
def _value_of_scores(loss, p, z, work):
    """Return ℓ(z) of dot-product attention, for any number of tokens."""
    work = load_from(work)
    L, r = loss.n_tokens, loss.rank
    s = work.s
    fill_scores(loss.attention, z, L, r, s)
    value = 0.0
    for i in range(L):
        attend_row(loss.attention, s, i)
        value += row_loss(p, s, i) if L <= FEW_TOKENS else fill_slack(p, s, i, work.slack)  # longer loops
    return value


@overload(loss_derivatives)
def _loss_derivatives(loss, p, z, grad, hess, work, second):
    if not is_dot_product_loss(loss):
        return None

    def attention_derivatives(loss, p, z, grad, hess, work, second):
        if is_two_tokens(loss):
            return two_token_derivatives(loss, p, z, grad, hess)
        if not second:
            return _gradient_of_scores(loss, p, z, grad, work)
        if loss.n_tokens <= FEW_TOKENS and loss.attention.tied and loss.attention.softmax:
            return _differentiate_few_tokens(loss, p, z, grad, hess, work)
        return _differentiate_scores(loss, p, z, grad, hess, work)

    return attention_derivatives


@deferred_kernel(float64)
def _differentiate_scores(loss, p, z, grad, hess, work):
    """Return ℓ(z) of dot-product attention for any number of tokens, and fill its gradient and Hessian."""
    work = load_from(work)
    L, r = loss.n_tokens, loss.rank
    s, B, GS, u, slack = work.s, work.B, work.GS, work.u, work.slack
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
        row_derivatives(loss.attention, p, s, i, slack, u, B, GS)
        pull_back(loss.attention, z, L, r, i, u, B, grad, hess, work.fields, work.blocks)
    add_blocks(L, r, work.blocks, hess)
    return value


@deferred_kernel(float64)
def _differentiate_few_tokens(loss, p, z, grad, hess, work):
    """Return the numbers of `_differentiate_scores` for softmax attention of tied weights, by sums of few terms.

    It has no views of arrays (`reshape`), which take longer than the derivatives of few tokens.
    """
    work = load_from(work)
    L, r = loss.n_tokens, loss.rank
    s, B, GS, u, slack, Bz = work.s, work.B, work.GS, work.u, work.slack, work.fields
    b1 = 1.0 / loss.attention.temperature
    for k in range(L * r):
        grad[k] = 0.0
        for m in range(L * r):
            hess[k, m] = 0.0
    fill_scores(loss.attention, z, L, r, s)
    value = 0.0
    for i in range(L):
        attend_row(loss.attention, s, i)
        total = 0.0
        for j in range(L):
            product, m = 0.0, p[L * L + j * L + i]
            for k in range(L):
                product += p[j * L + k] * s[i, k]
            value += s[i, j] * (0.5 * product - m)
            GS[j], slack[j] = product, product - m
            total += s[i, j] * product
        softmax_slope(s, i, slack, u)
        for j in range(L):  # as in `_softmax_derivatives`
            for k in range(j + 1):
                product = p[j * L + k] - GS[j] - GS[k] + total
                B[j, k] = s[i, j] * (s[i, k] * product - u[k]) - s[i, k] * u[j]
                B[k, j] = B[j, k]
            B[j, j] += u[j]
        _add_tied_slope(z, L, r, i, u, b1, grad, hess)
        for m in range(L):
            for a in range(r):
                product = 0.0
                for j in range(L):
                    product += B[j, m] * z[j * r + a]
                Bz[m * r + a] = b1 * b1 * product
        for a in range(r):
            for b in range(r):
                product = 0.0
                for j in range(L):
                    product += z[j * r + a] * Bz[j * r + b]
                hess[i * r + a, i * r + b] += product
                zz = b1 * b1 * z[i * r + a] * z[i * r + b]
                for m in range(L):
                    cross = Bz[m * r + a] * z[i * r + b]
                    hess[i * r + a, m * r + b] += cross
                    hess[m * r + b, i * r + a] += cross
                    for k in range(L):
                        hess[k * r + a, m * r + b] += B[k, m] * zz
    return value


@deferred_kernel(float64)
def _gradient_of_scores(loss, p, z, grad, work):
    """Return ℓ(z) of dot-product attention for any number of tokens, and fill its gradient."""
    work = load_from(work)
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


@overload(loss_floor)
def _loss_floor(loss, p, work):
    if not is_instance(loss, AttentionLoss) or is_by_differences(loss):
        return None

    def floor(loss, p, work):
        return attention_floor(loss.n_tokens, p, is_bounded(loss.attention), work.B, work.u, work.slack)

    return floor


@overload(loss_curvature)
def _loss_curvature(loss, p, center, reach):
    if not is_dot_product_loss(loss):
        return None

    def curvature(loss, p, center, reach):
        if is_two_tokens(loss):
            return two_token_floor(loss, p, center, reach)
        return dot_product_curvature(loss, p, outer_radius(center, reach))

    return curvature


@dataclass(frozen=True, eq=False)
class RiskTerms:
    """Terms of a risk that is the sum over samples of ℓ_μ(z) + constant_μ."""

    params: np.ndarray  # (n, P) loss parameters of each sample; for an AttentionLoss G and M, P = 2 L²
    constant: np.ndarray  # (n,) part of each sample's loss that does not depend on Q


def asymptotic_terms(T: np.ndarray, rho: np.ndarray) -> RiskTerms:
    """Return the terms of the asymptotic risk: G = ρ, M = ρ Tᵀ and the constant ½ Tr T ρ Tᵀ.

    Eq. :eq:`asymptotic-risk`, eq. (41) of Cui et al. (2024).

    T (n, L, L) are the teacher's attention matrices. rho (n, L) are the traces tr Σ_l/d of each sample's tokens; its
    shape is (1, L) if they are equal for all samples.
    """
    M = rho[:, :, None] * T.transpose(0, 2, 1)
    G = rho[:, :, None] * np.eye(rho.shape[1])
    norms = np.einsum("nij,j->n", T**2, rho[0]) if len(rho) == 1 else np.einsum("nij,nj->n", T**2, rho)
    return RiskTerms(pack_attention_parameters(G, M), 0.5 * norms)
