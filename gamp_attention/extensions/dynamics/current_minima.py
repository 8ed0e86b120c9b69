"""Message passing on data for d → ∞, if its samples keep their current proximal minima: the end of runs of GAMP.

After `hold_after` iterations, each sample of a run keeps the proximal minimum that continues its last minimum, and the
response V̂ is the average of the derivatives of samples. The output function then depends on all earlier fields, and
its jumps are not in V̂. The Onsager terms therefore do not cancel the memory of the data, and the state evolution of
`message_paths` does not describe the run. With the ridge, the iteration is nevertheless a first-order method,

    Q^{t+1} = Q^t − β C_t (λ Q^t − X̃ᵀg^t),   C_t = (λ + Σ_l γ_l V̂_l^t)⁻¹,

for which the equations of descent hold (Celentano, Cheng and Montanari, 2021), with β C_t in place of the step size and
g in place of −∇ℓ. Along a path, z^t = X̃Q^t = m^t + ω̃^t + h^t with the memory h^t = Σ_s R(t, s) g^s, ω^t = z^t − D^t
with the Onsager memory D^{t+1} = (1 − β) D^t + β W g^t, and each proximal step starts from the last minimum of the
path. The mean responses of g to earlier fields, including jumps, follow from Stein's identity, and histories are stored
at a few of the times, as for descent (`stored_times`). Eq. :eq:`current-minima`.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gamp_attention._tools.progress import Progress
from gamp_attention.descent.steps import PlainSteps
from gamp_attention.extensions.dynamics.replicas import TrajectoryTask, join_errors, stack_replicas
from gamp_attention.extensions.dynamics.stored_times import Compression, MemoryRun, StoredPaths, follow_replicas
from gamp_attention.gamp.damping import Damping, Steps
from gamp_attention.problem.denoisers.input import field_variances, quadratic_response
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps
from gamp_attention.theory.start_law import StartLaw


@dataclass(frozen=True)
class Preconditioned(PlainSteps):
    """The step Q ← Q − β C ∇R of message passing, in the form of a method of descent."""

    C: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (K, r, r) β C for each class of coordinates

    def step(self, x: np.ndarray, velocity: np.ndarray, slope: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x after a step with the gradient `slope`, both (K, …, r, n), and an unused velocity."""
        K, r, _ = self.C.shape
        return x - self.C.reshape(K, *[1] * (x.ndim - 3), r, r) @ slope, velocity


class OnsagerPaths(StoredPaths):
    """Sampled paths of message passing in one component of a mixture, with their Onsager memories.

    Attributes
    ----------
    minima : proximal minima of the paths at the latest time; None before the first.
    D : (n, L, r) Onsager memory: the fields of the data are ω + D.
    V_hat : (L, r, r) average derivative −∂g/∂ω at the latest time, without jumps.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.minima: np.ndarray | None = None
        self.D, self.V_hat = np.zeros((self.n, self.model.n_tokens, self.model.rank)), np.zeros(0)

    def remember(self, W: np.ndarray, beta: float) -> None:
        """Update the Onsager memory with W (S, r, r) after a step β, as runs do."""
        force = self.force.transpose(2, 0, 1)
        self.D = (1 - beta) * self.D + beta * np.einsum("lab,nlb->nla", W[self.sources], force)


class OnsagerRun(MemoryRun):
    """One replica of a kind of message passing; arguments as for `MemoryRun`, and the damping.

    Attributes
    ----------
    V_hats : (S, r, r) V̂ of all iterations so far.
    """

    def __init__(self, *arguments: Any, damping: Steps, fewer: int = 1) -> None:
        super().__init__(*arguments, fewer=fewer)
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
        super().__init__(*arguments, damping=damping, fewer=fewer)

    def build_paths(self, *arguments: Any) -> CurrentMinimaPaths:
        """Return the paths of a component."""
        paths = CurrentMinimaPaths(*arguments)
        paths.hold = self._hold_after == 0
        return paths

    def select_step(self, t: int) -> PlainSteps:
        """Return the step β C of iteration t, and update V and the Onsager memories."""
        penalty, law = self.model.penalty, self.model.coordinates
        self.V_hats.append(self.sum_paths("V_hat"))
        C = quadratic_response(penalty, law.gamma.T, self.V_hats[-1])[1]
        W = field_variances(penalty, law.gamma.T, C, law.weight)
        for path in self.paths:
            path.hold = t + 1 >= self._hold_after
        return self.damp(C, W, W, t)


def follow_current_minima(
    task: TrajectoryTask, start: StartLaw, damping: Steps, hold_after: int, n_paths: int, bar: Progress,
    tolerance: float = 1e-2, fewer: int = 4, unsure: float = 2.0,
) -> dict[str, Any]:  # fmt: skip
    """Return message passing with current minima at times 0, …, n_iter, as fields of `Trajectory`.

    Results have a bias, because responses are averages over the paths. Each replica is therefore repeated with `fewer`
    times fewer paths, and the results are extrapolated linearly in the inverse number of paths. The errors contain
    the spread of replicas, `unsure` times the change by this extrapolation (2 covers a bias that decreases as N^(−1/2)
    for N paths), and the error of the compression with this `tolerance`.
    """
    build = partial(CurrentMinimaRun, task.model, task.alpha, start, n_paths, damping=damping, hold_after=hold_after)
    stacks, stored, by_compression = [], list[np.ndarray](), dict[str, np.ndarray]()
    for divisor, n_compared in ((1, Compression.n_compared), (fewer, 0)):
        compression = Compression(tolerance, doubling=False, n_compared=n_compared)
        builds = [partial(build, fewer=divisor)] * task.n_replicas
        runs, errors = follow_replicas(builds, task.rng, compression, task.n_iter, bar)
        V_hat = np.array([run.V_hats[:-1] for run in runs])
        stacks.append(stack_replicas([run.run for run in runs]) | {"V_hat": V_hat})
        stored.append(np.array(runs[0].stored))
        by_compression |= errors
    (many, few), values, errors = stacks, {}, {}
    for name in many:
        change = (many[name].mean(axis=0) - few[name].mean(axis=0)) / (fewer - 1)
        values[name] = many[name].mean(axis=0) + change
        variances = [np.var(stack[name], axis=0, ddof=1) / task.n_replicas for stack in stacks]
        spread = variances[0] * (fewer / (fewer - 1)) ** 2 + variances[1] / (fewer - 1) ** 2
        errors[name] = np.sqrt(spread + (unsure * change) ** 2 + np.square(by_compression.get(name, 0.0)))
    return join_errors(values, errors) | {"stored": stored[0]}
