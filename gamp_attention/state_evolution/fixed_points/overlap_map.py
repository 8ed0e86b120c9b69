"""The map of state evolution, overlaps to overlaps, on a rule for the channel's averages."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from gamp_attention._core.numerics import psd_root
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Hats, Moments, conjugates
from gamp_attention.state_evolution.equations.symmetry import Symmetry, fix_gauge
from gamp_attention.state_evolution.equations.units import Packing
from gamp_attention.state_evolution.equations.weights import weights_step
from gamp_attention.state_evolution.rules.rule import Rule, average_channels

RESPONSES = ("stein", "derivative")


@dataclass(frozen=True)
class MapSettings:
    """What a map remembers."""

    kept: int = 8  # overlaps whose averages are kept
    in_alpha: float = 1e-4  # relative difference for derivatives
    rare: float = 5e-4  # share of points with a second minimum, up to which few are searched for one
    steep: float = 3.0  # trace of ∂z/∂ω, in units of that of 1, below which a point is far from where jumps begin


MAP = MapSettings()


class WeightsVanished(ArithmeticError):
    """The penalty takes all weights to zero, where overlaps have no scale."""


@dataclass(frozen=True)
class Image:
    """One full step: the hats at the old overlaps, the new overlaps, and the new penalty per coordinate, E[r(x)]."""

    hats: Hats
    overlaps: Overlaps
    penalty: float


@dataclass(frozen=True)
class OverlapMap:
    """Overlaps to overlaps, with V̂ in the form that `response` names.

    Where no point of the first overlaps that the map is asked for is near a jump, both forms are the same, and the
    derivative has less variance. Then it is taken for all later ones as well, so that the map stays smooth.
    """

    model: Model
    alpha: float
    rule: Rule
    response: str = "stein"
    _recent: list[tuple[Overlaps, bool, list[Moments]]] = field(default_factory=list, compare=False, repr=False)
    _slopes: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    _jumps: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)

    def images(self, overlaps: Overlaps, squares: bool = False) -> tuple[Image, list[Image]]:
        """One full step with the mean of the rule's averages, and with each replica's own."""
        samples = self._moments(overlaps, squares)
        return self._image(overlaps, _mean(samples)), [self._image(overlaps, sample) for sample in samples]

    def __call__(self, overlaps: Overlaps) -> Overlaps:
        """The new overlaps."""
        return self._image(overlaps, _mean(self._moments(overlaps))).overlaps

    def _moments(self, overlaps: Overlaps, squares: bool = False) -> list[Moments]:
        """The rule's averages; those of a few overlaps are kept, as solvers ask for them again."""
        for at, with_squares, moments in self._recent:
            if at is overlaps and (with_squares or not squares):
                return moments
        moments = self._averages(overlaps, squares)
        self._recent.append((overlaps, squares, moments))
        del self._recent[: -MAP.kept]
        return moments

    def has_squares(self, overlaps: Overlaps) -> bool:
        """Whether averages of products of derivatives were asked for at given overlaps, and are kept."""
        return any(at is overlaps and squares for at, squares, _ in self._recent)

    def _averages(self, overlaps: Overlaps, squares: bool) -> list[Moments]:
        """The rule's averages, with few searches for lower minima where the first averages find such at few points.

        Where a coarser rule did so, few are searched at once. If these show no sign of jumps, all are after that.
        """
        sparing, rare = self.rule.with_subsampled_search(), self._jumps.get("rare")
        if sparing is self.rule or not self.model.task.jumps or rare is False:
            return average_channels(self.rule, self.model, overlaps, squares)
        if rare or self._jumps.get("rare before"):
            moments = average_channels(sparing, self.model, overlaps, squares)
            few = _mean(moments)
            if rare or (self._jump(few) and few.multimodal_fraction <= MAP.rare):
                self._jumps["rare"] = True
                return moments
        moments = average_channels(self.rule, self.model, overlaps, squares)
        self._jumps["rare"] = _mean(moments).multimodal_fraction <= MAP.rare
        return moments

    def _image(self, overlaps: Overlaps, moments: Moments) -> Image:
        hats = conjugates(self.model, self.alpha, overlaps, moments, self.counts_jumps(moments))
        after, penalty = weights_step(self.model, hats, self.response)
        vanished = not np.abs(after.q).max() > 1e-12 * np.abs(self.model.coordinates.rho).max()
        if vanished and not self.model.penalty.smooth:
            raise WeightsVanished
        return Image(hats, Symmetry.of(self.model, overlaps).impose(fix_gauge(self.model, after)), penalty)

    def counts_jumps(self, moments: Moments) -> bool:
        """Whether V̂ counts jumps, which the first averages tell."""
        return self._jumps.setdefault("counted", self._jump(moments))

    def _jump(self, moments: Moments) -> bool:
        return moments.max_jacobian_trace > MAP.steep * moments.g.size

    def contracts(self, overlaps: Overlaps) -> bool:
        """Whether no proximal map expands on average over its fields at any point, as those of convex losses."""
        return all(each.max_jacobian_trace <= each.g.size * (1 + 1e-9) for each in self._moments(overlaps))

    def overlooks_jumps(self, overlaps: Overlaps) -> bool:
        """Whether V̂ does not count jumps, though there are some at given overlaps; from now on it does."""
        overlooked = self._jump(_mean(self._moments(overlaps))) and not self._jumps.get("counted", True)
        if overlooked:
            self._jumps["counted"] = True
        return overlooked

    def finer(self) -> "OverlapMap | None":
        """The map on the next finer rule."""
        rule = self.rule.finer()
        return None if rule is None else self.on(rule)

    def aimed(self, excess: float) -> "OverlapMap | None":
        """The map on a rule that is likely to make errors smaller by this factor; this one where none is needed."""
        rule = self.rule.refined_for(excess)
        return self if rule is self.rule else None if rule is None else self.on(rule)

    def on(self, rule: Rule) -> "OverlapMap":
        """The map on another rule."""
        return replace(self, rule=rule, _recent=[], _slopes={}, _jumps={"rare before": self._jumps.get("rare", False)})

    def jacobian(
        self,
        packing: Packing,
        at: Overlaps,
        step: float,
        *,
        central: bool = False,
        odd: bool = False,
        columns: int | None = None,
    ) -> np.ndarray:
        """Derivative of the map in the packed overlaps, by finite differences; or the first columns of it.

        Differences are one-sided unless `central`. With `odd`, the map is odd in what is packed, and zero at zero.
        """
        x, hats = packing.pack(at), []

        def value(shift: np.ndarray) -> np.ndarray:
            there = packing.unpack(x + shift) if shift.any() else at
            image = self._image(there, _mean(self._moments(there)))
            hats.append(_responses(image.hats))
            return packing.pack(image.overlaps)

        shifts = step * np.eye(len(x))[:columns]
        if central:
            return np.stack([(value(shift) - value(-shift)) / (2 * step) for shift in shifts], axis=1)
        if odd:
            return np.stack([value(shift) / step for shift in shifts], axis=1)
        base = value(0 * x)
        J = np.stack([(value(shift) - base) / step for shift in shifts], axis=1)
        self._slopes["last"] = packing, np.stack([(each - hats[0]) / step for each in hats[1:]], axis=-1)
        return J

    def slope_in_alpha(self, packing: Packing, at: Overlaps) -> np.ndarray:
        """Derivative of the packed map in α, (k,): hats are proportional to it, so no further averages are taken."""
        step = MAP.in_alpha * self.alpha
        ahead = replace(self, alpha=self.alpha + step)  # which knows the same averages
        return (packing.pack(ahead(at)) - packing.pack(self(at))) / step

    def give_slopes(self, packing: Packing, slopes: np.ndarray) -> None:
        """Take the derivative of V̂ in the packed overlaps as known."""
        self._slopes["last"] = packing, slopes

    def response_slopes(self, packing: Packing, at: Overlaps, step: float) -> np.ndarray:
        """Derivative of V̂ in both forms (2, L, r, r, k) in the packed overlaps, that came with the last Jacobian."""
        if self._slopes.get("last", (None,))[0] is not packing:
            self.jacobian(packing, at, step)
        return self._slopes["last"][1]


def _responses(hats: Hats) -> np.ndarray:
    """V̂ in both forms, (2, L, r, r)."""
    return np.stack([hats.V, hats.V_derivative])


def damped(old: Overlaps, new: Overlaps, slower: float = 1.0) -> Overlaps:
    """A damped step from overlaps towards their image.

    q is averaged by its square root, as weights are averaged, not their squares. The mean direction overshoots most,
    and moves least.
    """

    def between(a: np.ndarray, b: np.ndarray, share: float = 0.5) -> np.ndarray:
        return (1 - share * slower) * a + share * slower * b

    root = between(psd_root(old.q), psd_root(new.q))
    return Overlaps(root @ root, between(old.m, new.m, 0.2), between(old.theta, new.theta), between(old.V, new.V))


def _mean(samples: list[Moments]) -> Moments:
    if len(samples) == 1:
        return samples[0]
    return Moments(
        **{each.name: np.mean([getattr(sample, each.name) for sample in samples], axis=0) for each in fields(Moments)}
    )
