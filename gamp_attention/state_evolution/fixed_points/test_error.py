"""The test error of equation (10) at given overlaps."""

import numpy as np

from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.rules.rule import Rule, each_component


def predicted_test_error(model: Model, overlaps: Overlaps, rule: Rule) -> np.ndarray:
    """Test error ε_g on the rule's nodes for functions that do not jump, (1,) or one for each replica (R,).

    Eq. :eq:`test-error`.
    """
    parts = [
        share * np.array([np.average(channel.errors(x), weights=w) for x, w in part.smooth_nodes(channel.n_white)])
        for share, part, channel in each_component(rule, model, overlaps)
    ]
    return np.sum(parts, axis=0)
