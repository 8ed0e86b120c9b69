"""The commands of the theory and of sweeps: results, files, exit statuses."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import gamp_attention as ga
from gamp_attention.extensions.cli.main import main


@pytest.mark.slow
def test_compare_draws_and_reports(tmp_path, capsys, monkeypatch, quick_comparisons):
    monkeypatch.setattr(
        "gamp_attention.extensions.cli.paper_model.compare", partial(ga.compare, rtol=1e-2)
    )  # less work
    picture, numbers = tmp_path / "c.png", tmp_path / "c.json"
    command = ["compare", "--d", "60", "--seed", "1", "--risk", "exact", "--gd-steps", "20"]
    assert main([*command, "--plot", str(picture), "--json", str(numbers)]) in (0, 1)
    out = capsys.readouterr().out
    for words in ("semantic branch", "positional branch", "L-BFGS", "linear baseline", "‖∇R‖"):
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


def test_a_sweep_with_a_lost_solution_is_done(tmp_path, capsys):
    """The status of a batch job is 1 only for cells without an answer: that no solution exists is an answer."""
    command = ["sweep", str(tmp_path / "cells"), "--alpha", "0.3", "--omega", "0.3", "--branch", "semantic"]
    assert main([*command, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"] == {"lost": 1}


@pytest.mark.slow
def test_solve_with_a_step_of_breaking(tmp_path, capsys):
    command = ["solve", "--alpha", "1.5", "--init", "positional", "--rtol", "0.03", "--json", "-"]
    assert main([*command, "--rsb", "1"]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert len(solved["parisi"]) == 1
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
