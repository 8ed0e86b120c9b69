"""GAMP's trajectories against state evolution, at sizes for every day; larger ones in validation/trajectories.py."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.experiments.comparison import branch as comparison
from gamp_attention.gamp.memory import naive_memory

SEEDS, SIZE = 16, 600
RUNS = {"semantic": (0.5, 12), "positional": (0.3, 12), "undamped": (1.0, 4)}


@pytest.fixture(scope="module", autouse=True)
def predictions():
    """Predictions for an instance are made once: tests differ in the runs that are compared with them."""
    known = {}

    def predicted(model, alpha, name, *, damping, seed, **options):
        if (name, damping, seed) not in known:
            known[name, damping, seed] = ga.trajectory(model, alpha, name, damping=damping, seed=seed, **options)
        return known[name, damping, seed]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "trajectory", predicted)
        yield


def deviations(model, name, **options):
    """Largest mean deviation of GAMP from the prediction for its instance, in standard errors, for each overlap."""
    damping, n_iter = RUNS[name]
    branch = "positional" if name == "positional" else "semantic"
    runs = [
        comparison.deviation(
            ga.sample(model, SIZE, 1.5, 500 + s), branch, "asymptotic", damping, n_iter, seed=s, **options
        )
        for s in range(SEEDS)
    ]
    found = {}
    for key in runs[0][0]:
        gaps, errors = (np.array([run[which][key] for run in runs]) for which in (0, 1))
        both = np.sqrt((gaps.var(axis=0, ddof=1) + (errors**2).mean(axis=0)) / SEEDS)
        found[key] = float((np.abs(gaps.mean(axis=0)) / np.where(both > 1e-9, both, np.inf)).max())
    return found


@pytest.mark.parametrize("name", ["semantic", "undamped"])
def test_semantic_trajectories_follow_state_evolution(model, name):
    assert max(deviations(model, name).values()) <= 4


def test_positional_trajectory_follows_state_evolution(model):
    found = deviations(model, "positional")
    assert max(found[key] for key in ("q", "m", "theta")) <= 4


def test_positional_variances_follow_with_the_predicted_response(model):
    found = deviations(model, "positional", onsager="state_evolution")
    assert found["V"] <= 4
    assert max(found[key] for key in ("q", "m", "theta")) <= 4


@pytest.mark.parametrize("name", ["semantic", "positional"])
def test_naive_onsager_term_fails_the_same_check(model, name):
    found = deviations(model, name, memory=naive_memory)
    assert max(found[key] for key in ("q", "m", "theta")) > 4


def test_state_evolution_response_by_name(model):
    data = ga.sample(model, 100, 1.5, seed=0)
    result = ga.run_gamp(data, "semantic", damping=0.5, tol=0, max_iter=3, onsager="state_evolution")
    assert result.history.q.shape == (4, 2, 1, 1)


def test_trajectory_converges_to_the_fixed_point(model):
    path = ga.trajectory(model, 1.5, "semantic", damping=0.5, n_iter=30, n_paths=2048)
    se = ga.solve_state_evolution(model, 1.5, "semantic", stability=False)
    for key in ("q", "theta"):
        gap = abs(path.scalars()[key][-1] - se.overlaps.scalars()[key])
        assert gap <= 4 * np.hypot(path.error.scalars()[key][-1], se.overlaps_error.scalars()[key])


def test_start_from_overlaps_equals_start_by_name(model):
    named = ga.trajectory(model, 1.5, "positional", damping=0.3, n_iter=4, n_paths=512, n_replicas=2)
    first = ga.Overlaps(named.q[0], named.m[0], named.theta[0], named.V[0])
    again = ga.trajectory(model, 1.5, first, damping=0.3, n_iter=4, n_paths=512, n_replicas=2)
    assert np.allclose(named.q, again.q, rtol=1e-8)
    assert np.allclose(named.m, again.m, rtol=1e-8)


def test_finite_d_starts_have_the_predicted_overlaps(model):
    data = ga.sample(model, 4000, 0.01, seed=0)
    for name in ("semantic", "positional", "random"):
        first = ga.trajectory(model, 0.01, name, n_iter=1, n_paths=256, n_replicas=2)
        run = ga.run_gamp(data, name, "asymptotic", tol=0, max_iter=1).history
        assert np.allclose(run.q[0], first.q[0], atol=0.02)
        assert np.allclose(run.m[0], first.m[0], atol=0.05)
        assert np.allclose(run.V[0], first.V[0])
