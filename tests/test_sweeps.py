"""Sweeps: what they compute, where it is kept, and that neither order, executor nor interruption matters."""

import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.models import with_parameter
from gamp_attention.sweeps import compute
from gamp_attention.sweeps.cells import cell_key, grid, listed
from gamp_attention.sweeps.chains import chains
from gamp_attention.sweeps.compute import Settings, row_overlaps, run_cell
from gamp_attention.sweeps.dataset import save, to_dataset
from gamp_attention.sweeps.digests import base_digest, digest
from gamp_attention.sweeps.scheduler import kernel_threads, local_pool
from gamp_attention.sweeps.store import Store, commit
from gamp_attention.sweeps.sweep import sweep

TINY = {"alpha": [1.0, 1.5], "method": ["SE", "GAMP"], "seed": [0, 1, 2, 3], "d": 60, "rtol": 1e-2, "n_test": 50}
CELLS = 4 + 16
QUICK = {"alpha": 1.0, "method": "GAMP", "d": 40, "n_test": 20}
SCRIPT = """
import json, sys
import gamp_attention as ga
from gamp_attention.sweeps.scheduler import local_pool
from gamp_attention.sweeps.sweep import sweep

if __name__ == "__main__":
    folder, options, workers = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    sweep(ga.paper_model(), folder, executor=local_pool(workers) if workers else None, **options)
"""


@pytest.fixture(scope="module")
def reference(model, tmp_path_factory):
    """An uninterrupted serial run."""
    return sweep(model, tmp_path_factory.mktemp("reference"), **TINY)


@pytest.fixture
def start(tmp_path):
    """Starts a sweep in a process of its own."""
    script, started = tmp_path / "script.py", []
    script.write_text(SCRIPT)

    def run(folder, workers=0):
        arguments = [sys.executable, str(script), str(folder), json.dumps(TINY), str(workers)]
        started.append(subprocess.Popen(arguments))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def same(folder, reference):
    """Whether a folder holds what an uninterrupted run gave, to the last bit: in all rows, and as a Dataset."""
    store = Store(folder)
    for row in reference.rows:
        assert repr(store.load(row["key"]) | {"seconds": 0}) == repr(row | {"seconds": 0})
    return to_dataset(store).identical(reference.dataset())


def files(folder):
    """The files of finished cells, with what a second computation would change."""
    found = {}
    for path in (folder / "cells").glob("*.json"):
        found[path.name] = (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes())
    return found


# cells and keys


def test_grid_is_the_product_of_its_axes(model):
    cells = grid(model, alpha=[1, 2.0], omega=np.array([0.1, 0.2, 0.3]), method=("SE", "GAMP"), seed=range(2), d=50)
    assert len(cells) == 2 * 3 * 2 * (1 + 2)
    assert {cell.sigma for cell in cells} == {0.5}
    assert all((cell.d is None) == (cell.seed is None) == (cell.method == "SE") for cell in cells)
    assert {type(cell.alpha) for cell in cells} == {float}


def test_a_list_of_small_grids_has_no_repetition(model):
    entries = [{"alpha": [1.0, 2.0]}, {"alpha": 2.0, "lam": 0.1, "method": "GD", "seed": [0, 1]}, {"alpha": 1.0}]
    cells = listed(model, entries, branch="semantic", d=70)
    assert [(c.method, c.alpha, c.lam, c.d, c.seed) for c in cells] == [
        ("SE", 1.0, 0.01, None, None),
        ("SE", 2.0, 0.01, None, None),
        ("GD", 2.0, 0.1, 70, 0),
        ("GD", 2.0, 0.1, 70, 1),
    ]


def test_tokens_of_different_variance_have_no_sigma(tmp_path):
    uneven = ga.attention_model(2, sigma=(0.5, 0.7))
    assert grid(uneven, alpha=1.0)[0].sigma is None
    with pytest.raises(ValueError, match="no common variance"):
        grid(uneven, alpha=1.0, sigma=0.5)
    done = sweep(uneven, tmp_path, **QUICK | {"branch": "semantic"})
    assert done.rows[0]["converged"]
    assert "sigma" not in done.dataset().coords


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


