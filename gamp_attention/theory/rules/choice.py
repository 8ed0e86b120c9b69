"""Selection of the rule that the first solution uses."""

from typing import NamedTuple

import numpy as np

from gamp_attention._tools import check
from gamp_attention._tools.choices import RULES
from gamp_attention.theory.equations.channel import n_white, teacher_size
from gamp_attention.theory.equations.directions import loss_directions
from gamp_attention.theory.equations.outcomes import known_labels, node_error, shift_dimension
from gamp_attention.theory.models.model import Model
from gamp_attention.theory.rules.lattice import LatticeRule
from gamp_attention.theory.rules.panels import PanelRule
from gamp_attention.theory.rules.rule import Rule
from gamp_attention.theory.rules.sobol import JUMP_RATE, RATE, SobolRule, points_within


class ChoiceSettings(NamedTuple):
    """Settings of the selection."""

    first_points: int = 4096  # number of points of each replica of the first random rule
    few_points: int = 1024  # the same if the rule is refined, for labels whose proximal map does not jump
    max_lattice: int = 3  # largest number of coordinates of labels with a convex loss on lattices
    max_fields: int = 6  # largest number L (r + t) of coordinates of attention on panels, if chosen
    few_fields: int = 4  # the same by default


CHOICE = ChoiceSettings()


def first_rule(
    name: str, model: Model, seed: tuple[int, ...], max_work: float = np.inf, *, refined: bool = False
) -> Rule:
    """Return the coarsest rule of a given name; ValueError if it is not suitable for the model.

    Parameters
    ----------
    name : "panels", "lattice" or "sobol"; "auto" selects the rule that is the fastest for the model.
    model : the model. For "panels" it must be an attention model with at most six white coordinates, or a model of
        labels with one field of the student and at most two numbers of the teacher. For "lattice" it must have labels
        and a convex loss of at most three directions.
    seed : seed of the points of random rules.
    max_work : maximum number of proximal problems in one evaluation of the rule.
    refined : whether finer rules follow.
    """
    check.choice("rule", name, RULES)
    labels = not model.attention
    one_field = model.n_tokens == model.rank == 1 and all(teacher_size(part) <= 2 for _, _, part in model.components)
    if name == "panels" or (name == "auto" and (one_field if labels else n_white(model) <= CHOICE.few_fields)):
        if labels and not one_field:
            needs = "another rule: 'panels' needs labels of one token, one column and at most two teacher numbers"
            raise check.fail("rule", name, needs)
        if not labels and n_white(model) > CHOICE.max_fields:
            needs = f"'sobol' or 'auto' for {n_white(model)} = L (r + t) > {CHOICE.max_fields} fields"
            raise check.fail("rule", name, needs)
        return PanelRule(labels, max_work=max_work)
    known, rate, whitened, points, directions = known_labels(model), RATE, True, CHOICE.first_points, np.inf
    outcomes = max(len(known), 1)  # number of proximal problems at each point
    if labels and model.task.jumps:
        rate = JUMP_RATE
    elif labels:
        steep, bounded = loss_directions(model, known or None)
        whitened, points, directions = not bounded, CHOICE.few_points if refined else points, steep.shape[1]
        directions += max(shift_dimension(part) for _, _, part in model.components)
    work, parts = max_work / (SobolRule.n_replicas * outcomes), [part for _, _, part in model.components]
    rule = SobolRule(
        points_within(points // outcomes, work), seed=seed, max_work=work, rate=rate, problems=outcomes,
        unresolved=max(map(node_error, parts)), whitened=whitened,
    )  # fmt: skip
    if name != "sobol" and directions <= CHOICE.max_lattice:
        reach = LatticeRule.reach if bounded else LatticeRule.far
        return LatticeRule(**vars(rule) | {"rate": (directions + 3) / (2 * directions), "reach": reach})
    if name == "lattice":
        needs = f"another rule: 'lattice' needs labels and a convex loss of at most {CHOICE.max_lattice} directions"
        raise check.fail("rule", name, needs)
    return rule
