"""Gradient descent for d → ∞ over thousands of steps: histories are stored at a few of the times only.

Late iterates of descent are nearly linear combinations of earlier iterates. A time is therefore stored only if the
stored times do not determine the fields at this time: if the standard deviation of the rest, relative to the field,
exceeds a tolerance, and at the times 1, 2, 4, 8, …. Every memory term is then written with the stored times p:

- the Gaussian field ω̃^t is a linear combination of y and of the fields ω̃^p, F^t w with white Gaussians w;
- Σ_s Γ(t, s) x^s = Γ^t x^t + Σ_p Γ(t, p) x^p with the direct response Γ^t = −α E[∇²ℓ], so that the part of x^t that the
  stored times leave out decays as x^t does. Γ(t, p) and θ̂^t follow from E[(α f^t − Γ^t ω̃^t) w_j] = Σ_k D_k F_kj (Stein,
  1981), D = (θ̂^t, Γ(t, p), …). No derivatives along paths are needed;
- the weights are linear in the forces. Each path therefore carries the sum h^t = Σ_s R(t, s) f^s, which obeys the
  equation of the weights, h^{t+1} = h^t − η (λ h^t − f^t − Σ_p A(t, p) h^p), and E[h^s h^t] is the covariance that
  the noises give the weights.

With P stored times, a path takes a memory of order P and each step a time of order P. Eq. :eq:`stored-times`.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import one_thread
from gamp_attention._tools.progress import Progress
from gamp_attention.descent.steps import PlainSteps
from gamp_attention.extensions.dynamics.descent_paths import DescentForces, sum_forces
from gamp_attention.extensions.dynamics.field_paths import FieldPaths, GrowingRows, component_paths, min_paths
from gamp_attention.extensions.dynamics.message_paths import MeanLosses
from gamp_attention.extensions.dynamics.replicas import stack_replicas
from gamp_attention.extensions.dynamics.weight_paths import InterceptPath, column_strengths
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import select_sources
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.equations.weights import overlaps_of_moments
from gamp_attention.theory.models.model import Component, Model
from gamp_attention.theory.start_law import SampleForces, StartLaw


@dataclass(frozen=True)
class Compression:
    """Accuracy and limits of histories at stored times."""

    tolerance: float = 1e-3  # relative standard deviation of a field that stored times may leave undetermined
    max_memory: float = np.inf  # maximum memory in bytes
    # whether the times 0, 1, 2, 4, 8, … are stored as well; without them errors are larger at all times, also before
    # the second time whose rest exceeds the tolerance
    doubling: bool = True
    negligible: float = 1e-6  # relative standard deviation that is zero up to rounding
    coarser: float = 10**0.5  # ratio of tolerances whose results are compared for the error of the compression
    n_compared: int = 4  # maximum number of replicas that are repeated with the larger tolerance

    def coarsen(self) -> "Compression":
        """Return the compression with the larger tolerance, and without regular times."""
        return replace(self, tolerance=self.coarser * self.tolerance, doubling=False)


class CompressedPaths:
    """Sampled paths of the fields of one component, whose histories are stored at a few of the times.

    Parameters
    ----------
    component : the component, with its probability and sources.
    model : the model that the component belongs to.
    n_paths : number of paths of all components.
    rng : generator of the paths.
    even : the argument of `FieldPaths`; if it is true, m̂ = 0.

    Attributes
    ----------
    fields : (n, L, r) Gaussian fields ω̃ at the latest time.
    """

    def __init__(
        self, component: Component, model: Model, n_paths: int, rng: np.random.Generator, even: bool
    ) -> None:  # fmt: skip
        self.probability, self.sources, self.model = component
        expected = 64  # number of stored times for which components of mixtures have enough paths
        self._paths = FieldPaths(self.model, component_paths(component, n_paths, expected), rng, even)
        self._even, law = even, model.coordinates
        self._gamma, self._weight = law.gamma[:, self.sources], law.weight
        self._h = np.zeros((len(law.weight), self.model.n_tokens, self.model.rank, self._paths.n))
        self._velocity, self._force = np.zeros_like(self._h), np.zeros(self._h.shape[1:])
        self._stored = GrowingRows(self._h.shape[:2], self._paths.n, 8 * self.model.rank)
        self.fields = np.zeros(0)

    @property
    def n(self) -> int:
        """Number of sampled paths."""
        return self._paths.n

    def noise(self, alpha: float) -> np.ndarray:
        """Return the covariances Σ_l γ_l α E[h_l^p h_lᵀ] (P + 1, K, r, r) with the stored times and, last, now."""
        transposed = np.swapaxes(self._h, 2, 3)
        sums = np.concatenate([self._stored.array @ transposed, self._h @ transposed], axis=2)
        means = alpha / self.n * np.einsum("kl,klpb->kpb", self._gamma, sums)
        K, _, r = means.shape
        return means.reshape(K, -1, r, r).transpose(1, 0, 2, 3)

    def project(self, overlaps: Overlaps, covariances: np.ndarray) -> float:
        """Compute the fields at this time from the stored times; return the relative size of the undetermined rest."""
        now = select_sources(overlaps, self.sources)
        self.fields, rest = self._paths.project(now, covariances[:, self.sources])
        return rest

    def store(
        self, overlaps: Overlaps, covariances: np.ndarray, like: np.ndarray | None, forces: SampleForces | None = None
    ) -> None:  # fmt: skip
        """Store this time, and draw the fields with the rest; `like` is an argument of `FieldPaths.draw`.

        At the first time, `forces` are the forces of the samples that the initial weights are made of, if they are.
        """
        now = select_sources(overlaps, self.sources)
        self.fields = self._paths.draw(now, covariances[:, self.sources], like=like)
        if forces is not None:
            g = forces.evaluate(self._paths.terms.params, self.fields + now.m)
            self._h = np.einsum("kab,nlb->klan", forces.response, g)
        self._stored.append(self._h)

    def evaluate_forces(self, alpha: float, overlaps: Overlaps) -> DescentForces:
        """Return the forces at this time, without `q`.

        The responses (P + 1, L, r, r) are for stored times and, last, the direct response to the field at this time,
        which also applies to the part of the weights that stored times leave out.
        """
        now, model = select_sources(overlaps, self.sources), self.model
        value, slope, hess = sample_derivatives(model.loss, self._paths.terms.params, self._training_fields(now))
        self._force = -slope.transpose(1, 2, 0)
        L, r = model.n_tokens, model.rank
        mean_hess = hess.mean(axis=0).reshape(L, r, L, r)
        return self._average(alpha, now, value, -alpha * np.array([mean_hess[l, :, l] for l in range(L)]))

    def _training_fields(self, now: Overlaps) -> np.ndarray:
        """Return the fields z = m + ω̃ + Σ_s R(t, s) f^s (n, L, r) of the training data, given this time's overlaps."""
        return self.fields + now.m + np.einsum("k,kl,klan->nla", self._weight, self._gamma, self._h)

    def _average(self, alpha: float, now: Overlaps, value: np.ndarray, direct: np.ndarray) -> DescentForces:
        """Return the forces, given the losses (n,) of the paths and the direct responses (L, r, r) of `_force`."""
        model, t = self.model, self.model.teacher_rank
        L, r, _ = self._force.shape
        slopes = np.array([
            path.slopes(alpha * self._force[l].T - self.fields[:, l] @ direct[l].T)
            for l, path in enumerate(self._paths.of_token)
        ])  # fmt: skip
        on_stored = slopes[:, :, t:].reshape(L, r, -1, r).transpose(2, 0, 1, 3)
        terms = self._paths.terms
        return DescentForces(
            m=alpha * (np.zeros_like(now.m) if self._even else self._force.mean(axis=2)),
            theta=slopes[:, :, :t],
            q=np.zeros((0, L, r, r)),
            response=np.concatenate([on_stored, direct[None]]),
            loss=alpha * float(np.mean(value + terms.constant)),
            test_error=float(np.mean(model.task.errors(self.fields + now.m, self._paths.y, terms))),
        )

    def descend(self, A: np.ndarray, strengths: np.ndarray, method: PlainSteps, t: int) -> None:
        """Take step t of the weights with h, for memory A (P + 1, K, r, r) of stored times and of this time."""
        rows = A[:-1].transpose(1, 2, 0, 3).reshape(A.shape[1], 1, A.shape[2], -1)
        slope = strengths * self._h - self._force - rows @ self._stored.array - A[-1][:, None] @ self._h
        self._h, self._velocity = method.step(self._h, self._velocity, slope, t)


