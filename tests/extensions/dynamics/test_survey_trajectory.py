"""Trajectories of survey propagation; validation/claims/survey_trajectories.py compares them at large sizes.

The growth of small overlaps is compared with pairs of runs from x⁰ + ε e and x⁰ − ε e, whose difference is the linear
response to an overlap with the direction e, without the noise of order d^(−1/2) of single runs.
"""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.dynamics.message_paths import follow
from gamp_attention.extensions.dynamics.survey_paths import follow_growth, follow_survey, sample_cosines
from gamp_attention.problem.risk import overlaps
from gamp_attention.problem.starts import initial_weights
from gamp_attention.theory.start_law import start_law

SEEDS, SIZE, N_ITER, STEP = 6, 500, 10, 0.4


class ShiftedSigns:
    """Labels sign(u + 0.7), for which an intercept is learned."""

    even = False

    def n_noise(self, n_tokens, rank):
        return 0

    def __call__(self, u, noise):
        return np.sign(u[:, 0] + 0.7)


ATTENTION = ga.paper_model(omega=0.2, sigma=0.8)
CASES = {  # model, α, Parisi parameter, and jumps if they are part of the response
    "attention": (ATTENTION, 1.0, 300.0),
    "phase retrieval": (ga.glm_model(ga.PhaseRetrievalLoss()), 3.0, 3.0),
    "phase retrieval with jumps": (ga.glm_model(ga.PhaseRetrievalLoss()), 3.0, 3.0, True),
    "elastic net": (ga.paper_model(omega=0.2, sigma=0.8, penalty=ga.ElasticNet(0.01, 0.005)), 1.0, 300.0),
    "sphere": (ga.attention_model(2, 1, 1, omega=0.2, sigma=0.8, lam="sphere"), 1.0, 300.0),
    "intercept": (ga.glm_model(ga.LogisticLoss(), ShiftedSigns(), lam=0.1, intercept=True), 2.0, 3.0),
    "intercept and elastic net": (
        ga.glm_model(ga.LogisticLoss(), ShiftedSigns(), penalty=ga.ElasticNet(0.1, 0.05), intercept=True), 2.0, 3.0,
    ),
}  # fmt: skip


def run_survey(data, state, parisi, jumps):
    """Return q, θ, V, U and m of the first token at every iteration."""
    rows = []
    for t in range(N_ITER + 1):
        now = overlaps(data, state.Q, state.V)
        rows.append([now.q[0, 0, 0], now.theta[0, 0, 0], state.V[0, 0, 0], state.U[0, 0, 0], now.m[0, 0]])
        if t < N_ITER:
            state, _ = ga.survey_step(data, "asymptotic", state, STEP, parisi, jumps)
    return np.array(rows)


def compute_deviations(model, alpha, parisi, jumps=False, *, init):
    """Return the mean deviations (T + 1, 5) of runs from the predictions for their instances, in standard errors."""
    gaps, errors, first = [], [], None
    for seed in range(SEEDS):
        data = ga.sample(model, SIZE, alpha, 300 + seed)
        Q = initial_weights(data, "semantic" if init == "semantic" else "random", seed)
        Q[: len(data.Q_star)] += 0.03 * data.Q_star * (init == "weak")  # cosine 0.3 with the teacher; no intercept
        first = first or ga.initial_survey(data, "asymptotic", Q)[0]  # all runs start from the same V and U
        state = ga.SurveyState(Q, first.V, first.U, np.zeros_like(first.D[: data.n_samples]))
        options = {"method": ga.Survey(parisi, STEP, jumps), "n_iter": N_ITER}
        start = overlaps(data, Q, first.V)
        start = start.without("m").without("theta") if init == "random" else start  # both are of order d^(−1/2)
        path = ga.trajectory(data.instance_model(), data.alpha, start, **options, seed=seed, n_paths=512, n_replicas=2)
        predicted = [*(values[:, 0, 0, 0] for values in (path.q, path.theta, path.V, path.U)), path.m[:, 0, 0]]
        gaps.append(run_survey(data, state, parisi, jumps) - np.transpose(predicted))
        error = [values[:, 0, 0, 0] for values in (path.error.q, path.error.theta, path.error.V, path.U_error)]
        errors.append(np.transpose([*error, path.error.m[:, 0, 0]]))
    both = np.sqrt((np.var(gaps, axis=0, ddof=1) + np.mean(np.square(errors), axis=0)) / SEEDS)
    if model.intercept:  # an intercept is one of d + 1 coordinates, over which V and U of a run are averaged
        both += np.abs(predicted).T / (SIZE + 1)
    return np.abs(np.mean(gaps, axis=0)) / np.where(both > 1e-9, both, np.inf)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("case", "init"),
    [
        ("attention", "random"),
        ("attention", "weak"),
        ("attention", "semantic"),
        ("phase retrieval", "weak"),
        ("phase retrieval with jumps", "weak"),
        ("elastic net", "weak"),
        ("sphere", "weak"),
        ("intercept", "weak"),
        ("intercept and elastic net", "weak"),
    ],
)
def test_survey_propagation_follows_state_evolution(case, init):
    deviations = compute_deviations(*CASES[case], init=init)
    if init == "random":  # θ grows from its value by chance, so predictions without it hold for the first iterations
        deviations = deviations[:6, [0, 2, 3]]
    assert deviations.max() <= 4


