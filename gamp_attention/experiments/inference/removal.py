"""What each sample's fields would be had the weights been trained without it.

At a minimum Q, with A_μ = X̃^μ H⁻¹ X̃^μᵀ and D = ∇²ℓ_μ, one Newton step of the risk without sample μ takes its fields to
z − (1 − A_μ D)⁻¹ A_μ g. It is exact where the risk is quadratic. How far the other samples' curvature changes on the
way is what is left of the gradient after the step, in the units of the step: sqrt(Gᵀ H⁻¹ G / gᵀ(1 − A_μ D)⁻¹A_μ g).
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core.one_thread import one_thread, product
from gamp_attention.data.dataset import Dataset
from gamp_attention.data.risk import RiskAtPoint
from gamp_attention.experiments.inference.hessian import FactoredHessian, factored_hessian, scaled_blocks
from gamp_attention.losses.derivatives import sample_derivatives


@dataclass(frozen=True)
class RemovalSettings:
    """When a sample is not to be trusted."""

    singular: float = 0.05  # eigenvalue of 1 − A D at which a sample alone holds the weights where they are
    remainder: float = 0.08  # of the gradient after a Newton step: refits then are mostly elsewhere
    together: int = 64  # samples whose removal is examined at a time


REMOVAL = RemovalSettings()


@dataclass(frozen=True, eq=False)
class Removed:
    """Samples without which the weights were trained.

    Eq. :eq:`remainder`.

    Attributes
    ----------
    fields : (n, L, r) of each sample.
    stiffness : (n,) the smallest eigenvalue of 1 − A D.
    remainder : (n,) of the gradient after the Newton step, NaN where it was not looked at.
    minimum : whether the Hessian is positive definite.
    """

    fields: np.ndarray
    stiffness: np.ndarray
    remainder: np.ndarray
    minimum: bool

    @property
    def doubtful(self) -> np.ndarray:
        """(n,) whether exact refits are likely to differ."""
        return (self.stiffness < REMOVAL.singular) | (self.remainder > REMOVAL.remainder)


def removed(data: Dataset, at: RiskAtPoint, Q: np.ndarray, examined: np.ndarray) -> Removed:
    """By the Hessian at Q. Of some samples the change of curvature is looked at, each in a product with all tokens.

    Eq. :eq:`leave-one-out`.
    """
    n, k = data.n_samples, data.n_tokens * data.rank
    g, D = -at.loss_gradients.reshape(n, k), at.hessians
    A, whitened, examine = np.empty((n, k, k)), [], len(examined) > 0
    with one_thread():
        H = factored_hessian(data, at, Q)
        for rows, x in scaled_blocks(data):
            columns = H.columns(x)
            white = H.whiten(columns)
            A[rows] = H.leverages(columns, white, k)
            whitened += [white] if examine else []
        solved = np.linalg.solve(np.eye(k) - A @ D, (A @ g[..., None]))[..., 0]  # (1 − A D)⁻¹ A g
        stiffness = np.linalg.eigvals(np.eye(k) - A @ D).real.min(axis=1)
        remainder = np.full(n, np.nan)
        if examine and H.signs is None:
            forces = np.linalg.solve(np.eye(k) - D @ A, g[..., None])[..., 0]
            left = _left(data, at, np.concatenate(whitened, axis=1), forces, H, examined)
            power = np.einsum("nk,nk->n", g, solved)[examined]
            remainder[examined] = np.sqrt(left / np.maximum(power, 1e-300))
    return Removed(at.z - solved.reshape(at.z.shape), stiffness, remainder, H.signs is None)


def risks_without(data: Dataset, at: RiskAtPoint, fields: np.ndarray) -> np.ndarray:
    """The smallest risk without each sample (n,), from its fields z_∖ without it: lower by ℓ + gᵀ(z − z_∖)/2."""
    g, loss = -at.loss_gradients, sample_derivatives(at.loss, at.params, at.z)[0]
    return at.train_loss * data.dim - loss - 0.5 * np.einsum("nla,nla->n", g, at.z - fields)


def _left(
    data: Dataset, at: RiskAtPoint, whitened: np.ndarray, forces: np.ndarray, H: FactoredHessian, examined: np.ndarray
) -> np.ndarray:
    """Gᵀ H⁻¹ G after the Newton step of each examined sample, G being the gradient of the risk without it."""
    n, k = forces.shape
    left, still = [], at.z.reshape(n, k)
    for first in range(0, len(examined), REMOVAL.together):
        rows = examined[first : first + REMOVAL.together]
        own = whitened.reshape(H.size, n, k)[:, rows]
        steps = np.einsum("imk,mk->im", own, forces[rows])
        moved = -product(whitened.T, steps).T.reshape(len(rows), n, k)
        there = (still + moved).reshape(-1, *at.z.shape[1:])
        slope = sample_derivatives(at.loss, np.tile(at.params, (len(rows), 1)), there)[1].reshape(moved.shape)
        rest = slope - at.loss_gradients.reshape(n, k) - np.einsum("nkl,mnl->mnk", at.hessians, moved)
        rest[np.arange(len(rows)), rows] = 0.0
        left.append((product(whitened, rest.reshape(len(rows), -1).T) ** 2).sum(axis=0))
    return np.concatenate(left)


def cavity_fields(data: Dataset, at: RiskAtPoint, C: np.ndarray) -> np.ndarray:
    """Cavity fields z − A_μ g (n, L, r) with A_μ = (1/d) Σ_i (x+p)_i C_i (x+p)_iᵀ, C_i being the responses of weights.

    Eq. :eq:`cavity-field`.

    For d → ∞ A_μ is V, and these are z − V g, where message passing has its fixed point.
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
