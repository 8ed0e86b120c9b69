"""Ctrl-C during the imports of the command line and during its commands ends in one line, in any library."""

import time
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, interrupted

SCRIPT = (
    "import sys\nfrom gamp_attention.extensions.cli.main import main\n"
    "if __name__ == '__main__':\n    sys.exit(main())\n"
)
HANDLER = "signal.getsignal(signal.SIGINT)"


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
@pytest.mark.parametrize("library", ["numpy/_core", "llvmlite", "numba", "scipy/linalg", "scipy/special"])
@pytest.mark.parametrize("way", ["script", "code"])
def test_ctrl_c_during_imports_leaves_one_line(start, tmp_path, library, way):
    path = tmp_path / "gamp-attention"
    path.write_text(SCRIPT)
    process = start(*([str(path)] if way == "script" else ["-c", SCRIPT]), "solve")
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


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("before", "module", "handler"),
    [("pass", "gamp_attention", "signal.default_int_handler"),
     ("signal.signal(signal.SIGINT, signal.SIG_IGN)", "gamp_attention.extensions.cli.main", "signal.SIG_IGN")],
)  # fmt: skip
def test_the_package_does_not_change_handlers_of_signals(start, before, module, handler):
    code = f"import signal\n{before}\nimport {module}\nprint({HANDLER} is {handler})"
    assert start("-c", code).communicate(timeout=PATIENCE)[0] == "True\n"


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
