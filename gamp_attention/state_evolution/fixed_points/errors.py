"""Numbers of a fixed point on one rule, and their errors from those on other rules or from replicas."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gamp_attention._core.spread import half_width
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Hats
from gamp_attention.state_evolution.fixed_points.free_energy import stationary_loss
from gamp_attention.state_evolution.fixed_points.newton import BROYDEN, Root, newton_step
from gamp_attention.state_evolution.fixed_points.overlap_map import Image
from gamp_attention.state_evolution.fixed_points.test_error import by_series, predicted_test_error, slopes_by_series

LOSSES = 2  # numbers between overlaps and V̂


@dataclass(frozen=True)
class ErrorSettings:
    """What errors are believed."""

    shift: float = 1.0  # of what a rule gives, in units of its difference from the coarser one: next ones are .02 to .8
    memory: float = 0.05  # of the difference before that one, as two rules can agree by accident
    floor: float = 0.3  # least error of a number in units of the worst, for the same reason
    floor_loss: tuple[float, float] = (0.4, 0.1)  # the same for a loss, where two rules or more tell of it
    passed_on: float = 0.15  # of what errors of overlaps make of ε_g, which those of q and θ together mostly cancel
    step: float = 0.8  # of the last Newton step, in units of itself: its Jacobian is of the first rule
    unresolved: float = 0.95  # least error of an overlap in units of what the split rule leaves unresolved
    unresolved_loss: float = 0.3  # the same for a loss


ERRORS = ErrorSettings()


@dataclass(frozen=True)
class Point:
    """A fixed point of one map, one Newton step from where the map was last evaluated.

    Attributes
    ----------
    root : the solution before that step.
    image : of its overlaps.
    best : packed overlaps after it.
    numbers : `best`, ε_t, ε_g and V̂, as one vector.
    uncertain : errors of these by the step and by the grids of ε_g.
    test_slopes : derivative of ε_g in the packed overlaps; zero where the rule is random, as replicas tell all.
    replicas : the numbers of each replica (R, n), none where the rule is not random.
    """

    root: Root
    image: Image
    best: np.ndarray
    numbers: np.ndarray
    uncertain: np.ndarray
    test_slopes: np.ndarray
    replicas: np.ndarray

    @property
    def overlaps(self) -> Overlaps:
        """The fixed point."""
        return self.root.packing.unpack(self.best)

    @property
    def residual(self) -> float:
        """Largest change of an overlap in a full step, before the last one."""
        return self.root.residual


def point_of(root: Root, slopes: np.ndarray, rtol: float, test_slopes: np.ndarray | None = None) -> Point:
    """Numbers of a root; `slopes` (2, L, r, r, k) are derivatives of V̂ in both forms, `test_slopes` (k,) of ε_g."""
    F, packing, J, x = root.F, root.packing, root.jacobian, root.overlaps
    assert J is not None
    random = not F.rule.deterministic
    image, samples = F.images(x)
    here, there = packing.pack(x), packing.pack(image.overlaps)
    step = newton_step(J, there - here)
    best = here + step
    overlaps = packing.unpack(best)
    train = stationary_loss(F, x, image)
    shift = slopes[0] @ step
    if random:
        tests = predicted_test_error(F.model, overlaps, F.rule)
        test, test_error, test_slopes = float(tests.mean()), 0.0, np.zeros(len(best))
    else:
        test, test_error = by_series(F.model, overlaps, rtol)
        test_slopes = slopes_by_series(F.model, packing, best) if test_slopes is None else test_slopes
    replicas = []
    for k, sample in enumerate(samples if random else []):
        move = newton_step(J, packing.pack(sample.overlaps) - there)
        own = predicted_test_error(F.model, packing.unpack(best + move), F.rule, k)[0]
        V_hat = sample.hats.V + shift + slopes[0] @ move
        own_loss = train + sample.hats.moreau - image.hats.moreau
        replicas.append(np.concatenate([best + move, [own_loss, own], V_hat.ravel()]))
    moved, first_order = float(np.abs(step).max()), float(F.response != "stein")  # with Stein's form ε_t is stationary
    loose = [train * moved * (moved + first_order), test_error + ERRORS.step * test * moved]
    return Point(
        root, image, best,
        np.concatenate([best, [train, test], (image.hats.V + shift).ravel()]),
        np.concatenate([ERRORS.step * np.abs(step), loose, ERRORS.step * np.abs(shift).ravel()]),
        test_slopes,
        np.array(replicas),
    )  # fmt: skip


def size_of(hats: Hats) -> float:
    """The size of V̂ that errors are relative to, of that of its two forms which is larger.

    Stein's goes through zero where jumps make up for the derivative.
    """
    return max(float(np.abs(each).max(initial=0.0)) for each in (hats.V, hats.V_derivative))


def units_of(point: Point) -> np.ndarray:
    """What errors are relative to: overlaps are packed in units, losses go by themselves, V̂ by its size."""
    k = len(point.best)
    losses, V_hat = np.abs(point.numbers[k : k + LOSSES]), point.numbers[k + LOSSES :]
    return np.concatenate([np.ones(k), losses, np.full(len(V_hat), size_of(point.image.hats))])


def errors_of(points: list[Point]) -> np.ndarray:
    """Errors of the last point's numbers, from its replicas or from the points on coarser rules."""
    last, units = points[-1], units_of(points[-1])
    if len(last.replicas):
        error = half_width(last.replicas - last.numbers)
        unresolved = 0.0
    else:
        away = [np.abs(a.numbers - b.numbers) for a, b in pairwise(points[-3:])]
        error = ERRORS.shift * np.max(
            [ERRORS.memory ** (len(away) - 1 - k) * each for k, each in enumerate(away)], axis=0
        )
        unresolved = last.root.F.rule.tol
    error = error + last.uncertain
    k = len(last.best)
    loss = np.zeros(len(units), dtype=bool)
    loss[k : k + LOSSES] = True
    size = np.minimum(np.abs(last.numbers), units)
    error = np.maximum(error, np.where(loss, ERRORS.unresolved_loss, ERRORS.unresolved) * unresolved * size)
    worst = float((error[:k]).max())
    error = np.maximum(error, np.where(loss, ERRORS.floor_loss[len(points) > 2], ERRORS.floor) * worst * size)
    error[k + 1] = max(error[k + 1], ERRORS.passed_on * float(np.linalg.norm(last.test_slopes * error[:k])))
    return error


def response_slopes(root: Root) -> np.ndarray:
    """Derivatives of V̂ in both forms in the packed overlaps of a root, (2, L, r, r, k)."""
    return root.F.response_slopes(root.packing, root.overlaps, BROYDEN.difference)
