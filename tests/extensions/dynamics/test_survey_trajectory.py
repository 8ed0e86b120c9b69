"""Trajectories of survey propagation: shapes and settings."""

import numpy as np
import pytest

import gamp_attention as ga


@pytest.mark.parametrize(
    ("make", "parisi"),
    [(lambda: ga.attention_model(3, 1, 1), 300.0), (lambda: ga.attention_model(2, 2, 2), 300.0), (None, 100.0)],
    ids=["three tokens", "two columns", "mixture"],
)
def test_other_shapes(make, parisi, mixture):
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


@pytest.mark.parametrize("options", [{"parisi": None}, {"parisi": 0.0}, {"parisi": 1.0, "damping": 2.0}])
def test_bad_settings_raise_errors(options):
    with pytest.raises((TypeError, ValueError), match=f"{[*options][-1]}: needs"):
        ga.Survey(**options)
