"""Processes that use one folder of a sweep at a time divide its cells among them."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import gamp_attention as ga
from gamp_attention.extensions.sweeps.store import STALE, Claims, process
from tests.conftest import CELLS, QUICK, ROOT, TINY

SCRIPT = """
import json, os, pathlib, sys, time
import gamp_attention as ga

if __name__ == "__main__":
    folder, options, workers, together = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    here = pathlib.Path(folder).parent
    (here / f"ready.{os.getpid()}").touch()
    while len(list(here.glob("ready.*"))) < together:  # all begin together
        time.sleep(0.01)
    pool = ga.local_pool(workers) if workers else None
    found = ga.sweep(ga.paper_model(), folder, executor=pool, **options)
    print(found.computed, len(found.rows), sum(row["status"] == "missing" for row in found.rows))
"""


@pytest.fixture
def begin(tmp_path):
    """Start a sweep in a separate process."""
    script, started = tmp_path / "script.py", []
    script.write_text(SCRIPT)

    def run(folder, workers=0, together=1):
        words = [sys.executable, str(script), str(folder), json.dumps(TINY), str(workers), str(together)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, **pipes))
        return started[-1]

    yield run
    for each in started:
        each.kill()
        each.communicate()


@pytest.mark.slow
def test_a_process_that_was_killed_leaves_its_cell_to_others(begin, tmp_path, model, tiny_sweep, monkeypatch):
    folder = tmp_path / "cells"
    process = begin(folder)
    while not list(folder.glob("cells/*.claim")):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGSTOP)  # suspended, it still holds its cell, if it was not about to store it
    held = list(folder.glob("cells/*.claim"))
    process.kill()
    process.wait()
    monkeypatch.setattr("gamp_attention.extensions.sweeps.scheduler.time.sleep", pytest.fail)  # it does not wait
    done = ga.sweep(model, folder, **TINY)
    assert done.computed >= CELLS - 1 or not held
    assert not list(folder.glob("cells/*.claim"))
    assert done.dataset().identical(tiny_sweep.dataset())


def claimed(folder, key, **changes):
    """Write the claim of another process."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key}.claim"
    path.write_text(json.dumps(process() | {"token": "x"} | changes))
    return path


@pytest.mark.parametrize(
    ("changes", "age", "free"),
    [
        ({}, 0, False),  # a process that lives
        ({"born": "1"}, 0, True),  # another process had its number
        ({"pid": 2**22 + 1}, 0, True),  # a process that has ended
        ({"host": "elsewhere"}, 0, False),
        ({"host": "elsewhere"}, STALE / 2, False),
        ({"host": "elsewhere"}, STALE + 5, True),
        ({"host": "elsewhere", "pid": None}, STALE + 5, True),
        ({"host": "elsewhere"}, 30 - STALE, False),  # a clock that is ahead
        ({"host": "elsewhere"}, -86400, True),
        ({"host": "elsewhere", "pid": None}, -STALE - 5, True),
    ],
)
def test_only_void_claims_are_taken_over(tmp_path, changes, age, free):
    path = claimed(tmp_path, "key", **changes)
    before = path.read_bytes()
    os.utime(path, (time.time() - age,) * 2)
    with Claims(tmp_path).hold("key") as held:
        assert held == free
        assert (path.read_bytes() == before) != free
        with Claims(tmp_path).hold("key") as again:
            assert not again
    assert path.exists() != free
    assert {each.name for each in tmp_path.iterdir()} == (set() if free else {"key.claim"})


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
