"""L-BFGS in torch (Liu and Nocedal, 1989), for the last digits of a minimum and for weights of any unit.

1. Rounds of L-BFGS with a strong Wolfe line search (`quasi_newton`), while they reduce the gradient norm.
2. Near the minimum rounding makes the risks that a line search compares equal. Steps of length 1, which use gradients
   only, then continue (`_steps_without_search`).
3. Weights that are very small or very large are minimized in their unit (`quasi_newton_in_units`).
"""

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from gamp_attention.descent.torch_risk import Risk, Visit, status_of, value_and_norm
from gamp_attention.results import Status

if TYPE_CHECKING:
    import torch


def quasi_newton(
    function: Risk, Q: "torch.Tensor", lr: float, max_iter: int, tol: float, visit: Visit, memory: int = 50
) -> tuple[Status, int]:
    """Run rounds of L-BFGS (Liu and Nocedal, 1989), then steps without a line search if it stalls.

    The line search compares values of the risk, which rounding makes equal near the minimum. L-BFGS knows the change of
    the gradient in the last `memory` steps.
    """
    import torch

    n_iter = 0
    loss, norm = value_and_norm(function, Q)
    visit(0, loss, norm, False)
    while norm > tol and n_iter < max_iter and math.isfinite(loss):
        optimizer = torch.optim.LBFGS(
            [Q], lr=lr, max_iter=min(100, max_iter - n_iter), history_size=memory,
            tolerance_grad=0.5 * tol / math.sqrt(Q.numel()), tolerance_change=0.0, line_search_fn="strong_wolfe",
        )  # fmt: skip
        before = norm
        optimizer.step(lambda: value_and_norm(function, Q)[0])
        n_iter += max(1, optimizer.state[Q].get("n_iter", 1))
        loss, norm = value_and_norm(function, Q)
        visit(n_iter, loss, norm, True)
        if norm > 0.5 * before:
            break
    if math.isfinite(loss) and norm > tol and n_iter < max_iter:
        n_iter = _steps_without_search(function, Q, max_iter, tol, visit, n_iter, memory)
        loss, norm = value_and_norm(function, Q)
    return status_of(loss, norm, tol, Status.STALLED if n_iter < max_iter else Status.MAX_ITER), n_iter


def quasi_newton_in_units(
    function: Risk, Q: "torch.Tensor", unit: float, gain: float, lr: float, max_iter: int, tol: float, visit: Visit
) -> tuple[Status, int]:
    """Run `quasi_newton` on weights in units of `unit` and a risk in units of `gain`.

    L-BFGS ignores very small changes of the gradient, and its first step has no unit of the weights.
    """
    if unit == gain == 1.0:
        return quasi_newton(function, Q, lr, max_iter, tol, visit)
    scaled = (Q.detach() / unit).requires_grad_()

    def visit_weights(t: int, value: float, norm: float, always: bool) -> None:
        Q.data.copy_(unit * scaled.detach())
        visit(t, gain * value, norm * gain / unit, always)

    ended = quasi_newton(lambda q: function(unit * q) / gain, scaled, lr, max_iter, tol * unit / gain, visit_weights)
    Q.data.copy_(unit * scaled.detach())
    return ended


def _steps_without_search(
    function: Risk, Q: "torch.Tensor", max_iter: int, tol: float, visit: Visit, n_iter: int, memory: int
) -> int:
    """Run L-BFGS with steps of length 1, which use gradients only; go back after an overshoot.

    `torch.optim.LBFGS` has such steps too, but ignores changes of the gradient whose product with the step is below
    1e-10, and here it is smaller.
    """
    # first step; growth of the gradient norm at which to return to the best point; maximum steps without progress
    first, blow_up, patience = 0.1, 30.0, 1000

    def gradient() -> "torch.Tensor":
        value_and_norm(function, Q)
        assert Q.grad is not None
        return Q.grad.clone()

    g, pairs = gradient(), deque[Any](maxlen=memory)
    best, best_norm, best_at = Q.detach().clone(), float(g.norm()), n_iter
    while n_iter < max_iter and best_norm > tol and n_iter - best_at < patience:
        move = -_inverse_hessian_product(pairs, g, first)
        Q.data.add_(move)
        after = gradient()
        n_iter += 1
        norm, change = float(after.norm()), after - g
        curvature = float((move * change).sum())
        if curvature > 0:
            pairs.append((move, change, curvature))
        g = after
        if norm < best_norm:
            best, best_norm, best_at = Q.detach().clone(), norm, n_iter
        elif not norm < blow_up * best_norm:  # a step overshot along a direction of low curvature: return
            Q.data.copy_(best)
            g = gradient()
            pairs.clear()
    Q.data.copy_(best)
    visit(n_iter, float(function(Q).detach()), best_norm, True)
    return n_iter


def _inverse_hessian_product(pairs: Any, g: "torch.Tensor", first: float) -> "torch.Tensor":
    """Return H g for the inverse Hessian H of L-BFGS, from (move, change of gradient, their product) of recent steps.

    The two loops of Liu and Nocedal (1989); without steps, H is `first` times the identity.
    """
    product, weights, scale = g.clone(), [], first
    for move, change, curvature in reversed(pairs):
        weights.append(float((move * product).sum()) / curvature)
        product -= weights[-1] * change
    if pairs:
        _, change, curvature = pairs[-1]
        scale = curvature / float((change**2).sum())
    product *= scale
    for (move, change, curvature), weight in zip(pairs, reversed(weights), strict=True):
        product += (weight - float((change * product).sum()) / curvature) * move
    return product
