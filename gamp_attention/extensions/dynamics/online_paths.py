"""Single-pass stochastic gradient descent for d → ∞: every step uses samples that were never seen before.

A fresh sample is independent of the weights, so that its fields have no memory, z = m + ω̃, and the noises of different
steps are independent. The state is the distribution of the weights at one time, and the cost is linear in the number
of steps.

A step of size η on a batch of b α d samples changes a coordinate x of the weights, with eigenvalues γ, positions τ and
teacher π, by

    η (−λ x + Σ_l [m̂_l τ_l + γ_l θ̂_l π + γ_l Γ_l x] + ζ),   cov(ζ) = (1/b) Σ_l γ_l q̂_l,

in which m̂, θ̂, Γ and q̂ are averages over the fields at this time (`OnlineFields`). This map is linear in (x, τ, π), so
their second moments contain everything (`OnlineWeights`). If the samples of a batch are used one after the other, in
steps of size η/(b α d) for the loss of one sample, the moments obey ordinary differential equations, in which the noise
contributes (η/b) Σ_l γ_l q̂_l per unit of training time (Saad and Solla, 1995).

An intercept without a penalty moves by η Σ_l m̂_l in a step, or Σ_l m̂_l per unit of training time. It is an average over
all samples of a batch, so that it has no noise for d → ∞.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.quadrature import gaussian_points
from gamp_attention.descent.steps import PlainSteps
from gamp_attention.extensions.dynamics.descent_paths import DescentForces, sum_forces
from gamp_attention.extensions.dynamics.field_paths import component_paths
from gamp_attention.extensions.dynamics.message_paths import MeanLosses
from gamp_attention.extensions.dynamics.replicas import Trajectory, TrajectoryTask, average_descents, stack_replicas
from gamp_attention.extensions.dynamics.weight_paths import InterceptPath
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.problem.penalties.columns import has_one_strength
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import (
    fields_and_terms,
    n_white,
    select_sources,
    student_noise_law,
    teacher_size,
)
from gamp_attention.theory.equations.weights import drift, overlaps_of_moments
from gamp_attention.theory.models.model import Component, Model
from gamp_attention.theory.start_law import StartLaw


@dataclass(frozen=True)
class SinglePass(PlainSteps):
    """Gradient descent on samples that are used once, as `single_pass` runs it. Needs the ridge with one λ.

    Parameters
    ----------
    lr : step size, or a sequence of step sizes, whose last entry is repeated.
    batch : number of new samples in each iteration, in units of alpha·d; positive, may exceed 1.
    one_sample : whether the samples of an iteration are used one after the other, each in a step of size
        lr/(batch·alpha·d). For d → ∞ this is a system of ordinary differential equations; `lr` remains the training
        time of an iteration.
    spherical : whether the columns of Q are rescaled to ‖Q_a‖² = d at the start and after every step.

    Raises
    ------
    TypeError, ValueError : if an argument has a wrong type or is out of its range.
    """

    lr: float | Sequence[float] | np.ndarray = 0.1
    batch: float = 0.1
    one_sample: bool = False
    spherical: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check.real("batch", self.batch, low=0, strict=True)
        check.flag("one_sample", self.one_sample)
        check.flag("spherical", self.spherical)

    def follow(self, task: TrajectoryTask) -> Trajectory:
        """Return the prediction of all iterations."""
        model, n_points = task.model, task.count_paths(4096, 0)
        task.refuse_spectral("descent on new samples")
        self.require_ridge(model)
        start = task.starts(needs_V=False)[0]
        squares = np.einsum("k,kaa->a", model.coordinates.weight, start.moments[:, : model.rank, : model.rank])
        if self.spherical and not (squares > 0).all():
            needs = "columns that can be rescaled to ‖Q_a‖² = d, or spherical=False"
            raise check.fail_words("init", "a column of zeros", needs)
        with task.finite("lr"):
            sizes = task.n_iter, n_points, task.rng
            runs = [follow_online(model, task.alpha, start, self, *sizes) for _ in range(task.n_replicas)]
        return average_descents(stack_replicas(runs), method=self)

    def require_ridge(self, model: Model) -> None:
        """Raise ValueError unless the penalty is a ridge with one λ."""
        if not has_one_strength(model.penalty):
            name = type(model.penalty).__name__
            raise check.fail("method", self, f"GradientDescent for {name}, because SinglePass needs a ridge with one λ")


class OnlineFields:
    """Averages over the fields of a fresh sample in one component of a mixture, on points that are drawn once.

    Parameters
    ----------
    component : the component, with its probability and sources.
    n_points : number of points of all components.
    rng : generator of the points.
    """

    def __init__(self, component: Component, n_points: int, rng: np.random.Generator) -> None:
        self.probability, self.sources, self.model = component
        n, known = component_paths(component, n_points, 0), teacher_size(self.model)
        white = gaussian_points(n, n_white(self.model), rng)
        self._white = white[:, known:].reshape(n, self.model.n_tokens, self.model.rank)
        self.y, self.terms = fields_and_terms(self.model, white[:, :known])

    def draw(self, overlaps: Overlaps) -> np.ndarray:
        """Return the fields z = m + ω̃ (n, L, r) at given overlaps of all sources."""
        now = select_sources(overlaps, self.sources)
        slope, root = student_noise_law(self.model, now)
        given_teacher = np.einsum("lat,nlt->nla", slope, self.y)
        return now.m + given_teacher + np.einsum("lab,nlb->nla", root, self._white)

    def losses(self, overlaps: Overlaps) -> np.ndarray:
        """Return the losses of the points (n,) at given overlaps, constants included."""
        value, _, _ = sample_derivatives(self.model.loss, self.terms.params, self.draw(overlaps))
        return value + self.terms.constant

    def forces(self, alpha: float, overlaps: Overlaps) -> DescentForces:
        """Return the averages that drive the weights at given overlaps, at one time: s = t only."""
        model, n, z = self.model, len(self.y), self.draw(overlaps)
        value, slope, hess = sample_derivatives(model.loss, self.terms.params, z)
        L, r = model.n_tokens, model.rank
        blocks = hess.mean(axis=0).reshape(L, r, L, r)
        response = -alpha * blocks[np.arange(L), :, np.arange(L)]
        theta = -alpha * np.einsum("nla,nlt->lat", slope, self.y) / n
        theta -= response @ select_sources(overlaps, self.sources).theta
        return DescentForces(
            m=-alpha * slope.mean(axis=0),
            theta=theta @ np.linalg.pinv(model.coordinates.rho, hermitian=True),
            q=alpha * np.einsum("nla,nlb->lab", slope, slope)[None] / n,
            response=response[None],
            loss=alpha * float(np.mean(value + self.terms.constant)),
            test_error=float(np.mean(model.task.errors(z, self.y, self.terms))),
        )


class OnlineWeights:
    """Second moments of (x, τ, π) in each of the K classes of coordinates, and the intercept, at one time.

    The penalty is the ridge. With `spherical`, norms of columns do not include the intercept.

    Parameters
    ----------
    model : the model.
    start : second moments of (x⁰, τ, π), and the initial intercept.
    method : step sizes, batch, and whether steps use single samples and keep the norms of the columns.

    Attributes
    ----------
    moments : (K, r + S + t, r + S + t) second moments.
    """

    def __init__(self, model: Model, start: StartLaw, method: SinglePass) -> None:
        self.model, self.method, self._V = model, method, start.V
        self.moments = self._normalize_columns(start.moments) if method.spherical else start.moments.copy()
        self._intercept = InterceptPath(model, start)

    @property
    def state(self) -> np.ndarray:
        """The moments and the intercept as one vector."""
        return np.concatenate([self.moments.ravel(), self._intercept.value])

    @state.setter
    def state(self, values: np.ndarray) -> None:
        self.moments = values[: self.moments.size].reshape(self.moments.shape)
        self._intercept.value = values[self.moments.size :]

    def overlaps(self) -> Overlaps:
        """Return the overlaps."""
        r = self.model.rank
        sums = overlaps_of_moments(self.model, self.moments[:, :r, :r], self.moments[:, :r, r:], self._V)
        return self._intercept.add_to(sums)

    def penalty(self) -> float:
        """Return E[r(x)] per coordinate."""
        return 0.5 * self.model.lam * float(self._squares(self.moments).sum())

    def step(self, forces: DescentForces, t: int) -> None:
        """Take step t on a batch."""
        lr = self.method.step_size(t)
        rates, noise = self._rates(forces)
        r, move = self.model.rank, np.eye(rates.shape[2]) + np.zeros_like(self.moments)
        move[:, :r] += lr * rates
        moments = move @ self.moments @ np.swapaxes(move, 1, 2)
        moments[:, :r, :r] += lr**2 / self.method.batch * noise
        self.moments = self._normalize_columns(moments) if self.method.spherical else moments
        self._intercept.descend(forces.m, self.method, t)

    def velocity(self, forces: DescentForces, lr: float) -> np.ndarray:
        """Return the change of the state per unit of training time when samples are used one after the other."""
        rates, noise = self._rates(forces)
        moments = self.moments
        r, change = self.model.rank, np.zeros_like(moments)
        change[:, :r] = rates @ moments
        change = change + np.swapaxes(change, 1, 2)
        change[:, :r, :r] += lr / self.method.batch * noise
        if self.method.spherical:  # the columns are rescaled such that their norms do not change
            shrink = np.zeros(moments.shape[1])
            shrink[:r] = 0.5 * self._squares(change) / self._squares(moments)
            change -= shrink[:, None] * moments + moments * shrink
        return np.concatenate([change.ravel(), self.model.intercept * forces.m.sum(axis=0)])

    def _rates(self, forces: DescentForces) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean change of x per unit of time, as coefficients of (x, τ, π), and b times the noise."""
        gamma, r = self.model.coordinates.gamma, self.model.rank
        on_weights = np.einsum("kl,lab->kab", gamma, forces.response[0]) - self.model.lam * np.eye(r)
        rates = np.concatenate([on_weights, drift(gamma, forces.m, forces.theta)], axis=2)
        return rates, np.einsum("kl,lab->kab", gamma, forces.q[0])

    def _squares(self, moments: np.ndarray) -> np.ndarray:
        """Return the squared norms (r,) of the columns per coordinate, ‖Q_a‖²/d."""
        r = self.model.rank
        return np.einsum("k,kaa->a", self.model.coordinates.weight, moments[:, :r, :r])

    def _normalize_columns(self, moments: np.ndarray) -> np.ndarray:
        """Return the moments after the columns are rescaled to ‖Q_a‖² = d."""
        scale = np.ones(moments.shape[1])
        scale[: self.model.rank] /= np.sqrt(self._squares(moments))
        return scale[:, None] * moments * scale


