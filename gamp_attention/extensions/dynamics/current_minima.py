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
at a few of the times, as in `compressed_descent`. Eq. :eq:`current-minima`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gamp_attention._tools.progress import Progress
from gamp_attention.descent.steps import PlainSteps
from gamp_attention.extensions.dynamics.compressed_descent import (
    CompressedDescent,
    CompressedPaths,
    Compression,
    compression_errors,
    follow_compressed,
)
from gamp_attention.extensions.dynamics.descent_paths import DescentForces
from gamp_attention.extensions.dynamics.replicas import join_errors, stack_replicas
from gamp_attention.gamp.damping import Damping, Steps
from gamp_attention.problem.denoisers.input import field_variances, quadratic_response
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import select_sources
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.start_law import StartLaw


@dataclass(frozen=True)
class Preconditioned(PlainSteps):
    """The step Q ← Q − β C ∇R of message passing, in the form of a method of descent."""

    C: np.ndarray = field(default_factory=lambda: np.zeros(0))  # (K, r, r) β C for each class of coordinates

    def step(self, x: np.ndarray, velocity: np.ndarray, slope: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x after a step with the gradient `slope`, both (K, …, r, n), and an unused velocity."""
        K, r, _ = self.C.shape
        return x - self.C.reshape(K, *[1] * (x.ndim - 3), r, r) @ slope, velocity


class CurrentMinimaPaths(CompressedPaths):
    """Sampled paths of message passing in one component of a mixture, with their minima and Onsager memories.

    Attributes
    ----------
    hold : whether each path keeps its current minimum at the next evaluation.
    V_hat : (L, r, r) α times the average derivative −∂g/∂ω of the latest evaluation, without jumps.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.hold, self.V_hat = False, np.zeros(0)
        self._z: np.ndarray | None = None
        self._D = np.zeros((self.n, self.model.n_tokens, self.model.rank))

    def evaluate_forces(self, alpha: float, overlaps: Overlaps) -> DescentForces:
        """Return the forces g at this time, without `q`, and the loss at the fields of the training data.

        The direct response is −V̂. Jumps of g at this field are part of the responses to stored times.
        """
        now, params = select_sources(overlaps, self.sources), self._paths.terms.params
        z = self._training_fields(now)
        out = denoise(self.model.loss, params, z - self._D, now.V, self._z, hold=self.hold)
        self._z, self._force = out.z, out.g.transpose(1, 2, 0)
        self.V_hat = alpha * out.response.mean(axis=0)
        value, _, _ = sample_derivatives(self.model.loss, params, z)
        return self._average(alpha, now, value, -self.V_hat)

    def remember(self, W: np.ndarray, beta: float) -> None:
        """Update the Onsager memory with W (S, r, r) after a step β, as runs do."""
        force = self._force.transpose(2, 0, 1)
        self._D = (1 - beta) * self._D + beta * np.einsum("lab,nlb->nla", W[self.sources], force)


class CurrentMinimaRun(CompressedDescent):
    """One replica of message passing with current minima, one iteration for each call of `advance`.

    Eq. :eq:`current-minima`.

    Parameters
    ----------
    model : the model, with a quadratic penalty and without an intercept.
    alpha : sample complexity.
    start : second moments of the initial weights.
    damping : step β, or a sequence of steps, see `Damping`.
    hold_after : iteration from which paths keep their current minima; None for global minima.
    n_paths, rng, compression : as for `CompressedDescent`.
    fewer : number by which the number of paths is divided.

    Attributes
    ----------
    V_hats : (S, r, r) V̂ of all iterations so far.
    """

    _type_of_paths = CurrentMinimaPaths

    def __init__(
        self, model: Model, alpha: float, start: StartLaw, damping: Steps, hold_after: int | None, n_paths: int,
        rng: np.random.Generator, compression: Compression, fewer: int = 1,
    ) -> None:  # fmt: skip
        n_sampled = n_paths // fewer // 2 * 2
        super().__init__(model, alpha, start, Preconditioned(), n_sampled, rng, compression)
        self._n_given = n_paths
        self._damping, self._hold_after = Damping(damping), hold_after
        self.V_hats: list[np.ndarray] = []

    def advance(self, reference: CompressedDescent | None = None) -> None:
        """Compute overlaps and losses at the next time, and take an iteration. Arguments as for `CompressedDescent`."""
        for path in self._paths:
            path.hold = self._hold_after is not None and len(self.states) >= self._hold_after
        super().advance(reference)

    def _select_method(self, t: int) -> PlainSteps:
        """Return the step β C of iteration t, and update V and the Onsager memories."""
        V_hat, beta, law = np.zeros_like(self._V), self._damping(t), self._model.coordinates
        for path in self._paths:
            V_hat[path.sources] += path.probability * path.V_hat
        C = quadratic_response(self._model.penalty, law.gamma.T, V_hat)[1]
        W = field_variances(self._model.penalty, law.gamma.T, C, law.weight)
        self._V = (1 - beta) * self._V + beta * W
        for path in self._paths:
            path.remember(W, beta)
        self.V_hats.append(V_hat)
        return Preconditioned(C=beta * C)


def follow_current_minima(
    model: Model, alpha: float, starts: Sequence[StartLaw], damping: Steps, hold_after: int | None, n_iter: int,
    n_paths: int, rng: np.random.Generator, compression: Compression, bar: Progress, fewer: int = 4,
    unsure: float = 2.0,
) -> dict[str, Any]:  # fmt: skip
    """Return message passing with current minima at times 0, …, n_iter, as fields of `Trajectory`; one start a replica.

    Results have a bias, because responses are averages over the paths. Each replica is therefore repeated with `fewer`
    times fewer paths, and the results are extrapolated linearly in the inverse number of paths. The errors contain
    the spread of replicas, `unsure` times the change by this extrapolation (2 covers a bias that decreases as N^(−1/2)
    for N paths), and the error of the compression: some replicas are repeated with a larger tolerance and equal random
    numbers.
    """
    n_replicas, n_compared = len(starts), compression.n_compared

    def run(start: StartLaw, divisor: int, compared: bool) -> tuple[CurrentMinimaRun, CurrentMinimaRun | None]:
        build = partial(CurrentMinimaRun, model, alpha, start, damping, hold_after, n_paths, fewer=divisor)
        return follow_compressed(build, rng, compression, n_iter, compared, bar)

    pairs = [run(start, 1, i < n_compared) for i, start in enumerate(starts)]
    small = [run(start, fewer, False)[0] for start in starts]
    many, few = _stack([fine for fine, _ in pairs]), _stack(small)
    by_compression, values, errors = compression_errors(pairs), {}, {}
    for name in many:
        change = (many[name].mean(axis=0) - few[name].mean(axis=0)) / (fewer - 1)
        values[name] = many[name].mean(axis=0) + change
        variances = [np.var(runs[name], axis=0, ddof=1) / n_replicas for runs in (many, few)]
        spread = variances[0] * (fewer / (fewer - 1)) ** 2 + variances[1] / (fewer - 1) ** 2
        errors[name] = np.sqrt(spread + (unsure * change) ** 2 + np.square(by_compression.get(name, 0.0)))
    return join_errors(values, errors) | {"stored": np.array(pairs[0][0].stored)}


def _stack(runs: list[CurrentMinimaRun]) -> dict[str, np.ndarray]:
    """Return the numbers of all runs and times by name, with the runs as the first axis."""
    return stack_replicas([run.run for run in runs]) | {"V_hat": np.array([run.V_hats[:-1] for run in runs])}
