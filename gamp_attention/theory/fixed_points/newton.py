"""Steps toward fixed points of the overlap map, and overlaps that go to zero on the way.

Damped steps (`iterate`): the overlaps move a part of the way to their image under the map. This follows message
passing, and so leads to the fixed point of the branch that a start belongs to, but slowly.

Newton steps (`newton`) solve F(x) = x to first order with the Jacobian of F, which is updated from the residuals of
later steps (Broyden, 1965). Three guards make this safe: no step changes an overlap by more than `max_step`; a fraction
of each step has to reduce the residual (line search), or the Jacobian is computed again; and directions that a symmetry
leaves free, such as a common rotation of the columns, are left out of the step.

Overlaps that go to zero have no scale: a family, m or θ, fades while the weights remain; or all weights vanish, and q
with them. Sizes of families are in units of √q, and sizes of q are in units of the teacher's ρ.
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention._tools.numerics import psd_root
from gamp_attention.problem.denoisers.newton import NotPositiveDefinite
from gamp_attention.results import Overlaps, Status
from gamp_attention.theory.equations.units import Packing, in_units, is_feasible, relative_change, units
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap, WeightsVanished
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.rule import WorkExceeded

# status and cause of exceptions that stop a solver; the cause is empty if the status says it
_CAUSES = {
    WeightsVanished: (Status.LOST, ""),
    WorkExceeded: (Status.MAX_ITER, ""),
    NotPositiveDefinite: (
        Status.NONFINITE,
        "V is not positive definite in a step, because λ + A is not positive definite at the averages: "
        'use a larger λ, or response="derivative"',
    ),
}
BREAKDOWNS = (*_CAUSES, np.linalg.LinAlgError, FloatingPointError)


@dataclass(frozen=True)
class StepSettings:
    """Settings of steps, with lengths in units of the overlaps, and of overlaps that go to zero."""

    same_direction: float = 0.9  # cosine of the angle between two moves, above which the second continues the first
    max_same_moves: int = 3  # number of moves in one direction after which halved steps are doubled again
    shortest_step: float = 1 / 64  # smallest factor of a damped step
    max_step: float = 0.3  # largest change of an overlap by one step
    fractions: tuple[float, ...] = (1.0, 0.5, 0.2, 0.05)  # fractions of a step that the line search tries in turn
    decrease: float = 0.1  # smallest relative decrease of the residual by a full step
    slow: float = 0.3  # ratio of the residuals after and before a step, above which the Jacobian is computed again
    min_update: float = 1e-8  # change of an overlap below which changes of the map are rounding errors
    min_noisy_update: float = 5e-3  # the same if the map jumps at single points, which are noise on this scale
    flat: float = 1e-5  # singular value of the scaled 1 − J, relative to the largest, below which a direction is free
    max_last_step: float = 0.05  # largest step that may remain: close to its end, a branch has small residuals
    max_steps: int = 12  # maximum number of steps; near a fixed point a few suffice
    # residual in units of the tolerance that is accepted when Newton steps stall, because integration limits that move
    # between evaluations leave a residual
    acceptable_residual: float = 5.0
    faded: float = 1e-3  # size of a family that counts as zero: only close to its end a branch has smaller sizes
    small_family: float = 0.2  # size of a decreasing family below which it fades
    large_family: float = 0.7  # size of a decreasing family below which it fades if its rate of decay is steady
    steady: float = 0.7  # smallest ratio of two rates of a steady decay; rates fall on the way to a size > 0
    present: float = 0.5  # size of a family relative to its largest size, at which a path is still on its branch
    min_path: int = 5  # number of overlaps on a path from which a rate of decay can be estimated
    tiny_weights: float = 1e-3  # size of q below which weights may be vanishing
    zero_weights: float = 1e-8  # size of q that stands for zero; the map is linear there
    max_zero_steps: int = 40  # maximum number of damped steps at zero weights; a few determine the shape
    zero_change: float = 1e-4  # relative change of the overlaps at zero weights below which the steps end
    repelling: float = 10.0  # growth of q at zero weights above which the steps end as well


STEPS = StepSettings()


@dataclass(frozen=True)
class Root:
    """Last point of an iteration of the map, which is a fixed point if `status` is converged."""

    status: Status  # state of the iteration
    path: list[Overlaps]  # all overlaps visited, the start first
    # largest relative change of an overlap in a full step from the last overlaps; NaN if the map broke down
    residual: float
    packing: Packing  # free overlaps as a vector
    jacobian: np.ndarray | None  # (k, k) of the map in the packed overlaps; None if the map broke down
    F: OverlapMap  # the map, with choices
    # (2, L, r, r, k) derivatives of V̂ from the last finite differences; None if there were none
    response_slopes: np.ndarray | None = None
    reason: str = ""  # cause of a breakdown in words; empty if the map did not break down
    remaining: float = 0.0  # largest change of an overlap by the next Newton step; 0 if unknown

    @property
    def overlaps(self) -> Overlaps:
        """The last overlaps."""
        return self.path[-1]

    def solves(self, tol: float) -> bool:
        """Return whether the residual is within the tolerance, or as small as Newton steps can make it."""
        small = self.residual <= STEPS.acceptable_residual * tol
        return small and self.remaining <= STEPS.max_last_step

    def attracts(self, margin: float) -> bool:
        """Return whether damped steps return to the fixed point: all eigenvalues of J have real parts < 1 − margin."""
        assert self.jacobian is not None
        return bool(np.linalg.eigvals(self.jacobian).real.max() < 1 - margin)


def breakdown(error: Exception) -> tuple[Status, str]:
    """Return the status of a solver that was stopped by one of BREAKDOWNS, and the cause in words."""
    return _CAUSES.get(type(error), (Status.NONFINITE, f"an average or a matrix is not finite in a step ({error})"))


def stopped_root(F: OverlapMap, path: list[Overlaps], error: Exception) -> Root:
    """Return the root at the end of a path on which the map broke down; at tiny overlaps if all weights vanished."""
    status, reason = breakdown(error)
    if status is Status.LOST and not weights_are_tiny(F.model, path[-1]):
        path = [*path, _scale_to_zero(F.model, path[-1])]
    return Root(status, path, np.nan, Packing.of(F.model, path[-1]), None, F, reason=reason)


def family_size(overlaps: Overlaps, family: str) -> float:
    """Return the largest absolute entry of m or θ, in units of √q."""
    return float(np.abs(overlaps.arrays()[family]).max() / units(overlaps)[family])


def fading_families(path: list[Overlaps]) -> list[str]:
    """Return the families, "m" or "theta", that decrease along the whole path to a small size or steadily to zero.

    Families that are zero by symmetry do not count.
    """
    fading = []
    for family in ("m", "theta"):
        size = np.array([family_size(overlaps, family) for overlaps in path])
        if len(size) < STEPS.min_path or not 0 < size[-1] < STEPS.large_family or (np.diff(size) >= 0).any():
            continue
        rate = -np.diff(np.log(size))
        if size[-1] < STEPS.small_family or rate[-1] > STEPS.steady * rate[len(rate) // 2]:
            fading.append(family)
    return fading


def last_with(path: list[Overlaps], family: str) -> Overlaps:
    """Return the last overlaps of a path in which a family is at least half as large as its maximum on the path."""
    size = np.array([family_size(overlaps, family) for overlaps in path])
    return path[int(np.flatnonzero(size >= STEPS.present * size.max())[-1])]


def has_faded(overlaps: Overlaps, family: str) -> bool:
    """Return whether a family is practically zero."""
    return bool(np.abs(overlaps.arrays()[family]).max() < STEPS.faded * units(overlaps)[family])


def weights_are_tiny(model: Model, overlaps: Overlaps) -> bool:
    """Return whether q is so small that it can change by a large factor although the step is small."""
    return bool(0 < np.abs(overlaps.q).max() < STEPS.tiny_weights * np.abs(model.coordinates.rho).max())


def iterate_at_zero(F: OverlapMap, overlaps: Overlaps) -> tuple[Overlaps, float]:
    """Take damped steps with q held at zero; return the overlaps reached, and the growth of q there in a full step."""
    x, growth = _scale_to_zero(F.model, overlaps), np.inf
    for _ in range(STEPS.max_zero_steps):
        after = F(x)
        growth = float(np.abs(after.q).max() / np.abs(x.q).max())
        new = _scale_to_zero(F.model, damped_step(x, after))
        change = relative_change(x, new)
        x = new
        if change < STEPS.zero_change or growth > STEPS.repelling:
            break
    return x, growth


def find_vanished_weights(F: OverlapMap, overlaps: Overlaps) -> Overlaps | None:
    """Return the overlaps that stand for zero weights if damped steps from given overlaps lead there; otherwise None.

    Damped steps lead there if zero attracts and q already decreases about as fast as close to zero.
    """
    if not weights_are_tiny(F.model, overlaps):
        return None
    rate = np.log(np.abs(F(overlaps).q).max() / np.abs(overlaps.q).max())
    if rate >= 0:
        return None
    zero, growth = iterate_at_zero(F, overlaps)
    return zero if growth < 1 and rate < STEPS.steady * np.log(growth) else None


def _scale_to_zero(model: Model, overlaps: Overlaps) -> Overlaps:
    """Return the overlaps of the same weights after they are scaled until q stands for zero."""
    factor = STEPS.zero_weights * np.abs(model.coordinates.rho).max() / np.abs(overlaps.q).max()
    root = np.sqrt(factor)
    return Overlaps(factor * overlaps.q, root * overlaps.m, root * overlaps.theta, overlaps.V)


def damped_step(old: Overlaps, new: Overlaps, slower: float = 1.0) -> Overlaps:
    """Return overlaps between old overlaps and their image; with `slower` = 1, half of the way.

    q is averaged by its square root, because damping averages weights and not their squares. The mean direction m
    overshoots most and so moves only a fifth of the way.
    """

    def between(a: np.ndarray, b: np.ndarray, fraction: float = 0.5) -> np.ndarray:
        return (1 - fraction * slower) * a + fraction * slower * b

    root = between(psd_root(old.q), psd_root(new.q))
    return Overlaps(root @ root, between(old.m, new.m, 0.2), between(old.theta, new.theta), between(old.V, new.V))


def iterate(F: OverlapMap, start: Overlaps, tol: float, n_steps: int) -> tuple[list[Overlaps], float]:
    """Take damped steps until a full step changes no overlap by more than `tol`; return the path and that change.

    At most `n_steps` steps. A change that grows in a new direction shows that steps overshoot: they are halved, down
    to 1/64 of a damped step. After a few changes in one direction they are doubled again. A change that grows in its
    direction leaves the neighborhood of a fixed point or a fold, so that shorter steps would only take longer.
    Steps are not halved either if weights vanish, because the relative change of their size never decreases.
    """
    path, slower, last_change, last_move, same_moves = [start], 1.0, np.inf, np.zeros(0), 0
    while True:
        here = path[-1]
        after = F(here)
        change = relative_change(here, after)
        if not change > tol or len(path) > n_steps:
            return path, change
        move = in_units(here, after)
        sizes = np.linalg.norm(move) * np.linalg.norm(last_move)
        same = len(path) > 1 and move @ last_move > STEPS.same_direction * sizes
        same_moves = same_moves + 1 if same else 0
        vanishing = weights_are_tiny(F.model, here) and np.abs(after.q).max() < np.abs(here.q).max()
        if change > last_change and not same_moves and not vanishing:
            slower = max(0.5 * slower, STEPS.shortest_step)
        elif same_moves > STEPS.max_same_moves:
            slower, same_moves = min(2 * slower, 1.0), 0
        last_change, last_move = change, move
        path.append(damped_step(here, after, slower))


def newton_step(jacobian: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """Return the step from x to the fixed point to first order in the residual F(x) − x; zero in free directions.

    Rows and columns of 1 − J are scaled to a largest entry of 1 before free directions are identified. Near perfect
    recovery V depends on q − θ²/ρ, which is tiny, so that derivatives in q and θ are very large: without scales, all
    other directions would count as free, and the overlaps would stay where they are.
    """
    matrix = np.eye(len(residual)) - jacobian
    rows = 1.0 / np.maximum(np.abs(matrix).max(axis=1), STEPS.flat)
    scaled = rows[:, None] * matrix
    columns = 1.0 / np.maximum(np.abs(scaled).max(axis=0), STEPS.flat)
    return columns * np.linalg.lstsq(scaled * columns, rows * residual, rcond=STEPS.flat)[0]


def broyden_update(jacobian: np.ndarray, step: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return the Jacobian closest to the given Jacobian that predicts the change of the function by a step.

    `error` is the difference between this change and its prediction by the given Jacobian.
    """
    return jacobian + np.outer(error, step) / (step @ step)


