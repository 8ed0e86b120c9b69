"""Trajectories of damped GAMP, with global proximal minima or as it runs on data.

With global minima the Onsager terms cancel the memory of the data, so that the paths have none (`message_paths`).

After `hold_after` iterations, each sample of a run keeps the proximal minimum that continues its last minimum, and V̂ is
the average of the derivatives of samples, without jumps. The Onsager terms therefore do not cancel the memory of the
data. With the ridge, the iteration is nevertheless a first-order method,

    Q^{t+1} = Q^t − β C_t (λ Q^t − X̃ᵀg^t),   C_t = (λ + Σ_l γ_l V̂_l^t)⁻¹,

for which the equations of descent hold (Celentano, Cheng and Montanari, 2021), with β C_t in place of the step size and
g in place of −∇ℓ. Along a path, z^t = X̃Q^t = m^t + ω̃^t + h^t with the memory h^t = Σ_s R(t, s) g^s, ω^t = z^t − D^t
with the Onsager memory D^{t+1} = (1 − β) D^t + β W g^t, and each proximal step starts from the last minimum of the
path. Mean responses follow from Stein's identity, as for descent (`stored_times`). Eq. :eq:`current-minima`.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import format_to_error
from gamp_attention._tools.progress import Progress
from gamp_attention._tools.statistics import half_width
from gamp_attention.descent.steps import PlainSteps
from gamp_attention.extensions.dynamics.field_paths import min_paths
from gamp_attention.extensions.dynamics.message_paths import follow
from gamp_attention.extensions.dynamics.replicas import (
    Trajectory,
    TrajectoryTask,
    damping_steps,
    join_errors,
    mean_over_replicas,
    no_responses,
    stack_replicas,
)
from gamp_attention.extensions.dynamics.stored_times import Compression, MemoryRun, StoredPaths, follow_replicas
from gamp_attention.gamp.damping import Damping, Steps
from gamp_attention.problem.denoisers.input import field_variances, quadratic_response
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.equations.weights import jump_shift

NEGLIGIBLE = 1e-2  # relative jump mass that is negligible
HARMFUL = 0.1  # relative jump mass that three standard errors must exclude before a prediction is called consistent


@dataclass(frozen=True)
class MessagePassing:
    """Damped GAMP, as `run_gamp` iterates it.

    Parameters
    ----------
    damping : step β in (0, 1], or a sequence with a step for each iteration, whose last entry is repeated; "adaptive"
        stands for the first step of adaptive damping, 0.3.
    hold_after : number of iterations with global proximal minima, at least 0. If given, the prediction is for GAMP as
        it runs on data: later, each sample keeps the minimum that continues its last minimum
        (`IterationOptions.hold_after`, 20 by default in runs), and V̂ is the average of the derivatives of samples,
        eq. :eq:`current-minima`. The prediction then holds also if the proximal map jumps, up to the minimum in which a
        run ends. Needs the ridge and no intercept. By default all minima are global.

    Raises
    ------
    TypeError, ValueError : if an argument has a wrong type or is out of its range.
    """

    damping: Steps = 0.5
    hold_after: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "damping", damping_steps(self.damping))
        if self.hold_after is not None:
            check.integer("hold_after", self.hold_after, low=0)

    def follow(self, task: TrajectoryTask) -> Trajectory:
        """Return the prediction of all iterations."""
        if self.hold_after is None:
            return self._follow_messages(task)
        task.require_ridge("hold_after", self.hold_after, intercept=False)
        return self._follow_current_minima(task, self.hold_after)

    def _follow_messages(self, task: TrajectoryTask, fewer: int = 4) -> Trajectory:
        """Return the trajectory with global minima.

        Noise of V̂ enters later overlaps and losses at second order. They therefore have a bias that is inversely
        proportional to the number of paths, and that replicas do not show. The bias is estimated from replicas with
        `fewer` times fewer paths, and is part of the errors. (Values that are extrapolated to infinitely many paths
        have larger errors, because the bias of few paths grows faster: with 64 paths, losses of three columns became
        negative.)
        """
        model, n_iter, n_paths, start = task.model, task.n_iter, task.count_paths(4096, task.n_iter), task.start()

        def replicas(n_sampled: int) -> tuple[list[list[Hats]], dict[str, np.ndarray]]:
            sizes = self.damping, n_iter, n_sampled, task.rng
            runs = [follow(model, task.alpha, start, *sizes) for _ in range(task.n_replicas)]
            states, hats, losses = zip(*runs, strict=True)
            return list(hats), stack_replicas(states, losses)

        n_few = max(n_paths // fewer, 3 * min_paths(model, n_iter) // 4) // 2 * 2
        with task.finite("damping"):
            (hats, many), (_, few) = replicas(n_paths), replicas(n_few)
            bias = {name: (few[name].mean(axis=0) - many[name].mean(axis=0)) / (n_paths / n_few - 1) for name in many}
            shift = np.array([[jump_shift(model, each) for each in of_replica] for of_replica in hats]).mean(axis=0)
            jumps, unsure = _average_jumps(hats)
            numbers = no_responses(start.V.shape) | mean_over_replicas(many, bias) | jumps | {"jump_shift": shift}
            validity = _state_validity(jumps["jump_share"], jumps["jump_share_error"], unsure, shift)
        return Trajectory(**numbers, method=self, validity=validity)

    def _follow_current_minima(
        self, task: TrajectoryTask, hold_after: int, tolerance: float = 1e-2, fewer: int = 4, unsure: float = 2.0
    ) -> Trajectory:
        """Return the trajectory with current minima from iteration `hold_after` on.

        Results have a bias, because responses are averages over the paths. Each replica is therefore repeated with
        `fewer` times fewer paths, and the results are extrapolated linearly in the inverse number of paths. The errors
        contain the spread of replicas, `unsure` times the change by this extrapolation (2 covers a bias that decreases
        as N^(−1/2) for N paths), and the error of the compression with this `tolerance`.
        """
        n_paths, start, n = task.count_paths(2**15, 0), task.start(), task.n_replicas
        arguments: dict[str, Any] = {"damping": self.damping, "hold_after": hold_after}
        build = partial(CurrentMinimaRun, task.model, task.alpha, start, n_paths, **arguments)
        stacks, stored, by_compression = [], list[np.ndarray](), dict[str, np.ndarray]()
        with Progress("iteration ", 2 * n * (task.n_iter + 1), task.progress) as bar, task.finite("damping"):
            for divisor, n_compared in ((1, Compression.n_compared), (fewer, 0)):
                compression = Compression(tolerance, doubling=False, n_compared=n_compared)
                builds = [partial(build, fewer=divisor)] * n
                runs, errors = follow_replicas(builds, task.rng, compression, task.n_iter, bar)
                V_hat = np.array([run.V_hats[:-1] for run in runs])
                replicas = stack_replicas([run.states for run in runs], [run.losses for run in runs])
                stacks.append(replicas | {"V_hat": V_hat})
                stored.append(np.array(runs[0].stored))
                by_compression |= errors
        (many, few), values, errors = stacks, {}, {}
        for name in many:
            change = (many[name].mean(axis=0) - few[name].mean(axis=0)) / (fewer - 1)
            values[name] = many[name].mean(axis=0) + change
            variances = [np.var(stack[name], axis=0, ddof=1) / n for stack in stacks]
            spread = variances[0] * (fewer / (fewer - 1)) ** 2 + variances[1] / (fewer - 1) ** 2
            errors[name] = np.sqrt(spread + (unsure * change) ** 2 + np.square(by_compression.get(name, 0.0)))
        validity = "consistent: the equations contain kept minima and jumps, and hold on every branch"
        numbers = no_responses(start.V.shape) | join_errors(values, errors)
        return Trajectory(**numbers, method=self, validity=validity, stored=stored[0])


def _average_jumps(replicas: list[list[Hats]]) -> tuple[dict[str, Any], np.ndarray]:
    """Return V̂ and the jump mass as fields of `Trajectory`, and the size (T,) up to which it is not significant."""
    hats = {name: np.array([[getattr(h, name) for h in each] for each in replicas]) for name in ("V", "V_derivative")}
    jumps, scale = hats["V"] - hats["V_derivative"], 1 / np.sqrt(len(replicas))
    stein, derivative = (np.einsum("ntlaa->nt", values) for values in hats.values())
    shares = (stein - derivative) / np.maximum(np.maximum(np.abs(stein), np.abs(derivative)), 1e-300)
    share = shares.mean(axis=0)
    numbers = {
        "V_hat": hats["V"].mean(axis=0),
        "jump_mass": jumps.mean(axis=0),
        "jump_mass_error": jumps.std(axis=0, ddof=1) * scale,
        "jump_share": share,
        "jump_share_error": shares.std(axis=0, ddof=1) * scale,
    }
    return numbers, 2 * half_width(shares - share)


def _state_validity(share: np.ndarray, error: np.ndarray, unsure: np.ndarray, shift: np.ndarray) -> str:
    """Return a statement whether message passing on data follows the prediction, given arrays over T iterations.

    They are the relative jump mass and its standard error, the size up to which it is not significant, and the relative
    change of V without jumps.
    """
    largest = f"jump mass up to {float(f'{100 * min(share.min(), 0):.2g}'):g} % of V̂"
    if not (share < -np.maximum(NEGLIGIBLE, unsure)).any():
        lowest = int(np.argmin(share - 3 * error))
        if share[lowest] - 3 * error[lowest] > -HARMFUL:
            return f"consistent within its errors ({largest})"
        mass = format_to_error(100 * share[lowest], 100 * error[lowest])
        return f"unknown: too few paths show whether the proximal map jumps (jump mass {mass} % of V̂); raise n_paths"
    words = f"runs deviate, because the proximal map jumps ({largest}, at iteration {int(np.argmin(share))})"
    if shift.min() < 0:
        words += f"; expect V of runs about {float(f'{-100 * shift.min():.2g}'):g} % lower"
    follows = "with IterationOptions(V_hat=trajectory.V_hat) runs follow this prediction"
    return f"{words}; with the ridge, hold_after=20 predicts the runs, and {follows}"


@dataclass(frozen=True)
class Preconditioned(PlainSteps):
    """The step Q ← Q − β C ∇R of message passing, in the form of a method of descent."""

    C: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (K, r, r) β C for each class of coordinates

    def step(self, x: np.ndarray, velocity: np.ndarray, slope: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x after a step with the gradient `slope`, both (K, …, r, n), and an unused velocity."""
        K, r, _ = self.C.shape
        return x - self.C.reshape(K, *[1] * (x.ndim - 3), r, r) @ slope, velocity


