"""Attention with several heads: the mean of dot-product attention maps, its loss in compiled code, and its symmetries.

The columns of the weights are ordered by role, then by head: queries (which are also the keys of tied heads) of head 1,
of head 2, ..., then keys of head 1, ..., then values of head 1, ... (`HeadLayout`).

With P_h the attention weights of head h in one row, S = Σ_h P_h/H and φ = ½ S G S − S M, derivatives in the scores are

    u_h = J_h a/H,   B_hh' = J_h G J_h'/H² + δ_hh' K_h/H

with a = G S − M, J_h = diag(P_h) − P_h P_hᵀ and K_h the second derivative of P_h·a for fixed a.
"""

from typing import Any, NamedTuple

import numpy as np

from gamp_attention._kernels.compiled import inline_kernel, is_instance, overload
from gamp_attention._kernels.pointers import load_from
from gamp_attention._tools import check
from gamp_attention.problem.losses.attention import AttentionLoss, DotProductAttention, fill_slack, row_loss
from gamp_attention.problem.losses.bounds import gradient_spread
from gamp_attention.problem.losses.protocol import loss_curvature, loss_derivatives, loss_value, make_work, outer_radius
from gamp_attention.problem.losses.registration import register_attention


class HeadLayout(NamedTuple):
    """Columns of the weights of a layer with several heads."""

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


