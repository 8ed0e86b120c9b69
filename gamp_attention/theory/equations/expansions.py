"""Averages over the channel to first order in the overlaps, for Newton steps without differences of averages.

Rules have different derivatives: panels have scores (`scores`), random points have derivatives of their fields
(`pathwise`). Both return a `ChannelExpansion`, which equations evaluate as averages at nearby overlaps.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Channel, Moments
from gamp_attention.theory.equations.symmetry import Symmetry


@dataclass(frozen=True, eq=False)
class ChannelExpansion:
    """Averages over the channel to first order in the K entries of q, m and θ, and of V if `includes_V`."""

    overlaps: Overlaps  # the point
    base: Moments  # the averages there, with zeros for averages that vanish by symmetry
    slopes: dict[str, np.ndarray]  # (K, …) derivatives of the averages OF_TOKENS, by name
    includes_V: bool
    jumps: bool  # whether the proximal map jumps, so that `response` has no correct derivative in V
    samples: list[Moments]  # the averages of each replica

    def at(self, overlaps: Overlaps) -> Moments:
        """Return the averages at overlaps, with the same V unless `includes_V`; the losses are not expanded."""
        direction = change_of(self.overlaps, overlaps, self.includes_V)
        changed: dict[str, Any] = {
            name: getattr(self.base, name) + np.tensordot(direction, slope, 1) for name, slope in self.slopes.items()
        }
        return replace(self.base, **changed)


def change_of(old: Overlaps, new: Overlaps, includes_V: bool) -> np.ndarray:
    """Return the change (K,) of all entries of q, m and θ, and of V if `includes_V`."""
    names = ("q", "m", "theta", "V")[: 3 + includes_V]
    return np.concatenate([(getattr(new, name) - getattr(old, name)).ravel() for name in names])


class Entries(NamedTuple):
    """Changes of the overlaps by one unit of each of their K entries; q stays symmetric."""

    families: np.ndarray  # (K,) names of the overlaps
    q: np.ndarray  # (K, L, r, r)
    m: np.ndarray  # (K, L, r)
    theta: np.ndarray  # (K, L, r, t)
    V: np.ndarray  # (K, L, r, r)

    @classmethod
    def of(cls, shape: tuple[int, int, int], names: tuple[str, ...]) -> "Entries":
        """Return the changes for (L, r, t) of the entries of given overlaps, in the order of `change_of`."""
        L, r, t = shape
        shapes = {"q": (L, r, r), "m": (L, r), "theta": (L, r, t), "V": (L, r, r)}
        sizes = [int(np.prod(shapes[name])) for name in names]
        parts = dict(zip(names, np.split(np.eye(sum(sizes)), np.cumsum(sizes)[:-1], axis=1), strict=True))
        q, m, theta, V = (
            parts.get(name, np.zeros((sum(sizes), int(np.prod(of))))).reshape(-1, *of) for name, of in shapes.items()
        )
        return cls(np.repeat(names, sizes), 0.5 * (q + np.swapaxes(q, 2, 3)), m, theta, V)


def can_expand(channel: Channel, smallest: float) -> bool:
    """Return whether the teacher leaves at least this part of q unexplained, and ρ is as far from singular."""
    unexplained = np.linalg.eigvalsh(channel.root).min(axis=1) ** 2
    rho = np.linalg.eigvalsh(channel.model.coordinates.rho)
    large = np.linalg.eigvalsh(channel.overlaps.q).max(axis=1)
    return bool((unexplained > smallest * large).all() and (rho[:, 0] > smallest * rho[:, -1]).all())


def complete_slopes(slopes: dict[str, np.ndarray], families: np.ndarray, symmetry: Symmetry) -> None:
    """Complete derivatives (K, …) over a fundamental domain of reflections to derivatives over the whole channel.

    `families` (K,) are the overlaps in which the averages are differentiated.
    """
    for name, values in slopes.items():
        if symmetry.m_zero:  # all fields may change sign: products that are odd vanish
            values[(families == "m") != (name == "g")] = 0.0
        if symmetry.theta_zero:
            values[(families == "theta") != (name == "with_teacher")] = 0.0
        if symmetry.reversal:
            image = _reverse(values, families)[:, ::-1]
            slopes[name] = 0.5 * (values - image if name == "g" else values + image)


def _reverse(values: np.ndarray, families: np.ndarray) -> np.ndarray:
    """Return derivatives (K, …) in the directions that follow by reversal, which changes the sign of m."""
    L, parts = values.shape[1], []
    for name in dict.fromkeys(families):
        part = values[families == name]
        part = part.reshape(L, -1, *part.shape[1:])[::-1].reshape(part.shape)
        parts.append(-part if name == "m" else part)
    return np.concatenate(parts)
