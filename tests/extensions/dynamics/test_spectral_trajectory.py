"""Trajectories from spectral starts, which depend on the samples.

The predictions have no free parameter: neither the overlaps of the start nor its scale are taken from runs.
"""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.dynamics.field_paths import FieldPaths
from gamp_attention.extensions.spectra.sample_starts import spectral_start
from gamp_attention.problem.risk import overlaps, risk_at
from gamp_attention.problem.starts import several_starts
from tests.conftest import CLASSES, MEANS

PAPER = ga.paper_model(omega=0.2, sigma=0.8)
# along these positions, the eigenvector with the lowest eigenvalue has an overlap with the positions only
STRONG_POSITIONS = ga.attention_model(
    2, 1, 1, omega=0.3, sigma=0.5, A=np.array([[0.8, 0.2], [0.2, 0.8]]), tau=np.array([2.0, -2.0])
)
UNTIED = ga.attention_model(2, 2, student=ga.DotProductAttention(tied=False), sigma=0.8)
PHASE, LOGISTIC = ga.glm_model(ga.PhaseRetrievalLoss()), ga.glm_model(ga.LogisticLoss(), lam=0.1)
MODELS = {  # model and α
    "attention": (PAPER, 1.0),
    "noise": (ga.paper_model(omega=0.2, sigma=0.8, score_noise=0.3), 3.0),
    "positions": (STRONG_POSITIONS, 1.0),
    "three tokens": (ga.attention_model(3, 1, 1, omega=0.2, sigma=0.8), 1.0),
    "separate queries and keys": (UNTIED, 3.0),
    "classes of coordinates": (ga.attention_model(2, 1, 1, omega=0.2, coordinates=ga.coordinate_law([0.3, 1.0])), 1.0),
    "phase retrieval": (PHASE, 3.0),
    "logistic": (LOGISTIC, 2.0),
}


def first_overlaps(now):
    """Return the entries of q, θ, V and m of all tokens on the last axis."""
    return np.concatenate([x.reshape(*x.shape[: x.ndim - k], -1) for x, k in zip(now, (3, 3, 3, 2), strict=True)], -1)


def arrays_of(result):
    return result.q, result.theta, result.V, result.m


def start_run(model, alpha, d, seed):
    """Return samples and their first spectral start; its sign is the sign of the prediction."""
    data = ga.sample(model, d, alpha, np.random.default_rng([d, seed]))
    Q = several_starts(data, "spectral", 1, seed, "asymptotic")[0][1]
    now = overlaps(data, Q, np.tile(np.eye(model.rank), (model.n_sources, 1, 1)))
    entries = now.m if model is STRONG_POSITIONS else now.theta
    return data, Q * np.sign(entries.flat[np.argmax(np.abs(entries))]) if model.even else Q


def follow_runs(model, alpha, d, seeds, n_iter, make_state, step):
    """Return overlaps, U and training loss of runs from spectral starts, (seeds, T + 1, …)."""
    runs = []
    for seed in range(seeds):
        data, Q = start_run(model, alpha, d, seed)
        state, rows = make_state(data, Q), []
        for t in range(n_iter + 1):
            loss = risk_at(data, state.Q, "asymptotic").train_loss
            U = state.U.ravel() if isinstance(state, ga.SurveyState) else []
            rows.append([*first_overlaps(arrays_of(overlaps(data, state.Q, state.V))), *U, loss])
            if t < n_iter:
                state = step(data, state, t)
        runs.append(rows)
    return np.array(runs)


def compute_deviations(runs, path):
    """Return the deviations of the mean over runs from a prediction, in standard errors; zero if both are exact."""
    U = [(U.reshape(len(U), -1), error.reshape(len(U), -1)) for U, error in [(path.U, path.U_error)] if len(U)]
    values = [first_overlaps(arrays_of(path)), *(U for U, _ in U), path.train_loss[:, None]]
    errors = [first_overlaps(arrays_of(path.error)), *(error for _, error in U), path.train_loss_error[:, None]]
    predicted, error = np.concatenate(values, axis=1), np.concatenate(errors, axis=1)
    both = np.sqrt(runs.var(axis=0, ddof=1) / len(runs) + error**2)
    return np.abs(runs.mean(axis=0) - predicted) / np.where(both > 1e-9, both, np.inf)


