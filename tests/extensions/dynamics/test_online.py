"""Single-pass gradient descent: runs at finite d against theory and closed forms."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.theory.models.mixtures import ShiftedTeacher
from tests.extensions.sequence.test_sequence_classes import locate, uneven

RUNS, STEPS = 8, 8


def sequence():
    """Return a model that locates one of two tokens and reads its value, with noise in the targets."""
    return ga.sequence_model(
        lambda u, noise: locate(u) + 0.3 * noise[0], locate, n_tokens=2, rank=2, n_noise=1, lam=0.1
    )


def shifted():
    """Return logistic regression with an intercept without a penalty."""
    labels = ShiftedTeacher(ga.LogisticLabels(0.2), np.full((1, 1), 0.8))
    return ga.glm_model(ga.LogisticLoss(), labels, lam=0.1, intercept=True)


MODELS = {
    "attention": (ga.paper_model, "positional", {"lr": 2.0, "batch": 0.3}),
    "logistic": (lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1), "semantic", {"lr": [0.5, 0.2], "batch": 0.1}),
    "sequence": (sequence, "semantic", {"lr": 0.3, "batch": 0.2}),
    "sequence classes": (uneven, "semantic", {}),
    "intercept": (shifted, "semantic", {"lr": 0.3, "batch": 0.1}),
    "mixture": (lambda: ga.mixture_model([[0.25, 0.25]] * 2, [[0.5, 0.5]] * 2), "semantic", {"lr": 1.0}),
}


def columns(path):
    """Return q, m, θ and the training loss at every time, (T + 1, ·)."""
    families = [path.q, path.m, path.theta, path.train_loss]
    return np.concatenate([values.reshape(STEPS + 1, -1) for values in families], axis=1)


@pytest.mark.parametrize("name", MODELS)
def test_runs_follow_theory(name):
    build, init, how = MODELS[name]
    model = build()
    method = ga.SinglePass(**how)
    path = ga.trajectory(model, 2.0, init, method, STEPS, n_paths=2048, n_replicas=4)
    risk = "asymptotic" if model.attention else "exact"
    runs = [ga.single_pass(model, 500, 2.0, init, method, STEPS, risk=risk, seed=seed) for seed in range(RUNS)]
    values = np.array([columns(run.history) for run in runs])
    noise = [path.error.q, path.error.m, path.error.theta, path.train_loss_error]
    stated = np.concatenate([error.reshape(STEPS + 1, -1) for error in noise], axis=1)
    error = np.sqrt(values.var(axis=0, ddof=1) / RUNS + stated**2)
    assert (np.abs(values.mean(axis=0) - columns(path)) <= 4 * error + 1e-9).all()
    if model.intercept:
        assert path.m[0, 0, 0] == 0
        assert path.m[-1, 0, 0] > 0.3


@pytest.mark.parametrize("batch", [0.05, 3.0])
def test_linear_regression_has_a_closed_form(batch):
    """With y = u + s ξ, f = y − z: q and θ obey a linear recursion with the noise (η²/b) α E[f²]."""
    alpha, lr, lam, s, T = 1.5, 0.2, 0.1, 0.5, 12
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=s), lam=lam)
    path = ga.trajectory(model, alpha, "random", ga.SinglePass(lr=lr, batch=batch), n_iter=T, n_replicas=2)
    q, theta, a = 0.01, 0.0, 1 - lr * (lam + alpha)
    for t in range(T + 1):
        error = 1 + s**2 - 2 * theta + q
        assert np.allclose([path.q[t, 0, 0, 0], path.theta[t, 0, 0, 0]], [q, theta], rtol=0, atol=1e-10)
        assert np.isclose(path.test_error[t], error / 2, rtol=0, atol=1e-10)
        assert np.isclose(path.train_loss[t], alpha * error / 2 + lam * q / 2, rtol=0, atol=1e-10)
        q = a**2 * q + 2 * a * lr * alpha * theta + (lr * alpha) ** 2 + lr**2 / batch * alpha * error
        theta = a * theta + lr * alpha


def test_an_intercept_has_a_closed_form():
    """With y = u + c + s ξ, b moves by η α (c − b) without noise, and the squared distance adds to the test error."""
    alpha, lr, c, T = 1.5, 0.2, 0.7, 6
    model = ga.sequence_model(
        lambda u, noise: u[0, 0] + c + 0.5 * noise[0], lambda z: z[0, 0],
        n_tokens=1, rank=1, n_noise=1, lam=0.1, intercept=True,
    )  # fmt: skip
    path = ga.trajectory(model, alpha, "random", ga.SinglePass(lr, 0.1), T, n_replicas=2)
    b = c * (1 - (1 - alpha * lr) ** np.arange(T + 1))
    np.testing.assert_allclose(path.m[:, 0, 0], b, rtol=0, atol=1e-5)
    q, theta = path.q[:, 0, 0, 0], path.theta[:, 0, 0, 0]
    expected = 0.5 * (1 + 0.5**2 - 2 * theta + q + (c - b) ** 2)
    np.testing.assert_allclose(path.test_error, expected, rtol=0, atol=1e-5)


def overlaps_at(path, t):
    return ga.Overlaps(path.q[t], path.m[t], path.theta[t], path.V[t])


def line_with_intercept(tau):
    """Return linear regression with an intercept and tokens with means along one direction."""
    return ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.3), n_tokens=2, tau=tau, lam=0.1, intercept=True)


@pytest.mark.parametrize("tau", [(1.0, -0.75), (1.0, 0.2)])
def test_a_restart_from_overlaps_recovers_the_intercept(tau):
    """The means of the fields are E[x] τ_l + b, and the path of `SinglePass` depends on both terms."""
    method = ga.SinglePass(0.1, 0.5)
    path = ga.trajectory(line_with_intercept(tau), 1.0, "positional", method, n_iter=6, n_replicas=2)
    again = ga.trajectory(line_with_intercept(tau), 1.0, overlaps_at(path, 3), method, n_iter=3, n_replicas=2)
    np.testing.assert_allclose(again.m, path.m[3:], rtol=0, atol=1e-9)
    np.testing.assert_allclose(again.q, path.q[3:], rtol=0, atol=1e-9)


def test_means_may_differ_by_rounding_errors_without_positions():
    one = np.ones((2, 1, 1))
    start = ga.Overlaps(0.5 * one, np.array([[0.1 + 0.2], [0.3]]), 0.3 * one, one)
    path = ga.trajectory(line_with_intercept(None), 1.0, start, ga.SinglePass(0.1, 0.5), n_iter=1, n_replicas=2)
    assert path.m[0] == pytest.approx(start.m)


def test_means_that_do_not_determine_the_intercept_raise_errors():
    model = line_with_intercept((1.0, 1.0))
    end = overlaps_at(ga.trajectory(model, 1.0, "positional", ga.SinglePass(0.1, 0.5), n_iter=1, n_replicas=2), 1)
    with pytest.raises(ValueError, match=r"init\.m: needs m = 0, or a name.*does not determine the intercept"):
        ga.trajectory(model, 1.0, end, ga.SinglePass(0.1, 0.5), n_iter=1, n_replicas=2)
    centred = ga.trajectory(model, 1.0, replace(end, m=0 * end.m), ga.SinglePass(0.1, 0.5), n_iter=1, n_replicas=2)
    assert (centred.m[0] == 0).all()


def test_equal_seeds_give_equal_runs_and_other_seeds_do_not():
    def run(seed):
        return ga.single_pass(ga.paper_model(), 60, 1.5, n_iter=3, seed=seed)

    first, again, other = run(1), run(1), run(2)
    assert np.array_equal(first.Q, again.Q)
    assert not np.allclose(first.Q, other.Q)
    assert first.status is ga.Status.MAX_ITER
    assert first.n_samples == 3 * round(0.1 * 1.5 * 60)
    assert len(first.history.train_loss) == 4


LASSO = ga.glm_model(ga.SquaredLoss(), penalty=ga.ElasticNet(0.1, 0.1))
PAPER = ga.paper_model()


@pytest.mark.parametrize(
    ("arguments", "options", "pattern"),
    [
        ((LASSO, 20, 1.0), {}, "another method for ElasticNet.*ridge"),
        ((3, 20, 1.0), {}, "model: needs"),
        ((PAPER, 20, None), {}, "alpha"),
        ((PAPER, 20, 1.0), {"method": ga.GradientDescent()}, "method: needs a SinglePass"),
        ((PAPER, 20, 1.0), {"init": "spectral"}, "init"),
    ],
)
def test_bad_arguments_are_named(arguments, options, pattern):
    with pytest.raises((TypeError, ValueError), match=pattern):
        ga.single_pass(*arguments, **options)


def test_steps_end_before_losses_that_are_not_finite():
    """The weights of the last step are finite, but the loss of their large fields overflows."""
    model = ga.glm_model(ga.PhaseRetrievalLoss())
    result = ga.single_pass(model, 20, 2.0, "random", ga.SinglePass(lr=1e30), 10)
    assert result.status is ga.Status.NONFINITE
    assert result.n_iter < 10
    assert np.isfinite(result.Q).all()
    assert np.isfinite([result.train_loss, result.gradient_norm]).all()
    assert np.isfinite(result.history.train_loss).all()