def test_keys_do_not_depend_on_the_process(model):
    code = (
        "import gamp_attention as ga\nfrom gamp_attention.sweeps.cells import grid\n"
        "from gamp_attention.sweeps.chains import chains\nfrom gamp_attention.sweeps.compute import Settings\n"
        "model = ga.paper_model()\ncells = grid(model, alpha=[1.0, 1.5], method=('SE', 'GAMP', 'GD'))\n"
        "print(*[job.key for chain in chains(model, cells, Settings()) for job in chain])"
    )
    cells = grid(model, alpha=[1.0, 1.5], method=("SE", "GAMP", "GD"))
    here = [job.key for chain in chains(model, cells, Settings()) for job in chain]
    there = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == here
    assert len(set(here)) == len(cells)


def test_keys_tell_everything_apart(model):
    cell = grid(model, alpha=1.0, method="GAMP", branch="semantic")[0]
    base, used = base_digest(model), Settings().used_by("GAMP")
    others = {
        "method": "GD", "branch": "positional", "alpha": math.nextafter(1.0, 2), "omega": 0.2,
        "lam": 0.02, "sigma": 0.6, "d": 999, "seed": 1,
    }  # fmt: skip
    keys = [cell_key(cell, base, used, None), cell_key(cell, base, used, "another")]
    keys += [cell_key(replace(cell, **{name: value}), base, used, None) for name, value in others.items()]
    changed = {"risk": "asymptotic", "n_test": 10, "gamp_steps": 9, "tol": 1e-6, "descent": "lbfgs", "gd_steps": 3}
    for name, value in (changed | {"rtol": 1e-2}).items():
        for method in ("SE", "GAMP", "GD"):
            kept = Settings(**{name: value}).used_by(method) == Settings().used_by(method)
            assert kept == (name not in compute.USED[method])
    keys += [cell_key(cell, base, used | {name: value}, None) for name, value in changed.items()]
    models = [
        ga.paper_model(A=((0.3, 0.7), (0.8, 0.2))),
        ga.attention_model(2, tau=(1.0, -0.5)),
        ga.attention_model(2, rank=2),
        ga.attention_model(3),
        ga.attention_model(2, sigma=(0.5, 0.6)),
        replace(model, student=ga.DotProductAttention(2.0)),
    ]
    keys += [cell_key(cell, base_digest(other), used, None) for other in models]
    assert len(set(keys)) == len(keys)
    for name, value in (("omega", 0.1), ("lam", 0.5), ("sigma", 0.9)):  # the cell holds them
        assert base_digest(with_parameter(model, name, value)) == base
        assert digest(with_parameter(model, name, value)) != digest(model)


