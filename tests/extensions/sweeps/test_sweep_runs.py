"""Runs of sweeps: neither executor, nor interruption, nor damage to the folder changes their results."""

import json
import math
import os
import random
import shutil
import subprocess
import sys
import time

import pytest

import gamp_attention as ga
from gamp_attention.extensions.sweeps import jobs
from gamp_attention.extensions.sweeps.store import Store
from gamp_attention.extensions.sweeps.sweep import sweep
from gamp_attention.theory.models.model import with_parameter
from tests.conftest import CELLS, QUICK, ROOT, TINY, interrupt_at

SCRIPT = """
import json, sys
import gamp_attention as ga

if __name__ == "__main__":
    folder, options, workers = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    ga.sweep(ga.paper_model(), folder, executor=ga.local_pool(workers) if workers else None, **options)
"""


@pytest.fixture
def start_sweep(start, tmp_path):
    """Function that starts a sweep in a separate process."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return lambda folder, workers=0: start(str(script), str(folder), json.dumps(TINY), str(workers))


def files(folder):
    """Return the files of finished cells, with times and contents that a second computation would change."""
    found = {}
    for path in (folder / "cells").glob("*.json"):
        found[path.name] = (path.stat().st_mtime_ns, path.stat().st_ino, path.read_bytes())
    return found


def same(folder, tiny_sweep):
    """Return whether a folder has the rows of an uninterrupted run, to the last bit."""
    store = Store(folder)
    return all(repr(store.load(r["key"]) | {"seconds": 0}) == repr(r | {"seconds": 0}) for r in tiny_sweep.rows)


def test_a_pool_in_a_script_without_a_guard(tmp_path):
    """Workers import the script, which would make further pools."""
    call = f"s = ga.sweep(ga.paper_model(), {str(tmp_path / 'cells')!r}, alpha=1.0, method='GAMP', d=40, executor=pool)"
    script = f"import gamp_attention as ga\npool = ga.local_pool(2)\n{call}\nprint(s.computed)\n"
    (tmp_path / "script.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "scripts with local_pool need the guard `if __name__" in done.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_local_pool_gives_the_same(start_sweep, tiny_sweep, tmp_path):
    assert start_sweep(tmp_path / "cells", workers=2).wait() == 0
    assert same(tmp_path / "cells", tiny_sweep)


def test_the_file_of_a_cell_that_another_process_stored_meanwhile_stays(model, tmp_path, monkeypatch):
    run, seen = jobs.CellJob.run, {}

    def run_and_store(job, previous):
        row = run(job, previous)
        Store(tmp_path).save(job.key, job.parameters, row, 1.0)
        seen.update(files(tmp_path))
        return row

    monkeypatch.setattr(jobs.CellJob, "run", run_and_store)
    done = sweep(model, tmp_path, **QUICK)
    assert len(seen) == len(done.rows) == 2
    assert files(tmp_path) == seen


@pytest.mark.slow
def test_a_dask_cluster_gives_the_same(model, tiny_sweep, tmp_path):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        done = sweep(model, tmp_path, executor=client.get_executor(), **TINY)
        assert done.computed == CELLS
        assert same(done.folder, tiny_sweep)
        shutil.rmtree(tmp_path / "cells")
        assert sweep(model, tmp_path, executor=client.get_executor(), **TINY | {"method": "GAMP"}).computed == 16


def test_an_interrupted_sweep_in_one_process_stores_finished_cells(model, tmp_path, monkeypatch):
    interrupt_at(monkeypatch, jobs, "run_gamp", 3)
    with pytest.raises(KeyboardInterrupt, match="run the same command again"):
        sweep(model, tmp_path, **QUICK | {"seed": [0, 1]})
    assert len(files(tmp_path)) == 2
    done = sweep(model, tmp_path, **QUICK | {"seed": [0, 1]})
    assert (done.computed, done.reused) == (2, 2)


@pytest.mark.slow
def test_kill_9_loses_only_the_cells_in_flight(model, tiny_sweep, start_sweep, tmp_path):
    folder, rng, seen, kills = tmp_path / "cells", random.Random(0), {}, 0
    while kills < 3:
        # first within a chain, of which one cell is finished
        process, aim = start_sweep(folder), len(seen) + (rng.randint(1, 4) if kills else 1)
        while process.poll() is None and len(files(folder)) < aim:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        process.kill()
        assert process.wait() != 0, "it was finished before it could be killed"
        kills += 1
        now = files(folder)
        assert {name: now.get(name) for name in seen} == seen, "a finished cell was computed again"
        seen = now
    assert 3 <= len(seen) < CELLS
    done = sweep(model, folder, **TINY)
    assert (done.computed, done.reused) == (CELLS - len(seen), len(seen))
    assert {name: files(folder)[name] for name in seen} == seen
    assert same(done.folder, tiny_sweep)


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
def test_damaged_files_are_computed_again(model, tiny_sweep, tmp_path, damage):
    shutil.copytree(tiny_sweep.folder, tmp_path, dirs_exist_ok=True)
    key = next(row["key"] for row in tiny_sweep.rows if row["method"] == "GAMP")
    path = Store(tmp_path).path(key)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match=f"{key}.json is damaged"):
        done = sweep(model, tmp_path, **TINY)
    assert (done.computed, done.reused) == (1, CELLS - 1)
    assert same(done.folder, tiny_sweep)


def test_numbers_survive_exactly(tmp_path):
    store = Store(tmp_path)
    store.begin({"model": "any"}, [])
    values = [0.1, 1 / 3, 5e-324, -0.0, 1.7976931348623157e308, math.nan, math.inf, -math.inf, 2**70]
    store.save("key", {"alpha": 1.0}, {"values": values, "word": "nan", "none": None, "yes": True}, 0.5)
    row = store.load("key")
    assert repr(row["values"]) == repr(values)
    assert (row["word"], row["none"], row["yes"], row["alpha"], row["seconds"]) == ("nan", None, True, 1.0, 0.5)
    assert store.load("other") is None


def test_a_folder_is_for_one_model(model, tmp_path):
    sweep(model, tmp_path, **QUICK)
    other = ga.paper_model(A=((0.3, 0.7), (0.8, 0.2)))
    with pytest.raises(ValueError, match="folder: needs another folder"):
        sweep(other, tmp_path, **QUICK)
    more = sweep(with_parameter(model, "omega", 0.1), tmp_path, **QUICK | {"omega": [0.1, 0.3]})
    assert (more.computed, more.reused) == (2, 2)
