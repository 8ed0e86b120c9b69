"""Predicted gradient descent against brute force and a closed form."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.dynamics.descent_paths import DescentPaths
from gamp_attention.extensions.dynamics.field_paths import PathResponses


def test_responses_equal_their_recursion():
    rng, n, T, (blocks, size) = np.random.default_rng(0), 70, 5, (2, 2)
    k, F = blocks * size, {}
    memory, slopes = rng.normal(size=(T, T, blocks, size, size)), rng.normal(size=(T, n, k, k))
    responses = PathResponses(n, T, blocks, size)
    for t in range(T):
        means = responses.advance(memory[t, :t], slopes[t], seed=0.5)
        for s in range(t + 1):
            J = 0.5 * np.tile(np.eye(k), (n, 1, 1)) if s == t else np.zeros((n, k, k))
            for u in range(s, t):
                for l in range(blocks):
                    block = slice(l * size, (l + 1) * size)
                    J[:, block] += memory[t, u, l] @ F[u, s][:, block]
            F[t, s] = slopes[t] @ J
            expected = [F[t, s][:, block, block].mean(0) for block in (slice(0, 2), slice(2, 4))]
            assert np.allclose(means[s], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


def test_responses_are_derivatives_of_the_path_map(model):
    """Γ(t, s) equals finite differences: the field at one time is shifted, and the path computed again."""
    steps, shift = 3, 1e-4
    component, start = model.components[0], ga.trajectory(model, 1.5, n_iter=1, n_paths=64, n_replicas=2)
    now = ga.Overlaps(start.q[0], start.m[0], start.theta[0], start.V[0])
    covariances = np.array([0.9 ** abs(s - steps) * now.q for s in range(steps)] + [now.q])
    memory = np.random.default_rng(1).uniform(0.5, 2, (steps + 1, steps, 2, 1, 1))

    def compute_forces(moved=None, by=0.0, token=0):
        """Return E[f^t] and the responses of each step; the fields of one token are shifted by `by` at step `moved`."""
        paths = DescentPaths(component, 256, steps, 1.0, np.random.default_rng(0))
        draw, times = paths._paths.draw, iter(range(steps + 1))

        def draw_shifted(*arguments):
            fields = draw(*arguments)
            fields[:, token] += by * (next(times) == moved)
            return fields

        paths._paths.draw = draw_shifted
        rows = [paths.advance(1.5, now, covariances[steps - t :], memory[t, :t]) for t in range(steps + 1)]
        return [row.m for row in rows], [row.response for row in rows]

    _, responses = compute_forces()
    for s in range(steps):
        for token in range(2):
            (up, _), (down, _) = compute_forces(s, shift, token), compute_forces(s, -shift, token)
            for t in range(s, steps + 1):
                difference = (up[t] - down[t])[token, 0] / (2 * shift)
                assert responses[t][s, token, 0, 0] == pytest.approx(difference, rel=1e-3, abs=1e-5)


RIDGE = {  # λ, step size and options: for the uncompressed histories, fewer and larger steps
    "uncompressed": (0.3, 0.5, {"n_iter": 8, "n_paths": 4096}),
    "compressed": (0.003, 0.15, {"n_iter": 500, "n_paths": 1024, "n_replicas": 2, "compression": 1e-3}),
}


@pytest.mark.parametrize("name", RIDGE)
def test_ridge_regression_follows_the_marchenko_pastur_law(name):
    """Squared loss, one token: each step multiplies a component by a factor that depends on its eigenvalue."""
    lam, lr, options = RIDGE[name]
    alpha, sigma, noise = 1.7, 0.8, 0.4
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=noise), sigma=sigma, lam=lam)
    rho, q0 = sigma**2, 0.1
    one = np.ones((1, 1, 1))
    start = ga.Overlaps(q=q0 * one, m=np.zeros((1, 1)), theta=0 * one, V=one)
    method = ga.GradientDescent(lr=lr, compression=options.get("compression"))
    sizes = {name: value for name, value in options.items() if name != "compression"}
    path = ga.trajectory(model, alpha, start, method, **sizes)
    ratio = 1 / alpha  # the eigenvalues of X̃ᵀX̃ follow a Marchenko-Pastur distribution of this ratio, times σ²α
    rounding = 1e-6  # responses are stored in single precision
    low, high = (1 - np.sqrt(ratio)) ** 2, (1 + np.sqrt(ratio)) ** 2
    angle, weight = np.polynomial.legendre.leggauss(400)
    x = low + (high - low) * np.sin(np.pi / 4 * (angle + 1)) ** 2
    weight = weight * np.sqrt((high - x) * (x - low)) / (2 * np.pi * ratio * x) * np.pi / 4
    weight *= (high - low) * np.sin(np.pi / 2 * (angle + 1))
    assert weight.sum() == pytest.approx(1, abs=1e-9)
    h = sigma**2 * alpha * x

    def bound(errors, t):
        """Return four errors; with compression the largest from t/2 to 2t, as its error vanishes at changes of sign."""
        near = slice(t, t + 1) if path.compression is None else slice(t // 2, 2 * t + 1)
        return 4 * errors.ravel()[near].max()

    for t in range(options["n_iter"] + 1):
        remaining = (1 - lr * (h + lam)) ** t
        learnt = (1 - remaining) / (h + lam)
        q = weight @ (remaining**2 * q0 + sigma**2 * ((h * learnt) ** 2 + noise**2 * h * learnt**2))
        theta = sigma**2 * weight @ (h * learnt)
        assert abs(path.q[t, 0, 0, 0] - q) <= bound(path.error.q, t) + rounding * q
        assert abs(path.theta[t, 0, 0, 0] - theta) <= bound(path.error.theta, t) + rounding
        error = 0.5 * (rho - 2 * theta + q + noise**2)
        assert abs(path.test_error[t] - error) <= 5 / 4 * bound(path.test_error_error, t) + rounding * error


def test_plain_descent_is_a_special_case_of_other_methods(model):
    def q(**options):
        method = ga.GradientDescent(**options)
        return ga.trajectory(model, 1.5, method=method, n_iter=4, n_paths=128, n_replicas=2).q

    plain = q(lr=1.0)
    assert np.array_equal(plain, q(batch=1))
    assert np.array_equal(plain, q(lr=[1.0, 1.0]))
    assert not np.array_equal(plain, q(lr=[1.0, 0.5]))


def test_losses_of_message_passing_are_predicted(model):
    data = ga.sample(model, 2000, 1.5, seed=3)
    path = ga.trajectory(data.instance_model(), 1.5, "semantic", n_iter=8, n_paths=2048)
    run = ga.run_gamp(data, "semantic", "asymptotic", damping=0.5, tol=0, max_iter=8)
    assert np.allclose(run.history.train_loss, path.train_loss, rtol=0.06)
    assert path.train_loss_error.max() < 0.01 * path.train_loss.min()
    se = ga.solve_state_evolution(model, 1.5, rtol=1e-3, stability=False)
    assert path.test_error[-1] == pytest.approx(se.test_error, rel=0.2)


def test_descents_have_no_variances(model):
    path = ga.trajectory(model, 1.5, method=ga.GradientDescent(lr=0.15), n_iter=2, n_paths=64, n_replicas=2)
    assert np.isnan(path.V).all()
    assert path.V_hat.shape == (0, 2, 1, 1)
    assert path.method == ga.GradientDescent(lr=0.15)
    assert "nan" not in str(path)


DESCENT = ga.GradientDescent
BAD = {  # arguments of the method, and the error
    "lr": ({"lr": 0}, "lr"),
    "one of several steps": ({"lr": [1.0, 0.0]}, r"lr\[1\]"),
    "momentum": ({"momentum": 1}, "momentum"),
    "Nesterov's method without momentum": ({"nesterov": True}, "nesterov.*momentum"),
    "batch": ({"batch": 0}, "batch"),
    "a batch with momentum": ({"batch": 0.1, "momentum": 0.9}, "batch.*momentum"),
    "compressed minibatches": ({"batch": 0.1, "compression": 1e-3}, "compression.*minibatches"),
    "no compression": ({"compression": 0}, "compression.*1e-06"),
    "too much compression": ({"compression": 0.2}, r"compression.*0\.1"),
    "a word as compression": ({"compression": "high"}, "compression"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_methods_raise_named_errors(name, named_error):
    options, pattern = BAD[name]
    named_error(lambda: DESCENT(**options), pattern)


REFUSED = [
    ({"method": "gd"}, r"method: needs a MessagePassing\(.*Survey\(\.\.\.\), got 'gd'"),
    ({"method": DESCENT}, "method"),
    ({"method": DESCENT(), "max_memory": 1e3}, "max_memory.*at least"),
    ({"method": DESCENT(compression=0.1), "max_memory": 1e3}, "max_memory.*larger compression"),
    ({"method": DESCENT(compression=1e-6), "n_paths": 64, "n_iter": 20}, "n_paths.*step"),
    ({"method": DESCENT(), "progress": 5}, "progress"),
]


@pytest.mark.parametrize(("options", "pattern"), REFUSED)
def test_bad_descents_raise_named_errors(options, pattern, model, named_error):
    named_error(lambda: ga.trajectory(model, 1.5, **options), pattern)


def test_momentum_and_compression_need_the_ridge(named_error):
    model = ga.paper_model(penalty=ga.ElasticNet(0.01, 0.01))
    for method, pattern in (
        (DESCENT(momentum=0.9), "momentum.*ElasticNet"),
        (DESCENT(compression=1e-3), "compression.*ElasticNet"),
    ):
        named_error(lambda method=method: ga.trajectory(model, 1.5, method=method), pattern)
    named_error(lambda: ga.trajectory(model, 1.5, method=DESCENT(), n_iter=2000), "n_paths.*at least")
