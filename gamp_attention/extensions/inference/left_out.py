"""Fields of samples under weights that were trained without them, by formulas for all samples together.

`leave_out` takes a Newton step on the risk without each sample, eq. :eq:`leave-one-out`; `cavity_fields` are the fields
of message passing, eq. :eq:`cavity-field`, which cost one pass over the tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools.numerics import one_thread
from gamp_attention.extensions.inference.hessian import FactoredHessian, TokenRows, factored_hessian, scaled_blocks
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.denoisers.input import denoise_weights, precisions, quadratic_response
from gamp_attention.problem.risk import RiskAtPoint
from gamp_attention.problem.susceptibility import hessian_response, susceptibility


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Fields of each sample after a Newton step on the risk without it."""

    fields: np.ndarray  # (n, L, r)
    # (n,) smallest real part of the eigenvalues of 1 − A D; near 0 if only the sample determines weights
    stiffness: np.ndarray
    hessian: FactoredHessian  # the factored Hessian


def leave_out(data: Dataset, at: RiskAtPoint, Q: np.ndarray, tokens: TokenRows | None = None) -> LeftOut:
    """Return the fields of each sample after a Newton step on the risk without it, from the minimum Q (d, r).

    Eq. :eq:`leave-one-out`; Rahnama Rad and Maleki (2020).
    """
    n, k = data.n_samples, data.n_tokens * data.rank
    g, D = -at.loss_gradients.reshape(n, k), at.hessians
    A = np.empty((n, k, k))
    tokens = TokenRows(data) if tokens is None else tokens
    with one_thread():
        H = factored_hessian(data, at, Q, tokens)
        for rows, x in tokens.blocks():
            columns = H.columns(x)
            A[rows] = H.leverages(columns, H.whiten(columns), k)
        matrices = np.eye(k) - A @ D
        try:
            shifts = np.linalg.solve(matrices, A @ g[..., None])[..., 0]  # (1 − A D)⁻¹ A g
        except np.linalg.LinAlgError:  # only one sample determines some weights
            shifts = (np.linalg.pinv(matrices) @ (A @ g[..., None]))[..., 0]
        stiffness = np.linalg.eigvals(matrices).real.min(axis=1)
    return LeftOut(at.z - shifts.reshape(at.z.shape), stiffness, H)


def risks_without(data: Dataset, at: RiskAtPoint, fields: np.ndarray) -> np.ndarray:
    """Return the minimum risk without each sample (n,), from the fields z_∖ of the sample without it.

    To second order in the shift of the weights, the minimum decreases by ℓ + gᵀ(z − z_∖)/2.
    """
    return at.train_loss * data.dim - at.losses - 0.5 * np.einsum("nla,nla->n", -at.loss_gradients, at.z - fields)


def weight_responses(data: Dataset, at: RiskAtPoint, Q: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return C = ∂η_i/∂b_i (d, r, r), or (1, r, r) if equal for all i, at a minimum Q with variances V (S, r, r)."""
    V_hat = hessian_response(data, at.hessians, V)
    if data.penalty.quadratic:
        return quadratic_response(data.penalty, data.spectra, V_hat)[1]
    A = precisions(data.penalty, data.spectra, V_hat)
    b = np.einsum("iab,ib->ia", np.broadcast_to(A, (data.dim, *A.shape[1:])), Q) - at.smooth
    return denoise_weights(data.penalty, b, A)[1]


def cavity_fields(data: Dataset, at: RiskAtPoint, C: np.ndarray) -> np.ndarray:
    """Return cavity fields z − A_μ g (n, L, r) with A_μ = (1/d) Σ_i (x+p)_i C_i (x+p)_iᵀ, C_i the responses of weights.

    Eq. :eq:`cavity-field`.

    For d → ∞ and independent coordinates A_μ is V, and the fields are z − V g, as in message passing (Rangan (2011)).
    """
    g, fields = -at.loss_gradients, at.z.copy()
    for rows, x in scaled_blocks(data):
        for a, b in np.ndindex(C.shape[1:]):
            fields[rows, :, a] -= ((x * C[:, a, b]) @ x.transpose(0, 2, 1) @ g[rows, :, b, None])[..., 0]
    return fields


def responses(data: Dataset, gamp: Any, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray:
    """Return the responses of the weights, see `weight_responses`; V is computed if the result has none."""
    V = gamp.overlaps.V if np.isfinite(gamp.overlaps.V).all() else susceptibility(data, at, Q)
    if not np.isfinite(V).all():  # a rough value is sufficient, since refits correct the size of the shifts
        V = np.tile(np.eye(data.rank), (data.n_sources, 1, 1))
        V *= (data.spectra.mean(axis=1) / (1 + data.penalty.strength))[:, None, None]
    return weight_responses(data, at, Q, V)
