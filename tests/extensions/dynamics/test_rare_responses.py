"""Responses that few sampled paths carry: large derivatives in long descents, computed by Stein's lemma."""

import numpy as np
import pytest
from scipy import stats

import gamp_attention as ga
from gamp_attention.extensions.dynamics import descent_paths
from gamp_attention.extensions.dynamics.descent_paths import RareResponses
from gamp_attention.extensions.dynamics.field_paths import FieldPaths, PathResponses

SHORT = {"lr": 3.0}, {"n_iter": 30, "n_paths": 512}
DEFAULT = RareResponses()
LONG = {"lr": 6.0, "momentum": 0.8}, {"n_iter": 60, "n_paths": 512}  # a training time of 1800
SETTLED = 40  # step of the long descent after which q does not change


@pytest.fixture
def predict(monkeypatch):
    """Return a function that predicts a descent on the positional branch with given thresholds of the correction."""

    def follow(rare, steps, sizes):
        monkeypatch.setattr(descent_paths, "RARE", rare)
        return ga.trajectory(ga.paper_model(), 1.5, "positional", ga.GradientDescent(**steps), **sizes)

    return follow


def get_paths(model, n=4096, steps=3):
    """Return the path of the first token, and its Gaussians y, ω̃^0, ω̃^1, … as columns."""
    paths, rng = FieldPaths(model, n, np.random.default_rng(0)), np.random.default_rng(1)
    root = rng.normal(size=(steps + 1, steps + 1))
    cov = root @ root.T / (steps + 1)
    scale = np.sqrt(model.coordinates.rho[0, 0, 0] / cov[0, 0])
    cov[0] *= scale
    cov[:, 0] *= scale
    fields = [paths.y[:, 0, 0]]
    one = np.ones((2, 1, 1))
    for t in range(steps):
        now = ga.Overlaps(q=cov[t + 1, t + 1] * one, m=np.zeros((2, 1)), theta=cov[t + 1, 0] * one, V=one)
        fields.append(paths.draw(now, np.array([cov[s + 1, t + 1] * one for s in range(t + 1)]))[:, 0, 0])
    return paths.of_token[0], np.stack(fields, axis=1)


def test_steins_lemma_includes_jumps(model):
    """The sign function has no derivative at any sample, but the mean derivative of a delta function."""
    path, fields = get_paths(model)
    normal = np.array([0.3, 1.0, -0.5, 0.7])
    along = fields @ normal
    expected = 2 * normal * stats.norm.pdf(0, scale=along.std())
    responses = path.responses(np.sign(along)[:, None], np.zeros((1, 4)), 4)
    assert np.allclose(responses[0], expected, rtol=0.05, atol=0.05 * abs(expected).max())
    assert np.array_equal(path.responses(np.sign(along)[:, None], np.zeros((1, 4)), 2)[0, 2:], [0, 0])


def test_correct_responses_are_not_changed(model):
    path, fields = get_paths(model)
    slope = np.array([[0.3, 1.0, -0.5, 0.7]])
    for leading in range(1, 5):
        assert np.allclose(path.responses(fields @ slope.T, slope, leading), slope, rtol=1e-10)


def test_effective_number_of_carriers():
    rng, n = np.random.default_rng(0), 70
    responses, slopes = PathResponses(n, 2, 1, 2), rng.normal(size=(n, 2, 2))
    responses.advance(np.zeros((0, 1, 2, 2)), slopes)
    sizes = np.linalg.norm(slopes, axis=(1, 2))
    assert responses.carriers == pytest.approx([sizes.sum() ** 2 / (sizes**2).sum()], rel=1e-5)
    single = np.zeros((n, 2, 2))
    single[3] = 1
    responses.advance(np.ones((1, 1, 2, 2)), single)
    assert responses.carriers == pytest.approx([1, 1])


def test_short_descents_need_no_correction(predict):
    """No response is corrected by default; if all are corrected, results agree within errors."""
    sampled, default, corrected = (
        predict(rare, *SHORT) for rare in (RareResponses(0, 1), DEFAULT, RareResponses(np.inf, np.inf))
    )
    assert np.array_equal(default.q, sampled.q)
    assert np.array_equal(default.train_loss, sampled.train_loss)
    assert not np.array_equal(corrected.q, sampled.q)
    for name in ("q", "m"):
        value, error = (getattr(each, name)[1:] for each in (sampled, sampled.error))
        both = np.hypot(error, getattr(corrected.error, name)[1:])
        assert (abs(getattr(corrected, name)[1:] - value) <= 4 * both).all()


def test_minibatches_do_not_count_as_rare_paths(predict):
    """20 of 512 paths are in the minibatches of two times: the threshold is 5.1 instead of 8; 6.8 carry a response."""
    how = {"lr": 2.0, "batch": 0.2}, {"n_iter": 8, "n_paths": 512, "n_replicas": 2}
    never, default, more = (predict(rare, *how).q for rare in (RareResponses(0), DEFAULT, RareResponses(8, np.inf)))
    assert np.array_equal(never, default)
    assert not np.array_equal(never, more)


@pytest.mark.slow
def test_long_descents_end_as_at_finite_d(predict):
    """Without the correction single paths carry the responses, and the replicas deviate one after the other."""
    default, sampled = (predict(rare, *LONG) for rare in (DEFAULT, RareResponses(0)))
    assert default.error.q[SETTLED:].max() < 0.6 * sampled.error.q[SETTLED:].max()
    ends = []
    for seed in range(8):
        data = ga.sample(ga.paper_model(), 300, 1.5, seed)
        run = ga.minimize_risk(data, "positional", "asymptotic", "momentum", max_iter=60, tol=0, **LONG[0])
        ends.append([run.history.scalars()[key][SETTLED:].mean() for key in ("q", "m")])
    error = np.std(ends, axis=0, ddof=1) / np.sqrt(len(ends))
    predicted, spread = (
        np.array([each.scalars()[key][SETTLED:].mean() for key in ("q", "m")]) for each in (default, default.error)
    )
    assert (abs(np.mean(ends, axis=0) - predicted) <= 4 * np.hypot(error, spread)).all()
