"""The test error of equation (10) at given overlaps.

For attention it is E‖S‖² − 2 E⟨S, T⟩ + E‖T‖² for functions S of the student's and T of the teacher's fields alone. In
coordinates in which each field is correlated with one of the other side, by c, products of Hermite polynomials give

    E[S(a) T(b)] = Σ_k S_k T_k Π_i c_i^{k_i}        (Mehler)

with the coefficients of either by sums over a fine grid of its own, whose error is exponentially small in its spacing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gamp_attention._core.gaussian import psd_root
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.components import restricted
from gamp_attention.state_evolution.equations.units import Packing
from gamp_attention.state_evolution.rules.rule import Rule, each_component


@dataclass(frozen=True)
class SeriesSettings:
    """Settings of the grids and the Hermite series."""

    nodes: int = 64  # of the first grid along each coordinate
    finer: tuple[float, ...] = (1.4, 2.0, 4.0, 8.0)  # grids after it, in units of those
    max_points: int = 300_000  # of a grid
    accuracy: float = 0.1  # that is asked for beside a rule, in units of what it leaves unresolved
    max_range: float = 7.0  # of a grid, in standard deviations
    enough: float = 0.05  # error, in units of the accuracy asked for, after which no finer grid is tried
    degrees: float = 0.5  # of polynomials, in units of the nodes
    difference: float = 5e-3  # of packed overlaps, for derivatives


SERIES = SeriesSettings()


def predicted_test_error(model: Model, overlaps: Overlaps, rule: Rule, replica: int | None = None) -> np.ndarray:
    """Test error ε_g, (1,), or one for each replica of a random rule (R,), or of one of them (1,).

    Eq. :eq:`test-error`.
    """
    if rule.deterministic:
        return np.array([by_series(model, overlaps, SERIES.accuracy * rule.tol)[0]])
    parts = [
        share * np.array([channel.errors(points).mean() for points in part.point_sets(channel, replica)])
        for share, part, channel in each_component(rule.for_test_error(), model, overlaps)
    ]
    return np.sum(parts, axis=0)


def by_series(model: Model, overlaps: Overlaps, rtol: float) -> tuple[float, float]:
    """Test error of an attention model, and its error: the difference of two grids, the finer of which is taken."""
    value, error = _on_grids(model, overlaps), np.inf
    for nodes in SERIES.finer:
        finer = _on_grids(model, overlaps, nodes)
        value, error = finer, abs(finer - value)
        if error <= SERIES.enough * rtol * abs(value):
            break
    return value, error


def slopes_by_series(model: Model, packing: Packing, at: np.ndarray) -> np.ndarray:
    """Derivative of the test error in packed overlaps, roughly: on the first grid, the larger of both differences.

    On one side there may be no such fields.
    """
    here, step = _on_grids(model, packing.unpack(at)), SERIES.difference
    sides = [
        [_on_grids(model, packing.unpack(at + shift)) - here for shift in side * step * np.eye(len(at))]
        for side in (1, -1)
    ]
    return np.abs(sides).max(axis=0) / step


def _on_grids(model: Model, overlaps: Overlaps, nodes: float = 1.0) -> float:
    """The test error on grids of so many times the nodes of the first."""
    return sum(
        share * _error(given, overlaps if given is model else restricted(overlaps, sources), nodes)
        for share, sources, given in model.components
    )


def _error(model: Model, overlaps: Overlaps, nodes: float) -> float:
    """The test error of one component."""
    task: Any = model.task  # an AttentionTask
    rho = psd_root(model.coordinates.rho)
    root = psd_root(overlaps.q)
    correlation = np.linalg.pinv(root, hermitian=True) @ overlaps.theta @ np.linalg.pinv(rho, hermitian=True)
    student, c, teacher = np.linalg.svd(correlation)
    c = np.minimum(c, 1.0)
    (L, pairs), trace = c.shape, task.trace
    S, S2 = _coefficients(lambda z: task.student(z + overlaps.m), root @ student, pairs, nodes)
    T, T2 = _of_teacher(model, (rho @ np.swapaxes(teacher, 1, 2)).tobytes(), pairs, nodes)
    n = min(S.shape[0], T.shape[0])
    S, T = (v[(slice(n),) * (L * pairs)] for v in (S, T))
    for axis, share in enumerate(c.ravel()):
        S = S * (share ** np.arange(n)).reshape((-1,) + (1,) * (S.ndim - axis - 1))
    both = np.einsum("kij,kij->j", S.reshape(-1, L, L), T.reshape(-1, L, L))
    return float(trace @ (S2 - 2 * both + T2)) / L


@lru_cache(maxsize=8)
def _of_teacher(model: Model, root: bytes, pairs: int, nodes: float) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of a teacher, whose coordinates stay the same for one column while overlaps change."""
    task: Any = model.task
    shape = model.n_tokens, model.teacher_rank, model.teacher_rank
    return _coefficients(task.teacher, np.frombuffer(root).reshape(shape), pairs, nodes)


def _coefficients(
    function: Callable[[np.ndarray], np.ndarray], root: np.ndarray, pairs: int, nodes: float
) -> tuple[np.ndarray, np.ndarray]:
    """Hermite coefficients (N, …, N, L, L) of a function of fields root·a in the first `pairs` of a_l for each token.

    Also the mean of its squares (L,), over rows.
    """
    L, rank, _ = root.shape
    n = max(int(min(nodes * SERIES.nodes, SERIES.max_points ** (1 / (L * rank)))), 2)
    x, weight, polynomials = _grid(n)
    a = np.stack(np.meshgrid(*[x] * (L * rank), indexing="ij"), axis=-1).reshape(-1, L, rank)
    values = function(np.einsum("lrs,nls->nlr", root, a)).reshape((n,) * (L * rank) + (L, L))
    square = (values**2).sum(axis=-2)
    for _ in range(L * rank):
        square = np.tensordot(weight, square, 1)
    for number in range(L * rank):  # each axis in turn is taken from the front, and put behind the others
        if number % rank < pairs:
            values = np.moveaxis(np.tensordot(polynomials, values, 1), 0, -3)
        else:
            values = np.tensordot(weight, values, 1)
    return values, square


@lru_cache(maxsize=8)
def _grid(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """n nodes, their Gaussian weights, and these times orthonormal Hermite polynomials (N, n)."""
    reach = min(SERIES.max_range, np.sqrt(np.pi * n))
    x = np.linspace(-reach, reach, n)
    weight = np.exp(-0.5 * x**2)
    weight /= weight.sum()
    degrees = max(int(SERIES.degrees * n), 1)
    half = np.zeros((degrees, n))  # polynomials times the root of the weights
    half[0] = np.sqrt(weight)
    for k in range(1, degrees):
        half[k] = (x * half[k - 1] - np.sqrt(k - 1) * half[max(k - 2, 0)] * (k > 1)) / np.sqrt(k)
    return x, weight, half * np.sqrt(weight)
