"""Histories at a few stored times: against histories of all times, and limits of paths and errors."""

from functools import partial

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.dynamics import stored_times
from gamp_attention.extensions.dynamics.field_paths import FieldPaths

SIZE = {"n_paths": 512, "n_replicas": 8}
LIMIT = 6.0  # standard errors, each with seven degrees of freedom
SETTINGS = {  # model, start, and options
    "logistic": (lambda: ga.glm_model(ga.LogisticLoss(), lam=0.1), "random", {"lr": 1.0, "n_iter": 20}),
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


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("name", SETTINGS)
def test_histories_of_few_and_of_all_times_agree(name):
    """Minibatches that contain all data are predicted with all times."""
    make, start, how = SETTINGS[name]
    every, few = (
        ga.trajectory(make(), 1.5, start, ga.GradientDescent(how["lr"], batch=batch), how["n_iter"], seed=seed, **SIZE)
        for seed, batch in enumerate((1.0, None))
    )
    assert len(few.stored) < len(every.stored) <= how["n_iter"] + 1
    errors = ((path.error.q, path.error.m, path.error.theta, path.train_loss_error, path.test_error_error)
              for path in (few, every))  # fmt: skip
    for name, *both in zip(("q", "m", "theta", "train_loss", "test_error"), *errors, strict=True):
        assert (np.abs(getattr(few, name) - getattr(every, name)) <= LIMIT * np.hypot(*both) + 1e-9).all()


def test_long_descents_store_few_times_and_descend(model):
    long = ga.trajectory(model, 1.5, method=ga.GradientDescent(lr=1.5), n_iter=100, n_paths=256, n_replicas=2)
    assert len(long.stored) < 30
    assert (np.diff(long.train_loss) < 1e-4 * long.train_loss[0]).all()
    assert np.isfinite(long.error.q).all()


def test_stated_errors_contain_the_error_of_the_compression(model, monkeypatch):
    """With few stored times, stated errors are larger than the spread over replicas and cover the difference."""
    options = {"method": ga.GradientDescent(lr=3.0), "n_iter": 40, "n_paths": 2048, "n_replicas": 2}
    fine = ga.trajectory(model, 1.5, **options)
    monkeypatch.setattr(stored_times, "Compression", partial(stored_times.Compression, 0.1))
    rough = ga.trajectory(model, 1.5, **options)
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