class CompressedWeights:
    """Weights with the ridge penalty: coefficients (K, r, r + S + t) of (x⁰, τ, π), and covariances of the rest.

    The rest is the sum of the noises, whose covariances are averages over paths (`CompressedPaths.noise`).
    """

    def __init__(self, model: Model, start: StartLaw) -> None:
        self.model, self._start = model, start
        K, size, _ = start.moments.shape
        self._x = np.zeros((K, model.rank, size))
        self._x[:, :, : model.rank] = np.eye(model.rank)
        self._velocity, self._stored = np.zeros_like(self._x), list[np.ndarray]()
        self._second = np.zeros((K, model.rank, model.rank))
        self._intercept = InterceptPath(model, start)
        self.strengths = column_strengths(model)

    def evaluate(self, noise: np.ndarray) -> tuple[Overlaps, np.ndarray]:
        """Return the overlaps at this time, and q_l^{p,t} (P + 1, S, r, r) for stored times p and, last, this time."""
        law, moments = self.model.coordinates, self._start.moments @ np.swapaxes(self._x, 1, 2)
        second = np.array([x @ moments for x in (*self._stored, self._x)]) + noise
        self._second = second[-1]
        products = np.swapaxes(moments, 1, 2)[:, :, self.model.rank :]
        now = self._intercept.add_to(overlaps_of_moments(self.model, second[-1], products, self._start.V))
        return now, np.einsum("k,kl,skab->slab", law.weight, law.gamma, second)

    def store(self) -> None:
        """Store this time. If x⁰ depends on the samples, it is then a sum of forces H (τ, π) and of the paths' h."""
        forces = self._start.forces
        if forces is not None and not self._stored:
            self._x = np.pad(forces.response @ forces.drift, ((0, 0), (0, 0), (self.model.rank, 0)))
        self._stored.append(self._x)

    def penalty(self) -> float:
        """Return E[r(x)] per coordinate."""
        squares = np.einsum("k,kaa->a", self.model.coordinates.weight, self._second)
        return 0.5 * float(squares @ self.strengths[:, 0])

    def descend(self, forces: DescentForces, A: np.ndarray, method: PlainSteps, t: int) -> None:
        """Take step t of gradient descent, for memory A (P + 1, K, r, r) of stored times and of this time."""
        first = self.model.rank + self.model.n_sources
        slope = self.strengths * self._x
        slope[:, :, self.model.rank : first] -= forces.m.T
        slope[:, :, first:] -= np.einsum("kl,lrt->krt", self.model.coordinates.gamma, forces.theta)
        for with_past, x in zip(A, (*self._stored, self._x), strict=True):
            slope -= with_past @ x
        self._x, self._velocity = method.step(self._x, self._velocity, slope, t)
        self._intercept.descend(forces.m, method, t)


