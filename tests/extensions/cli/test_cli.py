"""The commands of the theory and of sweeps: results, files, exit statuses."""

import json
import os
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.extensions.cli.main import main


@pytest.mark.slow
def test_compare_draws_and_reports(tmp_path, capsys, monkeypatch, quick_comparisons):
    monkeypatch.setattr(
        "gamp_attention.extensions.cli.paper_model.compare", partial(ga.compare, instances=2, rtol=1e-2)
    )  # less work
    picture, numbers = tmp_path / "c.png", tmp_path / "c.json"
    command = ["compare", "--d", "60", "--seed", "1", "--risk", "exact", "--gd-steps", "20"]
    assert main([*command, "--plot", str(picture), "--json", str(numbers)]) in (0, 1)
    out = capsys.readouterr().out
    for words in ("semantic branch", "positional branch", "L-BFGS from GAMP", "linear baseline", "‖∇R‖"):
        assert words in out
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    stored = json.loads(numbers.read_text())
    assert stored["settings"]["seed"] == 1
    assert [b["name"] for b in stored["branches"]] == ["semantic", "positional"]
    assert not list(tmp_path.glob("*.part"))


def test_solve_and_trajectory_write_json(tmp_path, capsys):
    assert main(["solve", "--alpha", "1.0", "--json", "-"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert solved["status"] == "converged"
    assert main(["trajectory", "--n-iter", "2", "--json", "-"]) == 0
    path = json.loads(capsys.readouterr().out)
    assert len(path["q"]) == 3


@pytest.mark.slow
def test_solve_with_a_step_of_breaking(tmp_path, capsys):
    command = ["solve", "--alpha", "1.5", "--init", "positional", "--rtol", "0.03", "--json", "-"]
    assert main([*command, "--rsb", "1", "--parisi", "400"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert solved["parisi"] == [400.0]
    assert len(solved["levels"]) == 2
    assert solved["train_loss"][1] < 0.03 * solved["train_loss"][0]


@pytest.mark.parametrize(
    "command", [[Path(sys.executable).with_name("gamp-attention")], [sys.executable, "-m", "gamp_attention"]]
)
def test_the_installed_command_refuses_a_bad_flag(command):
    done = subprocess.run([*command, "solve", "--init", "nowhere"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_terminals_without_greek_letters_get_question_marks(encoding):
    command = [sys.executable, "-m", "gamp_attention", "solve", "--alpha", "1.5", "--rtol", "1e-2"]
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?_t" in done.stdout
    assert done.stdout.decode(encoding).count("stable") > 0


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    data = ga.sample(ga.paper_model(omega=0.0), 60, 2.0, seed=0)
    np.savez(path, tokens=data.tokens, outputs=data.outputs, positions=data.positions)
    np.savez(path.with_name("teacher.npz"), Q=data.Q_star)
    noise = 0.3 * np.random.default_rng(5).standard_normal(data.outputs.shape)
    np.savez(path.with_name("noisy.npz"), tokens=data.tokens, outputs=data.outputs + noise, positions=data.positions)
    return path


def test_law_reports_departures_and_predicts(arrays, capsys):
    teacher = str(arrays.with_name("teacher.npz"))
    assert main(["law", str(arrays), "--teacher", teacher, "--alphas", "1.5", "3", "--json", "-"]) == 0
    found = capsys.readouterr()
    stored = json.loads(found.out)
    assert "correlation of tokens" in found.err
    about = rf"Predicted for a teacher with the weights of {re.escape(teacher)}, score noise 0 and λ = 0.01:"
    assert re.search(about + r"\n[^\n]+\n  1.5 +\d\S+\(\d+\) +\d\S+\(\d+\) +converged", found.err)
    assert [each["alpha"] for each in stored["predicted"]] == [1.5, 3.0]
    assert stored["predicted"][1]["test_error"] < stored["predicted"][0]["test_error"]
    assert stored["noise"] == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize(("more", "named"), [(["--alphas", "0"], "--alphas"), (["--noise", "-1"], "noise")])
def test_bad_options_of_law_are_named(arrays, more, named, capsys):
    assert main(["law", str(arrays), *more]) == 2
    assert named in capsys.readouterr().err


def test_the_part_of_the_outputs_that_predictions_lack_is_stated(arrays, capsys):
    """Outputs with noise in all dimensions: most of it is outside of the span of the tokens."""
    assert main(["law", str(arrays)]) == 0
    assert "outside of the span of the tokens" not in capsys.readouterr().out
    assert main(["law", str(arrays.with_name("noisy.npz"))]) == 0
    (mean_square,) = re.findall(r"Its mean square (\S+) adds to the test error", capsys.readouterr().out)
    assert float(mean_square) == pytest.approx(0.09 * 58 / 60, rel=0.05)


@pytest.fixture
def deaf():
    """The address of a socket that takes no more connections and refuses none."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listening.getsockname())
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        for each in waiting:
            each.close()


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("deaf", "no answer within 1.5 s"), ("127.0.0.1:9", "refused"), ("tcp://localhost", "got 'tcp://localhost'"),
        ("tcp://no.such.host.invalid:8786", "no.such.host.invalid"), ("tcp://localhost:99999", "Port out of range"),
    ],
)  # fmt: skip
def test_a_dask_scheduler_that_cannot_be_reached_is_reported_immediately(address, why, deaf, tmp_path, capsys):
    assert main(["sweep", str(tmp_path / "cells"), "--dask", deaf if address == "deaf" else address]) == 2
    assert not list(tmp_path.iterdir())
    message = capsys.readouterr().err
    assert "--dask: needs the address of a dask scheduler that answers, such as tcp://HOST:8786, got" in message
    assert why in message
