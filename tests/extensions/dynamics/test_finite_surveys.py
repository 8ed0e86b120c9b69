"""Random trajectories of survey propagation for exactly αd samples, whose tokens are drawn product by product."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.dynamics import finite_surveys
from gamp_attention.extensions.dynamics.finite_surveys import NormalMatrix, sample_survey
from gamp_attention.extensions.dynamics.survey_paths import sample_cosines
from gamp_attention.problem.risk import overlaps
from gamp_attention.problem.starts import initial_weights

STEP = 0.4
ATTENTION = ga.paper_model(omega=0.2, sigma=0.8)


def test_all_products_are_products_of_one_matrix():
    rng, Z = np.random.default_rng(0), NormalMatrix(6, 4, np.random.default_rng(1))
    x, y = rng.standard_normal((7, 4)), rng.standard_normal((7, 6))
    pairs = [(Z.times(a), Z.transpose_times(b)) for a, b in zip(x, y, strict=True)]
    products, transposed = (np.array(each) for each in zip(*pairs, strict=True))
    matrix = np.linalg.lstsq(x, products, rcond=None)[0].T
    assert products == pytest.approx(x @ matrix.T, abs=1e-12)
    assert transposed == pytest.approx(y @ matrix, abs=1e-12)
    assert Z.times(3 * x[0]) == pytest.approx(3 * products[0])


class Drawn:
    """Matrix that is drawn in advance."""

    def __init__(self, n, d, rng):
        self._Z = rng.standard_normal((n, d))

    def times(self, x):
        return self._Z @ x

    def transpose_times(self, y):
        return self._Z.T @ y


def iterate(Z, n, d):
    """Return the overlaps of iterates that depend on all earlier products."""
    x, past, values = np.eye(d)[0], np.zeros(n), []
    for _ in range(4):
        z = Z.times(x) - past
        g = np.tanh(z) + 0.3 * z**2
        b = Z.transpose_times(g)
        values += [x @ b, g @ past, b @ b]
        x, past = np.maximum(b + x, -1.0), 0.5 * g
    return np.log1p(np.abs(values))


def test_products_have_the_distribution_of_a_matrix_that_is_drawn_in_advance():
    n, d, seeds = 5, 3, 600
    values = [
        [iterate(kind(n, d, np.random.default_rng([k, number])), n, d) for k in range(seeds)]
        for number, kind in enumerate((NormalMatrix, Drawn))
    ]
    for power in (1, 2):
        one, other = (np.array(each) ** power for each in values)
        error = np.sqrt((one.var(axis=0) + other.var(axis=0)) / seeds)
        # the first product with the past is zero
        assert (np.abs(one.mean(axis=0) - other.mean(axis=0)) / np.where(error > 0, error, 1)).max() <= 4


class Queue:
    """Generator that returns given numbers first, and standard normal numbers later."""

    def __init__(self, *given):
        self._given, self._rng = list(given), np.random.default_rng(0)

    def standard_normal(self, size):
        return self._given.pop(0).reshape(size) if self._given else self._rng.standard_normal(size)


def follow_run(data, state, parisi, n_iter):
    """Return the cosines, and q, V and U of all tokens, of a run at every iteration."""
    axes = np.stack([data.Q_star[:, 0], data.positions[0]])
    axes /= np.linalg.norm(axes, axis=1)[:, None]
    rows = []
    for t in range(n_iter + 1):
        cosines = axes @ state.Q[:, 0] / np.linalg.norm(state.Q)
        q = overlaps(data, state.Q, state.V).q
        rows.append([*np.abs(cosines), *q.ravel(), *state.V.ravel(), *state.U.ravel()])
        if t < n_iter:
            state, _ = ga.survey_step(data, "asymptotic", state, STEP, parisi)
    return np.array(rows)


def stack(sample):
    """Return the overlaps of a sampled trajectory in the order of `follow_run`."""
    return np.column_stack([np.abs(sample.semantic), np.abs(sample.positional), sample.q, sample.V, sample.U])


def test_the_iteration_is_the_one_of_runs(monkeypatch):
    """With the tokens of a data set as the matrix, and its teacher and weights, both are equal up to rounding."""
    alpha, d, n_iter, parisi = 1.0, 40, 6, 150.0
    data = ga.sample(ATTENTION, d, alpha, 3)
    sizes = np.sqrt(np.tile(data.spectra[:, 0], data.n_samples))

    class Tokens(Drawn):
        def __init__(self, n, d, rng):
            fields = data.fields(np.sqrt(d) * np.eye(d)) - data.positions
            self._Z = fields.reshape(n, d) / sizes[:, None]

    monkeypatch.setattr(finite_surveys, "NormalMatrix", Tokens)
    Q = initial_weights(data, "random", 0)
    state, _ = ga.initial_survey(data, "asymptotic", Q)
    scale = np.sqrt(ga.trajectory(ATTENTION, alpha, "random", n_iter=1, n_paths=128).q[0, 0, 0, 0] / data.spectra[0, 0])
    sample = sample_survey(ATTENTION, alpha, d, STEP, parisi, n_iter, Queue(data.Q_star, Q / scale), state.V)
    assert stack(sample) == pytest.approx(follow_run(data, state, parisi, n_iter), rel=1e-6, abs=1e-9)


@pytest.mark.slow
def test_trajectories_have_the_distribution_of_runs():
    alpha, d, n_iter, seeds = 0.6, 60, 5, 150
    data = [ga.sample(ATTENTION, d, alpha, seed) for seed in range(seeds)]
    V = ga.initial_survey(data[0], "asymptotic", data[0].Q_star)[0].V
    runs, paths = [], []
    for seed, each in enumerate(data):
        state, _ = ga.initial_survey(each, "asymptotic", initial_weights(each, "random", seed))
        runs.append(follow_run(each, ga.SurveyState(state.Q, V, state.U, state.D), 200.0, n_iter))
        paths.append(stack(sample_survey(ATTENTION, alpha, d, STEP, 200.0, n_iter, np.random.default_rng(seed), V)))
    for power in (1, 2):
        one, other = (np.array(each)[:, 1:] ** power for each in (runs, paths))
        error = np.sqrt((one.var(axis=0) + other.var(axis=0)) / seeds)
        assert (np.abs(one.mean(axis=0) - other.mean(axis=0)) / error).max() <= 4


@pytest.mark.slow
def test_overlaps_at_large_d_follow_state_evolution():
    """Sampled averages of q scatter by 5 to 15 %, and of V and U by 0.1 to 0.3 %; samples at d = 2000 by 1 %."""
    alpha, d, parisi, n_iter = 0.6, 2000, 200.0, 3
    path = ga.trajectory(
        ATTENTION, alpha, "random", ga.Survey(parisi=parisi, damping=STEP), n_iter=n_iter, n_paths=4096, n_replicas=2,
    )  # fmt: skip
    sample = sample_survey(ATTENTION, alpha, d, STEP, parisi, n_iter, np.random.default_rng(0), path.V[0])
    averages = sample_cosines(ATTENTION, alpha, 10**9, STEP, parisi, n_iter, 4096, np.random.default_rng(0), path.V[0])
    for each, tolerance in ((averages, 0.01), (sample, 0.04)):
        for name, largest in (("q", 0.3), ("V", tolerance), ("U", tolerance)):
            assert getattr(each, name) == pytest.approx(getattr(path, name)[:, :, 0, 0], rel=largest), name


@pytest.mark.parametrize("model", [ga.attention_model(2, 2, 2), ga.attention_model(2, 1, 1, tau=np.zeros(2))])
def test_samples_need_positions_and_one_column(model):
    with pytest.raises(ValueError, match="model: needs"):
        sample_survey(model, 1.0, 100, STEP, 300.0, 2, np.random.default_rng(0), np.ones((2, 1, 1)))
