"""After Ctrl-C finished results remain and a message explains how to resume; killed processes leave no bad files."""

import time
from pathlib import Path

import pytest

from gamp_attention.extensions.cli.main import main
from gamp_attention.extensions.sweeps.store import Store
from tests.conftest import PATIENCE, interrupt_at, interrupted

COMMAND = "import sys; from gamp_attention.extensions.cli.main import main; sys.exit(main())"
CELLS = ["--alpha", "1.0", "--method", "GAMP", "--d", "60", "--seed", *map(str, range(400))]


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


@pytest.mark.parametrize("command", [["solve"], ["boundaries", "--omega", "0.3"]])
def test_commands_without_a_finished_part_report_that_they_must_be_run_again(command, monkeypatch, capsys):
    from gamp_attention.theory.fixed_points import search

    interrupt_at(monkeypatch, search, "follow_flow", 1)
    assert main(command) == 130
    message = capsys.readouterr().err
    assert "run the same command again" in message
    # the folder of boundaries without --folder is deleted, so that the message must not name it
    assert ("nothing was stored" in message) == (command[0] == "boundaries")
    assert "finished cells" not in message


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


def test_an_interrupt_that_a_library_drops_is_sent_again(start):
    # ctypes prints and drops exceptions in callbacks; the callback gets Ctrl-C, as the Sobol generator of scipy may
    work = (
        "def work(*_, **__):\n"
        "    press = ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(.01))\n"
        f"    press(); time.sleep({PATIENCE}); sys.exit('went on')\n"
    )
    solver = "import gamp_attention.extensions.cli.paper_model as module\nmodule.solve_state_evolution = work\n"
    process = start("-c", f"import ctypes, os, signal, time\n{work}{solver}{COMMAND}", "solve")
    message = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    assert message.startswith("gamp-attention solve: interrupted")
    assert message.count("\n") == 1
