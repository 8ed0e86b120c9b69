"""Jumps of the proximal map: the sign of their contribution to V̂, and their description in results."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.losses.attention import pack_attention_parameters
from gamp_attention.theory.equations.weights import jump_shift
from gamp_attention.theory.fixed_points.observables import GAP_PER_SHIFT, column_sums, largest_jump_fraction, validity
from gamp_attention.theory.fixed_points.overlap_map import OverlapMap
from gamp_attention.theory.rules.sobol import SobolRule
from tests.conftest import CLASSES, MEANS, make_overlaps

MODELS = {
    "paper": ga.paper_model(0.3),
    "matrix": ga.paper_model(0.5, A=[[5, -3], [2, 4]]),
    "power law": ga.attention_model(coordinates=ga.coordinate_law(ga.power_law_spectrum(1.0, 4))),
    "three tokens": ga.attention_model(3),
    "two columns": ga.attention_model(2, 2, 1),
    "untied": ga.attention_model(2, 2, 1, student=ga.DotProductAttention(tied=False)),
    "mixture": ga.mixture_model(CLASSES, MEANS),
}


@pytest.mark.parametrize(("L", "r"), [(2, 1), (3, 1), (2, 2)])
def test_g_jumps_forward(L, r):
    """V⁻¹z is the gradient of a convex function of ω, so that z and g jump along the direction in which ω moves."""
    rng = np.random.default_rng([L, r])
    T = np.linalg.matrix_power(rng.dirichlet(np.ones(L), L), 2) * 0.3 + 0.7 * np.eye(L)
    params = pack_attention_parameters(0.25 * np.eye(L)[None], 0.25 * T.T[None])
    loss = ga.AttentionLoss(ga.DotProductAttention(), L, r)
    root = rng.normal(size=(L, r, r))
    V = 15 * np.eye(r) + 3 * root @ root.transpose(0, 2, 1)
    jumps = []
    for _ in range(12):
        direction = rng.normal(size=(L, r))
        steps = np.linspace(-0.7, 0.7, 141)[:, None, None]
        omega = 0.2 * rng.normal(size=(L, r)) + steps * direction
        out = ga.denoise(loss, np.tile(params, (len(omega), 1)), omega, V)
        forward = np.einsum("nlr,lr->n", np.diff(out.g, axis=0), direction)
        change = np.abs(np.diff(out.z, axis=0)).max(axis=(1, 2))
        jumps += forward[change > 0.3].tolist()
    assert len(jumps) >= 4
    assert min(jumps) > 0


@pytest.mark.slow(keep=3)
@pytest.mark.parametrize("name", MODELS)
def test_the_jump_mass_is_negative(name):
    """No eigenvalue of a token's jump mass is above zero by more than four standard errors, and its trace is below."""
    model = MODELS[name]
    rng, S, r, t = np.random.default_rng(1), len(model.coordinates.rho), model.rank, model.teacher_rank
    root = 0.1 * rng.normal(size=(S, r, r))
    at = ga.Overlaps(
        0.04 * np.eye(r) + root @ root.transpose(0, 2, 1), 0.1 * rng.normal(size=(S, r)),
        0.02 * rng.normal(size=(S, r, t)), np.tile(40 * np.eye(r), (S, 1, 1)),
    )  # fmt: skip
    image, samples = OverlapMap(model, 1.5, SobolRule(4096, 8, seed=(3,))).images(at)
    masses = np.array([sample.hats.jump_mass for sample in samples])
    error, traces = masses.std(axis=0, ddof=1).max() / np.sqrt(8), np.trace(masses.sum(axis=1), axis1=1, axis2=2)
    mass = image.hats.jump_mass
    assert np.linalg.eigvalsh((mass + mass.transpose(0, 2, 1)) / 2).max() <= 4 * error
    assert traces.mean() < -4 * traces.std(ddof=1) / np.sqrt(8)


def test_results_state_the_change_that_the_shift_predicts(model):
    """For one class of coordinates V = σ²/(λ + σ² Σ_l V̂_l): the shift is a ratio of these."""
    stein, other = (
        ga.solve_state_evolution(model, 1.0, "positional", response=form, rtol=1e-2, stability=False)
        for form in ("stein", "derivative")
    )
    V_hat, response = stein.V_hat.sum(), (stein.V_hat - stein.jump_mass).sum()
    shift = (0.01 + 0.25 * V_hat) / (0.01 + 0.25 * response) - 1
    assert f"; expect V of minima about {-100 * GAP_PER_SHIFT * shift:.2g} % lower" in stein.validity
    assert "minima" not in other.validity


def test_a_kink_of_the_penalty_does_not_change_the_shift(model):
    """With one class of coordinates, the fraction of nonzero weights does not depend on V̂, and cancels."""
    at = make_overlaps(0.05, 0.25, 0.0, 14.0)
    kinked = ga.paper_model(0.3, penalty=ga.ElasticNet(0.01, 2e-3))
    images = [OverlapMap(each, 1.5, SobolRule(1024, 4)).images(at)[0] for each in (model, kinked)]
    assert images[1].overlaps.V.mean() < 0.9 * images[0].overlaps.V.mean()
    ridge, other = (jump_shift(each, image.hats) for each, image in zip((model, kinked), images, strict=True))
    assert ridge < -0.02
    assert other == pytest.approx(ridge, rel=1e-9)


def test_jumps_of_a_column_with_small_response_are_not_hidden():
    masses, V_hat = np.array([[-0.5, 0.0], [-0.6, 0.1]]), np.array([[0.5, 90.0], [0.5, 110.0]])
    masses, V_hat = (np.einsum("la,ab->lab", values, np.eye(2)) for values in (masses, V_hat))
    assert abs(masses.sum() / V_hat.sum()) < 0.01
    fraction = largest_jump_fraction(masses, column_sums(V_hat))
    assert fraction == pytest.approx(-1.1)
    assert validity(0.5, fraction)[1].startswith("broken: the proximal map jumps (jump mass -110 % of V̂")