class CompressedDescent:
    """One replica of a descent, one step for each call of `advance`. Eq. :eq:`stored-times`.

    Parameters
    ----------
    model : the model, with the ridge penalty.
    alpha : sample complexity.
    start : second moments of the initial weights.
    method : the first-order method, without minibatches.
    n_paths : number of sampled paths, even.
    rng : generator of the paths.
    compression : tolerance of stored times, and the maximum memory.

    Attributes
    ----------
    states, losses : overlaps and losses at all times so far.
    stored : stored times.
    """

    _paths: Sequence[Any]
    _type_of_paths: type[CompressedPaths] = CompressedPaths

    def __init__(
        self, model: Model, alpha: float, start: StartLaw, method: PlainSteps, n_paths: int,
        rng: np.random.Generator, compression: Compression,
    ) -> None:  # fmt: skip
        self._model, self._alpha, self._method, self._n_paths = model, alpha, method, n_paths
        self._n_given = n_paths  # the number of paths that error messages refer to
        self._compression, self._V = compression, start.V
        self._forces = start.forces
        even = Symmetry.of(model, start.overlaps(model)).m_zero
        self._weights = CompressedWeights(model, start)
        self._paths = [self._type_of_paths(component, model, n_paths, rng, even) for component in model.components]
        self.states, self.losses, self.stored = list[Overlaps](), list[MeanLosses](), list[int]()

    @property
    def run(self) -> tuple[list[Overlaps], list[MeanLosses]]:
        """Overlaps and losses at all times so far."""
        return self.states, self.losses

    def advance(self, reference: "CompressedDescent | None" = None) -> None:
        """Compute overlaps and losses at the next time, and take a step.

        reference : a run at the same time, from whose fields new white columns are taken, so that differences between
            both runs are not due to different random numbers.
        """
        t, gamma = len(self.states), self._model.coordinates.gamma
        noise = sum(path.probability * path.noise(self._alpha) for path in self._paths)
        now, covariances = self._weights.evaluate(np.asarray(noise))
        now = replace(now, V=self._V)
        rest = max(path.project(now, covariances) for path in self._paths)
        regular = self._compression.doubling and t & (t - 1) == 0 and rest > self._compression.negligible
        if t == 0 or regular or not rest <= self._compression.tolerance:
            self._require_capacity()
            for i, path in enumerate(self._paths):
                like = None if reference is None else reference._paths[i].fields
                path.store(now, covariances, like, self._forces if t == 0 else None)
            self._weights.store()
            self.stored.append(t)
        forces = sum_forces(self._model, self._paths, [p.evaluate_forces(self._alpha, now) for p in self._paths])
        self.states.append(now)
        self.losses.append(MeanLosses(forces.loss + self._weights.penalty(), forces.test_error))
        A, method = np.einsum("kl,slab->skab", gamma, forces.response), self._select_method(t)
        self._weights.descend(forces, A, method, t)
        for path in self._paths:
            path.descend(A, self._weights.strengths, method, t)

    def _select_method(self, t: int) -> PlainSteps:
        """Return the method of step t, after the forces at this time have been evaluated."""
        return self._method

    def _require_capacity(self) -> None:
        """Raise ValueError if another stored time needs more paths or more memory."""
        n_stored, model, limits = len(self.stored) + 1, self._model, self._compression
        enough = min_paths(model, n_stored - 1)
        if self._n_paths < enough:
            enough *= self._n_given // self._n_paths
            needs = f"at least {enough} at step {len(self.states)}, or a larger compression than {limits.tolerance:g}"
            raise check.fail("n_paths", self._n_given, needs)
        needed = bytes_at_times(model, sum(path.n for path in self._paths), n_stored)
        if needed > limits.max_memory:
            needs = f"at least {needed:.3g} bytes at step {len(self.states)}, or fewer paths, or a larger compression"
            raise check.fail("max_memory", limits.max_memory, needs)


