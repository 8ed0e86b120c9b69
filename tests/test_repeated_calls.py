"""Results depend on the arguments only: calls in another order, after calls of other functions, have equal bits."""

import numpy as np
import pytest

import gamp_attention as ga

MODEL = ga.paper_model(omega=0.3)
DATA = ga.sample(MODEL, d=40, alpha=1.5, seed=0)
CALLS = {
    "sample": lambda: ga.sample(MODEL, d=40, alpha=1.5, seed=0).tokens,
    "GAMP": lambda: ga.train(DATA, init="random", n_starts=2, seed=1, survey=False, escape=False),
    "another penalty": lambda: ga.run_gamp(ga.Dataset(DATA.tokens, DATA.outputs, lam=0.1), init="random", seed=1),
    "L-BFGS": lambda: ga.minimize_risk(DATA, init="positional", method="lbfgs"),
    "state evolution": lambda: ga.solve_state_evolution(MODEL, 1.5, rtol=1e-2, stability=False),
    "another alpha": lambda: ga.solve_state_evolution(MODEL, 1.2, rtol=1e-2, stability=False),
    "trajectory": lambda: ga.trajectory(MODEL, 1.5, init="semantic", n_iter=3),
    "Bayes-optimal": lambda: ga.solve_bayes_state_evolution(MODEL, 1.5),
}
SMALL = ga.sample(MODEL, d=20, alpha=1.5, seed=0)
CALLS |= {
    "Bayes-optimal thresholds": lambda: ga.bayes_thresholds(MODEL, n_points=64, n_replicas=2),
    "survey propagation": lambda: ga.train(
        SMALL, init="random", survey=20.0, seed=1, max_iter=200, n_starts=1, escape=False
    ),
    "regularization path": lambda: ga.regularization_path(SMALL, [0.1, 1.0], n_starts=1, folds=2),
    "boundaries": lambda: ga.phase_boundaries(MODEL, alphas=(1.6, 1.7)).to_dict()["lines"],  # rows contain times
}


def compute(name):
    """Return the result of a call, as text with all digits."""
    result = CALLS[name]()
    if isinstance(result, np.ndarray):
        return repr(result.tobytes())
    return repr(result.to_dict() if hasattr(result, "to_dict") else result)


@pytest.fixture(scope="module")
def forwards():
    return {name: compute(name) for name in CALLS}


def test_results_do_not_depend_on_earlier_calls(forwards):
    backwards = {name: compute(name) for name in reversed(CALLS)}
    assert [name for name in CALLS if backwards[name] != forwards[name]] == []