@register_attention
class MultiHeadAttention(NamedTuple):
    """Mean of H dot-product attention maps, S[z] = Σ_h S_h[z]/H; each map (head) has its columns of the weights.

    The columns of Q are the queries of all heads, one head after the other, and for separate keys then the keys of all
    heads. Heads with value matrices are built by `value_model`.

    Attributes
    ----------
    heads : number of heads H; the number of columns must be a multiple of H, or of 2 H for separate keys.
    temperature, tied, causal : as for `DotProductAttention`.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> z = np.array([[1.0, 0.0], [0.0, 2.0]])  # two tokens; each head reads one column
    >>> single = [ga.DotProductAttention()(z[:, [head]]) for head in range(2)]
    >>> np.allclose(ga.MultiHeadAttention(heads=2)(z), np.mean(single, axis=0))
    True
    """

    heads: int = 2
    temperature: float = 1.0
    tied: bool = True
    causal: bool = False

    # rows are positive and add up to 1, and S[−z] = S[z]; rotations change S unless they keep the heads apart
    bounded = even = exact_derivatives = True  # type: ignore[misc]
    loss_class = AttentionLoss  # type: ignore[misc]
    rotations = False  # type: ignore[misc]

    @property
    def parts(self) -> int:
        """Number of weight matrices in the columns of Q: 1, or 2 for queries and keys."""
        return 1 if self.tied else 2

    @property
    def single(self) -> DotProductAttention:
        """Attention map of a single head."""
        return DotProductAttention(self.temperature, self.tied, self.causal)

    def validated(self, name: str, rank: int = 0) -> "MultiHeadAttention":
        """Return this map; raise unless it is valid for r columns."""
        heads = check.integer(f"{name}.heads", self.heads, low=1)
        temperature = check.real(f"{name}.temperature", self.temperature, low=0, strict=True)
        flags = {flag: check.flag(f"{name}.{flag}", getattr(self, flag)) for flag in ("tied", "causal")}
        if rank % (heads * self.parts):
            columns = "columns" if self.tied else "columns of queries and of keys"
            needs = f"a multiple of {heads * self.parts}, as each of the {heads} heads has its own {columns}"
            raise check.fail("rank", rank, needs)
        return MultiHeadAttention(heads, temperature, **flags)

    def head_layout(self, rank: int) -> HeadLayout:
        """Return the columns of the heads, of `rank` columns."""
        return HeadLayout(self.heads, self.parts, rank // (self.parts * self.heads), 0, (0,) * self.heads)

    def attend(self, z, S):
        """Fill S (L, L) from fields z (L, r). Compiled code."""
        L, r = z.shape
        P = np.empty((self.heads, L, L))
        fill_heads(self, z.reshape(L * r), r, P, S)

    def torch(self, z: Any) -> Any:
        """Return attention matrices (n, L, L) for a tensor of fields (n, L, r)."""
        return sum(self.head_layout(z.shape[-1]).attend_each(self.single, z)) / self.heads


@inline_kernel
def fill_heads(attention, z, r, P, S):
    """Fill the attention weights P (H, L, L) of the heads and their mean S (L, L), from flat fields z (L r,)."""
    H, L = P.shape[0], P.shape[1]
    part = r if attention.tied else r // 2
    size, keys = part // H, r - part
    for i in range(L):
        for j in range(L):
            S[i, j] = 0.0
    for h in range(H):
        for i in range(L):
            count, top = i + 1 if attention.causal else L, -np.inf
            for j in range(L):
                P[h, i, j] = 0.0
            for j in range(count):
                for a in range(h * size, (h + 1) * size):
                    P[h, i, j] += z[i * r + a] * z[j * r + keys + a]
                P[h, i, j] /= attention.temperature
                top = max(top, P[h, i, j])
            total = 0.0
            for j in range(count):
                P[h, i, j] = np.exp(P[h, i, j] - top)
                total += P[h, i, j]
            for j in range(count):
                P[h, i, j] /= total
                S[i, j] += P[h, i, j] / H


class HeadsWork(NamedTuple):
    """Scratch arrays of one thread for the loss of a MultiHeadAttention."""

    s: np.ndarray  # (L, L) mean of the attention weights
    B: np.ndarray  # (L, L)
    u: np.ndarray  # (L,)
    slack: np.ndarray  # (L,) gradient of one row in its attention weights
    P: np.ndarray  # (H, L, L) attention weights of the heads
    slopes: np.ndarray  # (H, L) gradient of one row in its scores
    GP: np.ndarray  # (H, L)


@overload(make_work, counted=True)
def _make_work(loss):
    if not _is_multi_head(loss):
        return None

    def heads_work(loss):
        L, H = loss.n_tokens, loss.attention.heads
        return HeadsWork(
            np.empty((L, L)), np.empty((L, L)), np.empty(L), np.empty(L), np.empty((H, L, L)), np.empty((H, L)),
            np.empty((H, L)),
        )  # fmt: skip

    return heads_work


def _is_multi_head(numba_type: Any) -> bool:
    return is_instance(numba_type, AttentionLoss) and is_instance(numba_type.types[0], MultiHeadAttention)


@inline_kernel
def _add_slopes(attention, z, r, i, P, slack, u, grad):
    """Fill u (H, L), the gradient of row i in the scores, and add its gradient in the fields to grad."""
    H, L = P.shape[0], P.shape[1]
    part = r if attention.tied else r // 2
    size, keys = part // H, r - part
    for h in range(H):
        mean = 0.0
        for j in range(L):
            mean += P[h, i, j] * slack[j]
        for j in range(L):
            u[h, j] = P[h, i, j] * (slack[j] - mean) / H
            c = u[h, j] / attention.temperature
            for a in range(h * size, (h + 1) * size):
                q, k = i * r + a, j * r + keys + a
                along, across = c * z[k], c * z[q]
                grad[q] += along
                grad[k] += across


@overload(loss_value)
def _loss_value(loss, p, z, work):
    if not _is_multi_head(loss):
        return None

    def heads_value(loss, p, z, work):
        work, value = load_from(work), 0.0
        fill_heads(loss.attention, z, loss.rank, work.P, work.s)
        for i in range(loss.n_tokens):
            value += row_loss(p, work.s, i)
        return value

    return heads_value


@overload(loss_derivatives)
def _loss_derivatives(loss, p, z, grad, hess, work, second):
    if not _is_multi_head(loss):
        return None

    def heads_derivatives(loss, p, z, grad, hess, work, second):
        work = load_from(work)
        L, r, P, u = loss.n_tokens, loss.rank, work.P, work.slopes
        fill_heads(loss.attention, z, r, P, work.s)
        for k in range(L * r):
            grad[k] = 0.0
            for m in range(L * r if second else 0):
                hess[k, m] = 0.0
        value = 0.0
        for i in range(L):
            value += fill_slack(p, work.s, i, work.slack)
            _add_slopes(loss.attention, z, r, i, P, work.slack, u, grad)
            if second:
                _add_curvatures(loss.attention, p, z, r, i, P, u, work.GP, hess)
        return value

    return heads_derivatives


@inline_kernel
def _add_curvatures(attention, p, z, r, i, P, u, GP, hess):
    """Add the Hessian of row i in the fields to hess, for the gradient u (H, L) in the scores; GP (H, L) is scratch."""
    H, L = P.shape[0], P.shape[1]
    part = r if attention.tied else r // 2
    size, keys, b = part // H, r - part, 1.0 / attention.temperature
    for h in range(H):
        for j in range(L):
            GP[h, j] = 0.0
            for m in range(L):
                GP[h, j] += p[j * L + m] * P[h, i, m]
    for h in range(H):
        for j in range(L):  # the scores are products of fields
            for a in range(h * size, (h + 1) * size):
                q, k = i * r + a, j * r + keys + a
                hess[q, k] += b * u[h, j]
                hess[k, q] += b * u[h, j]
        for g in range(H):
            cross = 0.0
            for m in range(L):
                cross += P[g, i, m] * GP[h, m]
            for j in range(L):
                for m in range(L):
                    B = P[h, i, j] * P[g, i, m] * (p[j * L + m] - GP[h, m] - GP[g, j] + cross) / (H * H)
                    if h == g:
                        B -= P[h, i, j] * u[h, m] + P[h, i, m] * u[h, j]
                        if j == m:
                            B += u[h, j]
                    B *= b * b
                    for a in range(h * size, (h + 1) * size):
                        qa, ka = i * r + a, j * r + keys + a
                        for c in range(g * size, (g + 1) * size):
                            qc, kc = i * r + c, m * r + keys + c
                            hess[qa, qc] += B * z[ka] * z[kc]
                            hess[qa, kc] += B * z[ka] * z[qc]
                            hess[ka, qc] += B * z[qa] * z[kc]
                            hess[ka, kc] += B * z[qa] * z[qc]


@overload(loss_curvature)
def _loss_curvature(loss, p, center, reach):
    if not _is_multi_head(loss):
        return None

    def heads_curvature(loss, p, center, reach):
        # The bound of a single head, see `gamp_attention.problem.losses.bounds`, divided by H: the terms J G J are
        # positive semi-definite in the scores of all heads together, and K_h has the factor 1/H.
        L, H, radius = loss.n_tokens, loss.attention.heads, outer_radius(center, reach)
        b, factor = 1.0 / loss.attention.temperature, 1.0 if loss.attention.tied else 0.5
        D = gradient_spread(L, p)
        return -D / H * factor * (b * np.sqrt(0.5 * L) + 2.0 * b * b * radius * radius)

    return heads_curvature


def require_heads(heads: Any, student: Any) -> int:
    """Return the number of heads; raise if it contradicts the student."""
    known = student.heads if hasattr(student, "head_layout") else None
    if heads is None:
        return 1 if known is None else check.integer("student.heads", known, low=1)
    heads = check.integer("heads", heads, low=1)
    if known is not None and heads != known:
        raise check.fail("heads", heads, f"{known}, the number of heads of the student, or no value")
    return heads


def with_heads(student: Any, heads: int) -> Any:
    """Return the attention map of several heads, each like the given student."""
    student = DotProductAttention() if student is None else student
    if heads == 1 or hasattr(student, "head_layout"):
        return student
    if not hasattr(student, "single"):
        raise check.fail(
            "student", student, "a DotProductAttention, which all heads share, for several heads", TypeError
        )
    if not student.softmax:
        needs = "softmax = True for several heads without values: the mean of linear maps is a single linear map"
        raise check.fail("student", student, needs)
    return MultiHeadAttention(heads, student.temperature, student.tied, student.causal)  # type: ignore[call-arg]