def step_of_gamp(damping, hold_after=np.inf):
    def step(data, state, t):
        return ga.gamp_step(data, "asymptotic", state, damping, hold=t >= hold_after)[0]

    return step


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("name", ["phase retrieval", "logistic", *list(MODELS)[:-2]])
def test_message_passing_follows_the_prediction(name):
    """With damping, and also the first iterations without."""
    model, alpha = MODELS[name]
    d, seeds = (500, 8) if model.n_tokens == 1 else (1000, 12)
    for damping, n_iter in ((0.5, 4), (1.0, 2)):
        runs = follow_runs(model, alpha, d, seeds, n_iter, ga.initial_state, step_of_gamp(damping))
        options = {"method": ga.MessagePassing(damping), "n_paths": 4096, "n_replicas": 3}
        path = ga.trajectory(model, alpha, "spectral", n_iter=n_iter, **options)
        assert compute_deviations(runs, path).max() <= 4.5  # 4.5 is the 99.7 % point of |t| with 7 degrees of freedom
        if len(model.coordinates.weight) > 1:
            continue  # overlaps do not determine independent weights with several classes of coordinates
        known = path.q[0], path.m[0], path.theta[0], np.full_like(path.V[0], np.nan)
        independent = ga.trajectory(model, alpha, ga.Overlaps(*known), n_iter=1, **options)
        deviations = compute_deviations(runs[:, :2], independent)
        assert deviations[1].max() > 6  # without the memory of the start


@pytest.mark.slow
def test_message_passing_with_kept_minima_follows_the_prediction():
    runs = follow_runs(PAPER, 1.0, 1000, 12, 20, ga.initial_state, step_of_gamp(0.5, hold_after=5))
    held = ga.MessagePassing(hold_after=5)
    path = ga.trajectory(PAPER, 1.0, "spectral", held, n_iter=20, n_paths=8192, n_replicas=4)
    assert compute_deviations(runs, path).max() <= 4.5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parisi"), [("attention", 300.0), ("phase retrieval", 3.0)])
def test_survey_propagation_follows_the_prediction(name, parisi):
    model, alpha = MODELS[name]

    def make_state(data, Q):
        return ga.initial_survey(data, "asymptotic", Q)[0]

    def step(data, state, t):
        return ga.survey_step(data, "asymptotic", state, 0.4, parisi)[0]

    runs = follow_runs(model, alpha, 1000, 12, 8, make_state, step)
    options = {"method": ga.Survey(parisi), "n_iter": 8, "n_replicas": 4}
    path = ga.trajectory(model, alpha, "spectral", **options, n_paths=16384)
    deviations = compute_deviations(runs, path)
    assert deviations.max() <= 4.5
    assert path.jump_mass.shape == (0, *path.V.shape[1:])
    assert path.V_hat.shape == (8, *path.V.shape[1:])
    if name == "attention":  # runs are not described without the memory
        known = path.q[0], path.m[0], path.theta[0], np.full_like(path.V[0], np.nan)
        independent = ga.trajectory(model, alpha, ga.Overlaps(*known), **options, n_paths=4096)
        assert compute_deviations(runs, independent)[1].max() > 6


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gd", "nesterov"])
@pytest.mark.parametrize("name", ["attention", "separate queries and keys", "logistic"])
def test_descent_follows_the_prediction(name, method):
    model, alpha = MODELS[name]
    descent = ga.GradientDescent(0.5, 0.9, nesterov=True) if method == "nesterov" else ga.GradientDescent(0.5)
    runs = []
    for seed in range(12):
        data, Q = start_run(model, alpha, 1000, seed)
        run = ga.minimize_risk(data, Q, "asymptotic", method=method, lr=0.5, max_iter=10, tol=0).history
        runs.append([run.train_loss, run.q[:, 0, 0, 0], run.theta[:, 0, 0, 0]])
    path = ga.trajectory(model, alpha, "spectral", descent, 10, n_paths=8192, n_replicas=3)
    predicted = path.train_loss, path.q[:, 0, 0, 0], path.theta[:, 0, 0, 0]
    errors = path.train_loss_error, path.error.q[:, 0, 0, 0], path.error.theta[:, 0, 0, 0]
    both = np.sqrt(np.var(runs, axis=0, ddof=1) / len(runs) + np.square(errors))
    assert (np.abs(np.mean(runs, axis=0) - predicted) / both).max() <= 4.5


QUICK = "attention", "positions", "phase retrieval", "logistic"


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name not in QUICK)]
)
def test_forces_of_the_start_reproduce_its_second_moments(name):
    """The forces −R ω of sampled fields have the averages that determine these fields."""
    model, alpha = MODELS[name]
    # labels are random, and the relative error of averages with their sign is 2/√n
    n_points, n_paths, tolerance = (2048, 8192, 0.02) if model.even else (2**16, 2**16, 0.04)
    start = spectral_start(model, alpha, np.random.default_rng(0), n_points)
    paths, law, r = FieldPaths(model, n_paths, np.random.default_rng(1)), model.coordinates, model.rank
    now = start.overlaps(model)
    fields = paths.draw(now, now.q[None]) + now.m
    g, forces = start.forces.evaluate(paths.terms.params, fields), start.forces
    q_hat = alpha * np.einsum("nla,nlb->lab", g, g) / len(g)
    m_hat, with_teacher = alpha * g.mean(axis=0), alpha * np.einsum("nla,nlt->lat", g, paths.y) / len(g)
    noise = np.einsum("kl,lab->kab", law.gamma, q_hat)
    first = forces.response @ forces.drift @ law.moments
    second = first @ np.swapaxes(forces.response @ forces.drift, 1, 2) + forces.response @ noise @ forces.response
    assert start.moments[:, :r, :r] == pytest.approx(second, rel=tolerance)
    assert start.moments[:, :r, r:] == pytest.approx(first, rel=1e-6, abs=1e-9)
    # m̂_l is the coefficient of τ_l, and θ̂_l ρ_l = α E[g yᵀ] + V̂ θ, with V̂ θ = 0 for forces without response
    scale = np.abs(forces.drift).max()
    assert forces.drift[:, :, : model.n_sources] == pytest.approx(
        np.tile(m_hat.T, (len(law.weight), 1, 1)), abs=tolerance * scale
    )
    if not model.even:
        theta_hat = with_teacher @ np.linalg.inv(law.rho)
        assert forces.drift[:, :, model.n_sources :] == pytest.approx(
            np.einsum("kl,lat->kat", law.gamma, theta_hat), abs=tolerance * scale
        )


