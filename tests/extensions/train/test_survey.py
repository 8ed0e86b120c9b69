"""Survey propagation: its denoisers, limits, and runs that begin with it."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import minimize

import gamp_attention as ga
from gamp_attention._tools.quadrature import gauss_hermite
from gamp_attention.extensions.train import survey as surveys
from gamp_attention.extensions.train.survey import average_fields, inner_nodes
from gamp_attention.problem.losses.attention import pack_attention_parameters
from gamp_attention.problem.risk import risk_at
from tests.conftest import CLASSES, MEANS, SIGMA, examples
from tests.extensions.train.conftest import train_one
from tests.properties.strategies import instances

MODEL = ga.paper_model(omega=0.2, sigma=0.8)


@pytest.fixture(scope="module")
def hard():
    """Data at α = 1, where message passing from random starts ends far above the informed minimum."""
    return ga.sample(MODEL, d=200, alpha=1.0, seed=0)


@pytest.fixture(scope="module")
def small():
    return ga.sample(MODEL, d=60, alpha=1.5, seed=0)


# Denoisers


def proximal_minimum(T, rho, omega, V):
    """Return (M, g, R) of one sample with two fields by BFGS from several starts: envelope, force and response."""

    def value(z):
        scores = np.outer(z, z)
        S = np.exp(scores - scores.max(axis=1, keepdims=True))
        S /= S.sum(axis=1, keepdims=True)
        slack = (S - T) * rho
        u = S * (slack - (S * slack).sum(axis=1, keepdims=True))
        total = 0.5 * ((S - T) ** 2 * rho).sum() + 0.5 * np.sum((z - omega) ** 2 / V)
        return total, (u + u.T) @ z + (z - omega) / V

    runs = [minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-10}) for start in (omega, 0 * omega)]
    best = min(runs, key=lambda run: run.fun)
    step = 1e-5 * np.eye(2)
    hessian = np.array([(value(best.x + h)[1] - value(best.x - h)[1]) / 2e-5 for h in step])
    response = 1 / V - np.diag(np.linalg.inv(0.5 * (hessian + hessian.T))) / V**2
    return best.fun - 0.5 * (T**2 * rho).sum(), (best.x - omega) / V, response


def average_by_scipy(T, rho, omega, V, U, parisi, nodes, logs):
    """Return the averages of `average_fields` for one sample, by scipy at every node."""
    results = [proximal_minimum(T, rho, omega + np.sqrt(U) * node, V) for node in nodes]
    M, g, R = (np.array(part) for part in zip(*results, strict=True))
    weights = np.exp(logs - parisi * (M - M.min()))
    weights /= weights.sum()
    mean = weights @ g
    return mean, weights @ R, weights @ g**2 - mean**2, weights @ M


def test_averages_over_fields_equal_averages_of_scipys_minimizers():
    rng, n, parisi = np.random.default_rng(0), 2, 4.0
    rho, V, U = np.array([0.6, 0.5]), np.array([0.5, 0.7]), np.array([0.3, 0.2])
    T, omega = rng.dirichlet(np.ones(2), (n, 2)), rng.normal(size=(n, 2))
    params = pack_attention_parameters(np.diag(rho)[None], rho[:, None] * T.transpose(0, 2, 1))
    blocks = V[:, None, None], U[:, None, None]
    out = average_fields(MODEL.loss, params, omega[..., None], *blocks, parisi)
    assert out.z.shape == (n, len(inner_nodes(2)[0]), 2)
    for mu in range(n):
        seen = out.g[mu, :, 0], out.response[mu, :, 0, 0], out.spread[mu, :, 0, 0], out.envelope[mu]
        scipys = average_by_scipy(T[mu], rho, omega[mu], V, U, parisi, *inner_nodes(2))
        for value, wanted in zip(seen, scipys, strict=True):
            assert np.allclose(value, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max() + 1e-9)


def test_the_response_contains_jumps_of_the_minimum_if_requested():
    """Over a Gaussian ω, E[R̄ − yΔ] = −E[ω ḡ] by Stein's identity; the a.e. derivative leaves out jumps of the sign."""
    parisi, V, U = 1.0, 1.6 * np.ones((1, 1, 1)), 0.3 * np.ones((1, 1, 1))  # convex at zero fields if V < 1
    omega, weight = gauss_hermite(40)
    weight = weight / weight.sum()
    for kind, atol in ((ga.SquaredLoss(), 1e-8), (ga.PhaseRetrievalLoss(), 0.05)):
        loss = ga.LabelledDataset(np.ones((2, 1)), np.ones(2), kind).loss
        out = average_fields(loss, np.ones((40, 1)), omega[:, None, None], V, U, parisi, jumps=True)
        wanted = -weight @ (omega * out.g[:, 0, 0])
        assert weight @ (out.response - parisi * out.spread)[:, 0, 0] == pytest.approx(wanted, abs=atol * abs(wanted))
    derivative = average_fields(loss, np.ones((40, 1)), omega[:, None, None], V, U, parisi)
    assert abs(weight @ (derivative.response - parisi * derivative.spread)[:, 0, 0] - wanted) > 0.2 * abs(wanted)


