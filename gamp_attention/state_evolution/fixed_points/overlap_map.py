"""The map of state evolution, overlaps to overlaps, on a rule for the channel's averages."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.models.mixtures import MixtureModel
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import Hats, Moments, conjugates
from gamp_attention.state_evolution.equations.symmetry import Symmetry, fix_gauge
from gamp_attention.state_evolution.equations.units import Packing
from gamp_attention.state_evolution.equations.weights import weights_step
from gamp_attention.state_evolution.rules.channels import MixtureRule
from gamp_attention.state_evolution.rules.lines import fields_of
from gamp_attention.state_evolution.rules.sobol import SobolRule
from gamp_attention.state_evolution.rules.split import MAX_FIELDS, SplitRule

RULES = ("auto", "split", "lines", "sobol")
VARIANCES = ("stein", "derivative")
AUTO_FIELDS = 4  # up to so many white coordinates the split rule is the faster
VANISHED = 1e-12  # q, in units of the teacher's, under which a penalty has killed all weights
FIRST_POINTS = {"lines": 256, "sobol": 4096}

Rule = SplitRule | SobolRule | MixtureRule


def first_rule(name: Any, model: Model, seed: tuple[int, ...], most: float = np.inf) -> Rule:
    """The coarsest rule of a name, or for "auto" of the one that suits the model, with a bound on its work."""
    check.choice("rule", name, RULES)
    size = fields_of(model)
    if name == "split" and not model.attention:
        raise check.fail("rule", name, "'lines', 'sobol' or 'auto', as labels are no smooth function of fields")
    if name == "split" and size > MAX_FIELDS:
        raise check.fail("rule", name, f"'lines', 'sobol' or 'auto' for {size} = L (r + t) > {MAX_FIELDS} fields")
    if name == "auto":
        name = "split" if size <= AUTO_FIELDS and model.attention else "sobol"
    if name == "split":
        return on_channels(model, SplitRule(model, most=most))
    return on_channels(model, SobolRule(model, FIRST_POINTS[name], lines=name == "lines", seed=seed, most=most))


def on_channels(model: Model, rule: SplitRule | SobolRule) -> Rule:
    """The rule itself, or one like it for each channel of a mixture."""
    return MixtureRule(model, rule) if isinstance(model, MixtureModel) else rule


class WeightsVanished(ArithmeticError):
    """The penalty takes all weights to zero, where overlaps have no size left."""


@dataclass(frozen=True)
class Image:
    """One full step: the hats at the old overlaps, the new overlaps, and the new penalty per coordinate, E[r(x)]."""

    hats: Hats
    overlaps: Overlaps
    penalty: float


@dataclass(frozen=True)
class OverlapMap:
    """Overlaps to overlaps, with V̂ in the form that `variance` names."""

    model: Model
    alpha: float
    rule: Rule
    variance: str = "stein"
    _last: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def images(self, overlaps: Overlaps, squares: bool = False) -> tuple[Image, list[Image]]:
        """One full step with the mean of the rule's averages, and with each replica's own."""
        samples = self._moments(overlaps, squares)
        return self._image(overlaps, _mean(samples)), [self._image(overlaps, sample) for sample in samples]

    def __call__(self, overlaps: Overlaps) -> Overlaps:
        """The new overlaps."""
        return self._image(overlaps, _mean(self._moments(overlaps))).overlaps

    def _moments(self, overlaps: Overlaps, squares: bool = False) -> list[Moments]:
        """The rule's averages; the last ones are kept, as solvers ask for them again."""
        last = self._last
        if last.get("at") is not overlaps or (squares and not last["squares"] and not self.rule.squares):
            last.update(at=overlaps, squares=squares, moments=self.rule.moments(overlaps, squares))
        return last["moments"]

    def _image(self, overlaps: Overlaps, moments: Moments) -> Image:
        hats = conjugates(self.model, self.alpha, overlaps, moments)
        after, penalty = weights_step(self.model, hats, self.variance)
        if (
            not self.model.penalty.smooth
            and not np.abs(after.q).max() > VANISHED * np.abs(self.model.coordinates.rho).max()
        ):
            raise WeightsVanished
        return Image(hats, Symmetry.of(self.model, overlaps).impose(fix_gauge(self.model, after)), penalty)

    def finer(self) -> "OverlapMap | None":
        """The map on the next finer rule."""
        rule = self.rule.finer()
        return None if rule is None else self.on(rule)

    def on(self, rule: Rule) -> "OverlapMap":
        """The map on another rule."""
        return replace(self, rule=rule, _last={})

    def jacobian(
        self, packing: Packing, at: Overlaps, step: float, *, central: bool = False, odd: bool = False
    ) -> np.ndarray:
        """Derivative of the map in the packed overlaps, by finite differences; those of an odd map are central."""
        x = packing.pack(at)

        def value(shift: np.ndarray) -> np.ndarray:
            return packing.pack(self(packing.unpack(x + shift)))

        shifts = step * np.eye(len(x))
        if central:
            return np.stack([(value(shift) - value(-shift)) / (2 * step) for shift in shifts], axis=1)
        base = 0 * x if odd else packing.pack(self(at))
        return np.stack([(value(shift) - base) / step for shift in shifts], axis=1)


def _mean(samples: list[Moments]) -> Moments:
    if len(samples) == 1:
        return samples[0]
    return Moments(
        **{each.name: np.mean([getattr(sample, each.name) for sample in samples], axis=0) for each in fields(Moments)}
    )