def test_named_starts_begin_with_the_variances_of_initial_survey():
    path = ga.trajectory(ATTENTION, 1.0, "random", ga.Survey(parisi=300.0), n_iter=1, n_paths=4096, n_replicas=2)
    data = [ga.sample(ATTENTION, SIZE, 1.0, seed) for seed in range(4)]
    states = [ga.initial_survey(each, "asymptotic", each.Q_star)[0] for each in data]
    V = np.mean([state.V for state in states], axis=0)
    assert path.V[0] == pytest.approx(V, rel=0.03)  # V of a data set has a standard deviation of 2.5 %
    assert path.U[0] == pytest.approx(states[0].U)
    assert path.U_error[0] == pytest.approx(0)


@pytest.mark.parametrize("options", [{}, {"lam": "sphere"}, {"intercept": True}], ids=["ridge", "sphere", "intercept"])
def test_surveys_without_inner_fields_are_message_passing(options):
    """For y = 0 and U = 0 both predict the same trajectory."""
    model, n_paths = ga.glm_model(ga.LogisticLoss(), ShiftedSigns(), **{"lam": 0.1, **options}), 512
    start, U = start_law(model, "semantic"), np.zeros((1, 1, 1))
    expected, _ = follow(model, 2.0, start, 0.5, 6, n_paths, np.random.default_rng(0))
    states, all_U, _, _ = follow_survey(model, 2.0, start, 0.5, 0.0, 6, n_paths, np.random.default_rng(0), U)
    assert np.max(all_U) < 1e-20
    for one, other in zip(states, expected, strict=True):
        for name, values in one.arrays().items():
            assert values == pytest.approx(other.arrays()[name], rel=1e-8, abs=1e-12), name


@pytest.mark.parametrize(
    "model", [ga.attention_model(3, 1, 1), ga.attention_model(2, 2, 2)], ids=["three tokens", "two columns"]
)
def test_other_shapes(model):
    path = ga.trajectory(model, 2.0, method=ga.Survey(parisi=300.0), n_iter=3, n_paths=256, n_replicas=2)
    assert path.U.shape == path.V.shape
    assert np.isfinite(path.U).all()
    assert (np.diff(np.trace(path.U, axis1=2, axis2=3), axis=0) < 0).all()
    assert np.isfinite(path.train_loss).all()
    assert path.jump_mass.shape == (3, *path.U.shape[1:])
    assert path.jump_shift.shape == (0,)
    assert path.to_dict()["method"] == "Survey(parisi=300.0, damping=0.4, jumps=False)"


def test_mixtures(mixture):
    path = ga.trajectory(mixture, 2.0, method=ga.Survey(parisi=100.0), n_iter=3, n_paths=512, n_replicas=2)
    assert path.U.shape == (4, mixture.n_sources, 1, 1)
    assert np.isfinite(path.U).all()


def test_other_methods_have_no_inner_fields():
    for method in (ga.MessagePassing(), ga.GradientDescent()):
        path = ga.trajectory(ATTENTION, 1.0, method=method, n_iter=2, n_paths=128, n_replicas=2)
        assert path.U.shape == path.U_error.shape == (0, 2, 1, 1)


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"parisi": None}, "parisi: needs"),
        ({"parisi": 0.0}, "parisi: needs"),
        ({"parisi": 1.0, "damping": 2.0}, "damping: needs"),
        ({"parisi": 1.0, "jumps": 1}, "jumps: needs True or False"),
    ],
)
def test_bad_settings_raise_errors(options, pattern):
    with pytest.raises((TypeError, ValueError), match=pattern):
        ga.Survey(**options)


