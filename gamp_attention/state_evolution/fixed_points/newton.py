"""Steps toward fixed points of the overlap map, and overlaps that go to zero on the way.

Damped steps (`iterate`): the overlaps move a part of the way to their image under the map. This follows message
passing, and so leads to the fixed point of the branch that a start belongs to, but slowly.

Newton steps (`newton`): a step solves F(x) = x to first order with the Jacobian of F in the packed overlaps. The
Jacobian is computed by finite differences and then updated from the residuals of later steps (Broyden, 1965). Three
guards make this safe:

- no step changes an overlap by more than MAX_STEP, because the Jacobian is only local;
- the full step or one of three shorter steps has to reduce the residual (line search); if none does, the Jacobian is
  computed again;
- directions that a symmetry leaves free, such as a common rotation of the columns, are left out of the step.

Overlaps that go to zero have no scale, so that no residual relative to their size gets small. There are two cases: a
family, m or θ, fades while the weights remain; or all weights vanish, and q with them. Sizes of families are in units
of √q, and sizes of q are in units of the teacher's ρ.
"""

from dataclasses import dataclass

import numpy as np

from gamp_attention._core.numerics import psd_root
from gamp_attention.denoisers.newton import NotPositiveDefinite
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps, Status
from gamp_attention.state_evolution.equations.units import Packing, in_units, is_feasible, relative_change, units
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap, WeightsVanished
from gamp_attention.state_evolution.rules.rule import WorkExceeded

BREAKDOWNS = (NotPositiveDefinite, np.linalg.LinAlgError, FloatingPointError, WeightsVanished, WorkExceeded)

# Families and weights that go to zero
FADED = 1e-3  # size of a family below which it counts as zero: on no branch it is that small, except near its end
SMALL_FAMILY = 0.2  # size of a decreasing family below which it fades
LARGE_FAMILY = 0.7  # size of a decreasing family below which it fades if its rate of decay is steady
STEADY = 0.7  # smallest ratio of a later to an earlier rate of a steady decay; the rate falls on the way to a size > 0
PRESENT = 0.5  # size of a family, relative to its largest size on a path, at which the path is still on its branch
MIN_PATH = 5  # number of overlaps on a path from which a rate of decay can be estimated
TINY_WEIGHTS = 1e-3  # size of q below which weights may be vanishing
ZERO_WEIGHTS = 1e-8  # size of q that stands for zero; the map is linear there
MAX_ZERO_STEPS = 40  # maximum number of damped steps at zero weights; the shape of the overlaps converges in a few
ZERO_CHANGE = 1e-4  # relative change of the overlaps at zero weights below which the steps end
REPELLING = 10.0  # growth of q at zero weights above which the steps end as well

# Damped steps
SAME_DIRECTION = 0.9  # cosine of the angle between two moves, above which the second continues the first
MAX_SAME_MOVES = 3  # number of moves in one direction after which halved steps are doubled again
SHORTEST_STEP = 1 / 64  # smallest factor of a damped step

