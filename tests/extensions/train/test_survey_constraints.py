"""Survey propagation with spherical columns and with intercepts: multipliers, limits and runs."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import brentq

import gamp_attention as ga
from gamp_attention.extensions.train.survey_averages import average_fields, average_weights
from gamp_attention.problem.penalties.standard import InterceptPenalty
from gamp_attention.problem.risk import risk_at
from tests.conftest import examples
from tests.extensions.train.conftest import train_one

SPHERE = ga.attention_model(2, 1, 1, omega=0.2, sigma=0.8, lam="sphere")
MIXED = ga.attention_model(2, 2, 2, omega=0.2, lam=["sphere", 0.05])


def draw_shifted_squares(d=100, alpha=3.0, seed=1, lam=1e-3):
    """Return labels (u + 1/2)² of a signal's fields u, with an intercept of the student, and the signal."""
    rng = np.random.default_rng(seed)
    tokens, signal = rng.standard_normal((round(alpha * d), d)), rng.standard_normal(d)
    labels = (tokens @ signal / np.sqrt(d) + 0.5) ** 2
    return ga.LabelledDataset(tokens, labels, ga.PhaseRetrievalLoss(), lam=lam, intercept=True), signal


def draw_problem(rank, d=14):
    """Return spectra, V̂, Δ, forces and weights of a random problem."""
    rng = np.random.default_rng(rank)
    root, other = rng.normal(size=(2, 2, rank, rank))
    V_hat, spread = root @ root.transpose(0, 2, 1) + 0.3 * np.eye(rank), 0.05 * other @ other.transpose(0, 2, 1)
    return rng.uniform(0.5, 1.0, (2, d)), V_hat, spread, *rng.normal(size=(2, d, rank))


# Denoisers


@pytest.mark.parametrize("parisi", [0.0, 0.3, 40.0])
def test_the_multiplier_of_a_spherical_column_fixes_the_mean_norm_of_a_cluster(parisi):
    """scipy solves (1/d) Σ_i [(C b)² + C Δ c] = 1 for Λ, also if yΔ is larger than the response."""
    spectra, V_hat, spread, force, Q = draw_problem(1)
    out = average_weights(ga.ColumnRidge(["sphere"]), spectra, V_hat, spread, force, Q, parisi)
    A, delta = V_hat[:, 0, 0] @ spectra, spread[:, 0, 0] @ spectra
    b = force[:, 0] + (A - parisi * delta) * Q[:, 0]

    def excess(multiplier):
        c, C = 1 / (multiplier + A), 1 / (multiplier + A - parisi * delta)
        return np.mean((C * b) ** 2 + C * delta * c) - 1

    lowest = np.max(parisi * delta - A)
    multiplier = brentq(excess, lowest + 1e-9, lowest + 1e3, xtol=1e-14)
    c, C = 1 / (multiplier + A), 1 / (multiplier + A - parisi * delta)
    assert np.allclose(out.eta[:, 0], C * b, rtol=1e-9)
    assert np.allclose(out.inner[:, 0, 0], c, rtol=1e-9)
    assert np.allclose(out.covariance[:, 0, 0], C * delta * c, rtol=1e-9)


@pytest.mark.parametrize("parisi", [0.0, 1.5])
def test_columns_with_and_without_a_sphere_equal_columns_with_the_multiplier_as_strength(parisi):
    spectra, V_hat, spread, force, Q = draw_problem(2)
    out = average_weights(ga.ColumnRidge(["sphere", 0.8]), spectra, V_hat, spread, force, Q, parisi)
    norm = np.mean(out.eta[:, 0] ** 2 + out.covariance[:, 0, 0])
    assert norm == pytest.approx(1, abs=1e-12)
    strengths = np.linalg.inv(out.inner) - np.einsum("li,lab->iab", spectra, V_hat)
    assert np.allclose(strengths, np.diag([strengths[0, 0, 0], 0.8]), atol=1e-10)
    plain = average_weights(ga.ColumnRidge([strengths[0, 0, 0], 0.8]), spectra, V_hat, spread, force, Q, parisi)
    for name in ("eta", "inner", "covariance"):
        assert np.allclose(getattr(out, name), getattr(plain, name), rtol=1e-9, atol=1e-12), name


def test_spreads_that_would_diverge_for_the_penalized_column_are_reduced():
    spectra, V_hat, spread, force, Q = draw_problem(2)
    out = average_weights(ga.ColumnRidge(["sphere", 0.8]), spectra, V_hat, 100 * spread, force, Q, 5.0)
    assert np.isfinite(out.eta).all()
    assert np.mean(out.eta[:, 0] ** 2 + out.covariance[:, 0, 0]) == pytest.approx(1, abs=1e-10)


def test_an_intercept_takes_a_newton_step_with_the_response_of_the_averaged_force():
    spectra, V_hat, spread, force, Q = draw_problem(2)
    spectra[:, -1] = 0.0
    out = average_weights(InterceptPenalty(ga.Ridge(0.5)), spectra, V_hat, spread, force, Q, 0.4)
    others = average_weights(ga.Ridge(0.5), spectra[:, :-1], V_hat, spread, force[:-1], Q[:-1], 0.4)
    assert np.array_equal(out.eta[:-1], others.eta)
    step = np.linalg.solve((V_hat - 0.4 * spread).sum(axis=0), force[-1])
    assert np.allclose(out.eta[-1], Q[-1] + step, rtol=1e-12)
    assert not out.covariance[-1].any()