def measure_growth(model, alpha, parisi, direction, seed, n_iter, d=500, size=0.02):
    """Return the ratio of the cosine with the teacher or the positions to its small value at the start."""
    data = ga.sample(model, d, alpha, seed)
    axes = np.stack([data.positions[0], data.Q_star[:, 0]], axis=1)
    axes *= np.sqrt(d) / np.linalg.norm(axes, axis=0)
    basis, random = np.linalg.qr(axes)[0], initial_weights(data, "random", seed)
    random -= basis @ (basis.T @ random)
    axis = axes[:, [0 if direction == "positional" else 1]]
    cosines = []
    for sign in (1, -1):
        Q = random + sign * size * np.linalg.norm(random) / np.sqrt(d) * axis
        state, curve = ga.initial_survey(data, "asymptotic", Q)[0], []
        for _ in range(n_iter + 1):
            curve.append(np.sum(state.Q * axis) / np.linalg.norm(state.Q))
            state, _ = ga.survey_step(data, "asymptotic", state, STEP, parisi)
        cosines.append(curve)
    difference = np.subtract(*cosines)
    return difference / difference[0]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("direction", ["semantic", "positional"])
def test_small_overlaps_grow_as_in_runs(direction):
    model, alpha, parisi, n_iter, seeds = ga.paper_model(), 1.0, 480.0, 3, 8
    predicted = [
        getattr(follow_growth(model, alpha, STEP, parisi, n_iter, 4096, np.random.default_rng(k)), direction)
        for k in range(2)
    ]
    measured = [measure_growth(model, alpha, parisi, direction, seed, n_iter) for seed in range(seeds)]
    error = np.sqrt(np.var(measured, axis=0, ddof=1) / seeds + np.subtract(*predicted) ** 2 / 4)
    gaps = np.abs(np.mean(measured, axis=0) - np.mean(predicted, axis=0))
    assert predicted[0][0] == measured[0][0] == 1
    assert (gaps[1:] / error[1:]).max() <= 4
    assert error[1:].max() < 0.25  # so that a wrong factor in any term is found
    if direction == "semantic":
        assert predicted[0][-1] > 2.5  # it grows


def draw_cosines(alpha, parisi, seed, n_iter, d=300):
    """Return the cosines (T + 1, 2) with the positions and the teacher of a survey from weights orthogonal to both."""
    data = ga.sample(ATTENTION, d, alpha, seed)
    axes = np.stack([data.positions[0], data.Q_star[:, 0]], axis=1)
    axes /= np.linalg.norm(axes, axis=0)
    basis, Q = np.linalg.qr(axes)[0], initial_weights(data, "random", seed)
    state, cosines = ga.initial_survey(data, "asymptotic", Q - basis @ (basis.T @ Q))[0], []
    for _ in range(n_iter + 1):
        cosines.append(axes.T @ state.Q[:, 0] / np.linalg.norm(state.Q))
        state, _ = ga.survey_step(data, "asymptotic", state, STEP, parisi)
    return np.array(cosines)


@pytest.mark.slow
def test_fluctuations_of_zero_overlaps_are_as_in_runs():
    """Second moments of z = √d cosines, between all iterations, and the correlation of both cosines, which is zero."""
    alpha, parisi, n_iter, seeds, d = 0.45, 300.0, 3, 200, 300
    growth = follow_growth(ATTENTION, alpha, STEP, parisi, n_iter, 16384, np.random.default_rng(0))
    z = np.sqrt(d) * np.array([draw_cosines(alpha, parisi, seed, n_iter, d) for seed in range(seeds)])
    for k, predicted in enumerate((growth.positional_noise, growth.semantic_noise)):
        scale = np.sqrt(np.diag(predicted)[1:])
        moments = np.einsum("sta,sua->atu", z, z)[k, 1:, 1:] / seeds / np.outer(scale, scale)
        correlations = predicted[1:, 1:] / np.outer(scale, scale)
        errors = np.sqrt((1 + correlations**2) / seeds)
        assert (np.abs(moments - correlations) / errors).max() <= 4
        assert np.all(predicted[0] == 0)
    both = np.mean(z[:, -1, 0] * z[:, -1, 1]) / np.sqrt(growth.positional_noise[-1, -1] * growth.semantic_noise[-1, -1])
    assert abs(both) <= 4 / np.sqrt(seeds)


