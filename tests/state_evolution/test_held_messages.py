"""The equations of message passing with local proximal minima, against state evolution without jumps and runs at d."""

import numpy as np
import pytest

import gamp_attention as ga
from validation._tools.held_messages import follow_held_messages


def test_without_jumps_the_equations_are_state_evolution():
    model, n_iter = ga.paper_model(), 8
    path = follow_held_messages(model, 1.5, "semantic", 0.5, n_iter, 3, 2048, 0)
    known = ga.trajectory(model, 1.5, "semantic", damping=0.5, n_iter=n_iter, n_paths=2048, n_replicas=2)
    assert known.validity.startswith("consistent")
    for name in ("q", "V"):
        expected = getattr(known, name)[:, 0, 0, 0]
        assert path[name] == pytest.approx(expected, rel=0.03)
    assert path["train_loss"] == pytest.approx(known.train_loss, rel=0.05)
    assert np.ptp(path["q"]) > 0.05 * path["q"][0]  # the start is not a fixed point


@pytest.mark.slow
def test_runs_with_local_minima_follow_the_equations():
    model, alpha, n_iter, times = ga.paper_model(), 1.5, 30, (10, 20, 30)
    numbers = []
    for seed in range(8):
        data = ga.sample(model, 1000, alpha, seed)
        iteration = ga.IterationOptions(hold_after=10)
        run = ga.run_gamp(data, "positional", "asymptotic", damping=0.3, tol=0, max_iter=n_iter, iteration=iteration)
        path = run.history.scalars()
        numbers.append([[abs(path[name][t]) for name in ("q", "m", "V")] for t in times])
    mean, error = np.mean(numbers, axis=0), np.std(numbers, axis=0, ddof=1) / np.sqrt(len(numbers))
    path = follow_held_messages(model, alpha, "positional", 0.3, n_iter, 10, 2**15, 1, 1e-2)
    theory = np.array([[abs(path[name][t]) for name in ("q", "m", "V")] for t in times])
    assert (abs(theory - mean) < 5 * error).all()  # 5 is the 99.8 % point of |t| with 7 degrees of freedom
    symmetric = ga.trajectory(model, alpha, "positional", damping=0.3, n_iter=n_iter, n_paths=2048, n_replicas=2)
    assert (symmetric.V[list(times[1:]), 0, 0, 0] - mean[1:, 2] > 3 * error[1:, 2]).all()  # without these memory terms
