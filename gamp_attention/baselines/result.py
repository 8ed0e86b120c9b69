"""Result of gradient descent."""

from dataclasses import dataclass

import numpy as np

from gamp_attention.results import Ended, History, Overlaps, Status


@dataclass(frozen=True, eq=False)
class DescentResult(Ended):
    """Outcome of `minimize_risk`.

    Attributes
    ----------
    status, converged, n_iter, residual, history : as for every solver; the residual is the gradient norm.
    iterations : iteration numbers of the entries of `history`, whose V is NaN.
    Q : (d, r) the last weights; the initial weights if the last weights are not finite.
    overlaps : overlaps of Q, with V from the Hessians of the samples; V is NaN if these do not determine it.
    train_loss, gradient_norm : ε_t and ‖∇R‖_F/(λ√d) at Q.
    is_minimum, lowest_eigenvalue : as for `run_gamp`; False and NaN if descent did not converge.
    """

    status: Status
    n_iter: int
    residual: float
    history: History
    iterations: np.ndarray
    Q: np.ndarray
    overlaps: Overlaps
    train_loss: float
    gradient_norm: float
    is_minimum: bool
    lowest_eigenvalue: float
