"""`run_gamp_with_norm`: message passing on losses that read the norm of the weights."""

from dataclasses import replace
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import guard_call
from gamp_attention._tools.progress import show_progress
from gamp_attention.extensions.equations.prox import compile_loss
from gamp_attention.extensions.weight_norm.equations import NORM, NormEquations, require_one_field
from gamp_attention.gamp.result import GampResult
from gamp_attention.gamp.run import Start, run_gamp
from gamp_attention.problem.dataset import LabelledDataset
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.attention import RiskTerms
from gamp_attention.problem.penalties.standard import Ridge
from gamp_attention.problem.risk import RiskAtPoint, gradient_norm, risk_at
from gamp_attention.problem.students import check_labels
from gamp_attention.results import Status, finish


@guard_call
@show_progress("message passing ")
def run_gamp_with_norm(
    data: LabelledDataset, loss: Any, init: Start | None = None, *, convex: bool = False, tol: float = 1e-8,
    max_iter: int = 10000, seed: int = 0, raise_on_failure: bool = False, progress: bool | None = None,
) -> GampResult:  # fmt: skip
    """Run message passing on a loss that reads the norm of the weights, s = ‖Q‖/√d.

    The risk is R(Q) = Σ_μ ℓ(z_μ, y_μ, s) + λ‖Q‖²/2. Ordinary runs with a number s and a ridge λ + c/s are repeated,
    each from the last, until s and c are consistent with the weights.

    Parameters
    ----------
    data : samples with labels and ridge λ, of one token, with one column; their own loss is not used.
    loss : as for `solve_with_norm`.
    init : start of the first ordinary run, as for `run_gamp`.
    convex : as for `solve_with_norm`.
    tol : maximum of ‖∇R‖/(λ√d), with the gradient of the norm included; at least 1e-12.
    max_iter : maximum number of iterations of each ordinary run.
    seed : seed of a random start.
    raise_on_failure : raise ConvergenceError if the run does not converge.
    progress : as for `run_gamp`.

    Returns
    -------
    GampResult
        Training loss, gradient norm and `is_minimum` are of R. All other numbers, such as the history and the lowest
        eigenvalue, are of the last ordinary run. The status is LOST if the weights go to zero, and STALLED if no norm
        is consistent with its weights.

    Raises
    ------
    TypeError, ValueError : if an argument has the wrong type or is out of its range; if the data have more than one
        field, an intercept, or a penalty other than `Ridge`; or if the loss does not accept the labels.
    ConvergenceError : if the run does not converge and `raise_on_failure` is True.

    Examples
    --------
    >>> import numpy as np
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(0.0), lam=0.1), d=100, alpha=2.0, seed=0)
    >>> run = ga.run_gamp_with_norm(data, lambda z, y, s: np.logaddexp(0, 0.3 * s - y * z), convex=True)
    >>> run.converged, run.gradient_norm < 1e-8
    (True, True)
    """
    check.flag("raise_on_failure", raise_on_failure)
    tol = check.real("tol", tol, low=1e-12)
    require_one_field("data", data, LabelledDataset)
    d, n, lam, own_labels = data.dim, data.n_samples, data.lam, np.asarray(data.labels)
    rows = np.column_stack([own_labels, np.ones(n)])
    compiled = compile_loss(loss, rows, check.flag("convex", convex))
    check_labels(compiled, rows, n, 1, 1)

    def problem(norm: float, penalty: Ridge) -> Any:
        labels = np.column_stack([own_labels, np.full(n, norm)])
        risks = dict.fromkeys(data._risks, RiskTerms(labels, np.zeros(n)))
        return data.copy_with(student=compiled, labels=labels, penalty=penalty, model=None, targets=None, _risks=risks)

    def slope_at(norm: float, ridge: Ridge, result: GampResult) -> tuple[RiskAtPoint, float]:
        """Return the ordinary risk at the weights, and c from Moreau envelopes, which have slopes at kinks as well."""
        at, V = risk_at(problem(norm, ridge), result.Q, "exact"), result.overlaps.V
        omega, h = at.z + V * at.loss_gradients, NORM.step * norm
        last = np.arange(at.params.shape[1]) == at.params.shape[1] - 1
        sides = (denoise(at.loss, at.params + side * h * last, omega, V, at.z, hold=True) for side in (1, -1))
        ahead, behind = (side.moreau.sum() for side in sides)
        return at, float(ahead - behind) / (2 * h * d)

    def solve(norm: float, ridge: Ridge, tol: float, last: Any) -> tuple[GampResult, float, float]:
        tol = min(tol, NORM.run_tol) * min(1.0, norm)  # the weights may be small
        start = init if last is None else last
        result = run_gamp(problem(norm, ridge), start, tol=tol, max_iter=max_iter, seed=seed)
        return result, np.linalg.norm(result.Q) / np.sqrt(d), slope_at(norm, ridge, result)[1]

    equations = NormEquations(solve, lam)
    x, status, message = equations.find(lambda ridge: NORM.gradient * tol * lam / ridge)
    result, ridge = equations.result, lam + x[1] / np.exp(x[0])
    norm = np.linalg.norm(result.Q) / np.sqrt(d)
    at, slope = slope_at(norm, Ridge(ridge), result)
    residual = gradient_norm(data, at.gradient + (lam + slope / norm - ridge) * result.Q)
    if status is None:
        status = result.status if residual <= tol or not result.converged else Status.STALLED
        message = f"Consistent with the norm s = {norm:.4g} and the ridge λ + c/s = {ridge:.4g}. {result.message}"
    result = replace(
        result, status=status, message=message, residual=residual, gradient_norm=residual,
        train_loss=at.train_loss + 0.5 * (lam - ridge) * norm**2, is_minimum=status.converged and result.is_minimum,
    )  # fmt: skip
    return finish(result, raise_on_failure, "run_gamp_with_norm")
