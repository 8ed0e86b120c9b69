"""Pass of survey propagation over the tokens: averages over the inner fields of all samples, and sums over them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gamp_attention.extensions.train.survey_averages import InnerAverages, average_fields
from gamp_attention.problem.passes import Memory, Part, TokenMatrix, next_memory
from gamp_attention.problem.sources import sum_over_tokens
from gamp_attention.problem.stores import join_parts, token_blocks


class Inner(NamedTuple):
    """Inner field of all samples, the same in all parts of the data."""

    U: np.ndarray  # (S, r, r) its covariance
    parisi: float  # Parisi parameter y >= 0
    jumps: bool  # whether minima are global, see `average_fields`


class SurveySums(NamedTuple):
    """Sums over samples of an iteration of survey propagation."""

    force: np.ndarray  # (d, r) X̃ᵀḡ
    response: np.ndarray  # (S, r, r) Σ_μ R̄_l over the tokens of each source
    spread: np.ndarray  # (S, r, r) Σ_μ Δ_l over the tokens of each source


class SurveyPass(NamedTuple):
    """Sums of an iteration, and arrays of all samples, or handles of arrays in other processes."""

    sums: SurveySums  # sums over all samples
    z: Any  # (n, K, L r) minimizers at the nodes of the inner field
    # returns the memory D of the next iteration from a rule, V, the response of the weights and the step β
    remember: Callable[[Memory, np.ndarray, np.ndarray, float], Any]
    omega: np.ndarray | None = None  # (n, L, r) centers of the inner fields; None if they are in other processes
    averages: InnerAverages | None = None  # averages over the inner fields; None if they are in other processes


def survey_pass(
    data: Part, risk: str, Q: np.ndarray, D: np.ndarray, V: np.ndarray, z: np.ndarray | None, inner: Inner
) -> SurveyPass:
    """Return averages over the inner fields of the samples in this process, with the sums over them.

    Parameters
    ----------
    data, risk : the samples, and "exact" or "asymptotic".
    Q, D, V : (d, r), (n, L, r), (S, r, r) weights, memory and variances.
    z : (n, K, L r) minimizers of the last iteration, from which the proximal steps start; None for no such start.
    inner : the inner field.
    """
    (tokens, positions), params = data.matrix, data.risks[risk].params
    parts, force = list[Any](), np.zeros(Q.shape)
    for rows, sources, block in token_blocks(tokens, data.groups):
        matrix = TokenMatrix(block, positions)
        omega = matrix.fields(Q) - D[rows]
        begin, U = None if z is None else z[rows], inner.U[sources]
        averages, nodes = average_fields(
            data.loss, params[rows], omega, V[sources], U, inner.parisi, begin, inner.jumps
        )
        force += matrix.back_project(averages.g)
        parts.append((omega, averages, nodes))
    omega, averages, nodes = map(join_parts, zip(*parts, strict=True))
    sums = SurveySums(
        force,
        sum_over_tokens(data.groups, data.n_sources, averages.response),
        sum_over_tokens(data.groups, data.n_sources, averages.spread),
    )
    return SurveyPass(sums, nodes, partial(next_memory, data.groups, D, averages.g), omega, averages)