@pytest.mark.parametrize("name", ["attention", "positions", "phase retrieval"])
def test_the_start_has_the_overlaps_of_spectral_overlap(name):
    model, alpha = MODELS[name]
    start, law = spectral_start(model, alpha, np.random.default_rng(0), 1024), model.coordinates
    theory = ga.spectral_overlap(model, alpha, n_points=1024, n_replicas=2)
    now, S = start.overlaps(model), model.n_sources
    if name == "positions":
        inside = now.m[:, 0] @ np.linalg.pinv(law.moments[0, :S, :S]) @ now.m[:, 0] / start.moments[0, 0, 0]
        assert np.sqrt(inside) == pytest.approx(theory.positions[0], abs=0.01)
        assert not now.theta.any()
    else:
        cosine = now.theta[0, 0, 0] / np.sqrt(now.q[0, 0, 0] * law.rho[0, 0, 0])
        assert cosine == pytest.approx(theory.teacher[0], abs=0.01)
        assert not now.m.any()


def test_fields_of_the_start_are_as_large_as_fitted_fields():
    """The scale of spectral starts: fields (1 + V h)⁻¹ ω of the samples have the norm of the fitted fields."""
    data, Q = start_run(PAPER, 1.0, 500, 0)
    start = spectral_start(PAPER, 1.0, np.random.default_rng(0), 1024)
    paths, now = FieldPaths(PAPER, 8192, np.random.default_rng(1)), start.overlaps(PAPER)
    omega = paths.draw(now, now.q[None])
    V = np.einsum("k,kl,kab->lab", *(PAPER.coordinates.weight, PAPER.coordinates.gamma, start.forces.response))
    z = omega + np.einsum("lab,nlb->nla", V, start.forces.evaluate(paths.terms.params, omega))
    measured = data.fields(Q)
    assert np.mean(z**2) == pytest.approx(np.mean(measured**2), rel=0.1)
    # not Gaussian: the product of both squares has a mean of the order of E[z⁴]/4 instead of E[z²]²
    moments = [np.mean(np.prod(each[:, :, 0] ** 2, axis=1)) / np.mean(each**2) ** 2 for each in (z, measured, omega)]
    assert moments[0] == pytest.approx(moments[1], rel=0.2)
    assert moments[0] > 1.2


@pytest.mark.parametrize(
    ("model", "options", "pattern"),
    [
        (PAPER, {"alpha": 0.1}, "init: needs an alpha at which an eigenvalue lies outside the bulk"),
        (PAPER, {"method": ga.GradientDescent(batch=0.1)}, "init: needs another start for descent with minibatches"),
        (PAPER, {"method": ga.SinglePass()}, "init: needs another start for descent on new samples"),
        (ga.attention_model(2, 2, 2), {}, "2 columns that a rotation mixes"),
        (ga.paper_model(penalty=ga.ElasticNet(0.01, 0.01)), {}, "ElasticNet, only for the ridge"),
        (ga.mixture_model(CLASSES, MEANS), {}, "tokens with classes"),
        (ga.glm_model(ga.LogisticLoss(), intercept=True), {}, "a model with an intercept"),
    ],
)
def test_other_starts_and_models_are_refused(model, options, pattern):
    with pytest.raises(ValueError, match=pattern):
        ga.trajectory(model, **({"alpha": 1.0, "init": "spectral", "n_iter": 2} | options))


def test_test_errors_are_for_new_samples():
    """They are functions of the overlaps; the memory of the training samples would make them 36 % smaller at first."""
    options = {"method": ga.Survey(300.0), "n_iter": 1, "n_paths": 2048, "n_replicas": 2}
    path, law = ga.trajectory(PAPER, 1.0, "spectral", **options), FieldPaths(PAPER, 8192, np.random.default_rng(0))
    fields = law.draw(ga.Overlaps(path.q[0], path.m[0], path.theta[0], path.V[0]), path.q[:1])
    expected = PAPER.task.errors(fields, law.y, law.terms).mean()
    assert path.test_error[0] == pytest.approx(expected, rel=0.1)
