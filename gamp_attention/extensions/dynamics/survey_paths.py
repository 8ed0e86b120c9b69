"""Trajectories of damped survey propagation for d → ∞, at a fixed Parisi parameter y.

The iteration (`gamp_attention.gamp.survey`) is message passing with other denoisers: the averages ḡ, R̄ and Δ over the
inner field take the place of g and its response. With V̂_l = α E[R̄_l], Δ_l = α E[Δ_l] and the denoiser of the weights
`average_weights`, which returns η, C̄ and Δx,

    ω_l^t = m_l + ω̃_l^t + Σ_{s<t} (R_l(t, s) − D_l(t, s)) ḡ_l^s
    force = m̂ τ + θ̂ π + ζ_t + Σ_{s≤t} Σ_l γ_l F_l(t, s) x^s,   cov(ζ_s, ζ_t) = α Σ_l γ_l E[ḡ_l^s ḡ_l^tᵀ]
    x^{t+1} = (1−β) x^t + β η,   V ← (1−β) V + β W,   U ← (1−β) U + β W'
    D(t+1, s) = (1−β) D(t, s) + β (W + y W') δ_{st},   W_l = E[γ_l C̄],   W'_l = E[γ_l Δx]

Here D(t, s) are the coefficients of the Onsager memory of the iteration, R(t, s) = E[γ ∂x^t/∂ζ^s] and
F(t, s) = α E[∂ḡ^t/∂ω̃^s] the responses. If ḡ is a continuous function of ω^t, then F(t, s) = −(V̂ − yΔ) δ_{st}, which
cancels in b = force + (A − yΔ) x^t, and R = D. But the local minima at the nodes of the inner field are continued from
one iteration to the next, and they jump: then ḡ^t has a response to earlier fields, and a response beyond its a.e.
derivative, neither of which the iteration takes into account. With `jumps`, minima are global and R̄ contains their
jumps at the current fields, so that only errors of the quadrature over the inner field are left. Therefore, unless the
loss is convex, F follows from Stein's identity (Stein, 1981), as the coefficients of a linear regression of ḡ^t on the
sampled teacher's fields and ω̃^0, …, ω̃^t. The noise of these coefficients adds a fraction of about
α L (t + r (T + 1))/n to the variance of ζ for n paths.

**Growth of the overlaps of random weights:** linear response for d → ∞, and paths at finite d. From random weights, the
overlaps with the teacher and with the positions are of order d^(−1/2). As long as they are small, they follow linear
equations on the trajectory with θ = m = 0. For one column of weights and the ridge, let T^t = E[x^t π] and M_k^t =
E[x^t τ_k], so that θ_l^t = γ_l T^t, m_k^t = M_k^t and

    θ̂_l^t = α Σ_{k, s≤t} E[∂³ḡ_l^t/∂y_l ∂y_k ∂ω̃_k^s] θ_k^s,   m̂_l^t = α Σ_{k, s≤t} E[∂ḡ_l^t/∂ω̃_k^s] m_k^s
    T^{t+1} = T^t + β C (E[π²] Σ_l γ_l θ̂_l^t − λ T^t + Σ_{s≤t} F(t, s) T^s + ξ^t/√d)
    M_k^{t+1} = M_k^t + β C (Σ_l E[τ_k τ_l] m̂_l^t − λ M_k^t + Σ_{s≤t} F(t, s) M_k^s + χ_k^t/√d)

with F = Σ_l γ_l F_l and the response C = C̄ + yΔx of the weights. The derivatives follow from Stein's identity on the
sampled paths (Stein, 1981). Their errors multiply the overlaps. In a sampled trajectory, errors of order n_paths^(−1/2)
are added to the overlaps, and hide overlaps of this size.

The forces on the teacher and on the positions are sums over αd samples, and have Gaussian fluctuations ξ and χ with

    cov(ξ^s, ξ^t) = α E[(Σ_l y_l ḡ_l^s)(Σ_l y_l ḡ_l^t)]
    cov(χ_k^s, χ_k'^t) = α (E[τ_k τ_k'] Σ_l γ_l E[ḡ_l^s ḡ_l^t] + Σ_{l,l'} E[τ_k τ_l] E[τ_k' τ_l'] E[ḡ_l^s ḡ_l'^t])

They are as important as the initial overlaps: the overlaps at finite d are sums of the initial overlaps times their
growth and of the response to the fluctuations, both of order d^(−1/2).

Overlaps of order one follow nonlinear equations. `sample_cosines` draws initial cosines of variance 1/d and iterates
state evolution at these overlaps. In each iteration it adds fluctuations of the above covariances to m̂ and θ̂,

    θ̂_l^t + ξ^t/(E[π²] Σ_l γ_l √d),   m̂_l^t + v_l χ^t/√(s d)

with the largest eigenvalue s of E[τ τᵀ] and its eigenvector v. The covariances are averages over the same sampled
paths, so that they depend on the overlaps. Fluctuations of q, V and U are neglected: they are small compared with their
means.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.numerics import symmetrize
from gamp_attention.extensions.dynamics.field_paths import GaussianPath
from gamp_attention.extensions.dynamics.message_paths import MeanLosses, MessagePaths, mean_losses, sum_by_source
from gamp_attention.extensions.dynamics.weight_paths import build_weights
from gamp_attention.extensions.train.survey_averages import average_fields, first_variances
from gamp_attention.gamp.damping import Damping
from gamp_attention.problem.penalties.standard import Ridge
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Hats, Moments, conjugates, sum_over_components
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.models.model import Component, Model
from gamp_attention.theory.start_law import SampleForces, StartLaw, start_law

SurveyRun = tuple[list[Overlaps], list[np.ndarray], list[Hats], list[MeanLosses]]  # see `follow_survey`
# arguments `observe` and `fluctuate` of `follow_survey`
Observer = Callable[[Sequence["SurveyPaths"], np.ndarray, np.ndarray, float], None]
Fluctuations = Callable[[Sequence["SurveyPaths"]], tuple[np.ndarray, np.ndarray]]


def follow_survey(
    model: Model, alpha: float, start: StartLaw, damping: Any, parisi: float, n_iter: int, n_paths: int,
    rng: np.random.Generator, U: np.ndarray | None = None, jumps: bool = False, observe: Observer | None = None,
    fluctuate: Fluctuations | None = None,
) -> SurveyRun:  # fmt: skip
    """Return overlaps, U and losses at every iteration, and conjugates of ḡ at all but the last.

    Parameters
    ----------
    model : the model.
    alpha : sample complexity.
    start : second moments of the initial weights, and V; if V is NaN, it is computed as by `initial_survey`, from the
        labels of the paths.
    damping : step β, or a sequence of steps, see `Damping`.
    parisi : Parisi parameter y >= 0.
    n_iter : number of iterations.
    n_paths : number of sampled paths, even.
    rng : generator of the paths.
    U : (S, r, r) initial covariances of the inner fields; if None, the U of `initial_survey`.
    jumps : whether the iteration is the one of `survey_step(jumps=True)`.
    observe : function that is called in each iteration with the paths, F(t, s) (t + 1, S, r, r), the response
        W + y W' (S, r, r) of the weights and the step β.
    fluctuate : function that is called in each iteration with the paths, and returns the deviations of m̂ (S, r) and
        θ̂ (S, r, t) at finite d from their limits; None for d → ∞.
    """
    step, law = Damping(damping), model.coordinates
    paths = [SurveyPaths(component, n_paths, n_iter, rng, start.forces) for component in model.components]
    if np.isnan(start.V).all():
        samples = [path.samples(alpha) for path in paths]
        start = replace(start, V=first_variances(model.penalty, law.gamma.T, samples, model.rank, law.weight)[0])
    U = law.trace[:, None, None] * np.eye(model.rank) if U is None else U
    weights = build_weights(model, start, n_iter, n_paths, rng)
    states, all_U, all_hats, losses = [weights.overlaps()], [U], list[Hats](), list[MeanLosses]()
    onsager = np.zeros((len(weights.memory()), *U.shape))  # D(t, s) of the latest t, with D(t, −1) = 0
    for t in range(n_iter):
        now, q, memory = states[-1], weights.covariances(), weights.memory() - onsager
        moments = sum_over_components(
            model.components, [path.advance_survey(now, q, memory, all_U[-1], parisi, jumps) for path in paths]
        )
        spread, q_hats = np.zeros_like(now.q), sum_by_source(model, paths, alpha)
        for path in paths:
            spread[path.sources] += alpha * path.probability * path.spread
        spread, hats = symmetrize(spread), conjugates(model, alpha, now, moments)
        theta_hat, F = _responses(model, alpha, now, hats, paths, start.forces is not None)
        losses.append(mean_losses(alpha, weights, paths))
        if fluctuate is not None:
            m_change, theta_change = fluctuate(paths)
            hats, theta_hat = replace(hats, m=hats.m + m_change), theta_hat + theta_change
        inner = replace(hats, theta=theta_hat, V=hats.V_derivative + parisi * spread)
        weights.survey(inner, q_hats, step(t), spread, parisi, F)
        W = weights.W + parisi * weights.W_inner
        if observe is not None:
            observe(paths, F, W, step(t))
        for path in paths:
            path.update_memory(W, step(t))
        onsager = np.concatenate([(1 - step(t)) * onsager, step(t) * W[None]])
        all_hats.append(hats)
        states.append(weights.overlaps())
        all_U.append((1 - step(t)) * all_U[-1] + step(t) * weights.W_inner)
    for path in paths:
        path.draw_centers(states[-1], weights.covariances(), weights.memory() - onsager, deepcopy(rng))
    losses.append(mean_losses(alpha, weights, paths))
    return states, all_U, all_hats, losses


def _responses(
    model: Model, alpha: float, now: Overlaps, hats: Hats, paths: Sequence["SurveyPaths"], memory: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return θ̂ (S, r, t) and F(t, s) (t + 1, S, r, r) for the latest t and every s ≤ t.

    Without jumps, and without a `memory` of the start, the derivative is exact and has a lower variance than a
    regression.
    """
    F = np.zeros((paths[0].n_times, *now.q.shape))
    if not (model.task.jumps or memory):
        F[-1] = -hats.V_derivative
        return hats.theta, F
    theta_hat = np.zeros_like(now.theta)
    for path in paths:
        on_teacher, on_fields = path.responses()
        theta_hat[path.sources] += alpha * path.probability * on_teacher
        F[:, path.sources] += alpha * path.probability * on_fields
    return np.zeros_like(theta_hat) if Symmetry.of(model, now).theta_zero else theta_hat, F


