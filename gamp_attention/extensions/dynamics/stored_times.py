"""First-order methods on the training data for d → ∞, with histories that are stored at a few of the times only.

The field of a sample at step t depends on the forces f of all earlier steps,

    z^t = m^t + ω̃^t + Σ_{s<t} R(t, s) f^s,

with Gaussian ω̃ and the response R of the weights to earlier forces: dynamical mean-field theory (Mignacco, Krzakala,
Urbani and Zdeborová, 2020; Celentano, Cheng and Montanari, 2021). A method determines the force of a sample on the
weights (`StoredPaths.evaluate`) and the step of the weights (`MemoryRun.select_step`). In this module both belong to
`GradientDescent`; message passing and survey propagation are in other modules.

Late iterates are nearly linear combinations of earlier iterates. A time is therefore stored only if the stored times
leave a part of the fields undetermined, and at the times 1, 2, 4, 8, …. Memory terms are written with stored times p:

- the Gaussian field ω̃^t is a linear combination of y and of the fields ω̃^p, F^t w with white Gaussians w;
- Σ_s Γ(t, s) x^s = Γ^t x^t + Σ_p Γ(t, p) x^p with the direct response Γ^t, the mean a.e. derivative of the force, so
  that the part of x^t that the stored times leave out decays as x^t does. Γ(t, p) and θ̂^t follow from
  E[(α f^t − Γ^t ω̃^t) w_j] = Σ_k D_k F_kj (Stein, 1981), D = (θ̂^t, Γ(t, p), …), without derivatives along paths;
- the weights are linear in the forces. Each path therefore carries the sum h^t = Σ_s R(t, s) f^s, which obeys the
  equation of the weights, h^{t+1} = h^t − η (λ h^t − f^t − Σ_p A(t, p) h^p), and E[h^s h^t] is the covariance that
  the noises give the weights.

With P stored times, a path takes a memory of order P and each step a time of order P. Eq. :eq:`stored-times`.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import one_thread
from gamp_attention._tools.progress import Progress
from gamp_attention.descent.steps import DescentSteps
from gamp_attention.extensions.dynamics.field_paths import FieldPaths, component_paths, min_paths
from gamp_attention.extensions.dynamics.message_paths import Row
from gamp_attention.extensions.dynamics.replicas import Trajectory, TrajectoryTask, average_descents, stack_replicas
from gamp_attention.extensions.dynamics.weight_paths import WeightPath
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import select_sources
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.equations.weights import drift
from gamp_attention.theory.models.model import Component, Model
from gamp_attention.theory.start_law import StartLaw

# function of the weights, their velocity and the gradient, all (K, …, r, n), that returns the next weights and velocity
Step = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Compression:
    """Accuracy of histories at stored times."""

    tolerance: float = 1e-3  # relative standard deviation of a field that stored times may leave undetermined
    # whether the times 0, 1, 2, 4, 8, … are stored as well; without them errors are larger at all times, also before
    # the second time whose rest exceeds the tolerance
    doubling: bool = True
    negligible: float = 1e-6  # relative standard deviation that is zero up to rounding
    coarser: float = 10**0.5  # ratio of tolerances whose results are compared for the error of the compression
    n_compared: int = 4  # maximum number of replicas that are repeated with the larger tolerance


ALL_TIMES = Compression(tolerance=Compression.negligible, n_compared=0)  # store every time


@dataclass(frozen=True, eq=False)
class Forces:
    """Averages over the fields at time t that drive the weights; for mixtures sums over the components."""

    m: np.ndarray  # (S, r) m̂^t = α E[f^t]
    theta: np.ndarray  # (S, r, t) θ̂^t
    q: np.ndarray  # (S, r, r) α E[f^t f^tᵀ]
    response: np.ndarray  # (S, P + 1, r, r) Γ(t, p) for stored times p and, last, the direct response Γ^t
    loss: float  # α E[ℓ(z^t) + constant]
    test_error: float  # test error of the weights at time t


def sum_forces(model: Model, paths: Sequence[Any], forces: list[Forces]) -> Forces:
    """Return the forces by source, summed over the components, whose probability and sources are in `paths`."""
    pairs = list(zip(paths, forces, strict=True))
    sums: dict[str, Any] = {
        name: sum(path.probability * getattr(force, name) for path, force in pairs) for name in ("loss", "test_error")
    }
    for name in ("m", "theta", "q", "response"):
        sums[name] = np.zeros((model.n_sources, *getattr(forces[0], name).shape[1:]))
        for path, force in pairs:
            sums[name][path.sources] += path.probability * getattr(force, name)
    return Forces(**sums)


class StoredPaths:
    """Sampled paths of the fields of one component of a model, whose histories are stored at a few of the times.

    The paths are of gradient descent, eq. :eq:`descent-fields`; other methods replace `evaluate`. `method` is the
    method of the trajectory, and `n_paths` the number of paths of all components. `even` is the argument of
    `FieldPaths`; if it is true, m̂ = 0.

    Attributes
    ----------
    t : number of steps so far.
    n : number of sampled paths.
    fields : the paths of the Gaussian fields.
    gaussians : (n, L, r) Gaussian fields ω̃ at the latest time.
    force : (L, r, n) forces at the latest time.
    """

    def __init__(
        self, component: Component, model: Model, method: Any, n_paths: int, rng: np.random.Generator, even: bool
    ) -> None:
        self.probability, self.sources, self.model = component
        self.method, self.t = method, 0
        expected = 64  # number of stored times for which components of mixtures have enough paths
        self.fields = FieldPaths(self.model, component_paths(component, n_paths, expected), rng, even)
        self.rng, self._even, law, self.n = rng, even, model.coordinates, self.fields.n
        self._gamma, self._weight = law.gamma[:, self.sources], law.weight
        self._h = np.zeros((len(law.weight), self.model.n_tokens, self.model.rank, self.n))
        self._velocity, self.force = np.zeros_like(self._h), np.zeros(self._h.shape[1:])
        self._stored = self._h[:, :, :0]  # (K, L, P r, n) h at the stored times
        self.gaussians = np.zeros(0)

    def evaluate(self, z: np.ndarray, now: Overlaps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return losses (n,), forces (n, L, r) and the mean derivative of the forces (L, r, r) at fields z (n, L, r).

        `now` are the overlaps at this time, for the tokens of the component. The forces of gradient descent are
        f = −∇ℓ(z), divided by the batch if a sample is in it, and their mean derivative −E[∇²ℓ].
        """
        losses, slope, hess = sample_derivatives(self.model.loss, self.fields.terms.params, z)
        batch = 1.0 if self.method.batch is None else self.method.batch
        if batch < 1:
            copies = self.fields.copies  # minibatches are equal for mirror images
            drawn = np.tile(self.rng.random(self.n * copies // 2) < batch, 2 // copies) / batch
            slope = drawn[:, None, None] * slope
        return losses, -slope, -np.einsum("lalb->lab", hess.mean(axis=0).reshape(now.m.shape * 2))

    def noise(self, alpha: float) -> np.ndarray:
        """Return the covariances Σ_l γ_l α E[h_l^p h_lᵀ] (P + 1, K, r, r) with the stored times and, last, now."""
        transposed = np.swapaxes(self._h, 2, 3)
        sums = np.concatenate([self._stored @ transposed, self._h @ transposed], axis=2)
        means = alpha / self.n * np.einsum("kl,klpb->kpb", self._gamma, sums)
        K, _, r = means.shape
        return means.reshape(K, -1, r, r).transpose(1, 0, 2, 3)

    def project(self, overlaps: Overlaps, covariances: np.ndarray) -> float:
        """Compute the fields at this time from the stored times; return the relative size of the undetermined rest."""
        now = select_sources(overlaps, self.sources)
        self.gaussians, rest = self.fields.project(now, covariances[:, self.sources])
        return rest

    def store(self, overlaps: Overlaps, covariances: np.ndarray, like: np.ndarray | None) -> None:
        """Store this time, and draw the fields with the rest; `like` is an argument of `FieldPaths.draw`."""
        now = select_sources(overlaps, self.sources)
        self.gaussians = self.fields.draw(now, covariances[:, self.sources], like=like)
        self._stored = np.concatenate([self._stored, self._h], axis=2)

    def average(self, alpha: float, overlaps: Overlaps) -> Forces:
        """Return the averages over the fields at this time, given the overlaps of all sources."""
        now, model = select_sources(overlaps, self.sources), self.model
        # fields m + ω̃ + Σ_s R(t, s) f^s of the training data
        z = self.gaussians + now.m + np.einsum("k,kl,klan->nla", self._weight, self._gamma, self._h)
        losses, force, derivative = self.evaluate(z, now)
        self.force, direct, (L, r, t) = force.transpose(1, 2, 0), alpha * derivative, now.theta.shape
        slopes = np.array([
            path.slopes(alpha * force[:, l] - self.gaussians[:, l] @ direct[l].T)
            for l, path in enumerate(self.fields.of_token)
        ])  # fmt: skip
        on_stored, terms = slopes[:, :, t:].reshape(L, r, -1, r).transpose(0, 2, 1, 3), self.fields.terms
        return Forces(
            m=alpha * (np.zeros_like(now.m) if self._even else self.force.mean(axis=2)),
            theta=slopes[:, :, :t],
            q=alpha / self.n * self.force @ np.swapaxes(self.force, 1, 2),
            response=np.concatenate([on_stored, direct[:, None]], axis=1),
            loss=alpha * float(np.mean(losses + terms.constant)),
            test_error=float(np.mean(model.task.errors(self.gaussians + now.m, self.fields.y, terms))),
        )

    def descend(self, A: np.ndarray, strengths: np.ndarray, step: Step) -> None:
        """Take the step of the weights with h, for memory A (P + 1, K, r, r) of stored times and of this time."""
        rows = A[:-1].transpose(1, 2, 0, 3).reshape(A.shape[1], 1, A.shape[2], -1)
        slope = strengths * self._h - self.force - rows @ self._stored - A[-1][:, None] @ self._h
        self._h, self._velocity = step(self._h, self._velocity, slope)
        self.t += 1


class StoredWeights(WeightPath):
    """Weights with the ridge penalty: coefficients (K, r, r + S + t) of (x⁰, τ, π), and covariances of the noises."""

    def __init__(self, model: Model, start: StartLaw) -> None:
        super().__init__(model, start)
        self._moments = start.moments
        K, size, _ = start.moments.shape
        self._x = np.zeros((K, model.rank, size))
        self._x[:, :, : model.rank] = np.eye(model.rank)
        self._velocity, self._stored = np.zeros_like(self._x), list[np.ndarray]()
        self._intercept_velocity = np.zeros(model.rank)
        self.strengths = np.broadcast_to(model.penalty.curvature, model.rank)[:, None]  # λ_a of the columns

    def evaluate(self, noise: np.ndarray) -> tuple[Overlaps, np.ndarray]:
        """Return the overlaps at this time, and q_l^{p,t} (P + 1, S, r, r) for stored times p and, last, this time."""
        latest = self._moments @ np.swapaxes(self._x, 1, 2)
        second = np.array([x @ latest for x in (*self._stored, self._x)]) + noise
        return self.overlaps(second, np.swapaxes(latest[:, self.model.rank :], 1, 2))

    def store(self) -> None:
        """Store this time."""
        self._stored.append(self._x)

    def descend(self, forces: Forces, A: np.ndarray, step: Step) -> None:
        """Take a step, for memory A (P + 1, K, r, r) of stored times and of this time. Eq. :eq:`descent-weights`."""
        slope = self.strengths * self._x
        slope[:, :, self.model.rank :] -= drift(self.model.coordinates.gamma, forces.m, forces.theta)
        for with_past, x in zip(A, (*self._stored, self._x), strict=True):
            slope -= with_past @ x
        self._x, self._velocity = step(self._x, self._velocity, slope)
        if self.model.intercept:
            slope, velocity = -forces.m.sum(axis=0), self._intercept_velocity
            self.intercept, self._intercept_velocity = step(self.intercept, velocity, slope)


class MemoryRun:
    """One replica of a first-order method, one step for each call of `advance`. Eq. :eq:`stored-times`.

    The run is one of gradient descent; other methods have another `kind` of paths, and replace `select_step`. `method`
    is the method of the trajectory, and `start` has the second moments of the initial weights. The penalty is a ridge.
    The number of paths is `n_paths` divided by `fewer`.

    Attributes
    ----------
    paths : the paths of each component.
    weights : the weights, with V of the overlaps at the latest time.
    rows : overlaps and losses at all times so far.
    stored : stored times.
    """

    kind: type[StoredPaths] = StoredPaths

    def __init__(
        self, method: Any, task: TrajectoryTask, start: StartLaw, n_paths: int, rng: np.random.Generator,
        compression: Compression, fewer: int = 1,
    ) -> None:  # fmt: skip
        model, size = task.model, n_paths // fewer // 2 * 2
        self.method, self.model, self.alpha = method, model, task.alpha
        self._n_given, self._n_paths, self._compression = n_paths, size, compression
        even = Symmetry.of(model, start.overlaps(model)).m_zero
        self.weights = StoredWeights(model, start)
        self.paths: list[Any] = [self.kind(part, model, method, size, rng, even) for part in model.components]
        self.rows, self.stored, self._n_iter = list[Row](), list[int](), task.n_iter

    def select_step(self, t: int, forces: Forces) -> Step:
        """Return the step of the weights at time t, given the forces at this time."""
        return partial(self.method.step, t=t)

    def advance(self, reference: "MemoryRun | None" = None) -> None:
        """Compute overlaps and losses at the next time, and take a step if it is not the last time.

        New white columns are taken from the fields of a `reference` run at the same time, if there is one, so that
        differences between both runs are not due to different random numbers.
        """
        t, gamma = len(self.rows), self.model.coordinates.gamma
        noise = sum(path.probability * path.noise(self.alpha) for path in self.paths)
        now, covariances = self.weights.evaluate(np.asarray(noise))
        rest = max(path.project(now, covariances) for path in self.paths)
        regular = self._compression.doubling and t & (t - 1) == 0 and rest > self._compression.negligible
        if t == 0 or regular or not rest <= self._compression.tolerance:
            self._require_capacity()
            for i, path in enumerate(self.paths):
                path.store(now, covariances, None if reference is None else reference.paths[i].gaussians)
            self.weights.store()
            self.stored.append(t)
        forces = sum_forces(self.model, self.paths, [path.average(self.alpha, now) for path in self.paths])
        loss = forces.loss + self.weights.penalty()
        self.rows.append(now.arrays() | {"train_loss": loss, "test_error": forces.test_error})
        if t == self._n_iter:
            return
        A, step = np.einsum("kl,lsab->skab", gamma, forces.response), self.select_step(t, forces)
        self.weights.descend(forces, A, step)
        for path in self.paths:
            path.descend(A, self.weights.strengths, step)

    def _require_capacity(self) -> None:
        """Raise ValueError if another stored time needs more paths or more memory."""
        model, n_stored, K = self.model, len(self.stored) + 1, len(self.model.coordinates.weight)
        enough = min_paths(model, n_stored - 1)
        if self._n_paths < enough:
            enough *= self._n_given // self._n_paths
            raise check.fail("n_paths", self._n_given, f"at least {enough} at step {len(self.rows)}")
        # h of each class and two copies of the white columns, and the arrays that they replace
        check.require_memory("n_paths", self._n_given, model.n_tokens * model.rank, K + 2, 2 * n_stored)


def follow_replicas(
    build: Callable[[np.random.Generator, Compression], Any], task: TrajectoryTask, compression: Compression, label: str
) -> tuple[list[Any], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return all replicas at the last time, their overlaps and losses, and errors of these by the compression, by name.

    Some replicas are repeated with fewer stored times and the same random numbers. The errors at every time are the
    root mean squares of the differences between both results. `build` is a function of the generator and the
    compression that returns a replica before its first time, and `label` is shown in front of the progress.
    """
    runs, repeated = list[MemoryRun](), list[MemoryRun]()
    larger = replace(compression, tolerance=compression.coarser * compression.tolerance, doubling=False)
    with Progress(label, task.n_replicas * (task.n_iter + 1), task.progress) as bar, one_thread():
        for i in range(task.n_replicas):
            if i < compression.n_compared:
                repeated.append(build(deepcopy(task.rng), larger))
            runs.append(build(task.rng, compression))
            for _ in range(task.n_iter + 1):
                runs[i].advance()
                if i < compression.n_compared:
                    repeated[i].advance(runs[i])
                bar.update()
    stacks, coarse = (stack_replicas([run.rows for run in each]) for each in (runs, repeated))
    differences = {name: values - stacks[name][: len(values)] for name, values in coarse.items()}
    return runs, stacks, {name: np.sqrt(np.mean(np.square(each), axis=0)) for name, each in differences.items()}


@dataclass(frozen=True)
class GradientDescent(DescentSteps):
    """Gradient descent on the training risk, with momentum or minibatches: the steps of `minimize_risk`.

    Parameters
    ----------
    lr : step size in Q ← Q − lr ∇R(Q), or a sequence of step sizes, whose last entry is repeated.
    momentum : μ in [0, 1): the heavy-ball method of Polyak (1964).
    nesterov : whether the method is Nesterov's (1983), with momentum μ.
    batch : fraction of the data in (0, 1] that is drawn at every step, without momentum; None for all data.

    Raises
    ------
    TypeError, ValueError : if an argument has a wrong type or is out of its range.
    """

    batch: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch is not None:
            check.real("batch", self.batch, low=0, high=1, strict=True)
            if self.momentum:
                raise check.fail_words("batch", f"{self.batch} with momentum", "None for descent with momentum")

    def follow(self, task: TrajectoryTask) -> Trajectory:
        """Return the prediction of all steps."""
        task.require_ridge("method", self)
        compression, n_times = (Compression(), 0) if self.batch is None else (ALL_TIMES, task.n_iter)
        n_paths, start = task.count_paths(4096, n_times), task.start(needs_V=False)
        with task.finite("lr"):
            build = partial(MemoryRun, self, task, start, n_paths)
            runs, stacks, errors = follow_replicas(build, task, compression, "descent ")
        return average_descents(stacks, errors, method=self, stored=np.array(runs[0].stored))
