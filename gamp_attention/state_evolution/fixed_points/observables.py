"""The test error of equation (10) at given overlaps.

For attention it is E‖S‖² − 2 E⟨S, T⟩ + E‖T‖² for functions S of the student's and T of the teacher's fields alone. In
coordinates in which each field is correlated with one of the other side, by c, products of Hermite polynomials give

    E[S(a) T(b)] = Σ_k S_k T_k Π_i c_i^{k_i}        (Mehler)

with the coefficients of either by sums over a fine grid of its own, whose error is exponentially small in its spacing.

The training loss from the Moreau envelope, and the free energy, which state evolution makes stationary.

With the Moreau envelope M,

    f = α E[M] + ∫dν E[min_x r(x) + ½ xᵀA x − bᵀx] + Σ_l (m̂_l·m_l + θ̂_l·θ_l + ½ q̂_l·V_l − ½ V̂_l·q_l),

where the second term is −½ ∫dν E[bᵀ (λ + A)⁻¹ b] for the ridge. Its derivatives in the hats give the equations for the
overlaps, those in the overlaps the equations for the hats, and at a fixed point f = ε_t.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gamp_attention._core.numerics import psd_root
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Hats, select_sources
from gamp_attention.state_evolution.equations.units import Packing
from gamp_attention.state_evolution.equations.weights import weights_envelope
from gamp_attention.state_evolution.fixed_points.overlap_map import Image, OverlapMap
from gamp_attention.state_evolution.rules.rule import Rule, component_channels


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
        for share, part, channel in component_channels(rule.for_test_error(), model, overlaps)
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
        share * _error(given, overlaps if given is model else select_sources(overlaps, sources), nodes)
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


def moreau_loss(overlaps: Overlaps, hats: Hats, penalty: float) -> float:
    """Training loss ε_t from the Moreau envelope, and from the penalty E[r(x)], λ‖Q‖²/2d for the ridge.

    Eq. :eq:`training-loss`.
    """
    return hats.moreau - 0.5 * float(np.sum(hats.q * overlaps.V)) + penalty


def stationary_loss(F: OverlapMap, overlaps: Overlaps, image: Image) -> float:
    """Training loss near a fixed point, with an error of second order in the distance from it.

    That is the free energy. With the derivative's V̂ this is not stationary, and the Moreau form serves.
    """
    if F.response != "stein":
        return moreau_loss(overlaps, image.hats, image.penalty)
    return free_energy(F.model, overlaps, image.hats)


def free_energy(model: Model, overlaps: Overlaps, hats: Hats, moreau: float | None = None) -> float:
    """The free energy of overlaps and hats; `moreau` is α E[M] at the overlaps, from the hats if not given.

    Eq. :eq:`free-energy`.

    Overlaps and hats need not belong together: derivatives in either, with the other fixed, give the equations.
    """
    coupling = np.sum(hats.m * overlaps.m) + np.sum(hats.theta * overlaps.theta)
    coupling += 0.5 * np.sum(hats.q * overlaps.V) - 0.5 * np.sum(hats.V * overlaps.q)
    return float((hats.moreau if moreau is None else moreau) + weights_envelope(model, hats) + coupling)
