"""The fields of each sample under weights trained without it, by one Newton step or by the mean field.

At a minimum Q, with A_μ = X̃^μ H⁻¹ (X̃^μ)ᵀ and D = ∇²ℓ_μ, one Newton step of the risk without sample μ takes its fields
to z − (1 − A_μ D)⁻¹ A_μ g. The step is exact if the risk is quadratic. Sources: K. Rahnama Rad and A. Maleki, J. R.
Stat. Soc. B 82, 965 (2020); S. Wang et al., ICML 2018, for penalties with kinks.
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core.one_thread import one_thread
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint, response
from gamp_attention.denoisers.input import denoise_weights, precisions, prior_response
from gamp_attention.experiments.inference.hessian import FactoredHessian, TokenRows, factored_hessian, scaled_blocks
from gamp_attention.losses.derivatives import sample_derivatives


@dataclass(frozen=True, eq=False)
class Removed:
    """The fields of samples that a Newton step leaves out.

    Attributes
    ----------
    fields : (n, L, r) of each sample.
    stiffness : (n,) the smallest real part of the eigenvalues of 1 − A D.
    hessian : the factored Hessian.
    """

    fields: np.ndarray
    stiffness: np.ndarray
    hessian: FactoredHessian

    @property
    def minimum(self) -> bool:
        """Return whether the Hessian is positive definite."""
        return self.hessian.signs is None


def removed(data: Dataset, at: RiskAtPoint, Q: np.ndarray, tokens: TokenRows | None = None) -> Removed:
    """Return the fields of each sample after a Newton step of the risk without it, from Q (d, r).

    Eq. :eq:`leave-one-out`.
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
        left = np.eye(k) - A @ D
        try:
            moved = np.linalg.solve(left, A @ g[..., None])[..., 0]  # (1 − A D)⁻¹ A g
        except np.linalg.LinAlgError:  # a sample alone determines weights
            moved = (np.linalg.pinv(left) @ (A @ g[..., None]))[..., 0]
        stiffness = np.linalg.eigvals(left).real.min(axis=1)
    return Removed(at.z - moved.reshape(at.z.shape), stiffness, H)


def risks_without(data: Dataset, at: RiskAtPoint, fields: np.ndarray) -> np.ndarray:
    """Return the smallest risk without each sample (n,), from its fields z_∖ without it: lower by ℓ + gᵀ(z − z_∖)/2."""
    g, loss = -at.loss_gradients, sample_derivatives(at.loss, at.params, at.z)[0]
    return at.train_loss * data.dim - loss - 0.5 * np.einsum("nla,nla->n", g, at.z - fields)


def weight_responses(data: Dataset, at: RiskAtPoint, Q: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Return C = ∂η_i/∂b_i (d, r, r), or (1, r, r) if equal for all i, at a minimum Q with variances V (S, r, r)."""
    V_hat = response(data, at.hessians, V)
    if data.penalty.quadratic:
        return prior_response(data.spectra, data.penalty.lam, V_hat)[1]
    A = precisions(data.penalty, data.spectra, V_hat)
    b = np.einsum("iab,ib->ia", np.broadcast_to(A, (data.dim, *A.shape[1:])), Q) - at.smooth
    return denoise_weights(data.penalty, b, A)[1]


def cavity_fields(data: Dataset, at: RiskAtPoint, C: np.ndarray) -> np.ndarray:
    """Return cavity fields z − A_μ g (n, L, r) with A_μ = (1/d) Σ_i (x+p)_i C_i (x+p)_iᵀ, C_i the responses of weights.

    Eq. :eq:`cavity-field`.

    For d → ∞ and independent coordinates A_μ is V, and these are z − V g, the fields of message passing.
    """
    g, found = -at.loss_gradients, at.z.copy()
    if len(C) == 1 and data.labels is None:  # the products of tokens are known
        L = data.n_tokens
        G = data.terms("exact").params[:, : L * L].reshape(-1, L, L)
        return found - G @ g @ C[0].T
    for rows, x in scaled_blocks(data):
        if len(C) == 1:
            found[rows] -= x @ x.transpose(0, 2, 1) @ g[rows] @ C[0].T
            continue
        for a in range(data.rank):
            for b in range(data.rank):
                weighed = np.ascontiguousarray(x * C[:, a, b])
                found[rows, :, a] -= np.einsum("nli,nki,nk->nl", weighed, x, g[rows, :, b], optimize=True)
    return found
