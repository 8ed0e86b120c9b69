"""The output denoiser on arrays of samples: z, g = V⁻¹(z − ω), its derivative and the Moreau envelope."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gamp_attention._numba import kernel, over_blocks
from gamp_attention.losses import AttentionLoss, loss_value
from gamp_attention.newton import (
    HUGE,
    SOLVED,
    cholesky,
    cholesky_solve,
    make_metric,
    make_workspace,
    minimise_from,
)
from gamp_attention.prox import minimise_globally, search_directions
from gamp_attention.sources import Group

BLOCK = 128  # samples a thread takes at a time


class Denoised(NamedTuple):
    """What the denoiser returns for n samples.

    Attributes
    ----------
    z : (n, L, r) minimiser of the proximal objective.
    g : (n, L, r) V⁻¹(z − ω) = −∇ℓ(z).
    response : (n, L, r, r) −∂g_l/∂ω_l, the a.e. derivative within each token.
    jacobian : (n, L r, L r) ∂z/∂ω, or (0, L r, L r) where it was not asked for.
    moreau : (n,) the Moreau envelope, the proximal objective at z.
    loss : (n,) ℓ(z).
    gap : (n,) by how much the next minimum found is higher; inf where there is none or the minimum was held.
    solved : (n,) whether the minimisation reached a stationary point.
    """

    z: np.ndarray
    g: np.ndarray
    response: np.ndarray
    jacobian: np.ndarray
    moreau: np.ndarray
    loss: np.ndarray
    gap: np.ndarray
    solved: np.ndarray


@lru_cache
def search_points(n_fields: int) -> np.ndarray:
    """The points that global searches start from, see `gamp_attention.prox.search_directions`."""
    return search_directions(n_fields)


def denoise(
    loss: AttentionLoss,
    params: np.ndarray,
    omega: np.ndarray,
    V: np.ndarray,
    start: np.ndarray | None = None,
    *,
    hold: bool = False,
    jacobian: bool = False,
) -> Denoised:
    """Apply the proximal denoiser to n samples (theory: the output channel of GAMP and of state evolution).

    Parameters
    ----------
    loss : the per-sample loss ℓ_μ.
    params : (n, P) its parameters, one row a sample.
    omega : (n, L, r) centres ω.
    V : (L, r, r) symmetric positive definite blocks.
    start : (n, L, r) where to begin each minimisation, counted as one start; ω if not given.
    hold : keep the local minimum that the start leads to, instead of searching for the global one.
    jacobian : also return the full ∂z/∂ω.

    Raises
    ------
    ValueError : if V is not positive definite.
    """
    n, L, r = omega.shape
    metric = make_metric(V)
    flat = np.ascontiguousarray(omega, dtype=float).reshape(n, L * r)
    z = np.array(flat if start is None else start, dtype=float).reshape(n, L * r)
    k = L * r
    g, response = np.empty((n, k)), np.empty((n, L, r, r))
    jac = np.empty((n if jacobian else 0, k, k))
    moreau, plain, gap = np.empty(n), np.empty(n), np.empty(n)
    solved = np.empty(n, dtype=np.bool_)
    outputs = z, g.reshape(n, k), response, jac, moreau, plain, gap, solved
    directions = search_points(k)

    def block(first: int, last: int) -> None:
        _denoise(first, last, loss, params, flat, metric, hold, directions, *outputs)

    over_blocks(block, n, BLOCK)
    return Denoised(z.reshape(n, L, r), g.reshape(n, L, r), response, jac, moreau, plain, gap, solved)


def denoise_groups(
    groups: tuple[Group, ...],
    loss: AttentionLoss,
    params: np.ndarray,
    omega: np.ndarray,
    V: np.ndarray,
    start: np.ndarray | None = None,
    *,
    hold: bool = False,
) -> Denoised:
    """The denoiser with the V (S, r, r) of the source of each token."""
    parts = [
        denoise(loss, params[rows], omega[rows], V[sources], None if start is None else start[rows], hold=hold)
        for rows, sources in groups
    ]
    return parts[0] if len(parts) == 1 else Denoised(*(np.concatenate(each) for each in zip(*parts, strict=True)))


@kernel
def _denoise(
    first, last, loss, params, omega, metric, hold, directions,
    z, g, response, jac, moreau, plain, gap, solved,
):  # fmt: skip
    k = omega.shape[1]
    L, r = metric.inverse.shape[0], metric.inverse.shape[1]
    ws = make_workspace(loss, k)
    inverse, product = np.empty((k, k)), np.empty((k, k))
    for mu in range(first, last):
        p, w, x = params[mu], omega[mu], z[mu]
        if hold:
            moreau[mu], status = minimise_from(loss, p, w, metric, x, ws, 0)
            gap[mu] = np.inf
        else:
            moreau[mu], gap[mu], status = minimise_globally(loss, p, w, metric, x, directions, ws)
        solved[mu] = status == SOLVED
        plain[mu] = loss_value(loss, p, x, ws.loss)
        shift = 1e-12 * metric.smallest  # a held minimum may be about to vanish
        while not cholesky(ws.hess, shift, ws.chol) and shift < HUGE:
            shift = max(10.0 * shift, 1e-12)
        for j in range(k):
            ws.step[:] = 0.0
            ws.step[j] = 1.0
            cholesky_solve(ws.chol, ws.step)
            inverse[:, j] = ws.step
        for i in range(k):  # ∂z/∂ω = (V⁻¹ + H)⁻¹ V⁻¹
            for l in range(L):
                for b in range(r):
                    acc = 0.0
                    for c in range(r):
                        acc += inverse[i, l * r + c] * metric.inverse[l, c, b]
                    product[i, l * r + b] = acc
        for l in range(L):
            for a in range(r):
                acc = 0.0
                for b in range(r):
                    acc += metric.inverse[l, a, b] * (x[l * r + b] - w[l * r + b])
                g[mu, l * r + a] = acc
                for b in range(r):  # −∂g_l/∂ω_l = V_l⁻¹ (1 − ∂z_l/∂ω_l)
                    acc = metric.inverse[l, a, b]
                    for c in range(r):
                        acc -= metric.inverse[l, a, c] * product[l * r + c, l * r + b]
                    response[mu, l, a, b] = acc
        if jac.shape[0] > 0:
            jac[mu] = product
