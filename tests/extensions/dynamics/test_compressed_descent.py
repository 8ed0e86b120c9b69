"""Descents with histories at a few stored times: against all histories, and limits of memory, paths and errors."""

import tracemalloc

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.dynamics import compressed_descent
from gamp_attention.extensions.dynamics.field_paths import FieldPaths

SIZE = {"n_paths": 512, "n_replicas": 8}
LIMIT = 6.0  # standard errors, each with seven degrees of freedom
SETTINGS = {  # model, start, and options
    "gd": (ga.paper_model, "semantic", {"lr": 1.5, "n_iter": 12}),
    "logistic": (lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1), "random", {"lr": 1.0, "n_iter": 20}),
    "momentum": (lambda: ga.paper_model(score_noise=0.3), "positional", {"lr": 1.0, "momentum": 0.5, "n_iter": 25}),
    "nesterov": (ga.paper_model, "positional", {"lr": [1.0, 0.6], "momentum": 0.7, "n_iter": 25}),
    "columns": (lambda: ga.attention_model(3, 2, 1), "semantic", {"lr": 1.0, "n_iter": 15}),
    "mixture": (
        lambda: ga.mixture_model([[0.4, 0.1], [0.1, 0.4]], [[0.5, -0.5], [0.5, -0.5]]), "semantic",
        {"lr": 1.0, "n_iter": 15},
    ),
    "intercept": (
        lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1, intercept=True), "random",
        {"lr": 1.0, "n_iter": 20},
    ),
}  # fmt: skip


def compute_ratios(name, compression=1e-3, **options):
    """Return the largest difference from uncompressed histories in standard errors, for overlaps and losses."""
    make, start, how = SETTINGS[name]
    how = how | options
    n_iter = how.pop("n_iter")
    plain, short = (
        ga.trajectory(
            make(), 1.5, start, ga.GradientDescent(**how, nesterov=name == "nesterov", compression=each), n_iter,
            seed=seed, **SIZE,
        )
        for seed, each in enumerate((None, compression))
    )  # fmt: skip
    assert plain.compression is None
    assert len(plain.stored) == 0
    assert short.compression == compression
    assert len(short.stored) < len(short.q)
    gaps, errors = [], []
    for key in ("q", "m", "theta"):
        gaps.append(short.arrays()[key] - plain.arrays()[key])
        errors.append(np.hypot(short.error.arrays()[key], plain.error.arrays()[key]))
    for key in ("train_loss", "test_error"):
        gaps.append(getattr(short, key) - getattr(plain, key))
        errors.append(np.hypot(getattr(short, f"{key}_error"), getattr(plain, f"{key}_error")))
    scale = 1e-9 * max(np.abs(plain.q).max(), 1e-3)
    return max((np.abs(g[e > scale]) / e[e > scale]).max(initial=0) for g, e in zip(gaps, errors, strict=True))


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", SETTINGS)
def test_compressed_and_uncompressed_histories_agree(name):
    assert compute_ratios(name) <= LIMIT


def test_long_descents_are_compressed_by_themselves(model):
    """Uncompressed histories of 100 times need more than 256 paths."""
    long = ga.trajectory(model, 1.5, method=ga.GradientDescent(lr=1.5), n_iter=100, n_paths=256, n_replicas=2)
    assert long.compression == pytest.approx(1e-3)
    assert len(long.stored) < 30
    assert (np.diff(long.train_loss) < 1e-4 * long.train_loss[0]).all()
    assert np.isfinite(long.error.q).all()
    small = {"method": ga.GradientDescent(lr=0.15), "n_iter": 40, "n_paths": 512, "n_replicas": 2}
    assert ga.trajectory(model, 1.5, **small).compression is None
    assert ga.trajectory(model, 1.5, max_memory=3e6, **small).compression == pytest.approx(1e-3)


