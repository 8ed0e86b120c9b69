"""Points in the fundamental domain of a channel's symmetries, and the estimate of V̂ far from jumps."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.equations.channel import Channel
from gamp_attention.theory.equations.symmetry import Symmetry
from gamp_attention.theory.equations.units import Packing
from gamp_attention.theory.fixed_points.observables import predicted_test_error
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.rule import average_channels
from gamp_attention.theory.rules.sobol import SobolRule
from tests.conftest import assert_solutions_agree

MOMENTS = ("with_noise", "with_teacher", "gg", "response", "moreau", "loss")


def make_overlaps(L, r, t, q, theta, V, m=None):
    one = np.tile(np.eye(r), (L, 1, 1))
    m = np.zeros((L, r)) if m is None else np.array(m, dtype=float).reshape(L, r)
    return ga.Overlaps(q * one, m, np.tile(theta * np.eye(r, t), (L, 1, 1)), V * one)


SKEWED = [[0.5, 0.3, 0.2], [0.15, 0.7, 0.15], [0.2, 0.3, 0.5]]
CASES = {
    "any order": (ga.attention_model(3), make_overlaps(3, 1, 1, 0.17, 0.195, 11.9)),
    "reversed": (ga.attention_model(3, A=SKEWED), make_overlaps(3, 1, 1, 0.17, 0.195, 11.9)),
    "no teacher": (ga.attention_model(3), make_overlaps(3, 1, 1, 0.05, 0.0, 14.0, [0.25, 0, -0.25])),
    "columns": (ga.attention_model(2, 2, 2), make_overlaps(2, 2, 2, 0.105, 0.138, 15.0)),
    "noisy scores": (ga.attention_model(3, score_noise=0.2), make_overlaps(3, 1, 1, 0.17, 0.195, 5.0)),
    "sign": (ga.attention_model(2, sigma=[0.5, 0.6]), make_overlaps(2, 1, 1, 0.1, 0.13, 16.0)),
}


def perturb(at):
    """Return overlaps without symmetry, at a distance of about 1e-7 from given overlaps."""
    rng = np.random.default_rng(0)
    away = {name: 1e-7 * rng.normal(size=v.shape) for name, v in at.arrays().items()}
    away |= {name: away[name] + np.swapaxes(away[name], 1, 2) for name in ("q", "V")}
    return ga.Overlaps(**{name: v + away[name] for name, v in at.arrays().items()})


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("case", CASES)
def test_points_in_the_fundamental_domain_have_the_same_averages(case):
    """Moments and the test error agree within five standard errors, which are smaller with folded points."""
    model, at = CASES[case]
    whole = perturb(at)
    assert Channel(model, at).symmetry.foldable
    assert not Channel(model, whole).symmetry.foldable
    folded, plain = SobolRule(1024, 8, seed=(1,)), SobolRule(4096, 8, seed=(2,))
    few = folded.moments(Channel(model, at), squares=True)
    many = plain.moments(Channel(model, whole), squares=True)
    ratios = []
    for name in (*MOMENTS, "square"):
        if name == "with_teacher" and not at.theta.any():
            continue
        a, b = (np.array([getattr(each, name) for each in averages]) for averages in (few, many))
        error = np.sqrt((a.var(axis=0, ddof=1) + b.var(axis=0, ddof=1)) / 8)
        if name == "square":  # of hundreds of entries, some have errors that are too small by chance
            error = np.full_like(error, error.max())
        assert np.all(np.abs(a.mean(axis=0) - b.mean(axis=0)) <= 5 * error + 1e-3 * error.max()), name
        ratios.append(a.std(axis=0, ddof=1).max() / b.std(axis=0, ddof=1).max())
    assert np.median(ratios) < 4**0.75  # a quarter of the points would have larger errors without folding
    errors = [predicted_test_error(model, o, rule) for o, rule in ((at, folded), (whole, plain))]
    unsure = np.sqrt(sum(each.var(ddof=1) for each in errors) / 8)
    assert abs(errors[0].mean() - errors[1].mean()) <= 5 * unsure


@pytest.mark.parametrize("case", ["columns", "no teacher"])
def test_few_global_searches_correct_all_points(case):
    """The averages are equal if there are no second minima, otherwise equal within the noise of the correction."""
    model, at = CASES[case]
    channel = Channel(model, at)
    rule = SobolRule(4096, 8, seed=(2,))
    every, some = (np.array([each.moreau for each in replace(rule, searched=n).moments(channel)]) for n in (1, 8))
    if case == "columns":
        np.testing.assert_allclose(some, every, rtol=1e-12)
        assert rule.moments(channel)[0].multimodal_fraction < 1e-3
    else:
        away, error = every.mean() - some.mean(), (some - every).std(ddof=1) / np.sqrt(8)
        assert 0 < error < 1e-2 * every.mean()
        assert abs(away) < 4 * error
        assert rule.moments(channel)[0].multimodal_fraction > 2e-3


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_folded_points_agree_with_the_split_rule(branch, model):
    """Two tokens: the split rule does not use folded points, and computes the semantic V̂ in Stein's form."""
    points = ga.solve_state_evolution(model, 1.5, branch, rule="sobol", rtol=5e-3, stability=False, seed=2)
    split = ga.solve_state_evolution(model, 1.5, branch, rtol=1e-4, stability=False)
    assert points.converged
    assert_solutions_agree(points, split, numbers="V_hat train_loss test_error", factor=1.3)