def test_a_warm_cell_has_another_key_after_another_neighbour(model):
    def keys(alphas, **options):
        cells = grid(model, alpha=alphas, branch="positional")
        return {job.cell.alpha: job.key for chain in chains(model, cells, Settings(), **options) for job in chain}

    assert keys([1.0, 2.0])[1.0] == keys([1.0, 1.5])[1.0] == keys([2.0, 1.0])[1.0]
    assert keys([1.0, 2.0])[2.0] == keys([2.0, 1.0])[2.0] != keys([1.5, 2.0])[2.0]
    assert keys([1.0, 2.0], warm=False)[2.0] == keys([1.5, 2.0], warm=False)[2.0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"alpha": None}, "alpha"),
        ({"alpha": []}, "alpha"),
        ({"alpha": [1.0, 1.0]}, "alpha: needs values that all differ"),
        ({"alpha": [1.0, math.nan]}, "alpha"),
        ({"alpha": "1"}, "alpha"),
        ({"omega": 1.1}, "omega"),
        ({"lam": 0}, "lam"),
        ({"sigma": [0.5, -1]}, "sigma"),
        ({"d": 10.5}, "d: "),
        ({"seed": -1}, "seed"),
        ({"branch": "other"}, "branch"),
        ({"method": "AMP"}, "method"),
        ({"method": "GAMP", "alpha": 0.01, "d": 10}, "alpha: needs at least one sample"),
        ({"cells": {"alpha": 1.0}}, "cells"),
        ({"cells": [{"alpha": 1.0}, {"Alpha": 1.0}]}, r"cells\[1\]"),
        ({"cells": [{"alpha": -1.0}]}, r"cells\[0\]: alpha"),
        ({"cells": []}, "cells"),
        ({"rtol": 1.0}, "rtol"),
        ({"risk": "other"}, "risk"),
        ({"n_test": 1}, "n_test"),
        ({"gd_steps": 0}, "gd_steps"),
        ({"descent": "other"}, "descent"),
        ({"warm": 1}, "warm"),
        ({"executor": 2}, "executor"),
        ({"threads": 0}, "threads"),
    ],
)
def test_bad_arguments_are_named_before_any_work(model, tmp_path, monkeypatch, options, match):
    monkeypatch.setattr(compute, "solve_near", lambda *_, **__: pytest.fail("work was started"))
    with pytest.raises((TypeError, ValueError), match=match):
        sweep(model, tmp_path / "new", **{"alpha": 1.0} | options)
    assert not (tmp_path / "new").exists()


def test_bad_models_and_folders_are_named(model, tmp_path):
    with pytest.raises(TypeError, match="model"):
        sweep("paper", tmp_path, alpha=1.0)
    with pytest.raises(TypeError, match="folder"):
        sweep(model, 3, alpha=1.0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="folder"):
        sweep(model, tmp_path / "file", alpha=1.0)
    with pytest.raises(ValueError, match="source"):
        to_dataset(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ValueError, match=r"sweep\.json is no manifest"):
        sweep(model, tmp_path, alpha=1.0)


# rows


def test_rows_are_what_the_solvers_give(model, reference):
    rows = {(r["method"], r["branch"], r["alpha"], r["seed"]): r for r in reference.rows}
    assert len(rows) == CELLS
    se = ga.solve_state_evolution(model, 1.5, "semantic", rtol=1e-2, stable=False)
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
    assert sum(reference.counts.values()) == CELLS


def test_descent_agrees_with_message_passing(model, tmp_path):
    done = sweep(model, tmp_path, alpha=1.5, d=60, branch="semantic", method=["GAMP", "GD"], n_test=50, descent="lbfgs")
    found = done.dataset()
    assert done.counts == {"converged": 2}
    assert np.ptp(found.train_loss.values) < 1e-10
    assert np.ptp(found.test_error.values) < 1e-6


def test_random_starts_do_not_know_the_teacher(model):
    """The data's own seed would draw the teacher's weights again."""
    cell = grid(model, alpha=1.0, method="GD", branch="random", d=2000, seed=0)[0]
    row = run_cell(model, cell, Settings(gd_steps=1, n_test=2))
    overlaps = row_overlaps(row)
    assert abs(overlaps.theta[0, 0, 0]) < 0.3 * np.sqrt(overlaps.q[0, 0, 0] * 0.25)


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


def test_a_warm_start_that_leaves_the_branch_is_not_taken(model):
    cells = grid(model, alpha=1.5, branch=["semantic", "positional"])
    positional = run_cell(model, cells[1], Settings(rtol=1e-2))
    row = run_cell(model, cells[0], Settings(rtol=1e-2), positional)
    assert positional["converged"]
    assert (row["start"], row["converged"]) == ("name", True)
    assert row["overlaps"]["theta"][0][0][0] > 0.01


# executors


def test_a_process_pool_gives_the_same(model, reference, tmp_path):
    with local_pool(2) as pool:
        done = sweep(model, tmp_path, executor=pool, **TINY)
    assert (done.computed, done.reused) == (CELLS, 0)
    assert same(done.folder, reference)