def test_the_memory_is_below_its_estimate(model):
    method = ga.GradientDescent(lr=1.5, compression=1e-3)
    options = {"method": method, "n_iter": 24, "n_paths": 2048, "n_replicas": 2}
    tracemalloc.start()
    stored = ga.trajectory(model, 1.5, "positional", **options).stored
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    estimate = compressed_descent.bytes_at_times(model, 2048, len(stored))
    assert 0.5 * estimate < peak < estimate
    with pytest.raises(ValueError, match=f"max_memory.*at step {stored[-1]}"):
        ga.trajectory(model, 1.5, "positional", max_memory=0.999 * estimate, **options)


def test_stated_errors_contain_the_error_of_the_compression(model):
    """With few stored times, stated errors are larger than the spread over replicas and cover the difference."""
    options = {"n_iter": 40, "n_paths": 4096, "n_replicas": 2}
    methods = (ga.GradientDescent(lr=3.0, compression=each) for each in (0.1, 1e-3))
    rough, fine = (ga.trajectory(model, 1.5, method=method, **options) for method in methods)
    assert len(rough.stored) < len(fine.stored)
    gap = np.abs(rough.test_error - fine.test_error)
    assert rough.test_error_error.max() > 3 * fine.test_error_error.max()
    assert (gap <= 4 * np.hypot(rough.test_error_error, fine.test_error_error)).all()


def get_drawn(model, n=512, steps=4):
    """Return paths with four drawn times, overlaps and covariances of the last time, and all drawn fields."""
    rng = np.random.default_rng(2)
    paths, one = FieldPaths(model, n, np.random.default_rng(0)), np.ones((2, 1, 1))
    root = rng.normal(size=(steps, 6))
    covariances, fields = root @ root.T, []
    for t in range(steps):
        now = ga.Overlaps(q=covariances[t, t] * one, m=np.zeros((2, 1)), theta=0.01 * one, V=one)
        rows = np.array([covariances[s, t] * one for s in range(t + 1)])
        fields.append(paths.draw(now, rows))
    return paths, now, rows, np.array(fields)


def test_stored_times_determine_combinations_of_their_fields(model):
    paths, now, _, fields = get_drawn(model)
    weights = np.array([0.5, -1.0, 0.3, 0.0])
    gram = np.einsum("snla,tnla->stla", fields, fields)[..., None] / fields.shape[1]
    mixed = np.tensordot(weights, fields, 1)
    with_past = np.tensordot(weights, gram, 1)
    covariances = np.concatenate([with_past, np.tensordot(weights, with_past, 1)[None]])
    teacher = ga.Overlaps(q=now.q, m=now.m, theta=weights.sum() * now.theta, V=now.V)
    found, rest = paths.project(teacher, covariances)
    assert rest < 1e-6
    assert np.allclose(found, mixed, rtol=0, atol=1e-6 * np.abs(mixed).max())


def test_fields_can_be_drawn_like_others(model):
    """With the fields of another run as a guide, new fields are nearly equal to it and have exact covariances."""
    paths, now, rows, fields = get_drawn(model)
    other, *_ = get_drawn(model)
    guide = other.draw(now, np.concatenate([0.5 * rows, rows[-1:]]))
    again = paths.draw(now, np.concatenate([0.5 * rows, 1.0001 * rows[-1:]]), like=guide)
    assert np.abs(again - guide).max() < 0.02 * guide.std()
    assert np.mean(again[:, 0, 0] ** 2) == pytest.approx(1.0001 * rows[-1, 0, 0, 0], rel=1e-9)
    assert np.mean(again[:, 1, 0] * fields[-1, :, 1, 0]) == pytest.approx(0.5 * rows[-1, 1, 0, 0], rel=1e-6)


def test_a_coarse_compression_ends_at_the_minimum_of_ridge_regression():
    """The part of the weights that stored times leave out decays, so that the end depends little on the compression."""
    model = ga.glm_model(ga.SquaredLoss(), lam=0.1)
    method = ga.GradientDescent(lr=0.1, compression=0.03)
    path = ga.trajectory(model, 1.5, "random", method, 200, n_paths=4096, n_replicas=2)
    minimum = ga.solve_state_evolution(model, 1.5, "random")
    assert len(path.stored) < 15
    assert path.train_loss[-1] == pytest.approx(minimum.train_loss, rel=1e-4)
