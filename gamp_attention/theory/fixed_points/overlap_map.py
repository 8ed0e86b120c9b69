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

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from gamp_attention._tools.progress import Progress
from gamp_attention.results import Overlaps
from gamp_attention.theory.equations.channel import Hats, Moments, conjugates
from gamp_attention.theory.equations.symmetry import Symmetry, fix_gauge
from gamp_attention.theory.equations.units import Packing, is_feasible
from gamp_attention.theory.equations.weights import weights_step, with_intercept
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.rule import (
    Expansion,
    Rule,
    WorkExceeded,
    average_channels,
    expand_channels,
    work_of,
)


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
    expanded_step: float = 1e-6  # step of central differences of averages to first order, which have no noise
    min_separated: float = 1e-12  # smallest unexplained part of q, relative to q, that rounding does not determine
    alpha_step: float = 1e-4  # relative change of α for the derivative in α


class WorkLimit:
    """Limit of the total number of proximal problems of all averages of a map.

    Attributes
    ----------
    remaining : number of proximal problems that averages may still solve.
    """

    def __init__(self, total: float) -> None:
        self.remaining = total

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


@dataclass(frozen=True, eq=False)
class Choices:
    """Choices taken from the averages at one point, and these averages."""

    # whether Stein's form of V̂ is computed from E[g ω̃ᵀ], which counts jumps of the proximal map. If no point of the
    # averages is near a jump, the average derivative equals it and has a lower variance.
    counts_jumps: bool
    rare_minima: bool  # whether second minima are so rare that later averages search only a few points for them
    # overlaps, moments: the point, and its averages for each replica of the rule
    overlaps: Overlaps
    moments: list[Moments]
    squares: bool  # whether these averages include products of derivatives
    # whether later averages search more of the points, because the search found lower minima
    often_lowered: bool = False

    def covers(self, overlaps: Overlaps, squares: bool) -> bool:
        """Return whether the stored averages are the averages at given overlaps."""
        if not self.moments or (squares and not self.squares):
            return False
        there = overlaps.arrays()
        return all(np.array_equal(values, there[name]) for name, values in self.overlaps.arrays().items())


