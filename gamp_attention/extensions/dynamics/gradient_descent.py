"""Trajectories of gradient descent on the training risk, whose equations assume nothing about the landscape.

Celentano, Cheng and Montanari (2021). The fields depend on the forces of earlier steps, and the weights on the weights
of earlier steps, through responses: averages of derivatives along the sampled paths (`descent_paths`, `field_paths`,
`weight_paths`). Descents that are too long for the memory store their histories at a few of the times
(`compressed_descent`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.progress import Progress
from gamp_attention.descent.steps import DescentSteps
from gamp_attention.extensions.dynamics.compressed_descent import (
    CompressedDescent,
    Compression,
    compression_errors,
    follow_compressed,
)
from gamp_attention.extensions.dynamics.descent_paths import DescentPaths, sum_forces
from gamp_attention.extensions.dynamics.field_paths import bytes_per_path, component_paths, min_paths
from gamp_attention.extensions.dynamics.message_paths import MeanLosses
from gamp_attention.extensions.dynamics.replicas import Trajectory, TrajectoryTask, average_descents, stack_replicas
from gamp_attention.extensions.dynamics.weight_paths import build_weights
from gamp_attention.extensions.spectra.sample_starts import require_spectral
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.start_law import StartLaw


@dataclass(frozen=True)
class GradientDescent(DescentSteps):
    """Gradient descent on the training risk, with momentum or minibatches: the steps of `minimize_risk`.

    Parameters
    ----------
    lr : step size in Q ← Q − lr ∇R(Q), or a sequence of step sizes, whose last entry is repeated. For penalties other
        than the ridge the steps are proximal, Q ← prox(Q − lr ∇f(Q)), without momentum.
    momentum : μ in [0, 1): the heavy-ball method of Polyak (1964).
    nesterov : whether the method is Nesterov's (1983), with momentum μ.
    batch : fraction of the data in (0, 1] that is drawn at every step, without momentum; None for all data.
    compression : for all data and the ridge: relative standard deviation in [1e-6, 0.1]. If given, histories are stored
        only at times at which the fields are not determined by the stored times up to this deviation. Memory then
        hardly grows with the number of iterations, and time is linear in it. By default histories are compressed, with
        0.001, if they would need more than `max_memory` or more paths, or begin at a spectral start. Errors contain the
        error of the compression: some replicas are repeated with a 3.2 times larger tolerance.

    Raises
    ------
    TypeError, ValueError : if an argument has a wrong type or is out of its range.
    """

    batch: float | None = None
    compression: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch is not None:
            check.real("batch", self.batch, low=0, high=1, strict=True)
            if self.momentum:
                raise check.fail_words("batch", f"{self.batch} with momentum", "None for descent with momentum")
        if self.compression is not None:
            check.real("compression", self.compression, low=1e-6, high=0.1)
            if self.batch is not None:
                needs = "None with a batch, as random minibatches cannot be compressed"
                raise check.fail("compression", self.compression, needs)

    def follow(self, task: TrajectoryTask) -> Trajectory:
        """Return the prediction of all steps."""
        model, n_iter = task.model, task.n_iter
        if task.is_spectral:
            require_spectral(model)
        if not model.penalty.quadratic:
            name = type(model.penalty).__name__
            if self.compression is not None:
                needs = f"None for {name}, as only histories with the ridge can be compressed"
                raise check.fail("compression", self.compression, needs)
            if self.momentum:
                raise check.fail("momentum", self.momentum, f"0 for {name}, as proximal steps have no momentum")
        if self.batch is not None:
            task.refuse_spectral("descent with minibatches")
        n_paths = 4096 if task.n_paths is None else task.n_paths
        compression = self._choose_compression(task, n_paths)
        task.count_paths(n_paths, n_iter if compression is None else 0)
        starts = task.starts(needs_V=False)
        if compression is not None:
            return self._follow_compressed(task, starts, n_paths, compression)
        needed, paths = _required_memory(model, n_iter, n_paths)
        if needed > task.max_memory:
            needs = f"at least {needed:.2g} bytes for {n_iter} steps of {paths} paths, or fewer of either"
            raise check.fail("max_memory", task.max_memory, needs)
        runs = []
        with Progress("descent ", total=task.n_replicas, shown=task.progress) as bar, task.finite("lr"):
            for start in starts:
                runs.append(follow_descent(model, task.alpha, start, self, n_iter, n_paths, task.rng))
                bar.update()
        return average_descents(stack_replicas(runs), method=self)

    def _choose_compression(self, task: TrajectoryTask, n_paths: int) -> Compression | None:
        """Return the compression of histories, by default if they are long; None if all times are stored."""
        compression, model = Compression(max_memory=task.max_memory), task.model
        if self.compression is not None:
            return replace(compression, tolerance=self.compression)
        if self.batch is not None or not model.penalty.quadratic:
            return None
        fits = n_paths >= min_paths(model, task.n_iter)
        fits = fits and _required_memory(model, task.n_iter, n_paths)[0] <= task.max_memory
        return None if fits and not task.is_spectral else compression

    def _follow_compressed(
        self, task: TrajectoryTask, starts: Sequence[StartLaw], n_paths: int, compression: Compression
    ) -> Trajectory:
        """Return the means over replicas, and errors that contain the error of the compression."""
        n_steps, settings = task.n_replicas * (task.n_iter + 1), (task.rng, compression, task.n_iter)
        builds = [partial(CompressedDescent, task.model, task.alpha, start, self, n_paths) for start in starts]
        with Progress("descent ", total=n_steps, shown=task.progress) as bar, task.finite("lr"):
            pairs = [
                follow_compressed(build, *settings, i < compression.n_compared, bar) for i, build in enumerate(builds)
            ]
        stacks, stored = stack_replicas([fine.run for fine, _ in pairs]), np.array(pairs[0][0].stored)
        errors = compression_errors(pairs)
        return average_descents(stacks, errors, method=self, compression=compression.tolerance, stored=stored)


def follow_descent(
    model: Model, alpha: float, start: StartLaw, method: GradientDescent, n_iter: int, n_paths: int,
    rng: np.random.Generator,
) -> tuple[list[Overlaps], list[MeanLosses]]:  # fmt: skip
    """Return overlaps and losses at every step, from one set of sampled paths. Eq. :eq:`descent-fields`."""
    weights = build_weights(model, start, n_iter, n_paths, rng)
    even, batch = Symmetry.of(model, start.overlaps(model)).m_zero, 1.0 if method.batch is None else method.batch
    paths = [DescentPaths(component, n_paths, n_iter, batch, rng, even) for component in model.components]
    states, losses = [], []
    for t in range(n_iter + 1):
        now, q, memory = weights.overlaps(), weights.covariances(), weights.memory()
        forces = sum_forces(model, paths, [path.advance(alpha, now, q, memory) for path in paths])
        states.append(now)
        losses.append(MeanLosses(forces.loss + weights.penalty(), forces.test_error))
        if t < n_iter:
            weights.descend(forces, method)
    return states, losses


def _required_memory(model: Model, n_iter: int, n_paths: int) -> tuple[int, int]:
    """Return the memory in bytes of derivatives along the paths of descents, and the number of paths."""
    paths = sum(component_paths(component, n_paths, n_iter) for component in model.components)
    needed = paths * bytes_per_path(n_iter + 1, model.n_tokens * model.rank)
    if not model.penalty.quadratic:
        needed += 4 * n_paths * bytes_per_path(n_iter, model.rank)
    return needed, paths
