"""Trajectories of GAMP and of surveys: fixed points, starts, stated errors, validity and shapes."""

from dataclasses import replace

import numpy as np
import pytest

import gamp_attention as ga
from tests.conftest import make_overlaps


def test_trajectory_converges_to_the_fixed_point(model):
    path = ga.trajectory(model, 1.5, "semantic", n_iter=20, n_paths=2048)
    se = ga.solve_state_evolution(model, 1.5, "semantic", rtol=1e-3, stability=False)
    assert path.test_error[-1] == pytest.approx(se.test_error, rel=0.02)
    assert path.train_loss_error.max() < 0.01 * path.train_loss.min()
    for key in ("q", "theta"):
        gap = abs(path.scalars()[key][-1] - se.overlaps.scalars()[key])
        assert gap <= 4 * np.hypot(path.error.scalars()[key][-1], se.overlaps_error.scalars()[key])


def test_start_from_overlaps_equals_start_by_name(model):
    named = ga.trajectory(model, 1.5, "positional", ga.MessagePassing(damping=0.3), n_iter=4, n_paths=512, n_replicas=2)
    first = ga.Overlaps(named.q[0], named.m[0], named.theta[0], named.V[0])
    again = ga.trajectory(model, 1.5, first, ga.MessagePassing(damping=0.3), n_iter=4, n_paths=512, n_replicas=2)
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


