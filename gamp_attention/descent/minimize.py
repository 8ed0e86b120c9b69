"""Gradient descent in torch on the risk of the layer, independent of the compiled kernels.

`minimize_risk` takes steps of a first-order method, proximal for penalties other than the ridge, or runs
L-BFGS (`quasi_newton`). `stable_step` derives a step size from the curvature of the risk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.choices import DESCENTS
from gamp_attention._tools.eigenpairs import extreme_eigenpairs
from gamp_attention._tools.numerics import Stream, generator, guard_call
from gamp_attention.descent.steps import DescentSteps
from gamp_attention.descent.torch_risk import (
    DescentResult,
    Risk,
    TorchRisk,
    Visit,
    few_threads,
    ridge_strengths,
    status_of,
    value_and_norm,
)
from gamp_attention.problem.curvature import grows_without_bound, lowest_curvature
from gamp_attention.problem.dataset import Dataset, require_dataset
from gamp_attention.problem.penalties.standard import is_ridge
from gamp_attention.problem.risk import (
    gradient_norm,
    hessian_product,
    overlaps,
    penalty_total,
    proximal_map,
    risk_at,
    scale_tolerance,
    smallest_subgradient,
    weight_unit,
)
from gamp_attention.problem.starts import initial_weights
from gamp_attention.problem.susceptibility import susceptibility
from gamp_attention.recorder import Recorder
from gamp_attention.results import Status, finish

if TYPE_CHECKING:
    import torch

METHODS = (*DESCENTS, "adam", "lbfgs")  # methods for given data
# the learning rates of gd and Adam are from the paper
LEARNING_RATES = dict.fromkeys(DESCENTS, 0.15) | {"adam": 0.01, "lbfgs": 1.0}


def is_recorded(t: int, max_iter: int) -> bool:
    """Return whether step t is recorded: each of the first and the last, and about 100 over the whole descent."""
    return t <= 40 or t % max(1, max_iter // 100) == 0 or t == max_iter


def descend(
    function: TorchRisk, Q: torch.Tensor, penalty: Any, method: str, steps: Any, batch: float, seed: Any,
    max_iter: int, tol: float, visit: Visit,
) -> tuple[Status, int]:  # fmt: skip
    """Take steps of a first-order method until the gradient norm is at most tol.

    The risk is evaluated before all steps, and with minibatches (method "sgd") before recorded steps only.
    """
    import torch

    rng, n_rows = generator(seed, Stream.MINIBATCHES), max(1, round(batch * len(function)))
    velocity, adam = torch.zeros_like(Q), torch.optim.Adam([Q])
    for t in range(max_iter + 1):
        if method != "sgd" or is_recorded(t, max_iter):
            loss, norm = value_and_norm(function, Q)
            if not is_ridge(penalty):  # the gradient is without the penalty
                weights, smooth = (part.detach().cpu().numpy() for part in (Q, cast(Any, Q.grad)))
                norm = float(np.linalg.norm(smallest_subgradient(penalty, weights, smooth)))
                loss += penalty_total(penalty, weights)
            done = norm <= tol or t == max_iter or not math.isfinite(loss)
            visit(t, loss, norm, done or method == "sgd")
            if done:
                break
        step_size = steps.step_size(t)
        if method == "sgd":
            rows = torch.as_tensor(rng.choice(len(function), n_rows, replace=False))
            value_and_norm(partial(function, rows=rows), Q)
        if method == "adam":
            adam.param_groups[0]["lr"] = step_size
            adam.step()
        elif is_ridge(penalty):
            moved, velocity = steps.step(Q.data, velocity, cast(Any, Q.grad), t)
            Q.data.copy_(moved)
        else:
            weights, smooth = (part.detach().cpu().numpy() for part in (Q, cast(Any, Q.grad)))
            Q.data.copy_(torch.as_tensor(proximal_map(penalty, weights / step_size - smooth, 1 / step_size)[0]))
    return status_of(loss, norm, tol, Status.MAX_ITER), t


def quasi_newton(
    function: Risk, Q: torch.Tensor, lr: float, max_iter: int, tol: float, visit: Visit, memory: int = 50
) -> tuple[Status, int]:
    """Run L-BFGS (Liu and Nocedal, 1989) in rounds, the first rounds with a strong Wolfe line search.

    The line search compares values of the risk, which rounding makes equal near the minimum. After a round that does
    not halve the gradient norm, rounds therefore take steps of length 1. L-BFGS ignores very small changes of the
    gradient, so the risk is then divided by the gradient norm. `memory` is the number of steps that L-BFGS remembers.
    """
    import torch

    n_iter, search, unit = 0, "strong_wolfe", 1.0
    loss, norm = value_and_norm(function, Q)
    visit(0, loss, norm, False)
    while norm > tol and n_iter < max_iter and math.isfinite(loss):
        start, before = Q.detach().clone(), norm
        optimizer = torch.optim.LBFGS(
            [Q], lr=lr, max_iter=min(100, max_iter - n_iter), history_size=memory,
            tolerance_grad=0.5 * tol / math.sqrt(Q.numel()) / unit, tolerance_change=0.0, line_search_fn=search or None,
        )  # fmt: skip
        optimizer.step(lambda unit=unit: value_and_norm(lambda weights: function(weights) / unit, Q)[0])
        n_iter += max(1, optimizer.state[Q].get("n_iter", 1))
        loss, norm = value_and_norm(function, Q)
        if not search and not norm < before:  # steps of length 1 overshot
            Q.data.copy_(start)
            loss, norm = value_and_norm(function, Q)
        visit(n_iter, loss, norm, True)
        if norm > 0.5 * before and not search:
            break
        search = "" if norm > 0.5 * before else search
        unit = 1.0 if search else norm
    return status_of(loss, norm, tol, Status.STALLED if n_iter < max_iter else Status.MAX_ITER), n_iter


def require_method(name: str, method: Any, penalty: Any) -> None:
    """Raise TypeError or ValueError if `method`, an argument called `name`, does not work with the penalty."""
    options = METHODS if is_ridge(penalty) else ("gd", "sgd")
    if method in METHODS and method not in options:
        raise check.fail(
            name, method, f"'gd' or 'sgd' for {type(penalty).__name__}, because the other methods need the ridge"
        )
    check.choice(name, method, options)


def require_device(device: Any) -> None:
    """Raise TypeError or ValueError if torch cannot compute on a device; without torch, accept any name."""
    if not isinstance(device, str):
        raise check.fail("device", device, "the name of a torch device, e.g. 'cpu'", TypeError)
    try:
        import torch

        torch.zeros(1, dtype=torch.float64, device=device).add(1.0)
    except ImportError:
        return
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise check.fail("device", device, f"a device that torch can compute on ({reason})") from None


@guard_call
def minimize_risk(
    data: Dataset,
    init: str | ArrayLike | None = None,
    risk: str = "exact",
    method: str = "gd",
    *,
    lr: float | Sequence[float] | np.ndarray | None = None,
    momentum: float | None = None,
    batch: float | None = None,
    max_iter: int = 5000,
    tol: float = 1e-8,
    device: str = "cpu",
    seed: int | np.random.Generator = 0,
    raise_on_failure: bool = False,
) -> DescentResult:
    """Minimize the training risk with torch, by full-batch gradient descent as in the paper or another method.

    Eq. :eq:`risk`.

    Parameters
    ----------
    data : the samples.
    init : "semantic", "positional", "random", "spectral", or weights (d, r). If not given, "semantic" for data with a
        teacher, and "spectral" for your arrays, which have no teacher.
    risk : "exact", of equation (3), or "asymptotic", of (41), to compare with state evolution.
    method : "gd", "momentum" (heavy ball; Polyak, 1964), "nesterov" (Nesterov, 1983), "sgd" (a new random minibatch at
        each step), which `trajectory` predicts; "adam" (Kingma and Ba, 2015); or "lbfgs" (Liu and Nocedal, 1989; with a
        strong Wolfe line search, and without it near the minimum). Penalties other than the ridge allow "gd" and
        "sgd" only, with proximal steps Q ← prox(Q − lr ∇f(Q)), in which f is the risk without the penalty.
    lr : step size; except for adam and lbfgs also a sequence of step sizes, whose last entry is repeated. By default
        0.15, for adam 0.01 and for lbfgs 1.
    momentum : μ in [0, 1), for "momentum" and "nesterov" only; by default 0.9.
    batch : for "sgd" only: the fraction of the data in (0, 1] in a minibatch, by default 0.1; the gradient norm is then
        evaluated at recorded steps only.
    max_iter : maximum number of steps.
    tol : value of ‖∇R‖_F/(λ√d) at which descent has converged, see `run_gamp`.
    device : name of a torch device, for example "cpu" or "cuda".
    seed : an integer or a numpy Generator, for the random part of initial weights and for minibatches.
    raise_on_failure : whether to raise ConvergenceError instead of returning a result that did not converge.

    Returns
    -------
    DescentResult

    Raises
    ------
    ImportError : if torch is not installed; install gamp-attention[torch].
    TypeError : if an argument has the wrong type.
    ValueError : if a name is unknown or does not suit the data or the penalty, `momentum` or `batch` is given for
        another method, a number is out of range, or torch cannot use the device.
    ConvergenceError : if descent does not converge and `raise_on_failure` is True.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> data = ga.sample(ga.paper_model(), d=60, alpha=1.5, seed=0)
    >>> descent = ga.minimize_risk(data, "semantic", method="lbfgs")
    >>> descent.converged, abs(descent.train_loss - ga.run_gamp(data, "semantic").train_loss) < 1e-10
    (True, True)
    """
    check.choice("method", method, METHODS)
    check.flag("raise_on_failure", raise_on_failure)
    require_dataset(data).terms(risk)
    require_method("method", method, data.penalty)
    rate: Any = LEARNING_RATES[method] if lr is None else lr
    if method not in DESCENTS:
        rate = check.real("lr", rate, low=0, strict=True)
    steps, batch = _read_steps(method, rate, momentum, batch)
    max_iter = check.integer("max_iter", max_iter, low=1)
    tol = scale_tolerance(data, check.real("tol", tol, low=0))
    start = initial_weights(data, init, seed, risk)
    require_device(device)
    check.require_module("minimize_risk", "torch")
    import torch

    function = TorchRisk(data, risk, device)
    Q = torch.tensor(start, dtype=torch.float64, device=device, requires_grad=True)
    size, record, iterations = data.penalty.strength * math.sqrt(data.dim), Recorder(), list[int]()

    def visit(t: int, value: float, norm: float, always: bool) -> None:
        if is_recorded(t, max_iter) or always:
            if iterations:
                record.step(steps.step_size(t - 1))
            iterations.append(t)
            record.add(overlaps(data, Q.detach().cpu().numpy()), norm / size, value / data.dim)

    with few_threads(data.tokens.size):
        if method == "lbfgs":
            unit = weight_unit(data)
            unit = 1.0 if 0.01 <= unit <= 100 else unit  # L-BFGS needs no unit for weights of about one
            gain = 1.0 if unit == 1.0 else data.penalty.strength * unit**2
            scaled = (Q.detach() / unit).requires_grad_()

            def visit_weights(t: int, value: float, norm: float, always: bool) -> None:
                Q.data.copy_(unit * scaled.detach())
                visit(t, gain * value, norm * gain / unit, always)

            scaled_tol, in_units = tol * size * unit / gain, lambda weights: function(unit * weights) / gain
            status, n_iter = quasi_newton(in_units, scaled, rate, max_iter, scaled_tol, visit_weights)
        else:
            options = method, steps, batch, seed, max_iter
            status, n_iter = descend(function, Q, data.penalty, *options, tol * size, visit)
    end = Q.detach().cpu().numpy().copy()
    if not np.isfinite(end).all():
        end = start
    at = risk_at(data, end, risk)
    norm = gradient_norm(data, at.gradient)
    if tol > 0 and status is not Status.NONFINITE and grows_without_bound(data, end, risk):
        status = Status.DIVERGED
    result = DescentResult(
        status=status, n_iter=n_iter, residual=norm, history=record.history(), iterations=np.array(iterations), Q=end,
        overlaps=overlaps(data, end, susceptibility(data, at, end)), train_loss=at.train_loss, gradient_norm=norm,
    )  # fmt: skip
    if status.converged:
        lowest = lowest_curvature(data, at, end)
        names = ("is_minimum", "lowest_eigenvalue", "lowest_eigenvalue_error")
        result = replace(result, **{name: getattr(lowest, name) for name in names})
    return finish(result, raise_on_failure, f"minimize_risk ({method})")


def _read_steps(method: str, lr: Any, momentum: Any, batch: Any) -> tuple[DescentSteps, float]:
    """Return the steps of a method and the fraction of the data in a minibatch; raise if a setting is not used."""
    users = {"momentum": ("momentum", "nesterov"), "batch": ("sgd",)}
    for name, value in (("momentum", momentum), ("batch", batch)):
        if value is not None and method not in users[name]:
            needs = f"method {' or '.join(map(repr, users[name]))}, as {method!r} does not use it"
            raise ValueError(f"{name}: needs {needs}, got {value!r}; leave {name} out")
    fraction = check.real("batch", 0.1 if batch is None else batch, low=0, high=1, strict=True)
    if method not in users["momentum"]:
        return DescentSteps(lr), fraction
    return DescentSteps(lr, 0.9 if momentum is None else momentum, method == "nesterov"), fraction


def stable_step(data: Dataset, Q: np.ndarray, risk: str, fraction: float = 0.7) -> float:
    """Return a step η ≤ 0.7/L, rounded down to one digit; L is the largest eigenvalue of ∇²R at Q (d, r).

    Gradient descent is unstable for steps above 2/L; the curvature may grow by 40 % before the step exceeds 1/L. If the
    penalty has kinks, L is the curvature of the smooth part of the risk. L is computed by the implicitly restarted
    Lanczos method (ARPACK).
    """
    at, ridge = risk_at(data, Q, risk), ridge_strengths(data.penalty, data.dim) if is_ridge(data.penalty) else 0.0

    def product(x: np.ndarray) -> np.ndarray:
        return hessian_product(data, at, x.reshape(Q.shape), ridge).ravel()

    start = np.random.default_rng(0).standard_normal(Q.size)
    # ARPACK needs more dimensions than eigenvalues
    values = extreme_eigenpairs(product, 1, "LA", start, tol=0.01, max_restarts=50, dense=2)[0]
    if not len(values):
        values = np.array([np.linalg.norm(product(start))])
    step = fraction / max(float(values[-1]), data.penalty.strength)
    digit = 10.0 ** math.floor(math.log10(step))
    return math.floor(step / digit) * digit