def test_a_dask_cluster_gives_the_same(model, reference, tmp_path):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        done = sweep(model, tmp_path, executor=client.get_executor(), **TINY)
        assert done.computed == CELLS
        assert same(done.folder, reference)
        shutil.rmtree(tmp_path / "cells")
        assert sweep(model, tmp_path, executor=client.get_executor(), **TINY | {"method": "GAMP"}).computed == 16


def test_threads_of_one_process_compute_one_cell_at_a_time(model, reference, tmp_path):
    from numba import config

    before = config.NUMBA_NUM_THREADS
    with ThreadPoolExecutor(3) as pool:
        sweep(model, tmp_path, executor=pool, **TINY | {"method": "GAMP"})
    assert sweep(model, tmp_path, **TINY | {"method": "GAMP"}).computed == 0
    assert before == config.NUMBA_NUM_THREADS
    with kernel_threads(1):
        assert config.NUMBA_NUM_THREADS == 1
    for row in (row for row in reference.rows if row["method"] == "GAMP"):
        assert Store(tmp_path).load(row["key"])["overlaps"] == row["overlaps"]


def test_a_failing_worker_ends_the_sweep_and_says_how_to_go_on(model, tmp_path):
    class Broken:
        def submit(self, *_, **__):
            future = Future()
            future.set_exception(OSError("no space"))
            return future

    with pytest.raises(RuntimeError, match=r"a worker failed \(OSError: no space\).*run the same again"):
        sweep(model, tmp_path, executor=Broken(), **QUICK)


def test_workers_that_write_elsewhere_are_noticed(model, tmp_path):
    class Elsewhere:
        def submit(self, *_, **__):
            future = Future()
            future.set_result(1)
            return future

    with pytest.raises(RuntimeError, match="2 cells are not in"):
        sweep(model, tmp_path, executor=Elsewhere(), **QUICK)


def test_an_interrupt_keeps_what_is_finished(model, tmp_path, monkeypatch):
    calls, run = [], compute.run_gamp

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(*args, **options)

    monkeypatch.setattr(compute, "run_gamp", interrupted)
    with pytest.raises(KeyboardInterrupt, match="run the same again"):
        sweep(model, tmp_path, **QUICK | {"seed": [0, 1]})
    unfinished = to_dataset(tmp_path)
    assert (unfinished.status == "missing").sum() == 2
    assert np.isnan(unfinished.q).sum() == 2
    done = sweep(model, tmp_path, **QUICK | {"seed": [0, 1]})
    assert (done.computed, done.reused) == (2, 2)


# the folder


def test_kill_9_loses_only_the_cells_in_flight(model, reference, start, tmp_path):
    folder, rng, seen, kills = tmp_path / "cells", random.Random(0), {}, 0
    while kills < 4:
        # first within a chain, of which one cell is finished
        process, aim = start(folder), len(seen) + (rng.randint(1, 4) if kills else 1)
        while process.poll() is None and len(files(folder)) < aim:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        assert process.wait() != 0, "it was finished before it could be killed"
        kills += 1
        now = files(folder)
        assert {name: now.get(name) for name in seen} == seen, "a finished cell was computed again"
        seen = now
    assert 4 <= len(seen) < CELLS
    done = sweep(model, folder, **TINY)
    assert (done.computed, done.reused) == (CELLS - len(seen), len(seen))
    assert {name: files(folder)[name] for name in seen} == seen
    assert same(done.folder, reference)


def test_kill_9_of_a_pool_leaves_no_workers(model, start, tmp_path):
    psutil = pytest.importorskip("psutil")
    process = start(tmp_path / "cells", workers=2)
    while process.poll() is None and not files(tmp_path / "cells"):
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    assert len(workers) >= 2
    assert psutil.wait_procs(workers, timeout=10)[1] == []


