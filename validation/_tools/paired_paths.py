"""Two algorithms on the same data for d → ∞: the equations of one first-order method with two columns of weights.

Both algorithms use the same matrix of tokens, but neither depends on the weights of the other. Together they are a
first-order method whose weights have two columns, x = (x_1, x_2), and whose forces are (g_1, g_2). The equations of
`compressed_descent` then hold with 2 × 2 covariances of the fields and of the noises, and with diagonal responses,
because ∂g_a/∂ω_b = 0 for a ≠ b. The covariance q_12 of the fields is the overlap of the weights of both algorithms.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

import gamp_attention as ga
from gamp_attention.descent.steps import DescentSteps, PlainSteps
from gamp_attention.extensions.dynamics.compressed_descent import CompressedDescent, CompressedPaths, Compression
from gamp_attention.extensions.dynamics.descent_paths import DescentForces
from gamp_attention.problem.denoisers.input import quadratic_response
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.problem.losses.point import sample_derivatives
from gamp_attention.theory.models.model import Component
from gamp_attention.theory.start_law import StartLaw, start_law


class Algorithm(Protocol):
    """One of the algorithms, for one column of weights."""

    def evaluate(self, model: ga.Model, alpha: float, params: np.ndarray, z: np.ndarray, t: int) -> Any:
        """Return forces (n, L, 1) and the direct response (L, 1, 1), for training fields z (n, L, 1) at time t."""

    def step(self, x: np.ndarray, velocity: np.ndarray, slope: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x and the velocity after step t with the gradient `slope`, all (K, …)."""


