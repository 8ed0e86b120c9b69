"""Fields of samples under weights that were trained without them, by formulas for all samples together.

`leave_out` takes a Newton step on the risk without each sample, eq. :eq:`leave-one-out`. The Hessian of the risk is
H = X̃ᵀ ∇²ℓ X̃ + ∇²r, with X̃ = (x + p)/√d the scaled tokens, ℓ the losses of the samples and r the penalty. Weights at a
kink of the penalty are fixed, so H is restricted to the free weights. H is factored once; after that the Hessian
without a sample costs only a matrix of the size of the sample's fields.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigvalsh, solve_triangular

from gamp_attention._tools import check
from gamp_attention._tools.numerics import one_thread, over_panels
from gamp_attention.problem.curvature import data_hessian, rotations, scaled_blocks
from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.denoisers.input import input_step
from gamp_attention.problem.risk import RiskAtPoint, on_kinks
from gamp_attention.problem.susceptibility import hessian_response, susceptibility

FORMS = ("hessian", "cavity")  # formulas for the fields: `leave_out` and `cavity_fields`
FLAT = 1e-9  # curvature, relative to the largest, that is added to a Hessian that is not positive definite


def field_derivatives(x: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the derivatives (k, m L r) of the fields in the free weights (d, r), for scaled tokens x (m, L, d)."""
    parts = [np.zeros((count, *x.shape[:2], free.shape[1])) for count in free.sum(axis=0)]
    for a, part in enumerate(parts):
        part[..., a] = x[:, :, free[:, a]].transpose(2, 0, 1)
    return np.concatenate(parts).reshape(int(free.sum()), x.shape[0] * x.shape[1] * free.shape[1])


