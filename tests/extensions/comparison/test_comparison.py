"""The comparison of all solvers on one instance, and its reports."""

import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text

import gamp_attention as ga
from gamp_attention.extensions.comparison.comparison import gradient_descent


@pytest.fixture(scope="module")
def comparison(model, quick_comparisons):
    return ga.compare(model, d=60, alpha=1.5, seed=0, gd_steps=20, rtol=1e-2)


def test_every_solver_is_compared_and_drawn(comparison, tmp_path):
    for branch in comparison.branches:
        names = ["state evolution", "GAMP", "gradient descent, 20 steps of 3", "L-BFGS"]
        assert [row.name for row in branch.rows] == names
        assert max(branch.rows[k].gradient_norm for k in (1, 3)) <= 1e-8
        assert branch.rows[1].distance < 1e-12
    stored = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert stored["baseline"]["test_error"] == pytest.approx(0.00197, rel=0.01)
    axes = ga.plot_comparison(comparison, tmp_path / "four.png")
    assert axes.shape == (1, 4)
    texts = [text for axis in axes.flat for text in axis.figure.findobj(Text) if text.get_text()]
    assert min(text.get_fontsize() for text in texts) >= 7
    assert len(axes[0, 0].figure.legends) == 1
    assert ga.plot_comparison(comparison, tmp_path / "ten.png", all_panels=True).shape == (2, 5)
    with pytest.raises(ValueError, match=r"path: needs the name of a picture, which ends in .*png.* got 'folder'"):
        ga.plot_comparison(comparison, "folder")


def test_the_descents_agree_with_torch(model):
    data = ga.sample(model, d=60, alpha=1.5, seed=0)
    torch = ga.minimize_risk(data, "semantic", "asymptotic", lr=2.0, max_iter=30)
    compiled = gradient_descent(data, data.Q_star, "asymptotic", 2.0, 30)
    np.testing.assert_allclose(compiled.Q, torch.Q, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(compiled.history.gradient_norm, torch.history.gradient_norm, rtol=1e-8)
    assert (compiled.status, compiled.n_iter) == (torch.status, torch.n_iter)


def test_other_models_are_compared_too(tmp_path, quick_comparisons):
    model = ga.paper_model(penalty=ga.ElasticNet(0.008, 0.004))
    found = ga.compare(model, 60, 2.0, rtol=1e-2, gd_steps=20)
    branch = found.branches[0]
    values = {row.name: row for row in branch.rows}
    last = branch.rows[-1]
    assert last.name == "proximal descent"
    assert max(values["GAMP"].gradient_norm, last.gradient_norm) <= 1e-8
    assert last.values["test_error"] == pytest.approx(values["GAMP"].values["test_error"], rel=1e-2)
    json.dumps(found.to_dict(), allow_nan=False)


def test_different_minima_are_named(comparison):
    branch = comparison.branches[0]
    for gap, text in ((1e-3, "GAMP has the lower loss, by 1.0e-03"), (-1e-3, "L-BFGS has the lower loss"), (0.0, None)):
        descent = replace(branch.quasi_newton, train_loss=branch.gamp.train_loss + gap)
        shown = str(replace(branch, quasi_newton=descent))
        assert (text or "end at different minima") in shown if gap else "different minima" not in shown


def test_sampled_test_error_matches_its_definition(model, data):
    """Zero weights attend evenly: f = mean of x + p, so the error is the error of S = 1/2 up to the positions."""
    error, spread = ga.sampled_test_error(data, np.zeros((data.dim, 1)), n_samples=4000)
    fresh = ga.sample(model, data.dim, 20.0, seed=9)
    T = model.teacher(fresh.tokens @ data.Q_star / np.sqrt(data.dim))
    difference = T @ fresh.tokens - 0.5 * np.ones((2, 2)) @ (fresh.tokens + fresh.positions)
    direct = (difference**2).sum(axis=(1, 2)) / (2 * data.dim)
    both = np.hypot(spread, direct.std() / np.sqrt(len(direct)))
    assert abs(error - direct.mean()) < 4 * both
