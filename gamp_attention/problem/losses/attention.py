"""Dot-product attention maps S[z] of one or several heads, and the per-sample loss ℓ(z) of an attention layer.

A map turns the local fields z (L, r) of a sample into attention weights (L, L). With it, both risks are generalized
linear models: sums over samples of ℓ_μ(z) + constant_μ, where the parameters p of the sample are one row of an array
(n, P). The functions of a loss are described in `gamp_attention.problem.losses.protocol`.

**Compiled code of `DotProductAttention`.** Fields are flattened as z[l * r + a]. With P_h the attention weights of head
h in one row, S = Σ_h P_h/H and the loss of the row φ = ½ S G S − S M (p contains G and M), derivatives are computed in
three steps: of φ in the attention weights, a = G S − M (`slack`); in the scores,

    u_h = J_h a/H,   B_hg = J_h G J_g/H² + δ_hg K_h/H

with J_h = diag(P_h) − P_h P_hᵀ and K_h the second derivative of P_h·a for fixed a; and in the fields.

**Bounds.** A point z with a lower proximal objective than a known minimum lies in an ellipsoid around ω, whose size
follows from a lower bound of ℓ. If the Hessian of the objective is positive definite in this ellipsoid, there is no
second minimum in it; see `gamp_attention.problem.denoisers.prox.is_unique`.
"""

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numba.core.types import float64

from gamp_attention._kernels.compiled import inline_kernel, is_instance, overload
from gamp_attention._kernels.deferred import deferred_kernel
from gamp_attention._kernels.pointers import load_from, view
from gamp_attention._tools import check
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
    two_token_lowest,
    two_token_value,
)

FEW_TOKENS = 5  # maximum number of tokens for which long loops over matrices take longer than sums of few terms