@dataclass(frozen=True, eq=False)
class FactoredHessian:
    """Cholesky factor F of the Hessian H = X̃ᵀ ∇²ℓ X̃ + ∇²r = F Fᵀ of the k free weights, column after column of Q.

    Common rotations of the columns do not change the risk. To make H invertible, these directions get the curvature
    `level`; `leverages` removes their contribution. At a saddle, H is increased by a multiple of the unit matrix.
    """

    whitener: np.ndarray  # (k, k) lower triangular F
    is_minimum: bool  # False if H had to be increased
    free: np.ndarray  # (d, r) True for free weights
    flat: np.ndarray  # (f, k) orthonormal directions of the rotations
    level: float  # curvature that is added along these directions

    def whiten(self, columns: np.ndarray, transposed: bool = False) -> np.ndarray:
        """Return F⁻¹, or F⁻ᵀ, times vectors (k, c), identical for any number of threads."""
        F, out = self.whitener, np.empty(columns.shape)

        def work(part: slice) -> None:
            out[:, part] = solve_triangular(F, columns[:, part], lower=True, trans=int(transposed), check_finite=False)

        over_panels(work, columns.shape[1])
        return out

    def solve(self, columns: np.ndarray) -> np.ndarray:
        """Return the inverse of H, with curvature `level` along rotations, times vectors (k, c)."""
        return self.whiten(self.whiten(columns), transposed=True)

    def leverages(self, x: np.ndarray, k: int) -> np.ndarray:
        """Return A = X̃ H⁻¹ X̃ᵀ (m L r/k, k, k) between k consecutive fields, for scaled tokens x, without rotations."""
        columns = field_derivatives(x, self.free)
        products = self.whiten(columns), self.flat @ columns
        rows, along = (part.T.reshape(columns.shape[1] // k, k, len(part)) for part in products)
        return rows @ rows.transpose(0, 2, 1) - along / self.level @ along.transpose(0, 2, 1)

    def pack(self, G: np.ndarray) -> np.ndarray:
        """Return the entries (k, c) of vectors (d, r, c) at the free weights."""
        return G.swapaxes(0, 1)[self.free.T]

    def unpack(self, flat: np.ndarray) -> np.ndarray:
        """Return vectors (d, r, c) with the entries (k, c) of the free weights, zero at the others."""
        out = np.zeros((*self.free.T.shape, flat.shape[1]))
        out[self.free.T] = flat
        return out.swapaxes(0, 1)


def factored_hessian(data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> FactoredHessian:
    """Return the factored Hessian at Q (d, r), with the exact risk `at` Q."""
    _, movable, curvature = on_kinks(data.penalty, Q, at.smooth)
    free = movable > 0
    size = int(free.sum())
    check.require_memory("data", size, size)
    H, flat = data_hessian(data, at.hessians, free), rotations(data, Q).swapaxes(1, 2)[:, free.T]
    H[np.diag_indices(size)] += curvature.T[free.T]
    level = float(np.trace(H) / max(size, 1))
    raised = H + level * flat.T @ flat
    try:
        return FactoredHessian(cholesky(raised, lower=True, check_finite=False), True, free, flat, level)
    except LinAlgError:
        lowest, *_, highest = eigvalsh(raised, check_finite=False)
        raised[np.diag_indices(size)] += 2 * max(-lowest, 0.0) + FLAT * max(highest, -lowest)
        return FactoredHessian(cholesky(raised, lower=True, check_finite=False), False, free, flat, level)


def leave_out(data: Dataset, at: RiskAtPoint, Q: np.ndarray) -> tuple[np.ndarray, FactoredHessian]:
    """Return the fields (n, L, r) of each sample after a Newton step on the risk without it, and the Hessian.

    Eq. :eq:`leave-one-out`; Rahnama Rad and Maleki (2020). The step begins at the minimum Q (d, r).
    """
    n, k = data.n_samples, data.n_tokens * data.rank
    with one_thread():
        H = factored_hessian(data, at, Q)
        A = np.concatenate([H.leverages(x, k) for _, x in scaled_blocks(data)])
        return fields_without(at, np.arange(n)[:, None], A), H


def fields_without(at: RiskAtPoint, blocks: np.ndarray, A: np.ndarray) -> np.ndarray:
    """Return fields z − (1 − A D)⁻¹ A g (b m, L, r) after a Newton step without each block (b, m), of leverages A."""
    z, g, D = (part[blocks] for part in (at.z, -at.loss_gradients, at.hessians))
    AD = np.einsum("bpmi,bmij->bpmj", A.reshape(*A.shape[:2], -1, D.shape[-1]), D, optimize=True).reshape(A.shape)
    shifts = solve_all(np.eye(A.shape[1]) - AD, A @ g.reshape(*A.shape[:2], 1))
    return (z - shifts.reshape(z.shape)).reshape(-1, *at.z.shape[1:])


def solve_all(matrices: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the solutions (n, k, c) of linear equations; of smallest norm if only one sample determines weights."""
    try:
        return np.linalg.solve(matrices, right)
    except np.linalg.LinAlgError:
        return np.linalg.pinv(matrices) @ right


def cavity_fields(data: Dataset, gamp: Any, at: RiskAtPoint, Q: np.ndarray) -> np.ndarray:
    """Return cavity fields z − A_μ g (n, L, r) with A_μ = (1/d) Σ_i (x+p)_i C_i (x+p)_iᵀ, in one pass over the tokens.

    Eq. :eq:`cavity-field`. C_i = ∂η_i/∂b_i are the responses of the weights; V is computed if the result has none. For
    d → ∞ and independent coordinates A_μ is V, and the fields are z − V g, as in message passing (Rangan (2011)).
    """
    V = gamp.overlaps.V if np.isfinite(gamp.overlaps.V).all() else susceptibility(data, at, Q)
    if not np.isfinite(V).all():  # a rough value is sufficient, since refits correct the size of the shifts
        V = np.tile(np.eye(data.rank), (data.n_sources, 1, 1))
        V *= (data.spectra.mean(axis=1) / (1 + data.penalty.strength))[:, None, None]
    _, C, _ = input_step(data.penalty, data.spectra, hessian_response(data, at.hessians, V), -at.smooth, Q)
    g, fields = -at.loss_gradients, at.z.copy()
    for rows, x in scaled_blocks(data):
        for a, b in np.ndindex(C.shape[1:]):
            fields[rows, :, a] -= ((x * C[:, a, b]) @ x.transpose(0, 2, 1) @ g[rows, :, b, None])[..., 0]
    return fields
