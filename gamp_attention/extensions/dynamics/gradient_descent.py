"""Trajectories of gradient descent on the training risk, whose equations assume nothing about the landscape.

Histories are stored at a few of the times, except those of minibatches, which no other times determine.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.progress import Progress
from gamp_attention.descent.steps import DescentSteps, PlainSteps
from gamp_attention.extensions.dynamics.replicas import Trajectory, TrajectoryTask, average_descents, stack_replicas
from gamp_attention.extensions.dynamics.stored_times import (
    ALL_TIMES,
    Compression,
    MemoryRun,
    StoredPaths,
    follow_replicas,
)
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps


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
        build = partial(DescentRun, task.model, task.alpha, start, n_paths, method=self)
        n_steps = task.n_replicas * (task.n_iter + 1)
        with Progress("descent ", total=n_steps, shown=task.progress) as bar, task.finite("lr"):
            runs, errors = follow_replicas([build] * task.n_replicas, task.rng, compression, task.n_iter, bar)
        stacks, stored = stack_replicas([run.run for run in runs]), np.array(runs[0].stored)
        return average_descents(stacks, errors, method=self, stored=stored)


class DescentPaths(StoredPaths):
    """Sampled paths of gradient descent on a fraction `batch` of the data. Eq. :eq:`descent-fields`."""

    def __init__(self, *arguments: Any, batch: float) -> None:
        super().__init__(*arguments)
        self._batch = batch

    def evaluate(self, z: np.ndarray, now: Overlaps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return losses, forces f = −∇ℓ(z), which are divided by the batch if a sample is in it, and −E[∇²ℓ]."""
        losses, slope, hess = sample_derivatives(self.model.loss, self.fields.terms.params, z)
        if self._batch < 1:
            copies = self.fields.copies  # minibatches are equal for mirror images
            drawn = np.tile(self.rng.random(self.n * copies // 2) < self._batch, 2 // copies) / self._batch
            slope = drawn[:, None, None] * slope
        L, r = now.m.shape
        return losses, -slope, -np.array([hess.mean(axis=0).reshape(L, r, L, r)[l, :, l] for l in range(L)])


class DescentRun(MemoryRun):
    """One replica of gradient descent; arguments as for `MemoryRun`, and the method."""

    def __init__(self, *arguments: Any, method: GradientDescent) -> None:
        self._method = method
        super().__init__(*arguments)

    def build_paths(self, *arguments: Any) -> DescentPaths:
        """Return the paths of a component."""
        return DescentPaths(*arguments, batch=1.0 if self._method.batch is None else self._method.batch)

    def select_step(self, t: int) -> PlainSteps:
        """Return the method."""
        return self._method
