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
from gamp_attention._tools.progress import Progress
from gamp_attention.descent.steps import PlainSteps
from gamp_attention.extensions.dynamics.message_passing import OnsagerPaths, OnsagerRun
from gamp_attention.extensions.dynamics.replicas import (
    Trajectory,
    TrajectoryTask,
    damping_steps,
    mean_over_replicas,
    no_responses,
    stack_replicas,
)
from gamp_attention.extensions.dynamics.stored_times import ALL_TIMES, follow_replicas
from gamp_attention.extensions.train.survey import average_fields, first_variances, quadratic_clusters
from gamp_attention.gamp.damping import Steps
from gamp_attention.problem.denoisers.input import field_variances
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.results import Overlaps


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
        settings: dict[str, Any] = {"parisi": self.parisi, "first_V": not start.V_is_given, "damping": self.damping}
        build, n_steps = partial(SurveyRun, task.model, task.alpha, start, n_paths, **settings), task.n_iter + 1
        bar = Progress("survey ", total=task.n_replicas * n_steps, shown=task.progress)
        with bar, task.finite("damping"):
            runs, _ = follow_replicas([build] * task.n_replicas, task.rng, ALL_TIMES, task.n_iter, bar)
        U = np.array([run.U_of_time[:-1] for run in runs])
        stacks = stack_replicas([run.states for run in runs], [run.losses for run in runs])
        numbers = no_responses(start.V.shape) | mean_over_replicas(stacks)
        numbers |= {"U": U.mean(axis=0), "U_error": U.std(axis=0, ddof=1) / np.sqrt(len(runs))}
        numbers["V_hat"] = np.mean([run.V_hats[:-1] for run in runs], axis=0)
        words = "consistent: the response of jumps is part of the equations"
        return Trajectory(**numbers, method=self, validity=words, stored=np.array(runs[0].stored))


class SurveyPaths(OnsagerPaths):
    """Sampled paths of survey propagation in one component of a mixture; `SurveyRun` sets `parisi` and U."""

    parisi: float
    U: np.ndarray  # (L, r, r) covariances of the inner field
    inner: np.ndarray  # (L, r, r) mean response at a given inner field
    spread: np.ndarray  # (L, r, r) mean covariance of g under the inner field

    def evaluate(self, z: np.ndarray, now: Overlaps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the losses at the fields of the data, the forces ḡ, and their mean derivative −(V̂ − yΔ)/α."""
        loss, params = self.model.loss, self.fields.terms.params
        averages, self.minima = average_fields(loss, params, z - self.D, now.V, self.U, self.parisi, self.minima)
        self.inner, self.spread = averages.response.mean(axis=0), averages.spread.mean(axis=0)
        self.V_hat = self.inner - self.parisi * self.spread
        return sample_derivatives(loss, params, z)[0], averages.g, -self.V_hat


class SurveyRun(OnsagerRun):
    """One replica of survey propagation, with U (S, r, r) at all times so far, and at the next (`U_of_time`).

    U begins as in surveys of `train`. If `first_V` is true, V does, too, computed from the labels of the paths.
    """

    def __init__(self, *arguments: Any, parisi: float, first_V: bool, damping: Steps) -> None:
        self._parisi = parisi
        super().__init__(SurveyPaths, *arguments, damping=damping)
        model, law = self.model, self.model.coordinates
        self._U, self.U_of_time = law.trace[:, None, None] * np.eye(model.rank), list[np.ndarray]()
        if first_V:
            samples = [
                (path.model.loss, path.fields.terms.params, path.sources, path.n / (self.alpha * path.probability))
                for path in self.paths
            ]
            self.V = first_variances(model.penalty, law.gamma.T, samples, model.rank, law.weight)[0]
        self._share_U()

    def _share_U(self) -> None:
        """Store U of this time, and give it to the paths."""
        self.U_of_time.append(self._U)
        for path in self.paths:
            path.U, path.parisi = self._U[path.sources], self._parisi

    def select_step(self, t: int) -> PlainSteps:
        """Return the step β C of iteration t, and update V, U and the Onsager memories."""
        penalty, law, y = self.model.penalty, self.model.coordinates, self._parisi
        self.V_hats.append(symmetrize(self.sum_paths("V_hat")))
        inner, spread = (symmetrize(self.sum_paths(name)) for name in ("inner", "spread"))
        new = quadratic_clusters(penalty, law.gamma.T, inner, spread, y)
        W = field_variances(penalty, law.gamma.T, new.inner, law.weight)
        W_inner = symmetrize(np.einsum("k,kl,kab->lab", law.weight, law.gamma, new.covariance))
        beta = self._damping(t)
        self._U = (1 - beta) * self._U + beta * W_inner
        self._share_U()
        return self.damp(new.response, W, W + y * W_inner, t)
