"""Which rule to begin with."""

from typing import Any

import numpy as np

from gamp_attention._core import check
from gamp_attention.models.model import Model
from gamp_attention.state_evolution.equations.channel import n_white
from gamp_attention.state_evolution.rules.rule import Rule
from gamp_attention.state_evolution.rules.sobol import SobolRule, points_within
from gamp_attention.state_evolution.rules.split import SPLIT, SplitRule

RULES = ("auto", "split", "lines", "sobol")


def prefers_split(model: Model) -> bool:
    """Whether the split rule is the faster: up to four white coordinates, where labels are smooth in the fields."""
    return model.attention and n_white(model) <= 4


def first_rule(name: Any, model: Model, seed: tuple[int, ...], max_work: float = np.inf) -> Rule:
    """The coarsest rule of a name, or for "auto" of the one that suits the model, with a bound on its work."""
    check.choice("rule", name, RULES)
    if name == "auto":
        name = "split" if prefers_split(model) else "sobol"
    of_replica = max_work / SobolRule.n_replicas
    if name == "sobol":
        return SobolRule(points_within(4096, of_replica), seed=seed, max_work=of_replica)
    if name == "lines":
        return SobolRule(256, lines=True, seed=seed, max_work=of_replica)
    if not model.attention:
        raise check.fail("rule", name, "'lines', 'sobol' or 'auto', as labels are no smooth function of fields")
    size = n_white(model)
    if size > SPLIT.max_fields:
        raise check.fail("rule", name, f"'lines', 'sobol' or 'auto' for {size} = L (r + t) > {SPLIT.max_fields} fields")
    return SplitRule(max_work=max_work)
