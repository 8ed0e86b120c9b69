"""Trajectories of damped GAMP, with global proximal minima or as it runs on data.

With global minima the Onsager terms cancel the memory of the data, so that the paths have none (`message_paths`). If
samples keep their current minima, the iteration has a memory (`current_minima`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import format_to_error
from gamp_attention._tools.progress import Progress
from gamp_attention._tools.statistics import half_width
from gamp_attention.extensions.dynamics.current_minima import follow_current_minima
from gamp_attention.extensions.dynamics.field_paths import min_paths
from gamp_attention.extensions.dynamics.message_paths import follow
from gamp_attention.extensions.dynamics.replicas import (
    Trajectory,
    TrajectoryTask,
    damping_steps,
    mean_over_replicas,
    no_responses,
    stack_replicas,
)
from gamp_attention.gamp.damping import Steps
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
        n_paths, start, n_steps = task.count_paths(2**15, 0), task.start(), 2 * task.n_replicas * (task.n_iter + 1)
        with Progress("iteration ", n_steps, task.progress) as bar, task.finite("damping"):
            numbers = follow_current_minima(task, start, self.damping, self.hold_after, n_paths, bar)
        validity = "consistent: the equations contain kept minima and jumps, and hold on every branch"
        numbers = no_responses(start.V.shape) | numbers
        return Trajectory(**numbers, method=self, validity=validity)

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
            return [hats for _, hats, _ in runs], stack_replicas((states, losses) for states, _, losses in runs)

        n_few = max(n_paths // fewer, 3 * min_paths(model, n_iter) // 4) // 2 * 2
        with task.finite("damping"):
            (hats, many), (_, few) = replicas(n_paths), replicas(n_few)
            bias = {name: (few[name].mean(axis=0) - many[name].mean(axis=0)) / (n_paths / n_few - 1) for name in many}
            shift = np.array([[jump_shift(model, each) for each in of_replica] for of_replica in hats]).mean(axis=0)
            jumps, unsure = _average_jumps(hats)
            numbers = no_responses(start.V.shape) | mean_over_replicas(many, bias) | jumps | {"jump_shift": shift}
            validity = _state_validity(jumps["jump_share"], jumps["jump_share_error"], unsure, shift)
        return Trajectory(**numbers, method=self, validity=validity)


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
    """Return a statement whether message passing on data follows the prediction.

    Parameters
    ----------
    share : (T,) relative jump mass, never positive except for noise.
    error : (T,) standard error of `share`.
    unsure : (T,) size up to which `share` is not significant.
    shift : (T,) relative change of V without jumps.
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
