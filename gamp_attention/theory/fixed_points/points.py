"""Points of a refinement: a fixed point on one quadrature rule with all reported numbers, and their errors.

`gamp_attention.theory.fixed_points.refinement` describes the steps.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gamp_attention._tools.statistics import half_width
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.equations.units import Packing
from gamp_attention.theory.fixed_points.newton import Root, newton_step
from gamp_attention.theory.fixed_points.observables import (
    deterministic_test_error,
    predicted_test_error,
    stationary_loss,
    test_error_slopes,
)
from gamp_attention.theory.fixed_points.overlap_map import Image, OverlapMap
from gamp_attention.theory.rules.rule import Rule, work_of

LOSSES = 2  # number of entries between overlaps and V̂ in a vector of numbers: ε_t and ε_g


@dataclass(frozen=True)
class PointSettings:
    """Settings of errors of a point, from changes between rules and from replicas."""

    earlier_change: float = 0.05  # weight of the refinement before the last: two rules can agree by accident
    min_error: float = 0.3  # smallest error of an overlap or V̂ in units of the largest error, for the same reason
    min_loss_error: tuple[float, ...] = (0.4, 0.1)  # the same for a loss, after one refinement and after several
    test_slope: float = 0.15  # error of ε_g in units of the summed effects of all overlaps: q and θ mostly cancel
    unresolved: float = 0.95  # smallest error of an overlap or V̂, in units of the rule's unresolved error
    unresolved_loss: float = 0.3  # the same for a loss
    next_step: float = 0.8  # error left by the last Newton step in units of this step: its Jacobian is the first rule's
    # the test error of a replica at its solution is computed to first order if differences take at most this fraction
    # of the time of an average, and the solution is at most this part of their width away
    slope_work: float = 0.5
    slope_reach: float = 0.25


POINT = PointSettings()


@dataclass(frozen=True)
class Point:
    """A fixed point of one map, one Newton step from the overlaps at which the map was last evaluated."""

    root: Root  # the solution before that step
    image: Image  # full step from the overlaps of the root
    best: np.ndarray  # packed overlaps after the Newton step
    numbers: np.ndarray  # `best`, ε_t, ε_g and V̂, as one vector
    uncertain: np.ndarray  # errors of the numbers that are due to the last Newton step and to the grids for ε_g
    # derivative of ε_g in the packed overlaps; zero if the rule is random, because replicas include it
    test_slopes: np.ndarray
    replicas: np.ndarray  # the numbers of each replica (R, n); empty if the rule is deterministic
    tests: np.ndarray  # test errors of the replicas (R,) at `best`; empty if the rule is deterministic

    @property
    def overlaps(self) -> Overlaps:
        """Overlaps of the fixed point."""
        return self.root.packing.unpack(self.best)

    @property
    def residual(self) -> float:
        """Largest relative change of an overlap in a full step, before the last Newton step."""
        return self.root.residual


def point_of(
    root: Root,
    slopes: np.ndarray,
    rtol: float,
    test_slopes: np.ndarray | None = None,
    left: float = POINT.next_step,
    known: Point | None = None,
    settings: PointSettings = POINT,
) -> Point:
    """Return the point of a root, with the numbers after one more Newton step.

    Parameters
    ----------
    root : the solution before that step.
    slopes : (2, L, r, r, k) derivatives of V̂ in both forms in the packed overlaps.
    rtol : relative error to which ε_g is computed.
    test_slopes : (k,) derivatives of ε_g in the packed overlaps, which are computed if not given.
    left : error that the Newton step leaves, in units of this step.
    known : another point. If its replicas are a part of the replicas of the root, their test errors are used.
    """
    F, packing, J, x = root.F, root.packing, root.jacobian, root.overlaps
    assert J is not None
    image, samples = F.images(x)
    here, there = packing.pack(x), packing.pack(image.overlaps)
    step = newton_step(J, there - here)
    best = here + step
    overlaps = packing.unpack(best)
    train = stationary_loss(F, x, image)
    shift = slopes[0] @ step
    replicas, tests = [], np.zeros(0)
    if F.rule.deterministic:
        test, test_error = deterministic_test_error(F.model, overlaps, rtol)
        test_slopes = test_error_slopes(F.model, packing, best) if test_slopes is None else test_slopes
    else:
        moves = np.array([newton_step(J, packing.pack(sample.overlaps) - there) for sample in samples])
        tests, sample_tests = _tests_of_replicas(F, packing, best, moves, known, settings)
        test, test_error, test_slopes = float(tests.mean()), 0.0, np.zeros(len(best))
        for sample, move, sample_test in zip(samples, moves, sample_tests, strict=True):
            sample_train = train + sample.hats.moreau - image.hats.moreau
            V_hat = sample.hats.V + shift + slopes[0] @ move
            replicas.append(np.concatenate([best + move, [sample_train, sample_test], V_hat.ravel()]))
    # ε_t is stationary for Stein's form, so that its error is of second order in the step
    largest, first_order = float(np.abs(step).max()), float(F.response != "stein")
    loss_errors = [train * largest * (largest + first_order), test_error + left * test * largest]
    return Point(
        root, image, best,
        np.concatenate([best, [train, test], (image.hats.V + shift).ravel()]),
        np.concatenate([left * np.abs(step), loss_errors, left * np.abs(shift).ravel()]),
        test_slopes,
        np.array(replicas),
        tests,
    )  # fmt: skip


def _tests_of_replicas(
    F: OverlapMap, packing: Packing, best: np.ndarray, moves: np.ndarray, known: Point | None, settings: PointSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Return the test errors of the replicas (R,) at the packed overlaps `best`, and at their solutions.

    The solution of a replica differs from `best` by its row of `moves` (R, k). If there are many points, the
    differences of the test errors are computed to first order, and test errors of a `known` point are used.
    """
    overlaps, rule = packing.unpack(best), F.rule
    if 2 * len(best) * work_of(rule.for_stability(), F.model) <= settings.slope_work * work_of(rule, F.model):
        pairs = packing.pairs_around(F.model, overlaps, F.settings.noisy_fraction)
        widths = [packing.pack(ahead) - packing.pack(behind) for ahead, behind in pairs]
        inverse = np.linalg.inv(np.stack(widths, axis=1))
        if np.abs(moves @ inverse.T).max() <= settings.slope_reach:
            few = rule.for_stability()
            sides = [[predicted_test_error(F.model, side, few).mean() for side in pair] for pair in pairs]
            slopes = -np.diff(sides, axis=1)[:, 0] @ inverse
            tests = np.zeros(0)
            missing: Rule | None = rule
            if known is not None and known.root.packing is packing:
                far = np.abs(inverse @ (best - known.best)).max() > settings.slope_reach
                rest = None if far else rule.without(known.root.F.rule)
                if rest is not None or (not far and rule == known.root.F.rule):
                    missing, tests = rest, known.tests + slopes @ (best - known.best)
            if missing is not None:
                tests = np.concatenate([tests, predicted_test_error(F.model, overlaps, missing)])
            return tests, tests + moves @ slopes
    tests = predicted_test_error(F.model, overlaps, rule)
    there = [packing.unpack(best + move) for move in moves]
    return tests, np.array([predicted_test_error(F.model, at, rule, k)[0] for k, at in enumerate(there)])


