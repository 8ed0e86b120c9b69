"""Whether an attention map has kinks, looked for along random lines of fields."""

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gamp_attention.losses.user_attention import attend_all


class KinkWarning(UserWarning):
    """An attention map has kinks, jumps of its slope, at which runs may end with a status that says so."""


@dataclass(frozen=True)
class KinkSettings:
    """How kinks are looked for."""

    lines: int = 6  # random ones; the first goes through zero
    reach: float = 3.0  # of fields, to both sides
    points: int = 2001  # on a line
    places: int = 8  # of strongest bending on a line that are looked at closely
    finer: int = 33  # points between neighbours of such a place, again and again
    spacing: float = 1e-7  # at which what bends still is a kink
    jump: float = 1e-3  # of the slope there, in units of the largest slope on the line and of a slope of one


KINKS = KinkSettings()


def warn_of_kinks(attention: Any, n_tokens: int, rank: int) -> None:
    """Warn, once for a map, if it has kinks and does not say so by smooth = False."""
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
                f"{name}.attend has kinks: its slope jumps by {jump:.2g} along a line of fields. Proximal maps and "
                "state evolution take derivatives of it, so runs may end beside a minimum, with a status that says so. "
                f"A smooth map avoids this; smooth = False in {name} says that it is known",
                KinkWarning,
                stacklevel=2,
            )
            return


def largest_jump(attention: Any, base: np.ndarray, along: np.ndarray) -> float:
    """The largest jump of the slope of S along base + t·along, relative to the slopes on the line or to one."""

    def bends(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slopes between the points (N − 1,), and their changes at inner points (N − 2,), largest over entries."""
        S = np.empty((len(at), len(base), len(base)))
        attend_all(attention, base + at[:, None, None] * along, S)
        slopes = np.diff(S, axis=0) / (at[1] - at[0])
        return np.abs(slopes).max(axis=(1, 2)), np.abs(np.diff(slopes, axis=0)).max(axis=(1, 2))

    line = np.linspace(-KINKS.reach, KINKS.reach, KINKS.points)
    slopes, first = bends(line)
    unit, found = max(float(slopes.max()), 1.0), 0.0
    for place in np.argsort(first)[::-1][: KINKS.places]:
        at, spacing, bend = line[place + 1], line[1] - line[0], 0.0
        while spacing > KINKS.spacing:
            near = np.linspace(at - spacing, at + spacing, KINKS.finer)
            _, changes = bends(near)
            where = int(np.argmax(changes))
            at, spacing, bend = near[where + 1], near[1] - near[0], float(changes[where])
        found = max(found, bend / unit)
    return found
