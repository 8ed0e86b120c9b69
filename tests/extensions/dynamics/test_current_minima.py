"""Predictions of message passing whose samples keep their current minima: limits, and runs at finite d."""

import numpy as np
import pytest

import gamp_attention as ga


@pytest.mark.parametrize(
    ("model", "n_iter", "n_paths"),
    [
        (ga.paper_model(), 8, 4096),
        (ga.attention_model(2, 2, 2), 3, 512),
        (ga.mixture_model([[0.4, 0.1], [0.1, 0.4]], [[0.5, -0.5], [0.5, -0.5]]), 4, 4096),
    ],
    ids=["one column", "two columns", "mixture"],
)
def test_without_jumps_kept_minima_change_nothing(model, n_iter, n_paths):
    settings = {"n_iter": n_iter, "n_paths": n_paths, "n_replicas": 2}
    known = ga.trajectory(model, 1.5, "semantic", **settings)
    assert not known.validity.startswith("runs deviate")
    path = ga.trajectory(model, 1.5, "semantic", ga.MessagePassing(hold_after=2), **settings)
    for name in ("q", "theta", "V", "m"):
        expected, value = getattr(known, name), getattr(path, name)
        error = np.hypot(getattr(known.error, name), getattr(path.error, name))
        assert (np.abs(value - expected) <= 5 * error + 0.02 * np.abs(expected).max()).all()
    assert path.train_loss == pytest.approx(known.train_loss, rel=0.05)
    assert path.test_error == pytest.approx(known.test_error, rel=0.05)
    # V̂ of `known` is in Stein's form and has more noise
    sums = [np.einsum("tlaa->", each.V_hat) for each in (path, known)]
    assert sums[0] == pytest.approx(sums[1], rel=0.1)
    q = path.q[:, 0, 0, 0]
    assert np.ptp(q) > 0.05 * q[0]  # the start is not a fixed point


@pytest.mark.parametrize(
    "method", [ga.MessagePassing(hold_after=0), ga.GradientDescent(lr=0.5)], ids=["held", "descent"]
)
def test_fields_that_earlier_fields_determine_are_finite(method):
    """Fields of zero weights are zero, and fields of the teacher's weights are the teacher's up to rounding errors."""
    model = ga.mixture_model([[0.4, 0.1], [0.1, 0.4]], [[0.5, -0.5], [0.5, -0.5]])
    zero, settings = np.zeros((model.n_sources, 1, 1)), {"method": method, "n_paths": 512, "n_replicas": 2}
    paths = [ga.trajectory(model, 1.5, "semantic", n_iter=1, seed=seed, **settings) for seed in range(10)]
    paths += [ga.trajectory(model, 1.5, ga.Overlaps(zero, zero[:, 0], zero, zero + 1), n_iter=2, **settings)]
    for path in paths:
        assert np.isfinite([path.q, path.error.q, path.theta, path.error.theta]).all()
        assert np.isfinite([path.train_loss, path.train_loss_error]).all()


@pytest.mark.slow
def test_runs_with_current_minima_follow_the_prediction():
    model, alpha, n_iter, times = ga.paper_model(), 1.5, 30, [10, 20, 30]
    numbers = []
    for seed in range(8):
        data = ga.sample(model, 1000, alpha, seed)
        iteration = ga.IterationOptions(hold_after=10)
        run = ga.run_gamp(data, "positional", "asymptotic", damping=0.3, tol=0, max_iter=n_iter, iteration=iteration)
        path = run.history.scalars() | {"train_loss": run.history.train_loss}
        numbers.append([[abs(path[name][t]) for name in ("q", "m", "V", "train_loss")] for t in times])
    mean, error = np.mean(numbers, axis=0), np.std(numbers, axis=0, ddof=1) / np.sqrt(len(numbers))
    held = ga.MessagePassing(damping=0.3, hold_after=10)
    path = ga.trajectory(model, alpha, "positional", held, n_iter, n_replicas=4)
    theory = np.abs([[*(path.scalars()[name][t] for name in ("q", "m", "V")), path.train_loss[t]] for t in times])
    stated = [[*(path.error.scalars()[name][t] for name in ("q", "m", "V")), path.train_loss_error[t]] for t in times]
    # 5 is the 99.8 % point of |t| with 7 degrees of freedom
    assert (abs(theory - mean) < 5 * np.hypot(error, stated)).all()
    assert (np.array(stated)[:, :3] < 0.01 * theory[:, :3]).all()
    plain = ga.MessagePassing(damping=0.3)
    symmetric = ga.trajectory(model, alpha, "positional", plain, n_iter, n_paths=2048, n_replicas=2)
    assert (symmetric.V[times[1:], 0, 0, 0] - mean[1:, 2] > 3 * error[1:, 2]).all()  # without these memory terms


@pytest.mark.slow
def test_stated_errors_cover_the_end_with_more_paths():
    """V, q, m and the loss after 150 iterations were computed with up to 2^18 paths."""
    path = ga.trajectory(
        ga.paper_model(), 1.5, "positional", ga.MessagePassing(damping=0.3, hold_after=20), n_iter=150, n_paths=8192,
        n_replicas=8, seed=3,
    )  # fmt: skip
    known = {"q": (0.04839, 8e-5), "m": (0.25742, 1.4e-4), "V": (12.53, 0.06)}
    for name, (value, error) in known.items():
        off = abs(path.scalars()[name][-1]) - value
        assert abs(off) < 3.5 * np.hypot(error, path.error.scalars()[name][-1])
    assert abs(path.train_loss[-1] - 3299.5e-6) < 3.5 * np.hypot(1.0e-6, path.train_loss_error[-1])
    change = np.abs(np.diff(path.V[[100, 150], 0, 0, 0]))
    assert change < 0.02  # the iteration comes to rest
    assert "kept minima" in path.validity
