"""Spectral starts of samples with classes, against a closed form and against runs."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

import gamp_attention as ga


def clusters(size):
    """Return two clusters around ±size Q*/√d, without labels."""
    return ga.sequence_model(
        lambda u, noise, c: 0.0, lambda z: z[0, 0], n_tokens=1, rank=1, classes=[0.5, 0.5], spikes=[[[size]], [[-size]]]
    )  # fmt: skip


@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_principal_component_of_two_clusters(alpha):
    """Without labels the weights are equal, and eigenvectors are principal components of a spiked covariance."""
    size = 1.3
    found = ga.spectral_overlap(clusters(size), alpha, "posterior", n_points=256, n_replicas=2)
    squared = (1 - 1 / (alpha * size**4)) / (1 + 1 / (alpha * size**2))
    assert_allclose(found.teacher, [np.sqrt(squared)], atol=1e-6)
    assert_allclose(found.positions, 0, atol=1e-6)


def test_no_eigenvalue_below_the_threshold():
    found = ga.spectral_overlap(clusters(1.3), 0.3, "posterior", n_points=256, n_replicas=2)
    assert len(found.eigenvalues) == 0


def curved():
    """Return samples whose targets are products of fields, with spikes ± and means of the classes."""

    def teacher(u, noise, c):
        return u[0, 0] * u[1, 0] * (1.0 if c < 2 else -1.0) + 0.3 * noise[0]

    return ga.sequence_model(
        teacher, lambda z: z[0, 0] * z[1, 0], n_tokens=2, rank=1, n_noise=1, lam=0.1, classes=[0.35, 0.35, 0.15, 0.15],
        spikes=[[[0.7], [0.4]], [[-0.7], [-0.4]], [[0.5], [0.0]], [[-0.5], [0.0]]],
        means=[[0.8, 0.0], [0.8, 0.0], [-0.8, 0.5], [-0.8, 0.5]], sigma=[[1.0, 0.8]] * 4,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["posterior", "fitted"])
def test_runs_have_the_predicted_overlap(weights):
    model, alpha, d = curved(), 3.0, 2000
    theory = ga.spectral_overlap(model, alpha, weights, n_points=4096)
    values = []
    for seed in range(5):
        data = ga.sample(model, d, alpha, seed=seed)
        found = ga.posterior_directions(data, 1) if weights == "posterior" else ga.spectral_directions(data, 1, weights)
        overlap = abs(found.vectors[0][:, 0] @ data.Q_star[:, 0]) / np.linalg.norm(data.Q_star)
        values.append([found.eigenvalues[0], overlap])
    mean, error = np.mean(values, axis=0), np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
    predicted = np.array([theory.eigenvalues[0], theory.teacher[0]])
    stated = np.array([theory.eigenvalues_error[0], theory.teacher_error[0]])
    assert (np.abs(mean - predicted) < 4 * error + stated + 5 / d).all()
    run = ga.run_gamp(data, ga.posterior_start(data), max_iter=1, tol=0)
    if weights == "posterior":
        assert abs(run.Q[:, 0] @ data.Q_star[:, 0]) > 0.75 * np.linalg.norm(run.Q) * np.linalg.norm(data.Q_star)
