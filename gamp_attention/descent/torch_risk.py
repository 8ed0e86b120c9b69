"""The risk of the layer as a torch function, independent of the compiled kernels, and the result of its descent."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention.problem.dataset import Dataset
from gamp_attention.problem.penalties.standard import is_ridge, without_intercept
from gamp_attention.results import Ended, History, Overlaps, Status

if TYPE_CHECKING:
    import torch


@contextmanager
def few_threads(n_numbers: int) -> Iterator[None]:
    """Use one torch thread if the tokens have few numbers: synchronization would take longer than the work."""
    import torch

    before = torch.get_num_threads()
    try:
        if n_numbers < 10_000_000:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def ridge_strengths(penalty: Any, d: int) -> Any:
    """Return λ of a penalty that `is_ridge` accepts: a number, an array (r,), or (d, 1) or (d, r) with an intercept."""
    strengths = without_intercept(penalty).curvature
    if not penalty.intercept:
        return strengths
    rows = np.tile(np.atleast_1d(strengths), (d, 1))
    rows[-1] = 0.0
    return rows


class TorchRisk:
    """Risk R(Q) of equation (3) or (41) as a torch function of Q, in float64; it includes a ridge, no other penalty.

    The layer is S[(x+p)Q/√d](x+p). Its expanded squared distance to y depends on Q only through the
    fields, see eq. (41) and `gamp_attention.problem.losses.attention.RiskTerms`. `scale` is a factor of all losses.
    """

    def __init__(self, data: Dataset, risk: str, device: str, scale: float = 1.0) -> None:
        import torch

        terms = data.terms(risk)

        def tensor(values: Any) -> "torch.Tensor":
            return torch.as_tensor(values, dtype=torch.float64, device=device)

        self._tokens, self._positions = tensor(np.asarray(data.tokens)), tensor(data.positions)
        self._params, self._loss = tensor(terms.params), data.loss
        self._constant = float(terms.constant.sum())
        self._ridge = tensor(ridge_strengths(data.penalty, data.dim) if is_ridge(data.penalty) else 0.0)
        self._root, self._scale = math.sqrt(data.dim), scale

    def __call__(self, Q: "torch.Tensor", rows: "torch.Tensor | None" = None) -> "torch.Tensor":
        """Return R(Q), or an estimate of it, up to a constant, from some rows of the data."""
        scale = 1.0 if rows is None else len(self._tokens) / len(rows)
        tokens, params = (v if rows is None else v[rows] for v in (self._tokens, self._params))
        z = (tokens @ Q + self._positions @ Q) / self._root
        losses = self._loss.torch(params, z).sum() * scale + self._constant
        return self._scale * losses + 0.5 * (self._ridge * Q**2).sum()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._tokens)


Risk = Callable[["torch.Tensor"], "torch.Tensor"]


def value_and_norm(function: Risk, Q: "torch.Tensor") -> tuple[float, float]:
    """Return the risk and the norm of its gradient; the gradient is left in Q.grad."""
    Q.grad = None
    value = function(Q)
    value.backward()
    assert Q.grad is not None
    return float(value.detach()), float(Q.grad.norm())


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
    is_minimum, lowest_eigenvalue, lowest_eigenvalue_error : as for `run_gamp`; False and NaN without convergence.
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
    is_minimum: bool = field(default=False, kw_only=True)
    lowest_eigenvalue: float = field(default=math.nan, kw_only=True)
    lowest_eigenvalue_error: float = field(default=math.nan, kw_only=True)


Visit = Callable[[int, float, float, bool], None]  # called with step, risk, gradient norm, and whether to record it


def status_of(loss: float, norm: float, tol: float, otherwise: Status) -> Status:
    """Return the status of a descent that ended at a loss and a gradient norm; `otherwise` if it did not converge."""
    if not math.isfinite(loss):
        return Status.NONFINITE
    return Status.CONVERGED if norm <= tol else otherwise
