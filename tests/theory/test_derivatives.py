"""Solutions predicted from a solution at another α, and derivatives of which symmetries give one half."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.equations.channel import Channel
from gamp_attention.theory.equations.units import Packing
from gamp_attention.theory.fixed_points.nearby import Derivatives, root_near, solve_near
from gamp_attention.theory.fixed_points.observables import sector_jacobian
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.panels import PanelRule


@pytest.fixture(scope="module")
def known(model):
    """The semantic solution at α = 1.5 and derivatives there."""
    return solve_near(model, 1.5, "semantic", None, 1e-3)


def test_the_tangent_agrees_with_solutions_at_two_alphas(model, known):
    se, derivatives, warm = known
    assert not warm
    ahead = ga.solve_state_evolution(model, 1.53, rtol=1e-4, stability=False).overlaps
    behind = ga.solve_state_evolution(model, 1.47, rtol=1e-4, stability=False).overlaps
    packing = Packing.of(model, se.overlaps)
    slope = (packing.pack(ahead) - packing.pack(behind)) / 0.06
    np.testing.assert_allclose(derivatives.tangent / packing.sizes, slope, atol=0.03 * np.abs(slope).max())


def test_a_known_solution_saves_averages(model, known, monkeypatch):
    """The result agrees with the result from the name, and takes at most half of the averages on the first rule."""
    se, derivatives, _ = known
    count = []
    plain = PanelRule.moments
    monkeypatch.setattr(PanelRule, "moments", lambda self, *args: count.append(self.level) or plain(self, *args))
    cold = solve_near(model, 1.4, "semantic", None, 1e-3)[0]
    named = count.count(0)
    count.clear()
    kept = Derivatives.from_dict(json.loads(json.dumps(derivatives.to_dict())))
    near, after, warm = solve_near(model, 1.4, "semantic", se.overlaps, 1e-3, kept)
    assert warm
    assert near.converged
    assert count.count(0) <= named / 2
    assert after.alpha == 1.4
    for name, value in near.overlaps.arrays().items():
        error = getattr(near.overlaps_error, name) + getattr(cold.overlaps_error, name)
        assert np.all(np.abs(value - getattr(cold.overlaps, name)) <= error), name
    assert abs(near.train_loss - cold.train_loss) <= near.train_loss_error + cold.train_loss_error


@pytest.mark.slow
def test_a_known_solution_is_not_used_if_it_is_far_or_its_branch_ends(model, known):
    se, derivatives, _ = known
    F = OverlapMap(model, 0.9, PanelRule(level=0))
    assert root_near(F, se.overlaps, derivatives, 1e-4) is None  # too far in α
    near, closer, _ = solve_near(model, 0.76, "semantic", None, 1e-3)
    assert root_near(OverlapMap(model, 0.68, PanelRule(level=0)), near.overlaps, closer, 1e-4) is None
    assert solve_near(model, 0.68, "semantic", near.overlaps, 1e-3, closer)[0].status is ga.Status.LOST


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_reversal_of_tokens_gives_half_of_the_columns_of_a_sector(branch, model):
    se = ga.solve_state_evolution(model, 1.5, branch, rtol=1e-2, stability=False)
    F, sector = OverlapMap(model, 1.5, PanelRule(level=2)), {"semantic": "m", "positional": "theta"}[branch]
    half = sector_jacobian(F, se.overlaps, sector)
    whole = F.jacobian(Packing(se.overlaps, (sector,)), se.overlaps, 1e-2, odd=True)
    np.testing.assert_allclose(half, whole, atol=1e-3 * np.abs(whole).max())


POINTS = {  # q, m, θ and V of both tokens, with all symmetries of a branch or without any
    "semantic": (0.09, 0.0, 0.13, 16.0, 0.09, 0.0, 0.13, 16.0),
    "positional": (0.05, 0.25, 0.0, 13.0, 0.05, -0.25, 0.0, 13.0),
    "no symmetry": (0.09, 0.1, 0.13, 3.0, 0.08, 0.2, 0.1, 2.5),
}


@pytest.mark.parametrize("name", POINTS)
def test_derivatives_of_averages_equal_their_differences(name, model):
    values = np.array(POINTS[name]).reshape(2, 4).T
    at = ga.Overlaps(*(v.reshape((2, 1) if i == 1 else (2, 1, 1)) for i, v in enumerate(values)))
    rule = PanelRule(level=2)
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
