"""Selection of the rule that the first solution uses."""

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import RULES
from gamp_attention.theory.equations.channel import n_white, teacher_size
from gamp_attention.theory.equations.directions import steep_directions
from gamp_attention.theory.equations.outcomes import n_outcomes
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.panels import PanelRule
from gamp_attention.theory.rules.rule import Rule
from gamp_attention.theory.rules.sobol import JUMP_RATE, RATE, SobolRule, points_within

FIRST_POINTS = 4096  # number of points of each replica of the first random rule
# requested error from which fewer points are enough for labels whose proximal map does not jump, and their number
COARSE, COARSE_POINTS = 5e-3, 1024
FEW_DIRECTIONS, FEW_RATE = 2, 1.0  # number of directions in which a loss varies up to which errors have this rate
MAX_FIELDS, FEW_FIELDS = 6, 4  # largest numbers L (r + t) of coordinates of attention on panels: if chosen, by default


def first_rule(
    name: str, model: Model, seed: tuple[int, ...], max_work: float = np.inf, rtol: float | None = None
) -> Rule:
    """Return the coarsest rule of a given name; ValueError if it is not suitable for the model.

    Parameters
    ----------
    name : "panels" or "sobol"; "auto" selects the rule that is the fastest for the model.
    model : the model. For "panels" it must be an attention model with at most six white coordinates, or a model of
        labels with one field of the student and at most two numbers of the teacher.
    seed : seed of the point sets of "sobol".
    max_work : maximum number of proximal problems in one evaluation of the rule.
    rtol : requested relative error; random rules for labels without jumps start with fewer points from `COARSE`.
    """
    check.choice("rule", name, RULES)
    labels = not model.attention
    one_field = model.n_tokens == model.rank == 1 and all(teacher_size(part) <= 2 for _, _, part in model.components)
    if name == "panels" or (name == "auto" and (one_field if labels else n_white(model) <= FEW_FIELDS)):
        if labels and not one_field:
            needs = "another rule: 'panels' needs labels of one token, one column and at most two teacher numbers"
            raise check.fail("rule", name, needs)
        if not labels and n_white(model) > MAX_FIELDS:
            raise check.fail("rule", name, f"'sobol' or 'auto' for {n_white(model)} = L (r + t) > {MAX_FIELDS} fields")
        return PanelRule(labels, max_work=max_work)
    outcomes, jumps = n_outcomes(model), labels and model.task.jumps
    work_of_replica = max_work / (SobolRule.n_replicas * outcomes)
    few = not model.attention and not jumps and steep_directions(model, outcomes > 1).shape[1] <= FEW_DIRECTIONS
    rate = JUMP_RATE if jumps else FEW_RATE if few else RATE
    coarse = rtol is not None and rtol >= COARSE and labels and not jumps
    n_points = points_within((COARSE_POINTS if coarse else FIRST_POINTS) // outcomes, work_of_replica)
    return SobolRule(n_points, seed=seed, max_work=work_of_replica, rate=rate, problems=outcomes)