# Steps


@pytest.mark.parametrize("parisi", [0.0, 5.0])
@pytest.mark.parametrize(
    "model",
    [
        SPHERE,
        MIXED,
        ga.glm_model(ga.PhaseRetrievalLoss(), lam=0.1, intercept=True),
        ga.glm_model(ga.SquaredLoss(), penalty=ga.ElasticNet(0.05, 0.05), intercept=True),
    ],
    ids=["sphere", "sphere and ridge", "intercept", "intercept and elastic net"],
)
def test_without_inner_fields_a_step_is_a_step_of_message_passing(model, parisi):
    """If U = 0 all minima of a cluster are equal, so that the Parisi parameter has no influence."""
    data = ga.sample(model, d=60, alpha=1.5, seed=0)
    state = ga.initial_state(data, data.Q_star)
    survey = ga.SurveyState(state.Q, state.V, 0 * state.V, state.D)
    for _ in range(5):
        state, _ = ga.gamp_step(data, "exact", state, 0.5, max_starts=0)
        survey, _ = ga.survey_step(data, "exact", survey, 0.5, parisi)
        for name in ("Q", "V", "D"):
            assert np.allclose(getattr(survey, name), getattr(state, name), rtol=1e-11, atol=1e-12), name
        survey = dataclasses.replace(survey, U=0 * survey.U)  # rounding errors of order 1e-17 would grow with y


def test_first_variances_of_spherical_columns_are_self_consistent():
    """At zero weights C Δ C = 1 for all coordinates, so V = γ C = γ/√Δ."""
    data = ga.sample(SPHERE, d=80, alpha=1.5, seed=0)
    state, unit = ga.initial_survey(data, "asymptotic", np.zeros((80, 1)))
    zero = np.zeros((data.n_samples, 2, 1))
    out, _ = average_fields(data.loss, data.terms("asymptotic").params, zero, state.V, state.U, 0.0)
    gamma = data.spectra[:, 0]
    delta = gamma @ out.spread.sum(axis=0)[:, 0, 0] / data.dim
    assert state.V[:, 0, 0] == pytest.approx(gamma / np.sqrt(delta), rel=0.02)
    assert unit > 0


# Runs


def test_a_random_start_on_the_sphere_reaches_the_informed_minimum():
    data = ga.sample(SPHERE, d=100, alpha=1.5, seed=0)
    informed, plain = ga.run_gamp(data, "semantic"), ga.run_gamp(data, "random")
    result = train_one(data, "random", survey=True)
    assert result.converged
    assert result.is_minimum
    assert np.sum(result.Q**2) == pytest.approx(data.dim, rel=1e-7)
    assert result.train_loss <= informed.train_loss * (1 + 1e-6)
    assert plain.train_loss > 2 * informed.train_loss
    assert result.surveys[-1].ending is ga.SurveyEnd.COLLAPSED


def test_a_shifted_signal_is_recovered_with_its_intercept():
    data, signal = draw_shifted_squares()
    plain, result = ga.run_gamp(data, "random"), train_one(data, "random", survey=True)
    weights = result.Q[:-1, 0]
    assert result.converged
    assert result.is_minimum
    assert abs(weights @ signal) > 0.999 * np.linalg.norm(weights) * np.linalg.norm(signal)
    assert abs(data.intercepts(result.Q)[0]) == pytest.approx(0.5, abs=0.01)
    assert plain.train_loss > 10 * result.train_loss


@pytest.mark.parametrize("options", [{"intercept": True}, {"lam": "sphere"}], ids=["intercept", "sphere"])
def test_clusters_of_convex_losses_collapse_to_the_minimum_of_message_passing(options):
    model = ga.glm_model(ga.LogisticLoss(), **{"lam": 0.1, **options})
    data = ga.sample(model, d=60, alpha=2.0, seed=0)
    plain, result = ga.run_gamp(data, "random", tol=1e-10), train_one(data, "random", survey=True, tol=1e-10)
    assert result.converged
    assert result.surveys[-1].ending is ga.SurveyEnd.COLLAPSED
    assert np.allclose(result.Q, plain.Q, rtol=0, atol=1e-7 * np.abs(plain.Q).max())


@st.composite
def constrained_instances(draw):
    """Draw a small dataset with spherical columns, or with an intercept."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d = draw(st.integers(3, 12))
    n = draw(st.integers(d, 3 * d))
    if draw(st.booleans()):
        data, _ = draw_shifted_squares(d, n / d, rng, 10 ** draw(st.floats(-2, 0)))
        return data
    lams = draw(st.lists(st.sampled_from(["sphere", 0.1]), min_size=1, max_size=2))
    model = ga.attention_model(2, len(lams), 1, omega=draw(st.floats(0, 1)), sigma=draw(st.floats(0.3, 1.5)), lam=lams)
    return ga.sample(model, d, n / d, rng)


@examples(6)
@given(constrained_instances(), st.sampled_from([True, 1.0, 50.0]))
def test_converged_runs_with_surveys_end_at_minima(data, survey):
    result = train_one(data, "random", survey=survey, max_iter=2000, escape=True)
    norm = risk_at(data, result.Q, "exact").gradient_norm
    assert result.converged == (result.gradient_norm <= 1e-8)
    assert result.is_minimum == result.converged
    assert np.isclose(norm, result.gradient_norm, rtol=1e-3, atol=1e-9)
    assert all(np.isfinite(record.Q).all() and record.parisi > 0 for record in result.surveys)