class OnsagerPaths(StoredPaths):
    """Sampled paths of message passing in one component of a mixture, with their Onsager memories."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.minima: np.ndarray | None = None  # proximal minima of the paths at the latest time
        self.D = np.zeros((self.n, self.model.n_tokens, self.model.rank))  # memory: the fields of the data are ω + D
        self.V_hat = np.zeros(0)  # (L, r, r) average derivative −∂g/∂ω at the latest time, without jumps

    def remember(self, W: np.ndarray, beta: float) -> None:
        """Update the Onsager memory with W (S, r, r) after a step β, as runs do."""
        force = self.force.transpose(2, 0, 1)
        self.D = (1 - beta) * self.D + beta * np.einsum("lab,nlb->nla", W[self.sources], force)


class OnsagerRun(MemoryRun):
    """One replica of a kind of message passing; `V_hats` are V̂ (S, r, r) of all iterations so far."""

    def __init__(self, *arguments: Any, damping: Steps, fewer: int = 1) -> None:
        self.fewer = fewer
        super().__init__(*arguments)
        self._damping, self.V_hats = Damping(damping), list[np.ndarray]()

    def sum_paths(self, name: str) -> np.ndarray:
        """Return α times an attribute (L, r, r) of the paths, summed over the components, by source."""
        total = np.zeros_like(self.V)
        for path in self.paths:
            total[path.sources] += self.alpha * path.probability * getattr(path, name)
        return total

    def damp(self, C: np.ndarray, W: np.ndarray, onsager: np.ndarray, t: int) -> Preconditioned:
        """Return the step β C of iteration t; V moves toward W, and the Onsager memory has the response `onsager`."""
        beta = self._damping(t)
        self.V = (1 - beta) * self.V + beta * W
        for path in self.paths:
            path.remember(onsager, beta)
        return Preconditioned(C=beta * C)


class CurrentMinimaPaths(OnsagerPaths):
    """Sampled paths with their current minima; `hold` is true if each keeps its minimum at the next evaluation."""

    hold = False

    def evaluate(self, z: np.ndarray, now: Overlaps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the losses at the fields of the data, the forces g, and their mean derivative −V̂/α.

        Jumps of g at these fields are part of the responses to stored times.
        """
        params = self.fields.terms.params
        out = denoise(self.model.loss, params, z - self.D, now.V, self.minima, hold=self.hold)
        self.minima, self.V_hat = out.z, out.response.mean(axis=0)
        return sample_derivatives(self.model.loss, params, z)[0], out.g, -self.V_hat


class CurrentMinimaRun(OnsagerRun):
    """One replica of message passing with current minima from iteration `hold_after` on. Eq. :eq:`current-minima`."""

    def __init__(self, *arguments: Any, hold_after: int, damping: Steps, fewer: int) -> None:
        self._hold_after = hold_after
        super().__init__(CurrentMinimaPaths, *arguments, damping=damping, fewer=fewer)
        self._hold_from(0)

    def _hold_from(self, t: int) -> None:
        """Tell the paths whether they keep their minima at time t."""
        for path in self.paths:
            path.hold = t >= self._hold_after

    def select_step(self, t: int) -> PlainSteps:
        """Return the step β C of iteration t, and update V and the Onsager memories."""
        penalty, law = self.model.penalty, self.model.coordinates
        self.V_hats.append(self.sum_paths("V_hat"))
        C = quadratic_response(penalty, law.gamma.T, self.V_hats[-1])[1]
        W = field_variances(penalty, law.gamma.T, C, law.weight)
        self._hold_from(t + 1)
        return self.damp(C, W, W, t)
