"""Sweeps: contents of rows and datasets, for all models and orders."""

import json
from dataclasses import asdict

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.sweeps.jobs import row_overlaps
from gamp_attention.extensions.sweeps.store import commit
from gamp_attention.extensions.sweeps.sweep import save, sweep, to_dataset
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
    assert sum(tiny_sweep.counts.values()) == CELLS


def test_descent_agrees_with_message_passing(model, tmp_path):
    done = sweep(model, tmp_path, alpha=1.5, d=60, branch="semantic", method=["GAMP", "GD"], n_test=50, descent="lbfgs")
    found = done.dataset()
    assert done.counts == {"converged": 2}
    assert np.ptp(found.train_loss.values) < 1e-10
    assert np.ptp(found.test_error.values) < 1e-6


def test_a_failing_cell_is_a_row(tmp_path):
    nowhere = ga.attention_model(2, tau=(0.0, 0.0))  # no positional start
    done = sweep(nowhere, tmp_path, **QUICK | {"seed": [0, 1]})
    assert done.counts["error"] == 2
    assert sum(done.counts.values()) == 4
    failed = [row for row in done.rows if row["status"] == "error"]
    assert {row["branch"] for row in failed} == {"positional"}
    assert failed[0]["message"].startswith("ValueError: init: 'positional' needs positions")
    found = done.dataset()
    assert (found.status.sel(branch="positional") == "error").all()
    assert np.isnan(found.q.sel(branch="positional")).all()
    assert found.converged.sel(branch="semantic").any()
    again = sweep(nowhere, tmp_path, **QUICK | {"seed": [0, 1]})
    assert (again.computed, again.reused) == (0, 4)


@pytest.mark.slow
def test_warm_starts_and_order_stay_within_the_errors(model, tmp_path):
    alphas = [1.1, 1.4, 1.8]
    warm = sweep(model, tmp_path / "warm", alpha=alphas, rtol=1e-2)
    cold = sweep(model, tmp_path / "cold", alpha=alphas, rtol=1e-2, warm=False).dataset()
    assert sum(row["start"] == "predecessor" for row in warm.rows) == 4
    backward = sweep(model, tmp_path / "warm", alpha=alphas[::-1], rtol=1e-2)
    assert backward.computed == 0
    warm = warm.dataset()
    assert backward.dataset().identical(warm)
    assert warm.converged.all()
    for name in ("q", "m", "theta", "V", "train_loss", "test_error"):
        bound = warm[f"{name}_error"] + cold[f"{name}_error"]
        assert (abs(warm[name] - cold[name]) <= bound).all(), name


def test_models_without_attention_are_swept(tmp_path):
    model = ga.glm_model(ga.LogisticLoss(), lam=0.1)
    found = sweep(
        model, tmp_path, alpha=2.0, lam=[0.1, 0.3], d=80, branch="semantic", method=["SE", "GAMP", "GD"],
        descent="lbfgs", rtol=1e-2,
    )  # fmt: skip
    assert len(found.rows) == 6
    assert all(row["converged"] for row in found.rows)
    assert {row["omega"] for row in found.rows} == {None}
    values = {(row["method"], row["lam"]): row for row in found.rows}
    for lam in (0.1, 0.3):
        gamp, descent, predicted = (values[method, lam] for method in ("GAMP", "GD", "SE"))
        assert gamp["train_loss"] == pytest.approx(descent["train_loss"], abs=1e-9)
        assert gamp["test_error"] == pytest.approx(predicted["test_error"], rel=0.2)
    with pytest.raises(TypeError, match="SoftmaxTeacher"):
        sweep(model, tmp_path / "omega", alpha=2.0, omega=0.3)


def test_dataset_has_the_axes_that_vary(tiny_sweep):
    found = tiny_sweep.dataset()
    assert dict(found.sizes) == {"solver": 2, "branch": 2, "alpha": 2, "seed": 4}
    assert float(found.omega) == 0.3
    assert int(found.d) == 60
    se = found.sel(solver="SE")
    assert se.q.dims == ("branch", "alpha", "seed")
    assert (se.q == se.q.isel(seed=0)).all()  # repeated along the seeds
    row = next(r for r in tiny_sweep.rows if r["method"] == "GAMP" and r["seed"] == 3 and r["alpha"] == 1.5)
    cell = found.sel(solver="GAMP", branch=row["branch"], alpha=1.5, seed=3)
    assert float(cell.q) == np.mean(row_overlaps(row).q)
    assert float(cell.V) == np.mean(row_overlaps(row).V)
    assert str(cell.status.values) == row["status"]
    assert found.attrs["commits"] == str(commit())
    assert json.loads(found.attrs["settings"])["rtol"] == 1e-2


def test_a_list_of_cells_has_one_dimension(model, tmp_path):
    entries = [{"alpha": 1.0, "seed": 3}, {"alpha": 2.0, "seed": 1}]
    done = sweep(model, tmp_path, cells=entries, **{k: v for k, v in QUICK.items() if k != "alpha"})
    found = done.dataset()
    assert dict(found.sizes) == {"cell": 4}
    assert found.alpha.values.tolist() == [1.0, 1.0, 2.0, 2.0]
    assert found.seed.values.tolist() == [3, 3, 1, 1]
    assert [asdict(cell)["alpha"] for cell in done.cells] == found.alpha.values.tolist()


def test_netcdf_files_are_equal_byte_by_byte(tiny_sweep, tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5py")
    found = tiny_sweep.dataset()
    save(found, tmp_path / "one.nc")
    save(to_dataset(tiny_sweep.folder), tmp_path / "two.nc")
    assert (tmp_path / "one.nc").read_bytes() == (tmp_path / "two.nc").read_bytes()
    stored = xarray.load_dataset(tmp_path / "one.nc", engine="h5netcdf")
    assert stored.drop_attrs(deep=False).equals(found)
    assert stored.attrs.keys() - {"gamp_attention"} == found.attrs.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.nc", "two.nc"]