@pytest.mark.slow
def test_isotropic_overlaps_stay_isotropic_and_have_the_same_solution():
    """There is one unknown for each family; the solution from a start without the symmetry is equal."""
    model = ga.attention_model(2, 2, 2)
    at = make_overlaps(2, 2, 2, 0.1, 0.13, 16.0)
    assert Symmetry.of(model, at).isotropic
    assert len(Packing.of(model, at).pack(at)) == 3
    uneven = replace(at, q=at.q * np.array([1.0, 1.1])[:, None])
    assert not Symmetry.of(model, uneven).isotropic
    same, free = (ga.solve_state_evolution(model, 2.0, o, rtol=2e-2, stability=False) for o in (at, uneven))
    assert same.converged
    assert free.converged
    assert (same.overlaps.q[:, 0, 1] == 0).all()
    assert (same.overlaps.V[:, 0, 0] == same.overlaps.V[:, 1, 1]).all()
    for name in ("q", "theta", "V"):
        a, b = (np.trace(getattr(each.overlaps, name).sum(axis=0)) / 4 for each in (same, free))
        error = sum(getattr(each.overlaps_error, name).max() for each in (same, free))
        assert abs(a - b) <= error, name


def test_only_models_with_rotational_symmetry_are_isotropic():
    law = ga.coordinate_law(teacher_rank=2)
    wide = replace(law, teacher_cov=law.teacher_cov * np.diag([1.0, 2.0]))
    assert ga.attention_model(2, 2, 2).isotropic
    assert not ga.attention_model(2, 2, 1).isotropic
    assert not ga.attention_model(2, 2, 2, student=ga.DotProductAttention(tied=False)).isotropic
    assert not ga.attention_model(2, 2, 2, coordinates=wide).isotropic


def test_far_from_jumps_the_derivative_replaces_steins_form():
    """It agrees with Stein's form and has a quarter of its error; if the map jumps, Stein's form is used."""
    model, at = CASES["any order"]
    F = OverlapMap(model, 1.5, SobolRule(4096, 8, seed=(1,)))
    image, samples = F.images(at)
    choices = F.with_choices_at(at).choices
    assert not choices.counts_jumps
    G = replace(F, choices=replace(choices, counts_jumps=True))
    stein, stein_samples = G.images(at)
    error, stein_error = (
        np.std([each.hats.V for each in averages], axis=0, ddof=1).max() for averages in (samples, stein_samples)
    )
    assert error < 0.25 * stein_error
    assert np.abs(image.hats.V - stein.hats.V).max() < 5 * stein_error / np.sqrt(8)
    assert (image.hats.jump_mass == 0).all()
    H = F.with_choices_at(at)
    assert H.count_jumps(at) is H
    jumpy = CASES["no teacher"][1]
    assert (H.images(jumpy)[0].hats.jump_mass == 0).all()
    assert H.count_jumps(jumpy).images(jumpy)[0].hats.jump_mass.sum() < 0


def test_convex_losses_are_averaged_over_all_signs():
    """Their points begin with the student's fields, of which the loss reads one: a domain of signs does not apply."""
    model = ga.sequence_model(
        lambda u, n: u[0, 0] ** 2 + 0.5 * n[0] ** 2, lambda z: z[0, 0] ** 2, loss=lambda y, p: y * p,
        n_noise=1, n_tokens=2, rank=1, lam=0.2, convex=True,
    )  # fmt: skip
    one = np.ones((2, 1, 1))
    moments = [
        average_channels(SobolRule(1024), model, ga.Overlaps(q=0.8 * one, m=m * one[:, 0], theta=theta * one, V=one))[0]
        for m, theta in ((0.0, 0.3), (1e-12, 0.3), (0.5, 0.0), (0.5, 1e-12))
    ]
    for exact, near in (moments[:2], moments[2:]):
        for name in ("gg", "response", "with_noise"):
            np.testing.assert_allclose(getattr(exact, name), getattr(near, name), rtol=1e-8, atol=1e-8)
