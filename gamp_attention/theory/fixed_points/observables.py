"""Numbers that follow from overlaps: test error ε_g, training loss ε_t, free energy, stability, and validity.

Test error, equation (10). For attention it is E‖S‖² − 2 E⟨S, T⟩ + E‖T‖², where S depends on the student's fields and T
on the teacher's. In coordinates in which each student field a_i is correlated with one teacher field b_i only, with
correlation c_i, products of orthonormal Hermite polynomials give (Mehler's formula)

    E[S(a) T(b)] = Σ_k S_k T_k Π_i c_i^{k_i}.

The coefficients of S and T are sums over fine grids, whose errors decrease exponentially with the number of nodes.

Training loss, equation (14), from the Moreau envelope M of the loss; and the free energy, which state evolution makes
stationary, so that f = ε_t at a fixed point:

    f = α E[M] + ∫dν E[min_x r(x) + ½ xᵀA x − bᵀx] + Σ_l (m̂_l·m_l + θ̂_l·θ_l + ½ q̂_l·V_l − ½ V̂_l·q_l).

Stability. Damped iteration leaves a fixed point if an eigenvalue of the Jacobian J of the overlap map has a real part
above 1. J is block diagonal: a family that is zero by symmetry, m or θ, does not couple to the other overlaps to first
order. Replica symmetry is stable if the replicon eigenvalue is below 1 (de Almeida and Thouless, 1978), and exact only
if the proximal map does not jump.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.display import Rows
from gamp_attention._tools.numerics import apply_to_rows, psd_root
from gamp_attention._tools.quadrature import gaussian_points, gaussian_weights, tensor_grid
from gamp_attention._tools.statistics import half_width
from gamp_attention.problem.denoisers.output import denoise
from gamp_attention.results import Overlaps, Result
from gamp_attention.theory.equations.channel import Channel, Hats, select_sources
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.equations.units import Packing, subtract_explained
from gamp_attention.theory.equations.weights import response_pairs, weights_envelope
from gamp_attention.theory.fixed_points.overlap_map import Image, OverlapMap
from gamp_attention.theory.models.coordinates import CoordinateLaw
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.panels import MAX_TOL, UNRESOLVED, error_within, expand_error
from gamp_attention.theory.rules.rule import Rule, component_channels
from gamp_attention.theory.rules.sobol import SobolRule

SECTORS = ("symmetric", "m", "theta")


NEGLIGIBLE_JUMPS = 1e-2  # jump mass relative to V̂, up to which the prediction is called consistent
GAP_PER_SHIFT = 1.35  # relative change of V at minima of finite d in units of `jump_shift`, measured by jump_gaps


@dataclass(frozen=True, eq=False)
class Stability(Result):
    """Eigenvalues of the Jacobian of the overlap map, by sector.

    Attributes
    ----------
    eigenvalues : for each sector, in order of decreasing modulus. A family of overlaps that is zero by symmetry is a
        sector, "m" or "theta"; all other overlaps are the sector "symmetric". A sector that does not exist has none.
    """

    eigenvalues: dict[str, np.ndarray]

    @property
    def growth(self) -> dict[str, float]:
        """Largest real part in each sector, NaN without eigenvalues; above 1, damped iteration leaves the point."""
        return {name: float(v.real.max()) if len(v) else np.nan for name, v in self.eigenvalues.items()}

    @property
    def stable(self) -> bool:
        """True if sufficiently damped iteration stays at the point, in every sector."""
        return all(not value >= 1 for value in self.growth.values())

    def summary(self) -> str:
        """Return "stable" or "unstable", and the growth in each sector that exists."""
        growth = ", ".join(f"{name} {value:.3g}" for name, value in self.growth.items() if value == value)
        return f"{'stable' if self.stable else 'unstable'}; growth by sector: {growth}"

    def _rows(self) -> Rows:
        return [self.summary()]


def stability(F: OverlapMap, at: Overlaps) -> Stability:
    """Return the stability of a fixed point of the map, by differences or exact derivatives. Eq. :eq:`growth`."""
    packing = _symmetric_packing(F, at)
    x = packing.pack(at)
    ahead = packing.unpack(x + F.settings.sector_difference * np.eye(len(x))[0])  # averages that differences need
    F = F.with_choices_at(at if F.rule.expands else ahead)
    spectra = {name: np.linalg.eigvals(sector_jacobian(F, at, name)) for name in SECTORS}
    return Stability({name: v[np.argsort(-np.abs(v))] for name, v in spectra.items()})


def family_growth(F: OverlapMap, at: Overlaps, family: str) -> float:
    """Return the largest real part of the eigenvalues of a family, m or θ, that is zero; above 1, the family grows.

    If reversing the tokens is a symmetry, only directions that keep it are included, which takes half the work.
    """
    packing = Packing(at, (family,), Symmetry(reversal=Symmetry.of(F.model, at).reversal))
    J, _ = F.derivatives(packing, at, F.settings.difference, central=True, odd=True)
    return float(np.linalg.eigvals(J).real.max())


def sector_jacobian(F: OverlapMap, at: Overlaps, sector: str) -> np.ndarray:
    """Return the derivative of the map within a sector, (k, k); k = 0 if the sector does not exist."""
    step = F.settings.sector_difference
    if sector == "symmetric":
        return F.derivatives(_symmetric_packing(F, at), at, step, central=True)[0]
    if sector in Packing.of(F.model, at).names or (sector == "m" and not F.model.has_means):
        return np.zeros((0, 0))
    family = Packing(at, (sector,))
    if not Symmetry.of(F.model, at).reversal:
        return F.derivatives(family, at, step, central=True, odd=True)[0]
    # by reversal, the columns of the last tokens equal the reversed columns of the first tokens
    shape = at.arrays()[sector].shape
    L, size = len(at.q), int(np.prod(shape[1:]))
    half = F.derivatives(family, at, step, central=True, odd=True, columns=(L + 1) // 2 * size)[0]
    first = half.reshape(*shape, (L + 1) // 2, size)
    return np.concatenate([first, first[::-1, ..., : L // 2, :][..., ::-1, :]], axis=-2).reshape(L * size, L * size)


def _symmetric_packing(F: OverlapMap, at: Overlaps) -> Packing:
    """Return the overlaps of the sector "symmetric", with directions that break symmetries between tokens or columns.

    With one class of coordinates all tokens have the same distribution of weights, so that no direction breaks them.
    """
    packing = Packing.of(F.model, at)
    same = len(F.model.coordinates.weight) == 1
    kept = replace(packing.symmetry, diagonal=False, columns=False) if same else Symmetry()
    return replace(packing, symmetry=kept)


def replicon(model: Model, hats: Hats, response: str) -> float:
    """Return the replicon eigenvalue, the spectral radius of K; replica symmetry is stable if it is below 1.

    Eq. :eq:`replicon`.

    K_{l,l'} = ∫dν γ_l E[C ⊗ C] Σ_k γ_k α E[(∂g_k/∂ω_l') ⊗ (∂g_k/∂ω_l')], with the almost-everywhere
    derivative: if the proximal map jumps, the average that includes the jumps is infinite. NaN if K is not finite.
    """
    CC = response_pairs(model, hats, hats.response(response))
    K = joint_response(model.coordinates, CC, hats.square)
    return float(np.abs(np.linalg.eigvals(K)).max()) if np.isfinite(K).all() else np.nan


def joint_response(law: CoordinateLaw, CC: np.ndarray, square: np.ndarray) -> np.ndarray:
    """Return K (S n, S n), the derivative of the overlap of two estimators in a step in their overlap.

    `CC` (K, n, n) are E[C ⊗ C'] of the weights in each class of coordinates, and `square` (S, S, n, n) the number of
    common samples times E[∂g ⊗ ∂g']; n = r r'.
    """
    weights = np.einsum("k,kl,km,kab->lmab", law.weight, law.gamma, law.gamma, CC)
    S, n = weights.shape[1:3]
    return np.einsum("lmab,mnbc->lanc", weights, square).reshape(S * n, S * n)


def column_sums(values: np.ndarray) -> np.ndarray:
    """Return the diagonal entries (r,) of matrices (L, r, r), summed over tokens."""
    return np.array([values[:, a, a].sum() for a in range(values.shape[1])])


def largest_jump_fraction(jump_mass: np.ndarray, V_hat: np.ndarray) -> float:
    """Return the jump mass of a column of the weights relative to |V̂|, for the column with the largest fraction.

    The sum over all columns would hide the jumps of a column with small V̂. `V_hat` (r,) is summed over tokens. A column
    that does not enter the loss has V̂ = 0 and fraction 0.
    """
    masses = column_sums(jump_mass)
    fractions = np.divide(masses, np.abs(V_hat), out=np.zeros(len(masses)), where=(masses != 0) | (V_hat != 0))
    return float(fractions[np.argmax(np.abs(fractions))])


def validity(replicon: float, jump_fraction: float, shift: float = np.nan, response: str = "stein") -> tuple[bool, str]:
    """Return whether the replica-symmetric prediction is consistent, and the reason and the consequences in words.

    If replica symmetry is broken, minima form clusters. Breaking raises the training loss, because the ground state is
    the maximum of the free energy over the Parisi parameters, and replica symmetry is the limit of small parameters.

    Parameters
    ----------
    replicon : replicon eigenvalue.
    jump_fraction : jump mass relative to V̂, from `largest_jump_fraction`; negative except for numerical errors, because
        g jumps forward.
    shift : relative change of V̂ without jumps, from `jump_shift` at a fixed point of Stein's form. If given, the words
        include the expected change of V.
    response : form of V̂ of the solution; with jumps, "derivative" is not the replica-symmetric solution.
    """
    if not np.isfinite(replicon + jump_fraction):
        return False, "unknown: replicon and jump mass are not known"
    jumps = f"jump mass {float(f'{100 * jump_fraction:.2g}'):g} % of V̂"
    jumping = abs(jump_fraction) > NEGLIGIBLE_JUMPS
    if replicon < 1 and not jumping:
        return True, f"consistent (replicon {replicon:.3g}, {jumps})"
    gap = GAP_PER_SHIFT * shift
    effect = ", so that minima form clusters, and the lowest training loss is higher than stated"
    if jumping and response == "derivative":
        effect = "; this form of V̂ leaves the jumps out and is not the replica-symmetric solution"
    elif jumping and -1 < gap < 0:
        effect += f"; expect V of minima about {-100 * gap:.2g} % lower"
    if replicon < 1:
        return False, f"broken: the proximal map jumps ({jumps}; replicon {replicon:.3g} without them){effect}"
    return False, f"inconsistent: the replicon eigenvalue {replicon:.3g} is not below 1 ({jumps}){effect}"


@dataclass(frozen=True)
class GridSettings:
    """Settings of the test error: grids of Hermite series, and finite differences."""

    nodes: int = 64  # number of nodes of the first grid along each coordinate
    ratios: tuple[float, ...] = (1.0, 1.4, 2.0, 4.0, 8.0)  # ratios of the numbers of nodes of all grids and the first
    max_points: int = 300_000  # maximum number of points of a grid
    accuracy: float = 0.1  # requested error of ε_g in units of the error that a quadrature rule leaves unresolved
    max_range: float = 7.0  # half-width of a grid in standard deviations
    n_tols: int = 6  # number of tolerances of panels for labels, each a tenth of the last
    # error in units of the requested accuracy, below which no finer grid, or smaller tolerance, is tried
    good: float = 0.05
    good_labels: float = 0.1
    degrees: float = 0.5  # number of polynomials in units of the number of nodes
    expanded_step: float = 1e-6  # step of differences of averages to first order, which have no noise
    overlap_step: float = 5e-3  # step of finite differences in the packed overlaps
    nearly_all: float = 1e-3  # part of q that the teacher does not explain, below which it has a separate unit
    slope_tol: float = 1e-3  # tolerance of the test errors in these differences, for labels


GRIDS = GridSettings()


def predicted_test_error(model: Model, overlaps: Overlaps, rule: Rule, replica: int | None = None) -> np.ndarray:
    """Return the test error ε_g: (1,) for a deterministic rule, (R,) for the replicas of a random rule.

    Eq. :eq:`test-error`. With `replica`, only of this replica (1,).
    """
    if rule.deterministic:
        return np.array([deterministic_test_error(model, overlaps, GRIDS.accuracy * rule.tol)[0]])
    parts = [
        probability * np.array([channel.errors(white).mean() for white in part.point_sets(channel, replica)])
        for probability, part, channel in component_channels(rule.for_test_error(model.attention), model, overlaps)
    ]
    return np.sum(parts, axis=0)


def average_over_channel(
    model: Model, overlaps: Overlaps, error: Overlaps, f: Callable[..., Any], n_points: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the average of f(target, u, omega, z) over samples at given overlaps, and its error.

    The error includes the changes of the average if each family of overlaps changes by its error. Arguments as for
    `StateEvolutionResult.average`.
    """

    def values(channel: Channel, white: np.ndarray) -> Any:
        target, params, y, omega = channel.sample(white)
        return f(target, y, omega, denoise(channel.loss, params, omega, channel.overlaps.V).z)

    names = overlaps.arrays()
    shifted = [replace(overlaps, **{name: names[name] + np.abs(getattr(error, name))}) for name in names]
    return average_at_points(model, overlaps, shifted, values, n_points, seed)


def average_at_points(
    model: Any, overlaps: Overlaps, shifted: list[Overlaps], f: Callable[..., Any], n_points: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the average of f(channel, white), which has samples in front, over random points, and its error.

    The error is the half-width from independent sets of random points, plus the change of the average from `overlaps`
    to each of the `shifted` overlaps; at least 3/n for n points with values 0 or 1, which may miss a rare event.
    """

    def average(overlaps: Overlaps, replica: int) -> np.ndarray:
        total: Any = 0.0
        for probability, channel, white in random_points(SobolRule(n_points), model, overlaps, [seed, replica]):
            values, n = check.over_samples("f", f(channel, white), len(white)), len(white) * SobolRule.n_replicas
            total = total + probability * np.array([values.mean(axis=0), 3 / n * np.isin(values, (0, 1)).all(axis=0)])
        return np.asarray(total)

    replicas = np.array([average(overlaps, replica) for replica in range(SobolRule.n_replicas)])
    width = half_width(replicas[:, 0]) + sum(np.abs(average(at, 0) - replicas[0])[0] for at in shifted)
    mean, smallest = replicas.mean(axis=0)
    return mean, np.maximum(width, smallest)


def random_points(
    rule: Rule, model: Any, overlaps: Overlaps, seed: list[int]
) -> Iterator[tuple[float, Channel, np.ndarray]]:
    """Yield the probability, the channel and random points of white noise of every component of a model."""
    parts: Any = list(component_channels(rule, model, overlaps))
    for (probability, part, channel), child in zip(parts, np.random.SeedSequence(seed).spawn(len(parts)), strict=True):
        yield probability, channel, gaussian_points(part.n_points, channel.n_white, np.random.default_rng(child))


def deterministic_test_error(model: Model, overlaps: Overlaps, rtol: float) -> tuple[float, float]:
    """Return the test error to the relative error `rtol`, and an estimate of its error; labels need one field.

    Attention needs smooth maps only, so that Hermite series converge on grids; labels and their losses may have kinks,
    and are averaged over panels. The error is the difference from the next coarser grid, or from the average with a ten
    times larger tolerance, and then at least a fraction of the last tolerance. Grids and tolerances are refined until
    it is small compared with `rtol`.
    """
    levels, good, unresolved = np.array(GRIDS.ratios), GRIDS.good, 0.0
    if not model.attention:
        levels, good, unresolved = min(rtol, MAX_TOL) * 0.1 ** np.arange(GRIDS.n_tols), GRIDS.good_labels, UNRESOLVED
    value, error = np.inf, np.inf
    for level in levels.tolist():
        before, value = value, (_on_grids if model.attention else error_within)(model, overlaps, level)
        error = max(abs(value - before), unresolved * level * abs(value))
        if error <= good * rtol * abs(value):
            break
    return value, error


class NearbyTestError(NamedTuple):
    """Changes of the test error near given overlaps, with an accuracy that suffices for stated errors."""

    slopes: np.ndarray  # (k,) absolute derivatives of the test error in the packed overlaps
    value: Callable[[Overlaps], float] | None  # the test error to first order; None if it has no expansion


def nearby_test_error(model: Model, packing: Packing, at: np.ndarray) -> NearbyTestError:
    """Return the changes of the test error near packed overlaps `at`, on coarse grids.

    The slopes are the larger of the forward and backward differences, because on one side overlaps may be infeasible.

    If the teacher explains nearly all of q, errors of q and θ cancel in the unexplained part q − θ ρ⁻¹ θᵀ, which has
    about the same relative error as q: it is the average of gᵀg, divided by (Λ + A)². Then the derivative in q stands
    for a relative change of this part, and the derivative in θ is at a fixed value of it.
    """

    def value(overlaps: Overlaps) -> float:
        return _on_grids(model, overlaps) if model.attention else error_within(model, overlaps, GRIDS.slope_tol)

    overlaps, step = packing.unpack(at), GRIDS.overlap_step
    fraction = subtract_explained(model, overlaps) / overlaps.q.max()
    if not model.attention and fraction.min() > 0 and fraction.max() < GRIDS.nearly_all:
        pairs = packing.pairs_around(model, overlaps, step, smallest=0.0)
        return NearbyTestError(np.abs([value(ahead) - value(behind) for ahead, behind in pairs]) / (2 * step), None)
    expanded = None if model.attention else expand_error(model, overlaps, GRIDS.slope_tol)
    if expanded is not None:
        value, step = expanded, GRIDS.expanded_step  # type: ignore[assignment]
    here, shifts = value(overlaps), step * np.eye(len(at))
    sides = [[value(packing.unpack(at + side * shift)) - here for shift in shifts] for side in (1, -1)]
    return NearbyTestError(np.abs(sides).max(axis=0) / step, expanded)


def _on_grids(model: Model, overlaps: Overlaps, ratio: float = 1.0) -> float:
    """Return the test error on grids with `ratio` times the number of nodes of the first grid."""
    return sum(
        probability * _error(component, select_sources(overlaps, sources), ratio)
        for probability, sources, component in model.components
    )


def _error(model: Model, overlaps: Overlaps, ratio: float) -> float:
    """Return the test error of one component of a mixture."""
    task: Any = model.task  # an AttentionTask
    rho = psd_root(model.coordinates.rho)
    root = psd_root(overlaps.q)
    correlation = np.linalg.pinv(root, hermitian=True) @ overlaps.theta @ np.linalg.pinv(rho, hermitian=True)
    student, c, teacher = np.linalg.svd(correlation)
    c = np.minimum(c, 1.0)
    (L, pairs), trace = c.shape, task.trace
    S, S2 = _coefficients(lambda z: task.student(z + overlaps.m), root @ student, pairs, ratio)
    T, T2 = _teacher_coefficients(model, (rho @ np.swapaxes(teacher, 1, 2)).tobytes(), pairs, ratio)
    n = min(S.shape[0], T.shape[0])
    S, T = (v[(slice(n),) * (L * pairs)] for v in (S, T))
    for axis, correlation_of_axis in enumerate(c.ravel()):
        S = S * (correlation_of_axis ** np.arange(n)).reshape((-1,) + (1,) * (S.ndim - axis - 1))
    both = np.einsum("kij,kij->j", S.reshape(-1, L, L), T.reshape(-1, L, L))
    return float(trace @ (S2 - 2 * both + T2)) / L


@lru_cache(maxsize=8)
def _teacher_coefficients(model: Model, root: bytes, pairs: int, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    """Return Hermite coefficients of the teacher; stored, because for one column they do not depend on the overlaps."""
    task: Any = model.task
    shape = model.n_tokens, model.teacher_rank, model.teacher_rank
    return _coefficients(task.teacher, np.frombuffer(root).reshape(shape), pairs, ratio)


def _coefficients(
    function: Callable[[np.ndarray], np.ndarray], root: np.ndarray, pairs: int, ratio: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return Hermite coefficients (N, …, N, L, L) of a function of the fields root·a, and the mean of its squares (L,).

    The coefficients are in the first `pairs` coordinates of a_l for each token l; the others are averaged out. Squares
    are summed over rows.
    """
    L, rank, _ = root.shape
    n = max(int(min(ratio * GRIDS.nodes, GRIDS.max_points ** (1 / (L * rank)))), 2)
    x, weight, polynomials = _grid(n)
    a = tensor_grid(x, L * rank).reshape(-1, L, rank)
    values = function(apply_to_rows(root, a)).reshape((n,) * (L * rank) + (L, L))
    square = (values**2).sum(axis=-2)
    for _ in range(L * rank):
        square = np.tensordot(weight, square, 1)
    for number in range(L * rank):  # transform the first axis and move it behind the other axes
        if number % rank < pairs:
            values = np.moveaxis(np.tensordot(polynomials, values, 1), 0, -3)
        else:
            values = np.tensordot(weight, values, 1)
    return values, square


@lru_cache(maxsize=8)
def _grid(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return n nodes, their Gaussian weights, and orthonormal Hermite polynomials times the weights (N, n)."""
    reach = min(GRIDS.max_range, np.sqrt(np.pi * n))
    x = np.linspace(-reach, reach, n)
    weight = gaussian_weights(x[:, None])
    degrees = max(int(GRIDS.degrees * n), 1)
    half = np.zeros((degrees, n))  # polynomials times the square root of the weights, which does not overflow
    half[0] = np.sqrt(weight)
    for k in range(1, degrees):
        half[k] = (x * half[k - 1] - np.sqrt(k - 1) * half[max(k - 2, 0)] * (k > 1)) / np.sqrt(k)
    return x, weight, half * np.sqrt(weight)


def moreau_loss(overlaps: Overlaps, hats: Hats, penalty: float) -> float:
    """Return the training loss ε_t from the Moreau envelope in the hats and the penalty E[r(x)].

    Eq. :eq:`training-loss`.
    """
    return hats.moreau - 0.5 * float(np.sum(hats.q * overlaps.V)) + penalty


def stationary_loss(F: OverlapMap, overlaps: Overlaps, image: Image) -> float:
    """Return the training loss near a fixed point, with an error of second order in the distance from it.

    This is the free energy. For V̂ in the derivative form it is not stationary; then the Moreau form is used, with an
    error of first order.
    """
    if F.response != "stein":
        return moreau_loss(overlaps, image.hats, image.penalty)
    return free_energy(F.model, overlaps, image.hats)


def free_energy(model: Model, overlaps: Overlaps, hats: Hats) -> float:
    """Return the free energy of overlaps and hats; `hats.moreau` is α E[M] at the overlaps.

    Eq. :eq:`free-energy`. Overlaps and the other hats are independent: the equations are stationarity in each of them.
    """
    coupling = np.sum(hats.m * overlaps.m) + np.sum(hats.theta * overlaps.theta)
    coupling += 0.5 * np.sum(hats.q * overlaps.V) - 0.5 * np.sum(hats.V * overlaps.q)
    return float(hats.moreau + weights_envelope(model, hats) + coupling)
