"""Solutions predicted from a solution at another α, and derivatives of which symmetries give one half."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.equations.channel import Channel, mean_of
from gamp_attention.theory.fixed_points.solve import solve_near
from gamp_attention.theory.rules.panels import PanelRule
from gamp_attention.theory.rules.sobol import SobolRule
from tests.conftest import assert_solutions_agree
from validation.speed.several_fields import Errors


def test_a_known_solution_leads_to_its_branch_and_not_beyond_its_end(model):
    """The result from a solution at another α agrees with the result from the name; the branch ends at 0.719."""
    start = ga.solve_state_evolution(model, 1.5, "semantic", rtol=1e-3, stability=False).overlaps
    near, warm = solve_near(model, 1.4, "semantic", start, 1e-3)
    cold, from_name = solve_near(model, 1.4, "semantic", None, 1e-3)
    assert (warm, from_name) == (True, False)
    assert_solutions_agree(near, cold)
    assert solve_near(model, 0.68, "semantic", start, 1e-3)[0].status is ga.Status.LOST


POINTS = {  # q, m, θ and V of both tokens, with all symmetries of a branch or without any
    "semantic": (0.09, 0.0, 0.13, 16.0, 0.09, 0.0, 0.13, 16.0),
    "positional": (0.05, 0.25, 0.0, 13.0, 0.05, -0.25, 0.0, 13.0),
    "no symmetry": (0.09, 0.1, 0.13, 3.0, 0.08, 0.2, 0.1, 2.5),
}


@pytest.mark.parametrize("name", POINTS)
def test_derivatives_of_averages_equal_their_differences(name, model):
    values = np.array(POINTS[name]).reshape(2, 4).T
    at = ga.Overlaps(*(v.reshape((2, 1) if i == 1 else (2, 1, 1)) for i, v in enumerate(values)))
    rule = PanelRule(level=1)
    found = rule.expansion(Channel(model, at))
    (plain,) = rule.moments(Channel(model, at))
    for k, (family, token) in enumerate(product(("q", "m", "theta"), (0, 1))):
        step = 0.02 * (at.q[0, 0, 0] if family == "q" else np.sqrt(at.q[0, 0, 0]))
        shift = np.zeros_like(getattr(at, family))
        shift[token] = step
        ahead, behind = (replace(at, **{family: getattr(at, family) + sign * shift}) for sign in (1, -1))
        (after,), (before,) = (rule.moments(Channel(model, there)) for there in (ahead, behind))
        for average, slopes in found.slopes.items():
            assert np.array_equal(getattr(found.base, average), getattr(plain, average))
            if not getattr(ahead, {"g": "m", "with_teacher": "theta"}.get(average, "q")).any():
                continue  # zero by symmetry, so that the rule averages only a part of the fields
            difference = (getattr(after, average) - getattr(before, average)) / (2 * step)
            tol = 0.03 if average == "response" else 0.003  # the derivative diverges where jumps begin
            assert np.allclose(slopes[k], difference, atol=tol * np.abs(slopes).max(), rtol=0), (family, average)


def smooth_and_kinked():
    """Return a multinomial model, whose loss does not depend on the sum of the fields, and one with kinks."""
    classes = ga.glm_model(ga.MultinomialLoss(), rank=3, lam=0.1)
    return {"multinomial": classes, "kinks": ga.glm_model(Errors(1.0, 1.0), ga.LinearLabels(0.5), rank=2, lam=0.3)}


@pytest.mark.parametrize(("name", "n_points"), [("multinomial", 1024), ("kinks", 2048)])
def test_derivatives_along_paths_equal_differences(name, n_points):
    """All averages but the response are the same functions of the points; the response has sampling errors."""
    model = smooth_and_kinked()[name]
    r, rng = model.rank, np.random.default_rng(0)
    root = rng.standard_normal((3, r, r))
    q, theta, V = (
        1.5 * np.eye(r) + 0.1 * root[0] @ root[0].T,
        0.3 * root[1],
        0.5 * np.eye(r) + 0.1 * root[2] @ root[2].T,
    )
    at = ga.Overlaps(q[None], np.zeros((1, r)), theta[None], V[None])
    rules = [SobolRule(n_points, n_replicas=2, seed=(seed,)) for seed in range(6)]
    found = [rule.expansion(Channel(model, at)) for rule in rules]
    shifts = {"q": np.diag([1.0, 0.0, 0.0][:r]), "theta": np.eye(r)[:, :1] * np.eye(r)[1], "V": np.ones((r, r))}
    for family, shift in shifts.items():
        step = 0.02 * shift
        sides = [replace(at, **{family: getattr(at, family) + sign * step}) for sign in (1, -1)]
        moments = [[mean_of(rule.moments(Channel(model, side))) for side in sides] for rule in rules]
        for average in found[0].slopes:
            slopes = [np.subtract(*(getattr(part.at(side), average) for side in sides)) for part in found]
            errors = slopes - np.array([np.subtract(*(getattr(part, average) for part in pair)) for pair in moments])
            spread = errors.std(axis=0, ddof=1) / np.sqrt(len(rules))
            assert (np.abs(errors.mean(axis=0)) <= 5 * spread + 0.01 * np.abs(slopes).max() + 1e-9).all(), family
