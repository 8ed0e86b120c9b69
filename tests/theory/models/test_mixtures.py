"""Mixtures of tokens agree with models without classes and with averages over sampled classes."""

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.problem.risk import overlaps
from gamp_attention.theory.fixed_points.observables import predicted_test_error
from gamp_attention.theory.rules.choice import first_rule
from gamp_attention.theory.rules.rule import average_channels


def single():
    return ga.mixture_model([[1.0]], [[0.0], [0.0]])


def ravel(arrays):
    return np.concatenate([values.ravel() for values in arrays.arrays().values()])


def make_overlaps(model):
    """Return overlaps that differ between all sources."""
    S, rho = model.n_sources, model.coordinates.rho
    q = np.linspace(0.06, 0.12, S)[:, None, None]
    return ga.Overlaps(
        q=q,
        m=np.linspace(0.2, -0.15, S)[:, None],
        theta=0.6 * np.sqrt(q * rho) * np.linspace(1, 0.7, S)[:, None, None],
        V=np.linspace(8, 13, S)[:, None, None],
    )


@pytest.mark.extensions
def test_one_class_is_the_plain_model(model):
    plain, mixed = ga.sample(model, 100, 1.5, seed=0), ga.sample(single(), 100, 1.5, seed=0)
    assert np.array_equal(plain.tokens, mixed.tokens)
    assert np.array_equal(plain.Q_star, mixed.Q_star)
    for risk in ("asymptotic", "exact"):
        one, two = (ga.run_gamp(each, "positional", risk, tol=0, max_iter=30) for each in (plain, mixed))
        assert np.array_equal(one.Q, two.Q)
    assert ga.sampled_test_error(plain, one.Q) == ga.sampled_test_error(mixed, one.Q)
    one, two = (ga.trajectory(each, 1.5, n_iter=3, n_paths=256, n_replicas=2) for each in (model, single()))
    assert np.array_equal(ravel(one), ravel(two))


def average_by_brute_force(model, there, n, seed=0):
    """Return means and standard errors, by name, over samples whose classes are drawn one by one."""
    rng = np.random.default_rng(seed)
    law, L = model.classes, model.n_tokens
    at = law.patterns[rng.choice(len(law.probability), n, p=law.probability)]
    rho = model.coordinates.rho[at, 0, 0]
    y = np.sqrt(rho) * rng.standard_normal((n, L))
    slope = there.theta[at, 0, 0] / rho
    rest = there.q[at, 0, 0] - slope**2 * rho
    noise = slope * y + np.sqrt(rest) * rng.standard_normal((n, L))
    # teacher's means from their definition, E[π √d μ]
    weight, mean = model.coordinates.weight, model.coordinates.teacher_mean[:, 0]
    T = model.teacher((y + ((weight * mean) @ model.class_means)[at])[..., None])
    trace = (weight @ model.coordinates.gamma)[at]
    params = np.concatenate(
        [(trace[:, :, None] * np.eye(L)).reshape(n, -1), (trace[:, :, None] * T.transpose(0, 2, 1)).reshape(n, -1)],
        axis=1,
    )
    omega, V = (noise + there.m[at, 0])[..., None], there.V[at]
    g, moreau = np.empty((n, L)), np.empty(n)
    for pattern in law.patterns:
        rows = (at == pattern).all(axis=1)
        out = ga.denoise(model.loss, params[rows], omega[rows], V[rows][0])
        g[rows], moreau[rows] = out.g[..., 0], out.moreau
    moreau += 0.5 * np.einsum("nij,nj->n", T**2, trace)
    averages = {"moreau": (moreau.mean(), moreau.std() / np.sqrt(n))}
    for name, values in {"g": g, "gg": g**2, "with_noise": g * noise, "with_teacher": g * y}.items():
        each = np.stack([(values * (at == s)).sum(axis=1) for s in range(model.n_sources)], axis=1)
        averages[name] = each.mean(axis=0), each.std(axis=0) / np.sqrt(n)
    return averages


