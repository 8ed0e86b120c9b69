"""The overlap map of state evolution: one full step from overlaps to overlaps, equations (7) to (9).

A step at given overlaps has three parts:

1. A quadrature rule averages the output function g over the channel (`Moments`).
2. The averages give the conjugate overlaps, called hats (`conjugates`).
3. The weights at these hats have the new overlaps (`weights_step`), in a fixed gauge and with exact symmetries.

The map is a pure function: its value depends on its fields and on the overlaps, never on earlier calls. Two choices
would make it discontinuous if they changed from one evaluation to the next: the form of V̂, and the number of points
that are searched for a second minimum. `OverlapMap.with_choices_at` makes both choices from the averages at one point
and returns a map that contains them as a frozen value (`Choices`). Solvers make the choices at their start and use that
map until they end.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gamp_attention._tools.display import DisplayMixin
from gamp_attention._tools.progress import describe
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Hats, Moments, apply_control_variate, conjugates, mean_of
from gamp_attention.theory.equations.symmetry import Symmetry, fix_gauge
from gamp_attention.theory.equations.units import Packing, is_feasible
from gamp_attention.theory.equations.weights import weights_step, with_intercept
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.rule import Expansion, Rule, WorkExceeded, average_channels, expand_channels, work_of


@dataclass(frozen=True)
class MapSettings:
    """Settings of the overlap map: numbers of searches, and steps of finite differences in units of the overlaps."""

    difference: float = 5e-3  # step of finite differences; on coarse rules averages are not smooth on the scale 1e-4
    sector_difference: float = 1e-2  # step for the eigenvalues of the map: small for them, large for the noise
    memory: int = 8  # number of stored averages: solvers evaluate a map several times at the same overlaps
    rare_minima: float = 5e-4  # fraction of points with a second minimum, up to which later averages search few points
    often_lowered: float = 0.01  # fraction of points with lower minima, from which later averages search more points
    steep: float = 3.0  # trace of ∂z/∂ω over the trace of 1, up to which a point is far from the onset of jumps
    noisy_fraction: float = 0.08  # step of central differences on random rules with jumps, see `Packing.pairs_around`
    expanded_step: float = 1e-7  # step of forward differences of averages to first order, which have no noise
    min_separated: float = 1e-12  # smallest unexplained part of q, relative to q, that rounding does not determine


@dataclass
class WorkLimit:
    """Limit of the total number of proximal problems of all averages of a map."""

    remaining: float  # number of proximal problems that averages may still solve

    def spend(self, work: float) -> None:
        """Subtract the work of an average that is about to be made; WorkExceeded if less remains."""
        if work > self.remaining:
            raise WorkExceeded
        self.remaining -= work


class WeightsVanished(ArithmeticError):
    """Error raised if the penalty takes all weights to zero, because overlaps then have no scale."""


@dataclass(frozen=True)
class Image:
    """Result of one full step: hats at the old overlaps, new overlaps, and new penalty per coordinate E[r(x)]."""

    hats: Hats
    overlaps: Overlaps
    penalty: float


@dataclass(frozen=True)
class Choices:
    """Choices taken from the averages at one point."""

    # whether Stein's form of V̂ is computed from E[g ω̃ᵀ], which counts jumps of the proximal map. If no point of the
    # averages is near a jump, the average derivative equals it and mostly has a lower variance.
    counts_jumps: bool
    rare_minima: bool  # whether second minima are so rare that later averages search only a few points for them
    # whether later averages search more of the points, because the search found lower minima
    often_lowered: bool = False


@dataclass(frozen=True)
class OverlapMap(DisplayMixin):
    """Map from overlaps to overlaps."""

    # model, alpha: the model and the sample complexity α
    model: Model
    alpha: float
    rule: Rule  # quadrature rule of the averages
    response: str = "stein"  # form of V̂, "stein" or "derivative"
    # choices that all evaluations share, see `with_choices_at`. If None, each evaluation makes its choices from its
    # averages.
    choices: Choices | None = field(default=None, compare=False, repr=False)
    expected: Choices | None = field(default=None, compare=False, repr=False)  # choices on a coarser rule, if known
    limit: WorkLimit | None = field(default=None, compare=False, repr=False)  # total work of averages; None: no limit
    # averages on `rule` at one point, on a coarser map there, and this map, which gives changes away from the point
    anchor: "tuple[list[Moments], list[Moments], OverlapMap] | None" = field(default=None, compare=False, repr=False)
    settings: MapSettings = field(default=MapSettings(), repr=False)
    # the latest averages and expansions, by the rule, overlaps and `squares` that determine them: they save time and
    # change no result
    _memory: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def with_choices_at(self, overlaps: Overlaps, squares: bool = False) -> "OverlapMap":
        """Return the map with choices from the averages at given overlaps; the map itself if it has choices.

        With `squares`, the averages include products of derivatives.
        """
        if self.choices is not None:
            return self
        return replace(self, choices=self._choose_at(overlaps, squares))

    def _choose_at(self, overlaps: Overlaps, squares: bool) -> Choices:
        """Return choices from the averages at given overlaps.

        If searches for second minima are expected to find few, they are made at a part of the points only. This
        correction has no bias, but much noise if the global minimum is often another minimum.
        """
        few, labels, settings = self.rule.with_subsampled_search(), not self.model.attention, self.settings
        can_save = few is not self.rule and self.model.task.jumps
        often = self.expected is not None and self.expected.often_lowered
        if can_save and (labels or (self.expected is not None and self.expected.rare_minima)):
            moments = [] if labels and often else self._average(few, overlaps, squares)
            if labels and (often or mean_of(moments).lowered_fraction > settings.often_lowered):
                moments = self._average(self.rule.with_subsampled_search(often=True), overlaps, squares)
                return Choices(True, True, often_lowered=True)
            mean = mean_of(moments)
            jumps = self._is_near_jumps(mean)
            # if these few points of attention show no jumps, all points are searched to decide whether V̂ counts jumps
            if labels or (jumps and mean.multimodal_fraction <= settings.rare_minima):
                return Choices(jumps or mean.lowered_fraction > 0, True)
        moments = self._average(self.rule, overlaps, squares)
        mean = mean_of(moments)
        rare = can_save and mean.multimodal_fraction <= settings.rare_minima
        near_solution = self.has_paths and self.expected is not None  # not at the start of a search, on the first rule
        stein = self._is_near_jumps(mean) or (near_solution and self._varies_less(overlaps, moments))
        return Choices(stein, rare)

    def _varies_less(self, overlaps: Overlaps, samples: list[Moments]) -> bool:
        """Return whether Stein's form of V̂ varies less between replicas than the average derivative.

        It does if the loss has kinks, at which the derivative of the force is not continuous.
        """
        forms = [[conjugates(self.model, 1.0, overlaps, x, stein).V for x in samples] for stein in (True, False)]
        stein, derivative = np.var(forms, axis=1).sum(axis=(1, 2, 3))
        return bool(stein < derivative)

    def count_jumps(self, overlaps: Overlaps) -> "OverlapMap":
        """Return the map that counts jumps in V̂ if there are some at given overlaps; otherwise the map itself."""
        choices = self.choices
        if choices is None or choices.counts_jumps or not self._is_near_jumps(mean_of(self._moments(overlaps))):
            return self
        return replace(self, choices=replace(choices, counts_jumps=True))

    def images(self, overlaps: Overlaps, squares: bool = False) -> tuple[Image, list[Image]]:
        """Return one full step from the mean of the replicas' averages, and one from the averages of each replica."""
        F = self.with_choices_at(overlaps, squares)
        samples = F._moments(overlaps, squares)
        return F._image(overlaps, mean_of(samples)), [F._image(overlaps, sample) for sample in samples]

    def __call__(self, overlaps: Overlaps) -> Overlaps:
        """Return the new overlaps."""
        return self._step(overlaps).overlaps

    def has_squares(self, overlaps: Overlaps) -> bool:
        """Return whether averages of products of derivatives are known at given overlaps."""
        return self._key(self.rule, True, overlaps) in self._memory

    def contracts(self, overlaps: Overlaps) -> bool:
        """Return whether no proximal map expands on average over its fields at any point, as for convex losses."""
        moments = self.with_choices_at(overlaps)._moments(overlaps)
        return all(sample.max_jacobian_trace <= sample.g.size * (1 + 1e-9) for sample in moments)

    def on(self, rule: Rule) -> "OverlapMap":
        """Return the map on another rule; it makes no choices yet, because choices depend on the rule."""
        return replace(self, rule=rule, choices=None, expected=self.choices, anchor=None, _memory={})

    def anchored_at(self, at: Overlaps, rule: Rule, choices: Choices | None) -> "OverlapMap":
        """Return the map whose averages are those at given overlaps, and their changes from there on a coarser rule.

        The noise of the changes is proportional to the distance, and they take the time of the coarser rule.
        """
        F, coarser = self.with_choices_at(at), replace(self.on(rule), choices=choices)
        return replace(F, anchor=(F._moments(at), coarser._moments(at), coarser))

    def finer(self) -> "OverlapMap | None":
        """Return the map on the next finer rule; None if there is none."""
        rule = self.rule.finer()
        return None if rule is None else self.on(rule)

    def refined_for(self, error_ratio: float) -> "OverlapMap | None":
        """Return the map on a rule whose errors are expected to be smaller by the factor `error_ratio`.

        The map itself if the rule is already accurate enough; None if there is no finer rule.
        """
        rule = self.rule.refined_for(error_ratio)
        return None if rule is None else self if rule is self.rule else self.on(rule)

    def linearize(self, packing: Packing, at: Overlaps) -> tuple[np.ndarray, np.ndarray]:
        """Return the Jacobian (k, k) in the packed overlaps, and the slopes of V̂, as accurate as Newton steps need.

        The slopes (2, L, r, r, k) are the derivatives of V̂ in Stein's form and in the derivative form.
        """
        F = self.on(self.rule.for_newton()) if self.is_noisy else self
        return F.derivatives(packing, at, self.settings.difference)

    def derivatives(
        self, packing: Packing, at: Overlaps, step: float, *, central: bool = False, odd: bool = False,
        columns: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Return the first `columns` columns, by default all, of the Jacobian and of the slopes of V̂.

        They are forward differences with the given step, or central differences. If the rule has derivatives of
        averages, they replace differences. If `is_noisy`, steps are larger, on the number of points that the stability
        needs. If `odd`, the map is an odd function of the packed overlaps and `at` is zero in them, so that one
        evaluation per column is enough, and the slopes of V̂ are zero.
        """
        rule = self.rule.for_stability()
        if rule != self.rule and (self.has_paths or (self.is_noisy and not odd)):
            return self.on(rule).derivatives(packing, at, step, central=central, odd=odd, columns=columns)
        expansion = self._expansion(at)  # first, because it includes the averages from which choices follow
        F, x = self.with_choices_at(at), packing.pack(at)
        describe(f"derivatives in {len(x)} overlaps, each from an average")
        if expansion is not None and expansion.jumps and (not central or F._uses_response):
            expansion = None
        pairs = F._feasible_pairs(packing, at, step) if expansion is None and not odd else []
        changes = [_difference(packing, F._step(ahead), F._step(behind), 1.0) for ahead, behind in pairs]
        moves = [packing.pack(ahead) - packing.pack(behind) for ahead, behind in pairs]
        if odd and F.is_noisy:
            step = max(step, self.settings.noisy_fraction)
        if expansion is not None:
            here = F._image(at, expansion.base)
        for shift in [] if pairs else np.eye(len(x))[:columns]:
            ahead = packing.unpack(x + step * shift)
            if expansion is not None and (expansion.includes_V or np.array_equal(ahead.V, at.V)):
                there = packing.unpack(x + self.settings.expanded_step * shift)
                image = F._image(there, expansion.at(there))
                changes.append(_difference(packing, image, here, self.settings.expanded_step))
            elif central and not odd:
                behind = packing.unpack(x - step * shift)
                changes.append(_difference(packing, F._step(ahead), F._step(behind), 2 * step))
            elif odd:
                changes.append((packing.pack(F(ahead)) / step, np.zeros((2, *at.V.shape))))
            else:
                changes.append(_difference(packing, F._step(ahead), F._step(at), step))
        J, V_slopes = (np.stack(parts, axis=-1) for parts in zip(*changes, strict=True))
        inverse = np.linalg.inv(np.transpose(moves)) if pairs else np.eye(J.shape[1])
        return J @ inverse, V_slopes @ inverse

    @property
    def has_paths(self) -> bool:
        """True if averages over random points have derivatives along the paths of the points."""
        return not (self.rule.deterministic or self.model.task.jumps)

    @property
    def is_noisy(self) -> bool:
        """True if averages jump whenever the proximal map begins to jump at a point, so that small steps are noise."""
        return not (self.rule.deterministic or self.model.attention) and self.model.task.jumps

    def _feasible_pairs(self, packing: Packing, at: Overlaps, step: float) -> list[tuple[Overlaps, Overlaps]]:
        """Return pairs of overlaps for central differences that stay feasible; none if plain steps are better.

        Plain steps of q or θ leave the feasible overlaps if the teacher explains nearly all of q.
        """
        if self.is_noisy:
            return packing.pairs_around(self.model, at, self.settings.noisy_fraction)
        x = packing.pack(at)
        sides = [packing.unpack(x + sign * shift) for shift in step * np.eye(len(x)) for sign in (1, -1)]
        needed = is_feasible(self.model, at, slack=-self.settings.min_separated) and not all(
            is_feasible(self.model, side, slack=0.0) for side in sides
        )
        return packing.pairs_around(self.model, at, step, smallest=0.0) if needed else []

    def _expansion(self, at: Overlaps, squares: bool = False) -> Expansion | None:
        """Return the expansion of the averages at given overlaps, from memory if it was computed before.

        With `squares`, its averages include products of derivatives.
        """
        key = self._key(self.rule, "expansion", at)
        if key not in self._memory or (squares and self._memory[key] is not None and not self.has_squares(at)):
            expansion = self._memory[key] = expand_channels(self.rule, self.model, at, squares)
            if expansion is not None:
                for included in (False, True) if squares or self.has_paths else (False,):
                    self._memory[self._key(self.rule, included, at)] = expansion.samples
            self._forget()
        return self._memory[key]

    def has_expansion(self, at: Overlaps, jumps: bool = True) -> bool:
        """Return whether the derivatives of the averages at given overlaps were computed before.

        If not `jumps`, an expansion without a derivative of the response counts as none.
        """
        expansion = self._memory.get(self._key(self.rule, "expansion", at))
        return expansion is not None and (jumps or not expansion.jumps)

    @property
    def _uses_response(self) -> bool:
        """True if V̂ of the map is the average of the almost-everywhere derivative."""
        assert self.choices is not None
        return self.response != "stein" or not self.choices.counts_jumps

    def _step(self, overlaps: Overlaps) -> Image:
        """Return one full step from the mean of the replicas' averages."""
        F = self.with_choices_at(overlaps)
        return F._image(overlaps, mean_of(F._moments(overlaps)))

    def _moments(self, overlaps: Overlaps, squares: bool = False) -> list[Moments]:
        """Return the averages of each replica, with the choices of the map."""
        choices = self.choices
        assert choices is not None
        rule = self.rule.with_subsampled_search(choices.often_lowered) if choices.rare_minima else self.rule
        if self.anchor is None or squares:
            return self._average(rule, overlaps, squares)
        fine, coarse, coarser = self.anchor
        samples = zip(coarser._moments(overlaps), fine, coarse, strict=True)
        return [apply_control_variate(*sample) for sample in samples]

    def _average(self, rule: Rule, overlaps: Overlaps, squares: bool) -> list[Moments]:
        """Return the averages of each replica of a rule, from memory if they were computed before."""
        squares = squares or self._key(rule, True, overlaps) in self._memory
        key = self._key(rule, squares, overlaps)
        if rule.expands and key not in self._memory:
            self._expansion(overlaps, squares)  # includes the averages, and a Jacobian may be needed there
        if key not in self._memory:
            if self.limit is not None:
                self.limit.spend(work_of(rule, self.model))
            self._memory[key] = average_channels(rule, self.model, overlaps, squares)
            self._forget()
        return self._memory[key]

    @staticmethod
    def _key(rule: Rule, kind: bool | str, overlaps: Overlaps) -> tuple[Any, ...]:
        """Return the key of averages in memory."""
        return rule, kind, *(values.tobytes() for values in overlaps.arrays().values())

    def _forget(self) -> None:
        """Delete the oldest averages from memory."""
        for oldest in list(self._memory)[: -self.settings.memory]:
            del self._memory[oldest]

    def _image(self, overlaps: Overlaps, moments: Moments) -> Image:
        """Return one full step from given averages; WeightsVanished if the penalty takes all weights to zero."""
        assert self.choices is not None
        hats = conjugates(self.model, self.alpha, overlaps, moments, self.choices.counts_jumps)
        after, penalty = weights_step(self.model, hats, self.response)
        if self.model.intercept:
            after = with_intercept(self.model, overlaps, after, hats, hats.response(self.response))
        vanished = not np.abs(after.q).max() > 1e-12 * np.abs(self.model.coordinates.rho).max()
        if vanished and not self.model.penalty.smooth:
            raise WeightsVanished
        return Image(hats, Symmetry.of(self.model, overlaps).impose(fix_gauge(self.model, after)), penalty)

    def _is_near_jumps(self, moments: Moments) -> bool:
        """Return whether the proximal map jumps, or is about to jump, at some point of the averages."""
        return moments.max_jacobian_trace > self.settings.steep * moments.g.size


def _difference(packing: Packing, first: Image, last: Image, length: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the differences of the packed overlaps and of V̂ in both forms between two images, over a length."""
    V = [np.stack([image.hats.V, image.hats.V_derivative]) for image in (first, last)]
    return (packing.pack(first.overlaps) - packing.pack(last.overlaps)) / length, (V[0] - V[1]) / length