def follow_online(
    model: Model, alpha: float, start: StartLaw, method: SinglePass, n_iter: int, n_points: int,
    rng: np.random.Generator,
) -> tuple[list[Overlaps], list[MeanLosses]]:  # fmt: skip
    """Return overlaps and losses after every batch, from one set of points of the fields. Eq. :eq:`online`."""
    fields = [OnlineFields(component, n_points, rng) for component in model.components]
    weights = OnlineWeights(model, start, method)
    states, losses = list[Overlaps](), list[MeanLosses]()

    def forces_at(overlaps: Overlaps) -> DescentForces:
        if not all(np.isfinite(getattr(overlaps, name)).all() for name in ("q", "m", "theta")):
            raise FloatingPointError("the overlaps are not finite numbers")
        return sum_forces(model, fields, [part.forces(alpha, overlaps) for part in fields])

    def record(forces: DescentForces) -> None:
        states.append(weights.overlaps())
        losses.append(MeanLosses(forces.loss + weights.penalty(), forces.test_error))

    if method.one_sample:
        record(forces_at(weights.overlaps()))
        for lr, steps in groupby(method.step_size(t) for t in range(n_iter)):
            for state in _integrate(weights, forces_at, lr, len(list(steps))):
                weights.state = state
                record(forces_at(weights.overlaps()))
        return states, losses
    for t in range(n_iter + 1):
        forces = forces_at(weights.overlaps())
        record(forces)
        if t < n_iter:
            weights.step(forces, t)
    return states, losses


def _integrate(
    weights: OnlineWeights, forces_at: Callable[[Overlaps], DescentForces], lr: float, n_iter: int, rtol: float = 1e-6,
    atol: float = 1e-9,
) -> np.ndarray:  # fmt: skip
    """Return the states (n_iter, ·) after training times η, 2 η, …, by the method of Dormand and Prince.

    The tolerances are far below the errors of averages over sampled points.
    """
    from scipy.integrate import solve_ivp  # imported here because it takes long to load

    def velocity(_: float, state: np.ndarray) -> np.ndarray:
        weights.state = state
        return weights.velocity(forces_at(weights.overlaps()), lr)

    times = lr * np.arange(1, n_iter + 1)
    solution = solve_ivp(velocity, (0, times[-1]), weights.state, t_eval=times, rtol=rtol, atol=atol)
    if not solution.success:
        raise FloatingPointError(solution.message)
    return np.array(solution.y.T)