def newton(
    F: OverlapMap,
    start: Overlaps,
    tol: float,
    n_steps: int = STEPS.max_steps,
    jacobian: np.ndarray | None = None,
    packing: Packing | None = None,
    reach: float = np.inf,
    response_slopes: np.ndarray | None = None,
) -> Root:
    """Solve F(x) = x by guarded Newton steps with Broyden's updates of the Jacobian.

    Parameters
    ----------
    F : the map. If it has no choices, they are made at the start.
    start : overlaps of the first step.
    tol : residual F(x) − x, in units of `packing`, at which the status is CONVERGED if the next step is small as well.
    n_steps : maximum number of steps; then the status is MAX_ITER.
    jacobian, response_slopes : estimates of the Jacobian and of the slopes of V̂ at the start; by finite differences
        if no Jacobian is given.
    packing : free overlaps and their units; from the start by default.
    reach : relative change of the overlaps from the start at which the status is STALLED. It is STALLED as well if no
        step reduces the residual, or if a step with a new Jacobian hardly reduces a residual that is acceptable.
    """
    F, packing = F.with_choices_at(start), packing or Packing.of(F.model, start)
    x, J, slopes = packing.pack(start), jacobian, response_slopes
    path, residual = [start], packing.pack(F(start)) - packing.pack(start)
    is_new = J is None  # whether J was just computed by finite differences
    if J is None:
        J, slopes = F.linearize(packing, start)
    status = Status.MAX_ITER
    for _ in range(n_steps):
        size, step = float(np.abs(residual).max()), newton_step(J, residual)
        length = float(np.abs(step).max())
        if size <= tol and length <= STEPS.max_last_step:
            status = Status.CONVERGED
            break
        reduced = _search_line(F, packing, x, residual, step * min(1.0, STEPS.max_step / length))
        if reduced is None and is_new:
            status = Status.STALLED
            break
        if reduced is None:
            (J, slopes), is_new = F.linearize(packing, path[-1]), True
            continue
        step, there, after = reduced
        if float(np.abs(step).max()) > (STEPS.min_noisy_update if F.is_noisy else STEPS.min_update):
            J = broyden_update(J, step, (after - residual) - (J @ step - step))
        was_new, is_new = is_new, False
        x, residual = x + step, after
        path.append(there)
        new_size = float(np.abs(residual).max())
        # integration limits move with each Jacobian as well, so that a new Jacobian would not help
        stalls = was_new and len(path) > 2 and new_size <= STEPS.acceptable_residual * tol
        is_slow = new_size > max(STEPS.slow * size, tol)
        if relative_change(start, there) > reach or (is_slow and stalls):
            status = Status.STALLED
            break
        if is_slow:
            (J, slopes), is_new = F.linearize(packing, there), True
    remaining = float(np.abs(newton_step(J, residual)).max())
    return Root(status, path, float(np.abs(residual).max()), packing, J, F, slopes, remaining=remaining)


def _search_line(
    F: OverlapMap, packing: Packing, x: np.ndarray, residual: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, Overlaps, np.ndarray] | None:
    """Return the largest fraction of a step that reduces the residual, the overlaps there and the residual there.

    None if no fraction reduces it.
    """
    for fraction in STEPS.fractions:
        part = fraction * step
        there = packing.unpack(x + part)
        if not is_feasible(F.model, there):
            continue
        after = packing.pack(F(there)) - x - part
        if np.linalg.norm(after) < (1 - STEPS.decrease * fraction) * np.linalg.norm(residual):
            return part, there, after
    return None