SOME = make_overlaps(0.1, 0.0, 0.1)
IMPOSSIBLE = {  # ρ = 1/4, and q = σ² E[x²] with m = E[x] and σ² = 1/4
    "theta": ("q", make_overlaps(0.1, 0.0, 0.2)),
    "m": ("q", make_overlaps(0.02, 0.5, 0.0)),
    "m and theta together": ("q", make_overlaps(0.1, 0.5, 0.12)),
    "m off the positions": ("m", replace(SOME, m=np.full((2, 1), 0.1))),
    "negative q": ("q", make_overlaps(-0.1, 0.0, 0.0)),
    "q of unlike tokens": ("q", replace(SOME, q=np.array([[[0.1]], [[0.5]]]))),
    "V": ("V", make_overlaps(0.1, 0.0, 0.1, V=0.0)),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_overlaps_that_no_weights_have_raise_errors(model, case):
    name, start = IMPOSSIBLE[case]
    with pytest.raises(ValueError, match=rf"init\.{name}: needs"):
        ga.trajectory(model, 1.5, start, n_iter=3, n_paths=256, n_replicas=2)


def test_overlaps_of_weights_are_accepted(model):
    """Of weights x = a π + b τ + noise; and of instances, where θ² > q ρ at half of all semantic starts."""
    rng, starts = np.random.default_rng(0), []
    for a, b, noise in rng.normal(size=(10, 3)):
        starts.append(make_overlaps(0.25 * (a**2 + b**2 + noise**2), b, 0.25 * a))
    for seed in range(4):
        first = ga.run_gamp(ga.sample(model, 500, 1.5, seed=seed), tol=0, max_iter=1).history
        starts.append(ga.Overlaps(first.q[0], first.m[0], first.theta[0], first.V[0]))
    for start in starts:
        for method in (ga.MessagePassing(), ga.GradientDescent()):
            path = ga.trajectory(model, 1.5, start, method, n_iter=3, n_paths=128, n_replicas=2)
            assert (path.q > 0).all()
            assert path.theta[0] == pytest.approx(start.theta, rel=0.1)  # reduced to their bounds


def test_descents_start_from_final_overlaps_of_others(model):
    """V of descents is NaN. Overlaps do not contain the memory of earlier steps, so only the start is exact."""
    first = ga.trajectory(model, 1.5, method=ga.GradientDescent(), n_iter=5, n_paths=256, n_replicas=2)
    end = ga.Overlaps(first.q[-1], first.m[-1], first.theta[-1], first.V[-1])
    assert np.isnan(end.V).all()
    again = ga.trajectory(model, 1.5, end, ga.GradientDescent(), n_iter=5, n_paths=256, n_replicas=2)
    assert again.q[0] == pytest.approx(end.q, rel=1e-9)
    messages = ga.trajectory(model, 1.5, end, n_iter=2, n_paths=256, n_replicas=2)
    assert messages.V[0] == pytest.approx(np.full((2, 1, 1), 12.5))  # tr Σ/(2dλ), as in run_gamp
    partly = ga.Overlaps(end.q, end.m, end.theta, np.array([[[np.nan]], [[1.0]]]))
    with pytest.raises(ValueError, match=r"init\.V"):
        ga.trajectory(model, 1.5, partly, n_iter=2, n_paths=256, n_replicas=2)


def test_errors_include_the_bias_of_few_paths():
    """Noise of V̂ raises losses at second order, in all replicas; the loss is .02425(14) with 2^15 paths."""

    def weighted_sines(z):
        return np.sin(z[0, 0]) / 3 + 2 * np.sin(z[0, 1]) / 3 + np.sin(z[0, 2])

    model = ga.sequence_model(lambda u, noise: weighted_sines(u), weighted_sines, n_tokens=1, rank=3, lam=0.01)
    paths = [ga.trajectory(model, 1.5, n_iter=3, n_paths=256, seed=seed) for seed in range(6)]
    deviations = [(path.train_loss[3] - 0.02425) / path.train_loss_error[3] for path in paths]
    assert abs(np.mean(deviations)) < 0.8  # 0.3 with these errors; 2.1 with the spread over replicas alone


def test_validity_of_trajectories(model):
    """The proximal map jumps on the positional branch; V of runs is lower by about the stated percentage."""
    path = ga.trajectory(model, 1.5, "positional", ga.MessagePassing(damping=0.3), n_iter=15)
    assert path.validity.startswith("runs deviate, because the proximal map jumps")
    assert path.validity in str(path)
    assert path.jump_share.shape == path.jump_shift.shape == (15,)
    assert path.jump_share.min() < -0.05
    stated = float(path.validity.partition("V of runs about ")[2].partition(" %")[0]) / 100
    assert stated == pytest.approx(-path.jump_shift.min(), rel=0.05)
    V = np.mean([ga.run_gamp(ga.sample(model, 1000, 1.5, seed=s), "positional", "asymptotic", damping=0.3, tol=0,
                             max_iter=15).history.V[-1].mean() for s in range(3)])  # fmt: skip
    assert 0.2 * stated < 1 - V / path.V[-1].mean() < 2 * stated
    smooth = ga.trajectory(model, 1.5, "semantic", n_iter=8)
    assert smooth.validity.startswith("consistent within its errors")
    few = ga.trajectory(model, 1.5, "positional", ga.MessagePassing(damping=0.3), n_iter=5, n_paths=256, n_replicas=2)
    assert (few.jump_share - 3 * few.jump_share_error).min() < -0.1  # two replicas show no significant jumps
    assert few.validity.startswith("unknown: too few paths")
    assert few.validity.endswith("n_paths of gamp_attention.trajectory shows it")  # the command line has no such option
    descent = ga.trajectory(model, 1.5, method=ga.GradientDescent(), n_iter=2, n_paths=128, n_replicas=2)
    assert descent.validity.startswith("consistent")


@pytest.mark.parametrize(
    ("make", "parisi"),
    [(lambda: ga.attention_model(3, 1, 1), 300.0), (lambda: ga.attention_model(2, 2, 2), 300.0), (None, 100.0)],
    ids=["three tokens", "two columns", "mixture"],
)
def test_surveys_of_other_shapes(make, parisi, mixture):
    model = make() if make else mixture
    path = ga.trajectory(model, 2.0, method=ga.Survey(parisi=parisi), n_iter=3, n_paths=256, n_replicas=2)
    assert path.U.shape == path.V.shape == (4, model.n_sources, model.rank, model.rank)
    assert np.isfinite(path.U).all()
    assert np.isfinite(path.train_loss).all()
    if make:
        assert (np.diff(np.trace(path.U, axis1=2, axis2=3), axis=0) < 0).all()
    assert path.V_hat.shape == (3, *path.U.shape[1:])
    assert path.jump_mass.shape == (0, *path.U.shape[1:])
    assert path.to_dict()["method"] == f"Survey(parisi={parisi}, damping=0.4)"


@pytest.mark.parametrize(
    "method", [None, ga.GradientDescent(0.15), ga.GradientDescent(0.15, batch=0.3)], ids=["gamp", "gd", "sgd"]
)
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_a_symmetric_start_needs_no_mirror_images_of_paths(method, noise):
    # with m = 0, one path of each mirror pair is enough; a tiny m breaks the symmetry, so that all paths are sampled
    model = ga.paper_model(0.3, score_noise=noise)
    start = make_overlaps(0.3, 0.0, 0.2, 9.0)
    tiny = replace(start, m=np.array([[1e-200], [-1e-200]]))
    one, both = (
        ga.trajectory(model, 1.5, init, method, n_iter=4, n_paths=256, n_replicas=2, seed=3) for init in (start, tiny)
    )
    assert not one.m.any()
    for name in ("q", "theta", "train_loss", "test_error", "train_loss_error"):
        np.testing.assert_allclose(getattr(one, name), getattr(both, name), rtol=1e-7)