@dataclass(frozen=True)
class OverlapMap:
    """Map from overlaps to overlaps."""

    # model, alpha: the model and the sample complexity α
    model: Model
    alpha: float
    rule: Rule  # quadrature rule of the averages
    response: str = "stein"  # form of V̂, "stein" or "derivative"
    # choices that all evaluations share, see `with_choices_at`. If None, each evaluation makes its choices from its
    # averages.
    choices: Choices | None = field(default=None, compare=False, repr=False)
    # whether second minima were rare on a coarser rule; `with_choices_at` then first searches few points
    expects_rare_minima: bool = False
    # whether searches found lower minima on a coarser rule; `with_choices_at` then searches more points
    expects_lower_minima: bool = False
    limit: WorkLimit | None = field(default=None, compare=False, repr=False)  # total work of averages; None: no limit
    settings: MapSettings = field(default=MapSettings(), repr=False)
    # the latest averages and expansions, by the rule, overlaps and `squares` that determine them: they save time and
    # change no result
    _memory: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def with_choices_at(self, overlaps: Overlaps, squares: bool = False) -> "OverlapMap":
        """Return the map with choices from the averages at given overlaps; the map itself if it has choices.

        With `squares`, the averages include products of derivatives. The returned map stores these averages
        and uses them whenever it is evaluated at these overlaps.
        """
        if self.choices is not None:
            return self
        subsampled = self.rule.with_subsampled_search()  # searches for second minima at a few points only
        can_save = subsampled is not self.rule and self.model.task.jumps
        if can_save and not self.model.attention:
            # the correction at few points has no bias, but much noise if the global minimum is often another one
            moments = [] if self.expects_lower_minima else self._average(subsampled, overlaps, squares)
            if not moments or _mean(moments).lowered_fraction > self.settings.often_lowered:
                moments = self._average(self.rule.with_subsampled_search(often=True), overlaps, squares)
                return replace(self, choices=Choices(True, True, overlaps, moments, squares, often_lowered=True))
            mean = _mean(moments)
            counts_jumps = mean.lowered_fraction > 0 or self._is_near_jumps(mean)
            return replace(self, choices=Choices(counts_jumps, True, overlaps, moments, squares))
        if can_save and self.expects_rare_minima:
            moments = self._average(subsampled, overlaps, squares)
            mean = _mean(moments)
            # if these few points show no jumps, all points are searched to decide whether V̂ has to count jumps
            if self._is_near_jumps(mean) and mean.multimodal_fraction <= self.settings.rare_minima:
                return replace(self, choices=Choices(True, True, overlaps, moments, squares))
        moments = self._average(self.rule, overlaps, squares)
        mean = _mean(moments)
        rare = can_save and mean.multimodal_fraction <= self.settings.rare_minima
        return replace(self, choices=Choices(self._is_near_jumps(mean), rare, overlaps, moments, squares))

    def count_jumps(self, overlaps: Overlaps) -> "OverlapMap":
        """Return the map that counts jumps in V̂ if there are some at given overlaps; otherwise the map itself."""
        choices = self.choices
        if choices is None or choices.counts_jumps or not self._is_near_jumps(_mean(self._moments(overlaps))):
            return self
        return replace(self, choices=replace(choices, counts_jumps=True))

    def images(self, overlaps: Overlaps, squares: bool = False) -> tuple[Image, list[Image]]:
        """Return one full step from the mean of the replicas' averages, and one from the averages of each replica."""
        F = self.with_choices_at(overlaps, squares)
        samples = F._moments(overlaps, squares)
        return F._image(overlaps, _mean(samples)), [F._image(overlaps, sample) for sample in samples]

    def __call__(self, overlaps: Overlaps) -> Overlaps:
        """Return the new overlaps."""
        return self._step(overlaps).overlaps

    def has_squares(self, overlaps: Overlaps) -> bool:
        """Return whether the choices were made at given overlaps, with averages of products of derivatives."""
        return self.choices is not None and self.choices.covers(overlaps, squares=True)

    def contracts(self, overlaps: Overlaps) -> bool:
        """Return whether no proximal map expands on average over its fields at any point, as for convex losses."""
        moments = self.with_choices_at(overlaps)._moments(overlaps)
        return all(sample.max_jacobian_trace <= sample.g.size * (1 + 1e-9) for sample in moments)

    def on(self, rule: Rule) -> "OverlapMap":
        """Return the map on another rule; it makes no choices yet, because choices depend on the rule."""
        rare = self.choices is not None and self.choices.rare_minima
        lower = self.choices is not None and self.choices.often_lowered
        return replace(self, rule=rule, choices=None, expects_rare_minima=rare, expects_lower_minima=lower, _memory={})

    def finer(self) -> "OverlapMap | None":
        """Return the map on the next finer rule; None if there is none."""
        rule = self.rule.finer()
        return None if rule is None else self.on(rule)

    def refined_for(self, error_ratio: float) -> "OverlapMap | None":
        """Return the map on a rule whose errors are expected to be smaller by the factor `error_ratio`.

        The map itself if the rule is already accurate enough; None if there is no finer rule. If the finer rule has
        more replicas of the same points, the map keeps its choices and the averages of the other replicas.
        """
        rule = self.rule.refined_for(error_ratio)
        if rule is None or rule is self.rule:
            return None if rule is None else self
        if self.choices is None or rule.without(self.rule) is None:
            return self.on(rule)
        return replace(self, rule=rule, choices=replace(self.choices, moments=[]))

    def linearize(self, packing: Packing, at: Overlaps, step: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return differences in the k packed overlaps: the Jacobian (k, k) and the slopes of V̂.

        They are forward differences with the given step (by default `MapSettings.difference`), or central differences
        with larger steps if `is_noisy`, then on the number of points that the stability needs. If the rule has
        derivatives of averages, they are used instead, see `_linearize`. The slopes (2, L, r, r, k) are the derivatives
        of V̂ in Stein's form and in the derivative form.
        """
        step = self.settings.difference if step is None else step
        if self.is_noisy and self.rule.for_stability() != self.rule:  # as accurate as Newton steps need, in less time
            return self.on(self.rule.for_stability()).linearize(packing, at, step)
        F, expansion = self._expand(at)
        x = packing.pack(at)
        if not F.is_noisy and expansion is not None and not expansion.jumps:
            return F._linearize(packing, at, expansion, step, central=False)
        with Progress(shown=False) as task:
            task.describe(f"derivatives in {len(x)} overlaps, each from an average")
            pairs = F._feasible_pairs(packing, at, step)
            if not pairs:
                return F._linearize(packing, at, None, step, central=False)
            moves = np.stack([packing.pack(ahead) - packing.pack(behind) for ahead, behind in pairs], axis=1)
            images = [(F._step(ahead), F._step(behind)) for ahead, behind in pairs]
            changes, V_changes = zip(*(_difference(packing, *pair) for pair in images), strict=True)
            inverse = np.linalg.inv(moves)
            return np.stack(changes, axis=1) @ inverse, np.stack(V_changes, axis=-1) @ inverse

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

    def jacobian(
        self, packing: Packing, at: Overlaps, step: float, *, odd: bool = False, columns: int | None = None
    ) -> np.ndarray:
        """Return the first `columns` columns of the Jacobian in packed overlaps, all by default.

        The differences are central. If `odd`, the map is an odd function of the packed overlaps and `at` is zero in
        them, so that one evaluation per column is enough. If `is_noisy`, the steps are larger, as for `linearize`.
        Derivatives of averages replace differences as there.
        """
        F, expansion = self._expand(at)
        x = packing.pack(at)
        if F.is_noisy and not odd:
            return F.linearize(packing, at, step)[0][:, :columns]
        step = max(step, self.settings.noisy_fraction) if F.is_noisy else step
        if expansion is not None and not (expansion.jumps and F._uses_response):
            return F._linearize(packing, at, expansion, step, central=True, columns=columns)[0]

        if not odd and F._feasible_pairs(packing, at, step):
            return F.linearize(packing, at, step)[0][:, :columns]
        if odd:
            shifts = step * np.eye(len(x))[:columns]
            return np.stack([packing.pack(F(packing.unpack(x + shift))) / step for shift in shifts], axis=1)
        return F._linearize(packing, at, None, step, central=True, columns=columns)[0]

    def _linearize(
        self, packing: Packing, at: Overlaps, expansion: Expansion | None, step: float, central: bool,
        columns: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Return the first `columns` columns of the Jacobian, and of the slopes of V̂, from derivatives of averages.

        Columns that the expansion, if there is one, does not include are differences of averages with the given step.
        """
        x, differences = packing.pack(at), []
        for shift in np.eye(len(x))[:columns]:
            same_V = np.array_equal(packing.unpack(x + shift).V, at.V)
            if expansion is not None and (expansion.includes_V or same_V):
                steps = self.settings.expanded_step, -self.settings.expanded_step
                near = [packing.unpack(x + h * shift) for h in steps]
                new, old = (self._image(overlaps, expansion.at(overlaps)) for overlaps in near)
            else:
                steps = step, -step if central else 0.0
                new, old = (self._step(packing.unpack(x + h * shift) if h else at) for h in steps)
            change, V_change = _difference(packing, new, old)
            length = steps[0] - steps[1]
            differences.append((change / length, V_change / length))
        jacobian, V_slopes = zip(*differences, strict=True)
        return np.stack(jacobian, axis=1), np.stack(V_slopes, axis=-1)

    def with_choices_near(self, at: Overlaps, other: Overlaps) -> "OverlapMap":
        """Return the map with choices from the first averages that differences around `at` need.

        These are the averages of the expansion at `at`, or the averages at the `other` overlaps, on one side of it, if
        the rule has no derivatives.
        """
        return self.with_choices_at(other if self._expansion(at) is None else at)

    def _expand(self, at: Overlaps) -> tuple["OverlapMap", Expansion | None]:
        """Return the map with choices, and the expansion of its averages; None if the rule has none."""
        expansion = self._expansion(at)  # first, because it includes the averages from which choices follow
        return self.with_choices_at(at), expansion

    def _expansion(self, at: Overlaps, squares: bool = False) -> Expansion | None:
        """Return the expansion of the averages at given overlaps, from memory if it was computed before.

        With `squares`, its averages include products of derivatives.
        """
        key = self._key(self.rule, "expansion", at)
        has_squares = self._key(self.rule, True, at) in self._memory
        if key not in self._memory or (squares and self._memory[key] is not None and not has_squares):
            expansion = self._memory[key] = expand_channels(self.rule, self.model, at, squares)
            if expansion is not None:
                for included in (False, True) if squares else (False,):
                    self._memory[self._key(self.rule, included, at)] = [expansion.base]
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

    def slope_in_alpha(self, packing: Packing, at: Overlaps) -> np.ndarray:
        """Return the derivative of the packed map in α, (k,); hats are proportional to α, so no new averages."""
        step = self.settings.alpha_step * self.alpha
        F = self.with_choices_at(at)
        ahead = replace(F, alpha=F.alpha + step)  # averages do not depend on α
        return (packing.pack(ahead(at)) - packing.pack(F(at))) / step

    def _step(self, overlaps: Overlaps) -> Image:
        """Return one full step from the mean of the replicas' averages."""
        F = self.with_choices_at(overlaps)
        return F._image(overlaps, _mean(F._moments(overlaps)))

    def _moments(self, overlaps: Overlaps, squares: bool = False) -> list[Moments]:
        """Return the averages of each replica, with the choices of the map."""
        choices = self.choices
        assert choices is not None
        if choices.covers(overlaps, squares):
            return choices.moments
        rule = self.rule.with_subsampled_search(choices.often_lowered) if choices.rare_minima else self.rule
        return self._average(rule, overlaps, squares)

    def _average(self, rule: Rule, overlaps: Overlaps, squares: bool) -> list[Moments]:
        """Return the averages of each replica of a rule, from memory if they were computed before."""
        key = self._key(rule, squares, overlaps)
        if rule.expands and key not in self._memory:
            self._expansion(overlaps, squares)  # includes the averages, and a Jacobian may be needed there
        if key not in self._memory:
            known, missing = self._known_replicas(rule, squares, overlaps)
            if self.limit is not None:
                self.limit.spend(work_of(missing, self.model))
            self._memory[key] = [*known, *average_channels(missing, self.model, overlaps, squares)]
            self._forget()
        return self._memory[key]

    def _known_replicas(self, rule: Rule, squares: bool, overlaps: Overlaps) -> tuple[list[Moments], Rule]:
        """Return averages in memory that belong to replicas of a rule, and the rule of the other replicas."""
        at = self._key(rule, squares, overlaps)[1:]
        for (other, *where), moments in self._memory.items():
            missing = rule.without(other) if tuple(where) == at else None
            if missing is not None:
                return moments, missing
        return [], rule

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
            after = with_intercept(overlaps, after, hats, hats.response(self.response))
        vanished = not np.abs(after.q).max() > 1e-12 * np.abs(self.model.coordinates.rho).max()
        if vanished and not self.model.penalty.smooth:
            raise WeightsVanished
        return Image(hats, Symmetry.of(self.model, overlaps).impose(fix_gauge(self.model, after)), penalty)

    def _is_near_jumps(self, moments: Moments) -> bool:
        """Return whether the proximal map jumps, or is about to jump, at some point of the averages."""
        return moments.max_jacobian_trace > self.settings.steep * moments.g.size


def _mean(samples: list[Moments]) -> Moments:
    """Return the mean of the replicas' averages."""
    if len(samples) == 1:
        return samples[0]
    return Moments(
        **{item.name: np.mean([getattr(sample, item.name) for sample in samples], axis=0) for item in fields(Moments)}
    )


def _difference(packing: Packing, first: Image, last: Image) -> tuple[np.ndarray, np.ndarray]:
    """Return the differences of the packed overlaps and of V̂ in both forms between two images."""
    V = [np.stack([image.hats.V, image.hats.V_derivative]) for image in (first, last)]
    return packing.pack(first.overlaps) - packing.pack(last.overlaps), V[0] - V[1]