class HeadLayout(NamedTuple):
    """Columns of the weights of a layer with several heads.

    They are ordered by role, then by head: queries (which are also the keys of tied heads) of head 1, of head 2, ...,
    then keys of head 1, ..., then values of head 1, ...
    """

    heads: int  # number of heads H
    parts: int  # number of weight matrices of a head's scores: 1 (queries equal to keys), or 2
    size: int  # columns of each of these matrices in one head
    values: int  # columns of the value matrix of one head; 0 without value matrices
    # (H,) a number for each head; heads with equal numbers may be exchanged without a change of the layer
    kinds: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of columns of all heads."""
        return self.heads * (self.parts * self.size + self.values)

    def scores(self, head: int) -> np.ndarray:
        """Return the columns (parts, size) of the scores of a head; a common rotation of each row changes nothing."""
        return np.arange(self.parts * self.heads * self.size).reshape(self.parts, self.heads, self.size)[:, head]

    def value_columns(self, head: int) -> np.ndarray:
        """Return the columns (values,) of the value matrix of a head."""
        first = self.parts * self.heads * self.size + head * self.values
        return np.arange(first, first + self.values)

    def attend_each(self, single: Any, z: Any) -> list[Any]:
        """Return the attention matrices (..., L, L) of the heads, each with the map `single`."""
        return [single(z[..., self.scores(head).ravel()]) for head in range(self.heads)]


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
    heads : number of heads H; S is the mean of H softmax maps, see `MultiHeadAttention`.

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
    heads: int = 1

    @property
    def even(self) -> bool:
        """True: S[−z] = S[z]."""
        return True

    # S[z O] = S[z] for every rotation O of the columns, applied to both queries and keys, and the Hessian of the loss
    # at zero is equal for all columns of a part, and zero between columns; with several heads, only within each head
    rotations = equal_columns = property(lambda self: self.heads == 1)  # type: ignore[misc]

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
        """Attention map of a single head."""
        return self._replace(heads=1)

    def validated(self, name: str, rank: int = 0) -> "DotProductAttention":
        """Return this map; raise unless it is valid, also for a number of columns if it is given."""
        heads = check.integer(f"{name}.heads", self.heads, low=1)
        temperature = check.real(f"{name}.temperature", self.temperature, low=0, strict=True)
        flags = {flag: check.flag(f"{name}.{flag}", getattr(self, flag)) for flag in ("tied", "causal", "softmax")}
        if heads > 1 and not flags["softmax"]:
            needs = "True for several heads without values: the mean of linear maps is a single linear map"
            raise check.fail(f"{name}.softmax", False, needs)
        if heads > 1 and rank % (heads * self.parts):
            columns = "columns" if self.tied else "columns of queries and of keys"
            needs = f"a multiple of {heads * self.parts}, as each of the {heads} heads has its own {columns}"
            raise check.fail("rank", rank, needs)
        return DotProductAttention(temperature, **flags, heads=heads)

    def head_layout(self, rank: int) -> HeadLayout | None:
        """Return the columns of several heads, of `rank` columns; None for one head."""
        H, parts = self.heads, self.parts
        return HeadLayout(H, parts, rank // (parts * H), 0, (0,) * H) if H > 1 else None

    def __call__(self, z: Any) -> Any:
        """Return attention matrices (..., L, L) for local fields (..., L, r), as numpy arrays or torch tensors."""
        layout = self.head_layout(z.shape[-1])
        if layout is not None:
            return sum(layout.attend_each(self.single, z)) / self.heads
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
    def work_size(self) -> int:
        """Size of the memory of `make_work`."""
        L, r, heads = self.n_tokens, self.rank, getattr(self.attention, "heads", 1)
        if self.by_differences:
            return (L * r + 2) * L * r
        return (heads + 2 + r * (r + 1) // 2) * L * L + (2 * heads + 2) * L

    @property
    def by_differences(self) -> bool:
        """True for user-defined maps: derivatives are differences of values, and kernels call the loss by a table."""
        return not isinstance(self.attention, DotProductAttention)

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


def is_dot_product_loss(numba_type: Any) -> bool:
    """Return whether a numba type is an AttentionLoss of dot products; used to select an overload."""
    return is_instance(numba_type, AttentionLoss) and is_instance(numba_type.types[0], DotProductAttention)


class AttentionWork(NamedTuple):
    """Scratch arrays of one thread for an AttentionLoss of H heads; r are the columns of the queries of all heads."""

    P: np.ndarray  # (H, L, L) attention weights of the heads
    chol: np.ndarray  # (L, L)
    GP: np.ndarray  # (H, L) products of G and the attention weights of one row
    u: np.ndarray  # (H, L) gradient of one row in its scores
    slack: np.ndarray  # (L,) gradient of one row in its attention weights
    B: np.ndarray  # (L, L) Hessian of one row in the scores of two heads
    Bz: np.ndarray  # (L,)
    blocks: np.ndarray  # (r (r + 1)/2, L²) part of the Hessian in the keys, for each pair of columns


@overload(make_work)
def _make_work(loss, memory):
    if not is_dot_product_loss(loss):
        return None

    def attention_work(loss, memory):
        L, H, r = loss.n_tokens, loss.attention.heads, loss.rank
        n_blocks, matrix = r * (r + 1) // 2, L * L
        matrices = view(memory, 0, (H + 2 + n_blocks, matrix))
        rows = view(memory, matrices.size, (2 * H + 2, L))
        return AttentionWork(
            view(memory, 0, (H, L, L)), view(memory, H * matrix, (L, L)), rows[:H], rows[H : 2 * H], rows[2 * H],
            view(memory, (H + 1) * matrix, (L, L)), rows[2 * H + 1], matrices[H + 2 :],
        )  # fmt: skip

    return attention_work


@inline_kernel
def first_key(attention, r):
    """Return the column of the first key: 0 if queries and keys have the same columns."""
    return 0 if attention.tied else r // 2


@inline_kernel
def fill_weights(attention, z, r, H, P):
    """Fill the attention weights P (H, L, L) of the heads from flat fields z (L r,)."""
    L, keys = P.shape[1], first_key(attention, r)
    size, b = (r - keys) // H, 1.0 / attention.temperature
    for h in range(H):
        for i in range(L):
            count, top, total = i + 1 if attention.causal else L, -np.inf, 0.0
            for j in range(count):
                dot = 0.0
                for a in range(h * size, (h + 1) * size):
                    dot += z[i * r + a] * z[j * r + keys + a]
                P[h, i, j] = b * dot
                top = max(top, b * dot)
            if attention.softmax:
                for j in range(count):
                    P[h, i, j] = math.exp(P[h, i, j] - top)
                    total += P[h, i, j]
                total = 1.0 / total
                for j in range(count):
                    P[h, i, j] *= total
            for j in range(count, L):
                P[h, i, j] = 0.0


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


@inline_kernel
def _fill_slack(p, H, P, i, GP, slack):
    """Fill GP = G P_h for the weights of row i, and slack = Σ_h G P_h/H − M_i; return φ_i."""
    L, value, share = P.shape[1], 0.0, 1.0 / H
    for h in range(H):
        for j in range(L):
            GP[h, j] = 0.0
        for k in range(L):  # long loops over contiguous rows of G, which is symmetric
            weight = P[h, i, k]
            for j in range(L):
                GP[h, j] += weight * p[k * L + j]
    for j in range(L):
        weight, product, m = 0.0, 0.0, p[L * L + j * L + i]
        for h in range(H):
            weight += share * P[h, i, j]
            product += share * GP[h, j]
        value += weight * (0.5 * product - m)
        slack[j] = product - m
    return value


@inline_kernel
def _add_slopes(attention, z, r, H, P, i, h, slack, u, grad, hess, second):
    """Fill u[h] = ∂φ_i/∂s_ih, add the gradient of φ_i in z, and the part of its Hessian from the scores' curvature."""
    L, keys, mean = P.shape[1], first_key(attention, r), 0.0
    size, b, share = (r - keys) // H, 1.0 / attention.temperature, 1.0 / H
    count = i + 1 if attention.causal else L
    for j in range(L):
        mean += P[h, i, j] * slack[j]
    for j in range(L):
        if attention.softmax:
            u[h, j] = share * P[h, i, j] * (slack[j] - mean)
        else:
            u[h, j] = slack[j] if j < count else 0.0
        c = b * u[h, j]
        for a in range(h * size, (h + 1) * size):
            q, k = i * r + a, j * r + keys + a
            along, across = c * z[k], c * z[q]
            grad[q] += along
            grad[k] += across
            if second:
                hess[q, k] += c
                hess[k, q] += c


