"""The command line: results, files, exit statuses."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.cli.main import main
from tests.conftest import layer_gradient_norm


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    data = ga.sample(ga.paper_model(), 60, 1.5, seed=0)
    np.savez(path, tokens=data.tokens, outputs=data.outputs, positions=data.positions)
    return path, data


def test_fit_writes_a_critical_point(arrays, capsys):
    path, data = arrays
    assert main(["fit", str(path), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["gradient_norm"] <= 1e-8
    with np.load(path.with_name("mine.fit.npz"), allow_pickle=False) as stored:
        Q, attention = stored["Q"], stored["attention"]
        assert set(stored) >= {"Q", "q", "m", "V", "train_loss", "gradient_norm", "attention", "status"}
    assert layer_gradient_norm(data, Q, "exact") < 1.2e-8
    assert attention.shape == (90, 2, 2)
    assert np.allclose(attention.sum(axis=2), 1)
    assert report["train_loss"] == pytest.approx(ga.train_loss(data, Q, "exact"))


def test_fit_that_does_not_converge_ends_with_1(arrays, tmp_path):
    path, _ = arrays
    out = tmp_path / "fit.npz"
    assert main(["fit", str(path), "--max-iter", "2", "--out", str(out)]) == 1
    assert str(np.load(out)["status"]) == "max_iter"


def test_fit_goes_on_from_a_checkpoint(arrays, tmp_path, capsys):
    path, _ = arrays
    file = tmp_path / "run.npz"
    assert main(["fit", str(path), "--checkpoint", str(tmp_path / "none" / "run.npz")]) == 2
    assert "checkpoint: needs a file in a folder that exists" in capsys.readouterr().err
    outs = [tmp_path / name for name in ("whole.npz", "cut.npz")]
    assert main(["fit", str(path), "--out", str(outs[0])]) == 0
    there = ["fit", str(path), "--checkpoint", str(file), "--checkpoint-every", "0", "--out", str(outs[1])]
    assert main([*there, "--max-iter", "7"]) == 1
    assert file.exists()
    assert main(there) == 0
    assert np.array_equal(np.load(outs[0])["Q"], np.load(outs[1])["Q"])


def test_compare_draws_and_reports(tmp_path, capsys):
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


def test_solve_and_trajectory_write_json(capsys):
    assert main(["solve", "--alpha", "1.0", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "converged"
    assert main(["trajectory", "--n-iter", "2", "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["q"]) == 3


def test_the_installed_command_refuses_a_bad_flag(tmp_path):
    command = Path(sys.executable).with_name("gamp-attention")
    done = subprocess.run([command, "solve", "--init", "nowhere"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
