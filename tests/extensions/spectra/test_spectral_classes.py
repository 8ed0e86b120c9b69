"""Spectral starts of samples with classes, against runs."""

import numpy as np
import pytest

import gamp_attention as ga


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
def test_runs_have_the_predicted_overlap():
    model, alpha, d = curved(), 3.0, 2000
    theory = ga.spectral_overlap(model, alpha, "fitted", n_points=4096)
    values = []
    for seed in range(5):
        data = ga.sample(model, d, alpha, seed=seed)
        found = ga.spectral_directions(data, 1, "fitted")
        overlap = abs(found.vectors[0][:, 0] @ data.Q_star[:, 0]) / np.linalg.norm(data.Q_star)
        values.append([found.eigenvalues[0], overlap])
    mean, error = np.mean(values, axis=0), np.std(values, axis=0, ddof=1) / np.sqrt(len(values))
    predicted = np.array([theory.eigenvalues[0], theory.teacher[0]])
    stated = np.array([theory.eigenvalues_error[0], theory.teacher_error[0]])
    assert (np.abs(mean - predicted) < 4 * error + stated + 5 / d).all()


def test_posterior_weights_of_samples_with_classes_are_refused():
    model = curved()
    with pytest.raises(ValueError, match="weights: needs 'fitted' or 'hessian', except for"):
        ga.spectral_overlap(model, 1.0, "posterior")
    with pytest.raises(ValueError, match="model: needs tokens without classes"):
        ga.posterior_start(ga.sample(model, 50, 1.0, seed=0))
