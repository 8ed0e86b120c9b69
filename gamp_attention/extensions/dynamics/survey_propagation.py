"""Trajectories of survey propagation, message passing with other denoisers (`survey_paths`)."""

from dataclasses import dataclass, replace

import numpy as np

from gamp_attention._tools import check
from gamp_attention.extensions.dynamics.jump_statements import average_jumps, has_jumps, state_mass
from gamp_attention.extensions.dynamics.replicas import (
    Task,
    Trajectory,
    average_replicas,
    damping_steps,
    no_responses,
    stack_replicas,
)
from gamp_attention.extensions.dynamics.survey_paths import follow_survey
from gamp_attention.extensions.spectra.sample_starts import require_spectral
from gamp_attention.gamp.damping import Steps


@dataclass(frozen=True)
class Survey:
    """Survey propagation with a fixed Parisi parameter, the iteration of `survey_step`.

    Parameters
    ----------
    parisi : Parisi parameter y > 0, which multiplies losses of single samples.
    damping : step β in (0, 1], or a sequence of steps, as for `MessagePassing`. By default 0.4, as in
        `run_gamp(survey=True)`.
    jumps : whether the iteration is the one of `survey_step(jumps=True)`, with global minima and the response of jumps.

    Raises
    ------
    TypeError, ValueError : if an argument has a wrong type or is out of its range.
    """

    parisi: float
    damping: Steps = 0.4
    jumps: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parisi", check.real("parisi", self.parisi, low=0, strict=True))
        object.__setattr__(self, "damping", damping_steps(self.damping))
        check.flag("jumps", self.jumps)

    def follow(self, task: Task) -> Trajectory:
        """Return the prediction of all iterations."""
        if task.is_spectral:
            require_spectral(task.model)
        n_paths = task.count_paths(4096, task.n_iter)
        # unless overlaps determine V, it is computed from the labels of the paths
        starts = [s if s.V_is_given else replace(s, V=np.full_like(s.V, np.nan)) for s in task.starts()]
        settings = self.damping, self.parisi, task.n_iter, n_paths, task.rng
        with task.finite("damping"):
            runs = [follow_survey(task.model, task.alpha, start, *settings, jumps=self.jumps) for start in starts]
        states, all_U, all_hats, losses = map(list, zip(*runs, strict=True))
        U = np.array(all_U)
        numbers = no_responses(starts[0].V.shape) | average_replicas(stack_replicas(zip(states, losses, strict=True)))
        numbers |= {"U": U.mean(axis=0), "U_error": U.std(axis=0, ddof=1) / np.sqrt(len(runs))}
        if starts[0].forces is not None:  # no separate jump mass
            numbers["V_hat"] = np.mean([[hats.V_derivative for hats in run] for run in all_hats], axis=0)
            words = "consistent: the memory of the start and the response of jumps are part of the equations"
        else:
            jumps, share, unsure = average_jumps(all_hats)
            words = "consistent: the response of jumps is part of the equations"
            words += f" ({state_mass(share)})" if has_jumps(share, unsure) else ""
            numbers |= jumps
        return Trajectory(**numbers, method=self, validity=words)
