"""Descent loops in torch: first-order methods, proximal and minibatch descent, and L-BFGS."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from gamp_attention.penalties.matrix import least_subgradient, penalty_total, proximal_map
from gamp_attention.results import Status

if TYPE_CHECKING:
    import torch

Risk = Callable[["torch.Tensor"], "torch.Tensor"]
Steps = Callable[[int], float]  # learning rate of step t
Visit = Callable[[int, float, float, bool], None]  # called with step, risk, gradient norm, and whether to record it


@contextmanager
def few_threads(n_numbers: int, few: int = 10_000_000) -> Iterator[None]:
    """Use one torch thread if the tokens have fewer than `few` numbers: synchronization would take longer than work."""
    import torch

    before = torch.get_num_threads()
    try:
        if n_numbers < few:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(before)


def _value_and_norm(function: Risk, Q: "torch.Tensor") -> tuple[float, float]:
    """Return the risk and the norm of its gradient; the gradient is left in Q.grad."""
    Q.grad = None
    value = function(Q)
    value.backward()
    assert Q.grad is not None
    return float(value.detach()), float(Q.grad.norm())


def _status(loss: float, norm: float, tol: float, otherwise: Status) -> Status:
    if not math.isfinite(loss):
        return Status.NONFINITE
    return Status.CONVERGED if norm <= tol else otherwise


def first_order(
    function: Risk, Q: "torch.Tensor", optimizer: "torch.optim.Optimizer", lr: Steps | None, max_iter: int, tol: float,
    visit: Visit,
) -> tuple[Status, int]:  # fmt: skip
    """Run a torch optimizer, with learning rates `lr` if given, until the gradient norm is at most tol."""
    for t in range(max_iter + 1):
        loss, norm = _value_and_norm(function, Q)
        done = norm <= tol or t == max_iter or not math.isfinite(loss)
        visit(t, loss, norm, done)
        if done:
            break
        if lr is not None:
            optimizer.param_groups[0]["lr"] = lr(t)
        optimizer.step()
    return _status(loss, norm, tol, Status.MAX_ITER), t


def proximal_descent(
    function: Risk, Q: "torch.Tensor", penalty: Any, lr: Steps, max_iter: int, tol: float, visit: Visit
) -> tuple[Status, int]:
    """Run proximal gradient steps Q ← prox(Q − lr ∇f) until the smallest subgradient has norm at most tol."""
    for t in range(max_iter + 1):
        loss, norm = _value_and_subgradient(function, Q, penalty)
        done = norm <= tol or t == max_iter or not math.isfinite(loss)
        visit(t, loss, norm, done)
        if done:
            break
        _proximal_step(Q, penalty, lr(t))
    return _status(loss, norm, tol, Status.MAX_ITER), t


def minibatch_descent(
    function: Any, Q: "torch.Tensor", penalty: Any, method: Any, rng: np.random.Generator, max_iter: int, tol: float,
    seen: tuple[int, int], visit: Visit,
) -> tuple[Status, int]:  # fmt: skip
    """Run minibatch descent: each step uses the gradient of a random fraction of the data; proximal with a penalty.

    The whole risk is evaluated at the first `seen[0]` steps and at every `seen[1]`-th step.
    """
    import torch

    n = len(function)
    size = max(1, round(method.batch * n))
    for t in range(max_iter + 1):
        if t <= seen[0] or t % seen[1] == 0 or t == max_iter:
            loss, norm = (
                _value_and_norm(function, Q) if penalty is None else _value_and_subgradient(function, Q, penalty)
            )
            done = norm <= tol or t == max_iter or not math.isfinite(loss)
            visit(t, loss, norm, True)
            if done:
                break
        rows = torch.as_tensor(rng.choice(n, size, replace=False))
        _value_and_norm(partial(function, rows=rows), Q)
        assert Q.grad is not None
        if penalty is None:
            Q.data.sub_(method.lr(t) * Q.grad)
        else:
            _proximal_step(Q, penalty, method.lr(t))
    return _status(loss, norm, tol, Status.MAX_ITER), t


def _value_and_subgradient(function: Risk, Q: "torch.Tensor", penalty: Any) -> tuple[float, float]:
    """Return the risk with its penalty and the norm of its smallest subgradient; Q.grad excludes the penalty."""
    value, _ = _value_and_norm(function, Q)
    assert Q.grad is not None
    here, smooth = Q.detach().cpu().numpy(), Q.grad.cpu().numpy()
    norm = float(np.linalg.norm(least_subgradient(penalty, here, smooth)))
    return value + penalty_total(penalty, here), norm


def _proximal_step(Q: "torch.Tensor", penalty: Any, lr: float) -> None:
    """Replace Q by prox(Q − lr ∇f), with the gradient ∇f in Q.grad."""
    import torch

    assert Q.grad is not None
    moved, _ = proximal_map(penalty, Q.detach().cpu().numpy() / lr - Q.grad.cpu().numpy(), 1 / lr)
    Q.data.copy_(torch.as_tensor(moved))


def quasi_newton(
    function: Risk, Q: "torch.Tensor", lr: float, max_iter: int, tol: float, visit: Visit
) -> tuple[Status, int]:
    """Run rounds of L-BFGS (Liu and Nocedal 1989), then Barzilai-Borwein steps if the line search stalls.

    The line search compares values of the risk, which rounding makes equal near the minimum; Barzilai-Borwein steps use
    gradients only.
    """
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
        before = norm
        optimizer.step(lambda: _value_and_norm(function, Q)[0])
        n_iter += max(1, optimizer.state[Q].get("n_iter", 1))
        loss, norm = _value_and_norm(function, Q)
        visit(n_iter, loss, norm, True)
        if norm > 0.5 * before:
            break
    if math.isfinite(loss) and norm > tol and n_iter < max_iter:
        n_iter = _barzilai_borwein(function, Q, max_iter, tol, visit, n_iter)
        loss, norm = _value_and_norm(function, Q)
    return _status(loss, norm, tol, Status.STALLED if n_iter < max_iter else Status.MAX_ITER), n_iter


def _barzilai_borwein(function: Risk, Q: "torch.Tensor", max_iter: int, tol: float, visit: Visit, n_iter: int) -> int:
    """Run Barzilai-Borwein steps (IMA Journal of Numerical Analysis 8, 1988); go back after an overshoot."""
    # first step; growth of the gradient norm at which to return to the best point; maximum steps without progress
    first, blow_up, patience = 0.1, 30.0, 1000

    def gradient() -> "torch.Tensor":
        _value_and_norm(function, Q)
        assert Q.grad is not None
        return Q.grad.clone()

    g, step = gradient(), first
    best, best_norm, best_at = Q.detach().clone(), float(g.norm()), n_iter
    while n_iter < max_iter and best_norm > tol and n_iter - best_at < patience:
        move = -step * g
        Q.data.add_(move)
        after = gradient()
        n_iter += 1
        norm = float(after.norm())
        change = after - g
        curvature = float((move * change).sum())
        g, step = after, float((move**2).sum()) / curvature if curvature > 0 else first
        if norm < best_norm:
            best, best_norm, best_at = Q.detach().clone(), norm, n_iter
        elif not norm < blow_up * best_norm:  # a step overshot along a direction of low curvature: return
            Q.data.copy_(best)
            g, step = gradient(), first
    Q.data.copy_(best)
    visit(n_iter, float(function(Q).detach()), best_norm, True)
    return n_iter
