"""Sweeps: contents of rows, for all models and orders."""

import os
from typing import NamedTuple

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.sweeps.jobs import row_overlaps
from gamp_attention.extensions.sweeps.store import commit
from gamp_attention.extensions.sweeps.sweep import sweep
from tests.conftest import CELLS, QUICK


def test_rows_equal_the_results_of_the_solvers(model, tiny_sweep):
    rows = {(r["method"], r["branch"], r["alpha"], r["seed"]): r for r in tiny_sweep.rows}
    assert len(rows) == CELLS
    se = ga.solve_state_evolution(model, 1.5, "semantic", rtol=1e-2, stability=False)
    row = rows["SE", "semantic", 1.5, None]
    assert row["start"] == "name"
    assert row["overlaps"] == {name: value.tolist() for name, value in se.overlaps.arrays().items()}
    assert (row["test_error"], row["replicon"]) == (se.test_error, se.replicon)
    assert rows["SE", "semantic", 1.0, None]["start"] == "predecessor"
    gamp = ga.run_gamp(ga.sample(model, 60, 1.0, 2), "positional", "exact", damping=0.3)
    row = rows["GAMP", "positional", 1.0, 2]
    assert (row["status"], row["message"], row["n_iter"]) == (gamp.status.value, gamp.message, gamp.n_iter)
    assert np.array_equal(row_overlaps(row).theta, gamp.overlaps.theta)
    assert row["gradient_norm"] == gamp.gradient_norm
    assert row["test_error_error"] > 0
    assert row["commit"] == commit()
    assert row["versions"]["numpy"] == np.__version__
    assert tiny_sweep.to_dict()["counts"] == tiny_sweep.counts
    assert sum(tiny_sweep.counts.values()) == CELLS


def test_descent_agrees_with_message_passing(model, tmp_path):
    done = sweep(model, tmp_path, alpha=1.5, d=60, branch="semantic", method=["GAMP", "GD"], n_test=50, descent="lbfgs")
    assert done.counts == {"converged": 2}
    assert np.ptp([row["train_loss"] for row in done.rows]) < 1e-10
    assert np.ptp([row["test_error"] for row in done.rows]) < 1e-6


def test_a_failing_cell_is_a_row(tmp_path):
    nowhere = ga.attention_model(2, tau=(0.0, 0.0))  # no positional start
    done = sweep(nowhere, tmp_path, **QUICK | {"seed": [0, 1]})
    assert done.counts["error"] == 2
    assert sum(done.counts.values()) == 4
    failed = [row for row in done.rows if row["status"] == "error"]
    assert {row["branch"] for row in failed} == {"positional"}
    assert failed[0]["message"].startswith("ValueError: init: 'positional' needs positions")
    assert any(row.get("converged") for row in done.rows if row["branch"] == "semantic")
    again = sweep(nowhere, tmp_path, **QUICK | {"seed": [0, 1]})
    assert (again.computed, again.reused) == (0, 4)


@pytest.mark.slow
def test_warm_starts_and_order_stay_within_the_errors(model, tmp_path):
    alphas = [1.1, 1.4, 1.8]
    warm = sweep(model, tmp_path / "warm", alpha=alphas, rtol=1e-2)
    cold = sweep(model, tmp_path / "cold", alpha=alphas, rtol=1e-2, warm=False)
    assert sum(row["start"] == "predecessor" for row in warm.rows) == 4
    backward = sweep(model, tmp_path / "warm", alpha=alphas[::-1], rtol=1e-2)
    assert backward.computed == 0
    assert {row["key"] for row in backward.rows} == {row["key"] for row in warm.rows}
    for one, other in zip(warm.rows, cold.rows, strict=True):
        assert one["converged"]
        for name in ("train_loss", "test_error"):
            assert abs(one[name] - other[name]) <= one[f"{name}_error"] + other[f"{name}_error"], name
        near, far = (np.array(row["overlaps"]["q"]) for row in (one, other))
        errors = (np.array(row["overlaps_error"]["q"]) for row in (one, other))
        assert (np.abs(near - far) <= sum(errors)).all()


