"""Two estimators on common samples: closed forms, other equations, runs at finite d, averages, messages."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import poisson

import gamp_attention as ga
from docs.examples import own_equations as papers
from gamp_attention.extensions.pairs import solve as solver

CUTS = ndtri(poisson.cdf(np.arange(9), 1.0))  # the number of cuts below a standard normal is a Poisson variable
NOISE = 0.5


def solve(model, alpha=2.0, init="semantic", **options):
    return ga.solve_state_evolution(model, alpha, init, stability=False, **options)


def logistic(lam, **options):
    return ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(), lam=lam, **options)


def ridge(lam):
    return ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(NOISE), lam=lam)


def weighted(index):
    """Return ridge regression on one of two bootstrap samples: labels are y and how often each contains the sample."""

    def labels(u, noise):
        return np.array([u[0, 0] + NOISE * noise[0], (noise[1] > CUTS).sum(), (noise[2] > CUTS).sum()])

    def loss(y, prediction):
        return 0.5 * y[index] * (y[0] - prediction[0]) ** 2

    return ga.sequence_model(
        labels, lambda z: z[0, 0] * np.ones(3), loss, n_tokens=1, rank=1, n_noise=3, lam=0.1, convex=True
    )


def ridge_overlap(lam, other, alpha, noise=NOISE):
    """Return the overlap of two ridge regressions, from the Stieltjes transform of the Marchenko-Pastur law.

    Q_λ = (W + λ)⁻¹(W Q* + noise), so that q = ∫ (x² + noise² x)/((x + λ)(x + λ')) dμ(x) for eigenvalues x of W.
    """

    def transform(lam):  # of g = 1/(λ + α/(1 + g)), a quadratic equation
        return (1 - lam - alpha + np.sqrt((1 - lam - alpha) ** 2 + 4 * lam)) / (2 * lam)

    parts = [(lam**2 - noise**2 * lam) * transform(lam) for lam in (lam, other)]
    return 1 + (parts[0] - parts[1]) / (other - lam)


@pytest.mark.parametrize("alpha", [0.7, 2.0])
def test_two_ridges_agree_with_their_closed_form(alpha):
    first, second = (solve(ridge(lam), alpha) for lam in (0.05, 0.8))
    pair = ga.solve_pair(first, second, rtol=2e-3)
    assert pair.converged
    assert abs(pair.q.item() - ridge_overlap(0.05, 0.8, alpha)) <= pair.q_error.item()
    assert pair.q_error.item() <= 2e-3 * np.sqrt(first.overlaps.q * second.overlaps.q).item()


def test_bootstrap_samples_agree_with_their_equations():
    first, second = (solve(weighted(index), rtol=1e-3) for index in (1, 2))
    pair = ga.solve_pair(first, second, rtol=5e-3)
    start = {"m": 0.1, "q": 0.5, "r": 0.3, "V": 1.0}
    own = ga.solve_equations(papers.bootstrap, start, alpha=2.0, lam=0.1, noise=NOISE)
    assert pair.converged
    assert abs(pair.q.item() - own.r) <= pair.q_error.item() + own.r_error
    assert pair.q.item() < 0.9 * first.overlaps.q.item()


def test_independent_noise_of_the_labels_of_both():
    """Labels with two entries, u with different noise, of which each loss reads one."""

    def labels(u, noise):
        return u[0, 0] + NOISE * noise

    first, second = (
        ga.sequence_model(
            labels, lambda z: z[0, 0] * np.ones(2), lambda y, z, k=k: 0.5 * (z[k] - y[k]) ** 2, n_tokens=1, rank=1,
            n_noise=2, lam=lam,
        )
        for k, lam in enumerate((0.05, 0.8))
    )  # fmt: skip
    pair = ga.solve_pair(solve(first), solve(second))
    assert abs(pair.q.item() - ridge_overlap(0.05, 0.8, 2.0, noise=0.0)) <= pair.q_error.item() < 0.01


@pytest.mark.parametrize("model", ["logistic", "lasso", "classes", "layer"])
def test_identical_estimators_on_the_same_samples(model):
    problem = {
        "logistic": logistic(0.1, tau=[0.5]),
        "lasso": ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(NOISE), penalty=ga.ElasticNet(0.01, 0.3)),
        "classes": CLOUDS,
        "layer": ga.paper_model(),
    }[model]
    se = solve(problem, init="random" if model == "classes" else "semantic", rtol=1e-3)
    pair = ga.solve_pair(se, se, rtol=0.02)
    assert pair.converged
    assert (np.abs(pair.q - se.overlaps.q) <= pair.q_error).all()
    assert pair.stability == pytest.approx(se.replicon, rel=0.03)


def test_without_shared_samples_only_the_teacher_is_common():
    first, second = solve(logistic(0.1), 2.0), solve(logistic(1.0), 3.0)
    pair = ga.solve_pair(first, second, 0.0, rtol=1e-3)
    explained = (first.overlaps.theta * second.overlaps.theta).item()
    assert pair.q.item() == pytest.approx(explained, rel=1e-3)
    assert pair.stability == 0
    some = ga.solve_pair(first, second, 1.0)
    assert explained < some.q.item() < ga.solve_pair(first, second, 2.0).q.item()


CLOUDS = ga.sequence_model(
    lambda u, noise, c: 2.0 * c - 1.0, lambda z: z[0, 0], lambda y, f: np.logaddexp(0.0, -y * f), n_tokens=1, rank=1,
    lam=0.1, convex=True, classes=[0.3, 0.7], means=[[1.0], [-1.0]], sigma=[[0.8], [1.2]],
)  # fmt: skip
SPARSE = ga.coordinate_law(
    ga.CoordinateClasses([0.5, 2.0], [0.5, 0.5]), [0.0], ga.sparse_teacher(0.3), n_tokens=1
)  # two variances of the tokens, and a teacher with many zeros


def sum_of_fields(u, noise):
    return u.sum() + NOISE * noise[0]


CASES = {  # two models of the same teacher and tokens, α, and the start of runs
    "two penalties": (logistic(0.05), logistic(2.0), 2.0, "random"),
    "two losses": (ga.glm_model(ga.SquaredLoss(), ga.LogisticLabels(), lam=0.5), logistic(0.1), 1.0, "random"),
    "lasso": (
        replace(ridge(0.1), coordinates=SPARSE, penalty=ga.ElasticNet(0.01, 0.3)),
        replace(ridge(0.1), coordinates=SPARSE), 1.5, "random",
    ),
    "intercept": (
        logistic(0.1, tau=[0.5], intercept=True), logistic(2.0, tau=[0.5], intercept=True), 2.0, "random",
    ),
    "columns": (
        ga.sequence_model(sum_of_fields, lambda z: z.sum(), n_tokens=2, rank=1, n_noise=1, lam=0.3),
        ga.sequence_model(
            sum_of_fields, lambda z: z.sum() + z[0, 1], n_tokens=2, rank=2, teacher_rank=1, n_noise=1, lam=1.0
        ),
        1.5, "random",
    ),
    "classes": (CLOUDS, replace(CLOUDS, penalty=ga.Ridge(1.0)), 2.0, "random"),
    "layer": (ga.paper_model(lam=0.01), ga.paper_model(lam=0.03), 4.0, "semantic"),
}  # fmt: skip


def sample_overlaps(first, second, init, d, n_seeds=16):
    """Return Q_Aᵀ Σ_l Q_B/d (n_seeds, S, r_A, r_B) of trained weights; `first` and `second` return data for a seed."""
    found = []
    for seed in range(n_seeds):
        data = [draw(seed) for draw in (first, second)]
        Q, Q_b = (ga.run_gamp(samples, init, risk="asymptotic", tol=1e-5).Q[:d] for samples in data)
        gamma = data[0].spectra[:, :d] * np.ones(d)  # one variance for each source and coordinate
        found.append(np.einsum("sk,ka,kb->sab", gamma, Q, Q_b) / d)
    return np.array(found)


def assert_agrees(pair, found):
    assert pair.converged
    error = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - pair.q) <= 4 * error + pair.q_error).all()
    assert (error < 0.05 * pair.state.unit).all()


@pytest.mark.parametrize("case", CASES)
def test_runs_on_the_same_samples(case):
    first, second, alpha, init = CASES[case]
    found = sample_overlaps(*(lambda seed, m=m: ga.sample(m, 200, alpha, seed) for m in (first, second)), init, d=200)
    start = init if case == "classes" else "semantic"
    singles = (solve(model, alpha, start, rtol=5e-3) for model in (first, second))
    assert_agrees(ga.solve_pair(*singles, rtol=0.02), found)


def test_averages_over_new_samples():
    """For linear fields, moments are overlaps; signs of two correlated fields differ with probability arccos(c)/π."""
    first, second = solve(logistic(0.05), rtol=1e-5), solve(logistic(2.0), rtol=1e-5)
    pair = ga.solve_pair(first, second, rtol=2e-3)
    q, theta = (np.array([getattr(se.overlaps, name).item() for se in (first, second)]) for name in ("q", "theta"))

    def values(target, u, a, b):
        a, b, u = a[:, 0, 0], b[:, 0, 0], u[:, 0, 0]
        return np.array([a * b, a**2, b**2, a * u, b * u, a * b < 0, target[:, 0] * (a + b) > 0]).T

    mean, error = pair.average(values)
    c = pair.q.item() / np.sqrt(q.prod())
    assert (np.abs(mean[:6] - [pair.q.item(), *q, *theta, np.arccos(c) / np.pi]) <= error[:6]).all()
    assert (error < 0.02 * (1 + np.abs(mean))).all()
    found = []
    for seed in range(8):
        Q, Q_b = (ga.run_gamp(ga.sample(model, 300, 2.0, seed)).Q for model in (logistic(0.05), logistic(2.0)))
        new = ga.sample(logistic(0.05), 300, 2.0, seed)
        x = np.random.default_rng(seed).standard_normal((20000, 300)) / np.sqrt(300)
        positive = np.random.default_rng(seed + 100).random(20000) < 1 / (1 + np.exp(-x @ new.Q_star[:, 0]))
        found.append(np.mean((x @ (Q + Q_b)[:, 0] > 0) == positive))
    assert abs(np.mean(found) - mean[6]) <= 4 * np.std(found, ddof=1) / np.sqrt(8) + error[6]


def test_statuses_and_messages():
    first, second = solve(logistic(0.05), rtol=1e-2), solve(logistic(2.0), rtol=1e-2)
    rough = ga.solve_pair(first, second, rtol=1e-7)
    assert rough.status is ga.Status.INACCURATE
    assert "smaller rtol" in rough.message
    assert rough.relative_error > 1e-7
    with pytest.raises(ga.ConvergenceError, match="inaccurate"):
        ga.solve_pair(first, second, rtol=1e-7, raise_on_failure=True)
    assert "stability" in str(rough)
    assert set(rough.to_dict()) == {
        "status", "n_iter", "residual", "q", "q_error", "relative_error", "stability", "message", "converged"
    }  # fmt: skip
    with pytest.raises(TypeError, match="f: needs a function"):
        rough.average(3)
    with pytest.raises(ValueError, match="f: needs to return real numbers, samples in front"):
        rough.average(lambda target, u, a, b: 1.0)


def assert_unknown(pair, status, words):
    assert pair.status is status
    assert words in pair.message
    assert pair.q.shape == pair.q_error.shape == (1, 1, 1)
    assert np.isnan([pair.q.item(), pair.q_error.item(), pair.stability]).all()
    assert pair.relative_error == np.inf


def test_too_few_steps_have_a_status(monkeypatch):
    monkeypatch.setattr(solver, "PAIR", solver.PairSettings(max_steps=1))
    first, second = solve(logistic(0.05), rtol=1e-2), solve(logistic(2.0), rtol=1e-2)
    pair = ga.solve_pair(first, second)
    assert_unknown(pair, ga.Status.MAX_ITER, "q still changes by")
    assert pair.n_iter == 1
    with pytest.raises(ga.ConvergenceError, match="solve_pair ended with status 'max_iter'"):
        ga.solve_pair(first, second, raise_on_failure=True)


def test_overlaps_that_are_not_possible_have_a_status():
    """The teacher explains more of q than there is."""
    first, second = solve(logistic(0.05), rtol=1e-2), solve(logistic(2.0), rtol=1e-2)
    smaller = replace(first.overlaps, q=0.5 * first.overlaps.theta**2)
    pair = ga.solve_pair(replace(first, overlaps=smaller), second)
    assert_unknown(pair, ga.Status.NONFINITE, "exceeds the overlaps of each with itself")


def test_adversarial_and_ordinary_training_agree_with_runs():
    """The norm is a further label of one of both, which the other does not read, in any order of both."""

    def adversarial(z, y, s):
        return np.logaddexp(0, 0.6 * s - y * z)

    model = logistic(0.1)
    solutions = [ga.solve_with_norm(model, 2.0, adversarial, convex=True, rtol=1e-3), solve(model, rtol=1e-3)]
    pairs = [ga.solve_pair(*order) for order in (solutions, solutions[::-1])]
    found = []
    for seed in range(8):
        data = ga.sample(model, 120, 2.0, seed=seed)
        runs = [ga.run_gamp_with_norm(data, adversarial, convex=True, tol=1e-5), ga.run_gamp(data, tol=1e-5)]
        assert all(run.converged for run in runs)
        found.append(np.sum(runs[0].Q * runs[1].Q) / 120)
    for pair in pairs:
        assert pair.converged
        assert abs(np.mean(found) - pair.q.item()) <= 4 * np.std(found, ddof=1) / np.sqrt(len(found))


def test_wrong_arguments_are_named():
    first, other = solve(logistic(0.1), rtol=1e-2), solve(logistic(0.1), 1.0, rtol=1e-2)
    for given in (logistic(0.1), 3, None):
        with pytest.raises(TypeError, match="second: needs a StateEvolutionResult, got"):
            ga.solve_pair(first, given)
    lost = solve(ga.paper_model(), 0.1, rtol=1e-2)
    with pytest.raises(ValueError, match="first: needs a converged solution, got status 'lost'"):
        ga.solve_pair(lost, first)
    with pytest.raises(TypeError, match="first: needs a replica-symmetric solution"):
        ga.solve_pair(replace(first, state=None), first)  # as with broken symmetry
    with pytest.raises(ValueError, match="shared: needs a number, because α = 2 of `first` is not 1, got None"):
        ga.solve_pair(first, other)
    for shared in (1.1, -0.1, np.nan):
        with pytest.raises(ValueError, match="shared: needs a finite number >= 0 and <= 1"):
            ga.solve_pair(first, other, shared)
    teachers = {
        "other labels": ga.glm_model(ga.LogisticLoss(), ga.LogisticLabels(0.5), lam=0.1),
        "labels of another number of random numbers": ga.glm_model(ga.SquaredLoss(), lam=0.1),
        "variances": logistic(0.1, sigma=2.0),
        "positions": logistic(0.1, tau=[0.5]),
    }
    for model in teachers.values():
        with pytest.raises(ValueError, match="second: needs the same"):
            ga.solve_pair(first, solve(model, rtol=1e-2))
    clouds = solve(CLOUDS, init="random", rtol=1e-2)
    rare = replace(CLOUDS, classes=replace(CLOUDS.classes, probability=[0.5, 0.5]))
    with pytest.raises(ValueError, match="second: needs the same classes"):
        ga.solve_pair(clouds, solve(rare, init="random", rtol=1e-2))
    with pytest.raises(ValueError, match="rtol"):
        ga.solve_pair(first, first, rtol=1.0)


def test_two_minima_of_one_risk():
    """Without means, the semantic minimum may change its sign; so its overlap with the positional minimum is zero."""
    model = ga.paper_model()
    pair = ga.solve_pair(*(solve(model, 1.5, init, rtol=5e-3) for init in ("semantic", "positional")), rtol=0.02)
    assert np.abs(pair.q).max() <= pair.q_error.max() < 0.02 * pair.state.unit
    found = []
    for seed in range(16):
        data = ga.sample(model, 200, 1.5, seed)
        Q, Q_b = (ga.run_gamp(data, init, tol=1e-5).Q for init in ("semantic", "positional"))
        found.append(np.sum(Q * Q_b) / 800)
    assert abs(np.mean(found)) <= np.std(found, ddof=1)


def test_runs_on_samples_of_which_a_part_is_shared():
    """The first estimator reads the first 1.5 d of 2 d samples, and the second the last 1.25 d, with another loss."""
    models, alphas = (logistic(0.05), ga.glm_model(ga.SquaredLoss(), ga.LogisticLabels(), lam=0.5)), (1.5, 1.25)
    rows = np.arange(450), np.arange(225, 600)
    parts = [
        lambda seed, m=m, part=part: ga.sample(m, 300, 2.0, seed).select_rows(part)
        for m, part in zip(models, rows, strict=True)
    ]
    found = sample_overlaps(*parts, "random", d=300)
    singles = [solve(m, alpha) for m, alpha in zip(models, alphas, strict=True)]
    assert_agrees(ga.solve_pair(*singles, 0.75), found)
    assert ga.solve_pair(*singles, 0.0).q < found.mean() - 0.1
