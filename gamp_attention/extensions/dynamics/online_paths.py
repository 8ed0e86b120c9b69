"""Single-pass stochastic gradient descent: every step uses samples that were never seen before.

At finite d (`single_pass`), a step on round(batch·α·d) new samples moves the weights by

    Q ← Q − η (X̃ᵀ∇ℓ/b + λ Q),   b = (number of samples)/(α d),

whose mean is a step on the risk of α d samples. An intercept, the last row of Q, has no λ. Gradients are computed by
torch, independently of the compiled kernels.

For d → ∞ (`SinglePass.follow`), the fields of a fresh sample have no memory, z = m + ω̃, and the noises of different
steps are independent. A step changes a coordinate x of the weights, with eigenvalues γ, positions τ and teacher π, by

    η (−λ x + Σ_l [m̂_l τ_l + γ_l θ̂_l π + γ_l Γ_l x] + ζ),   cov(ζ) = (1/b) Σ_l γ_l q̂_l,

in which m̂, θ̂, Γ and q̂ are averages over the fields at this time (`OnlineFields`). This map is linear in (x, τ, π), so
its coefficients and the covariance of the accumulated noise contain everything (Saad and Solla, 1995). An intercept
moves by η Σ_l m̂_l without noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from gamp_attention._tools import check
from gamp_attention._tools.choices import RISKS, STARTS
from gamp_attention._tools.numerics import generator, guard_call
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.descent.minimize import require_device
from gamp_attention.descent.steps import PlainSteps
from gamp_attention.descent.torch_risk import DescentResult, TorchRisk, few_threads, value_and_norm
from gamp_attention.extensions.dynamics.field_paths import component_paths
from gamp_attention.extensions.dynamics.message_paths import Row
from gamp_attention.extensions.dynamics.replicas import Trajectory, TrajectoryTask, average_descents, stack_replicas
from gamp_attention.extensions.dynamics.stored_times import Forces, StoredWeights, sum_forces
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.penalties.standard import has_one_strength
from gamp_attention.problem.risk import overlaps
from gamp_attention.problem.starts import initial_weights
from gamp_attention.recorder import Recorder
from gamp_attention.results import Overlaps, Status
from gamp_attention.sampling.draw import new_samples, require_size, sample
from gamp_attention.theory.equations.channel import Channel, fields_and_terms, n_white, select_sources, teacher_size
from gamp_attention.theory.models.model import Component, Model
from gamp_attention.theory.start_law import StartLaw


@dataclass(frozen=True)
class SinglePass(PlainSteps):
    """Gradient descent on samples that are used once, as `single_pass` runs it. Needs the ridge with one λ.

    Parameters
    ----------
    lr : step size, or a sequence of step sizes, whose last entry is repeated.
    batch : number of new samples in each iteration, in units of alpha·d; positive, may exceed 1.

    Raises
    ------
    TypeError, ValueError : if an argument has a wrong type or is out of its range.
    """

    lr: float | Sequence[float] | np.ndarray = 0.1
    batch: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check.real("batch", self.batch, low=0, strict=True)

    def follow(self, task: TrajectoryTask) -> Trajectory:
        """Return the prediction of all iterations."""
        model, n_points, start = task.model, task.count_paths(4096, 0), task.start(needs_V=False)
        self.require_ridge(model)
        with task.finite("lr"):
            sizes = task.n_iter, n_points, task.rng
            runs = [follow_online(model, task.alpha, start, self, *sizes) for _ in range(task.n_replicas)]
        return average_descents(stack_replicas(runs), method=self)

    def require_ridge(self, model: Model) -> None:
        """Raise ValueError unless the penalty is a ridge with one λ."""
        if not has_one_strength(model.penalty):
            name = type(model.penalty).__name__
            raise check.fail("method", self, f"another method for {name}, because SinglePass needs a ridge with one λ")


class OnlineFields:
    """Averages over the fields of a fresh sample in one component, on points that are drawn once for all components."""

    def __init__(self, component: Component, n_points: int, rng: np.random.Generator) -> None:
        self.probability, self.sources, self.model = component
        n, known = component_paths(component, n_points, 0), teacher_size(self.model)
        white = gaussian_points(n, n_white(self.model), rng)
        self._white = white[:, known:].reshape(n, self.model.n_tokens, self.model.rank)
        self.y, self.terms = fields_and_terms(self.model, white[:, :known])

    def forces(self, alpha: float, overlaps: Overlaps) -> Forces:
        """Return the averages that drive the weights at given overlaps of all sources, at one time: s = t only."""
        model, n, now = self.model, len(self.y), select_sources(overlaps, self.sources)
        z = now.m + Channel(model, now).fields(self.y, self._white)
        value, slope, hess = sample_derivatives(model.loss, self.terms.params, z)
        response = -alpha * np.einsum("lalb->lab", hess.mean(axis=0).reshape(now.m.shape * 2))
        theta = -alpha * np.einsum("nla,nlt->lat", slope, self.y) / n
        theta -= response @ now.theta
        return Forces(
            m=-alpha * slope.mean(axis=0),
            theta=theta @ model.coordinates.rho_inverse,
            q=alpha * np.einsum("nla,nlb->lab", slope, slope) / n,
            response=response[:, None],
            loss=alpha * float(np.mean(value + self.terms.constant)),
            test_error=float(np.mean(model.task.errors(z, self.y, self.terms))),
        )


def follow_online(
    model: Model, alpha: float, start: StartLaw, method: SinglePass, n_iter: int, n_points: int,
    rng: np.random.Generator,
) -> list[Row]:  # fmt: skip
    """Return overlaps and losses after every batch, from one set of points of the fields. Eq. :eq:`online`."""
    fields = [OnlineFields(component, n_points, rng) for component in model.components]
    weights, gamma, one = StoredWeights(model, start), model.coordinates.gamma, np.eye(model.rank)
    noise, rows = np.zeros((len(gamma), *one.shape)), list[Row]()
    for t in range(n_iter + 1):
        now, _ = weights.evaluate(noise[None])
        if not all(np.isfinite(getattr(now, name)).all() for name in ("q", "m", "theta")):
            raise FloatingPointError("the overlaps are not finite numbers")
        forces = sum_forces(model, fields, [part.forces(alpha, now) for part in fields])
        rows.append(now.arrays() | {"train_loss": forces.loss + weights.penalty(), "test_error": forces.test_error})
        on_weights, size = np.einsum("kl,lsab->skab", gamma, forces.response), method.step_size(t)
        move = one + size * (on_weights[0] - model.lam * one)
        noise = move @ noise @ np.swapaxes(move, 1, 2)
        noise += size**2 / method.batch * np.einsum("kl,lab->kab", gamma, forces.q)
        weights.descend(forces, on_weights, partial(method.step, t=t))
    return rows


@dataclass(frozen=True, eq=False)
class OnlineResult(DescentResult):
    """Outcome of `single_pass`, which always takes the given number of steps.

    Losses and gradients are estimates of the risk, and of its gradient, from the next batch, before the weights have
    used it. The last batch is drawn for such estimates only. V of the overlaps is NaN. No fixed samples define a
    minimum, so `is_minimum` is False, and its eigenvalue NaN.

    Attributes
    ----------
    status : MAX_ITER; NONFINITE if the weights overflow, after which no step is taken.
    Q : (d, r) the last finite weights.
    Q_star : (d, t) weights of the teacher.
    n_samples : number of samples that were used in steps.
    Others : as for `DescentResult`.
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
    check.require_module("single_pass", "torch")
    import torch

    if isinstance(init, str):
        check.choice("init", init, STARTS)
    rng, n = generator(seed), max(1, round(method.batch * alpha * d))
    check.require_memory("d, alpha, batch", n, model.n_tokens, d)
    check.require_memory("n_iter", max_iter, model.n_sources, model.rank, model.rank)  # the history
    data = sample(model, d, 1 / d, rng)  # one sample, with the teacher; it is not used in a step
    start = initial_weights(data, init, seed, risk)
    record, status = Recorder(), Status.MAX_ITER
    Q = torch.tensor(start, dtype=torch.float64, device=device, requires_grad=True)

    with few_threads(n * model.n_tokens * d):
        for t in range(max_iter + 1):
            value, norm = value_and_norm(TorchRisk(new_samples(data, n, rng), risk, device, alpha * d / n), Q)
            loss, norm, here = value / d, norm / (model.penalty.lam * np.sqrt(d)), Q.detach().cpu().numpy().copy()
            if not (np.isfinite(here).all() and np.isfinite(norm) and np.isfinite(loss)):
                status = Status.NONFINITE
                break
            if t:
                record.step(method.step_size(t - 1))
            record.add(overlaps(data, here), norm, loss)
            end = here
            if t == max_iter:
                break
            Q.data.sub_(method.step_size(t) * cast(Any, Q.grad))
    if not t and status is Status.NONFINITE:
        raise check.fail("init", start, "weights at which the risk is finite")
    at, norm, loss = record.last
    steps = len(record.history().damping)
    assert data.Q_star is not None
    return OnlineResult(
        status=status, n_iter=steps, residual=norm, history=record.history(), iterations=np.arange(steps + 1), Q=end,
        overlaps=at, train_loss=loss, gradient_norm=norm, Q_star=data.Q_star, n_samples=n * steps,
    )  # fmt: skip
