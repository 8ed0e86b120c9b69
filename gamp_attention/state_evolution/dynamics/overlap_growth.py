"""Growth of the overlaps of random weights in survey propagation: linear response for d → ∞, and paths at finite d.

From random weights, the overlaps with the teacher and with the positions are of order d^(−1/2). As long as they are
small, they follow linear equations on the trajectory with θ = m = 0 (`survey_paths`). For one column of weights and the
ridge, let T^t = E[x^t π] and M_k^t = E[x^t τ_k], so that θ_l^t = γ_l T^t, m_k^t = M_k^t and

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

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._core import check
from gamp_attention.models.model import Model
from gamp_attention.penalties.standard import Ridge
from gamp_attention.state_evolution.dynamics.field_paths import GaussianPath
from gamp_attention.state_evolution.dynamics.start_law import start_law
from gamp_attention.state_evolution.dynamics.survey_paths import SurveyPaths, follow_survey


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


def _axes_of(model: Model) -> Axes:
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
    gamma, positions, teacher, largest, main = _axes_of(model)
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
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return one random path of the cosines in survey propagation from random weights at finite d, by theory.

    Parameters
    ----------
    model : a model as for `follow_growth`, with positions that are not zero.
    alpha, damping, parisi, n_iter, n_paths, rng, jumps : as for `follow_survey`. The sampling errors of the paths add a
        fraction of about αd/n_paths to the variance of the fluctuations.
    d : dimension.
    V : (L, 1, 1) initial variances, for example of `initial_survey` for a data set.

    Returns
    -------
    Cosines of the weights with the teacher, and with the first principal direction of the positions, each (T + 1,).

    Raises
    ------
    ValueError : if the model is not of this kind.
    """
    gamma, _, teacher, largest, main = _axes_of(model)
    if largest == 0:
        raise check.fail("model", model, "positions that are not zero")
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

    states, _, _, _ = follow_survey(
        model, alpha, start, damping, parisi, n_iter, n_paths, rng, jumps=jumps, fluctuate=fluctuate
    )
    norms = np.sqrt(np.array([state.q[:, 0, 0].sum() for state in states]) / gamma.sum())
    T = np.array([state.theta[0, 0, 0] for state in states]) / gamma[0]
    M = np.array([state.m[:, 0] @ main for state in states])
    return T / (scales[0] * norms), M / (scales[1] * norms)
