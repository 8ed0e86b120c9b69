"""Single-pass stochastic gradient descent: every batch is drawn from the model and used once.

`single_pass` draws a teacher, and then for every iteration round(batch·α·d) new samples. A step moves the weights by

    Q ← Q − η (X̃ᵀ∇ℓ/b + λ Q),   b = (number of samples)/(α d),

whose mean is a step on the risk of α d samples. With `one_sample` the samples of a batch are used one after the other,
each in a step of size η divided by their number. An intercept, the last row of Q, has no λ and is not rescaled with
the columns. Gradients are computed by torch, independently of the compiled kernels.
`state_evolution.dynamics.online_paths` has the theory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.choices import RISKS, STARTS
from gamp_attention._tools.numerics import generator, guard_call
from gamp_attention._tools.optional import require_modules
from gamp_attention.descent.minimize import require_device
from gamp_attention.descent.torch_risk import DescentResult, TorchRisk, few_threads
from gamp_attention.extensions.dynamics.online_paths import SinglePass
from gamp_attention.problem.penalties.standard import ridge_strengths
from gamp_attention.problem.risk import overlaps
from gamp_attention.problem.starts import initial_weights
from gamp_attention.results import Recorder, Status
from gamp_attention.sampling.draw import new_samples, require_size, sample
from gamp_attention.theory.models.model import Model

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class OnlineResult(DescentResult):
    """Outcome of `single_pass`, which always takes the given number of steps.

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
    is_minimum, lowest_eigenvalue, lowest_eigenvalue_error : False and NaN, as no fixed samples define a minimum.
    """

    Q_star: np.ndarray
    n_samples: int


@guard_call
def single_pass(
    model: Model,
    d: int,
    alpha: float,
    init: str | ArrayLike = "semantic",
    method: SinglePass | None = None,
    n_iter: int = 20,
    *,
    risk: str = "exact",
    device: str = "cpu",
    seed: int | np.random.Generator = 0,
) -> OnlineResult:
    """Run gradient descent on samples of a model that are used once, which `trajectory` predicts for d → ∞.

    Every step draws new samples. The loss, the gradient and the overlaps before the step are measured on them, so that
    the history contains unbiased estimates of the population values.

    Parameters
    ----------
    model : the model from which teacher and samples are drawn, with a ridge penalty.
    d, alpha : dimension, and number of samples of the risk divided by d. A step uses round(batch·alpha·d) new samples.
    init : "semantic", "positional", "random", or weights (d, r).
    method : step size, batch and the other parameters of the steps; if not given, `SinglePass()`.
    n_iter : number of iterations.
    risk : "exact", of equation (3), or "asymptotic", of (41).
    device : name of a torch device, for example "cpu" or "cuda".
    seed : an integer or a numpy Generator.

    Returns
    -------
    OnlineResult

    Raises
    ------
    ImportError : if torch is not installed; install gamp-attention[torch].
    TypeError : if an argument has the wrong type.
    ValueError : if the penalty is not a ridge with one λ, a name is unknown, a number is out of range, or torch cannot
        use the device.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> run = ga.single_pass(ga.paper_model(), 100, 1.5, "positional", ga.SinglePass(lr=2.0, batch=0.3), n_iter=5)
    >>> run.n_iter, run.n_samples
    (5, 225)
    """
    model, d, alpha = require_size(model, d, alpha)
    method = SinglePass() if method is None else method
    if not isinstance(method, SinglePass):
        raise check.fail("method", method, "a SinglePass(...)", TypeError)
    method.require_ridge(model)
    max_iter = check.integer("n_iter", n_iter, low=1)
    check.choice("risk", risk, RISKS)
    require_device(device)
    require_modules("single_pass", "torch")
    import torch

    if isinstance(init, str):
        check.choice("init", init, STARTS)
    rng, n = generator(seed), max(1, round(method.batch * alpha * d))
    check.require_memory("d, alpha, batch", n, model.n_tokens, d)
    check.require_memory("n_iter", max_iter, model.n_sources, model.rank, model.rank)  # the history
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

    def move(gradient: torch.Tensor, lr: float) -> None:
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
                record.step(method.step_size(t - 1))
            record.add(overlaps(data, here, no_V), norm, loss)
            end = here
            if t == max_iter:
                break
            if not method.one_sample:
                move(scale * gradient, method.step_size(t))
                continue
            for row in range(n):
                (gradient,) = torch.autograd.grad(batch.fit(Q, torch.as_tensor([row], device=device)), Q)
                move(scale * n * gradient, method.step_size(t) / n)
    if not t and status is Status.NONFINITE:
        raise check.fail("init", start, "weights at which the risk is finite")
    at, norm, loss = record.last
    steps = len(record.history().damping)
    assert data.Q_star is not None
    return OnlineResult(
        status=status, n_iter=steps, residual=norm, history=record.history(), iterations=np.arange(steps + 1), Q=end,
        overlaps=at, train_loss=loss, gradient_norm=norm, is_minimum=False, lowest_eigenvalue=np.nan,
        lowest_eigenvalue_error=np.nan, Q_star=data.Q_star, n_samples=n * steps,
    )  # fmt: skip
