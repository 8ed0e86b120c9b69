"""Several starts: spectral starts reach the minimum of the informed start, and the best of all starts is selected."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.starts import initial_weights
from tests.extensions.train.conftest import train_one


@pytest.fixture(scope="module")
def samples():
    return ga.sample(ga.paper_model(omega=0.2, sigma=0.8), 200, 1.5, seed=0)


@pytest.fixture(scope="module")
def informed(samples):
    return ga.run_gamp(samples, "semantic")


def test_many_starts_reach_the_minimum_of_the_informed_start(samples, informed):
    result = train_one(samples, "spectral", n_starts=8)
    assert result.converged
    assert result.is_minimum
    assert result.train_loss == pytest.approx(informed.train_loss, rel=1e-6)
    assert ga.run_gamp(samples, "random").train_loss > 1.5 * informed.train_loss
    names = [start.name for start in result.starts]
    assert names == [f"spectral {k}" for k in range(1, 7)] + ["random 1", "random 2"]
    selected = next(start for start in result.starts if start.kept)
    assert np.array_equal(selected.Q, result.Q)
    assert selected.agreement == 1
    assert (selected.status, selected.n_iter) == (result.status, result.n_iter)
    stopped = [start for start in result.starts if not start.kept]
    assert {start.status for start in stopped} == {None}
    assert sorted(start.n_iter for start in stopped) == [6, 6, 6, 6, 15, 15, 30]
    for start in stopped:
        assert start.train_loss == pytest.approx(ga.train_loss(samples, start.Q))
        assert start.train_loss > result.train_loss
        assert start.excess == pytest.approx(start.train_loss / result.train_loss - 1)
    worst = max(1 + start.excess for start in stopped if start.agreement < 0.9)
    assert "8 starts" in result.message
    assert f"to {worst:.3g} times its training loss" in result.message


def test_the_first_start_may_be_given(samples):
    given = train_one(samples, 0.1 * np.ones((200, 1)), n_starts=3, max_iter=4, tol=0)
    assert [start.name for start in given.starts] == ["given", "random 1", "random 2"]
    result = train_one(samples, "random", seed=2)
    assert np.array_equal(result.Q, ga.run_gamp(samples, "random", seed=2).Q)


@pytest.mark.parametrize("max_iter", [4, 11, 32])
def test_runs_of_several_starts_may_be_resumed_with_a_larger_max_iter(max_iter, samples, tmp_path):
    options, path = {"init": "spectral", "n_starts": 5, "tol": 1e-5}, tmp_path / "starts.npz"
    whole = train_one(samples, **options)
    short = train_one(samples, **options, checkpoint=ga.Checkpoint(path, 0), max_iter=max_iter)
    assert short.n_iter <= max_iter < whole.n_iter
    longer = train_one(samples, **options, checkpoint=ga.Checkpoint(path, 1e6))  # reads the file, but writes none
    assert np.array_equal(longer.Q, whole.Q)
    for one, other in zip(longer.starts, whole.starts, strict=True):
        assert (one.name, one.kept, one.status, one.n_iter) == (other.name, other.kept, other.status, other.n_iter)
        assert one.train_loss == other.train_loss


@pytest.mark.parametrize("loss", [ga.SquaredLoss(), ga.PhaseRetrievalLoss()])
def test_labels_have_spectral_starts(loss):
    rng = np.random.default_rng(0)
    rows, teacher = rng.standard_normal((300, 100)), rng.standard_normal(100)
    u = rows @ teacher / 10
    labels = u**2 if loss.even else u
    data = ga.LabelledDataset(rows, labels, loss, lam=0.1)
    start = initial_weights(data, "spectral")[:, 0]
    along = start @ teacher / np.linalg.norm(start) / np.linalg.norm(teacher)
    assert (abs(along) if loss.even else along) > 0.6
    assert train_one(data, "spectral", n_starts=4).converged


@pytest.mark.parametrize("tokens", [np.zeros((20, 2, 70)), np.zeros((20, 2, 7))])
def test_data_without_information_have_random_starts(tokens):
    data = ga.Dataset(tokens, tokens, np.zeros(tokens.shape[1:]))
    result = train_one(data, "spectral", n_starts=2)
    assert [start.name for start in result.starts] == ["random 1", "random 2"]


def test_weights_that_a_penalty_sets_to_zero_are_called_zero():
    data = ga.sample(ga.paper_model(), 30, 1.5, seed=0).replace(penalty=ga.ElasticNet(0.01, 100.0))
    result = ga.train(data, n_starts=3, survey=False)
    assert not result.Q.any()
    assert "All of its weights are zero, because the penalty outweighs the data" in result.message
    assert "No other start" not in result.message
