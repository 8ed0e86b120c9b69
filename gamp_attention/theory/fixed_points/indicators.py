"""Indicators of replica symmetry at a refined fixed point: jump mass and replicon, with their errors.

Averages of squared derivatives are limited by the points at which the proximal map begins to jump, and these points
hardly affect the overlaps. Therefore the indicators are not computed on the rule of the overlaps: they start on the
coarsest level of a deterministic rule (`measure_indicators`), and on few points of a random rule
(`_measure_by_replicas`), and end when their errors are small enough.
"""

from dataclasses import dataclass, replace

import numpy as np

from gamp_attention._tools.statistics import half_width
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.fixed_points.observables import NEGLIGIBLE_JUMPS, column_sums, replicon
from gamp_attention.theory.fixed_points.overlap_map import Image, OverlapMap
from gamp_attention.theory.fixed_points.points import Point, size_of_hats
from gamp_attention.theory.rules.rule import WorkExceeded, work_of


@dataclass(frozen=True)
class IndicatorSettings:
    """Settings of the indicators of replica symmetry."""

    # averages of squared derivatives, which diverge where jumps begin, converge like a square root: the requested
    # errors of jump mass and replicon are these multiples of √rtol, but at most `limit`
    errors: tuple[float, ...] = (1.0, 10.0)
    limit: float = 0.1
    shift: float = 1.5  # error of an indicator in units of its change from the coarser level
    drift: float = 5.0  # relative change of the replicon in units of the relative change of the overlaps
    level: int = 4  # highest level of the panel rule for indicators, if the overlaps need no higher level
    few_jumps: float = 1e-2  # jump mass relative to V̂, below which there are practically no jumps
    jump_sensitivity: float = 10.0  # relative change of the jump mass in units of the largest change of an overlap
    unseen: float = 20.0  # unseen jump mass between random points, relative to V̂, times the number of points


INDICATORS = IndicatorSettings()


Measured = tuple[np.ndarray, float]  # jump mass and replicon


@dataclass(frozen=True)
class Indicators:
    """Indicators of replica symmetry: jump mass (L, r, r) and replicon eigenvalue, with errors; NaN if unknown."""

    jump_mass: np.ndarray
    jump_mass_error: np.ndarray
    replicon: float
    replicon_error: float

    def are_accurate(self, rtol: float, hats: Hats, random: bool = False) -> bool:
        """Return whether both errors are as small as `rtol` requires.

        On a random rule, no accuracy is required of the replicon if the jumps show already that replica symmetry is
        broken: squared derivatives then have no finite variance.
        """
        allowed = np.minimum(np.array(INDICATORS.errors) * np.sqrt(rtol), INDICATORS.limit)
        decided = random and self.show_jumps(hats)
        return bool(
            self.jump_mass_error.max() <= allowed[0] * size_of_hats(hats)
            and (decided or self.replicon_error <= allowed[1])
        )

    def show_jumps(self, hats: Hats) -> bool:
        """Return whether the jump mass of a column is not negligible, beyond its error."""
        certain = np.minimum(column_sums(self.jump_mass) + column_sums(self.jump_mass_error), 0.0)
        return bool((-certain > NEGLIGIBLE_JUMPS * np.abs(column_sums(hats.V))).any())


