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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import format_to_error
from gamp_attention._tools.numerics import symmetrize
from gamp_attention._tools.progress import Progress
from gamp_attention._tools.statistics import half_width
from gamp_attention.extensions.dynamics import replicas
from gamp_attention.extensions.dynamics.field_paths import min_paths
from gamp_attention.extensions.dynamics.message_paths import follow
from gamp_attention.extensions.dynamics.replicas import Trajectory, TrajectoryTask
from gamp_attention.extensions.dynamics.stored_times import Compression, Forces, MemoryRun, StoredPaths, follow_replicas
from gamp_attention.gamp.damping import Damping, Steps
from gamp_attention.problem.denoisers.input import field_variances
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.weights import jump_shift, linear_response

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
        object.__setattr__(self, "damping", replicas.damping_steps(self.damping))
        if self.hold_after is not None:
            check.integer("hold_after", self.hold_after, low=0)

    def follow(self, task: TrajectoryTask) -> Trajectory:
        """Return the prediction of all iterations."""
        if self.hold_after is None:
            return self._follow_messages(task)
        task.require_ridge("hold_after", self.hold_after, intercept=False)
        return self._follow_current_minima(task)

    def _follow_messages(self, task: TrajectoryTask, fewer: int = 4) -> Trajectory:
        """Return the trajectory with global minima.

        Noise of V̂ enters later overlaps and losses at second order. They therefore have a bias that is inversely
        proportional to the number of paths, and that replicas do not show. The bias is estimated from replicas with
        `fewer` times fewer paths, and is part of the errors. (Values that are extrapolated to infinitely many paths
        have larger errors, because the bias of few paths grows faster: with 64 paths, losses of three columns became
        negative.)
        """
        model, n_iter, n_paths, start = task.model, task.n_iter, task.count_paths(4096, task.n_iter), task.start()
        n_few = max(n_paths // fewer, 3 * min_paths(model, n_iter) // 4) // 2 * 2
        with task.finite("damping"):
            runs = [
                [follow(model, task.alpha, start, self.damping, n_iter, size, task.rng) for _ in range(task.n_replicas)]
                for size in (n_paths, n_few)
            ]
            many, few = (replicas.stack_replicas([rows for rows, _ in each]) for each in runs)
            hats = [hats for _, hats in runs[0]]
            bias = {name: (few[name].mean(axis=0) - many[name].mean(axis=0)) / (n_paths / n_few - 1) for name in many}
            shift = np.array([[jump_shift(model, each) for each in of_replica] for of_replica in hats]).mean(axis=0)
            V, V_derivative = (
                np.array([[getattr(each, name) for each in of_replica] for of_replica in hats])
                for name in ("V", "V_derivative")
            )
            stein, derivative = (np.einsum("ntlaa->nt", values) for values in (V, V_derivative))
            largest = np.maximum(np.maximum(np.abs(stein), np.abs(derivative)), 1e-300)
            jumps = {"V_hat": V, "jump_mass": V - V_derivative, "jump_share": (stein - derivative) / largest}
            numbers = replicas.mean_over_replicas(many | jumps, bias) | {"jump_shift": shift}
            unsure = 2 * half_width(jumps["jump_share"] - numbers["jump_share"])
            validity = _state_validity(numbers["jump_share"], numbers["jump_share_error"], unsure, shift)
        return Trajectory(**numbers, method=self, validity=validity)

    def _follow_current_minima(
        self, task: TrajectoryTask, tolerance: float = 1e-2, fewer: int = 4, unsure: float = 2.0
    ) -> Trajectory:
        """Return the trajectory with current minima from iteration `hold_after` on.

        Results have a bias, because responses are averages over the paths. Each replica is therefore repeated with
        `fewer` times fewer paths, and the results are extrapolated linearly in the inverse number of paths. The errors
        contain the spread of replicas, `unsure` times the change by this extrapolation (2 covers a bias that decreases
        as N^(−1/2) for N paths), and the error of the compression with this `tolerance`.
        """
        n_paths, start, n = task.count_paths(2**15, 0), task.start(), task.n_replicas
        build = partial(OnsagerRun, self, task, start, n_paths)
        compression = Compression(tolerance, doubling=False)
        with Progress("iteration ", 2, task.progress) as bar, task.finite("damping"):
            runs, many, by_compression = follow_replicas(build, task, compression, "")
            bar.update()
            build, compression = partial(build, fewer=fewer), replace(compression, n_compared=0)
            _, few, _ = follow_replicas(build, task, compression, "")
        values, errors = dict[str, np.ndarray](), dict[str, np.ndarray]()
        for name in many:
            change = (many[name].mean(axis=0) - few[name].mean(axis=0)) / (fewer - 1)
            values[name] = many[name].mean(axis=0) + change
            variances = [np.var(stack[name], axis=0, ddof=1) / n for stack in (many, few)]
            spread = variances[0] * (fewer / (fewer - 1)) ** 2 + variances[1] / (fewer - 1) ** 2
            errors[name] = np.sqrt(spread + (unsure * change) ** 2 + by_compression[name] ** 2)
        validity = "consistent: the equations contain kept minima and jumps, and hold on every branch"
        numbers, stored = replicas.join_errors(values, errors), np.array(runs[0].stored)
        return Trajectory(**numbers, method=self, validity=validity, stored=stored)


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
        jumps = f"unknown: too few paths show whether the proximal map jumps (jump mass {mass} % of V̂)"
        return f"{jumps}; a larger n_paths of gamp_attention.trajectory shows it"
    words = f"runs deviate, because the proximal map jumps ({largest}, at iteration {int(np.argmin(share))})"
    if shift.min() < 0:
        words += f"; expect V of runs about {float(f'{-100 * shift.min():.2g}'):g} % lower"
    follows = "with IterationOptions(V_hat=trajectory.V_hat) runs follow this prediction"
    return f"{words}; with the ridge, hold_after=20 predicts the runs, and {follows}"


class OnsagerPaths(StoredPaths):
    """Sampled paths of message passing in one component of a mixture, with current minima and Onsager memories."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.minima: np.ndarray | None = None  # proximal minima of the paths at the latest time
        self.D = np.zeros((self.n, self.model.n_tokens, self.model.rank))  # memory: the fields of the data are ω + D

    def evaluate(self, z: np.ndarray, now: Overlaps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the losses at the fields of the data, the forces g, and their mean derivative −V̂/α.

        Each path keeps its minimum from time `hold_after` on. Jumps of g at these fields are part of the responses to
        stored times.
        """
        params, hold = self.fields.terms.params, self.t >= self.method.hold_after
        out = denoise(self.model.loss, params, z - self.D, now.V, self.minima, hold=hold)
        self.minima = out.z
        return sample_derivatives(self.model.loss, params, z)[0], out.g, -out.response.mean(axis=0)

    def remember(self, W: np.ndarray, beta: float) -> None:
        """Update the Onsager memory with W (S, r, r) after a step β, as runs do."""
        self.D = (1 - beta) * self.D + beta * np.einsum("lab,lbn->nla", W[self.sources], self.force)


class OnsagerRun(MemoryRun):
    """One replica of message passing with current minima from iteration `hold_after` on. Eq. :eq:`current-minima`.

    Rows have V̂ (S, r, r) without jumps, if a step follows.
    """

    kind = OnsagerPaths

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._damping = Damping(self.method.damping)

    def respond(self, V_hat: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return C (K, r, r), the new V before damping, and the response W of the Onsager memory, for a step β."""
        law, C = self.model.coordinates, linear_response(self.model, V_hat)[1]
        W = field_variances(self.model.penalty, law.gamma.T, C, law.weight)
        return C, W, W

    def select_step(self, t: int, forces: Forces) -> Callable[..., Any]:
        """Return the step Q ← Q − β C ∇R of iteration t, and update V and the Onsager memories."""
        beta = self._damping(t)
        V_hat = self.rows[-1]["V_hat"] = symmetrize(-forces.response[:, -1])
        C, V, W = self.respond(V_hat, beta)
        self.weights.V = (1 - beta) * self.weights.V + beta * V
        for path in self.paths:
            path.remember(W, beta)
        K, r, _ = C.shape
        return lambda x, unused, slope: (x - (beta * C).reshape(K, *[1] * (x.ndim - 3), r, r) @ slope, unused)
