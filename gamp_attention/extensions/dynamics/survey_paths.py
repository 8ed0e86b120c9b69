"""Trajectories of damped survey propagation for d → ∞, at a fixed Parisi parameter y.

The iteration (`gamp_attention.extensions.train.survey`) is message passing with other denoisers: the averages ḡ, R̄ and
Δ over the inner field take the place of g and its response, with V̂_l = α E[R̄_l] and Δ_l = α E[Δ_l]. With the response
R of the weights, the fields are

    ω_l^t = m_l + ω̃_l^t + Σ_{s<t} R_l(t, s) ḡ_l^s − D_l^t.

If ḡ is a continuous function of ω^t, its response to earlier fields cancels with the Onsager memory D. But the local
minima at the nodes of the inner field are continued from one iteration to the next, and they jump: then ḡ^t has a
response to earlier fields, and a response beyond its a.e. derivative, which the iteration does not take into account.
Both follow from Stein's identity (Stein, 1981), as for descent (`stored_times`); all times are stored. The noise of
these coefficients adds a fraction of about α L (t + r (T + 1))/n to the variance of the forces for n paths.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import symmetrize
from gamp_attention.extensions.dynamics.message_passing import OnsagerPaths, OnsagerRun
from gamp_attention.extensions.dynamics.replicas import Trajectory, TrajectoryTask, damping_steps, mean_over_replicas
from gamp_attention.extensions.dynamics.stored_times import ALL_TIMES, follow_replicas
from gamp_attention.extensions.train.survey import average_fields, first_variances, quadratic_clusters
from gamp_attention.gamp.damping import Steps
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps
from gamp_attention.theory.start_law import StartLaw


@dataclass(frozen=True)
class Survey:
    """Survey propagation with a fixed Parisi parameter, an iteration of `train(survey=...)`.

    Parameters
    ----------
    parisi : Parisi parameter y > 0, which multiplies losses of single samples.
    damping : step β in (0, 1], or a sequence of steps, as for `MessagePassing`. By default 0.4, as in
        `train(survey=True)`.

    Raises
    ------
    TypeError, ValueError : if an argument has a wrong type or is out of its range.
    """

    parisi: float
    damping: Steps = 0.4

    def __post_init__(self) -> None:
        object.__setattr__(self, "parisi", check.real("parisi", self.parisi, low=0, strict=True))
        object.__setattr__(self, "damping", damping_steps(self.damping))

    def follow(self, task: TrajectoryTask) -> Trajectory:
        """Return the prediction of all iterations."""
        task.require_ridge("method", self, intercept=False)
        n_paths, start = task.count_paths(4096, task.n_iter), task.start()
        with task.finite("damping"):
            build = partial(SurveyRun, self, task, start, n_paths)
            runs, stacks, _ = follow_replicas(build, task, ALL_TIMES, "survey ")
        numbers = mean_over_replicas(stacks | {"U": np.array([run.U_of_time for run in runs])})
        words = "consistent: the response of jumps is part of the equations"
        return Trajectory(**numbers, method=self, validity=words, stored=np.array(runs[0].stored))


class SurveyPaths(OnsagerPaths):
    """Sampled paths of survey propagation in one component of a mixture."""

    U_of_time: list[np.ndarray]  # (S, r, r) covariances of the inner field at all times so far, of the `SurveyRun`
    spread: np.ndarray  # (L, r, r) mean covariance of g under the inner field

    def evaluate(self, z: np.ndarray, now: Overlaps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the losses at the fields of the data, the forces ḡ, and their mean derivative −(V̂ − yΔ)/α."""
        loss, params, y = self.model.loss, self.fields.terms.params, self.method.parisi
        averages = average_fields(loss, params, z - self.D, now.V, self.U_of_time[-1][self.sources], y, self.minima)
        self.minima, self.spread = averages.z, averages.spread.mean(axis=0)
        return sample_derivatives(loss, params, z)[0], averages.g, y * self.spread - averages.response.mean(axis=0)


class SurveyRun(OnsagerRun):
    """One replica of survey propagation, with U (S, r, r) at all times, including the next (`U_of_time`).

    U begins as in surveys of `train`, and so does V, computed from the labels of the paths, if the start has no V.
    """

    kind = SurveyPaths

    def __init__(self, method: Any, task: TrajectoryTask, start: StartLaw, *arguments: Any) -> None:
        super().__init__(method, task, start, *arguments)
        model, law = self.model, self.model.coordinates
        self.U_of_time = [law.trace[:, None, None] * np.eye(model.rank)]
        if not start.V_is_given:
            samples = [
                (path.model.loss, path.fields.terms.params, path.sources, path.n / (self.alpha * path.probability))
                for path in self.paths
            ]
            self.weights.V = first_variances(model.penalty, law.gamma.T, samples, model.rank, law.weight)[0]
        for path in self.paths:
            path.U_of_time = self.U_of_time

    def respond(self, V_hat: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return C, the new V and the response W + y W' of the Onsager memory; update U."""
        penalty, law, y = self.model.penalty, self.model.coordinates, self.method.parisi
        spread = np.zeros_like(V_hat)
        for path in self.paths:
            spread[path.sources] += self.alpha * path.probability * symmetrize(path.spread)
        new = quadratic_clusters(penalty, law.gamma.T, V_hat + y * spread, spread, y, law.weight)
        self.U_of_time.append((1 - beta) * self.U_of_time[-1] + beta * new.W_inner)
        return new.response, new.W, new.W + y * new.W_inner
