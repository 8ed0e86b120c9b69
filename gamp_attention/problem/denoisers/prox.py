"""Global minimum of the proximal objective of one sample over its L r local fields.

    z(ω) = argmin_z ½ Σ_l (z_l − ω_l)ᵀ V_l⁻¹ (z_l − ω_l) + ℓ(z)

ℓ is not convex, so the objective may have several minima. If bounds of ℓ and of its curvature show that no second
minimum can be lower, one minimization is enough. Otherwise the ellipsoid that contains all lower points is searched
from many starts, until the stopping rule of Boender and Rinnooy Kan (1987) finds it unlikely that a minimum was missed.
For a single field the interval is scanned instead.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numba.core import types
from numba.core.types import float64, int64, none
from scipy.special import ndtri

from gamp_attention._kernels.compiled import dispatch_on_type, inline_kernel, overload, sample_kernel
from gamp_attention._kernels.deferred import deferred_kernel
from gamp_attention._kernels.pointers import load_from
from gamp_attention._tools.sobol import sobol_points
from gamp_attention.problem.denoisers.bundle import is_kinked, minimize_at_kinks
from gamp_attention.problem.denoisers.newton import (
    MAX_SHIFT,
    OUTCOME,
    assign,
    cholesky,
    copy_matrix,
    in_scalars,
    max_abs,
    minimize_generally,
    minimize_in_scalars,
    objective,
    point_to_loss_scratch,
)
from gamp_attention.problem.losses.attention import is_dot_product_loss
from gamp_attention.problem.losses.protocol import VECTOR, TableSlots, loss_curvature, loss_floor, loss_kernel
from gamp_attention.problem.losses.two_tokens import N_STARTS, two_token_start

MAX_STARTS = 400  # maximum number of starts of an unbounded search: far more than any tested problem needs
MIN_SHIFT = 1e-12  # shift of the Hessian at a minimum, in units of the smallest eigenvalue of V⁻¹
SEARCHED = types.Tuple((float64, float64, int64))  # numba type of (objective, gap, outcome), the result of a search
SAME_MINIMUM = 1e-6  # relative distance below which two minimizers count as the same minimum


class Search(NamedTuple):
    """Points and settings of global searches over L r fields."""

    # points of the unit ball (N, L r) from which starts are chosen, denser at its center, in pairs ±u; the first points
    # are well spread for any number of them
    points: np.ndarray
    few_starts: int = 2  # maximum number of further starts for which no bounds of the loss are computed
    convex_starts: int = 8  # number of failed starts after which a search for a minimum that is unique ends
    n_attempts: int = 20  # minimum number of starts of a bounded search while no minimum has been found
    n_compared: int = 4  # number of points that are compared for one start
    feature: float = 0.5  # distance in z over which a softmax of quadratic scores can change the shape of ℓ
    scan_spacing: float = 0.25  # distance in z of the points at which a scan evaluates the objective of a single field
    fewest_scanned: int = 16  # minimum number of these points
    most_scanned: int = 400  # maximum number of these points
    near_zero: float = 10.0  # distance from 0 up to which they remain dense if the interval is longer, for large V


@lru_cache
def make_search(n_fields: int, n_points: int = 2048) -> Search:
    """Return a search over L r fields from starts among a number of points."""
    cube = sobol_points(n_points // 2, n_fields + 1, np.random.default_rng(7))
    gauss = ndtri(np.clip(cube[:, 1:], 1e-9, 1 - 1e-9))
    ball = np.sqrt(cube[:, :1]) * gauss / np.linalg.norm(gauss, axis=1, keepdims=True)
    return Search(np.ascontiguousarray(np.stack([ball, -ball], axis=1).reshape(n_points, n_fields)))


@sample_kernel  # not a `loss_kernel`: compiled once for all registered losses, whose derivatives take most of the time
def minimize_from(loss, p, omega, at_metric, z, at_ws, n_known):
    """Minimize the objective from z, in place, by guarded Newton steps.

    Returns (objective, outcome). After OUTCOME.solved, ws.hess is the Hessian at z, or at a point within one last step
    of relative size `metric.last_step`. The outcome is `merged` if a step heads for one of the first n_known of
    ws.minima.
    """
    ws = load_from(at_ws)
    ws.n_hessians[0] += 1
    if in_scalars(loss):
        value, outcome = minimize_in_scalars(loss, p, omega, at_metric, z, at_ws, n_known)
        if outcome != OUTCOME.unfinished:
            return value, outcome
    if is_kinked(loss):
        return minimize_at_kinks(loss, p, omega, at_metric, z, at_ws)
    return minimize_generally(loss, p, omega, at_metric, z, at_ws, n_known)


@inline_kernel
def factor_hessian(metric, hess, chol):
    """Factor the Hessian at a minimum into chol, shifted if the minimum is about to vanish and it is singular."""
    shift = MIN_SHIFT * metric.smallest
    while not cholesky(hess, shift, chol) and shift < MAX_SHIFT:
        shift = max(10.0 * shift, 1e-12)


@loss_kernel(TableSlots.IS_UNIQUE, types.Tuple((types.boolean, float64)), VECTOR, VECTOR, float64, float64, VECTOR)
def is_unique(loss, p, omega, smallest, value, work):
    """Return whether a minimum with objective `value` must be the global minimum, and the radius of the search.

    Points whose objective is at most `value` lie in the ellipsoid ½ (z−ω)ᵀV⁻¹(z−ω) ≤ value − inf ℓ, whose radius is
    returned in units of V^{1/2}. If the objective is convex there, it has no other minimum. `smallest` is the smallest
    eigenvalue of V⁻¹.
    """
    radius = math.sqrt(max(0.0, 2.0 * (value - loss_floor(load_from(loss), p, work))))
    reach = radius / math.sqrt(smallest)
    return loss_curvature(load_from(loss), p, omega, reach) + smallest > 0.0, radius


@inline_kernel
def is_known(z, minima, n_known):
    """Return whether z is one of the first n_known minima up to rounding."""
    for c in range(n_known):
        distance, scale = 0.0, 0.0
        for i in range(z.shape[0]):
            distance = max(distance, abs(z[i] - minima[c, i]))
            scale = max(scale, abs(z[i]))
        if distance <= SAME_MINIMUM * (1.0 + scale):
            return True
    return False


@dispatch_on_type
def special_start(loss, p, omega, z, number, point):
    """Fill point with one of the `N_STARTS` starts of a search for two tokens. Compiled code only."""


@overload(special_start)
def _special_start(loss, p, omega, z, number, point):
    return two_token_start if is_dot_product_loss(loss) else lambda loss, p, omega, z, number, point: None


@deferred_kernel(none)
def next_start(number, loss, p, omega, at_metric, search, radius, z, at_ws):
    """Fill ws.point with start `number` of a search: mirror images first, then points of the ellipsoid."""
    metric, ws = load_from(at_metric), load_from(at_ws)
    L, r = metric.root.shape[0], metric.root.shape[1]
    k = L * r
    tokens, n_sets = number >> 1, 1 << min(L, 4)  # a set of tokens, as bits, and the number of sets
    if number == 0:  # ℓ is even for attention: the mirror image is the most frequent second minimum
        for i in range(k):
            ws.point[i] = -z[i]
    elif number == 1:
        assign(ws.point, omega)
    elif tokens < n_sets and number % 2 == 0:  # the signs of some tokens are reversed
        for i in range(k):
            ws.point[i] = -omega[i] if tokens >> (i // r) & 1 else omega[i]
    elif tokens < n_sets:  # some tokens are set to their mean, so that no attention between them is preferred
        for a in range(r):
            total, count = 0.0, 0
            for l in range(L):
                if tokens >> l & 1:
                    total += omega[l * r + a]
                    count += 1
            for l in range(L):
                ws.point[l * r + a] = omega[l * r + a]
                if tokens >> l & 1:
                    ws.point[l * r + a] = total / count if count > 1 else 0.0
    else:  # the best of a few points
        best = np.inf
        for s in range(search.n_compared):
            row = (number * search.n_compared + s) % search.points.shape[0]
            for l in range(L):
                for a in range(r):
                    acc = 0.0
                    for b in range(a + 1):
                        acc += metric.root[l, a, b] * search.points[row, l * r + b]
                    ws.trial[l * r + a] = omega[l * r + a] + radius * acc
            value = objective(loss, p, omega, at_metric, ws.trial, at_ws)
            if value < best:
                best = value
                assign(ws.point, ws.trial)


@deferred_kernel(SEARCHED)
def minimize_globally(loss, p, omega, at_metric, z, max_starts, search, at_ws):
    """Find the global minimum of the proximal objective from the start z, in place.

    Returns (objective, gap, outcome). The gap is the difference to the next higher minimum found; it is inf if the
    minimum is certified to be unique or no other minimum was found. On return, ws.hess is the Hessian at z, as after
    `minimize_from`.

    The search ends if the Bayesian estimate of the number of minima, w (s − 1)/(s − w − 2) after s starts that found w
    minima, exceeds w by at most one half (Boender and Rinnooy Kan, 1987), but not before the number of starts has
    reached the number of features of ℓ that fit into the ellipsoid. For two tokens, it ends after the starts of
    `two_token_start`. `max_starts` bounds the number of starts. A search of at most `n_attempts` starts skips an
    unpromising start. For `max_starts` = 0 the result is the local minimum next to z.
    """
    metric, ws = load_from(at_metric), load_from(at_ws)
    value, outcome = minimize_from(loss, p, omega, at_metric, z, at_ws, 0)
    if max_starts == 0:
        return value, np.inf, outcome
    unique, radius = False, np.inf
    if max_starts > search.few_starts:  # for long samples the bound takes longer than few starts
        unique, radius = is_unique(loss, p, omega, metric.smallest, value, point_to_loss_scratch(at_ws))
    if unique and outcome == OUTCOME.solved:
        return value, np.inf, outcome
    n_known, lowest, runner_up = 0, np.inf, np.inf
    if outcome == OUTCOME.solved:
        n_known, lowest = 1, value
        assign(ws.minima[0], z)
        copy_matrix(ws.kept, ws.hess)
    extent = radius / math.sqrt(metric.smallest)
    n_starts = MAX_STARTS if math.isinf(extent) else int(min(MAX_STARTS, 3.0 * (extent / search.feature) ** 2))
    # special starts are near minima; if the first minimization failed, the general search takes more attempts
    is_pair = in_scalars(loss) and z.shape[0] == 2  # two tokens and one column
    n_capacity, n_special = ws.minima.shape[0], N_STARTS if n_known > 0 and is_pair else 0
    bounded, first = max_starts <= search.n_attempts, 0
    if bounded:
        if not math.isfinite(radius):  # ℓ has no lower bound: the objective at ω limits the distance instead
            radius = math.sqrt(2.0 * abs(objective(loss, p, omega, at_metric, omega, at_ws) - value))
        if n_special == 0 and not max_abs(omega) > 0.0:  # for ω = 0 mirror images and sign changes give no new starts
            first = 2 << min(metric.root.shape[0], 4)
    for number in range(first, first + MAX_STARTS):
        # the estimate exceeds n_known by at most 1/2 after more than 2 n_known² + 3 n_known starts
        n_needed = n_special if n_special > 0 else max(n_starts, 2 * n_known * n_known + 3 * n_known) + 1
        n_most = max_starts if n_known > 0 else max(max_starts, search.n_attempts)
        if unique:
            n_most = 0 if n_known > 0 else search.convex_starts
        if number - first >= min(n_needed, n_most) or ws.stop[0] != 0:
            break
        if n_special > 0:
            special_start(loss, p, omega, z, number, ws.point)
        else:
            next_start(number, loss, p, omega, at_metric, search, radius, z, at_ws)
        # Number 0 is −z, which is close to another minimum. If the objective is higher there than at z, this other
        # minimum is nearly always higher, too.
        if bounded and n_known > 0 and number == 0 and objective(loss, p, omega, at_metric, ws.point, at_ws) > lowest:
            continue
        trial, trial_outcome = minimize_from(loss, p, omega, at_metric, ws.point, at_ws, n_known)
        if trial_outcome != OUTCOME.solved or is_known(ws.point, ws.minima, n_known):
            continue
        if n_known < n_capacity:
            assign(ws.minima[n_known], ws.point)
            n_known += 1
        if trial < lowest:
            runner_up = lowest
            lowest, outcome = trial, trial_outcome
            assign(z, ws.point)
            copy_matrix(ws.kept, ws.hess)
        elif trial < runner_up:
            runner_up = trial
    if n_known == 0:
        return value, np.inf, outcome
    copy_matrix(ws.hess, ws.kept)
    return lowest, runner_up - lowest, outcome


@deferred_kernel(SEARCHED)
def minimize_single_field(loss, p, omega, at_metric, z, max_starts, search, at_ws):
    """Find the global minimum for a sample with one field, with the arguments and results of `minimize_globally`.

    Points with a lower objective lie in an interval around ω. The objective is evaluated at points of this interval,
    and minimized from each point that is lower than its neighbors, which takes far fewer evaluations than a search from
    many starts. The points are equidistant, or denser near 0, where losses vary, if there are not enough for a long
    interval. Without a lower bound of ℓ, the general search is used.
    """
    metric, ws = load_from(at_metric), load_from(at_ws)
    value, outcome = minimize_from(loss, p, omega, at_metric, z, at_ws, 0)
    unique, radius = is_unique(loss, p, omega, metric.smallest, value, point_to_loss_scratch(at_ws))
    if unique and outcome == OUTCOME.solved:
        return value, np.inf, outcome
    if not (math.isfinite(radius) and outcome == OUTCOME.solved):
        return minimize_globally(loss, p, omega, at_metric, z, max_starts, search, at_ws)
    extent, found, runner_up = radius / math.sqrt(metric.smallest), z[0], np.inf
    copy_matrix(ws.kept, ws.hess)
    n = int(min(max(2.0 * extent / search.scan_spacing, search.fewest_scanned), search.most_scanned))
    # points are unit · sinh(t) for equidistant t, which are equidistant for a large unit
    unit = search.near_zero if n == search.most_scanned else 1e3 * (extent + abs(omega[0]))
    first, last = math.asinh((omega[0] - extent) / unit), math.asinh((omega[0] + extent) / unit)
    before, here, ahead = np.inf, np.inf, -np.inf
    for number in range(n + 2):
        x, ahead = ahead, unit * math.sinh(first + (last - first) * number / n)  # x is compared with its neighbors
        ws.trial[0] = ahead
        after = objective(loss, p, omega, at_metric, ws.trial, at_ws) if number <= n else np.inf
        if here <= before and here < after and abs(x - found) > ahead - x:
            ws.point[0] = x
            trial, trial_outcome = minimize_from(loss, p, omega, at_metric, ws.point, at_ws, 0)
            apart = abs(ws.point[0] - z[0]) > SAME_MINIMUM * (1.0 + abs(z[0]))
            if trial_outcome == OUTCOME.solved and apart:
                if trial < value:
                    runner_up = value
                    value, outcome = trial, trial_outcome
                    assign(z, ws.point)
                    copy_matrix(ws.kept, ws.hess)
                elif trial < runner_up:
                    runner_up = trial
        before, here = here, after
    copy_matrix(ws.hess, ws.kept)
    return value, runner_up - value, outcome
