"""Gradient descent in torch on the attention layer itself, written apart from the compiled kernels."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention import _validation as check
from gamp_attention.attention import TiedSoftmax
from gamp_attention.data import Dataset
from gamp_attention.results import History, Overlaps, Recorder, Status, finish
from gamp_attention.risk import gradient_norm, overlaps, risk_at, susceptibility
from gamp_attention.starts import initial_weights

if TYPE_CHECKING:
    import torch

Visit = Callable[[int, float, float, bool], None]
METHODS = ("gd", "adam", "lbfgs")
LEARNING_RATES = {"gd": 0.15, "adam": 0.01, "lbfgs": 1.0}  # the first two as in the paper
N_RECORDS = 100  # history entries, evenly spread over the iterations


@dataclass(frozen=True, eq=False)
class DescentResult:
    """Outcome of `minimize_risk`.

    Attributes
    ----------
    status, converged, n_iter, residual, history : as for every solver; the residual is the gradient norm.
    iterations : iteration numbers of the entries of `history`.
    Q : (d, r) the last weights; those of the start where they are not finite.
    overlaps : of Q, with V from the Hessians of the samples; NaN where there is no such V.
    train_loss, gradient_norm : ε_t and ‖∇R‖_F/(λ√d) at Q.
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

    @property
    def converged(self) -> bool:
        """Whether gradient_norm <= tol."""
        return self.status.converged


class TorchRisk:
    """The risk R(Q) of eq. (3) or (41) as a torch function of Q, in float64.

    The layer is S[(x+p)Q/√d](x+p). Its square distance to y, expanded, needs x only through Q: see eq. (41) and
    `gamp_attention.data.RiskTerms`.
    """

    def __init__(self, data: Dataset, risk: str, device: str) -> None:
        import torch

        if not isinstance(data.student, TiedSoftmax):
            raise check.fail("data.student", data.student, "an attention map with a torch form", TypeError)
        terms = data.terms(risk)
        n, L = data.n_samples, data.n_tokens

        def tensor(values: np.ndarray) -> "torch.Tensor":
            return torch.as_tensor(values, dtype=torch.float64, device=device)

        G, M = np.split(terms.params, 2, axis=1)
        self._tokens, self._positions = tensor(data.tokens), tensor(data.positions)
        self._G, self._M = tensor(G).reshape(n, L, L), tensor(M).reshape(n, L, L)
        self._constant = float(terms.constant.sum())
        self._lam, self._root = data.lam, math.sqrt(data.dim)
        self._temperature = data.student.temperature

    def __call__(self, Q: "torch.Tensor") -> "torch.Tensor":
        """R(Q)."""
        z = (self._tokens @ Q + self._positions @ Q) / self._root
        S = (z @ z.transpose(1, 2) / self._temperature).softmax(dim=-1)
        fit = 0.5 * (S @ self._G * S).sum() - (S * self._M.transpose(1, 2)).sum()
        return fit + self._constant + 0.5 * self._lam * (Q**2).sum()