def test_models_without_attention_are_swept(tmp_path):
    model = ga.glm_model(ga.SquaredLoss(), ga.LinearLabels(noise=0.3), lam=0.1)
    found = sweep(model, tmp_path, alpha=2.0, lam=[0.1, 0.3], d=80, branch="semantic", method=["SE", "GAMP"], rtol=1e-2)
    assert len(found.rows) == 4
    assert all(row["converged"] for row in found.rows)
    assert {row["omega"] for row in found.rows} == {None}
    values = {(row["method"], row["lam"]): row["test_error"] for row in found.rows}
    for lam in (0.1, 0.3):
        assert values["GAMP", lam] == pytest.approx(values["SE", lam], rel=0.2)
    with pytest.raises(TypeError, match="SoftmaxTeacher"):
        sweep(model, tmp_path / "omega", alpha=2.0, omega=0.3)


@ga.register_loss
class AbsoluteLoss(NamedTuple):
    convex = True

    def value(self, p, z):
        return abs(p[0] - z[0, 0])


def test_message_passing_of_losses_with_kinks_is_completed_as_in_run_gamp(tmp_path):
    """Fields reach kinks slowly: message passing stalls after many iterations, and a descent ends the run."""
    model = ga.glm_model(AbsoluteLoss(), ga.LinearLabels(noise=0.5), lam=0.1)
    row = sweep(model, tmp_path, alpha=2.0, method="GAMP", branch="random", d=60).rows[0]
    assert row["converged"]
    run = ga.run_gamp(ga.sample(model, 60, 2.0), "random")
    assert row["train_loss"] == pytest.approx(run.train_loss, rel=1e-9)


def test_a_list_of_cells_defines_grids(model, tmp_path):
    entries = [{"alpha": 1.0, "seed": 3}, {"alpha": 2.0, "seed": [1, 2], "branch": "semantic"}]
    done = sweep(model, tmp_path, cells=entries, **{k: v for k, v in QUICK.items() if k != "alpha"})
    expected = [(1.0, 3, "semantic"), (1.0, 3, "positional"), (2.0, 1, "semantic"), (2.0, 2, "semantic")]
    assert [(cell.alpha, cell.seed, cell.branch) for cell in done.cells] == expected
    assert [(row["alpha"], row["seed"], row["branch"]) for row in done.rows] == expected


def test_finished_sweeps_can_be_read_where_nothing_can_be_written(model, tmp_path, monkeypatch):
    one, two = QUICK | {"branch": "semantic"}, QUICK | {"branch": ["semantic", "positional"]}
    rows = ga.sweep(model, tmp_path, **one).rows
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    again = ga.sweep(model, tmp_path, **one)
    assert (again.rows, again.computed) == (rows, 0)
    with pytest.raises(ValueError, match="folder: needs a folder that can be written to"):
        ga.sweep(model, tmp_path, **two)


def test_a_folder_in_place_of_a_cell_is_named(model, tmp_path):
    key = ga.sweep(model, tmp_path, **QUICK, branch="semantic").rows[0]["key"]
    cell = tmp_path / "cells" / f"{key}.json"
    cell.unlink()
    cell.mkdir()
    with pytest.raises(ValueError, match=rf"folder: needs a cell that can be read .*{key}\.json"):
        ga.sweep(model, tmp_path, **QUICK, branch="semantic")


def test_folders_with_other_files_are_not_used(model, tmp_path):
    (tmp_path / "mine" / "cells").mkdir(parents=True)
    (tmp_path / "mine" / "cells" / "liver.json").write_text("{}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sweep.json").write_text('{"broom": 1}')
    for name, match in (("mine", r"'cells' has no other files"), ("other", r"sweep\.json is not the manifest")):
        with pytest.raises(ValueError, match=f"folder: .*{match}"):
            ga.sweep(model, tmp_path / name, **QUICK)
    assert (tmp_path / "other" / "sweep.json").read_text() == '{"broom": 1}'
    assert [path.name for path in (tmp_path / "mine").rglob("*.*")] == ["liver.json"]