def measure_indicators(
    points: list[Point], slopes: np.ndarray, errors: np.ndarray, rtol: float, max_work: float,
) -> Indicators:  # fmt: skip
    """Return the indicators at the last point, on rules as fine as they need; `slopes` are of both forms of V̂."""
    last = points[-1]
    # error of the jump mass, which is the difference of both forms of V̂, due to the errors of the overlaps
    propagated = np.abs(slopes[0] - slopes[1]) @ errors[: len(last.best)]
    if not last.root.F.rule.deterministic:
        if last.root.F.is_noisy:  # slopes of the jump mass, a difference of noisy numbers, would be noise
            slopes = np.zeros_like(slopes)
            largest = INDICATORS.jump_sensitivity * errors[: len(last.best)].max()
            propagated = largest * np.abs(last.image.hats.jump_mass)
        return _measure_by_replicas(last, slopes, propagated, rtol)
    solved = {point.root.F.rule.level: point for point in points if point.root.F.has_squares(point.root.overlaps)}
    indicators, coarser = None, None
    for level in range(max(last.root.F.rule.level, INDICATORS.level) + 1):
        F = last.root.F.on(last.root.F.rule.at_level(level))
        if indicators is not None and work_of(F.rule, F.model) > max_work:
            break
        try:
            if level in solved:  # the averages at a nearby point are used and corrected for the distance
                values = _values_near(solved[level], last, slopes)
            else:
                values = _values_of(F, F.images(last.overlaps, squares=True)[0])
        except WorkExceeded:
            break
        indicators = _compare_levels(values, coarser, last, slopes, propagated, F.rule.tol)
        if indicators is not None and level in solved:
            step = np.abs(last.best - last.root.packing.pack(solved[level].root.overlaps)).max()
            drift = INDICATORS.drift * step * values[1]
            indicators = replace(indicators, replicon_error=indicators.replicon_error + drift)
        if indicators is not None and indicators.are_accurate(rtol, last.image.hats):
            break
        coarser = values
    if indicators is not None:
        return indicators
    unknown = np.full(last.image.hats.V.shape, np.nan)
    jump_mass, value = (unknown, np.nan) if coarser is None else coarser
    return Indicators(jump_mass, unknown, value, np.nan)


def _values_near(point: Point, last: Point, slopes: np.ndarray) -> Measured:
    """Return jump mass and replicon of a point; the jump mass to first order at the last point's overlaps."""
    step = last.best - last.root.packing.pack(point.root.overlaps)
    jump_mass, value = _values_of(point.root.F, point.image)
    return jump_mass + (slopes[0] - slopes[1]) @ step, value


def _values_of(F: OverlapMap, image: Image) -> Measured:
    """Return jump mass and replicon of an image."""
    return image.hats.jump_mass, replicon(F.model, image.hats, F.response)


def _compare_levels(
    values: Measured, coarser: Measured | None, last: Point, slopes: np.ndarray, propagated: np.ndarray, tol: float,
) -> Indicators | None:  # fmt: skip
    """Return the indicators with errors from two levels; None if there is one level and the proximal map jumps."""
    if coarser is None:
        if np.abs(values[0]).max() >= INDICATORS.few_jumps * np.abs(last.image.hats.V).max():
            return None
        # without jumps, the averages of the last point resolve squares as well
        values, coarser, tol = _values_near(last, last, slopes), values, last.root.F.rule.tol
    jump_mass, value = values
    jump_error = INDICATORS.shift * np.abs(jump_mass - coarser[0]) + propagated
    value_error = INDICATORS.shift * abs(value - coarser[1])
    return Indicators(jump_mass, np.maximum(jump_error, tol * np.abs(jump_mass)), value, max(value_error, tol))


def _measure_by_replicas(last: Point, slopes: np.ndarray, propagated: np.ndarray, rtol: float) -> Indicators:
    """Return the indicators with errors from replicas; the replicon on as few points as its accuracy allows."""
    F, at = last.root.F, last.root.overlaps
    jumps = np.array([image.hats.jump_mass for image in F.images(at)[1]])
    step = last.best - last.root.packing.pack(at)
    # if no point is near a jump, jumps may still lie between the points
    all_seen = jumps.any() or F.contracts(at)
    unseen = 0.0 if all_seen else INDICATORS.unseen / F.rule.work(1) * np.abs(last.image.hats.V)
    jump_mass = last.image.hats.jump_mass + (slopes[0] - slopes[1]) @ step
    coarse: OverlapMap | None = F.on(F.rule.for_stability())
    while True:
        if coarse is None or coarse.rule.work(1) >= F.rule.work(1):
            coarse = F
        coarse = coarse.with_choices_at(at, squares=True)
        image, samples = coarse.images(at, squares=True)
        value_error = half_width(np.array([_values_of(F, sample)[1] for sample in samples]))
        value = _values_of(F, image)[1]
        indicators = Indicators(jump_mass, half_width(jumps) + propagated + unseen, value, float(value_error))
        if coarse is F or indicators.are_accurate(rtol, last.image.hats, random=True):
            return indicators
        coarse = coarse.finer()