class SurveyPaths(MessagePaths):
    """Sampled paths of the fields in one component of a mixture, and averages over inner fields around them."""

    # (L, r, r) covariance of g under the inner field, averaged over the paths; set by `advance_survey`
    spread: np.ndarray

    def __init__(
        self, component: Component, n_paths: int, n_iter: int, rng: np.random.Generator,
        forces: SampleForces | None = None,
    ) -> None:  # fmt: skip
        super().__init__(component, n_paths, n_iter + (forces is not None), rng)
        self._forces = forces

    @property
    def n_times(self) -> int:
        """Number of iterations at which ḡ is known."""
        return self._g.n_times - (self._forces is not None)

    def samples(self, alpha: float) -> tuple[Any, np.ndarray, np.ndarray, float]:
        """Return the samples for `first_variances`."""
        return self._model.loss, self._paths.terms.params, self.sources, self._n / (alpha * self.probability)

    def draw_centers(
        self, overlaps: Overlaps, covariances: np.ndarray, memory: np.ndarray,
        rng: np.random.Generator | None = None,
    ) -> Overlaps:  # fmt: skip
        """Draw ω at the next time t, given R(t, s) − D(t, s) (t, S, r, r); return the overlaps of the tokens.

        If the initial weights depend on the samples, s = −1 comes first, and the first fields determine g⁻¹.
        """
        now = self.draw(overlaps, covariances, rng)
        if self._forces is not None and not self._g.n_times:
            self._g.append(self._forces.evaluate(self._paths.terms.params, self._fields))
        self._fields = self._fields + self._g.combine(memory[:, self.sources])
        return now

    def advance_survey(
        self, overlaps: Overlaps, covariances: np.ndarray, memory: np.ndarray, U: np.ndarray, parisi: float,
        jumps: bool,
    ) -> Moments:  # fmt: skip
        """Return the moments of ḡ at the next time, given overlaps, q^{s,t}, R − D and U of all sources."""
        now, terms = self.draw_centers(overlaps, covariances, memory), self._paths.terms
        averages, self._z = average_fields(
            self._model.loss, terms.params, self._fields, now.V, U[self.sources], parisi, self._z, jumps
        )
        g, n = averages.g, self._n
        self._g.append(g)
        self.spread = averages.spread.mean(axis=0)
        L, r = g.shape[1:]
        return Moments(
            g=g.mean(axis=0),
            with_noise=np.einsum("nla,nlb->lab", g, self._noise) / n,
            with_teacher=np.einsum("nla,nlb->lab", g, self._paths.y) / n,
            gg=np.einsum("nla,nlb->lab", g, g) / n,
            response=averages.response.mean(axis=0) - parisi * self.spread,
            square=np.full((L, L, r * r, r * r), np.nan),
            moreau=float(np.mean(averages.envelope + terms.constant)),
            loss=np.nan,
        )

    def overlap_responses(self) -> tuple[np.ndarray, np.ndarray]:
        """Return E[∂ḡ_l^t/∂ω̃_k^s] and E[∂³ḡ_l^t/∂y_l∂y_k∂ω̃_k^s] (t + 1, L, L) at θ = 0, for r = 1 and the latest t.

        They are derivatives of E[ḡ_l] by m_k^s, and of E[∂ḡ_l/∂y_l] by θ_k^s.
        """
        g, y, rho = self._g.array[-1][..., 0], self._paths.y[..., 0], self._model.coordinates.rho[:, 0, 0]
        scores = y / rho
        both = np.einsum("nl,nk->nlk", scores, scores) - np.diag(1 / rho)  # ∂_l∂_k of the density of y, by Stein
        tokens = enumerate(self._paths.of_token)
        slopes = [(path.slopes(g)[:, 1:], path.slopes(both[:, :, k] * g)[:, 1:]) for k, path in tokens]
        on_m, on_theta = np.array(slopes).transpose(1, 3, 2, 0)
        return on_m, on_theta

    def force_covariances(self, gamma: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return d times the covariances of the forces on the teacher and on the positions for one sample, for r = 1.

        They are cov(Σ_l y_l ḡ_l^s, Σ_l y_l ḡ_l^t) and Σ_l γ_l E[ḡ_l^s ḡ_l^t] + cov(a·ḡ^s, a·ḡ^t) for the latest t and
        every s ≤ t, each (t + 1,), to leading order in the overlaps. The first term of the latter is from the tokens'
        components along the positions, which are independent of the fields; `direction` a (L,) has the components of
        the positions themselves.
        """
        g, y = self._g.array[..., 0], self._paths.y[..., 0]
        forces = np.array([np.einsum("snl,nl->sn", g, y), g @ direction])
        forces -= forces.mean(axis=2, keepdims=True)
        on_teacher, on_positions = np.einsum("fsn,fn->fs", forces, forces[:, -1]) / self._n
        return on_teacher, on_positions + np.einsum("snl,nl->s", g, gamma * g[-1]) / self._n

    def responses(self) -> tuple[np.ndarray, np.ndarray]:
        """Return E[∂ḡ^t/∂y] (L, r, t) and E[∂ḡ^t/∂ω̃^s] (t + 1, L, r, r) for the latest t and every s ≤ t."""
        n_times, r, g = self.n_times, self._model.rank, self._g.array[-1]
        slopes = np.array([path.slopes(g[:, l]) for l, path in enumerate(self._paths.of_token)])
        split = slopes.shape[2] - n_times * r
        on_fields = slopes[:, :, split:].reshape(-1, r, n_times, r)
        return slopes[:, :, :split], on_fields.transpose(2, 0, 1, 3)


class OverlapGrowth(NamedTuple):
    """Small overlaps at every iteration: their growth from the start, and fluctuations of order d^(−1/2)."""

    # (T + 1,) ratio of the cosine of the weights with the teacher to its value at the start; 1 at first
    semantic: np.ndarray
    # (T + 1,) same ratio for the cosine with the first principal direction of the positions; NaN if all are zero
    positional: np.ndarray
    # (T + 1, T + 1) covariances of each cosine between iterations if it is zero at the start, times d
    semantic_noise: np.ndarray
    positional_noise: np.ndarray
    spread: np.ndarray  # (T + 1,) trace of U, relative to the trace of the second moments q + U of the fields


class Axes(NamedTuple):
    """Variances of the tokens and second moments of the coordinates of the positions and the teacher."""

    gamma: np.ndarray  # (L,) variances of the tokens
    positions: np.ndarray  # (L, L) second moments of the coordinates of the positions
    teacher: float  # second moment of the coordinates of the teacher
    largest: float  # largest eigenvalue of `positions`
    main: np.ndarray  # (L,) its eigenvector: the first principal direction

    def require_positions(self, model: Model) -> None:
        """Raise ValueError if all positions are zero."""
        if self.largest == 0:
            raise check.fail("model", model, "positions that are not zero")


class SurveySample(NamedTuple):
    """Random trajectory of survey propagation at finite d: overlaps at every iteration."""

    semantic: np.ndarray  # (T + 1,) cosines of the weights with the teacher
    positional: np.ndarray  # (T + 1,) cosines of the weights with the first principal direction of the positions
    q: np.ndarray  # (T + 1, L) second moments q_l of the fields
    V: np.ndarray  # (T + 1, L) variances V_l within a cluster
    U: np.ndarray  # (T + 1, L) variances U_l of the inner fields


def axes_of(model: Model) -> Axes:
    """Return the axes of a model; raise ValueError if it is not of the kind that `follow_growth` describes."""
    law, S = model.coordinates, model.n_tokens
    plain = len(law.weight) == 1 and not model.is_mixture and not model.intercept and type(model.penalty) is Ridge
    if not (model.even and plain and model.rank == model.teacher_rank == 1):
        needs = "an even loss and teacher, one column each, the ridge and one class of coordinates"
        raise check.fail("model", model, needs)
    moments = law.moments[0]
    size, directions = np.linalg.eigh(moments[:S, :S])
    largest = max(float(size[-1]), 0.0)
    return Axes(law.gamma[0], moments[:S, :S], float(moments[S, S]), largest, directions[:, -1])


def follow_growth(
    model: Model, alpha: float, damping: Any, parisi: float, n_iter: int, n_paths: int, rng: np.random.Generator,
    jumps: bool = False,
) -> OverlapGrowth:  # fmt: skip
    """Return the growth of small overlaps in survey propagation from random weights, from one set of sampled paths.

    Parameters
    ----------
    model : a model whose loss and labels do not change with the signs of the student's and the teacher's fields, with
        one column of weights and of the teacher, the ridge, one class of coordinates and no mixture.
    alpha, damping, parisi, n_iter, n_paths, rng, jumps : as for `follow_survey`.

    Raises
    ------
    ValueError : if the model is not of this kind.
    """
    gamma, positions, teacher, largest, main = axes_of(model)
    start = start_law(model, "random")
    start = replace(start, V=np.full_like(start.V, np.nan))  # surveys begin with the V of `initial_survey`
    # Columns are the responses to the initial overlap, for x with cosine 1 and E[x²] = 1, and to each fluctuation.
    T, M = [np.eye(1, n_iter + 1) * np.sqrt(teacher)], [np.eye(1, n_iter + 1) * np.sqrt(largest) * main[:, None]]
    noise = np.zeros((2, n_iter + 1, n_iter + 1))  # covariances of fluctuations, whose index t is a column t + 1

    def observe(paths: Any, F: np.ndarray, response: np.ndarray, step: float) -> None:
        t = len(T) - 1
        on_m, on_theta = paths[0].overlap_responses()
        C, past_T, past_M = float(response[0, 0, 0] / gamma[0]), np.array(T)[:, 0], np.array(M)
        theta_hat = alpha * np.einsum("slk,k,sj->lj", on_theta, gamma, past_T)
        m_hat = alpha * np.einsum("slk,skj->lj", on_m, past_M)
        memory = F[:, :, 0, 0] @ gamma
        strength = float(model.penalty.strength)
        force_T = teacher * gamma @ theta_hat - strength * T[-1] + memory @ past_T
        force_M = positions @ m_hat - strength * M[-1] + np.einsum("s,skj->kj", memory, past_M)
        force_T[:, t + 1] += 1
        force_M[:, t + 1] += np.sqrt(largest) * main
        T.append(T[-1] + step * C * force_T)
        M.append(M[-1] + step * C * force_M)
        for block, values in zip(noise, paths[0].force_covariances(gamma, np.sqrt(largest) * main), strict=True):
            block[t + 1, 1 : t + 2] = block[1 : t + 2, t + 1] = alpha * values

    states, all_U, _, _ = follow_survey(
        model, alpha, start, damping, parisi, n_iter, n_paths, rng, jumps=jumps, observe=observe
    )
    q, U = np.array([state.q[:, 0, 0].sum() for state in states]), np.array([each[:, 0, 0].sum() for each in all_U])
    norms = np.sqrt(q / gamma.sum())[:, None]  # root mean squares of the weights
    semantic = np.array(T)[:, 0] / np.sqrt(teacher) / norms
    positional = np.array(M).transpose(0, 2, 1) @ main / np.sqrt(largest) / norms if largest > 0 else semantic * np.nan
    return OverlapGrowth(
        semantic=semantic[:, 0] / semantic[0, 0],
        positional=positional[:, 0] / positional[0, 0],
        semantic_noise=semantic @ noise[0] @ semantic.T,
        positional_noise=positional @ noise[1] @ positional.T,
        spread=U / (q + U),
    )


def sample_cosines(
    model: Model, alpha: float, d: int, damping: Any, parisi: float, n_iter: int, n_paths: int,
    rng: np.random.Generator, V: np.ndarray, jumps: bool = False,
) -> SurveySample:  # fmt: skip
    """Return one random path of the overlaps in survey propagation from random weights at finite d, by theory.

    Parameters
    ----------
    model : a model as for `follow_growth`, with positions that are not zero.
    alpha, damping, parisi, n_iter, n_paths, rng, jumps : as for `follow_survey`. The sampling errors of the paths add a
        fraction of about αd/n_paths to the variance of the fluctuations.
    d : dimension.
    V : (L, 1, 1) initial variances, for example of `initial_survey` for a data set.

    Raises
    ------
    ValueError : if the model is not of this kind.
    """
    axes = axes_of(model)
    axes.require_positions(model)
    gamma, _, teacher, largest, main = axes
    start, S = start_law(model, "random"), model.n_tokens
    moments, scales = start.moments.copy(), np.sqrt([teacher, largest])
    semantic, positional = scales * np.sqrt(moments[0, 0, 0] / d) * rng.standard_normal(2)
    moments[0, 0, 1:] = moments[0, 1:, 0] = np.append(positional * main, semantic)
    start = replace(start, moments=moments, V=V)
    noise = [GaussianPath(np.zeros((1, 0)), np.zeros((0, 0))) for _ in scales]

    def fluctuate(paths: Sequence[SurveyPaths]) -> tuple[np.ndarray, np.ndarray]:
        rows = paths[0].force_covariances(gamma, scales[1] * main)
        on_teacher, on_positions = (
            path.draw(rng.standard_normal((1, 1)), alpha * row[None, :-1], alpha * row[-1:, None])[0, 0] / np.sqrt(d)
            for path, row in zip(noise, rows, strict=True)
        )
        m_change = main[:, None] * on_positions / np.sqrt(largest)
        return m_change, np.full((S, 1, 1), on_teacher / (teacher * gamma.sum()))

    states, all_U, _, _ = follow_survey(
        model, alpha, start, damping, parisi, n_iter, n_paths, rng, jumps=jumps, fluctuate=fluctuate
    )
    q, V = (np.array([values[:, 0, 0] for values in each]) for each in zip(*((s.q, s.V) for s in states), strict=True))
    norms = np.sqrt(q.sum(axis=1) / gamma.sum())
    T = np.array([state.theta[0, 0, 0] for state in states]) / gamma[0]
    M = np.array([state.m[:, 0] @ main for state in states])
    return SurveySample(T / (scales[0] * norms), M / (scales[1] * norms), q, V, np.array(all_U)[:, :, 0, 0])