def test_two_processes_share_one_folder(model, reference, start, tmp_path):
    one, other = start(tmp_path / "cells"), start(tmp_path / "cells")
    assert (one.wait(), other.wait()) == (0, 0)
    assert same(tmp_path / "cells", reference)
    assert not list(tmp_path.glob("cells/**/*.part"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace(b'"n_iter": ', b'"n_iter": 1'),
        lambda text: b"",
        lambda text: b"[1]",
        lambda text: b"\xff" + text,
    ],
    ids=["truncated", "altered", "empty", "other", "binary"],
)
def test_damaged_files_are_computed_again(model, reference, tmp_path, damage):
    shutil.copytree(reference.folder, tmp_path, dirs_exist_ok=True)
    key = next(row["key"] for row in reference.rows if row["method"] == "GAMP")
    path = Store(tmp_path).path(key)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match=f"{key}.json is damaged"):
        done = sweep(model, tmp_path, **TINY)
    assert (done.computed, done.reused) == (1, CELLS - 1)
    assert same(done.folder, reference)


def test_numbers_survive_exactly(tmp_path):
    store = Store(tmp_path)
    store.begin({"model": "any"})
    values = [0.1, 1 / 3, 5e-324, -0.0, 1.7976931348623157e308, math.nan, math.inf, -math.inf, 2**70]
    store.save("key", {"alpha": 1.0}, {"values": values, "word": "nan", "none": None, "yes": True}, 0.5)
    row = store.load("key")
    assert repr(row["values"]) == repr(values)
    assert (row["word"], row["none"], row["yes"], row["alpha"], row["seconds"]) == ("nan", None, True, 1.0, 0.5)
    json.loads(store.path("key").read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert store.load("other") is None


def test_a_folder_is_for_one_model(model, tmp_path):
    sweep(model, tmp_path, **QUICK)
    other = ga.paper_model(A=((0.3, 0.7), (0.8, 0.2)))
    with pytest.raises(ValueError, match="folder: needs a folder of its own"):
        sweep(other, tmp_path, **QUICK)
    more = sweep(with_parameter(model, "omega", 0.1), tmp_path, **QUICK | {"omega": [0.1, 0.3]})
    assert (more.computed, more.reused) == (2, 2)


# datasets


def test_dataset_has_the_axes_that_vary(reference):
    found = reference.dataset()
    assert dict(found.sizes) == {"solver": 2, "branch": 2, "alpha": 2, "seed": 4}
    assert float(found.omega) == 0.3
    assert int(found.d) == 60
    se = found.sel(solver="SE")
    assert se.q.dims == ("branch", "alpha", "seed")
    assert (se.q == se.q.isel(seed=0)).all()  # repeated along the seeds
    row = next(r for r in reference.rows if r["method"] == "GAMP" and r["seed"] == 3 and r["alpha"] == 1.5)
    cell = found.sel(solver="GAMP", branch=row["branch"], alpha=1.5, seed=3)
    assert float(cell.q) == np.mean(row_overlaps(row).q)
    assert float(cell.V) == np.mean(row_overlaps(row).V)
    assert str(cell.status.values) == row["status"]
    assert found.attrs["commits"] == str(commit())
    assert json.loads(found.attrs["settings"])["rtol"] == 1e-2


def test_a_list_has_one_dimension(model, tmp_path):
    entries = [{"alpha": 1.0, "seed": 3}, {"alpha": 2.0, "seed": 1}]
    done = sweep(model, tmp_path, cells=entries, **{k: v for k, v in QUICK.items() if k != "alpha"})
    found = done.dataset()
    assert dict(found.sizes) == {"cell": 4}
    assert found.alpha.values.tolist() == [1.0, 1.0, 2.0, 2.0]
    assert found.seed.values.tolist() == [3, 3, 1, 1]
    assert [asdict(cell)["alpha"] for cell in done.cells] == found.alpha.values.tolist()


def test_netcdf_files_are_equal_byte_by_byte(reference, tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5py")
    found = reference.dataset()
    save(found, tmp_path / "one.nc")
    save(to_dataset(reference.folder), tmp_path / "two.nc")
    assert (tmp_path / "one.nc").read_bytes() == (tmp_path / "two.nc").read_bytes()
    assert xarray.load_dataset(tmp_path / "one.nc", engine="h5netcdf").identical(found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.nc", "two.nc"]
