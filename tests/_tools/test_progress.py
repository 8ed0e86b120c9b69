"""Progress on a terminal: nested tasks, no output elsewhere, and Ctrl-C during compilation."""

import io
import os
import re
import select
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention._tools import progress
from tests.conftest import PATIENCE

MAIN = "import sys; from gamp_attention.extensions.cli.main import main; sys.exit(main())"


class Terminal(io.StringIO):
    """Standard error that claims to be a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Standard error as a terminal on which every report is drawn at once."""
    monkeypatch.setattr(progress, "DELAY", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    terminal_output = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal_output))
    return terminal_output


def find_percents(text):
    return [int(each) for each in re.findall(r"(\d+)%\|", text)]


def draw_data(n=90, d=60):
    data = ga.sample(ga.paper_model(), d, n / d, seed=0)
    return ga.Dataset(data.tokens, data.outputs, data.positions)


@pytest.mark.extensions
def test_a_run_shows_starts_iterations_losses_and_gradients(terminal):
    data = draw_data()
    result = ga.train(data, n_starts=3, survey=False, escape=False)
    drawn = terminal.getvalue()
    for k, record in enumerate(result.starts, 1):
        assert f"start {k} of 3 ({record.name}), iteration 0" in drawn
    kept = next(k for k, record in enumerate(result.starts) if record.kept)
    shown = re.findall(
        rf"start {kept + 1} of 3 \([\w ]+\), iteration (\d+), training loss (\S+), gradient norm (\S+?)\s", drawn
    )
    assert [int(t) for t, _, _ in shown] == list(range(result.n_iter + 1))
    assert [float(loss) for _, loss, _ in shown] == pytest.approx(result.history.train_loss, rel=1e-3)
    assert [float(norm) for _, _, norm in shown] == pytest.approx(result.history.gradient_norm, rel=0.06)
    assert drawn.endswith("\r")  # the line is cleared


@pytest.mark.parametrize("silent", ["progress=False", "no terminal", "thread", "short"])
def test_nothing_is_drawn_if_it_is_switched_off(silent, terminal, monkeypatch):
    data, options = draw_data(), {}
    if silent == "progress=False":
        options["progress"] = False
    elif silent == "no terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    elif silent == "short":
        monkeypatch.setattr(progress, "DELAY", 3600.0)
    if silent == "thread":
        thread = threading.Thread(target=ga.run_gamp, args=(data,))
        thread.start()
        thread.join()
    else:
        assert ga.run_gamp(data, **options).converged
    assert "iteration" not in terminal.getvalue()


@pytest.mark.extensions
def test_progress_is_shown_elsewhere_on_request(terminal, monkeypatch):
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    ga.run_gamp(draw_data(), progress=True)
    assert "spectral 1 start, iteration 0" in terminal.getvalue()
    with pytest.raises(TypeError, match="progress: needs True or False, got 'yes'"):
        ga.run_gamp(draw_data(), progress="yes")


def test_inner_tasks_move_the_bar_of_the_outer_one(terminal):
    with progress.Progress("outer ", total=2) as outer:
        for k in range(2):
            with progress.Progress(total=5) as inner:
                inner.describe(f"part {k}")
                for _ in range(5):
                    inner.update()
            outer.update()
    shown = find_percents(terminal.getvalue())
    assert sorted(shown) == shown
    assert set(range(0, 101, 10)) <= set(shown)
    assert "part 0" in terminal.getvalue()
    assert "part 1" in terminal.getvalue()


def test_an_error_or_ctrl_c_ends_all_tasks(terminal):
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), progress.Progress("outer "), progress.Progress(total=2):
            raise error
    terminal.truncate(0)
    with progress.Progress("next ", total=1) as task:
        task.update()
    assert "next 100%" in terminal.getvalue()


class PseudoTerminal:
    """A process on a separate terminal, and the text that it has written there."""

    def __init__(self, code, *arguments, **environment):
        import pty

        self.text, self.began = "", time.monotonic()
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.environ.update(environment)
            os.execv(sys.executable, [sys.executable, "-c", code, *arguments])

    def read(self, pattern=None, seconds=PATIENCE):
        """Read until a pattern appears or the output ends; return the text read so far."""
        while pattern is None or not re.search(pattern, self.text):
            left = seconds - (time.monotonic() - self.began)
            assert left > 0, self.text
            if select.select([self.file], [], [], left)[0]:
                try:
                    more = os.read(self.file, 1 << 16)
                except OSError:  # raised on Linux if the other end was closed
                    more = b""
                if not more:
                    break
                self.text += more.decode(errors="replace")
        return self.text

    def end(self):
        """Press Ctrl-C; return the exit status."""
        os.write(self.file, b"\x03")
        self.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def pseudo_terminal():
    pytest.importorskip("pty")
    started = []

    def start(*arguments, **environment):
        started.append(PseudoTerminal(*arguments, **environment))
        return started[-1]

    yield start
    for each in started:
        os.close(each.file)


def test_compilation_is_announced_once_in_each_task(capsys):
    """A later task may compile kernels for another loss or in single precision."""
    for shown, count in ((True, 1), (False, 0), (True, 1)):
        with progress.Progress("outer", shown=shown):
            for _ in range(2):
                with progress.Progress("inner"):
                    progress.announce_compilation()
        assert capsys.readouterr().err.count("compiling kernels") == count
    progress.announce_compilation()
    assert not capsys.readouterr().err


@pytest.mark.extensions
@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("seconds", [0.0, 0.7])
def test_compilation_is_announced_and_ends_with_ctrl_c(seconds, tmp_path, pseudo_terminal):
    """A fresh cache: the first kernels take seconds. Callbacks of LLVM must not turn Ctrl-C into another error."""
    data = draw_data()
    np.savez(tmp_path / "mine.npz", tokens=data.tokens, outputs=data.outputs)
    process = pseudo_terminal(MAIN, "fit", str(tmp_path / "mine.npz"), NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    process.read("compiling kernels for this loss and type of numbers: 10 to 40 s, only the first time")
    time.sleep(seconds)
    assert process.end() == 130
    assert "Traceback" not in process.text
    assert "gamp-attention fit: interrupted" in process.text
    assert process.text.count("compiling") == 1
