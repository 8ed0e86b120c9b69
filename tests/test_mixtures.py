"""Mixtures of tokens: against the plain model, against brute force, and at finite d."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.data import Dataset
from gamp_attention.drawing import draw_tokens
from gamp_attention.generalisation import sampled_test_error
from gamp_attention.sources import Group, Sources
from gamp_attention.state_evolution.mixture_rule import MixtureRule
from gamp_attention.state_evolution.overlap_map import OverlapMap, first_rule
from gamp_attention.state_evolution.predicted_error import predicted_test_error
from tests.conftest import layer_gradient_norm

CLASSES = [[0.4, 0.15], [0.1, 0.35]]
MEANS = [[0.5, -0.7], [0.3, -0.2]]
APART = [[[0.5, -0.7], [0.3, -0.2]], [[-0.5, 0.7], [-0.3, 0.2]]]  # along random signs, not along the positions
SIGMA = [[0.4, 0.6], [0.5, 0.3]]


@pytest.fixture(scope="module")
def mixture():
    """Correlated classes with means and variances of their own, and a teacher that sees the means."""
    return ga.mixture_model(CLASSES, MEANS, sigma=SIGMA, teacher_mean=[0.4])


def single():
    return ga.mixture_model([[1.0]], [[0.0], [0.0]])


def vector(overlaps):
    return np.concatenate([values.ravel() for values in overlaps.arrays().values()])


def some_overlaps(model):
    """Overlaps at which no two sources are alike."""
    S, rho = model.n_sources, model.coordinates.rho
    q = np.linspace(0.06, 0.12, S)[:, None, None]
    return ga.Overlaps(
        q=q,
        m=np.linspace(0.2, -0.15, S)[:, None],
        theta=0.6 * np.sqrt(q * rho) * np.linspace(1, 0.7, S)[:, None, None],
        V=np.linspace(8, 13, S)[:, None, None],
    )


def test_one_class_is_the_plain_model(model):
    plain, mixed = ga.sample(model, 100, 1.5, seed=0), ga.sample(single(), 100, 1.5, seed=0)
    assert np.array_equal(plain.tokens, mixed.tokens)
    assert np.array_equal(plain.Q_star, mixed.Q_star)
    for risk in ("asymptotic", "exact"):
        one, two = (ga.run_gamp(each, "positional", risk, tol=0, max_iter=30) for each in (plain, mixed))
        assert np.array_equal(one.Q, two.Q)
    assert sampled_test_error(plain, one.Q) == sampled_test_error(mixed, one.Q)
    one, two = (ga.trajectory(each, 1.5, n_iter=3, n_paths=256, n_replicas=2) for each in (model, single()))
    assert np.array_equal(vector(one), vector(two))


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_one_class_has_the_plain_fixed_point(model, branch):
    one, two = (ga.solve_state_evolution(each, 1.5, branch, rtol=1e-2, stable=False) for each in (model, single()))
    assert np.allclose(vector(one.overlaps), vector(two.overlaps), rtol=1e-12)
    assert one.test_error == pytest.approx(two.test_error, rel=1e-12)
    assert one.replicon == pytest.approx(two.replicon, rel=1e-12)


def brute_force(model, overlaps, n, seed=0):
    """Averages over samples drawn one by one, classes first: values, their standard errors, by name."""
    rng = np.random.default_rng(seed)
    law, L = model.classes, model.n_tokens
    at = law.patterns[rng.choice(len(law.probability), n, p=law.probability)]
    rho = model.coordinates.rho[at, 0, 0]
    y = np.sqrt(rho) * rng.standard_normal((n, L))
    slope = overlaps.theta[at, 0, 0] / rho
    rest = overlaps.q[at, 0, 0] - slope**2 * rho
    noise = slope * y + np.sqrt(rest) * rng.standard_normal((n, L))
    # teacher's means from their definition, E[π √d μ]
    weight, mean = model.coordinates.weight, model.coordinates.teacher_mean[:, 0]
    T = model.teacher((y + ((weight * mean) @ model.class_means)[at])[..., None])
    trace = (weight @ model.coordinates.gamma)[at]
    params = np.concatenate(
        [(trace[:, :, None] * np.eye(L)).reshape(n, -1), (trace[:, :, None] * T.transpose(0, 2, 1)).reshape(n, -1)],
        axis=1,
    )
    omega, V = (noise + overlaps.m[at, 0])[..., None], overlaps.V[at]
    g, moreau = np.empty((n, L)), np.empty(n)
    for pattern in law.patterns:
        rows = (at == pattern).all(axis=1)
        out = ga.denoise(model.loss, params[rows], omega[rows], V[rows][0])
        g[rows], moreau[rows] = out.g[..., 0], out.moreau
    moreau += 0.5 * np.einsum("nij,nj->n", T**2, trace)
    found = {"moreau": (moreau.mean(), moreau.std() / np.sqrt(n))}
    for name, values in {"g": g, "gg": g**2, "with_noise": g * noise, "with_teacher": g * y}.items():
        each = np.stack([(values * (at == s)).sum(axis=1) for s in range(model.n_sources)], axis=1)
        found[name] = each.mean(axis=0), each.std(axis=0) / np.sqrt(n)
    return found


@pytest.mark.parametrize("rule", ["split", "sobol", "lines"])
def test_averages_agree_with_brute_force(mixture, rule):
    at = some_overlaps(mixture)
    found = first_rule(rule, mixture, (0,))
    assert isinstance(found, MixtureRule)
    assert found.name == rule
    moments = found.moments(at)
    for name, (value, error) in brute_force(mixture, at, 40_000).items():
        mean = np.mean([np.ravel(getattr(each, name)) for each in moments], axis=0)
        assert (np.abs(mean - value) <= 4.5 * error).all(), name


def test_permuting_class_labels_permutes_state_evolution():
    means, sigma = ([values[0][::-1], values[1]] for values in (MEANS, SIGMA))
    one = ga.mixture_model(CLASSES, MEANS, sigma=SIGMA, teacher_mean=[0.4])
    two = ga.mixture_model(CLASSES[::-1], means, sigma=sigma, teacher_mean=[0.4])
    order = [1, 0, 2, 3]
    at = some_overlaps(one)
    moved = ga.Overlaps(**{name: values[order] for name, values in at.arrays().items()})
    images = [OverlapMap(m, 1.5, first_rule("split", m, (0,)))(x) for m, x in ((one, at), (two, moved))]
    for name, values in images[0].arrays().items():
        assert np.allclose(values[order], images[1].arrays()[name], rtol=1e-9, atol=1e-12), name


def test_permuting_class_labels_permutes_gamp(mixture):
    data = ga.sample(mixture, 80, 1.5, seed=3)
    order = np.array([1, 0, 2, 3])  # its own inverse
    law = mixture.coordinates
    law = ga.CoordinateLaw(law.weight, law.gamma[:, order], law.tau[:, order], law.teacher_mean, law.teacher_cov)
    classes = ga.ClassLaw(order[mixture.classes.patterns], mixture.classes.probability)
    other = replace(mixture, coordinates=law, classes=classes, class_means=mixture.class_means[:, order])
    groups = tuple(Group(rows, order[sources]) for rows, sources in data.groups)
    sources = Sources(data.positions, data.source_means[order], groups)
    moved = Dataset.from_teacher(other, data.tokens, data.positions, data.Q_star, data.spectra[order], sources)
    one, two = (ga.run_gamp(each, "semantic", damping=0.4, tol=0, max_iter=15) for each in (data, moved))
    assert np.allclose(one.Q, two.Q, atol=1e-9)
    for name, values in one.overlaps.arrays().items():
        assert np.allclose(values[order], two.overlaps.arrays()[name], atol=1e-8), name


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


@pytest.mark.parametrize("risk", ["asymptotic", "exact"])
def test_fixed_points_are_critical_points(mixture, risk):
    data = ga.sample(mixture, 150, 1.5, seed=1)
    result = ga.run_gamp(data, "semantic", risk, max_iter=300)
    assert result.converged
    assert result.fixed_point
    assert layer_gradient_norm(data, result.Q, risk) < 1.1e-8
    assert result.overlaps.m == pytest.approx(data.source_means @ result.Q / np.sqrt(150))
    descent = ga.minimize_risk(data, result.Q + 1e-4, risk, "lbfgs")
    assert np.linalg.norm(descent.Q - result.Q) / np.sqrt(150) < 1e-6


def gaps(model, branch, damping, n_iter, *, seeds=6, d=500, predicted_response=False):
    """GAMP less the prediction for its instance: largest mean over seeds, for each overlap of each source.

    In units of four standard errors plus 1/(4√d) of the largest entry.
    """
    found = []
    for seed in range(seeds):
        data = ga.sample(model, d, 1.5, seed)
        own, steps = data.instance_model(), {"damping": damping, "n_iter": n_iter}
        path = ga.trajectory(own, data.alpha, branch, n_paths=512, n_replicas=2, seed=seed, **steps)
        onsager = path.V_hat if predicted_response else "empirical"
        run = ga.run_gamp(data, branch, "asymptotic", damping=damping, tol=0, max_iter=n_iter, onsager=onsager)
        found.append((run.history, path))
    excess = {}
    for name in ("q", "m", "theta", "V"):
        gap = np.array([getattr(run, name) - getattr(path, name) for run, path in found])
        noise = np.mean([getattr(path.error, name) ** 2 for _, path in found], axis=0)
        error = np.sqrt((gap.var(axis=0, ddof=1) + noise) / seeds)
        size = np.abs(np.mean([getattr(path, name) for _, path in found], axis=0)).max()
        excess[name] = float((np.abs(gap.mean(axis=0)) / (4 * error + size / np.sqrt(d) / 4 + 1e-12)).max())
    return excess


TRAJECTORIES = {
    "means along the positions": lambda: ga.mixture_model(CLASSES, MEANS),
    "means apart": lambda: ga.mixture_model(CLASSES, APART),
    "variances": lambda: ga.mixture_model(CLASSES, MEANS, sigma=SIGMA),
}


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_trajectories_follow_state_evolution(name):
    """Every overlap of every source, within 4 standard errors over instances plus 1/(4√d) of the largest."""
    assert max(gaps(TRAJECTORIES[name](), "semantic", 0.4, 10).values()) <= 1


def test_a_teacher_that_sees_the_means_is_followed_too(mixture):
    """With the predicted response: this teacher draws weights along the positions, and the proximal map jumps."""
    assert max(gaps(mixture, "semantic", 0.4, 10, predicted_response=True).values()) <= 1


def test_fixed_points_agree_at_finite_d():
    """Within 4 standard errors over instances, whose teachers differ, and 1/(4√d); m vanishes by symmetry."""
    model = ga.mixture_model([[0.6, 0], [0, 0.4]], MEANS, sigma=[[0.45, 0.55], [0.5, 0.4]])
    se = ga.solve_state_evolution(model, 1.5, rtol=1e-2, stable=False)
    assert se.converged
    assert se.consistent
    assert not se.overlaps.m.any()
    runs = [ga.run_gamp(ga.sample(model, 600, 1.5, seed), damping=0.4) for seed in range(6)]
    assert all(run.converged for run in runs)
    for name in ("q", "theta", "V"):
        found, expected = np.array([getattr(run.overlaps, name) for run in runs]), getattr(se.overlaps, name)
        error = found.std(axis=0, ddof=1) / np.sqrt(6) + getattr(se.overlaps_error, name)
        assert (np.abs(found.mean(axis=0) - expected) <= 4 * error + expected / np.sqrt(600) / 4).all(), name


def test_positional_trajectory_follows_state_evolution():
    """With the predicted response, as the empirical one misses the jumps of the proximal map."""
    found = gaps(ga.mixture_model(CLASSES, MEANS), "positional", 0.3, 8, predicted_response=True)
    assert max(found.values()) <= 1


def test_predicted_test_error_is_that_of_fresh_sentences(mixture):
    data = ga.sample(mixture, 1500, 0.02, seed=0)
    Q = 0.5 * data.Q_star + 0.3 * np.sqrt(1500) * data.positions[:1].T
    error, spread = sampled_test_error(data, Q, n_samples=3000)
    model = data.instance_model()
    at = ga.Overlaps(**{**some_overlaps(model).arrays(), **_overlaps_of(data, Q)})
    predicted = predicted_test_error(model, at, first_rule("split", model, (0,)))[0]
    assert abs(error - predicted) < 4 * spread + predicted / np.sqrt(1500)


def _overlaps_of(data, Q):
    d = data.dim
    spectra = np.broadcast_to(data.spectra, (data.n_sources, d))
    return {
        "q": np.einsum("sd,da,db->sab", spectra, Q, Q) / d,
        "m": data.source_means @ Q / np.sqrt(d),
        "theta": np.einsum("sd,da,db->sab", spectra, Q, data.Q_star) / d,
    }


def test_linear_baseline_is_the_mean_over_classes(mixture):
    """Against a sum over many samples of the mixture."""
    base = ga.linear_baseline(mixture, rtol=1e-5)
    rng = np.random.default_rng(0)
    n, law = 200_000, mixture.classes
    at = law.patterns[rng.choice(len(law.probability), n, p=law.probability)]
    rho, trace = mixture.coordinates.rho[at, 0, 0], mixture.coordinates.trace[at]
    T = mixture.teacher((np.sqrt(rho) * rng.standard_normal((n, 2)) + mixture.teacher_shift[at, 0])[..., None])
    W = np.einsum("nij,nj->ij", T, trace) / trace.sum(axis=0)
    assert np.allclose(base.weights, W, atol=5 * T.std() / np.sqrt(n))
    errors = np.einsum("nij,nj->n", (T - base.weights) ** 2, trace) / 2
    assert abs(base.test_error - errors.mean()) < 4 * errors.std() / np.sqrt(n)


def test_fitted_linear_layer_knows_its_error_on_fresh_sentences(mixture):
    data = ga.sample(mixture, 200, 3.0, seed=0)
    fit = ga.fit_linear_baseline(data)
    x, _ = draw_tokens(
        np.random.default_rng(5), 6000, 200, data.positions, data.source_means, data.spectra, mixture.draw_groups
    )
    y = mixture.teacher(x @ data.Q_star / np.sqrt(200)) @ x
    errors = ((y - fit.weights @ x) ** 2).sum(axis=(1, 2)) / 400
    assert abs(fit.test_error - errors.mean()) < 4 * errors.std() / np.sqrt(6000)


def test_a_comparison_has_an_entry_for_each_source(monkeypatch):
    """With few steps and paths of state evolution, whose numbers are not at stake here."""

    def few_steps(model, alpha, name, rtol):
        return ga.solve_state_evolution(model, alpha, name, rule="sobol", max_iter=1, stable=False)

    def few_paths(*args, **options):
        return ga.trajectory(*args, **options | {"n_paths": 512, "n_replicas": 2})

    monkeypatch.setattr("gamp_attention.branch_comparison.solve_state_evolution", few_steps)
    monkeypatch.setattr("gamp_attention.branch_comparison.trajectory", few_paths)
    model = ga.mixture_model([[0.6, 0], [0, 0.4]], [[0.3, -0.3], [0.2, 0.1]])
    found = ga.compare(model, d=60, alpha=1.5, gd_steps=20, instances=2)
    assert all(branch.gamp.overlaps.q.shape == (4, 1, 1) for branch in found.branches)
    assert "GAMP" in str(found)


def good(**changes):
    given = {"classes": CLASSES, "means": MEANS}
    given.update(changes)
    return ga.mixture_model(**given)


def law_of(patterns, probability):
    return ga.ClassLaw(np.array(patterns), np.array(probability))


BAD = {
    "probabilities do not add up": (lambda: good(classes=[[0.4, 0.1], [0.1, 0.3]]), "classes.*add to 1"),
    "negative probability": (lambda: good(classes=[[1.2, -0.2], [0, 0]]), "classes.*add to 1"),
    "classes of words": (lambda: good(classes="ab"), "classes.*real array"),
    "classes not finite": (lambda: good(classes=[[np.nan, 1], [0, 0]]), "classes.*finite"),
    "means of other shape": (lambda: good(means=[[0.1, 0.2, 0.3]]), r"means.*\(2, 2\).*\(1, 3\)"),
    "means of words": (lambda: good(means="x"), "means.*real array"),
    "sigma zero": (lambda: good(sigma=0.0), "sigma.*positive"),
    "sigma of other shape": (lambda: good(sigma=[[0.5, 0.5, 0.5]]), r"sigma.*\(2, 2\).*\(1, 3\)"),
    "tau of other shape": (lambda: good(tau=[1.0, 0.0, -1.0]), r"tau.*\(2\,\).*\(3,\)"),
    "teacher mean": (lambda: good(teacher_mean=[1.0, 2.0]), r"teacher_mean.*\(1,\).*\(2,\)"),
    "omega": (lambda: good(omega=2), "omega.*<= 1"),
    "a loss": (lambda: good(student=ga.LogisticLoss()), "student.*attention map"),
    "source of two tokens": (lambda: law_of([[0, 0]], [1.0]), "patterns.*one column"),
    "source left out": (lambda: law_of([[0, 2]], [1.0]), "patterns.*0 to S - 1"),
    "pattern of no probability": (lambda: law_of([[0, 1], [2, 1]], [1.0, 0.0]), "probability.*positive"),
    "law of other size": (
        lambda: replace(good(), coordinates=ga.paper_model().coordinates),
        "coordinates.*4 sources",
    ),
    "means that move positions": (lambda: replace(good(), class_means=np.zeros((1, 4))), "class_means.*positions"),
    "V of tokens": (
        lambda: ga.run_gamp(ga.sample(good(), 20, 1.5), V=np.ones((2, 1, 1))),
        r"V: .*\(4, 1, 1\).*\(2, 1, 1\)",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_mixtures_are_named_errors(case):
    call, pattern = BAD[case]
    with pytest.raises((ValueError, TypeError), match=f"(?s){pattern}"):
        call()


def test_mixtures_are_swept(tmp_path):
    model = ga.mixture_model([[0.6, 0], [0, 0.4]], [[0.2, -0.2], [0.2, -0.2]])
    axes = {"alpha": 3.0, "branch": "semantic", "method": ["SE", "GAMP", "GD"], "descent": "lbfgs"}
    found = ga.sweep(model, tmp_path, **axes, d=100, rtol=1e-2, n_test=50)
    rows = {row["method"]: row for row in found.rows}
    assert all(row["converged"] for row in rows.values())
    assert rows["GAMP"]["train_loss"] == pytest.approx(rows["GD"]["train_loss"], abs=1e-9)
    assert np.shape(rows["SE"]["overlaps"]["q"]) == (4, 1, 1)
