"""After Ctrl-C finished results remain and a message explains how to resume; killed processes leave no bad files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.cli.main import main
from gamp_attention.extensions.phases.phase_boundaries import DiagramJob
from gamp_attention.extensions.sweeps.store import Store
from gamp_attention.gamp import loop as message_passing
from tests.conftest import PATIENCE, interrupted

COMMAND = "import sys; from gamp_attention.extensions.cli.main import main; sys.exit(main())"
CELLS = ["--alpha", "1.0", "--method", "GAMP", "--d", "60", "--seed", *map(str, range(400))]


def stops_at(monkeypatch, module, name, number):
    """Have a function of a module be interrupted at one of its calls."""
    calls, function = [], getattr(module, name)

    def counted(*args, **options):
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        return function(*args, **options)

    monkeypatch.setattr(module, name, counted)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_an_interrupted_sweep_keeps_its_cells(workers, start, tmp_path):
    process = start("-c", COMMAND, "sweep", str(tmp_path), *CELLS, *workers)
    while process.poll() is None and len(list(tmp_path.glob("cells/*.json"))) < 2:
        time.sleep(0.02)
    words = interrupted(process)
    assert words.strip().splitlines()[-1].endswith("run the same command again to continue")
    store = Store(tmp_path)
    kept = store.present()
    assert 2 <= len(kept) < 800
    assert all(store.load(key)["converged"] in (True, False) for key in kept)


def test_an_interrupted_fit_keeps_the_weights_of_its_lowest_training_loss(tmp_path, monkeypatch, capsys):
    data, out = ga.sample(ga.paper_model(), 60, 1.5, seed=0), tmp_path / "stopped.npz"
    np.savez(tmp_path / "mine.npz", tokens=data.tokens, outputs=data.outputs, positions=data.positions)
    stops_at(monkeypatch, message_passing, "gamp_step", 8)
    assert main(["fit", str(tmp_path / "mine.npz"), "--out", str(out)]) == 130
    assert f"--init {out} with another --out continues from them" in capsys.readouterr().err
    with np.load(out, allow_pickle=False) as stored:
        assert (str(stored["status"]), int(stored["n_iter"])) == ("interrupted", 5)  # of the first start of several
        given = ga.Dataset(data.tokens, data.outputs, data.positions)
        assert ga.train_loss(given, stored["Q"]) == pytest.approx(float(stored["train_loss"]))


@pytest.mark.parametrize("command", [["solve"], ["boundaries", "--omega", "0.3"]])
def test_commands_without_a_finished_part_report_that_they_must_be_run_again(command, monkeypatch, capsys):
    from gamp_attention.theory.fixed_points import search

    stops_at(monkeypatch, search, "newton", 1)
    assert main(command) == 130
    message = capsys.readouterr().err
    assert "run the same command again" in message
    # the folder of boundaries without --folder is deleted, so that the message must not name it
    assert ("nothing was stored" in message) == (command[0] == "boundaries")
    assert "finished cells" not in message


def test_boundaries_with_a_folder_continue_from_it(model, monkeypatch, tmp_path):
    monkeypatch.setattr(DiagramJob, "run", lambda job, previous: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt, match=f"finished cells are stored in {tmp_path}: run the same command again"):
        ga.phase_boundaries(model, folder=tmp_path)


def test_kill_9_in_the_middle_of_a_write_leaves_the_old_file(start, tmp_path):
    """The file is the old one or none, and the rest of the new one has another name."""
    code = (
        "import sys, time; from gamp_attention._tools.files import write_atomically\n"
        "def slowly(file):\n"
        f"    file.write(b'half'); file.flush(); print('half', flush=True); time.sleep({PATIENCE})\n"
        "write_atomically(sys.argv[1], slowly, overwrite=True)"
    )
    for before in (None, b"old and whole"):
        path = tmp_path / "numbers.json"
        if before is not None:
            path.write_bytes(before)
        process = start("-c", code, str(path))
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert (path.read_bytes() if path.exists() else None) == before
        assert list(tmp_path.glob("*.part"))


def test_processes_of_a_pool_have_one_thread_each():
    """Also if the user has set no number; the number of the parent process does not change."""
    pytest.importorskip("threadpoolctl")
    code = (
        "import os, gamp_attention as ga\nfrom threadpoolctl import threadpool_info\n"
        "if __name__ == '__main__':\n"
        "    with ga.local_pool(1) as pool:\n"
        "        print([each['num_threads'] for each in pool.submit(threadpool_info).result()])\n"
        "    print([name for name in os.environ if name.endswith('_NUM_THREADS')])"
    )
    plain = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True)
    threads, names = done.stdout.splitlines()
    assert set(json.loads(threads)) == {1}
    assert names == "[]"


def replaced_solver(name):
    """Return code that runs the command line with a function in place of the solver of `solve`."""
    return (
        f"import gamp_attention.extensions.cli.paper_model as module\nmodule.solve_state_evolution = {name}\n"
        "from gamp_attention.extensions.cli.main import main\nsys.exit(main())"
    )


def wait_until_mapped(process, library):
    """Wait until a process has loaded a compiled module of a library."""
    maps = Path(f"/proc/{process.pid}/maps")
    while library not in maps.read_text():
        assert process.poll() is None
        time.sleep(0.001)


@pytest.mark.slow(keep=2)
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("library", ["numpy/_core", "numba", "scipy/linalg"])
def test_ctrl_c_during_imports_leaves_one_line(start, library):
    process = start("-c", COMMAND, "solve")
    wait_until_mapped(process, library)
    words = interrupted(process)
    assert words.startswith("gamp-attention")
    assert "run the same command again" in words
    assert words.count("\n") == 1


def test_an_interrupted_command_reports_that_nothing_was_written(start):
    wait = f"def wait(*_, **__):\n    print('begun', flush=True); time.sleep({PATIENCE})\n"
    process = start("-c", f"import sys, time\n{wait}{replaced_solver('wait')}", "solve")
    assert process.stdout.readline() == "begun\n"
    assert interrupted(process).startswith(
        "gamp-attention solve: interrupted, nothing was written: run the same command again"
    )


def test_an_interrupt_that_a_library_drops_is_sent_again(start):
    # ctypes prints and drops exceptions in callbacks; the callback gets Ctrl-C, as the Sobol generator of scipy may
    work = (
        "def work(*_, **__):\n"
        "    press = ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(.01))\n"
        f"    press(); time.sleep({PATIENCE}); sys.exit('went on')\n"
    )
    process = start("-c", f"import ctypes, os, signal, sys, time\n{work}{replaced_solver('work')}", "solve")
    message = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    assert message.startswith("gamp-attention solve: interrupted")
    assert message.count("\n") == 1


def test_an_error_that_an_interrupt_caused_counts_as_the_interrupt(start):
    work = (
        "def work(*_, **__):\n"
        f"    try: os.kill(os.getpid(), signal.SIGINT); time.sleep({PATIENCE})\n"
        "    except KeyboardInterrupt: raise ImportError('a library turned the interrupt into this') from None\n"
    )
    process = start("-c", f"import os, signal, sys, time\n{work}{replaced_solver('work')}", "solve")
    assert process.communicate(timeout=PATIENCE)[1].startswith("gamp-attention solve: interrupted")
    assert process.returncode == 130
