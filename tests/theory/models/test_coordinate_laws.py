"""Coordinate distributions: moments, symmetries, and agreement of GAMP and state evolution."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.sampling.teacher_data import teacher_dataset
from gamp_attention.theory.equations.channel import Hats
from gamp_attention.theory.equations.weights import weights_step
from gamp_attention.theory.fixed_points.observables import replicon
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.panels import PanelRule


def make_mixed_law(t=1):
    """Return a distribution with 4 eigenvalues of unequal fractions, positions on a subset and a sparse teacher."""
    return ga.coordinate_law(
        ga.power_law_spectrum(0.8, weight=[0.1, 0.2, 0.3, 0.4]),
        ga.subset_positions([1.0, -2.0], 0.25),
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
    halves, _ = ga.power_law_spectrum(1.5, weight=[0.1] * 4 + [0.2] * 3)
    assert np.allclose(halves / halves[0], np.array([1, 2, 3, 4, 6, 8, 10.0]) ** -1.5)


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


def test_random_signs_are_independent_between_tokens():
    law = ga.coordinate_law(tau=ga.sign_positions(3, 2.0), n_tokens=3)
    assert law.tau.shape == (8, 3)
    assert np.allclose(np.einsum("k,kl,km->lm", law.weight, law.tau, law.tau), 4 * np.eye(3))


@pytest.mark.extensions
def test_two_identical_classes_equal_one_class():
    one = ga.paper_model().coordinates
    two = ga.CoordinateLaw(
        np.array([0.3, 0.7]), *(np.repeat(part, 2, axis=0) for part in (one.gamma, one.tau, one.teacher_mean)),
        np.repeat(one.teacher_cov, 2, axis=0),
    )  # fmt: skip
    models = [ga.attention_model(coordinates=law) for law in (one, two)]
    for init in ("semantic", "positional"):
        a, b = (ga.solve_state_evolution(model, 1.5, init, rtol=1e-2, stability=False) for model in models)
        assert np.allclose(a.overlaps.q, b.overlaps.q, rtol=1e-10)
        assert np.allclose(a.overlaps.m, b.overlaps.m, rtol=1e-10)
        assert a.train_loss == pytest.approx(b.train_loss, rel=1e-10)
        there = (OverlapMap(model, 1.5, PanelRule(level=1)).images(a.overlaps, squares=True)[0] for model in models)
        values = [replicon(model, image.hats, "stein") for model, image in zip(models, there, strict=True)]
        assert values[0] == pytest.approx(values[1], rel=1e-10)  # at the same overlaps: rounding moves cuts of panels
        assert abs(a.replicon - b.replicon) <= a.replicon_error
        a, b = (ga.trajectory(model, 1.5, init, n_iter=4, n_paths=256, n_replicas=2) for model in models)
        assert np.allclose(a.q, b.q, rtol=1e-9)
        assert np.allclose(a.V, b.V, rtol=1e-9)


def test_law_from_samples_has_the_state_evolution_of_its_coordinates():
    """It agrees with a distribution in which each coordinate is a class, for random conjugates."""
    data = ga.sample(ga.attention_model(coordinates=make_mixed_law()), 120, 1.0, seed=1)
    gamma, tau, pi = get_coordinates(data)
    alone = ga.CoordinateLaw(np.full(120, 1 / 120), gamma, tau, pi, np.zeros((120, 1, 1)))
    law = ga.law_from_samples(gamma, tau, pi)
    assert len(law.weight) == 16
    assert not law.gamma_spread.any()
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
def test_binning_states_its_error_which_falls_with_the_number_of_classes():
    rng = np.random.default_rng(2)
    gamma, pi = np.tile(rng.uniform(0.1, 0.5, (400, 1)), 2), rng.normal(size=(400, 1))
    tau = np.tile([1.0, -1.0], (400, 1))

    def end(law):  # the random numbers are the same for all distributions
        path = ga.trajectory(ga.attention_model(coordinates=law), 1.5, n_iter=8, n_paths=256, n_replicas=2)
        return path.q[-1, 0, 0, 0]

    full = end(ga.law_from_samples(gamma, tau, pi))
    gaps = []
    for K in (1, 4):
        law = ga.law_from_samples(gamma, tau, pi, K)
        assert len(law.weight) == K
        assert np.allclose(law.trace, gamma.mean(axis=0), rtol=1e-12)
        width = 0.4 / K / np.sqrt(12)  # standard deviation in bins that divide [0.1, 0.5] evenly
        assert law.gamma_spread == pytest.approx(width / np.sqrt((gamma**2).mean()), rel=0.15)
        assert not law.tau_spread.any()
        gaps.append(abs(end(law) / full - 1))
    assert gaps[1] < 0.02
    assert gaps[1] < gaps[0] / 4


def permute(model, order):
    law, T = model.coordinates, model.teacher
    law = ga.CoordinateLaw(law.weight, law.gamma[:, order], law.tau[:, order], law.teacher_mean, law.teacher_cov)
    return replace(model, coordinates=law, teacher=ga.SoftmaxTeacher(T.omega, T.A[np.ix_(order, order)]))


@pytest.fixture(scope="module")
def uneven():
    """Return a model of three different tokens."""
    law = ga.coordinate_law([[0.1, 0.4, 0.3], [0.4, 0.2, 0.1]], [1.0, 0.3, -1.2], n_tokens=3)
    A = np.random.default_rng(1).dirichlet(np.ones(3), 3)
    return ga.attention_model(3, omega=0.4, A=A, coordinates=law)


def test_permuting_tokens_permutes_gamp(uneven):
    order = np.array([2, 0, 1])
    data = ga.sample(uneven, 80, 1.5, seed=3)
    other = teacher_dataset(
        permute(uneven, order), np.ascontiguousarray(data.tokens[:, order]),
        np.ascontiguousarray(data.positions[order]), data.Q_star, np.ascontiguousarray(data.spectra[order]),
    )  # fmt: skip
    for risk in ("asymptotic", "exact"):
        one, two = (ga.run_gamp(each, "semantic", risk, damping=0.4, tol=0, max_iter=15) for each in (data, other))
        assert np.allclose(one.Q, two.Q, atol=1e-8)
        for key, values in one.overlaps.arrays().items():
            assert np.allclose(values[order], two.overlaps.arrays()[key], atol=1e-8), key


@pytest.mark.extensions
@pytest.mark.slow
def test_permuting_tokens_permutes_state_evolution(uneven):
    """They agree within errors, because the random points are not permuted."""
    order = np.array([2, 0, 1])
    a, b = (
        ga.trajectory(model, 1.5, "semantic", n_iter=6, n_paths=2048, n_replicas=8)
        for model in (uneven, permute(uneven, order))
    )
    for key, values in a.arrays().items():
        error = np.hypot(a.error.arrays()[key][:, order], b.error.arrays()[key])
        assert np.all(np.abs(values[:, order] - b.arrays()[key]) <= 5 * error + 1e-9), key


@pytest.mark.extensions
def test_power_law_gamp_follows_its_state_evolution():
    from gamp_attention.extensions.comparison.comparison import deviation

    model = ga.attention_model(coordinates=ga.coordinate_law(ga.power_law_spectrum(1.0, 6)))
    seeds, gaps, errors = 8, [], []
    for seed in range(seeds):
        gap, error = deviation(ga.sample(model, 300, 1.5, seed), "semantic", "asymptotic", 0.5, 10, seed=seed)
        gaps.append(gap)
        errors.append(error)
    for key in ("q", "theta"):
        each = np.array([gap[key] for gap in gaps])
        both = np.sqrt((each.var(axis=0, ddof=1) + np.mean([error[key] ** 2 for error in errors], axis=0)) / seeds)
        assert np.all(np.abs(each.mean(axis=0)[1:]) <= 4 * both[1:]), key
    flat = ga.trajectory(ga.paper_model(), 1.5, "semantic", n_iter=10, n_paths=512, n_replicas=2)
    own = ga.trajectory(model, 1.5, "semantic", n_iter=10, n_paths=1024, n_replicas=2)
    assert abs(own.scalars()["q"][-1] / flat.scalars()["q"][-1] - 1) > 0.1  # the test would distinguish the spectra


@pytest.mark.extensions
def test_a_start_from_overlaps_with_several_classes_raises_a_named_error():
    model = ga.attention_model(coordinates=ga.coordinate_law([0.2, 0.3]))
    start = ga.Overlaps(np.full((2, 1, 1), 0.1), np.zeros((2, 1)), np.full((2, 1, 1), 0.1), np.full((2, 1, 1), 9.0))
    with pytest.raises(ValueError, match=r"init.*a name.*2 classes"):
        ga.trajectory(model, 1.5, start)


CASES = {
    "negative exponent": (lambda: ga.power_law_spectrum(-1), "exponent.*>= 0"),
    "no classes": (lambda: ga.power_law_spectrum(1, 0), "n_classes.*>= 1"),
    "shares beyond one": (lambda: ga.power_law_spectrum(1, weight=[0.5, 0.6]), "weight.*add to 1"),
    "negative eigenvalue": (lambda: ga.coordinate_law([0.1, -0.1]), "semi-definite"),
    "a token without variance": (lambda: ga.coordinate_law([[0.1, 0.0]]), "spectra.*positive trace"),
    "spectra of too many tokens": (lambda: ga.coordinate_law([[0.1, 0.2, 0.3]]), r"spectra.*\(K, 2\)"),
    "positions of too few tokens": (lambda: ga.coordinate_law(tau=[1.0]), r"tau.*\(2,\)"),
    "too many signs": (lambda: ga.sign_positions(30), "n_tokens.*at most"),
    "fraction zero": (lambda: ga.sparse_teacher(0.0), "fraction.*> 0"),
    "covariance not symmetric": (
        lambda: ga.coordinate_law(teacher=[[1.0, 0.5], [0.0, 1.0]], teacher_rank=2),
        "teacher.*symmetric",
    ),
    "law of other L": (lambda: ga.attention_model(3, coordinates=ga.coordinate_law()), "coordinates.*L = 3.*L = 2"),
    "law and sigma": (lambda: ga.attention_model(sigma=0.3, coordinates=ga.coordinate_law()), "sigma, tau"),
    "not a law": (lambda: ga.attention_model(coordinates=0.25), "coordinates.*CoordinateLaw"),
    "samples of unequal number": (lambda: ga.law_from_samples([[1.0]], [[1.0]], [[1.0], [2.0]]), r"pi.*\(1, t\)"),
}


@pytest.mark.parametrize("name", CASES)
def test_invalid_distributions_raise_named_errors(name):
    make, message = CASES[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make()