def minimize_risk(
    data: Dataset,
    init: Any = "semantic",
    risk: str | None = None,
    method: str = "gd",
    *,
    lr: float | None = None,
    max_iter: int = 5000,
    tol: float = 1e-8,
    device: str = "cpu",
    seed: Any = 0,
    raise_on_failure: bool = False,
) -> DescentResult:
    """Minimise the training risk with torch: full-batch gradient descent as in the paper, Adam or L-BFGS.

    Parameters
    ----------
    data : the samples.
    init : "semantic", "positional", "random", or weights (d, r).
    risk : "asymptotic" or "exact"; if not given, asymptotic where the teacher is known.
    method : "gd", "adam" or "lbfgs" (strong Wolfe line search, finished by Barzilai-Borwein steps).
    lr : step; 0.15 for gd and 0.01 for adam if not given.
    max_iter : bound on the steps.
    tol : bound on ‖∇R‖_F/(λ√d).
    device : a torch device, e.g. "cpu" or "cuda".
    seed : for the random part of a start.
    raise_on_failure : raise ConvergenceError instead of returning a result that did not converge.

    Returns
    -------
    DescentResult

    Raises
    ------
    ImportError : without torch; install gamp-attention[torch].
    TypeError, ValueError : naming the argument, what it got and what it needs.
    """
    if not isinstance(data, Dataset):
        raise check.fail("data", data, "a gamp_attention.Dataset", TypeError)
    if risk is None:
        risk = "exact" if data.model is None else "asymptotic"
    data.terms(risk)
    check.choice("method", method, METHODS)
    lr = check.real("lr", LEARNING_RATES[method] if lr is None else lr, low=0, strict=True)
    max_iter, tol = check.integer("max_iter", max_iter, low=1), check.real("tol", tol, low=0)
    start = initial_weights(data, init, seed)
    try:
        import torch
    except ImportError as error:
        raise ImportError("minimize_risk needs torch: pip install 'gamp-attention[torch]'") from error

    function = TorchRisk(data, risk, device)
    Q = torch.tensor(start, dtype=torch.float64, device=device, requires_grad=True)
    size, every = data.lam * math.sqrt(data.dim), max(1, max_iter // N_RECORDS)
    record, iterations = Recorder(), []
    no_V = np.full((data.n_tokens, data.rank, data.rank), np.nan)

    def visit(t: int, value: float, norm: float, last: bool) -> None:
        if t % every == 0 or last:
            iterations.append(t)
            record.add(overlaps(data, Q.detach().cpu().numpy(), no_V), norm / size, value / data.dim)
            record.step(lr)

    if method == "lbfgs":
        status, n_iter = _quasi_newton(function, Q, lr, max_iter, tol * size, visit)
    else:
        optimizer = torch.optim.Adam([Q], lr=lr) if method == "adam" else torch.optim.SGD([Q], lr=lr)
        status, n_iter = _first_order(function, Q, optimizer, max_iter, tol * size, visit)
    end = Q.detach().cpu().numpy().copy()
    if not np.isfinite(end).all():
        end = start
    at = risk_at(data, end, risk)
    norm = gradient_norm(data, at.gradient)
    result = DescentResult(
        status=status,
        n_iter=n_iter,
        residual=norm,
        history=record.history(),
        iterations=np.array(iterations),
        Q=end,
        overlaps=overlaps(data, end, susceptibility(data, at.hessians)),
        train_loss=at.train_loss,
        gradient_norm=norm,
    )
    return finish(result, raise_on_failure, f"minimize_risk ({method})")


def _value_and_norm(function: TorchRisk, Q: "torch.Tensor") -> tuple[float, float]:
    """The risk and the norm of its gradient, which is left in Q.grad."""
    Q.grad = None
    value = function(Q)
    value.backward()
    assert Q.grad is not None
    return float(value.detach()), float(Q.grad.norm())


def _first_order(
    function: TorchRisk, Q: "torch.Tensor", optimizer: "torch.optim.Optimizer", max_iter: int, tol: float, visit: Visit
) -> tuple[Status, int]:
    for t in range(max_iter + 1):
        loss, norm = _value_and_norm(function, Q)
        done = norm <= tol or t == max_iter or not math.isfinite(loss)
        visit(t, loss, norm, done)
        if done:
            break
        optimizer.step()
    if not math.isfinite(loss):
        return Status.NONFINITE, t
    return (Status.CONVERGED if norm <= tol else Status.MAX_ITER), t


def _quasi_newton(
    function: TorchRisk, Q: "torch.Tensor", lr: float, max_iter: int, tol: float, visit: Visit
) -> tuple[Status, int]:
    """Rounds of L-BFGS; where rounding blinds the line search to progress, Barzilai-Borwein steps finish."""
    import torch

    n_iter = 0
    loss, norm = _value_and_norm(function, Q)
    visit(0, loss, norm, False)
    while norm > tol and n_iter < max_iter and math.isfinite(loss):
        optimizer = torch.optim.LBFGS(
            [Q],
            lr=lr,
            max_iter=min(100, max_iter - n_iter),
            history_size=50,
            tolerance_grad=0.5 * tol / math.sqrt(Q.numel()),
            tolerance_change=0.0,
            line_search_fn="strong_wolfe",
        )

        def closure(optimizer: "torch.optim.Optimizer" = optimizer) -> "torch.Tensor":
            optimizer.zero_grad()
            value = function(Q)
            value.backward()
            return value.detach()

        before = norm
        optimizer.step(closure)
        n_iter += max(1, optimizer.state[Q].get("n_iter", 1))
        loss, norm = _value_and_norm(function, Q)
        visit(n_iter, loss, norm, True)
        if norm > 0.5 * before:
            break
    if math.isfinite(loss) and norm > tol and n_iter < max_iter:
        n_iter = _gradient_secants(function, Q, max_iter, tol, visit, n_iter)
        loss, norm = _value_and_norm(function, Q)
    if not math.isfinite(loss):
        return Status.NONFINITE, n_iter
    if norm <= tol:
        return Status.CONVERGED, n_iter
    return (Status.STALLED if n_iter < max_iter else Status.MAX_ITER), n_iter


def _gradient_secants(
    function: TorchRisk, Q: "torch.Tensor", max_iter: int, tol: float, visit: Visit, n_iter: int
) -> int:
    """Barzilai-Borwein steps, which use gradients only, kept near the best point."""

    def gradient() -> "torch.Tensor":
        _value_and_norm(function, Q)
        assert Q.grad is not None
        return Q.grad.clone()

    g, step = gradient(), 0.1
    best, best_norm, best_at = Q.detach().clone(), float(g.norm()), n_iter
    while n_iter < max_iter and best_norm > tol and n_iter - best_at < 200:
        move = -step * g
        Q.data.add_(move)
        after = gradient()
        n_iter += 1
        norm = float(after.norm())
        change = after - g
        curvature = float((move * change).sum())
        g, step = after, float((move**2).sum()) / curvature if curvature > 0 else 0.1
        if norm < best_norm:
            best, best_norm, best_at = Q.detach().clone(), norm, n_iter
        elif not norm < 1e3 * best_norm:
            break
    Q.data.copy_(best)
    visit(n_iter, float(function(Q).detach()), best_norm, True)
    return n_iter