def size_of_hats(hats: Hats) -> float:
    """Return the unit of errors of V̂: the largest entry of its two forms.

    Stein's form can be zero if jumps compensate the derivative.
    """
    return max(float(np.abs(V).max(initial=0.0)) for V in (hats.V, hats.V_derivative))


def units_of(point: Point) -> np.ndarray:
    """Return the unit of each number: 1 for overlaps, packed in their units; the value of a loss; the size of V̂."""
    k = len(point.best)
    losses, V_hat = np.abs(point.numbers[k : k + LOSSES]), point.numbers[k + LOSSES :]
    return np.concatenate([np.ones(k), losses, np.full(len(V_hat), size_of_hats(point.image.hats))])


def errors_of(points: list[Point], settings: PointSettings = POINT) -> np.ndarray:
    """Return the errors of the last point's numbers, from its replicas or from the points on coarser rules."""
    last, units = points[-1], units_of(points[-1])
    if len(last.replicas):
        error = half_width(last.replicas - last.numbers)
        unresolved = 0.0
    else:
        changes = [np.abs(a.numbers - b.numbers) for a, b in pairwise(points[-3:])]
        weights = [settings.earlier_change ** (len(changes) - 1 - k) for k in range(len(changes))]
        error = np.max([weight * change for weight, change in zip(weights, changes, strict=True)], axis=0)
        unresolved = last.root.F.rule.unresolved
    error = error + last.uncertain
    k = len(last.best)
    is_loss = np.zeros(len(units), dtype=bool)
    is_loss[k : k + LOSSES] = True
    size = np.minimum(np.abs(last.numbers), units)
    part = np.where(is_loss, settings.unresolved_loss, settings.unresolved)
    error = np.maximum(error, unresolved * part * size)
    largest = float((error[:k]).max())
    part = np.where(is_loss, settings.min_loss_error[len(points) > 2], settings.min_error)
    error = np.maximum(error, part * largest * size)
    error[k + 1] = max(error[k + 1], settings.test_slope * float(np.linalg.norm(last.test_slopes * error[:k])))
    return error


def response_slopes(root: Root) -> np.ndarray:
    """Return the derivatives of V̂ in both forms in the packed overlaps of a root, (2, L, r, r, k)."""
    if root.response_slopes is not None:
        return root.response_slopes
    return root.F.linearize(root.packing, root.overlaps)[1]
