"""Gradient descent in torch on the risk of the layer, independent of the compiled kernels.

`minimize_risk` takes steps of a first-order method (`descend`), proximal for penalties other than the ridge, or runs
L-BFGS (`quasi_newton`), or takes steps on new samples of a model (`run_online`). `stable_step` derives a step size from
the curvature of the risk.

**New samples.** Every batch is drawn from the model and used once. `run_online` draws a teacher, and then for every
iteration round(batch·α·d) new samples. A step moves the weights by

    Q ← Q − η (X̃ᵀ∇ℓ/b + λ Q),   b = (number of samples)/(α d),

whose mean is a step on the risk of α d samples. With `one_sample` the samples of a batch are used one after the other,
each in a step of size η divided by their number. An intercept, the last row of Q, has no λ and is not rescaled with
the columns. Gradients are computed by torch, independently of the compiled kernels.
`state_evolution.dynamics.online_paths` has the theory.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._core import check
from gamp_attention._core.check import require_modules
from gamp_attention._core.choices import DESCENTS, ONLINE, RISKS, STARTS
from gamp_attention._core.eigenpairs import all_eigenpairs, restarted_lanczos
from gamp_attention._core.numerics import Stream, generator, ignore_float_errors
from gamp_attention.data.curvature import lowest_curvature
from gamp_attention.data.dataset import Dataset, require_dataset
from gamp_attention.data.risk import (
    gradient_norm,
    hessian_product,
    overlaps,
    risk_at,
    scale_tolerance,
    susceptibility,
    weight_unit,
)
from gamp_attention.data.sampling import new_samples, require_size, sample
from gamp_attention.data.starts import initial_weights
from gamp_attention.models.model import Model
from gamp_attention.penalties.columns import has_spheres
from gamp_attention.penalties.standard import (
    is_ridge,
    penalty_total,
    proximal_map,
    ridge_strengths,
    smallest_subgradient,
)
from gamp_attention.results import Ended, History, Overlaps, Recorder, Status, finish
from gamp_attention.state_evolution.dynamics.descent_paths import DescentMethod, descent_method, require_unused
from gamp_attention.state_evolution.dynamics.online_paths import require_ridge

if TYPE_CHECKING:
    import torch


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


class TorchRisk:
    """Risk R(Q) of equation (3) or (41) as a torch function of Q, in float64; it includes a ridge, no other penalty.

    The layer is S[(x+p)Q/√d](x+p). Its expanded squared distance to y depends on Q only through the
    fields, see eq. (41) and `gamp_attention.losses.attention.RiskTerms`.
    """

    def __init__(self, data: Dataset, risk: str, device: str) -> None:
        import torch

        terms = data.terms(risk)

        def tensor(values: np.ndarray) -> "torch.Tensor":
            return torch.as_tensor(values, dtype=torch.float64, device=device)

        self._tokens, self._positions = tensor(np.asarray(data.tokens)), tensor(data.positions)
        self._params, self._loss = tensor(terms.params), data.loss
        self.constant = float(terms.constant.sum())
        ridge = ridge_strengths(data.penalty, data.dim) if is_ridge(data.penalty) else 0.0
        self._ridge = ridge if isinstance(ridge, float) else tensor(ridge)
        self._root = math.sqrt(data.dim)
        self._sphere = tensor(data.penalty.sphere) > 0 if has_spheres(data.penalty) else None

    def __call__(self, Q: "torch.Tensor", rows: "torch.Tensor | None" = None) -> "torch.Tensor":
        """Return R(Q), or an estimate of it, up to a constant, from some rows of the data."""
        Q, scale = self.retract(Q), 1.0 if rows is None else len(self._tokens) / len(rows)
        ridge = self._ridge * (Q**2).sum() if isinstance(self._ridge, float) else (self._ridge * Q**2).sum()
        return self.fit(Q, rows) * scale + self.constant + 0.5 * ridge

    def fit(self, Q: "torch.Tensor", rows: "torch.Tensor | None" = None) -> "torch.Tensor":
        """Return the sum of the losses of all samples, or of some rows of the data, without constants."""
        tokens, params = (v if rows is None else v[rows] for v in (self._tokens, self._params))
        z = (tokens @ Q + self._positions @ Q) / self._root
        return self._loss.torch(params, z).sum()

    def retract(self, Q: "torch.Tensor") -> "torch.Tensor":
        """Return Q with spherical columns scaled to norm √d, so that the risk is a function without constraints."""
        import torch

        return Q if self._sphere is None else torch.where(self._sphere, self._root * Q / Q.norm(dim=0), Q)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._tokens)


@dataclass(frozen=True, eq=False)
class OnlineResult(DescentResult):
    """Outcome of `minimize_risk` with `method="online"`, which always takes the given number of steps.

    Losses and gradients are estimates of the risk, and of its gradient, from the next batch, before the weights have
    used it. The last batch is drawn for such estimates only.

    Attributes
    ----------
    status : MAX_ITER; NONFINITE if the weights overflow, after which no step is taken.
    n_iter : number of iterations.
    residual, gradient_norm : ‖∇R‖_F/(λ√d), estimated at Q.
    history : overlaps (V is NaN), training loss and gradient norm before each iteration and at the end.
    iterations : iteration numbers of the entries of `history`.
    Q : (d, r) the last finite weights.
    overlaps : overlaps of Q; V is NaN.
    train_loss : ε_t, estimated at Q.
    Q_star : (d, t) weights of the teacher.
    n_samples : number of samples that were used in steps.
    is_minimum, lowest_eigenvalue : False and NaN, because there are no fixed samples whose risk has a minimum.
    """

    Q_star: np.ndarray
    n_samples: int


def run_online(
    model: Any, d: Any, alpha: Any, init: Any, risk: str, method: DescentMethod, max_iter: int, device: str, seed: Any,
) -> OnlineResult:  # fmt: skip
    """Run single-pass stochastic gradient descent on a model; `minimize_risk` describes the arguments.

    Every step draws new samples. The loss, the gradient and the overlaps before the step are measured on them, so that
    the history contains unbiased estimates of the population values.
    """
    import torch

    model, d, alpha = _require_sizes(model, d, alpha)
    require_ridge(model)
    check.choice("risk", risk, RISKS)
    if isinstance(init, str):
        check.choice("init", init, STARTS)
    rng, n = generator(seed), max(1, round(method.batch * alpha * d))
    data = sample(model, d, 1 / d, rng)  # one sample, with the teacher; it is not used in a step
    start = initial_weights(data, init, seed, risk)
    rows = slice(0, data.dim - data.intercept)  # rows of the weights without the intercept
    if method.spherical:
        if not np.abs(start[rows]).max(axis=0).all():
            raise check.fail("init", start, "columns that can be rescaled to ‖Q_a‖² = d, not columns of zeros")
        start[rows] *= np.sqrt(data.dim) / np.linalg.norm(start[rows], axis=0)
    lam, record, status = model.penalty.lam, Recorder(), Status.MAX_ITER
    lams = torch.as_tensor(ridge_strengths(data.penalty, data.dim), dtype=torch.float64, device=device)
    Q = torch.tensor(start, dtype=torch.float64, device=device, requires_grad=True)
    no_V = np.full((data.n_sources, data.rank, data.rank), np.nan)

    def move(gradient: "torch.Tensor", lr: float) -> None:
        """Take a step with the gradient of the losses, scaled to α d samples."""
        Q.data.sub_(lr * (gradient + lams * Q.data))
        if method.spherical:
            Q.data[rows].mul_(np.sqrt(data.dim) / Q.data[rows].norm(dim=0))

    with few_threads(n * model.n_tokens * d):
        for t in range(max_iter + 1):
            batch = TorchRisk(new_samples(data, n, rng), risk, device)
            fit = batch.fit(Q)
            (gradient,) = torch.autograd.grad(fit, Q)
            scale, here = alpha * d / n, Q.detach().cpu().numpy().copy()
            loss = scale * (float(fit.detach()) + batch.constant) / d + 0.5 * lam * float((here[rows] ** 2).sum()) / d
            norm = float((scale * gradient + lams * Q.detach()).norm()) / (lam * np.sqrt(d))
            if not (np.isfinite(here).all() and np.isfinite(norm) and np.isfinite(loss)):
                status = Status.NONFINITE
                break
            if t:
                record.step(method.lr(t - 1))
            record.add(overlaps(data, here, no_V), norm, loss)
            end = here
            if t == max_iter:
                break
            if not method.one_sample:
                move(scale * gradient, method.lr(t))
                continue
            for row in range(n):
                (gradient,) = torch.autograd.grad(batch.fit(Q, torch.as_tensor([row], device=device)), Q)
                move(scale * n * gradient, method.lr(t) / n)
    if not t and status is Status.NONFINITE:
        raise check.fail("init", start, "weights at which the risk is finite")
    at, norm, loss = record.last
    steps = len(record.history().damping)
    assert data.Q_star is not None
    return OnlineResult(
        status=status, n_iter=steps, residual=norm, history=record.history(), iterations=np.arange(steps + 1), Q=end,
        overlaps=at, train_loss=loss, gradient_norm=norm, is_minimum=False, lowest_eigenvalue=np.nan,
        Q_star=data.Q_star, n_samples=n * steps,
    )  # fmt: skip


def _require_sizes(model: Any, d: Any, alpha: Any) -> tuple[Any, int, float]:
    """Return model, d and α; raise TypeError or ValueError if they are missing or invalid."""
    if isinstance(model, Dataset):
        raise check.fail_words("data", "a dataset", "a model for method 'online', which draws new samples", TypeError)
    for name, value in (("d", d), ("alpha", alpha)):
        if value is None:
            raise check.fail(name, value, "a value for method 'online'", TypeError)
    return require_size(model, d, alpha)


FAR = 100.0  # unit of the weights above which, or below the inverse of which, L-BFGS runs in this unit
MEMORY = 50  # number of steps of which L-BFGS knows the change of the gradient
Risk = Callable[["torch.Tensor"], "torch.Tensor"]
Visit = Callable[[int, float, float, bool], None]  # called with step, risk, gradient norm, and whether to record it


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


def descend(
    evaluate: Callable[[], tuple[float, float]], step: Callable[[int], None], max_iter: int, tol: float, visit: Visit,
    is_evaluated: Callable[[int], bool] | None = None,
) -> tuple[Status, int]:  # fmt: skip
    """Take steps until the gradient norm is at most tol.

    Parameters
    ----------
    evaluate : function that returns the risk and its gradient norm.
    step : function that takes step t.
    is_evaluated : function that returns whether the risk is evaluated before step t, and then recorded; if not given,
        the risk is evaluated before all steps.
    """
    for t in range(max_iter + 1):
        if is_evaluated is None or is_evaluated(t) or t == max_iter:
            loss, norm = evaluate()
            done = norm <= tol or t == max_iter or not math.isfinite(loss)
            visit(t, loss, norm, done or is_evaluated is not None)
            if done:
                break
        step(t)
    return _status(loss, norm, tol, Status.MAX_ITER), t


def _step_function(
    function: "TorchRisk", Q: "torch.Tensor", penalty: Any, method: str, steps: DescentMethod, seed: Any
) -> Callable[[int], None]:
    """Return a function that takes step t of a first-order method, with the gradient in Q.grad except for "sgd"."""
    import torch

    if method == "sgd":
        rng, n = generator(seed, Stream.MINIBATCHES), len(function)
        size = max(1, round(steps.batch * n))

        def minibatch_step(t: int) -> None:
            rows = torch.as_tensor(rng.choice(n, size, replace=False))
            _value_and_norm(partial(function, rows=rows), Q)
            assert Q.grad is not None
            if is_ridge(penalty):
                Q.data.sub_(steps.lr(t) * Q.grad)
            else:
                _proximal_step(Q, penalty, steps.lr(t))

        return minibatch_step
    if not is_ridge(penalty):
        return lambda t: _proximal_step(Q, penalty, steps.lr(t))
    optimizer: torch.optim.Optimizer = torch.optim.Adam([Q])
    if method != "adam":
        optimizer = torch.optim.SGD([Q], steps.lr(0), momentum=steps.momentum, nesterov=steps.nesterov)

    def optimizer_step(t: int) -> None:
        optimizer.param_groups[0]["lr"] = steps.lr(t)
        optimizer.step()

    return optimizer_step


def _value_and_subgradient(function: Risk, Q: "torch.Tensor", penalty: Any) -> tuple[float, float]:
    """Return the risk with its penalty and the norm of its smallest subgradient; Q.grad excludes the penalty."""
    value, _ = _value_and_norm(function, Q)
    assert Q.grad is not None
    here, smooth = Q.detach().cpu().numpy(), Q.grad.cpu().numpy()
    norm = float(np.linalg.norm(smallest_subgradient(penalty, here, smooth)))
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
    """Run rounds of L-BFGS (Liu and Nocedal, 1989), then steps without a line search if it stalls.

    The line search compares values of the risk, which rounding makes equal near the minimum.
    """
    import torch

    n_iter = 0
    loss, norm = _value_and_norm(function, Q)
    visit(0, loss, norm, False)
    while norm > tol and n_iter < max_iter and math.isfinite(loss):
        optimizer = torch.optim.LBFGS(
            [Q], lr=lr, max_iter=min(100, max_iter - n_iter), history_size=MEMORY,
            tolerance_grad=0.5 * tol / math.sqrt(Q.numel()), tolerance_change=0.0, line_search_fn="strong_wolfe",
        )  # fmt: skip
        before = norm
        optimizer.step(lambda: _value_and_norm(function, Q)[0])
        n_iter += max(1, optimizer.state[Q].get("n_iter", 1))
        loss, norm = _value_and_norm(function, Q)
        visit(n_iter, loss, norm, True)
        if norm > 0.5 * before:
            break
    if math.isfinite(loss) and norm > tol and n_iter < max_iter:
        n_iter = _steps_without_search(function, Q, max_iter, tol, visit, n_iter)
        loss, norm = _value_and_norm(function, Q)
    return _status(loss, norm, tol, Status.STALLED if n_iter < max_iter else Status.MAX_ITER), n_iter


def _in_units(
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
    function: Risk, Q: "torch.Tensor", max_iter: int, tol: float, visit: Visit, n_iter: int
) -> int:
    """Run L-BFGS with steps of length 1, which use gradients only; go back after an overshoot.

    `torch.optim.LBFGS` has such steps too, but ignores changes of the gradient whose product with the step is below
    1e-10, and here it is smaller.
    """
    # first step; growth of the gradient norm at which to return to the best point; maximum steps without progress
    first, blow_up, patience = 0.1, 30.0, 1000

    def gradient() -> "torch.Tensor":
        _value_and_norm(function, Q)
        assert Q.grad is not None
        return Q.grad.clone()

    g, pairs = gradient(), deque[Any](maxlen=MEMORY)
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

    The two loops of Nocedal (1980); without steps, H is `first` times the identity.
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


METHODS = (*DESCENTS, "adam", "lbfgs")  # methods for given data
# the learning rates of gd and Adam are from the paper
LEARNING_RATES = dict.fromkeys(DESCENTS, 0.15) | {"adam": 0.01, "lbfgs": 1.0}


RECORD_FIRST = 40  # number of initial steps of which each is recorded
RECORD_LATER = 100  # approximate number of recorded steps, evenly spaced over the whole descent


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


@ignore_float_errors
def minimize_risk(
    data: Dataset | Model,
    init: str | ArrayLike | None = None,
    risk: str = "exact",
    method: str = "gd",
    *,
    d: int | None = None,
    alpha: float | None = None,
    lr: float | Sequence[float] | np.ndarray | None = None,
    momentum: float | None = None,
    batch: float | None = None,
    one_sample: bool | None = None,
    spherical: bool | None = None,
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
    data : the samples; for "online" the model from which teacher and samples are drawn.
    init : "semantic", "positional", "random", "spectral", "posterior", or weights (d, r). If not given, "semantic" for
        data with a teacher, and "spectral" for your arrays, which have no teacher. "online" accepts the first three
        names and weights.
    risk : "exact", of equation (3), or "asymptotic", of (41), to compare with state evolution.
    method : "gd", "momentum" (heavy ball; Polyak, 1964), "nesterov" (Nesterov, 1983), "sgd" (a new random minibatch at
        each step), which `trajectory` predicts; "adam" (Kingma and Ba, 2015); or "lbfgs" (Liu and Nocedal, 1989; with a
        strong Wolfe line search, and without it near the minimum). Penalties other than the ridge allow "gd" and
        "sgd" only, with proximal steps Q ← prox(Q − lr ∇f(Q)), in which f is the risk without the penalty. "online"
        takes exactly `max_iter` steps, each on round(batch·alpha·d) new samples of a model with a ridge penalty.
    d, alpha : for "online" only, and required there: dimension, and number of samples of the risk divided by d.
    lr : step size; except for adam and lbfgs also a sequence of step sizes, whose last entry is repeated. By default
        0.15, for adam 0.01 and for lbfgs 1.
    momentum : μ in [0, 1), for "momentum" and "nesterov" only; by default 0.9.
    batch : for "sgd" the fraction of the data in (0, 1] in a minibatch; the gradient norm is then evaluated at recorded
        steps only. For "online" the number of new samples in each iteration, in units of alpha·d. By default 0.1.
    one_sample, spherical : for "online" only, as for `trajectory`.
    max_iter : maximum number of steps.
    tol : value of ‖∇R‖_F/(λ√d) at which descent has converged, see `run_gamp`; not used by "online".
    device : name of a torch device, for example "cpu" or "cuda".
    seed : an integer or a numpy Generator, for the random part of initial weights and for minibatches.
    raise_on_failure : whether to raise ConvergenceError instead of returning a result that did not converge.

    Returns
    -------
    DescentResult; for "online" its subclass OnlineResult.

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
    if method == ONLINE:
        settings = descent_method(method, 0.15 if lr is None else lr, momentum, batch, one_sample, spherical)
        max_iter = check.integer("max_iter", max_iter, low=1)
        require_device(device)
        require_modules("minimize_risk", "torch")
        return run_online(data, d, alpha, init, risk, settings, max_iter, device, seed)
    require_unused(method, one_sample=one_sample, spherical=spherical, d=d, alpha=alpha)
    check.flag("raise_on_failure", raise_on_failure)
    result = _minimize(require_dataset(data), init, risk, method, lr, momentum, batch, max_iter, tol, device, seed)
    return finish(result, raise_on_failure, f"minimize_risk ({method})")


def _minimize(
    data: Dataset, init: Any, risk: str, method: str, lr: Any, momentum: Any, batch: Any, max_iter: int, tol: float,
    device: str, seed: Any,
) -> DescentResult:  # fmt: skip
    """Minimize the risk of given samples; `minimize_risk` describes the arguments."""
    data.terms(risk)
    require_method("method", method, data.penalty)
    rate: Any = LEARNING_RATES[method] if lr is None else lr
    if method not in DESCENTS:
        rate = check.real("lr", rate, low=0, strict=True)
    steps = descent_method(method, rate, momentum, batch)
    max_iter = check.integer("max_iter", max_iter, low=1)
    tol = scale_tolerance(data, check.real("tol", tol, low=0))
    start = initial_weights(data, init, seed, risk)
    if has_spheres(data.penalty):
        start = data.penalty.retract(start)
    require_device(device)
    require_modules("minimize_risk", "torch")
    import torch

    function = TorchRisk(data, risk, device)
    Q = torch.tensor(start, dtype=torch.float64, device=device, requires_grad=True)
    size, every = data.penalty.strength * math.sqrt(data.dim), max(1, max_iter // RECORD_LATER)
    record, iterations = Recorder(), list[int]()
    no_V = np.full((data.n_sources, data.rank, data.rank), np.nan)

    def visit(t: int, value: float, norm: float, always: bool) -> None:
        if t <= RECORD_FIRST or t % every == 0 or always:
            if iterations:
                record.step(steps.lr(t - 1))
            iterations.append(t)
            record.add(overlaps(data, function.retract(Q.detach()).cpu().numpy(), no_V), norm / size, value / data.dim)

    def evaluate() -> tuple[float, float]:
        if is_ridge(data.penalty):
            return _value_and_norm(function, Q)
        return _value_and_subgradient(function, Q, data.penalty)

    with few_threads(data.tokens.size):
        if method == "lbfgs":
            unit = 1.0 if has_spheres(data.penalty) else weight_unit(data)
            unit = 1.0 if 1 / FAR <= unit <= FAR else unit
            gain = 1.0 if unit == 1.0 else data.penalty.strength * unit**2
            status, n_iter = _in_units(function, Q, unit, gain, rate, max_iter, tol * size, visit)
        else:
            step = _step_function(function, Q, data.penalty, method, steps, seed)
            some = (lambda t: t <= RECORD_FIRST or t % every == 0) if method == "sgd" else None
            status, n_iter = descend(evaluate, step, max_iter, tol * size, visit, some)
    end = function.retract(Q.detach()).cpu().numpy().copy()
    if not np.isfinite(end).all():
        end = start
    at = risk_at(data, end, risk)
    norm = gradient_norm(data, at.gradient)
    curvature = lowest_curvature(data, at, end) if status.converged else None
    return DescentResult(
        status=status, n_iter=n_iter, residual=norm, history=record.history(), iterations=np.array(iterations), Q=end,
        overlaps=overlaps(data, end, susceptibility(data, at, end)), train_loss=at.train_loss, gradient_norm=norm,
        is_minimum=curvature is not None and curvature.is_minimum,
        lowest_eigenvalue=math.nan if curvature is None else curvature.lowest_eigenvalue,
    )  # fmt: skip


STEP_FRACTION = 0.7  # step in units of 1/L: the curvature may grow by 40 % before the step exceeds 1/L
EIGENVALUE_TOL = 0.01  # relative accuracy of the largest eigenvalue L
MAX_RESTARTS = 50  # maximum number of restarts of the Lanczos iteration


def stable_step(data: Dataset, Q: np.ndarray, risk: str) -> float:
    """Return a step η ≤ 0.7/L, rounded down to one digit; L is the largest eigenvalue of ∇²R at Q (d, r).

    Gradient descent is unstable for steps above 2/L. If the penalty has kinks, L is the curvature of the smooth part of
    the risk. L is computed by the implicitly restarted Lanczos method (ARPACK).
    """
    at, ridge = risk_at(data, Q, risk), ridge_strengths(data.penalty, data.dim) if is_ridge(data.penalty) else 0.0

    def product(x: np.ndarray) -> np.ndarray:
        return hessian_product(data, at, x.reshape(Q.shape), ridge).ravel()

    if Q.size < 3:  # ARPACK needs more dimensions than eigenvalues
        values = all_eigenpairs(product, Q.size)[0]
    else:
        start = np.random.default_rng(0).standard_normal(Q.size)
        values = restarted_lanczos(product, 1, "LA", start, EIGENVALUE_TOL, MAX_RESTARTS)[0]
        if not len(values):
            values = np.array([np.linalg.norm(product(start))])
    step = STEP_FRACTION / max(float(values[-1]), data.penalty.strength)
    digit = 10.0 ** math.floor(math.log10(step))
    return math.floor(step / digit) * digit