# Steps


@pytest.mark.parametrize("parisi", [0.0, 20.0])
def test_without_inner_fields_a_step_is_a_step_of_message_passing(parisi):
    """U = 0 is GAMP at every Parisi parameter, and in particular for y = 0."""
    data = ga.sample(MODEL, d=60, alpha=1.5, seed=0)
    state = ga.initial_state(data, data.Q_star)
    survey = surveys.SurveyState(state.Q, state.V, 0 * state.V, state.D)
    for _ in range(5):
        state, _ = ga.gamp_step(data, "exact", state, 0.5, max_starts=0)
        survey = surveys.survey_step(data, "exact", survey, 0.5, parisi)
        for name in ("Q", "V", "D"):
            assert np.allclose(getattr(survey, name), getattr(state, name), rtol=1e-11, atol=1e-12), name
        survey = survey._replace(U=0 * survey.U)  # rounding errors of order 1e-17 would grow with y


def test_the_unit_follows_the_scale_of_the_loss():
    rng = np.random.default_rng(0)
    tokens, labels = rng.normal(size=(90, 30)), np.abs(rng.normal(size=90))
    units = []
    for scale in (1.0, 10.0):  # labels and fields times `scale` multiply the losses of phase retrieval by scale⁴
        data = ga.LabelledDataset(scale * tokens, scale**2 * labels, ga.PhaseRetrievalLoss(), lam=0.1 * scale**4)
        units.append(surveys.survey_units(data, "exact")[2])
    assert units[0] > 100 * units[1]


# Runs


def test_a_random_start_reaches_the_informed_minimum_at_equal_numbers_of_samples_and_dimensions(hard):
    informed, plain = ga.run_gamp(hard, "semantic"), ga.run_gamp(hard, "random")
    result = train_one(hard, "random", survey=True)
    assert result.converged
    assert result.gradient_norm <= 1e-8
    assert result.is_minimum
    assert result.train_loss <= informed.train_loss * (1 + 1e-6)
    assert plain.train_loss > 1.2 * informed.train_loss
    assert result.surveys[-1].ending is ga.SurveyEnd.COLLAPSED
    assert "survey at y" in result.starts[0].name


def test_a_number_is_the_parisi_parameter_of_the_surveys():
    few = ga.sample(MODEL, d=60, alpha=0.3, seed=0)
    result = train_one(few, "random", survey=0.01, n_starts=2)
    assert [record.parisi for record in result.surveys] == [0.01, 0.01]
    assert {record.ending for record in result.surveys} == {ga.SurveyEnd.SPREAD}
    assert 1 <= len(result.starts) <= 2  # surveys of different weights
    assert result.converged


@pytest.mark.parametrize("loss", [ga.SquaredLoss(), ga.LogisticLoss()])
def test_clusters_of_convex_losses_collapse_to_the_minimum_of_message_passing(loss):
    data = ga.sample(ga.glm_model(loss, lam=0.1), d=60, alpha=2.0, seed=0)
    plain, result = ga.run_gamp(data, "random", tol=1e-10), train_one(data, "random", survey=True, tol=1e-10)
    assert result.converged
    assert result.surveys[-1].ending is ga.SurveyEnd.COLLAPSED
    assert np.allclose(result.Q, plain.Q, rtol=0, atol=1e-7 * np.abs(plain.Q).max())


def test_the_signal_of_phase_retrieval_is_recovered_from_a_random_start():
    data = ga.sample(ga.glm_model(ga.PhaseRetrievalLoss(), lam=1e-3), d=120, alpha=3.0, seed=1)
    plain, result = ga.run_gamp(data, "random"), train_one(data, "random", survey=True)
    cosine = abs(np.sum(result.Q * data.Q_star)) / np.linalg.norm(result.Q) / np.linalg.norm(data.Q_star)
    assert result.converged
    assert cosine > 0.99
    assert result.train_loss < 0.1 * plain.train_loss


# name, model, d and α: more fields, several sources
VARIANTS = (
    ("two columns", ga.attention_model(2, 2, 2, lam=0.05), 40, 2.0),
    ("four tokens", ga.attention_model(4, lam=0.05), 40, 1.0),
    ("mixture", ga.mixture_model(CLASSES, MEANS, sigma=SIGMA, teacher_mean=[0.4]), 60, 1.5),
)


