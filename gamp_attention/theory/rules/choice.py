"""Selection of the rule that the first solution uses."""

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import RULES
from gamp_attention.theory.equations.channel import n_white, teacher_size
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.nested import NestedRule
from gamp_attention.theory.rules.rule import Rule
from gamp_attention.theory.rules.sobol import JUMP_RATE, RATE, SobolRule, points_within
from gamp_attention.theory.rules.split import SplitRule

POINTS = 4096  # number of points of each replica of the first random rule
# requested error from which fewer points are enough for labels whose proximal map does not jump, and their number
COARSE, COARSE_POINTS = 5e-3, 1024
MAX_SPLIT_FIELDS = 6  # largest number L (r + t) of white coordinates for the split rule, a product over coordinates


def prefers_split(model: Model) -> bool:
    """Return whether the split rule is the faster one: targets smooth in the fields, at most four white coordinates."""
    return model.attention and n_white(model) <= 4


def prefers_nested(model: Model) -> bool:
    """Return whether the nested rule applies: labels, one field of the student, at most two numbers of the teacher."""
    one_field = model.n_tokens == model.rank == 1
    return not model.attention and one_field and all(teacher_size(part) <= 2 for _, _, part in model.components)


def first_rule(
    name: str, model: Model, seed: tuple[int, ...], max_work: float = np.inf, rtol: float | None = None
) -> Rule:
    """Return the coarsest rule of a given name; ValueError if it is not suitable for the model.

    Parameters
    ----------
    name : "split", "nested" or "sobol"; "auto" selects the rule that is the fastest for the model.
    model : the model, which must be an attention model with at most six white coordinates for "split".
    seed : seed of the point sets of "sobol".
    max_work : maximum number of proximal problems in one evaluation of the rule.
    rtol : requested relative error; random rules for labels without jumps start with fewer points from `COARSE`.
    """
    check.choice("rule", name, RULES)
    if name == "auto":
        name = "split" if prefers_split(model) else "nested" if prefers_nested(model) else "sobol"
    work_of_replica = max_work / SobolRule.n_replicas
    if name == "sobol":
        jumps = not model.attention and model.task.jumps
        coarse = rtol is not None and rtol >= COARSE and not model.attention and not jumps
        n_points = points_within(COARSE_POINTS if coarse else POINTS, work_of_replica)
        return SobolRule(n_points, seed=seed, max_work=work_of_replica, rate=JUMP_RATE if jumps else RATE)
    if name == "nested":
        if not prefers_nested(model):
            needs = "another rule: 'nested' needs labels, one token, one column and at most two numbers of the teacher"
            raise check.fail("rule", name, needs)
        return NestedRule(max_work=max_work)
    if not model.attention:
        needs = "'sobol' or 'auto', because labels are not a smooth function of the fields"
        raise check.fail("rule", name, needs)
    size = n_white(model)
    if size > MAX_SPLIT_FIELDS:
        raise check.fail("rule", name, f"'sobol' or 'auto' for {size} = L (r + t) > {MAX_SPLIT_FIELDS} fields")
    return SplitRule(max_work=max_work)
