"""One boundary of one model: its place in α with an error, or in words why there is none; and roots that give it."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

COARSE, FINEST = 1e-2, 1e-7  # accuracies that root finding begins and ends with
STEPS = 12
NEAR = 3.0  # of the tolerance, steps after which the slope is trusted,
SLOPE_ERROR = 0.1  # and its relative error then


class Boundary(NamedTuple):
    """A value of α with an error, or NaN and why."""

    value: float
    error: float
    note: str

    @classmethod
    def none(cls, note: str) -> "Boundary":
        """There is none."""
        return cls(np.nan, np.nan, note)


Measure = Callable[[float, float], tuple[float, float] | None]


def crossings_of(values: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Neighbours (α, f) between which f changes its sign."""
    return [(a, b) for a, b in pairwise(values) if a[1] * b[1] < 0]


def root(measure: Measure, ends: tuple[tuple[float, float], tuple[float, float]], tol: float) -> Boundary:
    """Where a measured function is zero between two points (α, f).

    Secants kept inside the bracket, with accuracy raised until the error of α, that of f over the slope, is within tol.

    Parameters
    ----------
    measure : (α, accuracy) to f and its error, or None where it cannot be measured.
    ends : points with f of opposite signs, roughly known.
    tol : error of α asked for.
    """
    (a, fa), (b, fb) = ends
    slope, rtol = (fb - fa) / (b - a), COARSE
    x = a - fa / slope
    last: tuple[float, float] | None = None
    for _ in range(STEPS):
        measured = measure(x, rtol)
        if measured is None:
            return Boundary.none(f"not found: no solution at α = {x:.5g}")
        f, error = measured
        if last is not None and abs(x - last[0]) > 30 * error / abs(slope):
            slope = (f - last[1]) / (x - last[0])
        step, away = -f / slope, error / abs(slope)
        close = abs(step) <= max(NEAR * tol, away)
        if close and away <= 0.5 * tol:
            return Boundary(x + step, away + SLOPE_ERROR * abs(step), "")
        if close and rtol <= FINEST:
            return Boundary(x + step, away + SLOPE_ERROR * abs(step), "error above the tolerance")
        if close:
            rtol = max(rtol * min(0.5, 0.3 * tol / away), FINEST)
        last = (x, f)
        x = float(np.clip(x + step, min(a, b), max(a, b)))
    return Boundary.none("not found: secants did not converge")