@pytest.mark.parametrize(("model", "d", "alpha"), [pytest.param(*case, id=name) for name, *case in VARIANTS])
def test_runs_with_surveys_end_at_zero_gradient(model, d, alpha):
    data = ga.sample(model, d, alpha, seed=0)
    result = train_one(data, "random", survey=20.0, escape=True)
    assert result.converged, result.message
    assert result.is_minimum
    assert risk_at(data, result.Q, "exact").gradient_norm <= 1.01e-8
    assert [record.ending for record in result.surveys] != [ga.SurveyEnd.FAILED]


def test_the_result_does_not_depend_on_the_number_of_threads(small, by_threads):
    one, four = by_threads(lambda: train_one(small, "random", survey=True), (1, 4))
    assert np.array_equal(one.Q, four.Q)
    assert np.array_equal(one.surveys[-1].Q, four.surveys[-1].Q)


@examples(8)
@given(instances(max_d=20, max_fields=3), st.sampled_from(["asymptotic", "exact"]), st.sampled_from([True, 1.0, 50]))
def test_converged_runs_with_surveys_end_at_minima(data, risk, survey):
    result = train_one(data, "random", risk, survey=survey, max_iter=2000, escape=True)
    norm = risk_at(data, result.Q, risk).gradient_norm
    assert result.converged == (result.gradient_norm <= 1e-8)
    assert result.is_minimum == result.converged
    assert np.isclose(norm, result.gradient_norm, rtol=1e-3, atol=1e-9)
    assert all(np.isfinite(record.Q).all() and record.parisi > 0 for record in result.surveys)


# Surveys by default


@pytest.fixture(scope="module")
def few_agree():
    """Data without a teacher, without noise, for which the eight spectral starts end in different minima."""
    data = ga.sample(MODEL, d=100, alpha=0.8, seed=2)
    return data, ga.Dataset(data.tokens, data.outputs, data.positions)


def test_automatic_surveys_lower_the_minimum_if_few_starts_agree_and_the_loss_is_low(few_agree):
    sampled, data = few_agree
    plain, result = (train_one(data, n_starts=8, survey=survey) for survey in (False, "auto"))
    assert sum(record.agreement >= 0.9 for record in plain.starts) <= 2
    assert [record.name for record in result.surveys] == ["minimum"]
    assert result.converged
    assert result.is_minimum
    assert result.train_loss < 0.95 * plain.train_loss
    assert ga.sampled_test_error(sampled, result.Q)[0] < 0.95 * ga.sampled_test_error(sampled, plain.Q)[0]
    assert [record.name for record in result.starts][:8] == [record.name for record in plain.starts]
    # iterations of the selected run, which began at a minimum, are not comparable with iterations of these starts
    stopped = [record for record in result.starts[:8] if record.status is None]
    excess = [record.train_loss / result.train_loss - 1 for record in stopped]
    assert [record.excess for record in stopped] == pytest.approx(excess)
    assert "differed by" not in result.message


@pytest.mark.parametrize(
    ("model", "alpha", "init", "n_starts"),
    [
        pytest.param(MODEL, 1.5, "spectral", 8, id="starts agree"),
        pytest.param(MODEL, 0.8, "random", 3, id="few starts"),
        pytest.param(ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.3), 1.5, "spectral", 8, id="noise"),
        pytest.param(ga.glm_model(ga.LogisticLoss(), lam=0.1), 2.0, "random", 4, id="convex loss"),
    ],
)
def test_automatic_surveys_are_omitted_if_they_rarely_help(model, alpha, init, n_starts):
    data = ga.sample(model, 60, alpha, seed=0)
    plain, result = (train_one(data, init, n_starts=n_starts, survey=survey) for survey in (False, "auto"))
    assert result.surveys == ()
    assert np.array_equal(result.Q, plain.Q)
    assert result.message == plain.message


# Errors


@pytest.mark.parametrize("survey", ["yes", -1.0, 0.0, [1.0], np.nan, np.inf, 1j])
def test_bad_surveys_name_the_argument(small, survey, named_error):
    named_error(lambda: train_one(small, "random", survey=survey), "^survey: needs")


def test_surveys_that_other_arguments_exclude_name_the_argument(small, named_error):
    options = ga.IterationOptions(V_hat=np.ones((1, 2, 1, 1)))
    named_error(lambda: train_one(small, "random", survey=True, iteration=options), "^survey.*iteration")
    for other in (ga.glm_model(ga.SquaredLoss(), intercept=True), ga.paper_model(penalty=ga.ElasticNet(0.02, 0.01))):
        data = ga.sample(other, d=20, alpha=2.0, seed=0)
        named_error(lambda: train_one(data, "random", survey=True), "^survey.*quadratic")  # noqa: B023