# Newton steps, in units of the overlaps
DIFFERENCE = 5e-3  # step of finite differences: on coarse rules, averages are not smooth on the scale of 1e-4
MAX_STEP = 0.3  # largest change of an overlap by one step
FRACTIONS = (1.0, 0.5, 0.2, 0.05)  # fractions of a step that the line search tries in turn
DECREASE = 0.1  # smallest relative decrease of the residual by a full step
SLOW = 0.3  # ratio of the residuals after and before a step, above which the Jacobian is computed again
MIN_UPDATE = 1e-8  # change of an overlap below which changes of the map are rounding errors and do not update J
MIN_NOISY_UPDATE = 5e-3  # the same if the map jumps at single points, whose number decreases slower than the step
FLAT = 1e-5  # singular value of the scaled 1 − J, relative to the largest, below which a direction is free
MAX_LAST_STEP = 0.05  # largest step that may remain at a fixed point: close to its end, a branch has small residuals
MAX_NEWTON = 12  # maximum number of steps; near a fixed point a few suffice
# residual in units of the tolerance that is accepted when Newton steps stall, because integration limits that move
# between evaluations leave a residual
ACCEPTABLE_RESIDUAL = 5.0


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
        if len(size) < MIN_PATH or not 0 < size[-1] < LARGE_FAMILY or (np.diff(size) >= 0).any():
            continue
        rate = -np.diff(np.log(size))
        if size[-1] < SMALL_FAMILY or rate[-1] > STEADY * rate[len(rate) // 2]:
            fading.append(family)
    return fading


def last_with(path: list[Overlaps], family: str) -> Overlaps:
    """Return the last overlaps of a path in which a family is at least half as large as its maximum on the path."""
    size = np.array([family_size(overlaps, family) for overlaps in path])
    return path[int(np.flatnonzero(size >= PRESENT * size.max())[-1])]


def has_faded(overlaps: Overlaps, family: str) -> bool:
    """Return whether a family is practically zero."""
    return bool(np.abs(overlaps.arrays()[family]).max() < FADED * units(overlaps)[family])


def weights_are_tiny(model: Model, overlaps: Overlaps) -> bool:
    """Return whether q is so small that it can change by a large factor although the step is small."""
    return bool(0 < np.abs(overlaps.q).max() < TINY_WEIGHTS * np.abs(model.coordinates.rho).max())


def weights_shrink(model: Model, old: Overlaps, new: Overlaps) -> bool:
    """Return whether weights are tiny and decrease."""
    return weights_are_tiny(model, old) and bool(np.abs(new.q).max() < np.abs(old.q).max())


def iterate_at_zero(F: OverlapMap, overlaps: Overlaps) -> tuple[Overlaps, float]:
    """Take damped steps with q held at zero; return the overlaps reached, and the growth of q there in a full step."""
    x, growth = _scale_to_zero(F.model, overlaps), np.inf
    for _ in range(MAX_ZERO_STEPS):
        after = F(x)
        growth = float(np.abs(after.q).max() / np.abs(x.q).max())
        new = _scale_to_zero(F.model, damped_step(x, after))
        change = relative_change(x, new)
        x = new
        if change < ZERO_CHANGE or growth > REPELLING:
            break
    return x, growth


def find_vanished_weights(F: OverlapMap, overlaps: Overlaps) -> Overlaps | None:
    """Return the overlaps that stand for zero weights if damped steps from given overlaps lead there; otherwise None.

    Damped steps lead there if zero attracts and q already decreases about as fast as close to zero.
    """
    after = F(overlaps)
    if not weights_shrink(F.model, overlaps, after):
        return None
    zero, growth = iterate_at_zero(F, overlaps)
    rate = np.log(np.abs(after.q).max() / np.abs(overlaps.q).max())
    return zero if growth < 1 and rate < STEADY * np.log(growth) else None


def _scale_to_zero(model: Model, overlaps: Overlaps) -> Overlaps:
    """Return the overlaps of the same weights after they are scaled until q stands for zero."""
    factor = ZERO_WEIGHTS * np.abs(model.coordinates.rho).max() / np.abs(overlaps.q).max()
    root = np.sqrt(factor)
    return Overlaps(factor * overlaps.q, root * overlaps.m, root * overlaps.theta, overlaps.V)


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
        return self.residual <= ACCEPTABLE_RESIDUAL * tol and self.remaining <= MAX_LAST_STEP

    def attracts(self, margin: float) -> bool:
        """Return whether damped steps return to the fixed point: all eigenvalues of J have real parts < 1 − margin."""
        assert self.jacobian is not None
        return bool(np.linalg.eigvals(self.jacobian).real.max() < 1 - margin)


def breakdown(error: Exception) -> Status:
    """Return the status of a solver that was stopped by one of BREAKDOWNS."""
    if isinstance(error, WeightsVanished):
        return Status.LOST
    return Status.MAX_ITER if isinstance(error, WorkExceeded) else Status.NONFINITE


def describe_breakdown(error: Exception) -> str:
    """Return the cause of one of BREAKDOWNS in words; empty if its status says it."""
    if isinstance(error, WeightsVanished | WorkExceeded):
        return ""
    if isinstance(error, NotPositiveDefinite):
        return (
            "V is not positive definite in a step, because λ + A is not positive definite at the averages: "
            'use a larger λ, or response="derivative"'
        )
    return f"an average or a matrix is not finite in a step ({error})"


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
        same = len(path) > 1 and move @ last_move > SAME_DIRECTION * np.linalg.norm(move) * np.linalg.norm(last_move)
        same_moves = same_moves + 1 if same else 0
        if change > last_change and not same_moves and not weights_shrink(F.model, here, after):
            slower = max(0.5 * slower, SHORTEST_STEP)
        elif same_moves > MAX_SAME_MOVES:
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
    rows = 1.0 / np.maximum(np.abs(matrix).max(axis=1), FLAT)
    scaled = rows[:, None] * matrix
    columns = 1.0 / np.maximum(np.abs(scaled).max(axis=0), FLAT)
    return columns * np.linalg.lstsq(scaled * columns, rows * residual, rcond=FLAT)[0]


def broyden_update(jacobian: np.ndarray, step: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return the Jacobian closest to the given Jacobian that predicts the change of the function by a step.

    `error` is the difference between this change and its prediction by the given Jacobian.
    """
    return jacobian + np.outer(error, step) / (step @ step)


def newton(
    F: OverlapMap,
    start: Overlaps,
    tol: float,
    n_steps: int = MAX_NEWTON,
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
        J, slopes = F.linearize(packing, start, DIFFERENCE)

    def end(status: Status) -> Root:
        assert J is not None
        remaining = float(np.abs(newton_step(J, residual)).max())
        return Root(status, path, float(np.abs(residual).max()), packing, J, F, slopes, remaining=remaining)

    for _ in range(n_steps):
        size, step = float(np.abs(residual).max()), newton_step(J, residual)
        length = float(np.abs(step).max())
        if size <= tol and length <= MAX_LAST_STEP:
            return end(Status.CONVERGED)
        step *= min(1.0, MAX_STEP / length)
        reduced = _search_line(F, packing, x, residual, step)
        if reduced is None:
            if is_new:
                return end(Status.STALLED)
            (J, slopes), is_new = F.linearize(packing, path[-1], DIFFERENCE), True
            continue
        step, there, after = reduced
        if float(np.abs(step).max()) > (MIN_NOISY_UPDATE if F.is_noisy else MIN_UPDATE):
            J = broyden_update(J, step, (after - residual) - (J @ step - step))
        was_new, is_new = is_new, False
        x, residual = x + step, after
        path.append(there)
        if relative_change(start, there) > reach:
            return end(Status.STALLED)
        new_size = float(np.abs(residual).max())
        if new_size > max(SLOW * size, tol):
            # integration limits move with each Jacobian as well, so that a new Jacobian would not help
            if was_new and len(path) > 2 and new_size <= ACCEPTABLE_RESIDUAL * tol:
                return end(Status.STALLED)
            (J, slopes), is_new = F.linearize(packing, there, DIFFERENCE), True
    return end(Status.MAX_ITER)


def _search_line(
    F: OverlapMap, packing: Packing, x: np.ndarray, residual: np.ndarray, step: np.ndarray
) -> tuple[np.ndarray, Overlaps, np.ndarray] | None:
    """Return the largest fraction of a step that reduces the residual, the overlaps there and the residual there.

    None if no fraction reduces it.
    """
    for fraction in FRACTIONS:
        part = fraction * step
        there = packing.unpack(x + part)
        if not is_feasible(F.model, there):
            continue
        after = packing.pack(F(there)) - x - part
        if np.linalg.norm(after) < (1 - DECREASE * fraction) * np.linalg.norm(residual):
            return part, there, after
    return None
