"""Training of samples with more than two fields begins with descents, whose ends message passing verifies or lowers."""

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import draw_planted
from tests.extensions.train.conftest import train_one


def train_and_watch(data, n_starts, **options):
    """Return a result and weights and training loss at each call of the callback, first at the ends of the descents."""
    seen = []
    iteration = ga.IterationOptions(
        callback=lambda t, state, report: seen.append((np.array(state.Q), report.train_loss))
    )
    return train_one(data, "random", n_starts=n_starts, iteration=iteration, **options), seen


def test_message_passing_verifies_the_end_in_which_descents_agree():
    data = draw_planted(60, 3, 30, 2, seed=2)
    result, seen = train_and_watch(data, 4)
    losses = [loss for _, loss in seen[:4]]
    assert result.converged
    assert result.is_minimum
    assert result.fixed_point
    assert result.n_iter <= 2
    assert len(seen) <= 4 + 3
    assert losses == pytest.approx([result.train_loss] * 4, rel=1e-4)  # descents are compared at small gradients
    assert [(start.status, start.n_iter) for start in result.starts if not start.kept] == [(None, 0)] * 3
    assert min(start.agreement for start in result.starts) > 0.99
    alone = ga.run_gamp(data, "random", iteration=ga.IterationOptions(settling=False))
    assert alone.converged
    assert alone.n_iter > 20
    assert alone.train_loss == pytest.approx(result.train_loss, rel=1e-9)
    np.testing.assert_allclose(  # computed from Hessians, and iterated; columns may be rotated
        np.linalg.eigvalsh(result.overlaps.V), np.linalg.eigvalsh(alone.overlaps.V), rtol=1e-6
    )


@pytest.mark.parametrize(("n", "seed"), [(20, 2), (20, 5), (15, 1)])
def test_message_passing_is_also_run_from_the_starts_if_descents_differ(n, seed):
    data = draw_planted(n, 3, 30, 1, seed=seed)
    result, seen = train_and_watch(data, 4)
    losses = [loss for _, loss in seen[:4]]
    assert max(losses) > 1.01 * min(losses)
    assert result.converged
    assert result.train_loss <= min(losses) * (1 + 1e-9)
    names = [start.name for start in result.starts]
    assert names[:4] == [f"random {k}" for k in range(1, 5)]
    assert names[4:] == [f"random {np.argmin(losses) + 1}, descent"]
    lower_half = np.argsort(losses)[:2]
    assert [k for k, start in enumerate(result.starts[:4]) if start.n_iter > 0] == sorted(lower_half)


def test_samples_with_many_fields_end_at_the_lowest_descent(tmp_path):
    data, file = draw_planted(20, 8, 20, 4, seed=1), ga.Checkpoint(tmp_path / "run.npz", 0)
    result, seen = train_and_watch(data, 4, checkpoint=file)
    assert result.status is ga.Status.SETTLED
    assert result.is_minimum
    assert result.gradient_norm <= 1e-8
    assert (result.n_iter, len(seen)) == (0, 4)
    assert result.n_settle > 0
    assert result.train_loss <= min(loss for _, loss in seen)
    assert np.linalg.norm(ga.gradient(data, result.Q)) <= 1e-8 * data.lam * np.sqrt(20)
    again, rest = train_and_watch(data, 4, checkpoint=file)
    assert not rest
    assert np.array_equal(again.Q, result.Q)


@pytest.mark.parametrize("iteration", [{"search": "full"}, {"settling": False}])
def test_options_that_exclude_descents_give_runs_of_message_passing(iteration):
    data, options = draw_planted(60, 3, 20, 1), ga.IterationOptions(**iteration)
    alone, result = ga.run_gamp(data, "random", iteration=options), train_one(data, "random", iteration=options)
    assert np.array_equal(alone.Q, result.Q)
    assert alone.n_iter == result.n_iter > 0


@pytest.mark.parametrize("size", [(60, 3, 30, 2), (20, 8, 20, 4)], ids=["few fields", "many fields"])
def test_max_iter_limits_the_first_descents(size, tmp_path):
    data, file = draw_planted(*size, seed=2), ga.Checkpoint(tmp_path / "run.npz", 0)
    short = train_one(data, "random", n_starts=2, max_iter=10, checkpoint=file)
    assert short.status is ga.Status.MAX_ITER
    assert "max_iter" in short.message
    whole, longer = (train_one(data, "random", n_starts=2, **more) for more in ({}, {"checkpoint": file}))
    assert longer.converged
    assert np.array_equal(longer.Q, whole.Q)


def test_columns_of_any_scale():
    """Convex losses are minimized; other runs do not end above the training loss of zero weights."""
    rng, scales = np.random.default_rng(0), np.logspace(-3, 3, 30)
    x, noise, tokens = rng.normal(size=(120, 30)) * scales, 0.3 * rng.normal(size=120), rng.normal(size=(40, 2, 30))
    y = np.sign(x @ (rng.normal(size=30) / scales) + noise)
    ridge = ga.train(ga.LabelledDataset(x, y, ga.SquaredLoss(), lam=1e-3), n_starts=2)
    X = x / np.sqrt(30)
    exact = np.linalg.solve(X.T @ X + 1e-3 * np.eye(30), X.T @ y)
    assert ridge.converged
    assert np.abs((ridge.Q[:, 0] - exact) * scales).max() < 1e-6 * np.abs(exact * scales).max()
    assert ga.train(ga.LabelledDataset(x, y, ga.LogisticLoss(), lam=1e-3), n_starts=2).converged
    layer = ga.Dataset(tokens * scales, rng.normal(size=(40, 2, 30)), lam=1e-3)
    zero = ga.train_loss(layer, np.zeros((30, 1)), "exact")
    assert ga.train(layer, n_starts=2, survey=False).train_loss <= zero