@inline_kernel
def _fill_curvature(attention, p, H, P, i, h, g, GP, u, B):
    """Fill B (L, L) with ∂²φ_i/∂s_ih ∂s_ig for two heads h and g."""
    L = P.shape[1]
    if not attention.softmax:
        count = i + 1 if attention.causal else L
        for j in range(L):
            for m in range(L):
                B[j, m] = p[j * L + m] if j < count and m < count else 0.0
        return
    cross, share, same = 0.0, 1.0 / (H * H), 1.0 if h == g else 0.0
    for m in range(L):
        cross += P[g, i, m] * GP[h, m]
    for j in range(L):
        weight, product, slope, other = share * P[h, i, j], GP[g, j] - cross, same * u[h, j], same * P[h, i, j]
        for m in range(L):
            B[j, m] = P[g, i, m] * (weight * (p[j * L + m] - product - GP[h, m]) - slope) - other * u[h, m]
        B[j, j] += slope


@inline_kernel
def _pull_back(attention, z, L, r, H, i, h, g, B, Bz, hess, blocks):
    """Add the Hessian of φ_i in z that follows from B, between queries of head h and fields of head g.

    ∂s_ij/∂z_k = δ_ik k_j + δ_jk q_i for queries q and keys k, over the temperature. For many tokens, the part in the
    keys is added to `blocks` by long loops over matrices, and `_add_blocks` adds it to hess.
    """
    keys, b = first_key(attention, r), 1.0 / attention.temperature
    size = (r - keys) // H
    for a in range(h * size, (h + 1) * size):
        if L <= FEW_TOKENS:
            for m in range(L):
                product = 0.0
                for j in range(L):
                    product += B[j, m] * z[j * r + keys + a]
                Bz[m] = b * b * product
        else:
            for m in range(L):
                Bz[m] = 0.0
            for j in range(L):
                weight = b * b * z[j * r + keys + a]
                for m in range(L):
                    Bz[m] += weight * B[j, m]
        for c in range(g * size, (g + 1) * size):
            total, query = 0.0, z[i * r + c]
            zz = b * b * z[i * r + a] * query
            for m in range(L):
                k, cross = m * r + keys + c, Bz[m] * query
                total += Bz[m] * z[k]
                hess[i * r + a, k] += cross
                hess[k, i * r + a] += cross
            hess[i * r + a, i * r + c] += total
            if L <= FEW_TOKENS:
                for j in range(L):
                    for m in range(L):
                        hess[j * r + keys + a, m * r + keys + c] += zz * B[j, m]
            elif c <= a:
                pair, flat = a * (a + 1) // 2 + c, B.reshape(L * L)
                for e in range(L * L):
                    blocks[pair, e] += zz * flat[e]


