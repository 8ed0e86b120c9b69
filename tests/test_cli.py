"""The command line: results, files, exit statuses."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gamp_attention as ga
from gamp_attention.cli import main
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


def test_solve_and_trajectory(capsys):
    assert main(["solve", "--alpha", "1.0", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "converged"
    assert main(["trajectory", "--n-iter", "2", "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["q"]) == 3


def bad_files(folder):
    """Commands that must end with 2, and a word that the message must hold."""
    empty, text, pickle, partial, single = (folder / f"{name}.npz" for name in "abcde")
    empty.write_bytes(b"")
    text.write_text("tokens")
    np.savez(pickle, tokens=np.array([{}], dtype=object), outputs=1, positions=1)
    np.savez(partial, tokens=np.ones((2, 2, 3)))
    with single.open("wb") as file:
        np.save(file, np.ones(3))
    truncated = folder / "t.npz"
    np.savez(truncated, tokens=np.ones((9, 2, 9)), outputs=np.ones((9, 2, 9)), positions=np.ones((2, 9)))
    truncated.write_bytes(truncated.read_bytes()[:-40])
    nan = folder / "n.npz"
    np.savez(nan, tokens=np.full((2, 2, 3), np.nan), outputs=np.ones((2, 2, 3)), positions=np.ones((2, 3)))
    return [
        (["fit", str(folder / "none.npz")], "no such file"),
        (["fit", str(empty)], "a.npz"),
        (["fit", str(text)], "b.npz"),
        (["fit", str(pickle)], "c.npz"),
        (["fit", str(partial)], "outputs, positions"),
        (["fit", str(single)], "e.npz"),
        (["fit", str(truncated)], "t.npz"),
        (["fit", str(nan)], "tokens"),
        (["fit", str(folder)], str(folder)),
        (["compare", "--omega", "2"], "omega"),
        (["compare", "--d", "0"], "d:"),
        (["compare", "--alpha", "-1"], "alpha"),
        (["compare", "--plot", str(folder / "missing" / "c.png")], "cannot be written"),
        (["solve", "--json", str(folder)], "cannot be written"),
        (["solve", "--lam", "0"], "lam"),
        (["trajectory", "--damping", "0"], "damping"),
    ]


def test_bad_input_ends_with_2_and_names_the_culprit(tmp_path, capsys):
    for command, word in bad_files(tmp_path):
        before = sorted(tmp_path.iterdir())
        assert main(command) == 2, command
        message = capsys.readouterr().err
        assert word in message, (command, message)
        assert "Traceback" not in message
        assert sorted(tmp_path.iterdir()) == before


def test_the_installed_command(tmp_path):
    command = Path(sys.executable).with_name("gamp-attention")
    done = subprocess.run([command, "solve", "--init", "nowhere"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_import_is_light():
    """Neither torch nor matplotlib is loaded by the package alone."""
    code = "import sys, gamp_attention; print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