@dataclass
class Descent:
    """Gradient descent or the heavy-ball method from time `begin` on; the weights are constant before."""

    method: DescentSteps

    def evaluate(self, model: ga.Model, alpha: float, params: np.ndarray, z: np.ndarray, t: int) -> Any:
        """Return −∇ℓ and −α E[∇²ℓ]."""
        _, slope, hess = sample_derivatives(model.loss, params, z)
        return -slope, -alpha * np.diagonal(hess.mean(axis=0))[:, None, None]

    def step(self, x: np.ndarray, velocity: np.ndarray, slope: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x and the velocity after a step."""
        return self.method.step(x, velocity, slope, t)


class MessagePassing:
    """Message passing with steps β, global minima in `hold_after` iterations, and current minima later.

    If `descent` is given, it continues from the weights after `leave` iterations.
    """

    def __init__(self, beta: float, hold_after: int, descent: DescentSteps | None = None, leave: int = 0) -> None:
        self._beta, self._hold_after, self._leave = beta, hold_after, leave
        self._descent = None if descent is None else Descent(descent)
        self._V, self._z, self._D, self._C = np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0)

    def evaluate(self, model: ga.Model, alpha: float, params: np.ndarray, z: np.ndarray, t: int) -> Any:
        """Return g and −V̂, and update V, the minima and the Onsager memory."""
        if self._descent is not None and t >= self._leave:
            return self._descent.evaluate(model, alpha, params, z, t)
        if t == 0:
            self._V, self._D = start_law(model, "positional").V, np.zeros_like(z)
        start = self._z if t else None
        out = denoise(model.loss, params, z - self._D, self._V, start, hold=t >= self._hold_after)
        law, V_hat, beta = model.coordinates, alpha * out.response.mean(axis=0), self._beta
        _, C, W = quadratic_response(model.penalty, law.gamma.T, V_hat, None, law.weight)
        self._z, self._C, self._V = out.z, C[:, 0, 0], (1 - beta) * self._V + beta * W
        self._D = (1 - beta) * self._D + beta * np.einsum("lab,nlb->nla", W, out.g)
        return out.g, -V_hat

    def step(self, x: np.ndarray, velocity: np.ndarray, slope: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x after Q ← Q − β C ∇, and the velocity."""
        if self._descent is not None and t >= self._leave:
            return self._descent.step(x, velocity, slope, t)
        return x - self._beta * self._C.reshape(-1, *[1] * (x.ndim - 1)) * slope, velocity


@dataclass(frozen=True)
class Both(PlainSteps):
    """The steps of both algorithms, on the two columns of the weights."""

    algorithms: Sequence[Algorithm] = ()

    def step(self, x: np.ndarray, velocity: np.ndarray, slope: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x and the velocity after a step; columns are the last axis but one."""
        parts = [
            each.step(*(v[..., a : a + 1, :] for v in (x, velocity, slope)), t)
            for a, each in enumerate(self.algorithms)
        ]
        return tuple(np.concatenate(values, axis=-2) for values in zip(*parts, strict=True))


class PairedPaths(CompressedPaths):
    """Sampled paths of the fields of both algorithms; `losses` has the mean loss of each at the latest time."""

    def __init__(self, model: ga.Model, algorithms: Sequence[Algorithm], *args: Any) -> None:
        super().__init__(*args)
        self._single, self._algorithms, self._t, self.losses = model, algorithms, 0, np.zeros(2)

    def evaluate_forces(self, alpha: float, overlaps: ga.Overlaps) -> DescentForces:
        """Return the forces of both algorithms; response matrices are diagonal. The losses of the result are NaN."""
        params, z = self._paths.terms.params, self._training_fields(overlaps)
        L, t = self.model.n_tokens, self.model.teacher_rank
        forces, direct, slopes = [], np.zeros((L, 2, 2)), []
        for a, algorithm in enumerate(self._algorithms):
            one = z[:, :, a : a + 1]
            force, response = algorithm.evaluate(self._single, alpha, params, one, self._t)
            value, _, _ = sample_derivatives(self._single.loss, params, one)
            self.losses[a] = alpha * np.mean(value + self._paths.terms.constant)
            direct[:, a, a] = response[:, 0, 0]
            forces.append(force[:, :, 0].T)
            values = alpha * force[:, :, 0] - self.fields[:, :, a] * response[:, 0, 0]
            slopes.append([
                path.slopes(values[:, l : l + 1], lambda k, a=a: np.r_[:t, t + a : k : 2])[0]
                for l, path in enumerate(self._paths.of_token)
            ])  # fmt: skip
        self._t += 1
        self._force = np.stack(forces, axis=1)
        D = np.array(slopes).transpose(1, 0, 2)
        on_stored = D[:, :, t:].reshape(L, 2, -1, 2).transpose(2, 0, 1, 3)
        return DescentForces(
            m=alpha * self._force.mean(axis=2), theta=D[:, :, :t], q=np.zeros((0, L, 2, 2)),
            response=np.concatenate([on_stored, direct[None]]), loss=np.nan, test_error=np.nan,
        )  # fmt: skip


class PairedRun(CompressedDescent):
    """One replica of two algorithms on the same data, from the same start; `train_losses` has a row for each time."""

    def __init__(
        self, model: ga.Model, alpha: float, init: str, algorithms: Sequence[Algorithm], n_paths: int, seed: Any,
        tolerance: float,
    ) -> None:  # fmt: skip
        self._single, self._algorithms = model, algorithms
        both, rng = replace(model, rank=2), np.random.default_rng(seed)
        start, method = double_start(start_law(model, init)), Both(algorithms=algorithms)
        super().__init__(both, alpha, start, method, n_paths, rng, Compression(tolerance, doubling=False))
        self.train_losses: list[np.ndarray] = []

    def _sample_paths(self, component: Component, *args: Any) -> PairedPaths:
        n_paths, rng, even = args
        return PairedPaths(self._single, self._algorithms, component, self._model, n_paths, rng, even)

    def _select_method(self, t: int) -> PlainSteps:
        """Return the method of both columns, and store the training losses."""
        law, (paths,) = self._model.coordinates, self._paths
        squares = np.einsum("k,kaa->a", law.weight, self._weights._second)
        self.train_losses.append(paths.losses + 0.5 * self._model.lam * squares)
        return self._method


def double_start(start: StartLaw) -> StartLaw:
    """Return the start of two equal columns of weights, from the start of one column."""
    twice = np.r_[0, : start.moments.shape[1]]
    V = np.zeros((len(start.V), 2, 2))
    V[:, [0, 1], [0, 1]] = start.V[:, 0]
    return StartLaw(start.moments[:, twice][:, :, twice], V)


def follow_pair(
    algorithms: Sequence[Algorithm], alpha: float, n_iter: int, n_paths: int, seed: Any, tolerance: float
) -> dict[str, list[Any]]:
    """Return numbers of both algorithms from the positions for the founding paper's model, at times 0, …, n_iter.

    "q" has rows (q_11, q_12, q_22), "m" and "train_loss" rows with both algorithms.
    """
    run = PairedRun(ga.paper_model(), alpha, "positional", algorithms, n_paths, seed, tolerance)
    for _ in range(n_iter + 1):
        run.advance()
    q = [now.q[0] for now in run.states]
    return {
        "q": [[float(each[0, 0]), float(each[0, 1]), float(each[1, 1])] for each in q],
        "m": [now.m[0].tolist() for now in run.states],
        "train_loss": [losses.tolist() for losses in run.train_losses],
        "stored": run.stored,
    }
