"""Score noise on the targets, y = (T[u] + s N) x."""

import numpy as np
import pytest

import gamp_attention as ga


@pytest.mark.parametrize("make", [ga.paper_model, ga.attention_model])
def test_targets_have_noise_of_the_given_size(make):
    clean, noisy = (ga.sample(make(score_noise=s), 40, 20.0, seed=1) for s in (0.0, 0.3))
    assert np.array_equal(clean.tokens, noisy.tokens)
    assert np.array_equal(clean.Q_star, noisy.Q_star)
    N = (noisy.targets - clean.targets) / 0.3
    assert abs(N.mean()) < 4 / np.sqrt(N.size)
    assert abs(N.var() - 1) < 4 * np.sqrt(2 / N.size)
    assert np.allclose(noisy.outputs, noisy.targets @ noisy.tokens)


def test_gradient_includes_the_noise():
    data = ga.sample(ga.paper_model(score_noise=0.5), 60, 1.5, seed=0)
    own = ga.Dataset(data.tokens, data.outputs, data.positions, lam=0.01)
    assert np.allclose(ga.gradient(data, data.Q_star), ga.gradient(own, data.Q_star), rtol=1e-9, atol=1e-12)


@pytest.mark.extensions
def test_test_errors_include_the_noise():
    """Noise adds s² Σ_l tr Σ_l/d to the test error of any weights, and of the linear baseline."""
    s, model = 0.4, ga.paper_model()
    noisy = ga.paper_model(score_noise=s)
    more = s**2 * 2 * 0.25
    data = ga.sample(noisy, 300, 1.0, seed=2)
    clean = ga.sample(model, 300, 1.0, seed=2)
    (value, error), (without, _) = (ga.sampled_test_error(each, data.Q_star, n_samples=4000) for each in (data, clean))
    assert abs(value - without - more) < 4 * error
    base = ga.linear_baseline(noisy).test_error - ga.linear_baseline(model).test_error
    assert base == pytest.approx(more, rel=1e-9)
    paths = [ga.trajectory(each, 1.5, n_iter=1, n_paths=512, n_replicas=2) for each in (noisy, model)]
    gap = paths[0].test_error[0] - paths[1].test_error[0] - more
    assert abs(gap) < 5 * np.hypot(paths[0].test_error_error[0], paths[1].test_error_error[0])


@pytest.mark.slow
def test_strong_noise_is_reported_as_inconsistent():
    se = ga.solve_state_evolution(ga.paper_model(score_noise=0.3), 2.0, rtol=2e-2, stability=False)
    assert not se.consistent
    assert se.status is ga.Status.LOST or "inconsistent" in se.validity


@pytest.mark.parametrize("value", [-0.1, float("nan"), "much"])
def test_invalid_noise_raises_a_named_error(value, named_error):
    named_error(lambda: ga.paper_model(score_noise=value), "score_noise")
