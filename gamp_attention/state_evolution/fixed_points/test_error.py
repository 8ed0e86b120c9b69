"""The test error of eq. (10) at given overlaps."""

import numpy as np

from gamp_attention._core.gaussian import gaussian_points
from gamp_attention.models.model import Model
from gamp_attention.results import Overlaps
from gamp_attention.state_evolution.equations.channel import student_noise, teacher_fields, teacher_size
from gamp_attention.state_evolution.fixed_points.overlap_map import Rule
from gamp_attention.state_evolution.rules.channels import MixtureRule, restricted
from gamp_attention.state_evolution.rules.lines import fields_of
from gamp_attention.state_evolution.rules.split import SplitRule, outer_nodes

NODES = (10, 14, 18, 22, 26, 30, 34, 38, 42, 46)  # of each coordinate, by level
MOST = 4e6  # nodes altogether


def predicted_test_error(model: Model, overlaps: Overlaps, rule: Rule) -> np.ndarray:
    """ε_g by a product rule as fine as the split rule, (1,), or by each replica of a Sobol rule, (R,).

    Eq. :eq:`test-error`.
    """
    if isinstance(rule, MixtureRule):
        return np.sum(
            [
                share * predicted_test_error(given, restricted(overlaps, sources), part)
                for part, (share, sources, given) in zip(rule.parts, model.channels, strict=True)
            ],
            axis=0,
        )
    dim = fields_of(model)
    if isinstance(rule, SplitRule):
        n = min(NODES[rule.level], int(MOST ** (1 / dim)))
        points, weights = outer_nodes(n, dim, 0.1 * rule.tol)
        return np.array([_average(model, overlaps, points, weights)])
    sets = (gaussian_points(rule.n_points, dim, rule.generator(replica)) for replica in range(rule.n_replicas))
    return np.array([_average(model, overlaps, white, None) for white in sets])


def _average(model: Model, overlaps: Overlaps, white: np.ndarray, weights: np.ndarray | None) -> float:
    split = teacher_size(model)
    y, terms = teacher_fields(model, white[:, :split])
    noise = student_noise(model, overlaps, y, white[:, split:].reshape(len(white), model.n_tokens, model.rank))
    return float(np.average(model.errors(noise + overlaps.m, y, terms), weights=weights))