Run = TypeVar("Run", bound=CompressedDescent)


def bytes_at_times(model: Model, n_paths: int, n_stored: int) -> float:
    """Return the memory in bytes of a run with a number of stored times, and of the run that it is compared with."""
    # h of each class and two copies of the white columns; arrays double when they are full, while the old array exists
    numbers = 2 * (len(model.coordinates.weight) + 2) * (3 * n_stored + 8)
    temporary = 80  # for the loss, its derivatives and new random numbers
    return 8.0 * n_paths * model.n_tokens * model.rank * (numbers + temporary)


def follow_compressed(
    build: Callable[[np.random.Generator, Compression], Run], rng: np.random.Generator, compression: Compression,
    n_iter: int, compared: bool, bar: Progress,
) -> tuple[Run, Run | None]:  # fmt: skip
    """Return a replica at time n_iter, and if `compared`, one with fewer stored times and the same random numbers.

    build : function of the generator and the compression that returns a replica before its first time.
    """
    with one_thread():
        coarse = build(deepcopy(rng), compression.coarsen()) if compared else None
        fine = build(rng, compression)
        for _ in range(n_iter + 1):
            fine.advance()
            if coarse is not None:
                coarse.advance(fine)
            bar.update()
    return fine, coarse


def compression_errors(
    pairs: Sequence[tuple[CompressedDescent, CompressedDescent | None]],
) -> dict[str, np.ndarray]:
    """Return errors of overlaps and losses at every time, by the names of `stack_replicas`.

    An error is the root of the mean square, over pairs with equal random numbers, of the difference between the result
    and the result with the larger tolerance.
    """
    compared = [(fine.run, coarse.run) for fine, coarse in pairs if coarse is not None]
    fine, coarse = (stack_replicas(runs) for runs in zip(*compared, strict=True))
    return {name: np.sqrt(np.mean(np.square(coarse[name] - fine[name]), axis=0)) for name in fine}
