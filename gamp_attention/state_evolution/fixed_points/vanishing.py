"""Overlaps that go to zero: a family, m or θ, fades; weights vanish, and q with them, in units of the teacher's ρ."""

from dataclasses import dataclass

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.units import relative_change, units
from gamp_attention.state_evolution.fixed_points.overlap_map import OverlapMap, damped


@dataclass(frozen=True)
class VanishingSettings:
    """What is small, and what goes to zero. Families are in units of √q, q in units of ρ."""

    faded: float = 1e-3  # a family below this is gone: no branch has one so small, but next to its end
    surely: float = 0.2  # a family that falls and is below this fades
    perhaps: float = 0.7  # one that falls and is below this fades if its rate of decay is steady
    steady: float = 0.7  # share of a rate that is left; less where the decay is to another size than zero
    kept: float = 0.5  # share of its largest size that a family still has on its branch
    min_path: int = 5  # overlaps that tell a rate
    tiny: float = 1e-3  # q below which weights may be vanishing
    zero: float = 1e-8  # q that stands for zero: the map is linear there
    max_steps: int = 40  # damped steps at zero; the shape of the overlaps settles in a few
    settled: float = 1e-4  # change of the overlaps under which they end
    repels: float = 10.0  # growth at which they end too


VANISHING = VanishingSettings()


def family_size(overlaps: Overlaps, family: str) -> float:
    """The largest entry of m or θ, in units of √q."""
    return float(np.abs(overlaps.arrays()[family]).max() / units(overlaps)[family])


def fading_families(path: list[Overlaps]) -> list[str]:
    """Families that fell along the whole path, to a small size or as if to zero, and are not zero by symmetry."""
    found = []
    for family in ("m", "theta"):
        size = np.array([family_size(x, family) for x in path])
        if len(size) < VANISHING.min_path or not 0 < size[-1] < VANISHING.perhaps or (np.diff(size) >= 0).any():
            continue
        rate = -np.diff(np.log(size))
        if size[-1] < VANISHING.surely or rate[-1] > VANISHING.steady * rate[len(rate) // 2]:
            found.append(family)
    return found


def last_with(path: list[Overlaps], family: str) -> Overlaps:
    """The last overlaps of a path in which a family is at least half as large as it once was."""
    size = np.array([family_size(x, family) for x in path])
    return path[int(np.flatnonzero(size >= VANISHING.kept * size.max())[-1])]


def has_faded(overlaps: Overlaps, family: str) -> bool:
    """Whether a family is as good as zero."""
    return bool(np.abs(overlaps.arrays()[family]).max() < VANISHING.faded * units(overlaps)[family])


def weights_are_tiny(model: Model, overlaps: Overlaps) -> bool:
    """Whether q is so small that it may change much in its own units, and yet stay where it is."""
    return bool(0 < np.abs(overlaps.q).max() < VANISHING.tiny * np.abs(model.coordinates.rho).max())


def weights_shrink(model: Model, old: Overlaps, new: Overlaps) -> bool:
    """Whether weights are tiny and become smaller, as where they vanish."""
    return weights_are_tiny(model, old) and bool(np.abs(new.q).max() < np.abs(old.q).max())


def zero_weights(F: OverlapMap, overlaps: Overlaps) -> tuple[Overlaps, float]:
    """Where damped steps from given overlaps lead while q is held at zero, and the growth of q there in a full step."""
    x, growth = _scaled_to_zero(F.model, overlaps), np.inf
    for _ in range(VANISHING.max_steps):
        after = F(x)
        growth = float(np.abs(after.q).max() / np.abs(x.q).max())
        new = _scaled_to_zero(F.model, damped(x, after))
        change = relative_change(x, new)
        x = new
        if change < VANISHING.settled or growth > VANISHING.repels:
            break
    return x, growth


def vanishing_weights(F: OverlapMap, overlaps: Overlaps) -> Overlaps | None:
    """What stands for zero weights, if damped steps from given overlaps lead there; else None."""
    after = F(overlaps)
    if not weights_shrink(F.model, overlaps, after):
        return None
    zero, growth = zero_weights(F, overlaps)
    rate = np.log(np.abs(after.q).max() / np.abs(overlaps.q).max())
    return zero if growth < 1 and rate < VANISHING.steady * np.log(growth) else None


def _scaled_to_zero(model: Model, overlaps: Overlaps) -> Overlaps:
    share = VANISHING.zero * np.abs(model.coordinates.rho).max() / np.abs(overlaps.q).max()
    root = np.sqrt(share)
    return Overlaps(share * overlaps.q, root * overlaps.m, root * overlaps.theta, overlaps.V)
