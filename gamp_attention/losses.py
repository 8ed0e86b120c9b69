"""Per-sample losses ℓ_μ(z) of the multi-source GLM, as NamedTuples dispatched by type.

A loss reads one row of a (n, P) parameter array and gives compiled code five things:

- `make_work(loss)`, the scratch that the others share;
- `loss_value(loss, p, z, work)`;
- `loss_derivatives(loss, p, z, grad, hess, work)`, which also returns the value;
- `loss_floor(loss, p, work)`, a lower bound of ℓ over all z;
- `curvature_floor(loss, p, radius)`, a lower bound of the smallest Hessian eigenvalue on ‖z‖ ≤ radius.

The last two certify that a proximal problem has one minimum; a loss that has no such bound returns -inf.
"""

from typing import NamedTuple

import numpy as np

from gamp_attention._numba import overload
from gamp_attention.attention import TiedSoftmax, is_instance, score_pullback, scores, softmax_row


class AttentionLoss(NamedTuple):
    """ℓ(z) = ½ Tr[S G Sᵀ] − Tr[S M] with S = S[z]: the attention layer as a GLM.

    The parameters of a sample are the entries of G (L, L), then those of M (L, L), both row-major.
    """

    attention: TiedSoftmax
    n_tokens: int
    rank: int

    @property
    def n_fields(self) -> int:
        """Number of local fields per sample, L r."""
        return self.n_tokens * self.rank


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


def make_work(loss):
    """Scratch for the other functions. Compiled code only."""
    raise NotImplementedError("make_work() is dispatched by numba on the type of the loss")


def loss_value(loss, p, z, work):
    """ℓ(z). Compiled code only."""
    raise NotImplementedError("loss_value() is dispatched by numba on the type of the loss")


def loss_derivatives(loss, p, z, grad, hess, work):
    """ℓ(z), filling its gradient and Hessian. Compiled code only."""
    raise NotImplementedError("loss_derivatives() is dispatched by numba on the type of the loss")


def loss_floor(loss, p, work):
    """A lower bound of ℓ. Compiled code only."""
    raise NotImplementedError("loss_floor() is dispatched by numba on the type of the loss")


def curvature_floor(loss, p, radius):
    """A lower bound of the spectrum of ∇²ℓ on a ball. Compiled code only."""
    raise NotImplementedError("curvature_floor() is dispatched by numba on the type of the loss")


@overload(make_work)
def _make_work(loss):
    if not is_instance(loss, AttentionLoss):
        return None

    def attention_work(loss):
        L = loss.n_tokens
        return AttentionWork(
            np.empty((L, L)), np.empty((L, L)), np.empty((L, L)), np.empty(L), np.empty(L), np.empty(L * loss.rank)
        )

    return attention_work


@overload(loss_value)
def _loss_value(loss, p, z, work):
    if not is_instance(loss, AttentionLoss):
        return None

    def attention_value(loss, p, z, work):
        L, r = loss.n_tokens, loss.rank
        s = work.s
        scores(loss.attention, z, L, r, s)
        value = 0.0
        for i in range(L):
            softmax_row(s, i)
            for j in range(L):
                gs = 0.0
                for k in range(L):
                    gs += p[j * L + k] * s[i, k]
                value += s[i, j] * (0.5 * gs - p[L * L + j * L + i])
        return value

    return attention_value


@overload(loss_derivatives)
def _loss_derivatives(loss, p, z, grad, hess, work):
    if not is_instance(loss, AttentionLoss):
        return None

    def attention_derivatives(loss, p, z, grad, hess, work):
        L, r = loss.n_tokens, loss.rank
        LL = L * L
        s, B, GJ, u, slack = work.s, work.B, work.GJ, work.u, work.slack
        for k in range(L * r):
            grad[k] = 0.0
            for m in range(L * r):
                hess[k, m] = 0.0
        scores(loss.attention, z, L, r, s)
        value = 0.0
        for i in range(L):
            softmax_row(s, i)
            mean = 0.0
            for j in range(L):
                gs = 0.0
                for k in range(L):
                    gs += p[j * L + k] * s[i, k]
                m = p[LL + j * L + i]
                value += s[i, j] * (0.5 * gs - m)
                slack[j] = gs - m  # ∂φ_i/∂S_ij
                mean += s[i, j] * slack[j]
            for j in range(L):
                u[j] = s[i, j] * (slack[j] - mean)
            # G J, with J = diag(S) − S Sᵀ the softmax Jacobian
            for j in range(L):
                gs = 0.0
                for k in range(L):
                    gs += p[j * L + k] * s[i, k]
                for k in range(L):
                    GJ[j, k] = (p[j * L + k] - gs) * s[i, k]
            for k in range(L):
                column = 0.0
                for j in range(L):
                    column += s[i, j] * GJ[j, k]
                for j in range(L):
                    B[j, k] = s[i, j] * (GJ[j, k] - column) - s[i, k] * u[j] - s[i, j] * u[k]
                B[k, k] += u[k]
            score_pullback(loss.attention, z, L, r, i, u, B, grad, hess, work.fields)
        return value

    return attention_derivatives


@overload(loss_floor)
def _loss_floor(loss, p, work):
    if not is_instance(loss, AttentionLoss):
        return None

    def attention_floor(loss, p, work):
        # ½ S·G S − S·M_i is convex over the simplex (G is positive semi-definite): Frank-Wolfe steps with
        # exact line search, whose gap turns every iterate into a lower bound; exact at once for L = 2
        L = loss.n_tokens
        S, slack = work.u, work.slack
        floor = 0.0
        for i in range(L):
            for j in range(L):
                S[j] = 1.0 / L
            best = -np.inf
            for _ in range(2 * L):
                value, mean, lowest = 0.0, 0.0, 0
                for j in range(L):
                    gs = 0.0
                    for k in range(L):
                        gs += p[j * L + k] * S[k]
                    m = p[L * L + j * L + i]
                    value += S[j] * (0.5 * gs - m)
                    slack[j] = gs - m
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
                for j in range(L):
                    S[j] *= 1.0 - step
                S[lowest] += step
            floor += best
        return floor

    return attention_floor


@overload(curvature_floor)
def _curvature_floor(loss, p, radius):
    if not is_instance(loss, AttentionLoss) or not is_instance(loss.types[0], TiedSoftmax):
        return None

    def tied_curvature(loss, p, radius):
        # With c = a − S·a, |c| ≤ D: vᵀ∇²ℓ v ≥ 2 Σ u_ij v_i·v_j − Σ_i D Var_{S_i}(z_j·v_i + z_i·v_j),
        # the spectral norm of u is at most D √(L/8) and the variance sums to at most 2 ‖z‖² ‖v‖²
        L = loss.n_tokens
        D = 0.0
        for i in range(L):
            for j in range(L):
                for k in range(L):
                    for m in range(L):
                        a = p[j * L + m] - p[L * L + j * L + i] - p[k * L + m] + p[L * L + k * L + i]
                        D = max(D, a)
        b = 1.0 / loss.attention.temperature
        return -D * (b * np.sqrt(0.5 * L) + 2.0 * b * b * radius * radius)

    return tied_curvature
