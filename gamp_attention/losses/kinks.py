"""Detection of kinks of an attention map along random lines of fields."""

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gamp_attention.losses.user_attention import attend_all


class KinkWarning(UserWarning):
    """Warning that an attention map has kinks (jumps of its derivative), at which runs may end without converging."""


@dataclass(frozen=True)
class KinkSettings:
    """Settings of the search for kinks."""

    lines: int = 6  # number of random lines; the first goes through zero
    reach: float = 3.0  # half-length of a line, in units of the fields
    points: int = 2001  # number of points on a line
    places: int = 8  # number of points with the largest change of slope at which a line is refined
    finer: int = 33  # number of points of one refinement between the two neighbours of such a point
    spacing: float = 1e-7  # spacing at which a remaining change of slope counts as a kink
    jump: float = 1e-3  # smallest change of slope, in units of the largest slope on the line or of 1 if that is larger


KINKS = KinkSettings()


def warn_of_kinks(attention: Any, n_tokens: int, rank: int) -> None:
    """Warn, once for a map, if it has kinks and does not declare them by smooth = False."""
    if attention.smooth:
        _warn_once(attention, n_tokens, rank)


@lru_cache(typed=True)
def _warn_once(attention: Any, n_tokens: int, rank: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(KINKS.lines):
        base, along = rng.standard_normal((2, n_tokens, rank))
        jump = largest_jump(attention, base * (number > 0), along)
        if jump > KINKS.jump:
            name = type(attention).__name__
            warnings.warn(
                f"{name}.attend has kinks: its slope jumps by {jump:.2g} along a line of fields. Proximal maps "
                "and state evolution use this slope, so runs may end near a minimum without converging, with a status "
                f"that states it. Use a smooth map, or set smooth = False in {name} to silence this warning",
                KinkWarning,
                stacklevel=2,
            )
            return


def largest_jump(attention: Any, base: np.ndarray, along: np.ndarray) -> float:
    """Return the largest jump of the slope of S along base + t·along, divided by max(largest slope, 1)."""

    def bends(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return slopes between points (N − 1,) and their changes at inner points (N − 2,), maximal over entries."""
        S = np.empty((len(at), len(base), len(base)))
        attend_all(attention, base + at[:, None, None] * along, S)
        slopes = np.diff(S, axis=0) / (at[1] - at[0])
        return np.abs(slopes).max(axis=(1, 2)), np.abs(np.diff(slopes, axis=0)).max(axis=(1, 2))

    line = np.linspace(-KINKS.reach, KINKS.reach, KINKS.points)
    slopes, first = bends(line)
    unit, largest = max(float(slopes.max()), 1.0), 0.0
    for index in np.argsort(first)[::-1][: KINKS.places]:
        at, spacing, bend = line[index + 1], line[1] - line[0], 0.0
        while spacing > KINKS.spacing:
            near = np.linspace(at - spacing, at + spacing, KINKS.finer)
            _, changes = bends(near)
            strongest = int(np.argmax(changes))
            at, spacing, bend = near[strongest + 1], near[1] - near[0], float(changes[strongest])
        largest = max(largest, bend / unit)
    return largest