@pytest.mark.parametrize("rule", ["panels", "sobol"])
def test_averages_agree_with_brute_force(mixture, rule):
    at = make_overlaps(mixture)
    rule_averages = first_rule(rule, mixture, (0,))
    assert rule_averages.name == rule
    moments = average_channels(rule_averages, mixture, at)
    for name, (value, error) in average_by_brute_force(mixture, at, 20_000).items():
        mean = np.mean([np.ravel(getattr(each, name)) for each in moments], axis=0)
        assert (np.abs(mean - value) <= 4.5 * error).all(), name


def test_averages_vanish_by_symmetries_of_a_single_combination_of_classes():
    """Only the samples of the second classes, whose means are zero, have the symmetry of θ = 0."""
    model = ga.mixture_model([[0.25, 0.25], [0.25, 0.25]], [[0.5, 0.0], [0.5, 0.0]], teacher_mean=[1.0])
    values = []
    for theta in (0.0, 1e-9):
        q, m = np.full((4, 1, 1), 0.05), np.array([[0.2], [0.1], [-0.1], [-0.2]])
        moments = average_channels(first_rule("sobol", model, (0,)), model, ga.Overlaps(q, m, theta + 0 * q, 260 * q))
        values.append(np.mean([each.with_teacher for each in moments], axis=0))
    assert np.allclose(*values, rtol=0, atol=1e-4)


def test_samples_have_the_law_of_the_mixture(mixture):
    data = ga.sample(mixture, 1000, 2.0, seed=1)
    assert [group.rows.start for group in data.groups] == [0, *(group.rows.stop for group in data.groups[:-1])]
    for group, share in zip(data.groups, mixture.classes.probability, strict=True):
        count = group.rows.stop - group.rows.start
        assert abs(count - 2000 * share) < 4 * np.sqrt(2000 * share)
        x = data.tokens[group.rows]
        mean = x.mean(axis=2) * np.sqrt(1000)  # along 1_d/√d, of norm one
        assert np.allclose(x.var(axis=(0, 2)), data.spectra[group.sources, 0], rtol=0.02)
        expected = mixture.class_means[0, group.sources]
        assert (np.abs(mean.mean(axis=0) - expected) < 4 * 0.6 / np.sqrt(count)).all()


def test_predicted_test_error_agrees_with_new_samples(mixture):
    data = ga.sample(mixture, 1500, 0.02, seed=0)
    Q = 0.5 * data.Q_star + 0.3 * np.sqrt(1500) * data.positions[:1].T
    error, spread = ga.sampled_test_error(data, Q, n_samples=3000)
    model = data.instance_model()
    at = overlaps(data, Q, make_overlaps(model).V)
    predicted = predicted_test_error(model, at, first_rule("panels", model, (0,)))[0]
    assert abs(error - predicted) < 4 * spread + predicted / np.sqrt(1500)


def test_linear_baseline_is_the_mean_over_classes(mixture):
    """It agrees with a sum over many samples of the mixture."""
    base = ga.linear_baseline(mixture, rtol=1e-5)
    rng = np.random.default_rng(0)
    n, law = 50_000, mixture.classes
    at = law.patterns[rng.choice(len(law.probability), n, p=law.probability)]
    rho, trace = mixture.coordinates.rho[at, 0, 0], mixture.coordinates.trace[at]
    T = mixture.teacher((np.sqrt(rho) * rng.standard_normal((n, 2)) + mixture.teacher_shift[at, 0])[..., None])
    W = np.einsum("nij,nj->ij", T, trace) / trace.sum(axis=0)
    assert np.allclose(base.weights, W, atol=5 * T.std() / np.sqrt(n))
    errors = np.einsum("nij,nj->n", (T - base.weights) ** 2, trace) / 2
    assert abs(base.test_error - errors.mean()) < 4 * errors.std() / np.sqrt(n)
