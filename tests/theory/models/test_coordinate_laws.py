"""Coordinate distributions: moments, symmetries, and agreement of GAMP and state evolution."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.equations.weights import weights_step
from gamp_attention.theory.fixed_points.observables import replicon
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.panels import PanelRule
from tests.conftest import make_overlaps


def make_mixed_law(t=1):
    """Return a distribution with 4 eigenvalues of unequal fractions, positions on a quarter and a sparse teacher."""
    return ga.coordinate_law(
        ga.CoordinateClasses([0.6, 0.4, 0.3, 0.1], [0.1, 0.2, 0.3, 0.4]),
        ga.CoordinateClasses([[2.0, -4.0], [0.0, 0.0]], [0.25, 0.75]),
        ga.sparse_teacher(0.5, t, variance=2.0),
        teacher_rank=t,
    )


def get_coordinates(data):
    """Return γ, τ and π of every coordinate of a dataset."""
    return np.broadcast_to(data.spectra, data.positions.shape).T, np.sqrt(data.dim) * data.positions.T, data.Q_star


def test_power_law_has_its_exponent_and_its_trace():
    values, weight = ga.power_law_spectrum(1.5, 10, variance=0.3)
    assert np.allclose(np.diff(np.log(values)) / np.diff(np.log(np.arange(1, 11))), -1.5)
    assert weight @ values == pytest.approx(0.3)


def test_samples_have_the_moments_of_the_law():
    """Class sizes are fixed by d, so the moments of γ and τ are exact; the moments of the teacher fluctuate by 1/√d."""
    law = make_mixed_law(t=2)
    data = ga.sample(ga.attention_model(2, 1, 2, coordinates=law), 16_000, 1e-4, seed=0)
    gamma, tau, pi = get_coordinates(data)
    assert np.allclose(gamma.mean(axis=0), law.trace, rtol=1e-12)
    assert np.allclose((gamma**2).mean(axis=0), law.weight @ law.gamma**2, rtol=1e-12)
    assert np.allclose(data.positions @ data.positions.T, np.einsum("k,kl,km->lm", law.weight, law.tau, law.tau))
    assert np.allclose(np.linalg.norm(data.positions, axis=1), [1.0, 2.0])
    assert np.allclose(np.einsum("il,is,it->lst", gamma, pi, pi) / len(pi), law.rho, atol=0.02)
    assert (~pi.any(axis=1)).mean() == pytest.approx(0.5)
    assert np.abs(tau.T @ pi).max() / len(pi) < 0.1


@pytest.mark.extensions
def test_two_identical_classes_equal_one_class():
    one = ga.paper_model().coordinates
    two = ga.CoordinateLaw(
        np.array([0.3, 0.7]), *(np.repeat(part, 2, axis=0) for part in (one.gamma, one.tau, one.teacher_mean)),
        np.repeat(one.teacher_cov, 2, axis=0),
    )  # fmt: skip
    models = [ga.attention_model(coordinates=law) for law in (one, two)]
    a, b = (ga.solve_state_evolution(model, 1.5, "positional", rtol=1e-2, stability=False) for model in models)
    assert np.allclose(a.overlaps.q, b.overlaps.q, rtol=1e-10)
    assert np.allclose(a.overlaps.m, b.overlaps.m, rtol=1e-10)
    assert a.train_loss == pytest.approx(b.train_loss, rel=1e-10)
    there = (OverlapMap(model, 1.5, PanelRule(level=1)).images(a.overlaps, squares=True)[0] for model in models)
    values = [replicon(model, image.hats, "stein") for model, image in zip(models, there, strict=True)]
    assert values[0] == pytest.approx(values[1], rel=1e-10)  # at the same overlaps: rounding moves cuts of panels
    a, b = (ga.trajectory(model, 1.5, "positional", n_iter=4, n_paths=256, n_replicas=2) for model in models)
    assert np.allclose(a.q, b.q, rtol=1e-9)
    assert np.allclose(a.V, b.V, rtol=1e-9)


def test_law_from_samples_has_the_state_evolution_of_its_coordinates():
    """It agrees with a distribution in which each coordinate is a class, for random conjugates."""
    data = ga.sample(ga.attention_model(coordinates=make_mixed_law()), 120, 1.0, seed=1)
    gamma, tau, pi = get_coordinates(data)
    alone = ga.CoordinateLaw(np.full(120, 1 / 120), gamma, tau, pi, np.zeros((120, 1, 1)))
    law = ga.law_from_samples(gamma, tau, pi)
    assert len(law.weight) == 16
    assert np.allclose(law.rho, alone.rho, rtol=1e-12)
    assert np.allclose(law.rho, np.einsum("il,is,it->lst", gamma, pi, pi) / 120, rtol=1e-12)
    rng = np.random.default_rng(0)
    hats = Hats(
        m=rng.normal(size=(2, 1)), q=rng.uniform(size=(2, 1, 1)), theta=rng.normal(size=(2, 1, 1)),
        V=0.1 * rng.uniform(size=(2, 1, 1)), V_derivative=np.zeros((2, 1, 1)), square=np.zeros((2, 2, 1, 1)),
        moreau=0.0, loss=0.0,
    )  # fmt: skip
    models = [replace(data.model, coordinates=each) for each in (law, alone, data.instance_model().coordinates)]
    (first, norm), *others = (weights_step(model, hats) for model in models)
    for overlaps, other_norm in others:
        assert norm == pytest.approx(other_norm, rel=1e-12)
        for key, values in first.arrays().items():
            assert np.allclose(values, overlaps.arrays()[key], rtol=1e-10, atol=1e-13), key


@pytest.mark.extensions
def test_a_start_from_overlaps_with_several_classes_raises_a_named_error():
    model = ga.attention_model(coordinates=ga.coordinate_law([0.2, 0.3]))
    with pytest.raises(ValueError, match=r"init.*a name.*2 classes"):
        ga.trajectory(model, 1.5, make_overlaps(0.1, 0.0, 0.1))
