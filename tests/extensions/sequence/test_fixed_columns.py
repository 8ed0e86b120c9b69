"""Columns that are held fixed: minima against linear algebra, scipy and torch, and theory against finite d."""

import numpy as np
import pytest

import gamp_attention as ga

MIXED = [0.5, 0.6, 0.6]  # a fixed column that depends on both columns of the teacher and on an independent column


def gate(z):
    return z[0, 0] * np.tanh(z[0, 1])


def location(z, xp=np):
    weights = xp.exp(z[:, 0])
    return (weights / weights.sum() * z[:, 1]).sum()


def gate_model(lam=0.1, **options):
    return ga.sequence_model(
        lambda u, noise: gate(u) + 0.3 * noise[0], gate, n_tokens=1, rank=2, n_noise=1, lam=lam, **options
    )


def location_model(**options):
    return ga.sequence_model(lambda u, noise: location(u), location, n_tokens=2, rank=2, lam=0.05, **options)


@pytest.mark.parametrize("lam", [0.1, [0.1, 5.0]])
def test_minimum_with_a_fixed_gate_is_a_ridge_solution(lam):
    d = 60
    data = ga.sample(gate_model(lam), d=d, alpha=2.0, seed=0)
    values = np.random.default_rng(1).standard_normal(d)
    known = ga.fix_columns(data, {1: values}, convex=True)
    gamp = ga.run_gamp(known, "random", tol=1e-10)
    assert gamp.converged
    assert gamp.is_minimum
    x = np.asarray(data.tokens)[:, 0] / np.sqrt(d)
    features = x * np.tanh(x @ values)[:, None]
    ridge = np.linalg.solve(features.T @ features + 0.1 * np.eye(d), features.T @ data.labels[:, 0])
    np.testing.assert_allclose(gamp.Q[:, 0], ridge, atol=1e-8)
    loo = ga.leave_one_out(known, gamp)
    kept = features[1:]
    Q = np.linalg.solve(kept.T @ kept + 0.1 * np.eye(d), kept.T @ data.labels[1:, 0])
    assert loo.fields[0, 0, 0] == pytest.approx(x[0] @ Q, rel=1e-6)


def test_state_evolution_equals_means_at_finite_d():
    model = ga.fix_columns(gate_model(), {1: MIXED}, convex=True)
    theory = ga.solve_state_evolution(model, 3.0, rtol=2e-3, stability=False)
    assert theory.status.value == "converged"
    runs = [ga.run_gamp(ga.sample(model, d=400, alpha=3.0, seed=seed), "random") for seed in range(8)]
    assert all(run.converged for run in runs)
    for name in ("q", "theta", "V"):
        found = np.array([getattr(run.overlaps, name)[0] for run in runs])
        mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(len(runs))
        predicted = getattr(theory.overlaps, name)[0]
        # finite-size corrections of order 1/d add to the errors of the mean
        assert (np.abs(mean - predicted) < 4 * error + 3 / 400).all(), (name, mean, error, predicted)
    losses = np.array([run.train_loss for run in runs])
    assert abs(losses.mean() - theory.train_loss) < 4 * losses.std(ddof=1) / np.sqrt(8) + 3 / 400
    # a correlated gate changes the overlaps much more than these errors
    known = ga.fix_columns(gate_model(), {1: [0, 1.0]}, convex=True)
    exact = ga.solve_state_evolution(known, 3.0, rtol=2e-3, stability=False)
    assert exact.overlaps.theta[0, 0, 0] > theory.overlaps.theta[0, 0, 0] + 0.1


def test_teacher_columns_are_ordered_by_free_columns():
    model = ga.fix_columns(gate_model(), {0: [1.0, 0.0]})
    data = ga.sample(model, d=50, alpha=2.0, seed=0)
    gamp = ga.run_gamp(data, "semantic")
    overlap = data.Q_star.T @ gamp.Q[:, 0] / np.linalg.norm(gamp.Q) / np.linalg.norm(data.Q_star, axis=0)
    assert abs(overlap[0]) > 0.8 > 0.4 > abs(overlap[1])
    # the second target is the field of the fixed column, the first column of the original teacher
    x = np.asarray(data.tokens)[:, 0] / np.sqrt(50)
    np.testing.assert_allclose(data.labels[:, 1], x @ data.Q_star[:, 1], atol=1e-12)


def test_teacher_that_cannot_be_traced():
    def teacher(u, noise):
        return u[0, 0] * float(np.tanh(u[0, 1])) + 0.0 * noise[0]

    plain = ga.sequence_model(teacher, gate, n_tokens=1, rank=2, n_noise=1, lam=0.1)
    assert plain.teacher.program is None
    data = ga.sample(ga.fix_columns(plain, {0: [0.0, 1.0, 2.0]}), d=30, alpha=2.0, seed=0)
    x, star = np.asarray(data.tokens)[:, 0] / np.sqrt(30), data.Q_star
    expected = np.stack([x @ star[:, 1] * np.tanh(x @ star[:, 0]), x @ (star[:, 0] + 2 * star[:, 2])], axis=1)
    np.testing.assert_allclose(data.labels, expected, atol=1e-12)


def test_bad_columns():
    model = gate_model()
    data = ga.sample(model, d=20, alpha=2.0, seed=0)
    known = ga.fix_columns(model, {1: [0.0, 1.0]})
    product = ga.sequence_model(
        lambda u, noise: u[0, 0] ** 2, lambda z: z[0, 0] * z[0, 1], n_tokens=1, rank=2, teacher_rank=1
    )  # fmt: skip
    related = ga.fix_columns(product, {1: [0.5, 1.0]})
    z = np.zeros((1, 1, 1))
    calls = [
        (lambda: ga.fix_columns(ga.glm_model(ga.SquaredLoss()), {0: [1.0]}), "problem: needs a model of sequence_mo"),
        (lambda: ga.fix_columns(model, [[0.0, 1.0]]), "columns: needs a dictionary of arrays"),
        (lambda: ga.fix_columns(model, {}), "columns: needs at least one of the 2 columns"),
        (lambda: ga.fix_columns(model, {0: [1, 0], 1: [0, 1]}), "columns: needs at least one of the 2 columns"),
        (lambda: ga.fix_columns(model, {2: [0.0, 1.0]}), "columns: needs"),
        (lambda: ga.fix_columns(model, {1: [1.0]}), r"columns\[1\]: needs at least 2 numbers"),
        (lambda: ga.fix_columns(model, {1: [1.0, np.nan]}), r"columns\[1\]: needs"),
        (lambda: ga.fix_columns(data, {1: np.ones(19)}), r"columns\[1\]: needs an array of d = 20 numbers"),
        (lambda: ga.fix_columns(location_model(), {1: [0.0, 1.0]}, convex=True), "convex: needs to be False"),
        (lambda: ga.spectral_overlap(related, 2.0, "posterior"), "model.fixed_columns: needs none"),
        (lambda: known.predict(z), "fixed_columns: needs none for predictions"),
        (
            lambda: ga.fix_columns(ga.value_model(rank=2, values=1), {2: [0.0, 0.0, 1.0]}),
            "columns: needs at most one column of the scores of each head free",
        ),
    ]
    for call, message in calls:
        with pytest.raises((TypeError, ValueError), match=f"^{message}"):
            call()
