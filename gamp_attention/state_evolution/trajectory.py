"""State evolution at all times: the law of every iterate of damped GAMP, not only of its fixed points.

The weights are linear in the start, the positions, the teacher and the Gaussian noises ζ_s of the iterations,

    x^{t+1} = (1−β) x^t + β C_t (h_t + ζ_t),   cov(ζ_s, ζ_t) = Σ_l γ_l q̂_l^{s,t},

so their coefficients on (x⁰, τ, π, ζ_0, ζ_1, …) are carried along and give the overlaps q^{s,t} between any two
times. The fields ω̃^0, ω̃^1, … and y are sampled as paths with those covariances.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from gamp_attention import _validation as check
from gamp_attention.gamp_control import Damping
from gamp_attention.input_denoiser import prior_response
from gamp_attention.models import Model, require_model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.channel import (
    Hats,
    average,
    conjugates,
    denoise_fields,
    psd_root,
    teacher_fields,
    teacher_size,
)
from gamp_attention.state_evolution.gaussian_points import symmetrise
from gamp_attention.state_evolution.start_law import StartLaw, start_law

CUTOFF = 1e-7  # relative size below which directions of the path covariance count as already spanned


@dataclass(frozen=True, eq=False)
class Trajectory(Overlaps):
    """Overlaps predicted at every iteration, entry 0 being the start: means over independent replicas.

    Attributes
    ----------
    q, m, theta, V : with an axis of time (T + 1) in front.
    error : standard errors of the four, over replicas.
    V_hat : (T, L, r, r) responses V̂_t in Stein's form, which `run_gamp(onsager=...)` accepts.
    jump_mass : (T, L, r, r) V̂_Stein − V̂_derivative.
    jump_mass_error : its standard error.
    """

    error: Overlaps
    V_hat: np.ndarray
    jump_mass: np.ndarray
    jump_mass_error: np.ndarray


class _Weights:
    """Coefficients of the iterates on (x⁰, τ, π, ζ_0, ζ_1, …), and the covariance of these, in each class."""

    def __init__(self, model: Model, start: StartLaw, n_iter: int) -> None:
        self.model = model
        K, first, _ = start.moments.shape
        r = model.rank
        self._gram = np.zeros((K, first + r * n_iter, first + r * n_iter))
        self._gram[:, :first, :first] = start.moments
        self._first = first
        x = np.zeros((K, r, self._gram.shape[1]))
        x[:, :, :r] = np.eye(r)
        self._x = [x]
        self._V = start.V

    def overlaps(self) -> Overlaps:
        """Overlaps of the latest iterate."""
        law, r, L = self.model.coordinates, self.model.rank, self.model.n_tokens
        cross = self._x[-1] @ self._gram[:, :, : self._first]
        return Overlaps(
            q=self.covariances()[-1],
            m=np.einsum("k,kal->la", law.weight, cross[:, :, r : r + L]),
            theta=np.einsum("k,kl,kat->lat", law.weight, law.gamma, cross[:, :, r + L :]),
            V=self._V,
        )

    def covariances(self) -> list[np.ndarray]:
        """q_l^{s,t} = E[x^s x^tᵀ] weighted by γ_l, for the latest t and every s <= t; entries (L, r, r)."""
        law = self.model.coordinates
        latest = self._gram @ np.swapaxes(self._x[-1], 1, 2)
        return [np.einsum("k,kl,kab->lab", law.weight, law.gamma, x @ latest) for x in self._x]

    def step(self, hats: Hats, q_hats: list[np.ndarray], beta: float) -> None:
        """One damped iteration, given the hats and q̂^{s,t} with every earlier time s <= t."""
        law, r, L = self.model.coordinates, self.model.rank, self.model.n_tokens
        t = len(q_hats) - 1
        here = slice(self._first + r * t, self._first + r * (t + 1))
        for s, q_hat in enumerate(q_hats):
            there = slice(self._first + r * s, self._first + r * (s + 1))
            block = np.einsum("kl,lab->kab", law.gamma, q_hat)
            self._gram[:, there, here] = block
            self._gram[:, here, there] = np.swapaxes(block, 1, 2)
        _, C, W = prior_response(law.gamma.T, self.model.lam, hats.V, law.weight)
        b = np.zeros_like(self._x[-1])
        b[:, :, r : r + L] = hats.m.T
        b[:, :, r + L : self._first] = np.einsum("kl,lrt->krt", law.gamma, hats.theta)
        b[:, :, here] = np.eye(r)
        self._x.append((1 - beta) * self._x[-1] + beta * C @ b)
        self._V = (1 - beta) * self._V + beta * W


class _Paths:
    """Sampled paths of the fields: y, then ω̃^0, ω̃^1, … drawn given all before."""

    def __init__(self, model: Model, n_paths: int, rng: np.random.Generator) -> None:
        self.model, self.n, self._rng = model, n_paths, rng
        L, t = model.n_tokens, model.teacher_rank
        white = symmetrise(self._normal(teacher_size(model)))
        self._white = white  # every column drawn so far, orthonormal over the paths
        self._of_token = [white[:, l * t : (l + 1) * t] for l in range(L)]
        self._factor = list(psd_root(model.coordinates.rho))  # fields so far of token l = factor · white
        self.y, self.terms = teacher_fields(model, white)

    def _normal(self, dim: int) -> np.ndarray:
        """Half a point set: scrambled Sobol points, anew for each time."""
        cube = qmc.Sobol(dim, rng=self._rng).random(self.n // 2)
        return ndtri(self._rng.permutation(cube).clip(1e-12, 1 - 1e-12))

    def draw(self, overlaps: Overlaps, covariances: list[np.ndarray]) -> np.ndarray:
        """ω̃^t (n, L, r) with the given covariances with earlier ones, its own being the last."""
        L, r = self.model.n_tokens, self.model.rank
        fresh = symmetrise(self._normal(L * r), self._white)
        self._white = np.concatenate([self._white, fresh], axis=1)
        fields = np.empty((self.n, L, r))
        for l in range(L):
            factor = self._factor[l]
            with_past = np.concatenate([overlaps.theta[l], *[c[l].T for c in covariances[:-1]]], axis=1)
            slope = np.linalg.lstsq(factor, with_past.T, rcond=CUTOFF)[0].T
            root = psd_root(covariances[-1][l] - slope @ slope.T)
            white = np.concatenate([self._of_token[l], fresh[:, l * r : (l + 1) * r]], axis=1)
            row = np.concatenate([slope, root], axis=1)
            self._factor[l] = np.block([[factor, np.zeros((len(factor), r))], [row]])
            self._of_token[l] = white
            fields[:, l] = white @ row.T
        return fields


def follow(
    model: Model, alpha: float, start: StartLaw, damping: Any, n_iter: int, n_paths: int, rng: np.random.Generator
) -> tuple[list[Overlaps], list[Hats]]:
    """Overlaps at every iteration, and hats at all but the last, on one set of sampled paths."""
    step = Damping(damping)
    weights, paths = _Weights(model, start, n_iter), _Paths(model, n_paths, rng)
    states, all_hats, g, z = [weights.overlaps()], [], [], None
    for t in range(n_iter):
        now = states[-1]
        fields = paths.draw(now, weights.covariances())
        out = denoise_fields(model, now, fields, paths.terms, z)
        here = conjugates(model, alpha, now, average(paths.y, fields, paths.terms, out, now.V))
        z = out.z
        g.append(out.g)
        weights.step(here, [alpha * np.einsum("nla,nlb->lab", s, out.g) / n_paths for s in g], step(t))
        states.append(weights.overlaps())
        all_hats.append(here)
    return states, all_hats


def trajectory(
    model: Model,
    alpha: float,
    init: Any = "semantic",
    *,
    damping: Any = 0.5,
    n_iter: int = 20,
    n_paths: int = 4096,
    n_replicas: int = 8,
    seed: Any = 0,
) -> Trajectory:
    """Predict the overlaps of damped GAMP at every iteration, in the limit d → ∞.

    Parameters
    ----------
    model : the problem.
    alpha : sample complexity, > 0.
    init : "semantic", "positional", "random", or the Overlaps of the start (V included).
    damping : the step β of GAMP in (0, 1], or a sequence with one for each iteration.
    n_iter : iterations to follow.
    n_paths : sampled paths of each replica, even.
    n_replicas : independent replicas, at least 2; their spread gives the standard errors.
    seed : an integer or a numpy Generator.

    Returns
    -------
    Trajectory

    Raises
    ------
    TypeError, ValueError : naming the argument, what it got and what it needs.

    Examples
    --------
    >>> import gamp_attention as ga
    >>> path = ga.trajectory(ga.paper_model(), alpha=1.5, init="semantic", damping=0.5, n_iter=5, n_paths=512)
    >>> path.q.shape, path.V_hat.shape
    ((6, 2, 1, 1), (5, 2, 1, 1))
    """
    require_model(model)
    alpha = check.real("alpha", alpha, low=0, strict=True)
    n_iter = check.integer("n_iter", n_iter, low=1)
    n_paths = check.integer("n_paths", n_paths, low=64)
    n_replicas = check.integer("n_replicas", n_replicas, low=2)
    least = 4 * model.n_tokens * (model.teacher_rank + model.rank * (n_iter + 1))
    if n_paths % 2 or n_paths < least:
        raise check.fail("n_paths", n_paths, f"an even number of at least {least} for {n_iter} iterations")
    Damping(damping)
    start, rng = start_law(model, init), check.generator(seed)
    runs = [follow(model, alpha, start, damping, n_iter, n_paths, rng) for _ in range(n_replicas)]
    share = 1 / np.sqrt(n_replicas)
    stacks = {
        name: np.array([[state.arrays()[name] for state in states] for states, _ in runs])
        for name in runs[0][0][0].arrays()
    }
    jumps = np.array([[hats.jump_mass for hats in all_hats] for _, all_hats in runs])
    return Trajectory(
        **{name: values.mean(axis=0) for name, values in stacks.items()},
        error=Overlaps(**{name: values.std(axis=0, ddof=1) * share for name, values in stacks.items()}),
        V_hat=np.array([[hats.V for hats in all_hats] for _, all_hats in runs]).mean(axis=0),
        jump_mass=jumps.mean(axis=0),
        jump_mass_error=jumps.std(axis=0, ddof=1) * share,
    )