@inline_kernel
def _add_blocks(L, r, keys, blocks, hess):
    """Add the matrix of columns a ≥ c, blocks[a (a + 1)/2 + c], to the entries of hess between the keys a and c."""
    for a in range(r - keys):
        for c in range(a + 1):
            for k in range(L):
                for m in range(L):
                    first, second, entry = k * r + keys + a, m * r + keys + c, blocks[a * (a + 1) // 2 + c, k * L + m]
                    hess[first, second] += entry
                    if a > c:
                        hess[second, first] += entry


# The forms for any number of tokens are deferred: two tokens do not need them.


@deferred_kernel(float64)
def _value_of_weights(loss, p, z, work):
    """Return ℓ(z) of dot-product attention, for any number of tokens and heads."""
    work, H, value = load_from(work), loss.attention.heads, 0.0
    fill_weights(loss.attention, z, loss.rank, H, work.P)
    for i in range(loss.n_tokens):
        value += _fill_slack(p, H, work.P, i, work.GP, work.slack)
    return value


@deferred_kernel(float64)
def _differentiate_weights(loss, p, z, grad, hess, work, second):
    """Return ℓ(z) of dot-product attention for any number of tokens and heads, and fill its gradient and Hessian."""
    work, H = load_from(work), loss.attention.heads
    if H == 1:  # compiled with this constant, which saves a fifth of the time
        return _differentiate_heads(loss, p, z, grad, hess, work, second, 1)
    return _differentiate_heads(loss, p, z, grad, hess, work, second, H)


@inline_kernel
def _differentiate_heads(loss, p, z, grad, hess, work, second, H):
    L, r, attention, P, u, value = loss.n_tokens, loss.rank, loss.attention, work.P, work.u, 0.0
    for k in range(L * r):
        grad[k] = 0.0
        for m in range(L * r if second else 0):
            hess[k, m] = 0.0
    for pair in range(work.blocks.shape[0] if second and L > FEW_TOKENS else 0):
        for e in range(L * L):
            work.blocks[pair, e] = 0.0
    fill_weights(attention, z, r, H, P)
    for i in range(L):
        value += _fill_slack(p, H, P, i, work.GP, work.slack)
        for h in range(H):
            _add_slopes(attention, z, r, H, P, i, h, work.slack, u, grad, hess, second)
        for h in range(H if second else 0):
            for g in range(H):
                _fill_curvature(attention, p, H, P, i, h, g, work.GP, u, work.B)
                _pull_back(attention, z, L, r, H, i, h, g, work.B, work.Bz, hess, work.blocks)
    if second and L > FEW_TOKENS:
        _add_blocks(L, r, first_key(attention, r), work.blocks, hess)
    return value


@overload(loss_value)
def _loss_value(loss, p, z, work):
    if not is_dot_product_loss(loss):
        return None
    return lambda loss, p, z, work: (
        two_token_value(loss, p, z) if is_two_tokens(loss) else _value_of_weights(loss, p, z, work)
    )


@overload(loss_derivatives)
def _loss_derivatives(loss, p, z, grad, hess, work, second):
    if not is_dot_product_loss(loss):
        return None
    return lambda loss, p, z, grad, hess, work, second: (
        two_token_derivatives(loss, p, z, grad, hess)
        if is_two_tokens(loss)
        else _differentiate_weights(loss, p, z, grad, hess, work, second)
    )


@overload(loss_floor)
def _loss_floor(loss, p, work):
    if not is_dot_product_loss(loss):
        return None

    def floor(loss, p, work):
        if is_two_tokens(loss):
            return two_token_lowest(p)
        work = load_from(work)
        return attention_floor(loss.n_tokens, p, loss.attention.softmax, work.chol, work.Bz, work.slack)

    return floor


@overload(loss_curvature)
def _loss_curvature(loss, p, center, reach):
    if not is_dot_product_loss(loss):
        return None
    return lambda loss, p, center, reach: (
        two_token_floor(loss, p, center, reach)
        if is_two_tokens(loss)
        else _curvature_in_ball(loss, p, outer_radius(center, reach))
    )


@inline_kernel
def attention_floor(L, p, bounded, chol, x, slack):
    """Return a lower bound of the loss of an attention layer; chol (L, L), x (L,) and slack (L,) are scratch.

    If `bounded` is True, the attention weights of each row are positive and add up to 1.
    """
    return _simplex_floor(L, p, x, slack) if bounded else _quadratic_floor(L, p, chol, x)


@deferred_kernel(float64)
def _simplex_floor(L, p, S, slack):
    # Lower bound of Σ_i min ½ S·G S − S·M_i over rows S that are positive and add up to 1. G is positive semi-definite,
    # so each row is a convex problem on the simplex. Frank-Wolfe steps with exact line search solve it: the slope of
    # the objective from an iterate toward the best corner, the gap, bounds how far the minimum lies below the iterate,
    # so value − gap is a lower bound after any number of steps.
    floor = 0.0
    for i in range(L):
        for j in range(L):
            S[j] = 1.0 / L
            gs = 0.0
            for k in range(L):
                gs += p[j * L + k] / L
            slack[j] = gs - p[L * L + j * L + i]
        best = -np.inf
        for _ in range(2 * L):
            value, mean, lowest = 0.0, 0.0, 0
            for j in range(L):
                value += 0.5 * S[j] * (slack[j] - p[L * L + j * L + i])
                mean += S[j] * slack[j]
                if slack[j] < slack[lowest]:
                    lowest = j
            gap = mean - slack[lowest]
            best = max(best, value - gap)
            curvature = p[lowest * L + lowest]
            for j in range(L):
                curvature += S[j] * (slack[j] + p[L * L + j * L + i] - 2.0 * p[lowest * L + j])
            step = 1.0
            if gap < curvature:
                step = gap / curvature
            if gap <= 1e-12 * abs(value) or step <= 0.0:
                break
            for j in range(L):  # G S is updated, so that an iteration costs L operations instead of L²
                S[j] *= 1.0 - step
                slack[j] += step * (p[lowest * L + j] - slack[j] - p[L * L + j * L + i])
            S[lowest] += step
        floor += best
    return floor


@deferred_kernel(float64)
def _quadratic_floor(L, p, chol, x):
    # −½ Σ_i M_i·G⁻¹ M_i, the minimum of Σ_i ½ S_i·G S_i − S_i·M_i over all rows S_i, by a Cholesky factor of G;
    # −inf if G is not positive definite
    for i in range(L):
        for j in range(i + 1):
            acc = p[i * L + j]
            for m in range(j):
                acc -= chol[i, m] * chol[j, m]
            if i > j:
                chol[i, j] = acc / chol[j, j]
            elif acc > 0.0:
                chol[i, i] = math.sqrt(acc)
            else:
                return -np.inf
    floor = 0.0
    for i in range(L):
        for j in range(L):
            acc = p[L * L + j * L + i]
            for m in range(j):
                acc -= chol[j, m] * x[m]
            x[j] = acc / chol[j, j]
            floor -= 0.5 * x[j] * x[j]
    return floor


@deferred_kernel(float64)
def _curvature_in_ball(loss, p, radius):
    """Return a lower bound of the eigenvalues of ∇²ℓ on ‖z‖ ≤ radius."""
    # Let b = 1/temperature, and let u_i and B_i be the gradient and Hessian of φ_i in its scores. For one tied head,
    # vᵀ∇²ℓ v = 2b Σ_ij u_ij v_i·v_j + Σ_i w_iᵀ B_i w_i with w_ij = b (z_j·v_i + z_i·v_j).
    # Softmax: the entries of a = ∂φ_i/∂S_i differ by at most D. Then the spectral norm of u is at most D √(L/8),
    # and B_i ≥ −D cov(S_i), so that the second sum is at least −2 D b² ‖z‖² ‖v‖².
    # Linear attention: B_i = G ≥ 0 and ‖u‖ ≤ b ‖G‖ ‖z‖² + ‖M‖.
    # Separate queries and keys: half of these bounds, and scores are at most ½ b ‖z‖² instead of b ‖z‖².
    # H heads: 1/H of the bound of one head, because the terms J G J are positive semi-definite in the scores of all
    # heads together, and the other terms have the factor 1/H.
    L, b, D = loss.n_tokens, 1.0 / loss.attention.temperature, 0.0
    factor = 1.0 if loss.attention.tied else 0.5
    if not loss.attention.softmax:
        G, M = 0.0, 0.0
        for j in range(L * L):
            G += p[j] ** 2
            M += p[L * L + j] ** 2
        return -2.0 * b * factor * (factor * b * math.sqrt(G) * radius * radius + math.sqrt(M))
    for i in range(L):
        for m in range(L):  # the entries of G S_i − M_i are means of these columns for S_i >= 0 that add up to 1
            low, high = np.inf, -np.inf
            for j in range(L):
                a = p[j * L + m] - p[L * L + j * L + i]
                low, high = min(low, a), max(high, a)
            D = max(D, high - low)
    return -D / loss.attention.heads * factor * (b * math.sqrt(0.5 * L) + 2.0 * b * b * radius * radius)


@dataclass(frozen=True, eq=False)
class RiskTerms:
    """Terms of a risk that is the sum over samples of ℓ_μ(z) + constant_μ."""

    params: np.ndarray  # (n, P) loss parameters of each sample; for an AttentionLoss G and M, P = 2 L²
    constant: np.ndarray  # (n,) part of each sample's loss that does not depend on Q