def test_growth_begins_with_the_variances_of_initial_survey():
    growth = follow_growth(ATTENTION, 0.45, STEP, 300.0, 2, 4096, np.random.default_rng(0))
    path = ga.trajectory(ATTENTION, 0.45, "random", ga.Survey(parisi=300.0), n_iter=2, n_paths=4096, n_replicas=2)
    q, U = path.q[:, :, 0, 0].sum(axis=1), path.U[:, :, 0, 0].sum(axis=1)
    assert growth.spread == pytest.approx(U / (q + U), abs=1e-3)  # 0.0014 and 0.0024 too large with other V


def test_growth_needs_one_column_and_the_ridge():
    for model in (ga.attention_model(2, 2, 2), ga.paper_model(penalty=ga.ElasticNet(0.01, 0.005))):
        with pytest.raises(ValueError, match="model: needs an even loss and teacher"):
            follow_growth(model, 1.0, STEP, 300.0, 2, 512, np.random.default_rng(0))


@pytest.mark.slow
def test_paths_at_finite_d_begin_as_linear_growth():
    """Growth of the initial cosines and fluctuations over paths at large d, where overlaps stay small."""
    alpha, d, n_iter, n_paths, seeds = 0.1, 1000, 3, 1024, 80
    growth = follow_growth(ATTENTION, alpha, STEP, 300.0, n_iter, 8192, np.random.default_rng(0))
    V = ga.initial_survey(ga.sample(ATTENTION, d, alpha, 0), "asymptotic", np.zeros((d, 1)))[0].V
    options = {"damping": STEP, "parisi": 300.0, "n_iter": n_iter, "n_paths": n_paths, "V": V}
    z = [sample_cosines(ATTENTION, alpha, d, rng=np.random.default_rng(k), **options)[:2] for k in range(seeds)]
    for values, name in zip(np.sqrt(d) * np.array(z).transpose(1, 0, 2), ("semantic", "positional"), strict=True):
        factors, variances = getattr(growth, name), np.diag(getattr(growth, f"{name}_noise"))
        noise = values - factors * values[:, :1]
        slopes = noise.T @ values[:, 0] / np.sum(values[:, 0] ** 2)
        assert np.abs(np.mean(noise[:, 1:] ** 2, axis=0) / variances[1:] - 1).max() <= 4 * np.sqrt(2 / seeds)
        assert np.all(np.abs(slopes) <= 4 * np.sqrt(variances / np.sum(values[:, 0] ** 2)))
    assert variances[-1] > 1  # fluctuations are as large as the initial cosines


def test_paths_at_finite_d_end_at_a_fixed_point():
    """At large α random starts flow to the informed solution, which a survey from the teacher keeps at d = 1000."""
    alpha, d, n_iter = 1.4, 150, 25
    data = ga.sample(ATTENTION, 1000, alpha, 0)
    first, unit = ga.initial_survey(data, "asymptotic", np.zeros((1000, 1)))
    ends = [
        sample_cosines(ATTENTION, alpha, d, STEP, 1.5 * unit, n_iter, 1024, np.random.default_rng(k), first.V)[0]
        for k in range(4)
    ]
    state = ga.initial_survey(data, "asymptotic", data.Q_star)[0]
    for _ in range(n_iter):
        state, _ = ga.survey_step(data, "asymptotic", state, STEP, 1.5 * unit)
    informed = np.sum(state.Q * data.Q_star) / np.linalg.norm(state.Q) / np.linalg.norm(data.Q_star)
    starts, last = np.abs(ends)[:, 0], np.abs(ends)[:, -1]
    assert starts.max() < 0.3
    assert last == pytest.approx(informed, abs=0.01)


@pytest.mark.parametrize("model", [ga.attention_model(2, 2, 2), ga.attention_model(2, 1, 1, tau=np.zeros(2))])
def test_paths_at_finite_d_need_positions_and_one_column(model):
    with pytest.raises(ValueError, match="model: needs"):
        sample_cosines(model, 1.0, 100, STEP, 300.0, 2, 512, np.random.default_rng(0), np.ones((2, 1, 1)))
