"""The package against docs/examples/gamp_on_one_page.py, which computes everything in plain numpy."""

import runpy

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def page():
    return runpy.run_path(str(ROOT / "docs" / "examples" / "gamp_on_one_page.py"))


def test_the_page_is_one_page_without_the_package():
    code = (ROOT / "docs" / "examples" / "gamp_on_one_page.py").read_text(encoding="utf-8")
    assert len(code.splitlines()) <= 150
    assert "gamp_attention" not in code


@pytest.mark.parametrize("init", ["semantic", "positional"])
@pytest.mark.parametrize("seed", [2, 3])
def test_messages_and_gradients_are_equal(page, model, init, seed):
    data = ga.sample(model, d=60, alpha=1.5, seed=seed)
    start = data.Q_star if init == "semantic" else np.full((60, 1), 0.25)
    X = np.moveaxis(data.tokens + data.positions, 1, 0) / np.sqrt(60)
    t = data.targets[:, :, 0].T
    result = ga.run_gamp(data, start, "asymptotic", damping=0.3, tol=0, max_iter=10)
    Q, V = page["gamp"](X, t, start[:, 0], 10)
    np.testing.assert_allclose(Q, result.Q[:, 0], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(V[:, 0], result.overlaps.V[:, 0, 0], rtol=1e-10)
    np.testing.assert_allclose(page["gradient"](X, t, Q), ga.gradient(data, result.Q, "asymptotic")[:, 0], atol=1e-10)


@pytest.mark.parametrize("init", ["semantic", "positional"])
def test_state_evolution_agrees_within_the_error_of_its_points(page, model, init):
    exact = ga.solve_state_evolution(model, 1.5, init, rtol=1e-3, stability=False).overlaps
    expected = np.array([exact.q[0, 0, 0], exact.m[0, 0], exact.theta[0, 0, 0], exact.V[0, 0, 0]])
    start = expected * [1.1, 1.0, 1.0, 1.0]  # equations (7) to (9) return from nearby overlaps
    found = [page["state_evolution"](1.5, *start, n_iter=15, log2_points=9, seed=seed) for seed in range(6)]
    error = np.std(found, axis=0, ddof=1) / np.sqrt(6) + 2e-3 * np.abs(expected)
    assert (np.abs(np.mean(found, axis=0) - expected) <= 4 * error).all()
